use crate::experiments::five_paths::Variation;
use crate::experiments::live::{self, LEVELS};
use crate::programs::stream::Source;
use anyhow::Result;
use hawser_model::resource::{Flow, Mode, Pruning, Selector, Trigger};
use hawser_testbed::topology::{Lab, Topology};
use serde_json::{Map, Value};
use std::fmt;
use std::path::Path;

/// The trigger's threshold. The paper's threshold of 150 ms never fires here, because five requests
/// are in flight at once (docs/qian.md). At 30 frames per second this is the time of slightly more
/// than two missing frames.
const LATE_AFTER_MS: u32 = 70;

/// The paper's tolerance and window (section IV-A).
const ALGORITHM_1: Pruning = Pruning {
    tolerance_ms: Some(5.0),
    window_packets: Some(100),
    budget_ratio: None,
    tolerated_damage_ratio: None,
};

/// Frames per second of a source that is faster than the fastest path: 580 Mb/s.
const UNCAPPED_FPS: f64 = 120.0;

/// Frames requested ahead from an uncapped source: 280 ms at the rate of the fastest path.
const UNCAPPED_IN_FLIGHT: usize = 24;

/// The name of the flow.
pub(super) const FLOW: &str = "stage";

/// The TCP port of the publisher.
const PORT: u16 = 14748;

/// The treatment of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    /// The stream stays on the default path.
    Single,
    /// The stream is moved to the path with the smallest round-trip time.
    Redirect,
    /// The stream is replicated and paths are pruned by Algorithm 1.
    Successive,
    /// The stream is replicated and paths are pruned by evidence.
    Evidence,
    /// The stream begins on one path and takes the cheapest paths that meet its aim, the default.
    Auto,
    /// Publisher and viewer distribute the stream over subflows themselves.
    Mptcp,
}

/// The parameters of a case with a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scene {
    pub(super) policy: Policy,
    /// `nfov`, `hd` or `fhd`.
    pub(super) level: &'static str,
    /// Whether the network is the only limit.
    pub(super) uncapped: bool,
    /// Whether the network varies twice.
    pub(super) recovery: bool,
}

/// Policies with their names in cases, in the order of figure 5.
const POLICIES: [(&str, Policy); 6] = [
    ("single", Policy::Single),
    ("redirect", Policy::Redirect),
    ("successive", Policy::Successive),
    ("evidence", Policy::Evidence),
    ("auto", Policy::Auto),
    ("mptcp", Policy::Mptcp),
];

/// Replaces the level in the name of an uncapped case.
const UNCAPPED: &str = "uncapped";

/// Replaces the policy in the name of a case with two variations.
const RECOVERY: &str = "recovery";

impl Scene {
    /// Returns the scenes of all cases with a stream.
    pub(super) fn all() -> Vec<Scene> {
        let scene = |policy, level| Scene {
            policy,
            level,
            uncapped: false,
            recovery: false,
        };
        let levels = LEVELS
            .into_iter()
            .flat_map(|level| POLICIES.map(|(_, policy)| scene(policy, level)));
        let uncapped = [Policy::Single, Policy::Redirect, Policy::Evidence];
        let uncapped = uncapped.map(|policy| Scene {
            uncapped: true,
            ..scene(policy, "fhd")
        });
        let recovery = Scene {
            recovery: true,
            ..scene(Policy::Evidence, "fhd")
        };
        levels.chain(uncapped).chain([recovery]).collect()
    }

