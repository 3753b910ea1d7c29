//! The golden vectors of `testdata/`: datagrams made by another implementation, in the format of
//! [`hawser_wire::golden`].

use crate::feedback::{Age, Arrival, Block, ClockStamp, Feedback, Pose, StampEcho, Totals};
use crate::media::{Flags, Header, MediaTime, ObjectId, PacketId};
use crate::session::{Accept, Announcement, Hello, Kind, Status, Subscribe, Track};
use hawser_units::{Ecn, Instant};
use hawser_wire::golden::Fields;
use std::num::{NonZeroU8, NonZeroU16};
use std::sync::LazyLock;
use std::time::Duration;

const PACKETS: [(&str, &str); 2] = [
    (
        "media-packet-base",
        include_str!("../testdata/media-packet-base.txt"),
    ),
    (
        "media-packet-open",
        include_str!("../testdata/media-packet-open.txt"),
    ),
];

const HELLOS: [(&str, &str); 2] = [
    (
        "media-hello-first",
        include_str!("../testdata/media-hello-first.txt"),
    ),
    (
        "media-hello-cookie",
        include_str!("../testdata/media-hello-cookie.txt"),
    ),
];

const ANNOUNCEMENT: &str = include_str!("../testdata/media-announcement.txt");
const ACCEPT: &str = include_str!("../testdata/media-message-accept.txt");
const SUBSCRIBE: &str = include_str!("../testdata/media-message-subscribe.txt");
const REPORT: &str = include_str!("../testdata/media-message-report.txt");
const STATUS: &str = include_str!("../testdata/media-message-status.txt");

/// A packet of media and the values that it was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaVector {
    /// The file's name.
    pub name: &'static str,
    /// The secret of the tracks.
    pub secret: [u8; 32],
    /// The publisher's incarnation.
    pub incarnation: [u8; 16],
    /// The random bytes from which the hop keys are derived.
    pub hop_salt: [u8; 16],
    /// The header without its hop fields.
    pub header: Header,
    /// The number of the hop key.
    pub hop: u16,
    /// The payload before encryption.
    pub payload: Vec<u8>,
    /// The UDP payload.
    pub datagram: Vec<u8>,
}

/// A request for a session and the values that it was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloVector {
    /// The file's name.
    pub name: &'static str,
    /// The secret of the tracks.
    pub secret: [u8; 32],
    /// The request, whose identifier and authenticator are those of the datagram.
    pub hello: Hello,
    /// The UDP payload.
    pub datagram: Vec<u8>,
}

/// An announcement and the values that it was made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnnouncementVector {
    /// The secret of the tracks.
    pub secret: [u8; 32],
    /// The announcement.
    pub announcement: Announcement,
    /// The bytes with the authenticator.
    pub bytes: Vec<u8>,
}

/// A sealed message of a session and the values that it was made from.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageVector<T> {
    /// The kind.
    pub kind: Kind,
    /// The secret of the tracks.
    pub secret: [u8; 32],
    /// The random bytes of viewer and sender.
    pub randoms: [[u8; 16]; 2],
    /// The session.
    pub session: u32,
    /// The number of the message.
    pub number: u64,
    /// The message.
    pub message: T,
    /// The message's bytes before encryption.
    pub plaintext: Vec<u8>,
    /// The UDP payload.
    pub datagram: Vec<u8>,
}

/// Returns all packets of media.
///
/// # Panics
///
/// Panics if a file in `testdata/` is malformed.
pub fn media_packets() -> Vec<MediaVector> {
    PACKETS
        .iter()
        .map(|(name, text)| media_packet(name, text))
        .collect()
}

/// Returns all requests for a session.
///
/// # Panics
///
/// Panics if a file in `testdata/` is malformed.
pub fn hellos() -> Vec<HelloVector> {
    HELLOS
        .iter()
        .map(|(name, text)| {
            let fields = Fields::parse(name, text);
            let datagram = fields.bytes("datagram").to_vec();
            let hello = Hello {
                broadcast: datagram[4..20].try_into().expect("16 bytes"),
                viewer_random: fields.array("viewer_random"),
                cookie: fields.array("cookie"),
                mac: datagram[60..76].try_into().expect("16 bytes"),
            };
            HelloVector {
                name,
                secret: fields.array("secret"),
                hello,
                datagram,
            }
        })
        .collect()
}

