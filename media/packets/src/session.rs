//! Messages between a viewer and the sender of its packets: how a session is opened, what is sent in
//! it, and its end. `docs/design/media.md` draws the bytes and names the keys.
//!
//! Every message begins with [`MESSAGE`], its kind and two zero bytes. [`Hello`] and [`Retry`] are
//! clear. All others are sealed: session, number, ciphertext.

mod announcement;

pub use announcement::{Announcement, MAX_ANNOUNCEMENT, MAX_TRACKS, OPUS, Track};

use crate::clock::ClockStamp;
use crate::cursor::{Cursor, Truncated};
use crate::media::{AEAD_TAG, MAX_LAYER};
use std::num::NonZeroU8;

/// The first byte of a message of version 1. No packet of media begins with it.
pub const MESSAGE: u8 = 0x41;

/// The length of a cookie in bytes.
pub const COOKIE: usize = 24;

/// The length of the authenticators of hellos and announcements in bytes.
pub const MAC: usize = 16;

/// The kind of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A viewer asks for a session.
    Hello = 1,
    /// The sender asks the viewer to repeat its request with a cookie.
    Retry = 2,
    /// The sender opens a session.
    Accept = 3,
    /// The viewer selects tracks and layers.
    Subscribe = 4,
    /// The viewer's report, see [`crate::feedback`].
    Feedback = 5,
    /// The sender's clock and keys.
    Status = 6,
    /// Either end leaves.
    Goodbye = 7,
}

/// A request for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// The tracks that are published together, derived from their secret.
    pub broadcast: [u8; 16],
    /// Random bytes of the viewer, new for each session.
    pub viewer_random: [u8; 16],
    /// The cookie of the sender's [`Retry`]; zeros in the first request.
    pub cookie: [u8; COOKIE],
    /// The authenticator of the bytes before it.
    pub mac: [u8; MAC],
}

/// The answer to a request without a valid cookie. It is shorter than the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The random bytes of the request.
    pub viewer_random: [u8; 16],
    /// The cookie with which the request is to be repeated.
    pub cookie: [u8; COOKIE],
}

/// A message with an encrypted part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed<'a> {
    /// The kind; neither [`Kind::Hello`] nor [`Kind::Retry`].
    pub kind: Kind,
    /// The sender's number of the session.
    pub session: u32,
    /// The number of the message in its direction.
    pub number: u64,
    /// Random bytes of viewer and sender, in [`Kind::Accept`] only.
    pub randoms: Option<[[u8; 16]; 2]>,
    /// The ciphertext, with its authentication tag at the end.
    pub ciphertext: &'a [u8],
}

/// A parsed datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A request for a session.
    Hello(Hello),
    /// A cookie.
    Retry(Retry),
    /// A message of a session.
    Sealed(Sealed<'a>),
}

/// The maximum number of relays between a publisher and a viewer.
pub const MAX_RELAYS: usize = 8;

/// The sender's clock, the keys in use, and what it asks of the viewer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The sender's time, and the viewer's newest time stamp.
    pub clock: ClockStamp,
    /// The publisher's clock less the sender's, in nanoseconds; 0 if the sender is the publisher.
    pub publisher_ahead_nanos: i64,
    /// The number of the hop key.
    pub hop: u16,
    /// The number of the newest selection of tracks that is in force; 0 before the first.
    pub subscription: u8,
    /// The time between reports in milliseconds, from 1 on.
    pub report_interval_ms: NonZeroU8,
    /// The relays between the publisher and the viewer, the publisher's neighbour first, at most
    /// [`MAX_RELAYS`]. Each has a number that it draws at random. One that finds its own has asked for
    /// its own stream.
    pub relays: Vec<u64>,
    /// The key epochs of the tracks, at most [`MAX_TRACKS`], ascending by alias.
    pub epochs: Vec<(u32, u16)>,
}

