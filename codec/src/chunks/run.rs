//! The coding of a run of points that are close to each other.
//!
//! A position is the difference of its key to the one before: the number of its bits in a prefix
//! code, then the bits below the highest. A colour is the difference of luma and of both chroma
//! values to a prediction from the points before, in steps: the upper bits in a prefix code, luma
//! alone and both chroma values together, then the lower bits.

use super::order::Keyed;
use crate::bits::{BitReader, BitWriter};
use crate::huffman::{Code, InvalidCode, Table};

/// Numbers of bits of a difference of keys, from 0 to 48.
const GAPS: usize = 49;
/// Upper bits of a luma difference; the last stands for all that are larger.
const LUMAS: usize = 20;
/// Upper bits of a chroma difference, the same.
const CHROMAS: usize = 5;
const CHROMA_PAIRS: usize = CHROMAS * CHROMAS;
/// Bits of a value that exceeds its code: the number of its bits, then these.
const LENGTH_BITS: u32 = 4;
/// Bits that give the number of lower bits.
const SHIFT_BITS: u32 = 3;
const MAX_SHIFT: u32 = 6;
/// Bits of a difference of keys that are read with the symbols, without a refill.
const SHORT_GAP: u32 = 26;
/// Bits of a run that precede its points, by experience.
const TYPICAL_OVERHEAD_BITS: usize = 320;
/// The maximum number of bits that are written at once.
const MAX_PUT: u32 = 56;
/// The maximum number of points of a run.
const MAX_POINTS: usize = 8192;
/// Bits of the key and of the colour of a first point.
const KEY_BITS: u32 = 48;
const COLOR_BITS: u32 = 24;
/// Steps from which on the prediction averages several points, since they then contain less noise
/// of the sensor than of the quantisation.
const AVERAGING_SHIFT: u8 = 2;

/// Luma and chroma: the reversible transform YCoCg-R (Malvar and Sullivan, JVT-I014r3, 2003).
type Ycc = [i32; 3];

fn ycc_of([r, g, b]: [u8; 3]) -> Ycc {
    let [r, g, b] = [r, g, b].map(i32::from);
    let co = r - b;
    let middle = b + (co >> 1);
    let cg = g - middle;
    [middle + (cg >> 1), co, cg]
}

fn rgb_of([y, co, cg]: Ycc) -> [u8; 3] {
    let middle = y.wrapping_sub(cg >> 1);
    let g = cg.wrapping_add(middle);
    let b = middle.wrapping_sub(co >> 1);
    let r = b.wrapping_add(co);
    [r, g, b].map(|channel| channel.clamp(0, 255) as u8)
}

/// The colours of the last points as a decoder knows them.
#[derive(Debug, Clone, Copy)]
struct History {
    last: [Ycc; 3],
    /// Binary logarithm of the steps of colours.
    shift: u8,
}

impl History {
    fn new(first: Ycc, shift: u8) -> Self {
        History {
            last: [first; 3],
            shift,
        }
    }

    #[inline]
    fn predict(&self) -> Ycc {
        let [a, b, c] = &self.last;
        if self.shift < AVERAGING_SHIFT {
            return *a;
        }
        std::array::from_fn(|channel| {
            let sum = a[channel].wrapping_mul(2).wrapping_add(b[channel]);
            sum.wrapping_add(c[channel]) >> 2
        })
    }

    /// Returns the steps from the prediction to a colour, and goes on to it.
    #[inline]
    fn quantise(&mut self, color: Ycc) -> [u32; 3] {
        let predicted = self.predict();
        let half = (1 << self.shift) >> 1;
        let steps: Ycc = std::array::from_fn(|channel| {
            let difference = color[channel] - predicted[channel];
            let steps = (difference.abs() + half) >> self.shift;
            if difference < 0 { -steps } else { steps }
        });
        self.advance(predicted, steps);
        steps.map(|steps| (steps << 1 ^ steps >> 31) as u32)
    }

    #[inline]
    fn restore(&mut self, steps: [u32; 3]) -> Ycc {
        let signed = steps.map(|steps| (steps >> 1) as i32 ^ -((steps & 1) as i32));
        self.advance(self.predict(), signed);
        self.last[0]
    }

