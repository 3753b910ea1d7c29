//! For any bytes, a parser does not panic, and what it accepts is within its bounds and is emitted
//! as it was parsed.

#[path = "support/mutation.rs"]
mod mutation;

use hawser_units::{FlowId, PathId, PathSet, PolicyCode};
use hawser_wire::echo::{Echo, EchoKind};
use hawser_wire::ip::{self, Ipv4Header, Ipv6Header, UdpHeader};
use hawser_wire::xnc::{self, AckBlock, EcnCounts, Frame, PacketHeader};
use hawser_wire::{Addresses, Cover, Encapsulation, Key, KeyRing, KeySlot, Replica};
use hawser_wire::{OVERHEAD_V4, SealRing, Shim, Signal};
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;
use siphasher::sip::SipHasher24;
use std::time::Duration;

/// The longest datagram on a path.
const MTU: usize = 1500;

/// The length of an Ethernet header in bytes.
const ETHERNET: usize = 14;

fn key() -> Key {
    Key::from_bytes([7; 16])
}

fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
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

fn blocks() -> Vec<AckBlock> {
    let ecn = EcnCounts {
        ect0: 1,
        ect1: 2,
        ce: u32::MAX,
    };
    let block = |index: u8, ecn: Option<EcnCounts>| AckBlock {
        path: path(index),
        delay: Duration::from_micros(1500),
        ranges: vec![70_000..=70_010, 69_990..=69_990, 5_000..=5_001],
        ecn,
    };
    vec![block(2, None), block(7, Some(ecn))]
}

fn datagrams() -> [Vec<u8>; 3] {
    let header = PacketHeader {
        count: 63,
        transmission: 1,
        start: 2,
    };
    [
        [&header.emit()[..], b"a symbol"].concat(),
        xnc::emit_acks(&blocks(), MTU).0,
        xnc::emit_ping(u64::MAX),
    ]
}

/// Makes the checksum of the IPv4 header right, so that changes reach what it protects.
fn with_right_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    if let Some(header) = frame.get_mut(ETHERNET..ETHERNET + Ipv4Header::LEN) {
        header[10..12].fill(0);
        let sum = ip::checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    frame
}

fn check_shim(datagram: &[u8]) -> Result<(), TestCaseError> {
    let accepted = SealRing::default().accepts(datagram);
    let Ok((shim, inner)) = Shim::parse(datagram) else {
        prop_assert!(!accepted);
        return Ok(());
    };
    prop_assert!(accepted, "without keys, everything that parses is accepted");
    prop_assert_eq!(inner.len(), datagram.len() - Shim::LEN);
    prop_assert!(shim.sent_micros < 1 << Shim::SENT_BITS);
    let again = [&shim.emit()[..], inner].concat();
    prop_assert_eq!(Shim::parse(&again), Ok((shim, inner)));
    Ok(())
}

fn check_signal(payload: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(signal) = Signal::parse(payload, &key()) {
        let every = signal.probe_every;
        prop_assert!(every == 0 || (every > 1 && every.is_power_of_two()));
        let again = signal.emit(&key()).unwrap();
        prop_assert_eq!(Signal::parse(&again, &key()), Ok(signal));
    }
    Ok(())
}

fn check_echo(datagram: &[u8]) -> Result<(), TestCaseError> {
    let keys = KeyRing::default();
    if let Some(echo) = Echo::parse(datagram, &keys) {
        prop_assert_eq!(datagram.len(), Echo::LEN);
        prop_assert_eq!(Echo::parse(&echo.emit(None), &keys), Some(echo));
    }
    Ok(())
}

fn check_replica(frame: &[u8]) -> Result<(), TestCaseError> {
    let Ok(replica) = Replica::parse(frame) else {
        return Ok(());
    };
    prop_assert!(replica.inner.len() + ETHERNET + OVERHEAD_V4 <= frame.len());
    // A shim may hold anything, but only an IP packet is encapsulated.
    if let Ok(again) = replica.encapsulation.frame(&replica.shim, replica.inner) {
        let again = Replica::parse(&again).expect("an emitted frame is valid");
        prop_assert_eq!(again.encapsulation, replica.encapsulation);
        prop_assert_eq!(again.shim, replica.shim);
        prop_assert_eq!(again.inner, replica.inner);
    }
    Ok(())
}

fn check_headers(packet: &[u8]) -> Result<(), TestCaseError> {
    if let Ok((header, payload)) = Ipv4Header::parse(packet) {
        prop_assert_eq!(
            payload.len() + Ipv4Header::LEN,
            usize::from(header.total_length)
        );
        let again = [&header.emit()[..], payload].concat();
        prop_assert_eq!(Ipv4Header::parse(&again), Ok((header, payload)));
    }
    if let Ok((header, payload)) = Ipv6Header::parse(packet) {
        prop_assert_eq!(payload.len(), usize::from(header.payload_length));
        let again = [&header.emit()[..], payload].concat();
        prop_assert_eq!(Ipv6Header::parse(&again), Ok((header, payload)));
    }
    if let Ok((header, payload)) = UdpHeader::parse(packet) {
        prop_assert_eq!(payload.len() + UdpHeader::LEN, usize::from(header.length));
        let again = [&header.emit()[..], payload].concat();
        prop_assert_eq!(UdpHeader::parse(&again), Ok((header, payload)));
    }
    let mut marked = packet.to_vec();
    if ip::mark_congestion(&mut marked) {
        prop_assert_eq!(
            ip::traffic_class(&marked).map(|class| class & ip::CE),
            Ok(ip::CE)
        );
    } else {
        prop_assert_eq!(&marked[..], packet);
    }
    Ok(())
}

