mod bound;
mod standing;
mod weigh;
mod window;

use crate::judged::JudgedPacket;
use crate::judgement::JudgeEvent;
use crate::proposal::Proposal;
use hawser_units::{Instant, MAX_PATHS, PathId, PathSet, PolicyCode};
use standing::{Change, Standing, USELESS_AFTER, Wait};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use window::Window;

/// How often what was seen is weighed.
const WEIGH_EVERY: Duration = Duration::from_millis(100);

/// What a flow tolerates, and what it may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvidenceConfig {
    /// A copy is of use when it comes less than this after the first. What comes later is damage as if it were lost.
    pub tolerance: Duration,
    /// The part of frames that may be damaged, where the number of packets per frame is known.
    pub tolerated_frames: f64,
    /// The part of packets that may be damaged, where it is not: by default what a tenth of frames of 500 packets allows.
    pub tolerated_packets: f64,
    /// How many times as much is tolerated from one path on which packets do not overtake each other.
    pub in_order_factor: f64,
    /// How many copies a packet may have on average, probes included; none: as many as there are paths. It has to leave
    /// something for probes: with 2.0 two paths are used and no other is probed.
    pub budget_ratio: Option<f64>,
    /// A path is silent when none of the copies that should have come by it came for so long.
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

/// Judges paths by what a flow would lose without them: `docs/design/elimination.md`.
///
/// It looks for the smallest set of paths with which the flow suffers no more than is tolerated, has the others probed,
/// and takes one of them back when the flow suffers and the probes say that it would have helped.
#[derive(Debug, Clone)]
pub struct Evidence {
    config: EvidenceConfig,
    packets_per_frame: Option<f64>,
    /// All that may be used.
    paths: PathSet,
    /// The paths that every packet takes, by the policy in force, and since when.
    code: PathSet,
    since: Instant,
    /// The paths that one packet in `probe_every` takes as well.
    probes: PathSet,
    probe_every: u16,
    /// Whether this policy was asked for here.
    is_ours: bool,
    /// Sets that were asked for here and with which the experience degraded.
    blamed: BTreeMap<u8, Wait>,
    window: Window,
    slot_packets: u64,
    standing: [Standing; MAX_PATHS],
    packets: u64,
    now: Instant,
    /// When what was seen is weighed, if there is anything new.
    weigh_at: Option<Instant>,
    proposal: Proposal,
    events: VecDeque<JudgeEvent>,
}

impl Evidence {
    /// Judges `paths`, all of which every packet takes at first.
    pub fn new(config: EvidenceConfig, paths: PathSet) -> Self {
        let mut judge = Evidence {
            config,
            packets_per_frame: None,
            paths,
            code: paths,
            since: Instant::ZERO,
            probes: PathSet::EMPTY,
            probe_every: 0,
            is_ours: false,
            blamed: BTreeMap::new(),
            window: Window::default(),
            slot_packets: 0,
            standing: Default::default(),
            packets: 0,
            now: Instant::ZERO,
            weigh_at: None,
            proposal: Proposal::default(),
            events: VecDeque::new(),
        };
        judge.slot_packets = judge.packets_of_a_slot();
        judge
    }

    /// Takes in the next packet. One that does not say what it was sent over was sent over what the policy says.
    pub fn handle_packet(&mut self, packet: &JudgedPacket) {
        let sent = if packet.sent.is_empty() {
            self.code
        } else {
            packet.sent
        };
        let useful = sent.intersection(packet.within(self.config.tolerance));
        if self.packets == 0 {
            self.code
                .iter()
                .for_each(|path| self.standing[path.index()].enter(self.now, false));
        }
        self.packets += 1;
        self.window
            .count(packet.at, sent, useful, self.slot_packets);
        let mut is_useless = false;
        for path in sent.iter() {
            let skew = packet.skew(path);
            let standing = &mut self.standing[path.index()];
            let change = standing.expected(packet.at, skew, self.config.silent_after);
            let order = skew.and_then(|skew| standing.follows(packet.sequence, packet.at + skew));
            let judged = standing.judged(useful.contains(path), packet.is_gap());
            is_useless |= standing.useless == USELESS_AFTER && self.code.contains(path);
            if let Some(out_of_order) = order {
                self.window.count_order(path, out_of_order);
            }
            self.note(path, change);
            self.note(path, judged);
        }
        if is_useless {
            self.weigh();
        }
        self.weigh_at.get_or_insert(self.now + WEIGH_EVERY);
    }

