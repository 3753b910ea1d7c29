//! Properties of the queue disciplines, each in a whole link.

use hawser_netem::{
    Admission, Class, Decisions, Delay, Discipline, DropReason, DualPi2, FqCodel, L4sAqm, Link,
    LinkConfig, MeterMode, Opportunities, Packet, Paper, QueueLimit, Rate, Scheduler, Steps,
};
use hawser_units::{Bitrate, ByteSize, Ecn, Instant};
use proptest::prelude::*;
use std::time::Duration;

const SEED: u64 = 7;
const ALL_ECN: [Ecn; 4] = [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce];

/// The payload of a packet: its number, and what the link is to mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tag {
    number: usize,
    flow: u64,
    ecn: Ecn,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A packet arrives after the time.
    Push(Duration, Packet<()>),
    /// The packets are taken that have left the time after the previous step.
    Pop(Duration),
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn link(config: LinkConfig) -> Link<Tag> {
    Link::new(config, SEED, Instant::ZERO).marking_by(|tag| tag.ecn = Ecn::Ce)
}

fn tagged(number: usize, packet: Packet<()>) -> Packet<Tag> {
    let tag = Tag {
        number,
        flow: packet.flow,
        ecn: packet.ecn,
    };
    Packet {
        size: packet.size,
        ecn: packet.ecn,
        flow: packet.flow,
        payload: tag,
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let packet = (60u64..1514, 0..ALL_ECN.len(), 0u64..6);
    let packet = packet.prop_map(|(size, ecn, flow)| Packet {
        size: ByteSize(size),
        ecn: ALL_ECN[ecn],
        flow,
        payload: (),
    });
    let step = prop_oneof![
        4 => (0u64..2000, packet).prop_map(|(gap, packet)| Step::Push(us(gap), packet)),
        1 => (0u64..30_000).prop_map(|gap| Step::Pop(us(gap))),
    ];
    prop::collection::vec(step, 1..400)
}

fn rates() -> impl Strategy<Value = Rate> {
    prop_oneof![
        (0.5f64..40.0).prop_map(|mbps| Rate::Constant(Bitrate::from_mbps(mbps))),
        prop::collection::vec(0.0f64..30.0, 1..6).prop_map(|rates| {
            let step = |(i, mbps): (u32, f64)| (ms(40) * i, Bitrate::from_mbps(mbps.floor()));
            Rate::Steps(Steps::new((0..).zip(rates).map(step).collect()).unwrap())
        }),
        prop::collection::vec(1u64..60, 1..20).prop_map(|mut at| {
            at.sort_unstable();
            Rate::Opportunities(Opportunities::new(at).unwrap())
        }),
    ]
}

fn limits() -> impl Strategy<Value = Option<QueueLimit>> {
    prop::option::of(prop_oneof![
        (1_000u64..50_000).prop_map(|bytes| QueueLimit::Bytes(ByteSize(bytes))),
        (1u64..60).prop_map(QueueLimit::Packets),
        (1u64..100).prop_map(|limit| QueueLimit::Time(ms(limit))),
    ])
}

fn disciplines() -> impl Strategy<Value = Discipline> {
    let fq_codel = (1u32..20, 1u64..20, 1u64..50, prop::bool::ANY).prop_map(
        |(flows, target, interval, ecn)| {
            Discipline::FqCodel(FqCodel {
                flows,
                target: ms(target),
                interval: ms(interval),
                ecn,
                ..FqCodel::default()
            })
        },
    );
    let schedulers = prop_oneof![
        (0.0f64..1.0).prop_map(|share| Scheduler::Wrr(share.try_into().unwrap())),
        (0u64..100).prop_map(|shift| Scheduler::TimeShift(ms(shift))),
    ];
    let dual_pi2 = (0.01f64..20.0, 1u64..20, schedulers, prop::bool::ANY).prop_map(
        |(alpha, target, scheduler, is_random)| {
            Discipline::DualPi2(DualPi2 {
                alpha,
                target: ms(target),
                scheduler,
                decisions: if is_random {
                    Decisions::Random
                } else {
                    Decisions::Recur
                },
                ..DualPi2::default()
            })
        },
    );
    let paper = (0.0f64..1.0, 0.0f64..1.0, 1u64..40, 1u32..50).prop_map(
        |(mark, drop, burst, flow_packets)| {
            Discipline::Paper(Paper {
                mark_share: mark.try_into().unwrap(),
                drop_share: drop.try_into().unwrap(),
                burst: ms(burst),
                flow_packets,
                ..Paper::default()
            })
        },
    );
    prop_oneof![Just(Discipline::Fifo), fq_codel, dual_pi2, paper]
}

/// Carries out the steps and then takes all that still leaves. Calls `check` after each step.
fn run(
    config: &LinkConfig,
    steps: &[Step],
    mut check: impl FnMut(&Link<Tag>, usize),
) -> (Link<Tag>, Vec<(Instant, Tag)>) {
    let mut link = link(config.clone());
    let (mut now, mut left) = (Instant::ZERO, Vec::new());
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Push(gap, packet) => {
                now += *gap;
                link.push_packet(now, tagged(number, *packet));
            }
            Step::Pop(gap) => {
                now += *gap;
                left.extend(std::iter::from_fn(|| link.pop(now)));
            }
        }
        check(&link, left.len());
    }
    while let Some(next) = link.next_departure() {
        left.extend(link.pop(next));
    }
    (link, left)
}

