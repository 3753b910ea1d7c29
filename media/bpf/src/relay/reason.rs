use crate::skeleton::relay::types::{relay_loss as LossCode, relay_reason as Code};

/// The outcome of packets at the relay: a column of the program's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Reason {
    /// New, and sent to the subscribers that its object is served to.
    Forwarded = Code::RELAY_FORWARDED.0,
    /// Not media, such as a message of a session: passed to the socket.
    Passed = Code::RELAY_PASSED.0,
    /// Dropped: media, but from no known upstream.
    NoUpstream = Code::RELAY_NO_UPSTREAM.0,
    /// Dropped: the lengths in the headers contradict each other, or the IP header has options.
    Malformed = Code::RELAY_MALFORMED.0,
    /// Dropped: too short for a header, a byte of payload and its authentication tag.
    Truncated = Code::RELAY_TRUNCATED.0,
    /// Dropped: longer than datagrams are that this relay takes.
    Oversize = Code::RELAY_OVERSIZE.0,
    /// Dropped: a field of the header is out of its range.
    Header = Code::RELAY_HEADER.0,
    /// Dropped: the upstream has no hop key of this number.
    HopKey = Code::RELAY_HOP_KEY.0,
    /// Dropped: the hop tag is wrong.
    Tag = Code::RELAY_TAG.0,
    /// Dropped: the upstream has no track of this alias that is relayed.
    NoTrack = Code::RELAY_NO_TRACK.0,
    /// Dropped: of an object of more packets than can be remembered.
    TooManyPackets = Code::RELAY_TOO_MANY_PACKETS.0,
    /// Dropped: it contradicts earlier packets of its object.
    Contradiction = Code::RELAY_CONTRADICTION.0,
    /// Dropped: another CPU held the track for too long.
    Contended = Code::RELAY_CONTENDED.0,
    /// Dropped: the kernel had no memory to tag it for the next hop.
    NoRoom = Code::RELAY_NO_ROOM.0,
    /// Dropped: of a train that has to be split, and there is no segmenter.
    NotSplit = Code::RELAY_NOT_SPLIT.0,
    /// Not forwarded again: it was seen before.
    Duplicate = Code::RELAY_DUPLICATE.0,
    /// Not forwarded: of an object that is older than those that are remembered.
    Outdated = Code::RELAY_OUTDATED.0,
    /// Sent through the segmenter as a train; its packets are counted again when they come back.
    Split = Code::RELAY_SPLIT.0,
    /// No memory for the copy to the relay's socket. Counted in addition.
    LostCopies = Code::RELAY_LOST_COPIES.0,
    /// Records of arrivals that found their ring full.
    LostArrivals = Code::RELAY_LOST_ARRIVALS.0,
    /// Records of objects that found their ring full.
    LostRegistrations = Code::RELAY_LOST_REGISTRATIONS.0,
}

impl Reason {
    /// All reasons, in the order of the table.
    pub const ALL: [Reason; Code::RELAY_REASONS.0 as usize] = [
        Self::Forwarded,
        Self::Passed,
        Self::NoUpstream,
        Self::Malformed,
        Self::Truncated,
        Self::Oversize,
        Self::Header,
        Self::HopKey,
        Self::Tag,
        Self::NoTrack,
        Self::TooManyPackets,
        Self::Contradiction,
        Self::Contended,
        Self::NoRoom,
        Self::NotSplit,
        Self::Duplicate,
        Self::Outdated,
        Self::Split,
        Self::LostCopies,
        Self::LostArrivals,
        Self::LostRegistrations,
    ];

    /// Returns the name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::Passed => "passed",
            Self::NoUpstream => "no_upstream",
            Self::Malformed => "malformed",
            Self::Truncated => "truncated",
            Self::Oversize => "oversize",
            Self::Header => "header",
            Self::HopKey => "hop_key",
            Self::Tag => "tag",
            Self::NoTrack => "no_track",
            Self::TooManyPackets => "too_many_packets",
            Self::Contradiction => "contradiction",
            Self::Contended => "contended",
            Self::NoRoom => "no_room",
            Self::NotSplit => "not_split",
            Self::Duplicate => "duplicate",
            Self::Outdated => "outdated",
            Self::Split => "split",
            Self::LostCopies => "lost_copies",
            Self::LostArrivals => "lost_arrivals",
            Self::LostRegistrations => "lost_registrations",
        }
    }
}

/// The reason that a packet of an object that a subscriber is served was not sent to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Loss {
    /// The slot had expired.
    Expired = LossCode::LOSS_EXPIRED.0,
    /// No route was set.
    NoRoute = LossCode::LOSS_NO_ROUTE.0,
    /// Longer than the interface takes.
    TooBig = LossCode::LOSS_TOO_BIG.0,
    /// It came without a UDP checksum over IPv4, and IPv6 demands one.
    NoChecksum = LossCode::LOSS_NO_CHECKSUM.0,
    /// The kernel could not clone it, or its device dropped it.
    Device = LossCode::LOSS_DEVICE.0,
}

impl Loss {
    /// All losses, in the order of the table.
    pub const ALL: [Loss; LossCode::RELAY_LOSSES.0 as usize] = [
        Self::Expired,
        Self::NoRoute,
        Self::TooBig,
        Self::NoChecksum,
        Self::Device,
    ];

    /// Returns the name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::NoRoute => "no_route",
            Self::TooBig => "too_big",
            Self::NoChecksum => "no_checksum",
            Self::Device => "device",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_of_the_table_has_a_reason() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
        for (index, loss) in Loss::ALL.into_iter().enumerate() {
            assert_eq!(loss as usize, index);
        }
    }
}
