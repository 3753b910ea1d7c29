use crate::liveness::{Evidence, Liveness, Monitor, paused_from};
use crate::sent_transmissions::{Content, LossRule, QUIC_OVERHEAD, SentTransmissions};
use crate::timer::Timer;
use crate::timing::PERIOD;
use crate::{ACK_DELAY, Config};
use hawser_units::{ByteSize, Instant, MAX_PATHS, PathId, PathSet};
use std::time::Duration;

/// The interval at which a silent path is probed with single packets.
const PROBE_SILENT: Duration = Duration::from_millis(20);

/// The length of a ping frame in bytes.
const PING_BYTES: u64 = 10;

/// The minimum and maximum of the bytes that may wait in a connection, for any window.
const MIN_QUEUE: u64 = 10_000;
const MAX_QUEUE: u64 = 500_000;

/// The delay caused by a loss: until the packet counts as lost, and until its recovery arrives.
const LOSS_PENALTY: Duration = Duration::from_millis(200);

/// The state of a path's QUIC connection, which the driver updates before it polls the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathState {
    /// The congestion window.
    pub congestion_window: ByteSize,
    /// Bytes that were sent and are neither acknowledged nor lost.
    pub in_flight: ByteSize,
    /// Bytes that were passed to the connection and not yet sent.
    pub queued: ByteSize,
    /// Round-trip times measured by QUIC.
    pub rtt: Rtt,
    /// The maximum size of a datagram in bytes.
    pub datagram_size: usize,
}

/// Round-trip times, as in RFC 9002, section 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rtt {
    /// The smoothed round-trip time (RFC 9002, section 5.3).
    pub smoothed: Duration,
    /// The mean deviation.
    pub variation: Duration,
    /// The round-trip time of the packet acknowledged last.
    pub latest: Duration,
    /// The minimum.
    pub min: Duration,
}

/// The sender's state of a path.
#[derive(Debug)]
pub struct Path {
    /// The path.
    pub id: PathId,
    /// The state of its connection.
    pub state: PathState,
    /// Bytes passed to the connection since the last update of `state`.
    handed_out: u64,
    /// When the window had no room left.
    was_full_at: Option<Instant>,
    /// The share of the congestion window that may wait in the connection.
    queue_share: f64,
    pub(crate) transmissions: SentTransmissions,
    /// When the next ping is due, if nothing else is sent before.
    pub(crate) next_probe: Instant,
    monitor: Monitor,
}

