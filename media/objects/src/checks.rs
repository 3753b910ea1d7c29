//! The checks of the state machines, for their property tests and for `fuzz/`: each takes bytes as a
//! list of actions of a hostile peer, and panics if a bound is exceeded.

mod hostile;
mod receiver;
mod sender;
mod session;
mod upstream;

pub use hostile::HostileViewer;
pub use receiver::check_receiver;
pub use sender::check_sender;
pub use session::check_session;
pub use upstream::check_upstream;

use crate::keys::{AccessSecret, Seed, TrackSecret};
use crate::{FlowConfig, MakeControl, Publication, PublicationConfig};
use hawser_packets::feedback::{ClockStamp, Feedback, StampEcho};
use hawser_packets::media::{Flags, Header, MAX_LAYER, MediaTime, ObjectId, PacketId};
use hawser_packets::session::{Announcement, Status, Track};
use hawser_units::{ByteSize, Instant};
use std::num::{NonZeroU8, NonZeroU16};
use std::time::Duration;

const INCARNATION: [u8; 16] = [2; 16];
const HOP_SALT: [u8; 16] = [3; 16];
/// The aliases of the tracks.
pub const TRACKS: [u32; 2] = [0, 1];

/// The time from the capture of a frame to its deadline.
const LIFETIME: Duration = Duration::from_millis(150);

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

pub(crate) fn secret() -> TrackSecret {
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
        tracks: TRACKS.map(track).into(),
    }
}

/// Returns a publication of two tracks for four viewers, each with a buffer of this size.
///
/// # Panics
///
/// Never panics: the tracks fit an announcement.
pub fn publication(capacity: ByteSize, make_control: MakeControl) -> Publication {
    let config = PublicationConfig {
        announcement: announcement(),
        lifetime: LIFETIME,
        flow: FlowConfig::new(capacity),
        viewers: 4,
        hop_salt: HOP_SALT,
        seed: Seed::new([4; 32]),
    };
    Publication::new(config, &secret(), make_control).expect("two tracks")
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

/// Returns the packets that a report acknowledges.
fn named(report: &Feedback) -> impl Iterator<Item = PacketId> + '_ {
    report.blocks.iter().flat_map(|block| {
        let packets = (block.base..).zip(&block.packets);
        let arrived = packets.filter(|(_, arrival)| arrival.is_some());
        arrived.map(|(index, _)| PacketId {
            object: block.object,
            index,
        })
    })
}

/// Returns a packet of a sender that has all keys.
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
    use hawser_congestion::{Prague, PragueConfig};
    use hawser_packets::feedback::{Age, Arrival, Block, Totals};
    use hawser_units::Ecn;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Returns bytes of which many are small, so that packets are often of the same object, and others.
    fn input() -> impl Strategy<Value = Vec<u8>> {
        let often_small = prop_oneof![2 => 0..4u8, 1 => any::<u8>()];
        prop_oneof![vec(any::<u8>(), 0..3000), vec(often_small, 0..3000)]
    }

    proptest! {
        #[test]
        fn a_receiver_stays_within_its_bounds(input in input()) {
            check_receiver(&input);
        }

        #[test]
        fn a_sender_is_not_fooled(input in input()) {
            check_sender(&input);
        }

        #[test]
        fn a_relay_takes_each_packet_once(input in input()) {
            check_upstream(&input);
        }

        #[test]
        fn a_session_takes_any_datagrams(
            input in vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..600),
        ) {
            check_session(&input);
        }
    }

    #[test]
    fn a_relay_reports_after_any_silence() {
        for pauses in 1..40 {
            let pause = [12, 250, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            let report = [14, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            check_upstream(&[pause.repeat(pauses), report.to_vec()].concat());
        }
    }

    #[test]
    fn few_reports_are_read_of_a_viewer_that_acknowledges_nothing() {
        let control = |now| Box::new(Prague::new(PragueConfig::default(), now)) as _;
        let mut publication = publication(ByteSize(1_000_000), Box::new(control));
        let address = ([192, 0, 2, 1], 1).into();
        let mut viewer = HostileViewer::join(&mut publication, START, address, &TRACKS).unwrap();
        let arrival = Arrival {
            ecn: Ecn::Ect1,
            age: Age::UNKNOWN,
        };
        let object = ObjectId {
            alias: 0,
            group: 0,
            object: 0,
            layer: 0,
        };
        let mut taken = 0;
        for micros in (0..4_000_000).step_by(500) {
            let now = START + Duration::from_micros(micros);
            let report = Feedback {
                clock: ClockStamp {
                    sent: now,
                    echo: None,
                },
                totals: Totals::default(),
                pose: None,
                blocks: vec![Block {
                    object,
                    base: 0,
                    packets: vec![Some(arrival); 500],
                }],
            };
            let datagram = viewer.report(&report, 0);
            taken += u32::from(publication.handle_datagram(now, address, &datagram).is_ok());
        }
        // 79 of the 8,000 at once, and 53 in a second.
        assert!((280..300).contains(&taken), "{taken}");
        assert_eq!(publication.host_stats().too_many, 8000 - u64::from(taken));
    }
}
