//! The routes to subscribers.

use hawser_io::interface::{self, Interface, LinkHeader};
use hawser_io::netlink;
use hawser_media_bpf::relay::Route;
use hawser_units::Instant;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// The time after which a route is looked up again, and that after which an unused one is removed.
const VALID: Duration = Duration::from_secs(1);
const KEPT: Duration = Duration::from_secs(10);

/// The name of the loopback device, by which packets to own addresses leave.
const LOOPBACK: &str = "lo";

/// The way to a subscriber.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// The kernel's program sends to it.
    Kernel(Route),
    /// The process has to: the subscriber is on this machine, where the kernel drops packets from an own address
    /// that no socket sent, or behind a device without an Ethernet header.
    Process,
}

/// The ways to the addresses of subscribers, as the kernel's own stack would choose them.
#[derive(Debug, Default)]
pub(crate) struct Routes(BTreeMap<IpAddr, Known>);

#[derive(Debug, Clone, Copy)]
struct Known {
    way: Option<Way>,
    found: Instant,
}

impl Routes {
    /// Returns the way to an address; `None` if there is none, or the link address of the next hop is not
    /// known yet. The kernel resolves it, because the sessions' messages are sent there too.
    pub(crate) fn find(&mut self, now: Instant, address: IpAddr) -> Option<Way> {
        if let Some(known) = self.0.get(&address)
            && now.saturating_since(known.found) < VALID
            && known.way.is_some()
        {
            return known.way;
        }
        let way = look_up(address)
            .inspect_err(|error| tracing::debug!(%address, "no route to a viewer: {error}"))
            .unwrap_or_default();
        self.0.insert(address, Known { way, found: now });
        way
    }

    /// Removes unused routes.
    pub(crate) fn forget(&mut self, now: Instant) {
        self.0
            .retain(|_, known| now.saturating_since(known.found) < KEPT);
    }
}

/// Returns whether packets of an interface have an Ethernet header, as the kernel's program expects.
pub(crate) fn has_ethernet_header(interface: &str) -> Result<bool, netlink::Error> {
    Ok(interface::link(interface)?.header == LinkHeader::Ethernet)
}

fn look_up(address: IpAddr) -> Result<Option<Way>, netlink::Error> {
    let found = interface::route(address, None)?;
    if found.interface == LOOPBACK || !has_ethernet_header(&found.interface)? {
        return Ok(Some(Way::Process));
    }
    let interface: Interface = interface::find(&found.interface)?;
    let mtu = found.mtu_bytes.unwrap_or(interface.mtu_bytes);
    let mac = interface::follow_neighbour(found.next_hop, &interface)?;
    Ok(mac.map(|next_hop_mac| {
        Way::Kernel(Route {
            ifindex: interface.index,
            mtu_bytes: mtu.min(interface.mtu_bytes).try_into().unwrap_or(u16::MAX),
            source_mac: interface.mac,
            next_hop_mac,
        })
    }))
}