impl Path {
    fn new(now: Instant, id: PathId, config: &Config, transmissions: SentTransmissions) -> Self {
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
            was_full_at: None,
            queue_share: config.experiment.connection_share,
            transmissions,
            next_probe: now,
            monitor: Monitor::default(),
        }
    }

    pub(crate) fn update(&mut self, state: PathState) {
        self.state = state;
        self.handed_out = 0;
    }

    pub(crate) fn hand_out(&mut self, bytes: usize) {
        self.handed_out += bytes as u64 + QUIC_OVERHEAD;
    }

    /// Notes whether the window has no room for another `bytes`.
    pub(crate) fn note_full(&mut self, now: Instant, bytes: usize) {
        if self.window() < bytes as u64 + QUIC_OVERHEAD {
            self.was_full_at = Some(now);
        }
    }

    /// Returns the bytes that the congestion window still allows, limited by the queue in the
    /// connection. Packets wait in the sender rather than in the connection, because there they can
    /// still take another path.
    pub fn window(&self) -> u64 {
        let window = self
            .state
            .congestion_window
            .0
            .saturating_sub(self.outstanding_bytes());
        let queue = (self.state.congestion_window.0 as f64 * self.queue_share) as u64;
        window.min(
            queue
                .clamp(MIN_QUEUE, MAX_QUEUE)
                .saturating_sub(self.state.queued.0.saturating_add(self.handed_out)),
        )
    }

    /// Returns the bytes that are in flight or wait in the connection.
    pub fn outstanding_bytes(&self) -> u64 {
        let PathState {
            in_flight, queued, ..
        } = self.state;
        in_flight
            .0
            .saturating_add(queued.0)
            .saturating_add(self.handed_out)
    }

    /// Returns how many frames of `bytes` fit into the window, 0 if a frame is too large for the
    /// path.
    pub(crate) fn room(&self, bytes: usize) -> usize {
        if bytes > self.state.datagram_size || !self.transmissions.may_send() {
            return 0;
        }
        usize::try_from(self.window() / (bytes as u64 + QUIC_OVERHEAD)).unwrap_or(usize::MAX)
    }

    /// Same as [`Path::room`], but without a queue that takes longer than `queue` to drain.
    pub fn room_within(&self, bytes: usize, queue: Duration) -> usize {
        self.room_below(self.transmissions.limit(queue), bytes)
    }

    /// Same as [`Path::room_within`], for bulk packets. While the path is busy, these periodically
    /// leave it half empty, so that its minimum time can be measured without a queue.
    /// Otherwise the queue of flows that always have data to send would hide the minimum, and would
    /// be taken for a part of the path's delay after some seconds.
    pub(crate) fn room_for_bulk(&self, now: Instant, bytes: usize, queue: Duration) -> usize {
        match self.is_measured(now) {
            true => self.room_below(self.transmissions.limit_without_queue(), bytes),
            false => self.room_within(bytes, queue),
        }
    }

    fn room_below(&self, limit: u64, bytes: usize) -> usize {
        let left = limit.saturating_sub(self.outstanding_bytes());
        self.room(bytes)
            .min(usize::try_from(left / (bytes as u64 + QUIC_OVERHEAD)).unwrap_or(usize::MAX))
    }

    /// Returns whether the path's minimum round-trip time is being measured. The paths take turns.
    /// A path that neither had a queue nor was full recently shows it all the time.
    fn is_measured(&self, now: Instant) -> bool {
        let was_busy_at = self.was_full_at.max(self.transmissions.had_queue_at());
        if was_busy_at.is_none_or(|at| at + PERIOD < now) {
            return false;
        }
        let every = PERIOD.as_nanos() as u64;
        let turn = every / MAX_PATHS as u64 * self.id.index() as u64;
        let since = Duration::from_nanos((now.as_nanos() % every + turn) % every);
        self.transmissions
            .timing()
            .min()
            .is_some_and(|min_time| since < (2 * min_time).min(PERIOD / 8))
    }

    /// Returns whether a ping may be sent. A ping carries its full number, so any number of them
    /// may be unacknowledged.
    pub(crate) fn fits_ping(&self) -> bool {
        self.window() >= PING_BYTES + QUIC_OVERHEAD && self.state.datagram_size as u64 >= PING_BYTES
    }

    /// Returns whether a frame of `bytes` fits into the window.
    pub fn fits(&self, bytes: usize) -> bool {
        self.room(bytes) > 0
    }

    /// Returns whether packets may be sent over the path at all.
    pub fn may_send(&self) -> bool {
        self.transmissions.may_send()
    }

    /// Returns whether the path has failed, as far as QUIC's loss detection knows.
    pub fn is_potentially_failed(&self) -> bool {
        self.transmissions.is_potentially_failed()
    }

    /// Returns the average share of lost packets, 0 to 1.
    pub fn loss(&self) -> f64 {
        self.transmissions.loss()
    }

    fn evidence(&self, config: &Config) -> Evidence {
        let timing = self.transmissions.timing();
        Evidence {
            acknowledged_at: self.transmissions.acknowledged_at(),
            unacked_since: self.transmissions.unacked_since(),
            loss_timeout: timing.loss_timeout(config.experiment.loss_threshold, ACK_DELAY),
        }
    }

    /// Returns whether the path delivers.
    pub(crate) fn liveness(&self, now: Instant) -> Liveness {
        let acknowledged_at = self.transmissions.acknowledged_at();
        self.monitor.liveness(now, acknowledged_at)
    }

    /// Updates the liveness, and returns the one before and the one after a change other than a
    /// pause.
    pub(crate) fn check_liveness(
        &mut self,
        now: Instant,
        config: &Config,
    ) -> Option<(Liveness, Liveness)> {
        let evidence = self.evidence(config);
        self.monitor.check(now, evidence)
    }

    /// Returns when the path has to be handled after `handled_at`, when it was last.
    pub(crate) fn timers(
        &mut self,
        handled_at: Instant,
        rule: LossRule,
        config: &Config,
    ) -> [Option<(Instant, Timer)>; 3] {
        let loss = self.transmissions.deadline(rule, ACK_DELAY);
        // A probe that is due but was not sent found no window, and is retried.
        let probe = match self.next_probe <= handled_at {
            true => handled_at + PROBE_SILENT,
            false => self.next_probe,
        };
        let silence = self.monitor.next_check(self.evidence(config));
        [
            Timer::Loss.at(loss),
            Timer::Probe.at(Some(probe)),
            Timer::Silence.at(silence),
        ]
    }

    /// Same as [`Path::timers`], for the detection of stragglers.
    pub(crate) fn straggler_timers(
        &self,
        handled_at: Instant,
        delay: Duration,
    ) -> [Option<(Instant, Timer)>; 2] {
        let paused = paused_from(self.transmissions.acknowledged_at());
        let straggler = self.transmissions.next_straggler(handled_at, delay);
        [
            Timer::Straggler.at(straggler),
            Timer::Pause.at(paused.filter(|from| *from > handled_at)),
        ]
    }

    /// Returns whether the path is known to have delivered recently. An idle path is only probed at
    /// intervals, so its state between probes is unknown.
    pub(crate) fn delivered_recently(&self, now: Instant, config: &Config) -> bool {
        let min_time = self.transmissions.timing().min().unwrap_or_default();
        let sent_at = self.transmissions.largest_acked_sent_at();
        sent_at.is_some_and(|sent| {
            now.saturating_since(sent)
                <= min_time.saturating_add(config.experiment.delivered_within)
        })
    }

    /// Returns the delay in excess of the minimum: the age of the oldest unacknowledged
    /// transmission, or the time that the path takes to drain if it is delivering and that time is
    /// shorter.
    pub(crate) fn backlog(&self, now: Instant) -> Duration {
        let mut longest = self.unacked_for(now);
        if self.liveness(now) == Liveness::Delivering
            && let Some(drain_time) = self.transmissions.drain_time(self.outstanding_bytes())
        {
            longest = longest.min(drain_time);
        }
        longest.saturating_sub(self.transmissions.timing().min().unwrap_or_default())
    }

    /// Returns whether new packets may take the path: it is not silent and has no long queue.
    /// Packets wait in the sender rather than on the path, because there they can still take
    /// another path.
    pub(crate) fn is_open(&self, now: Instant, config: &Config) -> bool {
        self.liveness(now) != Liveness::Silent
            && self.backlog(now) <= config.experiment.max_path_backlog
    }

    /// Returns the expected time until a packet of `size` bytes that is sent now is acknowledged.
    pub(crate) fn expected_delay(&self, now: Instant, size: usize) -> Duration {
        let bytes = self.outstanding_bytes().saturating_add(size as u64);
        let usual = self.transmissions.expected_delay(bytes);
        let waiting = match self.liveness(now) {
            Liveness::Delivering => Duration::ZERO,
            Liveness::Unproven | Liveness::Paused | Liveness::Silent => self.unacked_for(now),
        };
        let loss = self.transmissions.loss();
        let penalty = Duration::from_secs_f64(loss * LOSS_PENALTY.as_secs_f64());
        usual
            .unwrap_or(self.state.rtt.smoothed)
            .max(waiting)
            .saturating_add(penalty)
    }

    /// Returns the age of the first transmission that is beyond the largest acknowledged one.
    pub(crate) fn unacked_for(&self, now: Instant) -> Duration {
        self.transmissions
            .unacked_since()
            .map_or(Duration::ZERO, |since| now.saturating_since(since))
    }

    /// Moves the next probe forward, as if something had just been sent over the path.
    pub(crate) fn probe_soon(&mut self, now: Instant, config: &Config, is_idle: bool) {
        self.next_probe = self
            .next_probe
            .min(now + self.probe_interval(now, config, is_idle));
    }

    /// Returns the time from a transmission to the next ping, depending on whether the session is
    /// idle.
    pub(crate) fn probe_interval(&self, now: Instant, config: &Config, is_idle: bool) -> Duration {
        match self.liveness(now) {
            Liveness::Silent => PROBE_SILENT,
            _ if is_idle => config.probe_rest,
            _ => config.probe_idle,
        }
    }
}

