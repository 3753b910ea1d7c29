use crate::facts::{Answer, PeerFacts, Way};
use crate::finding::{Check, Finding};

/// The smallest MTU of IPv6, with which every packet of a pushed stream fits.
const SMALLEST_MTU: u32 = 1280;

pub(super) fn findings(facts: &PeerFacts) -> Vec<Finding> {
    let mut findings = vec![name(facts)];
    if let Some(way) = &facts.way {
        findings.extend([route(way), mtu(way), answer(way)]);
    }
    findings
}

fn name(facts: &PeerFacts) -> Finding {
    let check = Check::new("peer.name", &[]).of(&facts.name);
    let name = &facts.name;
    match &facts.addresses {
        Ok(addresses) if !addresses.is_empty() => {
            let addresses = addresses.iter().map(|address| address.ip().to_string());
            let addresses = addresses.collect::<Vec<_>>().join(", ");
            check.ok(format!("{name} has the addresses {addresses}."))
        }
        Ok(_) => check.failed(format!("{name} has no address."), RESOLVER),
        Err(reason) => check.failed(format!("{name} cannot be resolved: {reason}."), RESOLVER),
    }
}

const RESOLVER: &str = "Look at the spelling and at /etc/resolv.conf.";

fn route(way: &Way) -> Finding {
    let ip = way.address.ip();
    let check = Check::new("peer.route", &[]).of(ip.to_string());
    let reason = match (&way.route, &way.source) {
        (Ok(route), Ok(source)) => {
            let by = match route.next_hop == ip {
                true => format!("on the link of {}", route.interface),
                false => format!("by {} on {}", route.next_hop, route.interface),
            };
            return check.ok(format!("{ip} is reached {by}, from {source}."));
        }
        (Err(reason), _) | (_, Err(reason)) => reason,
    };
    check.failed(
        format!("There is no route to {ip}: {reason}."),
        format!("Look at the output of `ip route get {ip}`."),
    )
}

fn mtu(way: &Way) -> Finding {
    let ip = way.address.ip();
    let check = Check::new("peer.mtu", &[]).of(ip.to_string());
    match &way.mtu_bytes {
        Ok(mtu) if *mtu >= SMALLEST_MTU => check.ok(format!(
            "The MTU of the path to {ip}, as far as it is known, is {mtu}."
        )),
        Ok(mtu) => check.warning(
            format!(
                "The MTU of the path to {ip} is {mtu}, and a pushed stream has larger packets."
            ),
            "Look for a tunnel on the path, and raise its MTU to at least 1280.",
        ),
        Err(reason) => check.not_checked(
            format!("The MTU of the path to {ip} is unknown: {reason}."),
            "Repair the route first.",
        ),
    }
}

fn answer(way: &Way) -> Finding {
    let address = way.address;
    let check = Check::new("peer.answer", &[]).of(address.to_string());
    match &way.answer {
        Answer::Accepted => check.ok(format!("{address} accepts TCP connections.")),
        Answer::Refused => check.ok(format!(
            "{} answers; no program there listens to TCP on port {}, and for UDP this cannot be told.",
            address.ip(),
            address.port()
        )),
        Answer::Silence => check.not_checked(
            format!("{address} does not answer to TCP, which a firewall that lets UDP pass may be the reason of."),
            "Start the program at the peer and look at its log, or look at the firewalls on the way.",
        ),
        Answer::Unreachable(reason) => check.failed(
            format!("{address} cannot be reached: {reason}."),
            format!("Look at the output of `ip route get {}` and at the router that it names.", address.ip()),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict::{self, Failed, NotChecked, Ok as Fine, Warning};
    use hawser_io::interface::Route;

    fn way() -> Way {
        Way {
            address: "192.0.2.7:14748".parse().unwrap(),
            route: Ok(Route {
                next_hop: [198, 51, 100, 1].into(),
                interface: "eth0".to_owned(),
                mtu_bytes: None,
                source: None,
            }),
            source: Ok([198, 51, 100, 2].into()),
            mtu_bytes: Ok(1500),
            answer: Answer::Accepted,
        }
    }

    fn results(way: Way) -> Vec<Verdict> {
        let facts = PeerFacts {
            name: "stage.example:14748".to_owned(),
            addresses: Ok(vec![way.address]),
            way: Some(way),
        };
        let findings = findings(&facts).into_iter();
        findings.map(|finding| finding.result).collect()
    }

    #[test]
    fn a_peer_is_checked_step_by_step() {
        assert_eq!(results(way()), [Fine; 4]);
        assert_eq!(
            route(&way()).finding,
            "192.0.2.7 is reached by 198.51.100.1 on eth0, from 198.51.100.2."
        );
        let lost = Way {
            route: Err("Network is unreachable".to_owned()),
            source: Err("no".to_owned()),
            mtu_bytes: Err("no".to_owned()),
            answer: Answer::Unreachable("Network is unreachable".to_owned()),
            ..way()
        };
        assert_eq!(results(lost), [Fine, Failed, NotChecked, Failed]);
    }

    #[test]
    fn silence_is_no_proof() {
        let of = |answer| results(Way { answer, ..way() })[3];
        assert_eq!(of(Answer::Refused), Fine);
        assert_eq!(of(Answer::Silence), NotChecked);
        let narrow = Way {
            mtu_bytes: Ok(1200),
            ..way()
        };
        assert_eq!(results(narrow)[2], Warning);
    }

    #[test]
    fn a_name_that_does_not_resolve_fails() {
        let facts = PeerFacts {
            name: "stage.example:14748".to_owned(),
            addresses: Err("Name or service not known".to_owned()),
            way: None,
        };
        let findings = findings(&facts);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].result, Failed);
    }
}
