//! The checks of the parsers, for the property tests and for `fuzz/`: each passes bytes to a parser
//! and panics if what it accepts is not within its bounds or is not emitted as it was parsed.

use hawser_packets::feedback::{
    Age, Arrival, Block, ClockStamp, Feedback, Pose, StampEcho, Totals,
};
use hawser_packets::media::{self, AEAD_TAG, Flags, Header, Hop, MediaTime, ObjectId, PacketId};
use hawser_packets::moq;
use hawser_packets::session::{
    Accept, Announcement, COOKIE, Goodbye, Hello, Kind, MAC, MAX_ANNOUNCEMENT, MAX_RELAYS,
    MAX_TRACKS, Message, Retry, Sealed, Status, Subscribe, Track,
};
use hawser_units::{Ecn, Instant};
use hawser_wire::Key;
use std::num::{NonZeroU8, NonZeroU16};
use std::time::Duration;

pub(crate) fn key() -> Key {
    Key::from_bytes([7; 16])
}

pub(crate) fn hop() -> Hop {
    Hop {
        number: 3,
        key: key(),
    }
}

fn object() -> ObjectId {
    ObjectId {
        alias: 1,
        group: 2,
        object: 3,
        layer: 4,
    }
}

pub(crate) fn media_packet() -> Vec<u8> {
    let header = Header {
        flags: Flags::default(),
        priority: 0,
        id: PacketId {
            object: object(),
            index: 5,
        },
        count: NonZeroU16::new(6),
        deadline: MediaTime(7),
        epoch: 8,
    };
    [&header.emit(&hop())[..], &[9; AEAD_TAG + 10]].concat()
}

pub(crate) fn carried() -> Vec<u8> {
    let packet = media_packet();
    moq::emit([&packet[..]; 3].into_iter()).expect("packets with headers")
}

fn clock() -> ClockStamp {
    ClockStamp {
        sent: Instant::from_nanos(1),
        echo: Some(StampEcho {
            stamp: Instant::from_nanos(2),
            held: Duration::from_micros(3),
        }),
    }
}

pub(crate) fn report() -> Vec<u8> {
    let arrival = Arrival {
        ecn: Ecn::Ce,
        age: Age::of(Duration::from_millis(5)),
    };
    let report = Feedback {
        clock: clock(),
        totals: Totals::default(),
        pose: Pose::new([1.0, 2.0, 3.0], [0.5; 4]),
        blocks: vec![Block {
            object: object(),
            base: 0,
            packets: vec![Some(arrival), None, Some(arrival)],
        }],
    };
    report.emit()
}

/// Returns a plaintext of each kind of message of a session but reports.
pub(crate) fn plaintexts() -> [Vec<u8>; 5] {
    let status = Status {
        clock: clock(),
        publisher_ahead_nanos: -4,
        hop: 5,
        subscription: 24,
        report_interval_ms: NonZeroU8::new(5).unwrap(),
        relays: vec![26, 27],
        epochs: vec![(6, 7), (8, 9)],
    };
    let announcement = Announcement {
        incarnation: [10; 16],
        started_unix_millis: 11,
        tracks: vec![Track {
            alias: 12,
            codec: 13,
            layers: 2,
            name: "left".to_owned(),
            parameters: vec![14; 3],
        }],
    };
    let announcement = announcement.emit().unwrap();
    let subscribe = Subscribe {
        number: 25,
        tracks: vec![(6, 1), (8, 0)],
        any_encoding: true,
    };
    let accept = Accept {
        status: status.clone(),
        hop_salt: [15; 16],
        announcement: &announcement,
    };
    [
        status.emit(),
        accept.emit(),
        subscribe.emit(),
        Goodbye::Revoked.emit().to_vec(),
        announcement,
    ]
}

pub(crate) fn messages() -> [Vec<u8>; 4] {
    let sealed = |kind, randoms| {
        let sealed = Sealed {
            kind,
            session: 16,
            number: 17,
            randoms,
            ciphertext: &[],
        };
        [sealed.clear(), vec![18; AEAD_TAG + 1]].concat()
    };
    let hello = Hello {
        broadcast: [19; 16],
        viewer_random: [20; 16],
        cookie: [21; COOKIE],
        mac: [22; MAC],
    };
    let retry = Retry {
        viewer_random: [20; 16],
        cookie: [21; COOKIE],
    };
    [
        hello.emit(),
        retry.emit(),
        sealed(Kind::Accept, Some([[23; 16]; 2])),
        sealed(Kind::Feedback, None),
    ]
}