/// The plaintext of [`Kind::Accept`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accept<'a> {
    /// The sender's clock and keys.
    pub status: Status,
    /// Random bytes from which the hop keys are derived.
    pub hop_salt: [u8; 16],
    /// The publisher's announcement with its authenticator, at most [`MAX_ANNOUNCEMENT`] bytes. A
    /// relay passes it on as it is.
    pub announcement: &'a [u8],
}

/// The plaintext of [`Kind::Subscribe`]. Tracks that are not named are not sent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subscribe {
    /// The number of the selection. The viewer repeats it until a status has it.
    pub number: u8,
    /// Aliases in ascending order, at most [`MAX_TRACKS`], and for each the number of layers to send
    /// from the base on.
    pub tracks: Vec<(u32, u8)>,
    /// Whether one track of each name is enough: tracks with the same name are encodings of the same
    /// source, and the sender chooses one of those that are named here.
    pub any_encoding: bool,
}

/// The bit of the number of tracks that says [`Subscribe::any_encoding`].
const ANY_ENCODING: u8 = 0x80;

/// The plaintext of [`Kind::Goodbye`]: the reason for leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Goodbye {
    /// The user or the end of the stream.
    Ended = 0,
    /// The publisher starts again: a new session is needed.
    Restarting = 1,
    /// The other end may no longer take part.
    Revoked = 2,
    /// The sender has no room.
    Overloaded = 3,
}

/// An error in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message is shorter than its fields require.
    #[error("the message ends early")]
    Truncated,
    /// Bytes follow the end.
    #[error("bytes follow the end of the message")]
    Trailing,
    /// The version or the kind is not known.
    #[error("version or kind of the message is unknown")]
    Unknown,
    /// A field has an invalid value.
    #[error("a field of the message has an invalid value")]
    Invalid,
}

impl From<Truncated> for MessageError {
    fn from(_: Truncated) -> Self {
        MessageError::Truncated
    }
}

fn at_end<T>(value: T, cursor: &Cursor<'_>) -> Result<T, MessageError> {
    let is_empty = cursor.0.is_empty().then_some(value);
    is_empty.ok_or(MessageError::Trailing)
}

fn start(kind: Kind) -> [u8; 4] {
    [MESSAGE, kind as u8, 0, 0]
}

impl Kind {
    fn from_byte(byte: u8) -> Result<Self, MessageError> {
        use Kind::*;
        let kinds = [Hello, Retry, Accept, Subscribe, Feedback, Status, Goodbye];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == byte);
        kind.ok_or(MessageError::Unknown)
    }
}

impl Hello {
    /// The length in bytes.
    pub const LEN: usize = 76;

    /// Returns the bytes that the authenticator covers.
    pub fn covered(&self) -> [u8; Hello::LEN - MAC] {
        let mut bytes = [0; Hello::LEN - MAC];
        bytes[..4].copy_from_slice(&start(Kind::Hello));
        bytes[4..20].copy_from_slice(&self.broadcast);
        bytes[20..36].copy_from_slice(&self.viewer_random);
        bytes[36..].copy_from_slice(&self.cookie);
        bytes
    }

    /// Returns the bytes on the wire.
    pub fn emit(&self) -> Vec<u8> {
        [&self.covered()[..], &self.mac].concat()
    }

    fn parse(mut cursor: Cursor<'_>) -> Result<Self, MessageError> {
        let hello = Hello {
            broadcast: cursor.array()?,
            viewer_random: cursor.array()?,
            cookie: cursor.array()?,
            mac: cursor.array()?,
        };
        at_end(hello, &cursor)
    }
}

impl Retry {
    /// The length in bytes.
    pub const LEN: usize = 44;

    /// Returns the bytes on the wire.
    pub fn emit(&self) -> Vec<u8> {
        [
            &start(Kind::Retry)[..],
            &self.viewer_random,
            &self.cookie[..],
        ]
        .concat()
    }

