//! The checks of the state machines, for their property tests and for `fuzz/`: each takes bytes as a
//! list of what a hostile peer does, and panics if a bound is exceeded.

mod receiver;
mod sender;
mod session;

pub use receiver::check_receiver;
pub use sender::check_sender;
pub use session::check_session;

use crate::AccessSecret;
use crate::keys::TrackSecret;
use hawser_units::Instant;
use hawser_wire::feedback::{ClockStamp, StampEcho};
use hawser_wire::media::{Flags, Header, MAX_LAYER, MediaTime, ObjectId, PacketId};
use hawser_wire::session::{Announcement, Status, Track};
use std::num::{NonZeroU8, NonZeroU16};

const INCARNATION: [u8; 16] = [2; 16];
const HOP_SALT: [u8; 16] = [3; 16];
const START: Instant = Instant::from_nanos(10_000_000_000);

/// The bytes that are left.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn next<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (next, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*next)
    }
}

fn secret() -> TrackSecret {
    TrackSecret::new([1; 32])
}

fn access() -> AccessSecret {
    secret().access()
}

fn announcement() -> Announcement {
    let track = |alias| Track {
        alias,
        codec: 0,
        layers: MAX_LAYER + 1,
        name: String::new(),
        parameters: Vec::new(),
    };
    Announcement {
        incarnation: INCARNATION,
        started_unix_millis: 0,
        tracks: vec![track(0), track(1)],
    }
}

fn status(now: Instant, echo: Option<StampEcho>) -> Status {
    Status {
        clock: ClockStamp { sent: now, echo },
        publisher_ahead_nanos: 0,
        hop: 0,
        subscription: 1,
        report_interval_ms: NonZeroU8::MIN,
        relays: Vec::new(),
        epochs: vec![(0, 0), (1, 0)],
    }
}

/// Returns a packet of one who has all keys.
fn packet(now: Instant, action: &[u8; 12]) -> Vec<u8> {
    let [
        _,
        flags,
        layer,
        alias,
        group,
        object,
        index,
        count,
        deadline,
        epoch,
        hop,
        length,
    ] = *action;
    let object = ObjectId {
        alias: (alias % 3).into(),
        group: if group > 250 { u32::MAX } else { group.into() },
        object: (object % 4).into(),
        layer: layer & MAX_LAYER,
    };
    let count = NonZeroU16::new((count % 48).into());
    let limit = count.map_or(u16::MAX, NonZeroU16::get);
    let deadline = MediaTime::of(now)
        .0
        .wrapping_add_signed(i32::from(deadline) - 20);
    let header = Header {
        flags: Flags {
            last_in_group: flags & 4 != 0,
            packets_alone: flags & 8 != 0,
            top_layer: flags & 16 != 0,
        },
        priority: 0,
        id: PacketId {
            object,
            index: u16::from(index) % limit,
        },
        count,
        deadline: MediaTime(deadline),
        epoch: (epoch % 4).into(),
    };
    let key = secret().packet_key(&INCARNATION, header.epoch, object.alias);
    let mut sealed = vec![length; usize::from(length) + 1];
    key.seal(header.nonce(), &header.immutable(), &mut sealed);
    let hop = access().hop(&HOP_SALT, (hop % 3).into());
    [&header.emit(&hop)[..], &sealed].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_receiver_stays_within_its_bounds(input in vec(any::<u8>(), 0..3000)) {
            check_receiver(&input);
        }

        #[test]
        fn a_sender_is_not_fooled(input in vec(any::<u8>(), 0..3000)) {
            check_sender(&input);
        }

        #[test]
        fn a_session_takes_any_datagrams(
            input in vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..600),
        ) {
            check_session(&input);
        }
    }
}
