//! The file with the sizes of packets that the networks of uplinks carried. They are a start value: each
//! connection finds out whether they still arrive, and larger ones are tried again as ever.

use anyhow::{Context, Result};
use hawser_io::failures::{Change, Failures};
use hawser_io::json_file::JsonFile;
use hawser_io::sources::source;
use hawser_uplinks::Uplink;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use tracing::warn;

/// The MTUs that are tried one after the other, in bytes, until a full packet arrives. The last but
/// one is the smallest with IPv6 inside.
pub(super) const MTUS: [u16; 4] = [1480, 1400, 1352, 1280];

/// The largest number of networks that are remembered: those that were learnt last.
const MAX_NETWORKS: usize = 64;

/// The networks that carry less than the interface, in the order in which that was learnt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Sizes(Vec<Carried>);

/// The size of packets that a network carries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Carried {
    interface: String,
    network: Vec<IpAddr>,
    mtu_bytes: u16,
}

impl Carried {
    fn is_of(&self, uplink: &Uplink) -> bool {
        self.interface == uplink.interface && is_same(&self.network, &network_of(uplink))
    }
}

/// Returns what identifies the network of an uplink: its IPv4 address and the first 64 bits of its IPv6
/// addresses.
pub(super) fn network_of(uplink: &Uplink) -> Vec<IpAddr> {
    let addresses = uplink.ipv4.iter().chain(&uplink.ipv6).copied();
    addresses.map(source).collect()
}

/// Returns whether the addresses may be of one network: one of them is the same, and none of another
/// family, of which addresses may be missing, says otherwise.
pub(super) fn is_same(one: &[IpAddr], other: &[IpAddr]) -> bool {
    let families = [true, false].map(|is_ipv4| {
        let has = |all: &[IpAddr]| all.iter().any(|address| address.is_ipv4() == is_ipv4);
        let of_family = |address: &&IpAddr| address.is_ipv4() == is_ipv4;
        let mut own = one.iter().filter(of_family);
        (has(one) && has(other)).then(|| own.any(|address| other.contains(address)))
    });
    let mut known = families.into_iter().flatten().peekable();
    known.peek().is_some() && known.all(|is_same| is_same)
}

impl Sizes {
    /// Returns the MTU that the network of an uplink carried.
    pub(super) fn get(&self, uplink: &Uplink) -> Option<u16> {
        let found = self.0.iter().rfind(|carried| carried.is_of(uplink));
        found.map(|carried| carried.mtu_bytes)
    }

    pub(super) fn set(&mut self, uplink: &Uplink, mtu: u16) {
        if self.get(uplink) == Some(mtu) {
            return;
        }
        self.forget(uplink);
        self.0.push(Carried {
            interface: uplink.interface.clone(),
            network: network_of(uplink),
            mtu_bytes: mtu,
        });
        self.bound();
    }

    pub(super) fn forget(&mut self, uplink: &Uplink) {
        self.0.retain(|carried| !carried.is_of(uplink));
    }

    fn bound(&mut self) {
        let excess = self.0.len().saturating_sub(MAX_NETWORKS);
        self.0.drain(..excess);
    }
}

/// The file in which the sizes are stored across restarts.
#[derive(Debug)]
pub(super) struct SizesFile {
    file: JsonFile,
    stored: Sizes,
    failures: Failures,
}

impl SizesFile {
    /// Reads the file at `path`. One that is damaged is set aside and added to `damaged`; nothing is known
    /// then.
    pub(super) fn read(path: PathBuf, damaged: &mut Vec<String>) -> Result<SizesFile> {
        let file = JsonFile::at(path, 0o666).compact().durable();
        let read = file.read_or_set_aside::<Sizes>(damaged);
        let mut stored = read.context("the sizes of packets")?.unwrap_or_default();
        stored.0.retain(|carried| MTUS.contains(&carried.mtu_bytes));
        stored.bound();
        Ok(SizesFile {
            file,
            stored,
            failures: Failures::default(),
        })
    }

    /// Returns the stored sizes.
    pub(super) fn stored(&self) -> &Sizes {
        &self.stored
    }

    /// Stores the sizes unless the file contains them. A failure is logged once.
    pub(super) fn write(&mut self, sizes: &Sizes) {
        if self.stored == *sizes {
            return;
        }
        let outcome = self.file.write(sizes);
        if outcome.is_ok() {
            self.stored = sizes.clone();
        }
        if let Some(Change::Failed(error)) = self.failures.record(outcome) {
            warn!(
                "cannot store the sizes of packets that uplinks carry, which are found out again after a restart: {error}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn uplink(interface: &str, addresses: &[&str]) -> Uplink {
        let addresses = addresses.iter().map(|text| text.parse::<IpAddr>().unwrap());
        let (ipv4, ipv6): (Vec<_>, Vec<_>) = addresses.partition(IpAddr::is_ipv4);
        Uplink {
            interface: interface.to_owned(),
            ipv4: ipv4.first().copied(),
            ipv6,
            others: Vec::new(),
            mtu: 1500,
            cost: 0,
            monthly_cap: None,
        }
    }

    #[test]
    fn a_network_is_known_by_any_of_its_addresses() {
        let mut sizes = Sizes::default();
        sizes.set(&uplink("wan0", &["192.0.2.1", "2001:db8::1"]), 1400);
        for (interface, addresses, expected) in [
            ("wan0", &["192.0.2.1", "2001:db8::1"][..], Some(1400)),
            ("wan0", &["192.0.2.1"], Some(1400)),
            ("wan0", &["2001:db8::2"], Some(1400)),
            ("wan0", &["192.0.2.1", "2001:db8:1::1"], None),
            ("wan0", &["192.0.2.2"], None),
            ("wan0", &[], None),
            ("wan1", &["192.0.2.1"], None),
        ] {
            let uplink = uplink(interface, addresses);
            assert_eq!(sizes.get(&uplink), expected, "{uplink:?}");
        }
        sizes.forget(&uplink("wan0", &["192.0.2.1"]));
        assert_eq!(sizes, Sizes::default());
    }

    #[test]
    fn sizes_outlive_a_restart_and_a_damaged_file_begins_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/sizes.json");
        let mut damaged = Vec::new();
        let mut read = || SizesFile::read(path.clone(), &mut damaged).unwrap();
        let mut file = read();
        let mut sizes = file.stored().clone();
        assert_eq!(sizes, Sizes::default());
        for number in 0..=MAX_NETWORKS {
            let address = format!("192.0.2.{number}");
            sizes.set(&uplink("wan0", &[&address]), MTUS[number % MTUS.len()]);
        }
        file.write(&sizes);
        let known = read().stored().clone();
        assert_eq!(known, sizes);
        assert_eq!(known.0.len(), MAX_NETWORKS);
        assert_eq!(known.get(&uplink("wan0", &["192.0.2.0"])), None, "oldest");
        assert_eq!(known.get(&uplink("wan0", &["192.0.2.1"])), Some(MTUS[1]));
        let absurd = r#"[{"interface":"wan0","network":["192.0.2.1"],"mtu_bytes":0}]"#;
        for useless in [absurd, "", "[{}]"] {
            fs::write(&path, useless).unwrap();
            assert_eq!(*read().stored(), Sizes::default(), "{useless}");
        }
        assert_eq!(damaged.len(), 2, "{damaged:?}");
    }
}
