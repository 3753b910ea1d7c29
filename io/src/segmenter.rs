//! A pair of virtual devices that cuts trains of segments into packets.

use crate::interface::{self, Interface};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// What is in the pair waits for nothing but a processor: when nothing has come out for so long, it is empty.
const QUIET: Duration = Duration::from_millis(20);

/// How long emptying may take: somebody else may send into the pair.
const DRAINED_WITHIN: Duration = Duration::from_secs(1);

/// A veth pair. What is sent into its entry comes out of its exit segmented and with complete checksums.
#[derive(Debug)]
pub struct Segmenter {
    entry: Interface,
    exit: Interface,
}

impl Segmenter {
    /// Makes a pair for packets that are to leave by `device`, after whose number it is named. A pair of that name, which
    /// a killed process left, is replaced.
    pub fn create(device: &Interface) -> anyhow::Result<Self> {
        let (entry, exit) = names(device.index);
        let mtu = device.mtu_bytes.to_string();
        Self::remove(device.index);
        run(
            "ip",
            &[
                "link", "add", &entry, "mtu", &mtu, "type", "veth", "peer", "name", &exit, "mtu",
                &mtu,
            ],
        )?;
        for end in [&entry, &exit] {
            run(
                "ip",
                &[
                    "link",
                    "set",
                    end,
                    "addrgenmode",
                    "none",
                    "arp",
                    "off",
                    "up",
                ],
            )?;
        }
        run(
            "ethtool",
            &["-K", &entry, "tx", "off", "tso", "off", "gso", "off"],
        )?;
        Ok(Segmenter {
            entry: interface::find(&entry)?,
            exit: interface::find(&exit)?,
        })
    }

    /// Removes the pair of a device that a killed process left, if there is one.
    pub fn remove(device: u32) {
        // It may well not exist, so a failure says nothing.
        let _ = Command::new("ip")
            .args(["link", "delete", &names(device).0])
            .output();
    }

    /// Waits until everything that was sent into the pair has come out of it. Nothing may be sent into it any more.
    pub fn drain(&self) -> io::Result<()> {
        let deadline = Instant::now() + DRAINED_WITHIN;
        let mut received = self.received()?;
        while Instant::now() < deadline {
            thread::sleep(QUIET);
            let before = std::mem::replace(&mut received, self.received()?);
            if received == before {
                break;
            }
        }
        Ok(())
    }

    /// Packets that have come out.
    fn received(&self) -> io::Result<u64> {
        // Not that of the main thread, which may be in another namespace.
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

    /// Removes pairs of devices that there are no more, which killed processes left.
    pub fn remove_orphans() -> std::io::Result<()> {
        let interfaces = nix::net::if_::if_nameindex()?;
        let is_there = |device: u32| {
            interfaces
                .iter()
                .any(|interface| interface.index() == device)
        };
        let names = interfaces
            .iter()
            .filter_map(|interface| interface.name().to_str().ok());
        let devices = names.filter_map(|name| name.strip_prefix(ENTRY)?.parse().ok());
        devices
            .filter(|device| !is_there(*device))
            .for_each(Self::remove);
        Ok(())
    }

    /// The number of the interface to send into.
    pub fn entry(&self) -> u32 {
        self.entry.index
    }

    /// The number of the interface where packets come out.
    pub fn exit(&self) -> u32 {
        self.exit.index
    }
}

impl Drop for Segmenter {
    fn drop(&mut self) {
        if let Err(error) = run("ip", &["link", "delete", &self.entry.name]) {
            tracing::warn!("{error:#}");
        }
    }
}

/// What the names of entries begin with; the number of their device follows.
const ENTRY: &str = "hawser-in";

/// At most 15 bytes, as the kernel wants it.
fn names(device: u32) -> (String, String) {
    (format!("{ENTRY}{device}"), format!("hawser-out{device}"))
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let command = || format!("`{program} {}`", arguments.join(" "));
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| {
        anyhow::anyhow!("{}: {error}; install the package {program}", command())
    })?;
    let message = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}: {}", command(), message.trim());
    Ok(())
}
