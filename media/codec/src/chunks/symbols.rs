//! A point in the symbols of prefix codes and the bits that follow them, and the codes of a run.

use crate::bits::{BitReader, BitWriter};
use crate::huffman::{Code, InvalidCode, MAX_BITS, Table};

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
/// The maximum number of bits that are written at once.
const MAX_PUT: u32 = 56;

/// A point in the symbols of the codes and the bits that follow them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbols {
    gap: u8,
    luma: u8,
    chroma: u8,
    color_bits: u8,
    low_gap: u64,
    low_color: u64,
}

/// Numbers of lower bits of luma and chroma.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shifts {
    luma: u32,
    chroma: u32,
}

impl Shifts {
    /// Prepares for points that resemble those of a run.
    pub(super) fn adapt(&mut self, counts: &Counts) {
        adapt(&mut self.luma, &counts.luma);
        let mut chroma = [0; CHROMAS];
        for (pair, count) in counts.chroma.iter().enumerate() {
            chroma[pair / CHROMAS] += count;
            chroma[pair % CHROMAS] += count;
        }
        adapt(&mut self.chroma, &chroma);
    }
}

/// Raises the number of lower bits if many symbols stand for larger values, and lowers it if the
/// upper half of the symbols is rarely used.
fn adapt(shift: &mut u32, counts: &[u32]) {
    let symbols = counts.len();
    let total: u32 = counts.iter().sum();
    let from = |symbol: usize| -> u32 { counts[symbol..].iter().sum() };
    if from(symbols - 1) > total / 16 && *shift < MAX_SHIFT {
        *shift += 1;
    } else if from(symbols / 2) < total / 64 && *shift > 0 {
        *shift -= 1;
    }
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

/// A colour in the symbols of the codes and the bits that follow them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Color {
    luma: u8,
    chroma: u8,
    low_bits: u8,
    low: u64,
}

impl Color {
    #[inline]
    fn new([luma, first, second]: [u32; 3], shifts: Shifts) -> Self {
        let Shifts { luma: y, chroma: c } = shifts;
        let upper = [luma >> y, first >> c, second >> c];
        if upper[0] >= LARGE_LUMA || upper[1] >= LARGE_CHROMA || upper[2] >= LARGE_CHROMA {
            return Color::large(luma, first, second, shifts);
        }
        let low = |value: u32, bits: u32| u64::from(value & ((1 << bits) - 1));
        Color {
            luma: upper[0] as u8,
            chroma: (upper[1] * CHROMAS as u32 + upper[2]) as u8,
            low_bits: (y + 2 * c) as u8,
            low: low(luma, y) | low(first, c) << y | low(second, c) << (y + c),
        }
    }

    /// The same for any values.
    #[inline(never)]
    fn large(luma: u32, first: u32, second: u32, shifts: Shifts) -> Self {
        let mut low = (0, 0);
        let luma = split(luma, shifts.luma, LUMAS as u32, &mut low);
        let first = split(first, shifts.chroma, CHROMAS as u32, &mut low);
        let second = split(second, shifts.chroma, CHROMAS as u32, &mut low);
        Color {
            luma: luma as u8,
            chroma: (first * CHROMAS as u32 + second) as u8,
            low_bits: low.1 as u8,
            low: low.0,
        }
    }
}

impl Symbols {
    #[inline]
    pub(super) fn new(gap: u64, steps: [u32; 3], shifts: Shifts) -> Self {
        let gap_bits = u64::BITS - gap.leading_zeros();
        let color = Color::new(steps, shifts);
        Symbols {
            gap: gap_bits as u8,
            luma: color.luma,
            chroma: color.chroma,
            color_bits: color.low_bits,
            low_gap: gap ^ (1 << gap_bits) >> 1,
            low_color: color.low,
        }
    }

    #[inline]
    pub(super) fn low_bits(&self) -> u32 {
        self.low_gap_bits() + u32::from(self.color_bits)
    }

    #[inline]
    fn low_gap_bits(&self) -> u32 {
        u32::from(self.gap).saturating_sub(1)
    }
}