fn check_frame(datagram: &[u8]) -> Result<(), TestCaseError> {
    match Frame::parse(datagram) {
        Err(_) => {}
        Ok(Frame::Packet(header, bytes)) => {
            prop_assert!((1..=xnc::MAX_COUNT).contains(&header.count));
            prop_assert!(header.start < 1 << 24 && !bytes.is_empty());
            let again = [&header.emit()[..], bytes].concat();
            prop_assert_eq!(&again[..], datagram);
        }
        Ok(Frame::Ping(number)) => {
            let again = xnc::emit_ping(number);
            prop_assert_eq!(&again[..], datagram);
        }
        Ok(Frame::Acks(blocks)) => {
            prop_assert!((1..=8).contains(&blocks.len()));
            for AckBlock { ranges, .. } in &blocks {
                prop_assert!((1..=xnc::MAX_RANGES).contains(&ranges.len()));
                prop_assert!(ranges.iter().all(|range| range.start() <= range.end()));
                let is_below =
                    |pair: &[std::ops::RangeInclusive<u64>]| pair[1].end() + 1 < *pair[0].start();
                prop_assert!(ranges.windows(2).all(is_below));
            }
            let (again, emitted) = xnc::emit_acks(&blocks, datagram.len());
            prop_assert_eq!(emitted, blocks.len());
            prop_assert_eq!(&again[..], datagram);
        }
    }
    Ok(())
}

fn check_all(bytes: &[u8]) -> Result<(), TestCaseError> {
    check_shim(bytes)?;
    check_signal(bytes)?;
    check_echo(bytes)?;
    check_replica(bytes)?;
    check_headers(bytes)?;
    check_frame(bytes)
}

proptest! {
    #[test]
    fn any_bytes_are_rejected_or_within_bounds(bytes in vec(any::<u8>(), 0..MTU)) {
        check_all(&bytes)?;
    }

    #[test]
    fn short_bytes_are_rejected_or_within_bounds(bytes in vec(any::<u8>(), 0..64)) {
        check_all(&bytes)?;
    }

    #[test]
    fn a_changed_shim_is_rejected_or_within_bounds(changes in changes(), whole: bool) {
        let sealing = key().for_direction("ingress", "egress");
        let cover = if whole { Cover::Whole } else { Cover::Headers };
        let sealed = shim().sealed(KeySlot::Zero, &sealing, cover, &inner(false));
        let valid = [&sealed.emit()[..], &inner(false)].concat();
        let datagram = changed(&valid, &changes);
        check_shim(&datagram)?;
        let ring = SealRing { slots: [Some(sealing), None], required_cover: cover };
        let covered = if whole { datagram.len().max(valid.len()) } else { Shim::LEN + 24 };
        let is_same = datagram.get(..covered) == valid.get(..covered);
        prop_assert!(is_same || !ring.accepts(&datagram), "a forged shim");
    }

    #[test]
    fn a_changed_signal_is_rejected_or_unchanged(changes in changes()) {
        let valid = signal().emit(&key()).unwrap();
        let payload = changed(&valid, &changes);
        check_signal(&payload)?;
        prop_assert_eq!(Signal::parse(&payload, &key()).is_ok(), payload[..] == valid[..]);
    }

    #[test]
    fn a_signal_of_a_holder_of_the_key_is_rejected_or_within_bounds(
        fields in any::<[u8; 20]>(),
        known: bool,
    ) {
        let mut payload = fields.to_vec();
        if known {
            payload[..2].copy_from_slice(&[0x10, 1]);
            payload[4] &= 0x1f;
            payload[6] &= 0x07;
        }
        let tag = SipHasher24::new_with_key(key().as_bytes()).hash(&payload).to_le_bytes();
        payload.extend(tag);
        check_signal(&payload)?;
    }

    #[test]
    fn a_changed_echo_is_rejected_or_within_bounds(changes in changes()) {
        let echo = Echo { kind: EchoKind::Reply, path: path(4), number: 5, held_micros: 6 };
        check_echo(&changed(&echo.emit(None), &changes))?;
        let valid = echo.emit(Some((KeySlot::One, &key())));
        let datagram = changed(&valid, &changes);
        let ring = KeyRing { slots: [None, Some(key())] };
        prop_assert_eq!(Echo::parse(&datagram, &ring).is_some(), datagram[..] == valid[..]);
    }

    #[test]
    fn a_changed_replica_is_rejected_or_within_bounds(changes in changes(), is_v6: bool) {
        let frame = changed(&frame(is_v6), &changes);
        check_replica(&frame)?;
        check_replica(&with_right_checksum(frame))?;
    }

    #[test]
    fn a_changed_packet_is_rejected_or_within_bounds(changes in changes(), is_v6: bool) {
        let packet = changed(&inner(is_v6), &changes);
        check_headers(&packet)?;
        // The same packet, with a header checksum that fits.
        let frame = with_right_checksum([&[0u8; ETHERNET][..], &packet].concat());
        check_headers(&frame[ETHERNET..])?;
    }

    #[test]
    fn a_changed_frame_of_the_tunnel_is_rejected_or_within_bounds(
        changes in changes(),
        kind in 0..3usize,
    ) {
        check_frame(&changed(&datagrams()[kind], &changes))?;
    }
}
