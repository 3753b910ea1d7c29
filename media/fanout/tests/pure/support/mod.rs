//! A relay of one track, and its packets.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by all tests, each of which uses only a part"
)]

use crate::operations::{DATAGRAM, alias, own_hop, track, upstream_hop};
use hawser_fanout::{Budget, Delivery, Frame, Refusal, Relay, Selection, SlotIndex, Subscriber};
use hawser_packets::media::{Flags, Header, MediaTime, ObjectId, PacketId};
use hawser_units::Instant;
use std::num::NonZeroU16;
use std::time::Duration;

pub fn slot(index: usize) -> SlotIndex {
    SlotIndex::try_from(index).unwrap()
}

pub fn at(millis: u64) -> Instant {
    Instant::from_nanos(100_000_000_000) + Duration::from_millis(millis)
}

pub fn frame(group: u32, object: u32) -> Frame {
    Frame { group, object }
}

/// A relay of track 0 with these subscribers of three layers.
pub fn relay(budgets: &[Budget]) -> Relay {
    let mut relay = Relay::new(DATAGRAM);
    relay.set_upstream(0, [Some(upstream_hop(0)), None, None]);
    relay.add_track(track(0), own_hop(0));
    relay.name_track(0, alias(0, 0), Some(track(0)));
    for (index, budget) in budgets.iter().enumerate() {
        relay.add_subscriber(slot(index), subscriber(*budget));
        relay.subscribe(track(0), slot(index), selection(3));
    }
    relay
}

pub fn subscriber(budget: Budget) -> Subscriber {
    Subscriber {
        is_ipv6: false,
        since: at(0),
        expires: Instant::MAX,
        budget,
    }
}

pub fn selection(layers: u8) -> Selection {
    Selection {
        layers,
        join: Frame::FIRST,
    }
}

/// The header of a packet whose priority is its layer.
pub fn header(frame: Frame, layer: u8, index: u16, count: u16) -> Header {
    let object = ObjectId {
        alias: alias(0, 0),
        group: frame.group,
        object: frame.object,
        layer,
    };
    Header {
        flags: Flags::default(),
        priority: layer,
        id: PacketId { object, index },
        count: NonZeroU16::new(count),
        deadline: MediaTime(0),
        epoch: 0,
    }
}

/// A datagram of 172 bytes, which is 200 with the headers of UDP and IPv4.
pub fn datagram(header: &Header) -> Vec<u8> {
    let mut bytes = header.emit(&upstream_hop(0)).to_vec();
    bytes.resize(172, 0x77);
    bytes
}

pub fn arrive(relay: &mut Relay, now: Instant, header: &Header) -> Result<Delivery, Refusal> {
    relay.handle_datagram(now, 0, &mut datagram(header))
}

/// Delivers an object of one packet; returns the slots that it goes to.
pub fn whole(relay: &mut Relay, now: Instant, frame: Frame, layer: u8) -> Vec<usize> {
    let delivery = arrive(relay, now, &header(frame, layer, 0, 1)).unwrap();
    delivery.to.into_iter().map(SlotIndex::get).collect()
}
