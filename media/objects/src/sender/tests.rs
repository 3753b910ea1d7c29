use super::*;
use crate::keys::TrackSecret;
use crate::packetiser::{Packetiser, PacketiserConfig};
use hawser_packets::feedback::{
    Age, Arrival, Block, ClockStamp, Feedback, Pose, StampEcho, Totals,
};
use hawser_packets::media::{Flags, Header};
use hawser_units::Ecn;

const PAYLOAD: usize = 100;
const PACKET: u64 = (PAYLOAD + Header::OVERHEAD) as u64;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> Instant {
    Instant::ZERO + ms(millis)
}

fn id(group: u32, object: u32, layer: u8) -> ObjectId {
    ObjectId {
        alias: 7,
        group,
        object,
        layer,
    }
}

/// Returns an object of some packets, whose priority is its layer.
fn object(id: ObjectId, packets: usize, deadline: Instant) -> SealedObject {
    let secret = TrackSecret::new([1; 32]);
    let hop = secret.access().hop(&[2; 16], 0);
    let config = PacketiserConfig {
        datagram: PACKET as usize,
        ..PacketiserConfig::new(id.alias, [3; 16])
    };
    let info = ObjectInfo {
        id,
        priority: id.layer,
        deadline,
        flags: Flags::default(),
    };
    let mut packetiser = Packetiser::new(config, secret, hop);
    packetiser
        .packetise(info, &vec![0; packets * PAYLOAD])
        .unwrap()
}

fn sender(packets: u64, rule: Rule) -> Sender {
    Sender::new(SenderConfig {
        rule,
        ..SenderConfig::new(ByteSize(packets * PACKET))
    })
}

fn send_all(sender: &mut Sender, now: Instant) -> Vec<(ObjectId, u16)> {
    std::iter::from_fn(|| sender.poll_transmit(now))
        .map(|transmit| (transmit.id.object, transmit.id.index))
        .collect()
}

/// Returns a report of packets that arrived 1 ms before it.
fn report(packets: &[(ObjectId, u16)]) -> Feedback {
    let arrival = Arrival {
        ecn: Ecn::Ect1,
        age: Age::of(ms(1)),
    };
    let blocks = packets.iter().map(|(object, index)| Block {
        object: *object,
        base: *index,
        packets: vec![Some(arrival)],
    });
    Feedback {
        clock: ClockStamp {
            sent: at(1_000_000),
            echo: None,
        },
        totals: Totals::default(),
        pose: None,
        blocks: blocks.collect(),
    }
}

fn acknowledge(sender: &mut Sender, now: Instant, packets: &[(ObjectId, u16)]) -> Outcome {
    sender.handle_feedback(now, 0, &report(packets)).unwrap()
}

fn lost(outcome: &Outcome) -> Vec<u16> {
    outcome.lost.iter().map(|lost| lost.id.index).collect()
}

fn events(sender: &mut Sender) -> Vec<SenderEvent> {
    std::iter::from_fn(|| sender.poll_event()).collect()
}

fn dropped(sender: &mut Sender) -> Vec<(ObjectId, DropReason)> {
    let events = events(sender).into_iter();
    let dropped = events.filter_map(|event| match event {
        SenderEvent::Dropped { id, reason } => Some((id, reason)),
        SenderEvent::Delivered { .. } => None,
    });
    dropped.collect()
}

#[test]
fn an_acknowledged_object_frees_its_room() {
    let mut sender = sender(4, Rule::Deadline);
    let [first, second, third] = [0, 1, 2].map(|group| object(id(group, 0, 0), 2, at(1000)));
    assert_eq!(sender.offer(at(0), &first), Ok(()));
    assert_eq!(sender.offer(at(0), &second), Ok(()));
    assert_eq!(sender.offer(at(0), &third), Err(AdmitError::NoRoom));
    send_all(&mut sender, at(0));
    acknowledge(&mut sender, at(20), &[(id(0, 0, 0), 0)]);
    assert_eq!(sender.buffered(), ByteSize(4 * PACKET), "kept as a whole");
    acknowledge(&mut sender, at(20), &[(id(0, 0, 0), 1)]);
    assert_eq!(sender.buffered(), ByteSize(2 * PACKET));
    let fourth = object(id(3, 0, 0), 2, at(1000));
    assert_eq!(sender.offer(at(20), &fourth), Ok(()));
    let expected = SenderEvent::Delivered {
        id: id(0, 0, 0),
        admitted: at(0),
    };
    assert_eq!(events(&mut sender), [expected]);
}

