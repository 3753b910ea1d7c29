//! Packets of one track from two upstreams.

use crate::operations::{alias, own_hop, track, upstream_hop};
use crate::support::*;
use hawser_fanout::{Budget, Refusal, TrackHop};
use hawser_packets::media::{Hop, is_from_hop};

#[test]
fn a_track_has_each_object_once_whatever_its_upstreams_call_it() {
    let mut relay = relay(&[Budget::UNLIMITED]);
    relay.set_upstream(1, [Some(upstream_hop(0)), None, None]);
    relay.name_track(1, alias(1, 0), Some(track(0)));
    assert_eq!(whole(&mut relay, at(0), frame(0, 0), 0), [0]);
    let mut again = header(frame(0, 0), 0, 0, 1);
    again.id.object.alias = alias(1, 0);
    let outcome = relay.handle_datagram(at(0), 1, &mut datagram(&again));
    assert_eq!(outcome, Err(Refusal::Duplicate));
}

#[test]
fn packets_are_tagged_for_the_next_hop_or_left_as_they_are() {
    let mut relay = relay(&[Budget::UNLIMITED]);
    let sent = |object| datagram(&header(frame(0, object), 0, 0, 1));
    let mut first = sent(0);
    relay.handle_datagram(at(0), 0, &mut first).unwrap();
    let TrackHop::Own(Hop { key, .. }) = own_hop(0) else {
        unreachable!()
    };
    assert!(is_from_hop(&first, &key) && first[..26] == sent(0)[..26]);
    relay.set_hop(track(0), TrackHop::Upstreams);
    let mut second = sent(1);
    relay.handle_datagram(at(0), 0, &mut second).unwrap();
    assert_eq!(second, sent(1));
}

#[test]
fn three_hop_keys_are_valid_during_a_rotation() {
    let mut relay = relay(&[Budget::UNLIMITED]);
    let hops = |numbers: [u16; 3]| numbers.map(|number| Some(upstream_hop(number)));
    relay.set_upstream(0, hops([0, 1, 2]));
    for (object, number) in [(0, 1), (1, 0), (2, 2)] {
        let header = header(frame(0, object), 0, 0, 1);
        let mut packet = [&header.emit(&upstream_hop(number))[..], &[0; 20]].concat();
        assert!(relay.handle_datagram(at(0), 0, &mut packet).is_ok());
    }
    relay.set_upstream(0, hops([1, 2, 3]));
    let late = arrive(&mut relay, at(0), &header(frame(0, 3), 0, 0, 1));
    assert_eq!(late, Err(Refusal::HopKey));
}
