//! Prefix codes of at most 64 symbols, made for the data at hand and sent in front of it
//! (D. A. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", 1952).

use crate::bits::{BitReader, BitWriter};

/// The maximum length of a code word in bits. Bounds the table of a decoder.
pub(crate) const MAX_BITS: u32 = 10;
/// The maximum number of symbols.
const MAX_SYMBOLS: usize = 64;
/// Bits of a symbol below its count.
const SYMBOL_BITS: u32 = MAX_SYMBOLS.ilog2();
/// Bits of the number of symbols, and of a length, in a code's description.
const COUNT_BITS: u32 = 7;
const LENGTH_BITS: u32 = 4;

/// The code words of `N` symbols.
#[derive(Debug, Clone)]
pub(crate) struct Code<const N: usize> {
    words: [u16; N],
    lengths: [u8; N],
    /// The lengths as they are sent: 1 for the empty word of a lone symbol.
    sent: [u8; N],
}

impl<const N: usize> Code<N> {
    /// Returns a code with the smallest total length for symbols that occur `counts` times, as far
    /// as [`MAX_BITS`] allows. A symbol that does not occur has no word; the word of a symbol that
    /// occurs alone is empty.
    pub(crate) fn new(counts: &[u32; N]) -> Self {
        const { assert!(N <= MAX_SYMBOLS) };
        let lengths = limited_lengths(counts);
        let sent = std::array::from_fn(|symbol| lengths[symbol].max((counts[symbol] > 0).into()));
        let mut words = [0; N];
        let (by_length, mut next) = (Lengths::of(&lengths), 0);
        for bits in 1..=MAX_BITS {
            by_length.words(bits, &mut next, |symbol, word| words[symbol] = word);
        }
        Code {
            words,
            lengths,
            sent,
        }
    }

    /// Returns a symbol's word, the first bit lowest, and its length.
    #[inline]
    pub(crate) fn word(&self, symbol: usize) -> (u64, u32) {
        (self.words[symbol].into(), self.lengths[symbol].into())
    }

    /// Returns the length of the description of the code in bits.
    pub(crate) fn description_bits(&self) -> usize {
        (COUNT_BITS + LENGTH_BITS * self.described() as u32) as usize
    }

    fn described(&self) -> usize {
        let last = self.sent.iter().rposition(|length| *length > 0);
        last.map_or(0, |last| last + 1)
    }

    /// Returns the number of bits of symbols that occur `counts` times.
    pub(crate) fn total_bits(&self, counts: &[u32; N]) -> usize {
        let bits = counts.iter().zip(self.lengths);
        bits.map(|(count, length)| *count as usize * usize::from(length))
            .sum()
    }

    /// Writes the description of the code.
    pub(crate) fn describe(&self, to: &mut BitWriter) {
        let described = self.described();
        to.put(described as u64, COUNT_BITS);
        for length in &self.sent[..described] {
            to.put((*length).into(), LENGTH_BITS);
        }
    }
}

/// Returns the lengths of a minimum-redundancy code of at most [`MAX_BITS`].
fn limited_lengths<const N: usize>(counts: &[u32; N]) -> [u8; N] {
    let mut counts = *counts;
    loop {
        let lengths = lengths(&counts);
        if lengths.iter().all(|length| u32::from(*length) <= MAX_BITS) {
            return lengths;
        }
        // Flattened counts give shorter codes; with equal counts, six bits suffice for 64 symbols.
        for count in counts.iter_mut().filter(|count| **count > 0) {
            *count = *count / 4 + 1;
        }
    }
}

/// Returns the lengths of the words of a minimum-redundancy code.
fn lengths<const N: usize>(counts: &[u32; N]) -> [u8; N] {
    let mut leaves = [0; N];
    let mut used = 0;
    for (symbol, count) in (0..).zip(counts).filter(|(_, count)| **count > 0) {
        leaves[used] = u64::from(*count) << SYMBOL_BITS | symbol;
        used += 1;
    }
    let leaves = &mut leaves[..used];
    leaves.sort_unstable();
    let mut lengths = [0; N];
    for (leaf, depth) in leaves.iter().zip(depths(leaves)) {
        lengths[*leaf as usize % MAX_SYMBOLS] = depth;
    }
    lengths
}

