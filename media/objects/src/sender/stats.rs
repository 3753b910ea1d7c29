use std::ops::AddAssign;

/// Counts of a [`Sender`](super::Sender).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SenderStats {
    /// Objects that were admitted.
    pub admitted: u64,
    /// Objects refused because there was no room.
    pub refused_no_room: u64,
    /// Objects refused with [`AdmitError::Expired`](super::AdmitError::Expired).
    pub refused_expired: u64,
    /// Objects refused with [`AdmitError::Dependent`](super::AdmitError::Dependent).
    pub refused_dependent: u64,
    /// Objects refused with [`AdmitError::Duplicate`](super::AdmitError::Duplicate).
    pub refused_duplicate: u64,
    /// Objects that the viewer has acknowledged.
    pub delivered: u64,
    /// Objects dropped with [`DropReason::Expired`](super::DropReason::Expired).
    pub expired: u64,
    /// Objects dropped with [`DropReason::Late`](super::DropReason::Late).
    pub late: u64,
    /// Objects dropped with [`DropReason::Unconfirmed`](super::DropReason::Unconfirmed).
    pub unconfirmed: u64,
    /// Objects dropped with [`DropReason::Displaced`](super::DropReason::Displaced).
    pub displaced: u64,
    /// Objects dropped with [`DropReason::Dependent`](super::DropReason::Dependent).
    pub dependent: u64,
    /// Packets that were sent for the first time.
    pub packets: u64,
    /// Bytes of their UDP payloads.
    pub bytes: u64,
    /// Packets that were sent again.
    pub repeated: u64,
    /// Packets that were declared lost.
    pub lost: u64,
    /// Packets that were acknowledged after they were declared lost.
    pub spurious: u64,
    /// Acknowledgements of packets that were not sent.
    pub acknowledged_unsent: u64,
    /// Arrival times, round trips and echoes that are impossible.
    pub impossible_times: u64,
    /// Reports that were refused.
    pub refused_reports: u64,
    /// Reports whose totals exceed what was sent.
    pub excessive_totals: u64,
}

impl SenderStats {
    /// Returns the number of objects that were not delivered whole, for any reason but that they
    /// were offered twice.
    pub const fn dropped(&self) -> u64 {
        self.refused_no_room
            + self.refused_expired
            + self.refused_dependent
            + self.expired
            + self.late
            + self.unconfirmed
            + self.displaced
            + self.dependent
    }
}

impl AddAssign for SenderStats {
    fn add_assign(&mut self, other: SenderStats) {
        self.admitted += other.admitted;
        self.refused_no_room += other.refused_no_room;
        self.refused_expired += other.refused_expired;
        self.refused_dependent += other.refused_dependent;
        self.refused_duplicate += other.refused_duplicate;
        self.delivered += other.delivered;
        self.expired += other.expired;
        self.late += other.late;
        self.unconfirmed += other.unconfirmed;
        self.displaced += other.displaced;
        self.dependent += other.dependent;
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.repeated += other.repeated;
        self.lost += other.lost;
        self.spurious += other.spurious;
        self.acknowledged_unsent += other.acknowledged_unsent;
        self.impossible_times += other.impossible_times;
        self.refused_reports += other.refused_reports;
        self.excessive_totals += other.excessive_totals;
    }
}
