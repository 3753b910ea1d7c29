use hawser_packets::media::HeaderError;

/// The reason why a packet is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The header is not valid.
    #[error("the header is not valid: {0}")]
    Header(HeaderError),
    /// The datagram is longer than a relay forwards.
    #[error("the datagram is longer than a relay forwards")]
    TooLong,
    /// The hop tag is wrong, or the number of its key is not in use.
    #[error("the hop tag is wrong")]
    HopTag,
    /// The track was not announced.
    #[error("the track was not announced")]
    UnknownTrack,
    /// The track was announced without this layer.
    #[error("the layer was not announced")]
    UnknownLayer,
    /// The key epoch is not the current one, the one before or the one after.
    #[error("the key epoch is not in use")]
    UnknownEpoch,
    /// The packet arrived before.
    #[error("the packet arrived before")]
    Duplicate,
    /// The object is older than what the receiver remembers.
    #[error("the object is older than the remembered ones")]
    TooOld,
    /// The object's deadline has passed.
    #[error("the object's deadline has passed")]
    Late,
    /// The payload cannot be opened: the packet was forged or changed.
    #[error("the payload was forged or changed")]
    Forged,
    /// The packet contradicts others of its object.
    #[error("the packet contradicts others of its object")]
    Contradiction,
    /// The object has more packets than the receiver keeps.
    #[error("the object has too many packets")]
    TooManyPackets,
    /// There is no room for the payload.
    #[error("there is no room for the payload")]
    NoRoom,
}

/// Counts of refused packets by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Refusals {
    /// Packets refused with [`Refusal::Header`].
    pub header: u64,
    /// Packets refused with [`Refusal::TooLong`].
    pub too_long: u64,
    /// Packets refused with [`Refusal::HopTag`].
    pub hop_tag: u64,
    /// Packets refused with [`Refusal::UnknownTrack`].
    pub unknown_track: u64,
    /// Packets refused with [`Refusal::UnknownLayer`].
    pub unknown_layer: u64,
    /// Packets refused with [`Refusal::UnknownEpoch`].
    pub unknown_epoch: u64,
    /// Packets refused with [`Refusal::Duplicate`].
    pub duplicate: u64,
    /// Packets refused with [`Refusal::TooOld`].
    pub too_old: u64,
    /// Packets refused with [`Refusal::Late`].
    pub late: u64,
    /// Packets refused with [`Refusal::Forged`].
    pub forged: u64,
    /// Packets refused with [`Refusal::Contradiction`].
    pub contradiction: u64,
    /// Packets refused with [`Refusal::TooManyPackets`].
    pub too_many_packets: u64,
    /// Packets refused with [`Refusal::NoRoom`].
    pub no_room: u64,
}

impl Refusals {
    pub(crate) fn count(&mut self, refusal: Refusal) {
        *match refusal {
            Refusal::Header(_) => &mut self.header,
            Refusal::TooLong => &mut self.too_long,
            Refusal::HopTag => &mut self.hop_tag,
            Refusal::UnknownTrack => &mut self.unknown_track,
            Refusal::UnknownLayer => &mut self.unknown_layer,
            Refusal::UnknownEpoch => &mut self.unknown_epoch,
            Refusal::Duplicate => &mut self.duplicate,
            Refusal::TooOld => &mut self.too_old,
            Refusal::Late => &mut self.late,
            Refusal::Forged => &mut self.forged,
            Refusal::Contradiction => &mut self.contradiction,
            Refusal::TooManyPackets => &mut self.too_many_packets,
            Refusal::NoRoom => &mut self.no_room,
        } += 1;
    }

    /// Returns the sum.
    pub const fn total(&self) -> u64 {
        self.header
            + self.too_long
            + self.hop_tag
            + self.unknown_track
            + self.unknown_layer
            + self.unknown_epoch
            + self.duplicate
            + self.too_old
            + self.late
            + self.forged
            + self.contradiction
            + self.too_many_packets
            + self.no_room
    }
}
