use hawser_units::{ByteSize, Ecn, Instant};

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) flow: usize,
    pub(crate) number: u64,
    pub(crate) size: ByteSize,
    pub(crate) ecn: Ecn,
    pub(crate) frame: usize,
}

/// Arrivals at a receiver: number, time, ECN field.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) flow: usize,
    pub(crate) sent_at: Instant,
    pub(crate) arrivals: Vec<(u64, Instant, Ecn)>,
}
