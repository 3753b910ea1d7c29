//! The rules for forwarded packets. Whether a rule matches is not always known here: sets are listed
//! without their elements, and the other interface of a packet may be any.

use super::{Chain, Ruleset, strings};
use crate::interface::name_matches;
use crate::kept::{Item, Problem};
use hawser_units::Prefix;
use serde_json::Value;
use std::net::IpAddr;
use std::sync::Arc;

/// The largest depth of jumps, as in the kernel.
const MAX_JUMPS: usize = 16;

/// The rules for forwarded packets, which should let those of an interface pass: Docker and others set
/// the policy of the chain FORWARD to drop.
#[derive(Debug)]
pub struct ForwardedPass {
    /// The interface.
    pub interface: String,
    /// The packets that should pass.
    pub traffic: Traffic,
    /// The networks that they come from, as in `10.77.0.0/16`. Without them, from any.
    pub networks: Vec<String>,
    /// The consequence, as in `clients reach nothing but this server`.
    pub consequence: String,
    /// The rules.
    pub rules: Arc<Ruleset>,
}

/// The packets of an interface that should be forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Those that arrive on it, without answers.
    Arriving,
    /// Those of connections that are opened by packets that arrive on it.
    OpenedFrom,
    /// Those of connections that are opened by packets that leave by it.
    OpenedTo,
}

impl Item for ForwardedPass {
    fn name(&self) -> String {
        format!("forwarding of {} through the firewall", self.interface)
    }

    fn examine(&self) -> Option<Problem> {
        let chain = self.blocking()?;
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
            advice: match chain.command() {
                None => format!(
                    "accept those of {interface}: `nft insert rule {family} {table} {name} iifname {interface} accept` and `nft \
                     insert rule {family} {table} {name} oifname {interface} accept`, and so in the configuration of the firewall"
                ),
                Some(command) => format!(
                    "accept those of {interface}: `{command} -t {table} -I {name} -i {interface} -j ACCEPT` and `{command} -t \
                     {table} -I {name} -o {interface} -j ACCEPT`, and so in the configuration of the firewall"
                ),
            },
        })
    }
}

impl ForwardedPass {
    /// Returns a chain that certainly drops the packets.
    fn blocking(&self) -> Option<&Chain> {
        let is_base = |chain: &&Chain| chain.hook.as_deref() == Some("forward");
        let mut base = self.rules.chains.iter().filter(is_base);
        base.find(|chain| {
            let mut packets = self.packets().into_iter().flatten();
            self.may_concern(chain)
                && packets.any(|packet| packet.fate(&self.rules, chain) == Fate::IsDropped)
        })
    }

    /// Returns whether packets pass a chain of its family.
    fn may_concern(&self, chain: &Chain) -> bool {
        let mut networks = self.networks.iter();
        match chain.family.as_str() {
            "inet" => true,
            "ip" | "ip6" if self.networks.is_empty() => true,
            "ip" => networks.any(|network| !network.contains(':')),
            "ip6" => networks.any(|network| network.contains(':')),
            _ => false,
        }
    }

    /// Returns the first packet of a connection, and an answer if there are any.
    fn packets(&self) -> [Option<Packet<'_>>; 2] {
        let is_arriving = self.traffic != Traffic::OpenedTo;
        let networks = self.networks.iter().map(|network| network.parse().ok());
        let first = Packet {
            interface: &self.interface,
            is_arriving,
            is_first: true,
            sources: networks.collect(),
        };
        let answer = (self.traffic != Traffic::Arriving).then(|| Packet {
            interface: &self.interface,
            is_arriving: !is_arriving,
            is_first: false,
            sources: None,
        });
        [Some(first), answer]
    }
}

/// A forwarded packet that arrives on an interface or leaves by it, of any protocol.
struct Packet<'a> {
    interface: &'a str,
    is_arriving: bool,
    /// Whether it is the first one of a connection.
    is_first: bool,
    /// The networks that it comes from, if they are known.
    sources: Option<Vec<Prefix>>,
}

/// The effect of rules on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Passes,
    MayPass,
    IsDropped,
}

/// Whether a rule matches a packet. One for some protocols or ports does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    No,
    Maybe,
    Yes,
}

impl Match {
    fn of(is_so: bool) -> Match {
        if is_so { Match::Yes } else { Match::No }
    }

    fn inverted(self) -> Match {
        match self {
            Match::No => Match::Yes,
            Match::Maybe => Match::Maybe,
            Match::Yes => Match::No,
        }
    }
}