/// Returns the depths of the leaves of a Huffman tree. The leaves rise; their weights are above their
/// symbols.
fn depths(leaves: &[u64]) -> [u8; MAX_SYMBOLS] {
    // Leaves and inner nodes, each in order of weight: the lightest two are at the fronts. What does
    // not exist weighs most. No branch depends on weights, which are unpredictable.
    let mut weights = [[u64::MAX; MAX_SYMBOLS + 1]; 2];
    let mut parents = [[0u8; MAX_SYMBOLS + 1]; 2];
    let mut fronts = [0; 2];
    for (weight, leaf) in weights[0].iter_mut().zip(leaves) {
        *weight = leaf >> SYMBOL_BITS;
    }
    let inner = leaves.len().saturating_sub(1);
    for node in 0..inner {
        let mut sum = 0;
        for _ in 0..2 {
            let lightest = usize::from(weights[1][fronts[1]] < weights[0][fronts[0]]);
            let front = &mut fronts[lightest];
            sum += weights[lightest][*front];
            parents[lightest][*front] = node as u8;
            *front += 1;
        }
        weights[1][node] = sum;
    }
    // Below each inner node, the last of which is the root.
    let mut below = [0; MAX_SYMBOLS];
    if let Some(root) = inner.checked_sub(1) {
        below[root] = 1;
        for node in (0..root).rev() {
            below[node] = below[usize::from(parents[1][node])] + 1;
        }
    }
    std::array::from_fn(|leaf| below[usize::from(parents[0][leaf])])
}

/// The symbols that have words of each length, one bit a symbol.
#[derive(Debug, Clone, Copy)]
struct Lengths([u64; 1 << LENGTH_BITS]);

impl Lengths {
    fn of(lengths: &[u8]) -> Self {
        let mut symbols = [0; 1 << LENGTH_BITS];
        for (symbol, length) in lengths.iter().enumerate() {
            symbols[usize::from(*length)] |= 1 << symbol;
        }
        Lengths(symbols)
    }

    /// Passes the symbols whose words have `bits` bits to `each` with their canonical words (RFC 1951,
    /// section 3.2.2), first bit lowest. `next` is the first of these words, and then that of the next
    /// length.
    #[inline]
    fn words(&self, bits: u32, next: &mut u16, mut each: impl FnMut(usize, u16)) {
        let mut symbols = self.0[bits as usize];
        while symbols != 0 {
            each(
                symbols.trailing_zeros() as usize,
                next.reverse_bits() >> (u16::BITS - bits),
            );
            symbols &= symbols - 1;
            *next += 1;
        }
        *next <<= 1;
    }

    /// Returns whether each sequence of [`MAX_BITS`] bits begins with one word.
    fn is_complete(&self) -> bool {
        let (short, long) = self.0[1..].split_at(MAX_BITS as usize);
        let covered = |sum: u32, symbols: &u64| 2 * sum + symbols.count_ones();
        short.iter().fold(0, covered) == 1 << MAX_BITS && long.iter().all(|symbols| *symbols == 0)
    }
}

/// The table with which words are decoded: the value of the symbol, and the length, of the word that
/// begins with each sequence of [`MAX_BITS`] bits.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    /// The value, and the length in the upper byte.
    entries: Box<[u32; 1 << MAX_BITS]>,
}

/// Bits of a value in a table.
const VALUE_BITS: u32 = 24;

/// The error for a description of a code that no encoder writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidCode;

impl<const N: usize> Table<N> {
    pub(crate) fn new() -> Self {
        Table {
            entries: Box::new([0; 1 << MAX_BITS]),
        }
    }

