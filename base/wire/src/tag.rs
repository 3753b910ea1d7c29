use siphasher::sip::SipHasher24;
use std::fmt;
use zeroize::Zeroize;

/// A secret of 128 bits that two nodes share. It is overwritten when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 16]);

/// A keyed digest, in the byte order of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tag(pub [u8; 8]);

impl Key {
    /// Creates a key from bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Key(bytes)
    }

    /// Returns the bytes, for the kernel's tables.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the SipHash-2-4 of the bytes that a tag covers.
    pub fn tag(&self, covered: &[u8]) -> Tag {
        Tag(SipHasher24::new_with_key(&self.0)
            .hash(covered)
            .to_le_bytes())
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks against appendix A of the SipHash paper, and the 20-byte entry of its reference
    /// vectors.
    #[test]
    fn siphash_is_the_reference_one() {
        let key: [u8; 16] = std::array::from_fn(|i| i as u8);
        let message: [u8; 20] = std::array::from_fn(|i| i as u8);

        assert_eq!(
            SipHasher24::new_with_key(&key).hash(&message[..15]),
            0xa129_ca61_49be_45e5
        );
        let reference = [0x98, 0xee, 0xa2, 0x1a, 0xf2, 0x5c, 0xd6, 0xbe];
        assert_eq!(Key(key).tag(&message), Tag(reference));
    }

    #[test]
    fn a_key_does_not_print_itself() {
        assert_eq!(format!("{:?}", Key([0x42; 16])), "Key(secret)");
    }
}
