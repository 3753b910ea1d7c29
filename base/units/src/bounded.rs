//! Queues and maps for what a peer can fill: bounded by the bytes that they hold, with counts of what they
//! refuse.

use crate::ByteSize;
use std::collections::{BTreeMap, VecDeque};
use std::mem::size_of;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::sync::Arc;

/// The bytes that a value holds besides itself, on the heap.
pub trait Held {
    /// Returns the number of bytes, those of the allocator included ([`ALLOCATION`] for each piece).
    fn held(&self) -> usize;
}

/// The bytes that an allocator needs for a piece of memory, besides those that were asked for.
pub const ALLOCATION: usize = 16;

/// The space that a growing collection has for each value that it holds. A queue doubles its memory; the
/// nodes of a tree may be half empty, and have pointers.
const SPACE: usize = 2;

/// The reason why something is not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotHeld {
    /// No room is left beside the items held.
    #[error("there is no room")]
    Full,
    /// It is larger than the bound.
    #[error("it is too large")]
    TooLarge,
}

/// The number of values that were refused, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NotHeldCounts {
    /// Those refused with [`NotHeld::Full`].
    pub full: u64,
    /// Those refused with [`NotHeld::TooLarge`].
    pub too_large: u64,
}

/// The bytes of a collection, and its bound.
#[derive(Debug, Clone)]
struct Bound {
    bytes: usize,
    most: usize,
    refused: NotHeldCounts,
}

/// A queue that holds a bounded number of bytes, its own overhead included.
///
/// ```
/// use hawser_units::{BoundedQueue, ByteSize, NotHeld};
///
/// let mut queue = BoundedQueue::new(ByteSize(1000));
/// queue.push(vec![0u8; 500])?;
/// assert_eq!(queue.push(vec![0u8; 500]), Err(NotHeld::Full));
/// assert_eq!(queue.refused().full, 1);
/// # Ok::<(), NotHeld>(())
/// ```
#[derive(Debug, Clone)]
pub struct BoundedQueue<T> {
    items: VecDeque<T>,
    bound: Bound,
}

/// A map that holds a bounded number of bytes, its own overhead included. Its keys hold nothing besides
/// themselves.
#[derive(Debug, Clone)]
pub struct BoundedMap<K, V> {
    entries: BTreeMap<K, V>,
    bound: Bound,
}

impl<T: Held> BoundedQueue<T> {
    /// Creates an empty queue for so many bytes.
    pub const fn new(most: ByteSize) -> Self {
        BoundedQueue {
            items: VecDeque::new(),
            bound: Bound::new(most),
        }
    }

    /// Adds a value at the end.
    ///
    /// # Errors
    /// If it is not held. It is dropped and counted.
    pub fn push(&mut self, item: T) -> Result<(), NotHeld> {
        self.bound.add(Self::size(&item))?;
        self.items.push_back(item);
        Ok(())
    }

    /// Takes the first value.
    pub fn pop(&mut self) -> Option<T> {
        let item = self.items.pop_front()?;
        self.bound.bytes -= Self::size(&item);
        if self.items.is_empty() {
            // Memory that was needed once is given back.
            self.items = VecDeque::new();
        }
        Some(item)
    }

    /// Returns the number of values.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns whether there is no value.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the bytes that are held.
    pub const fn held(&self) -> ByteSize {
        self.bound.held()
    }

    /// Returns the counts of what was refused.
    pub const fn refused(&self) -> NotHeldCounts {
        self.bound.refused
    }

    fn size(item: &T) -> usize {
        SPACE * size_of::<T>() + item.held()
    }
}

impl<K: Ord, V: Held> BoundedMap<K, V> {
    /// Creates an empty map for so many bytes.
    pub const fn new(most: ByteSize) -> Self {
        BoundedMap {
            entries: BTreeMap::new(),
            bound: Bound::new(most),
        }
    }

