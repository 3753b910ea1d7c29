//! A point in the symbols of prefix codes and the bits that follow them, and the codes of a run.

use crate::bits::{BitReader, BitWriter};
use crate::huffman::{self, Code, InvalidCode, Table};

/// Numbers of bits of a difference of keys, from 0 to 48.
const GAPS: usize = 49;
/// Upper bits of a luma difference; the last stands for all that are larger.
const LUMAS: usize = 20;
/// Upper bits of a chroma difference, the same.
const CHROMAS: usize = 5;
const CHROMA_PAIRS: usize = CHROMAS * CHROMAS;
/// The symbols that stand for all larger values.
const LARGE_LUMA: u32 = LUMAS as u32 - 1;
const LARGE_CHROMA: u32 = CHROMAS as u32 - 1;
/// Bits of a value that exceeds its code: the number of its bits, then these.
const LENGTH_BITS: u32 = 4;
/// Bits that give the number of lower bits.
const SHIFT_BITS: u32 = 3;
const MAX_SHIFT: u32 = 6;

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
    /// Returns the number of lower bits of a colour.
    #[inline]
    fn color_bits(self) -> u32 {
        self.luma + 2 * self.chroma
    }

    /// Returns the upper bits of luma and chroma.
    #[inline]
    fn upper(self, [luma, first, second]: [u32; 3]) -> [u32; 3] {
        [
            luma >> self.luma,
            first >> self.chroma,
            second >> self.chroma,
        ]
    }

    /// Returns the lower bits of luma and chroma, one after the other.
    #[inline]
    fn low(self, [luma, first, second]: [u32; 3]) -> u32 {
        let part = |value: u32, bits: u32| value & ((1 << bits) - 1);
        part(luma, self.luma)
            | part(first, self.chroma) << self.luma
            | part(second, self.chroma) << (self.luma + self.chroma)
    }

    /// Returns the lower bits and what exceeds the symbols, and the number of both.
    #[inline(never)]
    fn long_low(self, [luma, first, second]: [u32; 3]) -> (u64, u32) {
        let mut low = (0, 0);
        append_low(luma, self.luma, LUMAS as u32, &mut low);
        append_low(first, self.chroma, CHROMAS as u32, &mut low);
        append_low(second, self.chroma, CHROMAS as u32, &mut low);
        low
    }

    /// Joins upper bits of luma and chroma, in their places, with the lower bits of all.
    #[inline]
    fn join(self, [luma, first, second]: [u32; 3], low: u32) -> [u32; 3] {
        let part = |at: u32, bits: u32| low >> at & ((1 << bits) - 1);
        [
            luma | part(0, self.luma),
            first | part(self.luma, self.chroma),
            second | part(self.luma + self.chroma, self.chroma),
        ]
    }

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

/// Appends the lower bits of a value to `low` and, if its symbol of `symbols` is the last, what
/// exceeds it.
fn append_low(value: u32, shift: u32, symbols: u32, low: &mut (u64, u32)) {
    let mut append = |value: u32, bits: u32| {
        low.0 |= u64::from(value) << low.1;
        low.1 += bits;
    };
    append(value & ((1 << shift) - 1), shift);
    if let Some(rest) = (value >> shift).checked_sub(symbols - 1) {
        let bits = u32::BITS - rest.leading_zeros();
        append(bits, LENGTH_BITS);
        append(rest, bits);
    }
}

/// Reads what [`append_low`] appended, and returns the value.
fn join(symbol: u32, shift: u32, symbols: u32, from: &mut BitReader<'_>) -> u32 {
    from.refill();
    let low = from.take_available(shift) as u32;
    if symbol < symbols - 1 {
        return symbol << shift | low;
    }
    let bits = from.take_available(LENGTH_BITS) as u32;
    let rest = from.take_available(bits) as u32;
    (rest + symbols - 1) << shift | low
}

