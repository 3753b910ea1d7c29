use crate::config::UplinkRule;
use anyhow::{Context, Result};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, recv,
    socket,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::warn;

/// An interface that can be used now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Uplink {
    pub(crate) interface: String,
    /// Its addresses, at most one of each family.
    pub(crate) ipv4: Option<IpAddr>,
    pub(crate) ipv6: Option<IpAddr>,
    /// Largest packet of the network behind it, if that is known to be less than the interface's.
    pub(crate) mtu: Option<u16>,
    pub(crate) cost: u8,
    pub(crate) monthly_cap: Option<u64>,
}

/// Changes come in groups: a device goes up, gets an address, then another one.
const SETTLE: Duration = Duration::from_millis(20);

/// How often the interfaces are looked at although nothing was heard.
const LOOK_ANYWAY: Duration = Duration::from_secs(2);

/// `linux/rtnetlink.h`: links and addresses.
const RTMGRP_LINK: u32 = 0x1;
const RTMGRP_IPV4_IFADDR: u32 = 0x10;
const RTMGRP_IPV6_IFADDR: u32 = 0x100;

/// Keeps a list of the interfaces that the rules name and that can be used.
pub(crate) fn watch(rules: Vec<UplinkRule>) -> Result<watch::Receiver<Vec<Uplink>>> {
    #[expect(
        deprecated,
        reason = "what replaces it is unsafe; this descriptor is open for as long as the registration"
    )]
    let changes = AsyncFd::new(subscribe().context("cannot hear of changes to interfaces")?)?;
    let (sender, receiver) = watch::channel(look(&rules)?);
    tokio::spawn(async move {
        while !sender.is_closed() {
            // That nothing was heard is as good a reason to look as that something was.
            let _ = timeout(LOOK_ANYWAY, changed(&changes)).await;
            match look(&rules) {
                Ok(found) => {
                    sender.send_if_modified(|known| std::mem::replace(known, found.clone()) != found);
                }
                Err(error) => warn!("{error:#}"),
            }
        }
    });
    Ok(receiver)
}

fn subscribe() -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    let groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, groups))?;
    Ok(socket)
}

/// Waits for a change. What it was the kernel is asked afterwards.
async fn changed(changes: &AsyncFd<OwnedFd>) -> Result<()> {
    let mut ready = changes.readable().await?;
    sleep(SETTLE).await;
    let mut message = [0; 8192];
    // An overflow is a change, too.
    while !matches!(
        recv(changes.get_ref().as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT),
        Err(nix::Error::EAGAIN) | Ok(0)
    ) {}
    ready.clear_ready();
    Ok(())
}

/// The interfaces that are up, have a carrier and an address, and are named by a rule, of which the first counts.
fn look(rules: &[UplinkRule]) -> Result<Vec<Uplink>> {
    let usable = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    let mut uplinks = BTreeMap::new();
    for entry in getifaddrs().context("cannot list the interfaces")? {
        let rule = rules.iter().find(|rule| rule.matches(&entry.interface_name));
        let (Some(rule), Some(address)) = (rule, entry.address.as_ref().and_then(ip)) else { continue };
        let wanted = rule.address.is_none_or(|wanted| wanted == address);
        if !entry.flags.contains(usable) || !wanted || !is_routable(address) {
            continue;
        }
        let uplink = uplinks.entry(entry.interface_name.clone()).or_insert_with(|| Uplink {
            interface: entry.interface_name.clone(),
            ipv4: None,
            ipv6: None,
            mtu: rule.mtu,
            cost: rule.cost,
            monthly_cap: rule.monthly_cap,
        });
        let place = if address.is_ipv4() { &mut uplink.ipv4 } else { &mut uplink.ipv6 };
        place.get_or_insert(address);
    }
    Ok(uplinks.into_values().collect())
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let ipv4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
    ipv4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))
}

fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_link_local() && !address.is_loopback(),
        IpAddr::V6(address) => !address.is_unicast_link_local() && !address.is_loopback(),
    }
}