#[test]
fn an_empty_buffer_admits_an_object_that_exceeds_it() {
    let mut sender = sender(1, Rule::UntilAcknowledged);
    assert_eq!(sender.offer(at(0), &object(id(0, 0, 0), 5, at(9))), Ok(()));
    let next = object(id(1, 0, 0), 1, at(9));
    assert_eq!(sender.offer(at(0), &next), Err(AdmitError::NoRoom));
}

#[test]
fn higher_layers_make_room_for_lower_ones_highest_first() {
    let mut sender = sender(4, Rule::Deadline);
    for layer in [0, 1, 2] {
        let object = object(id(0, 0, layer), 1, at(1000));
        sender.offer(at(0), &object).unwrap();
    }
    let base = object(id(1, 0, 0), 2, at(1000));
    assert_eq!(sender.offer(at(0), &base), Ok(()));
    assert_eq!(dropped(&mut sender), [(id(0, 0, 2), DropReason::Displaced)]);
    let base = object(id(2, 0, 0), 1, at(1000));
    assert_eq!(sender.offer(at(0), &base), Ok(()));
    assert_eq!(dropped(&mut sender), [(id(0, 0, 1), DropReason::Displaced)]);
    let base = object(id(3, 0, 0), 1, at(1000));
    assert_eq!(sender.offer(at(0), &base), Err(AdmitError::NoRoom));
    assert_eq!(dropped(&mut sender), [], "no base makes room");
}

#[test]
fn only_unsent_objects_that_make_enough_room_are_displaced() {
    let mut sender = sender(3, Rule::Deadline);
    sender
        .offer(at(0), &object(id(0, 0, 1), 2, at(1000)))
        .unwrap();
    let large = object(id(1, 0, 0), 4, at(1000));
    assert_eq!(sender.offer(at(0), &large), Err(AdmitError::NoRoom));
    sender.poll_transmit(at(0)).unwrap();
    let small = object(id(2, 0, 0), 2, at(1000));
    assert_eq!(sender.offer(at(0), &small), Err(AdmitError::NoRoom));
    assert_eq!(dropped(&mut sender), []);
}

#[test]
fn dependents_of_a_dropped_object_are_not_admitted() {
    let mut sender = sender(100, Rule::Deadline);
    sender
        .offer(at(0), &object(id(0, 0, 0), 1, at(10)))
        .unwrap();
    for (object_number, layer) in [(0, 1), (1, 0), (1, 1)] {
        let object = object(id(0, object_number, layer), 1, at(1000));
        sender.offer(at(0), &object).unwrap();
    }
    sender
        .offer(at(0), &object(id(1, 0, 0), 1, at(1000)))
        .unwrap();
    sender.handle_timeout(at(10));
    let mut expected = vec![(id(0, 0, 0), DropReason::Expired)];
    let dependents = [id(0, 0, 1), id(0, 1, 0), id(0, 1, 1)];
    expected.extend(dependents.map(|id| (id, DropReason::Dependent)));
    assert_eq!(dropped(&mut sender), expected);
    let later = object(id(0, 2, 0), 1, at(1000));
    assert_eq!(sender.offer(at(10), &later), Err(AdmitError::Dependent));
    assert_eq!(send_all(&mut sender, at(10)), [(id(1, 0, 0), 0)]);
}

#[test]
fn packets_leave_by_deadline_then_priority() {
    let groups = |rule, backlog| {
        let mut sender = sender(100, rule);
        for (id, deadline) in [
            (id(0, 0, 1), 50),
            (id(1, 0, 0), 200),
            (id(2, 0, 0), 100),
            (id(3, 0, 1), 40),
            (id(4, 0, 2), 40),
        ] {
            sender.set_urgent(sender.waiting() > ByteSize(backlog * PACKET));
            sender.offer(at(0), &object(id, 1, at(deadline))).unwrap();
        }
        let sent = send_all(&mut sender, at(0));
        sent.iter().map(|(id, _)| id.group).collect::<Vec<_>>()
    };
    assert_eq!(groups(Rule::Deadline, 100), [3, 4, 0, 2, 1]);
    assert_eq!(
        groups(Rule::Deadline, 1),
        [2, 3, 4, 0, 1],
        "two waited before group 2"
    );
    assert_eq!(groups(Rule::Deadline, 0), [2, 1, 3, 4, 0]);
    let never_ahead = groups(Rule::UntilAcknowledged, 0);
    assert_eq!(never_ahead, [3, 4, 0, 2, 1]);
}

