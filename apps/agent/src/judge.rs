//! What the egress makes of the packets of a flow: which paths should carry it.

use hawser_control::Name;
use hawser_control::node::{Observation, Receive};
use hawser_control::resource::{Elimination, Mode};
use hawser_pathset::{
    Evidence, EvidenceConfig, JudgeEvent, JudgedPacket, Successive, SuccessiveConfig,
};
use hawser_units::{Instant, MAX_PATHS, PathId, PathSet, PolicyCode};
use std::time::Duration;

/// Packets in a window of the tally.
const WINDOW: u32 = 100;

/// Judges one received flow.
#[derive(Debug)]
pub(crate) struct Judge {
    flow: Name,
    epoch: u32,
    algorithm: Algorithm,
    tally: Tally,
    packets: u64,
}

#[derive(Debug)]
enum Algorithm {
    /// The mode leaves no choice.
    None,
    Successive(Successive),
    Evidence(Box<Evidence>),
}

/// Applies one method to whichever algorithm there is.
macro_rules! each {
    ($algorithm:expr, $judge:ident => $call:expr, else $nothing:expr) => {
        match $algorithm {
            Algorithm::None => $nothing,
            Algorithm::Successive($judge) => $call,
            Algorithm::Evidence($judge) => $call,
        }
    };
}

impl Judge {
    /// Judges as the controller asks, from the policy that is in force on.
    pub(crate) fn new(receive: &Receive, now: Instant) -> Self {
        let paths = PathSet::from_bits(receive.paths);
        let (successive, evidence) = (successive(&receive.elimination), evidence(receive));
        let mut judge = Judge {
            flow: receive.flow.clone(),
            epoch: 0,
            tally: Tally::new(match receive.mode {
                Mode::Evidence => evidence.tolerance,
                _ => successive.tolerance,
            }),
            algorithm: match receive.mode {
                Mode::Single | Mode::Redirect | Mode::Replicate => Algorithm::None,
                Mode::Successive => Algorithm::Successive(Successive::new(successive, paths)),
                Mode::Evidence => Algorithm::Evidence(Box::new(Evidence::new(evidence, paths))),
            },
            packets: 0,
        };
        let policy = &receive.policy;
        judge.handle_policy(
            policy.epoch,
            PolicyCode(policy.code),
            PathSet::from_bits(policy.probes),
            now,
        );
        judge
    }

    /// What became of a packet. Returns the window that it completes.
    pub(crate) fn handle_packet(&mut self, packet: &JudgedPacket) -> Option<&Window> {
        self.packets += 1;
        each!(&mut self.algorithm, judge => judge.handle_packet(packet), else ());
        self.tally.add(packet)
    }

    /// A policy is in force at the ingress.
    pub(crate) fn handle_policy(
        &mut self,
        epoch: u32,
        code: PolicyCode,
        probes: PathSet,
        now: Instant,
    ) {
        self.epoch = epoch;
        each!(&mut self.algorithm, judge => judge.handle_policy(epoch, code, probes, now), else ());
    }

    /// How many packets a frame has.
    pub(crate) fn handle_frame_size(&mut self, packets_per_frame: f64) {
        if let Algorithm::Evidence(judge) = &mut self.algorithm {
            judge.handle_frame_size(packets_per_frame);
        }
    }

    /// Lets time pass, and hands on what there is to say.
    pub(crate) fn poll(&mut self, now: Instant, mut say: impl FnMut(Observation)) {
        each!(&mut self.algorithm, judge => judge.handle_timeout(now), else ());
        while let Some(event) = each!(&mut self.algorithm, judge => judge.poll_event(), else None) {
            say(self.observation(event));
        }
    }

    /// Whether the packets from `since` on were damaged on the paths in use; none when that is not known, or not judged.
    pub(crate) fn suffered_since(&self, since: Instant) -> Option<bool> {
        match &self.algorithm {
            Algorithm::Evidence(judge) => judge.suffered_since(since),
            Algorithm::None | Algorithm::Successive(_) => None,
        }
    }

