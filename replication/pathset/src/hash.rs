use std::hash::{BuildHasher, Hasher, RandomState};

/// Hashes (flow, sequence number) with one multiplication. The standard hasher costs ten times as
/// much as the rest of a lookup. The random seed keeps senders from choosing numbers that collide.
#[derive(Debug, Clone)]
pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new() -> Self {
        Seeded(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for Seeded {
    type Hasher = Folding;

    fn build_hasher(&self) -> Folding {
        Folding(self.0)
    }
}

pub(crate) struct Folding(u64);

impl Hasher for Folding {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u16(&mut self, flow: u16) {
        self.0 = self.0.wrapping_add(u64::from(flow) << 48);
    }

    fn write_u64(&mut self, number: u64) {
        // The multiplier of Knuth's MMIX generator; both halves of the product depend on every bit
        // of the number.
        let product = u128::from(number ^ self.0) * 6_364_136_223_846_793_005;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}
