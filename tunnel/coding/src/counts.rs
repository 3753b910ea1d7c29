/// The reason for which a packet was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RejectReason {
    /// The range is empty, has more than [`crate::MAX_RANGE`] packets, or includes numbers of 2^62
    /// or more.
    #[error("invalid range of packets")]
    Range,
    /// The packet or symbol is longer than the configuration allows, or the symbol is shorter than
    /// its length field.
    #[error("invalid length of a packet or symbol")]
    Length,
    /// The packet, or the first packet of the range, precedes the window.
    #[error("packet precedes the window")]
    Forgotten,
    /// The original packet is already known: it was received before or recovered from coded
    /// packets.
    #[error("packet is already known")]
    Known,
    /// The coded packet contradicts packets received before.
    #[error("coded packet contradicts known packets")]
    Contradiction,
    /// The overlap of too many ranges would make the equation longer than the decoder allows.
    #[error("equation covers too many packets")]
    TooLong,
}

/// Counters of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// New original packets.
    pub originals: u64,
    /// Accepted coded packets.
    pub coded: u64,
    /// Accepted coded packets that added no information.
    pub redundant: u64,
    /// Packets recovered from coded packets.
    pub determined: u64,
    /// Equations that were discarded, because one of their packets left the window, they became too
    /// long, or there were too many.
    pub abandoned: u64,
    /// Solutions that are not the symbol of a packet. The coded packets of an honest sender never
    /// produce one.
    pub malformed: u64,
    /// Recovered packets that were dropped because they were not polled in time.
    pub unclaimed: u64,
    /// Rejected with [`RejectReason::Range`].
    pub rejected_range: u64,
    /// Rejected with [`RejectReason::Length`].
    pub rejected_length: u64,
    /// Rejected with [`RejectReason::Forgotten`].
    pub rejected_forgotten: u64,
    /// Rejected with [`RejectReason::Known`].
    pub rejected_known: u64,
    /// Rejected with [`RejectReason::Contradiction`].
    pub rejected_contradiction: u64,
    /// Rejected with [`RejectReason::TooLong`].
    pub rejected_too_long: u64,
}

impl Counts {
    /// Counts a rejection and returns `taken`.
    pub(crate) fn count(&mut self, taken: Result<(), RejectReason>) -> Result<(), RejectReason> {
        let count = match taken {
            Ok(()) => return taken,
            Err(RejectReason::Range) => &mut self.rejected_range,
            Err(RejectReason::Length) => &mut self.rejected_length,
            Err(RejectReason::Forgotten) => &mut self.rejected_forgotten,
            Err(RejectReason::Known) => &mut self.rejected_known,
            Err(RejectReason::Contradiction) => &mut self.rejected_contradiction,
            Err(RejectReason::TooLong) => &mut self.rejected_too_long,
        };
        *count += 1;
        taken
    }
}
