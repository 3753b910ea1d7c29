//! No sequence of inputs from a peer, a network and a driver causes a panic.

use crate::configs::configs;
use hawser_units::{ByteSize, Ecn, Instant, PathId};
use hawser_xnc::frame::emit_ping;
use hawser_xnc::{Config, Endpoint, Hint, PathState, Rtt};
use proptest::collection::vec;
use proptest::prelude::*;
use std::time::Duration;

#[derive(Debug, Clone)]
enum Operation {
    /// Time advances, or restarts from zero; `None` is the end of time.
    Clock {
        ms: Option<u64>,
        from_zero: bool,
    },
    Appear(u8),
    Vanish(u8),
    Packets {
        count: u8,
        bytes: usize,
    },
    State {
        path: u8,
        window: u64,
        in_flight: u64,
        rtt_ms: u64,
        datagram_size: usize,
    },
    Timeout,
    Transmit,
    Acks {
        path: u8,
        blocks: Vec<Block>,
    },
    Ping {
        path: u8,
        number: u64,
    },
    Received {
        path: u8,
        count: u8,
        transmission: u16,
        start: u32,
        bytes: Vec<u8>,
    },
}

#[derive(Debug, Clone)]
struct Block {
    path: u8,
    delay: u16,
    largest: u64,
    ecn: Option<[u8; 12]>,
    first: u16,
    further: Vec<(u16, u16)>,
}

/// Numbers close to those of a short session, and at the ends of the range.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 0..300u64,
        1 => 0..100_000u64,
        1 => (0..64u32).prop_map(|bit| 1 << bit),
        1 => u64::MAX - 3..=u64::MAX,
        1 => any::<u64>(),
    ]
}

fn block() -> impl Strategy<Value = Block> {
    let more = || prop_oneof![5 => 0..6u16, 1 => any::<u16>()];
    let ecn = proptest::option::of(any::<[u8; 12]>());
    let further = vec((0..5u16, more()), 0..31);
    (0..5u8, any::<u16>(), number(), ecn, more(), further).prop_map(
        |(path, delay, largest, ecn, first, further)| Block {
            path,
            delay,
            largest,
            ecn,
            first,
            further,
        },
    )
}

fn operation() -> impl Strategy<Value = Operation> {
    let path = || 0..4u8;
    let ms = prop_oneof![50 => (0..4000u64).prop_map(Some), 1 => Just(None)];
    let datagram_size = prop_oneof![1 => 0..100usize, 4 => Just(1438)];
    let received = (
        path(),
        0..64u8,
        any::<u16>(),
        number(),
        vec(prop_oneof![Just(0), any::<u8>()], 1..40),
    );
    prop_oneof![
        2 => (ms, prop::bool::weighted(0.02)).prop_map(|(ms, from_zero)| Operation::Clock { ms, from_zero }),
        3 => (0..40u64).prop_map(|ms| Operation::Clock { ms: Some(ms), from_zero: false }),
        1 => path().prop_map(Operation::Appear),
        1 => path().prop_map(Operation::Vanish),
        3 => (0..30u8, 1..1500usize).prop_map(|(count, bytes)| Operation::Packets { count, bytes }),
        4 => (path(), number(), number(), 0..300u64, datagram_size).prop_map(
            |(path, window, in_flight, rtt_ms, datagram_size)| {
                Operation::State { path, window: window.saturating_mul(1000), in_flight, rtt_ms, datagram_size }
            }
        ),
        2 => Just(Operation::Timeout),
        4 => Just(Operation::Transmit),
        4 => (path(), vec(block(), 1..5)).prop_map(|(path, blocks)| Operation::Acks { path, blocks }),
        2 => (path(), number()).prop_map(|(path, number)| Operation::Ping { path, number }),
        6 => received.prop_map(|(path, count, transmission, start, bytes)| {
            Operation::Received { path, count, transmission, start: start as u32, bytes }
        }),
    ]
}

fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

fn acks(blocks: Vec<Block>) -> Vec<u8> {
    let mut datagram = vec![0, 1];
    for Block {
        path,
        delay,
        largest,
        ecn,
        first,
        further,
    } in blocks
    {
        datagram.extend([
            path | if ecn.is_some() { 0x80 } else { 0 },
            1 + further.len() as u8,
        ]);
        datagram.extend(delay.to_be_bytes());
        datagram.extend(largest.to_be_bytes());
        datagram.extend(ecn.into_iter().flatten());
        datagram.extend(first.to_be_bytes());
        datagram.extend(
            further
                .into_iter()
                .flat_map(|(gap, more)| [gap, more])
                .flat_map(u16::to_be_bytes),
        );
    }
    datagram
}

fn apply(end: &mut Endpoint, now: &mut Instant, operation: Operation) {
    let received = |end: &mut Endpoint, index, datagram: &[u8]| {
        let _ = end.handle_datagram(*now, path(index), datagram.to_vec(), Some(Ecn::Ce));
    };
    match operation {
        Operation::Clock { ms: None, .. } => *now = Instant::MAX,
        Operation::Clock {
            ms: Some(ms),
            from_zero,
        } => {
            *now = if from_zero { Instant::ZERO } else { *now } + Duration::from_millis(ms);
        }
        Operation::Appear(index) => end.add_path(*now, path(index)),
        Operation::Vanish(index) => end.remove_path(*now, path(index)),
        Operation::Packets { count, bytes } => {
            for index in 0..count {
                let hint = Hint {
                    end_of_frame: index + 1 == count,
                    flow_hash: u64::from(index % 3),
                    urgent: index % 5 == 0,
                    ecn: Ecn::from_octet(index % 7),
                };
                let _ = end.handle_packet(*now, vec![1; bytes], hint);
            }
        }
        Operation::State {
            path: index,
            window,
            in_flight,
            rtt_ms,
            datagram_size,
        } => {
            let rtt = Rtt {
                smoothed: Duration::from_millis(rtt_ms),
                ..Rtt::default()
            };
            let (congestion_window, in_flight) = (ByteSize(window), ByteSize(in_flight));
            let state = PathState {
                congestion_window,
                in_flight,
                queued: ByteSize(0),
                rtt,
                datagram_size,
            };
            end.update_path(path(index), state);
        }
        Operation::Timeout => {
            end.handle_timeout(*now);
            let _ = end.poll_timeout();
        }
        Operation::Transmit => {
            let _ = std::iter::from_fn(|| end.poll_transmit(*now))
                .take(60)
                .count();
            while end.poll_packet().is_some() || end.poll_event().is_some() {}
        }
        Operation::Acks { path, blocks } => received(end, path, &acks(blocks)),
        Operation::Ping { path, number } => received(end, path, &emit_ping(number)),
        Operation::Received {
            path,
            count,
            transmission,
            start,
            bytes,
        } => {
            let [_, start @ ..] = start.to_be_bytes();
            received(
                end,
                path,
                &[&[count][..], &transmission.to_be_bytes(), &start, &bytes].concat(),
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_sequence_of_operations_panics(
        config in proptest::sample::select(configs()),
        pool in 12..22u32,
        operations in vec(operation(), 0..300),
    ) {
        let mut end = Endpoint::new(Config {
            packet_memory: ByteSize(1 << pool),
            ..config
        });
        let mut now = Instant::ZERO;
        (0..2).for_each(|index| end.add_path(now, path(index)));
        operations.into_iter().for_each(|operation| apply(&mut end, &mut now, operation));
    }
}
