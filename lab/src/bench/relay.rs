//! The relay in the kernel against relays in user space, on the same virtual devices.
//!
//! A thread publishes an object and has it relayed to all subscribers, whose device counts and drops
//! it: the time includes sending, receiving and verifying the object once, and all that is done for
//! each subscriber up to its device. The rivals in user space receive the whole object in one system
//! call and send it in one.

use super::{median, median_ratio, nanoseconds};
use crate::relays::{self, Network, PORT, PUBLISHER, Publisher, RELAY, UserSpaceRelay};
use crate::summary::{Case, Summary};
use anyhow::{Context, Result};
use hawser_fanout::{MAX_SLOTS, SlotIndex, TrackHop};
use hawser_lab_bpf::RelayBench;
use hawser_media_bpf::relay::Relay;
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_wire::ip;
use nix::net::if_::if_nametoindex;
use std::time::Instant as Clock;

const ROUNDS: usize = 21;

/// Deliveries of a run: short runs, so that the alternatives meet the same speed of the machine.
const DELIVERIES: usize = 20_000;

/// The largest share of the rival's time for objects of one packet, and of more.
const LIMITS: [f64; 2] = [0.5, 1.0];

/// Objects that are decided on.
const OBJECTS: u32 = 2_000;

/// Refused packets of a run.
const REFUSED: u32 = 50_000;

/// Runs until one delivers all packets.
const ATTEMPTS: usize = 10;

/// The load: what is relayed to how many subscribers.
#[derive(Debug, Clone, Copy)]
struct Load {
    subscribers: usize,
    /// Packets of an object.
    packets: u16,
    /// The packets of an object arrive one by one, not as a train.
    singly: bool,
    /// Trains are segmented in software before they leave, as for a device that cannot.
    segmented: bool,
}

/// At most 1,000 packets for an object: a virtual device hands no more over before the relay's program
/// returns (`net.core.netdev_max_backlog`).
const LOADS: [Load; 15] = [
    load(50, 1, false),
    load(50, 4, false),
    load(50, 12, false),
    load(50, 40, false),
    load(50, 4, true),
    load(50, 12, true),
    load(20, 40, true),
    load(1, 1, false),
    load(1, 12, true),
    load(10, 1, false),
    load(10, 12, true),
    load(200, 1, false),
    load(200, 4, true),
    load(500, 1, false),
    Load {
        singly: true,
        ..load(50, 12, true)
    },
];

const fn load(subscribers: usize, packets: u16, segmented: bool) -> Load {
    Load {
        subscribers,
        packets,
        singly: false,
        segmented,
    }
}

/// The ways to relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The kernel, with hop tags of its own.
    Kernel,
    /// The kernel, with the hop tags of the upstream.
    SameHop,
    /// User space with `sendmmsg` and `UDP_SEGMENT`.
    Gso,
    /// User space with `sendmmsg`.
    Sendmmsg,
}

const WAYS: [Way; 4] = [Way::Kernel, Way::SameHop, Way::Gso, Way::Sendmmsg];

pub(super) fn run(summary: &mut Summary) -> Result<()> {
    let network = Network::create()?;
    for load in LOADS {
        network.segment_in_software(load.segmented)?;
        let case = network.relay.run(|| {
            let mut relays = Relays::set_up(&network, load)?;
            super::on_one_cpu(|| measure(&mut relays, load))
        })??;
        summary.cases.push(case);
    }
    summary
        .cases
        .extend(network.relay.run(|| super::on_one_cpu(refusals))??);
    let verdicts = network.relay.run(|| super::on_one_cpu(verdicts))??;
    summary.cases.push(verdicts);
    Ok(())
}

/// Measures how long it takes to decide on an object for all slots. None has selected it, so nothing
/// is sent.
fn verdicts() -> Result<Case> {
    let mut relay = Relay::load(DEFAULT_DATAGRAM as u16)?;
    relays::configure(&mut relay, MAX_SLOTS)?;
    for slot in SlotIndex::all() {
        relay.select(relays::track(), slot, 0);
    }
    let mut figures = Vec::new();
    for number in 0..OBJECTS {
        let frame = arriving(PORT, &relays::object(number, 1));
        figures.push(nanoseconds(relay.run(&frame, 1)?.duration));
    }
    let mut case = Case::new(&format!("relay/verdicts-x{MAX_SLOTS}"));
    case.metrics.set("ns_per_object", median(figures));
    Ok(case)
}

/// Measures what packets cost that are not forwarded, in the kernel's own test run.
fn refusals() -> Result<Vec<Case>> {
    let mut relay = Relay::load(DEFAULT_DATAGRAM as u16)?;
    relays::configure(&mut relay, 50)?;
    let packet = relays::object(1, 1);
    let mut forged = packet.clone();
    forged[28] ^= 1;
    let cases = [
        ("relay/unrelated", PORT + 1, &packet[..]),
        ("relay/truncated", PORT, &packet[..50]),
        ("relay/forged", PORT, &forged),
    ];
    let measured = cases.map(|(name, port, payload)| {
        let frame = arriving(port, payload);
        let mut figures = Vec::new();
        for _ in 0..ROUNDS {
            figures.push(nanoseconds(relay.run(&frame, REFUSED)?.duration));
        }
        let mut case = Case::new(name);
        case.metrics.set("ns_per_packet", median(figures));
        Ok(case)
    });
    measured.into_iter().collect()
}

