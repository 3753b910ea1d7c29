//! Packet counters of the devices in a namespace.

use anyhow::{Context, Result};
use hawser_testbed::netns::Namespace;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Sub;

/// Counters of a device since its creation. Bytes count frames with the Ethernet header of 14 bytes
/// and without the frame check sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Frames sent.
    pub sent_packets: u64,
    /// Frames dropped in either direction because a buffer was full.
    pub drops: u64,
}

impl Sub for Counters {
    type Output = Counters;

    /// Returns the increase since `before`.
    fn sub(self, before: Counters) -> Counters {
        Counters {
            received_bytes: self.received_bytes - before.received_bytes,
            sent_bytes: self.sent_bytes - before.sent_bytes,
            sent_packets: self.sent_packets - before.sent_packets,
            drops: self.drops - before.drops,
        }
    }
}

/// Returns the counters of each device.
pub fn of(namespace: &Namespace) -> Result<BTreeMap<String, Counters>> {
    let table = namespace.run(|| fs::read_to_string("/proc/thread-self/net/dev"))??;
    let devices = table.lines().filter_map(|line| line.split_once(':'));
    devices
        .map(|(name, figures)| {
            let counters = parse(figures)
                .with_context(|| format!("cannot parse the counters of {name}: {figures:?}"))?;
            Ok((name.trim().to_owned(), counters))
        })
        .collect()
}

/// Returns the counters of one device.
pub fn of_device(namespace: &Namespace, device: &str) -> Result<Counters> {
    of(namespace)?
        .remove(device)
        .with_context(|| format!("{} has no device {device}", namespace.name()))
}

/// Parses a row of `/proc/net/dev`: for each direction bytes, packets, errors, drops and four more
/// columns.
fn parse(figures: &str) -> Option<Counters> {
    let columns: Vec<u64> = figures
        .split_whitespace()
        .map(|word| word.parse().ok())
        .collect::<Option<_>>()?;
    Some(Counters {
        received_bytes: *columns.first()?,
        sent_bytes: *columns.get(8)?,
        sent_packets: *columns.get(9)?,
        drops: columns.get(3)? + columns.get(11)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_those_of_the_kernel() {
        let figures = " 1000 10 0 2 0 0 0 0 5000 50 0 3 0 0 0 0";
        let counters = Counters {
            received_bytes: 1000,
            sent_bytes: 5000,
            sent_packets: 50,
            drops: 5,
        };
        assert_eq!(parse(figures), Some(counters));
        assert_eq!(parse("1 2 3"), None);
    }
}
