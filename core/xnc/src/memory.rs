//! What packets cost, and what is given back when they have gone.

use std::collections::VecDeque;

/// What a packet takes at least, bytes: its place in tables that may be half empty, and the allocator's own.
const LEAST_COST: u64 = 256;

/// What a packet counts against a limit. Both ends count alike, so that a receiver holds whatever a sender may keep.
pub(crate) fn cost(bytes: &[u8]) -> u64 {
    (bytes.len() as u64).max(LEAST_COST)
}

/// Places that a queue keeps though it is empty.
const PLACES: usize = 64;

/// Gives most of a queue's memory back when little of it is used. It grows and shrinks by factors, so that each place is
/// paid for once.
pub(crate) fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > 4 * queue.len() + PLACES {
        queue.shrink_to(2 * queue.len());
    }
}
