//! Prefix codes of at most 64 symbols, made for the data at hand and sent in front of it
//! (D. A. Huffman, "A Method for the Construction of Minimum-Redundancy Codes", 1952).

use crate::bits::{BitReader, BitWriter};

/// The maximum length of a code word in bits. Bounds the table of a decoder.
pub(crate) const MAX_BITS: u32 = 10;
/// The maximum number of symbols.
const MAX_SYMBOLS: usize = 64;
/// Bits of the number of symbols, and of a length, in a code's description.
const COUNT_BITS: u32 = 7;
const LENGTH_BITS: u32 = 4;
/// The number of lengths that can be described.
const LENGTHS: usize = 1 << LENGTH_BITS;

/// The code words of `N` symbols.
#[derive(Debug, Clone)]
pub(crate) struct Code<const N: usize> {
    /// The word of each symbol, and its length from [`MAX_BITS`] on.
    words: [u16; N],
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
        let mut words = words(&lengths);
        for (word, length) in words.iter_mut().zip(lengths) {
            *word |= u16::from(length) << MAX_BITS;
        }
        Code { words, sent }
    }

    /// Returns a symbol's word, the first bit lowest, and its length.
    #[inline]
    pub(crate) fn word(&self, symbol: usize) -> (u64, u32) {
        let word = self.words[symbol];
        (
            u64::from(word) % (1 << MAX_BITS),
            u32::from(word >> MAX_BITS),
        )
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
        let bits = counts.iter().zip(self.words);
        bits.map(|(count, word)| *count as usize * usize::from(word >> MAX_BITS))
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

/// The index of the first inner node of a tree. Before it are the leaves and at least one free place.
const INNER: usize = MAX_SYMBOLS + 1;

/// Returns the depth of each leaf of a Huffman tree, by symbol.
fn lengths<const N: usize>(counts: &[u32; N]) -> [u8; N] {
    // Each node's weight, and the symbol below it. What does not exist is the heaviest.
    let mut nodes = [u64::MAX; 2 * INNER];
    let mut leaves = 0;
    for (symbol, count) in (0u64..).zip(counts) {
        nodes[leaves] = u64::from(*count) << 8 | symbol;
        leaves += usize::from(*count > 0);
    }
    nodes[leaves] = u64::MAX;
    nodes[..leaves].sort_unstable();
    let mut parents = [0u8; 2 * INNER];
    // Leaves and inner nodes are both in order of weight: the lightest two are at the fronts.
    let (mut leaf, mut inner) = (0, INNER);
    for new in INNER..INNER + leaves.saturating_sub(1) {
        let mut weight = 0;
        for _ in 0..2 {
            let is_leaf = nodes[leaf] <= nodes[inner];
            let lightest = if is_leaf { leaf } else { inner };
            weight += nodes[lightest] >> 8;
            parents[lightest] = new as u8;
            leaf += usize::from(is_leaf);
            inner += usize::from(!is_leaf);
        }
        nodes[new] = weight << 8 | 0xff;
    }
    // The root is the last node; the only leaf of a tree without inner nodes is a root too.
    let mut depths = [0u8; 2 * INNER];
    for node in (INNER..INNER + leaves.saturating_sub(2)).rev() {
        depths[node] = depths[usize::from(parents[node])] + 1;
    }
    let mut lengths = [0; N];
    if leaves > 1 {
        for (key, parent) in nodes.iter().zip(parents).take(leaves) {
            lengths[(key & 0xff) as usize] = depths[usize::from(parent)] + 1;
        }
    }
    lengths
}

/// Returns the canonical words of lengths (RFC 1951, section 3.2.2), first bit lowest.
fn words<const N: usize>(lengths: &[u8; N]) -> [u16; N] {
    let numbers = count_lengths(lengths);
    let mut next = [0; LENGTHS];
    for length in 1..LENGTHS - 1 {
        next[length + 1] = (next[length] + numbers[length]) << 1;
    }
    lengths.map(|length| {
        let next = &mut next[usize::from(length)];
        let word = reverse(*next, length.into());
        *next += 1;
        word
    })
}

/// Returns how many symbols have words of each length; those without a word count for 0.
fn count_lengths(lengths: &[u8]) -> [u16; LENGTHS] {
    let mut numbers = [0; LENGTHS];
    for length in lengths {
        numbers[usize::from(*length)] += 1;
    }
    numbers
}

/// Returns the low `bits` bits of a word in the order of a [`BitWriter`], which writes the lowest
/// first.
fn reverse(word: u16, bits: u32) -> u16 {
    (u32::from(word.reverse_bits()) >> (u16::BITS - bits)) as u16
}

/// The table with which words are decoded: what was made of the symbol and the length of the word
/// that begins with each sequence of [`MAX_BITS`] bits.
#[derive(Debug)]
pub(crate) struct Table<E, const N: usize> {
    entries: Box<[E; 1 << MAX_BITS]>,
}

/// The error for a description of a code that no encoder writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InvalidCode;

impl<E: Copy + Default, const N: usize> Table<E, N> {
    pub(crate) fn new() -> Self {
        Table {
            entries: Box::new([E::default(); 1 << MAX_BITS]),
        }
    }

    /// Reads the description of a code. `entry` is passed a symbol and the length of its word.
    pub(crate) fn read(
        &mut self,
        from: &mut BitReader<'_>,
        entry: impl Fn(usize, u32) -> E,
    ) -> Result<(), InvalidCode> {
        let used = from.take(COUNT_BITS) as usize;
        let mut lengths = [0; N];
        for length in lengths.get_mut(..used).ok_or(InvalidCode)? {
            *length = from.take(LENGTH_BITS) as u8;
        }
        self.fill(&lengths, entry)
    }

    fn fill(
        &mut self,
        lengths: &[u8; N],
        entry: impl Fn(usize, u32) -> E,
    ) -> Result<(), InvalidCode> {
        let numbers = count_lengths(lengths);
        let without_word = usize::from(numbers[0]);
        if without_word + 1 >= N {
            let only = lengths.iter().position(|length| *length > 0).unwrap_or(0);
            self.entries.fill(entry(only, 0));
            return Ok(());
        }
        if !is_complete(&numbers) {
            return Err(InvalidCode);
        }
        let symbols = by_length(lengths, &numbers);
        let mut symbols = symbols[without_word..]
            .iter()
            .map(|symbol| usize::from(*symbol));
        let mut next = 0;
        for bits in 1..=MAX_BITS {
            // Words of fewer bits are found whatever the next bit is.
            let size = 1 << (bits - 1);
            self.entries.copy_within(..size, size);
            for symbol in symbols.by_ref().take(numbers[bits as usize].into()) {
                self.entries[usize::from(reverse(next, bits))] = entry(symbol, bits);
                next += 1;
            }
            next <<= 1;
        }
        Ok(())
    }

    /// Returns the entry of the word that a [`BitReader::window`] begins with.
    #[inline]
    pub(crate) fn entry(&self, window: u64) -> E {
        self.entries[window as usize % (1 << MAX_BITS)]
    }
}

/// Returns whether each sequence of [`MAX_BITS`] bits begins with one word.
fn is_complete(numbers: &[u16; LENGTHS]) -> bool {
    let (allowed, too_long) = numbers.split_at(MAX_BITS as usize + 1);
    let shares = (0..MAX_BITS).rev().zip(&allowed[1..]);
    let covered: u32 = shares
        .map(|(bits, number)| u32::from(*number) << bits)
        .sum();
    covered == 1 << MAX_BITS && too_long.iter().all(|number| *number == 0)
}

/// Returns the symbols in the order of the lengths of their words.
fn by_length<const N: usize>(lengths: &[u8; N], numbers: &[u16; LENGTHS]) -> [u8; N] {
    let mut starts = [0; LENGTHS];
    for length in 1..LENGTHS {
        starts[length] = starts[length - 1] + usize::from(numbers[length - 1]);
    }
    let mut symbols = [0; N];
    for (symbol, length) in (0..).zip(lengths) {
        let start = &mut starts[usize::from(*length)];
        symbols[*start] = symbol;
        *start += 1;
    }
    symbols
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
        let mut table = Table::<_, N>::new();
        let entry = |symbol, bits| (symbol, bits);
        table
            .read(&mut reader, entry)
            .expect("a code that was written");
        for symbol in symbols {
            reader.refill();
            let (found, bits) = table.entry(reader.window());
            assert_eq!(found, *symbol);
            reader.skip(bits);
        }
        assert!(!reader.is_overrun());
        bytes.len()
    }

    #[test]
    fn a_lone_symbol_takes_no_bits_and_unequal_counts_stay_within_the_limit() {
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
        fn any_description_is_refused_or_a_code(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let mut reader = BitReader::new(&bytes);
            let mut table = Table::<_, 49>::new();
            if table.read(&mut reader, |symbol, bits| (symbol, bits)).is_ok() {
                for _ in 0..100 {
                    reader.refill();
                    let (symbol, bits) = table.entry(reader.window());
                    prop_assert!(symbol < 49 && bits <= MAX_BITS);
                    reader.skip(bits);
                }
            }
        }
    }
}
