use super::network::Network;
use super::{case, median, median_ratio, nanoseconds, transit_frame};
use crate::summary::{Case, Summary};
use anyhow::{Result, ensure};
use hawser_lab_bpf::{Egress, LocalBench, TransitBench};
use hawser_replication_bpf::{Rule, SendFlow, SendPath, SendPolicy, Sender, SenderOptions};
use hawser_shim::{Cover, DEFAULT_PORT, KeySlot, SealKey};
use hawser_units::{FlowId, PathId, PolicyCode};
use hawser_wire::Key;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum number of paths of a case.
pub(super) const MAX_PATHS: usize = 5;

const ROUNDS: usize = 31;

/// Packets of a run.
const PACKETS: u32 = 10_000;

const XDP_RATIO_LIMIT: f64 = 1.3;
const TC_RATIO_LIMIT: f64 = 1.2;

/// The measured kind of replication.
#[derive(Clone, Copy, Default)]
struct Form {
    name: &'static str,
    copies: usize,
    is_ipv6: bool,
    tagged: Option<Cover>,
    transparent: bool,
}

const PLAIN: Form = Form {
    name: "",
    copies: 3,
    is_ipv6: false,
    tagged: None,
    transparent: false,
};
const TAGGED: Option<Cover> = Some(Cover::Headers);
const WHOLE: Option<Cover> = Some(Cover::Whole);

const TRANSIT: [Form; 8] = [
    PLAIN,
    Form { copies: 1, ..PLAIN },
    Form { copies: 5, ..PLAIN },
    Form {
        name: "-tagged",
        tagged: TAGGED,
        ..PLAIN
    },
    Form {
        name: "-whole",
        tagged: WHOLE,
        ..PLAIN
    },
    Form {
        name: "-v6",
        is_ipv6: true,
        ..PLAIN
    },
    Form {
        name: "-v6-tagged",
        is_ipv6: true,
        tagged: TAGGED,
        ..PLAIN
    },
    Form {
        name: "-transparent",
        transparent: true,
        ..PLAIN
    },
];

const LOCAL: [Form; 4] = [
    PLAIN,
    Form { copies: 1, ..PLAIN },
    Form { copies: 5, ..PLAIN },
    Form {
        name: "-tagged",
        tagged: TAGGED,
        ..PLAIN
    },
];

/// The ways in which a local packet leaves: ours, two to compare it with, and not at all.
const EGRESSES: [Egress; 4] = [
    Egress::Replicate,
    Egress::Clones,
    Egress::ClonesAndRedirect,
    Egress::Discard,
];

pub(super) fn run(network: &Network, summary: &mut Summary) -> Result<()> {
    for form in TRANSIT {
        summary.cases.push(transit(network, form)?);
    }
    for form in LOCAL {
        summary.cases.push(local(network, form)?);
    }
    Ok(())
}

fn transit(network: &Network, form: Form) -> Result<Case> {
    let frame = transit_frame();
    let devices = &network.out[..form.copies];
    let mut bench = TransitBench::load(sender(network, form)?, devices, &network.incoming)?;
    let delivered = u64::from(PACKETS) * form.copies as u64;
    let mut ours = Vec::new();
    let mut bare = Vec::new();
    let mut programs = Vec::new();
    for _ in 0..ROUNDS {
        let start = bench.arrived()?;
        ours.push(nanoseconds(bench.replicate(&frame, PACKETS)?));
        let replicated = bench.arrived()?;
        bare.push(nanoseconds(bench.broadcast(&frame, PACKETS)?));
        let broadcast = bench.arrived()?;
        programs.push(nanoseconds(bench.broadcast_to_programs(&frame, PACKETS)?));
        let end = bench.arrived()?;
        let arrived = [replicated - start, broadcast - replicated, end - broadcast];
        ensure!(
            arrived == [delivered; 3],
            "not all of the {delivered} copies arrived: [ours, bare, with programs] {arrived:?}"
        );
    }
    let mut case = form.case("xdp", ("ratio_to_bare_broadcast", XDP_RATIO_LIMIT));
    case.metrics
        .set("ratio_to_bare_broadcast", median_ratio(&ours, &bare));
    // The part that the kernel needs to run a program for each copy.
    case.metrics.set(
        "empty_programs_ratio_to_bare_broadcast",
        median_ratio(&programs, &bare),
    );
    case.metrics.set("ns_per_packet", median(ours));
    case.metrics
        .set("bare_broadcast_ns_per_packet", median(bare));
    Ok(case)
}

