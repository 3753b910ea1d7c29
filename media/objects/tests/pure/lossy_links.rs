//! Frames over links that lose, reorder, duplicate, corrupt and mark, in virtual time.

use crate::support::*;
use hawser_netem::{Delay, ExtraDelay, LinkConfig, Loss, Order, Probability, Reorder, Span};
use hawser_objects::{AdmitError, Rule, SenderConfig, SenderEvent};
use hawser_units::ByteSize;
use std::time::Duration;

fn share(share: f64) -> Probability {
    Probability::try_from(share).unwrap()
}

fn link(loss: f64) -> LinkConfig {
    LinkConfig {
        delay: Delay::Constant(ms(10)),
        loss: Some(Loss::Independent(share(loss))),
        ..LinkConfig::default()
    }
}

/// Checks that every frame that was received has the bytes that were published.
fn check_content(rig: &Rig, length: usize) {
    for (_, object) in &rig.received {
        assert_eq!(object.bytes(), content(object.id.group, length));
    }
}

#[test]
fn frames_arrive_in_time_despite_loss_reordering_duplicates() {
    for seed in [1, 2, 3] {
        let there = LinkConfig {
            order: Order::Free,
            duplicate: share(0.02),
            reorder: Some(Reorder {
                share: share(0.02),
                delay: ms(3),
            }),
            ..link(0.02)
        };
        let mut rig = Rig::new(Scenario {
            there,
            back: link(0.02),
            seed,
            ..Scenario::default()
        });
        rig.run(ms(3000));
        rig.is_publishing = false;
        rig.run(ms(500));
        assert!(rig.offered.len() > 80 && rig.offered.iter().all(|(_, offer)| offer.is_ok()));
        assert_eq!(rig.received.len(), rig.offered.len());
        check_content(&rig, 40_000);
        let stats = rig.sender.stats();
        assert!(stats.lost > 40 && stats.repeated > 40, "{stats:?}");
        let receiver = rig.viewer.receiver().unwrap();
        assert!(receiver.refusals().duplicate > 20);
        assert_eq!(
            receiver.totals().packets,
            stats.packets,
            "each is counted once"
        );
        assert_eq!(rig.sender.in_flight(), ByteSize(0));
        assert_eq!(rig.sender.buffered(), ByteSize(0));
    }
}

/// As over paths of different length, or the delays of Wi-Fi.
#[test]
fn constant_reordering_is_no_loss() {
    let there = LinkConfig {
        order: Order::Free,
        extra_delay: vec![ExtraDelay {
            range: Span::new(ms(0), ms(15)).unwrap(),
            hold: ms(0),
            during: None,
        }],
        ..link(0.0)
    };
    let mut rig = Rig::new(Scenario {
        there,
        back: link(0.0),
        ..Scenario::default()
    });
    rig.run(ms(3000));
    rig.is_publishing = false;
    rig.run(ms(500));
    let stats = *rig.sender.stats();
    assert_eq!(rig.received.len(), rig.offered.len());
    // The first ones teach how long to wait.
    assert!(stats.lost * 100 < stats.packets, "{stats:?}");
}

#[test]
fn without_loss_nothing_is_sent_twice() {
    let mut rig = Rig::new(Scenario {
        there: link(0.0),
        back: link(0.0),
        ..Scenario::default()
    });
    rig.run(ms(2000));
    rig.is_publishing = false;
    rig.run(ms(200));
    let stats = rig.sender.stats();
    assert_eq!((stats.lost, stats.repeated, stats.spurious), (0, 0, 0));
    assert_eq!(stats.delivered, rig.offered.len() as u64);
    let smoothed = rig.sender.rtt().smoothed().unwrap();
    assert!(
        smoothed.abs_diff(ms(20)) < Duration::from_micros(400),
        "{smoothed:?}"
    );
}

#[test]
fn lost_reports_lose_no_marks() {
    let mut rig = Rig::new(Scenario {
        there: link(0.0),
        back: link(0.4),
        mark_every: Some(10),
        ..Scenario::default()
    });
    rig.run(ms(4000));
    rig.is_publishing = false;
    rig.run(ms(3000));
    assert!(rig.marked_bytes > 100_000, "{} bytes", rig.marked_bytes);
    assert_eq!(rig.reported_marks(), rig.marked_bytes);
}

#[test]
fn a_repeated_packet_is_acknowledged_again() {
    let mut rig = Rig::new(Scenario {
        there: link(0.0),
        back: link(0.4),
        ..Scenario::default()
    });
    rig.run(ms(6000));
    rig.is_publishing = false;
    rig.run(ms(500));
    let stats = rig.sender.stats();
    // Both reports of a packet are lost with a probability of 0.16.
    let share = stats.repeated as f64 / stats.packets as f64;
    assert!((0.02..0.3).contains(&share), "{share}: {stats:?}");
    assert_eq!(rig.received.len(), rig.offered.len());
    assert!(
        stats.delivered * 10 > rig.offered.len() as u64 * 9,
        "{stats:?}"
    );
}

#[test]
fn what_was_corrupted_is_refused_and_sent_again() {
    let there = LinkConfig {
        corrupt: share(0.05),
        ..link(0.0)
    };
    let mut rig = Rig::new(Scenario {
        there,
        back: link(0.0),
        corrupt: true,
        ..Scenario::default()
    });
    rig.run(ms(2000));
    rig.is_publishing = false;
    rig.run(ms(500));
    let refusals = rig.viewer.receiver().unwrap().refusals();
    assert!(refusals.forged > 50, "{refusals:?}");
    assert_eq!(rig.received.len(), rig.offered.len());
    check_content(&rig, 40_000);
}

