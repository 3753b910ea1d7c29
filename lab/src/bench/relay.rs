//! The relay in the kernel against relays in user space, on the same virtual devices.
//!
//! A thread publishes an object and has it relayed to all subscribers, whose device counts and drops
//! it: the time includes sending, receiving and verifying the object once, and all that is done for
//! each subscriber up to its device. The rivals in user space receive the whole object in one system
//! call and send it in one.

use super::{median, median_ratio, nanoseconds};
use crate::summary::{Case, Summary};
use anyhow::{Context, Result, ensure};
use hawser_bpf::bench::RelayBench;
use hawser_bpf::relay::{Options, Relay, Route, Session, TrackOptions, Upstream};
use hawser_fanout::{Budget, Frame, MAX_SLOTS, Selection, SlotIndex, TrackHop, TrackIndex};
use hawser_io::netns::Namespace;
use hawser_units::Instant;
use hawser_wire::media::{
    DEFAULT_DATAGRAM, Flags, Header, Hop, MediaTime, ObjectId, PacketId, is_from_hop, write_hop,
};
use hawser_wire::{Key, ip};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::sockopt::{SndBufForce, UdpGroSegment, UdpGsoSegment};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, sendmmsg, setsockopt};
use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::num::NonZeroU16;
use std::os::fd::AsRawFd;
use std::time::Instant as Clock;

const ROUNDS: usize = 21;

/// Deliveries of a run: short runs, so that the alternatives meet the same speed of the machine.
const DELIVERIES: usize = 20_000;

/// The largest share of the rival's time for objects of one packet, and of more.
const LIMITS: [f64; 2] = [0.5, 1.0];

/// Objects that are decided on.
const OBJECTS: u32 = 2_000;

const OPTIONS: Options = Options {
    datagram_bytes: DEFAULT_DATAGRAM as u16,
    segmenter_entry: None,
};

/// Refused packets of a run.
const REFUSED: u32 = 50_000;

/// Runs until one delivers all packets.
const ATTEMPTS: usize = 10;

const ALIAS: u32 = 7;
const PORT: u16 = 4747;
const RELAY: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 8, 0, 1)];
const PUBLISHER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 2), 5000);
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 8, 1], [2, 0, 0, 0, 8, 2]];

/// What is relayed to how many.
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
        network
            .relay
            .offloads("lan", &[("tx-udp-segmentation", !load.segmented)])?;
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
    let mut relay = Relay::load(&OPTIONS)?;
    configure(&mut relay, load(MAX_SLOTS, 1, false))?;
    for slot in SlotIndex::all() {
        relay.select(track(), slot, 0);
    }
    let mut figures = Vec::new();
    for number in 0..OBJECTS {
        let frame = arriving(PORT, &object(number, 1));
        figures.push(nanoseconds(relay.run(&frame, 1)?.duration));
    }
    let mut case = Case::new(&format!("relay/verdicts-x{MAX_SLOTS}"));
    case.metrics.set("ns_per_object", median(figures));
    Ok(case)
}

