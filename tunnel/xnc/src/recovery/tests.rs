use super::*;
use crate::experiment::Experiment;
use crate::path::{PathState, Paths, Rtt};
use hawser_units::ByteSize;
use std::time::Duration;

fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

/// Two paths with this window in bytes.
fn paths(window: u64) -> Paths {
    let mut paths = Paths::default();
    for id in [path(0), path(1)] {
        paths.add(Instant::ZERO, id, &Config::default());
        paths.get_mut(id).unwrap().update(PathState {
            congestion_window: ByteSize(window),
            in_flight: ByteSize(0),
            queued: ByteSize(0),
            rtt: Rtt::default(),
            datagram_size: 1400,
        });
    }
    paths
}

/// Sends packets of 1000 bytes over the first path.
fn send(recovery: &mut Recovery, now: Instant, packets: u64) {
    for _ in 0..packets {
        let id = recovery.add_packet(now, now, vec![7; 1000].into(), Hint::default());
        recovery.record_transmission(id, path(0)).unwrap();
    }
}

fn lose(recovery: &mut Recovery, now: Instant, ids: impl IntoIterator<Item = u64>) {
    for id in ids {
        recovery.handle_outcome(now, Outcome::Lost(Content::Original(id)));
    }
}

fn straggle(recovery: &mut Recovery, now: Instant, ids: impl IntoIterator<Item = u64>) {
    for id in ids {
        recovery.handle_outcome(now, Outcome::Straggles(Content::Original(id)));
    }
}

fn arrive(recovery: &mut Recovery, ids: impl IntoIterator<Item = u64>) {
    for id in ids {
        recovery.handle_outcome(later(), Outcome::Arrived(Content::Original(id)));
    }
}

fn poll(recovery: &mut Recovery, now: Instant, paths: &Paths) -> Vec<Content> {
    std::iter::from_fn(|| {
        let planned = recovery.poll_planned(now);
        planned.or_else(|| recovery.poll_shot(now, paths))
    })
    .map(|(_, content)| content)
    .collect()
}

fn recovery(method: RecoveryMethod) -> Recovery {
    Recovery::new(&Config {
        experiment: Experiment {
            recovery: method,
            ..Experiment::default()
        },
        ..Config::default()
    })
}

const CODED: RecoveryMethod = RecoveryMethod::OneShot { coded: true };

/// After the time in which losses are collected.
fn later() -> Instant {
    Instant::ZERO + RECOVERY_DELAY
}

#[test]
fn a_range_without_window_is_examined_once() {
    let mut recovery = recovery(CODED);
    send(&mut recovery, Instant::ZERO, 60);
    lose(&mut recovery, Instant::ZERO, 0..60);
    let now = later();
    assert_eq!(recovery.poll_timeout(Instant::ZERO), Some(now));

    assert_eq!(poll(&mut recovery, now, &paths(0)), []);
    let (at, next) = recovery.next_range.expect("all ranges were passed over");
    assert_eq!((at, next), (now, 1), "of all packets");
    assert_eq!(recovery.ranges.next_with_losses(next), None);

    recovery.reconsider_shots();
    let sent = poll(&mut recovery, now, &paths(1_000_000));
    assert!(
        sent.contains(&Content::Coded {
            start: 0,
            count: 60
        }),
        "{sent:?}"
    );
}

#[test]
fn enough_coded_packets_settle_the_lost_ones() {
    let mut recovery = recovery(CODED);
    send(&mut recovery, Instant::ZERO, 10);
    lose(&mut recovery, Instant::ZERO, 2..5);
    let sent = poll(&mut recovery, later(), &paths(1_000_000));
    let coded = Content::Coded {
        start: 0,
        count: 10,
    };
    assert_eq!(
        sent,
        vec![coded; 8],
        "one more than were lost, on each path"
    );

    arrive(&mut recovery, (0..2).chain(5..10));
    for _ in 0..3 {
        recovery.handle_outcome(later(), Outcome::Arrived(coded));
    }
    assert_eq!(recovery.counts().delivered, 7, "they may be dependent");
    recovery.handle_outcome(later(), Outcome::Arrived(coded));
    assert_eq!(recovery.counts().delivered, 10);
    for _ in 0..4 {
        recovery.handle_outcome(later(), Outcome::Lost(coded));
    }
    assert_eq!(
        recovery.poll_timeout(Instant::ZERO),
        None,
        "nothing is left"
    );
}