#[test]
fn three_later_packets_make_a_packet_lost() {
    let mut sender = sender(100, Rule::Deadline);
    sender
        .offer(at(0), &object(id(0, 0, 0), 6, at(1000)))
        .unwrap();
    send_all(&mut sender, at(0));
    let outcome = acknowledge(&mut sender, at(20), &[(id(0, 0, 0), 2), (id(0, 0, 0), 3)]);
    assert_eq!(lost(&outcome), [0], "number 3 is three later");
    let outcome = acknowledge(&mut sender, at(21), &[(id(0, 0, 0), 4)]);
    assert_eq!(lost(&outcome), [1]);
    let again = sender.poll_transmit(at(21)).unwrap();
    assert!(again.is_repeated && again.id.index == 0);
}

#[test]
fn an_overtaken_packet_is_lost_after_nine_eighths_of_an_rtt() {
    let mut sender = sender(100, Rule::Deadline);
    sender
        .offer(at(0), &object(id(0, 0, 0), 2, at(1000)))
        .unwrap();
    send_all(&mut sender, at(0));
    let outcome = acknowledge(&mut sender, at(41), &[(id(0, 0, 0), 1)]);
    let age = Age::of(ms(1)).duration().unwrap();
    assert_eq!(outcome.round_trip, Some(ms(41) - age));
    assert_eq!(lost(&outcome), []);
    let due = sender.poll_timeout().unwrap();
    assert_eq!(due, Instant::ZERO + ms(41) * 9 / 8);
    assert_eq!(
        lost(&sender.handle_timeout(due - Duration::from_nanos(1))),
        []
    );
    assert_eq!(lost(&sender.handle_timeout(due)), [0]);
}

#[test]
fn without_acknowledgements_the_loss_timeout_grows() {
    let mut sender = sender(100, Rule::UntilAcknowledged);
    sender.offer(at(0), &object(id(0, 0, 0), 1, at(0))).unwrap();
    send_all(&mut sender, at(0));
    let first = sender.poll_timeout().unwrap();
    let outcome = sender.handle_timeout(first);
    assert!(outcome.lost[0].by_timeout);
    send_all(&mut sender, first);
    let second = sender.poll_timeout().unwrap();
    let [waited, again] = [first.as_nanos(), (second.as_nanos() - first.as_nanos())];
    assert_eq!(again, 2 * waited, "RFC 9002, section 6.2.1");
}

#[test]
fn a_lost_packet_is_repeated_until_half_an_rtt_before_deadline() {
    for (now, is_sent) in [(80, true), (81, false)] {
        let mut sender = sender(100, Rule::Deadline);
        sender
            .offer(at(0), &object(id(0, 0, 0), 5, at(100)))
            .unwrap();
        send_all(&mut sender, at(0));
        let arrived: Vec<_> = (1..5).map(|index| (id(0, 0, 0), index)).collect();
        // A round trip of 40 ms: the age is a whole number of units.
        let mut report = report(&arrived);
        for block in &mut report.blocks {
            block.packets[0].as_mut().unwrap().age = Age::of(Duration::ZERO);
        }
        sender.handle_feedback(at(40), 0, &report).unwrap();
        assert_eq!(sender.rtt().smoothed(), Some(ms(40)));
        assert_eq!(sender.poll_transmit(at(now)).is_some(), is_sent, "{now} ms");
        let late = [(id(0, 0, 0), DropReason::Late)];
        assert_eq!(
            dropped(&mut sender).as_slice(),
            if is_sent { &[] } else { &late[..] }
        );
    }
}