impl Packet<'_> {
    /// Returns what a base chain does with the packet.
    fn fate(&self, rules: &Ruleset, base: &Chain) -> Fate {
        let by_policy = match base.is_dropping {
            true => Fate::IsDropped,
            false => Fate::Passes,
        };
        self.walk(rules, base, Match::Yes, 0).unwrap_or(by_policy)
    }

    /// Returns what a chain does with the packet if it gets there; none if no rule of it decides.
    fn walk(&self, rules: &Ruleset, chain: &Chain, reached: Match, depth: usize) -> Option<Fate> {
        let mut reached = reached;
        let verdicts = chain.rules.iter().flat_map(|rule| self.verdicts(rule));
        for (found, verdict) in verdicts {
            let certainty = found.min(reached);
            let target = verdict.get("jump").or_else(|| verdict.get("goto"));
            if has_key(verdict, "accept") && certainty == Match::Yes {
                return Some(Fate::Passes);
            }
            if may_accept(verdict) {
                return Some(Fate::MayPass);
            }
            if is_drop(verdict) && certainty == Match::Yes {
                return Some(Fate::IsDropped);
            }
            if let Some(target) = target.and_then(|target| target["target"].as_str())
                && depth < MAX_JUMPS
                && let Some(target) = rules.chain(chain, target)
                && let Some(fate) = self.walk(rules, target, certainty, depth + 1)
            {
                return Some(fate);
            }
            if has_key(verdict, "return") || has_key(verdict, "goto") {
                if found == Match::Yes {
                    return None;
                }
                reached = Match::Maybe;
            }
        }
        None
    }

    /// Returns the verdicts of a rule that the packet may get.
    fn verdicts<'r>(&self, rule: &'r Value) -> Vec<(Match, &'r Value)> {
        let expressions = rule.as_array().map_or(&[][..], Vec::as_slice);
        let conditions = expressions.iter().map(|found| self.condition(found));
        let matches = conditions.min().unwrap_or(Match::Yes);
        let maps = expressions.iter().filter_map(|found| found.get("vmap"));
        let mut verdicts: Vec<_> = maps.flat_map(|map| self.mapped(map)).collect();
        verdicts.extend(expressions.iter().map(|found| (Match::Yes, found)));
        let all = verdicts.into_iter();
        let all = all.map(|(found, verdict)| (found.min(matches), verdict));
        all.filter(|(found, _)| *found != Match::No).collect()
    }

    /// Returns the verdicts of a map. Those of a map with a name are not listed.
    fn mapped<'r>(&self, map: &'r Value) -> Vec<(Match, &'r Value)> {
        let entries = map["data"]["set"].as_array();
        let mut found = Vec::new();
        for entry in entries.into_iter().flatten() {
            let matches = match entry[0] == "*" {
                true => Match::Yes,
                false => self.compare(&map["key"], "==", &entry[0]),
            };
            found.push((matches, &entry[1]));
            if matches == Match::Yes {
                break;
            }
        }
        found
    }

    /// Returns whether the packet meets an expression, if that is a condition.
    fn condition(&self, expression: &Value) -> Match {
        const UNCONDITIONAL: [&str; 13] = [
            "counter", "log", "mangle", "accept", "drop", "reject", "jump", "goto", "return",
            "continue", "queue", "vmap", "notrack",
        ];
        if let Some(found) = expression.get("match") {
            let operator = found["op"].as_str().unwrap_or("==");
            return self.compare(&found["left"], operator, &found["right"]);
        }
        match expression.get("xt") {
            Some(xt) if xt["type"] == "match" => self.extension(&xt["name"]),
            Some(_) => Match::Yes,
            None if expression.get("limit").is_some() => Match::No,
            None => match UNCONDITIONAL.iter().any(|known| has_key(expression, known)) {
                true => Match::Yes,
                false => Match::Maybe,
            },
        }
    }

    /// Returns whether the packet meets a condition of an extension of `iptables`, whose parameters are
    /// not shown.
    fn extension(&self, name: &Value) -> Match {
        const OF_SOME: [&str; 8] = [
            "tcp",
            "udp",
            "icmp",
            "icmp6",
            "multiport",
            "limit",
            "hashlimit",
            "recent",
        ];
        match name.as_str().unwrap_or_default() {
            "comment" => Match::Yes,
            "conntrack" | "state" if self.is_first => Match::No,
            name if OF_SOME.contains(&name) => Match::No,
            _ => Match::Maybe,
        }
    }

    fn compare(&self, left: &Value, operator: &str, right: &Value) -> Match {
        let is_equal = match (&left["meta"]["key"], &left["ct"]["key"]) {
            (key, _) if is_one_of(key, &["iif", "iifname"]) => {
                self.compare_interface(self.is_arriving, right)
            }
            (key, _) if is_one_of(key, &["oif", "oifname"]) => {
                self.compare_interface(!self.is_arriving, right)
            }
            (_, key) if key == "state" => self.compare_state(right),
            (_, key) if key == "status" => of_some(operator),
            (key, _) if key == "l4proto" => compare_protocol(operator, right),
            _ => self.compare_other(left, operator, right),
        };
        match operator {
            "!=" => is_equal.inverted(),
            _ => is_equal,
        }
    }

    /// Compares an interface. `is_own` is whether it is known which one the packet has there.
    fn compare_interface(&self, is_own: bool, right: &Value) -> Match {
        let names = strings(right);
        if names.iter().any(|name| name.starts_with('@')) {
            return Match::Maybe;
        }
        if is_own {
            let is_it = |name: &&str| name_matches(name, self.interface);
            return Match::of(names.iter().any(is_it));
        }
        // No forwarded packet has the loopback interface.
        match !names.is_empty() && names.iter().all(|name| *name == "lo") {
            true => Match::No,
            false => Match::Maybe,
        }
    }

    fn compare_state(&self, right: &Value) -> Match {
        let states = strings(right);
        let own = if self.is_first { "new" } else { "established" };
        match states.iter().any(|state| state.starts_with('@')) {
            true => Match::Maybe,
            false => Match::of(states.contains(&own)),
        }
    }

    fn compare_other(&self, left: &Value, operator: &str, right: &Value) -> Match {
        const TRANSPORT: [&str; 9] = [
            "tcp", "udp", "icmp", "icmpv6", "th", "sctp", "dccp", "esp", "ah",
        ];
        const OPTIONS: [&str; 12] = [
            "--dport",
            "--dports",
            "--sport",
            "--sports",
            "--ports",
            "--icmp-type",
            "--icmpv6-type",
            "--tcp-flags",
            "--syn",
            "--limit",
            "--limit-burst",
            "--ctstatus",
        ];
        let (payload, option) = (&left["payload"], &left["option"]);
        match payload["field"].as_str() {
            Some("saddr") if operator == "==" => self.compare_source(right),
            Some("protocol" | "nexthdr") => compare_protocol(operator, right),
            _ if is_one_of(&payload["protocol"], &TRANSPORT) => of_some(operator),
            _ if is_one_of(option, &["--ctstate", "--state"]) && self.is_first => of_some(operator),
            _ if is_one_of(option, &OPTIONS) => of_some(operator),
            _ => Match::Maybe,
        }
    }

    fn compare_source(&self, right: &Value) -> Match {
        let prefix = match right.get("prefix") {
            Some(prefix) => format!(
                "{}/{}",
                prefix["addr"].as_str().unwrap_or(""),
                prefix["len"]
            ),
            None => String::new(),
        };
        let address = right.as_str().and_then(|text| text.parse::<IpAddr>().ok());
        let compared = prefix.parse().ok().or(address.map(Prefix::host));
        match (compared, self.sources.as_deref()) {
            (Some(compared), Some(sources @ [_, ..])) => {
                let meets = |own: &Prefix| own.contains(compared) || compared.contains(*own);
                match sources.iter().any(meets) {
                    true => Match::Maybe,
                    false => Match::No,
                }
            }
            _ => Match::Maybe,
        }
    }
}

