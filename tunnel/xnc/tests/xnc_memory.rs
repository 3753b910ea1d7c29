//! The memory of a session: little when idle, whatever happened before, and never above the limit.

#[path = "support/configs.rs"]
mod configs;

use bytes::Bytes;
use cap::Cap;
use configs::{configs, reliable};
use hawser_units::{ByteSize, Ecn, Instant, PathId};
use hawser_xnc::{Config, Endpoint, Hint, PathState, Rtt};
use proptest::prelude::*;
use std::alloc::System;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// The allocator counts for the whole process, so only one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

const MS: Duration = Duration::from_millis(1);

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the result of `make`, and the bytes that it leaves allocated.
fn cost_of<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = ALLOCATOR.allocated();
    let made = make();
    (made, ALLOCATOR.allocated().saturating_sub(before))
}

fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

fn state() -> PathState {
    PathState {
        congestion_window: ByteSize(1 << 30),
        in_flight: ByteSize(0),
        queued: ByteSize(0),
        rtt: Rtt::default(),
        datagram_size: 1438,
    }
}

fn end(config: Config) -> Endpoint {
    let mut end = Endpoint::new(config);
    end.add_path(Instant::ZERO, path(0));
    end.update_path(path(0), state());
    end
}

fn original(number: u32, bytes: &[u8]) -> Vec<u8> {
    let [_, _, transmission @ ..] = number.to_be_bytes();
    let [_, start @ ..] = number.to_be_bytes();
    [&[1][..], &transmission, &start, bytes].concat()
}

/// Handles everything that is due at an endpoint, and discards its output.
fn turn(end: &mut Endpoint, now: Instant) {
    end.handle_timeout(now);
    end.update_path(path(0), state());
    while end.poll_transmit(now).is_some()
        || end.poll_packet().is_some()
        || end.poll_event().is_some()
    {}
}

/// Two ends with a one-way delay of 10 ms exchange this number of packets per millisecond for a
/// second, then are idle for ten seconds.
fn busy_then_idle(config: &Config, packets: usize) -> [Endpoint; 2] {
    let mut ends = [end(config.clone()), end(config.clone())];
    let mut wires: [VecDeque<(Instant, Bytes)>; 2] = Default::default();
    let mut now = Instant::ZERO;
    for step in 0..11_000 {
        now += MS;
        for from in 0..2 {
            let end = &mut ends[from];
            for _ in 0..if step < 1000 { packets } else { 0 } {
                end.handle_packet(now, vec![7; 1400], Hint::default())
                    .unwrap();
            }
            while wires[1 - from].front().is_some_and(|(at, _)| *at <= now) {
                let (_, datagram) = wires[1 - from].pop_front().unwrap();
                end.handle_datagram(now, path(0), datagram, None).unwrap();
            }
            end.handle_timeout(now);
            end.update_path(path(0), state());
            while let Some(transmit) = end.poll_transmit(now) {
                wires[from].push_back((now + 10 * MS, transmit.datagram));
            }
            while end.poll_packet().is_some() {}
        }
    }
    ends
}

#[test]
fn an_idle_end_is_small() {
    let _alone = alone();
    for config in [Config::default(), reliable()] {
        let (ends, cost) = cost_of(|| busy_then_idle(&config, 80));
        assert!(
            ends[0].stats().sender.delivered > 70_000,
            "{:?}",
            ends[0].stats().sender
        );
        assert!(cost < 2 * 110_000, "{cost} bytes for two ends");
    }
}

#[test]
fn tiny_packets_do_not_take_the_memory_of_large_ones() {
    let _alone = alone();
    let tiny = || {
        let mut end = end(Config::default());
        for number in 0..45_000 {
            let now = Instant::ZERO + u64::from(number) as u32 * MS / 40;
            end.handle_datagram(now, path(0), original(number, b"x"), None)
                .unwrap();
            turn(&mut end, now);
        }
        end
    };
    let (_end, cost) = cost_of(tiny);
    assert!(cost < 5_000_000, "{cost} bytes for 45,000 datagrams of 7");
}

