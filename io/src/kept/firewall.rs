//! The rules of nftables, among them those of `iptables-nft`, that drop what a program depends on.

use super::{Item, Problem};
use crate::interface::{self, name_matches};
use serde_json::Value;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The IP versions that a rule concerns, before the word that they describe.
const IPV4: &str = "IPv4 ";
const IPV6: &str = "IPv6 ";

/// The time after which rules are read again without a notification of a change.
const REREAD: Duration = Duration::from_secs(30);

/// The rules as last read.
#[derive(Debug, Default)]
pub struct Rules(Option<(Instant, Arc<Ruleset>)>);

impl Rules {
    /// Returns the rules, which are read if they may have changed. Without nftables there are none.
    pub fn current(&mut self) -> Arc<Ruleset> {
        let (read, rules) = match self.0.take() {
            Some((read, rules)) if read.elapsed() < REREAD => (read, rules),
            _ => (
                Instant::now(),
                Arc::new(Ruleset::read().unwrap_or_default()),
            ),
        };
        self.0 = Some((read, Arc::clone(&rules)));
        rules
    }

    pub(super) fn have_changed(&mut self) {
        self.0 = None;
    }
}

/// The rules of the calling thread's network namespace, as `nft --json list ruleset` shows them.
#[derive(Debug, Clone, Default)]
pub struct Ruleset {
    chains: Vec<Chain>,
}

/// A chain with its rules.
#[derive(Debug, Clone)]
struct Chain {
    family: String,
    table: String,
    name: String,
    /// The hook of a base chain.
    hook: Option<String>,
    is_dropping: bool,
    rules: Vec<Value>,
}

impl Ruleset {
    /// Reads the rules. `None` if there is no nftables, or this process may not read them.
    pub fn read() -> Option<Ruleset> {
        let mut command = Command::new("nft");
        command.args(["--json", "--stateless", "--terse", "list", "ruleset"]);
        let output = command.output().ok()?;
        let is_listed = output.status.success();
        is_listed.then(|| Ruleset::parse(&output.stdout)).flatten()
    }

    fn parse(json: &[u8]) -> Option<Ruleset> {
        let all: Value = serde_json::from_slice(json).ok()?;
        let objects = all.get("nftables")?.as_array()?;
        let text = |object: &Value, key: &str| {
            object
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let of = |object: &Value| (text(object, "family"), text(object, "table"));
        let mut chains: Vec<Chain> = Vec::new();
        for chain in objects.iter().filter_map(|object| object.get("chain")) {
            let (family, table) = of(chain);
            chains.push(Chain {
                family,
                table,
                name: text(chain, "name"),
                hook: chain.get("hook").and_then(Value::as_str).map(str::to_owned),
                is_dropping: text(chain, "policy") == "drop",
                rules: Vec::new(),
            });
        }
        for rule in objects.iter().filter_map(|object| object.get("rule")) {
            let (family, table) = of(rule);
            let name = text(rule, "chain");
            let mut chains = chains.iter_mut();
            let chain = chains.find(|chain| {
                (&chain.family, &chain.table, &chain.name) == (&family, &table, &name)
            });
            if let (Some(chain), Some(expressions)) = (chain, rule.get("expr")) {
                chain.rules.push(expressions.clone());
            }
        }
        Some(Ruleset { chains })
    }

    /// Returns the chains of a hook and those that they jump to.
    fn at<'r>(&'r self, hook: &str) -> Vec<&'r Chain> {
        let base = self
            .chains
            .iter()
            .filter(|chain| chain.hook.as_deref() == Some(hook));
        let mut found: Vec<&Chain> = base.collect();
        let mut next = 0;
        while let Some(chain) = found.get(next).copied() {
            next += 1;
            let targets: BTreeSet<&str> = chain.rules.iter().flat_map(targets).collect();
            for other in &self.chains {
                let is_same_table = (&other.family, &other.table) == (&chain.family, &chain.table);
                let is_known = found.iter().any(|known| std::ptr::eq(*known, other));
                if is_same_table && targets.contains(other.name.as_str()) && !is_known {
                    found.push(other);
                }
            }
        }
        found
    }
}

impl Chain {
    fn place(&self) -> String {
        format!(
            "chain {} of the nftables table {} {}",
            self.name, self.family, self.table
        )
    }

    /// Returns whether the chain drops packets that no rule has accepted: by its policy or by its last
    /// rule.
    fn drops_the_rest(&self) -> bool {
        let ends_with_drop = |rule: &Value| drops(rule) && matches(rule).next().is_none();
        self.is_dropping || self.rules.last().is_some_and(ends_with_drop)
    }

