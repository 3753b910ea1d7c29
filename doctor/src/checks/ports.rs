use crate::Part::{self, Agent, Controller, Publish, Relay, Tunnel, View};
use crate::facts::{Holder, PortFacts};
use crate::finding::{Check, Finding};

/// Returns whether a process is one of Hawser's programs, by the first 15 bytes of the name of its file, which are all
/// that the kernel tells (`/proc/PID/comm`).
fn is_own(process: &str) -> bool {
    process == "hawser" || process.starts_with("hawser-")
}

pub(super) fn finding(facts: &PortFacts) -> Finding {
    let port = facts.port;
    let name = format!("{} port {}", port.protocol.name(), port.number);
    let subject = format!("{}/{}", port.protocol.name().to_lowercase(), port.number);
    let check = Check::new("port.free", only(port.part)).of(subject);
    let purpose = port.purpose;
    match &facts.holder {
        Ok(None) => check.ok(format!("{name} ({purpose}) is free.")),
        Ok(Some(Holder::Process(process, id))) if is_own(process) => check.ok(format!(
            "{name} ({purpose}) is in use by Hawser, process {id}."
        )),
        Ok(Some(Holder::Process(process, id))) => check.failed(
            format!("{name} ({purpose}) is in use by {process}, process {id}."),
            "Stop that program, or configure another port.",
        ),
        Ok(Some(Holder::Hidden)) => check.warning(
            format!("{name} ({purpose}) is in use by a process that this user cannot see."),
            "Run this as root to see which program it is.",
        ),
        Err(reason) => check.not_checked(
            format!("Whether {name} ({purpose}) is free is unknown: {reason}."),
            "Look at the output of `ss -lntup`.",
        ),
    }
}

fn only(part: Part) -> &'static [Part] {
    match part {
        Agent => &[Agent],
        Relay => &[Relay],
        Tunnel => &[Tunnel],
        Controller => &[Controller],
        Publish => &[Publish],
        View => &[View],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Port, Protocol};
    use crate::finding::Verdict::{Failed, NotChecked, Ok as Fine, Warning};

    #[test]
    fn a_port_is_free_or_in_use() {
        let port = Port {
            protocol: Protocol::Tcp,
            number: 14750,
            part: Controller,
            purpose: "HTTPS",
        };
        let of = |holder| finding(&PortFacts { port, holder });
        let process = |name: &str| Ok(Some(Holder::Process(name.to_owned(), 12)));
        assert_eq!(of(Ok(None)).result, Fine);
        assert_eq!(of(process("hawser")).result, Fine);
        assert_eq!(of(process("hawser-controll")).result, Fine);
        assert_eq!(of(process("hawserd")).result, Failed);
        let taken = of(process("nginx"));
        assert_eq!(taken.result, Failed);
        assert_eq!(
            taken.finding,
            "TCP port 14750 (HTTPS) is in use by nginx, process 12."
        );
        assert_eq!(taken.subject.as_deref(), Some("tcp/14750"));
        assert_eq!(of(Ok(Some(Holder::Hidden))).result, Warning);
        assert_eq!(of(Err("no".to_owned())).result, NotChecked);
    }
}
