//! The datagrams of both directions, all integers in network byte order:
//!
//! ```text
//! tag (8) | run (8) | uplink (1) | kind (1) | number (8) | sent at (8) | round trip (8)
//! ```
//!
//! The tag is SipHash-2-4 of the rest. A datagram of the sender is padded to [`LENGTH`]; `number` counts those of the
//! uplink, `sent at` is in nanoseconds since the sender's start, `round trip` is the smallest one of the uplink so far
//! in nanoseconds, 0 before the first. An answer returns number and `sent at` of the latest datagram; its last field is
//! the time in nanoseconds for which the receiver held it.

use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// The length of the sender's datagrams in bytes: full packets of 1500 bytes would not pass every cellular network.
pub(super) const LENGTH: usize = 1372;

/// The bytes of IP and UDP headers (IPv4), which count towards rates.
pub(super) const HEADERS: usize = 28;

const FIELDS: usize = 42;
const TAG: usize = 8;

/// The key of both ends.
pub(super) struct Key([u8; 16]);

/// The purpose of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Fills the uplink.
    Data,
    /// The sender has finished.
    End,
    /// From the receiver.
    Answer,
}

/// The fields of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Datagram {
    /// A random number of the sender's run.
    pub(super) run: u64,
    pub(super) uplink: u8,
    pub(super) kind: Kind,
    pub(super) number: u64,
    pub(super) sent_ns: u64,
    /// The smallest round trip, or the time for which the receiver held what it answers.
    pub(super) time_ns: u64,
}

impl Key {
    /// Derives a key from the secret of a broadcast.
    pub(super) fn new(secret: &[u8; 32]) -> Key {
        let half = |number: u8| {
            let mut hasher = SipHasher24::new_with_key(secret.first_chunk().expect("32 bytes"));
            hasher.write(&secret[16..]);
            hasher.write(b"hawser lab collect");
            hasher.write_u8(number);
            hasher.finish().to_be_bytes()
        };
        let mut key = [0; 16];
        key[..8].copy_from_slice(&half(0));
        key[8..].copy_from_slice(&half(1));
        Key(key)
    }

    fn tag(&self, bytes: &[u8]) -> [u8; TAG] {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(bytes);
        hasher.finish().to_be_bytes()
    }
}

impl Datagram {
    /// Returns the bytes.
    pub(super) fn emit(&self, key: &Key) -> Vec<u8> {
        let kind = match self.kind {
            Kind::Data => 0,
            Kind::End => 1,
            Kind::Answer => 2,
        };
        let mut bytes = vec![0; TAG];
        bytes.extend(self.run.to_be_bytes());
        bytes.extend([self.uplink, kind]);
        for field in [self.number, self.sent_ns, self.time_ns] {
            bytes.extend(field.to_be_bytes());
        }
        if self.kind == Kind::Data {
            bytes.resize(LENGTH, 0);
        }
        let tag = key.tag(&bytes[TAG..]);
        bytes[..TAG].copy_from_slice(&tag);
        bytes
    }

    /// Parses a datagram; `None` if the other end has not sent it.
    pub(super) fn parse(bytes: &[u8], key: &Key) -> Option<Datagram> {
        let (tag, rest) = bytes.split_first_chunk::<TAG>()?;
        if rest.len() < FIELDS - TAG || *tag != key.tag(rest) {
            return None;
        }
        let number = |at: usize| {
            let field = rest[at..].first_chunk().expect("the length was checked");
            u64::from_be_bytes(*field)
        };
        Some(Datagram {
            run: number(0),
            uplink: rest[8],
            kind: match rest[9] {
                0 => Kind::Data,
                1 => Kind::End,
                2 => Kind::Answer,
                _ => return None,
            },
            number: number(10),
            sent_ns: number(18),
            time_ns: number(26),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_other_end_is_understood() {
        let key = Key::new(&[7; 32]);
        for kind in [Kind::Data, Kind::End, Kind::Answer] {
            let datagram = Datagram {
                run: 1,
                uplink: 2,
                kind,
                number: 3,
                sent_ns: 4,
                time_ns: 5,
            };
            let mut bytes = datagram.emit(&key);
            assert_eq!(
                bytes.len(),
                if kind == Kind::Data { LENGTH } else { FIELDS }
            );
            assert_eq!(Datagram::parse(&bytes, &key), Some(datagram));
            assert_eq!(Datagram::parse(&bytes, &Key::new(&[8; 32])), None);
            for cut in 0..FIELDS {
                assert_eq!(Datagram::parse(&bytes[..cut], &key), None);
            }
            *bytes.last_mut().unwrap() ^= 1;
            assert_eq!(Datagram::parse(&bytes, &key), None);
        }
    }
}
