use crate::Part::{self, Agent, Controller, Publish, Relay, Tunnel, View};
use crate::facts::{Fact, Facts, KeptFacts};
use crate::finding::{Check, Finding};
use hawser_io::udp::KERNEL_BUFFER;

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let forwarding = facts
        .forwarding
        .iter()
        .map(|(key, is_on)| forwarding(key, is_on));
    let buffers = facts.buffers.iter().map(|(key, bytes)| buffer(key, bytes));
    let mut findings = forwarding.chain(buffers).collect::<Vec<_>>();
    findings.extend(facts.firewalld.as_ref().map(firewalld));
    findings.extend(facts.kept.iter().map(kept));
    findings.push(clock(&facts.is_synchronized));
    findings
}

fn forwarding(key: &str, is_on: &Fact<bool>) -> Finding {
    let check = Check::new("settings.forwarding", &[Agent, Tunnel]).of(key);
    match is_on {
        Ok(true) => check.ok(format!("This machine forwards packets ({key}).")),
        Ok(false) => check.warning(
            format!("This machine does not forward packets ({key} is 0), as a tunnel server with `nat` and an edge for other hosts have to."),
            format!("Run `sysctl -w {key}=1` on such a machine."),
        ),
        Err(reason) => check.not_checked(
            format!("{key} cannot be read: {reason}."),
            "Look whether the kernel has this version of IP.",
        ),
    }
}

/// Reports what a program needs and names in its status, too.
fn kept(facts: &KeptFacts) -> Finding {
    let mut check = Check::new(facts.id, facts.parts);
    if let Some(subject) = &facts.subject {
        check = check.of(subject);
    }
    match &facts.problem {
        None => check.ok(&facts.fine),
        Some(problem) => check.failed_if(
            facts.is_needed,
            sentence(&problem.what),
            sentence(&problem.advice),
        ),
    }
}

fn sentence(clause: &str) -> String {
    let mut letters = clause.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

/// Reports the filter of firewalld (firewalld.conf(5)); older versions say `yes` for `strict`.
fn firewalld(filter: &Fact<String>) -> Finding {
    let check = Check::new("firewall.reverse-path-filter", &[Agent]);
    match filter.as_deref() {
        Ok("strict" | "strict-forward" | "yes" | "true") => check.warning(
            "firewalld drops IPv6 packets that do not arrive on the route back, and thereby those that came on other paths.",
            "Set `IPv6_rpfilter=loose` (`no` before firewalld 2.2) in /etc/firewalld/firewalld.conf, and restart firewalld.",
        ),
        Ok(filter) => check.ok(format!(
            "The reverse path filter of firewalld is not strict (IPv6_rpfilter={filter})."
        )),
        Err(reason) => check.not_checked(
            format!("The reverse path filter of firewalld is unknown: {reason}."),
            "Look at IPv6_rpfilter in /etc/firewalld/firewalld.conf: `strict` drops packets that came on other paths.",
        ),
    }
}

fn buffer(key: &str, bytes: &Fact<usize>) -> Finding {
    const PARTS: &[Part] = &[Relay, Publish, View];
    let check = Check::new("settings.socket-buffer", PARTS).of(key);
    match bytes {
        Ok(bytes) if *bytes >= KERNEL_BUFFER => check.ok(format!(
            "A socket can have a buffer of {KERNEL_BUFFER} bytes ({key} is {bytes})."
        )),
        Ok(bytes) => check.warning(
            format!("A socket for pushed streams gets {bytes} of the {KERNEL_BUFFER} bytes that it requests ({key})."),
            format!("Run `sysctl -w {key}={KERNEL_BUFFER}`."),
        ),
        Err(reason) => check.not_checked(
            format!("{key} cannot be read: {reason}."),
            format!("Run `sysctl {key}` outside the namespace or the container."),
        ),
    }
}

fn clock(is_synchronized: &Fact<bool>) -> Finding {
    let check = Check::new("clock.synchronized", &[Controller, Agent, Tunnel, View]);
    match is_synchronized {
        Ok(true) => check.ok("The clock is synchronized."),
        Ok(false) => check.warning(
            "Nothing synchronizes the clock, so certificates and tokens can be refused, and frame delays be wrong.",
            "Start an NTP client such as chrony or systemd-timesyncd; in a virtual machine, the host may do this unseen.",
        ),
        Err(reason) => check.not_checked(
            format!("Whether the clock is synchronized is unknown: {reason}."),
            "Look at the output of `timedatectl`.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict::{NotChecked, Ok as Fine, Warning};

    #[test]
    fn small_buffers_are_raised_to_what_sockets_request() {
        let key = "net.core.rmem_max";
        assert_eq!(buffer(key, &Ok(KERNEL_BUFFER)).result, Fine);
        let finding = buffer(key, &Ok(212_992));
        let advice = Some("Run `sysctl -w net.core.rmem_max=2097152`.");
        assert_eq!(
            (finding.result, finding.advice.as_deref()),
            (Warning, advice)
        );
        assert_eq!(buffer(key, &Err("no".to_owned())).result, NotChecked);
    }

    #[test]
    fn a_strict_filter_of_firewalld_is_a_warning() {
        let of = |filter: &str| firewalld(&Ok(filter.to_owned())).result;
        for strict in ["strict", "strict-forward", "yes"] {
            assert_eq!(of(strict), Warning, "{strict}");
        }
        for loose in ["loose", "loose-forward", "no"] {
            assert_eq!(of(loose), Fine, "{loose}");
        }
        assert_eq!(firewalld(&Err("no".to_owned())).result, NotChecked);
    }

    #[test]
    fn forwarding_and_clock_are_warnings() {
        let key = "net.ipv4.ip_forward";
        assert_eq!(forwarding(key, &Ok(false)).result, Warning);
        assert_eq!(forwarding(key, &Ok(true)).result, Fine);
        assert_eq!(clock(&Ok(false)).result, Warning);
        assert_eq!(clock(&Err("no".to_owned())).result, NotChecked);
    }
}
