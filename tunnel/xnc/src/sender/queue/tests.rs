use super::*;
use crate::experiment::Experiment;
use hawser_units::Ecn;
use proptest::prelude::*;
use std::time::Duration;

const FLOW: u64 = 7;
const LIMIT: u64 = 1 << 20;
const MS: Duration = Duration::from_millis(1);

fn config() -> Config {
    Config {
        max_queue_delay: 100 * MS,
        expiry: 300 * MS,
        experiment: Experiment {
            max_frame_queue_delay: 60 * MS,
            frame_queue_delay_step: 30 * MS,
            codel_target: 10 * MS,
            codel_interval: 100 * MS,
            ..Experiment::default()
        },
        ..Config::default()
    }
}

fn at(ms: u32) -> Instant {
    Instant::ZERO + ms * MS
}

fn packet(flow_hash: u64, ms: u32, bytes: usize) -> QueuedPacket {
    QueuedPacket {
        bytes: vec![0; bytes].into(),
        hint: Hint {
            flow_hash,
            ..Hint::default()
        },
        queued_at: at(ms),
    }
}

fn framed(flow_hash: u64, ms: u32, bytes: usize, end_of_frame: bool) -> QueuedPacket {
    let mut packet = packet(flow_hash, ms, bytes);
    packet.hint.end_of_frame = end_of_frame;
    packet
}

/// Creates a queue with frames of three packets each, at intervals of 33 ms.
fn queue(frames: u32) -> Queue {
    let mut queue = Queue::new(true);
    (0..3 * frames)
        .for_each(|index| queue.push(framed(FLOW, index / 3 * 33, 10, index % 3 == 2), LIMIT));
    queue
}

/// Returns the next packet for a sender with unlimited window.
fn take(queue: &mut Queue, now: Instant) -> Option<QueuedPacket> {
    queue.order().into_iter().find_map(|class| {
        while queue.front(class, now, &config()).is_some() {
            if let Some(sent) = queue.pop(class, now, &config()) {
                return Some(sent);
            }
        }
        None
    })
}

fn flows(taken: impl Iterator<Item = QueuedPacket>) -> Vec<u64> {
    taken.map(|waiting| waiting.hint.flow_hash).collect()
}

#[test]
fn a_frame_goes_as_a_whole() {
    let mut queue = queue(3);
    let late = queue.deadline(&config()).unwrap();
    assert_eq!(late, at(60));
    queue.drop_expired(late, &config());
    assert_eq!(
        (queue.counts().expired, queue.len(), queue.bytes),
        (3, 6, 6 * cost(&[0; 10]))
    );
}

#[test]
fn the_frame_after_a_dropped_one_may_wait_longer() {
    let mut queue = queue(6);
    let mut waits = Vec::new();
    while let Some(late) = queue.deadline(&config()) {
        let queued_at = queue
            .front(Class::Live, Instant::ZERO, &config())
            .unwrap()
            .queued_at;
        waits.push(late.saturating_since(queued_at).as_millis());
        queue.drop_expired(late, &config());
        if waits.len() == 4 {
            (0..3).for_each(|_| drop(take(&mut queue, Instant::ZERO)));
        }
    }
    assert_eq!(waits, [60, 90, 100, 100, 60]);
}

#[test]
fn a_partly_sent_frame_may_wait_longer() {
    let mut queue = queue(2);
    take(&mut queue, Instant::ZERO);
    queue.drop_expired(at(299), &config());
    assert_eq!(queue.counts().expired, 0);
    queue.drop_expired(at(300), &config());
    assert_eq!(queue.counts().expired, 5);
    assert_eq!(queue.deadline(&config()), None);
}

fn push_urgent(queue: &mut Queue, ms: u32) {
    let mut urgent = packet(FLOW, ms, 10);
    urgent.hint.urgent = true;
    queue.push(urgent, LIMIT);
}

#[test]
fn urgent_packets_go_first_but_do_not_starve_others() {
    let mut queue = queue(1);
    take(&mut queue, Instant::ZERO);
    (0..40).for_each(|ms| push_urgent(&mut queue, ms));
    let order: Vec<QueuedPacket> = std::iter::from_fn(|| take(&mut queue, Instant::ZERO)).collect();
    let of_others: Vec<usize> = (0..42).filter(|index| !order[*index].hint.urgent).collect();
    assert_eq!(of_others, [16, 18]);
    assert!(
        order
            .iter()
            .filter(|waiting| waiting.hint.urgent)
            .is_sorted_by_key(|waiting| waiting.queued_at)
    );
    assert_eq!((queue.len(), queue.bytes), (0, 0));
}