/// The codes of a run.
#[derive(Debug, Clone)]
pub(super) struct Codes {
    gap: Code<GAPS>,
    luma: Code<LUMAS>,
    chroma: Code<CHROMA_PAIRS>,
}

/// How often each symbol occurs in a run.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    gap: [u32; GAPS],
    luma: [u32; LUMAS],
    chroma: [u32; CHROMA_PAIRS],
    /// The number of the bits that follow the symbols.
    low_bits: u32,
}

impl Counts {
    pub(super) const NONE: Counts = Counts {
        gap: [0; GAPS],
        luma: [0; LUMAS],
        chroma: [0; CHROMA_PAIRS],
        low_bits: 0,
    };

    #[inline]
    pub(super) fn add(&mut self, symbols: &Symbols) {
        self.gap[usize::from(symbols.gap)] += 1;
        self.luma[usize::from(symbols.luma)] += 1;
        self.chroma[usize::from(symbols.chroma)] += 1;
        self.low_bits += symbols.low_bits();
    }

    #[inline]
    pub(super) fn remove(&mut self, symbols: &Symbols) {
        self.gap[usize::from(symbols.gap)] -= 1;
        self.luma[usize::from(symbols.luma)] -= 1;
        self.chroma[usize::from(symbols.chroma)] -= 1;
        self.low_bits -= symbols.low_bits();
    }

    /// Returns the best codes of these counts.
    pub(super) fn codes(&self) -> Codes {
        Codes {
            gap: Code::new(&self.gap),
            luma: Code::new(&self.luma),
            chroma: Code::new(&self.chroma),
        }
    }
}

/// The expected sizes of symbols, in [`Costs::UNIT`]s of a bit.
#[derive(Debug)]
pub(super) struct Costs {
    gap: [u16; GAPS],
    luma: [u16; LUMAS],
    chroma: [u16; CHROMA_PAIRS],
    /// Actual size over expected size of the last runs.
    ratio: f32,
}

impl Costs {
    /// Fractions of a bit.
    pub(super) const UNIT: f32 = 16.0;

    pub(super) fn new() -> Self {
        Costs {
            gap: [6 * Costs::UNIT as u16; GAPS],
            luma: [5 * Costs::UNIT as u16; LUMAS],
            chroma: [5 * Costs::UNIT as u16; CHROMA_PAIRS],
            ratio: 1.0,
        }
    }

    /// Returns the costs that are expected to take a number of bits.
    pub(super) fn within(&self, bits: usize) -> u32 {
        (bits as f32 / self.ratio * Costs::UNIT) as u32
    }

    /// Learns from a run that took other than the expected number of bits.
    pub(super) fn correct(&mut self, bits: f32, expected: f32) {
        if expected > 0.0 {
            let ratio = (bits / expected).clamp(0.5, 2.0);
            self.ratio += (ratio - self.ratio) / 4.0;
        }
    }

    #[inline]
    pub(super) fn of(&self, symbols: &Symbols) -> u32 {
        let coded = self.gap[usize::from(symbols.gap)]
            + self.luma[usize::from(symbols.luma)]
            + self.chroma[usize::from(symbols.chroma)];
        u32::from(coded) + Costs::UNIT as u32 * symbols.low_bits()
    }

