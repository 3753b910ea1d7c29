//! Packets of media, and a relay between namespaces.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by the tests of the relay, each of which uses only a part"
)]

use hawser_fanout::{Budget, Frame, Selection, SlotIndex, TrackHop, TrackIndex};
use hawser_media_bpf::relay::{Reason, Relay, Route, Session, TrackOptions, Upstream};
use hawser_packets::media::{Flags, Header, Hop, MediaTime, ObjectId, PacketId};
use hawser_testbed::netns::Namespace;
use hawser_units::Instant;
use hawser_wire::Key;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::num::NonZeroU16;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// The alias of the track at the upstream.
pub const ALIAS: u32 = 7;

/// The relay's port, and those of the publisher and of subscriber 0.
pub const PORT: u16 = 4747;
pub const PUBLISHER_PORT: u16 = 5000;
pub const FIRST_PORT: u16 = 6000;

/// The addresses of the relay and of the publisher on the device `wan`, and those of the relay and of
/// subscriber 0 on the device `lan`.
pub const WAN: [&str; 4] = ["10.9.0.1", "10.9.0.2", "fd09::1", "fd09::2"];
pub const LAN_V4: Ipv4Addr = Ipv4Addr::new(10, 8, 255, 1);
pub const LAN_V6: Ipv6Addr = Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 0xff, 1);

const LAN_MAC: [u8; 6] = [2, 0, 0, 0, 8, 1];
const FAR_MAC: [u8; 6] = [2, 0, 0, 0, 8, 2];

/// The hop of the upstream, and the relay's own.
pub fn upstream_hop() -> Hop {
    hop(3, 0x5a)
}

pub fn own_hop() -> Hop {
    hop(9, 0xa5)
}

pub fn hop(number: u16, byte: u8) -> Hop {
    Hop {
        number,
        key: Key::from_bytes([byte; 16]),
    }
}

pub fn track(index: usize) -> TrackIndex {
    TrackIndex::try_from(index).unwrap()
}

pub fn slot(index: usize) -> SlotIndex {
    SlotIndex::try_from(index).unwrap()
}

pub fn object(group: u32, object: u32, layer: u8) -> ObjectId {
    ObjectId {
        alias: ALIAS,
        group,
        object,
        layer,
    }
}

/// The header of packet `index` of an object of `count` packets; 0: the number is not known.
pub fn header(object: ObjectId, index: u16, count: u16) -> Header {
    Header {
        flags: Flags::default(),
        priority: object.layer,
        id: PacketId { object, index },
        count: NonZeroU16::new(count),
        deadline: MediaTime(1),
        epoch: 0,
    }
}

/// A datagram of `bytes` from the upstream.
pub fn datagram(header: &Header, bytes: usize) -> Vec<u8> {
    let mut datagram = header.emit(&upstream_hop()).to_vec();
    datagram.extend((0..bytes - Header::LEN).map(|at| (at % 251) as u8));
    datagram
}

/// The same datagram as the relay sends it.
pub fn relayed(datagram: &[u8]) -> Vec<u8> {
    let mut datagram = datagram.to_vec();
    let header = datagram.first_chunk_mut().unwrap();
    hawser_packets::media::write_hop(header, &own_hop());
    datagram
}

/// The kernel's monotonic clock.
pub fn now() -> Instant {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    Instant::from_nanos(Duration::from(now).as_nanos() as u64)
}

/// A namespace with the relay's devices `wan` and `lan`, and one with their peers `publisher` and
/// `far`, to which the subscribers' addresses belong.
pub struct Network {
    pub relay: Namespace,
    pub peers: Namespace,
    subscribers: usize,
}

/// Runs `test` in the namespace of the relay.
pub fn in_network(name: &str, subscribers: usize, test: impl FnOnce(&Network) + Send) {
    let create = |end: &str| {
        Namespace::create(format!("hawser-test-{}-{name}-{end}", std::process::id())).unwrap()
    };
    let network = Network {
        relay: create("relay"),
        peers: create("peers"),
        subscribers,
    };
    let result = network.set_up().and_then(|()| {
        network
            .relay
            .run(|| catch_unwind(AssertUnwindSafe(|| test(&network))))
    });
    network.relay.delete().unwrap();
    network.peers.delete().unwrap();
    result.unwrap().unwrap();
}