#[test]
fn urgent_packets_expire_and_do_not_go_with_a_frame() {
    let mut queue = queue(1);
    push_urgent(&mut queue, 0);
    push_urgent(&mut queue, 30);
    queue.drop_expired(at(60), &config());
    assert_eq!(queue.counts().expired, 3, "the frame");
    assert_eq!(queue.deadline(&config()), Some(at(100)));
    queue.drop_expired(at(100), &config());
    assert_eq!(queue.counts().expired, 4);
    assert_eq!(
        queue
            .front(Class::Urgent, at(100), &config())
            .unwrap()
            .queued_at,
        at(30)
    );
}

#[test]
fn the_packets_of_others_do_not_go_with_a_frame() {
    let mut queue = queue(1);
    queue.push(packet(0, 50, 1), LIMIT);
    queue.drop_expired(at(100), &config());
    assert_eq!(queue.counts().expired, 3);
    assert_eq!(queue.deadline(&config()), Some(at(150)));
}

#[test]
fn a_frame_is_dropped_for_its_own_age_alone() {
    let mut queue = Queue::new(true);
    (0..500).for_each(|_| queue.push(packet(1, 0, 1400), LIMIT));
    for camera in [2, 3] {
        (0..3).for_each(|index| queue.push(framed(camera, 0, 1200, index == 2), LIMIT));
        (0..3).for_each(|index| queue.push(framed(camera, 50, 1200, index == 2), LIMIT));
    }
    queue.drop_expired(at(60), &config());
    assert_eq!(queue.counts().expired, 6, "the first frame of each camera");
    assert_eq!(
        queue.deadline(&config()),
        Some(at(100)),
        "the packets of the flow without frames"
    );
    let sent = flows(std::iter::from_fn(|| take(&mut queue, at(60))).take(9));
    assert_eq!(
        sent.iter().filter(|flow| **flow != 1).count(),
        6,
        "{sent:?}"
    );
}

#[test]
fn flows_share_alike_in_bytes_whatever_they_have_waiting() {
    let mut queue = Queue::new(true);
    (0..400).for_each(|_| queue.push(packet(1, 0, 1400), LIMIT));
    (0..100).for_each(|_| queue.push(packet(2, 0, 700), LIMIT));
    (0..60).for_each(|_| queue.push(packet(3, 0, 1400), LIMIT));
    let sent = flows(std::iter::from_fn(|| take(&mut queue, at(0))).take(160));
    let bytes = |flow, each| each * sent.iter().filter(|sent| **sent == flow).count();
    for (flow, each) in [(2, 700), (3, 1400)] {
        assert!(
            bytes(flow, each).abs_diff(bytes(1, 1400)) <= 2 * 1500,
            "{sent:?}"
        );
    }
}

#[test]
fn a_flow_that_sends_little_does_not_wait() {
    let mut queue = Queue::new(true);
    for flow in 1..=8 {
        (0..50).for_each(|_| queue.push(packet(flow, 0, 1400), LIMIT));
    }
    (0..20).for_each(|_| drop(take(&mut queue, at(0))));
    queue.push(packet(9, 0, 100), LIMIT);
    assert_eq!(take(&mut queue, at(0)).unwrap().hint.flow_hash, 9);
}

#[test]
fn live_flows_go_first_and_leave_the_others_a_quarter() {
    let mut queue = Queue::new(true);
    for _ in 0..300 {
        queue.push(packet(1, 0, 1000), LIMIT);
        queue.push(framed(2, 0, 1000, true), LIMIT);
    }
    let sent = flows(std::iter::from_fn(|| take(&mut queue, at(0))).take(200));
    assert_eq!(sent[0], 2);
    let live = sent.iter().filter(|flow| **flow == 2).count();
    assert!((145..=155).contains(&live), "{live} of 200");
}

#[test]
fn recovery_bytes_are_charged_to_their_flow() {
    let mut queue = Queue::new(true);
    for flow in [1, 2] {
        (0..50).for_each(|_| queue.push(packet(flow, 0, 1500), LIMIT));
    }
    (0..10).for_each(|_| queue.charge(1, 1500));
    let sent = flows(std::iter::from_fn(|| take(&mut queue, at(0))).take(10));
    assert_eq!(
        sent.iter().filter(|flow| **flow == 1).count(),
        0,
        "{sent:?}"
    );
}