#[test]
fn sending_goes_on_after_a_queue_longer_than_a_deadline() {
    let mut sender = sender(100, Rule::Deadline);
    for (sent, arrived) in [(0, 40), (100, 3000)] {
        let packet = id(sent, 0, 0);
        let object = object(packet, 1, at(10_000));
        sender.offer(at(sent.into()), &object).unwrap();
        send_all(&mut sender, at(sent.into()));
        acknowledge(&mut sender, at(arrived), &[(packet, 0)]);
    }
    assert_eq!(sender.in_flight(), ByteSize(0));
    assert!(sender.rtt().one_way() > ms(150), "{:?}", sender.rtt());

    let next = |group| object(id(group, 0, 0), 1, at(3250));
    sender.offer(at(3100), &next(3100)).unwrap();
    assert_eq!(send_all(&mut sender, at(3100)).len(), 1);
    // The estimate holds again until this packet is acknowledged.
    assert_eq!(
        sender.offer(at(3100), &next(3101)),
        Err(AdmitError::Expired)
    );
}

#[test]
fn until_acknowledged_keeps_late_frames_and_rejects_new_ones() {
    let mut sender = sender(2, Rule::UntilAcknowledged);
    sender
        .offer(at(0), &object(id(0, 0, 0), 2, at(10)))
        .unwrap();
    send_all(&mut sender, at(0));
    let mut now = at(0);
    for _ in 0..5 {
        now = sender.poll_timeout().unwrap();
        assert_eq!(sender.handle_timeout(now).lost.len(), 2);
        assert_eq!(send_all(&mut sender, now).len(), 2, "sent again");
        let next = object(id(1 + now.as_nanos() as u32, 0, 0), 1, now + ms(10));
        assert_eq!(sender.offer(now, &next), Err(AdmitError::NoRoom));
    }
    assert!(now > at(1000));
    acknowledge(&mut sender, now, &[(id(0, 0, 0), 0), (id(0, 0, 0), 1)]);
    assert_eq!(sender.buffered(), ByteSize(0));
    assert_eq!(sender.stats().delivered, 1);
}

#[test]
fn an_object_on_its_way_at_its_deadline_takes_nothing_with_it() {
    let mut sender = sender(100, Rule::Deadline);
    sender
        .offer(at(0), &object(id(0, 0, 0), 2, at(30)))
        .unwrap();
    send_all(&mut sender, at(0));
    sender.handle_timeout(at(30));
    assert_eq!(
        dropped(&mut sender),
        [(id(0, 0, 0), DropReason::Unconfirmed)]
    );
    assert_eq!(
        sender.offer(at(30), &object(id(0, 1, 0), 1, at(90))),
        Ok(())
    );
    let outcome = acknowledge(&mut sender, at(35), &[(id(0, 0, 0), 0), (id(0, 0, 0), 1)]);
    assert_eq!(
        outcome.acknowledged.len(),
        2,
        "congestion control hears of it"
    );
    assert_eq!(
        (sender.in_flight(), sender.stats().acknowledged_unsent),
        (ByteSize(0), 0)
    );
}

#[test]
fn an_object_in_slices_is_sent_while_it_grows() {
    let mut sender = sender(4, Rule::Deadline);
    let whole = object(id(0, 0, 0), 3, at(1000));
    sender
        .admit(at(0), whole.info, ByteSize(2 * PACKET))
        .unwrap();
    assert!(!sender.has_transmit());
    sender.push(&whole.info.id, &whole.packets[..1]);
    assert_eq!(send_all(&mut sender, at(0)).len(), 1);
    acknowledge(&mut sender, at(20), &[(id(0, 0, 0), 0)]);
    assert_eq!(sender.buffered(), ByteSize(2 * PACKET), "reserved");
    sender.push(&whole.info.id, &whole.packets[1..]);
    assert_eq!(
        sender.buffered(),
        ByteSize(3 * PACKET),
        "more than expected"
    );
    sender.finish(&whole.info.id);
    send_all(&mut sender, at(20));
    acknowledge(&mut sender, at(40), &[(id(0, 0, 0), 1), (id(0, 0, 0), 2)]);
    assert_eq!(
        (sender.stats().delivered, sender.buffered()),
        (1, ByteSize(0))
    );
}

#[test]
fn a_late_acknowledgement_stops_the_repetition() {
    let mut sender = sender(100, Rule::Deadline);
    sender
        .offer(at(0), &object(id(0, 0, 0), 5, at(1000)))
        .unwrap();
    send_all(&mut sender, at(0));
    let outcome = acknowledge(&mut sender, at(20), &[(id(0, 0, 0), 4)]);
    assert_eq!(lost(&outcome), [0, 1]);
    assert_eq!(outcome.lost_numbers, [0, 1]);
    let late = acknowledge(&mut sender, at(21), &[(id(0, 0, 0), 0), (id(0, 0, 0), 1)]);
    let numbers: Vec<u64> = late.acknowledged.iter().map(|p| p.number).collect();
    assert_eq!(numbers, [0, 1], "the rate control can undo what it did");
    assert_eq!(
        (sender.stats().spurious, sender.waiting()),
        (2, ByteSize(0))
    );
    assert!(sender.poll_transmit(at(21)).is_none());
}