/// Sends packets of 1500 bytes at given rates in Mb/s, evenly, and returns the link with what left
/// it. Sources that start together do not send at the same times.
fn load(
    config: LinkConfig,
    duration: Duration,
    sources: &[(Ecn, u64, f64)],
) -> (Link<Tag>, Vec<(Instant, Tag)>) {
    let mut arrivals: Vec<(Instant, Ecn, u64)> = Vec::new();
    for (ecn, flow, mbps) in sources {
        let gap = Bitrate::from_mbps(*mbps).time_to_send(ByteSize(1500));
        let mut at = Instant::ZERO + gap.mul_f64(0.1 * *flow as f64);
        while at < Instant::ZERO + duration {
            arrivals.push((at, *ecn, *flow));
            at += gap;
        }
    }
    arrivals.sort_by_key(|(at, ..)| *at);
    let (mut link, mut left) = (link(config), Vec::new());
    for (number, (at, ecn, flow)) in arrivals.into_iter().enumerate() {
        left.extend(std::iter::from_fn(|| link.pop(at)));
        let packet = Packet {
            ecn,
            flow,
            ..Packet::new(ByteSize(1500), ())
        };
        link.push_packet(at, tagged(number, packet));
    }
    let end = Instant::ZERO + duration;
    left.extend(std::iter::from_fn(|| link.pop(end)));
    (link, left)
}

fn config(discipline: Discipline, mbps: f64) -> LinkConfig {
    LinkConfig {
        rate: Some(Rate::Constant(Bitrate::from_mbps(mbps))),
        discipline: Some(discipline),
        ..LinkConfig::default()
    }
}

/// Returns the throughput of the packets that `selected` selects, in Mb/s.
fn mbps(left: &[(Instant, Tag)], duration: Duration, selected: impl Fn(&Tag) -> bool) -> f64 {
    let packets = left.iter().filter(|(_, tag)| selected(tag)).count();
    Bitrate::average(ByteSize(1500 * packets as u64), duration).mbps()
}

