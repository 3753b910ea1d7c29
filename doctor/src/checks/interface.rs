use crate::Part::{self, Agent, Publish, Relay, Tunnel, View};
use crate::facts::{Facts, InterfaceFacts};
use crate::finding::{Check, Finding};
use hawser_io::interface::LinkHeader;
use hawser_io::netlink::STRIPS_VLAN_TAGS;
use hawser_io::sysctl::STRICT;
use hawser_io::xdp::{Device, Mode, Refused, Wanted};

/// The bytes that the outer headers add to a packet (`docs/agent.md`).
const OUTER_V4: u32 = 56;
const OUTER_V6: u32 = 76;

/// The smallest MTU of IPv6, with which every packet of a pushed stream fits.
const SMALLEST_MTU: u32 = 1280;

pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    const EACH: &[Part] = &[Agent, Relay];
    let missing = facts.missing_interfaces.iter().map(|name| {
        Check::new("interface.state", &[]).of(name).failed(
            format!("The interface {name} does not exist."),
            "Look at the names in the output of `ip link`.",
        )
    });
    let mut findings = missing.collect::<Vec<_>>();
    let interfaces = match &facts.interfaces {
        Ok(interfaces) => interfaces,
        Err(reason) => {
            let check = Check::new("interface.state", EACH);
            findings.push(check.not_checked(reason, "Look at the output of `ip link`."));
            return findings;
        }
    };
    for interface in interfaces {
        findings.push(state(interface));
        if !interface.is_named && !interface.interface.is_running {
            continue;
        }
        findings.extend([
            header(interface),
            mtu(interface),
            xdp(interface, facts),
            xdp_program(interface),
            offloads(interface),
            reverse_path_filter(interface, facts),
            queueing(interface, facts),
        ]);
        findings.extend(vlan_tags(interface));
    }
    findings
}

fn state(facts: &InterfaceFacts) -> Finding {
    let name = &facts.interface.name;
    let check = Check::new("interface.state", &[Agent, Relay]).of(name);
    let kind = match &facts.interface.kind {
        Some(kind) => format!("{name} is a virtual interface of the kind {kind}"),
        None => format!("{name} is a device"),
    };
    match facts.interface.is_running {
        true => check.ok(format!("{kind} and has a carrier.")),
        false => check.warning(
            format!("{kind} and is down or has no carrier."),
            format!("Run `ip link set {name} up`, and look at the cable or the modem."),
        ),
    }
}

fn header(facts: &InterfaceFacts) -> Finding {
    let name = &facts.interface.name;
    match facts.interface.header {
        LinkHeader::Ethernet => Check::new("interface.header", &[Agent, Relay])
            .of(name)
            .ok(format!("Frames of {name} have an Ethernet header.")),
        LinkHeader::None => Check::new("interface.header", &[Relay]).of(name).failed_if(
            facts.is_named,
            format!("Packets of {name} have no Ethernet header: an agent can use it for a path, a relay cannot."),
            "Use another interface for the relay, and for `transit` and `local` of an agent.",
        ),
        LinkHeader::Other => Check::new("interface.header", &[Agent, Relay]).of(name).failed_if(
            facts.is_named,
            format!("Frames of {name} have no Ethernet header, which agents and relays need."),
            "Use another interface, or the tunnel, which works over any interface.",
        ),
    }
}

fn mtu(facts: &InterfaceFacts) -> Finding {
    let name = &facts.interface.name;
    let check = Check::new("interface.mtu", &[Agent, Relay, Publish, View]).of(name);
    let mtu = facts.interface.mtu_bytes;
    if mtu < SMALLEST_MTU {
        return check.warning(
            format!("The MTU of {name} is {mtu}, and a pushed stream has larger packets."),
            format!("Run `ip link set {name} mtu 1500` if the network permits it."),
        );
    }
    let [v4, v6] = [OUTER_V4, OUTER_V6].map(|outer| mtu - outer);
    check.ok(format!(
        "The MTU of {name} is {mtu}: packets of up to {v4} bytes are replicated over IPv4, {v6} over IPv6."
    ))
}

/// The largest MTU with which all drivers accept native XDP, bytes: that of ixgbe.
const LARGEST_NATIVE_MTU: u32 = 3050;

