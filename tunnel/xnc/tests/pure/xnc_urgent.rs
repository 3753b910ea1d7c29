//! Urgent packets that are sent over two paths at once.

use crate::network::{MS, Network, Pipe, path};
use hawser_units::{Ecn, Instant};
use hawser_xnc::{Config, Hint, Packet};
use std::time::Duration;

/// The one-way delays of the paths, and the interval of packets.
const DELAYS: [Duration; 3] = [
    Duration::from_millis(20),
    Duration::from_millis(30),
    Duration::from_millis(80),
];
const EVERY: Duration = Duration::from_millis(20);

const URGENT: Hint = Hint {
    end_of_frame: false,
    flow_hash: 7,
    urgent: true,
    ecn: Ecn::NotEct,
};

fn network(duplicate_urgent: bool) -> Network {
    let config = Config {
        duplicate_urgent,
        ..Config::default()
    };
    let pipes = DELAYS.map(|delay| Pipe::new(delay, 200_000));
    let mut network = Network::new(config, pipes.into());
    // Both ends know the paths.
    network.run_for(500 * MS);
    network
}

/// Sends a packet every 20 ms.
fn send(network: &mut Network, packets: u32, hint: Hint) -> Vec<Instant> {
    let mut sent = Vec::new();
    for _ in 0..packets {
        sent.push(network.now);
        network.send(hint, 200);
        // The packet leaves now, not when something else happens.
        network.run_for(Duration::ZERO);
        network.run_for(EVERY);
    }
    sent
}

/// Returns the delay of each packet. Each has arrived exactly once.
fn delays(network: &Network, sent: &[Instant]) -> Vec<Duration> {
    let mut numbers = network.numbers();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..network.sent).collect::<Vec<_>>());
    let number = |packet: &Packet| u64::from_be_bytes(packet.bytes[..8].try_into().unwrap());
    let arrived = network.received.iter();
    let delay = |(at, packet): &(Instant, Packet)| {
        at.saturating_since(sent[usize::try_from(number(packet)).unwrap()])
    };
    arrived.map(delay).collect()
}

#[test]
fn a_path_that_dies_delays_no_urgent_packet() {
    let longest = |duplicate: bool| {
        let mut network = network(duplicate);
        let mut sent = send(&mut network, 20, URGENT);
        network.pipes.get_mut(&path(0)).unwrap().is_cut = true;
        sent.extend(send(&mut network, 100, URGENT));
        network.pipes.get_mut(&path(0)).unwrap().is_cut = false;
        network.pipes.get_mut(&path(1)).unwrap().is_cut = true;
        network.run_for(1000 * MS);
        sent.push(network.now);
        network.send(URGENT, 200);
        network.run_for(Duration::ZERO);
        network.run_for(2000 * MS);
        delays(&network, &sent).into_iter().max().unwrap()
    };
    let (with, without) = (longest(true), longest(false));
    assert!(with <= DELAYS[1] + MS, "{with:?}");
    assert!(without > DELAYS[1] + 10 * MS, "{without:?} without copies");
}

#[test]
fn copies_are_of_urgent_packets_only_and_are_counted() {
    let mut network = network(true);
    let mut sent = send(&mut network, 50, URGENT);
    sent.extend(send(&mut network, 50, Hint::default()));
    network.run_for(500 * MS);
    delays(&network, &sent);
    let stats = network.ends[0].stats().sender;
    assert_eq!(stats.duplicated, 50);
    let copies: u64 = stats.paths.iter().map(|path| path.recovery).sum();
    assert_eq!(copies, 50, "over the second path");
    assert_eq!(
        stats.paths[2].first + stats.paths[2].recovery,
        0,
        "the worst path"
    );
    assert!(stats.redundancy() > 0.5, "{}", stats.redundancy());
    assert_eq!(stats.lost, 0);
}

#[test]
fn a_single_path_gets_one_copy() {
    let mut network = network(true);
    network.remove(path(0));
    network.remove(path(2));
    let sent = send(&mut network, 20, URGENT);
    network.run_for(500 * MS);
    assert_eq!(delays(&network, &sent).len(), 20);
    assert_eq!(network.ends[0].stats().sender.duplicated, 0);
}

#[test]
fn the_time_until_packets_are_confirmed_is_known() {
    let mut network = network(false);
    send(&mut network, 100, URGENT);
    network.run_for(500 * MS);
    let confirmed = network.ends[0].stats().sender.confirmed_after;
    let median = confirmed.percentile(0.5).unwrap();
    // A round trip and the delay of the acknowledgement.
    assert!((40 * MS..52 * MS).contains(&median), "{median:?}");
}
