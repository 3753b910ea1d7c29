//! A lab of two paths whose edges run `hawser agent`, with traffic while a test acts on them.

use crate::support::{TIMEOUT, hawser, wait};
use hawser_agent::Status;
use hawser_testbed::edges::{self, FLOW, Replication, Sender};
use hawser_testbed::netns::Namespace;
use hawser_testbed::topology::{Edge, Lab, Link, Stop, Topology, network_egress, network_ingress};
use hawser_testbed::traffic::{self, Endpoints, Family, Kind, Stream, StreamReport};
use hawser_units::{PathId, PathSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// The rate of each stream, packets per second.
pub(crate) const RATE_PPS: u32 = 2_000;

/// The size of packets without headers, bytes.
pub(crate) const PAYLOAD_BYTES: usize = 200;

/// The rate of each stream of trains, packets per second. High enough that some are in the loop
/// device at any time.
const TRAIN_RATE_PPS: u32 = 8_000;

/// The time that packets have to arrive after the senders have stopped.
const GRACE: Duration = Duration::from_millis(300);

/// Packets of one stream that are in flight between two nodes at any time. The network delivers at
/// once, but a busy processor delays packets by milliseconds.
pub(crate) const IN_FLIGHT: u64 = RATE_PPS as u64 / 100;

pub(crate) type Edges = edges::Edges<Status>;

pub(crate) type Agent = edges::Agent<Status>;

pub(crate) struct Rig {
    pub(crate) edges: Edges,
    pub(crate) lab: Lab,
    pub(crate) directory: TempDir,
}

impl Rig {
    /// Replicates packets from the source to the viewer onto both paths.
    pub(crate) fn new() -> Self {
        Rig::replicating(&Replication::on(PathSet::from_bits(0b11)))
    }

    pub(crate) fn replicating(replication: &Replication) -> Self {
        Rig::prepared(replication, |_| ())
    }

    /// Changes the lab before the agents start.
    pub(crate) fn prepared(replication: &Replication, prepare: impl FnOnce(&Lab)) -> Self {
        let lab = Topology {
            paths: 2,
            ..Topology::default()
        }
        .build()
        .unwrap();
        lab.paths()
            .for_each(|path| lab.bridge_for_xdp(path).unwrap());
        prepare(&lab);
        let directory = tempfile::tempdir().unwrap();
        let edges = Edges::start(&lab, &hawser(), directory.path(), replication).unwrap();
        Rig {
            edges,
            lab,
            directory,
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs UDP of both IP versions from the source to the viewer while `act` acts on the edges.
    pub(crate) fn under_traffic(
        &mut self,
        act: impl FnOnce(&mut Edges, &Lab),
    ) -> Vec<StreamReport> {
        self.under_traffic_of(
            Sender::Source,
            Kind::UdpConnected,
            (RATE_PPS, PAYLOAD_BYTES),
            act,
        )
    }

    /// Runs trains of UDP segments of both IP versions from the ingress edge itself to the viewer
    /// while `act` acts on the edges.
    pub(crate) fn under_local_trains(
        &mut self,
        act: impl FnOnce(&mut Edges, &Lab),
    ) -> Vec<StreamReport> {
        self.under_traffic_of(
            Sender::Ingress,
            Kind::UdpGso,
            (TRAIN_RATE_PPS, PAYLOAD_BYTES),
            act,
        )
    }

    /// Runs packets of a kind and of both IP versions from the source or the ingress edge to the
    /// viewer while `act` acts on the edges.
    pub(crate) fn under_traffic_of(
        &mut self,
        sender: Sender,
        kind: Kind,
        (rate_pps, payload_bytes): (u32, usize),
        act: impl FnOnce(&mut Edges, &Lab),
    ) -> Vec<StreamReport> {
        let source = match sender {
            Sender::Source => self.lab.source(),
            Sender::Ingress => self.lab.ingress(),
        };
        let ends = Endpoints {
            source: source.clone(),
            ..Endpoints::from(&self.lab)
        };
        self.with_traffic(&ends, kind, (rate_pps, payload_bytes), act)
    }

    fn with_traffic(
        &mut self,
        ends: &Endpoints,
        kind: Kind,
        (rate_pps, payload_bytes): (u32, usize),
        act: impl FnOnce(&mut Edges, &Lab),
    ) -> Vec<StreamReport> {
        let stop = Stop::default();
        let stream = |family| Stream {
            kind,
            family,
            packets: 1_000_000,
            rate_pps,
            payload_bytes,
        };
        let streams = [Family::Ipv4, Family::Ipv6].map(stream);
        thread::scope(|scope| {
            // Stops the traffic even if `act` panics.
            let _ends = StopOnDrop(stop.clone());
            let traffic = scope.spawn(|| traffic::run(ends, &streams, GRACE, &stop).unwrap());
            self.await_packets();
            act(&mut self.edges, &self.lab);
            self.await_packets();
            stop.request();
            traffic.join().unwrap()
        })
    }

    /// Waits until the viewer has received another 1000 packets.
    fn await_packets(&self) {
        let first = received(&self.lab);
        wait("packets at the viewer", || {
            (received(&self.lab) >= first + 1000).then_some(())
        });
    }
}

/// Returns the number of copies of the IPv4 flow that arrived on a path.
pub(crate) fn egress_copies(edges: &mut Edges, path: u8) -> u64 {
    edges.egress().unwrap().receive[&FLOW][&path].packets
}

/// Waits until copies arrive on a path, of which there were `before`.
pub(crate) fn await_copies(edges: &mut Edges, path: u8, before: u64) {
    let arrived = |status: &Status| status.receive[&FLOW][&path].packets > before + 100;
    edges
        .egress_agent
        .wait_until("saw copies", arrived)
        .unwrap();
}

/// Returns the reverse path filter of a device.
pub(crate) fn reverse_path_filter(namespace: &Namespace, device: &str) -> String {
    let file = format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
    let value = namespace.run(|| std::fs::read_to_string(file)).unwrap();
    value.unwrap().trim().to_owned()
}

/// Waits until more copies arrive on a path.
pub(crate) fn brings_copies(edges: &mut Edges, path: u8) {
    let before = egress_copies(edges, path);
    await_copies(edges, path, before);
}

pub(crate) struct StopOnDrop(pub(crate) Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.request();
    }
}

/// Runs `act` while an edge has no device for path 2.
pub(crate) fn unplugged(lab: &Lab, edge: Edge, act: impl FnOnce()) {
    unplug(lab, edge, 2);
    act();
    plug(lab, edge, 2);
}

/// Removes the device of a path at an edge.
pub(crate) fn unplug(lab: &Lab, edge: Edge, path: u8) {
    let namespace = match edge {
        Edge::Ingress => lab.ingress(),
        Edge::Egress => lab.egress(),
    };
    namespace.ip(&format!("link del path{path}")).unwrap();
}

/// Makes the device of a path at an edge again.
pub(crate) fn plug(lab: &Lab, edge: Edge, path: u8) {
    let path = PathId::from_number(path).unwrap();
    let Link { near, far, .. } = lab.path(path);
    let (namespace, own, other, peer) = match edge {
        Edge::Ingress => (lab.ingress(), near, far, network_ingress(path)),
        Edge::Egress => (lab.egress(), far, near, network_egress(path)),
    };
    let device = &own.device;
    let plug = format!(
        "link add {device} address {mac} type veth peer name {peer} netns {network}\nlink set {device} up\n\
         addr add {address}/30 dev {device}\nneigh replace {remote} lladdr {remote_mac} nud permanent dev {device}",
        mac = own.mac,
        network = lab.network().name(),
        address = own.v4,
        remote = other.v4,
        remote_mac = other.mac,
    );
    namespace.ip(&plug).unwrap();
    lab.bridge_for_xdp(path).unwrap();
}

/// Returns the XDP mode of a device as shown by `ip link`, if it has a program.
pub(crate) fn xdp(namespace: &Namespace, device: &str) -> Option<String> {
    let output = namespace
        .command("ip")
        .unwrap()
        .args(["link", "show", "dev", device])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace()
        .find(|word| word.starts_with("xdp"))
        .map(str::to_owned)
}

/// Makes the ingress edge replicate all IPv4 and all IPv6 traffic.
pub(crate) fn widen(rig: &mut Rig) {
    let viewer = &rig.lab.addressing().viewer;
    let (v4, v6) = (viewer.v4_prefix(), viewer.v6_prefix());
    let wide = |text: &str| text.replace(&v4, "0.0.0.0/0").replace(&v6, "::/0");
    assert_eq!(
        rig.edges
            .ingress_agent
            .reconfigure(wide)
            .unwrap()
            .configuration
            .error,
        None
    );
}

/// Connects over TCP to a server at `address` in another namespace, and reads what the server
/// sends.
pub(crate) fn exchange(client: &Namespace, server: &Namespace, address: SocketAddr) {
    const BYTES: &[u8] = &[0x5a; 50_000];
    let listener = server.run(|| TcpListener::bind(address).unwrap()).unwrap();
    let stream = client.run(|| TcpStream::connect_timeout(&address, TIMEOUT));
    let mut stream = stream
        .unwrap()
        .unwrap_or_else(|error| panic!("{address}: {error}"));
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || peer.write_all(BYTES).unwrap());
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        assert!(received == BYTES, "{} bytes from {address}", received.len());
    });
}

/// Returns the number of packets that the viewer's device received.
fn received(lab: &Lab) -> u64 {
    let device = &lab.addressing().viewer.far.device;
    let table = lab
        .viewer()
        .run(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap())
        .unwrap();
    let row = table.lines().find_map(|line| {
        line.trim()
            .strip_prefix(&format!("{device}:"))
            .map(str::to_owned)
    });
    row.unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap()
}

/// Asserts the limits of missing and duplicate packets for all streams.
pub(crate) fn assert_losses(reports: &[StreamReport], max_missing: u64, max_duplicates: u64) {
    for report in reports {
        assert!(
            report.missing <= max_missing,
            "more than {max_missing} are missing: {report:?}"
        );
        assert!(
            report.duplicates <= max_duplicates,
            "more than {max_duplicates} are duplicates: {report:?}"
        );
        assert_eq!(
            (report.corrupt, report.receiver_overflow),
            (0, 0),
            "{report:?}"
        );
        assert!(report.error.is_none() && report.sent > 500, "{report:?}");
    }
}
