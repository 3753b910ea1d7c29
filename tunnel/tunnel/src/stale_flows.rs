//! Flows for which the kernel's connection tracking has decided something that does not hold any more,
//! because it was decided while their packets took another way. They keep it for as long as they have
//! packets.

use hawser_io::netlink::{TrackedFlow, forget_flows};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

/// Has the kernel forget the flows for which `is_stale` returns true. For the log, `flows` are
/// these flows in words, and `consequence` is what becomes of them otherwise.
pub(crate) fn forget(
    flows: &'static str,
    consequence: &'static str,
    is_stale: impl Fn(&TrackedFlow) -> bool + Send + 'static,
) {
    spawn_blocking(move || match forget_flows(is_stale) {
        Ok(0) => {}
        Ok(count) => info!(flows = count, "{flows} are translated from now on"),
        Err(error) => warn!("{flows} {consequence}: {error}"),
    });
}
