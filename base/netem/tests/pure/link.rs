//! Properties of links with any configuration.

use hawser_netem::{
    Admission, Delay, DropReason, ExtraDelay, Link, LinkConfig, Loss, LossAt, Opportunities, Order,
    Probability, QueueLimit, Rate, Reorder, Span, Steps,
};
use hawser_units::{Bitrate, ByteSize, Instant};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// A packet offered: the time since the previous one, and its size.
type Arrival = (Duration, ByteSize);

/// A packet that left: its departure time and its number.
type Left = (Instant, usize);

const SEED: u64 = 7;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn share(value: f64) -> Probability {
    value.try_into().unwrap()
}

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let arrival = (0u64..3_000_000, 60u64..1514);
    let arrival =
        arrival.prop_map(|(gap_ns, bytes)| (Duration::from_nanos(gap_ns), ByteSize(bytes)));
    prop::collection::vec(arrival, 1..300)
}

fn rate() -> impl Strategy<Value = Rate> {
    let rates = prop::collection::vec(0.0f64..50.0, 1..6);
    prop_oneof![
        (0.5f64..400.0).prop_map(|mbps| Rate::Constant(Bitrate::from_mbps(mbps))),
        rates.prop_map(|rates| {
            let step = |(i, mbps): (u32, f64)| (ms(30) * i, Bitrate::from_mbps(mbps));
            Rate::Steps(Steps::new((0..).zip(rates).map(step).collect()).unwrap())
        }),
        prop::collection::vec(1u64..60, 1..20).prop_map(|mut at| {
            at.sort_unstable();
            Rate::Opportunities(Opportunities::new(at).unwrap())
        }),
    ]
}

fn loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        (0.0f64..1.0).prop_map(|lost| Loss::Independent(share(lost))),
        (0.0f64..1.0, 0.0f64..1.0).prop_map(|(to_bad, to_good)| Loss::GilbertElliott {
            good_to_bad: share(to_bad),
            bad_to_good: share(to_good),
            loss_good: Probability::ZERO,
            loss_bad: share(1.0),
        }),
        (0.0f64..1.0, 1u32..20).prop_map(|(lost, mean)| Loss::Bursts {
            steps: Steps::new(vec![(Duration::ZERO, share(lost))]).unwrap(),
            mean_packets: mean.try_into().unwrap(),
        }),
    ]
}

fn config() -> impl Strategy<Value = LinkConfig> {
    let queue = prop_oneof![
        (2_000u64..50_000).prop_map(|bytes| QueueLimit::Bytes(ByteSize(bytes))),
        (1u64..50).prop_map(QueueLimit::Packets),
        (1u64..100).prop_map(|limit| QueueLimit::Time(ms(limit))),
    ];
    let span = (0u64..50, 0u64..100)
        .prop_map(|(from, length)| Span::new(ms(from), ms(from + length)).unwrap());
    let extra = (span.clone(), 0u64..20, prop::option::of(span.clone()));
    let extra = extra.prop_map(|(range, hold, during)| ExtraDelay {
        range,
        hold: ms(hold),
        during,
    });
    let reorder = (0.0f64..1.0).prop_map(|held| Reorder {
        share: share(held),
        delay: ms(5),
    });
    (
        (
            prop::option::of(rate()),
            prop::option::of(queue),
            0u64..100,
            prop::collection::vec(extra, 0..3),
        ),
        (
            prop::bool::ANY,
            prop::option::of(loss()),
            prop::collection::vec(span, 0..2),
            0.0f64..0.5,
        ),
        (prop::option::of(reorder), prop::bool::ANY),
    )
        .prop_map(
            |(
                (rate, queue, delay, extra_delay),
                (keep, loss, cuts, duplicate),
                (reorder, at_exit),
            )| {
                LinkConfig {
                    rate,
                    queue,
                    discipline: None,
                    delay: Delay::Constant(ms(delay)),
                    extra_delay,
                    order: if keep { Order::Keep } else { Order::Free },
                    loss,
                    loss_at: if at_exit { LossAt::Exit } else { LossAt::Entry },
                    cuts,
                    duplicate: share(duplicate),
                    corrupt: Probability::ZERO,
                    reorder,
                }
            },
        )
}

