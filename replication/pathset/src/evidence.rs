mod auto;
mod bound;
mod evaluate;
mod floor;
mod history;
mod protection;
mod silence;
mod trials;
mod window;

use crate::judged::JudgedPacket;
use crate::judgement::JudgeEvent;
use crate::proposal::Proposal;
use evaluate::MIN_HELP_RATIO;
use hawser_units::{Instant, MAX_PATHS, PathId, PathSet, PolicyCode};
use history::{Backoff, Change, PathHistory, USELESS_AFTER};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use trials::Trials;
use window::Window;

/// The interval between evaluations of the evidence.
const EVALUATION_INTERVAL: Duration = Duration::from_millis(100);

/// The damage that a flow tolerates, and its cost limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvidenceConfig {
    /// A copy is useful if it arrives less than this after the first one. A packet without a useful
    /// copy is damaged like a lost one.
    pub tolerance: Duration,
    /// The share of frames that may be damaged, used if the number of packets per frame is known.
    pub tolerated_frames: f64,
    /// The share of packets that may be damaged, used if it is not known. The default corresponds
    /// to a tenth of frames of 500 packets.
    pub tolerated_packets: f64,
    /// The factor by which tolerance is higher on a single path on which packets do not overtake
    /// each other.
    pub in_order_factor: f64,
    /// Maximum number of copies per packet on average, probes included; `None` for no limit. It
    /// must leave room for probes: with 2.0, two paths are used and no other path is probed.
    pub budget_ratio: Option<f64>,
    /// A path is silent if none of the copies expected over it has arrived for this long.
    pub silent_after: Duration,
}

impl Default for EvidenceConfig {
    fn default() -> Self {
        EvidenceConfig {
            tolerance: Duration::from_millis(25),
            tolerated_frames: 0.1,
            tolerated_packets: 0.0002,
            in_order_factor: 3.0,
            budget_ratio: None,
            silent_after: Duration::from_secs(1),
        }
    }
}

/// Judges paths by the damage that a flow would take without them: `docs/design/path-pruning.md`.
///
/// The judge finds the smallest set of paths with which damage stays within the tolerance, and has
/// the other paths probed. It adds one of them back when damage exceeds the tolerance and the
/// probes show that the path would have helped.
///
/// [`Evidence::auto`] judges the same evidence otherwise: it begins with the paths of the policy, and
/// finds the cheapest paths that meet the aim also where copies harm each other.
#[derive(Debug, Clone)]
pub struct Evidence {
    config: EvidenceConfig,
    packets_per_frame: Option<f64>,
    /// All paths that may be used.
    paths: PathSet,
    /// The paths that every packet takes under the policy in force, and the time since when.
    code: PathSet,
    since: Instant,
    /// The paths that one packet in `probe_every` takes in addition.
    probes: PathSet,
    probe_every: u16,
    /// Whether this judge proposed the policy in force.
    is_proposed_here: bool,
    /// Sets that this judge proposed and with which the experience degraded.
    degraded_sets: BTreeMap<u8, Backoff>,
    /// The observations of policies that were in force, in the mode `auto`.
    auto: Option<Trials>,
    /// Whether the experience degraded on the paths in force, in the mode `auto`.
    is_degraded: bool,
    /// Whether packets were damaged before each of the last evaluations; bit 0 is the newest.
    damaged_intervals: u128,
    window: Window,
    slot_packets: u64,
    history: [PathHistory; MAX_PATHS],
    packets: u64,
    now: Instant,
    /// The time of the next evaluation, if there is new evidence.
    evaluate_at: Option<Instant>,
    proposal: Proposal,
    events: VecDeque<JudgeEvent>,
}

impl Evidence {
    /// Creates a judge of `paths`, all of which every packet takes at first.
    pub fn new(config: EvidenceConfig, paths: PathSet) -> Self {
        let mut judge = Evidence {
            config,
            packets_per_frame: None,
            paths,
            code: paths,
            since: Instant::ZERO,
            probes: PathSet::EMPTY,
            probe_every: 0,
            is_proposed_here: false,
            degraded_sets: BTreeMap::new(),
            auto: None,
            is_degraded: false,
            damaged_intervals: 0,
            window: Window::default(),
            slot_packets: 0,
            history: Default::default(),
            packets: 0,
            now: Instant::ZERO,
            evaluate_at: None,
            proposal: Proposal::default(),
            events: VecDeque::new(),
        };
        judge.slot_packets = judge.min_slot_packets();
        judge
    }

    /// Creates a judge that looks for the cheapest of `paths` that meet the aim.
    pub fn auto(config: EvidenceConfig, paths: PathSet) -> Self {
        let mut judge = Evidence {
            auto: Some(Trials::new(config.silent_after)),
            window: Window::long(),
            ..Evidence::new(config, paths)
        };
        judge.slot_packets = judge.min_slot_packets();
        judge
    }