proptest! {
    #[test]
    fn no_packet_vanishes_under_any_discipline(
        discipline in disciplines(),
        rate in rates(),
        queue in limits(),
        delay in 0u64..50,
        steps in steps(),
    ) {
        let config = LinkConfig {
            rate: Some(rate),
            queue,
            discipline: Some(discipline),
            delay: Delay::Constant(ms(delay)),
            ..LinkConfig::default()
        };
        let (link, left) = run(&config, &steps, |link, left| {
            let stats = link.stats();
            assert_eq!(stats.offered, stats.delivered + stats.dropped() + stats.in_link);
            assert_eq!(stats.delivered, left as u64);
        });
        let pushes = steps.iter().filter(|step| matches!(step, Step::Push(..))).count() as u64;
        let stats = link.stats();
        prop_assert_eq!(stats.offered, pushes);
        prop_assert_eq!(stats.delivered, left.len() as u64);
        prop_assert_eq!(stats.offered, stats.delivered + stats.dropped() + stats.in_link);
    }

    #[test]
    fn packets_of_a_flow_stay_in_order(
        discipline in disciplines(),
        rate in rates(),
        queue in limits(),
        steps in steps(),
    ) {
        // A flow has one ECN field: a dual queue lets packets of different classes overtake.
        let steps: Vec<Step> = steps.into_iter().map(|step| match step {
            Step::Push(gap, packet) => Step::Push(gap, Packet { ecn: ALL_ECN[packet.flow as usize % 4], ..packet }),
            pop => pop,
        }).collect();
        let config = LinkConfig { rate: Some(rate), queue, discipline: Some(discipline), ..LinkConfig::default() };
        let (_, left) = run(&config, &steps, |_, _| ());
        prop_assert!(left.is_sorted_by_key(|(at, _)| *at));
        for flow in 0..6 {
            let numbers = left.iter().filter(|(_, tag)| tag.flow == flow).map(|(_, tag)| tag.number);
            prop_assert!(numbers.is_sorted());
        }
    }

    #[test]
    fn only_ecn_capable_packets_are_marked_and_counted(
        discipline in disciplines(),
        mbps in 0.5f64..10.0,
        steps in steps(),
    ) {
        let (link, left) = run(&config(discipline, mbps), &steps, |_, _| ());
        let offered = |number: usize| match steps[number] {
            Step::Push(_, packet) => packet.ecn,
            Step::Pop(_) => unreachable!("only packets have numbers"),
        };
        let changes = |from: Ecn| left.iter()
            .filter(|(_, tag)| offered(tag.number) == from && tag.ecn != from)
            .count() as u64;
        prop_assert_eq!(changes(Ecn::NotEct), 0);
        prop_assert_eq!(changes(Ecn::Ce), 0);
        prop_assert_eq!(changes(Ecn::Ect0), link.stats().marked_ect0);
        prop_assert_eq!(changes(Ecn::Ect1), link.stats().marked_ect1);
    }

    #[test]
    fn a_fifo_has_the_departures_of_a_drop_tail_queue(rate in rates(), steps in steps()) {
        let planned = LinkConfig { rate: Some(rate), delay: Delay::Constant(ms(5)), ..LinkConfig::default() };
        let fifo = LinkConfig { discipline: Some(Discipline::Fifo), ..planned.clone() };
        prop_assert_eq!(run(&planned, &steps, |_, _| ()).1, run(&fifo, &steps, |_, _| ()).1);
    }

    #[test]
    fn a_fifo_drops_the_packets_that_a_drop_tail_queue_drops(
        // Rates at which a byte takes whole nanoseconds, so that no sum is rounded.
        mbps in proptest::sample::select(vec![1.0, 2.0, 8.0, 16.0]),
        queue in limits(),
        steps in steps(),
    ) {
        let rate = Some(Rate::Constant(Bitrate::from_mbps(mbps)));
        let planned = LinkConfig { rate, queue, ..LinkConfig::default() };
        let fifo = LinkConfig { discipline: Some(Discipline::Fifo), ..planned.clone() };
        let (planned, planned_left) = run(&planned, &steps, |_, _| ());
        let (fifo, fifo_left) = run(&fifo, &steps, |_, _| ());
        prop_assert_eq!(planned_left, fifo_left);
        prop_assert_eq!(planned.stats().dropped_queue, fifo.stats().dropped_queue);
        prop_assert_eq!(planned.stats().queue_high_water_bytes, fifo.stats().queue_high_water_bytes);
    }

    #[test]
    fn taking_packets_late_or_often_changes_nothing(
        discipline in disciplines(),
        rate in rates(),
        steps in steps(),
    ) {
        let config = LinkConfig { rate: Some(rate), discipline: Some(discipline), ..LinkConfig::default() };
        // Time passes alike, but nothing is taken before the end.
        let mut late = Vec::new();
        let mut waited = Duration::ZERO;
        for step in &steps {
            match step {
                Step::Push(gap, packet) => late.push(Step::Push(*gap + std::mem::take(&mut waited), *packet)),
                Step::Pop(gap) => waited += *gap,
            }
        }
        let departures = |steps: &[Step]| -> Vec<(Instant, u64, Ecn)> {
            run(&config, steps, |_, _| ()).1.into_iter().map(|(at, tag)| (at, tag.flow, tag.ecn)).collect()
        };
        prop_assert_eq!(departures(&steps), departures(&late));
    }
}