    /// Expects what symbols with these counts take, by their entropy.
    pub(super) fn expect(&mut self, counts: &Counts) {
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
    pub(super) fn bits(&self, symbols: &Symbols) -> u32 {
        let (_, gap) = self.gap.word(symbols.gap.into());
        let (_, luma) = self.luma.word(symbols.luma.into());
        let (_, chroma) = self.chroma.word(symbols.chroma.into());
        gap + luma + chroma + symbols.low_bits()
    }

    #[inline]
    pub(super) fn put(&self, symbols: &Symbols, to: &mut BitWriter) {
        let (gap, gap_bits) = self.gap.word(symbols.gap.into());
        let (luma, luma_bits) = self.luma.word(symbols.luma.into());
        let (chroma, chroma_bits) = self.chroma.word(symbols.chroma.into());
        let (low_gap_bits, low_color_bits) =
            (symbols.low_gap_bits(), u32::from(symbols.color_bits));
        let color = luma | chroma << luma_bits;
        let color_bits = luma_bits + chroma_bits;
        let (gap_at, color_at) = (gap_bits + low_gap_bits, color_bits + low_color_bits);
        if gap_at + color_at <= MAX_PUT {
            let color = color | symbols.low_color << color_bits;
            let gap = gap | symbols.low_gap << gap_bits;
            to.put(gap | color << gap_at, gap_at + color_at);
        } else {
            to.put(gap, gap_bits);
            to.put(symbols.low_gap, low_gap_bits);
            to.put(color, color_bits);
            to.put(
                symbols.low_color & u64::from(u32::MAX),
                low_color_bits.min(32),
            );
            to.put(symbols.low_color >> 32, low_color_bits.saturating_sub(32));
        }
    }

    /// Writes the numbers of lower bits and the descriptions of the codes.
    pub(super) fn describe(&self, shifts: Shifts, to: &mut BitWriter) {
        to.put(shifts.luma.into(), SHIFT_BITS);
        to.put(shifts.chroma.into(), SHIFT_BITS);
        self.gap.describe(to);
        self.luma.describe(to);
        self.chroma.describe(to);
    }

    /// Returns the size of the descriptions in bits.
    pub(super) fn description_bits(&self) -> usize {
        let codes = self.gap.description_bits()
            + self.luma.description_bits()
            + self.chroma.description_bits();
        2 * SHIFT_BITS as usize + codes
    }

    /// Returns the size of all symbols and of the bits that follow them.
    pub(super) fn total_bits(&self, counts: &Counts) -> usize {
        self.gap.total_bits(&counts.gap)
            + self.luma.total_bits(&counts.luma)
            + self.chroma.total_bits(&counts.chroma)
            + counts.low_bits as usize
    }
}

/// The tables with which the points of a run are read.
#[derive(Debug)]
pub(super) struct Tables {
    shifts: Shifts,
    /// Gives [`gap_value`]s.
    gap: Table<GAPS>,
    /// Gives [`luma_value`]s.
    luma: Table<LUMAS>,
    /// Gives [`chroma_value`]s.
    chroma: Table<CHROMA_PAIRS>,
}

/// Set in a [`gap_value`] if the difference is not 0.
const HIGHEST: u32 = 1 << 8;
/// Set in a [`luma_value`] or [`chroma_value`] if a symbol stands for all larger values.
const LARGE: u32 = 1 << 8;
/// The bits of each value in a [`chroma_value`].
const CHROMA_BITS: u32 = 4;
/// The symbols that stand for all larger values.
const LARGE_LUMA: u32 = LUMAS as u32 - 1;
const LARGE_CHROMA: u32 = CHROMAS as u32 - 1;

/// Returns the number of bits below the highest one of a difference of keys.
fn gap_value(symbol: usize) -> u32 {
    let low = (symbol as u32).checked_sub(1);
    low.map_or(0, |low| HIGHEST | low)
}

/// Returns the upper bits of luma.
fn luma_value(symbol: usize) -> u32 {
    let upper = symbol as u32;
    upper | if upper == LARGE_LUMA { LARGE } else { 0 }
}

/// Returns the upper bits of both chroma values, the first in the low [`CHROMA_BITS`].
fn chroma_value(pair: usize) -> u32 {
    let (first, second) = ((pair / CHROMAS) as u32, (pair % CHROMAS) as u32);
    let is_large = first == LARGE_CHROMA || second == LARGE_CHROMA;
    first | second << CHROMA_BITS | if is_large { LARGE } else { 0 }
}

impl Tables {
    pub(super) fn new() -> Self {
        Tables {
            shifts: Shifts::default(),
            gap: Table::new(),
            luma: Table::new(),
            chroma: Table::new(),
        }
    }

