//! Judges, from the packets of a flow at its egress, which paths should carry it.

use hawser_model::node::{Observation, Receive};
use hawser_model::resource::{Mode, Policy, Pruning};
use hawser_pathset::{
    Evidence, EvidenceConfig, JudgeEvent, JudgedPacket, Successive, SuccessiveConfig,
};
use hawser_units::{Instant, MAX_PATHS, PathId};
use std::time::Duration;

/// Number of packets in a window of the tally.
const WINDOW: u32 = 100;

/// Judges one received flow.
#[derive(Debug)]
pub(crate) struct Judge {
    algorithm: Algorithm,
    tally: Tally,
    packets: u64,
}

#[derive(Debug)]
enum Algorithm {
    /// The mode does not choose paths from packets.
    None,
    Successive(Successive),
    Evidence(Box<Evidence>),
}

/// Calls a method of the algorithm that is in use.
macro_rules! dispatch {
    ($algorithm:expr, $judge:ident => $call:expr, else $nothing:expr) => {
        match $algorithm {
            Algorithm::None => $nothing,
            Algorithm::Successive($judge) => $call,
            Algorithm::Evidence($judge) => $call,
        }
    };
}

impl Judge {
    /// Creates a judge according to an assignment, starting with its policy.
    pub(crate) fn new(receive: &Receive, now: Instant) -> Self {
        let paths = receive.paths;
        let (successive, evidence) = (successive(&receive.pruning), evidence(receive));
        let mut judge = Judge {
            tally: Tally::new(match receive.mode {
                Mode::Auto | Mode::Evidence => evidence.tolerance,
                _ => successive.tolerance,
            }),
            algorithm: match receive.mode {
                Mode::Single | Mode::Redirect | Mode::Replicate => Algorithm::None,
                Mode::Successive => Algorithm::Successive(Successive::new(successive, paths)),
                Mode::Evidence => Algorithm::Evidence(Box::new(Evidence::new(evidence, paths))),
                Mode::Auto => Algorithm::Evidence(Box::new(Evidence::auto(evidence, paths))),
            },
            packets: 0,
        };
        judge.handle_policy(&receive.policy, now);
        judge
    }

    /// Handles the fate of a packet. Returns the window that it completes.
    pub(crate) fn handle_packet(&mut self, packet: &JudgedPacket) -> Option<&Window> {
        self.packets += 1;
        dispatch!(&mut self.algorithm, judge => judge.handle_packet(packet), else ());
        self.tally.add(packet)
    }

    /// Handles the arrival times of the newest copies, by path index.
    pub(crate) fn handle_arrivals(&mut self, newest: &[Option<Instant>; MAX_PATHS]) {
        if let Algorithm::Evidence(judge) = &mut self.algorithm {
            judge.handle_arrivals(newest);
        }
    }

    /// Applies a policy that is in force at the ingress.
    pub(crate) fn handle_policy(&mut self, policy: &Policy, now: Instant) {
        let Policy {
            epoch,
            code,
            probes,
            ..
        } = *policy;
        dispatch!(&mut self.algorithm, judge => judge.handle_policy(epoch, code, probes, now), else ());
    }