/// Measures what packets cost that are not forwarded, in the kernel's own test run.
fn refusals() -> Result<Vec<Case>> {
    let mut relay = Relay::load(&OPTIONS)?;
    configure(&mut relay, load(50, 1, false))?;
    let packet = object(1, 1);
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

/// A namespace with the relay's devices `wan` and `lan`, and one with their peers.
struct Network {
    relay: Namespace,
    peers: Namespace,
}

impl Network {
    fn create() -> Result<Self> {
        let create = |end| Namespace::create(format!("hawser-bench-{}-{end}", std::process::id()));
        let network = Network {
            relay: create("relay")?,
            peers: create("peers")?,
        };
        let peers = network.peers.name();
        let [wan, lan] = RELAY;
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        network.relay.ip(&format!(
            "link add wan type veth peer name publisher netns {peers}\n\
             link add lan type veth peer name far netns {peers}\n\
             link set dev wan addrgenmode none\nlink set dev lan addrgenmode none\n\
             link set dev lan address {}\nlink set dev wan up\nlink set dev lan up\n\
             addr add {wan}/24 dev wan\naddr add {lan}/24 dev lan\n\
             neigh add 10.8.0.2 lladdr {} dev lan\nroute add 10.10.0.0/16 via 10.8.0.2\n",
            mac(MACS[0]),
            mac(MACS[1]),
        ))?;
        network.peers.ip(&format!(
            "link set dev publisher addrgenmode none\nlink set dev far addrgenmode none\n\
             link set dev far address {}\nlink set dev publisher up\nlink set dev far up\n\
             addr add {}/24 dev publisher\n",
            mac(MACS[1]),
            PUBLISHER.ip(),
        ))?;
        Ok(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.relay, &self.peers] {
            if let Err(error) = namespace.delete() {
                tracing::warn!("{error}");
            }
        }
    }
}

/// The publisher, and the relay in the kernel and in user space.
struct Relays {
    bench: RelayBench,
    publisher: UdpSocket,
    socket: UdpSocket,
    addresses: Vec<SockaddrIn>,
    /// The next object.
    object: u32,
    wan: u32,
}

impl Relays {
    fn set_up(network: &Network, load: Load) -> Result<Self> {
        let far = network.peers.run(|| if_nametoindex("far"))??;
        let mut bench = network.peers.run(|| RelayBench::load(&OPTIONS, far))??;
        configure(bench.relay(), load)?;
        let socket = UdpSocket::bind((RELAY[0], PORT))?;
        let publisher = network.peers.run(|| UdpSocket::bind(PUBLISHER))??;
        publisher.connect((RELAY[0], PORT))?;
        setsockopt(&socket, UdpGroSegment, &true)?;
        for socket in [&socket, &publisher] {
            setsockopt(socket, SndBufForce, &(32 << 20))?;
        }
        let addresses = (0..load.subscribers).map(|index| remote(index).into());
        Ok(Relays {
            bench,
            publisher,
            socket,
            addresses: addresses.collect(),
            object: 0,
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
        let is_kernel = matches!(way, Way::Kernel | Way::SameHop);
        if is_kernel {
            self.bench.relay().set_track(track(), &treatment(way));
            self.bench.relay().attach(self.wan)?;
        } else {
            self.bench.relay().detach(self.wan);
        }
        let segment = if way == Way::Gso && packets > 1 {
            DEFAULT_DATAGRAM as i32
        } else {
            0
        };
        setsockopt(&self.socket, UdpGsoSegment, &segment)?;
        let published = if load.singly || packets == 1 {
            0
        } else {
            DEFAULT_DATAGRAM as i32
        };
        setsockopt(&self.publisher, UdpGsoSegment, &published)?;
        let objects: Vec<Vec<u8>> = (0..objects)
            .map(|_| self.next_object(load.packets))
            .collect();
        let mut buffer = vec![0; 1 << 16];
        let before = self.bench.delivered()?;
        let start = Clock::now();
        for object in &objects {
            self.publish(object, load)?;
            // Lets the kernel do what it has postponed.
            std::thread::yield_now();
            if !is_kernel {
                let bytes = self.receive(&mut buffer, object.len())?;
                self.send(way, &mut buffer[..bytes])?;
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
            for packet in object.chunks(DEFAULT_DATAGRAM) {
                self.publisher.send(packet)?;
            }
        } else {
            self.publisher.send(object)?;
        }
        Ok(())
    }

    /// Receives an object in user space, verifies it, and tags it for the next hop.
    fn receive(&self, buffer: &mut [u8], bytes: usize) -> Result<usize> {
        let mut received = 0;
        while received < bytes {
            received += self.socket.recv(&mut buffer[received..])?;
        }
        for packet in buffer[..bytes].chunks_mut(DEFAULT_DATAGRAM) {
            ensure!(is_from_hop(packet, &upstream_hop().key), "a forged packet");
            let header = packet.first_chunk_mut().context("a packet has a header")?;
            write_hop(header, &own_hop());
        }
        Ok(bytes)
    }

    /// Sends an object to all subscribers from user space.
    fn send(&self, way: Way, object: &mut [u8]) -> Result<()> {
        let length = if way == Way::Gso {
            object.len()
        } else {
            DEFAULT_DATAGRAM
        };
        let addresses: Vec<_> = self.addresses.iter().copied().map(Some).collect();
        let mut headers = MultiHeaders::preallocate(addresses.len(), None);
        for piece in object.chunks(length) {
            let slices = vec![[IoSlice::new(piece)]; addresses.len()];
            let mut sent = 0;
            while sent < addresses.len() {
                let more = sendmmsg(
                    self.socket.as_raw_fd(),
                    &mut headers,
                    &slices[sent..],
                    &addresses[sent..],
                    [],
                    MsgFlags::empty(),
                )?;
                sent += more.count();
            }
        }
        Ok(())
    }

    fn next_object(&mut self, packets: u16) -> Vec<u8> {
        self.object += 1;
        object(self.object, packets)
    }
}

/// Returns the datagrams of an object, one after the other.
fn object(group: u32, packets: u16) -> Vec<u8> {
    let packet = |index| {
        let object = ObjectId {
            alias: ALIAS,
            group,
            object: 0,
            layer: 0,
        };
        let header = Header {
            flags: Flags::default(),
            priority: 0,
            id: PacketId { object, index },
            count: NonZeroU16::new(packets),
            deadline: MediaTime(0),
            epoch: 0,
        };
        let mut packet = header.emit(&upstream_hop()).to_vec();
        packet.resize(DEFAULT_DATAGRAM, 0x77);
        packet
    };
    (0..packets).flat_map(packet).collect()
}

fn configure(relay: &mut Relay, load: Load) -> Result<()> {
    let upstream = Session {
        local: (RELAY[0], PORT).into(),
        remote: PUBLISHER.into(),
    };
    relay.listen(upstream.local)?;
    let from = Upstream {
        number: 1,
        hops: [Some(upstream_hop()), None, None],
    };
    relay.set_upstream(&upstream, Some(&from))?;
    relay.add_track(track(), &treatment(Way::Kernel));
    relay.name_track(1, ALIAS, Some(track()))?;
    let route = Route {
        ifindex: if_nametoindex("lan")?,
        mtu_bytes: 1500,
        source_mac: MACS[0],
        next_hop_mac: MACS[1],
    };
    for slot in SlotIndex::all().take(load.subscribers) {
        let session = Session {
            local: (RELAY[1], PORT).into(),
            remote: remote(slot.get()).into(),
        };
        relay.add_subscriber(
            slot,
            &session,
            &Budget::UNLIMITED,
            Instant::ZERO,
            Instant::MAX,
        );
        relay.set_route(slot, Some(&route));
        let (layers, join) = (1, Frame::FIRST);
        relay.subscribe(track(), slot, &Selection { layers, join });
    }
    Ok(())
}

fn treatment(way: Way) -> TrackOptions {
    let hop = match way {
        Way::SameHop => TrackHop::Upstreams,
        _ => TrackHop::Own(own_hop()),
    };
    TrackOptions {
        hop,
        copy: false,
        arrivals: true,
    }
}

fn track() -> TrackIndex {
    TrackIndex::all().next().expect("there are tracks")
}

fn remote(index: usize) -> SocketAddrV4 {
    let [high, low] = (index as u16).to_be_bytes();
    SocketAddrV4::new(Ipv4Addr::new(10, 10, high, low), 6000)
}

fn upstream_hop() -> Hop {
    hop(1, 0x5a)
}

fn own_hop() -> Hop {
    hop(2, 0xa5)
}

fn hop(number: u16, byte: u8) -> Hop {
    Hop {
        number,
        key: Key::from_bytes([byte; 16]),
    }
}