    /// The first part of the case's name.
    pub(super) fn policy_name(&self) -> &'static str {
        if self.recovery {
            return RECOVERY;
        }
        let known = POLICIES.iter().find(|(_, policy)| *policy == self.policy);
        known.expect("every policy has a name").0
    }

    /// The second part of the case's name.
    pub(super) fn level_name(&self) -> &'static str {
        if self.uncapped { UNCAPPED } else { self.level }
    }

    pub(super) fn variation(&self, seconds: Option<f64>) -> Variation {
        if self.recovery {
            Variation::twice(seconds)
        } else {
            Variation::once(seconds)
        }
    }

    pub(super) fn topology(&self) -> Topology {
        let mptcp = self.policy == Policy::Mptcp;
        Topology {
            control: !mptcp,
            multihomed: mptcp,
            ..Topology::default()
        }
    }

    pub(super) fn source(&self, directory: &Path) -> Result<Source> {
        let source = live::source(self.level, directory)?;
        let source = Source {
            mptcp: self.policy == Policy::Mptcp,
            ..source
        };
        Ok(if self.uncapped {
            Source {
                fps: UNCAPPED_FPS,
                in_flight: Some(UNCAPPED_IN_FLIGHT),
                encode_ahead: true,
                ..source
            }
        } else {
            source
        })
    }

    /// Returns the flow of the stream for the controller; `None` with MPTCP. The flow of an
    /// uncapped stream has no trigger: its viewer requests so far ahead that the times of its
    /// requests carry no information.
    pub(super) fn flow(&self, lab: &Lab) -> Option<Flow> {
        let mode = self.mode()?;
        let trigger = Trigger {
            select: Selector {
                destination: lab.addressing().source.v4_prefix(),
                protocol: Some(6),
                source_ports: None,
                destination_ports: Some((PORT, PORT)),
            },
            request_bytes: Trigger::request_bytes(),
            late_after_ms: LATE_AFTER_MS,
            consecutive: Trigger::consecutive(),
        };
        let pruning = if mode == Mode::Successive {
            ALGORITHM_1
        } else {
            Pruning::default()
        };
        let trigger = (!self.uncapped).then_some(trigger);
        Some(Flow {
            mode,
            trigger,
            pruning,
            transparent: false,
            ..flow(lab)
        })
    }

    /// Returns the parameters of the case besides those of the stream.
    pub(super) fn params(&self) -> Map<String, Value> {
        let mut params = Map::new();
        if self.mode().is_some() && !self.uncapped {
            params.insert("late_after_ms".into(), LATE_AFTER_MS.into());
            params.insert("consecutive".into(), Trigger::consecutive().into());
        }
        if self.uncapped {
            params.insert("source_fps".into(), UNCAPPED_FPS.into());
            params.insert("requests_in_flight".into(), UNCAPPED_IN_FLIGHT.into());
        }
        params
    }

    fn mode(&self) -> Option<Mode> {
        match self.policy {
            Policy::Single => Some(Mode::Single),
            Policy::Redirect => Some(Mode::Redirect),
            Policy::Successive => Some(Mode::Successive),
            Policy::Evidence => Some(Mode::Evidence),
            Policy::Auto => Some(Mode::Auto),
            Policy::Mptcp => None,
        }
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.policy_name(), self.level_name())
    }
}

/// Returns a flow of all IPv4 traffic to the viewer, on all paths, in mode evidence without a
/// trigger.
pub(super) fn flow(lab: &Lab) -> Flow {
    let name = |text: &str| text.parse().expect("the lab's names are words of letters");
    Flow {
        name: name(FLOW),
        tenant: hawser_testing::Control::tenant(),
        ingress: name("ingress"),
        egress: name("egress"),
        select: Selector {
            destination: lab.addressing().viewer.v4_prefix(),
            protocol: None,
            source_ports: None,
            destination_ports: None,
        },
        paths: Vec::new(),
        mode: Mode::Evidence,
        trigger: None,
        pruning: Pruning::default(),
        transparent: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scene_has_a_name_of_its_own() {
        let names: Vec<String> = Scene::all().iter().map(Scene::to_string).collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{name}");
        }
        for name in [
            "single/nfov",
            "mptcp/fhd",
            "auto/fhd",
            "evidence/uncapped",
            "recovery/fhd",
        ] {
            assert!(names.contains(&name.to_owned()), "{name}");
        }
    }
}