/// Returns whether a packet of any protocol meets a condition that few packets meet, or that few do
/// not.
fn of_some(operator: &str) -> Match {
    match operator {
        "!=" => Match::Maybe,
        _ => Match::No,
    }
}

/// A rule for a protocol that most packets have may be meant for all.
fn compare_protocol(operator: &str, right: &Value) -> Match {
    match strings(right)
        .iter()
        .any(|name| ["tcp", "udp"].contains(name))
    {
        true => Match::Maybe,
        false => of_some(operator),
    }
}

fn is_one_of(value: &Value, all: &[&str]) -> bool {
    value.as_str().is_some_and(|text| all.contains(&text))
}

fn has_key(value: &Value, key: &str) -> bool {
    value.get(key).is_some()
}

/// Returns whether a verdict accepts packets, or is that of a program or of a map that is not listed.
fn may_accept(verdict: &Value) -> bool {
    let is_unknown = has_key(verdict, "queue") || verdict["vmap"]["data"].is_string();
    is_unknown || has_key(verdict, "accept")
}

fn is_drop(verdict: &Value) -> bool {
    has_key(verdict, "drop") || has_key(verdict, "reject") || verdict["xt"]["name"] == "REJECT"
}

/// The listings are those of nftables 1.0.6.
#[cfg(test)]
mod tests {
    use super::*;
    use Fate::{IsDropped, MayPass, Passes};
    use Traffic::{Arriving, OpenedFrom, OpenedTo};

    const ESTABLISHED: &str = "ct state established,related accept";

    /// Returns the rules of a file of listings, by the words that made the chain.
    fn listed(chain: &str) -> Ruleset {
        let lines = include_str!("forwarded.jsonl").lines();
        let mut all = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        let found = all.find(|listed| listed["chain"] == chain);
        let found = found.unwrap_or_else(|| panic!("no listing of `{chain}`"));
        Ruleset::parse(found["listing"].to_string().as_bytes()).unwrap()
    }

