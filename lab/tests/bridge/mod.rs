use hawser_lab::topology::{Lab, network_egress, network_ingress};

/// Connects the two devices of every path with a bridge: a network without delay or loss.
pub(crate) fn bridge_paths(lab: &Lab) {
    for path in lab.paths() {
        let (inward, outward, bridge) = (
            network_ingress(path),
            network_egress(path),
            format!("bridge{}", path.index()),
        );
        let batch = format!(
            "link add {bridge} type bridge mcast_snooping 0
link set {inward} master {bridge}
link set {outward} master {bridge}
link set {bridge} up"
        );
        lab.network().ip(&batch).unwrap();
    }
}