/// Checks that the packets of a payload of Media over QUIC are emitted as they were parsed.
pub(crate) fn check_carried(payload: &[u8]) {
    let taken: Vec<_> = moq::packets(payload).collect();
    let packets: Vec<_> = taken.iter().map_while(|packet| packet.ok()).collect();
    assert!(taken.len() - packets.len() <= 1, "it ends at an error");
    let datagrams: Vec<Vec<u8>> = packets.iter().map(|p| p.datagram(&hop())).collect();
    let again = moq::emit(datagrams.iter().map(Vec::as_slice)).expect("packets with headers");
    assert!(payload.starts_with(&again));
    assert!(packets.len() < taken.len() || again.len() == payload.len());
}

pub(crate) fn check_media(datagram: &[u8]) {
    let Ok(packet) = media::Packet::parse(datagram) else {
        return;
    };
    let header = packet.header;
    assert!(header.id.object.layer <= media::MAX_LAYER && packet.sealed.len() > AEAD_TAG);
    let limit = header.count.map_or(u16::MAX, NonZeroU16::get);
    assert!(header.id.index < limit);
    assert_eq!(datagram[..Header::IMMUTABLE], header.immutable());
    let again = [&header.emit(&hop())[..], packet.sealed].concat();
    assert!(media::is_from_hop(&again, &key()));
    let again = media::Packet::parse(&again).expect("an emitted packet is valid");
    assert_eq!((again.header, again.sealed), (header, packet.sealed));
}

pub(crate) fn check_report(bytes: &[u8]) {
    let Ok(report) = Feedback::parse(bytes) else {
        return;
    };
    for block in &report.blocks {
        assert!(!block.packets.is_empty() && block.object.layer <= media::MAX_LAYER);
        assert!(usize::from(block.base) + block.packets.len() <= usize::from(u16::MAX));
    }
    if let Some(pose) = report.pose {
        let mut numbers = pose.position().into_iter().chain(pose.rotation());
        assert!(numbers.all(f32::is_finite));
    }
    assert_eq!(report.emit(), bytes);
}

pub(crate) fn check_message(datagram: &[u8]) {
    let again = match Message::parse(datagram) {
        Err(_) => return,
        Ok(Message::Hello(hello)) => hello.emit(),
        Ok(Message::Retry(retry)) => retry.emit(),
        Ok(Message::Sealed(sealed)) => {
            assert!(sealed.ciphertext.len() > AEAD_TAG);
            [&sealed.clear()[..], sealed.ciphertext].concat()
        }
    };
    assert_eq!(again, datagram);
}

pub(crate) fn check_plaintext(bytes: &[u8]) {
    if let Ok(status) = Status::parse(bytes) {
        assert!(status.epochs.len() <= MAX_TRACKS && status.relays.len() <= MAX_RELAYS);
        assert_eq!(status.emit(), bytes);
    }
    if let Ok(accept) = Accept::parse(bytes) {
        assert!(accept.announcement.len() <= MAX_ANNOUNCEMENT);
        assert_eq!(accept.emit(), bytes);
    }
    if let Ok(subscribe) = Subscribe::parse(bytes) {
        assert!(subscribe.tracks.len() <= MAX_TRACKS);
        let mut layers = subscribe.tracks.iter().map(|(_, layers)| *layers);
        assert!(layers.all(|layers| layers <= media::MAX_LAYER + 1));
        assert_eq!(subscribe.emit(), bytes);
    }
    if let Ok(goodbye) = Goodbye::parse(bytes) {
        assert_eq!(goodbye.emit(), bytes);
    }
    if let Ok(announcement) = Announcement::parse(bytes) {
        assert!(announcement.tracks.len() <= MAX_TRACKS);
        assert_eq!(announcement.emit().as_deref(), Ok(bytes));
    }
}

pub(crate) fn check_all(bytes: &[u8]) {
    check_media(bytes);
    check_carried(bytes);
    check_report(bytes);
    check_message(bytes);
    check_plaintext(bytes);
}
