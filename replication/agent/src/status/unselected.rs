//! Packets to a destination of flows that none of them selects. They take the default route, and who sends
//! them may take them for protected.

use crate::node::Node;
use hawser_replication_bpf::Missed;
use tracing::warn;

/// Says once that there are such packets.
#[derive(Debug, Default)]
pub(crate) struct Unselected {
    is_said: bool,
}

impl Unselected {
    /// Call this every second.
    pub(crate) fn check(&mut self, node: &Node) {
        // A table that cannot be read is reported in the status.
        let missed = node.sender().and_then(|sender| sender.missed().ok()?);
        let Some(missed) = missed.filter(|_| !self.is_said) else {
            return;
        };
        self.is_said = true;
        warn!(
            "packets match no flow and take the default route without copies, for example {}: if they are to be protected, \
             change `select` of a flow, or add one",
            describe(&missed)
        );
    }
}

/// Describes the last packet by its protocol, port and destination.
pub(super) fn describe(missed: &Missed) -> String {
    let protocol = match missed.protocol {
        1 => "ICMP".to_owned(),
        6 => "TCP".to_owned(),
        17 => "UDP".to_owned(),
        58 => "ICMPv6".to_owned(),
        other => format!("IP protocol {other}"),
    };
    let port = missed.port.map(|port| format!(" port {port}"));
    let port = port.unwrap_or_default();
    format!("{protocol}{port} to {}", missed.destination)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_described_by_protocol_and_port() {
        let missed = |protocol, port| Missed {
            packets: 1,
            destination: [10, 99, 0, 2].into(),
            protocol,
            port,
        };
        for (packet, text) in [
            (missed(17, Some(14760)), "UDP port 14760 to 10.99.0.2"),
            (missed(6, Some(22)), "TCP port 22 to 10.99.0.2"),
            (missed(1, None), "ICMP to 10.99.0.2"),
            (missed(47, None), "IP protocol 47 to 10.99.0.2"),
        ] {
            assert_eq!(describe(&packet), text);
        }
    }
}