/// The paths of a session.
#[derive(Debug, Default)]
pub struct Paths {
    present: [Option<Path>; MAX_PATHS],
    /// The transmissions of removed paths, by index.
    past: [SentTransmissions; MAX_PATHS],
}

impl Paths {
    pub(crate) fn add(&mut self, now: Instant, id: PathId, config: &Config) {
        let transmissions = SentTransmissions::after(&self.past[id.index()]);
        self.present[id.index()] = Some(Path::new(now, id, config, transmissions));
    }

    /// Removes a path and returns the content of its transmissions in flight.
    pub(crate) fn remove(&mut self, id: PathId) -> Option<impl Iterator<Item = Content>> {
        let path = self.present[id.index()].take()?;
        self.past[id.index()] = path.transmissions;
        Some(self.past[id.index()].abandon())
    }

    /// Returns a path.
    pub fn get(&self, id: PathId) -> Option<&Path> {
        self.present[id.index()].as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: PathId) -> Option<&mut Path> {
        self.present[id.index()].as_mut()
    }

    /// Returns all paths.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.present.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Path> {
        self.present.iter_mut().flatten()
    }

    /// Returns the size of the largest datagram that any path carries; `None` without paths.
    pub(crate) fn largest_datagram(&self) -> Option<usize> {
        self.iter().map(|path| path.state.datagram_size).max()
    }

    /// Returns the paths whose window has room for a frame of `bytes`.
    pub fn fitting(&self, bytes: usize) -> PathSet {
        self.iter()
            .filter(|path| path.fits(bytes))
            .map(|path| path.id)
            .collect()
    }

    /// Returns how many frames of `size` each path has room for, the best path first. A packet that
    /// is lost once more would be too late for its frame. Paths that lost everything recently are
    /// therefore omitted, unless there are no others, and paths that delivered nothing recently
    /// come last.
    pub(crate) fn rooms_for_recovery(
        &self,
        now: Instant,
        config: &Config,
        size: usize,
    ) -> Vec<(PathId, usize)> {
        let open = self.iter().filter(|path| path.is_open(now, config));
        let mut paths: Vec<&Path> = open.collect();
        let has_unconfirmed_loss = |path: &&Path| path.transmissions.has_unconfirmed_loss();
        if !paths.iter().all(has_unconfirmed_loss) {
            paths.retain(|path| !has_unconfirmed_loss(path));
        }
        paths.sort_by_key(|path| {
            let is_uncertain = !path.delivered_recently(now, config);
            (is_uncertain, path.expected_delay(now, size))
        });
        let room = |path: &Path| path.room_within(size, config.experiment.queue_target);
        paths
            .into_iter()
            .map(|path| (path.id, room(path)))
            .collect()
    }
}
