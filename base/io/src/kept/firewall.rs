//! The rules of nftables and of `iptables-legacy` that drop what a program depends on.

mod forwarded;
mod saved;

pub use forwarded::{ForwardedPass, Traffic};

use super::{Item, Problem};
use crate::interface::{self, name_matches};
use crate::program::{self, ProgramError};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;

/// The IP versions that a rule concerns, before the word that they describe.
const IPV4: &str = "IPv4 ";
const IPV6: &str = "IPv6 ";

/// The time after which rules are read again without a notification of a change.
const REREAD: Duration = Duration::from_secs(30);

/// The minimum time between two readings, however often the rules change.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// The time after which rules are read again if they could not be read.
const FAILED_PAUSE: Duration = Duration::from_secs(10);

/// The time after which `nft` is killed.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// The rules as last read.
#[derive(Debug, Default)]
pub struct Rules {
    known: Arc<Ruleset>,
    reading: Option<Reading>,
    /// Whether there was a notification of a change since then.
    have_changed: bool,
}

/// The last attempt to read the rules.
#[derive(Debug)]
struct Reading {
    ended: Instant,
    has_failed: bool,
}

impl Rules {
    /// Returns the rules, which are read if they may have changed. Without nftables there are none.
    /// While they cannot be read, the last ones are used.
    pub fn current(&mut self) -> Arc<Ruleset> {
        if self.is_due(Instant::now()) {
            let read = Ruleset::read();
            self.take(read, Instant::now());
        }
        Arc::clone(&self.known)
    }

    fn is_due(&self, now: Instant) -> bool {
        self.reading.as_ref().is_none_or(|reading| {
            let pause = match self.have_changed {
                _ if reading.has_failed => FAILED_PAUSE,
                true => READ_PAUSE,
                false => REREAD,
            };
            now.saturating_duration_since(reading.ended) >= pause
        })
    }

    fn take(&mut self, read: Option<Ruleset>, ended: Instant) {
        let before = self.reading.replace(Reading {
            ended,
            has_failed: read.is_none(),
        });
        match read {
            Some(rules) => (self.known, self.have_changed) = (Arc::new(rules), false),
            None if before.is_some_and(|before| !before.has_failed) => {
                warn!(
                    "`nft` cannot list the rules of the firewall: the last ones that it listed are assumed"
                );
            }
            None => {}
        }
    }

    pub(super) fn have_changed(&mut self) {
        self.have_changed = true;
    }
}

/// The programs that print the rules of the older kernel interface of `iptables`, with the family of
/// nftables and the file that names the tables.
const LEGACY: [(&str, &str, &str); 2] = [
    ("iptables-legacy-save", "ip", "ip_tables_names"),
    ("ip6tables-legacy-save", "ip6", "ip6_tables_names"),
];

/// The programs that print the rules of `iptables-nft` whole. In the listing of nftables, some matches
/// have no parameters.
const TRANSLATED: [(&str, &str); 2] = [("iptables-nft-save", "ip"), ("ip6tables-nft-save", "ip6")];

/// The rules of the calling thread's network namespace, as `nft --json list ruleset` and
/// `iptables-legacy-save` show them.
#[derive(Debug, Clone, Default)]
pub struct Ruleset {
    chains: Vec<Chain>,
    /// The programs that are missing, or failed, although there are rules that they show.
    unread: Vec<&'static str>,
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
    /// The program that changes the rules, if it is another one than `nft`.
    tool: Option<&'static str>,
}

impl Ruleset {
    /// Reads the rules. `None` if `nft` cannot list them. Without nftables there are those of
    /// `iptables-legacy` at most.
    pub fn read() -> Option<Ruleset> {
        let arguments = ["--json", "--stateless", "--terse", "list", "ruleset"];
        let mut rules = match output("nft", &arguments) {
            Ok(listing) => Ruleset::parse(&listing)?,
            Err(ProgramError::Missing { .. }) => Ruleset::default(),
            Err(_) => return None,
        };
        for (program, family) in TRANSLATED {
            if rules.has_opaque_filters(family) {
                let text = output(program, &[]).ok();
                rules.add(program, family, "iptables", text);
            }
        }
        for (program, family, names) in LEGACY {
            let names = fs::read_to_string(format!("/proc/thread-self/net/{names}"));
            if names.is_ok_and(|names| !names.is_empty()) {
                let text = output(program, &[]).ok();
                rules.add(program, family, "iptables-legacy", text);
            }
        }
        Some(rules)
    }

