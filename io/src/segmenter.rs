//! A pair of virtual devices that cuts trains of segments into packets.

use crate::interface::{self, Interface};
use std::process::Command;

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
        run("ip", &["link", "add", &entry, "mtu", &mtu, "type", "veth", "peer", "name", &exit, "mtu", &mtu])?;
        for end in [&entry, &exit] {
            run("ip", &["link", "set", end, "addrgenmode", "none", "arp", "off", "up"])?;
        }
        run("ethtool", &["-K", &entry, "tx", "off", "tso", "off", "gso", "off"])?;
        Ok(Segmenter { entry: interface::find(&entry)?, exit: interface::find(&exit)? })
    }

    /// Removes the pair of a device that a killed process left, if there is one.
    pub fn remove(device: u32) {
        // It may well not exist, so a failure says nothing.
        let _ = Command::new("ip").args(["link", "delete", &names(device).0]).output();
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

/// At most 15 bytes, as the kernel wants it.
fn names(device: u32) -> (String, String) {
    (format!("hawser-in{device}"), format!("hawser-out{device}"))
}

fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let command = || format!("`{program} {}`", arguments.join(" "));
    let output = Command::new(program).args(arguments).output();
    let output =
        output.map_err(|error| anyhow::anyhow!("{}: {error}; install the package {program}", command()))?;
    let message = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}: {}", command(), message.trim());
    Ok(())
}
