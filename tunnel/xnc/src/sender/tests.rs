use super::*;
use crate::experiment::Experiment;
use crate::frame::Frame;
use crate::path::Rtt;
use crate::recovery::RECOVERY_DELAY;
use crate::sent_transmissions::Content;
use hawser_units::ByteSize;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

fn two_paths(config: Config) -> Sender {
    let mut sender = Sender::new(config);
    let state = PathState {
        congestion_window: ByteSize(100_000),
        in_flight: ByteSize(0),
        queued: ByteSize(0),
        rtt: Rtt::default(),
        datagram_size: 1400,
    };
    for id in [path(0), path(1)] {
        sender.add_path(Instant::ZERO, id);
        sender.update_path(id, state);
    }
    sender
}

/// Sends a packet over a path and acknowledges it, at these times in milliseconds.
fn deliver(sender: &mut Sender, id: PathId, sent: u32, acknowledged: u32) {
    let transmissions = &mut sender.paths.get_mut(id).unwrap().transmissions;
    let number = transmissions.next();
    transmissions.push(Instant::ZERO + sent * MS, Content::Original(0), 1000, 0);
    let block = AckBlock {
        path: id,
        delay: Duration::ZERO,
        ranges: vec![number..=number],
        ecn: None,
    };
    transmissions
        .acknowledge(Instant::ZERO + acknowledged * MS, &block, &mut Vec::new())
        .unwrap();
}

#[test]
fn a_path_that_delivered_nothing_recently_comes_last() {
    let mut sender = two_paths(Config {
        experiment: Experiment {
            delivered_within: 60 * MS,
            ..Experiment::default()
        },
        ..Config::default()
    });
    deliver(&mut sender, path(0), 0, 20);
    deliver(&mut sender, path(1), 40, 80);
    let order = |sender: &Sender, ms: u32| {
        let now = Instant::ZERO + ms * MS;
        let rooms = sender.paths.rooms_for_recovery(now, &sender.config, 1000);
        rooms
            .iter()
            .map(|(path, _)| path.index())
            .collect::<Vec<_>>()
    };
    assert_eq!(order(&sender, 80), [0, 1], "the path of 20 ms is faster");
    assert_eq!(
        order(&sender, 81),
        [1, 0],
        "but nothing sent over it in the last 80 ms was acknowledged"
    );
    deliver(&mut sender, path(0), 81, 101);
    assert_eq!(order(&sender, 101), [0, 1]);
}

#[test]
fn a_packet_lost_alone_takes_two_paths_each_time() {
    let mut sender = two_paths(Config::default());
    let packets = |sender: &mut Sender, now: Instant| {
        let transmits = std::iter::from_fn(|| sender.poll_transmit(now));
        let packets =
            transmits.filter(|sent| matches!(Frame::parse(&sent.datagram), Ok(Frame::Packet(..))));
        packets.map(|sent| sent.path.index()).collect::<Vec<_>>()
    };
    let mut now = Instant::ZERO;
    sender
        .handle_packet(now, vec![7; 1000], Hint::default())
        .unwrap();
    assert_eq!(packets(&mut sender, now).len(), 1);
    for in_flight in [1, 2, 2] {
        for _ in 0..in_flight {
            assert_eq!(packets(&mut sender, now), []);
            let lost = Outcome::Lost(Content::Original(0));
            sender.recovery.handle_outcome(now, lost);
        }
        now += RECOVERY_DELAY;
        let mut used = packets(&mut sender, now);
        used.sort();
        assert_eq!(used, [0, 1]);
    }
}

/// Creates a sender whose packets of 1000 bytes were all lost when their paths were replaced, and
/// whose paths have no window.
fn lost_without_window(packets: u64) -> (Sender, Instant) {
    let mut sender = two_paths(Config::default());
    let now = Instant::ZERO;
    (0..packets).for_each(|_| {
        sender
            .handle_packet(now, vec![7; 1000], Hint::default())
            .unwrap()
    });
    while sender.poll_transmit(now).is_some() {}
    for id in [path(0), path(1)] {
        sender.add_path(now, id);
    }
    open(&mut sender, 0);
    let now = now + RECOVERY_DELAY;
    sender.handle_timeout(now);
    assert!(packets_sent(&mut sender, now).is_empty());
    (sender, now)
}

