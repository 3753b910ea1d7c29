//! The variants of a subscriber's budget of section 3.4.2 of the thesis: a reserve for important
//! priorities, a limit for each, and a temporary overflow.

use crate::operations::track;
use crate::support::*;
use hawser_fanout::{Budget, Level, Rate, Verdict};
use hawser_units::{Bitrate, ByteSize};

/// A bucket of three packets that gains one in 100 ms.
fn bucket() -> Rate {
    Rate::new(Bitrate::from_bps(16_000), ByteSize(600))
}

fn with_level(level: usize, of: Level) -> Budget {
    let mut budget = Budget::of(bucket());
    budget.levels[level] = of;
    budget
}

/// Returns how many of five groups of one base, or one layer 1, are served at once.
fn served(budget: Budget, layer: u8) -> usize {
    let mut relay = relay(&[budget]);
    (0..5)
        .filter(|group| !whole(&mut relay, at(1), frame(*group, 0), layer).is_empty())
        .count()
}

#[test]
fn objects_are_served_while_the_bucket_has_bytes() {
    assert_eq!(served(Budget::of(bucket()), 0), 3);
    assert_eq!(served(Budget::UNLIMITED, 0), 5);
}

#[test]
fn a_reserve_is_left_to_other_levels() {
    let floor = 400;
    let budget = with_level(1, Level { floor, limit: None });
    assert_eq!(served(budget, 1), 1);
    assert_eq!(served(budget, 0), 3);
}

#[test]
fn a_level_may_overdraw_the_bucket_for_a_time() {
    let floor = -400;
    let budget = with_level(0, Level { floor, limit: None });
    assert_eq!(served(budget, 0), 5);
    assert_eq!(served(budget, 1), 3);
    let mut relay = relay(&[budget]);
    for group in 0..5 {
        whole(&mut relay, at(1), frame(group, 0), 0);
    }
    assert!(
        whole(&mut relay, at(150), frame(5, 0), 1).is_empty(),
        "it owes 100 bytes"
    );
    assert_eq!(whole(&mut relay, at(300), frame(6, 0), 1), [0]);
}

#[test]
fn a_limit_of_a_level_leaves_the_rest_to_others() {
    let limit = Some(Rate::new(Bitrate::from_bps(16_000), ByteSize(200)));
    let budget = with_level(1, Level { floor: 0, limit });
    assert_eq!(served(budget, 1), 1);
    assert_eq!(served(budget, 0), 3);
}

#[test]
fn priorities_below_the_least_are_not_sent() {
    let budget = Budget {
        least_priority: 0,
        ..Budget::UNLIMITED
    };
    assert_eq!([served(budget, 0), served(budget, 1)], [5, 0]);
}

#[test]
fn an_object_that_began_is_sent_whole_and_charged_as_it_goes() {
    let mut relay = relay(&[Budget::of(bucket())]);
    for index in 0..10 {
        let count = if index == 9 { 10 } else { 0 };
        let header = header(frame(0, 0), 0, index, count);
        assert_eq!(arrive(&mut relay, at(1), &header).unwrap().to, [slot(0)]);
    }
    let stats = relay.slot_stats(slot(0)).unwrap();
    assert_eq!((stats.packets, stats.bytes), (10, 2_000));
    assert!(whole(&mut relay, at(600), frame(1, 0), 0).is_empty());
    assert_eq!(whole(&mut relay, at(900), frame(2, 0), 0), [0]);
}

#[test]
fn one_who_has_no_bytes_left_takes_none_from_others() {
    let small = Budget::of(Rate::new(Bitrate::from_bps(8_000), ByteSize(200)));
    let mut relay = relay(&[Budget::UNLIMITED, small]);
    assert_eq!(whole(&mut relay, at(1), frame(0, 0), 0), [0, 1]);
    assert_eq!(whole(&mut relay, at(1), frame(0, 0), 1), [0]);
    let registered = relay.poll_registration().unwrap();
    assert!(registered.served.contains(slot(1)));
    let registered = relay.poll_registration().unwrap();
    assert!(registered.served.contains(slot(0)) && registered.dropped.contains(slot(1)));
    let stats = relay.slot_stats(slot(1)).unwrap();
    assert_eq!(stats.objects[Verdict::Tokens as usize], 1);
}

#[test]
fn retransmissions_are_paid_from_the_same_budget() {
    let mut relay = relay(&[Budget::of(bucket())]);
    whole(&mut relay, at(1), frame(0, 0), 0);
    relay.spend(slot(0), 0, 400);
    assert!(whole(&mut relay, at(1), frame(1, 0), 0).is_empty());
    relay.set_budget(slot(0), Budget::UNLIMITED);
    assert_eq!(whole(&mut relay, at(1), frame(2, 0), 0), [0]);
    assert_eq!(relay.newest(track(0)), Some(frame(2, 0)));
}