    fn parse(mut cursor: Cursor<'_>) -> Result<Self, MessageError> {
        let retry = Retry {
            viewer_random: cursor.array()?,
            cookie: cursor.array()?,
        };
        at_end(retry, &cursor)
    }
}

impl<'a> Sealed<'a> {
    /// The length of the clear part in bytes; [`Kind::Accept`] has 32 more.
    pub const LEN: usize = 16;

    /// Returns the clear part, which is the associated data of the ciphertext.
    pub fn clear(&self) -> Vec<u8> {
        let mut bytes = start(self.kind).to_vec();
        bytes.extend(self.session.to_be_bytes());
        bytes.extend(self.number.to_be_bytes());
        bytes.extend(self.randoms.iter().flatten().flatten());
        bytes
    }

    fn parse(kind: Kind, mut cursor: Cursor<'a>) -> Result<Self, MessageError> {
        let (session, number) = (cursor.u32()?, cursor.u64()?);
        let randoms = match kind {
            Kind::Accept => Some([cursor.array()?, cursor.array()?]),
            _ => None,
        };
        if cursor.0.len() <= AEAD_TAG {
            return Err(MessageError::Truncated);
        }
        Ok(Sealed {
            kind,
            session,
            number,
            randoms,
            ciphertext: cursor.0,
        })
    }
}

impl<'a> Message<'a> {
    /// Parses a datagram that begins with [`MESSAGE`].
    pub fn parse(datagram: &'a [u8]) -> Result<Self, MessageError> {
        let mut cursor = Cursor(datagram);
        let [version, kind, zeros @ ..]: [u8; 4] = cursor.array()?;
        if version != MESSAGE {
            return Err(MessageError::Unknown);
        }
        if zeros != [0; 2] {
            return Err(MessageError::Invalid);
        }
        match Kind::from_byte(kind)? {
            Kind::Hello => Hello::parse(cursor).map(Message::Hello),
            Kind::Retry => Retry::parse(cursor).map(Message::Retry),
            kind => Sealed::parse(kind, cursor).map(Message::Sealed),
        }
    }
}

impl Status {
    /// Returns the bytes before they are sealed.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.clock.emit(&mut bytes);
        bytes.extend(self.publisher_ahead_nanos.to_be_bytes());
        bytes.extend(self.hop.to_be_bytes());
        let relays = &self.relays[..self.relays.len().min(MAX_RELAYS)];
        let count = self.epochs.len().min(MAX_TRACKS);
        bytes.extend([self.subscription, self.report_interval_ms.get()]);
        bytes.extend([relays.len() as u8, count as u8]);
        bytes.extend(relays.iter().flat_map(|relay| relay.to_be_bytes()));
        for (alias, epoch) in &self.epochs[..count] {
            bytes.extend(alias.to_be_bytes());
            bytes.extend(epoch.to_be_bytes());
        }
        bytes
    }

    /// Returns the key epoch of a track; 0 if the status does not name it.
    pub fn epoch(&self, alias: u32) -> u16 {
        let mut epochs = self.epochs.iter();
        let named = epochs.find(|(named, _)| *named == alias);
        named.map_or(0, |(_, epoch)| *epoch)
    }

    /// Parses opened bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut cursor = Cursor(bytes);
        let status = Status::read(&mut cursor)?;
        at_end(status, &cursor)
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Self, MessageError> {
        let clock = ClockStamp::parse(cursor)?.ok_or(MessageError::Invalid)?;
        let publisher_ahead_nanos = cursor.u64()?.cast_signed();
        let hop = cursor.u16()?;
        let [subscription, report_interval_ms, relays, count] = cursor.array()?;
        if usize::from(relays) > MAX_RELAYS || usize::from(count) > MAX_TRACKS {
            return Err(MessageError::Invalid);
        }
        let report_interval_ms = NonZeroU8::new(report_interval_ms).ok_or(MessageError::Invalid)?;
        let relays = (0..relays).map(|_| cursor.u64());
        let relays = relays.collect::<Result<_, Truncated>>()?;
        let epochs = (0..count).map(|_| Ok((cursor.u32()?, cursor.u16()?)));
        let epochs: Vec<_> = epochs.collect::<Result<_, Truncated>>()?;
        if !epochs.is_sorted_by(|(one, _), (next, _)| one < next) {
            return Err(MessageError::Invalid);
        }
        Ok(Status {
            clock,
            publisher_ahead_nanos,
            hop,
            subscription,
            report_interval_ms,
            relays,
            epochs,
        })
    }
}