    /// Reads the description of a code. [`Table::take`] will return the values of the symbols, of at
    /// most [`VALUE_BITS`] bits.
    pub(crate) fn read(
        &mut self,
        from: &mut BitReader<'_>,
        value: impl Fn(usize) -> u32,
    ) -> Result<(), InvalidCode> {
        let used = from.take(COUNT_BITS) as usize;
        if used > N {
            return Err(InvalidCode);
        }
        let mut lengths = [0; N];
        for length in &mut lengths[..used] {
            *length = from.take(LENGTH_BITS) as u8;
        }
        if lengths.iter().filter(|length| **length > 0).count() <= 1 {
            let only = lengths.iter().position(|length| *length > 0).unwrap_or(0);
            self.entries.fill(value(only));
            return Ok(());
        }
        let lengths = Lengths::of(&lengths);
        if !lengths.is_complete() {
            return Err(InvalidCode);
        }
        let mut next = 0;
        for bits in 1..=MAX_BITS {
            // Words of fewer bits are found whatever the next bit is.
            let size = 1 << (bits - 1);
            self.entries.copy_within(..size, size);
            lengths.words(bits, &mut next, |symbol, word| {
                self.entries[usize::from(word)] = bits << VALUE_BITS | value(symbol);
            });
        }
        Ok(())
    }

    /// Reads a word of at most [`MAX_BITS`] bits, without a refill. Returns the value of its symbol.
    #[inline]
    pub(crate) fn take(&self, from: &mut BitReader<'_>) -> u32 {
        let entry = self.entries[from.peek(MAX_BITS) as usize];
        from.skip(entry >> VALUE_BITS);
        entry & ((1 << VALUE_BITS) - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip<const N: usize>(symbols: &[usize]) -> usize {
        let mut counts = [0; N];
        symbols.iter().for_each(|symbol| counts[*symbol] += 1);
        let code = Code::new(&counts);
        let mut writer = BitWriter::default();
        code.describe(&mut writer);
        for symbol in symbols {
            let (word, bits) = code.word(*symbol);
            writer.put(word, bits);
        }
        let bytes = writer.finish();

        let mut reader = BitReader::new(&bytes);
        let mut table = Table::<N>::new();
        table
            .read(&mut reader, |symbol| symbol as u32)
            .expect("a code that was written");
        for symbol in symbols {
            reader.refill();
            assert_eq!(table.take(&mut reader), *symbol as u32);
        }
        assert!(!reader.is_overrun());
        bytes.len()
    }

    #[test]
    fn code_lengths_stay_within_the_limit() {
        assert_eq!(round_trip::<16>(&[3; 1000]), 3);
        // Counts like Fibonacci's make the deepest tree.
        let mut deep = Vec::new();
        let (mut count, mut next) = (1, 1);
        for symbol in 0..20 {
            deep.extend(std::iter::repeat_n(symbol, count));
            (count, next) = (next, count + next);
        }
        let bits = 8.0 * round_trip::<25>(&deep) as f64 / deep.len() as f64;
        assert!(bits < 3.0, "{bits} bits a symbol, entropy 2.6");
    }

    proptest! {
        #[test]
        fn symbols_are_read_as_they_were_written(symbols in prop::collection::vec(0usize..49, 0..500)) {
            round_trip::<49>(&symbols);
        }

        #[test]
        fn a_code_is_not_longer_than_that_of_other_counts(counts in prop::array::uniform16(1u32..500), others in prop::array::uniform16(1u32..500)) {
            // Counts below 500 make no word longer than the limit.
            let best = Code::new(&counts).total_bits(&counts);
            prop_assert!(best <= Code::new(&others).total_bits(&counts));
        }

        #[test]
        fn a_code_is_as_long_as_the_inner_nodes_of_a_tree_weigh(counts in prop::array::uniform32(0u32..1000)) {
            let mut nodes: Vec<usize> = counts.iter().filter(|count| **count > 0).map(|count| *count as usize).collect();
            let mut expected = 0;
            while nodes.len() > 1 {
                nodes.sort_by_key(|weight| std::cmp::Reverse(*weight));
                let sum = nodes.pop().unwrap_or(0) + nodes.pop().unwrap_or(0);
                nodes.push(sum);
                expected += sum;
            }
            let bits = counts.iter().zip(lengths(&counts)).map(|(count, length)| *count as usize * usize::from(length));
            prop_assert_eq!(bits.sum::<usize>(), expected);
        }

        #[test]
        fn any_description_is_refused_or_a_code(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut reader = BitReader::new(&bytes);
            let mut table = Table::<49>::new();
            if table.read(&mut reader, |symbol| symbol as u32).is_ok() {
                for _ in 0..100 {
                    reader.refill();
                    prop_assert!(table.take(&mut reader) < 49);
                }
            }
        }
    }
}
