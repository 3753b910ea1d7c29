//! For any input, a decoder does not panic, stays within its memory, and counts what it rejects.

use hawser_coding::{Config, Counts, Decoder, MAX_RANGE, RejectReason, encode};
use hawser_units::ByteSize;
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Operation {
    Original {
        id: u64,
        packet: Vec<u8>,
    },
    Coded {
        start: u64,
        count: usize,
        seed: u64,
        symbol: Vec<u8>,
    },
    Forget {
        id: u64,
    },
    Poll,
}

const PACKET_BYTES: usize = 40;

/// Numbers close to each other, far ahead, and at the end of the range.
fn id() -> impl Strategy<Value = u64> {
    prop_oneof![
        20 => 1000..1200u64,
        2 => 0..1u64 << 20,
        1 => (1u64 << 62) - 100..(1 << 62) + 100,
        1 => any::<u64>(),
        1 => Just(u64::MAX),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let count =
        prop_oneof![20 => 1..=MAX_RANGE, 1 => Just(0), 1 => MAX_RANGE..300, 1 => Just(usize::MAX)];
    let symbol = vec(prop_oneof![Just(0), any::<u8>()], 0..PACKET_BYTES + 5);
    prop_oneof![
        4 => (id(), vec(any::<u8>(), 0..PACKET_BYTES + 5))
            .prop_map(|(id, packet)| Operation::Original { id, packet }),
        12 => (id(), count, 0..4u64, symbol)
            .prop_map(|(start, count, seed, symbol)| Operation::Coded { start, count, seed, symbol }),
        1 => (900..1100u64).prop_map(|id| Operation::Forget { id }),
        2 => Just(Operation::Poll),
    ]
}

fn total_rejected(counts: &Counts) -> u64 {
    counts.rejected_range
        + counts.rejected_length
        + counts.rejected_forgotten
        + counts.rejected_known
        + counts.rejected_contradiction
        + counts.rejected_too_long
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_decoder_survives_anything_within_its_memory(
        window_packets in 1..400usize,
        memory in 0..20_000u64,
        operations in vec(operation(), 0..500),
    ) {
        let config = Config {
            window_packets,
            packet_bytes: PACKET_BYTES,
            memory: ByteSize(memory),
            ..Config::default()
        };
        let limit = config.max_memory();
        let mut decoder = Decoder::new(config);
        let mut rejected = 0;
        for operation in operations {
            let taken = match operation {
                Operation::Original { id, packet } => decoder.handle_original(id, &packet),
                Operation::Coded { start, count, seed, symbol } => {
                    decoder.handle_coded(start, count, seed, &symbol)
                }
                Operation::Forget { id } => {
                    decoder.forget_before(id);
                    Ok(())
                }
                Operation::Poll => {
                    let _ = decoder.poll_packet();
                    Ok(())
                }
            };
            rejected += u64::from(taken.is_err());
            prop_assert!(decoder.memory() <= limit, "{:?} of {limit:?}", decoder.memory());
        }
        prop_assert_eq!(total_rejected(&decoder.counts()), rejected);
    }
}

fn decoder() -> Decoder {
    Decoder::new(Config {
        window_packets: 1000,
        packet_bytes: PACKET_BYTES,
        memory: ByteSize(1 << 20),
        ..Config::default()
    })
}

fn coded(range: &[&[u8]], seed: u64) -> Vec<u8> {
    let mut symbol = Vec::new();
    encode(range, seed, &mut symbol);
    symbol
}

#[test]
fn impossible_frames_are_rejected() {
    let mut decoder = decoder();
    assert_eq!(
        decoder.handle_coded(0, 0, 0, &[0; 10]),
        Err(RejectReason::Range)
    );
    assert_eq!(
        decoder.handle_coded(0, MAX_RANGE + 1, 0, &[0; 10]),
        Err(RejectReason::Range)
    );
    assert_eq!(
        decoder.handle_coded(u64::MAX, 2, 0, &[0; 10]),
        Err(RejectReason::Range)
    );
    assert_eq!(
        decoder.handle_coded(1 << 62, 1, 0, &[0; 10]),
        Err(RejectReason::Range)
    );
    assert_eq!(
        decoder.handle_original(1 << 62, &[0; 10]),
        Err(RejectReason::Range)
    );
    assert_eq!(
        decoder.handle_coded(0, 2, 0, &[0; 1]),
        Err(RejectReason::Length)
    );
    assert_eq!(
        decoder.handle_coded(0, 2, 0, &[0; PACKET_BYTES + 3]),
        Err(RejectReason::Length)
    );
    assert_eq!(
        decoder.handle_original(0, &[0; PACKET_BYTES + 1]),
        Err(RejectReason::Length)
    );
    let expected = Counts {
        rejected_range: 5,
        rejected_length: 3,
        ..Counts::default()
    };
    assert_eq!(decoder.counts(), expected);
}

#[test]
fn packets_before_the_window_are_rejected() {
    let mut decoder = decoder();
    decoder.handle_original(5000, b"new").unwrap();
    assert_eq!(
        decoder.handle_original(4000, b"old"),
        Err(RejectReason::Forgotten)
    );
    decoder
        .handle_original(4001, b"oldest that is remembered")
        .unwrap();
    assert_eq!(
        decoder.handle_coded(4000, 2, 0, &[0; 10]),
        Err(RejectReason::Forgotten)
    );
    decoder.forget_before(4500);
    assert_eq!(
        decoder.handle_original(4499, b"given up"),
        Err(RejectReason::Forgotten)
    );
    assert_eq!(decoder.counts().rejected_forgotten, 3);
}

#[test]
fn a_symbol_that_contradicts_another_is_rejected() {
    let mut decoder = decoder();
    decoder.handle_coded(0, 3, 1, &[0, 1, 7]).unwrap();
    assert_eq!(
        decoder.handle_coded(0, 3, 1, &[0, 1, 8]),
        Err(RejectReason::Contradiction)
    );
    assert_eq!(decoder.counts().rejected_contradiction, 1);
    assert_eq!(
        decoder.handle_coded(0, 3, 1, &[0, 1, 7]),
        Ok(()),
        "a duplicate adds no information"
    );
    assert_eq!(decoder.counts().redundant, 1);
}

#[test]
fn a_solution_that_is_no_packet_is_not_delivered() {
    let mut decoder = decoder();
    decoder.handle_coded(9, 1, 0, &[0xff, 0xff, 1]).unwrap();
    assert_eq!(decoder.poll_packet(), None);
    assert_eq!(decoder.counts().malformed, 1);
    decoder.handle_original(9, b"as it was").unwrap();
}

#[test]
fn packets_that_leave_the_window_take_their_equations_along() {
    let mut decoder = decoder();
    decoder
        .handle_coded(0, 2, 0, &coded(&[b"one", b"two"], 0))
        .unwrap();
    decoder
        .handle_coded(1, 2, 0, &coded(&[b"two", b"three"], 0))
        .unwrap();
    decoder.forget_before(1);
    assert_eq!(decoder.counts().abandoned, 1);
    decoder.handle_original(2, b"three").unwrap();
    assert_eq!(decoder.poll_packet(), Some((1, b"two".to_vec())));
}

#[test]
fn a_chain_of_ranges_does_not_grow_for_ever() {
    let packet = |id: u64| id.to_be_bytes();
    let mut decoder = decoder();
    for start in (0..500).step_by(25) {
        let packets: Vec<[u8; 8]> = (start..start + 50).map(packet).collect();
        let range: Vec<&[u8]> = packets.iter().map(|packet| &packet[..]).collect();
        decoder
            .handle_coded(start, 50, start, &coded(&range, start))
            .unwrap();
    }
    let abandoned = decoder.counts().abandoned;
    assert!((1..20).contains(&abandoned), "{abandoned} of 20");
    for id in (0..525).filter(|id| id % 25 != 0 || *id == 500) {
        decoder.handle_original(id, &packet(id)).unwrap();
    }
    let found: Vec<_> = std::iter::from_fn(|| decoder.poll_packet()).collect();
    assert_eq!(
        found.len() as u64,
        20 - abandoned,
        "the rest of the chain is useful"
    );
    assert!(found.iter().all(|(id, bytes)| *bytes == packet(*id)));
}

#[test]
fn the_oldest_of_too_many_equations_is_given_up() {
    let mut decoder = decoder();
    for start in (0..600).step_by(2) {
        decoder
            .handle_coded(start, 2, 0, &coded(&[b"one", b"two"], 0))
            .unwrap();
    }
    assert_eq!(decoder.counts().abandoned, 300 - 256);
}

#[test]
fn packets_that_are_not_polled_are_dropped() {
    let config = Config {
        window_packets: 1000,
        packet_bytes: PACKET_BYTES,
        memory: ByteSize(1000),
        ..Config::default()
    };
    let limit = config.max_memory();
    let mut decoder = Decoder::new(config);
    for id in 0..500 {
        decoder
            .handle_coded(id, 1, 0, &coded(&[b"packet"], 0))
            .unwrap();
        assert!(decoder.memory() <= limit);
    }
    assert!(decoder.counts().unclaimed > 400);
}

#[test]
fn a_decoder_that_has_forgotten_everything_is_small() {
    let mut decoder = Decoder::new(Config::default());
    for id in 0..10_000 {
        decoder.handle_original(id, &[7; 1400]).unwrap();
    }
    assert!(decoder.memory() > ByteSize(5 << 20));
    decoder.forget_before(10_000);
    assert!(decoder.memory() < ByteSize(3000), "{:?}", decoder.memory());
}

#[test]
fn tiny_packets_take_little_memory() {
    let mut decoder = Decoder::new(Config {
        window_packets: 1 << 16,
        ..Config::default()
    });
    for id in 0..40_000 {
        decoder.handle_original(id, b"x").unwrap();
    }
    assert!(
        decoder.memory() < ByteSize(40_000 * 60),
        "{:?}",
        decoder.memory()
    );
}

#[test]
fn a_large_window_shrinks() {
    let mut decoder = Decoder::new(Config {
        window_packets: 1 << 16,
        ..Config::default()
    });
    for id in (0..60_000).step_by(64) {
        decoder.handle_original(id, b"far from the others").unwrap();
    }
    assert!(decoder.memory() > ByteSize(1 << 20));
    decoder.forget_before(59_900);
    assert!(
        decoder.memory() < ByteSize(20_000),
        "{:?}",
        decoder.memory()
    );
}

#[test]
fn a_number_far_ahead_costs_no_more_than_any_other() {
    let config = Config {
        window_packets: 1 << 17,
        ..Config::default()
    };
    let mut decoder = Decoder::new(config);
    let mut peak = 0;
    for jump in 0..1000u64 {
        // Within the window, beyond it, and back in the skipped part.
        for id in [
            jump << 20,
            (jump << 20) + (1 << 16),
            (jump << 20) + (1 << 15),
        ] {
            decoder.handle_original(id, b"far ahead").unwrap();
            peak = peak.max(decoder.memory().0);
        }
    }
    // Each jump allocates the same. A slot for every packet of the window would take 3 MB.
    assert!(peak < 100_000, "{peak} bytes");
}