/// Returns an announcement of two tracks.
///
/// # Panics
///
/// Panics if the file in `testdata/` is malformed.
pub fn announcement() -> AnnouncementVector {
    let fields = Fields::parse("media-announcement", ANNOUNCEMENT);
    let track = |alias, layers, name: &str, parameters: &[u8]| Track {
        alias,
        codec: 1,
        layers,
        name: name.to_owned(),
        parameters: parameters.to_vec(),
    };
    AnnouncementVector {
        secret: fields.array("secret"),
        announcement: Announcement {
            incarnation: std::array::from_fn(|at| 0x40 + at as u8),
            started_unix_millis: 1_795_000_000_000,
            tracks: vec![track(7, 2, "left", &[1, 2, 3]), track(8, 1, "right", &[])],
        },
        bytes: fields.bytes("datagram").to_vec(),
    }
}

/// Returns a sealed report.
///
/// # Panics
///
/// Panics if the file in `testdata/` is malformed.
pub fn report() -> MessageVector<Feedback> {
    let fields = Fields::parse("media-message-report", REPORT);
    message(&fields, Kind::Feedback, feedback())
}

/// Returns a sealed selection of tracks.
///
/// # Panics
///
/// Panics if the file in `testdata/` is malformed.
pub fn subscribe() -> MessageVector<Subscribe> {
    let fields = Fields::parse("media-message-subscribe", SUBSCRIBE);
    let [number] = fields.array("selection");
    let (tracks, _) = fields.bytes("tracks").as_chunks();
    let track = |[alias @ .., layers]: &[u8; 5]| (u32::from_be_bytes(*alias), *layers);
    let tracks = tracks.iter().map(track).collect();
    let subscribe = Subscribe {
        number,
        tracks,
        any_encoding: false,
    };
    message(&fields, Kind::Subscribe, subscribe)
}

/// Returns a sealed status.
///
/// # Panics
///
/// Panics if the file in `testdata/` is malformed.
pub fn status() -> MessageVector<Status> {
    let fields = Fields::parse("media-message-status", STATUS);
    message(&fields, Kind::Status, status_of(&fields))
}

/// Returns a sealed answer to a hello, with the announcement of [`announcement`].
///
/// # Panics
///
/// Panics if the file in `testdata/` is malformed.
pub fn accept() -> MessageVector<Accept<'static>> {
    static ANNOUNCED: LazyLock<Vec<u8>> = LazyLock::new(|| announcement().bytes);
    let fields = Fields::parse("media-message-accept", ACCEPT);
    let accept = Accept {
        status: status_of(&fields),
        hop_salt: fields.array("hop_salt"),
        announcement: &ANNOUNCED,
    };
    message(&fields, Kind::Accept, accept)
}

fn message<T>(fields: &Fields<'_>, kind: Kind, message: T) -> MessageVector<T> {
    assert_eq!(fields.array("kind"), [kind as u8]);
    MessageVector {
        kind,
        secret: fields.array("secret"),
        randoms: ["viewer_random", "sender_random"].map(|name| fields.array(name)),
        session: u32::from_be_bytes(fields.array("session")),
        number: u64::from_be_bytes(fields.array("number")),
        message,
        plaintext: fields.bytes("plaintext").to_vec(),
        datagram: fields.bytes("datagram").to_vec(),
    }
}

fn status_of(fields: &Fields<'_>) -> Status {
    let long = |name| u64::from_be_bytes(fields.array(name));
    let held = u32::from_be_bytes(fields.array("held_us"));
    let echo = StampEcho {
        stamp: Instant::from_nanos(long("echo_ns")),
        held: Duration::from_micros(held.into()),
    };
    let [subscription] = fields.array("selection");
    let [report_interval_ms] = fields.array("report_interval_ms");
    let (relays, _) = fields.bytes("relays").as_chunks();
    let (epochs, _) = fields.bytes("epochs").as_chunks();
    let epoch = |[a, b, c, d, epoch @ ..]: &[u8; 6]| {
        (
            u32::from_be_bytes([*a, *b, *c, *d]),
            u16::from_be_bytes(*epoch),
        )
    };
    Status {
        clock: ClockStamp {
            sent: Instant::from_nanos(long("sent_ns")),
            echo: (held != u32::MAX).then_some(echo),
        },
        publisher_ahead_nanos: long("publisher_ahead_ns").cast_signed(),
        hop: u16::from_be_bytes(fields.array("hop")),
        subscription,
        report_interval_ms: NonZeroU8::new(report_interval_ms).expect("not zero"),
        relays: relays.iter().copied().map(u64::from_be_bytes).collect(),
        epochs: epochs.iter().map(epoch).collect(),
    }
}

