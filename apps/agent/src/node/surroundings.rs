//! What a node finds around it: the bpf file system, paths as the routing table has them, and settings that would stand in
//! the way.

use crate::config::{Config, PathConfig};
use anyhow::{Context, Result, bail, ensure};
use hawser_bpf::{Prefix, Receiver, ReceiverOptions, Rule, SendPath, Sender};
use hawser_io::interface::{self, Interface};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::warn;

/// Copies of a transparent packet come within this time (the paper's threshold).
const TRANSPARENT_WITHIN: Duration = Duration::from_secs(1);

/// The directory of this node's pins, made when missing.
pub(super) fn pins(config: &Config) -> Result<PathBuf> {
    let pins = config.pins.join(&config.name);
    let directory = pins.display();
    fs::create_dir_all(&pins).with_context(|| {
        format!("cannot create {directory} (the agent runs as root, and pins are kept in a bpf file system)")
    })?;
    ensure!(
        statfs(&pins)?.filesystem_type() == BPF_FS_MAGIC,
        "{directory} is not in a bpf file system: `mount -t bpf bpf /sys/fs/bpf`, and let `pins` be a place in it"
    );
    Ok(pins)
}

pub(super) fn load_receiver(port: u16, pins: PathBuf) -> Result<Receiver> {
    let mut key = [0; 16];
    getrandom::fill(&mut key)?;
    let (low, high) = key.split_at(8);
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half of 16 bytes"));
    let options = ReceiverOptions {
        port,
        transparent_within: TRANSPARENT_WITHIN,
        fingerprint_key: [word(low), word(high)],
        pins: Some(pins),
    };
    Ok(Receiver::load(&options)?)
}

/// What the kernel needs to know of a path, from the routing table and, for the next hop, from `neighbour`.
pub(super) fn resolve(
    path: &PathConfig,
    neighbour: impl Fn(IpAddr, &Interface) -> Result<Option<[u8; 6]>, interface::Error>,
) -> Result<Option<SendPath>> {
    let interface = interface::find(&path.interface)?;
    let mtu_bytes = match path.mtu_bytes {
        Some(mtu) => mtu,
        None => u16::try_from(interface.mtu_bytes).unwrap_or(u16::MAX),
    };
    Ok(neighbour(next_hop(path)?, &interface)?.map(|next_hop_mac| SendPath {
        ifindex: interface.index,
        local: path.local,
        remote: path.remote,
        source_mac: interface.mac,
        next_hop_mac,
        mtu_bytes,
    }))
}

fn next_hop(path: &PathConfig) -> Result<IpAddr> {
    match path.next_hop {
        Some(address) => Ok(address),
        None => Ok(interface::route(path.remote, Some(&path.interface))?.next_hop),
    }
}

/// A packet that came by another path than the route back would take is dropped by a strict filter, after elimination.
pub(super) fn refuse_reverse_path_filter(interface: &str) -> Result<()> {
    const STRICT: u8 = 1;
    let setting = |scope: &str| {
        let file = Path::new("/proc/sys/net/ipv4/conf").join(scope).join("rp_filter");
        fs::read_to_string(file).ok().and_then(|value| value.trim().parse::<u8>().ok()).unwrap_or(0)
    };
    // The larger of the two is in force (Documentation/networking/ip-sysctl.rst).
    if setting("all").max(setting(interface)) == STRICT {
        bail!(
            "the reverse path filter is strict, which drops what arrives by other paths than the route back; \
             run `sysctl -w net.ipv4.conf.{interface}.rp_filter=2`"
        );
    }
    Ok(())
}

/// Packets that do not fit a path with the outer headers are not replicated: say so before it is noticed.
pub(super) fn warn_of_large_packets(prefix: Prefix, sender: &Sender, rules: &[Rule]) {
    let Some(fits) = rules.iter().filter_map(|rule| sender.inner_mtu_bytes(rule.flow).ok()?).min() else {
        return;
    };
    // A destination without a route shows itself in other ways.
    let Ok(route) = interface::route(prefix.address(), None) else { return };
    let Ok(device) = interface::find(&route.interface) else { return };
    let mtu = route.mtu_bytes.unwrap_or(device.mtu_bytes);
    if mtu > u32::from(fits) {
        warn!(
            destination = %prefix,
            "packets of more than {fits} bytes are forwarded without being replicated, and the route allows {mtu}; \
             give the route `mtu {fits}` (ip route change)"
        );
    }
}
