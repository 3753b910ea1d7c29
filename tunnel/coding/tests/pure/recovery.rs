//! Lost packets are recovered from coded packets: correctly, as soon as they are determined, and
//! once.

use hawser_coding::field::{inverse, multiply};
use hawser_coding::kernel::Kernel;
use hawser_coding::{Config, Counts, Decoder, MAX_RANGE, RejectReason, encode, fill_coefficients};
use hawser_units::ByteSize;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeSet;

/// A packet that reaches the decoder.
#[derive(Debug, Clone)]
enum Frame {
    Original {
        place: usize,
    },
    Coded {
        place: usize,
        count: usize,
        seed: u64,
    },
}

fn frame(packets: usize) -> impl Strategy<Value = Frame> {
    let coded =
        (0..packets, 1..=MAX_RANGE.min(20), 0u64..50).prop_map(move |(place, count, seed)| {
            Frame::Coded {
                place,
                count: count.min(packets - place),
                seed,
            }
        });
    prop_oneof![
        (0..packets).prop_map(|place| Frame::Original { place }),
        coded
    ]
}

fn symbol(packets: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let range: Vec<&[u8]> = packets.iter().map(Vec::as_slice).collect();
    let mut symbol = Vec::new();
    encode(&range, seed, &mut symbol);
    symbol
}

/// A reference model that finds the determined packets by Gaussian elimination of whole rows.
#[derive(Default)]
struct Model {
    rows: Vec<Vec<u8>>,
}

impl Model {
    fn learn(&mut self, mut row: Vec<u8>) {
        let pivot = |row: &[u8]| row.iter().position(|coefficient| *coefficient != 0);
        for other in &self.rows {
            subtract(&mut row, other, pivot(other).unwrap());
        }
        let Some(first) = pivot(&row) else { return };
        let scale = inverse(row[first]);
        row.iter_mut()
            .for_each(|coefficient| *coefficient = multiply(*coefficient, scale));
        for other in &mut self.rows {
            subtract(other, &row, first);
        }
        self.rows.push(row);
    }

    fn determined(&self) -> BTreeSet<usize> {
        let alone = self
            .rows
            .iter()
            .filter(|row| row.iter().filter(|c| **c != 0).count() == 1);
        alone
            .filter_map(|row| row.iter().position(|c| *c != 0))
            .collect()
    }
}

