//! A decoder that is given changed coded packets does not panic, stays within its memory, and
//! recovers no packet that is longer than its limit.

use crate::mutation::{changed, changes};
use hawser_coding::{Config, Decoder, LENGTH_BYTES, MAX_RANGE, encode};
use hawser_units::ByteSize;
use proptest::collection::vec;
use proptest::prelude::*;

const PACKET_BYTES: usize = 1500;

fn config() -> Config {
    Config {
        window_packets: 200,
        packet_bytes: PACKET_BYTES,
        memory: ByteSize(100_000),
        ..Config::default()
    }
}

fn symbol(packets: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let range: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
    let mut symbol = Vec::new();
    encode(&range, seed, &mut symbol);
    symbol
}

/// Takes all recovered packets and checks them.
fn check(decoder: &mut Decoder) -> Result<Vec<(u64, Vec<u8>)>, TestCaseError> {
    prop_assert!(decoder.memory() <= config().max_memory());
    let mut recovered = Vec::new();
    while let Some((id, packet)) = decoder.poll_packet() {
        prop_assert!(packet.len() <= PACKET_BYTES);
        recovered.push((id, packet));
    }
    Ok(recovered)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn changed_coded_packets_are_rejected_or_within_bounds(
        packets in vec(vec(any::<u8>(), 0..60), 1..12),
        shots in vec((0..4u64, changes(), 0..3u64, 0..3usize), 1..20),
        start in prop_oneof![Just(0u64), Just((1u64 << 62) - 20), any::<u64>()],
    ) {
        let mut decoder = Decoder::new(config());
        for (seed, changes, late, more) in shots {
            let symbol = changed(&symbol(&packets, seed), &changes);
            let id = start.saturating_add(late);
            let taken = decoder.handle_coded(id, packets.len() + more, seed, &symbol);
            let fits = (LENGTH_BYTES..=LENGTH_BYTES + PACKET_BYTES).contains(&symbol.len());
            prop_assert!(fits || taken.is_err(), "{} bytes", symbol.len());
            check(&mut decoder)?;
        }
    }

    #[test]
    fn any_symbol_is_rejected_or_within_bounds(
        symbols in vec((1..=MAX_RANGE, any::<u64>(), vec(any::<u8>(), 0..PACKET_BYTES + 10)), 1..6),
    ) {
        let mut decoder = Decoder::new(config());
        for (count, seed, symbol) in symbols {
            let _ = decoder.handle_coded(0, count, seed, &symbol);
            check(&mut decoder)?;
        }
    }

    #[test]
    fn emitted_coded_packets_recover_the_same_packets(
        packets in vec(vec(any::<u8>(), 0..60), 1..12),
        first_seed: u64,
    ) {
        let mut decoder = Decoder::new(config());
        let mut recovered = Vec::new();
        // More shots than packets: a few may depend on the others.
        for shot in 0..packets.len() as u64 + 5 {
            let seed = first_seed.wrapping_add(shot);
            let _ = decoder.handle_coded(7, packets.len(), seed, &symbol(&packets, seed));
            recovered.extend(check(&mut decoder)?);
        }
        recovered.sort();
        let sent: Vec<(u64, Vec<u8>)> = (7u64..).zip(packets).collect();
        prop_assert_eq!(recovered, sent);
    }
}
