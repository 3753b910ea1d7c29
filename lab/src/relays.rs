//! The common parts of the benchmark and the experiment of relays: a publisher's objects, a relay between
//! two devices, and a relay in user space to compare with.

mod moq_relay;
mod user_space;

pub(crate) use moq_relay::{
    Audience, HOW_TO_INSTALL, MoqRelay, Publisher as MoqPublisher, Running,
};
pub(crate) use user_space::UserSpaceRelay;

use anyhow::{Context, Result};
use hawser_fanout::{Budget, Frame, Selection, SlotIndex, TrackHop, TrackIndex};
use hawser_media_bpf::relay::{Relay, Route, Session, TrackOptions, Upstream};
use hawser_packets::media::{DEFAULT_DATAGRAM, Flags, Header, Hop, MediaTime, ObjectId, PacketId};
use hawser_testbed::netns::Namespace;
use hawser_testbed::topology::Claim;
use hawser_units::Instant;
use hawser_wire::Key;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{SndBufForce, UdpGsoSegment};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::num::NonZeroU16;
use std::path::Path;
use std::time::Duration;

/// Enough for all packets of an object to all subscribers.
const SEND_BUFFER_BYTES: usize = 32 << 20;

const ALIAS: u32 = 7;

/// The relay's port, for its publisher and its subscribers.
pub(crate) const PORT: u16 = 4747;

/// The relay's addresses for its publisher and its subscribers.
pub(crate) const RELAY: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 8, 0, 1)];

pub(crate) const PUBLISHER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 9, 0, 2), 5000);

/// The address of the subscribers of a relay that is a program, and the next hop to all others.
pub(crate) const SUBSCRIBERS: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);

/// The link-layer addresses of the device towards the subscribers and of its next hop.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 8, 1], [2, 0, 0, 0, 8, 2]];

/// The link-layer address of the device towards the publisher.
const WAN_MAC: [u8; 6] = [2, 0, 0, 0, 9, 1];

/// A namespace with the relay's devices `wan` and `lan`, and one with their peers, `publisher` and `far`.
/// Between two ends of a cable the kernel holds 1,000 packets (`net.core.netdev_max_backlog`), and it
/// delivers those of a relay in the kernel only when the relay's program has returned.
pub(crate) struct Network {
    pub(crate) relay: Namespace,
    pub(crate) peers: Namespace,
    /// Removes the namespaces.
    _claim: Claim,
}

impl Network {
    pub(crate) fn create() -> Result<Self> {
        let claim = Claim::new()?;
        let network = Network {
            relay: claim.namespace("relay")?,
            peers: claim.namespace("peers")?,
            _claim: claim,
        };
        network.set_up()?;
        Ok(network)
    }

    fn set_up(&self) -> Result<()> {
        let peers = self.peers.name();
        let [wan, lan] = RELAY;
        self.relay.ip(&format!(
            "link add wan address {} type veth peer name publisher netns {peers}\n\
             link add lan address {} type veth peer name far netns {peers}\n\
             link set dev wan addrgenmode none\nlink set dev lan addrgenmode none\n\
             link set dev wan up\nlink set dev lan up\n\
             addr add {wan}/24 dev wan\naddr add {lan}/24 dev lan\n\
             neigh add {SUBSCRIBERS} lladdr {} dev lan\nroute add 10.10.0.0/16 via {SUBSCRIBERS}\n",
            mac(WAN_MAC),
            mac(MACS[0]),
            mac(MACS[1]),
        ))?;
        self.peers.ip(&format!(
            "link set dev far addrgenmode none\nlink set dev far address {}\nlink set dev far up\n",
            mac(MACS[1]),
        ))?;
        self.peers.ip(&format!(
            "link set dev publisher addrgenmode none\nlink set dev publisher up\n\
             addr add {}/24 dev publisher\nneigh add {wan} lladdr {} dev publisher\n",
            PUBLISHER.ip(),
            mac(WAN_MAC),
        ))?;
        Ok(())
    }

    /// Segments trains of packets to subscribers before they leave, as for a device that cannot, or not.
    pub(crate) fn segment_in_software(&self, segmented: bool) -> Result<()> {
        let setting = ("tx-udp-segmentation", !segmented);
        Ok(self.relay.offloads("lan", &[setting])?)
    }

