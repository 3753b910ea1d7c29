use hawser_units::{ByteSize, Instant};

/// A packet whose departure is decided, in order of departures and then of arrivals.
#[derive(Debug, Clone)]
pub(crate) struct Departure<T> {
    pub(crate) leaves: Instant,
    pub(crate) number: u64,
    pub(crate) size: ByteSize,
    pub(crate) payload: T,
}

impl<T> Departure<T> {
    fn key(&self) -> (Instant, u64) {
        (self.leaves, self.number)
    }
}

impl<T> PartialEq for Departure<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Departure<T> {}

impl<T> PartialOrd for Departure<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Departure<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
