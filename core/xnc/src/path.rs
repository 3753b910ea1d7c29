use crate::config::Config;
use crate::outstanding::{Content, Outstanding};
use crate::timing::PERIOD;
use hawser_units::{ByteSize, Instant, MAX_PATHS, PathId, PathSet};
use std::time::Duration;

/// What QUIC puts around a frame: a short header with an 8-byte connection ID, a packet number, the datagram frame's
/// type and length, the AEAD's tag.
pub(crate) const QUIC_OVERHEAD: u64 = 32;

/// Bytes of a ping's frame.
const PING_BYTES: u64 = 10;

/// Bytes that may wait in a connection, whatever its window is, at least and at most.
const LEAST_QUEUE: u64 = 10_000;
const MOST_QUEUE: u64 = 500_000;

/// What the QUIC connection of a path says about it, before a sender is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathState {
    /// The congestion window.
    pub congestion_window: ByteSize,
    /// Sent and neither acknowledged nor lost.
    pub in_flight: ByteSize,
    /// Handed to the connection and not yet sent.
    pub queued: ByteSize,
    /// Round-trip times that QUIC measured.
    pub rtt: Rtt,
    /// Bytes that a datagram may have.
    pub datagram_size: usize,
}

/// Round-trip times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rtt {
    /// Smoothed (RFC 9002, section 5.3).
    pub smoothed: Duration,
    /// The mean deviation.
    pub variation: Duration,
    /// Of the packet acknowledged last.
    pub latest: Duration,
    /// The least seen.
    pub min: Duration,
}

/// A path as the sender sees it.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) id: PathId,
    pub(crate) state: PathState,
    /// Bytes handed out since `state` was told, and not in it.
    handed_out: u64,
    /// The share of the congestion window that may wait in the connection.
    queue_share: f64,
    pub(crate) outstanding: Outstanding,
    /// When the next ping is due, should nothing else be sent before.
    pub(crate) next_probe: Instant,
    /// Whether the path was silent when it was last looked at.
    pub(crate) silent: bool,
}

impl Path {
    fn new(now: Instant, id: PathId, config: &Config, outstanding: Outstanding) -> Self {
        let state = PathState {
            congestion_window: ByteSize(0),
            in_flight: ByteSize(0),
            queued: ByteSize(0),
            rtt: Rtt::default(),
            datagram_size: 0,
        };
        Path {
            id,
            state,
            handed_out: 0,
            queue_share: config.connection_share,
            outstanding,
            next_probe: now,
            silent: false,
        }
    }

    pub(crate) fn update(&mut self, state: PathState) {
        self.state = state;
        self.handed_out = 0;
    }

    pub(crate) fn hand_out(&mut self, bytes: usize) {
        self.handed_out += bytes as u64 + QUIC_OVERHEAD;
    }

    /// Bytes that the congestion window still takes. What a connection paces waits here rather than there: here it can
    /// still take another path.
    pub(crate) fn window(&self) -> u64 {
        let window = self
            .state
            .congestion_window
            .0
            .saturating_sub(self.outstanding_bytes());
        let queue = (self.state.congestion_window.0 as f64 * self.queue_share) as u64;
        window.min(
            queue
                .clamp(LEAST_QUEUE, MOST_QUEUE)
                .saturating_sub(self.state.queued.0.saturating_add(self.handed_out)),
        )
    }

    /// Bytes that are on the path or wait in its connection.
    pub(crate) fn outstanding_bytes(&self) -> u64 {
        let PathState {
            in_flight, queued, ..
        } = self.state;
        in_flight
            .0
            .saturating_add(queued.0)
            .saturating_add(self.handed_out)
    }

    /// How many frames of `bytes` the window takes; none when one is too large for the path.
    pub(crate) fn room(&self, bytes: usize) -> usize {
        if bytes > self.state.datagram_size || !self.outstanding.may_send() {
            return 0;
        }
        usize::try_from(self.window() / (bytes as u64 + QUIC_OVERHEAD)).unwrap_or(usize::MAX)
    }

    /// The same without making a queue that takes longer than `queue` to drain.
    pub(crate) fn room_within(&self, bytes: usize, queue: Duration) -> usize {
        self.room_below(self.outstanding.limit(queue), bytes)
    }

    /// The same for packets that leave the path alone every now and then, for as long as it takes to see it without a queue.
    /// Flows that always have something to send would otherwise never let its least time be seen, and what they make wait
    /// would be taken for the path's own after some seconds.
    pub(crate) fn room_for_bulk(&self, now: Instant, bytes: usize, queue: Duration) -> usize {
        match self.is_measured(now) {
            true => self.room_below(self.outstanding.limit_without_queue(), bytes),
            false => self.room_within(bytes, queue),
        }
    }

    fn room_below(&self, limit: u64, bytes: usize) -> usize {
        let left = limit.saturating_sub(self.outstanding_bytes());
        self.room(bytes)
            .min(usize::try_from(left / (bytes as u64 + QUIC_OVERHEAD)).unwrap_or(usize::MAX))
    }