    /// Has the peers answer at the address of the next hop of all subscribers, so that programs can be these.
    pub(crate) fn let_subscribers_answer(&self) -> Result<()> {
        let [_, lan] = RELAY;
        self.peers.ip(&format!(
            "addr add {SUBSCRIBERS}/24 dev far\nneigh add {lan} lladdr {} dev far\n",
            mac(MACS[0]),
        ))?;
        Ok(())
    }
}

fn mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The publisher of a track.
pub(crate) struct Publisher {
    socket: UdpSocket,
    /// The newest object.
    object: u32,
}

impl Publisher {
    pub(crate) fn open(network: &Network) -> Result<Self> {
        let socket = network.peers.run(|| UdpSocket::bind(PUBLISHER))??;
        socket.connect((RELAY[0], PORT))?;
        setsockopt(&socket, SndBufForce, &SEND_BUFFER_BYTES)?;
        Ok(Publisher { socket, object: 0 })
    }

    /// Returns the datagrams of the next object, one after the other.
    pub(crate) fn next_object(&mut self, packets: u16) -> Vec<u8> {
        self.object += 1;
        object(self.object, packets)
    }

    /// Sends the packets of each object as a train, or one by one.
    pub(crate) fn send_trains(&self, trains: bool) -> Result<()> {
        let bytes = if trains { DEFAULT_DATAGRAM as i32 } else { 0 };
        Ok(setsockopt(&self.socket, UdpGsoSegment, &bytes)?)
    }

    /// Sends an object with one system call.
    pub(crate) fn publish(&self, object: &[u8]) -> Result<()> {
        self.socket.send(object)?;
        Ok(())
    }

    /// Sends each packet of an object with a system call of its own.
    pub(crate) fn publish_singly(&self, object: &[u8]) -> Result<()> {
        for packet in object.chunks(DEFAULT_DATAGRAM) {
            self.socket.send(packet)?;
        }
        Ok(())
    }
}

/// Returns the datagrams of an object, one after the other.
pub(crate) fn object(group: u32, packets: u16) -> Vec<u8> {
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

/// Has the track of the publisher relayed to a number of subscribers, without limits.
pub(crate) fn configure(relay: &mut Relay, subscribers: usize) -> Result<()> {
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
    relay.add_track(track(), &treatment(TrackHop::Own(own_hop())));
    relay.name_track(1, ALIAS, Some(track()))?;
    let route = route()?;
    for slot in SlotIndex::all().take(subscribers) {
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

/// Returns the way to all subscribers, in the relay's namespace.
pub(crate) fn route() -> Result<Route> {
    Ok(Route {
        ifindex: if_nametoindex("lan")?,
        mtu_bytes: 1500,
        source_mac: MACS[0],
        next_hop_mac: MACS[1],
    })
}

/// Returns the treatment of the track by a relay in the kernel that has a record of each arrival.
pub(crate) fn treatment(hop: TrackHop) -> TrackOptions {
    TrackOptions {
        hop,
        copy: false,
        arrivals: true,
    }
}

pub(crate) fn track() -> TrackIndex {
    TrackIndex::all().next().expect("there are tracks")
}

/// Returns the address of a subscriber.
pub(crate) fn remote(subscriber: usize) -> SocketAddrV4 {
    let [high, low] = (subscriber as u16).to_be_bytes();
    SocketAddrV4::new(Ipv4Addr::new(10, 10, high, low), 6000)
}

fn upstream_hop() -> Hop {
    hop(1, 0x5a)
}

/// Returns the key with which the relay tags packets for its subscribers.
pub(crate) fn own_hop() -> Hop {
    hop(2, 0xa5)
}

fn hop(number: u16, byte: u8) -> Hop {
    Hop {
        number,
        key: Key::from_bytes([byte; 16]),
    }
}

/// Returns the CPU time that the threads of a process have used.
pub(crate) fn cpu_of_process(process: u32) -> Result<Duration> {
    let folder = format!("/proc/{process}/task");
    let threads = std::fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))?;
    threads.map(|thread| cpu_in(&thread?.path())).sum()
}

/// Returns the CPU time that a thread of this process has used.
pub(crate) fn cpu_of_thread(thread: u32) -> Result<Duration> {
    cpu_in(Path::new(&format!("/proc/self/task/{thread}")))
}

fn cpu_in(folder: &Path) -> Result<Duration> {
    let file = folder.join("schedstat");
    let text = std::fs::read_to_string(&file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let nanos = text.split_whitespace().next().context("a figure")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}
