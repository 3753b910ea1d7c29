use super::{Lab, network_egress, network_ingress};
use crate::netns;
use hawser_units::PathId;

impl Lab {
    /// Joins the devices of every path, see [`Lab::bridge`].
    pub fn bridge_paths(&self) -> Result<(), netns::Error> {
        self.paths().try_for_each(|path| self.bridge(path))
    }

    /// As [`Lab::bridge`], with GRO, which a veth device needs to receive frames that XDP redirects at
    /// its other end.
    pub fn bridge_for_xdp(&self, path: PathId) -> Result<(), netns::Error> {
        self.bridge(path)?;
        [network_ingress(path), network_egress(path)]
            .iter()
            .try_for_each(|device| self.network().offloads(device, &[("gro", true)]))
    }

    /// Joins the two devices of a path in the network by a bridge, `bridge0` to `bridge7`: a path
    /// without delay or loss. The bridge may exist already when a device was recreated.
    pub fn bridge(&self, path: PathId) -> Result<(), netns::Error> {
        let (inward, outward, bridge) = (
            network_ingress(path),
            network_egress(path),
            format!("bridge{}", path.index()),
        );
        let _ = self
            .network()
            .ip(&format!("link add {bridge} type bridge mcast_snooping 0"));
        self.network().ip(&format!(
            "link set {inward} master {bridge} up\nlink set {outward} master {bridge} up\n\
             link set {bridge} up"
        ))
    }
}
