use crate::black_hole::BlackHole;
use hawser_units::{Bitrate, ByteSize};
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The time without an acknowledgement after which a path is silent, unless its round trips take
/// longer.
const SILENCE: Duration = Duration::from_millis(150);

/// The interval at which a silent path may send a packet beyond its window.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);

/// The state of a connection's congestion control, readable at any time without its lock.
///
/// Only the thread that drives the connection writes. A concurrent reader may see some figures from
/// before a packet and some from after it.
pub struct Live {
    origin: Instant,
    acknowledged: Box<dyn Fn() + Send + Sync>,
    window: AtomicU64,
    in_flight: AtomicU64,
    packet: AtomicU64,
    smoothed_ns: AtomicU64,
    variation_ns: AtomicU64,
    latest_ns: AtomicU64,
    min_ns: AtomicU64,
    rate_bps: AtomicU64,
    waiting_since_ns: AtomicU64,
    sent_at_ns: AtomicU64,
    lost: AtomicU64,
    marks: AtomicU64,
    sizes: Mutex<BlackHole>,
}

/// The figures at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Figures {
    /// Bytes that may be in flight, including the packet that a silent path may send.
    pub congestion_window: ByteSize,
    /// Bytes of QUIC packets that are neither acknowledged nor declared lost.
    pub in_flight: ByteSize,
    /// Round-trip times; `None` before the first acknowledgement.
    pub rtt: Option<RoundTrip>,
    /// The controller's estimate of what the path can deliver.
    pub delivery_rate: Option<Bitrate>,
    /// The time since the last acknowledgement while packets are in flight.
    pub unacknowledged: Duration,
    /// Packets that QUIC has declared lost.
    pub lost_packets: u64,
    /// Acknowledgements that reported further packets marked by the network (ECN CE, RFC 9000,
    /// section 13.4).
    pub congestion_marks: u64,
}

/// Round-trip times, including the peer's acknowledgement delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    /// Smoothed as in RFC 9002.
    pub smoothed: Duration,
    /// Mean deviation as in RFC 9002.
    pub variation: Duration,
    /// Round-trip time of the packet acknowledged last.
    pub latest: Duration,
    /// The minimum over the connection.
    pub min: Duration,
}

impl Live {
    /// Creates the figures of a connection that has not sent anything. `acknowledged` is called
    /// after each acknowledgement, from within the connection: it may wake a task, but must neither
    /// block nor access the connection.
    pub fn new(acknowledged: impl Fn() + Send + Sync + 'static) -> Self {
        Live::starting(Instant::now(), acknowledged)
    }

    /// As [`Live::new`], for virtual time that begins at `origin`.
    pub fn starting(origin: Instant, acknowledged: impl Fn() + Send + Sync + 'static) -> Self {
        let zero = || AtomicU64::new(0);
        Live {
            origin,
            acknowledged: Box::new(acknowledged),
            window: zero(),
            in_flight: zero(),
            packet: zero(),
            smoothed_ns: zero(),
            variation_ns: zero(),
            latest_ns: zero(),
            min_ns: zero(),
            rate_bps: zero(),
            waiting_since_ns: zero(),
            sent_at_ns: zero(),
            lost: zero(),
            marks: zero(),
            sizes: Mutex::default(),
        }
    }

    /// Returns the figures as of `now`.
    pub fn figures(&self, now: Instant) -> Figures {
        let read = |figure: &AtomicU64| figure.load(Relaxed);
        let time = |figure: &AtomicU64| Duration::from_nanos(figure.load(Relaxed));
        let latest = time(&self.latest_ns);
        let rate = read(&self.rate_bps);
        Figures {
            congestion_window: ByteSize(self.window_at(now)),
            in_flight: ByteSize(read(&self.in_flight)),
            rtt: (!latest.is_zero()).then(|| RoundTrip {
                smoothed: time(&self.smoothed_ns),
                variation: time(&self.variation_ns),
                latest,
                min: time(&self.min_ns),
            }),
            delivery_rate: (rate > 0).then(|| Bitrate::from_bps(rate)),
            unacknowledged: self.unacknowledged(now),
            lost_packets: read(&self.lost),
            congestion_marks: read(&self.marks),
        }
    }

