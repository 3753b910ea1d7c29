//! Layers follow their bases, joins and selections take effect where decoding can begin.

use crate::operations::track;
use crate::support::*;
use hawser_fanout::{Budget, Rate, Selection, Verdict};
use hawser_units::{Bitrate, ByteSize};

/// A bucket of one packet that gains the next one in a second.
fn one_packet() -> Budget {
    Budget::of(Rate::new(Bitrate::from_bps(1_600), ByteSize(200)))
}

#[test]
fn dependents_of_a_dropped_object_are_dropped_until_next_group() {
    let mut relay = relay(&[one_packet()]);
    assert_eq!(whole(&mut relay, at(0), frame(0, 0), 0), [0]);
    assert!(whole(&mut relay, at(0), frame(0, 1), 0).is_empty());
    // There is room again, but the frame before is missing.
    for layer in [0, 1] {
        assert!(whole(&mut relay, at(2_000), frame(0, 2), layer).is_empty());
    }
    assert_eq!(whole(&mut relay, at(2_000), frame(1, 0), 0), [0]);
    let stats = relay.slot_stats(slot(0)).unwrap();
    let count = |verdict: Verdict| stats.objects[verdict as usize];
    assert_eq!([count(Verdict::Tokens), count(Verdict::Broken)], [1, 2]);
}

#[test]
fn a_dropped_layer_does_not_cost_the_base() {
    let mut relay = relay(&[one_packet()]);
    whole(&mut relay, at(0), frame(0, 0), 0);
    assert!(whole(&mut relay, at(0), frame(0, 0), 1).is_empty());
    assert_eq!(whole(&mut relay, at(2_000), frame(0, 1), 0), [0]);
    assert!(
        whole(&mut relay, at(4_000), frame(0, 1), 1).is_empty(),
        "layer 1 is broken"
    );
}

#[test]
fn what_depends_on_a_lost_object_is_sent_to_nobody() {
    let mut relay = relay(&[Budget::UNLIMITED, Budget::UNLIMITED]);
    let first = header(frame(0, 1), 1, 0, 2);
    assert_eq!(arrive(&mut relay, at(0), &first).unwrap().to.len(), 2);
    relay.lose(track(0), frame(0, 1), 0);
    let second = header(frame(0, 1), 1, 1, 2);
    let rest = arrive(&mut relay, at(0), &second).unwrap();
    assert_eq!(rest.to.len(), 2, "it had begun");
    assert!(whole(&mut relay, at(0), frame(0, 2), 0).is_empty());
    assert_eq!(whole(&mut relay, at(0), frame(1, 0), 0), [0, 1]);
}

#[test]
fn more_layers_begin_with_the_next_group_and_fewer_at_once() {
    let mut relay = relay(&[Budget::UNLIMITED]);
    relay.select(track(0), slot(0), 1);
    assert!(whole(&mut relay, at(0), frame(0, 0), 1).is_empty());
    relay.select(track(0), slot(0), 2);
    assert!(whole(&mut relay, at(0), frame(0, 1), 1).is_empty());
    assert_eq!(whole(&mut relay, at(0), frame(1, 0), 1), [0]);
    relay.select(track(0), slot(0), 1);
    assert!(whole(&mut relay, at(0), frame(1, 1), 1).is_empty());
    assert_eq!(whole(&mut relay, at(0), frame(1, 1), 0), [0]);
    let dropped = std::iter::from_fn(|| relay.poll_registration())
        .filter(|object| object.ended && object.dropped.contains(slot(0)));
    let frames: Vec<u32> = dropped.map(|object| object.object.object).collect();
    assert_eq!(frames, [1], "what is not selected is not dropped");
}

#[test]
fn a_subscriber_joins_at_a_frame_in_the_middle_of_a_group() {
    let mut relay = relay(&[Budget::UNLIMITED, Budget::UNLIMITED]);
    relay.unsubscribe(track(0), slot(1));
    whole(&mut relay, at(0), frame(3, 0), 0);
    relay.subscribe(track(0), slot(1), selection(2));
    assert_eq!(relay.joined(track(0), slot(1)), None);
    // The layer of a frame that the subscriber gets from the cache.
    assert_eq!(whole(&mut relay, at(0), frame(3, 0), 1), [0]);
    assert_eq!(relay.joined(track(0), slot(1)), Some(frame(3, 1)));
    for layer in [0, 1] {
        assert_eq!(whole(&mut relay, at(0), frame(3, 1), layer), [0, 1]);
    }
}

#[test]
fn a_subscriber_joins_no_earlier_than_it_wants() {
    let mut relay = relay(&[Budget::UNLIMITED]);
    let join = frame(5, 0);
    relay.subscribe(track(0), slot(0), Selection { layers: 1, join });
    assert!(whole(&mut relay, at(0), frame(4, 9), 0).is_empty());
    assert_eq!(relay.joined(track(0), slot(0)), Some(join));
    assert_eq!(whole(&mut relay, at(0), frame(6, 0), 0), [0]);
}

#[test]
fn who_joins_again_misses_nothing_that_was_not_sent_before() {
    let mut relay = relay(&[one_packet()]);
    whole(&mut relay, at(0), frame(0, 0), 0);
    assert!(whole(&mut relay, at(0), frame(0, 1), 0).is_empty());
    let join = frame(0, 2);
    relay.subscribe(track(0), slot(0), Selection { layers: 1, join });
    assert_eq!(whole(&mut relay, at(2_000), frame(0, 2), 0), [0]);
}

#[test]
fn an_expired_slot_resumes_with_a_group_after_its_renewal() {
    let mut relay = relay(&[Budget::UNLIMITED]);
    let first = header(frame(0, 0), 0, 0, 2);
    assert_eq!(arrive(&mut relay, at(0), &first).unwrap().to, [slot(0)]);
    relay.renew(slot(0), at(10));
    let second = header(frame(0, 0), 0, 1, 2);
    assert_eq!(arrive(&mut relay, at(10), &second).unwrap().to, []);
    assert!(whole(&mut relay, at(10), frame(0, 1), 0).is_empty());
    relay.renew(slot(0), at(100));
    assert!(whole(&mut relay, at(11), frame(0, 2), 0).is_empty());
    assert_eq!(whole(&mut relay, at(12), frame(1, 0), 0), [0]);
}

#[test]
fn the_next_subscriber_of_a_slot_gets_nothing_of_the_last_ones() {
    let mut relay = relay(&[Budget::UNLIMITED]);
    arrive(&mut relay, at(0), &header(frame(0, 0), 0, 0, 2)).unwrap();
    let mut next = subscriber(Budget::UNLIMITED);
    next.since = at(1);
    relay.add_subscriber(slot(0), next);
    relay.subscribe(track(0), slot(0), selection(1));
    let rest = arrive(&mut relay, at(2), &header(frame(0, 0), 0, 1, 2));
    assert_eq!(rest.unwrap().to, []);
    assert_eq!(whole(&mut relay, at(3), frame(0, 1), 0), [0]);
}
