//! The request and the reply by which two nodes measure the round-trip time of a path.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +-------+-------+---------------+---------------+---------------+
//! |version| flags |     kind      |     path      | reserved, zero|   0
//! +-------+-------+---------------+---------------+---------------+
//! |                            number                             |   4
//! +---------------------------------------------------------------+
//! |                             held                              |   8
//! +---------------------------------------------------------------+
//! |                                                               |  12
//! +                              tag                              +
//! |                                                               |  16
//! +---------------------------------------------------------------+
//! ```
//!
//! The UDP payload is these 20 bytes, which padding may follow in a request. A reply is not longer than
//! its request, so that a spoofed request gains no amplification. The low nibble of the first byte has the flags TAGGED and KEY of a shim.
//! The tag is the SipHash-2-4 of bytes 0 to 11 under the key that the nodes share, whereas the tag
//! of a shim is under keys derived from it.

use crate::keys::{KeyRing, KeySlot};
use hawser_units::PathId;
use hawser_wire::Key;

/// The default UDP port of echo requests.
pub const DEFAULT_PORT: u16 = 14751;

const VERSION: u8 = 1;
const TAGGED: u8 = 0x1;
const KEY: u8 = 0x2;
const COVERED: usize = 12;

/// An echo request or reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// Request or reply.
    pub kind: EchoKind,
    /// The path that it takes.
    pub path: PathId,
    /// The requester's number of the request.
    pub number: u32,
    /// The time for which the replier held the request, in microseconds; 0 in a request.
    pub held_micros: u32,
}

/// The kind of an echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EchoKind {
    /// A request, to be replied to.
    Request,
    /// A reply.
    Reply,
}

impl Echo {
    /// The length of a request and of a reply in bytes.
    pub const LEN: usize = 20;

    /// Returns the bytes on the wire, tagged if a key is given. The slot is the receiver's slot of
    /// the key.
    pub fn emit(&self, key: Option<(KeySlot, &Key)>) -> [u8; Echo::LEN] {
        let flags = match key {
            None => 0,
            Some((KeySlot::Zero, _)) => TAGGED,
            Some((KeySlot::One, _)) => TAGGED | KEY,
        };
        let mut bytes = [0; Echo::LEN];
        bytes[0] = VERSION << 4 | flags;
        bytes[1] = self.kind as u8;
        bytes[2] = self.path.into();
        bytes[4..8].copy_from_slice(&self.number.to_be_bytes());
        bytes[8..COVERED].copy_from_slice(&self.held_micros.to_be_bytes());
        if let Some((_, key)) = key {
            let tag = tag(key, &bytes);
            bytes[COVERED..].copy_from_slice(&tag);
        }
        bytes
    }

    /// Parses a datagram. Returns `None` if it is malformed, or not tagged with one of the keys, if
    /// there are any.
    pub fn parse(datagram: &[u8], keys: &KeyRing) -> Option<Echo> {
        let bytes: &[u8; Echo::LEN] = datagram.try_into().ok()?;
        if bytes[0] >> 4 != VERSION || !is_authentic(bytes, keys) {
            return None;
        }
        let kind = [EchoKind::Request, EchoKind::Reply]
            .into_iter()
            .find(|kind| *kind as u8 == bytes[1])?;
        let word = |at: usize| {
            u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Some(Echo {
            kind,
            path: PathId::try_from(bytes[2]).ok()?,
            number: word(4),
            held_micros: word(8),
        })
    }
}

fn is_authentic(bytes: &[u8; Echo::LEN], keys: &KeyRing) -> bool {
    if keys.slots.iter().all(Option::is_none) {
        return true;
    }
    let slot = usize::from(bytes[0] & KEY != 0);
    let key = keys.slots[slot].as_ref().filter(|_| bytes[0] & TAGGED != 0);
    key.is_some_and(|key| tag(key, bytes) == bytes[COVERED..])
}

fn tag(key: &Key, bytes: &[u8; Echo::LEN]) -> [u8; 8] {
    key.tag(&bytes[..COVERED]).0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Echo {
        Echo {
            kind: EchoKind::Request,
            path: PathId::try_from(4).unwrap(),
            number: 0xdead_beef,
            held_micros: 0,
        }
    }

    #[test]
    fn the_bytes_are_as_drawn() {
        let reply = Echo {
            kind: EchoKind::Reply,
            held_micros: 0x0102_0304,
            ..request()
        };
        let drawn = [
            0x10, 1, 4, 0, 0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(reply.emit(None), drawn);
        assert_eq!(Echo::parse(&drawn, &KeyRing::default()), Some(reply));
    }

    #[test]
    fn no_bit_can_be_changed_under_a_tag() {
        let key = Key::from_bytes([9; 16]);
        let ring = KeyRing {
            slots: [None, Some(key.clone())],
        };
        let good = request().emit(Some((KeySlot::One, &key)));
        assert_eq!(Echo::parse(&good, &ring), Some(request()));
        for bit in 0..Echo::LEN * 8 {
            let mut forged = good;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Echo::parse(&forged, &ring), None, "bit {bit}");
        }
        assert_eq!(Echo::parse(&request().emit(None), &ring), None);
    }

    #[test]
    fn malformed_echoes_are_rejected() {
        let bytes = request().emit(None);
        let long = [&bytes[..], &[0]].concat();
        for datagram in [&bytes[..19], &long, &[]] {
            assert_eq!(Echo::parse(datagram, &KeyRing::default()), None);
        }
        let mut unknown = bytes;
        unknown[1] = 2;
        assert_eq!(Echo::parse(&unknown, &KeyRing::default()), None);
    }
}
