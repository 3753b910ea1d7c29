//! The checks of the parsers, for the property tests and for `fuzz/`: each passes bytes to a parser
//! and panics if what it accepts is not within its bounds or is not emitted as it was parsed.

use hawser_shim::echo::{Echo, EchoKind};
use hawser_shim::{KeyRing, OVERHEAD_V4, Replica, SealRing, Shim};
use hawser_units::PathId;
use hawser_wire::ip::{self, Ipv4Header};

/// The length of an Ethernet header in bytes.
pub(crate) const ETHERNET: usize = 14;

pub(crate) fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

pub(crate) fn echo() -> Echo {
    Echo {
        kind: EchoKind::Reply,
        path: path(4),
        number: 5,
        held_micros: 6,
    }
}

/// Makes the checksum of the IPv4 header right, so that changes reach what it protects.
pub(crate) fn with_right_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    if let Some(header) = frame.get_mut(ETHERNET..ETHERNET + Ipv4Header::LEN) {
        header[10..12].fill(0);
        let sum = ip::checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

pub(crate) fn check_shim(datagram: &[u8]) {
    let accepted = SealRing::default().accepts(datagram);
    let Ok((shim, inner)) = Shim::parse(datagram) else {
        assert!(!accepted);
        return;
    };
    assert!(accepted, "without keys, everything that parses is accepted");
    assert_eq!(inner.len(), datagram.len() - Shim::LEN);
    assert!(shim.sent_micros < 1 << Shim::SENT_BITS);
    let again = [&shim.emit()[..], inner].concat();
    assert_eq!(Shim::parse(&again), Ok((shim, inner)));
}

pub(crate) fn check_echo(datagram: &[u8]) {
    let keys = KeyRing::default();
    if let Some(echo) = Echo::parse(datagram, &keys) {
        assert_eq!(datagram.len(), Echo::LEN);
        assert_eq!(Echo::parse(&echo.emit(None), &keys), Some(echo));
    }
}

pub(crate) fn check_replica(frame: &[u8]) {
    let Ok(replica) = Replica::parse(frame) else {
        return;
    };
    assert!(replica.inner.len() + ETHERNET + OVERHEAD_V4 <= frame.len());
    // A shim may hold anything, but only an IP packet is encapsulated.
    if let Ok(again) = replica.encapsulation.frame(&replica.shim, replica.inner) {
        let again = Replica::parse(&again).expect("an emitted frame is valid");
        assert_eq!(again.encapsulation, replica.encapsulation);
        assert_eq!(again.shim, replica.shim);
        assert_eq!(again.inner, replica.inner);
    }
}

pub(crate) fn check_all(bytes: &[u8]) {
    check_shim(bytes);
    check_echo(bytes);
    check_replica(bytes);
}
