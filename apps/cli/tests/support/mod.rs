//! Helpers of the tests of agents: the path of the program, a network without delay, and waiting
//! with a timeout.

use hawser_testbed::topology::{Lab, network_egress, network_ingress};
use hawser_units::PathId;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Timeout of every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until `condition` returns a value.
pub(crate) fn wait<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn hawser() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_hawser")).to_owned()
}

/// Joins the devices of a path by a bridge without delay. GRO is needed to receive packets that XDP
/// redirects.
pub(crate) fn connect(lab: &Lab, path: PathId) {
    let (inward, outward, bridge) = (
        network_ingress(path),
        network_egress(path),
        format!("bridge{}", path.index()),
    );
    // The bridge may exist already when a device was recreated.
    let _ = lab
        .network()
        .ip(&format!("link add {bridge} type bridge mcast_snooping 0"));
    let batch = format!(
        "link set {inward} master {bridge} up\nlink set {outward} master {bridge} up\nlink set {bridge} up"
    );
    lab.network().ip(&batch).unwrap();
    for device in [inward, outward] {
        lab.network().offloads(&device, &[("gro", true)]).unwrap();
    }
}