#[test]
fn without_room_the_longest_queue_loses_packets() {
    let mut queue = Queue::new(true);
    for index in 0..2000u64 {
        queue.push(packet(1, 0, 1000), 100_000);
        if index.is_multiple_of(100) {
            queue.push(packet(2 + index, 0, 1000), 100_000);
        }
    }
    assert!(queue.bytes <= 100_000);
    let counts = queue.counts();
    assert_eq!(counts.overflowed as usize + queue.len(), 2020);
    let sent = flows(std::iter::from_fn(|| take(&mut queue, at(0))));
    assert_eq!(
        sent.iter().filter(|flow| **flow != 1).count(),
        20,
        "no packet of the small flows is dropped"
    );
}

/// Returns the number of flows examined per packet, for 20,000 packets of 1000 bytes and a queue
/// with room for `room` of them. `flow` returns the flow of a packet. Of ten packets pushed,
/// `takes` are taken.
fn examined_for_each(flow: impl Fn(u64) -> u64, room: u64, takes: u64) -> f64 {
    const PACKETS: u64 = 20_000;
    let mut queue = Queue::new(true);
    let mut push = |index| {
        queue.push(packet(flow(index), 0, 1000), room * 1000);
        if index % 10 < takes {
            take(&mut queue, at(0)).unwrap();
        }
        queue.flows_examined
    };
    let before = (0..PACKETS).map(&mut push).last().unwrap();
    let after = (PACKETS..2 * PACKETS).map(&mut push).last().unwrap();
    assert!(
        queue.counts().overflowed > 0 && queue.len() as u64 > room / 2,
        "{} of {room}",
        queue.len()
    );
    (after - before) as f64 / PACKETS as f64
}

#[test]
fn room_is_made_without_examining_all_flows_for_each_packet() {
    const FLOWS: u64 = MAX_FLOWS as u64;
    for (waiting, takes) in [(1, 0), (1, 5), (2, 0), (3, 5), (30, 0)] {
        let room = waiting * FLOWS;
        let alike = examined_for_each(|index| index % FLOWS, room, takes);
        assert!(
            alike < 4.0,
            "{alike}: all flows are alike, {waiting} packets wait of each"
        );
        let greedy = examined_for_each(
            |index| {
                if index.is_multiple_of(2) {
                    0
                } else {
                    index % FLOWS
                }
            },
            room,
            takes,
        );
        assert!(
            greedy < 4.0,
            "{greedy}: one flow sends half of all, {waiting} packets wait for each flow"
        );
        let alone = examined_for_each(
            |index| index.saturating_sub(room).min(1) * FLOWS + index.min(room) % FLOWS,
            room + 3,
            takes,
        );
        assert!(
            alone < 4.0,
            "{alone}: one flow sends, and {waiting} packets wait of each of the others"
        );
        let fresh = examined_for_each(|index| index, room, takes);
        assert!(
            fresh < 20.0,
            "{fresh}: each packet is of another flow, with room for {waiting} of each"
        );
    }
}

#[test]
fn flows_of_equal_length_lose_packets_in_turn() {
    const FLOWS: u64 = 500;
    let mut queue = Queue::new(true);
    (0..40_000).for_each(|index| queue.push(packet(index % FLOWS, 0, 1000), 4 * FLOWS * 1000));
    let left: Vec<usize> = queue.flows.values().map(Flow::len).collect();
    assert!(
        left.iter().all(|packets| (2..=8).contains(packets)),
        "{left:?}"
    );
}

#[test]
fn urgent_packets_are_dropped_when_they_are_the_longest_queue() {
    let mut queue = Queue::new(true);
    (0..10).for_each(|_| queue.push(packet(1, 0, 300), 30_000));
    (0..1000).for_each(|_| push_urgent(&mut queue, 0));
    assert_eq!(queue.counts().overflowed, 0);
    for _ in 0..1000 {
        let mut urgent = packet(FLOW, 0, 300);
        urgent.hint.urgent = true;
        queue.push(urgent, 30_000);
    }
    assert!(queue.bytes <= 30_000);
    assert_eq!(queue.other.packets, 10);
}