#[test]
fn without_a_marking_function_no_packet_is_ecn_capable() {
    let aqm = Discipline::DualPi2(DualPi2::default());
    let mut link = Link::new(config(aqm, 1.0), SEED, Instant::ZERO);
    for number in 0..200 {
        let packet = Packet {
            ecn: Ecn::Ect1,
            ..Packet::new(ByteSize(1500), ())
        };
        link.push_packet(Instant::ZERO + ms(number), packet);
    }
    while let Some(next) = link.next_departure() {
        link.pop(next);
    }
    assert_eq!(link.stats().marked(), 0);
    assert_eq!(link.stats().sojourn_l4s.count, 0);
    assert!(link.stats().dropped_aqm > 0);
}

#[test]
fn a_packet_in_a_queue_is_neither_delivered_nor_dropped() {
    let mut link = link(config(Discipline::Fifo, 12.0));
    let packet = tagged(0, Packet::new(ByteSize(1500), ()));
    for _ in 0..3 {
        assert_eq!(link.push_packet(Instant::ZERO, packet), Admission::Queued);
    }
    assert_eq!(link.stats().in_link, 3);
    assert_eq!(link.stats().queue_high_water_bytes, ByteSize(4500));
    assert_eq!(link.next_departure(), Some(Instant::ZERO + ms(1)));
    assert!(link.pop(Instant::ZERO + ms(1)).is_some());
    assert_eq!(link.stats().in_link, 2);
}

#[test]
fn a_full_fq_codel_drops_from_the_flow_that_fills_it() {
    let queue = Some(QueueLimit::Packets(100));
    let full = LinkConfig {
        queue,
        ..config(Discipline::FqCodel(FqCodel::default()), 10.0)
    };
    let sources = [(Ecn::NotEct, 1, 100.0), (Ecn::NotEct, 2, 1.0)];
    let (link, left) = load(full, Duration::from_secs(2), &sources);
    let sparse = mbps(&left, Duration::from_secs(2), |tag| tag.flow == 2);

    assert!(link.stats().dropped_queue > 10_000);
    assert!(sparse > 0.98, "{sparse}");
}

#[test]
fn the_packet_of_a_new_flow_precedes_a_queue_of_an_old_one() {
    let mut link = link(config(Discipline::FqCodel(FqCodel::default()), 12.0));
    let packet = |flow| {
        let packet = Packet {
            flow,
            ..Packet::new(ByteSize(1500), ())
        };
        tagged(0, packet)
    };
    (0..20).for_each(|_| {
        link.push_packet(Instant::ZERO, packet(1));
    });
    let now = Instant::ZERO + us(5500);
    let before: Vec<u64> = std::iter::from_fn(|| link.pop(now))
        .map(|(_, tag)| tag.flow)
        .collect();
    link.push_packet(now, packet(2));
    let next = [6, 7].map(|at| link.pop(Instant::ZERO + ms(at)).map(|(_, tag)| tag.flow));

    // One packet is being sent when the new flow begins.
    assert_eq!(before, [1; 5]);
    assert_eq!(next, [Some(1), Some(2)]);
}

