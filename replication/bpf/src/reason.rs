use crate::skeleton::dedup::types::reason as Code;
use hawser_kernel::table::{Table, TableError};

/// The reason that a frame was not replicated or not passed on: a row of the programs' `reasons`
/// table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason {
    /// The row in the table.
    pub index: u32,
    /// The name in metrics and logs.
    pub name: &'static str,
    /// The description, for people.
    pub help: &'static str,
}

macro_rules! reasons {
    ($($code:ident, $name:literal, $help:literal;)*) => {
        /// Every reason, in the order of the table.
        pub const REASONS: &[Reason] = &[$(Reason { index: Code::$code.0, name: $name, help: $help }),*];
    };
}

reasons! {
    PASSED_OVERSIZE, "passed_oversize", "larger than the MTU of every path allows with the outer headers; the kernel forwarded it or sent an ICMP error";
    PASSED_FRAGMENT, "passed_fragment", "an IP fragment of a flow that is selected by ports; the kernel forwarded it";
    PASSED_TTL, "passed_ttl", "its time to live expired here; the kernel sent an ICMP error";
    PASSED_VLAN, "passed_vlan", "a VLAN-tagged frame; the kernel handled it";
    PASSED_MALFORMED, "passed_malformed", "not a complete IP packet, or on the replicas' port and too short for a shim; the kernel handled it";
    PASSED_NOT_IDENTIFIABLE, "passed_not_identifiable", "IPv6, IPv4 ID 0 or a fragment in a transparent flow: the receiver could not identify its copies";
    PASSED_GSO, "passed_gso", "a GSO packet, a packet in a packet, a transparent flow, a tag that covers the whole packet or an IPv6 path from a local sender, and no loop device to prepare it";
    PASSED_NO_ROOM, "passed_no_room", "no room in the buffer for the headers, and no memory for a larger one; the kernel forwarded it";
    PASSED_NO_PATH, "passed_no_path", "none of the policy's paths is configured; the kernel forwarded it";
    PASSED_UNKNOWN_VERSION, "passed_unknown_version", "on the replicas' port, but with another version; the kernel handled it";
    PASSED_OUTER_FRAGMENT, "passed_outer_fragment", "the first fragment of a replica; the kernel handled it";
    PASSED_NOT_ADDRESSED, "passed_not_addressed", "a replica to an address that no path here has; the kernel handled it";
    DROPPED_UNKNOWN_FLOW, "dropped_unknown_flow", "a replica of a flow that is not configured here";
    DROPPED_TAG, "dropped_tag", "a replica with a wrong or missing authentication tag: altered, forged, reflected, or the nodes' keys or names differ";
    DROPPED_MALFORMED, "dropped_malformed", "a replica whose lengths are inconsistent";
    DROPPED_ECN, "dropped_ecn", "a congestion mark on a replica whose inner packet is not ECN-capable (RFC 6040)";
    DROPPED_PATH_NOT_CONFIGURED, "dropped_path_not_configured", "a copy on a path without addresses";
    DROPPED_NO_ROOM, "dropped_no_room", "no room in the buffer for the headers, and no memory for a larger one";
    DROPPED_CLONE_FAILED, "dropped_clone_failed", "the kernel could not clone a copy, or its device was gone or down";
    PASSED_LOCAL, "passed_local", "to an address of this node; the kernel delivered it";
    PASSED_NOT_UNICAST, "passed_not_unicast", "to or from an address that is not unicast: multicast, broadcast, unspecified; the kernel handled it";
    PASSED_LINK_LOCAL, "passed_link_local", "to or from a link-local or loopback address, or neighbour discovery; the kernel handled it";
    PASSED_FOREIGN_MAC, "passed_foreign_mac", "a frame to a link-layer address other than the interface's; the kernel handled it";
    PASSED_REPLICA, "passed_replica", "a replica in transit, of a flow that is selected without ports; the kernel forwarded it";
    PASSED_MANAGEMENT, "passed_management", "from a management port of this node, to a controller, a name server or a DHCP port, or a measurement of a path; the kernel sent it";
    DROPPED_PARTIAL_TAG, "dropped_partial_tag", "a replica whose tag does not cover the whole packet, as this node requires";
    DROPPED_OUTDATED, "dropped_outdated", "a tagged replica older than the window remembers, or of a session that its sender has ended";
    DROPPED_EXPIRED, "dropped_expired", "a tagged replica that was sent too long ago";
    DROPPED_BY_QUEUE, "dropped_by_queue", "a copy that the queue of its device did not take, which was full, or whose device was down";
    PASSED_EXTENSIONS, "passed_extensions", "IPv6 with so many extension headers that the protocol, which selects the flow, was not found; the kernel forwarded it";
    PASSED_REFUSED, "passed_refused", "the kernel does not make room for headers in such a packet, for example one of more than 16 kB in one piece; the kernel forwarded it";
    DROPPED_REFUSED, "dropped_refused", "the kernel does not change the headers of such a packet";
}

/// Returns the programs' counters by reason, summed over CPUs, in the order of [`REASONS`].
pub(crate) fn reasons(table: &impl Table) -> Result<Vec<(Reason, u64)>, TableError> {
    REASONS
        .iter()
        .map(|reason| Ok((*reason, table.per_cpu::<u64>(reason.index)?.iter().sum())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_has_a_name() {
        assert_eq!(REASONS.len() as u32, Code::REASONS.0);
        for (index, reason) in REASONS.iter().enumerate() {
            assert_eq!(reason.index, index as u32, "{}", reason.name);
        }
    }
}