    /// Returns the IP versions that a rule of this chain concerns, as a word.
    fn version(&self, rule: &Value) -> &'static str {
        let named = matches(rule).find(|found| found["left"]["meta"]["key"] == "nfproto");
        let named = named.and_then(|found| found["right"].as_str());
        match (self.family.as_str(), named) {
            ("ip", _) | (_, Some("ipv4")) => IPV4,
            ("ip6", _) | (_, Some("ipv6")) => IPV6,
            _ => "",
        }
    }
}

fn expressions(rule: &Value) -> impl Iterator<Item = &Value> {
    rule.as_array().into_iter().flatten()
}

fn matches(rule: &Value) -> impl Iterator<Item = &Value> {
    expressions(rule).filter_map(|expression| expression.get("match"))
}

fn has(rule: &Value, statement: &str) -> bool {
    expressions(rule).any(|expression| expression.get(statement).is_some())
}

fn drops(rule: &Value) -> bool {
    has(rule, "drop") || has(rule, "reject")
}

fn targets(rule: &Value) -> impl Iterator<Item = &str> {
    let targets = expressions(rule).filter_map(|expression| {
        let jump = expression.get("jump").or_else(|| expression.get("goto"));
        jump?.get("target")?.as_str()
    });
    targets.chain(verdict_targets(rule))
}

/// Returns the chains that the verdict maps of a rule lead to.
fn verdict_targets(rule: &Value) -> impl Iterator<Item = &str> {
    let maps = expressions(rule).filter_map(|expression| expression.get("vmap"));
    let entries = maps.filter_map(|map| map["data"]["set"].as_array());
    entries.flatten().filter_map(|entry| {
        let verdict = entry.get(1)?;
        let jump = verdict.get("jump").or_else(|| verdict.get("goto"));
        jump?.get("target")?.as_str()
    })
}

/// Returns whether a rule may concern packets that arrive on an interface.
fn may_arrive_on(rule: &Value, interface: &str) -> bool {
    let mut named = matches(rule).filter(|found| {
        let key = &found["left"]["meta"]["key"];
        key == "iifname" || key == "iif"
    });
    named.all(|found| {
        let is_listed = strings(&found["right"])
            .iter()
            .any(|name| name_matches(name, interface));
        is_listed == (found["op"] != "!=")
    })
}

/// Returns all strings in a value.
fn strings(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text.as_str()],
        Value::Array(values) => values.iter().flat_map(strings).collect(),
        Value::Object(fields) => fields.values().flat_map(strings).collect(),
        _ => Vec::new(),
    }
}

/// Rules that drop packets which arrive on another interface than the route back takes, as a strict
/// reverse path filter does: firewalld and NixOS install such rules.
#[derive(Debug)]
pub struct NoReversePathRule {
    /// The interfaces that packets arrive on by another path than the route back.
    pub interfaces: Vec<String>,
    /// The addresses whose packets are to arrive on the interfaces. Without them, packets may be of any
    /// address.
    pub peers: Option<Vec<IpAddr>>,
    /// The rules.
    pub rules: Arc<Ruleset>,
}

impl Item for NoReversePathRule {
    fn name(&self) -> String {
        let name = "reverse path filter of the firewall";
        match self.interface() {
            Some(interface) => format!("{name} on {interface}"),
            None => name.to_owned(),
        }
    }

    fn interface(&self) -> Option<&str> {
        match self.interfaces.as_slice() {
            [one] if self.peers.is_some() => Some(one),
            _ => None,
        }
    }

    fn examine(&self) -> Option<Problem> {
        let chains = self.rules.at("prerouting").into_iter();
        let mut rules = chains.flat_map(|chain| chain.rules.iter().map(move |rule| (chain, rule)));
        let found = rules.find_map(|(chain, rule)| {
            if !self.is_strict(chain, rule) {
                return None;
            }
            let version = chain.version(rule);
            Some((chain, version, self.lost(version, rule)?))
        });
        let (chain, version, lost) = found?;
        let place = chain.place();
        Some(Problem {
            what: format!(
                "a rule in {place} (`fib saddr . iif`) drops {version}packets {lost}"
            ),
            advice: match chain.table.as_str() {
                "firewalld" => "set `IPv6_rpfilter=loose` (`no` before firewalld 2.2) in /etc/firewalld/firewalld.conf, and \
                     restart firewalld"
                    .to_owned(),
                _ => format!(
                    "take `iif` out of the rule (loose), or accept packets of {} before it; on NixOS, set \
                     `networking.firewall.checkReversePath = \"loose\"`",
                    self.interfaces.join(", ")
                ),
            },
        })
    }
}

