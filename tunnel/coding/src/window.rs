//! The symbols of a window of packets, most of which may be unknown.

use std::collections::VecDeque;
use std::mem::size_of;

/// The number of slots that are allocated together, when the first of them is used. An unused chunk
/// costs one pointer, so a number far ahead of the others costs little more than any other.
const CHUNK: usize = 64;

type Chunk = Box<[Option<Vec<u8>>; CHUNK]>;

/// Symbols by packet number, in the range from `first` up to, but not including, `end`.
#[derive(Debug, Default)]
pub(crate) struct Window {
    first: u64,
    end: u64,
    /// The chunks, starting with the one that contains `first`. A packet's slot within its chunk is
    /// its number modulo the chunk size.
    chunks: VecDeque<Option<Chunk>>,
}

impl Window {
    /// Returns the number of the oldest packet of the window.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Extends the window up to, but not including, `end`.
    pub(crate) fn extend_to(&mut self, end: u64) {
        if end > self.end {
            self.end = end;
            let chunks = self.chunk_of(end - 1) + 1;
            if chunks > self.chunks.len() {
                self.chunks.resize_with(chunks, || None);
            }
        }
    }

    /// Returns the symbol of a packet, if the packet is in the window and known.
    pub(crate) fn get(&self, id: u64) -> Option<&[u8]> {
        if !(self.first..self.end).contains(&id) {
            return None;
        }
        let chunk = self.chunks.get(self.chunk_of(id))?.as_ref()?;
        chunk[slot(id)].as_deref()
    }

    /// Stores the symbol of a packet of the window.
    pub(crate) fn set(&mut self, id: u64, symbol: Vec<u8>) {
        let chunk = self.chunk_of(id);
        let chunk = self.chunks[chunk].get_or_insert_with(|| Box::new([const { None }; CHUNK]));
        chunk[slot(id)] = Some(symbol);
    }

    /// Returns the oldest packet with a known symbol.
    pub(crate) fn first_known(&self) -> Option<u64> {
        let start = self.first - slot(self.first) as u64;
        let chunks = (start..).step_by(CHUNK).zip(&self.chunks);
        let known = |(start, chunk): (u64, &Option<Chunk>)| {
            let slot = chunk.as_ref()?.iter().position(Option::is_some)?;
            Some(start + slot as u64)
        };
        chunks.filter_map(known).next()
    }

    /// Forgets all packets before `id` and passes their symbols to `recycle`.
    pub(crate) fn forget_before(&mut self, id: u64, mut recycle: impl FnMut(Vec<u8>)) {
        if id <= self.first {
            return;
        }
        let whole = self.chunk_of(id).min(self.chunks.len());
        let gone = self.chunks.drain(..whole).flatten();
        gone.flat_map(|chunk| (*chunk).into_iter().flatten())
            .for_each(&mut recycle);
        if let Some(Some(chunk)) = self.chunks.front_mut() {
            let from = if whole == 0 { slot(self.first) } else { 0 };
            chunk[from..slot(id)]
                .iter_mut()
                .filter_map(Option::take)
                .for_each(recycle);
        }
        self.first = id;
        if self.end <= id {
            self.end = id;
            debug_assert!(
                self.chunks
                    .iter()
                    .flatten()
                    .all(|chunk| chunk.iter().all(Option::is_none))
            );
            self.chunks.clear();
        }
    }

    /// Shrinks the table of chunks if it is mostly unused.
    pub(crate) fn shrink(&mut self) {
        if self.chunks.capacity() > 4 * self.chunks.len() + 4 {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }

    /// Returns the known symbols.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.chunks
            .iter()
            .flatten()
            .flat_map(|chunk| chunk.iter().flatten())
    }

    /// Returns the bytes of all slots, used or not.
    pub(crate) fn table_bytes(&self) -> usize {
        let chunks = self.chunks.iter().flatten().count();
        chunks * size_of::<[Option<Vec<u8>>; CHUNK]>()
            + self.chunks.capacity() * size_of::<Option<Chunk>>()
    }

    fn chunk_of(&self, id: u64) -> usize {
        let chunks = id / CHUNK as u64 - self.first / CHUNK as u64;
        usize::try_from(chunks).unwrap_or(usize::MAX)
    }
}

fn slot(id: u64) -> usize {
    (id % CHUNK as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Debug, Clone)]
    enum Step {
        Set(u64),
        Forget(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => (0u64..300).prop_map(Step::Set),
            1 => (0u64..100).prop_map(Step::Forget),
            1 => (0u64..1000).prop_map(Step::Set),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn a_window_holds_what_it_was_given(steps in steps()) {
            let (mut window, mut model) = (Window::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Set(ahead) => {
                        let id = window.first() + ahead;
                        window.extend_to(id + 1);
                        window.set(id, vec![id as u8]);
                        model.insert(id, vec![id as u8]);
                    }
                    Step::Forget(ahead) => {
                        let before = window.first() + ahead;
                        let mut given = Vec::new();
                        window.forget_before(before, |symbol| given.push(symbol));
                        window.shrink();
                        let kept = model.split_off(&before);
                        prop_assert_eq!(given, model.into_values().collect::<Vec<_>>());
                        model = kept;
                        prop_assert_eq!(window.first(), before);
                    }
                }
                prop_assert_eq!(window.first_known(), model.keys().next().copied());
                prop_assert_eq!(window.symbols().count(), model.len());
                for (id, symbol) in &model {
                    prop_assert_eq!(window.get(*id), Some(&symbol[..]));
                }
                prop_assert_eq!(window.get(window.end), None);
            }
        }
    }
}