#[test]
fn a_timeout_is_a_loss_only_if_the_repetition_arrives() {
    let [known, doubtful] = [0, 1].map(|group| object(id(group, 0, 0), 1, at(5000)));
    for is_original in [false, true] {
        let mut sender = sender(100, Rule::Deadline);
        sender.offer(at(0), &known).unwrap();
        send_all(&mut sender, at(0));
        acknowledge(&mut sender, at(21), &[(known.info.id, 0)]);
        sender.offer(at(100), &doubtful).unwrap();
        send_all(&mut sender, at(100));
        let due = sender.poll_timeout().unwrap();
        let outcome = sender.handle_timeout(due);
        let told = (outcome.lost_numbers, outcome.abandoned_numbers);
        assert_eq!(told, (vec![], vec![1]));
        send_all(&mut sender, due);

        // A report that leaves 10 ms later arrives after 10 ms more; the viewer's clock is ahead.
        let (sent, now) = (due + ms(10), due + ms(20));
        let arrived = if is_original { at(110) } else { sent };
        let mut report = report(&[(doubtful.info.id, 0)]);
        report.clock = ClockStamp {
            sent: sent + ms(2_000_000),
            echo: Some(StampEcho {
                stamp: sender.clock_mut().stamp(due).sent,
                held: Duration::ZERO,
            }),
        };
        report.blocks[0].packets[0].as_mut().unwrap().age = Age::of(sent.saturating_since(arrived));
        let outcome = sender.handle_feedback(now, 1, &report).unwrap();
        let acknowledged = outcome.acknowledged[0].number;
        let found = (
            acknowledged,
            outcome.lost_numbers,
            outcome.abandoned_numbers,
        );
        let expected = match is_original {
            true => (1, vec![], vec![2]),
            false => (2, vec![1], vec![]),
        };
        assert_eq!(found, expected);
    }
}

#[test]
fn what_timed_out_is_lost_when_later_packets_arrive() {
    let mut sender = sender(100, Rule::Deadline);
    sender
        .offer(at(0), &object(id(0, 0, 0), 1, at(5000)))
        .unwrap();
    send_all(&mut sender, at(0));
    acknowledge(&mut sender, at(21), &[(id(0, 0, 0), 0)]);
    // Its deadline is over when it times out, so that it is not sent again.
    sender
        .offer(at(100), &object(id(1, 0, 0), 1, at(150)))
        .unwrap();
    send_all(&mut sender, at(100));
    let timed_out = sender.handle_timeout(at(400));
    assert_eq!(
        (timed_out.lost_numbers, timed_out.abandoned_numbers),
        (vec![], vec![1])
    );
    sender
        .offer(at(500), &object(id(2, 0, 0), 3, at(5000)))
        .unwrap();
    assert_eq!(send_all(&mut sender, at(500)).len(), 3);
    let first = acknowledge(&mut sender, at(520), &[(id(2, 0, 0), 0), (id(2, 0, 0), 1)]);
    assert_eq!(
        first.lost_numbers,
        [] as [u64; 0],
        "two later ones may have overtaken it"
    );
    let third = acknowledge(&mut sender, at(521), &[(id(2, 0, 0), 2)]);
    assert_eq!(third.lost_numbers, [1]);
}

#[test]
fn acknowledgements_of_unsent_packets_change_nothing() {
    let mut sender = sender(100, Rule::Deadline);
    sender
        .offer(at(0), &object(id(0, 0, 0), 5, at(1000)))
        .unwrap();
    sender.poll_transmit(at(0)).unwrap();
    let lies = [
        (id(0, 0, 0), 1),
        (id(0, 0, 0), 5),
        (id(0, 0, 0), 65_534),
        (id(9, 9, 7), 0),
    ];
    let outcome = acknowledge(&mut sender, at(20), &lies);
    assert_eq!(outcome, Outcome::default());
    assert_eq!(sender.stats().acknowledged_unsent, 4);
    assert_eq!(sender.in_flight(), ByteSize(PACKET));
    assert_eq!(
        send_all(&mut sender, at(20)).len(),
        4,
        "the packets are still sent"
    );
}