    /// Handles the next packet. A packet without a path set is assumed to have been sent over the
    /// paths of the policy.
    pub fn handle_packet(&mut self, packet: &JudgedPacket) {
        if packet.is_gap() && packet.sent.is_empty() {
            // Between two policies without a common path: it may have been sent over either.
            return;
        }
        let of_policy = packet.sent.intersection(self.code);
        let sent = if packet.sent.is_empty() {
            self.code
        } else if packet.is_gap() && !of_policy.is_empty() {
            // Between two probes, it was not necessarily one.
            of_policy
        } else {
            packet.sent
        };
        let useful = sent.intersection(packet.within(self.config.tolerance));
        if self.packets == 0 {
            self.code
                .iter()
                .for_each(|path| self.history[path.index()].enter(self.now, false));
        }
        self.packets += 1;
        self.note_in_force(packet);
        self.window
            .count(packet.at, sent, useful, self.slot_packets);
        let is_late = self.is_late(packet);
        if is_late && self.is_of_arriving_set(sent) {
            self.window.count_late();
        }
        let is_damaged = is_late || useful.intersection(self.code).is_empty();
        self.damaged_intervals |= u128::from(is_damaged);
        let mut is_useless = false;
        for path in sent.iter() {
            let skew = packet.skew(path);
            let history = &mut self.history[path.index()];
            let change = history.record_copy(packet.at, skew, self.config.silent_after);
            let order =
                skew.and_then(|skew| history.record_order(packet.sequence, packet.at + skew));
            let judged = history.record_use(useful.contains(path), packet.is_gap());
            if let Some(trials) = &mut self.auto
                && history.recent_use() >= MIN_HELP_RATIO
            {
                trials.silence.resume(path, packet.at);
            }
            is_useless |= history.useless == USELESS_AFTER && self.code.contains(path);
            if let Some(out_of_order) = order {
                self.window.count_order(path, out_of_order);
            }
            self.note(path, change);
            self.note(path, judged);
        }
        if is_useless {
            self.evaluate();
        }
        self.evaluate_at
            .get_or_insert(self.now + EVALUATION_INTERVAL);
    }

    /// Handles the arrival times of the newest copies, by path index, in the mode `auto`: silence shows
    /// before the deadline of any packet.
    pub fn handle_arrivals(&mut self, newest: &[Option<Instant>; MAX_PATHS]) {
        if let Some(trials) = &mut self.auto {
            trials.silence.handle_arrivals(newest, self.code);
        }
    }

    /// Handles a policy that came into force. A policy that this judge did not propose makes it
    /// discard its evidence. If it adds paths, the set before is considered insufficient. The epoch
    /// tells the packets of policies apart in the mode `auto` only, since packets carry their path set.
    pub fn handle_policy(&mut self, epoch: u32, code: PolicyCode, probes: PathSet, now: Instant) {
        self.now = self.now.max(now);
        let (before, code) = (self.code, code.paths());
        self.probes = probes;
        self.paths = self.paths.union(code).union(probes);
        let proposed = self
            .proposal
            .pending()
            .filter(|judgement| judgement.code.paths() == code);
        let is_proposed = proposed.is_some();
        self.probe_every = proposed.map_or(self.probe_every, |judgement| judgement.probe_every);
        if is_proposed || code != before {
            self.proposal.withdraw();
        }
        if let Some(trials) = &mut self.auto {
            trials.begin(epoch, code);
            trials.silence.handle_policy(self.now);
        }
        if code == before {
            return;
        }
        if !is_proposed {
            self.note_degraded(code);
            self.window.clear();
        }
        self.is_proposed_here = is_proposed;
        // The viewer's experience was of the paths before.
        self.is_degraded = false;
        self.code = code;
        self.since = self.now;
        for path in code.difference(before).iter() {
            let is_helper = self.is_proposed_here && self.auto.is_none();
            self.history[path.index()].enter(self.now, is_helper);
        }
        for path in before.difference(code).iter() {
            self.history[path.index()].leave(self.now);
        }
    }

    /// Sets the number of packets per frame, known from the viewer's requests.
    pub fn handle_frame_size(&mut self, packets_per_frame: f64) {
        self.packets_per_frame = (packets_per_frame >= 1.0).then_some(packets_per_frame);
        self.slot_packets = self.min_slot_packets();
    }

    /// Notes that the experience degraded with the paths in force: in the mode `auto`, they are judged
    /// to fail.
    pub fn handle_degraded(&mut self) {
        self.is_degraded = self.auto.is_some();
        self.evaluate_at.get_or_insert(self.now);
    }

