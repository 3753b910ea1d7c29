use crate::LENGTH_BYTES;

/// The number of unused cells that are kept for reuse.
pub(crate) const MAX_SPARE: usize = 32;

/// Bytes that a symbol costs besides its own: the table entry and the allocator's overhead.
pub(crate) const OVERHEAD: usize = 48;

/// Returns the bytes of the cell for a symbol of `bytes`, if the longest symbols have `longest`.
fn capacity(bytes: usize, longest: usize) -> usize {
    match bytes > longest / 2 {
        true => longest,
        false => bytes,
    }
}

/// Returns what the cell for a symbol of `bytes` costs, if the longest symbols have `longest`.
pub(crate) fn cost(bytes: usize, longest: usize) -> usize {
    capacity(bytes, longest) + OVERHEAD
}

/// Buffers that hold one symbol each. A buffer for a long symbol has the size of the longest symbol
/// and is reused. A buffer for a short symbol has just the size it needs, so tiny packets do not
/// take the memory of large ones.
#[derive(Debug)]
pub(crate) struct Cells {
    /// The size of the largest cell.
    bytes: usize,
    /// Bytes of all cells in use, including the overhead of each.
    used: usize,
    spare: Vec<Vec<u8>>,
}

impl Cells {
    /// Creates cells for the symbols of packets of at most `packet_bytes`.
    pub(crate) fn new(packet_bytes: usize) -> Self {
        Cells {
            bytes: LENGTH_BYTES + packet_bytes,
            used: 0,
            spare: Vec::new(),
        }
    }

    /// Returns the bytes of the cells in use, including the overhead of each.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn spare(&self) -> &Vec<Vec<u8>> {
        &self.spare
    }

    /// Returns an empty cell for a symbol of `bytes` that does not grow.
    pub(crate) fn take(&mut self, bytes: usize) -> Vec<u8> {
        let capacity = capacity(bytes, self.bytes);
        let spare = match capacity == self.bytes {
            true => self.spare.pop(),
            false => None,
        };
        let cell = spare.unwrap_or_else(|| Vec::with_capacity(capacity));
        self.used += cell.capacity() + OVERHEAD;
        cell
    }

    /// Returns an empty cell for a symbol that may grow to the maximum length.
    pub(crate) fn take_largest(&mut self) -> Vec<u8> {
        self.take(self.bytes)
    }

    pub(crate) fn recycle(&mut self, mut cell: Vec<u8>) {
        self.used -= cell.capacity() + OVERHEAD;
        if cell.capacity() >= self.bytes && self.spare.len() < MAX_SPARE {
            cell.clear();
            self.spare.push(cell);
        }
    }

    /// Frees the unused cells.
    pub(crate) fn shrink(&mut self) {
        self.spare = Vec::new();
    }
}
