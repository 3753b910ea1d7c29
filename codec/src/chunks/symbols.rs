//! A point in the symbols of prefix codes and the bits that follow them, and the codes of a run.

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
/// Bits of a difference of keys, and of the lower bits of a colour, that are read with the symbols of
/// a point without a refill: 56 less 30.
const SHORT_GAP: u32 = 12;
const SHORT_COLOR: u32 = 14;
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
    /// Joins upper bits of luma and chroma with the lower bits of all.
    #[inline]
    fn join(self, [luma, first, second]: [u32; 3], low: u32) -> [u32; 3] {
        let part = |at: u32, bits: u32| low >> at & ((1 << bits) - 1);
        [
            luma << self.luma | part(0, self.luma),
            first << self.chroma | part(self.luma, self.chroma),
            second << self.chroma | part(self.luma + self.chroma, self.chroma),
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
    pub(super) fn new(gap: u64, steps: [u32; 3], shifts: Shifts) -> Self {
        let gap_bits = u64::BITS - gap.leading_zeros();
        let mut low = (0, 0);
        let luma = split(steps[0], shifts.luma, LUMAS as u32, &mut low);
        let first = split(steps[1], shifts.chroma, CHROMAS as u32, &mut low);
        let second = split(steps[2], shifts.chroma, CHROMAS as u32, &mut low);
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
}

impl Counts {
    pub(super) const NONE: Counts = Counts {
        gap: [0; GAPS],
        luma: [0; LUMAS],
        chroma: [0; CHROMA_PAIRS],
    };

    #[inline]
    pub(super) fn add(&mut self, symbols: &Symbols) {
        self.gap[usize::from(symbols.gap)] += 1;
        self.luma[usize::from(symbols.luma)] += 1;
        self.chroma[usize::from(symbols.chroma)] += 1;
    }

    #[inline]
    pub(super) fn remove(&mut self, symbols: &Symbols) {
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

    /// Returns the size of all symbols without the bits that follow them.
    pub(super) fn total_bits(&self, counts: &Counts) -> usize {
        self.gap.total_bits(&counts.gap)
            + self.luma.total_bits(&counts.luma)
            + self.chroma.total_bits(&counts.chroma)
    }
}

/// The tables with which the points of a run are read.
#[derive(Debug)]
pub(super) struct Tables {
    shifts: Shifts,
    gap: Table<GAPS>,
    luma: Table<LUMAS>,
    chroma: Table<CHROMA_PAIRS>,
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
        self.gap.read(from)?;
        self.luma.read(from)?;
        self.chroma.read(from)
    }

    /// Reads a difference of keys. At least 34 bits are available afterwards.
    #[inline]
    pub(super) fn gap(&self, from: &mut BitReader<'_>) -> u64 {
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

    /// Reads the steps of a colour.
    #[inline]
    pub(super) fn color(&self, from: &mut BitReader<'_>) -> [u32; 3] {
        let luma = self.luma.take(from) as u32;
        let pair = self.chroma.take(from) as u32;
        let upper = [luma, pair / CHROMAS as u32, pair % CHROMAS as u32];
        let shifts = self.shifts;
        let low_bits = shifts.luma + 2 * shifts.chroma;
        if low_bits > SHORT_COLOR {
            from.refill();
        }
        if luma < LARGE_LUMA && upper[1] < LARGE_CHROMA && upper[2] < LARGE_CHROMA {
            return shifts.join(upper, from.take_available(low_bits) as u32);
        }
        from.refill();
        [
            join(luma, shifts.luma, LUMAS as u32, from),
            join(upper[1], shifts.chroma, CHROMAS as u32, from),
            join(upper[2], shifts.chroma, CHROMAS as u32, from),
        ]
    }
}

/// The symbols that stand for all larger values.
const LARGE_LUMA: u32 = LUMAS as u32 - 1;
const LARGE_CHROMA: u32 = CHROMAS as u32 - 1;
