//! The bytes that the parts of media send each other: packets of media, viewers' reports, messages of a
//! session, and objects in Media over QUIC. Parsing and emitting, nothing else.
//!
//! `docs/design/media.md` draws the bytes and gives the reasons. `testdata/` holds golden vectors that
//! were made without this crate. The eBPF programs read and write the headers of packets in C and are
//! tested against this crate.
//!
//! ```
//! use hawser_packets::media::{AEAD_TAG, Flags, Header, Hop, MediaTime, ObjectId, Packet, PacketId};
//! use hawser_wire::Key;
//! use std::num::NonZeroU16;
//!
//! let header = Header {
//!     flags: Flags::default(),
//!     priority: 0,
//!     id: PacketId {
//!         object: ObjectId { alias: 1, group: 2, object: 3, layer: 0 },
//!         index: 4,
//!     },
//!     count: NonZeroU16::new(5),
//!     deadline: MediaTime(6),
//!     epoch: 7,
//! };
//! let hop = Hop { number: 8, key: Key::from_bytes([0x5a; 16]) };
//! let mut datagram = header.emit(&hop).to_vec();
//! datagram.extend([0; AEAD_TAG + 1]);
//!
//! let packet = Packet::parse(&datagram)?;
//! assert_eq!(packet.header, header);
//! assert_eq!(packet.sealed.len(), AEAD_TAG + 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod clock;
mod cursor;
pub mod feedback;
#[cfg(any(test, feature = "golden"))]
pub mod golden;
pub mod media;
pub mod moq;
pub mod session;