#[test]
fn fq_codel_shares_the_link_and_keeps_its_target_delay() {
    let duration = Duration::from_secs(5);
    let sources = [
        (Ecn::Ect0, 1, 11.0),
        (Ecn::NotEct, 2, 8.0),
        (Ecn::NotEct, 3, 0.5),
    ];
    let discipline = Discipline::FqCodel(FqCodel::default());
    let (link, left) = load(config(discipline, 10.0), duration, &sources);
    let shares = [1, 2, 3].map(|flow| mbps(&left, duration, |tag| tag.flow == flow));

    assert!((shares[0] - 4.75).abs() < 0.1, "{shares:?}");
    assert!((shares[1] - 4.75).abs() < 0.1, "{shares:?}");
    assert!(shares[2] > 0.49, "{shares:?}");
    assert!(link.stats().marked_ect0 > 0);
    assert!(link.stats().dropped_aqm > 0);
}

#[test]
fn an_l4s_packet_does_not_wait_behind_classic_overload() {
    // Longer than the limit of 250 ms, so that no Classic packet gets ahead by its age.
    let shift = Scheduler::TimeShift(ms(300));
    for scheduler in [Scheduler::default(), shift] {
        let aqm = DualPi2 {
            scheduler,
            ..DualPi2::default()
        };
        let sources = [(Ecn::NotEct, 1, 300.0), (Ecn::Ect1, 2, 20.0)];
        let config = config(Discipline::DualPi2(aqm), 100.0);
        let stats = load(config, Duration::from_secs(5), &sources).0.stats();
        // The packet that is being sent, and one that is the turn of Classic: 120 us each.
        assert!(stats.sojourn_l4s.max <= us(240), "{scheduler:?}: {stats:?}");
        assert!(stats.sojourn_classic.p50 > ms(14), "{stats:?}");
    }
}

#[test]
fn neither_class_starves_under_dual_pi2() {
    let duration = Duration::from_secs(3);
    for (l4s, classic) in [(400.0, 30.0), (20.0, 400.0), (400.0, 400.0)] {
        let sources = [(Ecn::NotEct, 1, classic), (Ecn::Ect1, 2, l4s)];
        let config = config(Discipline::DualPi2(DualPi2::default()), 100.0);
        let (_, left) = load(config, duration, &sources);
        // The drops of an overload hit both classes alike, and Classic has a tenth of the link.
        for (flow, offered) in [(1, classic), (2, l4s)] {
            let share = mbps(&left, duration, |tag| tag.flow == flow);
            let fair = (100.0 * offered / (l4s + classic)).min(10.0);
            assert!(share > 0.8 * fair, "{share} of {offered}, {fair}");
        }
    }
}

#[test]
fn an_overload_of_l4s_turns_marks_into_drops() {
    let duration = Duration::from_secs(5);
    let config = config(Discipline::DualPi2(DualPi2::default()), 100.0);
    let (link, left) = load(config, duration, &[(Ecn::Ect1, 1, 150.0)]);
    let late = left.iter().filter(|(at, _)| *at > Instant::ZERO + ms(4000));
    let (marked, all) = late.fold((0, 0), |(marked, all), (_, tag)| {
        (marked + u32::from(tag.ecn == Ecn::Ce), all + 1)
    });

    assert_eq!(marked, all);
    assert!(link.stats().dropped_aqm > 0);
    assert!(mbps(&left, duration, |_| true) > 98.0);
}

#[test]
fn the_step_marks_packets_that_waited_for_a_millisecond() {
    let aqm = DualPi2 {
        l4s: L4sAqm::Step(ms(1)),
        ..DualPi2::default()
    };
    let mut link = link(config(Discipline::DualPi2(aqm), 12.0));
    let packet = |number| {
        let packet = Packet {
            ecn: Ecn::Ect1,
            ..Packet::new(ByteSize(750), ())
        };
        tagged(number, packet)
    };
    (0..8).for_each(|number| {
        link.push_packet(Instant::ZERO, packet(number));
    });
    let left: Vec<Ecn> = std::iter::from_fn(|| link.pop(Instant::ZERO + ms(10)))
        .map(|(_, tag)| tag.ecn)
        .collect();

    // A packet takes 0.5 ms. The third waits for 1 ms, but `recur()` needs a sum above 1. The last
    // two leave no more than one packet behind.
    let (ect1, ce) = (Ecn::Ect1, Ecn::Ce);
    assert_eq!(left, [ect1, ect1, ect1, ce, ce, ce, ect1, ect1]);
}

