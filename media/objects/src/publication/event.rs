use super::ViewerStatus;
use crate::sender::SenderEvent;
use crate::session::EndReason;
use hawser_congestion::DepartureFinding;
use std::net::SocketAddr;

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
    /// The probe that tests whether the kernel follows departure times on the route to a viewer has ended.
    Paced {
        /// The viewer's address.
        address: SocketAddr,
        /// Its result.
        finding: DepartureFinding,
    },
    /// The path to a viewer does not carry longer datagrams than these.
    Narrow {
        /// The viewer's address.
        address: SocketAddr,
        /// The length of a full UDP payload now, bytes.
        datagram: usize,
    },
    /// The in-flight buffer of a viewer has delivered or dropped an object.
    Object {
        /// The session.
        session: u32,
        /// The end of the object.
        event: SenderEvent,
    },
}
