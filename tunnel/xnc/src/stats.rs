use crate::delays::Delays;
use hawser_units::MAX_PATHS;

/// The reason for which a packet or datagram was rejected. Each is counted in [`Stats::rejected`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum RejectReason {
    /// The datagram is not a frame.
    #[error("datagram is not a valid frame")]
    Malformed,
    /// The path does not exist in the session: the datagram arrived over it, or refers to it.
    #[error("unknown path")]
    UnknownPath,
    /// The transmission arrived before.
    #[error("duplicate transmission")]
    Duplicate,
    /// The number of the packet or ping is far beyond the largest one received.
    #[error("packet number is too far ahead")]
    TooFarAhead,
    /// The acknowledgement covers transmissions that were never sent.
    #[error("acknowledgement of a transmission that was never sent")]
    NeverSent,
    /// The decoder rejects the coded packet, or the session does not use coding.
    #[error("coded packet cannot be decoded")]
    Undecodable,
    /// The packet is empty, or fits no path when coded.
    #[error("packet size fits no path")]
    Size,
    /// The packet is larger than the queue.
    #[error("packet is larger than the queue")]
    QueueFull,
}

impl RejectReason {
    /// All reasons.
    pub const ALL: [RejectReason; 8] = [
        RejectReason::Malformed,
        RejectReason::UnknownPath,
        RejectReason::Duplicate,
        RejectReason::TooFarAhead,
        RejectReason::NeverSent,
        RejectReason::Undecodable,
        RejectReason::Size,
        RejectReason::QueueFull,
    ];

    /// Returns the name in metrics, such as `too_far_ahead`.
    pub const fn name(self) -> &'static str {
        match self {
            RejectReason::Malformed => "malformed",
            RejectReason::UnknownPath => "unknown_path",
            RejectReason::Duplicate => "duplicate",
            RejectReason::TooFarAhead => "too_far_ahead",
            RejectReason::NeverSent => "never_sent",
            RejectReason::Undecodable => "undecodable",
            RejectReason::Size => "size",
            RejectReason::QueueFull => "queue_full",
        }
    }
}

/// Counters of an endpoint since it was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Counters of the sender.
    pub sender: SenderStats,
    /// Counters of the receiver.
    pub receiver: ReceiverStats,
    /// Rejected packets and datagrams, in the order of [`RejectReason::ALL`].
    pub rejected: [u64; RejectReason::ALL.len()],
}

/// Counters of a sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SenderStats {
    /// Packets accepted from the application.
    pub packets: u64,
    /// Packets that were dropped because they waited too long for window.
    pub expired: u64,
    /// Packets that were dropped because the queue was full and their flow was among the longest.
    pub overflowed: u64,
    /// Packets that were dropped by CoDel, as a congestion signal to their sender.
    pub congested: u64,
    /// Packets that were marked because they waited too long (ECN) and sent.
    pub marked: u64,
    /// Packets that were sent and lost, and are not recovered any more.
    pub given_up: u64,
    /// Packets that, according to acknowledgements, arrived or could be decoded.
    pub delivered: u64,
    /// Packets that counted as lost at least once.
    pub lost: u64,
    /// Transmissions that counted as lost and arrived later.
    pub spurious: u64,
    /// Shots, each of which recovers the losses of a range.
    pub recoveries: u64,
    /// Urgent packets that were sent over two paths at once.
    pub duplicated: u64,
    /// The times from when packets were accepted until it was known that they had arrived.
    pub confirmed_after: Delays,
    /// Counters of each path, by its index.
    pub paths: [PathStats; MAX_PATHS],
}

impl SenderStats {
    /// Returns the bytes sent in addition to the first transmissions of packets, except
    /// acknowledgements, as a share of the bytes of the first transmissions. Counts bytes of
    /// frames.
    pub fn redundancy(&self) -> f64 {
        match self.first_bytes() {
            0 => 0.0,
            first => self.redundant_bytes() as f64 / first as f64,
        }
    }

    /// Returns the bytes of the first transmissions of packets.
    pub fn first_bytes(&self) -> u64 {
        self.paths.iter().map(|path| path.first_bytes).sum()
    }

    /// Returns the bytes sent in addition to them, except acknowledgements.
    pub fn redundant_bytes(&self) -> u64 {
        let more = self.paths.iter();
        more.map(|path| path.recovery_bytes + path.ping_bytes).sum()
    }
}

/// Counters of the transmissions over a path. Bytes are those of frames, without QUIC's overhead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathStats {
    /// First transmissions of packets.
    pub first: u64,
    /// Their bytes.
    pub first_bytes: u64,
    /// Copies and coded packets.
    pub recovery: u64,
    /// Their bytes.
    pub recovery_bytes: u64,
    /// Pings.
    pub pings: u64,
    /// Their bytes.
    pub ping_bytes: u64,
    /// Acknowledgements for the opposite direction.
    pub acks: u64,
    /// Their bytes.
    pub ack_bytes: u64,
    /// Transmissions that are known to have arrived.
    pub arrived: u64,
    /// Transmissions that counted as lost.
    pub lost: u64,
    /// Packets that arrived with the mark "congestion experienced", if the receiver can read it.
    pub congestion_marks: u32,
    /// The number of times that the path became silent.
    pub silences: u64,
}

/// Counters of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceiverStats {
    /// Delivered packets.
    pub delivered: u64,
    /// Delivered packets that were decoded from coded packets.
    pub recovered: u64,
    /// Delivered packets that were marked because the network had marked their datagram (ECN).
    pub marked: u64,
    /// Packets that were delivered before, or are too old to tell.
    pub duplicates: u64,
    /// Received coded packets.
    pub coded: u64,
    /// Coded packets that were discarded because packets in them stayed unknown.
    pub undecoded: u64,
    /// Results of decoding that are not a packet. The coded packets of an honest peer never produce
    /// one.
    pub decoded_malformed: u64,
    /// Packets that later ones waited for until the time was over, if packets are delivered in
    /// order.
    pub skipped: u64,
}
