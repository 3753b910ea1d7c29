use super::ViewerStatus;
use crate::sender::SenderEvent;
use crate::session::EndReason;
use hawser_congestion::DepartureFinding;
use hawser_units::{Ecn, Instant};
use std::net::SocketAddr;
use std::sync::Arc;

/// A datagram to a viewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// The viewer's address.
    pub to: SocketAddr,
    /// The UDP payload.
    pub datagram: Arc<[u8]>,
    /// The ECN field of the IP header.
    pub ecn: Ecn,
    /// When it is to leave, if the driver gives it to the kernel with a departure time
    /// ([`FlowConfig::departure_times`](crate::FlowConfig::departure_times)); otherwise it leaves now.
    pub at: Option<Instant>,
    /// Whether the driver says when it left ([`Publication::handle_left`](super::Publication::handle_left)).
    pub is_stamped: bool,
}

/// An event of a [`Publication`](super::Publication).
#[derive(Debug, Clone, PartialEq)]
pub enum PublicationEvent {
    /// A viewer has selected tracks for the first time.
    Joined {
        /// The session.
        session: u32,
        /// The viewer's address.
        address: SocketAddr,
    },
    /// A viewer's session has ended.
    Left {
        /// The last state of the flow.
        status: Box<ViewerStatus>,
        /// The reason.
        reason: EndReason,
    },
    /// It was found whether the kernel obeys departure times on the way to a viewer.
    Paced {
        /// The viewer's address.
        address: SocketAddr,
        /// What was found.
        finding: DepartureFinding,
    },
    /// The in-flight buffer of a viewer is done with an object.
    Object {
        /// The session.
        session: u32,
        /// The end of the object.
        event: SenderEvent,
    },
}
