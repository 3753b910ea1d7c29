//! The coding of a run of points that are close to each other.
//!
//! A position is the difference of its key to the one before: the number of its bits in a prefix
//! code, then the bits below the highest. A colour is the difference of luma and of both chroma
//! values to a prediction from the points before, in steps: the upper bits in a prefix code, luma
//! alone and both chroma values together, then the lower bits.

use super::color::{AVERAGING_SHIFT, History, rgb_of, ycc_of};
use super::order::{Grid, Keyed, Positions};
use super::symbols::{Codes, Costs, Counts, Shifts, Symbols, Tables};
use crate::bits::{BitReader, BitWriter};
use hawser_cloud::POINT_BYTES;

/// Bits of the key and of the colour of a first point.
const KEY_BITS: u32 = 48;
const COLOR_BITS: u32 = 24;
/// Bits of a run that precede its points, by experience.
const TYPICAL_OVERHEAD_BITS: usize = 320;
/// The maximum number of points of a run.
const MAX_POINTS: usize = 8192;

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
        let (mut counts, expected) = if color_shift < AVERAGING_SHIFT {
            self.take_points::<false, P>(points, color_shift, max_bits)
        } else {
            self.take_points::<true, P>(points, color_shift, max_bits)
        };
        let codes = counts.codes();
        self.drop_excess(&codes, &mut counts, expected, max_bits);
        let mut bits = BitWriter::after(to);
        self.write(points[0].into(), &codes, &mut bits);
        self.learn(&counts);
        (1 + self.symbols.len(), bits.finish())
    }

    /// Turns points to symbols until they are expected to take `max_bits`. Returns the counts of
    /// the symbols, and their expected size in bits.
    fn take_points<const AVERAGING: bool, P>(
        &mut self,
        points: &[P],
        color_shift: u8,
        max_bits: usize,
    ) -> (Counts, f32)
    where
        P: Copy + Into<Keyed>,
    {
        self.symbols.clear();
        let mut counts = Counts::NONE;
        let Keyed { mut key, rgb } = points[0].into();
        let mut history = History::<AVERAGING>::new(ycc_of(rgb), color_shift);
        let max_cost = self
            .costs
            .within(max_bits.saturating_sub(TYPICAL_OVERHEAD_BITS));
        let mut cost = 0;
        for point in &points[1..points.len().min(MAX_POINTS)] {
            let point: Keyed = (*point).into();
            let steps = history.quantise(ycc_of(point.rgb));
            let symbols = Symbols::new(point.key - key, steps, self.shifts);
            cost += self.costs.of(&symbols);
            if cost > max_cost {
                break;
            }
            key = point.key;
            counts.add(&symbols);
            self.symbols.push(symbols);
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

    fn write(&self, first: Keyed, codes: &Codes, to: &mut BitWriter) {
        let [r, g, b] = first.rgb;
        to.put(first.key, KEY_BITS);
        to.put(u32::from_be_bytes([0, r, g, b]).into(), COLOR_BITS);
        codes.describe(self.shifts, to);
        for symbols in &self.symbols {
            codes.put(symbols, to);
        }
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

    /// Decodes a run of as many points as `points` has, at least one, to packed points.
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        grid: Grid,
        color_shift: u8,
        points: &mut [[u8; POINT_BYTES]],
    ) -> Result<(), InvalidRun> {
        if points.len() > MAX_POINTS {
            return Err(InvalidRun);
        }
        let mut from = BitReader::new(bytes);
        let key = from.take(KEY_BITS);
        let [_, r, g, b] = (from.take(COLOR_BITS) as u32).to_be_bytes();
        let first = Keyed {
            key,
            rgb: [r, g, b],
        };
        self.tables.read(&mut from).map_err(|_| InvalidRun)?;
        let positions = Positions::new(grid);
        if color_shift < AVERAGING_SHIFT {
            let history = History::<false>::new(ycc_of(first.rgb), color_shift);
            self.points(first, history, positions, from, points)
        } else {
            let history = History::<true>::new(ycc_of(first.rgb), color_shift);
            self.points(first, history, positions, from, points)
        }
    }

    /// Decodes the points after the first one.
    fn points<const AVERAGING: bool>(
        &self,
        first: Keyed,
        mut history: History<AVERAGING>,
        mut positions: Positions,
        mut from: BitReader<'_>,
        points: &mut [[u8; POINT_BYTES]],
    ) -> Result<(), InvalidRun> {
        let Keyed { mut key, rgb } = first;
        let (first, rest) = points.split_first_mut().ok_or(InvalidRun)?;
        set(first, positions.of(key), rgb);
        for points in rest.chunks_mut(CHECKED_EVERY) {
            for point in points {
                let (gap, steps) = self.tables.read_point(&mut from);
                key = key.wrapping_add(gap);
                let rgb = rgb_of(history.restore(steps));
                set(point, positions.of(key), rgb);
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

/// Sets a packed point with few stores.
#[inline]
fn set(point: &mut [u8; POINT_BYTES], position: u64, [r, g, b]: [u8; 3]) {
    let word = position | u64::from(r) << 48 | u64::from(g) << 56;
    point[..8].copy_from_slice(&word.to_le_bytes());
    point[8] = b;
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::{Cloud, Point};
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

    /// The grid in which each key has a position of its own.
    const GRID: Grid = Grid {
        corner: [i16::MIN; 3],
        shift: 0,
    };

    fn decode(bytes: &[u8], count: usize, color_shift: u8) -> Result<Vec<Point>, InvalidRun> {
        let mut points = vec![[0; POINT_BYTES]; count];
        RunDecoder::new().decode(bytes, GRID, color_shift, &mut points)?;
        let cloud = Cloud::from_packed(points.concat()).expect("whole points");
        Ok(cloud.points().collect())
    }

    fn point(of: &Keyed) -> Point {
        let ([x, y, z], [r, g, b]) = (GRID.position(of.key), of.rgb);
        Point { x, y, z, r, g, b }
    }

    proptest! {
        #[test]
        fn runs_fit_and_are_decoded_without_loss(points in any_points(), max_bytes in 120usize..1200) {
            let mut encoder = RunEncoder::new();
            let mut found = Vec::new();
            while found.len() < points.len() {
                let (count, bytes) = encoder.encode(&points[found.len()..], 0, max_bytes, Vec::new());
                prop_assert!(bytes.len() <= max_bytes);
                found.extend(decode(&bytes, count, 0).expect("an encoded run"));
            }
            prop_assert_eq!(found, points.iter().map(point).collect::<Vec<_>>());
        }

        #[test]
        fn quantised_colours_are_within_a_step(points in any_points(), shift in 1u8..5) {
            let (count, bytes) = RunEncoder::new().encode(&points, shift, 10_000, Vec::new());
            prop_assert_eq!(count, points.len());
            let found = decode(&bytes, count, shift).expect("an encoded run");
            for (point, found) in points.iter().map(point).zip(found) {
                prop_assert_eq!([found.x, found.y, found.z], [point.x, point.y, point.z]);
                // Half a step in luma and in each chroma value, and their rounding.
                let errors = [found.r.abs_diff(point.r), found.g.abs_diff(point.g), found.b.abs_diff(point.b)];
                prop_assert!(errors.iter().all(|error| *error <= 2 * (1 << shift)), "{:?} {:?}", point, found);
            }
        }

        #[test]
        fn any_bytes_are_refused_or_points(bytes in prop::collection::vec(any::<u8>(), 0..400), count in 0usize..2000, shift in 0u8..5) {
            let _ = decode(&bytes, count, shift);
        }
    }
}
