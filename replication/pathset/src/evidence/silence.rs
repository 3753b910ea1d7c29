use crate::judged::JudgedPacket;
use hawser_units::{Instant, MAX_PATHS, PathId, PathSet};
use std::time::Duration;

/// The arrival of the newest copy over each path, by path index.
pub(super) type Newest = [Option<Instant>; MAX_PATHS];

/// Silence is a failure of the paths if it lasts this many times the longest usual gap...
const USUAL_GAPS: u32 = 3;

/// ...but not if it is shorter than this.
const MIN_SILENCE: Duration = Duration::from_millis(150);

/// The longest gap is forgotten within about this time.
const USUAL_KEPT: Duration = Duration::from_secs(10);

/// Which gaps are usual is known after this time.
const USUAL_AFTER: Duration = Duration::from_secs(1);

/// A copy may arrive this much later than another one of the same packet over another path.
const MAX_SKEW: Duration = Duration::from_millis(100);

/// A path that is more than [`MAX_SKEW`] behind has stopped if packets arrive over others for this long.
const STOPPED_AFTER: Duration = Duration::from_millis(150);

/// After a change of the paths, packets may be on their way for this long.
const ON_THE_WAY: Duration = Duration::from_millis(500);

/// The longest silence of a source that is not taken for a failure of its paths.
const MAX_PAUSE: Duration = Duration::from_secs(64);

/// The shortest interval between proposals because of one silence; it grows with the silence.
const REPEAT_AFTER: Duration = Duration::from_millis(500);

/// Detects that nothing arrives any more, over any of the paths in force or over one of them.
///
/// It is told of copies when they arrive, and not only when the deadline of their packet has passed.
#[derive(Debug, Clone)]
pub(super) struct Silence {
    /// The silence that is a failure while nothing is known about the flow.
    silent_after: Duration,
    /// The time of the first policy. What arrived earlier may be of another flow.
    begun: Option<Instant>,
    newest: Newest,
    /// The first copy over a path in force, and the newest one.
    first: Option<Instant>,
    last: Option<Instant>,
    /// The first copy since `last` that arrived over another path. It shows that packets are sent.
    probe: Option<Instant>,
    /// The longest gap between copies that is usual.
    usual: Duration,
    /// The silence that is tolerated of a source that is known to pause.
    pause: Option<Duration>,
    noted: Option<Noted>,
    /// By path index: the first copy over a path in force that arrived more than [`MAX_SKEW`] after the
    /// newest one over this path.
    behind: Newest,
    /// By path index: when it was noticed that nothing arrives any more over the path, although packets
    /// are sent.
    stopped: Newest,
}

/// A silence that was noticed.
#[derive(Debug, Clone, Copy)]
struct Noted {
    /// The last copy before it.
    last: Instant,
    /// When it was noticed last.
    at: Instant,
    /// Whether it is certain that the source did not pause.
    is_failure: bool,
}

impl Silence {
    pub(super) fn new(silent_after: Duration) -> Self {
        Silence {
            silent_after,
            begun: None,
            newest: Newest::default(),
            first: None,
            last: None,
            probe: None,
            usual: Duration::ZERO,
            pause: None,
            noted: None,
            behind: Newest::default(),
            stopped: Newest::default(),
        }
    }

    /// Takes note of the copies that have arrived, while the paths `code` are in force.
    pub(super) fn handle_arrivals(&mut self, newest: &Newest, code: PathSet) {
        let Some(begun) = self.begun else { return };
        let newest = &newest.map(|arrived| arrived.filter(|at| *at >= begun));
        let newest_of = |paths: PathSet| paths.iter().filter_map(|path| newest[path.index()]).max();
        if let Some(arrived) = newest_of(code).filter(|arrived| self.last < Some(*arrived)) {
            self.first.get_or_insert(arrived);
            if let Some(last) = self.last.filter(|_| self.noted.is_none()) {
                self.note_gap(arrived.saturating_since(last));
            }
            self.last = Some(arrived);
            self.probe = None;
        }
        let others = PathId::all().filter(|path| !code.contains(*path));
        let probe = newest_of(others.collect()).filter(|probe| self.last < Some(*probe));
        self.probe = self.probe.or(probe);
        for path in PathId::all() {
            self.note_path(path, newest[path.index()]);
        }
    }

    fn note_path(&mut self, path: PathId, newest: Option<Instant>) {
        let index = path.index();
        if newest > self.newest[index] {
            self.newest[index] = newest;
            self.behind[index] = None;
        }
        let is_behind =
            |last: &Instant| newest.is_none_or(|newest| last.saturating_since(newest) > MAX_SKEW);
        self.behind[index] = self.behind[index].or(self.last.filter(is_behind));
    }