    #[inline]
    fn advance(&mut self, predicted: Ycc, steps: Ycc) {
        let color = std::array::from_fn(|channel| {
            predicted[channel].wrapping_add(steps[channel].wrapping_shl(self.shift.into()))
        });
        self.last = [color, self.last[0], self.last[1]];
    }
}

/// A point in the symbols of the codes and the bits that follow them.
#[derive(Debug, Clone, Copy)]
struct Symbols {
    gap: u8,
    luma: u8,
    chroma: u8,
    color_bits: u8,
    low_gap: u64,
    low_color: u64,
}

/// Numbers of lower bits of luma and chroma.
#[derive(Debug, Clone, Copy, Default)]
struct Shifts {
    luma: u32,
    chroma: u32,
}

/// Appends the lower bits of a value to `low`, and returns its symbol of `symbols`.
#[inline]
fn split(value: u32, shift: u32, symbols: u32, low: &mut (u64, u32)) -> u32 {
    let mut append = |value: u32, bits: u32| {
        low.0 |= u64::from(value) << low.1;
        low.1 += bits;
    };
    append(value & ((1 << shift) - 1), shift);
    let upper = value >> shift;
    if upper < symbols - 1 {
        return upper;
    }
    let rest = upper - (symbols - 1);
    let bits = u32::BITS - rest.leading_zeros();
    append(bits, LENGTH_BITS);
    append(rest, bits);
    symbols - 1
}

/// The inverse of [`split`].
#[inline]
fn join(symbol: u32, shift: u32, symbols: u32, from: &mut BitReader<'_>) -> u32 {
    let low = from.take_available(shift);
    if symbol < symbols - 1 {
        return symbol << shift | low as u32;
    }
    from.refill();
    let bits = from.take_available(LENGTH_BITS) as u32;
    let rest = from.take_available(bits) as u32;
    (rest + symbols - 1) << shift | low as u32
}

impl Symbols {
    #[inline]
    fn new(gap: u64, steps: [u32; 3], shifts: Shifts) -> Self {
        let gap_bits = u64::BITS - gap.leading_zeros();
        let mut low = (0, 0);
        let luma = split(steps[0], shifts.luma, LUMAS as u32, &mut low);
        let [first, second] =
            [1, 2].map(|channel| split(steps[channel], shifts.chroma, CHROMAS as u32, &mut low));
        Symbols {
            gap: gap_bits as u8,
            luma: luma as u8,
            chroma: (first * CHROMAS as u32 + second) as u8,
            color_bits: low.1 as u8,
            low_gap: gap & !(u64::MAX << gap_bits.saturating_sub(1)),
            low_color: low.0,
        }
    }

    #[inline]
    fn low_bits(&self) -> u32 {
        self.low_gap_bits() + u32::from(self.color_bits)
    }

    #[inline]
    fn low_gap_bits(&self) -> u32 {
        u32::from(self.gap).saturating_sub(1)
    }
}

/// The codes of a run.
#[derive(Debug, Clone)]
struct Codes {
    gap: Code<GAPS>,
    luma: Code<LUMAS>,
    chroma: Code<CHROMA_PAIRS>,
}

/// How often each symbol occurs in a run.
#[derive(Debug, Clone)]
struct Counts {
    gap: [u32; GAPS],
    luma: [u32; LUMAS],
    chroma: [u32; CHROMA_PAIRS],
}

impl Counts {
    const NONE: Counts = Counts {
        gap: [0; GAPS],
        luma: [0; LUMAS],
        chroma: [0; CHROMA_PAIRS],
    };

    #[inline]
    fn add(&mut self, symbols: &Symbols) {
        self.gap[usize::from(symbols.gap)] += 1;
        self.luma[usize::from(symbols.luma)] += 1;
        self.chroma[usize::from(symbols.chroma)] += 1;
    }

    #[inline]
    fn remove(&mut self, symbols: &Symbols) {
        self.gap[usize::from(symbols.gap)] -= 1;
        self.luma[usize::from(symbols.luma)] -= 1;
        self.chroma[usize::from(symbols.chroma)] -= 1;
    }

