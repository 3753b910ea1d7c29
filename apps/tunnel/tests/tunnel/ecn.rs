//! Congestion marks (ECN) of the network and of the tunnel's own queue reach the flows inside.

use crate::rig::{End, HOST4, HOST6, Rig, TIMEOUT, UPLINKS, nft};
use hawser_io::netns::Namespace;
use hawser_units::Ecn;
use socket2::SockRef;
use std::net::{IpAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

const FLOWS: [Ecn; 3] = [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1];

/// The port of the flow with this ECN field.
fn port(ecn: Ecn) -> u16 {
    4000 + u16::from(ecn.bits())
}

/// One direction through the tunnel.
struct Direction<'a> {
    from: &'a Namespace,
    own: IpAddr,
    to: &'a Namespace,
    address: IpAddr,
}

/// Packets of a flow that arrived.
#[derive(Debug, PartialEq)]
struct Arrived {
    all: u64,
    marked: u64,
}

impl Direction<'_> {
    /// Begins to count the packets that arrive.
    fn watch(&self) {
        let flow = |ecn| {
            let port = port(ecn);
            format!(
                "udp dport {port} counter name all{port}\nudp dport {port} ip ecn ce counter name ce{port}\nudp dport {port} ip6 ecn ce counter name ce{port}\n"
            )
        };
        let counter = |ecn| {
            let port = port(ecn);
            let zero = "{ packets 0 bytes 0 }";
            format!("counter all{port} {zero}\ncounter ce{port} {zero}\n")
        };
        let (counters, rules) = (FLOWS.map(counter).concat(), FLOWS.map(flow).concat());
        let hook = "type filter hook input priority 0";
        let table =
            format!("table inet arrivals {{\n{counters}chain input {{\n{hook}\n{rules}}}\n}}");
        nft(
            self.to,
            &format!("table inet arrivals\ndelete table inet arrivals\n{table}"),
        );
    }

    /// Sends packets of each flow, one after another with pauses.
    fn send(&self, packets: u32, bytes: usize, pause: Duration) {
        let socket = |ecn: Ecn| {
            let socket = UdpSocket::bind((self.own, 0)).unwrap();
            let class = ecn.bits().into();
            match self.own {
                IpAddr::V4(_) => SockRef::from(&socket).set_tos_v4(class).unwrap(),
                IpAddr::V6(_) => SockRef::from(&socket).set_tclass_v6(class).unwrap(),
            }
            socket
        };
        let sockets = self
            .from
            .run(|| FLOWS.map(|ecn| (ecn, socket(ecn))))
            .unwrap();
        for _ in 0..packets {
            for (ecn, socket) in &sockets {
                socket
                    .send_to(&vec![0; bytes], (self.address, port(*ecn)))
                    .unwrap();
            }
            thread::sleep(pause);
        }
    }

    fn arrived(&self, ecn: Ecn) -> Arrived {
        let count = |name: &str| {
            let counter = format!("list counter inet arrivals {name}{}", port(ecn));
            let text = nft(self.to, &counter);
            let packets = text.split("packets ").nth(1).unwrap();
            packets.split(' ').next().unwrap().parse::<u64>().unwrap()
        };
        Arrived {
            all: count("all"),
            marked: count("ce"),
        }
    }

    /// Waits until this many packets of each flow have arrived.
    fn wait_for(&self, packets: u32) -> [Arrived; 3] {
        let start = Instant::now();
        loop {
            let arrived = FLOWS.map(|ecn| self.arrived(ecn));
            if arrived.iter().all(|flow| flow.all >= packets.into()) {
                return arrived;
            }
            assert!(start.elapsed() < TIMEOUT, "{arrived:?} of {packets}");
            thread::sleep(Duration::from_millis(20));
        }
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

/// Limits the uplinks to 4 Mb/s in both directions, with queues that mark nothing.
fn limit_uplinks(rig: &Rig) {
    for end in [&rig.client, &rig.router] {
        for uplink in UPLINKS {
            let mut shaper = end.command("tc").unwrap();
            let limit =
                format!("qdisc add dev {uplink} root tbf rate 4mbit burst 5kb latency 200ms");
            shaper.args(limit.split(' '));
            assert!(shaper.status().unwrap().success());
        }
    }
}

#[test]
fn a_full_queue_of_the_tunnel_marks_flows_that_support_ecn_in_both_directions() {
    let rig = Rig::new();
    let server = rig.server(0, "nat = false", "");
    let client = rig.client("");
    limit_uplinks(&rig);
    for direction in directions(&rig, &client).iter().take(2) {
        direction.watch();
        // 24 Mb/s.
        direction.send(3000, 1000, Duration::from_millis(1));
        let [not_ect, ect0, ect1] = direction.wait_for(100);
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