impl<'a> Accept<'a> {
    /// Returns the bytes before they are sealed.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = self.status.emit();
        bytes.extend(self.hop_salt);
        bytes.extend(self.announcement);
        bytes
    }

    /// Parses opened bytes. The announcement is neither authenticated nor parsed.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MessageError> {
        let mut cursor = Cursor(bytes);
        let status = Status::read(&mut cursor)?;
        let hop_salt = cursor.array()?;
        if cursor.0.len() > MAX_ANNOUNCEMENT {
            return Err(MessageError::Invalid);
        }
        Ok(Accept {
            status,
            hop_salt,
            announcement: cursor.0,
        })
    }
}

impl Subscribe {
    /// Returns the bytes before they are sealed: at most [`MAX_TRACKS`] tracks.
    pub fn emit(&self) -> Vec<u8> {
        let count = self.tracks.len().min(MAX_TRACKS);
        let any_encoding = if self.any_encoding { ANY_ENCODING } else { 0 };
        let mut bytes = vec![self.number, count as u8 | any_encoding];
        for (alias, layers) in &self.tracks[..count] {
            bytes.extend(alias.to_be_bytes());
            bytes.push(*layers);
        }
        bytes
    }

    /// Parses opened bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut cursor = Cursor(bytes);
        let [number, count] = cursor.array()?;
        let any_encoding = count & ANY_ENCODING != 0;
        let count = count & !ANY_ENCODING;
        if usize::from(count) > MAX_TRACKS {
            return Err(MessageError::Invalid);
        }
        let tracks = (0..count).map(|_| Ok((cursor.u32()?, cursor.u8()?)));
        let tracks: Vec<_> = tracks.collect::<Result<_, Truncated>>()?;
        let is_in_order = tracks.is_sorted_by(|(one, _), (next, _)| one < next);
        if !is_in_order || tracks.iter().any(|(_, layers)| *layers > MAX_LAYER + 1) {
            return Err(MessageError::Invalid);
        }
        let subscribe = Subscribe {
            number,
            tracks,
            any_encoding,
        };
        at_end(subscribe, &cursor)
    }
}

impl Goodbye {
    /// Returns the byte before it is sealed.
    pub const fn emit(self) -> [u8; 1] {
        [self as u8]
    }

