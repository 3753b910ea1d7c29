use crate::feedback::{Acked, Feedback, Refusals};
use hawser_units::{ByteSize, Ecn, Instant};
use std::collections::VecDeque;
use std::time::Duration;

/// The number of packets that are remembered: 1.7 s of 1200-byte packets at 90 Mb/s.
const CAPACITY: usize = 16_384;

/// The largest packet that UDP carries.
const LARGEST: ByteSize = ByteSize(65_535);

/// The time for which a packet without a report counts as in flight, and a lost one is remembered.
const MEMORY: Duration = Duration::from_secs(2);

/// The bounded record of the packets that were sent. It decides which items of a report can be true.
#[derive(Debug, Clone, Default)]
pub struct SentPackets {
    packets: VecDeque<SentPacket>,
    in_flight: u64,
    newest: Option<u64>,
    /// The highest number that was forgotten without having arrived. Packets up to it may still be
    /// reported by an honest receiver.
    forgotten: Option<u64>,
    latest: Instant,
    latest_report: Instant,
    refusals: Refusals,
}

/// The items of a report that are consistent with what was sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Confirmed {
    /// Packets that arrived, in the order of the report.
    pub arrived: Vec<Arrived>,
    /// Packets that were lost.
    pub lost: Vec<Lost>,
    /// Bytes of the packets in `arrived`.
    pub acked: ByteSize,
    /// Bytes of those that carried CE.
    pub marked: ByteSize,
    /// Bytes of those whose ECN field was neither ECT(1) nor CE.
    pub bleached: ByteSize,
    /// Numbers of packets in `arrived` that had been reported lost.
    pub spurious: Vec<u64>,
}

/// A packet that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub number: u64,
    /// Its size.
    pub size: ByteSize,
    /// When it left.
    pub sent_at: Instant,
    /// When it arrived, on the sender's clock and later by the delay of the report.
    pub arrived_at: Instant,
    /// When it arrived, on the receiver's clock.
    pub received_at: Instant,
    /// The ECN field with which it arrived.
    pub ecn: Ecn,
}

impl Arrived {
    /// Returns the round-trip time without the time for which the receiver held the report.
    pub fn rtt(&self) -> Duration {
        self.arrived_at.saturating_since(self.sent_at)
    }

    /// Returns the nanoseconds from its departure to its arrival, from the sender's clock to the
    /// receiver's: only differences mean something.
    pub fn forward_ns(&self) -> i64 {
        let nanos = i128::from(self.received_at.as_nanos()) - i128::from(self.sent_at.as_nanos());
        nanos.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}

/// A packet that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// Its number.
    pub number: u64,
    /// Its size.
    pub size: ByteSize,
}

#[derive(Debug, Clone, Copy)]
struct SentPacket {
    number: u64,
    size: ByteSize,
    sent_at: Instant,
    fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    InFlight,
    /// Nothing was heard for so long that the packet no longer counts as in flight.
    Unheard,
    Arrived,
    Lost,
}

impl Confirmed {
    /// Returns whether the report said anything that counts.
    pub fn is_empty(&self) -> bool {
        self.arrived.is_empty() && self.lost.is_empty()
    }

    /// Returns the packet that was sent last of those that arrived.
    pub fn newest(&self) -> Option<&Arrived> {
        self.arrived.iter().max_by_key(|packet| packet.number)
    }

    /// Returns the highest number of the packets that carried CE.
    pub fn newest_marked(&self) -> Option<u64> {
        let marked = self.arrived.iter().filter(|packet| packet.ecn == Ecn::Ce);
        marked.map(|packet| packet.number).max()
    }

    /// Returns the shortest round-trip time of the packets that arrived.
    pub fn shortest_rtt(&self) -> Option<Duration> {
        self.arrived.iter().map(Arrived::rtt).min()
    }