    /// Returns whether a reverse path filter of a family is shown without its parameters.
    fn has_opaque_filters(&self, family: &str) -> bool {
        let chains = self.chains.iter().filter(|chain| chain.family == family);
        let mut rules = chains.flat_map(|chain| &chain.rules);
        rules.any(|rule| expressions(rule).any(|found| found["xt"]["name"] == "rpfilter"))
    }

    /// Adds the rules that a program has printed, in place of those of nftables with the same chains.
    fn add(
        &mut self,
        program: &'static str,
        family: &str,
        tool: &'static str,
        text: Option<Vec<u8>>,
    ) {
        let Some(text) = text else {
            self.unread.push(program);
            return;
        };
        let added = saved::chains(&String::from_utf8_lossy(&text), family, tool);
        let key = |chain: &Chain| {
            (
                chain.family.clone(),
                chain.table.clone(),
                chain.name.clone(),
            )
        };
        if tool == "iptables" {
            let is_added = |chain: &Chain| added.iter().any(|added| key(added) == key(chain));
            self.chains.retain(|chain| !is_added(chain));
        }
        self.chains.extend(added);
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
                tool: None,
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
        Some(Ruleset {
            chains,
            unread: Vec::new(),
        })
    }

    /// Returns the chain that another one jumps to.
    fn chain(&self, from: &Chain, name: &str) -> Option<&Chain> {
        let mut chains = self.chains.iter();
        chains.find(|chain| chain.table() == from.table() && chain.name == name)
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
                let is_same_table = other.table() == chain.table();
                let is_known = found.iter().any(|known| std::ptr::eq(*known, other));
                if is_same_table && targets.contains(other.name.as_str()) && !is_known {
                    found.push(other);
                }
            }
        }
        found
    }
}

/// Returns the output of a program that lists rules.
fn output(program: &str, arguments: &[&str]) -> Result<Vec<u8>, ProgramError> {
    program::output(Command::new(program).args(arguments), "", READ_LIMIT)
}

impl Chain {
    fn place(&self) -> String {
        let Chain {
            name,
            family,
            table,
            ..
        } = self;
        match self.command() {
            None => format!("chain {name} of the nftables table {family} {table}"),
            Some(command) => format!("chain {name} of the table {table} of {command}"),
        }
    }

    /// Returns the program that changes the rules, if it is another one than `nft`.
    fn command(&self) -> Option<String> {
        let version = if self.family == "ip6" { "ip6" } else { "ip" };
        Some(self.tool?.replacen("ip", version, 1))
    }