    /// Whether it can say what packets of the paths in use went through.
    pub(crate) fn knows_damage(&self) -> bool {
        matches!(self.algorithm, Algorithm::Evidence(_))
    }

    /// Packets so far.
    pub(crate) fn packets(&self) -> u64 {
        self.packets
    }

    /// The last whole window.
    pub(crate) fn window(&self) -> Option<&Window> {
        self.tally.last.as_ref()
    }

    fn observation(&self, event: JudgeEvent) -> Observation {
        let flow = self.flow.clone();
        let number = |path: PathId| u8::from(path) + 1;
        match event {
            JudgeEvent::Judgement(judgement) => Observation::Judged {
                flow,
                epoch: self.epoch,
                code: judgement.code.0,
                probes: judgement.probes.bits(),
                probe_every: judgement.probe_every,
                reason: judgement.reason,
            },
            JudgeEvent::PathSilent(path) => Observation::PathSilent {
                flow,
                path: number(path),
            },
            JudgeEvent::PathRestored(path) => Observation::PathRestored {
                flow,
                path: number(path),
            },
            JudgeEvent::LatentError(path) => Observation::LatentError {
                flow,
                path: number(path),
            },
        }
    }
}

fn successive(elimination: &Elimination) -> SuccessiveConfig {
    let default = SuccessiveConfig::default();
    SuccessiveConfig {
        window: elimination.window_packets.unwrap_or(default.window),
        tolerance: tolerance(elimination).unwrap_or(default.tolerance),
    }
}

fn evidence(receive: &Receive) -> EvidenceConfig {
    let (elimination, default) = (&receive.elimination, EvidenceConfig::default());
    let tolerated = elimination.tolerated_damage_ratio;
    // Requests tell frames apart. Where they are watched, the ratio speaks of frames; packets are judged by the default
    // until it is known how many a frame has.
    let of_packets = tolerated.filter(|_| receive.trigger.is_none());
    EvidenceConfig {
        tolerance: tolerance(elimination).unwrap_or(default.tolerance),
        tolerated_frames: tolerated.unwrap_or(default.tolerated_frames),
        tolerated_packets: of_packets.unwrap_or(default.tolerated_packets),
        budget_ratio: elimination.budget_ratio.or(default.budget_ratio),
        ..default
    }
}

fn tolerance(elimination: &Elimination) -> Option<Duration> {
    // A length of time that makes no sense is as good as none.
    elimination
        .tolerance_ms
        .and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok())
}

/// What paths did for some packets in a row, for people and figures.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Window {
    /// Packets, among them those that never came.
    pub(crate) packets: u32,
    /// Packets of which no copy came.
    pub(crate) lost: u32,
    /// By path index.
    pub(crate) paths: [PathWindow; MAX_PATHS],
}

/// What a path did for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PathWindow {
    /// Packets that were sent over the path.
    pub(crate) sent: u32,
    /// Those of them whose copy by this path came in time: the reward of Algorithm 1.
    pub(crate) rewards: u32,
    /// Those for which only this path's copy did: the damage without it.
    pub(crate) only: u32,
}

#[derive(Debug)]
struct Tally {
    tolerance: Duration,
    current: Window,
    last: Option<Window>,
}

impl Tally {
    fn new(tolerance: Duration) -> Self {
        Tally {
            tolerance,
            current: Window::default(),
            last: None,
        }
    }

    fn add(&mut self, packet: &JudgedPacket) -> Option<&Window> {
        let in_time = packet.within(self.tolerance);
        self.current.packets += 1;
        self.current.lost += u32::from(packet.is_gap());
        for (path, window) in PathId::all().zip(&mut self.current.paths) {
            let rewarded = in_time.contains(path);
            window.sent += u32::from(packet.sent.contains(path));
            window.rewards += u32::from(rewarded);
            window.only += u32::from(rewarded && in_time.len() == 1);
        }
        if self.current.packets < WINDOW {
            return None;
        }
        self.last = Some(std::mem::take(&mut self.current));
        self.last.as_ref()
    }
}
