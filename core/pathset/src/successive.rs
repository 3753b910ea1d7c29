use crate::judged::JudgedPacket;
use crate::judgement::{JudgeEvent, Judgement};
use crate::proposal::Proposal;
use hawser_units::{Instant, MAX_PATHS, PathId, PathSet, PolicyCode};
use std::collections::VecDeque;
use std::time::Duration;

/// The parameters of Algorithm 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuccessiveConfig {
    /// W: packets in the sliding window. Zero counts as one.
    pub window: u32,
    /// α: a copy is rewarded when it comes less than this after the first.
    pub tolerance: Duration,
}

impl Default for SuccessiveConfig {
    /// As in the paper's evaluation (Qian, section IV-A).
    fn default() -> Self {
        SuccessiveConfig { window: 100, tolerance: Duration::from_millis(5) }
    }
}

/// Algorithm 1 of Qian et al., "sliding window based successive path elimination".
///
/// It only ever removes paths. A path without a reward in the window is removed; when a path has all rewards of the
/// window it remains alone, and the algorithm ends until a policy brings other paths. What the paper leaves open is
/// closed in `docs/design/elimination.md`.
#[derive(Debug, Clone)]
pub struct Successive {
    config: SuccessiveConfig,
    /// P.
    paths: PathSet,
    /// n: packets so far.
    packets: u64,
    /// N: rewards in the window.
    rewards: [u32; MAX_PATHS],
    /// R of the last W packets: the paths that were rewarded.
    window: VecDeque<PathSet>,
    now: Instant,
    proposal: Proposal,
}

impl Successive {
    /// Begins with `paths`, which every packet takes.
    pub fn new(config: SuccessiveConfig, paths: PathSet) -> Self {
        Successive {
            config,
            paths,
            packets: 0,
            rewards: [0; MAX_PATHS],
            window: VecDeque::new(),
            now: Instant::ZERO,
            proposal: Proposal::default(),
        }
    }

    /// Takes in the next packet. One that was not sent over all paths left, or of which no copy came by any, says nothing.
    /// Of one that does not say what it was sent over (`sent` empty) it is assumed.
    pub fn handle_packet(&mut self, packet: &JudgedPacket) {
        let sent_over_all = packet.sent.is_empty() || self.paths.bits() & !packet.sent.bits() == 0;
        let Some(earliest) = self.paths.iter().filter_map(|path| packet.skew(path)).min() else { return };
        if self.paths.len() < 2 || !sent_over_all {
            return;
        }
        let rewarded =
            |path: &PathId| packet.skew(*path).is_some_and(|skew| skew - earliest < self.config.tolerance);
        self.step(self.paths.iter().filter(rewarded).collect());
    }

    /// A policy is in force. One that was not asked for begins the algorithm anew with its paths.
    pub fn handle_policy(&mut self, _epoch: u32, code: PolicyCode, _probes: PathSet, now: Instant) {
        self.now = self.now.max(now);
        self.proposal.withdraw();
        if code.paths() != self.paths {
            *self = Successive { now: self.now, ..Successive::new(self.config, code.paths()) };
        }
    }

    /// When [`Successive::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.proposal.again_at()
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = self.now.max(now);
        if self.proposal.again_at().is_some_and(|again| again <= now) {
            self.proposal.say_again(now);
        }
    }

    /// What there is to say.
    pub fn poll_event(&mut self) -> Option<JudgeEvent> {
        self.proposal.poll().map(JudgeEvent::Judgement)
    }

    /// The paths left.
    pub fn paths(&self) -> PathSet {
        self.paths
    }

    /// n: packets judged since the algorithm began.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// N: by path index, rewards in the window.
    pub fn rewards(&self) -> &[u32; MAX_PATHS] {
        &self.rewards
    }

    /// Lines 3 to 15 of the algorithm for a packet whose copies were rewarded on the paths `rewarded`.
    fn step(&mut self, rewarded: PathSet) {
        let window = self.config.window.max(1);
        self.packets += 1;
        self.window.push_back(rewarded);
        rewarded.iter().for_each(|path| self.rewards[path.index()] += 1);
        if self.packets <= u64::from(window) {
            return;
        }
        let left = self.window.pop_front().unwrap_or_default();
        left.iter().for_each(|path| self.rewards[path.index()] -= 1);

        let before = self.paths;
        self.paths = self.paths.iter().filter(|path| self.rewards[path.index()] > 0).collect();
        let alone = self.paths.iter().find(|path| self.rewards[path.index()] == window);
        if let Some(path) = alone {
            self.paths = PathSet::EMPTY.with(path);
        }
        if self.paths != before {
            self.say(before, alone);
        }
    }

    fn say(&mut self, before: PathSet, alone: Option<PathId>) {
        let reason = match alone {
            Some(path) => format!("{path} was in time for all of {} packets", self.config.window),
            None => {
                let removed = before.iter().filter(|path| !self.paths.contains(*path));
                let names: Vec<_> = removed.map(|path| path.to_string()).collect();
                format!("{} was in time for none of {} packets", names.join(" and "), self.config.window)
            }
        };
        let code = PolicyCode(self.paths.bits());
        let judgement = Judgement { code, probes: PathSet::EMPTY, probe_every: 0, reason };
        self.proposal.say(judgement, self.now);
    }
}
