//! The checks of the state machines, for their property tests and for `fuzz/`: each takes bytes as a
//! list of what a hostile peer does, and panics if a bound is exceeded.

use crate::keys::TrackSecret;
use crate::object::{ObjectInfo, SealedObject, SealedPacket};
use crate::receiver::{Receiver, ReceiverConfig};
use crate::sender::{Outcome, Rule, Sender, SenderConfig};
use crate::session::{Host, HostConfig, Viewer, ViewerConfig};
use crate::{AccessSecret, ReportConfig, Seed};
use hawser_units::{ByteSize, Ecn, Instant};
use hawser_wire::feedback::{ClockStamp, Feedback, StampEcho, Totals};
use hawser_wire::media::{
    DEFAULT_DATAGRAM, Flags, Header, MAX_LAYER, MediaTime, ObjectId, PacketId,
};
use hawser_wire::session::{Accept, Announcement, Status, Track};
use std::collections::BTreeSet;
use std::num::NonZeroU8;
use std::num::NonZeroU16;
use std::time::Duration;

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

/// Checks that a receiver keeps no more than it may, of authenticated packets with any headers.
pub fn check_receiver(input: &[u8]) {
    let mut input = Input(input);
    let Some([options]) = input.next() else {
        return;
    };
    let config = ReceiverConfig {
        objects: 4,
        packets: 40,
        bytes: 1_000,
        remembered: 6,
        packet_events: options & 1 != 0,
        reports: ReportConfig {
            datagram: if options & 2 != 0 {
                200
            } else {
                DEFAULT_DATAGRAM
            },
            ..ReportConfig::default()
        },
        ..ReceiverConfig::default()
    };
    let accept = Accept {
        status: status(START, None),
        hop_salt: HOP_SALT,
        announcement: &[],
    };
    let mut receiver = Receiver::new(config, &secret(), &announcement(), &accept);
    let mut now = START;
    while let Some(action) = input.next::<12>() {
        match action[0] % 8 {
            0..=4 => {
                let _ =
                    receiver.handle_packet(now, &packet(now, &action), Ecn::from_octet(action[1]));
            }
            5 => now += Duration::from_millis(action[1].into()),
            6 => report(&mut receiver, now, &config, &action),
            _ => drop((0..action[1]).map_while(|_| receiver.poll_event()).count()),
        }
        if receiver.poll_timeout().is_some_and(|due| due <= now) {
            receiver.handle_timeout(now);
        }
        assert!(receiver.buffered() <= config.bytes);
        assert!(receiver.totals().ce_bytes <= receiver.totals().bytes);
    }
    while receiver.poll_event().is_some() {}
    receiver.handle_timeout(Instant::MAX);
    while receiver.poll_event().is_some() {}
    assert_eq!(receiver.buffered(), 0, "everything was given or given up");
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

fn report(receiver: &mut Receiver, now: Instant, config: &ReceiverConfig, action: &[u8; 12]) {
    while let Some(report) = receiver.poll_report(now, None) {
        let bytes = report.emit();
        let overhead = hawser_wire::session::Sealed::LEN + hawser_wire::media::AEAD_TAG;
        assert!(bytes.len() + overhead <= config.reports.datagram);
        assert_eq!(Feedback::parse(&bytes).as_ref(), Ok(&report));
        let echo = StampEcho {
            stamp: report.clock.sent,
            held: Duration::from_micros(action[2].into()),
        };
        let _ = receiver.handle_status(now, &status(now, Some(echo)));
    }
}

/// Checks that a sender believes no report more than it has sent, whatever is reported.
pub fn check_sender(input: &[u8]) {
    let mut input = Input(input);
    let Some([options]) = input.next() else {
        return;
    };
    let config = SenderConfig {
        rule: if options & 1 != 0 {
            Rule::UntilAcknowledged
        } else {
            Rule::Deadline
        },
        ..SenderConfig::new(ByteSize(2_000))
    };
    let mut sender = Sender::new(config);
    let mut ledger = Ledger::default();
    let mut now = START;
    while let Some(action) = input.next::<8>() {
        let mut outcome = Outcome::default();
        match action[0] % 8 {
            0 | 1 => ledger.offer(&mut sender, now, &action),
            2 | 3 => ledger.transmit(&mut sender, now, action[1]),
            4 => now += Duration::from_millis(action[1].into()),
            5 => drop((0..action[1]).map_while(|_| sender.poll_event()).count()),
            _ => {
                let length = usize::from(action[1]).min(input.0.len());
                let (bytes, rest) = input.0.split_at(length);
                input.0 = rest;
                let report = lies(now, &action, bytes);
                let number = action[2].into();
                outcome = sender
                    .handle_feedback(now, number, &report)
                    .unwrap_or_default();
            }
        }
        ledger.settle(&outcome);
        if sender.poll_timeout().is_some_and(|due| due <= now) {
            ledger.settle(&sender.handle_timeout(now));
        }
        ledger.check(&sender);
    }
}

/// The size of every packet that a sender sends, bytes.
const PACKET: usize = 100;

/// The packets that a sender has sent, and their outcomes.
#[derive(Debug, Default)]
struct Ledger {
    sent: u64,
    /// The numbers of transmissions that are not in flight any more. One that was lost may be acknowledged
    /// later.
    settled: BTreeSet<u64>,
    offered: u32,
    largest: u64,
}

impl Ledger {
    fn offer(&mut self, sender: &mut Sender, now: Instant, action: &[u8; 8]) {
        let [_, layer, object, packets, deadline, finish, ..] = *action;
        self.offered += u32::from(object % 3 == 0);
        let id = ObjectId {
            alias: 0,
            group: self.offered,
            object: (object % 3).into(),
            layer: layer & MAX_LAYER,
        };
        let info = ObjectInfo {
            id,
            priority: layer >> 4,
            deadline: now + Duration::from_millis(deadline.into()),
            flags: Flags::default(),
        };
        let packets = (0..u16::from(packets % 12)).map(|index| SealedPacket {
            id: PacketId { object: id, index },
            datagram: vec![0; PACKET].into(),
        });
        let object = SealedObject {
            info,
            packets: packets.collect(),
        };
        self.largest = self.largest.max(object.size().0);
        if finish & 1 != 0 {
            let _ = sender.offer(now, &object);
        } else if sender.admit(now, info, ByteSize(finish.into())).is_ok() {
            sender.push(&id, &object.packets);
        }
    }

    fn transmit(&mut self, sender: &mut Sender, now: Instant, count: u8) {
        for _ in 0..count % 16 {
            if let Some(transmit) = sender.poll_transmit(now) {
                self.sent += transmit.datagram.len() as u64;
            }
        }
    }

    fn settle(&mut self, outcome: &Outcome) {
        let acknowledged = outcome.acknowledged.iter().map(|packet| packet.number);
        self.settled.extend(acknowledged);
        self.settled.extend(&outcome.lost_numbers);
        self.settled.extend(&outcome.abandoned_numbers);
    }

    fn check(&self, sender: &Sender) {
        let settled = (self.settled.len() * PACKET) as u64;
        assert_eq!(self.sent, settled + sender.in_flight().0);
        // Objects that grow may exceed what was reserved for them, each by its own size.
        let bound = 2_000 + u64::from(u8::MAX) + self.largest * (1 + sender.stats().admitted);
        assert!(sender.buffered().0 <= bound);
        assert!(sender.waiting() <= sender.buffered());
        let stats = sender.stats();
        assert!(stats.packets * 100 == stats.bytes && stats.delivered <= stats.admitted);
    }
}

/// Returns a report that parses, with any contents.
fn lies(now: Instant, action: &[u8; 8], bytes: &[u8]) -> Feedback {
    let [_, _, _, packets, ce, time, echo, _] = *action;
    let mut report = Feedback {
        clock: ClockStamp {
            sent: Instant::from_nanos(u64::from(time) << 26),
            echo: (echo > 128).then(|| StampEcho {
                stamp: now - Duration::from_millis(echo.into()),
                held: Duration::from_micros(time.into()),
            }),
        },
        totals: Totals {
            packets: packets.into(),
            bytes: u64::from(packets) * 100,
            ce_bytes: ce.into(),
            refused: 0,
        },
        pose: None,
        blocks: Vec::new(),
    };
    let mut emitted = report.emit();
    // The blocks are taken as they are: group, object, layer, first packet, then packets.
    for [group, object, layer, base, one @ .., last] in bytes.as_chunks::<8>().0 {
        emitted.extend([0, 0, 0, 0, 0, 0, 0, *group, 0, 0, 0, object % 3]);
        // 65,534 is the largest index.
        let is_largest = *base == 255;
        emitted.extend(if is_largest {
            [255, 254, 0, 1]
        } else {
            [0, base % 16, 0, 2]
        });
        emitted.extend([layer & MAX_LAYER, 0, one[0] | 0x80, one[1]]);
        if !is_largest {
            emitted.extend([one[2] | 0x80, *last]);
        }
        emitted[53] += 1;
    }
    if let Ok(parsed) = Feedback::parse(&emitted) {
        report = parsed;
    }
    report
}

/// Checks that both ends of a session take any datagrams, and open none that was not sealed for them.
pub fn check_session(input: &[u8]) {
    let announced = secret().announce(&announcement()).expect("two tracks");
    let mut host = Host::new(HostConfig::new(
        access(),
        announced,
        HOP_SALT,
        Seed::new([4; 32]),
    ));
    let mut viewer = Viewer::new(ViewerConfig::default(), secret(), [5; 16]);
    let from = ([192, 0, 2, 1], 1).into();
    let mut input = Input(input);
    let mut now = START;
    while let Some([action, at, change]) = input.next() {
        now += Duration::from_millis((action >> 3).into());
        let alter = |datagram: &mut Vec<u8>| {
            let at = usize::from(at) % datagram.len().max(1);
            datagram
                .get_mut(at)
                .into_iter()
                .for_each(|byte| *byte ^= change);
        };
        match action % 4 {
            0 => {
                if let Some(mut datagram) = viewer.poll_transmit(now) {
                    alter(&mut datagram);
                    let _ = host.handle_datagram(now, from, &datagram);
                }
            }
            1 => {
                if let Some((_, mut datagram)) = host.poll_transmit() {
                    alter(&mut datagram);
                    let _ = viewer.handle_datagram(now, &datagram, Ecn::NotEct);
                }
            }
            2 => viewer.subscribe(now, vec![(at.into(), change % 9)]),
            _ => {
                let length = usize::from(at).min(input.0.len());
                let _ = host.handle_datagram(now, from, &input.0[..length]);
                let _ = viewer.handle_datagram(now, &input.0[..length], Ecn::Ce);
            }
        }
        host.handle_timeout(now);
        viewer.handle_timeout(now);
        assert!(host.sessions() <= 64);
    }
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