    fn add_arrived(&mut self, packet: Arrived, was_lost: bool) {
        self.acked += packet.size;
        match packet.ecn {
            Ecn::Ce => self.marked += packet.size,
            Ecn::Ect1 => {}
            Ecn::Ect0 | Ecn::NotEct => self.bleached += packet.size,
        }
        if was_lost {
            self.spurious.push(packet.number);
        }
        self.arrived.push(packet);
    }
}

impl SentPackets {
    /// Records a packet. One whose number or time does not increase, or that is larger than UDP carries,
    /// is refused.
    pub fn insert(&mut self, now: Instant, number: u64, size: ByteSize) {
        let is_repeated = self.newest.is_some_and(|newest| number <= newest);
        if is_repeated || now < self.latest || size > LARGEST {
            self.refusals.unsendable += 1;
            return;
        }
        self.forget_old(now);
        self.newest = Some(number);
        self.latest = now;
        self.in_flight = self.in_flight.saturating_add(size.0);
        self.packets.push_back(SentPacket {
            number,
            size,
            sent_at: now,
            fate: Fate::InFlight,
        });
    }

    /// Takes what can be true from a report.
    pub fn confirm(&mut self, feedback: &Feedback<'_>) -> Confirmed {
        let mut confirmed = Confirmed::default();
        if feedback.now < self.latest_report {
            self.refusals.out_of_order += 1;
            return confirmed;
        }
        self.latest_report = feedback.now;
        self.forget_old(feedback.now);
        for acked in feedback.acked {
            self.confirm_arrival(feedback, acked, &mut confirmed);
        }
        for number in feedback.lost {
            self.confirm_loss(*number, &mut confirmed);
        }
        for number in feedback.abandoned {
            self.abandon(*number);
        }
        confirmed
    }

    /// Returns the bytes of packets of unknown fate.
    pub fn in_flight(&self) -> ByteSize {
        ByteSize(self.in_flight)
    }

    /// Returns the number of the packet that was sent last.
    pub fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// Returns when the oldest packet of unknown fate left.
    pub fn oldest_in_flight(&self) -> Option<Instant> {
        let waiting = |packet: &&SentPacket| packet.fate == Fate::InFlight;
        self.packets.iter().find(waiting).map(|p| p.sent_at)
    }

    /// Ceases to count packets that left before `sent_before` as in flight. They can still be
    /// confirmed.
    pub fn give_up(&mut self, sent_before: Instant) {
        let old = self.packets.iter_mut();
        for packet in old.take_while(|packet| packet.sent_at < sent_before) {
            if packet.fate == Fate::InFlight {
                packet.fate = Fate::Unheard;
                self.in_flight = self.in_flight.saturating_sub(packet.size.0);
            }
        }
    }

