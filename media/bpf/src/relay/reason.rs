use crate::skeleton::relay::types::{relay_loss as LossCode, relay_reason as Code};

/// Declares the columns of a table: their numbers and their names in metrics and logs.
macro_rules! columns {
    ($(#[$about:meta])* $type:ident: $code:ident, $number:ident; $($(#[$doc:meta])* $column:ident = $value:ident, $name:literal;)*) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u32)]
        pub enum $type {
            $($(#[$doc])* $column = $code::$value.0,)*
        }

        impl $type {
            /// All columns, in the order of the table.
            pub const ALL: [$type; $code::$number.0 as usize] = [$(Self::$column),*];

            /// Returns the name in metrics and logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$column => $name,)*
                }
            }
        }
    };
}

columns! {
    /// The outcome of packets at the relay: a column of the program's table.
    Reason: Code, RELAY_REASONS;
    /// New, and sent to the subscribers that its object is served to.
    Forwarded = RELAY_FORWARDED, "forwarded";
    /// Not media, such as a message of a session: passed to the socket.
    Passed = RELAY_PASSED, "passed";
    /// Dropped: media, but from no known upstream.
    NoUpstream = RELAY_NO_UPSTREAM, "no_upstream";
    /// Dropped: the lengths in the headers contradict each other, or the IP header has options.
    Malformed = RELAY_MALFORMED, "malformed";
    /// Dropped: too short for a header, a byte of payload and its authentication tag.
    Truncated = RELAY_TRUNCATED, "truncated";
    /// Dropped: longer than datagrams are that this relay takes.
    Oversize = RELAY_OVERSIZE, "oversize";
    /// Dropped: a field of the header is out of its range.
    Header = RELAY_HEADER, "header";
    /// Dropped: the upstream has no hop key of this number.
    HopKey = RELAY_HOP_KEY, "hop_key";
    /// Dropped: the hop tag is wrong.
    Tag = RELAY_TAG, "tag";
    /// Dropped: the upstream has no track of this alias that is relayed.
    NoTrack = RELAY_NO_TRACK, "no_track";
    /// Dropped: of an object of more packets than can be remembered.
    TooManyPackets = RELAY_TOO_MANY_PACKETS, "too_many_packets";
    /// Dropped: it contradicts earlier packets of its object.
    Contradiction = RELAY_CONTRADICTION, "contradiction";
    /// Dropped: another CPU held the track for too long.
    Contended = RELAY_CONTENDED, "contended";
    /// Dropped: the kernel had no memory to tag it for the next hop.
    NoRoom = RELAY_NO_ROOM, "no_room";
    /// Dropped: of a train that is not of one object with every packet new and right.
    NotSplit = RELAY_NOT_SPLIT, "not_split";
    /// Not forwarded again: it was seen before.
    Duplicate = RELAY_DUPLICATE, "duplicate";
    /// Not forwarded: of an object that is older than those that are remembered.
    Outdated = RELAY_OUTDATED, "outdated";
    /// No memory for the copy to the relay's socket. Counted in addition.
    LostCopies = RELAY_LOST_COPIES, "lost_copies";
    /// Records of arrivals that found their ring full.
    LostArrivals = RELAY_LOST_ARRIVALS, "lost_arrivals";
    /// Records of objects that found their ring full.
    LostRegistrations = RELAY_LOST_REGISTRATIONS, "lost_registrations";
}

columns! {
    /// The reason that a packet of an object that a subscriber is served was not sent to it.
    Loss: LossCode, RELAY_LOSSES;
    /// The slot had expired.
    Expired = LOSS_EXPIRED, "expired";
    /// No route was set.
    NoRoute = LOSS_NO_ROUTE, "no_route";
    /// Longer than the interface takes.
    TooBig = LOSS_TOO_BIG, "too_big";
    /// It came without a UDP checksum over IPv4, and IPv6 demands one.
    NoChecksum = LOSS_NO_CHECKSUM, "no_checksum";
    /// The kernel could not clone it, or its device dropped it.
    Device = LOSS_DEVICE, "device";
    /// It decodes alone, and is not in the share of packets that the subscriber is sent.
    Thinned = LOSS_THINNED, "thinned";
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
