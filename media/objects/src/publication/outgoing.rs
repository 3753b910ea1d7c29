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
    /// The departure time, if the driver gives it to the kernel with one
    /// ([`FlowConfig::departure_times`](crate::FlowConfig::departure_times)); otherwise it leaves now.
    pub at: Option<Instant>,
    /// Whether the driver reports its departure ([`Publication::handle_left`](super::Publication::handle_left)).
    pub is_stamped: bool,
}

impl Outgoing {
    /// Returns a message, with a departure time if its departure is measured.
    pub(super) fn message(to: SocketAddr, message: Vec<u8>, at: Option<Instant>) -> Self {
        Outgoing {
            to,
            datagram: message.into(),
            ecn: Ecn::NotEct,
            at,
            is_stamped: at.is_some(),
        }
    }
}