/// Reports the mode that the agent chooses, with the agent's own rule.
fn xdp(facts: &InterfaceFacts, machine: &Facts) -> Finding {
    let name = &facts.interface.name;
    let check = Check::new("interface.xdp", &[Agent]).of(name);
    let features = match &facts.xdp {
        Ok(features) => *features,
        Err(reason) => {
            return check.not_checked(
                format!("What {name} can do with XDP is unknown: {reason}."),
                "Start the agent, which tries it out, and look at `hawser status`.",
            );
        }
    };
    let device = Device {
        features,
        is_veth: facts.interface.is_veth(),
        strips_vlan_tags: strips_vlan_tags(facts),
        header: facts.interface.header,
        refused: Refused::default(),
    };
    let receiving = match device.deduplicating(machine.wanted_xdp) {
        Ok(receiving) => receiving,
        Err(why) => {
            return check.failed_if(
                facts.is_named,
                format!("{name} cannot receive copies."),
                sentence(why),
            );
        }
    };
    if receiving.mode == Mode::Tc {
        return check.ok(format!(
            "Packets of {name} have no Ethernet header, so the agent handles copies at TC there."
        ));
    }
    if let Some(warning) = receiving.warning {
        return check.warning(
            format!("{name} is one end of a veth pair, and generic XDP there does not see the copies that a node at the other end makes."),
            sentence(warning),
        );
    }
    if device.may_take_frames_with_a_program() && machine.wanted_xdp != Wanted::Generic {
        return check.ok(format!(
            "{name} has native XDP, and accepts no copies now; some drivers do while a program is attached, which the agent does."
        ));
    }
    if receiving.mode == Mode::Native && facts.interface.mtu_bytes > LARGEST_NATIVE_MTU {
        let (name, mtu) = (name, facts.interface.mtu_bytes);
        return check.warning(
            format!("The MTU of {name} is {mtu}, and many drivers refuse native XDP with frames of more than a page: the agent then uses generic XDP or TC, which are slower."),
            format!("Look at the mode in `hawser status`. Run `ip link set {name} mtu 1500` on both ends if it is too slow."),
        );
    }
    match device.sending(machine.wanted_xdp).map(|choice| choice.mode) {
        Err(why) => check.failed_if(
            facts.is_named,
            format!("{name} cannot send copies."),
            sentence(why),
        ),
        Ok(Mode::Native) => check.ok(format!("{name} has native XDP and accepts copies.")),
        Ok(Mode::Generic) if machine.wanted_xdp == Wanted::Generic => check.ok(format!(
            "{name} is used in generic mode, as the configuration says."
        )),
        Ok(Mode::Generic) if receiving.mode == Mode::Native => check.warning(
            format!("{name} has native XDP, and accepts no copies, because its other end does not poll: the agent sends clones, which is slower."),
            "Run `ethtool -K PEER gro on` for the other end, or attach an XDP program there.",
        ),
        Ok(Mode::Generic | Mode::Tc) => check.warning(
            format!("The driver of {name} has no native XDP, so the agent uses the slower generic mode there."),
            "Use an interface with native XDP if this one is too slow.",
        ),
    }
}

