//! For any bytes, a parser does not panic, and what it accepts is within its bounds and is emitted
//! as it was parsed.

#[path = "support/checks.rs"]
mod checks;
#[path = "support/mutation.rs"]
mod mutation;

use checks::*;
use hawser_units::{FlowId, PathSet, PolicyCode};
use hawser_wire::Signal;
use hawser_wire::ip::{self, Ipv4Header};
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;

/// The longest datagram on a path.
const MTU: usize = 1500;

fn signal() -> Signal {
    Signal {
        flow: FlowId::try_from(5).unwrap(),
        epoch: 6,
        code: PolicyCode(0x03),
        probes: PathSet::from_bits(0x04),
        probe_every: 32,
        sent_unix_micros: 1_700_000_000_000_000,
    }
}

fn packet(is_v6: bool) -> Vec<u8> {
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

/// Makes the checksum of the IPv4 header right, so that changes reach what it protects.
fn with_right_checksum(mut packet: Vec<u8>) -> Vec<u8> {
    if let Some(header) = packet.get_mut(..Ipv4Header::LEN) {
        header[10..12].fill(0);
        let sum = ip::checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    packet
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
    fn a_changed_signal_is_rejected_or_unchanged(changes in changes()) {
        let valid = signal().emit(&key()).unwrap();
        let payload = changed(&valid, &changes);
        check_signal(&payload);
        prop_assert_eq!(Signal::parse(&payload, &key()).is_ok(), payload[..] == valid[..]);
    }

    #[test]
    fn any_signal_with_the_key_is_rejected_or_in_bounds(
        fields in any::<[u8; 20]>(),
        known: bool,
    ) {
        let mut fields = fields;
        if known {
            fields[..2].copy_from_slice(&[0x10, 1]);
            fields[4] &= 0x1f;
            fields[6] &= 0x07;
        }
        check_signal(&with_tag(&fields));
    }

    #[test]
    fn a_changed_packet_is_rejected_or_within_bounds(changes in changes(), is_v6: bool) {
        let packet = changed(&packet(is_v6), &changes);
        check_headers(&packet);
        check_headers(&with_right_checksum(packet));
    }
}
