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
        debug_assert!(bits <= 56 && value >> bits == 0);
        self.pending |= value << self.pending_bits;
        self.pending_bits += bits;
        if self.bytes.len() < self.at + 8 {
            self.bytes = grown(std::mem::take(&mut self.bytes), self.at + ROOM);
        }
        self.bytes[self.at..self.at + 8].copy_from_slice(&self.pending.to_le_bytes());
        let whole = self.pending_bits / 8;
        self.at += whole as usize;
        // A shift by 64 does not occur: the pending bits are at most 7 + 56.
        self.pending >>= 8 * whole;
        self.pending_bits %= 8;
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

/// Returns the bytes and zeros up to a length. It takes no writer, because that would not stay in
/// registers otherwise.
#[cold]
fn grown(mut bytes: Vec<u8>, length: usize) -> Vec<u8> {
    bytes.resize(length, 0);
    bytes
}

/// Reads what a [`BitWriter`] wrote. Zeros follow the end; [`BitReader::is_overrun`] says whether
/// they were read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BitReader<'a> {
    bytes: &'a [u8],
    /// The number of bits that were read.
    at: usize,
    /// The bits that follow, as far as they are available.
    pending: u64,
}

impl<'a> BitReader<'a> {
    /// The number of bits that are available after a refill.
    pub(crate) const AVAILABLE: u32 = 57;

    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        BitReader {
            bytes,
            at: 0,
            pending: 0,
        }
    }

    /// Makes [`BitReader::AVAILABLE`] bits available to [`BitReader::peek`] and
    /// [`BitReader::skip`].
    #[inline]
    pub(crate) fn refill(&mut self) {
        let byte = self.at / 8;
        let word = match self.bytes.get(byte..byte + 8) {
            Some(word) => u64::from_le_bytes(word.try_into().expect("eight bytes")),
            None => last_word(self.bytes, byte),
        };
        self.pending = word >> (self.at % 8);
    }

    /// Returns the next `bits` bits, of those that are available.
    #[inline]
    pub(crate) fn peek(&self, bits: u32) -> u64 {
        self.pending & ((1 << bits) - 1)
    }

    #[inline]
    pub(crate) fn skip(&mut self, bits: u32) {
        self.pending >>= bits;
        self.at += bits as usize;
    }

    /// Reads bits of those that are available, without a refill.
    #[inline]
    pub(crate) fn take_available(&mut self, bits: u32) -> u64 {
        let before = self.pending;
        self.skip(bits);
        // Needs no mask: only these bits differ from what is left.
        before ^ self.pending << bits
    }

    /// Reads at most [`BitReader::AVAILABLE`] bits.
    #[inline]
    pub(crate) fn take(&mut self, bits: u32) -> u64 {
        self.refill();
        self.take_available(bits)
    }

    /// Returns the number of bits that were read.
    #[inline]
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Returns whether more bits were read than there are.
    #[inline]
    pub(crate) fn is_overrun(&self) -> bool {
        self.at > 8 * self.bytes.len()
    }

    /// Returns the bytes after the last one from which a bit was read.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at.div_ceil(8)..).unwrap_or_default()
    }
}

/// Returns the bytes from `at`, of which there are fewer than eight, and zeros. It takes no reader,
/// because that would not stay in registers otherwise.
#[cold]
fn last_word(bytes: &[u8], at: usize) -> u64 {
    let rest = bytes.get(at..).unwrap_or_default();
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

        #[test]
        fn as_many_bits_as_promised_are_available_anywhere(bytes in prop::collection::vec(any::<u8>(), 0..30), start in 0u32..=56, skipped in 0..=BitReader::AVAILABLE) {
            let mut word = [0; 16];
            let known = bytes.len().min(16);
            word[..known].copy_from_slice(&bytes[..known]);
            let expected = u128::from_le_bytes(word) >> start >> skipped;

            let mut reader = BitReader::new(&bytes);
            reader.take(start);
            reader.refill();
            reader.skip(skipped);
            let rest = BitReader::AVAILABLE - skipped;
            prop_assert_eq!(u128::from(reader.peek(rest)), expected & ((1 << rest) - 1));
            prop_assert_eq!(u128::from(reader.take_available(rest)), expected & ((1 << rest) - 1));
            prop_assert_eq!(reader.position() as u32, start + BitReader::AVAILABLE);
        }
    }
}