    /// Returns the table, which chains jump within.
    fn table(&self) -> (&str, &str, Option<&str>) {
        (&self.family, &self.table, self.tool)
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

/// Returns the conditions of a rule. That of an extension of `iptables` has no parameters.
fn matches(rule: &Value) -> impl Iterator<Item = &Value> {
    expressions(rule).filter_map(|expression| {
        let of_extension = || expression.get("xt").filter(|xt| xt["type"] == "match");
        expression.get("match").or_else(of_extension)
    })
}

fn has(rule: &Value, statement: &str) -> bool {
    expressions(rule).any(|expression| expression.get(statement).is_some())
}

fn drops(rule: &Value) -> bool {
    let is_reject = |found: &Value| found["xt"]["name"] == "REJECT";
    has(rule, "drop") || has(rule, "reject") || expressions(rule).any(is_reject)
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
        let name = NoReversePathRule::NAME;
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
        let words = match chain.tool {
            None => "fib saddr . iif",
            Some(_) => "-m rpfilter",
        };
        Some(Problem {
            what: format!(
                "a rule in {place} (`{words}`) drops {version}packets {lost}"
            ),
            advice: match chain.table.as_str() {
                _ if chain.tool.is_some() => format!(
                    "add `--loose` to the rule, or accept packets of {} before it",
                    self.interfaces.join(", ")
                ),
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
    /// The name of the item, before its interface.
    pub const NAME: &str = "reverse path filter of the firewall";

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

/// The rules that are present, which should all have been read.
#[derive(Debug)]
pub struct AllRules {
    /// The rules.
    pub rules: Arc<Ruleset>,
}

impl Item for AllRules {
    fn name(&self) -> String {
        "rules of iptables".to_owned()
    }

    fn examine(&self) -> Option<Problem> {
        let unread = &self.rules.unread;
        (!unread.is_empty()).then(|| Problem {
            what: "there are rules of iptables that are not read, so that it is unknown whether they drop packets"
                .to_owned(),
            advice: format!("install {}", unread.join(" and ")),
        })
    }
}

/// The listings are those of nftables 1.0.6 and iptables 1.8.9.
#[cfg(test)]
mod tests {
    use super::*;

    /// The output of `nft` 1.0.6 for a chain of `iptables-nft` 1.8.9 with the policy `drop` and these
    /// rules.
    fn listing(rules: &[&str]) -> String {
        let rules = rules.iter().map(|expressions| {
            format!(
                r#", {{"rule": {{"family": "ip", "table": "filter", "chain": "FORWARD", "handle": 5, "expr": [{expressions}]}}}}"#
            )
        });
        format!(
            r#"{{"nftables": [{{"metainfo": {{"version": "1.0.6", "json_schema_version": 1}}}},
            {{"chain": {{"family": "ip", "table": "filter", "name": "FORWARD", "handle": 1, "type": "filter",
            "hook": "forward", "prio": 0, "policy": "drop"}}}}{}]}}"#,
            rules.collect::<String>()
        )
    }

    fn passes(rules: &[&str]) -> bool {
        let rules = Ruleset::parse(listing(rules).as_bytes()).unwrap();
        let pass = ForwardedPass {
            interface: "wan0".to_owned(),
            traffic: Traffic::OpenedFrom,
            networks: Vec::new(),
            consequence: String::new(),
            rules: Arc::new(rules),
        };
        pass.examine().is_none()
    }

    #[test]
    fn a_rule_of_iptables_with_a_hidden_condition_is_not_for_all() {
        let established = r#"{"xt": {"type": "match", "name": "conntrack"}}, {"counter": null}, {"accept": null}"#;
        let echoes = r#"{"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "icmp"}},
            {"xt": {"type": "match", "name": "icmp"}}, {"counter": null}, {"accept": null}"#;
        let limited = r#"{"limit": {"rate": 3, "burst": 5, "per": "minute"}}, {"accept": null}"#;
        assert!(!passes(&[established, echoes, limited]));
        let named = r#"{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "wan0"}}, {"accept": null}"#;
        assert!(passes(&[established, named]));
        let commented =
            r#"{"xt": {"type": "match", "name": "comment"}}, {"counter": null}, {"accept": null}"#;
        assert!(passes(&[established, commented]));
    }

    #[test]
    fn a_chain_that_ends_with_a_condition_does_not_drop_the_rest() {
        let ends_with = |last: &str| {
            let text = listing(&[last]).replace(r#""policy": "drop""#, r#""policy": "accept""#);
            blocked(&nftables(&text), "wan0", "10.77.0.0/16").is_some()
        };
        let invalid =
            r#"{"xt": {"type": "match", "name": "conntrack"}}, {"counter": null}, {"drop": null}"#;
        assert!(!ends_with(invalid));
        assert!(ends_with(r#"{"counter": null}, {"drop": null}"#));
        let reject = r#"{"counter": null}, {"xt": {"type": "target", "name": "REJECT"}}"#;
        assert!(ends_with(reject));
    }

    #[test]
    fn rules_that_cannot_be_read_stay_as_they_were() {
        let mut rules = Rules::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert!(rules.is_due(start));
        rules.take(Ruleset::parse(listing(&[]).as_bytes()), start);
        assert!(!rules.is_due(after(29)) && rules.is_due(after(30)));
        rules.have_changed();
        assert!(!rules.is_due(start) && rules.is_due(after(1)));
        rules.take(None, after(1));
        assert_eq!(rules.known.chains.len(), 1);
        assert!(!rules.is_due(after(10)) && rules.is_due(after(11)));
        rules.take(Some(Ruleset::default()), after(11));
        assert!(rules.known.chains.is_empty() && !rules.is_due(after(40)));
    }

    fn nftables(json: &str) -> Ruleset {
        Ruleset::parse(json.as_bytes()).unwrap()
    }

    fn saved(text: &str, family: &str, tool: &'static str) -> Ruleset {
        let mut rules = Ruleset::default();
        rules.add("iptables-save", family, tool, Some(text.into()));
        rules
    }

    fn strict(rules: &Ruleset, interface: &str) -> Option<Problem> {
        let item = NoReversePathRule {
            interfaces: vec![interface.to_owned()],
            peers: None,
            rules: Arc::new(rules.clone()),
        };
        item.examine()
    }

    fn blocked(rules: &Ruleset, interface: &str, network: &str) -> Option<Problem> {
        let item = ForwardedPass {
            interface: interface.to_owned(),
            traffic: Traffic::OpenedFrom,
            networks: vec![network.to_owned()],
            consequence: "nothing is forwarded".to_owned(),
            rules: Arc::new(rules.clone()),
        };
        item.examine()
    }

    #[test]
    fn rules_of_firewalld_are_understood() {
        let rules = nftables(include_str!("firewall/firewalld.json"));
        let Problem { what, advice } = strict(&rules, "eth0").unwrap();
        let place = "chain filter_PREROUTING of the nftables table inet firewalld";
        assert!(
            what.contains(place) && what.contains("drops IPv6 packets"),
            "{what}"
        );
        assert!(advice.contains("IPv6_rpfilter=loose"), "{advice}");
        let Problem { what, .. } = blocked(&rules, "tun0", "10.77.0.0/16").unwrap();
        assert!(
            what.contains("filter_FORWARD"),
            "a reject rule is the last: {what}"
        );
    }

    #[test]
    fn rules_of_nixos_accept_what_has_a_route_back() {
        let rules = nftables(include_str!("firewall/nixos.json"));
        let Problem { what, advice } = strict(&rules, "eth0").unwrap();
        assert!(
            what.contains("chain rpfilter of the nftables table inet nixos-fw"),
            "{what}"
        );
        assert!(advice.contains("checkReversePath"), "{advice}");
        assert_eq!(blocked(&rules, "tun0", "10.77.0.0/16"), None);
    }

    #[test]
    fn rules_of_iptables_legacy_are_understood() {
        let rules = saved(include_str!("firewall/legacy.txt"), "ip", "iptables-legacy");
        let Problem { what, advice } = strict(&rules, "wan0").unwrap();
        assert!(
            what.contains("PREROUTING of the table raw of iptables-legacy (`-m rpfilter`)"),
            "{what}"
        );
        assert!(advice.contains("--loose"), "{advice}");
        assert_eq!(strict(&rules, "lan0"), None, "the other rule is loose");
        let Problem { advice, .. } = blocked(&rules, "tun0", "10.78.0.0/16").unwrap();
        assert!(
            advice.contains("`iptables-legacy -t filter -I FORWARD -i tun0 -j ACCEPT`"),
            "{advice}"
        );
        assert!(
            blocked(&rules, "wan0", "10.78.0.0/16").is_some(),
            "the rule is for another network"
        );
        assert_eq!(blocked(&rules, "docker0", "10.78.0.0/16"), None);
    }

    #[test]
    fn rules_of_iptables_nft_are_read_from_what_it_prints() {
        let mut rules = nftables(include_str!("firewall/iptables-nft.json"));
        assert!(rules.has_opaque_filters("ip") && !rules.has_opaque_filters("ip6"));
        assert_eq!(strict(&rules, "wan0"), None, "parameters are not shown");
        let of_ipv6 = blocked(&rules, "tun0", "fd77::/64").unwrap().what;
        assert!(
            of_ipv6.contains("ip6 filter"),
            "only connections are accepted: {of_ipv6}"
        );
        let text = include_str!("firewall/iptables-nft.txt").to_owned();
        rules.add("iptables-nft-save", "ip", "iptables", Some(text.into()));
        let what = strict(&rules, "wan0").unwrap().what;
        assert!(what.contains("table raw of iptables"), "{what}");
        assert_eq!(strict(&rules, "lan0"), None, "the other rule is loose");
    }

    #[test]
    fn rules_that_no_program_shows_are_named() {
        let all = |rules: &Ruleset| {
            let rules = Arc::new(rules.clone());
            AllRules { rules }.examine()
        };
        let mut rules = Ruleset::default();
        assert_eq!(all(&rules), None);
        rules.add("iptables-legacy-save", "ip", "iptables-legacy", None);
        assert_eq!(all(&rules).unwrap().advice, "install iptables-legacy-save");
    }
}
