//! The interfaces of this machine, as the kernel reports them.

use crate::netlink::{Changes, LINKS_AND_ADDRESSES};
use anyhow::{Context, Result};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{SockProtocol, SockaddrStorage};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

/// The time to wait for further changes: a device goes up, gets an address, then another one.
const SETTLE: Duration = Duration::from_millis(20);

/// The interval of checks without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Returns a channel with the result of `look`, which is called again after each change of an
/// interface.
pub(crate) fn watch<T: Clone + PartialEq + Send + Sync + 'static>(
    look: impl Fn() -> Result<T> + Send + Sync + 'static,
) -> Result<watch::Receiver<T>> {
    let changes = Changes::subscribe(SockProtocol::NetlinkRoute, LINKS_AND_ADDRESSES)
        .context("cannot subscribe to changes of interfaces")?;
    let (sender, receiver) = watch::channel(look()?);
    tokio::spawn(async move {
        while !sender.is_closed() {
            // A timeout is as good a reason to check as a notification.
            let _ = timeout(POLL_INTERVAL, changes.next(SETTLE)).await;
            match look() {
                Ok(found) => {
                    sender
                        .send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
                }
                Err(error) => warn!("{error:#}"),
            }
        }
    });
    Ok(receiver)
}

/// The networks that this machine is in, apart from the tunnel's own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Networks(BTreeSet<Network>);

/// An address of an interface and its network mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Network {
    address: IpAddr,
    mask: IpAddr,
}

impl Networks {
    /// Watches the networks of all interfaces except `tun`.
    pub(crate) fn watch(tun: &str) -> Result<watch::Receiver<Networks>> {
        let tun = tun.to_owned();
        watch(move || {
            let entries = getifaddrs().context("cannot list the interfaces")?;
            let others = entries.filter(|entry| entry.interface_name != tun);
            let networks = others.filter_map(|entry| {
                let address = ip(entry.address.as_ref()?)?;
                Some(Network {
                    address,
                    mask: ip(entry.netmask.as_ref()?)?,
                })
            });
            Ok(Networks(networks.collect()))
        })
    }

    #[cfg(test)]
    pub(crate) fn of(networks: &[(&str, &str)]) -> Networks {
        let ip = |text: &str| text.parse().unwrap();
        Networks(
            networks
                .iter()
                .map(|(address, mask)| Network {
                    address: ip(address),
                    mask: ip(mask),
                })
                .collect(),
        )
    }

    /// Returns whether this machine receives packets to `address`: its own addresses, and the
    /// broadcast and anycast addresses of its networks.
    pub(crate) fn receives(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.delivers(address))
    }

    /// Returns whether `address` is in one of the networks.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

impl Network {
    /// Returns whether `to` is the machine's own address, the IPv4 broadcast address, or the first
    /// address of the network: subnet-router anycast (RFC 4291, section 2.6.1) and the former IPv4
    /// broadcast address.
    fn delivers(&self, to: IpAddr) -> bool {
        let broadcast = match (self.address, self.mask) {
            (IpAddr::V4(own), IpAddr::V4(mask)) => [(own | !mask).into(), (own & mask).into()],
            (IpAddr::V6(own), IpAddr::V6(mask)) => [(own & mask).into(); 2],
            _ => [self.address; 2],
        };
        to == self.address || broadcast.contains(&to)
    }

    fn contains(&self, address: IpAddr) -> bool {
        match (self.address, self.mask, address) {
            (IpAddr::V4(own), IpAddr::V4(mask), IpAddr::V4(other)) => own & mask == other & mask,
            (IpAddr::V6(own), IpAddr::V6(mask), IpAddr::V6(other)) => own & mask == other & mask,
            _ => false,
        }
    }
}

/// Converts a socket address of the kernel to an IP address.
fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let ipv4 = address
        .as_sockaddr_in()
        .map(|address| IpAddr::from(address.ip()));
    ipv4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
}