#[test]
fn impossible_totals_reject_the_report() {
    let mut sender = sender(100, Rule::Deadline);
    sender
        .offer(at(0), &object(id(0, 0, 0), 2, at(1000)))
        .unwrap();
    send_all(&mut sender, at(0));
    let mut reported = |number, packets, bytes, ce_bytes| {
        let mut report = report(&[(id(0, 0, 0), 0)]);
        report.totals = Totals {
            packets,
            bytes,
            ce_bytes,
            refused: 0,
        };
        sender
            .handle_feedback(at(20), number, &report)
            .map(|outcome| (outcome.growth, outcome.acknowledged.len()))
    };
    let totals = |packets, bytes, ce_bytes| Totals {
        packets,
        bytes,
        ce_bytes,
        refused: 0,
    };
    let impossible = Err(FeedbackError::ImpossibleTotals);
    assert_eq!(
        reported(0, 1, PACKET, PACKET + 1),
        impossible,
        "more marked than received"
    );
    let first = reported(5, 1, PACKET, PACKET);
    assert_eq!(first, Ok((totals(1, PACKET, PACKET), 1)));
    assert_eq!(reported(6, 0, PACKET, PACKET), Err(FeedbackError::GoesBack));
    let older = reported(4, 0, 0, 0);
    assert_eq!(
        older,
        Ok((Totals::default(), 0)),
        "an older report is not the newest"
    );
    let more = reported(7, 50, 50 * PACKET, PACKET);
    assert_eq!(more, Ok((totals(1, PACKET, 0), 0)), "more than was sent");
    let stats = sender.stats();
    assert_eq!((stats.refused_reports, stats.excessive_totals), (2, 1));
}

#[test]
fn the_pose_is_that_of_the_newest_report() {
    let mut sender = sender(100, Rule::Deadline);
    let mut reported = |number, x| {
        let mut report = report(&[]);
        report.pose = Pose::new([x, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]);
        let outcome = sender.handle_feedback(at(20), number, &report).unwrap();
        outcome.pose.map(|pose| pose.position()[0])
    };
    assert_eq!(reported(3, 1.0), Some(1.0));
    assert_eq!(reported(2, 2.0), None, "overtaken");
    assert_eq!(reported(4, 3.0), Some(3.0));
}

#[test]
fn impossible_times_are_not_used() {
    let mut sender = sender(100, Rule::Deadline);
    sender
        .offer(at(0), &object(id(0, 0, 0), 2, at(9000)))
        .unwrap();
    send_all(&mut sender, at(50));
    let mut held = report(&[(id(0, 0, 0), 0)]);
    held.blocks[0].packets[0].as_mut().unwrap().age = Age::of(ms(11));
    held.clock.echo = Some(StampEcho {
        stamp: at(3),
        held: ms(1),
    });
    let outcome = sender.handle_feedback(at(60), 0, &held).unwrap();
    assert_eq!((outcome.round_trip, sender.rtt().smoothed()), (None, None));
    assert_eq!(sender.stats().impossible_times, 2, "the echo and the age");
    assert!(sender.clock().relation().is_none());
}

#[test]
fn an_arrival_before_the_sending_is_not_used() {
    let mut sender = sender(100, Rule::Deadline);
    let start = at(10_000);
    let stamp = sender.clock_mut().stamp(start).sent;
    let mut related = report(&[]);
    related.clock = ClockStamp {
        sent: start + ms(10),
        echo: Some(StampEcho {
            stamp,
            held: Duration::ZERO,
        }),
    };
    sender.handle_feedback(start + ms(20), 0, &related).unwrap();
    sender
        .offer(start, &object(id(0, 0, 0), 1, start + ms(9000)))
        .unwrap();
    send_all(&mut sender, start + ms(100));
    let mut early = report(&[(id(0, 0, 0), 0)]);
    early.clock.sent = start + ms(90);
    let outcome = sender.handle_feedback(start + ms(120), 1, &early).unwrap();
    assert_eq!(outcome.acknowledged[0].arrived, None);
    assert_eq!(sender.stats().impossible_times, 1);
}