/// Subtracts the multiple of `other` that makes `row` zero at `pivot`, where `other` is 1.
fn subtract(row: &mut [u8], other: &[u8], pivot: usize) {
    let factor = row[pivot];
    row.iter_mut()
        .zip(other)
        .for_each(|(sum, coefficient)| *sum ^= multiply(factor, *coefficient));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_packet_comes_as_soon_as_it_is_determined_and_once(
        packets in vec(vec(any::<u8>(), 0..50), 40),
        first in prop_oneof![Just(0), 0u64..1 << 40, Just((1 << 62) - 40)],
        frames in vec(frame(40), 1..120),
        kernel in select(Kernel::available()),
    ) {
        let mut decoder = Decoder::new(Config { kernel, ..Config::default() });
        let mut model = Model::default();
        let mut here = BTreeSet::new();
        for frame in frames {
            match frame {
                Frame::Original { place } => {
                    let taken = decoder.handle_original(first + place as u64, &packets[place]);
                    let expected = if here.insert(place) { Ok(()) } else { Err(RejectReason::Known) };
                    prop_assert_eq!(taken, expected);
                    let mut row = vec![0; 40];
                    row[place] = 1;
                    model.learn(row);
                }
                Frame::Coded { place, count, seed } => {
                    let symbol = symbol(&packets[place..place + count], seed);
                    prop_assert_eq!(decoder.handle_coded(first + place as u64, count, seed, &symbol), Ok(()));
                    let mut row = vec![0; 40];
                    fill_coefficients(seed, &mut row[place..place + count]);
                    model.learn(row);
                }
            }
            while let Some((id, packet)) = decoder.poll_packet() {
                let place = (id - first) as usize;
                prop_assert!(here.insert(place), "{place} came twice");
                prop_assert_eq!(&packet, &packets[place]);
            }
            prop_assert_eq!(&here, &model.determined());
        }
        let counts = decoder.counts();
        prop_assert_eq!((counts.abandoned, counts.malformed, counts.unclaimed), (0, 0, 0));
    }

    /// With little memory and long chains of overlapping ranges, the decoder gives up many packets,
    /// but never returns a wrong one.
    #[test]
    fn nothing_wrong_comes_out_of_a_small_decoder(
        packets in vec(vec(any::<u8>(), 0..50), 300),
        window_packets in 1..200usize,
        memory in 0..5000u64,
        frames in vec(frame(300), 1..300),
    ) {
        let mut decoder = Decoder::new(Config {
            window_packets,
            packet_bytes: 50,
            memory: ByteSize(memory),
            ..Config::default()
        });
        let mut here = BTreeSet::new();
        for frame in frames {
            match frame {
                Frame::Original { place } => {
                    let taken = decoder.handle_original(place as u64, &packets[place]);
                    if taken.is_ok() {
                        here.insert(place);
                    }
                }
                Frame::Coded { place, count, seed } => {
                    let symbol = symbol(&packets[place..place + count], seed);
                    let taken = decoder.handle_coded(place as u64, count, seed, &symbol);
                    let honest = [Ok(()), Err(RejectReason::Forgotten), Err(RejectReason::TooLong)];
                    prop_assert!(honest.contains(&taken), "{taken:?}");
                }
            }
            while let Some((id, packet)) = decoder.poll_packet() {
                prop_assert!(here.insert(id as usize), "{id} came twice");
                prop_assert_eq!(&packet, &packets[id as usize]);
            }
        }
        prop_assert_eq!(decoder.counts().malformed, 0);
    }

    /// Section 4.5: any n + 3 coded packets suffice, whichever n packets of the range were lost.
    #[test]
    fn three_more_coded_packets_than_losses_suffice(
        packets in vec(vec(any::<u8>(), 1..200), 1..=MAX_RANGE),
        lost in vec(any::<bool>(), MAX_RANGE),
        seeds in any::<u32>(),
    ) {
        let mut decoder = Decoder::new(Config::default());
        let mut missing = 0;
        for (id, packet) in packets.iter().enumerate() {
            if lost[id] {
                missing += 1;
            } else {
                decoder.handle_original(id as u64, packet).unwrap();
            }
        }
        for seed in (u64::from(seeds)..).take(missing + 3) {
            decoder.handle_coded(0, packets.len(), seed, &symbol(&packets, seed)).unwrap();
        }
        let mut found = 0;
        while let Some((id, packet)) = decoder.poll_packet() {
            prop_assert_eq!(&packet, &packets[id as usize]);
            found += 1;
        }
        prop_assert_eq!(found, missing);
    }
}

#[test]
fn ten_lost_packets_take_ten_coded_ones() {
    let packets: Vec<Vec<u8>> = (0..10).map(|n| vec![n; 100 + usize::from(n)]).collect();
    let mut decoder = Decoder::new(Config::default());
    for seed in 0..10 {
        assert_eq!(decoder.poll_packet(), None);
        decoder
            .handle_coded(1000, 10, seed, &symbol(&packets, seed))
            .unwrap();
    }
    for (id, packet) in (1000..).zip(packets) {
        assert_eq!(decoder.poll_packet(), Some((id, packet)));
    }
    assert_eq!(
        decoder.counts(),
        Counts {
            coded: 10,
            determined: 10,
            ..Counts::default()
        }
    );
}

#[test]
fn a_late_original_can_be_the_last_missing_one() {
    let packets = vec![vec![1; 30], vec![2; 20], vec![3; 10]];
    let mut decoder = Decoder::new(Config::default());
    decoder.handle_coded(5, 3, 1, &symbol(&packets, 1)).unwrap();
    decoder.handle_coded(5, 3, 2, &symbol(&packets, 2)).unwrap();
    assert_eq!(decoder.poll_packet(), None);
    decoder.handle_original(6, &packets[1]).unwrap();
    assert_eq!(decoder.poll_packet(), Some((5, packets[0].clone())));
    assert_eq!(decoder.poll_packet(), Some((7, packets[2].clone())));
    assert_eq!(decoder.poll_packet(), None);
}

#[test]
fn ranges_that_overlap_help_each_other() {
    let packets = vec![vec![1], vec![2, 2], vec![3, 3, 3]];
    let mut decoder = Decoder::new(Config::default());
    decoder
        .handle_coded(0, 2, 1, &symbol(&packets[..2], 1))
        .unwrap();
    decoder
        .handle_coded(1, 2, 2, &symbol(&packets[1..], 2))
        .unwrap();
    decoder.handle_coded(0, 3, 3, &symbol(&packets, 3)).unwrap();
    let found: Vec<_> = std::iter::from_fn(|| decoder.poll_packet()).collect();
    assert_eq!(
        found,
        [
            (0, packets[0].clone()),
            (1, packets[1].clone()),
            (2, packets[2].clone())
        ]
    );
}
