//! The TUN device: its address, its MTU, its routes, and the packets that go in and out.

use crate::config::Prefix;
use anyhow::{Context, Result, ensure};
use hawser_io::tun::{Buffer, Tun};
use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::io::unix::AsyncFd;

/// Packets that are taken from the device before somebody else gets a turn.
const BATCH: usize = 128;

/// Packets that wait in a server's device: 30 ms at 800 Mbit/s.
const SERVER_QUEUE: u32 = 2000;

/// A TUN device that is up.
pub(crate) struct Device {
    tun: AsyncFd<Tun>,
    /// Packets that the kernel handed over and that did not agree with their headers.
    malformed: AtomicU64,
    /// Packets that the kernel did not take.
    refused: AtomicU64,
    without_session: AtomicU64,
    /// What waited in sessions when they ended.
    with_session: AtomicU64,
    /// Whether the host has IPv6 at all.
    has_ipv6: bool,
    configured: Mutex<Configured>,
}

/// What the kernel forgets of IPv6 while the device is too narrow for it, as batches.
#[derive(Debug)]
struct Configured {
    ipv6_addresses: String,
    ipv6_routes: String,
    takes_ipv6: bool,
}

/// What IPv6 needs (RFC 8200, section 5), bytes.
const LEAST_IPV6_MTU: u16 = 1280;