    /// Returns when [`Judge::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        dispatch!(&self.algorithm, judge => judge.poll_timeout(), else None)
    }

    /// Sets the number of packets per frame.
    pub(crate) fn handle_frame_size(&mut self, packets_per_frame: f64) {
        dispatch!(&mut self.algorithm, judge => judge.handle_frame_size(packets_per_frame), else ());
    }

    /// Evaluates the packets up to `now`, if that is due.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        dispatch!(&mut self.algorithm, judge => judge.handle_timeout(now), else ());
    }

    /// Returns the next observation about the judged flow, under the policy in force.
    pub(crate) fn poll_observation(&mut self, policy: &Policy) -> Option<Observation> {
        let event = dispatch!(&mut self.algorithm, judge => judge.poll_event(), else None)?;
        Some(observation(policy, event))
    }

    /// Returns whether the packets since `since` were damaged on the paths in use, or `None` if
    /// that is unknown or the algorithm does not measure it.
    pub(crate) fn exceeded_tolerance_since(&self, since: Instant) -> Option<bool> {
        match &self.algorithm {
            Algorithm::Evidence(judge) => judge.exceeded_tolerance_since(since),
            Algorithm::None | Algorithm::Successive(_) => None,
        }
    }

    /// Returns whether the algorithm measures damage on the paths in use.
    pub(crate) fn measures_damage(&self) -> bool {
        matches!(self.algorithm, Algorithm::Evidence(_))
    }

    /// Passes a degraded experience to the algorithm, if it acts on it by itself. Returns whether it
    /// does.
    pub(crate) fn handle_degraded(&mut self) -> bool {
        match &mut self.algorithm {
            Algorithm::Evidence(judge) if judge.handles_degraded() => {
                judge.handle_degraded();
                true
            }
            _ => false,
        }
    }

    /// Returns the number of packets so far.
    pub(crate) fn packets(&self) -> u64 {
        self.packets
    }

    /// Returns the last complete window.
    pub(crate) fn window(&self) -> Option<&Window> {
        self.tally.last.as_ref()
    }
}

fn observation(policy: &Policy, event: JudgeEvent) -> Observation {
    let flow = policy.flow.clone();
    match event {
        JudgeEvent::Judgement(judgement) => Observation::Judged {
            flow,
            epoch: policy.epoch,
            code: judgement.code,
            probes: judgement.probes,
            probe_every: judgement.probe_every,
            reason: judgement.reason,
        },
        JudgeEvent::PathSilent(path) => Observation::PathSilent {
            flow,
            path: path.number(),
        },
        JudgeEvent::PathRestored(path) => Observation::PathRestored {
            flow,
            path: path.number(),
        },
        JudgeEvent::LatentError(path) => Observation::LatentError {
            flow,
            path: path.number(),
        },
    }
}

fn successive(pruning: &Pruning) -> SuccessiveConfig {
    let default = SuccessiveConfig::default();
    SuccessiveConfig {
        window: pruning.window_packets.or(default.window),
        tolerance: tolerance(pruning).unwrap_or(default.tolerance),
    }
}

fn evidence(receive: &Receive) -> EvidenceConfig {
    let (pruning, default) = (&receive.pruning, EvidenceConfig::default());
    let tolerated = pruning.tolerated_damage_ratio;
    // Requests mark the frames. If they are watched, the ratio applies to frames, and packets are
    // judged by the default until the number of packets per frame is known.
    let of_packets = tolerated.filter(|_| receive.trigger.is_none());
    EvidenceConfig {
        tolerance: tolerance(pruning).unwrap_or(default.tolerance),
        tolerated_frames: tolerated.unwrap_or(default.tolerated_frames),
        tolerated_packets: of_packets.unwrap_or(default.tolerated_packets),
        budget_ratio: pruning.budget_ratio.or(default.budget_ratio),
        ..default
    }
}

fn tolerance(pruning: &Pruning) -> Option<Duration> {
    // A negative or excessive duration is ignored.
    pruning
        .tolerance_ms
        .and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok())
}

/// The deliveries of the paths for a number of consecutive packets, for the status and the trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Window {
    /// Packets, including those that never arrived.
    pub packets: u32,
    /// Packets of which no copy arrived.
    pub lost: u32,
    /// The counts of each path, by path index.
    pub paths: [PathWindow; MAX_PATHS],
}

/// The deliveries of a path in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathWindow {
    /// Packets that were sent on the path.
    pub sent: u32,
    /// Packets whose copy on this path arrived in time: the reward of Algorithm 1.
    pub rewards: u32,
    /// Packets for which only the copy on this path arrived in time: the damage without the path.
    pub only: u32,
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