    /// Reads the numbers of lower bits and the descriptions of the codes.
    pub(super) fn read(&mut self, from: &mut BitReader<'_>) -> Result<(), InvalidCode> {
        self.shifts.luma = from.take(SHIFT_BITS) as u32;
        self.shifts.chroma = from.take(SHIFT_BITS) as u32;
        self.gap.read(from, gap_value)?;
        self.luma.read(from, luma_value)?;
        self.chroma.read(from, chroma_value)
    }

    /// Reads the difference of keys and the steps of the colour of a point.
    #[inline(always)]
    pub(super) fn point(&self, from: &mut BitReader<'_>) -> (u64, [u32; 3]) {
        // The longest word and the most bits of a difference are just available.
        const { assert!(MAX_BITS as usize + GAPS - 2 <= BitReader::AVAILABLE as usize) };
        from.refill();
        let start = from.position();
        let value = self.gap.take(from);
        let bits = value % HIGHEST;
        let gap = u64::from(value / HIGHEST) << bits | from.take_available(bits);

        let Shifts { luma: y, chroma: c } = self.shifts;
        let color_bits = 2 * MAX_BITS + y + 2 * c;
        if from.position() - start > (BitReader::AVAILABLE - color_bits) as usize {
            from.refill();
        }
        let (luma, chroma) = (self.luma.take(from), self.chroma.take(from));
        let first = chroma % (1 << CHROMA_BITS);
        let second = (chroma % LARGE) >> CHROMA_BITS;
        let upper = [luma % LARGE, first, second];
        if (luma | chroma) & LARGE != 0 {
            let (steps, after) = self.large_color(upper, *from);
            *from = after;
            return (gap, steps);
        }
        let mut low = |bits| from.take_available(bits) as u32;
        let steps = [
            upper[0] << y | low(y),
            upper[1] << c | low(c),
            upper[2] << c | low(c),
        ];
        (gap, steps)
    }

    /// Joins upper bits of a colour with those that follow, if one stands for all larger values. The
    /// reader is a value because it would not stay in registers otherwise.
    #[inline(never)]
    fn large_color<'a>(
        &self,
        [luma, first, second]: [u32; 3],
        mut from: BitReader<'a>,
    ) -> ([u32; 3], BitReader<'a>) {
        let Shifts { luma: y, chroma: c } = self.shifts;
        let steps = [
            join(luma, y, LARGE_LUMA, &mut from),
            join(first, c, LARGE_CHROMA, &mut from),
            join(second, c, LARGE_CHROMA, &mut from),
        ];
        (steps, from)
    }
}

/// The inverse of [`split`].
#[inline]
fn join(symbol: u32, shift: u32, large: u32, from: &mut BitReader<'_>) -> u32 {
    let low = from.take(shift) as u32;
    if symbol < large {
        return symbol << shift | low;
    }
    let bits = from.take_available(LENGTH_BITS) as u32;
    let rest = from.take_available(bits) as u32;
    (rest + large) << shift | low
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn colours_within_the_codes_are_as_those_of_any_size(
            bits in prop::array::uniform3(0u32..=14),
            values: [u32; 3],
            luma in 0..=MAX_SHIFT,
            chroma in 0..=MAX_SHIFT,
        ) {
            let steps: [u32; 3] = std::array::from_fn(|at| values[at] & ((1 << bits[at]) - 1));
            let shifts = Shifts { luma, chroma };
            let color = Color::new(steps, shifts);
            prop_assert_eq!(color, Color::large(steps[0], steps[1], steps[2], shifts));

            let tables = Tables { shifts, ..Tables::new() };
            let mut low = BitWriter::default();
            low.put(color.low & u64::from(u32::MAX), u32::from(color.low_bits).min(32));
            low.put(color.low >> 32, u32::from(color.low_bits).saturating_sub(32));
            let chroma = u32::from(color.chroma);
            let upper = [color.luma.into(), chroma / CHROMAS as u32, chroma % CHROMAS as u32];
            let (found, _) = tables.large_color(upper, BitReader::new(&low.finish()));
            prop_assert_eq!(found, steps);
        }
    }
}
