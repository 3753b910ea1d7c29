//! The golden vectors of `testdata/`: frames made by another implementation, for the tests of this
//! crate and of the eBPF programs. They are part of the wire format: a change to one of them is a
//! new version of the format.
//!
//! A file holds one frame. Lines are `# comment` or `name = value`, with every value in hex and
//! network byte order.

use crate::{Addresses, Cover, Encapsulation, Key, KeySlot, SealKey, Shim, Signal};
use hawser_units::{FlowId, PathId, PathSet, PolicyCode};
use std::collections::BTreeMap;

const FILES: [(&str, &str); 12] = {
    macro_rules! files {
        ($($name:literal)*) => { [$(($name, include_str!(concat!("../testdata/", $name, ".txt")))),*] };
    }
    files! {
        "v4-untagged-tcp4" "v4-untagged-udp6" "v4-slot0-tcp4" "v4-slot0-udp6" "v4-slot1-tcp4" "v4-slot1-udp6"
        "v6-untagged-tcp4" "v6-untagged-udp6" "v6-slot0-tcp4" "v6-slot0-udp6" "v6-slot1-tcp4" "v6-slot1-udp6"
    }
};

const SIGNALS: [(&str, &str); 2] = [
    ("signal-v4", include_str!("../testdata/signal-v4.txt")),
    ("signal-v6", include_str!("../testdata/signal-v6.txt")),
];

/// A frame and the values that it was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vector {
    /// The file's name: outer family, key, inner packet.
    pub name: &'static str,
    /// The outer headers.
    pub encapsulation: Encapsulation,
    /// The shim, unsealed.
    pub shim: Shim,
    /// The key that seals the shim, with its slot and cover.
    pub key: Option<(KeySlot, SealKey, Cover)>,
    /// The packet that was replicated.
    pub inner: Vec<u8>,
    /// The whole frame, from the Ethernet header on.
    pub frame: Vec<u8>,
}

/// Returns all vectors.
///
/// # Panics
///
/// Panics if a file in `testdata/` is malformed.
pub fn vectors() -> Vec<Vector> {
    FILES
        .iter()
        .map(|(name, text)| vector(name, text))
        .collect()
}

/// An in-band signal and the values that it was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignalVector {
    /// The file's name.
    pub name: &'static str,
    /// The source and destination address.
    pub addresses: Addresses,
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
        addresses: fields.addresses(),
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

fn vector(name: &'static str, text: &str) -> Vector {
    let fields = Fields::parse(name, text);
    let key = fields.0.contains_key("key").then(|| {
        let slot = if fields.array("key_slot") == [0] {
            KeySlot::Zero
        } else {
            KeySlot::One
        };
        let cover = if fields.array("whole") == [0] {
            Cover::Headers
        } else {
            Cover::Whole
        };
        let node = |name| std::str::from_utf8(fields.bytes(name)).expect("the name of a node");
        let shared = Key::from_bytes(fields.array("key"));
        (slot, shared.for_direction(node("from"), node("to")), cover)
    });
    let [path] = fields.array("path");
    let [paths] = fields.array("paths");
    let [epoch] = fields.array("epoch");
    Vector {
        name,
        encapsulation: Encapsulation {
            destination_mac: fields.array("destination_mac"),
            source_mac: fields.array("source_mac"),
            addresses: fields.addresses(),
            port: u16::from_be_bytes(fields.array("port")),
        },
        shim: Shim {
            path: PathId::try_from(path).expect("a path index"),
            paths: PathSet::from_bits(paths),
            epoch,
            flow: FlowId::try_from(u16::from_be_bytes(fields.array("flow"))).expect("a flow index"),
            sequence: u64::from_be_bytes(fields.array("sequence")),
            sent_micros: {
                let [h0, h1, low @ ..] = fields.array::<6>("sent_micros");
                u64::from(u16::from_be_bytes([h0, h1])) << 32 | u64::from(u32::from_be_bytes(low))
            },
            seal: None,
        },
        key,
        inner: fields.bytes("inner").to_vec(),
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

    /// Returns the value of a field.
    pub fn bytes(&self, key: &str) -> &[u8] {
        self.0
            .get(key)
            .unwrap_or_else(|| panic!("{}: {key} is missing", self.1))
    }

    fn addresses(&self) -> Addresses {
        match self.bytes("source").len() {
            4 => Addresses::V4 {
                source: self.array::<4>("source").into(),
                destination: self.array::<4>("destination").into(),
            },
            _ => Addresses::V6 {
                source: self.array::<16>("source").into(),
                destination: self.array::<16>("destination").into(),
            },
        }
    }

    /// Returns the value of a field of `N` bytes.
    pub fn array<const N: usize>(&self, key: &str) -> [u8; N] {
        self.bytes(key)
            .try_into()
            .unwrap_or_else(|_| panic!("{}: {key} has not {N} bytes", self.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Replica, SealRing};

    fn sealed(vector: &Vector) -> Shim {
        vector
            .key
            .as_ref()
            .map_or(vector.shim, |(slot, key, cover)| {
                vector.shim.sealed(*slot, key, *cover, &vector.inner)
            })
    }

    #[test]
    fn frames_are_emitted_as_the_other_implementation_did() {
        for vector in vectors() {
            let frame = vector
                .encapsulation
                .frame(&sealed(&vector), &vector.inner)
                .unwrap();
            assert_eq!(
                hex::encode(frame),
                hex::encode(&vector.frame),
                "{}",
                vector.name
            );
        }
    }

    #[test]
    fn frames_are_parsed_into_their_values() {
        for vector in vectors() {
            let replica = Replica::parse(&vector.frame).unwrap();
            assert_eq!(
                replica.encapsulation, vector.encapsulation,
                "{}",
                vector.name
            );
            assert_eq!(replica.shim, sealed(&vector), "{}", vector.name);
            assert_eq!(replica.inner, vector.inner, "{}", vector.name);
        }
    }

    #[test]
    fn tags_are_accepted_with_their_key_only() {
        for vector in vectors() {
            let datagram = &vector.frame[vector.frame.len() - vector.inner.len() - Shim::LEN..];
            let Some((slot, key, required_cover)) = vector.key else {
                continue;
            };
            let mut ring = SealRing {
                required_cover,
                ..SealRing::default()
            };
            ring.slots[slot.index()] = Some(key.clone());
            assert!(ring.accepts(datagram), "{}", vector.name);
            ring.slots.swap(0, 1);
            assert!(!ring.accepts(datagram), "{}: the other slot", vector.name);
        }
    }

    #[test]
    fn signals_are_emitted_and_parsed_as_the_other_implementation_did() {
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
            let traffic_class = match vector.addresses {
                Addresses::V4 { .. } => vector.frame[15],
                Addresses::V6 { .. } => vector.frame[14] << 4 | vector.frame[15] >> 4,
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
