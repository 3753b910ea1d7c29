use crate::rtt::RttEstimate;
use hawser_packets::media::PacketId;
use hawser_units::{ByteSize, Instant};
use std::collections::BTreeMap;
use std::time::Duration;

/// The number of later packets that are acknowledged before a packet is lost, where none was
/// overtaken recently (RFC 9002, section 6.1.1).
pub(crate) const REORDERING: u64 = 3;

/// The largest exponent of the growing timeout.
const MAX_BACKOFF: u32 = 6;

/// The packets in flight, in the order of sending.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    next: u64,
    by_number: BTreeMap<u64, Flight>,
    by_packet: BTreeMap<PacketId, u64>,
    bytes: u64,
    largest_acknowledged: Option<u64>,
    backoff: u32,
}

/// A packet in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    pub(crate) packet: PacketId,
    pub(crate) size: ByteSize,
    pub(crate) sent: Instant,
    /// The number of the first transmission. An acknowledgement may be of any.
    pub(crate) first: u64,
    /// The number of the last transmission.
    pub(crate) number: u64,
}

impl Flights {
    /// Adds a packet that is sent now. `first` is the number of its first transmission, if this is not
    /// the first.
    pub(crate) fn add(
        &mut self,
        now: Instant,
        packet: PacketId,
        size: ByteSize,
        first: Option<u64>,
    ) -> Flight {
        let number = self.next;
        self.next += 1;
        let flight = Flight {
            packet,
            size,
            sent: now,
            first: first.unwrap_or(number),
            number,
        };
        self.by_number.insert(number, flight);
        self.by_packet.insert(packet, number);
        self.bytes += size.0;
        flight
    }

    /// Returns the bytes in flight.
    pub(crate) fn bytes(&self) -> ByteSize {
        ByteSize(self.bytes)
    }

    /// Returns the highest number of a first transmission that was acknowledged.
    pub(crate) fn largest_acknowledged(&self) -> Option<u64> {
        self.largest_acknowledged
    }

    /// Removes an acknowledged packet.
    pub(crate) fn acknowledge(&mut self, packet: &PacketId) -> Option<Flight> {
        let number = *self.by_packet.get(packet)?;
        let flight = self.remove(number)?;
        self.largest_acknowledged = self.largest_acknowledged.max(Some(flight.first));
        self.backoff = 0;
        Some(flight)
    }

    /// Removes the next packet that is lost because later ones were acknowledged. `reordering` is the
    /// additional time after which an overtaken packet is lost; if it is zero, the number of packets that
    /// overtook it decides.
    pub(crate) fn lost(
        &mut self,
        now: Instant,
        rtt: &RttEstimate,
        reordering: Duration,
    ) -> Option<Flight> {
        let largest = self.largest_acknowledged?;
        let mut earlier = self.by_number.range(..largest);
        let (number, _) = earlier.find(|(number, flight)| {
            let is_overtaken = **number + REORDERING <= largest;
            let delay = overtaken_delay(rtt, reordering, is_overtaken);
            (is_overtaken && reordering.is_zero()) || flight.sent + delay <= now
        })?;
        self.remove(*number)
    }

    /// Removes the next packet that is lost because nothing was acknowledged for too long.
    /// `timeout` is that of [`Flights::probe_timeout`].
    pub(crate) fn timed_out(&mut self, now: Instant, timeout: Duration) -> Option<Flight> {
        let (number, flight) = self.by_number.first_key_value()?;
        let is_lost = flight.sent + timeout <= now;
        is_lost
            .then_some(*number)
            .and_then(|number| self.remove(number))
    }

    pub(crate) fn probe_timeout(&self, rtt: &RttEstimate, report_interval: Duration) -> Duration {
        rtt.probe_timeout(report_interval) * (1 << self.backoff)
    }

    /// Doubles the timeout until the next acknowledgement.
    pub(crate) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }

    /// Returns the next time at which a packet is lost.
    pub(crate) fn timeout(
        &self,
        rtt: &RttEstimate,
        reordering: Duration,
        report_interval: Duration,
    ) -> Option<Instant> {
        let first = self.by_number.first_key_value().map(|(_, flight)| flight)?;
        let probe = first.sent + self.probe_timeout(rtt, report_interval);
        let largest = self.largest_acknowledged;
        let passed = largest.filter(|largest| first.number < *largest);
        let passed = passed.map(|largest| {
            let is_overtaken = first.number + REORDERING <= largest;
            first.sent + overtaken_delay(rtt, reordering, is_overtaken)
        });
        Some(passed.map_or(probe, |passed| passed.min(probe)))
    }

    fn remove(&mut self, number: u64) -> Option<Flight> {
        let flight = self.by_number.remove(&number)?;
        self.by_packet.remove(&flight.packet);
        self.bytes -= flight.size.0;
        Some(flight)
    }
}

/// Returns the time from sending after which a packet is lost if a later one was acknowledged. If
/// `reordering` is not zero, a packet that several have overtaken has their time and `reordering` (RFC
/// 8985, section 6.2).
fn overtaken_delay(rtt: &RttEstimate, reordering: Duration, is_overtaken: bool) -> Duration {
    if is_overtaken && !reordering.is_zero() {
        rtt.acknowledged_after() + reordering
    } else {
        rtt.loss_delay() + reordering
    }
}

impl Flight {
    /// Returns whether the packet was sent once, so that its acknowledgement is not ambiguous.
    pub(crate) fn is_first(&self) -> bool {
        self.first == self.number
    }
}