    /// Returns the size of UDP payloads, in bytes, that should be used instead of the present ones, because
    /// no larger ones arrive while smaller ones do.
    pub fn narrowed(&self) -> Option<u16> {
        self.sizes()
            .narrowed()
            .and_then(|size| size.try_into().ok())
    }

    /// Records that UDP payloads of at most this size are used from now on. Without one, they are of any
    /// size.
    pub fn use_payload(&self, bytes: Option<u16>) {
        self.sizes().set_size(bytes.map_or(usize::MAX, usize::from));
    }

    /// Returns the evidence for sizes that do not arrive.
    pub(crate) fn sizes(&self) -> MutexGuard<'_, BlackHole> {
        self.sizes.lock()
    }

    /// Returns the controller's window, or what is in flight and one packet if the path is silent
    /// and none was sent lately.
    ///
    /// Without this extension, a controller whose window is full when a path fails waits for ever
    /// longer probe timeouts, and detects seconds late that the path has recovered.
    pub(crate) fn window_at(&self, now: Instant) -> u64 {
        let window = self.window.load(Relaxed);
        let full = self.in_flight.load(Relaxed) + self.packet.load(Relaxed);
        if full > window
            && self.is_silent(now)
            && self.elapsed(now, &self.sent_at_ns) >= PROBE_INTERVAL
        {
            return full;
        }
        window
    }

    /// Records the controller's window and rate.
    pub(crate) fn set_window(&self, window: u64, rate: Option<u64>) {
        self.window.store(window, Relaxed);
        self.rate_bps.store(rate.unwrap_or(0), Relaxed);
    }

    /// Records the size of a full packet.
    pub(crate) fn set_packet_size(&self, packet: u16) {
        self.packet.store(packet.into(), Relaxed);
    }

    pub(crate) fn on_sent(&self, now: Instant, bytes: u16) {
        let now = self.ns(now);
        if self.in_flight.fetch_add(bytes.into(), Relaxed) == 0 {
            self.waiting_since_ns.store(now, Relaxed);
        }
        self.sent_at_ns.store(now, Relaxed);
    }

    /// Records a lost packet. The next acknowledgement corrects the bytes in flight.
    pub(crate) fn on_lost(&self, bytes: u16) {
        let in_flight = self.in_flight.load(Relaxed);
        self.in_flight
            .store(in_flight.saturating_sub(bytes.into()), Relaxed);
        self.lost.fetch_add(1, Relaxed);
    }

    /// Records an acknowledgement that reported packets marked by the network.
    pub(crate) fn on_ecn_mark(&self) {
        self.marks.fetch_add(1, Relaxed);
    }

    /// Records an acknowledgement after it has been processed. `sent` is when the newest of its
    /// packets was sent.
    pub(crate) fn on_acknowledged(&self, now: Instant, sent: Option<Instant>, in_flight: u64) {
        self.in_flight.store(in_flight, Relaxed);
        self.waiting_since_ns.store(self.ns(now), Relaxed);
        if let Some(sent) = sent {
            self.sample(now.saturating_duration_since(sent));
        }
        (self.acknowledged)();
    }

    /// Updates the round-trip times as in RFC 9002, section 5.3, without subtracting the peer's
    /// delay.
    fn sample(&self, rtt: Duration) {
        let rtt = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX).max(1);
        let (smoothed, variation, min) = match self.latest_ns.swap(rtt, Relaxed) {
            0 => (rtt, rtt / 2, rtt),
            _ => {
                let (smoothed, variation) = (
                    self.smoothed_ns.load(Relaxed),
                    self.variation_ns.load(Relaxed),
                );
                let deviation = smoothed.abs_diff(rtt);
                let min = self.min_ns.load(Relaxed).min(rtt);
                (
                    (7 * smoothed + rtt) / 8,
                    (3 * variation + deviation) / 4,
                    min,
                )
            }
        };
        self.smoothed_ns.store(smoothed, Relaxed);
        self.variation_ns.store(variation, Relaxed);
        self.min_ns.store(min, Relaxed);
    }

    fn is_silent(&self, now: Instant) -> bool {
        let expected = self.smoothed_ns.load(Relaxed) + 4 * self.variation_ns.load(Relaxed);
        self.unacknowledged(now) >= SILENCE.max(Duration::from_nanos(expected))
    }

    fn unacknowledged(&self, now: Instant) -> Duration {
        match self.in_flight.load(Relaxed) {
            0 => Duration::ZERO,
            _ => self.elapsed(now, &self.waiting_since_ns),
        }
    }

    fn elapsed(&self, now: Instant, figure: &AtomicU64) -> Duration {
        now.saturating_duration_since(self.origin)
            .saturating_sub(Duration::from_nanos(figure.load(Relaxed)))
    }

    fn ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live")
            .field("window", &self.window)
            .field("in_flight", &self.in_flight)
            .field("smoothed_ns", &self.smoothed_ns)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    const MS: Duration = Duration::from_millis(1);
    const PACKET: u16 = 1400;

    /// A path with a full window of two packets, sent at the beginning.
    fn full(origin: Instant) -> Live {
        let live = Live::starting(origin, || {});
        live.set_packet_size(PACKET);
        live.set_window(2 * u64::from(PACKET), None);
        live.on_sent(origin, PACKET);
        live.on_sent(origin, PACKET);
        live
    }

    fn room(live: &Live, now: Instant) -> u64 {
        let figures = live.figures(now);
        figures
            .congestion_window
            .0
            .saturating_sub(figures.in_flight.0)
    }

    #[test]
    fn a_silent_path_gets_one_packet_at_a_time() {
        let origin = Instant::now();
        let live = full(origin);
        assert_eq!(room(&live, origin + 149 * MS), 0);
        assert_eq!(room(&live, origin + 150 * MS), u64::from(PACKET));

        live.on_sent(origin + 150 * MS, PACKET);
        assert_eq!(room(&live, origin + 199 * MS), 0);
        assert_eq!(room(&live, origin + 200 * MS), u64::from(PACKET));
        assert_eq!(live.figures(origin + 200 * MS).unacknowledged, 200 * MS);
    }

    #[test]
    fn a_path_that_answers_keeps_to_its_window() {
        let origin = Instant::now();
        let live = full(origin);
        live.on_acknowledged(origin + 100 * MS, Some(origin), 2 * u64::from(PACKET));
        assert_eq!(room(&live, origin + 200 * MS), 0, "100 ms are no silence");

        live.on_acknowledged(origin + 210 * MS, Some(origin), 0);
        assert_eq!(
            live.figures(origin + 900 * MS).unacknowledged,
            Duration::ZERO,
            "nothing is awaited"
        );
    }

    #[test]
    fn long_round_trips_are_no_silence() {
        let origin = Instant::now();
        let live = full(origin);
        let (sent, acknowledged_at) = (origin, origin + 600 * MS);
        live.on_acknowledged(acknowledged_at, Some(sent), 2 * u64::from(PACKET));
        assert_eq!(
            live.figures(acknowledged_at).rtt.map(|rtt| rtt.smoothed),
            Some(600 * MS)
        );
        assert_eq!(room(&live, acknowledged_at + 500 * MS), 0);
    }

    #[test]
    fn acknowledgements_wake_somebody() {
        let woken = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&woken);
        let live = Live::new(move || {
            counter.fetch_add(1, Relaxed);
        });
        live.on_acknowledged(Instant::now(), None, 0);
        assert_eq!(woken.load(Relaxed), 1);
    }
}
