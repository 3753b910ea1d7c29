use super::Waiting;
use hawser_units::{ByteSize, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// A queue in order of arrival, of which the other disciplines are built too.
#[derive(Debug, Clone)]
pub(crate) struct Fifo<P> {
    waiting: VecDeque<Waiting<P>>,
    bytes: ByteSize,
}

impl<P> Default for Fifo<P> {
    fn default() -> Self {
        Fifo {
            waiting: VecDeque::new(),
            bytes: ByteSize(0),
        }
    }
}

impl<P> Fifo<P> {
    pub(crate) fn push(&mut self, packet: Waiting<P>) {
        self.bytes += packet.size;
        self.waiting.push_back(packet);
    }

    /// Takes the first packet.
    pub(crate) fn pop(&mut self) -> Option<Waiting<P>> {
        let packet = self.waiting.pop_front()?;
        self.bytes = self.bytes - packet.size;
        Some(packet)
    }

    /// Takes the last packet.
    pub(crate) fn pop_last(&mut self) -> Option<Waiting<P>> {
        let packet = self.waiting.pop_back()?;
        self.bytes = self.bytes - packet.size;
        Some(packet)
    }

    /// Returns the time for which the first packet has waited, or zero if there is none.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        self.waiting
            .front()
            .map_or(Duration::ZERO, |first| first.waited(now))
    }

    pub(crate) fn packets(&self) -> u64 {
        self.waiting.len() as u64
    }

    pub(crate) fn bytes(&self) -> ByteSize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}