#[test]
fn numbers_far_ahead_cost_no_more_than_any_others() {
    let _alone = alone();
    let mut max = 0;
    let jumps = || {
        let mut end = end(Config {
            packet_memory: ByteSize(16_000_000),
            ..Config::default()
        });
        let before = ALLOCATOR.allocated();
        for number in 1..1000 {
            // As far ahead as 24 bits can tell and the receiver accepts.
            let datagram = original(number << 20 & 0xff_ffff, b"far ahead");
            let transmission = (number as u16).to_be_bytes();
            let datagram = [&[1][..], &transmission, &datagram[3..]].concat();
            end.handle_datagram(Instant::ZERO, path(0), datagram.to_vec(), None)
                .unwrap();
            max = max.max(ALLOCATOR.allocated().saturating_sub(before));
            turn(&mut end, Instant::ZERO);
        }
        end
    };
    let (end, _) = cost_of(jumps);
    assert_eq!(end.stats().receiver.delivered, 999);
    // Allocating slots for all packets up to the limit at each jump would take 750 kB.
    assert!(max < 64_000, "{max} bytes");
}

#[test]
fn packets_held_for_reordering_stay_within_the_limit() {
    let _alone = alone();
    let held = || {
        let mut end = end(Config {
            packet_memory: ByteSize(4 << 20),
            ..reliable()
        });
        for number in 1..100_000 {
            let now = Instant::ZERO + MS;
            end.handle_datagram(now, path(0), original(number, b"x"), None)
                .unwrap();
        }
        while end.poll_packet().is_some() {}
        end
    };
    let (_end, cost) = cost_of(held);
    let allowed = 2 * (4 << 20);
    assert!(cost < allowed, "{cost} bytes");
}

#[test]
fn waiting_packets_stay_within_the_limit() {
    let _alone = alone();
    let waiting = || {
        let mut end = end(Config {
            queue_limit: ByteSize(1 << 20),
            ..Config::default()
        });
        for flow_hash in 0..20_000 {
            let hint = Hint {
                flow_hash,
                end_of_frame: flow_hash % 2 == 0,
                ..Hint::default()
            };
            end.handle_packet(Instant::ZERO, vec![7], hint).unwrap();
        }
        end
    };
    let (end, cost) = cost_of(waiting);
    assert!(end.stats().sender.overflowed > 10_000);
    assert!(cost < 2 << 20, "{cost} bytes");
}

#[test]
fn unacknowledged_pings_are_forgotten() {
    let _alone = alone();
    for config in configs() {
        let an_hour = || {
            let mut end = end(config.clone());
            end.handle_packet(Instant::ZERO, vec![7; 1000], Hint::default())
                .unwrap();
            (0..3600 * 50).for_each(|step| turn(&mut end, Instant::ZERO + step * 20 * MS));
            end
        };
        let (end, cost) = cost_of(an_hour);
        assert!(end.stats().sender.paths[0].pings > 30_000);
        assert!(cost < 100_000, "{cost} bytes");
    }
}

fn transmissions() -> impl Strategy<Value = Vec<(u8, u8, Vec<u8>)>> {
    let first = prop_oneof![Just(0u8), 0u8..70];
    proptest::collection::vec(
        (0u8..3, first, proptest::collection::vec(any::<u8>(), 0..60)),
        0..200,
    )
}

#[test]
fn no_datagram_panics_or_makes_memory_grow() {
    let _alone = alone();
    proptest!(|(datagrams in transmissions())| {
        let (before, mut max) = (ALLOCATOR.allocated(), 0);
        let (_end, cost) = cost_of(|| {
            let mut end = end(Config { packet_memory: ByteSize(1 << 20), ..Config::default() });
            end.add_path(Instant::ZERO, path(1));
            for (datagram, step) in datagrams.iter().zip(1u32..) {
                let (index, first, rest) = datagram;
                let now = Instant::ZERO + step * MS;
                let bytes = [&[*first][..], rest].concat();
                let _ = end.handle_datagram(now, path(*index), bytes.clone(), Some(Ecn::Ce));
                max = max.max(ALLOCATOR.allocated().saturating_sub(before));
                turn(&mut end, now);
            }
            turn(&mut end, Instant::ZERO + 10_000 * MS);
            end
        });
        prop_assert!(max < 1 << 20, "{} bytes", max);
        prop_assert!(cost < 50_000, "{} bytes", cost);
    });
}