fn measure(relays: &mut Relays, load: Load) -> Result<Case> {
    let mut figures = WAYS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (way, figures) in WAYS.into_iter().zip(&mut figures) {
            figures.push(relays.run_complete(way, load)?);
        }
    }
    let [kernel, same_hop, gso, sendmmsg] = &figures;
    let mut case = Case::new(&load.name());
    case.set_param("subscribers", load.subscribers);
    case.set_param("packets", load.packets);
    case.set_param("datagram_bytes", DEFAULT_DATAGRAM);
    if !load.singly {
        let limit = LIMITS[usize::from(load.packets > 1)];
        case.set_param("limit_ratio_to_gso", limit);
    }
    let mut set = |name: &str, figure: f64| case.metrics.set(name, figure);
    set("ratio_to_gso", median_ratio(kernel, gso));
    set("same_hop_ratio_to_gso", median_ratio(same_hop, gso));
    set("ratio_to_sendmmsg", median_ratio(kernel, sendmmsg));
    for (way, figures) in ["kernel", "same_hop", "gso", "sendmmsg"]
        .into_iter()
        .zip(figures)
    {
        set(&format!("{way}_ns_per_delivered_packet"), median(figures));
    }
    Ok(case)
}

impl Load {
    fn name(self) -> String {
        let segmented = if self.segmented { "-segmented" } else { "" };
        let singly = if self.singly { "-singly" } else { "" };
        format!(
            "relay/{}x{}{segmented}{singly}",
            self.subscribers, self.packets
        )
    }
}

/// Returns the frame of a datagram from the publisher, as it arrives in a test run.
fn arriving(port: u16, payload: &[u8]) -> Vec<u8> {
    let packet = ip::udp_packet(PUBLISHER.into(), (RELAY[0], port).into(), 1, payload);
    [
        &[0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 9, 0x08, 0x00],
        &packet[..],
    ]
    .concat()
}

/// The publisher, and the relay in the kernel and in user space.
struct Relays {
    bench: RelayBench,
    publisher: Publisher,
    user_space: UserSpaceRelay,
    wan: u32,
}

impl Relays {
    fn set_up(network: &Network, load: Load) -> Result<Self> {
        let far = network.peers.run(|| if_nametoindex("far"))??;
        let mut bench = network
            .peers
            .run(|| RelayBench::load(DEFAULT_DATAGRAM as u16, far))??;
        relays::configure(bench.relay(), load.subscribers)?;
        Ok(Relays {
            bench,
            publisher: Publisher::open(network)?,
            user_space: UserSpaceRelay::open(load.subscribers)?,
            wan: if_nametoindex("wan")?,
        })
    }

    /// Returns the nanoseconds for a delivered packet. A run in which the kernel postponed work, until a
    /// device had more than it could hold, is repeated.
    fn run_complete(&mut self, way: Way, load: Load) -> Result<f64> {
        let mut figure = None;
        for _ in 0..ATTEMPTS {
            figure = self.run(way, load)?;
            if figure.is_some() {
                break;
            }
        }
        figure.with_context(|| format!("{way:?} never delivered all packets of {load:?}"))
    }

    /// Returns the nanoseconds for a delivered packet; `None` if not all were delivered.
    fn run(&mut self, way: Way, load: Load) -> Result<Option<f64>> {
        let packets = usize::from(load.packets);
        let objects = (DELIVERIES / load.subscribers / packets).max(4);
        let hop = match way {
            Way::Kernel => Some(TrackHop::Own(relays::own_hop())),
            Way::SameHop => Some(TrackHop::Upstreams),
            Way::Gso | Way::Sendmmsg => None,
        };
        let is_kernel = hop.is_some();
        if let Some(hop) = hop {
            let treatment = relays::treatment(hop);
            self.bench.relay().set_track(relays::track(), &treatment);
            self.bench.relay().attach(self.wan)?;
        } else {
            self.bench.relay().detach(self.wan);
        }
        self.user_space
            .send_trains(way == Way::Gso && packets > 1)?;
        self.publisher.send_trains(!load.singly && packets > 1)?;
        let objects: Vec<Vec<u8>> = (0..objects)
            .map(|_| self.publisher.next_object(load.packets))
            .collect();
        let before = self.bench.delivered()?;
        let start = Clock::now();
        for object in &objects {
            self.publish(object, load)?;
            // Lets the kernel do what it has postponed.
            std::thread::yield_now();
            if !is_kernel {
                self.user_space.receive_all(object.len())?;
                self.user_space.send()?;
            }
        }
        std::thread::yield_now();
        let took = start.elapsed();
        let expected = objects.len() * packets * load.subscribers;
        let delivered = self.bench.delivered()? - before;
        let is_complete = delivered == expected as u64;
        Ok(is_complete.then_some(took.as_nanos() as f64 / expected as f64))
    }

    fn publish(&self, object: &[u8], load: Load) -> Result<()> {
        if load.singly {
            self.publisher.publish_singly(object)
        } else {
            self.publisher.publish(object)
        }
    }
}