fn media_packet(name: &'static str, text: &str) -> MediaVector {
    let fields = Fields::parse(name, text);
    let word = |name| u32::from_be_bytes(fields.array(name));
    let half = |name| u16::from_be_bytes(fields.array(name));
    let [[flags], [priority], [layer]] =
        ["flags", "priority", "layer"].map(|name| fields.array(name));
    let object = ObjectId {
        alias: word("alias"),
        group: word("group"),
        object: word("object"),
        layer,
    };
    MediaVector {
        name,
        secret: fields.array("secret"),
        incarnation: fields.array("incarnation"),
        hop_salt: fields.array("hop_salt"),
        header: Header {
            flags: Flags {
                last_in_group: flags & 1 != 0,
                packets_alone: flags & 2 != 0,
                top_layer: flags & 4 != 0,
            },
            priority,
            id: PacketId {
                object,
                index: half("index"),
            },
            count: NonZeroU16::new(half("count")),
            deadline: MediaTime(word("deadline")),
            epoch: half("epoch"),
        },
        hop: half("hop"),
        payload: fields.bytes("payload").to_vec(),
        datagram: fields.bytes("datagram").to_vec(),
    }
}

/// Returns the report that the comment of the file describes.
fn feedback() -> Feedback {
    let arrival = |ecn, age| Some(Arrival { ecn, age });
    let block = |alias, group, object, layer, base, packets| Block {
        object: ObjectId {
            alias,
            group,
            object,
            layer,
        },
        base,
        packets,
    };
    let first = arrival(Ecn::Ect1, Age::of(Duration::from_micros(1600)));
    let last = arrival(Ecn::Ce, Age::SATURATED);
    let other = arrival(Ecn::Ect0, Age::UNKNOWN);
    Feedback {
        clock: clock(),
        totals: Totals {
            packets: 1000,
            bytes: 1_148_000,
            ce_bytes: 11_480,
            refused: 3,
        },
        pose: Pose::new([1.5, -0.25, 2.0], [0.0, 0.6, 0.0, 0.8]),
        blocks: vec![
            block(7, 300, 0, 0, 2, vec![first, None, last]),
            block(8, u32::MAX, 1, 7, 65_534, vec![other]),
        ],
    }
}

fn clock() -> ClockStamp {
    ClockStamp {
        sent: Instant::from_nanos(5_000_000_000),
        echo: Some(StampEcho {
            stamp: Instant::from_nanos(4_000_000_000),
            held: Duration::from_micros(1500),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::Packet;
    use crate::session::{MAC, Message, Sealed};

    #[test]
    fn packets_of_media_are_those_of_the_other_implementation() {
        for vector in media_packets() {
            let packet = Packet::parse(&vector.datagram).unwrap();
            assert_eq!(packet.header, vector.header, "{}", vector.name);
            assert_eq!(packet.hop, vector.hop, "{}", vector.name);
            let immutable = vector.header.immutable();
            assert_eq!(immutable, vector.datagram[..Header::IMMUTABLE]);
        }
    }

    #[test]
    fn hellos_are_those_of_the_other_implementation() {
        for vector in hellos() {
            let parsed = Message::parse(&vector.datagram);
            assert_eq!(parsed, Ok(Message::Hello(vector.hello)), "{}", vector.name);
            assert_eq!(vector.hello.emit(), vector.datagram, "{}", vector.name);
        }
    }

    #[test]
    fn announcements_are_those_of_the_other_implementation() {
        let vector = announcement();
        let (covered, _) = vector.bytes.split_at(vector.bytes.len() - MAC);
        assert_eq!(vector.announcement.emit().as_deref(), Ok(covered));
        assert_eq!(Announcement::parse(covered), Ok(vector.announcement));
    }

    /// Checks the plaintext that was emitted, and the clear part of the datagram.
    fn check<T>(vector: &MessageVector<T>, emitted: &[u8]) {
        assert_eq!(hex::encode(emitted), hex::encode(&vector.plaintext));
        let randoms = (vector.kind == Kind::Accept).then_some(vector.randoms);
        let mut sealed = Sealed {
            kind: vector.kind,
            session: vector.session,
            number: vector.number,
            randoms,
            ciphertext: &[],
        };
        sealed.ciphertext = &vector.datagram[sealed.clear().len()..];
        let parsed = Message::parse(&vector.datagram);
        assert_eq!(parsed, Ok(Message::Sealed(sealed)));
    }

    #[test]
    fn messages_are_those_of_the_other_implementation() {
        let report = report();
        check(&report, &report.message.emit());
        assert_eq!(Feedback::parse(&report.plaintext), Ok(report.message));
        let subscribe = subscribe();
        check(&subscribe, &subscribe.message.emit());
        let parsed = Subscribe::parse(&subscribe.plaintext);
        assert_eq!(parsed, Ok(subscribe.message));
        let status = status();
        check(&status, &status.message.emit());
        assert_eq!(Status::parse(&status.plaintext), Ok(status.message));
        let accept = accept();
        check(&accept, &accept.message.emit());
        assert_eq!(Accept::parse(&accept.plaintext), Ok(accept.message));
    }
}