/// Offers all arrivals, pops the packets due before each of them, then pops the rest.
fn run(config: &LinkConfig, arrivals: &[Arrival]) -> (Link<usize>, Vec<Admission>, Vec<Left>) {
    let mut link = Link::new(config.clone(), SEED, Instant::ZERO);
    let (mut now, mut admissions, mut left) = (Instant::ZERO, Vec::new(), Vec::new());
    for (number, (gap, size)) in arrivals.iter().enumerate() {
        now += *gap;
        left.extend(std::iter::from_fn(|| link.pop(now)));
        admissions.push(link.push(now, *size, number));
    }
    while let Some(next) = link.next_departure() {
        left.push(
            link.pop(next)
                .expect("a packet is due at the next departure"),
        );
    }
    (link, admissions, left)
}

/// Returns `count` packets of 1000 bytes, one per millisecond.
fn steady(count: usize) -> Vec<Arrival> {
    vec![(ms(1), ByteSize(1000)); count]
}

proptest! {
    #[test]
    fn no_packet_vanishes(config in config(), arrivals in arrivals()) {
        let (link, admissions, left) = run(&config, &arrivals);
        let stats = link.stats();
        let admitted = admissions.iter().filter(|admission| matches!(admission, Admission::Leaves(_))).count() as u64;

        prop_assert_eq!(stats.offered, arrivals.len() as u64);
        prop_assert_eq!(stats.offered, admitted + stats.dropped());
        prop_assert_eq!(stats.offered + stats.duplicated, stats.delivered + stats.dropped() + stats.in_link);
        prop_assert_eq!(stats.delivered, left.len() as u64);
        prop_assert_eq!(stats.offered_bytes, arrivals.iter().map(|(_, size)| *size).sum());
    }

    #[test]
    fn each_packet_leaves_when_its_admission_said(config in config(), arrivals in arrivals()) {
        let (_, admissions, left) = run(&config, &arrivals);
        prop_assert!(left.is_sorted_by_key(|(at, _)| *at));
        for (at, number) in left {
            prop_assert_eq!(admissions[number], Admission::Leaves(at));
        }
    }

    #[test]
    fn a_seed_always_gives_the_same_departures(config in config(), arrivals in arrivals()) {
        prop_assert_eq!(run(&config, &arrivals).2, run(&config, &arrivals).2);
    }

    #[test]
    fn order_is_kept_where_it_is_asked_for(config in config(), arrivals in arrivals()) {
        let config = LinkConfig { order: Order::Keep, reorder: None, ..config };
        let (link, _, left) = run(&config, &arrivals);
        prop_assert!(left.is_sorted_by_key(|(_, number)| *number));
        prop_assert_eq!(link.stats().reordered, 0);
    }

    #[test]
    fn the_rate_is_never_exceeded(mbps in 0.5f64..400.0, arrivals in arrivals()) {
        let rate = Bitrate::from_mbps(mbps);
        let config = LinkConfig { rate: Some(Rate::Constant(rate)), ..LinkConfig::default() };
        let (_, _, left) = run(&config, &arrivals);
        for (i, (begin, first)) in left.iter().enumerate() {
            let mut sent = ByteSize(0);
            for (end, number) in &left[i + 1..] {
                sent += arrivals[*number].1;
                prop_assert!(end.saturating_since(*begin) >= rate.time_to_send(sent), "after packet {}", first);
            }
        }
    }

    #[test]
    fn delays_stay_within_their_range(extra in 0u64..50, arrivals in arrivals()) {
        let range = Span::new(ms(extra), ms(2 * extra)).unwrap();
        let config = LinkConfig {
            delay: Delay::Constant(ms(20)),
            extra_delay: vec![ExtraDelay { range, hold: Duration::ZERO, during: None }],
            order: Order::Free,
            ..LinkConfig::default()
        };
        let (_, admissions, _) = run(&config, &arrivals);
        let mut now = Instant::ZERO;
        for ((gap, _), admission) in arrivals.iter().zip(admissions) {
            now += *gap;
            let Admission::Leaves(leaves) = admission else { panic!("nothing drops here") };
            prop_assert!((now + ms(20 + extra)..=now + ms(20 + 2 * extra)).contains(&leaves));
        }
    }

    #[test]
    fn loss_does_not_change_what_the_others_draw(config in config(), loss in loss(), arrivals in arrivals()) {
        let config = LinkConfig { rate: None, queue: None, order: Order::Free, loss: None, ..config };
        let without: BTreeMap<usize, Instant> = run(&config, &arrivals).2.into_iter().map(|(at, n)| (n, at)).collect();
        let (_, _, left) = run(&LinkConfig { loss: Some(loss), ..config }, &arrivals);
        for (at, number) in left {
            prop_assert_eq!(at, without[&number]);
        }
    }
}

