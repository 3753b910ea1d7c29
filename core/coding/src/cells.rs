use crate::{Config, LENGTH_BYTES};

/// Cells that are kept although nothing is in them.
pub(crate) const MAX_SPARE: usize = 32;

/// Room for one symbol each, used again and again.
#[derive(Debug)]
pub(crate) struct Cells {
    /// Of one.
    pub(crate) bytes: usize,
    /// How many the configuration allows.
    pub(crate) limit: usize,
    pub(crate) used: usize,
    pub(crate) spare: Vec<Vec<u8>>,
}

impl Cells {
    pub(crate) fn new(config: &Config) -> Self {
        let bytes = LENGTH_BYTES + config.packet_bytes;
        let limit = (config.memory.0 / bytes as u64).try_into().unwrap_or(usize::MAX);
        Cells { bytes, limit, used: 0, spare: Vec::new() }
    }

    /// An empty one.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.used += 1;
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(self.bytes))
    }

    pub(crate) fn give(&mut self, mut cell: Vec<u8>) {
        self.used -= 1;
        if self.spare.len() < MAX_SPARE {
            cell.clear();
            self.spare.push(cell);
        }
    }
}
