//! The reports of applications on how their flows fare: where they arrive, the flow that each is about, and the newest
//! one of each flow for the status.

mod client;
mod session;
mod socket;

pub use client::{Args, run};

use crate::controlled::Controlled;
use crate::node::Node;
use crate::status::{ExperienceStatus, FlowExperience};
use hawser_experience::{Experience, Packet, Report, Subject};
use hawser_io::clock::unix_ms;
use hawser_model::Name;
use hawser_node::flow_of;
use hawser_units::{FlowId, Instant};
use session::{Named, Refusal};
use socket::Listener;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tracing::{info, warn};

/// The reports of the applications of this machine.
pub(crate) struct Experiences {
    /// `None` if the socket cannot be made.
    listener: Option<Listener>,
    /// The newest report of each flow.
    newest: BTreeMap<FlowOf, Newest>,
    refused: BTreeMap<Refusal, u64>,
}

/// A flow of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FlowOf {
    Received(FlowId),
    Sent(FlowId),
}

/// The newest report of a flow, and the sums of all.
#[derive(Debug)]
struct Newest {
    /// The flow's name or number.
    flow: String,
    at: Instant,
    at_unix_ms: u64,
    reports: u64,
    frames: u64,
    late: u64,
    stalled: Duration,
    experience: Experience,
}

impl Experiences {
    /// Listens beside the node's state. Without a socket the node works all the same, which the log says.
    pub(crate) fn listen(node: &Node) -> Self {
        let config = node.config();
        let path = config.experience_socket();
        let listener = match Listener::bind(&path, config.reporters.clone()) {
            Ok(listener) => {
                info!(socket = %path.display(), "applications can report how their flows fare");
                Some(listener)
            }
            Err(error) => {
                let path = path.display();
                warn!(
                    "applications cannot report how their flows fare: cannot listen at {path}: {error}"
                );
                None
            }
        };
        Experiences {
            listener,
            newest: BTreeMap::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Takes the reports that have arrived. Those of received flows are passed on to the decisions.
    pub(crate) fn poll(
        &mut self,
        now: Instant,
        node: &Node,
        mut controlled: Option<&mut Controlled>,
    ) {
        let Experiences {
            listener,
            newest,
            refused,
        } = self;
        let Some(listener) = listener else { return };
        let take = |report: &Report, named: &mut Named| {
            let flows = Flows {
                node,
                controlled: controlled.as_deref(),
            };
            let found = flows.find(&report.subject);
            let (of, name) = found.map_err(|reason| (Refusal::Flow, reason))?;
            named.admit(&name)?;
            record(newest, of, &name, now, &report.experience);
            if let (FlowOf::Received(flow), Some(controlled)) = (of, controlled.as_deref_mut()) {
                controlled.handle_experience(now, flow, &report.experience);
            }
            Ok(name)
        };
        let refuse = |refusal| *refused.entry(refusal).or_default() += 1;
        listener.poll(now, take, refuse);
    }

    /// Returns the newest reports of the flows that there are.
    pub(crate) fn status(
        &mut self,
        now: Instant,
        node: &Node,
        controlled: Option<&Controlled>,
    ) -> ExperienceStatus {
        let flows = Flows { node, controlled };
        self.newest
            .retain(|of, newest| flows.name(*of).as_ref() == Some(&newest.flow));
        let mut by_direction: BTreeMap<String, BTreeMap<u16, FlowExperience>> = BTreeMap::new();
        for (of, newest) in &self.newest {
            let (direction, flow) = match of {
                FlowOf::Received(flow) => ("received", flow),
                FlowOf::Sent(flow) => ("sent", flow),
            };
            let flows = by_direction.entry(direction.to_owned()).or_default();
            flows.insert((*flow).into(), newest.status(now));
        }
        ExperienceStatus {
            socket: (self.listener.as_ref()).map(|listener| listener.path().display().to_string()),
            applications: self.listener.as_ref().map_or(0, Listener::connections),
            refused: (self.refused.iter())
                .map(|(refusal, count)| (refusal.name().to_owned(), *count))
                .collect(),
            flows: by_direction,
        }
    }
}

fn record(
    newest: &mut BTreeMap<FlowOf, Newest>,
    of: FlowOf,
    name: &str,
    now: Instant,
    experience: &Experience,
) {
    let first = || Newest {
        flow: name.to_owned(),
        at: now,
        at_unix_ms: 0,
        reports: 0,
        frames: 0,
        late: 0,
        stalled: Duration::ZERO,
        experience: Experience::default(),
    };
    let newest = newest.entry(of).or_insert_with(first);
    if newest.flow != name {
        *newest = first();
    }
    newest.at = now;
    newest.at_unix_ms = unix_ms();
    newest.reports += 1;
    newest.frames += u64::from(experience.frames.unwrap_or_default());
    newest.late += u64::from(experience.late.unwrap_or_default());
    newest.stalled += Duration::from_millis(experience.stalled_ms.unwrap_or_default().into());
    newest.experience = *experience;
}

impl Newest {
    fn status(&self, now: Instant) -> FlowExperience {
        FlowExperience {
            flow: self.flow.clone(),
            at_unix_ms: self.at_unix_ms,
            age_ms: u64::try_from(now.saturating_since(self.at).as_millis()).unwrap_or(u64::MAX),
            reports: self.reports,
            frames: self.frames,
            late: self.late,
            stalled_ms: u64::try_from(self.stalled.as_millis()).unwrap_or(u64::MAX),
            newest: self.experience,
        }
    }
}

/// The flows of the node, by name and by packet.
struct Flows<'a> {
    node: &'a Node,
    controlled: Option<&'a Controlled>,
}

impl Flows<'_> {
    /// Returns the flow that a report is about, with its name.
    ///
    /// # Errors
    /// The reason that there is none, for the application.
    fn find(&self, subject: &Subject) -> Result<(FlowOf, String), String> {
        let found = match subject {
            Subject::Flow(name) => self.named(name),
            Subject::Packet(packet) => self.carrying(packet),
        };
        let mut found = found.into_iter();
        match (found.next(), found.next()) {
            (Some(of), None) => {
                let name = self.name(of).unwrap_or_default();
                Ok((of, name))
            }
            (Some(_), Some(_)) => Err(match subject {
                Subject::Flow(flow) => format!(
                    "flow {flow} is both sent and received here: name it by one of its packets"
                ),
                Subject::Packet(packet) => {
                    format!("more than one flow may carry packets such as {packet}: name the flow")
                }
            }),
            (None, _) => Err(match subject {
                Subject::Flow(flow) => format!("no flow of this node is called {flow:?}"),
                Subject::Packet(packet) => {
                    format!("no flow of this node is known to carry packets such as {packet}")
                }
            }),
        }
    }