    fn note_gap(&mut self, gap: Duration) {
        let forgotten = gap.as_secs_f64() / USUAL_KEPT.as_secs_f64();
        let usual = self.usual.mul_f64((1.0 - forgotten).max(0.0));
        self.usual = usual.max(gap);
    }

    /// Takes note of a packet whose fate is known. Returns whether it shows that paths have failed.
    pub(super) fn note(&mut self, packet: &JudgedPacket) -> bool {
        let (at, is_gap) = (packet.at, packet.is_gap());
        let Some(noted) = self.noted.take_if(|noted| at > noted.last) else {
            return false;
        };
        self.pause = if is_gap || noted.is_failure {
            None
        } else {
            // Packets with the next numbers: the source paused, and the paths lost nothing.
            let tolerated = self.pause.unwrap_or(self.silent_after);
            Some((tolerated * 2).min(MAX_PAUSE))
        };
        is_gap && !noted.is_failure
    }

    /// Returns the silence that is a failure of the paths if the source does not pause.
    fn tolerated(&self) -> Duration {
        let known = self.first.zip(self.last);
        if known.is_none_or(|(first, last)| last.saturating_since(first) < USUAL_AFTER) {
            return self.silent_after;
        }
        let gaps = self.usual * USUAL_GAPS;
        gaps.min(self.silent_after).max(MIN_SILENCE)
    }

    /// Returns when nothing has arrived for too long over the paths in force since `since`.
    pub(super) fn due(&self, since: Instant) -> Option<Instant> {
        let last = self.last_before_silence(since)?;
        if let Some(noted) = self.noted {
            let interval = noted.at.saturating_since(noted.last).max(REPEAT_AFTER);
            return (last <= noted.last).then_some(noted.at + interval);
        }
        let paused = last + self.pause.unwrap_or(self.tolerated());
        let failed = self
            .probe
            .map(|probe| (last + self.tolerated()).max(probe + MAX_SKEW));
        let due = failed.map_or(paused, |failed| failed.min(paused));
        Some(due.max(since + ON_THE_WAY))
    }

    /// Returns the last copy over a path in force; the time of the policy if there was none although
    /// packets are sent.
    fn last_before_silence(&self, since: Instant) -> Option<Instant> {
        self.last.or(self.probe.map(|_| since))
    }

    /// Returns for how long nothing has arrived over `code`, if that is too long, and whether it has just become
    /// certain that the paths have failed.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        code: PathSet,
        since: Instant,
    ) -> Option<(Duration, bool)> {
        self.due(since).filter(|due| *due <= now)?;
        let last = self.last_before_silence(since)?;
        let was_failure = self.noted.is_some_and(|noted| noted.is_failure);
        let is_failure = self.probe.is_some_and(|probe| probe + MAX_SKEW <= now);
        if is_failure {
            self.stop(code, now);
        }
        self.noted = Some(Noted {
            last,
            at: now,
            is_failure,
        });
        Some((now.saturating_since(last), is_failure && !was_failure))
    }

    /// Takes note of a policy that came into force. A silence is noticed again at once, because what was proposed is
    /// outdated.
    pub(super) fn handle_policy(&mut self, now: Instant) {
        self.begun.get_or_insert(now);
        if let Some(noted) = &mut self.noted {
            noted.at = noted.last;
        }
    }

    /// Returns the paths of `code`, in force since `since`, that have just stopped.
    pub(super) fn newly_stopped(&mut self, code: PathSet, since: Instant) -> PathSet {
        let Some(last) = self.last.filter(|last| *last >= since + ON_THE_WAY) else {
            return PathSet::EMPTY;
        };
        let is_silent = |path: &PathId| {
            let behind = self.behind[path.index()];
            behind.is_some_and(|behind| last.saturating_since(behind.max(since)) > STOPPED_AFTER)
        };
        let silent: PathSet = code.iter().filter(is_silent).collect();
        let newly = silent.difference(self.stopped());
        self.stop(newly, last);
        newly
    }

    /// Notes that copies of packets that arrived until `at` show that a path delivers.
    pub(super) fn resume(&mut self, path: PathId, at: Instant) {
        self.stopped[path.index()].take_if(|stopped| at > *stopped);
    }

    fn stop(&mut self, paths: PathSet, now: Instant) {
        for path in paths.iter() {
            self.stopped[path.index()].get_or_insert(now);
        }
    }

    /// Returns the paths that stopped while they were in force. One that delivers again still counts
    /// until packets show that, whose deadline has passed.
    pub(super) fn stopped(&self) -> PathSet {
        let has_stopped = |path: &PathId| self.stopped[path.index()].is_some();
        PathId::all().filter(has_stopped).collect()
    }
}