#[test]
fn the_clocks_are_related_over_links_with_queues() {
    let mut rig = Rig::new(Scenario {
        there: link(0.01),
        back: link(0.01),
        ..Scenario::default()
    });
    rig.run(ms(2000));
    let ahead = |nanos: i64| Duration::from_nanos(nanos.unsigned_abs());
    let of_sender = rig.sender.clock().relation().unwrap();
    assert!(ahead(of_sender.ahead_nanos).abs_diff(AHEAD) < Duration::from_micros(200));
    let receiver = rig.viewer.receiver().unwrap();
    let of_viewer = receiver.clock().relation().unwrap();
    assert!(of_viewer.ahead_nanos < 0);
    assert!(ahead(of_viewer.ahead_nanos).abs_diff(AHEAD) < Duration::from_micros(200));
    let local = receiver.local_time_of(rig.now).unwrap();
    let error = ahead(local.as_nanos().abs_diff(rig.viewer_now().as_nanos()) as i64);
    assert!(error < Duration::from_micros(200), "{error:?}");
    // One-way delays follow: 10 ms, and the tick of the test.
    let acknowledged = rig
        .outcomes
        .iter()
        .flat_map(|outcome| &outcome.acknowledged);
    let delays = acknowledged
        .filter(|packet| !packet.is_repeated)
        .filter_map(|packet| {
            let arrived = of_sender.to_local(packet.arrived?);
            Some(arrived.saturating_since(packet.sent))
        });
    let delays: Vec<_> = delays.collect();
    assert!(delays.len() > 1000);
    assert!(
        delays
            .iter()
            .all(|delay| delay.abs_diff(ms(10)) < Duration::from_micros(500))
    );
}

#[test]
fn keys_rotate_while_packets_are_on_their_way() {
    let there = LinkConfig {
        order: Order::Free,
        reorder: Some(Reorder {
            share: share(0.1),
            delay: ms(20),
        }),
        ..link(0.02)
    };
    let mut rig = Rig::new(Scenario {
        there,
        back: link(0.02),
        ..Scenario::default()
    });
    for _ in 0..10 {
        rig.run(ms(217));
        rig.rotate();
    }
    rig.is_publishing = false;
    rig.run(ms(500));
    assert_eq!(rig.packetiser.epoch(), 10);
    assert_eq!(rig.received.len(), rig.offered.len());
    check_content(&rig, 40_000);
    let refusals = rig.viewer.receiver().unwrap().refusals();
    assert_eq!(
        (refusals.hop_tag, refusals.unknown_epoch, refusals.forged),
        (0, 0, 0)
    );
}

#[test]
fn after_a_cut_frames_arrive_again_and_none_is_late() {
    let there = LinkConfig {
        cuts: vec![Span::new(ms(1000), ms(1600)).unwrap()],
        ..link(0.0)
    };
    let mut rig = Rig::new(Scenario {
        there,
        back: link(0.0),
        ..Scenario::default()
    });
    rig.run(ms(3000));
    rig.is_publishing = false;
    rig.run(ms(500));
    check_content(&rig, 40_000);
    let captured = |group: u32| ms(33) * group;
    let first = rig.received[0].0;
    for (at, object) in &rig.received {
        let delay = at
            .saturating_since(first)
            .saturating_sub(captured(object.id.group));
        assert!(
            delay <= ms(150),
            "frame {} after {delay:?}",
            object.id.group
        );
    }
    let missing = rig.offered.len() - rig.received.len();
    // The cut is 18 frames long. The last ones are sent again in time.
    assert!((10..=20).contains(&missing), "{missing} missing");
    let last = rig.received.last().unwrap().1.id;
    assert_eq!(last, rig.offered.last().unwrap().0);
    assert_eq!(rig.sender.buffered(), ByteSize(0));
}

#[test]
fn by_the_papers_rule_what_is_admitted_arrives_whole() {
    let there = LinkConfig {
        cuts: vec![Span::new(ms(500), ms(900)).unwrap()],
        ..link(0.05)
    };
    let mut scenario = Scenario {
        there,
        back: link(0.05),
        sender: SenderConfig {
            rule: Rule::UntilAcknowledged,
            ..SenderConfig::new(ByteSize(150_000))
        },
        deadline: ms(60_000),
        ..Scenario::default()
    };
    scenario.viewer.receiver.give_up_after = ms(60_000);
    let mut rig = Rig::new(scenario);
    rig.run(ms(3000));
    rig.is_publishing = false;
    rig.run(ms(2000));
    let admitted = rig
        .offered
        .iter()
        .filter(|(_, offer)| offer.is_ok())
        .count();
    let refused = rig
        .offered
        .iter()
        .filter(|(_, offer)| *offer == Err(AdmitError::NoRoom));
    assert!(refused.count() >= 8, "the cut fills the buffer");
    assert_eq!(rig.received.len(), admitted);
    check_content(&rig, 40_000);
    let events = std::iter::from_fn(|| rig.sender.poll_event());
    let delivered = events.filter(|event| matches!(event, SenderEvent::Delivered { .. }));
    assert_eq!(delivered.count(), admitted);
}
