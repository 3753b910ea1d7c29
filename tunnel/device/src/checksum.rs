//! The Internet checksum (RFC 1071), fast enough to be computed over every packet of a tunnel.
//!
//! Sums are in the machine's byte order: storing a folded sum in that order puts its bytes in the
//! right places.

/// Returns the sum of 16-bit words, the last odd byte padded with zero; cannot overflow for any
/// packet.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    // Sums four bytes at a time, which is valid because 2^16 = 1 in this arithmetic; the compiler
    // vectorises it.
    let (words, rest) = bytes.as_chunks::<4>();
    let words: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    words + u64::from(u32::from_ne_bytes(last))
}

/// Returns the sum of a number in network byte order.
pub(super) fn sum_of(number: u16) -> u64 {
    u64::from(u16::from_ne_bytes(number.to_be_bytes()))
}

/// Folds a sum to 16 bits, in the byte order in which they are stored.
pub(super) fn fold(mut sum: u64) -> [u8; 2] {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (sum as u16).to_ne_bytes()
}

/// Returns the checksum for a sum, in the byte order in which it is stored.
pub(super) fn finish(sum: u64) -> [u8; 2] {
    fold(sum).map(|byte| !byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::ip;

    #[test]
    fn it_agrees_with_the_plain_one() {
        let bytes: Vec<u8> = (0..1500u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        for length in (0..64).chain([1399, 1400, 1500]) {
            for start in 0..length.min(4) {
                let bytes = &bytes[start..length];
                assert_eq!(
                    finish(sum(bytes)),
                    ip::checksum(bytes).to_be_bytes(),
                    "{start}..{length}"
                );
            }
        }
        assert_eq!(finish(sum_of(0x1234)), (!0x1234u16).to_be_bytes());
    }
}