    /// Returns the packets of unknown fate that left before `sent_before`.
    pub fn overdue(&self, sent_before: Instant) -> impl Iterator<Item = u64> + '_ {
        self.packets
            .iter()
            .take_while(move |packet| packet.sent_at < sent_before)
            .filter(|packet| packet.fate == Fate::InFlight)
            .map(|packet| packet.number)
    }

    /// Returns what was refused so far.
    pub fn refusals(&self) -> Refusals {
        self.refusals
    }

    /// Forgets the packets that are too old or too many to remember.
    pub(crate) fn forget_old(&mut self, now: Instant) {
        while let Some(oldest) = self.packets.front() {
            let is_old = now.saturating_since(oldest.sent_at) > MEMORY;
            if oldest.fate != Fate::Arrived && !is_old && self.packets.len() < CAPACITY {
                return;
            }
            if oldest.fate == Fate::InFlight {
                self.in_flight = self.in_flight.saturating_sub(oldest.size.0);
            }
            if oldest.fate != Fate::Arrived {
                self.forgotten = Some(oldest.number);
            }
            self.packets.pop_front();
        }
    }

    fn confirm_arrival(
        &mut self,
        feedback: &Feedback<'_>,
        acked: &Acked,
        confirmed: &mut Confirmed,
    ) {
        let now = feedback.now;
        let Some(index) = self.find(acked.number) else {
            return self.refuse_missing(acked.number);
        };
        let packet = self.packets[index];
        if packet.fate == Fate::Arrived {
            self.refusals.repeated += 1;
            return;
        }
        if now < packet.sent_at || now.saturating_since(packet.sent_at) < acked.held {
            self.refusals.impossible_time += 1;
            return;
        }
        let arrived = Arrived {
            number: packet.number,
            size: packet.size,
            sent_at: packet.sent_at,
            arrived_at: now - acked.held,
            received_at: feedback.reported - acked.held,
            ecn: acked.ecn,
        };
        self.settle(index, Fate::Arrived);
        confirmed.add_arrived(arrived, packet.fate == Fate::Lost);
    }

    fn confirm_loss(&mut self, number: u64, confirmed: &mut Confirmed) {
        let Some(index) = self.find(number) else {
            return self.refuse_missing(number);
        };
        let SentPacket { size, fate, .. } = self.packets[index];
        if matches!(fate, Fate::Arrived | Fate::Lost) {
            self.refusals.repeated += 1;
            return;
        }
        self.settle(index, Fate::Lost);
        confirmed.lost.push(Lost { number, size });
    }

    fn abandon(&mut self, number: u64) {
        match self.find(number) {
            Some(index) if self.packets[index].fate == Fate::InFlight => {
                self.settle(index, Fate::Unheard);
            }
            Some(_) => {}
            None => self.refuse_missing(number),
        }
    }

    fn settle(&mut self, index: usize, fate: Fate) {
        let packet = &mut self.packets[index];
        if packet.fate == Fate::InFlight {
            self.in_flight = self.in_flight.saturating_sub(packet.size.0);
        }
        packet.fate = fate;
    }

    /// Counts a packet that is not in the record. Nothing is known of those that were forgotten, so
    /// they are not counted. Later ones before the record's begin had arrived.
    fn refuse_missing(&mut self, number: u64) {
        let first = self.packets.front().map(|packet| packet.number);
        let is_before = first.or(self.newest).is_some_and(|first| number <= first);
        if self.forgotten.is_some_and(|forgotten| number <= forgotten) {
            return;
        }
        if is_before {
            self.refusals.repeated += 1;
        } else {
            self.refusals.unknown += 1;
        }
    }

    fn find(&self, number: u64) -> Option<usize> {
        let index = self.packets.partition_point(|p| p.number < number);
        let packet = self.packets.get(index)?;
        (packet.number == number).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn sent(count: u64) -> SentPackets {
        let mut packets = SentPackets::default();
        for number in 1..=count {
            packets.insert(Instant::ZERO + MS * number as u32, number, ByteSize(100));
        }
        packets
    }

    fn report(packets: &mut SentPackets, at: u32, acked: &[(u64, u32)], lost: &[u64]) -> Confirmed {
        let acked: Vec<Acked> = acked
            .iter()
            .map(|(number, held)| Acked {
                number: *number,
                held: MS * *held,
                ecn: Ecn::Ce,
            })
            .collect();
        packets.confirm(&Feedback {
            now: Instant::ZERO + MS * at,
            reported: Instant::ZERO + MS * at,
            acked: &acked,
            lost,
            abandoned: &[],
            is_answer: true,
            app_limited: false,
        })
    }

    #[test]
    fn a_packet_counts_once() {
        let mut packets = sent(3);
        let first = report(&mut packets, 20, &[(2, 0), (2, 0)], &[3]);
        let second = report(&mut packets, 21, &[(2, 0)], &[2, 3]);

        assert_eq!((first.acked, first.marked), (ByteSize(100), ByteSize(100)));
        assert_eq!(first.lost.len(), 1);
        assert!(second.is_empty());
        assert_eq!(packets.refusals().repeated, 4);
        assert_eq!(packets.in_flight(), ByteSize(100));
    }

    #[test]
    fn lies_are_refused() {
        let mut packets = sent(3);
        let lies = report(&mut packets, 20, &[(4, 0), (1, 20)], &[9]);
        assert!(lies.is_empty());
        report(&mut packets, 19, &[(1, 0)], &[]);

        let refusals = packets.refusals();
        assert_eq!((refusals.unknown, refusals.impossible_time), (2, 1));
        assert_eq!((refusals.out_of_order, refusals.total()), (1, 4));
        assert_eq!(packets.in_flight(), ByteSize(300));
    }

    #[test]
    fn a_lost_packet_that_arrives_is_named() {
        let mut packets = sent(2);
        report(&mut packets, 20, &[], &[1]);
        let late = report(&mut packets, 30, &[(1, 5)], &[]);

        assert_eq!(late.spurious, [1]);
        assert_eq!(late.newest().unwrap().rtt(), MS * 24);
        assert_eq!(packets.in_flight(), ByteSize(100));
    }

    #[test]
    fn reports_of_forgotten_packets_are_not_rejected() {
        let mut packets = sent(6);
        report(&mut packets, 20, &[(1, 0)], &[2]);
        // Nothing is heard of the others for longer than they are remembered.
        let after = 10 + MEMORY.as_millis() as u32;
        packets.insert(Instant::ZERO + MS * after, 7, ByteSize(100));
        report(&mut packets, after, &[(2, 0), (3, 0), (4, 0)], &[5]);
        let report = Feedback {
            now: Instant::ZERO + MS * after,
            reported: Instant::ZERO + MS * after,
            acked: &[],
            lost: &[],
            abandoned: &[6],
            is_answer: false,
            app_limited: false,
        };
        packets.confirm(&report);
        assert_eq!(packets.refusals(), Refusals::default());

        self::report(&mut packets, after, &[(7, 0), (7, 0), (8, 0)], &[]);
        let refusals = packets.refusals();
        assert_eq!((refusals.repeated, refusals.unknown), (1, 1));
        self::report(&mut packets, after + 1, &[(7, 0)], &[]);
        assert_eq!(packets.refusals().repeated, 2, "it had arrived");
    }

    #[test]
    fn the_record_is_bounded() {
        let mut packets = SentPackets::default();
        for number in 0..3 * CAPACITY as u64 {
            packets.insert(Instant::ZERO, number, ByteSize(1));
            assert!(packets.packets.len() <= CAPACITY);
        }
        assert_eq!(packets.in_flight(), ByteSize(CAPACITY as u64));

        packets.forget_old(Instant::ZERO + MEMORY + MS);
        assert_eq!(packets.in_flight(), ByteSize(0));
        packets.insert(Instant::ZERO, 0, ByteSize(1));
        assert_eq!(packets.refusals().unsendable, 1);
    }

    #[test]
    fn an_abandoned_packet_can_still_arrive_or_be_lost() {
        let mut packets = sent(3);
        let report =
            |packets: &mut SentPackets, acked: &[Acked], lost: &[u64], abandoned: &[u64]| {
                packets.confirm(&Feedback {
                    now: Instant::ZERO + 20 * MS,
                    reported: Instant::ZERO + 20 * MS,
                    acked,
                    lost,
                    abandoned,
                    is_answer: true,
                    app_limited: false,
                })
            };
        assert!(report(&mut packets, &[], &[], &[1, 2, 2]).is_empty());
        assert_eq!(packets.in_flight(), ByteSize(100));
        let arrived = Acked {
            number: 1,
            held: Duration::ZERO,
            ecn: Ecn::Ect1,
        };
        let confirmed = report(&mut packets, &[arrived], &[2], &[9]);
        assert_eq!((confirmed.arrived.len(), confirmed.lost.len()), (1, 1));
        assert_eq!(packets.in_flight(), ByteSize(100));
        assert_eq!(packets.refusals().unknown, 1);
    }
}
