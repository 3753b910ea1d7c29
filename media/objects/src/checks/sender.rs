use super::{Input, START};
use crate::object::{ObjectInfo, SealedPacket};
use crate::sender::{Outcome, Rule, Sender, SenderConfig, SenderEvent};
use hawser_packets::feedback::{ClockStamp, Feedback, StampEcho, Totals};
use hawser_packets::media::{Flags, MAX_LAYER, ObjectId, PacketId};
use hawser_units::{ByteSize, Instant};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Checks that no report makes a sender count more than it has sent.
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
        ..SenderConfig::new(CAPACITY)
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
            5 => ledger.finish(&mut sender),
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
        ledger.check(&mut sender);
    }
}

/// The size of every packet that a sender sends, bytes.
const PACKET: usize = 100;

/// The size of the in-flight buffer.
const CAPACITY: ByteSize = ByteSize(2_000);

/// The packets that a sender has sent, and their outcomes, and the objects that it keeps.
#[derive(Debug, Default)]
struct Ledger {
    sent: u64,
    /// The numbers of transmissions that are no longer in flight. One that was lost may be acknowledged
    /// later.
    settled: BTreeSet<u64>,
    offered: u32,
    kept: BTreeMap<ObjectId, Kept>,
    /// The object that was admitted last.
    newest: Option<ObjectId>,
}

/// The bytes of an object, and those that are reserved for it until it is finished.
#[derive(Debug, Clone, Copy)]
struct Kept {
    size: u64,
    reserved: u64,
}

impl Ledger {
    fn offer(&mut self, sender: &mut Sender, now: Instant, action: &[u8; 8]) {
        let [_, layer, object, packets, deadline, finish, reserved, _] = *action;
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
        let packets: Vec<SealedPacket> = packets.collect();
        let size = (packets.len() * PACKET) as u64;
        let reserved = if finish & 1 != 0 {
            size
        } else {
            u64::from(reserved) * 4
        };
        if sender.admit(now, info, ByteSize(reserved)).is_err() {
            return;
        }
        self.forget_ended(sender);
        let before = self.bytes();
        assert!(before == 0 || before + reserved <= CAPACITY.0, "no room");
        sender.push(&id, &packets);
        self.kept.insert(id, Kept { size, reserved });
        self.newest = Some(id);
        if finish & 1 != 0 {
            self.finish(sender);
        }
    }

    /// Finishes the object that was admitted last.
    fn finish(&mut self, sender: &mut Sender) {
        if let Some(id) = self.newest {
            sender.finish(&id);
            if let Some(kept) = self.kept.get_mut(&id) {
                kept.reserved = 0;
            }
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

    /// Forgets the objects that the sender has delivered or dropped.
    fn forget_ended(&mut self, sender: &mut Sender) {
        while let Some(event) = sender.poll_event() {
            let (SenderEvent::Delivered { id, .. } | SenderEvent::Dropped { id, .. }) = event;
            assert!(self.kept.remove(&id).is_some(), "ended twice");
        }
    }

    /// Returns the bytes that the buffer holds or has reserved.
    fn bytes(&self) -> u64 {
        let kept = self.kept.values();
        kept.map(|kept| kept.size.max(kept.reserved)).sum()
    }

    fn check(&mut self, sender: &mut Sender) {
        self.forget_ended(sender);
        let settled = (self.settled.len() * PACKET) as u64;
        assert_eq!(self.sent, settled + sender.in_flight().0);
        assert_eq!(sender.buffered().0, self.bytes());
        assert!(sender.waiting() <= sender.buffered());
        let stats = sender.stats();
        assert_eq!(stats.packets * PACKET as u64, stats.bytes);
        let ended = stats.delivered + stats.expired + stats.late + stats.unconfirmed;
        let ended = ended + stats.displaced + stats.dependent;
        assert_eq!(stats.admitted, ended + self.kept.len() as u64);
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
