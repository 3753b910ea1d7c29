use hawser_units::MAX_PATHS;

/// Why a packet or a datagram is not taken. Each is counted in [`Stats::refused`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Refused {
    /// The datagram is not a frame.
    #[error("not a frame")]
    Malformed,
    /// It came over, or speaks of, a path that the session does not have.
    #[error("no such path")]
    NoPath,
    /// A transmission that arrived before.
    #[error("a repeated transmission")]
    Repeated,
    /// The number of a packet or a ping far beyond all that were seen.
    #[error("a packet number too far ahead")]
    TooFarAhead,
    /// An acknowledgement of what was never sent.
    #[error("an acknowledgement of what was never sent")]
    NeverSent,
    /// A combination that the decoder does not take, or that this session does not use.
    #[error("a combination that cannot be decoded")]
    Undecodable,
    /// A packet that is empty, or that fits no path even when coded.
    #[error("a packet of a size that fits no path")]
    Size,
    /// A packet that is larger than the queue.
    #[error("the queue is full")]
    QueueFull,
}

impl Refused {
    /// Every reason.
    pub const ALL: [Refused; 8] = [
        Refused::Malformed,
        Refused::NoPath,
        Refused::Repeated,
        Refused::TooFarAhead,
        Refused::NeverSent,
        Refused::Undecodable,
        Refused::Size,
        Refused::QueueFull,
    ];

    /// The name in metrics, such as `too_far_ahead`.
    pub const fn name(self) -> &'static str {
        match self {
            Refused::Malformed => "malformed",
            Refused::NoPath => "no_path",
            Refused::Repeated => "repeated",
            Refused::TooFarAhead => "too_far_ahead",
            Refused::NeverSent => "never_sent",
            Refused::Undecodable => "undecodable",
            Refused::Size => "size",
            Refused::QueueFull => "queue_full",
        }
    }
}

/// What an endpoint did since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// What was sent.
    pub sender: SenderStats,
    /// What arrived.
    pub receiver: ReceiverStats,
    /// Packets and datagrams that were not taken, by [`Refused::ALL`]'s order.
    pub refused: [u64; Refused::ALL.len()],
}

/// What a sender did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SenderStats {
    /// Packets taken.
    pub packets: u64,
    /// Packets that waited for a window until they were of no use.
    pub expired: u64,
    /// Packets that were dropped because too many waited, and most of them of their flow.
    pub overflowed: u64,
    /// Packets that were dropped for their flow to send less.
    pub congested: u64,
    /// Packets that were marked for the same reason, and sent.
    pub marked: u64,
    /// Packets that were sent, were lost, and for which nothing more is done.
    pub given_up: u64,
    /// Packets of which an acknowledgement says that they arrived or could be decoded.
    pub delivered: u64,
    /// Packets that counted as lost at least once.
    pub lost: u64,
    /// Transmissions that counted as lost and arrived.
    pub spurious: u64,
    /// Shots by which the losses of a range were recovered.
    pub recoveries: u64,
    /// Each path, by its index.
    pub paths: [PathStats; MAX_PATHS],
}

impl SenderStats {
    /// What was sent besides the first transmission of each packet, and acknowledgements, as a share of these first
    /// transmissions. Bytes of frames.
    pub fn redundancy(&self) -> f64 {
        let first: u64 = self.paths.iter().map(|path| path.first_bytes).sum();
        let more: u64 = self
            .paths
            .iter()
            .map(|path| path.recovery_bytes + path.ping_bytes)
            .sum();
        if first == 0 {
            0.0
        } else {
            more as f64 / first as f64
        }
    }
}

/// What was sent over a path. Bytes are those of frames, without QUIC's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathStats {
    /// Packets sent for the first time.
    pub first: u64,
    /// Their bytes.
    pub first_bytes: u64,
    /// Copies and combinations.
    pub recovery: u64,
    /// Their bytes.
    pub recovery_bytes: u64,
    /// Pings.
    pub pings: u64,
    /// Their bytes.
    pub ping_bytes: u64,
    /// Acknowledgements of the other direction.
    pub acks: u64,
    /// Their bytes.
    pub ack_bytes: u64,
    /// Transmissions that are known to have arrived.
    pub arrived: u64,
    /// Transmissions that counted as lost.
    pub lost: u64,
    /// Packets that arrived marked as having met congestion, where the receiver can see it.
    pub congestion_marks: u32,
    /// Times that the path fell silent.
    pub silences: u64,
}

/// What a receiver did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceiverStats {
    /// Packets handed out.
    pub delivered: u64,
    /// Packets of these that were decoded from combinations.
    pub recovered: u64,
    /// Packets that had been handed out, or were too old to tell.
    pub duplicates: u64,
    /// Combinations that arrived.
    pub coded: u64,
    /// Combinations of these that were given up, because packets in them stayed unknown.
    pub unsolved: u64,
    /// What combinations gave and is no packet, which an honest peer's do not.
    pub garbled: u64,
    /// Packets that others waited for in vain, when order is kept.
    pub skipped: u64,
}
