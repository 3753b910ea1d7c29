//! The cases: a network, and what the controller does about it.

use super::super::live;
use super::network::Network;
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
    /// The part of the system that is left out.
    pub(super) without: Option<Part>,
}

/// A part of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Copies: every packet takes one path.
    Copies,
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
    /// On the cheapest paths that suffice.
    Auto,
}

impl Treatment {
    /// Those of which an operator chooses one for the network that is expected.
    pub(super) const FIXED: [Treatment; 4] = [
        Treatment::Single,
        Treatment::Redirect,
        Treatment::Replicate,
        Treatment::Evidence,
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
            Treatment::Auto => "auto",
        }
    }

    fn mode(self) -> Mode {
        match self {
            Treatment::Single => Mode::Single,
            Treatment::Redirect => Mode::Redirect,
            Treatment::Replicate => Mode::Replicate,
            Treatment::Evidence => Mode::Evidence,
            Treatment::Auto => Mode::Auto,
        }
    }
}

impl Part {
    const ALL: [Part; 2] = [Part::Copies, Part::Sender];

    fn name(self) -> &'static str {
        match self {
            Part::Copies => "copies",
            Part::Sender => "sender",
        }
    }
}

impl Scene {
    /// Returns the scenes of all cases: every treatment in every network, and the changing network with each part left
    /// out.
    pub(super) fn all() -> Vec<Scene> {
        let scenes =
            |network| Treatment::all().map(move |treatment| Scene::new(network, treatment));
        let without = Part::ALL.map(|part| Scene {
            without: Some(part),
            ..Scene::new(Network::Changing, Treatment::Auto)
        });
        Network::all().flat_map(scenes).chain(without).collect()
    }

    /// Returns the case of a network and a treatment, with all parts.
    pub(super) fn new(network: Network, treatment: Treatment) -> Self {
        Scene {
            network,
            treatment,
            without: None,
        }
    }

    /// Returns the case of the same network and parts with another treatment.
    pub(super) fn treated(self, treatment: Treatment) -> Self {
        Scene { treatment, ..self }
    }

    /// The name of the case without that of the network.
    pub(super) fn mode_name(self) -> String {
        let treatment = self.treatment.name();
        match self.without {
            None => treatment.to_owned(),
            Some(part) => format!("{treatment}/without-{}", part.name()),
        }
    }

    /// Returns the source of the stream. The recording's description is written to `directory`.
    pub(super) fn source(self, directory: &Path) -> Result<PushSource> {
        Ok(PushSource {
            is_constant: self.without == Some(Part::Sender),
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
            paths: Vec::new(),
            mode: self.treatment.mode(),
            trigger: None,
            pruning: Pruning {
                budget_ratio: (self.without == Some(Part::Copies)).then_some(1.0),
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
