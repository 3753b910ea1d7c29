use crate::{Config, LENGTH_BYTES};

/// Cells that are kept although nothing is in them.
pub(crate) const MAX_SPARE: usize = 32;

/// What a symbol costs besides its bytes: its place in a table, and the allocator's own.
pub(crate) const OVERHEAD: usize = 48;

/// Room for one symbol each. Those of long symbols are all as large as the longest one, and used again and again; a short
/// one has no more than it needs, so that tiny packets do not take the memory of large ones.
#[derive(Debug)]
pub(crate) struct Cells {
    /// Of the largest.
    bytes: usize,
    /// What all of them have together, with what each costs besides.
    used: usize,
    spare: Vec<Vec<u8>>,
}

impl Cells {
    pub(crate) fn new(config: &Config) -> Self {
        Cells {
            bytes: LENGTH_BYTES + config.packet_bytes,
            used: 0,
            spare: Vec::new(),
        }
    }

    /// Bytes of the cells that are in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn spare(&self) -> &Vec<Vec<u8>> {
        &self.spare
    }

    /// An empty one for a symbol of `bytes` that does not grow.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let cell = match bytes > self.bytes / 2 {
            true => self
                .spare
                .pop()
                .unwrap_or_else(|| Vec::with_capacity(self.bytes)),
            false => Vec::with_capacity(bytes),
        };
        self.used += cell.capacity() + OVERHEAD;
        cell
    }

    /// An empty one for a symbol that may become as long as the longest.
    pub(crate) fn take_largest(&mut self) -> Vec<u8> {
        self.take(self.bytes)
    }

    pub(crate) fn give(&mut self, mut cell: Vec<u8>) {
        self.used -= cell.capacity() + OVERHEAD;
        if cell.capacity() >= self.bytes && self.spare.len() < MAX_SPARE {
            cell.clear();
            self.spare.push(cell);
        }
    }

    /// Keeps nothing that is not in use.
    pub(crate) fn shrink(&mut self) {
        self.spare = Vec::new();
    }
}