    /// Returns the best codes of these counts.
    fn codes(&self) -> Codes {
        Codes {
            gap: Code::new(&self.gap),
            luma: Code::new(&self.luma),
            chroma: Code::new(&self.chroma),
        }
    }
}

/// The expected sizes of symbols, in [`Costs::UNIT`]s of a bit.
#[derive(Debug)]
struct Costs {
    gap: [u16; GAPS],
    luma: [u16; LUMAS],
    chroma: [u16; CHROMA_PAIRS],
    /// Actual size over expected size of the last runs.
    ratio: f32,
}

impl Costs {
    /// Fractions of a bit.
    const UNIT: f32 = 16.0;

    fn new() -> Self {
        Costs {
            gap: [6 * Costs::UNIT as u16; GAPS],
            luma: [5 * Costs::UNIT as u16; LUMAS],
            chroma: [5 * Costs::UNIT as u16; CHROMA_PAIRS],
            ratio: 1.0,
        }
    }

    #[inline]
    fn of(&self, symbols: &Symbols) -> u32 {
        let coded = self.gap[usize::from(symbols.gap)]
            + self.luma[usize::from(symbols.luma)]
            + self.chroma[usize::from(symbols.chroma)];
        u32::from(coded) + Costs::UNIT as u32 * symbols.low_bits()
    }

    /// Expects what symbols with these counts take, by their entropy.
    fn expect(&mut self, counts: &Counts) {
        fn costs<const N: usize>(counts: &[u32; N]) -> [u16; N] {
            let total = log2(2 * counts.iter().sum::<u32>());
            // A symbol that did not occur counts half.
            counts.map(|count| total - log2((2 * count).max(1)))
        }
        self.gap = costs(&counts.gap);
        self.luma = costs(&counts.luma);
        self.chroma = costs(&counts.chroma);
    }
}

/// Returns the binary logarithm of a number above 0 in [`Costs::UNIT`]s, linear between the powers
/// of 2.
fn log2(number: u32) -> u16 {
    let whole = number.ilog2();
    let fraction = (u64::from(number) << 4 >> whole) & 0xf;
    (whole as u16) << 4 | fraction as u16
}

impl Codes {
    /// Returns the size of a point in bits.
    #[inline]
    fn bits(&self, symbols: &Symbols) -> u32 {
        let (_, gap) = self.gap.word(symbols.gap.into());
        let (_, luma) = self.luma.word(symbols.luma.into());
        let (_, chroma) = self.chroma.word(symbols.chroma.into());
        gap + luma + chroma + symbols.low_bits()
    }

    #[inline]
    fn put(&self, symbols: &Symbols, to: &mut BitWriter) {
        let (word, bits) = self.gap.word(symbols.gap.into());
        if bits + symbols.low_gap_bits() <= MAX_PUT {
            to.put(
                word | symbols.low_gap << bits,
                bits + symbols.low_gap_bits(),
            );
        } else {
            to.put(word, bits);
            to.put(symbols.low_gap, symbols.low_gap_bits());
        }
        let (luma, luma_bits) = self.luma.word(symbols.luma.into());
        let (chroma, chroma_bits) = self.chroma.word(symbols.chroma.into());
        let (word, bits) = (luma | chroma << luma_bits, luma_bits + chroma_bits);
        let low_bits = u32::from(symbols.color_bits);
        if bits + low_bits <= MAX_PUT {
            to.put(word | symbols.low_color << bits, bits + low_bits);
        } else {
            to.put(word, bits);
            to.put(symbols.low_color & u64::from(u32::MAX), low_bits.min(32));
            to.put(symbols.low_color >> 32, low_bits.saturating_sub(32));
        }
    }

    /// Returns the size of what precedes the points of a run with these codes, in bits.
    fn overhead_bits(&self) -> usize {
        let codes = self.gap.description_bits()
            + self.luma.description_bits()
            + self.chroma.description_bits();
        (KEY_BITS + COLOR_BITS + 2 * SHIFT_BITS) as usize + codes
    }