fn paper(meter: MeterMode) -> LinkConfig {
    let paper = Paper {
        meter,
        ..Paper::default()
    };
    config(Discipline::Paper(paper), 200.0)
}

fn marked_share(left: &[(Instant, Tag)], from: Duration) -> f64 {
    let l4s = left
        .iter()
        .filter(|(at, tag)| *at > Instant::ZERO + from && matches!(tag.ecn, Ecn::Ect1 | Ecn::Ce));
    let marks: Vec<bool> = l4s.map(|(_, tag)| tag.ecn == Ecn::Ce).collect();
    marks.iter().filter(|mark| **mark).count() as f64 / marks.len() as f64
}

#[test]
fn the_paper_marks_nothing_below_100_and_everything_above() {
    let duration = Duration::from_secs(4);
    let share = |meter, l4s: &[f64]| {
        let mut sources: Vec<_> = (2..)
            .zip(l4s)
            .map(|(flow, mbps)| (Ecn::Ect1, flow, *mbps))
            .collect();
        sources.push((Ecn::NotEct, 1, 70.0));
        let (_, left) = load(paper(meter), duration, &sources);
        // The bucket of 20 ms lasts for 2 s if the rate is exceeded by one hundredth.
        marked_share(&left, ms(2500))
    };
    assert_eq!(share(MeterMode::All, &[99.0]), 0.0);
    assert_eq!(share(MeterMode::All, &[50.0, 49.0]), 0.0);
    assert_eq!(share(MeterMode::All, &[101.0]), 1.0);
    assert_eq!(share(MeterMode::All, &[60.0, 60.0]), 1.0);
    assert_eq!(share(MeterMode::Excess, &[99.0]), 0.0);
    let excess = share(MeterMode::Excess, &[60.0, 60.0]);
    assert!((excess - 1.0 / 6.0).abs() < 0.01, "{excess}");
}

#[test]
fn the_paper_passes_no_more_l4s_than_the_upper_rate() {
    let duration = Duration::from_secs(2);
    let sources = [(Ecn::Ect1, 1, 150.0), (Ecn::Ect1, 2, 130.0)];
    let wide = LinkConfig {
        rate: Some(Rate::Constant(Bitrate::from_mbps(400.0))),
        discipline: Some(Discipline::Paper(Paper {
            mark_share: 0.25.try_into().unwrap(),
            drop_share: 0.5.try_into().unwrap(),
            ..Paper::default()
        })),
        ..LinkConfig::default()
    };
    let (link, left) = load(wide, duration, &sources);
    let stats = link.stats();
    let passed = mbps(&left, duration, |_| true);

    // 200 Mb/s, and 20 ms of it once.
    assert!((199.0..202.1).contains(&passed), "{passed}");
    assert_eq!(stats.dropped(), stats.dropped_policer);
}

#[test]
fn neither_class_starves_under_the_paper_and_both_borrow() {
    let duration = Duration::from_secs(2);
    for (l4s, classic, expected) in [
        (190.0, 300.0, [100.0, 100.0]),
        (50.0, 300.0, [50.0, 150.0]),
        (180.0, 10.0, [180.0, 10.0]),
    ] {
        let sources = [
            (Ecn::Ect1, 1, l4s / 2.0),
            (Ecn::Ect1, 2, l4s / 2.0),
            (Ecn::NotEct, 3, classic),
        ];
        let (_, left) = load(paper(MeterMode::All), duration, &sources);
        let shares = [
            mbps(&left, duration, |tag| tag.flow != 3),
            mbps(&left, duration, |tag| tag.flow == 3),
        ];
        for (share, expected) in shares.into_iter().zip(expected) {
            assert!((share - expected).abs() < 2.0, "{shares:?}");
        }
    }
}

