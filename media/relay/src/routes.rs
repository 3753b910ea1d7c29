//! The routes to subscribers.

use hawser_io::interface::{self, Interface};
use hawser_media_bpf::relay::Route;
use hawser_units::Instant;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The time after which a route is looked up again, and that after which an unused one is removed.
const VALID: Duration = Duration::from_secs(1);
const KEPT: Duration = Duration::from_secs(10);

/// The routes to the addresses of subscribers, as the kernel's own stack would choose them.
#[derive(Debug, Default)]
pub(crate) struct Routes(BTreeMap<IpAddr, Known>);

#[derive(Debug, Clone, Copy)]
struct Known {
    route: Option<Route>,
    found: Instant,
}

impl Routes {
    /// Returns the route to an address; `None` if there is none, or the link address of the next hop is not
    /// known yet. The kernel resolves it, because the sessions' messages are sent there too.
    pub(crate) fn find(&mut self, now: Instant, address: IpAddr) -> Option<Route> {
        if let Some(known) = self.0.get(&address)
            && now.saturating_since(known.found) < VALID
            && known.route.is_some()
        {
            return known.route;
        }
        let route = look_up(address)
            .inspect_err(|error| tracing::debug!(%address, "no route to a viewer: {error}"))
            .unwrap_or_default();
        self.0.insert(address, Known { route, found: now });
        route
    }

    /// Removes unused routes.
    pub(crate) fn forget(&mut self, now: Instant) {
        self.0
            .retain(|_, known| now.saturating_since(known.found) < KEPT);
    }
}

fn look_up(address: IpAddr) -> Result<Option<Route>, hawser_io::netlink::Error> {
    let found = interface::route(address, None)?;
    let interface: Interface = interface::find(&found.interface)?;
    let mtu = found.mtu_bytes.unwrap_or(interface.mtu_bytes);
    let mac = interface::follow_neighbour(found.next_hop, &interface)?;
    Ok(mac.map(|next_hop_mac| Route {
        ifindex: interface.index,
        mtu_bytes: mtu.min(interface.mtu_bytes).try_into().unwrap_or(u16::MAX),
        source_mac: interface.mac,
        next_hop_mac,
    }))
}