    /// A policy is in force. One that was not asked for here makes the judge forget what it believed; when it brings more
    /// paths than there were, those did not suffice. Its epoch does not matter: packets say what they were sent over.
    pub fn handle_policy(&mut self, _epoch: u32, code: PolicyCode, probes: PathSet, now: Instant) {
        self.now = self.now.max(now);
        let (before, code) = (self.code, code.paths());
        self.probes = probes;
        self.paths = self.paths.union(code).union(probes);
        let asked = self
            .proposal
            .said()
            .filter(|said| said.code.paths() == code);
        let is_asked = asked.is_some();
        self.probe_every = asked.map_or(self.probe_every, |said| said.probe_every);
        if is_asked || code != before {
            self.proposal.withdraw();
        }
        if code == before {
            return;
        }
        if !is_asked {
            self.blame(code);
            self.window.forget();
        }
        self.is_ours = is_asked;
        self.code = code;
        self.since = self.now;
        for path in code.difference(before).iter() {
            self.standing[path.index()].enter(self.now, self.is_ours);
        }
        for path in before.difference(code).iter() {
            self.standing[path.index()].leave(self.now);
        }
    }

    /// How many packets a frame has; known from the viewer's requests.
    pub fn handle_frame_size(&mut self, packets_per_frame: f64) {
        self.packets_per_frame = (packets_per_frame >= 1.0).then_some(packets_per_frame);
        self.slot_packets = self.packets_of_a_slot();
    }

    /// When [`Evidence::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.weigh_at
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if self.weigh_at.is_some_and(|weigh_at| weigh_at <= now) {
            self.weigh();
            self.weigh_at = None;
        }
    }

    /// What there is to say.
    pub fn poll_event(&mut self) -> Option<JudgeEvent> {
        self.events
            .pop_front()
            .or_else(|| self.proposal.poll().map(JudgeEvent::Judgement))
    }

    /// Packets judged since the judge began.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// Packets to which a copy by the path was of use, since the judge began.
    pub fn useful(&self, path: PathId) -> u64 {
        self.standing[path.index()].useful
    }

    /// The part of frames, or of packets where frames are not known, that would have been damaged if only `paths` had
    /// been used; none when too little is known. Packets of which nothing arrived over any path are left out.
    pub fn damage(&self, paths: PathSet) -> Option<f64> {
        let damage = self.window.damages().without_others(paths);
        (damage.packets > 0).then(|| self.of_frames(damage.damaged as f64 / damage.packets as f64))
    }

    /// Whether more packets from `since` on were damaged than is tolerated with the paths in use; none when none is known.
    /// When the viewer suffers and they were not, other paths would not help: BBR pauses for 200 ms every ten seconds
    /// (PROBE_RTT), and a source may be busy.
    pub fn suffered_since(&self, since: Instant) -> Option<bool> {
        let damages = self.window.damages_since(since);
        let is_known = !self.code.is_empty() && damages.whole(self.code).packets > 0;
        is_known.then(|| self.suffered(&damages).is_some())
    }

    /// The experience degraded with the set in force, if `code` is more than that.
    fn blame(&mut self, code: PathSet) {
        let is_more = !self.code.is_empty() && self.code.difference(code).is_empty();
        if self.is_ours && is_more {
            let held = self.now.saturating_since(self.since);
            self.blamed
                .entry(self.code.bits())
                .or_default()
                .fail(self.now, held);
        }
    }

    fn note(&mut self, path: PathId, change: Option<Change>) {
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
