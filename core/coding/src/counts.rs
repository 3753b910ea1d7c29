/// Why something was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A range of no packets, of more than [`crate::MAX_RANGE`], or with numbers of 2^62 and more.
    #[error("no such range of packets")]
    Range,
    /// A packet or a symbol longer than the configuration allows, or a symbol too short for its length field.
    #[error("a length that no packet has")]
    Length,
    /// A packet that the decoder has given up, or a range that begins with one.
    #[error("a packet from before the window")]
    Forgotten,
    /// An original that is known already, from itself or from coded packets.
    #[error("a packet that is known")]
    Known,
    /// It cannot be true together with what came before.
    #[error("a contradiction to what is known")]
    Contradiction,
    /// Too many ranges overlap.
    #[error("an equation over too many packets")]
    TooLong,
}

/// What has become of what came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Originals that were new.
    pub originals: u64,
    /// Coded packets that were taken.
    pub coded: u64,
    /// Those of them that said nothing new.
    pub redundant: u64,
    /// Packets that became determined.
    pub determined: u64,
    /// Equations that were given up: a packet of them left the window, or there were too many or too long ones.
    pub abandoned: u64,
    /// Solutions that are no packet, which coded packets of an honest sender do not have.
    pub malformed: u64,
    /// Determined packets that were given up because nobody polled.
    pub unclaimed: u64,
    /// Refused as [`Refused::Range`].
    pub refused_range: u64,
    /// Refused as [`Refused::Length`].
    pub refused_length: u64,
    /// Refused as [`Refused::Forgotten`].
    pub refused_forgotten: u64,
    /// Refused as [`Refused::Known`].
    pub refused_known: u64,
    /// Refused as [`Refused::Contradiction`].
    pub refused_contradiction: u64,
    /// Refused as [`Refused::TooLong`].
    pub refused_too_long: u64,
}

impl Counts {
    /// Counts a refusal.
    pub(crate) fn count(&mut self, taken: Result<(), Refused>) -> Result<(), Refused> {
        let count = match taken {
            Ok(()) => return taken,
            Err(Refused::Range) => &mut self.refused_range,
            Err(Refused::Length) => &mut self.refused_length,
            Err(Refused::Forgotten) => &mut self.refused_forgotten,
            Err(Refused::Known) => &mut self.refused_known,
            Err(Refused::Contradiction) => &mut self.refused_contradiction,
            Err(Refused::TooLong) => &mut self.refused_too_long,
        };
        *count += 1;
        taken
    }
}