#[test]
fn a_shot_for_stragglers_has_no_margin_and_the_next_one_has() {
    let mut recovery = recovery(CODED);
    send(&mut recovery, Instant::ZERO, 10);
    straggle(&mut recovery, Instant::ZERO, 2..5);
    let first = poll(&mut recovery, later(), &paths(1_000_000));
    assert_eq!(first.len(), 4, "one more than straggle");
    for coded in first {
        recovery.handle_outcome(later(), Outcome::Straggles(coded));
    }
    let now = later() + RECOVERY_DELAY;
    let second = poll(&mut recovery, now, &paths(1_000_000));
    assert_eq!(second.len(), 8, "one more than are lost, on each path");
}

#[test]
fn stragglers_do_not_take_the_margin_from_lost_packets() {
    let mut recovery = recovery(CODED);
    send(&mut recovery, Instant::ZERO, 10);
    straggle(&mut recovery, Instant::ZERO, 2..5);
    lose(&mut recovery, Instant::ZERO, [7]);
    let sent = poll(&mut recovery, later(), &paths(1_000_000));
    assert_eq!(sent.len(), 10, "one more than are lost, on each path");
}

#[test]
fn packets_of_a_shot_count_towards_the_next() {
    let mut recovery = recovery(CODED);
    send(&mut recovery, Instant::ZERO, 10);
    lose(&mut recovery, Instant::ZERO, 2..5);
    let first = poll(&mut recovery, later(), &paths(1_000_000));
    lose(&mut recovery, later(), 5..9);
    let now = later() + RECOVERY_DELAY;
    assert_eq!(first.len(), 8);
    assert_eq!(
        poll(&mut recovery, now, &paths(1_000_000)),
        [],
        "seven are lost, and eight are in flight"
    );
    lose(&mut recovery, now, [9]);
    let now = now + RECOVERY_DELAY;
    let more = poll(&mut recovery, now, &paths(1_000_000));
    assert_eq!(more.len(), 2, "one on each path");
}

#[test]
fn a_shot_ends_when_all_lost_packets_have_arrived_late() {
    let mut recovery = recovery(CODED);
    send(&mut recovery, Instant::ZERO, 30);
    lose(&mut recovery, Instant::ZERO, 0..20);
    // There is room for a part of the shot only.
    assert!(recovery.poll_shot(later(), &paths(5_000)).is_some());
    while recovery.poll_planned(later()).is_some() {}

    for id in 0..20 {
        let late = Outcome::ArrivedLate(Content::Original(id));
        recovery.handle_outcome(later(), late);
    }
    recovery.reconsider_shots();
    assert_eq!(poll(&mut recovery, later(), &paths(1_000_000)), []);
    assert_eq!(recovery.poll_timeout(Instant::ZERO), None);
}

#[test]
fn a_shot_that_cannot_suffice_is_followed_by_another_at_once() {
    let mut recovery = recovery(CODED);
    send(&mut recovery, Instant::ZERO, 10);
    lose(&mut recovery, Instant::ZERO, 2..5);
    let sent = poll(&mut recovery, later(), &paths(1_000_000));
    for coded in &sent[..5] {
        recovery.handle_outcome(later(), Outcome::Lost(*coded));
    }
    let again = later() + RECOVERY_DELAY;
    assert_eq!(recovery.poll_timeout(later()), None, "three are in flight");
    recovery.handle_outcome(later(), Outcome::Lost(sent[5]));
    assert_eq!(recovery.poll_timeout(later()), Some(again));
    let more = poll(&mut recovery, again, &paths(1_000_000));
    assert_eq!(more.len(), 4, "two are still in flight");
}

#[test]
fn failed_shots_are_followed_until_packets_are_given_up() {
    let mut recovery = recovery(CODED);
    send(&mut recovery, Instant::ZERO, 10);
    lose(&mut recovery, Instant::ZERO, 2..5);
    arrive(&mut recovery, (0..2).chain(5..9));
    let mut now = Instant::ZERO;
    for shot in 1..=Config::default().experiment.shots {
        now += RECOVERY_DELAY;
        let sent = poll(&mut recovery, now, &paths(1_000_000));
        assert_eq!(recovery.counts().recoveries, u64::from(shot));
        for content in sent {
            recovery.handle_outcome(now, Outcome::Lost(content));
        }
    }
    assert_eq!(
        recovery.counts().given_up,
        0,
        "the last packet is in flight"
    );
    arrive(&mut recovery, [9]);
    assert_eq!(recovery.counts().given_up, 3);
    assert_eq!(recovery.poll_timeout(Instant::ZERO), None);
}