impl Device {
    /// Makes the device, with `addresses` and the lengths of their prefixes. Needs a runtime.
    pub(crate) fn create(name: &str, mtu: u16, addresses: &[(IpAddr, u8)]) -> Result<Device> {
        let tun = Tun::create(name)?;
        if !tun.has_udp_trains() {
            tracing::info!(
                "the kernel has no segmentation offload for UDP on TUN devices: it has since Linux 6.2"
            );
        }
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe; this descriptor is open for as long as the registration"
        )]
        let tun = AsyncFd::new(tun).context("cannot watch the device")?;
        // /proc/sys/net is that of the thread's namespace.
        let disabled = fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"));
        let has_ipv6 = disabled.is_ok_and(|disabled| disabled.trim() == "0");
        let device = Device {
            tun,
            malformed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
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
        // Duplicates of an address on a device without neighbours need not be looked for.
        let no_detection = if address.is_ipv6() { " nodad" } else { "" };
        format!(
            "address replace {address}/{length} dev {}{no_detection}\n",
            self.name()
        )
    }

    /// Gives the device these addresses in place of those that it has.
    pub(crate) fn set_addresses(&self, addresses: &[(IpAddr, u8)]) -> Result<()> {
        let of_family = |is_ipv4: bool| -> String {
            let addresses = addresses
                .iter()
                .filter(|(address, _)| address.is_ipv4() == is_ipv4);
            addresses.map(|address| self.address(*address)).collect()
        };
        let mut configured = self.configured();
        configured.ipv6_addresses = of_family(false);
        configured.ipv6_routes.clear();
        let mut batch = format!("address flush dev {}\n{}", self.name(), of_family(true));
        if configured.takes_ipv6 {
            batch += &configured.ipv6_addresses;
        } else if !self.has_ipv6 && !configured.ipv6_addresses.is_empty() {
            tracing::warn!("no IPv6 inside: it is switched off on this host");
        }
        ip(&batch)
    }

    /// Makes the device a server's: in a group, which rules of a firewall may name, and with a queue that is long enough
    /// for what one client gets not to crowd out what others get before it is read.
    pub(crate) fn serve(&self, group: u32) -> Result<()> {
        ip(&format!(
            "link set {} group {group} txqueuelen {SERVER_QUEUE}\n",
            self.name()
        ))
    }

    /// Limits the packets that the kernel hands over, which it tells senders of larger ones.
    pub(crate) fn set_mtu(&self, mtu: u16) -> Result<()> {
        let mut batch = format!("link set {} mtu {mtu}\n", self.name());
        let mut configured = self.configured();
        let takes_ipv6 = self.has_ipv6 && mtu >= LEAST_IPV6_MTU;
        let took_ipv6 = std::mem::replace(&mut configured.takes_ipv6, takes_ipv6);
        if takes_ipv6 && !took_ipv6 {
            batch += &configured.ipv6_addresses;
            batch += &configured.ipv6_routes;
        } else if took_ipv6 && !takes_ipv6 {
            tracing::warn!(
                mtu,
                "no IPv6 inside: it needs packets of {LEAST_IPV6_MTU} bytes"
            );
        }
        ip(&batch)
    }

    fn configured(&self) -> MutexGuard<'_, Configured> {
        self.configured
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Routes clients' addresses into the device, for packets of at most so many bytes, and takes away the routes to those
    /// of which nothing is said.
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
        // A route that is not there any more went with the device's addresses.
        let _ = ip_each(&batch(gone));
        ip_each(&batch(set))
    }

    /// Routes `destinations` into the device, before the routes to them that there are, which stay: uplinks need theirs,
    /// and when the device goes, so does everybody else.
    pub(crate) fn set_routes(&self, destinations: &[Prefix]) -> Result<()> {
        let mut configured = self.configured();
        let (ipv4, ipv6): (Vec<&Prefix>, Vec<&Prefix>) =
            destinations.iter().partition(|prefix| prefix.is_ipv4());
        let ours = self.name();
        configured.ipv6_routes = ipv6
            .iter()
            .map(|prefix| format!("route replace {prefix} dev {ours} metric 1\n"))
            .collect();
        // No metric of IPv4 is less than the one that a route has by default, so it has to be put before that.
        ipv4.iter()
            .for_each(|prefix| self.unroute(&prefix.to_string()));
        let mut batch: String = ipv4
            .iter()
            .map(|prefix| format!("route prepend {prefix} dev {ours}\n"))
            .collect();
        if configured.takes_ipv6 {
            batch += &configured.ipv6_routes;
        }
        ip(&batch)
    }

    /// Takes a route away, if it is there.
    pub(crate) fn unroute(&self, destination: &str) {
        // It may have gone with the device's addresses.
        let _ = ip(&format!("route delete {destination} dev {}\n", self.name()));
    }

    /// Waits for packets that the kernel hands over.
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
                    Err(error) => return Err(error).context("cannot read from the device"),
                }
            }
            if !packets.is_empty() {
                return Ok(packets);
            }
        }
    }

    /// Hands packets to the kernel.
    pub(crate) fn write<P: AsRef<[u8]>>(&self, packets: &[P]) {
        let refused = match self.tun.get_ref().write(packets) {
            Ok(written) => written.refused,
            Err(_) => packets.len() as u64,
        };
        self.refused.fetch_add(refused, Relaxed);
    }

    /// Counts packets that were read while there was no session.
    pub(crate) fn lose(&self, packets: usize) {
        self.without_session.fetch_add(packets as u64, Relaxed);
    }

    /// Counts what waited in a session when it ended.
    pub(crate) fn count_ended(&self, packets: usize) {
        self.with_session.fetch_add(packets as u64, Relaxed);
    }

    /// Packets that got lost here, by reason; only reasons that occurred.
    pub(crate) fn counted(&self) -> BTreeMap<String, u64> {
        let counts = [
            ("device_malformed", &self.malformed),
            ("device_refused", &self.refused),
            ("no_session", &self.without_session),
            ("session_ended", &self.with_session),
        ];
        let counts = counts.map(|(reason, count)| (reason.to_owned(), count.load(Relaxed)));
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

/// Hands a batch, one command a line without the leading `ip`, to iproute2.
fn ip(batch: &str) -> Result<()> {
    run_with_input("ip", &["-batch", "-"], "iproute2", batch)
}

/// The same for commands none of which stops those after it; nothing is done where there are none.
fn ip_each(batch: &str) -> Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    run_with_input("ip", &["-force", "-batch", "-"], "iproute2", batch)
}

/// Runs a tool of the distribution to its end; what it complains about becomes the error.
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
    // When the tool ends before it has read everything, it says itself why.
    let _ = child
        .stdin
        .take()
        .expect("stdin is piped")
        .write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "`{program}`: {}; it was told:\n{input}",
        message.trim()
    );
    Ok(())
}