    /// Returns whether the judge acts on a degraded experience by itself.
    pub fn handles_degraded(&self) -> bool {
        self.auto.is_some()
    }

    /// Returns when [`Evidence::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let auto = self.auto.as_ref();
        let silence = auto.and_then(|auto| auto.silence.due(self.since));
        self.evaluate_at.into_iter().chain(silence).min()
    }

    /// Advances the time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if self
            .evaluate_at
            .is_some_and(|evaluate_at| evaluate_at <= now)
        {
            self.evaluate();
            self.damaged_intervals <<= 1;
            self.evaluate_at = None;
        }
        self.handle_silence();
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<JudgeEvent> {
        self.events
            .pop_front()
            .or_else(|| self.proposal.poll().map(JudgeEvent::Judgement))
    }

    /// Returns the number of packets judged since the judge was created.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the number of packets with a useful copy over the path since the judge was created.
    pub fn useful(&self, path: PathId) -> u64 {
        self.history[path.index()].useful
    }

    /// Returns the share of frames (of packets, if the frame size is not known) that would have
    /// been damaged over `paths` alone, or `None` if too little is known. Packets of which no copy
    /// was useful over any path are left out.
    pub fn damage(&self, paths: PathSet) -> Option<f64> {
        let damage = self.window.damages().without_others(paths);
        (damage.packets > 0)
            .then(|| self.frame_ratio(damage.damaged as f64 / damage.packets as f64))
    }

    /// Returns whether more packets from `since` on were damaged over the paths in use than is
    /// tolerated, or `None` if none is known. If the viewer's experience degraded and they were
    /// not, other paths would not help: BBR pauses for 200 ms every ten seconds (PROBE_RTT), and a
    /// source may be busy.
    pub fn exceeded_tolerance_since(&self, since: Instant) -> Option<bool> {
        let damages = self.window.damages_since(since);
        let is_known = !self.code.is_empty() && damages.whole(self.code).packets > 0;
        is_known.then(|| self.excess_damage(&damages).is_some())
    }

    /// Notes that the experience degraded with the set in force, if `code` adds paths to it.
    fn note_degraded(&mut self, code: PathSet) {
        let is_more = !self.code.is_empty() && self.code.difference(code).is_empty();
        if self.is_proposed_here && is_more {
            let held = self.now.saturating_since(self.since);
            self.degraded_sets
                .entry(self.code.bits())
                .or_default()
                .fail(self.now, held);
        }
    }

    /// Notes a packet in the mode `auto`: whether it is of the policy in force, and that one has come.
    fn note_in_force(&mut self, packet: &JudgedPacket) {
        let now = self.now.max(packet.at);
        let Some(trials) = &mut self.auto else {
            return;
        };
        trials.protection.begin(now);
        if trials.silence.note(packet) {
            trials.protection.fail(now);
        }
        if trials.is_left_with(packet.epoch) {
            self.observe();
            self.window.cut();
            if let Some(trials) = &mut self.auto {
                trials.enter(packet.at);
            }
        }
    }

    /// Returns whether a packet was sent over all paths of the set whose packets arrive.
    fn is_of_arriving_set(&self, sent: PathSet) -> bool {
        let arriving = self.auto.as_ref().and_then(Trials::arriving);
        arriving.is_some_and(|(set, _)| set.difference(sent).is_empty())
    }

    /// Returns whether every copy took longer than is tolerated, compared with the fastest ones of its
    /// own path. Only the mode `auto` has a use for it: all paths together may be slow because of the
    /// copies, and then no path is late compared with another.
    fn is_late(&mut self, packet: &JudgedPacket) -> bool {
        if self.auto.is_none() || packet.sent.is_empty() || packet.is_gap() {
            return false;
        }
        let mut is_late = true;
        for path in PathId::all() {
            if let Some(skew) = packet.skew(path) {
                let floor = &mut self.history[path.index()].floor;
                let excess = floor.record(packet.at + skew, packet.sent_micros);
                is_late &= excess >= self.config.tolerance;
            }
        }
        is_late
    }

    fn note(&mut self, path: PathId, change: Option<Change>) {
        if let (Some(Change::Silent | Change::Restored), Some(trials)) = (change, &mut self.auto) {
            trials.release(PathSet::EMPTY.with(path));
        }
        let event = match change {
            Some(Change::Silent) => JudgeEvent::PathSilent(path),
            Some(Change::Restored) => JudgeEvent::PathRestored(path),
            Some(Change::Stopped) if self.code.contains(path) && self.code.len() > 1 => {
                JudgeEvent::LatentError(path)
            }
            Some(Change::Stopped) | None => return,
        };
        self.events.push_back(event);
    }
}
