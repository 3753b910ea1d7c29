//! Helpers of the tests of agents: the programs under test, a network without delay, and waiting
//! with a timeout.

pub(crate) mod program;

pub(crate) use program::hawser;

use hawser_testbed::topology::{Lab, network_egress, network_ingress};
use hawser_units::PathId;
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

/// Joins the devices of a path by a bridge without delay. GRO is needed to receive packets that XDP
/// redirects.
pub(crate) fn connect(lab: &Lab, path: PathId) {
    lab.bridge(path).unwrap();
    for device in [network_ingress(path), network_egress(path)] {
        lab.network().offloads(&device, &[("gro", true)]).unwrap();
    }
}
