//! A pair of virtual devices that segments GSO packets.

use crate::interface::{self, Interface};
use crate::netlink::{self, LinkChange};
use crate::program::{self, ProgramError};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// The pair counts as empty if no packet has come out for this long: packets inside it wait only
/// for a processor.
const EMPTY_AFTER: Duration = Duration::from_millis(20);

/// The longest time to wait for the pair to empty: another process may keep sending into it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The time after which `ethtool` is killed.
const ETHTOOL_LIMIT: Duration = Duration::from_secs(10);

/// A veth pair. GSO packets that are sent into its entry come out of its exit segmented and with
/// complete checksums.
#[derive(Debug)]
pub struct Segmenter {
    entry: Interface,
    exit: Interface,
}

/// The packets of a device that go through a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Packets that leave by the device.
    Leaving,
    /// Packets that arrive on the device.
    Arriving,
}

impl Segmenter {
    /// Creates a pair for packets of `device`, named after the device's number. Replaces a pair of
    /// that name that a killed process left behind.
    pub fn create(device: &Interface, traffic: Traffic) -> anyhow::Result<Self> {
        let (entry, exit) = traffic.names(device.index);
        remove_pair(&entry);
        netlink::create_veth([&entry, &exit], device.mtu_bytes)?;
        let usable = LinkChange {
            no_generated_addresses: true,
            no_arp: true,
            up: true,
            ..LinkChange::default()
        };
        for end in [&entry, &exit] {
            usable.apply(end)?;
        }
        switch_offloads_off(&entry)?;
        Ok(Segmenter {
            entry: interface::find(&entry)?,
            exit: interface::find(&exit)?,
        })
    }

    /// Removes the pairs of a device that a killed process left behind, if there are any.
    pub fn remove(device: u32) {
        for traffic in Traffic::BOTH {
            remove_pair(&traffic.names(device).0);
        }
    }

    /// Waits until all packets that were sent into the pair have come out. The caller must have
    /// stopped sending into it.
    pub fn drain(&self) -> io::Result<()> {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        let mut received = self.received()?;
        while Instant::now() < deadline {
            thread::sleep(EMPTY_AFTER);
            let before = std::mem::replace(&mut received, self.received()?);
            if received == before {
                break;
            }
        }
        Ok(())
    }

    /// Returns the number of packets that have come out.
    fn received(&self) -> io::Result<u64> {
        // Not /proc/net, which is that of the main thread; that may be in another namespace.
        let table = fs::read_to_string("/proc/thread-self/net/dev")?;
        let row = table.lines().find_map(|line| {
            line.trim_start()
                .strip_prefix(&self.exit.name)?
                .strip_prefix(':')
        });
        let packets = row.and_then(|row| row.split_whitespace().nth(1)?.parse().ok());
        packets.ok_or_else(|| {
            io::Error::other(format!(
                "{} is not in the table of interfaces",
                self.exit.name
            ))
        })
    }

    /// Removes pairs that killed processes left behind and whose devices no longer exist.
    pub fn remove_orphans() -> std::io::Result<()> {
        let interfaces = nix::net::if_::if_nameindex()?;
        let exists = |device: u32| {
            interfaces
                .iter()
                .any(|interface| interface.index() == device)
        };
        let names = interfaces
            .iter()
            .filter_map(|interface| interface.name().to_str().ok());
        let device = |name: &str| {
            let mut prefixes = Traffic::BOTH.iter().map(|traffic| traffic.prefixes().0);
            prefixes.find_map(|entry| name.strip_prefix(entry)?.parse().ok())
        };
        let devices = names.filter_map(device);
        devices
            .filter(|device| !exists(*device))
            .for_each(Self::remove);
        Ok(())
    }

    /// Returns the number of the interface to send into.
    pub fn entry(&self) -> u32 {
        self.entry.index
    }

    /// Returns the number of the interface where packets come out.
    pub fn exit(&self) -> u32 {
        self.exit.index
    }
}

impl Drop for Segmenter {
    fn drop(&mut self) {
        if let Err(error) = netlink::delete_link(&self.entry.name) {
            tracing::warn!("{error}");
        }
    }
}

/// Removes the pair with this entry. It may well not exist, so a failure is ignored.
fn remove_pair(entry: &str) {
    let _ = netlink::delete_link(entry);
}

impl Traffic {
    const BOTH: [Self; 2] = [Traffic::Leaving, Traffic::Arriving];

    /// Returns the prefixes of the names of entry and exit. The number of the device follows.
    fn prefixes(self) -> (&'static str, &'static str) {
        match self {
            Traffic::Leaving => ("hawser-in", "hawser-out"),
            Traffic::Arriving => ("hawser-ti", "hawser-to"),
        }
    }

    /// Returns the names of entry and exit, within the kernel's limit of 15 bytes.
    fn names(self, device: u32) -> (String, String) {
        let (entry, exit) = self.prefixes();
        (format!("{entry}{device}"), format!("{exit}{device}"))
    }
}

/// Makes the kernel segment packets and complete their checksums before they enter the pair.
fn switch_offloads_off(entry: &str) -> anyhow::Result<()> {
    let arguments = ["-K", entry, "tx", "off", "tso", "off", "gso", "off"];
    let mut command = Command::new("ethtool");
    match program::output(command.args(arguments), "", ETHTOOL_LIMIT) {
        Ok(_) => Ok(()),
        Err(error @ ProgramError::Missing { .. }) => {
            Err(anyhow::Error::new(error).context("install the package ethtool"))
        }
        Err(error) => anyhow::bail!("{error} (of `ethtool {}`)", arguments.join(" ")),
    }
}
