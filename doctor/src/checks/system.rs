use crate::Part::{self, Agent, Controller, Relay, Tunnel};
use crate::facts::{Fact, Facts};
use crate::finding::{Check, Finding};

/// The oldest kernels, by `docs/agent.md`, `docs/relay.md` and `docs/tunnel.md`.
const AGENT: (u32, u32) = (6, 1);
const LOCAL: (u32, u32) = (6, 6);
const RELAY: (u32, u32) = (6, 6);
const TUNNEL_OFFLOAD: (u32, u32) = (6, 2);

/// The default of `net.ipv4.ip_unprivileged_port_start`.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// `linux/capability.h`
const NET_BIND_SERVICE: Capability = Capability("CAP_NET_BIND_SERVICE", 10);
const NET_ADMIN: Capability = Capability("CAP_NET_ADMIN", 12);
const NET_RAW: Capability = Capability("CAP_NET_RAW", 13);
const SYS_ADMIN: Capability = Capability("CAP_SYS_ADMIN", 21);
const PERFMON: Capability = Capability("CAP_PERFMON", 38);
const BPF: Capability = Capability("CAP_BPF", 39);

/// A capability with its name and number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Capability(&'static str, u32);

impl Capability {
    fn is_in(self, mask: u64) -> bool {
        let has = |number: u32| mask >> number & 1 == 1;
        let by_root = [BPF, PERFMON].contains(&self) && has(SYS_ADMIN.1);
        has(self.1) || by_root
    }
}

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut findings = kernel(facts);
    findings.push(btf(facts.has_btf));
    findings.push(bpf_file_system(facts));
    findings.extend(tun(&facts.has_tun));
    findings.extend([ethtool(facts.has_ethtool), nft(facts.has_nft)]);
    let needs: [(&'static [Part], &[Capability]); 4] = [
        (&[Agent], &[BPF, NET_ADMIN, PERFMON]),
        (&[Relay], &[BPF, NET_ADMIN, PERFMON]),
        (&[Tunnel], &[NET_ADMIN, NET_RAW]),
        (&[Controller], &[]),
    ];
    for (parts, needed) in needs {
        let ports = facts.ports.iter().map(|facts| facts.port);
        let mut ports = ports.filter(|port| parts.contains(&port.part));
        let privileged = ports.any(|port| port.number < FIRST_UNPRIVILEGED_PORT);
        let needed = [needed, if privileged { &[NET_BIND_SERVICE] } else { &[] }].concat();
        if !needed.is_empty() {
            findings.push(capabilities(facts, parts, &needed));
        }
    }
    findings
}

fn kernel(facts: &Facts) -> Vec<Finding> {
    let check = |parts: &'static [Part]| Check::new("kernel.version", parts).of(parts[0].name());
    let checks = [check(&[Agent]), check(&[Relay]), check(&[Tunnel])];
    let version = match &facts.kernel {
        Ok(version) => *version,
        Err(reason) => {
            let advice = "Look at the output of `uname -r`.";
            let not_checked = |check: Check| check.not_checked(reason, advice);
            return checks.map(not_checked).into();
        }
    };
    let [agent, relay, tunnel] = checks;
    let this = format!("Linux {}.{}", version.0, version.1);
    let install = |(major, minor)| format!("Install Linux {major}.{minor} or later.");
    let agent = match version {
        version if version >= LOCAL => agent.ok(format!("{this} has all that the agent uses.")),
        version if version >= AGENT => agent.warning(
            format!(
                "{this} cannot replicate the traffic that leaves by a `local` interface (TCX)."
            ),
            "Use `transit` or a `[device]`, or install Linux 6.6 or later.",
        ),
        _ => agent.failed(
            format!("The agent's programs cannot be loaded by {this}."),
            install(AGENT),
        ),
    };
    let relay = match version >= RELAY {
        true => relay.ok(format!("{this} has all that the relay uses.")),
        false => relay.failed(
            format!("The relay's program cannot be attached by {this} (TCX)."),
            install(RELAY),
        ),
    };
    let tunnel = match version >= TUNNEL_OFFLOAD {
        true => tunnel.ok(format!("{this} has all that the tunnel uses.")),
        false => tunnel.warning(
            format!(
                "{this} has no segmentation offload of UDP on TUN devices, so the tunnel is slower."
            ),
            install(TUNNEL_OFFLOAD),
        ),
    };
    vec![agent, relay, tunnel]
}