#[test]
fn the_paper_keeps_l4s_below_a_millisecond_and_flows_fair() {
    let duration = Duration::from_secs(3);
    let sources = [
        (Ecn::Ect1, 1, 60.0),
        (Ecn::Ect1, 2, 30.0),
        (Ecn::NotEct, 3, 400.0),
        (Ecn::NotEct, 4, 100.0),
    ];
    let (link, left) = load(paper(MeterMode::All), duration, &sources);
    let stats = link.stats();
    let classic = [3, 4].map(|flow| mbps(&left, duration, |tag| tag.flow == flow));

    assert!(stats.sojourn_l4s.max < us(200), "{stats:?}");
    assert!((classic[0] - classic[1]).abs() < 2.0, "{classic:?}");
    assert_eq!(stats.marked(), 0);
}

#[test]
fn the_paper_marks_no_frame_of_90_mbps_paced_over_20_ms() {
    let mut link = link(paper(MeterMode::All));
    let (packets, gap) = (250, ms(20) / 250);
    for frame in 0..30 {
        for number in 0..packets {
            let at = Instant::ZERO + us(33_333) * frame + gap * number;
            let packet = Packet {
                ecn: Ecn::Ect1,
                ..Packet::new(ByteSize(1500), ())
            };
            link.push_packet(at, tagged(0, packet));
        }
    }
    assert_eq!(link.stats().marked(), 0);
}

#[test]
fn a_discipline_sees_the_delay_of_an_outage() {
    let rates = vec![
        (ms(0), Bitrate::from_mbps(12.0)),
        (ms(20), Bitrate::from_bps(0)),
        (ms(120), Bitrate::from_mbps(12.0)),
    ];
    let outage = LinkConfig {
        rate: Some(Rate::Steps(Steps::new(rates).unwrap())),
        ..config(Discipline::Fifo, 0.0)
    };
    let (link, left) = load(
        outage,
        ms(400),
        &[(Ecn::Ect1, 1, 6.0), (Ecn::NotEct, 2, 1.0)],
    );
    let stats = link.stats();

    assert!(
        (ms(95)..ms(102)).contains(&stats.sojourn_l4s.max),
        "{stats:?}"
    );
    assert!(stats.sojourn_l4s.p50 < ms(60), "{stats:?}");
    assert_eq!(link.sojourn(Class::L4s).count(), stats.sojourn_l4s.count);
    assert_eq!(stats.dropped(), 0);
    assert!(left.len() > 200);
}

#[test]
fn a_queue_behind_a_rate_that_stays_zero_is_freed_by_a_restart() {
    let mut link = link(LinkConfig {
        rate: Some(Rate::Steps(
            Steps::new(vec![
                (ms(0), Bitrate::from_mbps(12.0)),
                (ms(10), Bitrate::from_bps(0)),
            ])
            .unwrap(),
        )),
        ..config(Discipline::Fifo, 0.0)
    });
    let later = Instant::ZERO + ms(20);
    let packet = tagged(0, Packet::new(ByteSize(1500), ()));
    assert_eq!(link.push_packet(later, packet), Admission::Queued);
    assert_eq!(link.next_departure(), None);
    link.restart(later);
    assert_eq!(link.next_departure(), Some(later));
    assert_eq!(link.pop(later), None);
    assert_eq!(link.next_departure(), Some(later + ms(1)));
}

#[test]
fn a_flow_queues_no_more_than_its_packets_with_the_paper() {
    let mut link = link(paper(MeterMode::All));
    let packet = |flow| {
        let packet = Packet {
            flow,
            ..Packet::new(ByteSize(1500), ())
        };
        tagged(0, packet)
    };
    let mut dropped = |flow| {
        (0..120)
            .filter(|_| {
                let admission = link.push_packet(Instant::ZERO, packet(flow));
                admission == Admission::Dropped(DropReason::Queue)
            })
            .count()
    };
    // The first packet is being sent.
    assert_eq!([dropped(1), dropped(2)], [19, 20]);
}