impl NoReversePathRule {
    /// Returns the packets that a strict rule for this IP version drops, as a clause.
    fn lost(&self, version: &str, rule: &Value) -> Option<String> {
        let Some(peers) = &self.peers else {
            return Some("that arrive on another interface than the route back takes".to_owned());
        };
        let own = interface::own_addresses().ok()?;
        let arriving = |name: &&String| may_arrive_on(rule, name);
        let mut interfaces = self.interfaces.iter().filter(arriving);
        interfaces.find_map(|name| {
            peers.iter().find_map(|peer| {
                let is_other = version == if peer.is_ipv4() { IPV6 } else { IPV4 };
                if is_other || !interface::has_family_of(&own, name, *peer) {
                    return None;
                }
                let back = interface::route(*peer, None).map(|route| route.interface);
                let back = back.unwrap_or_else(|_| "no interface".to_owned());
                let clause = || {
                    format!("from {peer} that arrive on {name}, because the route back leads over {back}")
                };
                (back != *name).then(clause)
            })
        })
    }

    /// Returns whether a rule drops packets without a route back by the interface on which they came, or
    /// accepts only the others.
    fn is_strict(&self, chain: &Chain, rule: &Value) -> bool {
        let mut interfaces = self.interfaces.iter();
        let concerns = interfaces.any(|interface| may_arrive_on(rule, interface));
        let mut lookups = matches(rule).filter(|found| {
            let fib = &found["left"]["fib"];
            let flags = strings(&fib["flags"]);
            fib["result"] != "type" && flags.contains(&"saddr") && flags.contains(&"iif")
        });
        concerns
            && lookups.any(|found| {
                let right = &found["right"];
                let is_none = matches!(right, Value::Bool(false)) || right == "0" || right == 0;
                let finds_none = is_none == (found["op"] != "!=");
                match finds_none {
                    true => drops(rule),
                    false => has(rule, "accept") && chain.is_dropping,
                }
            })
    }
}

/// The rules for forwarded packets, which should let those of an interface pass: Docker and others set
/// the policy of the chain FORWARD to drop.
#[derive(Debug)]
pub struct ForwardedPass {
    /// The interface.
    pub interface: String,
    /// The networks behind it, as in `10.77.0.0/16`.
    pub networks: Vec<String>,
    /// The consequence, as in `clients reach nothing but this server`.
    pub consequence: String,
    /// The rules.
    pub rules: Arc<Ruleset>,
}

impl Item for ForwardedPass {
    fn name(&self) -> String {
        format!("forwarding of {} through the firewall", self.interface)
    }

    fn examine(&self) -> Option<Problem> {
        let chains = self.rules.at("forward");
        let base = chains.iter().filter(|chain| chain.hook.is_some());
        let mut blocking = base.filter(|chain| {
            let same = chains
                .iter()
                .filter(|other| (&other.family, &other.table) == (&chain.family, &chain.table));
            let mut rules = same.flat_map(|chain| &chain.rules);
            chain.drops_the_rest() && !rules.any(|rule| self.accepts(rule))
        });
        let chain = blocking.next()?;
        let Chain {
            family,
            table,
            name,
            ..
        } = chain;
        let interface = &self.interface;
        Some(Problem {
            what: format!(
                "{} drops forwarded packets: {}",
                chain.place(),
                self.consequence
            ),
            advice: format!(
                "accept those of {interface}: `nft insert rule {family} {table} {name} iifname {interface} accept` and `nft \
                 insert rule {family} {table} {name} oifname {interface} accept`, and so in the configuration of the firewall"
            ),
        })
    }
}

impl ForwardedPass {
    /// Returns whether a rule accepts packets of the interface: it names it or a network behind it, or
    /// nothing at all.
    fn accepts(&self, rule: &Value) -> bool {
        let mut found = matches(rule).peekable();
        let is_for_all = found.peek().is_none();
        let names = |text: &&str| name_matches(text, &self.interface);
        let is_network = |prefix: &Value| {
            let (first, length) = (prefix["addr"].as_str(), &prefix["len"]);
            let text = format!("{}/{length}", first.unwrap_or_default());
            self.networks.contains(&text)
        };
        let concerns = |found: &Value| {
            let right = &found["right"];
            strings(right).iter().any(names) || right.get("prefix").is_some_and(is_network)
        };
        has(rule, "accept") && (is_for_all || found.any(concerns))
    }
}