fn btf(has_btf: bool) -> Finding {
    let check = Check::new("kernel.btf", &[Agent, Relay]);
    match has_btf {
        true => check.ok("The kernel has its type information (BTF)."),
        false => check.failed(
            "The kernel has no type information (/sys/kernel/btf/vmlinux), so eBPF programs cannot be loaded.",
            "Use a kernel that is built with CONFIG_DEBUG_INFO_BTF=y, as those of the distributions are.",
        ),
    }
}

fn bpf_file_system(facts: &Facts) -> Finding {
    let check = Check::new("bpf.file-system", &[Agent]);
    match &facts.has_bpf_file_system {
        Ok(true) => check.ok("/sys/fs/bpf is a bpf file system."),
        Ok(false) => check.failed(
            "/sys/fs/bpf is not a bpf file system, so deduplication cannot outlive the agent.",
            "Run `mount -t bpf bpf /sys/fs/bpf`; in a namespace, use `nsenter --net=/run/netns/NAME` instead of `ip netns exec`.",
        ),
        Err(reason) => check.not_checked(
            format!("/sys/fs/bpf cannot be read: {reason}."),
            "Run this as root.",
        ),
    }
}

fn tun(has_tun: &Fact<bool>) -> [Finding; 2] {
    const LOAD: &str = "Run `modprobe tun`, or give the container the device /dev/net/tun.";
    const PERMIT: &str = "Run the part as root or as the package's service, and this command as that user, or `chmod 666 /dev/net/tun`.";
    let check = |parts: &'static [Part]| Check::new("kernel.tun", parts).of(parts[0].name());
    let [tunnel, agent] = [check(&[Tunnel]), check(&[Agent])];
    let (problem, advice) = match has_tun {
        Ok(true) => {
            return [tunnel, agent].map(|check| check.ok("This process can use /dev/net/tun."));
        }
        Ok(false) => ("/dev/net/tun does not exist".to_owned(), LOAD),
        Err(reason) => (
            format!("This process cannot use /dev/net/tun: {reason}"),
            PERMIT,
        ),
    };
    [
        tunnel.failed(format!("{problem}."), advice),
        agent.warning(
            format!("{problem}, so an agent cannot have a `[device]`."),
            advice,
        ),
    ]
}

/// Reports a program that a part of Hawser runs.
fn program(check: Check, name: &str, package: &str, is_in_path: bool, without: &str) -> Finding {
    match is_in_path {
        true => check.ok(format!("The program {name} is in PATH.")),
        false => check.failed(
            format!("The program {name} is not in PATH. {without}"),
            format!("Install the package {package}, or add /usr/sbin to PATH."),
        ),
    }
}

fn ethtool(is_in_path: bool) -> Finding {
    const WITHOUT: &str = "An agent with a `[device]` or `local` does not start without it.";
    let check = Check::new("program.ethtool", &[Agent]);
    program(check, "ethtool", "ethtool", is_in_path, WITHOUT)
}

fn nft(is_in_path: bool) -> Finding {
    const WITHOUT: &str = "A server with `nat`, which is the default, does not start without it, nor does a client with `masquerade` or `kill_switch`.";
    let check = Check::new("program.nft", &[Tunnel]);
    program(check, "nft", "nftables", is_in_path, WITHOUT)
}

