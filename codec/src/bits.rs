//! Bits in bytes, the least significant bit first.

/// Writes values of up to 56 bits.
#[derive(Debug, Default)]
pub(crate) struct BitWriter {
    /// The bytes up to `at`, and room for the next word.
    bytes: Vec<u8>,
    at: usize,
    pending: u64,
    pending_bits: u32,
}

/// Bytes by which the room grows.
const ROOM: usize = 2048;

impl BitWriter {
    /// The maximum number of bits that are written at once.
    pub(crate) const MAX_BITS: u32 = 56;

    /// Creates a writer that continues after `bytes`.
    pub(crate) fn after(bytes: Vec<u8>) -> Self {
        BitWriter {
            at: bytes.len(),
            bytes,
            ..BitWriter::default()
        }
    }

    /// Appends the low `bits` bits of `value`; the others must be zero.
    #[inline]
    pub(crate) fn put(&mut self, value: u64, bits: u32) {
        debug_assert!(bits <= BitWriter::MAX_BITS && value >> bits == 0);
        let pending = self.pending | value << self.pending_bits;
        let pending_bits = self.pending_bits + bits;
        if self.bytes.len() < self.at + 8 {
            self.bytes.resize(self.at + ROOM, 0);
        }
        self.bytes[self.at..self.at + 8].copy_from_slice(&pending.to_le_bytes());
        self.at += pending_bits as usize / 8;
        // A shift by 64 does not occur: the pending bits are at most 7 + 56.
        self.pending = pending >> (pending_bits / 8 * 8);
        self.pending_bits = pending_bits % 8;
    }

    /// Returns the bytes, with zero bits up to a whole byte.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.truncate(self.at);
        if self.pending_bits > 0 {
            self.bytes.push(self.pending as u8);
        }
        self.bytes
    }
}

/// Reads what a [`BitWriter`] wrote. Zeros follow the end; [`BitReader::is_overrun`] says whether
/// they were read.
#[derive(Debug, Clone)]
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    /// The first byte that is not wholly in the window.
    at: usize,
    /// The next bits. Those above `available` are right or zero.
    window: u64,
    available: u32,
}

impl<'a> BitReader<'a> {
    /// The number of bits that are available after a refill.
    pub(crate) const WINDOW_BITS: u32 = 56;

    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        BitReader {
            bytes,
            at: 0,
            window: 0,
            available: 0,
        }
    }

    /// Makes [`BitReader::WINDOW_BITS`] available without another refill.
    #[inline]
    pub(crate) fn refill(&mut self) {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let word = match rest.first_chunk() {
            Some(word) => u64::from_le_bytes(*word),
            None => last_word(rest),
        };
        self.window |= word << self.available;
        self.at += (63 - self.available as usize) / 8;
        self.available |= 56;
    }

    /// Returns the next bits, the first one lowest.
    #[inline]
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    #[inline]
    pub(crate) fn skip(&mut self, bits: u32) {
        self.window >>= bits;
        self.available -= bits;
    }

    /// Reads at most 56 bits, without a refill.
    #[inline]
    pub(crate) fn take_available(&mut self, bits: u32) -> u64 {
        let value = self.window & ((1 << bits) - 1);
        self.skip(bits);
        value
    }

    /// Reads at most 56 bits.
    #[inline]
    pub(crate) fn take(&mut self, bits: u32) -> u64 {
        self.refill();
        self.take_available(bits)
    }

    /// Returns whether more bits were read than there are.
    pub(crate) fn is_overrun(&self) -> bool {
        self.read_bits() > 8 * self.bytes.len()
    }

    /// Returns the bytes after the last one from which a bit was read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        let read = self.read_bits().div_ceil(8);
        self.bytes.get(read..).unwrap_or_default()
    }

    /// Returns the number of bits that were read.
    pub(crate) fn read_bits(&self) -> usize {
        8 * self.at - self.available as usize
    }
}

/// Returns fewer than eight bytes with zeros after them.
#[cold]
fn last_word(rest: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_are_read_as_they_were_written(values in prop::collection::vec((any::<u64>(), 0u32..=56), 0..200)) {
            let values: Vec<_> = values.iter().map(|(value, bits)| (value & ((1 << bits) - 1), *bits)).collect();
            let mut writer = BitWriter::default();
            values.iter().for_each(|(value, bits)| writer.put(*value, *bits));
            let bytes = writer.finish();

            let mut reader = BitReader::new(&bytes);
            for (value, bits) in &values {
                prop_assert_eq!(reader.take(*bits), *value);
            }
            prop_assert!(!reader.is_overrun() && reader.rest().is_empty());
            prop_assert_eq!(reader.take(56) >> 8, 0);
            prop_assert!(reader.is_overrun());
        }
    }
}