    /// Returns the flows of a name or, without a controller, of a number.
    fn named(&self, name: &str) -> BTreeSet<FlowOf> {
        let flows = self.node.flows();
        if self.controlled.is_none() {
            let number = name.parse().ok();
            let flow = number.and_then(|number: u16| FlowId::try_from(number).ok());
            let both = flow.map(|flow| [FlowOf::Sent(flow), FlowOf::Received(flow)]);
            let both = both.into_iter().flatten();
            return both.filter(|of| self.name(*of).is_some()).collect();
        }
        let sent = flows.send.keys().map(|flow| FlowOf::Sent(*flow));
        let received = flows.receive.keys().map(|flow| FlowOf::Received(*flow));
        let is_named = |of: &FlowOf| {
            self.assigned(*of)
                .is_some_and(|found| found.as_str() == name)
        };
        sent.chain(received).filter(is_named).collect()
    }

    /// Returns the name of a flow, or its number without a controller; `None` if there is no such flow.
    fn name(&self, of: FlowOf) -> Option<String> {
        let flows = self.node.flows();
        if self.controlled.is_some() {
            return self.assigned(of).map(ToString::to_string);
        }
        let (flow, is_there) = match of {
            FlowOf::Sent(flow) => (flow, flows.send.contains_key(&flow)),
            FlowOf::Received(flow) => (flow, flows.receive.contains_key(&flow)),
        };
        is_there.then(|| u16::from(flow).to_string())
    }

    /// Returns the name that the controller has given to a flow.
    fn assigned(&self, of: FlowOf) -> Option<&Name> {
        match of {
            FlowOf::Sent(flow) => self.node.flows().send.get(&flow)?.name.as_ref(),
            FlowOf::Received(flow) => self.controlled?.received_name(flow),
        }
    }

    /// Returns the flows that carry such packets: those that are replicated here, and those that are deduplicated here as
    /// far as the node knows their packets.
    fn carrying(&self, packet: &Packet) -> BTreeSet<FlowOf> {
        let flows = self.node.flows();
        let sent = flow_of(&flows.send_selectors, packet).map(FlowOf::Sent);
        let received: Vec<_> = match self.controlled {
            Some(controlled) => controlled.receiving(packet),
            None => flow_of(&flows.receive_selectors, packet)
                .into_iter()
                .collect(),
        };
        let received = received.into_iter().map(FlowOf::Received);
        sent.into_iter().chain(received).collect()
    }
}