fn capabilities(facts: &Facts, parts: &'static [Part], needed: &[Capability]) -> Finding {
    let part = parts[0].name();
    let check = Check::new("process.capabilities", parts).of(part);
    let mask = match &facts.capabilities {
        Ok(mask) => *mask,
        Err(reason) => {
            return check.not_checked(reason, "Look at CapEff in /proc/self/status.");
        }
    };
    let names = |wanted: bool| {
        let named = needed.iter().filter(|one| one.is_in(mask) == wanted);
        named.map(|one| one.0).collect::<Vec<_>>().join(", ")
    };
    let (present, missing) = (names(true), names(false));
    if missing.is_empty() {
        return check.ok(format!("This process has {present}."));
    }
    if parts == [Agent] && missing == PERFMON.0 {
        return check.warning(
            format!(
                "This process lacks {missing}, so an agent can deduplicate, and cannot replicate."
            ),
            "Run `hawser agent` as root, with this capability, or as the package's service, which has it.",
        );
    }
    check.failed(
        format!("This process lacks {missing}."),
        format!(
            "Run `hawser {part}` as root, with these capabilities, or as the package's service, which has them."
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::machine;
    use crate::facts::{Port, PortFacts, Protocol};
    use crate::finding::Verdict::{self, Failed, NotChecked, Ok as Fine, Warning};

    fn results(facts: &Facts, id: &str) -> Vec<Verdict> {
        let findings = findings(facts).into_iter();
        findings
            .filter(|finding| finding.id == id)
            .map(|finding| finding.result)
            .collect()
    }

    #[test]
    fn each_part_has_its_oldest_kernel() {
        let of = |version| {
            let kernel = Ok(version);
            results(
                &Facts {
                    kernel,
                    ..machine()
                },
                "kernel.version",
            )
        };
        assert_eq!(of((5, 15)), [Failed, Failed, Warning]);
        assert_eq!(of((6, 1)), [Warning, Failed, Warning]);
        assert_eq!(of((6, 2)), [Warning, Failed, Fine]);
        assert_eq!(of((6, 6)), [Fine; 3]);
        assert_eq!(of((7, 0)), [Fine; 3]);
        let kernel = Err("strange version".to_owned());
        let unknown = Facts {
            kernel,
            ..machine()
        };
        assert_eq!(results(&unknown, "kernel.version"), [NotChecked; 3]);
    }

    #[test]
    fn missing_capabilities_are_named() {
        let of = |mask| {
            let facts = Facts {
                capabilities: Ok(mask),
                ..machine()
            };
            let mut found = findings(&facts);
            found.retain(|finding| finding.id == "process.capabilities");
            found
        };
        let admin = 1 << NET_ADMIN.1;
        let found = of(admin | 1 << BPF.1);
        assert_eq!(found[0].result, Warning);
        assert_eq!(found[1].finding, "This process lacks CAP_PERFMON.");
        assert_eq!(found[2].finding, "This process lacks CAP_NET_RAW.");
        // CAP_SYS_ADMIN includes the two capabilities that were split from it.
        let found = of(admin | 1 << SYS_ADMIN.1);
        assert_eq!((found[0].result, found[1].result), (Fine, Fine));
    }

    #[test]
    fn a_port_below_1024_needs_a_capability() {
        let of = |number, part| {
            let port = Port {
                protocol: Protocol::Tcp,
                number,
                part,
                purpose: "clients",
            };
            let facts = Facts {
                ports: vec![PortFacts {
                    port,
                    holder: Ok(None),
                }],
                capabilities: Ok(1 << NET_ADMIN.1 | 1 << NET_RAW.1),
                ..machine()
            };
            let findings = findings(&facts).into_iter();
            let mut findings =
                findings.filter(|one| one.id == "process.capabilities" && one.parts == [part]);
            findings.next().map(|finding| finding.finding)
        };
        let lacks = Some("This process lacks CAP_NET_BIND_SERVICE.".to_owned());
        assert_eq!(of(443, Tunnel), lacks);
        assert_eq!(of(443, Controller), lacks);
        assert_eq!(of(14750, Controller), None);
        assert_ne!(of(14752, Tunnel), lacks);
    }

    #[test]
    fn what_the_kernel_lacks_fails() {
        let facts = Facts {
            has_btf: false,
            has_bpf_file_system: Ok(false),
            has_tun: Ok(false),
            ..machine()
        };
        for id in ["kernel.btf", "bpf.file-system"] {
            assert_eq!(results(&facts, id), [Failed], "{id}");
            assert_eq!(results(&machine(), id), [Fine], "{id}");
        }
        assert_eq!(results(&facts, "kernel.tun"), [Failed, Warning]);
        assert_eq!(results(&machine(), "kernel.tun"), [Fine; 2]);
        let facts = Facts {
            has_tun: Err("Permission denied".to_owned()),
            ..machine()
        };
        assert_eq!(results(&facts, "kernel.tun"), [Failed, Warning]);
    }

    #[test]
    fn each_part_needs_the_programs_that_it_runs() {
        let facts = Facts {
            has_ethtool: false,
            has_nft: false,
            ..machine()
        };
        for (id, part) in [("program.ethtool", Agent), ("program.nft", Tunnel)] {
            assert_eq!(results(&machine(), id), [Fine], "{id}");
            let mut found = findings(&facts);
            found.retain(|finding| finding.id == id);
            assert_eq!((found[0].result, found[0].parts), (Failed, &[part][..]));
        }
    }
}
