//! Decisions of a relay: which packets of an object go to which subscribers.
//!
//! This is the executable specification of the relay in `media/bpf`. Both get the same random
//! operations (`tests/support/operations.rs`) and must agree, so change both or neither. `docs/design/relay.md` gives the reasons.
//!
//! - A packet is dropped unless its upstream's hop tag is right. A packet that was seen before is sent to
//!   no subscriber, and neither is one of an object older than those that are remembered.
//! - When the first packet of an object arrives, it is decided for each subscriber whether it is
//!   served the object ([`Verdict`]). That holds for all packets of the object.
//! - A subscriber's [`Budget`] decides by the bytes that are left when the object begins; what is
//!   sent is charged packet by packet, since the length of an object may not be known before its end.
//! - Of the least important priority that a subscriber is sent, it may get a [`Share`] only: of the groups, or
//!   of the packets where each decodes alone. The kernel passes trains of these whole.
//! - An object is not served if something that it depends on was not.
//!
//! ```
//! use hawser_fanout::{
//!     Budget, Frame, Relay, Selection, SlotIndex, Subscriber, TrackHop, TrackIndex,
//! };
//! use hawser_units::Instant;
//! use hawser_wire::Key;
//! use hawser_packets::media::{Flags, Header, Hop, MediaTime, ObjectId, PacketId};
//!
//! let hop = |number, byte| Hop { number, key: Key::from_bytes([byte; 16]) };
//! let (track, slot) = (TrackIndex::try_from(0)?, SlotIndex::try_from(5)?);
//! let mut relay = Relay::new(1200);
//! relay.set_upstream(1, [Some(hop(3, 0x5a)), None, None]);
//! relay.add_track(track, TrackHop::Own(hop(0, 0xa5)));
//! relay.name_track(1, 7, Some(track));
//! relay.add_subscriber(slot, Subscriber {
//!     is_ipv6: false,
//!     since: Instant::ZERO,
//!     expires: Instant::MAX,
//!     budget: Budget::UNLIMITED,
//! });
//! relay.subscribe(track, slot, Selection { layers: 1, join: Frame::FIRST });
//!
//! let object = ObjectId { alias: 7, group: 0, object: 0, layer: 0 };
//! let header = Header {
//!     flags: Flags::default(),
//!     priority: 0,
//!     id: PacketId { object, index: 0 },
//!     count: None,
//!     deadline: MediaTime(100),
//!     epoch: 0,
//! };
//! let mut datagram = [&header.emit(&hop(3, 0x5a))[..], &[0; 20]].concat();
//! let delivery = relay.handle_datagram(Instant::ZERO, 1, &mut datagram);
//! assert_eq!(delivery.map(|delivery| delivery.to), Ok(vec![slot]));
//! # Ok::<(), hawser_units::OutOfRange>(())
//! ```

mod broken;
mod budget;
mod frame;
mod index;
mod objects;
mod pool;
mod relay;
mod share;
mod slots;
mod verdict;

pub use budget::{Budget, LEVELS, Level, Rate};
pub use frame::Frame;
pub use index::{SlotIndex, TrackIndex};
pub use pool::SlotPool;
pub use relay::{Delivery, Registration, Relay, Selection, SlotStats, Subscriber, TrackHop};
pub use share::Share;
pub use slots::SlotSet;
pub use verdict::{Refusal, Verdict};

/// The maximum number of tracks of a relay.
pub const MAX_TRACKS: usize = 64;

/// The maximum number of subscribers of a relay.
pub const MAX_SLOTS: usize = 1024;

/// The maximum number of packets of an object, which is also that of a viewer.
pub const MAX_PACKETS: u16 = 8192;

/// The number of objects of a track that are remembered.
pub const REMEMBERED_OBJECTS: usize = 64;
