//! Accounting of the memory of packets, and shrinking of queues.

use std::collections::VecDeque;

/// The minimum cost of a packet in bytes: its entries in tables that may be half empty, and the
/// allocator's overhead.
const MIN_COST: u64 = 256;

/// Returns the bytes that a packet counts towards a limit. Both ends use the same formula, so that
/// a receiver can hold for reordering what a sender may keep.
pub(crate) fn cost(bytes: &[u8]) -> u64 {
    (bytes.len() as u64).max(MIN_COST)
}

/// The capacity that an empty queue may keep.
const SPARE_CAPACITY: usize = 64;

/// Frees most of a queue's memory if little of it is used. The capacity changes by constant
/// factors, so the amortised cost is constant.
pub(crate) fn shrink_if_sparse<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > 4 * queue.len() + SPARE_CAPACITY {
        queue.shrink_to(2 * queue.len());
    }
}