#[test]
fn a_cut_drops_what_arrives_and_spares_what_is_under_way() {
    let config = LinkConfig {
        delay: Delay::Constant(ms(50)),
        cuts: vec![Span::new(ms(11), ms(21)).unwrap()],
        ..LinkConfig::default()
    };
    let (link, admissions, left) = run(&config, &steady(30));

    assert_eq!(link.stats().dropped_cut, 10);
    assert_eq!(admissions[10], Admission::Dropped(DropReason::Cut));
    assert_eq!(left.len(), 20);
}

#[test]
fn a_share_of_the_packets_is_overtaken() {
    let reorder = Some(Reorder {
        share: share(0.2),
        delay: Duration::from_micros(3500),
    });
    let (link, _, left) = run(
        &LinkConfig {
            reorder,
            ..LinkConfig::default()
        },
        &steady(10_000),
    );
    let reordered = link.stats().reordered as f64 / left.len() as f64;

    // A packet that is held back stays in order if the three that would overtake it are held back
    // too.
    assert!((0.18..0.21).contains(&reordered), "{reordered}");
}

#[test]
fn a_copy_follows_its_original() {
    let (link, _, left) = run(
        &LinkConfig {
            duplicate: share(1.0),
            ..LinkConfig::default()
        },
        &steady(3),
    );

    assert_eq!(
        left.iter().map(|(_, number)| *number).collect::<Vec<_>>(),
        [0, 0, 1, 1, 2, 2]
    );
    assert_eq!((link.stats().duplicated, link.stats().reordered), (3, 0));
}

#[test]
fn schedules_begin_when_the_link_is_restarted() {
    let config = LinkConfig {
        cuts: vec![Span::new(ms(0), ms(10)).unwrap()],
        ..LinkConfig::default()
    };
    let start = Instant::ZERO + Duration::from_secs(100);
    let mut link = Link::new(config, SEED, start);
    let size = ByteSize(100);

    assert!(matches!(
        link.push(start - ms(1), size, ()),
        Admission::Leaves(_)
    ));
    assert_eq!(
        link.push(start, size, ()),
        Admission::Dropped(DropReason::Cut)
    );
    link.restart(start + ms(5));
    assert!(matches!(
        link.push(start + ms(4), size, ()),
        Admission::Leaves(_)
    ));
    assert_eq!(
        link.push(start + ms(14), size, ()),
        Admission::Dropped(DropReason::Cut)
    );
}

#[test]
fn a_link_restarts_after_a_trace_that_ended_at_zero() {
    let rates = vec![
        (ms(0), Bitrate::from_mbps(8.0)),
        (ms(10), Bitrate::from_bps(0)),
    ];
    let config = LinkConfig {
        rate: Some(Rate::Steps(Steps::new(rates).unwrap())),
        ..LinkConfig::default()
    };
    let mut link = Link::new(config, SEED, Instant::ZERO);
    let later = Instant::ZERO + ms(20);

    assert_eq!(
        link.push(later, ByteSize(1000), ()),
        Admission::Leaves(Instant::MAX)
    );
    assert_eq!(link.next_departure(), None);
    link.restart(later);
    assert_eq!(
        link.push(later, ByteSize(1000), ()),
        Admission::Leaves(later + ms(1))
    );
}

#[test]
fn a_packet_lost_behind_the_bottleneck_has_used_its_rate() {
    let second = Duration::from_secs(1);
    let steps = vec![(Duration::ZERO, Probability::ZERO), (second, share(1.0))];
    let last_of = |loss_at| {
        let config = LinkConfig {
            rate: Some(Rate::Constant(Bitrate::from_mbps(8.0))),
            loss: Some(Loss::Steps(Steps::new(steps.clone()).unwrap())),
            loss_at,
            ..LinkConfig::default()
        };
        let mut link = Link::new(config, 1, Instant::ZERO);
        // Five packets of 1 ms each before the loss begins, and five after.
        let start = Instant::ZERO + Duration::from_micros(995_500);
        (0..5).for_each(|number| _ = link.push(start, ByteSize(1000), number));
        let after = Instant::ZERO + second;
        (5..10).for_each(|number| _ = link.push(after, ByteSize(1000), number));
        let left = std::iter::from_fn(|| link.pop(Instant::MAX)).count();
        (left, link.stats().dropped_loss)
    };
    assert_eq!(last_of(LossAt::Entry), (5, 5));
    // The fifth one leaves the bottleneck when the loss has begun.
    assert_eq!(last_of(LossAt::Exit), (4, 6));
}