impl Symbols {
    #[inline]
    pub(super) fn new(gap: u64, steps: [u32; 3], shifts: Shifts) -> Self {
        let gap_bits = u64::BITS - gap.leading_zeros();
        let [luma, first, second] = shifts.upper(steps);
        let (low_color, color_bits) =
            if luma < LARGE_LUMA && first < LARGE_CHROMA && second < LARGE_CHROMA {
                (shifts.low(steps).into(), shifts.color_bits())
            } else {
                shifts.long_low(steps)
            };
        let (first, second) = (first.min(LARGE_CHROMA), second.min(LARGE_CHROMA));
        Symbols {
            gap: gap_bits as u8,
            luma: luma.min(LARGE_LUMA) as u8,
            chroma: (first * CHROMAS as u32 + second) as u8,
            color_bits: color_bits as u8,
            low_gap: gap & !(u64::MAX << gap_bits.saturating_sub(1)),
            low_color,
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

/// How often each symbol occurs in a run, and the number of bits that follow them all.
#[derive(Debug, Clone)]
pub(super) struct Counts {
    low_bits: u32,
    gap: [u32; GAPS],
    luma: [u32; LUMAS],
    chroma: [u32; CHROMA_PAIRS],
}

impl Counts {
    pub(super) const NONE: Counts = Counts {
        low_bits: 0,
        gap: [0; GAPS],
        luma: [0; LUMAS],
        chroma: [0; CHROMA_PAIRS],
    };

    #[inline]
    pub(super) fn add(&mut self, symbols: &Symbols) {
        self.low_bits += symbols.low_bits();
        self.gap[usize::from(symbols.gap)] += 1;
        self.luma[usize::from(symbols.luma)] += 1;
        self.chroma[usize::from(symbols.chroma)] += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, symbols: &Symbols) {
        self.low_bits -= symbols.low_bits();
        self.gap[usize::from(symbols.gap)] -= 1;
        self.luma[usize::from(symbols.luma)] -= 1;
        self.chroma[usize::from(symbols.chroma)] -= 1;
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
        let (color, color_bits) = (luma | chroma << luma_bits, luma_bits + chroma_bits);
        let (low_gap, low_gap_bits) = (symbols.low_gap, symbols.low_gap_bits());
        let (low_color, low_color_bits) = (symbols.low_color, u32::from(symbols.color_bits));
        let bits = gap_bits + low_gap_bits + color_bits + low_color_bits;
        if bits <= BitWriter::MAX_BITS {
            let gap = gap | low_gap << gap_bits;
            let color = color | low_color << color_bits;
            to.put(gap | color << (gap_bits + low_gap_bits), bits);
        } else {
            to.put(gap, gap_bits);
            to.put(low_gap, low_gap_bits);
            to.put(color, color_bits);
            to.put(low_color & u64::from(u32::MAX), low_color_bits.min(32));
            to.put(low_color >> 32, low_color_bits.saturating_sub(32));
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

    /// Returns the size of all points in bits.
    pub(super) fn total_bits(&self, counts: &Counts) -> usize {
        counts.low_bits as usize
            + self.gap.total_bits(&counts.gap)
            + self.luma.total_bits(&counts.luma)
            + self.chroma.total_bits(&counts.chroma)
    }
}

/// A point as it is read: the difference of its key, and the steps of its colour.
pub(super) type Differences = (u64, [u32; 3]);

/// The tables with which the points of a run are read.
#[derive(Debug)]
pub(super) struct Tables {
    shifts: Shifts,
    gap: Table<Entry, GAPS>,
    luma: Table<Entry, LUMAS>,
    chroma: Table<Entry, CHROMA_PAIRS>,
}

/// A symbol of a code as [`Tables::read_point`] needs it.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// The number of bits of the word and, of a short difference of keys, of those that follow it.
    bits: u8,
    /// The symbol, and [`Entry::LONG`].
    symbol: u8,
    /// Of a difference of keys, its highest bit if it is short, and the length of the word from
    /// [`Entry::WORD_AT`] on; of short colours the upper bits in their places, those of the second
    /// chroma value in the upper byte.
    value: u16,
}

impl Entry {
    /// Says that a point with this symbol is read by [`Tables::read_any_point`].
    const LONG: u8 = 0x80;
    const WORD_AT: u32 = 12;

    /// `free_bits` is the number of bits after the word that are certain to be in a window.
    fn gap(symbol: usize, word: u32, free_bits: u32) -> Self {
        let low_bits = (symbol as u32).saturating_sub(1);
        let word_bits = (word as u16) << Entry::WORD_AT;
        if low_bits >= Entry::WORD_AT || low_bits > free_bits {
            return Entry::long(symbol, word, word_bits);
        }
        Entry {
            bits: (word + low_bits) as u8,
            symbol: symbol as u8,
            value: word_bits | (1 << symbol >> 1),
        }
    }

    fn luma(symbol: usize, word: u32, shifts: Shifts) -> Self {
        if symbol == LUMAS - 1 {
            return Entry::long(symbol, word, 0);
        }
        Entry {
            bits: word as u8,
            symbol: symbol as u8,
            value: (symbol << shifts.luma) as u16,
        }
    }

    fn chroma(pair: usize, word: u32, shifts: Shifts) -> Self {
        let upper = [pair / CHROMAS, pair % CHROMAS];
        let in_place = upper.map(|upper| u8::try_from(upper << shifts.chroma));
        match in_place {
            [Ok(first), Ok(second)] if !upper.contains(&(CHROMAS - 1)) => Entry {
                bits: word as u8,
                symbol: pair as u8,
                value: u16::from_le_bytes([first, second]),
            },
            _ => Entry::long(pair, word, 0),
        }
    }

    fn long(symbol: usize, word: u32, value: u16) -> Self {
        Entry {
            bits: word as u8,
            symbol: symbol as u8 | Entry::LONG,
            value,
        }
    }

    fn symbol(self) -> u32 {
        (self.symbol & !Entry::LONG).into()
    }
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
        let shifts = Shifts {
            luma: from.take(SHIFT_BITS) as u32,
            chroma: from.take(SHIFT_BITS) as u32,
        };
        self.shifts = shifts;
        let free_bits = BitReader::WINDOW_BITS - 3 * huffman::MAX_BITS - shifts.color_bits();
        self.gap
            .read(from, |symbol, word| Entry::gap(symbol, word, free_bits))?;
        self.luma
            .read(from, |symbol, word| Entry::luma(symbol, word, shifts))?;
        self.chroma
            .read(from, |symbol, word| Entry::chroma(symbol, word, shifts))
    }

    /// Reads a point. Inlined in each of the two loops, or the reader would be in memory.
    #[inline(always)]
    pub(super) fn read_point(&self, from: &mut BitReader<'_>) -> Differences {
        from.refill();
        let start = from.clone();
        let gap = self.gap.entry(from.window());
        let highest = gap.value % (1 << Entry::WORD_AT);
        let word_bits = gap.value >> Entry::WORD_AT;
        let lower = from.window() >> word_bits & u64::from(highest.saturating_sub(1));
        from.skip(gap.bits.into());
        let luma = self.luma.entry(from.window());
        from.skip(luma.bits.into());
        let chroma = self.chroma.entry(from.window());
        from.skip(chroma.bits.into());
        if (gap.symbol | luma.symbol | chroma.symbol) & Entry::LONG != 0 {
            // Only the copy is in memory.
            let mut at = start;
            let point = self.read_any_point(&mut at);
            *from = at;
            return point;
        }
        let low = from.window() as u32;
        from.skip(self.shifts.color_bits());
        let [first, second] = chroma.value.to_le_bytes();
        let upper = [luma.value, first.into(), second.into()].map(u32::from);
        (u64::from(highest) | lower, self.shifts.join(upper, low))
    }

    /// Reads a point, symbol by symbol.
    #[inline(never)]
    fn read_any_point(&self, from: &mut BitReader<'_>) -> Differences {
        from.refill();
        let entry = self.gap.entry(from.window());
        from.skip((entry.value >> Entry::WORD_AT).into());
        let gap = match entry.symbol().checked_sub(1) {
            Some(bits) => 1 << bits | from.take(bits),
            None => 0,
        };
        from.refill();
        let luma = self.luma.entry(from.window());
        from.skip(luma.bits.into());
        let pair = self.chroma.entry(from.window());
        from.skip(pair.bits.into());
        let [first, second] = [
            pair.symbol() / CHROMAS as u32,
            pair.symbol() % CHROMAS as u32,
        ];
        let Shifts {
            luma: shift,
            chroma: chroma_shift,
        } = self.shifts;
        let steps = [
            join(luma.symbol(), shift, LUMAS as u32, from),
            join(first, chroma_shift, CHROMAS as u32, from),
            join(second, chroma_shift, CHROMAS as u32, from),
        ];
        (gap, steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_differences() -> impl Strategy<Value = Vec<Differences>> {
        let value = |max_bits: u32| {
            (any::<u64>(), 0..=max_bits).prop_map(|(value, bits)| value & ((1 << bits) - 1))
        };
        let step = || value(11).prop_map(|step| step as u32);
        prop::collection::vec((value(48), [step(), step(), step()]), 1..300)
    }

    proptest! {
        #[test]
        fn points_are_read_as_they_were_written_all_at_once_or_by_symbol(
            points in any_differences(),
            luma in 0..=MAX_SHIFT,
            chroma in 0..=MAX_SHIFT,
        ) {
            let shifts = Shifts { luma, chroma };
            let symbols: Vec<_> = points.iter().map(|(gap, steps)| Symbols::new(*gap, *steps, shifts)).collect();
            let mut counts = Counts::NONE;
            symbols.iter().for_each(|symbols| counts.add(symbols));
            let codes = counts.codes();
            let mut writer = BitWriter::default();
            codes.describe(shifts, &mut writer);
            symbols.iter().for_each(|symbols| codes.put(symbols, &mut writer));
            let bytes = writer.finish();

            let mut reader = BitReader::new(&bytes);
            let mut tables = Tables::new();
            tables.read(&mut reader).expect("codes that were written");
            for point in &points {
                let mut by_symbol = reader.clone();
                prop_assert_eq!(tables.read_point(&mut reader), *point);
                prop_assert_eq!(tables.read_any_point(&mut by_symbol), *point);
                prop_assert_eq!(by_symbol.read_bits(), reader.read_bits());
            }
            prop_assert!(reader.rest().is_empty() && !reader.is_overrun());
        }

        #[test]
        fn any_bytes_are_read_the_same_all_at_once_or_by_symbol(
            points in any_differences(),
            shifts in 0u64..64,
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut counts = Counts::NONE;
            for (gap, steps) in points {
                counts.add(&Symbols::new(gap, steps, Shifts::default()));
            }
            let mut writer = BitWriter::default();
            counts.codes().describe(Shifts::default(), &mut writer);
            let mut described = writer.finish();
            described[0] = described[0] & 0xc0 | shifts as u8;
            let mut tables = Tables::new();
            tables.read(&mut BitReader::new(&described)).expect("codes that were written");

            let mut reader = BitReader::new(&bytes);
            for _ in 0..100 {
                let mut by_symbol = reader.clone();
                prop_assert_eq!(tables.read_point(&mut reader), tables.read_any_point(&mut by_symbol));
                prop_assert_eq!(by_symbol.read_bits(), reader.read_bits());
            }
        }
    }
}
