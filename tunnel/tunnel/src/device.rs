//! The TUN device: its addresses, MTU and routes, and the packets read from and written to it.

mod configured;

use crate::config::Prefix;
use anyhow::{Context, Result, ensure};
use configured::{Configured, KeptDevice, MIN_IPV6_MTU, WhileComplete};
use hawser_device::{Buffer, Tun};
use hawser_io::kept::{Item, Rules, Watch};
use hawser_io::netlink::{Address, KERNEL_METRIC, KERNEL_PROTOCOL, LinkChange, Route};
use hawser_io::sysctl;
use hawser_xnc::frame::PacketBuffer;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Packets read from the kernel at once.
pub(crate) type Batch = Vec<PacketBuffer>;

/// The largest number of packets read before the caller gets a turn.
const BATCH: usize = 128;

/// The transmit queue of a server's device, in packets: 30 ms at 800 Mbit/s.
const SERVER_QUEUE: u32 = 2000;

/// A TUN device that is up.
pub(crate) struct Device {
    tun: AsyncFd<Tun>,
    /// Packets from the kernel whose length did not match their headers.
    malformed: AtomicU64,
    /// Packets that the kernel did not accept.
    rejected: AtomicU64,
    without_session: AtomicU64,
    /// Packets that waited in sessions when these ended.
    with_session: AtomicU64,
    /// Whether IPv6 is enabled on the host.
    has_ipv6: bool,
    configured: Mutex<Configured>,
}

