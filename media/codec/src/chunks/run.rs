//! The coding of a run of points that are close to each other.
//!
//! A position is the difference of its key to the one before: the number of its bits in a prefix
//! code, then the bits below the highest. A colour is the difference of luma and of both chroma
//! values to a prediction from the points before, in steps: the upper bits in a prefix code, luma
//! alone and both chroma values together, then the lower bits.

use super::color::{History, rgb_of, ycc_of};
use super::order::Keyed;
use super::symbols::{Codes, Costs, Counts, Shifts, Symbols, Tables};
use crate::bits::{BitReader, BitWriter};

/// Bits of the key and of the colour of a first point.
const KEY_BITS: u32 = 48;
const COLOR_BITS: u32 = 24;
/// Bits of a run that precede its points, by experience.
const TYPICAL_OVERHEAD_BITS: usize = 320;
/// The maximum number of points of a run.
pub(super) const MAX_POINTS: u16 = 8192;

/// The number of points after which the decoder looks whether bytes are left.
const CHECKED_EVERY: usize = 256;

/// Encodes runs. What is learnt from a run predicts how many points of the next one fit.
#[derive(Debug)]
pub(crate) struct RunEncoder {
    costs: Costs,
    shifts: Shifts,
    symbols: Vec<Symbols>,
}

impl RunEncoder {
    pub(crate) fn new() -> Self {
        RunEncoder {
            costs: Costs::new(),
            shifts: Shifts::default(),
            symbols: Vec::new(),
        }
    }

    /// Appends as many points as fit in `max_bytes` to `to`, at least one, and returns their number.
    /// The keys rise; `color_shift` is the binary logarithm of the steps of colours.
    pub(crate) fn encode<P: Copy + Into<Keyed>>(
        &mut self,
        points: &[P],
        color_shift: u8,
        max_bytes: usize,
        to: Vec<u8>,
    ) -> (usize, Vec<u8>) {
        let max_bits = 8 * (max_bytes - to.len());
        let (mut counts, expected) = match color_shift {
            0 => self.take_points::<0, P>(points, max_bits),
            1 => self.take_points::<1, P>(points, max_bits),
            2 => self.take_points::<2, P>(points, max_bits),
            3 => self.take_points::<3, P>(points, max_bits),
            _ => self.take_points::<4, P>(points, max_bits),
        };
        let codes = counts.codes();
        self.drop_excess(&codes, &mut counts, expected, max_bits);
        let run = self.write(points[0].into(), &codes, to);
        self.learn(&counts);
        (1 + self.symbols.len(), run)
    }

    /// Turns points to symbols until they are expected to take `max_bits`. Returns the counts of
    /// the symbols, and their expected size in bits.
    fn take_points<const SHIFT: u8, P>(&mut self, points: &[P], max_bits: usize) -> (Counts, f32)
    where
        P: Copy + Into<Keyed>,
    {
        let RunEncoder {
            costs,
            shifts,
            symbols: taken,
        } = self;
        let shifts = *shifts;
        taken.clear();
        let mut counts = Counts::NONE;
        let Keyed { mut key, rgb } = points[0].into();
        let mut history = History::<SHIFT>::new(ycc_of(rgb));
        let max_cost = costs.within(max_bits.saturating_sub(TYPICAL_OVERHEAD_BITS));
        let mut cost = 0;
        let end = points.len().min(MAX_POINTS.into());
        for point in &points[1..end] {
            let point: Keyed = (*point).into();
            let steps = history.quantise(ycc_of(point.rgb));
            let symbols = Symbols::new(point.key - key, steps, shifts);
            cost += costs.of(&symbols);
            if cost > max_cost {
                break;
            }
            key = point.key;
            counts.add(&symbols);
            taken.push(symbols);
        }
        (counts, cost as f32 / Costs::UNIT)
    }

    /// Drops the last points while the codes need more than `max_bits`.
    fn drop_excess(&mut self, codes: &Codes, counts: &mut Counts, expected: f32, max_bits: usize) {
        let points = codes.total_bits(counts);
        self.costs.correct(points as f32, expected);
        let overhead = (KEY_BITS + COLOR_BITS) as usize + codes.description_bits();
        let mut bits = overhead + points;
        while bits > max_bits {
            let Some(last) = self.symbols.pop() else {
                break;
            };
            bits -= codes.bits(&last) as usize;
            counts.remove(&last);
        }
    }

    fn write(&self, first: Keyed, codes: &Codes, to: Vec<u8>) -> Vec<u8> {
        let mut bits = BitWriter::after(to);
        let [r, g, b] = first.rgb;
        bits.put(first.key, KEY_BITS);
        bits.put(u32::from_be_bytes([0, r, g, b]).into(), COLOR_BITS);
        codes.describe(self.shifts, &mut bits);
        for symbols in &self.symbols {
            codes.put(symbols, &mut bits);
        }
        bits.finish()
    }

    /// Prepares for a run that resembles this one.
    fn learn(&mut self, counts: &Counts) {
        if !self.symbols.is_empty() {
            self.costs.expect(counts);
            self.shifts.adapt(counts);
        }
    }
}

