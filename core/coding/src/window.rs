//! The symbols of a range of packets, most of which may be unknown.

use std::collections::VecDeque;
use std::mem::size_of;

/// Places that are made at once, when the first of them is taken: what nobody fills costs a pointer for all of them, so
/// that a number far ahead of the others costs no more than any other one.
const CHUNK: usize = 64;

type Chunk = Box<[Option<Vec<u8>>; CHUNK]>;

/// Symbols by the numbers of their packets, from `first` to before `end`.
#[derive(Debug, Default)]
pub(crate) struct Window {
    first: u64,
    end: u64,
    /// From the one that has the place of `first`; a place's number is that of the packet, modulo their size.
    chunks: VecDeque<Option<Chunk>>,
}

impl Window {
    /// The oldest packet.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.end
    }

    /// Has it reach up to before `end`.
    pub(crate) fn extend_to(&mut self, end: u64) {
        if end > self.end {
            self.end = end;
            let chunks = self.chunk_of(end - 1) + 1;
            if chunks > self.chunks.len() {
                self.chunks.resize_with(chunks, || None);
            }
        }
    }

    /// The symbol of a packet, if it is known and in the window.
    pub(crate) fn get(&self, id: u64) -> Option<&[u8]> {
        if !(self.first..self.end).contains(&id) {
            return None;
        }
        let chunk = self.chunks.get(self.chunk_of(id))?.as_ref()?;
        chunk[place(id)].as_deref()
    }

    /// Keeps the symbol of a packet of the window.
    pub(crate) fn set(&mut self, id: u64, symbol: Vec<u8>) {
        let chunk = self.chunk_of(id);
        let chunk = self.chunks[chunk].get_or_insert_with(|| Box::new([const { None }; CHUNK]));
        chunk[place(id)] = Some(symbol);
    }

    /// The oldest packet whose symbol is known.
    pub(crate) fn first_known(&self) -> Option<u64> {
        let start = self.first - place(self.first) as u64;
        let chunks = (start..).step_by(CHUNK).zip(&self.chunks);
        let known = |(start, chunk): (u64, &Option<Chunk>)| {
            let place = chunk.as_ref()?.iter().position(Option::is_some)?;
            Some(start + place as u64)
        };
        chunks.filter_map(known).next()
    }

    /// Forgets all packets before `id`, and hands out their symbols.
    pub(crate) fn forget_before(&mut self, id: u64, mut give: impl FnMut(Vec<u8>)) {
        if id <= self.first {
            return;
        }
        let whole = self.chunk_of(id).min(self.chunks.len());
        let gone = self.chunks.drain(..whole).flatten();
        gone.flat_map(|chunk| (*chunk).into_iter().flatten())
            .for_each(&mut give);
        if let Some(Some(chunk)) = self.chunks.front_mut() {
            let from = if whole == 0 { place(self.first) } else { 0 };
            chunk[from..place(id)]
                .iter_mut()
                .filter_map(Option::take)
                .for_each(give);
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

    /// Gives back the memory of places that are not needed.
    pub(crate) fn shrink(&mut self) {
        if self.chunks.capacity() > 4 * self.chunks.len() + 4 {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }

    /// The symbols that are known.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.chunks
            .iter()
            .flatten()
            .flat_map(|chunk| chunk.iter().flatten())
    }

    /// Bytes of the places, used or not.
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

fn place(id: u64) -> usize {
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
