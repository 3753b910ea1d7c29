//! Golden vectors: frames and datagrams made by another implementation, for the tests of the crates that
//! read and write them and of the eBPF programs. They are part of the wire format: a change to one of
//! them is a new version of the format.
//!
//! A file holds one of them. Lines are `# comment` or `name = value`, with every value in hex and
//! network byte order.

use crate::{Key, Signal};
use hawser_units::{FlowId, PathSet, PolicyCode};
use std::collections::BTreeMap;
use std::net::IpAddr;

const SIGNALS: [(&str, &str); 2] = [
    ("signal-v4", include_str!("../testdata/signal-v4.txt")),
    ("signal-v6", include_str!("../testdata/signal-v6.txt")),
];

/// An in-band signal and the values that it was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignalVector {
    /// The file's name.
    pub name: &'static str,
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The signal.
    pub signal: Signal,
    /// The key of the tag.
    pub key: Key,
    /// The UDP payload.
    pub payload: Vec<u8>,
    /// The whole frame, from the Ethernet header on.
    pub frame: Vec<u8>,
}

/// Returns all in-band signals.
///
/// # Panics
///
/// Panics if a file in `testdata/` is malformed.
pub fn signals() -> Vec<SignalVector> {
    SIGNALS
        .iter()
        .map(|(name, text)| signal(name, text))
        .collect()
}

fn signal(name: &'static str, text: &str) -> SignalVector {
    let fields = Fields::parse(name, text);
    let [code] = fields.array("code");
    let [probes] = fields.array("probes");
    let [probe_shift] = fields.array("probe_shift");
    SignalVector {
        name,
        source: fields.address("source"),
        destination: fields.address("destination"),
        signal: Signal {
            flow: FlowId::try_from(u16::from_be_bytes(fields.array("flow"))).expect("a flow index"),
            epoch: u32::from_be_bytes(fields.array("epoch")),
            code: PolicyCode(code),
            probes: PathSet::from_bits(probes),
            probe_every: if probe_shift == 0 {
                0
            } else {
                1 << probe_shift
            },
            sent_unix_micros: u64::from_be_bytes(fields.array("sent_unix_micros")),
        },
        key: Key::from_bytes(fields.array("key")),
        payload: fields.bytes("payload").to_vec(),
        frame: fields.bytes("frame").to_vec(),
    }
}

/// The fields of a file of golden vectors.
///
/// # Panics
///
/// Every function panics if the file is malformed.
#[derive(Debug)]
pub struct Fields<'a>(BTreeMap<&'a str, Vec<u8>>, &'a str);

impl<'a> Fields<'a> {
    /// Reads the text of the file `name`.
    pub fn parse(name: &'a str, text: &'a str) -> Self {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let fields = lines.map(|line| {
            let (key, value) = line
                .split_once(" = ")
                .unwrap_or_else(|| panic!("{name}: no field in {line:?}"));
            (
                key,
                hex::decode(value).unwrap_or_else(|error| panic!("{name}: {key}: {error}")),
            )
        });
        Fields(fields.collect(), name)
    }

    /// Returns whether the file has a field.
    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Returns the value of a field.
    pub fn bytes(&self, key: &str) -> &[u8] {
        self.0
            .get(key)
            .unwrap_or_else(|| panic!("{}: {key} is missing", self.1))
    }

    /// Returns the value of a field of `N` bytes.
    pub fn array<const N: usize>(&self, key: &str) -> [u8; N] {
        self.bytes(key)
            .try_into()
            .unwrap_or_else(|_| panic!("{}: {key} has not {N} bytes", self.1))
    }

    /// Returns the value of a field that is an address.
    pub fn address(&self, key: &str) -> IpAddr {
        match self.bytes(key).len() {
            4 => self.array::<4>(key).into(),
            _ => self.array::<16>(key).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_agree_with_the_other_implementation() {
        for vector in signals() {
            let payload = vector.signal.emit(&vector.key).unwrap();
            assert_eq!(
                hex::encode(payload),
                hex::encode(&vector.payload),
                "{}",
                vector.name
            );
            assert_eq!(
                Signal::parse(&payload, &vector.key),
                Ok(vector.signal),
                "{}",
                vector.name
            );
            assert!(vector.frame.ends_with(&payload), "{}", vector.name);
            let traffic_class = match vector.destination {
                IpAddr::V4(_) => vector.frame[15],
                IpAddr::V6(_) => vector.frame[14] << 4 | vector.frame[15] >> 4,
            };
            assert_eq!(
                traffic_class,
                vector.signal.traffic_class(),
                "{}",
                vector.name
            );
        }
    }
}