impl Network {
    fn set_up(&self) -> Result<(), hawser_testbed::netns::Error> {
        let peers = self.peers.name();
        let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
        self.relay.ip(&format!(
            "link add wan type veth peer name publisher netns {peers}\n\
             link add lan type veth peer name far netns {peers}\n\
             link set dev lan address {}\n\
             link set dev wan up\nlink set dev lan up\n\
             addr add {}/24 dev wan\naddr add {}/64 dev wan nodad\n\
             addr add {LAN_V4}/16 dev lan\naddr add {LAN_V6}/64 dev lan nodad\n",
            mac(LAN_MAC),
            WAN[0],
            WAN[2],
        ))?;
        let mut batch = format!(
            "link set dev far address {}\nlink set dev publisher up\nlink set dev far up\n\
             addr add {}/24 dev publisher\naddr add {}/64 dev publisher nodad\n",
            mac(FAR_MAC),
            WAN[1],
            WAN[3],
        );
        for index in 0..self.subscribers {
            let length = if is_ipv6(index) { "64 nodad" } else { "16" };
            let (address, flags) = length.split_once(' ').unwrap_or((length, ""));
            batch += &format!(
                "addr add {}/{address} dev far {flags}\n",
                remote(index).ip()
            );
        }
        self.peers.ip(&batch)
    }

    /// A relay of track 0 with all subscribers.
    pub fn relay(&self) -> Relay {
        let mut relay = Relay::load(1200).unwrap();
        for is_ipv6 in [false, true] {
            let session = upstream_session(is_ipv6);
            relay.listen(session.local).unwrap();
            let upstream = Upstream {
                number: 1,
                hops: [Some(upstream_hop()), None, None],
            };
            relay.set_upstream(&session, Some(&upstream)).unwrap();
        }
        relay.add_track(track(0), &track_options());
        relay.name_track(1, ALIAS, Some(track(0))).unwrap();
        for index in 0..self.subscribers {
            add_subscriber(&mut relay, index, &Budget::UNLIMITED);
        }
        relay.attach(if_nametoindex("wan").unwrap()).unwrap();
        relay
    }

    /// The publisher's socket.
    pub fn publisher(&self, is_ipv6: bool) -> UdpSocket {
        let session = upstream_session(is_ipv6);
        let socket = self.peers.run(|| UdpSocket::bind(session.remote)).unwrap();
        let socket = socket.unwrap();
        socket.connect(session.local).unwrap();
        socket
    }

    /// The sockets of all subscribers.
    pub fn subscribers(&self) -> Vec<UdpSocket> {
        let bind = |index| {
            let socket = UdpSocket::bind(remote(index)).unwrap();
            // A test may send everything before it receives.
            setsockopt(&socket, RcvBufForce, &(64 << 20)).unwrap();
            let timeout = Some(Duration::from_secs(60));
            socket.set_read_timeout(timeout).unwrap();
            socket
        };
        let sockets = self.peers.run(|| (0..self.subscribers).map(bind).collect());
        sockets.unwrap()
    }
}

pub fn upstream_session(is_ipv6: bool) -> Session {
    let [local, remote] = if is_ipv6 {
        [WAN[2], WAN[3]]
    } else {
        [WAN[0], WAN[1]]
    };
    Session {
        local: SocketAddr::new(local.parse().unwrap(), PORT),
        remote: SocketAddr::new(remote.parse().unwrap(), PUBLISHER_PORT),
    }
}

/// Every second subscriber is reached over IPv6.
pub fn is_ipv6(index: usize) -> bool {
    index % 2 == 1
}

/// The address of a subscriber.
pub fn remote(index: usize) -> SocketAddr {
    let number = index as u16 + 2;
    let port = FIRST_PORT + index as u16;
    if is_ipv6(index) {
        (Ipv6Addr::new(0xfd08, 0, 0, 0, 0, 0, 1, number), port).into()
    } else {
        let [high, low] = number.to_be_bytes();
        (Ipv4Addr::new(10, 8, high, low), port).into()
    }
}

/// The session of a subscriber.
pub fn session(index: usize) -> Session {
    let local = match is_ipv6(index) {
        true => (LAN_V6, PORT).into(),
        false => (LAN_V4, PORT).into(),
    };
    Session {
        local,
        remote: remote(index),
    }
}

/// The treatment of a track of which no packets go to user space.
pub fn track_options() -> TrackOptions {
    TrackOptions {
        hop: TrackHop::Own(own_hop()),
        copy: false,
        arrivals: false,
    }
}

/// Adds a subscriber of all layers of track 0.
pub fn add_subscriber(relay: &mut Relay, index: usize, budget: &Budget) {
    let expires = now() + Duration::from_secs(60);
    relay.add_subscriber(slot(index), &session(index), budget, now(), expires);
    relay.set_route(slot(index), Some(&route()));
    relay.subscribe(track(0), slot(index), &all_layers());
}

pub fn all_layers() -> Selection {
    Selection {
        layers: 8,
        join: Frame::FIRST,
    }
}

/// The way to all subscribers.
pub fn route() -> Route {
    Route {
        ifindex: if_nametoindex("lan").unwrap(),
        mtu_bytes: 1500,
        source_mac: LAN_MAC,
        next_hop_mac: FAR_MAC,
    }
}

/// Returns what was counted.
pub fn counted(counts: Vec<(Reason, u64)>) -> Vec<(Reason, u64)> {
    counts.into_iter().filter(|(_, count)| *count > 0).collect()
}