    /// Returns the size of all symbols without the bits that follow them.
    fn total_bits(&self, counts: &Counts) -> usize {
        self.gap.total_bits(&counts.gap)
            + self.luma.total_bits(&counts.luma)
            + self.chroma.total_bits(&counts.chroma)
    }
}

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
        let (mut counts, expected) = self.take_points(points, color_shift, max_bits);
        let codes = counts.codes();
        self.drop_excess(&codes, &mut counts, expected, max_bits);
        let mut bits = BitWriter::after(to);
        self.write(points[0].into(), &codes, &mut bits);
        self.learn(&counts);
        (1 + self.symbols.len(), bits.finish())
    }

    /// Turns points to symbols until they are expected to take `max_bits`. Returns the counts of
    /// the symbols, and their expected size in bits.
    fn take_points<P: Copy + Into<Keyed>>(
        &mut self,
        points: &[P],
        color_shift: u8,
        max_bits: usize,
    ) -> (Counts, f32) {
        self.symbols.clear();
        let mut counts = Counts::NONE;
        let first: Keyed = points[0].into();
        let mut history = History::new(ycc_of(first.rgb), color_shift);
        let mut key = first.key;
        let room = max_bits.saturating_sub(TYPICAL_OVERHEAD_BITS) as f32;
        let max_cost = (room / self.costs.ratio * Costs::UNIT) as u32;
        let mut cost = 0;
        for point in points[1..].iter().take(MAX_POINTS - 1) {
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
        let low = |symbols: &Symbols| symbols.low_bits() as usize;
        let low: usize = self.symbols.iter().map(low).sum();
        let points = codes.total_bits(counts) + low;
        if expected > 0.0 {
            let ratio = (points as f32 / expected).clamp(0.5, 2.0);
            self.costs.ratio += (ratio - self.costs.ratio) / 4.0;
        }
        let mut bits = codes.overhead_bits() + points;
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
        to.put(self.shifts.luma.into(), SHIFT_BITS);
        to.put(self.shifts.chroma.into(), SHIFT_BITS);
        codes.gap.describe(to);
        codes.luma.describe(to);
        codes.chroma.describe(to);
        for symbols in &self.symbols {
            codes.put(symbols, to);
        }
    }

    /// Prepares for a run that resembles this one.
    fn learn(&mut self, counts: &Counts) {
        if self.symbols.is_empty() {
            return;
        }
        self.costs.expect(counts);
        adapt(&mut self.shifts.luma, &counts.luma, LUMAS);
        let mut chroma = [0; CHROMAS];
        for (pair, count) in counts.chroma.iter().enumerate() {
            chroma[pair / CHROMAS] += count;
            chroma[pair % CHROMAS] += count;
        }
        adapt(&mut self.shifts.chroma, &chroma, CHROMAS);
    }
}

/// Raises the number of lower bits if many symbols stand for larger values, and lowers it if the
/// upper half of the symbols is rarely used.
fn adapt(shift: &mut u32, counts: &[u32], symbols: usize) {
    let total: u32 = counts.iter().sum();
    let from = |symbol: usize| -> u32 { counts[symbol..].iter().sum() };
    if from(symbols - 1) > total / 16 && *shift < MAX_SHIFT {
        *shift += 1;
    } else if from(symbols / 2) < total / 64 && *shift > 0 {
        *shift -= 1;
    }
}

/// The reason that the bytes of a run cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidRun;

/// Decodes runs, reusing its tables.
#[derive(Debug)]
pub(crate) struct RunDecoder {
    gap: Table<GAPS>,
    luma: Table<LUMAS>,
    chroma: Table<CHROMA_PAIRS>,
}

impl RunDecoder {
    pub(crate) fn new() -> Self {
        RunDecoder {
            gap: Table::new(),
            luma: Table::new(),
            chroma: Table::new(),
        }
    }