fn open(sender: &mut Sender, window: u64) {
    let (congestion_window, rtt) = (ByteSize(window), Rtt::default());
    let (in_flight, queued) = (ByteSize(0), ByteSize(0));
    for id in [path(0), path(1)] {
        let state = PathState {
            congestion_window,
            in_flight,
            queued,
            rtt,
            datagram_size: 1400,
        };
        sender.update_path(id, state);
    }
}

/// Returns whether a shot is scheduled.
fn has_shots(sender: &Sender) -> bool {
    sender.recovery.poll_timeout(Instant::ZERO).is_some()
}

/// Returns the packet count and the first packet number of each datagram that is sent now.
fn packets_sent(sender: &mut Sender, now: Instant) -> Vec<(u8, u32)> {
    let sent = std::iter::from_fn(|| sender.poll_transmit(now));
    let header = |sent: Transmit| match Frame::parse(&sent.datagram) {
        Ok(Frame::Packet(header, _)) => Some((header.count, header.start)),
        _ => None,
    };
    sent.filter_map(header).collect()
}

#[test]
fn a_shot_that_expires_while_it_waits_for_a_window_is_not_sent() {
    let (mut sender, now) = lost_without_window(5);
    sender
        .handle_packet(now, vec![7; 1000], Hint::default())
        .unwrap();
    let in_time = now + (sender.config.max_queue_delay - MS);
    open(&mut sender, 100_000);
    let sent = packets_sent(&mut sender, in_time);
    assert!(sent.len() > 5 && sent[0] == (5, 0), "{sent:?}");
    assert_eq!(sender.stats().given_up, 0);

    let (mut sender, _) = lost_without_window(5);
    let late = Instant::ZERO + sender.config.expiry;
    sender
        .handle_packet(late, vec![7; 1000], Hint::default())
        .unwrap();
    open(&mut sender, 100_000);
    assert_eq!(
        packets_sent(&mut sender, late),
        [(1, 5)],
        "only the new packet"
    );
    assert_eq!((sender.stats().given_up, has_shots(&sender)), (5, false));
}

#[test]
fn expired_shots_are_dropped_even_without_window() {
    let (mut sender, _) = lost_without_window(5);
    sender.handle_timeout(Instant::ZERO + sender.config.expiry);
    assert_eq!((sender.stats().given_up, has_shots(&sender)), (5, false));
}

#[test]
fn planned_packets_are_not_sent_once_they_have_expired() {
    let (mut sender, now) = lost_without_window(5);
    open(&mut sender, 100_000);
    let coded = |sent: Option<Transmit>| {
        let sent = sent.expect("a datagram");
        matches!(Frame::parse(&sent.datagram), Ok(Frame::Packet(header, _)) if header.count == 5)
    };
    assert!(
        (0..3).any(|_| coded(sender.poll_transmit(now))),
        "after one ping per path"
    );
    assert!(sender.recovery.has_planned());
    let late = Instant::ZERO + sender.config.expiry;
    sender
        .handle_packet(late, vec![7; 1000], Hint::default())
        .unwrap();
    assert_eq!(packets_sent(&mut sender, late), [(1, 5)]);
}

#[test]
fn urgent_packets_precede_recovery_but_do_not_starve_it() {
    let (mut sender, now) = lost_without_window(9);
    let urgent = Hint {
        urgent: true,
        ..Hint::default()
    };
    (0..40).for_each(|_| sender.handle_packet(now, vec![7; 100], urgent).unwrap());
    open(&mut sender, 1_000_000);
    let sent: Vec<bool> = packets_sent(&mut sender, now)
        .iter()
        .map(|(count, _)| *count == 1)
        .collect();
    assert!(sent[..16].iter().all(|is_urgent| *is_urgent), "{sent:?}");
    assert!(!sent[16], "{sent:?}");
    assert_eq!(sent.iter().filter(|is_urgent| **is_urgent).count(), 40);
}
