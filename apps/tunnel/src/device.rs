//! The TUN device: its addresses, MTU and routes, and the packets read from and written to it.

use crate::config::Prefix;
use anyhow::{Context, Result, ensure};
use hawser_io::tun::{Buffer, Tun};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tokio::io::unix::AsyncFd;

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

/// Batches of `ip` commands that restore the IPv6 configuration, which the kernel removes while the
/// MTU is too small for IPv6.
#[derive(Debug)]
struct Configured {
    ipv6_addresses: String,
    ipv6_routes: String,
    takes_ipv6: bool,
}

/// The smallest MTU for IPv6 (RFC 8200, section 5), in bytes.
const MIN_IPV6_MTU: u16 = 1280;

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
        // /proc/sys/net shows the thread's network namespace.
        let disabled = fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"));
        let has_ipv6 = disabled.is_ok_and(|disabled| disabled.trim() == "0");
        let device = Device {
            tun,
            malformed: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            without_session: AtomicU64::new(0),
            with_session: AtomicU64::new(0),
            has_ipv6,
            configured: Mutex::new(Configured {
                ipv6_addresses: String::new(),
                ipv6_routes: String::new(),
                takes_ipv6: has_ipv6,
            }),
        };
        let no_own_address = if has_ipv6 { "addrgenmode none" } else { "" };
        let mut batch = format!("link set {name} {no_own_address} mtu {mtu} up\n");
        for address in addresses {
            batch += &device.address(*address);
        }
        ip(&batch)?;
        Ok(device)
    }

    fn name(&self) -> &str {
        self.tun.get_ref().name()
    }

    fn address(&self, (address, length): (IpAddr, u8)) -> String {
        // The device has no neighbours, so duplicate address detection is not needed.
        let no_detection = if address.is_ipv6() { " nodad" } else { "" };
        format!(
            "address replace {address}/{length} dev {}{no_detection}\n",
            self.name()
        )
    }

    /// Replaces the addresses of the device.
    pub(crate) fn set_addresses(&self, addresses: &[(IpAddr, u8)]) -> Result<()> {
        let of_family = |is_ipv4: bool| -> String {
            let addresses = addresses
                .iter()
                .filter(|(address, _)| address.is_ipv4() == is_ipv4);
            addresses.map(|address| self.address(*address)).collect()
        };
        let mut configured = self.configured.lock();
        configured.ipv6_addresses = of_family(false);
        configured.ipv6_routes.clear();
        let mut batch = format!("address flush dev {}\n{}", self.name(), of_family(true));
        if configured.takes_ipv6 {
            batch += &configured.ipv6_addresses;
        } else if !self.has_ipv6 && !configured.ipv6_addresses.is_empty() {
            tracing::warn!("no IPv6 inside the tunnel: it is disabled on this host");
        }
        ip(&batch)
    }

    /// Configures the device for a server: sets its interface group, which firewall rules can
    /// match, and a queue long enough that packets of one client do not displace those of others
    /// before they are read.
    pub(crate) fn configure_for_server(&self, group: u32) -> Result<()> {
        ip(&format!(
            "link set {} group {group} txqueuelen {SERVER_QUEUE}\n",
            self.name()
        ))
    }

    /// Sets the MTU of the device. The kernel reports it to senders of larger packets.
    pub(crate) fn set_mtu(&self, mtu: u16) -> Result<()> {
        let mut batch = format!("link set {} mtu {mtu}\n", self.name());
        let mut configured = self.configured.lock();
        let takes_ipv6 = self.has_ipv6 && mtu >= MIN_IPV6_MTU;
        let took_ipv6 = std::mem::replace(&mut configured.takes_ipv6, takes_ipv6);
        if takes_ipv6 && !took_ipv6 {
            batch += &configured.ipv6_addresses;
            batch += &configured.ipv6_routes;
        } else if took_ipv6 && !takes_ipv6 {
            tracing::warn!(
                mtu,
                "no IPv6 inside the tunnel: it needs an MTU of {MIN_IPV6_MTU} bytes"
            );
        }
        ip(&batch)
    }

    /// Adds routes to clients' addresses with the given MTU, in bytes, and deletes the routes of
    /// addresses without an MTU.
    pub(crate) fn route_clients(&self, changes: &[(IpAddr, Option<u16>)]) -> Result<()> {
        let line = |(address, mtu): &(IpAddr, Option<u16>)| {
            let destination = format!(
                "{address}/{} dev {}",
                if address.is_ipv4() { 32 } else { 128 },
                self.name()
            );
            mtu.map_or(format!("route delete {destination}\n"), |mtu| {
                format!("route replace {destination} mtu lock {mtu}\n")
            })
        };
        let (set, gone): (Vec<_>, Vec<_>) = changes.iter().partition(|(_, mtu)| mtu.is_some());
        let batch = |changes: Vec<&(IpAddr, Option<u16>)>| {
            changes.into_iter().map(line).collect::<String>()
        };
        // A missing route was removed together with the device's addresses.
        let _ = ip_each(&batch(gone));
        ip_each(&batch(set))
    }

    /// Routes `destinations` into the device. Existing routes to the same destinations stay, with a
    /// lower preference: uplinks need theirs, and all other traffic uses them again when the device
    /// is removed.
    pub(crate) fn set_routes(&self, destinations: &[Prefix]) -> Result<()> {
        let mut configured = self.configured.lock();
        let (ipv4, ipv6): (Vec<&Prefix>, Vec<&Prefix>) =
            destinations.iter().partition(|prefix| prefix.is_ipv4());
        let ours = self.name();
        configured.ipv6_routes = ipv6
            .iter()
            .map(|prefix| format!("route replace {prefix} dev {ours} metric 1\n"))
            .collect();
        // No IPv4 metric is lower than the default metric of a route, so ours has to come before
        // it.
        ipv4.iter()
            .for_each(|prefix| self.delete_route(&prefix.to_string()));
        let mut batch: String = ipv4
            .iter()
            .map(|prefix| format!("route prepend {prefix} dev {ours}\n"))
            .collect();
        if configured.takes_ipv6 {
            batch += &configured.ipv6_routes;
        }
        ip(&batch)
    }

    /// Deletes a route if it exists.
    pub(crate) fn delete_route(&self, destination: &str) {
        // The route may have been removed together with the device's addresses.
        let _ = ip(&format!("route delete {destination} dev {}\n", self.name()));
    }

    /// Reads packets from the kernel, waiting until there is at least one.
    pub(crate) async fn read(&self, buffer: &mut Buffer) -> Result<Vec<Vec<u8>>> {
        let mut packets = Vec::new();
        loop {
            let mut ready = self.tun.readable().await?;
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

/// Runs a batch of iproute2 commands, one a line without the leading `ip`.
fn ip(batch: &str) -> Result<()> {
    run_with_input("ip", &["-batch", "-"], "iproute2", batch)
}

/// Runs a batch in which a failing command does not stop those after it. An empty batch has no
/// effect.
fn ip_each(batch: &str) -> Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    run_with_input("ip", &["-force", "-batch", "-"], "iproute2", batch)
}

/// Runs a program until it exits. Its error output becomes the error.
pub(crate) fn run_with_input(
    program: &str,
    arguments: &[&str],
    package: &str,
    input: &str,
) -> Result<()> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let child = command.spawn();
    let mut child =
        child.with_context(|| format!("cannot run `{program}`: is {package} installed?"))?;
    // If the program exits before it has read everything, its own error message explains why.
    let _ = child
        .stdin
        .take()
        .expect("stdin is piped")
        .write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "`{program}`: {}; its input was:\n{input}",
        message.trim()
    );
    Ok(())
}
