//! Helpers of the tests of agents: the path of the program, a network without delay, and waiting with a deadline.

use hawser_lab::topology::{Lab, network_egress, network_ingress};
use hawser_units::PathId;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until there is what is hoped for.
pub(crate) fn wait<T>(what: &str, mut hoped: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = hoped() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} never came");
        thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn hawser() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_hawser")).to_owned()
}

/// Joins the devices of a path by a bridge, which delivers everything at once. GRO makes them accept what XDP redirects.
pub(crate) fn connect(lab: &Lab, path: PathId) {
    let (inward, outward, bridge) = (
        network_ingress(path),
        network_egress(path),
        format!("bridge{}", path.index()),
    );
    // The bridge may be there already, when a device comes back.
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
