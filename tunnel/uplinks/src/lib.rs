//! Keeps a tunnel session up over a changing set of uplinks.
//!
//! A [`Supervisor`] decides for a tunnel client which uplinks are dialed, over which connection a
//! session is opened, which uplinks join it and under which path index, which paths are on standby,
//! when servers are searched, and when a connection is tried again, moved to another address or
//! closed. It has no clock and no socket: its user reports events, carries out the [`Command`]s,
//! and reports their outcomes.
//!
//! ```
//! use hawser_uplinks::{Answer, Command, Dialed, Server, Supervisor, Uplink, Usage};
//! use hawser_units::Instant;
//! use std::time::Duration;
//!
//! let now = Instant::ZERO;
//! let mut supervisor = Supervisor::new(now, 1, Usage::default());
//! let uplink = Uplink {
//!     interface: "wwan0".to_owned(),
//!     ipv4: Some([192, 0, 2, 7].into()),
//!     ipv6: Vec::new(),
//!     others: Vec::new(),
//!     mtu: 1500,
//!     cost: 0,
//!     monthly_cap: None,
//! };
//! let server = Server {
//!     name: "pop-east".to_owned(),
//!     addresses: vec![([203, 0, 113, 1], 14752).into()],
//!     tcp_port: None,
//! };
//! supervisor.handle_uplinks(now, vec![uplink]);
//! supervisor.handle_servers(now, vec![server]);
//!
//! let Some(Command::Dial { connection, .. }) = supervisor.poll_command() else { panic!() };
//! let answered = Dialed { rtt: Duration::from_millis(40), remote: ([203, 0, 113, 1], 14752).into(), mtu: 1500 };
//! supervisor.handle_dialed(now, connection, Some(answered));
//! let Some(Command::Open { path, .. }) = supervisor.poll_command() else { panic!() };
//! assert_eq!(path.index(), 0);
//! supervisor.handle_answer(now, connection, Answer::Accepted);
//! assert_eq!(supervisor.poll_command(), Some(Command::StartSession { connection }));
//! assert_eq!(supervisor.server().unwrap().name, "pop-east");
//! ```

mod command;
mod cost;
mod indices;
mod member;
mod reachability;
mod search;
mod session;
mod supervisor;
mod survey;
mod uplink;
mod usage;

pub use command::{
    Answer, CloseReason, Command, ConnectionId, DialReason, Dialed, Event, Notice, PathFigures,
    SessionFigures, SessionLoss, Timer,
};
pub use reachability::{DELAYED_AFTER, FAILED_AFTER, Reachability, UNREACHABLE_AFTER};
pub use search::GRACE;
pub use supervisor::{REJOIN_TIME, SUPERSEDED_PAUSE, Supervisor};
pub use uplink::{Route, Server, Uplink, is_unique_local};
pub use usage::Usage;
