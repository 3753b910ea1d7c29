//! The cases: a network, and what the controller does about it.

use super::super::live;
use super::coded;
use super::kill::Program;
use super::network::{Network, PATHS};
use crate::programs::push::PushSource;
use anyhow::Result;
use hawser_model::resource::{Flow, Mode, Pruning, Selector};
use hawser_testbed::topology::{Edge, Lab};
use hawser_testing::Control;
use std::fmt;
use std::path::Path;

/// The name of the stream's flow.
pub(super) const FLOW: &str = "stage";

/// The flow of the reports to the publisher.
const REPORTS: &str = "reports";

/// The protocol number of UDP: what competes over TCP is left alone.
const UDP: u8 = 17;

/// A case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scene {
    pub(super) network: Network,
    pub(super) treatment: Treatment,
    /// The difference from a plain case.
    pub(super) twist: Option<Twist>,
}

/// A difference from a plain case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Twist {
    /// A part of the system is left out.
    Without(Part),
    /// A program is killed in each condition, and started again.
    Kill(Program),
}

/// A part of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Copies: every packet takes one path.
    Copies,
    /// The coded tunnel.
    Coding,
    /// The sender's adaptation to what the network bears.
    Sender,
}

/// The treatment of the stream, and of the reports that return to the publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// On the default path.
    Single,
    /// On the path with the smallest round-trip time.
    Redirect,
    /// On all paths.
    Replicate,
    /// On all paths, without those that do not help.
    Evidence,
    /// In the coded tunnel over all paths.
    Coded,
    /// On the cheapest paths that suffice.
    Auto,
}

impl Treatment {
    /// Those of which an operator chooses one for the network that is expected.
    pub(super) const FIXED: [Treatment; 5] = [
        Treatment::Single,
        Treatment::Redirect,
        Treatment::Replicate,
        Treatment::Evidence,
        Treatment::Coded,
    ];

    /// Returns all treatments, in the order of tables.
    fn all() -> impl Iterator<Item = Treatment> {
        Treatment::FIXED.into_iter().chain([Treatment::Auto])
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Treatment::Single => "single",
            Treatment::Redirect => "redirect",
            Treatment::Replicate => "replicate",
            Treatment::Evidence => "evidence",
            Treatment::Coded => "coded",
            Treatment::Auto => "auto",
        }
    }

    fn mode(self) -> Mode {
        match self {
            Treatment::Single => Mode::Single,
            Treatment::Redirect => Mode::Redirect,
            // On the only path that the flow may use.
            Treatment::Replicate | Treatment::Coded => Mode::Replicate,
            Treatment::Evidence => Mode::Evidence,
            Treatment::Auto => Mode::Auto,
        }
    }
}

impl Part {
    const ALL: [Part; 3] = [Part::Copies, Part::Coding, Part::Sender];

    fn name(self) -> &'static str {
        match self {
            Part::Copies => "copies",
            Part::Coding => "coding",
            Part::Sender => "sender",
        }
    }
}

impl Scene {
    /// Returns the scenes of all cases: every treatment in every network, and the changing network with each part left
    /// out and with each program killed.
    pub(super) fn all() -> Vec<Scene> {
        let plain = |network| Treatment::all().map(move |treatment| Scene::new(network, treatment));
        let twisted = |treatment, twist| Scene {
            twist: Some(twist),
            ..Scene::new(Network::Changing, treatment)
        };
        let without = Part::ALL.map(|part| twisted(Treatment::Auto, Twist::Without(part)));
        let kill = Program::ALL.map(|program| {
            let treatment = if program.is_of_tunnel() {
                Treatment::Coded
            } else {
                Treatment::Auto
            };
            twisted(treatment, Twist::Kill(program))
        });
        let plain = Network::all().flat_map(plain);
        plain.chain(without).chain(kill).collect()
    }

    /// Returns the plain case of a network and a treatment.
    pub(super) fn new(network: Network, treatment: Treatment) -> Self {
        Scene {
            network,
            treatment,
            twist: None,
        }
    }

