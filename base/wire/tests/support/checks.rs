//! The checks of the parsers, for the property tests and for `fuzz/`: each passes bytes to a parser
//! and panics if what it accepts is not within its bounds or is not emitted as it was parsed.

use hawser_wire::ip::{self, Ipv4Header, Ipv6Header, UdpHeader};
use hawser_wire::{Key, Signal};

pub(crate) fn key() -> Key {
    Key::from_bytes([7; 16])
}

pub(crate) fn check_signal(payload: &[u8]) {
    if let Ok(signal) = Signal::parse(payload, &key()) {
        let every = signal.probe_every;
        assert!(every == 0 || (every > 1 && every.is_power_of_two()));
        let again = signal.emit(&key()).unwrap();
        assert_eq!(Signal::parse(&again, &key()), Ok(signal));
    }
}

pub(crate) fn check_headers(packet: &[u8]) {
    if let Ok((header, payload)) = Ipv4Header::parse(packet) {
        assert_eq!(
            payload.len() + Ipv4Header::LEN,
            usize::from(header.total_length)
        );
        let again = [&header.emit()[..], payload].concat();
        assert_eq!(Ipv4Header::parse(&again), Ok((header, payload)));
    }
    if let Ok((header, payload)) = Ipv6Header::parse(packet) {
        assert_eq!(payload.len(), usize::from(header.payload_length));
        let again = [&header.emit()[..], payload].concat();
        assert_eq!(Ipv6Header::parse(&again), Ok((header, payload)));
    }
    if let Ok((header, payload)) = UdpHeader::parse(packet) {
        assert_eq!(payload.len() + UdpHeader::LEN, usize::from(header.length));
        let again = [&header.emit()[..], payload].concat();
        assert_eq!(UdpHeader::parse(&again), Ok((header, payload)));
    }
    let mut marked = packet.to_vec();
    if ip::mark_congestion(&mut marked) {
        assert_eq!(
            ip::traffic_class(&marked).map(|class| class & ip::CE),
            Ok(ip::CE)
        );
    } else {
        assert_eq!(&marked[..], packet);
    }
}

pub(crate) fn check_all(bytes: &[u8]) {
    check_signal(bytes);
    check_headers(bytes);
}

/// Returns a signal with the fields of `bytes` and the tag of a holder of the key.
pub(crate) fn with_tag(bytes: &[u8; 20]) -> Vec<u8> {
    [&bytes[..], &key().tag(bytes).0].concat()
}
