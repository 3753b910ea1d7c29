use hawser_units::Instant;
use std::time::Duration;

/// The bytes of messages that a viewer may still send: some for the time that passes, some for each
/// packet that it acknowledges, and a burst at once. It is a token bucket, kept as the time at which it
/// would be full again.
///
/// An honest viewer is never refused. It reports every 5 ms at most, in 180 bytes as they are counted here
/// and what the packets need ([`ReportConfig`](crate::ReportConfig)). A packet is named twice in at most
/// 20 bytes, and for 54 of them there may be another report, so that each pays for itself.
#[derive(Debug)]
pub(super) struct Allowance {
    full_at: Instant,
}

/// The time for which a viewer may send a byte: 62,500 in a second.
const PER_BYTE: Duration = Duration::from_micros(16);

/// The bytes that a message counts for besides its length, so that short ones are bounded, too.
const PER_MESSAGE: usize = 64;

/// The bytes that the acknowledgement of a packet allows for.
const PER_PACKET: usize = 48;

/// The time for which bytes may be saved up: messages that a network held back arrive at once.
const SAVED: Duration = Duration::from_millis(1500);

impl Allowance {
    /// Creates a full allowance.
    pub(super) const fn new() -> Self {
        Allowance {
            full_at: Instant::ZERO,
        }
    }

    /// Returns whether another message may be taken.
    pub(super) fn has_room(&self, now: Instant) -> bool {
        self.full_at.saturating_since(now) < SAVED
    }

    /// Charges a message of this length in bytes.
    pub(super) fn take(&mut self, now: Instant, length: usize) {
        self.full_at = self.full_at.max(now) + time_of(length + PER_MESSAGE);
    }

    /// Allows for the reports of packets that were acknowledged for the first time.
    pub(super) fn earn(&mut self, packets: usize) {
        self.full_at = self.full_at - time_of(packets * PER_PACKET);
    }
}

fn time_of(bytes: usize) -> Duration {
    PER_BYTE * u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reports::{ReportConfig, Reports};
    use hawser_packets::feedback::{ClockStamp, Pose};
    use hawser_packets::media::{AEAD_TAG, ObjectId, PacketId};
    use hawser_packets::session::{Sealed, Status};
    use hawser_units::Ecn;
    use proptest::prelude::*;
    use std::collections::{BTreeSet, VecDeque};
    use std::num::NonZeroU8;

    const START: Instant = Instant::from_nanos(1_000_000_000);
    const STEP: Duration = Duration::from_micros(500);

    #[test]
    fn a_burst_is_taken_and_then_the_rate_and_what_is_acknowledged() {
        let mut allowance = Allowance::new();
        let mut taken = |now: Instant, length: usize, packets: usize| {
            allowance.earn(packets);
            let mut count = 0;
            while allowance.has_room(now) {
                allowance.take(now, length);
                count += 1;
            }
            count
        };
        let second = Duration::from_secs(1);
        assert_eq!(
            taken(START, 1136, 0),
            79,
            "93,750 bytes, and one more begun"
        );
        assert_eq!(taken(START, 1136, 0), 0);
        assert_eq!(taken(START + second, 1136, 0), 52);
        assert_eq!(taken(START + second, 1136, 100), 4);
        assert_eq!(taken(START + 60 * second, 1136, 0), 79);
        assert_eq!(taken(START + 61 * second, 1, 0), 946, "short messages");
    }

    /// The packets that a viewer receives, and the path of its reports to the sender.
    #[derive(Debug, Clone)]
    struct Scene {
        /// The packets in a second.
        packets: u32,
        /// The packets of an object, and the number of objects at the same time.
        object: u16,
        objects: u32,
        /// The number of lost packets among 100, and that of packets that arrive twice.
        lost: u64,
        doubled: u64,
        /// The time between reports that the sender requests, in milliseconds.
        asked: u8,
        /// When the reports are held back for a while, and for how long, in steps.
        held: [u32; 2],
    }

    fn scene() -> impl Strategy<Value = Scene> {
        let rate = prop_oneof![Just(41_000), 10..41_000u32, 100..1000u32];
        let traffic = (rate, 1..2000u16, 1..40u32);
        let asked = prop_oneof![Just(1), Just(5), Just(100)];
        let pause = [0..2000u32, 0..2000u32];
        (traffic, 0..90u64, 0..100u64, asked, pause).prop_map(
            |((packets, object, objects), lost, doubled, asked, held)| Scene {
                packets,
                object,
                objects,
                lost,
                doubled,
                asked,
                held,
            },
        )
    }

    fn status(asked: u8) -> Status {
        Status {
            clock: ClockStamp {
                sent: START,
                echo: None,
            },
            publisher_ahead_nanos: 0,
            hop: 0,
            subscription: 1,
            report_interval_ms: NonZeroU8::new(asked).unwrap(),
            relays: Vec::new(),
            epochs: Vec::new(),
        }
    }

    /// Returns a number below 100 that a packet always has.
    fn chance(packet: u64, purpose: u64) -> u64 {
        let hash = (packet * 4 + purpose).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> 32) % 100
    }

    /// Returns the packet of this number: objects are interleaved.
    fn id(scene: &Scene, number: u64) -> PacketId {
        let (objects, packets) = (u64::from(scene.objects), u64::from(scene.object));
        let round = number / (objects * packets);
        let object = ObjectId {
            alias: (number % objects) as u32,
            group: round as u32,
            object: 0,
            layer: 0,
        };
        let index = number / objects % packets;
        PacketId {
            object,
            index: index as u16,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// From the join on at any rate up to 400 Mb/s, and after a pause of up to a second.
        #[test]
        fn an_honest_viewer_is_never_refused(scene in scene()) {
            let mut reports = Reports::new(ReportConfig::default(), &status(scene.asked));
            let mut allowance = Allowance::new();
            let mut acknowledged = BTreeSet::new();
            let mut on_the_way = VecDeque::new();
            let pose = Pose::new([0.0; 3], [0.0, 0.0, 0.0, 1.0]);
            let (mut sent, mut now) = (0, START);
            for step in 0..6000 {
                now += STEP;
                let until = u64::from(scene.packets) * u64::from(step) / 2000;
                for number in sent..until {
                    let id = id(&scene, number);
                    if chance(number, 0) < scene.lost {
                        reports.note_gap();
                        continue;
                    }
                    reports.count(now, id, 1200, Ecn::Ect1);
                    if chance(number, 1) < scene.doubled {
                        reports.count_again(now, id, Ecn::Ect1);
                    }
                }
                sent = until;
                on_the_way.extend(std::iter::from_fn(|| reports.poll(now, pose)));
                let [from, steps] = scene.held;
                if (from..from + steps).contains(&step) {
                    continue;
                }
                for report in on_the_way.drain(..) {
                    prop_assert!(allowance.has_room(now), "at {step}");
                    allowance.take(now, report.emit().len() + Sealed::LEN + AEAD_TAG);
                    let named = report.blocks.iter().flat_map(|block| {
                        let packets = (block.base..=u16::MAX).zip(&block.packets);
                        let arrived = packets.filter(|(_, arrival)| arrival.is_some());
                        arrived.map(|(index, _)| PacketId { object: block.object, index })
                    });
                    let before = acknowledged.len();
                    acknowledged.extend(named);
                    allowance.earn(acknowledged.len() - before);
                }
            }
        }
    }
}
