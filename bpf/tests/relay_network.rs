//! The relay between namespaces: what a publisher's socket sends arrives at subscribers' sockets.

#[path = "support/relayed.rs"]
mod relayed;

use hawser_bpf::relay::Reason;
use nix::sys::socket::{setsockopt, sockopt::UdpGsoSegment};
use relayed::*;
use std::net::UdpSocket;

/// Receives the next datagram of a subscriber, which comes from the relay.
fn receive(socket: &UdpSocket, index: usize) -> Vec<u8> {
    let mut buffer = [0; 2000];
    let (bytes, from) = socket
        .recv_from(&mut buffer)
        .unwrap_or_else(|error| panic!("subscriber {index}: {error}"));
    assert_eq!(from, session(index).local);
    buffer[..bytes].to_vec()
}

/// Sends the packets of an object, as one train or one by one, and checks that each subscriber
/// receives them.
fn send_and_receive(
    publisher: &UdpSocket,
    packets: &[Vec<u8>],
    as_train: bool,
    sockets: &[UdpSocket],
) {
    if as_train {
        setsockopt(publisher, UdpGsoSegment, &(packets[0].len() as i32)).unwrap();
        publisher.send(&packets.concat()).unwrap();
    } else {
        setsockopt(publisher, UdpGsoSegment, &0).unwrap();
        for packet in packets {
            publisher.send(packet).unwrap();
        }
    }
    for (index, socket) in sockets.iter().enumerate() {
        for packet in packets {
            assert_eq!(receive(socket, index), relayed::relayed(packet));
        }
    }
}

/// Receivers verify the checksums of what did not come with a device's promise to complete them.
#[test]
fn every_subscriber_receives_each_packet_whatever_the_devices_compute() {
    const PACKETS: u16 = 12;
    let offloads = [
        ("none", true, true),
        ("sender", false, true),
        ("relay", true, false),
        ("both", false, false),
    ];
    for (name, sender, relay_device) in offloads {
        in_network(&format!("fanout-{name}"), 20, |network| {
            let offload = |on| [("tx", on)];
            network
                .peers
                .offloads("publisher", &offload(sender))
                .unwrap();
            network
                .relay
                .offloads("lan", &offload(relay_device))
                .unwrap();
            let relay = network.relay(None);
            let sockets = network.subscribers();
            let mut number = 0;
            for is_ipv6 in [false, true] {
                let publisher = network.publisher(is_ipv6);
                for as_train in [false, true] {
                    number += 1;
                    let packet = |index| {
                        let bytes = if index + 1 == PACKETS { 700 } else { 1200 };
                        datagram(&header(object(number, 0, 0), index, PACKETS), bytes)
                    };
                    let packets: Vec<_> = (0..PACKETS).map(packet).collect();
                    send_and_receive(&publisher, &packets, as_train, &sockets);
                }
            }
            let packets = u64::from(PACKETS) * 4;
            assert_eq!(
                counted(relay.counts(Some(track(0))).unwrap()),
                [(Reason::Forwarded, packets)]
            );
            assert_eq!(counted(relay.counts(None).unwrap()), []);
            for index in 0..20 {
                let stats = relay.slot_stats(slot(index));
                assert_eq!((stats.packets, stats.lost), (packets, [0; 5]), "{index}");
            }
        });
    }
}
