use crate::judged::JudgedPacket;
use crate::judgement::JudgeEvent;
use hawser_units::{Instant, PathSet, PolicyCode};
use std::time::Duration;

/// What a flow tolerates, and what it may cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EvidenceConfig {
    /// A copy is of use when it comes less than this after the first.
    pub tolerance: Duration,
    /// The part of frames that may be damaged, where the number of packets per frame is known.
    pub tolerated_frames: f64,
    /// The part of packets that may be damaged, where it is not.
    pub tolerated_packets: f64,
    /// How many copies a packet may have on average, probes included; none: as many as there are paths.
    pub budget_ratio: Option<f64>,
    /// A path is silent when none of the copies that should have come by it came for so long.
    pub silent_after: Duration,
}

impl Default for EvidenceConfig {
    fn default() -> Self {
        EvidenceConfig {
            tolerance: Duration::from_millis(25),
            tolerated_frames: 0.1,
            tolerated_packets: 0.001,
            budget_ratio: None,
            silent_after: Duration::from_secs(1),
        }
    }
}

/// Judges paths by what a flow would lose without them.
#[derive(Debug, Clone)]
pub struct Evidence {
    config: EvidenceConfig,
    now: Instant,
}

impl Evidence {
    /// Judges `paths`, all of which every packet takes at first.
    pub fn new(config: EvidenceConfig, paths: PathSet) -> Self {
        _ = paths;
        Evidence { config, now: Instant::ZERO }
    }

    /// Takes in the next packet.
    pub fn handle_packet(&mut self, packet: &JudgedPacket) {
        _ = packet.within(self.config.tolerance);
    }

    /// A policy is in force.
    pub fn handle_policy(&mut self, _epoch: u32, _code: PolicyCode, _probes: PathSet, now: Instant) {
        self.now = now;
    }

    /// How many packets a frame has; known from the viewer's requests.
    pub fn handle_frame_size(&mut self, _packets_per_frame: f64) {}

    /// When [`Evidence::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
    }

    /// What there is to say.
    pub fn poll_event(&mut self) -> Option<JudgeEvent> {
        None
    }
}