    /// Parses opened bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        match bytes {
            [0] => Ok(Goodbye::Ended),
            [1] => Ok(Goodbye::Restarting),
            [2] => Ok(Goodbye::Revoked),
            [3] => Ok(Goodbye::Overloaded),
            [] => Err(MessageError::Truncated),
            [_] => Err(MessageError::Invalid),
            _ => Err(MessageError::Trailing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::StampEcho;
    use hawser_units::Instant;
    use std::time::Duration;

    fn status() -> Status {
        Status {
            clock: ClockStamp {
                sent: Instant::from_nanos(1),
                echo: Some(StampEcho {
                    stamp: Instant::from_nanos(2),
                    held: Duration::from_micros(3),
                }),
            },
            publisher_ahead_nanos: -4,
            hop: 5,
            subscription: 10,
            report_interval_ms: NonZeroU8::new(100).unwrap(),
            relays: vec![11, u64::MAX],
            epochs: vec![(6, 7), (8, 9)],
        }
    }

    #[test]
    fn plaintexts_are_parsed_back() {
        assert_eq!(Status::parse(&status().emit()), Ok(status()));
        let accept = Accept {
            status: status(),
            hop_salt: [1; 16],
            announcement: &[2; MAX_ANNOUNCEMENT],
        };
        assert_eq!(Accept::parse(&accept.emit()), Ok(accept.clone()));
        for any_encoding in [false, true] {
            let subscribe = Subscribe {
                number: 3,
                tracks: vec![(1, 0), (2, 8)],
                any_encoding,
            };
            assert_eq!(Subscribe::parse(&subscribe.emit()), Ok(subscribe));
        }
        for number in 0..4 {
            let goodbye = Goodbye::parse(&[number]).unwrap();
            assert_eq!(goodbye.emit(), [number]);
        }
    }

    #[test]
    fn the_largest_accept_fits_a_datagram() {
        let mut status = status();
        status.relays = vec![0; MAX_RELAYS];
        status.epochs = (0..MAX_TRACKS as u32).map(|alias| (alias, 0)).collect();
        let accept = Accept {
            status,
            hop_salt: [1; 16],
            announcement: &[2; MAX_ANNOUNCEMENT],
        };
        let length = Sealed::LEN + 32 + accept.emit().len() + AEAD_TAG;
        assert!(length <= crate::media::DEFAULT_DATAGRAM, "{length} bytes");
    }

    #[test]
    fn a_retry_is_shorter_than_the_hello() {
        let hello = Hello {
            broadcast: [1; 16],
            viewer_random: [2; 16],
            cookie: [0; COOKIE],
            mac: [3; MAC],
        };
        let retry = Retry {
            viewer_random: [2; 16],
            cookie: [4; COOKIE],
        };
        assert_eq!(Message::parse(&hello.emit()), Ok(Message::Hello(hello)));
        assert_eq!(Message::parse(&retry.emit()), Ok(Message::Retry(retry)));
        assert_eq!(hello.emit().len(), Hello::LEN);
        assert_eq!(retry.emit().len(), Retry::LEN);
        const { assert!(Retry::LEN < Hello::LEN) };
    }

    #[test]
    fn selected_tracks_out_of_order_twice_or_too_many_are_refused() {
        assert_eq!(Subscribe::parse(&[0, 17]), Err(MessageError::Invalid));
        let subscribed = |bytes: &[u8]| Subscribe::parse(bytes);
        assert_eq!(
            subscribed(&[0, 1, 0, 0, 0, 1, 9]),
            Err(MessageError::Invalid)
        );
        let twice = Subscribe {
            number: 0,
            tracks: vec![(2, 1), (2, 1)],
            any_encoding: false,
        };
        let twice = twice.emit();
        assert_eq!(subscribed(&twice), Err(MessageError::Invalid));
    }

    #[test]
    fn a_status_without_interval_or_of_many_relays_is_refused() {
        let mut bytes = status().emit();
        let at = ClockStamp::LEN + 8 + 2 + 1;
        bytes[at] = 0;
        assert_eq!(Status::parse(&bytes), Err(MessageError::Invalid));
        bytes[at] = 1;
        assert!(Status::parse(&bytes).is_ok());
        bytes[at + 1] = MAX_RELAYS as u8 + 1;
        assert_eq!(Status::parse(&bytes), Err(MessageError::Invalid));
    }

    #[test]
    fn unknown_kinds_and_reserved_bytes_are_refused() {
        let message = |bytes: &[u8]| Message::parse(bytes).unwrap_err();
        assert_eq!(message(&[MESSAGE, 8, 0, 0]), MessageError::Unknown);
        assert_eq!(message(&[0x42, 1, 0, 0]), MessageError::Unknown);
        assert_eq!(message(&[MESSAGE, 1, 0, 1]), MessageError::Invalid);
        let short = [&start(Kind::Status)[..], &[0; 12 + AEAD_TAG]].concat();
        assert_eq!(message(&short), MessageError::Truncated);
    }
}