/// The reason that the bytes of a run cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidRun;

/// Decodes runs, reusing its tables.
#[derive(Debug)]
pub(crate) struct RunDecoder {
    tables: Tables,
}

impl RunDecoder {
    pub(crate) fn new() -> Self {
        RunDecoder {
            tables: Tables::new(),
        }
    }

    /// Decodes as many points as there are in `to`, at least one. `point` makes them from their keys
    /// and colours. If the run is not valid, some are as they were.
    pub(crate) fn decode<P>(
        &mut self,
        bytes: &[u8],
        color_shift: u8,
        to: &mut [P],
        mut point: impl FnMut(Keyed) -> P,
    ) -> Result<(), InvalidRun> {
        let (first, rest) = to.split_first_mut().ok_or(InvalidRun)?;
        let mut from = BitReader::new(bytes);
        let key = from.take(KEY_BITS);
        let [_, r, g, b] = (from.take(COLOR_BITS) as u32).to_be_bytes();
        self.tables.read(&mut from).map_err(|_| InvalidRun)?;
        let rgb = [r, g, b];
        *first = point(Keyed { key, rgb });
        let first = Keyed { key, rgb };
        match color_shift {
            0 => self.decode_after::<0, P>(first, from, rest, point),
            1 => self.decode_after::<1, P>(first, from, rest, point),
            2 => self.decode_after::<2, P>(first, from, rest, point),
            3 => self.decode_after::<3, P>(first, from, rest, point),
            4 => self.decode_after::<4, P>(first, from, rest, point),
            _ => Err(InvalidRun),
        }
    }

    /// Decodes the points after the first one.
    fn decode_after<const SHIFT: u8, P>(
        &self,
        Keyed { mut key, rgb }: Keyed,
        mut from: BitReader<'_>,
        to: &mut [P],
        mut point: impl FnMut(Keyed) -> P,
    ) -> Result<(), InvalidRun> {
        let mut history = History::<SHIFT>::new(ycc_of(rgb));
        for to in to.chunks_mut(CHECKED_EVERY) {
            for to in to {
                let (gap, steps) = self.tables.point(&mut from);
                key = key.wrapping_add(gap);
                let rgb = rgb_of(history.restore(steps));
                *to = point(Keyed { key, rgb });
            }
            // Nobody makes the loop run far beyond the bytes.
            if from.is_overrun() {
                return Err(InvalidRun);
            }
        }
        let is_whole = !from.is_overrun() && from.rest().is_empty();
        is_whole.then_some(()).ok_or(InvalidRun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_points() -> impl Strategy<Value = Vec<Keyed>> {
        let point = (any::<u64>(), 0u32..=48, any::<[u8; 3]>());
        prop::collection::vec(point, 1..300).prop_map(|points| {
            let mut points: Vec<Keyed> = points
                .into_iter()
                .map(|(key, bits, rgb)| Keyed {
                    key: key & ((1 << bits) - 1),
                    rgb,
                })
                .collect();
            points.sort_by_key(|point| point.key);
            points
        })
    }

    fn decoded(bytes: &[u8], count: usize, color_shift: u8) -> Result<Vec<Keyed>, InvalidRun> {
        let unknown = Keyed {
            key: 0,
            rgb: [0; 3],
        };
        let mut points = vec![unknown; count];
        let decoded = RunDecoder::new().decode(bytes, color_shift, &mut points, |point| point);
        decoded.map(|()| points)
    }

    proptest! {
        #[test]
        fn runs_fit_and_are_decoded_without_loss(points in any_points(), max_bytes in 120usize..1200) {
            let mut encoder = RunEncoder::new();
            let mut found = Vec::new();
            while found.len() < points.len() {
                let (count, bytes) = encoder.encode(&points[found.len()..], 0, max_bytes, Vec::new());
                prop_assert!(bytes.len() <= max_bytes);
                found.extend(decoded(&bytes, count, 0).expect("an encoded run"));
            }
            prop_assert_eq!(found, points);
        }

        #[test]
        fn quantised_colours_are_within_a_step(points in any_points(), shift in 1u8..5) {
            let (count, bytes) = RunEncoder::new().encode(&points, shift, 10_000, Vec::new());
            prop_assert_eq!(count, points.len());
            let found = decoded(&bytes, count, shift).expect("an encoded run");
            for (point, found) in points.iter().zip(found) {
                prop_assert_eq!(found.key, point.key);
                // Half a step in luma and in each chroma value, and their rounding.
                let error = (0..3).map(|channel| found.rgb[channel].abs_diff(point.rgb[channel])).max();
                prop_assert!(error <= Some(2 * (1 << shift)), "{:?} {:?}", point, found);
            }
        }

        #[test]
        fn any_bytes_are_refused_or_points(bytes in prop::collection::vec(any::<u8>(), 0..400), count in 1usize..2000, shift in 0u8..5) {
            if let Ok(points) = decoded(&bytes, count, shift) {
                prop_assert_eq!(points.len(), count);
            }
        }
    }
}
