//! For any bytes, a parser does not panic, and what it accepts is within its bounds and is emitted
//! as it was parsed.

#[path = "support/checks.rs"]
mod checks;
#[path = "../../../base/wire/tests/support/mutation.rs"]
mod mutation;

use checks::*;
use hawser_shim::echo::Echo;
use hawser_shim::{Addresses, Cover, Encapsulation, KeyRing, KeySlot, SealKey, SealRing, Shim};
use hawser_units::{FlowId, PathSet};
use hawser_wire::{Key, ip};
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;

/// The longest datagram on a path.
const MTU: usize = 1500;

fn key() -> Key {
    Key::from_bytes([7; 16])
}

fn shim() -> Shim {
    Shim {
        path: path(3),
        paths: PathSet::from_bits(0x0f),
        epoch: 1,
        flow: FlowId::try_from(1023).unwrap(),
        sequence: 2,
        sent_micros: 3,
        seal: None,
    }
}

fn inner(is_v6: bool) -> Vec<u8> {
    let [source, destination] = if is_v6 {
        ["[fd00::1]:1", "[fd00::2]:2"]
    } else {
        ["10.0.0.1:1", "10.0.0.2:2"]
    };
    ip::udp_packet(
        source.parse().unwrap(),
        destination.parse().unwrap(),
        2,
        b"some payload",
    )
}

fn frame(is_v6: bool) -> Vec<u8> {
    let addresses = if is_v6 {
        Addresses::V6 {
            source: [1u8; 16].into(),
            destination: [2u8; 16].into(),
        }
    } else {
        Addresses::V4 {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
        }
    };
    let encapsulation = Encapsulation {
        destination_mac: [1; 6],
        source_mac: [2; 6],
        addresses,
        port: 14747,
    };
    encapsulation.frame(&shim(), &inner(is_v6)).unwrap()
}

proptest! {
    #[test]
    fn any_bytes_are_rejected_or_within_bounds(bytes in vec(any::<u8>(), 0..MTU)) {
        check_all(&bytes);
    }

    #[test]
    fn short_bytes_are_rejected_or_within_bounds(bytes in vec(any::<u8>(), 0..64)) {
        check_all(&bytes);
    }

    #[test]
    fn a_changed_shim_is_rejected_or_within_bounds(changes in changes(), whole: bool) {
        let sealing = SealKey::derive(&key(), "ingress", "egress");
        let cover = if whole { Cover::Whole } else { Cover::Headers };
        let sealed = shim().sealed(KeySlot::Zero, &sealing, cover, &inner(false));
        let valid = [&sealed.emit()[..], &inner(false)].concat();
        let datagram = changed(&valid, &changes);
        check_shim(&datagram);
        let ring = SealRing { slots: [Some(sealing), None], required_cover: cover };
        let covered = if whole { datagram.len().max(valid.len()) } else { Shim::LEN + 24 };
        let is_same = datagram.get(..covered) == valid.get(..covered);
        prop_assert!(is_same || !ring.accepts(&datagram), "a forged shim");
    }

    #[test]
    fn a_changed_echo_is_rejected_or_within_bounds(changes in changes()) {
        let echo = echo();
        check_echo(&changed(&echo.emit(None), &changes));
        let valid = echo.emit(Some((KeySlot::One, &key())));
        let datagram = changed(&valid, &changes);
        let ring = KeyRing { slots: [None, Some(key())] };
        prop_assert_eq!(Echo::parse(&datagram, &ring).is_some(), datagram[..] == valid[..]);
    }

    #[test]
    fn a_changed_replica_is_rejected_or_within_bounds(changes in changes(), is_v6: bool) {
        let frame = changed(&frame(is_v6), &changes);
        check_replica(&frame);
        check_replica(&with_right_checksum(frame));
    }
}
