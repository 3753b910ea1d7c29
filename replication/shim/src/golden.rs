//! The golden vectors of `testdata/`: frames made by another implementation, in the format of
//! [`hawser_wire::golden`].

use crate::{Addresses, Cover, Encapsulation, KeySlot, SealKey, Shim};
use hawser_units::{FlowId, PathId, PathSet};
use hawser_wire::Key;
use hawser_wire::golden::Fields;
use std::net::IpAddr;

const FILES: [(&str, &str); 12] = {
    macro_rules! files {
        ($($name:literal)*) => { [$(($name, include_str!(concat!("../testdata/", $name, ".txt")))),*] };
    }
    files! {
        "v4-untagged-tcp4" "v4-untagged-udp6" "v4-slot0-tcp4" "v4-slot0-udp6" "v4-slot1-tcp4" "v4-slot1-udp6"
        "v6-untagged-tcp4" "v6-untagged-udp6" "v6-slot0-tcp4" "v6-slot0-udp6" "v6-slot1-tcp4" "v6-slot1-udp6"
    }
};

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

fn vector(name: &'static str, text: &str) -> Vector {
    let fields = Fields::parse(name, text);
    let key = fields.has("key").then(|| {
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
        (
            slot,
            SealKey::derive(&shared, node("from"), node("to")),
            cover,
        )
    });
    let [path] = fields.array("path");
    let [paths] = fields.array("paths");
    let [epoch] = fields.array("epoch");
    Vector {
        name,
        encapsulation: Encapsulation {
            destination_mac: fields.array("destination_mac"),
            source_mac: fields.array("source_mac"),
            addresses: addresses(&fields),
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

fn addresses(fields: &Fields<'_>) -> Addresses {
    match (fields.address("source"), fields.address("destination")) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Addresses::V4 {
            source,
            destination,
        },
        (IpAddr::V6(source), IpAddr::V6(destination)) => Addresses::V6 {
            source,
            destination,
        },
        _ => panic!("addresses of two families"),
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
}