    /// Whether it is this path's time to be seen without a queue. Paths have theirs one after another.
    fn is_measured(&self, now: Instant) -> bool {
        let every = PERIOD.as_nanos() as u64;
        let turn = every / MAX_PATHS as u64 * self.id.index() as u64;
        let since = Duration::from_nanos((now.as_nanos() % every + turn) % every);
        self.outstanding
            .timing()
            .min()
            .is_some_and(|least| since < (2 * least).min(PERIOD / 8))
    }

    /// Whether a ping may be sent. It says its number whole, so it may be sent however many are unacknowledged.
    pub(crate) fn fits_ping(&self) -> bool {
        self.window() >= PING_BYTES + QUIC_OVERHEAD && self.state.datagram_size as u64 >= PING_BYTES
    }

    pub(crate) fn fits(&self, bytes: usize) -> bool {
        self.room(bytes) > 0
    }

    /// From when on the path counts as silent, if nothing is acknowledged until then.
    pub(crate) fn silent_from(&self, config: &Config) -> Option<Instant> {
        let patience = self
            .outstanding
            .timing()
            .patience(config.loss_threshold, config.ack_delay);
        let since = self.outstanding.waiting_since()? + patience;
        Some(
            self.quiet_from(config)
                .map_or(since, |quiet| quiet.max(since)),
        )
    }

    /// From when on the path is quiet, if nothing is acknowledged until then; none as long as nothing was.
    pub(crate) fn quiet_from(&self, config: &Config) -> Option<Instant> {
        self.outstanding
            .acknowledged_at()
            .map(|at| at + config.quiet_after)
    }

    /// Whether nothing over the path was acknowledged for a while. While something is, the path delivers, however old that
    /// is: what a pause has held up comes first when it is over.
    pub(crate) fn is_quiet(&self, now: Instant, config: &Config) -> bool {
        self.quiet_from(config).is_none_or(|from| from <= now)
    }

    /// Whether the path is known to have delivered lately. One that is idle is probed from time to time, and nobody knows
    /// in between.
    pub(crate) fn was_heard(&self, now: Instant, config: &Config) -> bool {
        let least = self.outstanding.timing().min().unwrap_or_default();
        let heard = self.outstanding.heard();
        heard.is_some_and(|sent| {
            now.saturating_since(sent) <= least.saturating_add(config.heard_within)
        })
    }

    /// How much longer than at best what is under way has been under way, or will be on a path that is not quiet.
    pub(crate) fn backlog(&self, now: Instant, config: &Config) -> Duration {
        let mut longest = self.waiting(now);
        if !self.is_quiet(now, config)
            && let Some(drain) = self.outstanding.drain(self.outstanding_bytes())
        {
            longest = longest.min(drain);
        }
        longest.saturating_sub(self.outstanding.timing().min().unwrap_or_default())
    }

    /// How long the first transmission has been under way that no acknowledgement has reached or passed.
    pub(crate) fn waiting(&self, now: Instant) -> Duration {
        self.outstanding
            .waiting_since()
            .map_or(Duration::ZERO, |since| now.saturating_since(since))
    }

    /// Has the path probed no later than if something had been sent over it now.
    pub(crate) fn probe_soon(&mut self, now: Instant, config: &Config, rests: bool) {
        self.next_probe = self
            .next_probe
            .min(now + self.probe_interval(config, rests));
    }

    /// The time from a transmission to the ping after it, in a session that `rests` or not.
    pub(crate) fn probe_interval(&self, config: &Config, rests: bool) -> Duration {
        match (self.silent, rests) {
            (true, _) => config.probe_silent,
            (false, false) => config.probe_idle,
            (false, true) => config.probe_rest,
        }
    }
}

/// The paths of a session.
#[derive(Debug, Default)]
pub(crate) struct Paths {
    present: [Option<Path>; MAX_PATHS],
    /// The transmissions of those that vanished, by index.
    past: [Outstanding; MAX_PATHS],
}

impl Paths {
    pub(crate) fn add(&mut self, now: Instant, id: PathId, config: &Config) {
        let outstanding = Outstanding::after(&self.past[id.index()]);
        self.present[id.index()] = Some(Path::new(now, id, config, outstanding));
    }

    /// Takes a path away, and says what was under way over it.
    pub(crate) fn remove(&mut self, id: PathId) -> Option<impl Iterator<Item = Content>> {
        let path = self.present[id.index()].take()?;
        self.past[id.index()] = path.outstanding;
        Some(self.past[id.index()].abandon())
    }

    pub(crate) fn get(&self, id: PathId) -> Option<&Path> {
        self.present[id.index()].as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.present[id.index()].as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Path> {
        self.present.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.present.iter_mut().flatten()
    }

    /// The paths that take a frame of `bytes` now.
    pub(crate) fn fitting(&self, bytes: usize) -> PathSet {
        self.iter()
            .filter(|path| path.fits(bytes))
            .map(|path| path.id)
            .collect()
    }
}
