//! Derivation of a coded packet from a range of packets and a seed.

use crate::field::multiply;
use crate::kernel::Kernel;

/// The maximum number of packets in a range.
pub const MAX_RANGE: usize = 63;

/// The length of the length field that precedes the payload in a symbol, in bytes.
pub const LENGTH_BYTES: usize = 2;

/// The maximum length of a packet, in bytes.
pub const MAX_PACKET_BYTES: usize = u16::MAX as usize;

/// Sets `coefficients` to those of a coded packet over as many packets. The first is 1, the others
/// are any values except 0.
pub fn fill_coefficients(seed: u64, coefficients: &mut [u8]) {
    let Some(first) = coefficients.first_mut() else {
        return;
    };
    *first = 1;
    let mut known = 1;
    let mut numbers = SplitMix(seed);
    while known < coefficients.len() {
        let bytes = numbers.next().to_le_bytes();
        let unknown = &mut coefficients[known..];
        // Most numbers contain no zero.
        if let Some(unknown) = unknown.first_chunk_mut()
            && !bytes.contains(&0)
        {
            *unknown = bytes;
            known += bytes.len();
        } else {
            let bytes = bytes.into_iter().filter(|byte| *byte != 0);
            for (unknown, byte) in unknown.iter_mut().zip(bytes) {
                *unknown = byte;
                known += 1;
            }
        }
    }
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
    fill_coefficients(seed, factors);

    let longest = range.iter().map(|packet| packet.len()).max().unwrap_or(0);
    out.extend_from_slice(&sum_of_lengths(range, factors, longest));
    let payload = out.len();
    out.resize(payload + longest, 0);
    // The first coefficient is 1, which saves one product (appendix A).
    kernel.dot_from(&mut out[payload..], range[0], &factors[1..], &range[1..]);
}

/// Returns the sum of the packets' length fields, each multiplied by its factor.
///
/// # Panics
/// If a packet is longer than [`MAX_PACKET_BYTES`].
fn sum_of_lengths(range: &[&[u8]], factors: &[u8], longest: usize) -> [u8; LENGTH_BYTES] {
    let mut sum = [0; LENGTH_BYTES];
    let mut add = |factor, length: usize| {
        for (sum, byte) in sum.iter_mut().zip(length_field(length)) {
            *sum ^= multiply(factor, byte);
        }
    };
    // Most packets are as long as the longest, whose length is multiplied once, by the sum of their
    // factors.
    let mut of_longest = 0;
    for (packet, factor) in range.iter().zip(factors) {
        if packet.len() == longest {
            of_longest ^= factor;
        } else {
            add(*factor, packet.len());
        }
    }
    add(of_longest, longest);
    sum
}

/// Returns the length field of the symbol of a packet.
///
/// # Panics
/// If the length is more than [`MAX_PACKET_BYTES`].
pub(crate) fn length_field(length: usize) -> [u8; LENGTH_BYTES] {
    u16::try_from(length)
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

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter;

    #[test]
    fn coefficients_match_the_wire_document() {
        let mut first = [0; 10];
        fill_coefficients(0, &mut first);
        assert_eq!(
            first,
            [1, 0xaf, 0xcd, 0x1d, 0x7b, 0x39, 0xa8, 0x20, 0xe2, 0xf4]
        );
    }

    #[test]
    fn coefficients_are_one_and_the_bytes_that_are_not_zero() {
        for seed in 0..1000 {
            let mut numbers = SplitMix(seed);
            let bytes = iter::repeat_with(|| numbers.next().to_le_bytes()).flatten();
            let expected: Vec<u8> = iter::once(1)
                .chain(bytes.filter(|byte| *byte != 0))
                .take(MAX_RANGE)
                .collect();
            for count in 0..=MAX_RANGE {
                let mut coefficients = [0; MAX_RANGE];
                fill_coefficients(seed, &mut coefficients[..count]);
                assert_eq!(coefficients[..count], expected[..count], "seed {seed}");
                assert_eq!(coefficients[count..], [0; MAX_RANGE][count..]);
            }
        }
    }

    #[test]
    fn a_coded_packet_is_the_sum_of_the_symbols() {
        let bytes: Vec<u8> = (0..=255).cycle().skip(1).take(1400).collect();
        for lengths in [&[1400, 1400, 1400][..], &[40, 1400, 300], &[0, 7], &[0, 0]] {
            let range: Vec<&[u8]> = lengths.iter().map(|length| &bytes[..*length]).collect();
            let mut factors = vec![0; range.len()];
            fill_coefficients(9, &mut factors);
            let longest = lengths.iter().max().unwrap_or(&0);
            let mut expected = vec![0; LENGTH_BYTES + longest];
            for (factor, packet) in factors.iter().zip(&range) {
                let symbol = length_field(packet.len())
                    .into_iter()
                    .chain(packet.iter().copied());
                for (sum, byte) in expected.iter_mut().zip(symbol) {
                    *sum ^= multiply(*factor, byte);
                }
            }
            for kernel in Kernel::available() {
                let mut out = vec![0xee];
                encode_with(kernel, &range, 9, &mut out);
                assert_eq!(out[0], 0xee, "what was there is kept");
                assert_eq!(out[1..], expected, "{kernel:?}, lengths {lengths:?}");
            }
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
