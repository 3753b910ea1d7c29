//! The decisions of a node whose flows a controller assigns.
//!
//! A [`ControlledNode`] gets the messages of the controller, the outcomes of in-band signals, the
//! fate of packets, and the requests of viewers. It returns [`Command`]s: the flows and policies to
//! put into the kernel, the reports to send, and the assignment to save. The process that drives it
//! decides nothing.
//!
//! ```
//! use hawser_node::{Command, ControlledNode, Equipment, Message, Outcome};
//! use hawser_units::{Instant, PathSet, PolicyCode};
//! use std::time::Duration;
//!
//! let equipment = Equipment {
//!     paths: PathSet::from_bits(0b11),
//!     adjacent: PathSet::from_bits(0b11),
//!     discovers: false,
//!     replicates: true,
//!     watches: false,
//!     peers: ["edge-2".to_owned()].into(),
//!     max_rules: 16,
//!     arrival_deadline: Duration::from_millis(200),
//! };
//! let now = Instant::ZERO;
//! let mut node = ControlledNode::new(None, equipment, now);
//! let assignment = serde_json::from_str(
//!     r#"{ "revision": 1, "report_every_ms": 5000, "reconnect_within_ms": 0, "signal_key": null,
//!         "keys": {}, "discovery": {}, "receives": [],
//!          "sends": [{ "flow": "stage", "number": 0, "peer": "edge-2",
//!                      "select": { "destination": "203.0.113.0/24" },
//!                      "policy": { "flow": "stage", "epoch": 1, "code": 3, "probes": 0,
//!                                  "probe_every": 0, "reason": "configured",
//!                                  "decided_unix_ms": 0 } }] }"#,
//! )?;
//! node.handle_message(now, Message::Assignment(assignment));
//! node.handle_message(now, Message::Ready);
//! while let Some(command) = node.poll_command() {
//!     match command {
//!         Command::SetFlows { flows, .. } => {
//!             // The process puts them into the kernel.
//!             let set = flows.sends.into_keys().collect();
//!             node.handle_outcome(now, Outcome::FlowsSet(set));
//!         }
//!         Command::Configure { .. } => node.handle_outcome(now, Outcome::Configured),
//!         _ => {}
//!     }
//! }
//! let (_, send) = node.sent().next().unwrap();
//! assert_eq!(send.policy.code, PolicyCode(0b11));
//!
//! node.handle_timeout(now);
//! assert!(matches!(node.poll_command(), Some(Command::Report(report)) if report.revision == 1));
//! # Ok::<(), serde_json::Error>(())
//! ```

mod first_copy;
mod judge;
mod message;
mod node;
mod outbox;
mod pair_key;
mod pairs;
mod plan;
mod received;
mod reports;
mod selection;
mod sent;
mod viewer;

pub use judge::{PathWindow, Window};
pub use message::{
    Command, Connection, Event, Flows, Message, Outcome, PathState, PolicyWord, ReportContent,
    SendFlow, Signal, SignalOutcome, WatchedRequests,
};
pub use node::ControlledNode;
pub use pair_key::SecretKey;
pub use pairs::{OwnKeys, PairRing, PairStatus};
pub use plan::Equipment;
pub use received::ReceivedFlow;
pub use selection::{Selectors, TooManyFlows, flow_of, inherit};
pub use viewer::Viewer;