    /// Passes `count` points, at least one, to `each`.
    pub(crate) fn decode(
        &mut self,
        bytes: &[u8],
        count: usize,
        color_shift: u8,
        mut each: impl FnMut(Keyed),
    ) -> Result<(), InvalidRun> {
        let mut from = BitReader::new(bytes);
        let mut key = from.take(KEY_BITS);
        let [_, r, g, b] = (from.take(COLOR_BITS) as u32).to_be_bytes();
        let mut history = History::new(ycc_of([r, g, b]), color_shift);
        let shifts = self.read_tables(&mut from).map_err(|_| InvalidRun)?;
        each(Keyed {
            key,
            rgb: [r, g, b],
        });
        for _ in 1..count {
            key = key.wrapping_add(self.gap(&mut from));
            let steps = self.color(&mut from, shifts);
            let rgb = rgb_of(history.restore(steps));
            each(Keyed { key, rgb });
        }
        let is_whole = !from.is_overrun() && from.rest().is_empty();
        is_whole.then_some(()).ok_or(InvalidRun)
    }

    fn read_tables(&mut self, from: &mut BitReader<'_>) -> Result<Shifts, InvalidCode> {
        let luma = from.take(SHIFT_BITS) as u32;
        let chroma = from.take(SHIFT_BITS) as u32;
        self.gap.read(from)?;
        self.luma.read(from)?;
        self.chroma.read(from)?;
        Ok(Shifts { luma, chroma })
    }

    /// Reads a difference of keys. At least 20 bits are available afterwards.
    #[inline]
    fn gap(&self, from: &mut BitReader<'_>) -> u64 {
        from.refill();
        let Some(bits) = self.gap.take(from).checked_sub(1) else {
            return 0;
        };
        let bits = bits as u32;
        if bits <= SHORT_GAP {
            return 1 << bits | from.take_available(bits);
        }
        let low = from.take(bits);
        from.refill();
        1 << bits | low
    }

    #[inline]
    fn color(&self, from: &mut BitReader<'_>, shifts: Shifts) -> [u32; 3] {
        let luma = self.luma.take(from) as u32;
        let pair = self.chroma.take(from) as u32;
        let (first, second) = (pair / CHROMAS as u32, pair % CHROMAS as u32);
        from.refill();
        [
            join(luma, shifts.luma, LUMAS as u32, from),
            join(first, shifts.chroma, CHROMAS as u32, from),
            join(second, shifts.chroma, CHROMAS as u32, from),
        ]
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

    #[test]
    fn colours_are_transformed_without_loss() {
        for color in 0..1 << 24 {
            let [_, r, g, b] = u32::to_be_bytes(color);
            assert_eq!(rgb_of(ycc_of([r, g, b])), [r, g, b]);
        }
    }

    proptest! {
        #[test]
        fn runs_fit_and_are_decoded_without_loss(points in any_points(), max_bytes in 120usize..1200) {
            let (mut encoder, mut decoder) = (RunEncoder::new(), RunDecoder::new());
            let mut found = Vec::new();
            while found.len() < points.len() {
                let (count, bytes) = encoder.encode(&points[found.len()..], 0, max_bytes, Vec::new());
                prop_assert!(bytes.len() <= max_bytes);
                decoder.decode(&bytes, count, 0, |point| found.push(point)).expect("an encoded run");
            }
            prop_assert_eq!(found, points);
        }

        #[test]
        fn quantised_colours_are_within_a_step(points in any_points(), shift in 1u8..5) {
            let (count, bytes) = RunEncoder::new().encode(&points, shift, 10_000, Vec::new());
            prop_assert_eq!(count, points.len());
            let mut found = Vec::new();
            RunDecoder::new().decode(&bytes, count, shift, |point| found.push(point)).expect("an encoded run");
            for (point, found) in points.iter().zip(found) {
                prop_assert_eq!(found.key, point.key);
                // Half a step in luma and in each chroma value, and their rounding.
                let error = (0..3).map(|channel| found.rgb[channel].abs_diff(point.rgb[channel])).max();
                prop_assert!(error <= Some(2 * (1 << shift)), "{:?} {:?}", point, found);
            }
        }

        #[test]
        fn any_bytes_are_refused_or_points(bytes in prop::collection::vec(any::<u8>(), 0..400), count in 1usize..2000, shift in 0u8..5) {
            let mut points = 0;
            let _ = RunDecoder::new().decode(&bytes, count, shift, |_| points += 1);
            prop_assert!(points <= count);
        }
    }
}
