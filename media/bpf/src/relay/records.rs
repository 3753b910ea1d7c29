use super::Reason;
use crate::skeleton::relay::types;
use hawser_fanout::{Frame, Registration, SlotSet, TrackIndex};
use hawser_kernel::plain;
use hawser_kernel::records::Records;
use hawser_kernel::table::TableError;
use hawser_packets::media::ObjectId;
use hawser_units::{Ecn, Instant};
use libbpf_rs::MapCore;
use std::num::NonZeroU16;

plain!(types::relay_registration, types::relay_arrival);

/// The reader of the kernel's records of objects: one when an object has begun, one when it is complete or
/// has to make room. The ring holds the last 3,000; [`Reason::LostRegistrations`] counts those that found
/// it full.
#[derive(Debug)]
pub struct Registrations(Records<types::relay_registration>);

/// The reader of the kernel's records of arrivals, for those who acknowledge packets without having
/// them: all packets of a track with a right tag. The ring holds 26,000; its descriptor does not
/// become readable, so it has to be drained in intervals. [`Reason::LostArrivals`] counts those that
/// found it full.
#[derive(Debug)]
pub struct Arrivals(Records<types::relay_arrival>);

/// Packets of one object that arrived together, with consecutive indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The time of arrival, by the kernel's monotonic clock.
    pub at: Instant,
    /// The number of the upstream.
    pub upstream: u32,
    /// The track.
    pub track: TrackIndex,
    /// The frame.
    pub frame: Frame,
    /// The layer.
    pub layer: u8,
    /// The index of the first packet.
    pub index: u16,
    /// The number of packets.
    pub packets: u16,
    /// The length of each datagram but the last, in bytes.
    pub datagram_bytes: u16,
    /// The length of all datagrams, in bytes.
    pub bytes: u16,
    /// The ECN field.
    pub ecn: Ecn,
    /// [`Reason::Forwarded`], [`Reason::Duplicate`] or [`Reason::Outdated`].
    pub outcome: Reason,
}

impl Registrations {
    pub(super) fn map(table: &impl MapCore) -> Result<Self, TableError> {
        Ok(Registrations(Records::map(table)?))
    }

    /// Returns the records since the last call.
    pub fn drain(&mut self) -> Vec<Registration> {
        let records = self.0.drain();
        records.filter_map(|row| registration(&row)).collect()
    }
}

impl Arrivals {
    pub(super) fn map(table: &impl MapCore) -> Result<Self, TableError> {
        Ok(Arrivals(Records::map(table)?))
    }

    /// Returns the records since the last call.
    pub fn drain(&mut self) -> Vec<Arrival> {
        self.0.drain().filter_map(|row| arrival(&row)).collect()
    }
}

fn registration(row: &types::relay_registration) -> Option<Registration> {
    let Frame { group, object } = Frame::from_word(row.frame);
    Some(Registration {
        track: TrackIndex::try_from(row.track as usize).ok()?,
        object: ObjectId {
            alias: row.alias,
            group,
            object,
            layer: row.layer,
        },
        priority: row.priority,
        ended: row.ended != 0,
        begun: Instant::from_nanos(row.begun_ns),
        newest: Instant::from_nanos(row.newest_ns),
        packets: row.packets,
        count: NonZeroU16::new(row.count),
        bytes: row.bytes,
        served: SlotSet::from_words(row.served),
        dropped: SlotSet::from_words(row.dropped),
    })
}

fn arrival(row: &types::relay_arrival) -> Option<Arrival> {
    Some(Arrival {
        at: Instant::from_nanos(row.at_ns),
        upstream: row.upstream,
        track: TrackIndex::try_from(usize::from(row.track)).ok()?,
        frame: Frame::from_word(row.frame),
        layer: row.layer,
        index: row.index,
        packets: row.packets,
        datagram_bytes: row.stride,
        bytes: row.bytes,
        ecn: Ecn::from_octet(row.ecn),
        outcome: *Reason::ALL.get(usize::from(row.reason))?,
    })
}