    fn pass(rules: Ruleset, traffic: Traffic) -> ForwardedPass {
        ForwardedPass {
            interface: "hawser-tun".to_owned(),
            traffic,
            networks: vec!["10.77.0.0/16".to_owned()],
            consequence: String::new(),
            rules: Arc::new(rules),
        }
    }

    /// Returns what happens to the first packets of connections.
    fn fate(chain: &str, traffic: Traffic) -> Fate {
        let pass = pass(listed(chain), traffic);
        let base = pass.rules.chains.iter();
        let base = base.rev().find(|chain| chain.hook.is_some()).unwrap();
        pass.packets()[0].as_ref().unwrap().fate(&pass.rules, base)
    }

    #[test]
    fn rules_that_may_accept_raise_no_alarm() {
        for (rule, expected) in [
            (
                r#"iifname vmap { "hawser-tun" : accept, "lan0" : jump services }"#,
                Passes,
            ),
            ("iifname @trusted accept", MayPass),
            ("ip saddr @vpn accept", MayPass),
            ("iifgroup 14752 accept", MayPass),
            (r#"oifname "net" accept"#, MayPass),
            (r#"iifname != "net" accept"#, Passes),
            (
                r#"iifname . oifname vmap { "hawser-tun" . "net" : accept }"#,
                MayPass,
            ),
            (
                r#"iifname { "hawser-*", "lan0" } oifname "net" accept"#,
                MayPass,
            ),
            ("ip saddr 10.77.0.0/16 accept", MayPass),
            ("meta mark 7 accept", MayPass),
        ] {
            let chain = format!("drop | {ESTABLISHED}; {rule}");
            assert_eq!(fate(&chain, OpenedFrom), expected, "{rule}");
            let problem = pass(listed(&chain), OpenedFrom).examine();
            assert_eq!(problem, None, "{rule}");
        }
        let by_state = "drop | ct state vmap { established : accept, related : accept, new : jump services, invalid : drop }";
        assert_eq!(fate(by_state, OpenedFrom), Passes);
    }

    #[test]
    fn a_certain_drop_is_claimed() {
        for chain in [
            format!("drop | {ESTABLISHED}"),
            format!(r#"drop | {ESTABLISHED}; iifname "lan0" accept"#),
            format!(
                r#"drop | {ESTABLISHED}; iifname "lo" accept; ip protocol icmp accept; tcp dport 443 accept"#
            ),
            format!("drop | {ESTABLISHED}; ip saddr 172.17.0.0/16 accept"),
            r#"accept | ct state established accept; iifname != "lan0" drop"#.to_owned(),
            r#"accept | iifname "hawser-tun" drop"#.to_owned(),
            r#"accept | iifname { "hawser-tun", "lan0" } counter reject"#.to_owned(),
            r#"accept | iifname vmap { "lan0" : accept, "hawser-tun" : drop }"#.to_owned(),
        ] {
            assert_eq!(fate(&chain, OpenedFrom), IsDropped, "{chain}");
        }
    }

    #[test]
    fn a_drop_of_some_packets_is_not_claimed() {
        for chain in [
            r#"accept | iifname "hawser-tun" oifname "net" drop"#,
            "accept | ip saddr @vpn drop; iifgroup 14752 drop; tcp dport 25 drop; ct state invalid drop",
        ] {
            assert_eq!(pass(listed(chain), OpenedFrom).examine(), None, "{chain}");
            assert_eq!(fate(chain, OpenedFrom), Passes, "{chain}");
        }
    }

    #[test]
    fn jumps_and_returns_are_followed() {
        let jump =
            r#"accept | iifname "hawser-tun" jump services; oifname "lan0" return; counter drop"#;
        assert_eq!(fate(jump, OpenedFrom), Passes);
        assert_eq!(fate(jump, OpenedTo), MayPass);
        let skipped = r#"accept | iifname "lan0" accept; jump services; drop"#;
        assert_eq!(fate(skipped, OpenedFrom), Passes);
        assert_eq!(fate(skipped, OpenedTo), MayPass);
    }

    #[test]
    fn the_direction_of_packets_counts() {
        let from_lan = format!(r#"drop | {ESTABLISHED}; iifname "lan0" accept"#);
        assert_eq!(pass(listed(&from_lan), OpenedTo).examine(), None);
        let answers = r#"accept | oifname "hawser-tun" drop"#;
        assert_eq!(fate(answers, OpenedFrom), Passes);
        assert!(pass(listed(answers), OpenedFrom).examine().is_some());
        assert_eq!(pass(listed(answers), Arriving).examine(), None);
    }
}
