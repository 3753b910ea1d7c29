//! Derivation of a coded packet from a range of packets and a seed.

use crate::field::multiply;
use crate::kernel::Kernel;
use std::iter;

/// The maximum number of packets in a range.
pub const MAX_RANGE: usize = 63;

/// The length of the length field that precedes the payload in a symbol, in bytes.
pub const LENGTH_BYTES: usize = 2;

/// The maximum length of a packet, in bytes.
pub const MAX_PACKET_BYTES: usize = u16::MAX as usize;

/// Returns the coefficients of a coded packet over `count` packets. The first is 1, the others are
/// any values except 0.
pub fn coefficients(seed: u64, count: usize) -> impl Iterator<Item = u8> {
    let random = SplitMix(seed)
        .flat_map(u64::to_le_bytes)
        .filter(|coefficient| *coefficient != 0);
    iter::once(1).chain(random).take(count)
}

/// Appends the coded packet of `range` and `seed` to `out`: the sum of the packets' symbols, each
/// multiplied by its coefficient. The symbol of a packet is its length (16 bits, big-endian), the
/// packet, and zeros up to the length of the longest packet.
///
/// # Panics
/// If the range is empty or has more than [`MAX_RANGE`] packets, or a packet is longer than
/// [`MAX_PACKET_BYTES`].
pub fn encode(range: &[&[u8]], seed: u64, out: &mut Vec<u8>) {
    encode_with(Kernel::best(), range, seed, out);
}

/// Same as [`encode`], with a given kernel.
///
/// # Panics
/// As [`encode`].
pub fn encode_with(kernel: Kernel, range: &[&[u8]], seed: u64, out: &mut Vec<u8>) {
    assert!(
        (1..=MAX_RANGE).contains(&range.len()),
        "invalid range of {} packets",
        range.len()
    );
    let mut space = [0; MAX_RANGE];
    let factors = &mut space[..range.len()];
    factors
        .iter_mut()
        .zip(coefficients(seed, range.len()))
        .for_each(|(space, factor)| *space = factor);

    let mut length = [0; LENGTH_BYTES];
    let mut longest = 0;
    for (factor, packet) in factors.iter().zip(range) {
        for (sum, byte) in length.iter_mut().zip(length_of(packet)) {
            *sum ^= multiply(*factor, byte);
        }
        longest = longest.max(packet.len());
    }
    out.extend_from_slice(&length);
    let payload = out.len();
    // The first coefficient is 1, which saves one product (appendix A).
    out.extend_from_slice(range[0]);
    out.resize(payload + longest, 0);
    kernel.dot_add(&mut out[payload..], &factors[1..], &range[1..]);
}

/// Returns the length field of the symbol of a packet.
///
/// # Panics
/// If the packet is longer than [`MAX_PACKET_BYTES`].
pub(crate) fn length_of(packet: &[u8]) -> [u8; LENGTH_BYTES] {
    u16::try_from(packet.len())
        .expect("a packet of at most 65,535 bytes")
        .to_be_bytes()
}

/// Returns the packet of a symbol, or `None` if the symbol is not that of a packet.
pub(crate) fn packet_of(symbol: &[u8]) -> Option<&[u8]> {
    let (length, padded) = symbol.split_first_chunk()?;
    let (packet, padding) = padded.split_at_checked(u16::from_be_bytes(*length).into())?;
    padding.iter().all(|byte| *byte == 0).then_some(packet)
}

/// The SplitMix64 generator of Steele, Lea and Flood (2014): a counter whose bits are mixed.
struct SplitMix(u64);

impl Iterator for SplitMix {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_match_the_wire_document() {
        let first: Vec<u8> = coefficients(0, 10).collect();
        assert_eq!(
            first,
            [1, 0xaf, 0xcd, 0x1d, 0x7b, 0x39, 0xa8, 0x20, 0xe2, 0xf4]
        );
    }

    #[test]
    fn the_first_coefficient_is_one_and_none_is_zero() {
        for seed in 0..1000 {
            let coefficients: Vec<u8> = coefficients(seed, MAX_RANGE).collect();
            assert_eq!(coefficients.len(), MAX_RANGE);
            assert_eq!(coefficients[0], 1);
            assert!(!coefficients.contains(&0), "seed {seed}");
        }
    }

    #[test]
    fn a_symbol_of_one_packet_is_its_length_and_the_packet() {
        let mut out = vec![0xee];
        encode(&[b"abc"], 5, &mut out);
        assert_eq!(out, b"\xee\0\x03abc");
        assert_eq!(packet_of(&out[1..]), Some(&b"abc"[..]));
    }

    #[test]
    fn invalid_symbols_are_rejected() {
        assert_eq!(packet_of(&[]), None);
        assert_eq!(packet_of(&[0]), None);
        assert_eq!(packet_of(&[0, 2, 7]), None, "shorter than its length field");
        assert_eq!(
            packet_of(&[0, 1, 7, 1]),
            None,
            "padded with bytes other than zero"
        );
        assert_eq!(packet_of(&[0, 1, 7, 0]), Some(&[7][..]));
    }
}
