//! Parity chunks: the exclusive or of the chunks of a group, from which any one of them is found.
//!
//! The chunks of a slice go to the groups round robin, so that as many chunks in a row as there
//! are groups may be lost.

use super::header::{COMMON_BYTES, Place, SliceId};

/// Bytes of a parity chunk beyond the longest chunk of its group: its place, the number of groups,
/// and the exclusive or of the lengths.
pub(super) const OVERHEAD_BYTES: usize = COMMON_BYTES + GROUPS_BYTES + LENGTH_BYTES;
const GROUPS_BYTES: usize = 2;
const LENGTH_BYTES: usize = 2;
/// The maximum number of chunks of a group, which bounds the work for one that arrives.
pub(super) const MAX_SPAN: usize = 64;

/// Returns the parity chunks of all chunks of a slice, in groups of at most `span`; none if `span`
/// is 0.
pub(super) fn of(chunks: &[Vec<u8>], slice: SliceId, span: usize) -> Vec<Vec<u8>> {
    if span == 0 {
        return Vec::new();
    }
    let groups = chunks.len().div_ceil(span);
    let total = u16::try_from(chunks.len()).expect("a slice has few chunks");
    let parity = |group: usize| {
        let place = Place {
            slice,
            is_parity: true,
            number: group as u16,
            total,
        };
        let mut sum = Vec::new();
        for chunk in chunks.iter().skip(group).step_by(groups) {
            add(&mut sum, chunk);
        }
        [&place.to_bytes()[..], &(groups as u16).to_be_bytes(), &sum].concat()
    };
    (0..groups).map(parity).collect()
}

/// A parity chunk that arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parity<'a> {
    groups: u16,
    group: u16,
    total: u16,
    sum: &'a [u8],
}

impl<'a> Parity<'a> {
    /// Parses what follows the place of a parity chunk; `None` if it is not valid.
    pub(super) fn parse(place: Place, bytes: &'a [u8]) -> Option<Self> {
        let (groups, sum) = bytes.split_first_chunk()?;
        let groups = u16::from_be_bytes(*groups);
        let is_valid = place.number < groups
            && groups <= place.total
            && usize::from(place.total.div_ceil(groups)) <= MAX_SPAN;
        is_valid.then_some(Parity {
            groups,
            group: place.number,
            total: place.total,
            sum,
        })
    }

    /// Returns the number and the bytes of the only chunk of the group that `arrived` does not
    /// have; `None` if none or several are missing.
    pub(super) fn repair<'c>(
        &self,
        arrived: impl Fn(u16) -> Option<&'c [u8]>,
    ) -> Option<(u16, Vec<u8>)> {
        let group = || (self.group..self.total).step_by(self.groups.into());
        let mut missing = group().filter(|number| arrived(*number).is_none());
        let number = missing.next()?;
        if missing.next().is_some() {
            return None;
        }
        let mut sum = self.sum.to_vec();
        group()
            .filter_map(arrived)
            .for_each(|chunk| add(&mut sum, chunk));
        let (length, chunk) = sum.split_first_chunk()?;
        let chunk = chunk.get(..u16::from_be_bytes(*length).into())?;
        Some((number, chunk.to_vec()))
    }
}

/// Adds the length and the bytes of a chunk.
fn add(sum: &mut Vec<u8>, chunk: &[u8]) {
    let length = (chunk.len() as u16).to_be_bytes();
    sum.resize(sum.len().max(LENGTH_BYTES + chunk.len()), 0);
    let (length_sum, sum) = sum.split_at_mut(LENGTH_BYTES);
    for (sum, bytes) in [(length_sum, &length[..]), (sum, chunk)] {
        sum.iter_mut()
            .zip(bytes)
            .for_each(|(sum, byte)| *sum ^= byte);
    }
}