fn local(network: &Network, form: Form) -> Result<Case> {
    let [ours, clones, redirect, send] = local_figures(network, form)?;
    let net = |figures: &[f64]| -> Vec<f64> {
        figures
            .iter()
            .zip(&send)
            .map(|(all, send)| all - send)
            .collect()
    };
    let (ours, clones, redirect) = (net(&ours), net(&clones), net(&redirect));
    let mut case = form.case("tc", ("ratio_to_bare_clones", TC_RATIO_LIMIT));
    let mut set = |name: &str, figure: f64| case.metrics.set(name, figure);
    set("ratio_to_bare_clones", median_ratio(&ours, &clones));
    // The stricter comparison: the last copy is the packet itself, as in our program.
    set(
        "ratio_to_bare_clones_and_redirect",
        median_ratio(&ours, &redirect),
    );
    set("ns_per_packet", median(ours));
    set("bare_clones_ns_per_packet", median(clones));
    set("bare_clones_and_redirect_ns_per_packet", median(redirect));
    // The cost of passing the packet to the program, which is not included in the figures above.
    set("send_ns_per_packet", median(send));
    Ok(case)
}

/// Returns the durations of the runs of each way in [`EGRESSES`].
fn local_figures(network: &Network, form: Form) -> Result<[Vec<f64>; EGRESSES.len()]> {
    let frame = transit_frame();
    let devices = &network.out[..form.copies];
    let mut transit = TransitBench::load(sender(network, form)?, devices, &network.incoming)?;
    let bench = LocalBench::load(transit.sender(), network.local, devices)?;
    let mut figures = EGRESSES.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (egress, figures) in EGRESSES.into_iter().zip(&mut figures) {
            let before = transit.arrived()?;
            let took = bench.run(transit.sender(), egress, &frame, PACKETS)?;
            figures.push(nanoseconds(took));
            let arrived = transit.arrived()? - before;
            ensure!(
                arrived == form.copies_of(egress) * u64::from(PACKETS),
                "{egress:?}: {arrived} copies of {PACKETS} packets arrived"
            );
        }
    }
    Ok(figures)
}

impl Form {
    /// Returns the number of copies of a packet that arrive.
    fn copies_of(&self, egress: Egress) -> u64 {
        match egress {
            Egress::Discard => 0,
            _ => self.copies as u64,
        }
    }

    /// Creates a case. The plain form has a target.
    fn case(&self, program: &str, limit: (&str, f64)) -> Case {
        let plain = self.copies == PLAIN.copies && self.name.is_empty();
        let limits: &[_] = if plain { &[limit] } else { &[] };
        case(
            &format!("replicate/{program}-x{}{}", self.copies, self.name),
            limits,
        )
    }

    /// Returns the path that starts at a device.
    fn path(&self, ifindex: u32) -> SendPath {
        let (local, remote): (IpAddr, IpAddr) = if self.is_ipv6 {
            let host = |last| Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, last);
            (host(1).into(), host(2).into())
        } else {
            let host = |last| Ipv4Addr::new(198, 51, 100, last);
            (host(1).into(), host(2).into())
        };
        SendPath {
            ifindex,
            local,
            remote,
            source_mac: [2, 0, 0, 0, 0, 1],
            next_hop_mac: [2, 0, 0, 0, 0, 2],
            mtu_bytes: 1500,
            takes_frames: true,
            is_tunnel: false,
        }
    }

    fn flow(&self, label: FlowId) -> SendFlow {
        let key = SealKey::derive(&Key::from_bytes([0x5a; 16]), "ingress", "egress");
        SendFlow {
            label,
            transparent: self.transparent,
            key: self.tagged.map(|cover| (KeySlot::Zero, key, cover)),
            first_sequence: 1 << 40,
        }
    }
}

/// Returns a sender that replicates all packets on the form's paths.
fn sender(network: &Network, form: Form) -> Result<Sender> {
    let options = SenderOptions {
        port: DEFAULT_PORT,
        clock_offset_micros: 0,
        paths: PathId::all().take(form.copies).collect(),
        transit: true,
        local: true,
    };
    let mut sender = Sender::load(&options)?;
    let devices = &network.out[..form.copies];
    for (path, ifindex) in PathId::all().zip(devices) {
        sender.set_path(path, Some(form.path(*ifindex)))?;
    }
    let flow = FlowId::try_from(7)?;
    sender.set_flow(flow, &form.flow(flow))?;
    let (protocol, ports) = (None, None);
    let rule = Rule {
        flow,
        protocol,
        ports,
    };
    sender.select("0.0.0.0/0".parse()?, &[rule])?;
    let policy = SendPolicy {
        code: PolicyCode((1 << form.copies) - 1),
        epoch: 1,
        ..SendPolicy::default()
    };
    sender.set_policy(flow, policy)?;
    Ok(sender)
}