    /// Returns whether a part of the system is left out.
    fn is_without(self, part: Part) -> bool {
        self.twist == Some(Twist::Without(part))
    }

    /// Returns the program that is killed.
    pub(super) fn killed(self) -> Option<Program> {
        match self.twist {
            Some(Twist::Kill(program)) => Some(program),
            _ => None,
        }
    }

    /// Returns whether the stream may take the coded tunnel.
    pub(super) fn has_tunnel(self) -> bool {
        match self.treatment {
            Treatment::Coded => true,
            Treatment::Auto => !self.is_without(Part::Coding),
            _ => false,
        }
    }

    /// Returns the numbers of the paths that the stream may take.
    fn paths(self) -> Vec<u8> {
        let mut paths: Vec<u8> = (1..=PATHS as u8).collect();
        match self.treatment {
            Treatment::Coded => paths = vec![coded::NUMBER],
            _ if self.has_tunnel() => paths.push(coded::NUMBER),
            _ => {}
        }
        paths
    }

    /// Returns the case of the same network and parts with another treatment.
    pub(super) fn treated(self, treatment: Treatment) -> Self {
        Scene { treatment, ..self }
    }

    /// The name of the case without that of the network.
    pub(super) fn mode_name(self) -> String {
        let treatment = self.treatment.name();
        match self.twist {
            None => treatment.to_owned(),
            Some(Twist::Without(part)) => format!("{treatment}/without-{}", part.name()),
            Some(Twist::Kill(program)) => format!("{treatment}/kill-{}", program.name()),
        }
    }

    /// Returns the source of the stream. The recording's description is written to `directory`.
    pub(super) fn source(self, directory: &Path) -> Result<PushSource> {
        Ok(PushSource {
            encodings: 2,
            is_constant: self.is_without(Part::Sender),
            ..live::push_source(directory)?
        })
    }

    /// Returns the folder of the raw data.
    pub(super) fn folder(self) -> String {
        self.to_string().replace('/', "-")
    }

    /// Returns the flows of both directions.
    pub(super) fn flows(self, lab: &Lab) -> [Flow; 2] {
        let addressing = lab.addressing();
        let (source, viewer) = (&addressing.source, &addressing.viewer);
        [
            self.flow(FLOW, Edge::Ingress, viewer.v4_prefix()),
            self.flow(REPORTS, Edge::Egress, source.v4_prefix()),
        ]
    }

    /// Returns a flow from one edge to the other.
    fn flow(self, flow: &str, from: Edge, destination: String) -> Flow {
        let name = |text: &str| text.parse().expect("the lab's names are words of letters");
        Flow {
            name: name(flow),
            tenant: Control::tenant(),
            ingress: name(from.name()),
            egress: name(from.peer().name()),
            select: Selector {
                destination,
                protocol: Some(UDP),
                source_ports: None,
                destination_ports: None,
            },
            paths: self.paths(),
            mode: self.treatment.mode(),
            trigger: None,
            pruning: Pruning {
                budget_ratio: self.is_without(Part::Copies).then_some(1.0),
                ..Pruning::default()
            },
            transparent: false,
        }
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network.name(), self.mode_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_may_take_the_tunnel_if_its_case_has_one() {
        let scenes = Scene::all();
        let paths = |name: &str| {
            let scene = scenes.iter().find(|scene| scene.to_string() == name);
            scene.map(|scene| (scene.has_tunnel(), scene.paths()))
        };
        let four = vec![1, 2, 3, 4];
        for (name, expected) in [
            ("lossy/evidence", (false, four.clone())),
            ("lossy/coded", (true, vec![5])),
            ("changing/auto/kill-relay", (true, vec![1, 2, 3, 4, 5])),
            ("changing/auto/without-coding", (false, four)),
            ("changing/coded/kill-tunnel-server", (true, vec![5])),
        ] {
            assert_eq!(paths(name), Some(expected), "{name}");
        }
    }
}