    /// Changes the value of a key, an empty one if there is none yet. With the room for the change, the
    /// caller says how much the value may grow by.
    ///
    /// # Errors
    /// If there is no room for it. Nothing is changed, and it is counted.
    pub fn update<R>(
        &mut self,
        key: K,
        growth: usize,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R, NotHeld>
    where
        V: Default,
    {
        let is_new = !self.entries.contains_key(&key);
        let entry = if is_new { Self::ENTRY } else { 0 };
        self.bound.check(entry + growth)?;
        let value = self.entries.entry(key).or_default();
        let before = if is_new { 0 } else { value.held() };
        let changed = change(value);
        self.bound.bytes = self.bound.bytes - before + value.held() + entry;
        Ok(changed)
    }

    /// Returns a value.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    /// Takes the entry of the lowest key, if that satisfies a condition.
    pub fn pop_first_if(&mut self, is_wanted: impl FnOnce(&K) -> bool) -> Option<(K, V)> {
        let first = self.entries.first_entry()?;
        if !is_wanted(first.key()) {
            return None;
        }
        let (key, value) = first.remove_entry();
        self.bound.bytes -= Self::ENTRY + value.held();
        Some((key, value))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the bytes that are held.
    pub const fn held(&self) -> ByteSize {
        self.bound.held()
    }

    /// Returns the counts of what was refused.
    pub const fn refused(&self) -> NotHeldCounts {
        self.bound.refused
    }

    const ENTRY: usize = SPACE * (size_of::<K>() + size_of::<V>()) + ALLOCATION;
}

impl Bound {
    const fn new(most: ByteSize) -> Self {
        Bound {
            bytes: 0,
            most: most.0 as usize,
            refused: NotHeldCounts {
                full: 0,
                too_large: 0,
            },
        }
    }

    const fn held(&self) -> ByteSize {
        ByteSize(self.bytes as u64)
    }

    fn check(&mut self, bytes: usize) -> Result<(), NotHeld> {
        let reason = if bytes > self.most {
            NotHeld::TooLarge
        } else if bytes > self.most.saturating_sub(self.bytes) {
            NotHeld::Full
        } else {
            return Ok(());
        };
        self.refused.count(reason);
        Err(reason)
    }

    fn add(&mut self, bytes: usize) -> Result<(), NotHeld> {
        self.check(bytes)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl NotHeldCounts {
    fn count(&mut self, reason: NotHeld) {
        match reason {
            NotHeld::Full => self.full += 1,
            NotHeld::TooLarge => self.too_large += 1,
        }
    }

    /// Returns the number for all reasons.
    pub const fn total(&self) -> u64 {
        self.full + self.too_large
    }
}

impl AddAssign for NotHeldCounts {
    fn add_assign(&mut self, other: Self) {
        self.full += other.full;
        self.too_large += other.too_large;
    }
}

impl Held for Vec<u8> {
    fn held(&self) -> usize {
        match self.capacity() {
            0 => 0,
            bytes => bytes + ALLOCATION,
        }
    }
}

impl Held for Arc<[u8]> {
    /// Counts the bytes at each of their holders.
    fn held(&self) -> usize {
        // Two counts of references are beside the bytes.
        self.len() + 2 * size_of::<usize>() + ALLOCATION
    }
}

impl Held for SocketAddr {
    fn held(&self) -> usize {
        0
    }
}

impl<T: Held> Held for Option<T> {
    fn held(&self) -> usize {
        self.as_ref().map_or(0, Held::held)
    }
}

impl<A: Held, B: Held> Held for (A, B) {
    fn held(&self) -> usize {
        self.0.held() + self.1.held()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_never_holds_more_than_its_bound() {
        let most = ByteSize(10_000);
        for size in [0, 1, 53, 1200] {
            let mut queue = BoundedQueue::new(most);
            let kept = (0..1000).filter(|_| queue.push(vec![7; size]).is_ok());
            let kept = kept.count();
            assert!(queue.held() <= most && kept == queue.len(), "{size}");
            assert_eq!(queue.refused().full, 1000 - kept as u64, "{size}");
            // Short values count with what holds them.
            assert!(kept <= 10_000 / (2 * size_of::<Vec<u8>>()), "{size}");
            while queue.pop().is_some() {}
            assert_eq!(queue.held(), ByteSize(0));
        }
    }

    #[test]
    fn a_value_beyond_the_bound_is_refused_for_that() {
        let mut queue = BoundedQueue::new(ByteSize(100));
        assert_eq!(queue.push(vec![0; 101]), Err(NotHeld::TooLarge));
        assert_eq!(queue.refused().total(), 1);
        assert!(queue.is_empty() && queue.held() == ByteSize(0));
    }

    #[test]
    fn a_map_counts_empty_entries_and_what_values_grow_by() {
        let mut map: BoundedMap<u64, Vec<u8>> = BoundedMap::new(ByteSize(10_000));
        let empty = (0..1000).filter(|key| map.update(*key, 0, |_| ()).is_ok());
        let empty = empty.count();
        assert!(empty <= 10_000 / size_of::<(u64, Vec<u8>)>(), "{empty}");
        assert_eq!(map.refused().full, 1000 - empty as u64);
        while map.pop_first_if(|_| true).is_some() {}
        assert_eq!(map.held(), ByteSize(0));
        let grow = |value: &mut Vec<u8>| value.resize(1000, 0);
        let grown = (0..100).filter(|key| map.update(*key, 1016, grow).is_ok());
        assert_eq!(grown.count(), 9);
        assert!(map.held() <= ByteSize(10_000));
        assert!(map.pop_first_if(|key| *key > 0).is_none());
    }
}
