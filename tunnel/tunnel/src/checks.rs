//! The checks of what a tunnel receives, for the property tests and for `fuzz/`.

use crate::config::FrameBoundary;
use crate::join::{Answer, Hello, Notice, message_bytes};
use crate::packet::{Flows, MIN_URGENT_DSCP, destination, mss, source};
use hawser_units::{Ecn, Instant};
use hawser_wire::ip;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

pub(crate) const HELLOS: [&str; 2] = [
    r#"{"open":{"addresses":["10.77.0.2","fd77::2"],"path":{"index":0,"standby":false}}}"#,
    r#"{"join":{"session":"00112233445566778899aabbccddeeff","path":{"index":7,"standby":true},"proof":"5e"}}"#,
];

pub(crate) const ANSWERS: [&str; 3] = [
    r#"{"opened":{"session":"00112233445566778899aabbccddeeff","addresses":[["10.77.0.2",32]],"server_addresses":["10.77.0.1"],"mtu":1400,"coding":{"expiry_ms":700}}}"#,
    r#""joined""#,
    r#"{"refused":{"reason":"unknown_session","explanation":"it has ended"}}"#,
];

pub(crate) const NOTICES: [&str; 4] = [
    r#"{"standby":true}"#,
    r#""draining""#,
    r#"{"backlog":false}"#,
    r#"{"narrow":1372}"#,
];

/// Parses the messages of a stream, which have their lengths in front of them.
///
/// # Panics
/// If a message is not written as it was read.
pub fn check_stream(mut stream: &[u8]) {
    while let Some((length, rest)) = stream.split_first_chunk()
        && let Ok(length) = message_bytes(*length)
    {
        let (text, rest) = rest.split_at(length.min(rest.len()));
        check_messages(text);
        stream = rest;
    }
}

/// Returns a stream with a valid message of every kind.
pub fn stream() -> Vec<u8> {
    let messages = [&HELLOS[..], &ANSWERS[..], &NOTICES[..]].concat();
    let framed = messages.into_iter().flat_map(|text| {
        let length = u16::try_from(text.len()).expect("a short message");
        [&length.to_be_bytes()[..], text.as_bytes()].concat()
    });
    framed.collect()
}

/// Finds addresses, flow and frames of packets.
///
/// # Panics
/// If the results are not those of an IP packet.
pub fn check_packets(packets: &[Vec<u8>]) {
    let mut flows = Flows::new(FrameBoundary::Rtp);
    for packet in packets {
        check_packet(&mut flows, packet);
    }
}

/// Checks a message as [`crate::join::receive`] parses it; returns whether it is accepted.
pub(crate) fn check_message<T>(text: &[u8]) -> bool
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let Ok(message) = serde_json::from_slice::<T>(text) else {
        return false;
    };
    let again = serde_json::to_vec(&message).expect("a message can be written");
    let again: T = serde_json::from_slice(&again).expect("a written message can be read");
    assert_eq!(again, message);
    true
}

pub(crate) fn check_messages(text: &[u8]) {
    check_message::<Hello>(text);
    check_message::<Answer>(text);
    check_message::<Notice>(text);
}

pub(crate) fn check_packet(flows: &mut Flows, packet: &[u8]) {
    let is_ip = match packet.first().map_or(0, |first| first >> 4) {
        4 => packet.len() >= 20,
        6 => packet.len() >= 40,
        _ => false,
    };
    assert_eq!(source(packet).is_some(), is_ip);
    assert_eq!(destination(packet).is_some(), is_ip);
    let hint = flows.hint(Instant::ZERO, packet);
    let class = ip::traffic_class(packet).unwrap_or_default();
    let ecn = if is_ip {
        Ecn::from_octet(class)
    } else {
        Ecn::NotEct
    };
    assert_eq!(hint.ecn, ecn);
    assert_eq!(hint.urgent, is_ip && class >> 2 >= MIN_URGENT_DSCP);
    assert!(is_ip || !hint.end_of_frame);
    let mut clamped = bytes::Bytes::copy_from_slice(packet);
    mss::clamp(&mut clamped, 1400);
    assert!(is_ip || clamped == packet);
}