/// Returns a reason about "it" as a sentence.
fn sentence(reason: &str) -> String {
    let mut letters = reason.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

fn strips_vlan_tags(facts: &InterfaceFacts) -> bool {
    let offloads = facts.offloads.as_ref();
    facts.has_vlans && offloads.is_ok_and(|offloads| offloads.contains(STRIPS_VLAN_TAGS))
}

/// Reports an interface whose VLAN tags XDP does not see.
fn vlan_tags(facts: &InterfaceFacts) -> Option<Finding> {
    let name = &facts.interface.name;
    let check = Check::new("interface.vlan-tags", &[Agent]).of(name);
    strips_vlan_tags(facts).then(|| {
        check.warning(
            format!("There are VLAN devices on {name}, whose driver takes the tags out of frames: the agent replicates its transit traffic at TC, which is slower."),
            format!("Run `ethtool -K {name} rxvlan off`, so that XDP sees the tags."),
        )
    })
}

fn xdp_program(facts: &InterfaceFacts) -> Finding {
    let name = &facts.interface.name;
    let check = Check::new("interface.xdp-program", &[Agent]).of(name);
    match facts.interface.xdp_program {
        None => check.ok(format!("No XDP program is attached to {name}.")),
        Some(number) => check.warning(
            format!("The XDP program {number} is attached to {name}, and the agent rejects the interface if it is not Hawser's."),
            format!("Run `bpftool prog show id {number}` to see what it is, and stop what has attached it if it is another one."),
        ),
    }
}

/// The offload that joins datagrams that are not for this machine (`docs/relay.md`).
const GRO_FORWARDING: &str = "rx-udp-gro-forwarding";

fn offloads(facts: &InterfaceFacts) -> Finding {
    let name = &facts.interface.name;
    let check = Check::new("interface.offloads", &[Relay]).of(name);
    match &facts.offloads {
        Ok(offloads) if offloads.contains(GRO_FORWARDING) => {
            check.ok(format!("{name} joins datagrams ({GRO_FORWARDING})."))
        }
        Ok(_) => check.warning(
            format!("{name} does not join datagrams, so a relay needs more processor time."),
            format!("Run `ethtool -K {name} {GRO_FORWARDING} on`."),
        ),
        Err(reason) => check.not_checked(
            format!("The offloads of {name} are unknown: {reason}."),
            format!("Look at the output of `ethtool -k {name}`."),
        ),
    }
}

fn reverse_path_filter(facts: &InterfaceFacts, machine: &Facts) -> Finding {
    let name = &facts.interface.name;
    let check = Check::new("interface.reverse-path-filter", &[Agent, Tunnel]).of(name);
    if facts.reverse_path_filter != STRICT {
        return check.ok(format!("The reverse path filter of {name} is not strict."));
    }
    let several = machine
        .default_routes
        .as_ref()
        .is_ok_and(|count| *count > 1);
    let can_be_set = machine.is_proc_read_only == Ok(false);
    match facts.is_named || several {
        _ if can_be_set => check.ok(format!(
            "The reverse path filter of {name} is strict; an agent makes it loose where it deduplicates, a tunnel client on its uplinks."
        )),
        true => check.failed_if(
            facts.is_named,
            format!(
                "The reverse path filter of {name} is strict and drops packets that do not arrive on the route back, and parameters \
                 cannot be set here, because /proc/sys is read-only."
            ),
            format!("Run `sysctl -w net.ipv4.conf.{name}.rp_filter=2` outside the container."),
        ),
        false => check.ok(format!(
            "The reverse path filter of {name} is strict, which only an interface of a path and an uplink may not be."
        )),
    }
}

fn queueing(facts: &InterfaceFacts, machine: &Facts) -> Finding {
    let name = &facts.interface.name;
    let check = Check::new("interface.queueing", &[Publish]).of(name);
    let queueing = facts.interface.queueing.as_deref().unwrap_or("none");
    if queueing == "fq" {
        return check.ok(format!(
            "{name} has the queueing discipline fq, so the kernel paces pushed packets."
        ));
    }
    if queueing == "mq" {
        return check.not_checked(
            format!("{name} has a queueing discipline for each of its queues."),
            format!("Look at the output of `tc qdisc show dev {name}`: with fq, the kernel paces pushed packets."),
        );
    }
    let found = format!(
        "{name} has the queueing discipline {queueing}, so the publisher paces pushed packets itself"
    );
    match &machine.has_fq {
        Ok(true) => check.warning(
            format!("{found}."),
            format!("Run `tc qdisc replace dev {name} root fq`, so that the kernel paces them more precisely."),
        ),
        Ok(false) => check.warning(
            format!("{found}; the kernel has no fq."),
            "Use a kernel with CONFIG_NET_SCH_FQ if packets have to leave more precisely.",
        ),
        Err(_) => check.warning(
            format!("{found}; whether the kernel has fq is unknown."),
            format!("Try `tc qdisc replace dev {name} root fq`."),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::tests::{interface, machine};
    use crate::finding::Verdict::{Failed, NotChecked, Ok as Fine, Warning};
    use hawser_io::netlink::XdpFeatures;

    fn features(native: bool, is_target: bool) -> Result<XdpFeatures, String> {
        Ok(XdpFeatures {
            native,
            redirect: native,
            is_target,
        })
    }

    #[test]
    fn the_mode_is_the_one_that_the_agent_chooses() {
        let of = |xdp, kind: Option<&str>, wanted_xdp| {
            let mut facts = interface("eth0");
            facts.interface.kind = kind.map(str::to_owned);
            facts.xdp = xdp;
            let machine = Facts {
                wanted_xdp,
                ..machine()
            };
            let finding = super::xdp(&facts, &machine);
            (
                finding.result,
                finding.advice.unwrap_or(finding.finding.clone()),
            )
        };
        use Wanted::{Best, Generic, Native};
        let (able, receiving) = (features(true, true), features(true, false));
        let none = features(false, false);
        let unknown = Err("this kernel does not tell".to_owned());
        let veth = Some("veth");
        let cases = [
            (able.clone(), None, Best, Fine, "accepts copies"),
            (
                receiving.clone(),
                None,
                Best,
                Fine,
                "while a program is attached",
            ),
            (receiving.clone(), veth, Best, Warning, "gro on"),
            (none.clone(), Some("macvlan"), Best, Warning, "too slow"),
            (
                none.clone(),
                None,
                Generic,
                Fine,
                "as the configuration says",
            ),
            (able.clone(), veth, Generic, Warning, "remove `generic_xdp`"),
            (able, veth, Native, Fine, "accepts copies"),
            (receiving, veth, Native, Warning, "gro on"),
            (none, None, Native, Warning, "remove `generic_xdp`"),
            (unknown, None, Best, NotChecked, "Start the agent"),
        ];
        for (xdp, kind, wanted, expected, words) in cases {
            let (result, text) = of(xdp, kind, wanted);
            assert!(result == expected && text.contains(words), "{text}");
        }
    }

    #[test]
    fn stripped_vlan_tags_matter_where_there_are_vlans() {
        let mut facts = interface("eth0");
        facts.offloads = Ok([STRIPS_VLAN_TAGS.to_owned()].into());
        assert_eq!(vlan_tags(&facts), None);
        facts.has_vlans = true;
        let advice = vlan_tags(&facts).unwrap().advice.unwrap();
        assert!(advice.contains("ethtool -K eth0 rxvlan off"), "{advice}");
    }

    #[test]
    fn an_interface_without_ethernet_fails_only_if_it_was_named() {
        let mut facts = interface("wg0");
        facts.interface.header = LinkHeader::None;
        assert_eq!(header(&facts).result, Warning);
        assert_eq!(xdp(&facts, &machine()).result, Fine);
        facts.is_named = true;
        let named = header(&facts);
        assert_eq!((named.result, named.parts), (Failed, [Relay].as_slice()));
        let native = Facts {
            wanted_xdp: Wanted::Native,
            ..machine()
        };
        assert_eq!(xdp(&facts, &native).result, Failed);
    }

    #[test]
    fn of_an_unused_interface_only_the_state_is_said() {
        let count = |is_named| {
            let mut unused = interface("ifb0");
            unused.interface.is_running = false;
            unused.is_named = is_named;
            let facts = Facts {
                interfaces: Ok(vec![unused]),
                ..machine()
            };
            findings(&facts).len()
        };
        assert_eq!((count(false), count(true)), (1, 8));
    }

    #[test]
    fn a_strict_filter_matters_where_there_are_several_paths() {
        let mut facts = interface("eth0");
        let of = |facts: &InterfaceFacts, routes| {
            let machine = Facts {
                default_routes: Ok(routes),
                is_proc_read_only: Ok(true),
                ..machine()
            };
            reverse_path_filter(facts, &machine).result
        };
        assert_eq!(of(&facts, 2), Fine);
        facts.reverse_path_filter = STRICT;
        assert_eq!((of(&facts, 1), of(&facts, 2)), (Fine, Warning));
        facts.is_named = true;
        assert_eq!(of(&facts, 1), Failed);
        let by_the_agent = reverse_path_filter(&facts, &machine());
        assert_eq!(by_the_agent.result, Fine);
    }

    #[test]
    fn an_attached_program_is_a_warning() {
        let mut facts = interface("eth0");
        assert_eq!(xdp_program(&facts).result, Fine);
        facts.interface.xdp_program = Some(7);
        assert!(xdp_program(&facts).advice.unwrap().contains("id 7"));
    }

    #[test]
    fn datagrams_for_other_hosts_are_joined_only_on_request() {
        let mut facts = interface("eth0");
        assert_eq!(offloads(&facts).result, Fine);
        facts.offloads = Ok(["rx-gro".to_owned()].into());
        assert_eq!(offloads(&facts).result, Warning);
        facts.offloads = Err("no".to_owned());
        assert_eq!(offloads(&facts).result, NotChecked);
    }

    #[test]
    fn a_small_mtu_is_a_warning() {
        let mut facts = interface("eth0");
        assert!(mtu(&facts).finding.contains("1444 bytes"));
        facts.interface.mtu_bytes = 1279;
        assert_eq!(mtu(&facts).result, Warning);
        facts.interface.mtu_bytes = 0;
        assert_eq!(mtu(&facts).result, Warning);
    }

    #[test]
    fn fq_is_recommended_where_the_kernel_has_it() {
        let mut facts = interface("eth0");
        let of = |facts: &InterfaceFacts, has_fq| {
            let finding = queueing(
                facts,
                &Facts {
                    has_fq,
                    ..machine()
                },
            );
            (finding.result, finding.advice.unwrap_or_default())
        };
        let (result, advice) = of(&facts, Ok(true));
        assert!(result == Warning && advice.contains("root fq"), "{advice}");
        let (result, advice) = of(&facts, Ok(false));
        assert!(result == Warning && !advice.contains("root fq"), "{advice}");
        facts.interface.queueing = Some("mq".to_owned());
        assert_eq!(of(&facts, Ok(true)).0, NotChecked);
        facts.interface.queueing = Some("fq".to_owned());
        assert_eq!(of(&facts, Ok(false)).0, Fine);
    }
}