/// Sends ten packets of which two are lost, and given up after a shot of which two packets arrive.
/// `late` then arrives. Returns the number of coded packets in the next shot, for five more lost
/// packets, over two paths.
fn coded_beside_given_up_packets(late: Option<u64>) -> usize {
    let config = Config {
        experiment: Experiment {
            shots: 1,
            ..Experiment::default()
        },
        ..Config::default()
    };
    let mut recovery = Recovery::new(&config);
    send(&mut recovery, Instant::ZERO, 10);
    lose(&mut recovery, Instant::ZERO, 0..2);
    let first = poll(&mut recovery, later(), &paths(1_000_000));
    for (number, coded) in first.into_iter().enumerate() {
        let outcome = match number < 2 {
            true => Outcome::Arrived(coded),
            false => Outcome::Lost(coded),
        };
        recovery.handle_outcome(later(), outcome);
    }
    lose(&mut recovery, later(), 2..7);
    if let Some(late) = late {
        recovery.handle_outcome(later(), Outcome::ArrivedLate(Content::Original(late)));
    }
    let now = later() + RECOVERY_DELAY;
    let next = poll(&mut recovery, now, &paths(1_000_000));
    let coded = Content::Coded {
        start: 0,
        count: 10,
    };
    assert!(next.iter().all(|content| *content == coded), "{next:?}");
    next.len()
}

#[test]
fn a_shot_also_suffices_for_packets_that_were_given_up() {
    // One more than are unknown, less the two that arrived, over each path.
    assert_eq!(coded_beside_given_up_packets(None), 2 * (5 + 2 + 1 - 2));
    assert_eq!(coded_beside_given_up_packets(Some(0)), 2 * (5 + 1 + 1 - 2));
}

#[test]
fn an_expired_copy_causes_no_other_shot() {
    let mut recovery = recovery(RecoveryMethod::OneShot { coded: false });
    let soon = Instant::ZERO + Duration::from_millis(50);
    send(&mut recovery, Instant::ZERO, 1);
    send(&mut recovery, soon, 2);
    let now = Instant::ZERO + EXPIRY - Duration::from_millis(1);
    lose(&mut recovery, now, 0..3);
    let due = now + RECOVERY_DELAY;
    recovery.ranges.set_recovery(0, Some(now));
    let first = recovery.poll_shot(now, &paths(1_000_000));
    assert!(first.is_some());
    while recovery.poll_planned(due).is_some() {}
    let shots = |id| recovery.packets().get(id).unwrap().shots;
    assert_eq!([1, 2].map(shots), [1, 1]);
}

#[test]
fn a_range_that_is_dropped_leaves_nothing_to_recover() {
    let config = Config {
        experiment: Experiment {
            range_packets: 10,
            ..Experiment::default()
        },
        ..Config::default()
    };
    let mut recovery = Recovery::new(&config);
    send(&mut recovery, Instant::ZERO, 20);
    lose(&mut recovery, Instant::ZERO, [3, 13]);
    recovery.give_up_oldest_range();
    assert_eq!(recovery.counts().given_up, 10);
    let sent = poll(&mut recovery, later(), &paths(1_000_000));
    assert_eq!(sent, [Content::Original(13); 2], "over each path");
}

#[test]
fn packets_are_retransmitted_in_the_order_of_their_losses() {
    let mut recovery = recovery(RecoveryMethod::Retransmit);
    send(&mut recovery, Instant::ZERO, 4);
    lose(&mut recovery, Instant::ZERO, [2, 0, 3]);
    recovery.handle_outcome(later(), Outcome::ArrivedLate(Content::Original(0)));
    let next = |recovery: &mut Recovery| {
        let id = recovery.next_retransmission().map(|(id, _)| id)?;
        recovery.pop_retransmission();
        Some(id)
    };
    let sent: Vec<u64> = std::iter::from_fn(|| next(&mut recovery)).collect();
    assert_eq!(sent, [2, 3], "packet 0 arrived in the meantime");
}

#[test]
fn removing_a_path_loses_the_coded_packets_planned_for_it() {
    let mut recovery = recovery(CODED);
    send(&mut recovery, Instant::ZERO, 10);
    lose(&mut recovery, Instant::ZERO, 0..10);
    assert!(recovery.poll_shot(later(), &paths(10_000)).is_some());
    recovery.plan_copies(7, [path(0)].into_iter().collect());
    let planned = [path(0), path(1)].map(|id| recovery.remove_path(id).count());
    assert!(planned.iter().sum::<usize>() >= 12, "{planned:?}");
    assert!(!recovery.has_planned());
}

/// The delay that makes a packet expire.
const EXPIRY: Duration = Duration::from_millis(700);

#[test]
fn packets_that_expire_while_they_are_planned_are_not_returned() {
    let mut recovery = recovery(CODED);
    send(&mut recovery, Instant::ZERO, 10);
    lose(&mut recovery, Instant::ZERO, 0..10);
    assert!(recovery.poll_shot(later(), &paths(1_000_000)).is_some());
    assert!(recovery.has_planned());
    assert_eq!(recovery.poll_planned(Instant::ZERO + EXPIRY), None);
}
