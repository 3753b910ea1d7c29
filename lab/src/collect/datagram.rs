//! The datagrams of both directions, all integers in network byte order:
//!
//! ```text
//! tag (8) | run (8) | receiver (8) | uplink (1) | kind (1) | number (8) | sent at (8) | time (8) | away (8 x 4)
//! ```
//!
//! The tag is SipHash-2-4 of the other fields. [`Kind::Data`] is padded to [`LENGTH`]. An answer returns all fields but
//! the kind.

use super::MAX_UPLINKS;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;

/// The length of a datagram with data in bytes: full packets of 1500 bytes would not pass every cellular network.
pub(super) const LENGTH: usize = 1372;

/// The bytes of IP and UDP headers (IPv4), which count towards rates.
pub(super) const HEADERS: usize = 28;

const FIELDS: usize = TAG + 42 + 4 * MAX_UPLINKS;
const TAG: usize = 8;

/// The key of both ends.
pub(super) struct Key([u8; 16]);

/// The purpose of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Measures the round trip before the uplinks are filled.
    Probe,
    /// Fills the uplink.
    Data,
    /// The sending end has finished.
    End,
    /// Answers a probe.
    Echo,
    /// Answers data.
    Received,
    /// Answers an end: the drives are written.
    Written,
}

/// The fields of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Datagram {
    /// A random number of the sending end's run.
    pub(super) run: u64,
    /// A random number of the receiving end, 0 while the sending end does not know it. A recording of earlier datagrams
    /// does not have it.
    pub(super) receiver: u64,
    pub(super) uplink: u8,
    pub(super) kind: Kind,
    /// Counts the datagrams with data of the uplink.
    pub(super) number: u64,
    /// The time since the sending end started, in nanoseconds.
    pub(super) sent_ns: u64,
    /// In an end the time for which data was sent, otherwise the smallest round trip of the uplink so far, 0 before the
    /// first. In nanoseconds.
    pub(super) time_ns: u64,
    /// For how long each uplink has not been there so far, in milliseconds.
    pub(super) away_ms: [u32; MAX_UPLINKS],
}

impl Kind {
    /// All kinds, in the order of their numbers.
    const ALL: [Kind; 6] = [
        Kind::Probe,
        Kind::Data,
        Kind::End,
        Kind::Echo,
        Kind::Received,
        Kind::Written,
    ];

    /// Returns whether the sending end sends it.
    pub(super) fn is_of_sender(self) -> bool {
        matches!(self, Kind::Probe | Kind::Data | Kind::End)
    }

    /// Returns the length of the datagram in bytes.
    fn length(self) -> usize {
        match self {
            Kind::Data => LENGTH,
            _ => FIELDS,
        }
    }
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
        let mut bytes = vec![0; TAG];
        bytes.extend(self.run.to_be_bytes());
        bytes.extend(self.receiver.to_be_bytes());
        bytes.extend([self.uplink, self.kind as u8]);
        for field in [self.number, self.sent_ns, self.time_ns] {
            bytes.extend(field.to_be_bytes());
        }
        bytes.extend(self.away_ms.iter().flat_map(|ms| ms.to_be_bytes()));
        let tag = key.tag(&bytes[TAG..]);
        bytes[..TAG].copy_from_slice(&tag);
        bytes.resize(self.kind.length(), 0);
        bytes
    }

    /// Parses a datagram; `None` if the other end has not sent it.
    pub(super) fn parse(bytes: &[u8], key: &Key) -> Option<Datagram> {
        let fields: &[u8; FIELDS] = bytes.first_chunk()?;
        let (tag, rest) = fields.split_first_chunk::<TAG>()?;
        if *tag != key.tag(rest) {
            return None;
        }
        let number = |at: usize| {
            let field = rest[at..].first_chunk().expect("the length was checked");
            u64::from_be_bytes(*field)
        };
        let mut away_ms = [0; MAX_UPLINKS];
        for (ms, field) in away_ms.iter_mut().zip(rest[42..].as_chunks().0) {
            *ms = u32::from_be_bytes(*field);
        }
        let kind = *Kind::ALL.get(usize::from(rest[17]))?;
        let is_whole = bytes.len() == kind.length() && usize::from(rest[16]) < MAX_UPLINKS;
        is_whole.then(|| Datagram {
            run: number(0),
            receiver: number(8),
            uplink: rest[16],
            kind,
            number: number(18),
            sent_ns: number(26),
            time_ns: number(34),
            away_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_other_end_is_understood() {
        let key = Key::new(&[7; 32]);
        for kind in Kind::ALL {
            let datagram = Datagram {
                run: 1,
                receiver: 2,
                uplink: 3,
                kind,
                number: 4,
                sent_ns: 5,
                time_ns: 6,
                away_ms: [7, 8, 9, 10, 11, 12, 13, 14],
            };
            let mut bytes = datagram.emit(&key);
            assert_eq!(
                bytes.len(),
                if kind == Kind::Data { LENGTH } else { FIELDS }
            );
            assert_eq!(Datagram::parse(&bytes, &key), Some(datagram));
            assert_eq!(Datagram::parse(&bytes, &Key::new(&[8; 32])), None);
            for cut in 0..bytes.len() {
                assert_eq!(Datagram::parse(&bytes[..cut], &key), None);
            }
            for changed in 0..FIELDS {
                bytes[changed] ^= 1;
                assert_eq!(Datagram::parse(&bytes, &key), None);
                bytes[changed] ^= 1;
            }
        }
    }
}