impl Device {
    /// Creates the device with `addresses` and their prefix lengths. Must be called within a Tokio
    /// runtime.
    pub(crate) fn create(name: &str, mtu: u16, addresses: &[(IpAddr, u8)]) -> Result<Device> {
        let tun = Tun::create(name)?;
        if !tun.has_udp_gso() {
            tracing::info!(
                "the kernel does not support UDP segmentation offload on TUN devices, which needs Linux 6.2"
            );
        }
        #[expect(
            deprecated,
            reason = "the replacement is unsafe; this descriptor stays open as long as the registration"
        )]
        let tun = AsyncFd::new(tun).context("cannot register the TUN device with the runtime")?;
        let has_ipv6 = has_ipv6(name);
        let device = Device {
            tun,
            malformed: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            without_session: AtomicU64::new(0),
            with_session: AtomicU64::new(0),
            has_ipv6,
            configured: Mutex::new(Configured::of(name, mtu, has_ipv6)),
        };
        device.set_up(mtu, addresses)?;
        Ok(device)
    }

    /// Brings the device up with its first addresses, and the routes that the kernel adds with them.
    fn set_up(&self, mtu: u16, addresses: &[(IpAddr, u8)]) -> Result<()> {
        let properties = LinkChange {
            mtu_bytes: Some(mtu.into()),
            no_generated_addresses: self.has_ipv6,
            no_multicast: true,
            ..LinkChange::default()
        };
        properties.apply(self.name())?;
        // The kernel sets an interface up before it looks at its addresses.
        let up = LinkChange {
            up: true,
            ..LinkChange::default()
        };
        up.apply(self.name())?;
        let networks = addresses
            .iter()
            .filter_map(|address| self.network(*address));
        let routes = networks.collect();
        let addresses = addresses.iter().map(|address| self.address(*address));
        let mut configured = self.configured.lock();
        Ok(configured.replace(addresses.collect(), routes)?)
    }

    /// Returns the route to the network of an address that the kernel adds with it.
    fn network(&self, (address, prefix_length): (IpAddr, u8)) -> Option<Route> {
        let network = Prefix::around(address, prefix_length);
        let route = Route::new(network.address(0)?, prefix_length, self.name());
        (network != Prefix::host(address)).then_some(Route {
            source: address.is_ipv4().then_some(address),
            metric: address.is_ipv6().then_some(KERNEL_METRIC),
            protocol: Some(KERNEL_PROTOCOL),
            ..route
        })
    }

    fn name(&self) -> &str {
        self.tun.get_ref().name()
    }

    fn address(&self, (address, prefix_length): (IpAddr, u8)) -> Address {
        Address {
            address,
            prefix_length,
            interface: self.name().to_owned(),
        }
    }

    /// Replaces the addresses of the device and its routes. The addresses are set without a network,
    /// to which the kernel would add a route. Each route is in the routing table of its number or in
    /// the main one. Existing routes to the same destinations stay, with a lower preference: uplinks
    /// need theirs, and all other traffic uses them again when the device is removed.
    pub(crate) fn configure(
        &self,
        addresses: &[IpAddr],
        routes: &[(Prefix, Option<u32>)],
    ) -> Result<()> {
        let host = |address: &IpAddr| self.address((*address, Prefix::host(*address).length()));
        if !self.has_ipv6 && addresses.iter().any(IpAddr::is_ipv6) {
            tracing::warn!("no IPv6 inside the tunnel: it is disabled on this host");
        }
        let routes = routes.iter().map(|route| self.route(*route));
        let addresses = addresses.iter().map(host);
        let mut configured = self.configured.lock();
        Ok(configured.replace(addresses.collect(), routes.collect())?)
    }

    /// Restores the addresses, routes, state and MTU of the device whenever another program changes
    /// them, as long as the device and the returned value exist. Also examines the items that `more`
    /// returns, while nothing of the device is missing.
    pub(crate) fn watch<M>(device: &Arc<Device>, more: M) -> Result<Watch>
    where
        M: Fn() -> Vec<Box<dyn Item>> + Send + 'static,
    {
        // The thread must not keep the device open.
        let device = Arc::downgrade(device);
        let items = move |_: &mut Rules| -> Vec<Box<dyn Item>> {
            let Some(device) = device.upgrade() else {
                return Vec::new();
            };
            let complete = |item| WhileComplete(Arc::clone(&device), item);
            let more = more().into_iter().map(complete);
            let mut items: Vec<Box<dyn Item>> = vec![Box::new(KeptDevice(Arc::clone(&device)))];
            items.extend(more.map(|item| Box::new(item) as Box<dyn Item>));
            items
        };
        Watch::start(items).context("cannot watch addresses and routes")
    }

    /// Configures the device for a server: sets its interface group, which firewall rules can
    /// match, and a queue long enough that packets of one client do not displace those of others
    /// before they are read.
    pub(crate) fn configure_for_server(&self, group: u32) -> Result<()> {
        let change = LinkChange {
            group: Some(group),
            queue_packets: Some(SERVER_QUEUE),
            ..LinkChange::default()
        };
        Ok(change.apply(self.name())?)
    }

    /// Sets the MTU of the device. The kernel reports it to senders of larger packets.
    pub(crate) fn set_mtu(&self, mtu: u16) -> Result<()> {
        let mut configured = self.configured.lock();
        let took_ipv6 = configured.takes_ipv6();
        configured.set_mtu(mtu)?;
        if took_ipv6 && !configured.takes_ipv6() {
            tracing::warn!(
                mtu,
                "no IPv6 inside the tunnel: it needs an MTU of {MIN_IPV6_MTU} bytes"
            );
        }
        Ok(())
    }

    /// Adds routes to clients' addresses with the given MTU, in bytes, and deletes the routes of
    /// addresses without an MTU.
    pub(crate) fn route_clients(&self, changes: &[(IpAddr, Option<u16>)]) -> Result<()> {
        let route = |(address, mtu): &(IpAddr, Option<u16>)| Route {
            mtu_bytes: mtu.map(u32::from),
            is_mtu_locked: mtu.is_some(),
            ..Route::new(*address, Prefix::host(*address).length(), self.name())
        };
        let mut configured = self.configured.lock();
        let mut errors = Vec::new();
        for change in changes {
            let (address, route) = (change.0, route(change));
            match change.1 {
                Some(_) => errors.extend(configured.set_client(address, route).err()),
                None => configured.remove_client(address, &route),
            }
        }
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        ensure!(errors.is_empty(), "{}", errors.join("; "));
        Ok(())
    }

    fn route(&self, (prefix, table): (Prefix, Option<u32>)) -> Route {
        let first = prefix.address(0).expect("a prefix has a first address");
        Route {
            table,
            metric: (!prefix.is_ipv4()).then_some(1),
            ..Route::new(first, prefix.length(), self.name())
        }
    }

    /// Lets the kernel accept packets from the device whose sources are not routed into it by the
    /// main table, which a strict reverse path filter rejects.
    pub(crate) fn accept_other_routes(&self) -> Result<()> {
        sysctl::set_reverse_path_filter(self.name(), sysctl::LOOSE)
            .context("cannot make the reverse path filter of the TUN device loose")
    }

    /// Reads packets from the kernel, waiting until there is at least one.
    ///
    /// # Errors
    /// If the device has been removed, or cannot be read for another reason.
    pub(crate) async fn read(&self, buffer: &mut Buffer) -> Result<Batch> {
        let mut packets = Vec::new();
        loop {
            // The kernel reports the removal of the device as an error alone.
            let mut ready = self.tun.ready(Interest::READABLE | Interest::ERROR).await?;
            while packets.len() < BATCH {
                match self.tun.get_ref().read(buffer, &mut packets) {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => {
                        self.malformed.fetch_add(1, Relaxed);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        ready.clear_ready();
                        break;
                    }
                    Err(error) => return Err(error).context("cannot read from the TUN device"),
                }
            }
            if !packets.is_empty() {
                return Ok(packets);
            }
        }
    }

    /// Writes packets to the kernel.
    pub(crate) fn write<P: AsRef<[u8]>>(&self, packets: &[P]) {
        let rejected = match self.tun.get_ref().write(packets) {
            Ok(written) => written.rejected,
            Err(_) => packets.len() as u64,
        };
        self.rejected.fetch_add(rejected, Relaxed);
    }

    /// Counts packets that were read while there was no session.
    pub(crate) fn count_without_session(&self, packets: usize) {
        self.without_session.fetch_add(packets as u64, Relaxed);
    }

    /// Counts packets that waited in a session when it ended.
    pub(crate) fn count_ended(&self, packets: usize) {
        self.with_session.fetch_add(packets as u64, Relaxed);
    }

    /// Returns the packets dropped here by reason, without reasons that did not occur.
    pub(crate) fn drop_counts(&self) -> BTreeMap<String, u64> {
        let counts = [
            ("device_malformed", &self.malformed),
            ("device_rejected", &self.rejected),
            ("no_session", &self.without_session),
            ("session_ended", &self.with_session),
        ];
        let counts = counts.map(|(reason, count)| (reason.to_owned(), count.load(Relaxed)));
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// Returns whether IPv6 is enabled on a device in the thread's network namespace.
fn has_ipv6(name: &str) -> bool {
    // /proc/sys/net shows the thread's network namespace.
    let disabled = fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"));
    disabled.is_ok_and(|disabled| disabled.trim() == "0")
}
