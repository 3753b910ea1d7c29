//! Congestion marks (ECN) of the network and of the tunnel's own queue reach the flows inside.

use crate::rig::{End, HOST4, HOST6, Rig, TIMEOUT, UPLINKS, nft};
use hawser_io::udp::UdpSocket;
use hawser_testbed::netns::Namespace;
use hawser_units::Ecn;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

/// The ECN fields that the senders of the flows set.
const FLOWS: [Ecn; 3] = [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1];

/// One direction through the tunnel.
struct Direction<'a> {
    from: &'a Namespace,
    own: IpAddr,
    to: &'a Namespace,
    address: IpAddr,
}

impl Direction<'_> {
    fn flow(&self, ecn: Ecn) -> Flow {
        let bound = |namespace: &Namespace, address: IpAddr| {
            let bind = || UdpSocket::bind(SocketAddr::new(address, 0)).unwrap();
            namespace.run(bind).unwrap()
        };
        Flow {
            ecn,
            sender: bound(self.from, self.own),
            receiver: bound(self.to, self.address),
            arrived: Arrived::default(),
        }
    }

    /// Sends packets until one has arrived. A new network has to resolve its IPv6 neighbours, and keeps
    /// only the last packets meanwhile.
    fn resolve_neighbours(&self) {
        let mut flow = self.flow(Ecn::NotEct);
        let started = Instant::now();
        while flow.arrived.all == 0 {
            assert!(started.elapsed() < TIMEOUT, "nothing arrives");
            flow.send(300);
            thread::sleep(Duration::from_millis(20));
            flow.receive();
        }
    }

    /// Sends packets of each flow, one after another with pauses, and waits until at least `expected`
    /// packets of each flow have arrived.
    fn pass(&self, packets: u32, bytes: usize, pause: Duration, expected: u32) -> [Arrived; 3] {
        self.resolve_neighbours();
        let mut flows = FLOWS.map(|ecn| self.flow(ecn));
        for _ in 0..packets {
            for flow in &mut flows {
                flow.send(bytes);
                flow.receive();
            }
            thread::sleep(pause);
        }
        let sent = Instant::now();
        loop {
            flows.iter_mut().for_each(Flow::receive);
            let arrived = flows.each_ref().map(|flow| flow.arrived);
            if arrived.iter().all(|flow| flow.all >= expected) {
                return arrived;
            }
            assert!(sent.elapsed() < TIMEOUT, "{arrived:?} of {expected}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Packets whose sender sets one ECN field.
struct Flow {
    ecn: Ecn,
    sender: UdpSocket,
    receiver: UdpSocket,
    arrived: Arrived,
}

/// Packets of a flow that arrived.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Arrived {
    all: u32,
    marked: u32,
}

impl Flow {
    fn send(&self, bytes: usize) {
        let to = self.receiver.local_address().unwrap();
        self.sender.send(to, self.ecn, &vec![0; bytes]).unwrap();
    }

    fn receive(&mut self) {
        let arrived = &mut self.arrived;
        self.receiver
            .receive(|datagram| {
                arrived.all += 1;
                arrived.marked += u32::from(datagram.ecn == Ecn::Ce);
            })
            .unwrap();
    }
}

/// Returns both directions between the client and a host, over IPv4 and IPv6.
fn directions<'a>(rig: &'a Rig, client: &End) -> Vec<Direction<'a>> {
    let addresses = client.session().addresses;
    let pairs = addresses.iter().map(|own| {
        let host = if own.is_ipv6() { HOST6 } else { HOST4 };
        (*own, host.parse().unwrap())
    });
    pairs
        .flat_map(|(own, address)| {
            let up = Direction {
                from: &rig.client,
                own,
                to: &rig.host,
                address,
            };
            let down = Direction {
                from: &rig.host,
                own: address,
                to: &rig.client,
                address: own,
            };
            [up, down]
        })
        .collect()
}

fn network_marked(end: &End) -> u64 {
    end.session().network_marked_packets
}

#[test]
fn an_uplinks_marks_reach_ecn_flows_in_both_directions() {
    const PACKETS: u32 = 100;
    let unmarked = Arrived {
        all: PACKETS,
        marked: 0,
    };
    let rig = Rig::new();
    let server = rig.server(0, "nat = false", "");
    let client = rig.client("");
    let directions = directions(&rig, &client);
    assert_eq!(directions.len(), 4);
    let pass =
        |direction: &Direction<'_>| direction.pass(PACKETS, 300, Duration::from_millis(2), PACKETS);
    for direction in &directions {
        let [not_ect, ect0, _] = pass(direction);
        assert_eq!([not_ect, ect0], [unmarked, unmarked]);
    }
    assert_eq!([network_marked(&client), network_marked(&server)], [0, 0]);

    nft(
        &rig.router,
        "table inet marking {\nchain forward {\ntype filter hook forward priority 0\n\
         ip ecn ect0 ip ecn set ce\nip6 ecn ect0 ip6 ecn set ce\n}\n}",
    );
    for direction in &directions {
        let [not_ect, ect0, ect1] = pass(direction);
        assert_eq!(not_ect, unmarked);
        for flow in [ect0, ect1] {
            assert_eq!(flow.all, PACKETS);
            assert!(flow.marked > 9 * flow.all / 10, "{flow:?}");
        }
    }
    for end in [&client, &server] {
        end.until("it is counted", |status| {
            status.sessions[0].network_marked_packets > u64::from(PACKETS)
        });
    }
}

/// Limits the uplinks to 4 Mb/s in both directions, with queues that mark nothing.
fn limit_uplinks(rig: &Rig) {
    for end in [&rig.client, &rig.router] {
        for uplink in UPLINKS {
            Rig::limit(end, uplink, "4mbit", "200ms");
        }
    }
}

#[test]
fn a_full_queue_marks_ecn_flows_in_both_directions() {
    let rig = Rig::new();
    let server = rig.server(0, "nat = false", "");
    let client = rig.client("");
    limit_uplinks(&rig);
    for direction in directions(&rig, &client).iter().take(2) {
        // 24 Mb/s.
        let [not_ect, ect0, ect1] = direction.pass(1500, 1000, Duration::from_millis(1), 100);
        assert_eq!(not_ect.marked, 0, "{not_ect:?}");
        assert!(ect0.marked > 0, "{ect0:?}");
        assert!(ect1.marked > ect1.all / 2, "{ect1:?}");
    }
    for end in [&client, &server] {
        end.wait_until_counted("congested", 1);
        assert!(end.session().marked_packets > 0);
        assert_eq!(network_marked(end), 0);
    }
}