/// Pushes a packet of one flow each millisecond until `until`, and takes one each millisecond from
/// 50 ms on.
fn standing(ecn: Ecn, until: u32) -> (Queue, Vec<QueuedPacket>) {
    let (mut queue, mut taken) = (Queue::new(true), Vec::new());
    for ms in 0..until {
        let source = "10.0.0.1:1".parse().unwrap();
        let bytes = hawser_wire::ip::udp_packet(source, source, ecn.bits(), &[0; 600]);
        let hint = Hint {
            flow_hash: 1,
            ecn,
            ..Hint::default()
        };
        queue.push(
            QueuedPacket {
                bytes: bytes.into(),
                hint,
                queued_at: at(ms),
            },
            LIMIT,
        );
        if ms >= 50 {
            taken.extend(take(&mut queue, at(ms)));
        }
    }
    (queue, taken)
}

#[test]
fn codel_drops_from_a_standing_queue() {
    let (queue, _) = standing(Ecn::NotEct, 2000);
    let counts = queue.counts();
    assert!(counts.congested > 30 && counts.expired == 0, "{counts:?}");
    assert!(
        queue.len() < 20,
        "{} of the initial fifty packets wait",
        queue.len()
    );
}

#[test]
fn packets_of_an_ecn_sender_are_marked_instead() {
    let (queue, taken) = standing(Ecn::Ect0, 1000);
    let counts = queue.counts();
    assert!(counts.marked > 5 && counts.congested == 0, "{counts:?}");
    let marked = taken
        .iter()
        .filter(|waiting| waiting.bytes[1] & 0b11 == 0b11)
        .count();
    assert_eq!(marked as u64, counts.marked);
    let is_whole =
        |waiting: &QueuedPacket| hawser_wire::ip::Ipv4Header::parse(&waiting.bytes).is_ok();
    assert!(taken.iter().all(is_whole), "with right checksums");
}

#[test]
fn every_packet_of_an_l4s_sender_that_waits_is_marked() {
    let (queue, taken) = standing(Ecn::Ect1, 1000);
    let counts = queue.counts();
    assert_eq!((counts.marked, counts.congested), (950, 0), "{counts:?}");
    assert!(
        taken
            .iter()
            .all(|waiting| waiting.bytes[1] == Ecn::Ce.bits())
    );
}

/// Pushes `packets` of an L4S sender at once, and returns how many of them are marked if they are
/// taken after `wait` ms.
fn marked_after(wait: u32, packets: u32, hint: Hint) -> u64 {
    let source = "[fd00::1]:1".parse().unwrap();
    let mut queue = Queue::new(true);
    for _ in 0..packets {
        let bytes = hawser_wire::ip::udp_packet(source, source, Ecn::Ect1.bits(), &[0; 1000]);
        let (hint, queued_at) = (
            Hint {
                ecn: Ecn::Ect1,
                ..hint
            },
            at(0),
        );
        queue.push(
            QueuedPacket {
                bytes: bytes.into(),
                hint,
                queued_at,
            },
            LIMIT,
        );
    }
    while take(&mut queue, at(wait)).is_some() {}
    queue.counts().marked
}

#[test]
fn the_l4s_threshold_is_the_same_for_every_class() {
    let threshold = u32::try_from(super::l4s::L4S_THRESHOLD.as_millis()).unwrap();
    let live = Hint {
        end_of_frame: true,
        ..Hint::default()
    };
    let urgent = Hint {
        urgent: true,
        ..Hint::default()
    };
    for hint in [Hint::default(), live, urgent] {
        assert_eq!(marked_after(threshold, 10, hint), 0, "{hint:?}");
        assert_eq!(
            marked_after(threshold + 1, 1, hint),
            0,
            "one packet is no queue: {hint:?}"
        );
        assert_eq!(marked_after(threshold + 1, 10, hint), 9, "{hint:?}");
    }
}

#[test]
fn codel_does_not_drop_from_live_flows() {
    let mut queue = Queue::new(true);
    for ms in 0..2000 {
        queue.push(framed(FLOW, ms, 1000, ms % 10 == 9), LIMIT);
        if ms >= 30 {
            assert!(take(&mut queue, at(ms)).is_some());
        }
    }
    assert_eq!((queue.counts().congested, queue.len()), (0, 30));
}

