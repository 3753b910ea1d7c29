/// The reason why a packet is sent to no subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Not a packet of media of a known version, such as a message of a session.
    NotMedia,
    /// Longer than datagrams that are relayed.
    Oversize,
    /// Too short for a header, a byte of payload and its authentication tag.
    Truncated,
    /// A field of the header is out of its range.
    Header,
    /// The upstream has no hop key of this number.
    HopKey,
    /// The hop tag is wrong.
    Tag,
    /// The upstream has no track of this alias that is relayed.
    NoTrack,
    /// Its object has more packets than a record has room for.
    TooManyPackets,
    /// It was seen before.
    Duplicate,
    /// It contradicts earlier packets of its object.
    Contradiction,
    /// Its object is older than those that are remembered.
    Outdated,
}

/// Whether a subscriber is served an object, decided when its first packet arrives.
///
/// The values are those of `enum relay_verdict` in `media/bpf/src/c/relay_abi.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Verdict {
    /// The object is sent.
    Served = 0,
    /// The subscriber joined at a later frame, and gets the object from the cache.
    BeforeJoin = 1,
    /// The slot has expired.
    Expired = 2,
    /// The subscriber has not selected the layer.
    NotSelected = 3,
    /// The object depends on one that was not served, or that was lost upstream.
    Broken = 4,
    /// The priority is below the least one that is sent.
    Priority = 5,
    /// The bucket has too few bytes.
    Tokens = 6,
    /// The bucket of the level has no bytes.
    Limit = 7,
    /// The priority is the least one that is sent, and the group is not in the share of it.
    Thinned = 8,
}

impl Verdict {
    /// All verdicts, in the order of their values.
    pub const ALL: [Verdict; 9] = [
        Verdict::Served,
        Verdict::BeforeJoin,
        Verdict::Expired,
        Verdict::NotSelected,
        Verdict::Broken,
        Verdict::Priority,
        Verdict::Tokens,
        Verdict::Limit,
        Verdict::Thinned,
    ];

    /// Returns the name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Served => "served",
            Verdict::NotSelected => "not_selected",
            Verdict::BeforeJoin => "before_join",
            Verdict::Expired => "expired",
            Verdict::Broken => "broken",
            Verdict::Priority => "priority",
            Verdict::Tokens => "tokens",
            Verdict::Limit => "limit",
            Verdict::Thinned => "thinned",
        }
    }

    /// Returns whether the subscriber has selected the object, but is not sent it.
    pub const fn drops(self) -> bool {
        matches!(
            self,
            Verdict::Broken
                | Verdict::Priority
                | Verdict::Tokens
                | Verdict::Limit
                | Verdict::Thinned
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_has_a_verdict() {
        for (value, verdict) in (0..).zip(Verdict::ALL) {
            assert_eq!(verdict as u32, value);
        }
    }
}