#[test]
fn a_flow_without_marked_frames_is_no_longer_live() {
    let mut queue = queue(1);
    assert!(queue.has_live());
    queue.push(packet(FLOW, 66 + 2000, 10), LIMIT);
    assert!(!queue.has_live());
    assert_eq!((queue.live.packets, queue.other.packets), (0, 4));
    assert_eq!(
        queue
            .front(Class::Other, at(0), &config())
            .unwrap()
            .queued_at,
        at(0)
    );
    queue.push(framed(FLOW, 2100, 10, true), LIMIT);
    assert_eq!((queue.live.packets, queue.other.packets), (5, 0));
    while take(&mut queue, at(0)).is_some() {}
    queue.drop_expired(at(10_000), &config());
    assert!(
        !queue.has_live() && queue.flows.is_empty(),
        "an unused flow is forgotten"
    );
}

#[test]
fn flows_beyond_the_maximum_share_queues() {
    let mut queue = Queue::new(true);
    (0..3000).for_each(|flow| queue.push(packet(flow * 7, 0, 10), LIMIT));
    assert_eq!((queue.flows.len(), queue.len()), (MAX_FLOWS, 3000));
    assert_eq!(std::iter::from_fn(|| take(&mut queue, at(0))).count(), 3000);
    queue.push(packet(1, 1, 10), LIMIT);
    assert_eq!(queue.flows.len(), 1, "flows without packets make room");
}

#[derive(Debug, Clone)]
enum Step {
    Push {
        flow: u64,
        bytes: usize,
        end_of_frame: bool,
        urgent: bool,
    },
    Take,
    Charge {
        flow: u64,
        bytes: usize,
    },
    Expire,
    Pass {
        ms: u32,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let push = (
        0u64..6,
        1usize..1500,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    );
    prop_oneof![
        8 => push.prop_map(|(flow, bytes, end_of_frame, urgent)| Step::Push { flow, bytes, end_of_frame: end_of_frame && !urgent, urgent }),
        4 => Just(Step::Take),
        1 => (0u64..6, 0usize..100_000).prop_map(|(flow, bytes)| Step::Charge { flow, bytes }),
        1 => Just(Step::Expire),
        2 => prop_oneof![9 => 0u32..40, 1 => 0u32..5000].prop_map(|ms| Step::Pass { ms }),
    ]
}

proptest! {
    #[test]
    fn every_packet_is_sent_or_counted(steps in proptest::collection::vec(step(), 0..400)) {
        let (mut queue, mut now, mut pushed, mut taken) = (Queue::new(true), 0, 0, 0);
        for step in steps {
            match step {
                Step::Push { flow, bytes, end_of_frame, urgent } => {
                    let mut packet = framed(flow, now, bytes, end_of_frame);
                    packet.hint.urgent = urgent;
                    queue.push(packet, 20_000);
                    pushed += 1;
                }
                Step::Take => taken += u64::from(take(&mut queue, at(now)).is_some()),
                Step::Charge { flow, bytes } => queue.charge(flow, bytes),
                Step::Expire => queue.drop_expired(at(now), &config()),
                Step::Pass { ms } => now += ms,
            }
            let Counts { expired, overflowed, congested, .. } = queue.counts();
            prop_assert_eq!(pushed, taken + expired + overflowed + congested + queue.len() as u64);
            prop_assert_eq!(queue.live.packets + queue.other.packets + queue.urgent.len(), queue.len());
            let flows = queue.flows.values();
            prop_assert_eq!(queue.live_flows, flows.filter(|flow| flow.is_live()).count());
            let of_flows: u64 = queue.flows.values().map(Flow::bytes).sum();
            let of_urgent: u64 = queue.urgent.iter().map(|waiting| cost(&waiting.bytes)).sum();
            prop_assert_eq!((queue.bytes, queue.urgent_bytes), (of_flows + of_urgent, of_urgent));
            prop_assert!(queue.bytes <= 20_000);
            for (key, flow) in &queue.flows {
                prop_assert!(flow.sorted_class >= flow.length_class());
                prop_assert_eq!(flow.sorted_class > 0, queue.by_length.contains(&(flow.sorted_class, *key)));
            }
            prop_assert!(queue.by_length.len() <= queue.flows.len());
        }
        let left = queue.len();
        let (before, out) = (queue.counts(), std::iter::from_fn(|| take(&mut queue, at(now))).count());
        let Counts { expired, congested, .. } = queue.counts();
        let dropped = expired - before.expired + congested - before.congested;
        prop_assert_eq!(left as u64, out as u64 + dropped, "every waiting packet has its turn");
    }
}
