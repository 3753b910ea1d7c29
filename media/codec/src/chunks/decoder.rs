//! Decoding of chunks, all at once or as they arrive.

use super::header::{COMMON_BYTES, Header, Place, SliceId};
use super::order::{Keyed, Positions};
use super::parity::Parity;
use super::run::{self, RunDecoder};
use crate::{DecodeError, Decoder};
use hawser_cloud::{Cloud, MAX_POINTS, POINT_BYTES, Point};
use hawser_units::{ALLOCATION, Held};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The chunks of the last frame of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkReport {
    /// Chunks that the slices of the parts have, without parity.
    pub total: usize,
    /// Chunks that were decoded, repaired ones included.
    pub decoded: usize,
    /// Chunks that were lost and repaired.
    pub repaired: usize,
    /// Parts that were refused: not a chunk, damaged, twice, or beyond the maximum number of points.
    pub refused: usize,
}

/// The points of a frame of which more may arrive.
#[derive(Debug, Clone, Default)]
pub struct PartialCloud {
    cloud: Cloud,
    /// The chunks whose points are there, and those that were refused.
    tried: BTreeMap<ChunkId, bool>,
    /// The number of points of chunks that were refused when they had been decoded.
    refused: usize,
}

type ChunkId = (SliceId, u16);

/// The bytes that the record of a chunk takes in a map whose nodes may be half empty, and those of its first
/// node.
const RECORD: usize = 16;
const FIRST_RECORD: usize = 128;

impl Held for PartialCloud {
    fn held(&self) -> usize {
        let points = match self.cloud.capacity() {
            0 => 0,
            points => points * POINT_BYTES + ALLOCATION,
        };
        let records = match self.tried.len() {
            0 => 0,
            chunks => chunks * RECORD + FIRST_RECORD,
        };
        points + records
    }
}

impl PartialCloud {
    /// Returns the number of points.
    pub fn len(&self) -> usize {
        self.cloud.len()
    }

    /// Returns whether there is no point.
    pub fn is_empty(&self) -> bool {
        self.cloud.is_empty()
    }

    /// Returns by how many bytes [`ChunkDecoder::decode_ahead`] lets the frame grow with a part; `None` if it
    /// changes nothing.
    pub fn growth_with(&self, part: &[u8]) -> Option<usize> {
        let (place, rest) = Place::parse(part)?;
        let is_known = self.tried.contains_key(&(place.slice, place.number));
        if place.is_parity || is_known {
            return None;
        }
        let (header, _) = Header::parse(rest)?;
        let (points, capacity) = (usize::from(header.points), self.cloud.capacity());
        // Memory that does not suffice is doubled.
        let grown = match self.len() + points <= capacity {
            true => 0,
            false => capacity.max(points) * POINT_BYTES + ALLOCATION,
        };
        Some(grown + RECORD + FIRST_RECORD)
    }

    /// Returns a number of points that the frame does not exceed with further parts.
    pub(crate) fn max_points_with(&self, parts: &[&[u8]]) -> usize {
        let (slices, _) = sort_parts(parts);
        let repaired: usize = slices.values().map(Arrived::max_repaired).sum();
        let repaired_points = repaired * usize::from(run::MAX_POINTS);
        let announced = announced_points(&slices, &self.tried);
        (self.len() + announced + repaired_points).min(MAX_POINTS)
    }
}

/// Decodes clouds of [`Codec::Chunks`](crate::Codec::Chunks), reusing its working memory for every
/// frame.
///
/// Each chunk that arrived whole is decoded; the others are counted in [`ChunkDecoder::report`].
#[derive(Debug)]
pub struct ChunkDecoder {
    runs: RunDecoder,
    report: ChunkReport,
}

/// The parts of a slice that arrived.
#[derive(Debug, Default)]
struct Arrived<'a> {
    total: u16,
    chunks: BTreeMap<u16, Cow<'a, [u8]>>,
    parity: Vec<Parity<'a>>,
}

impl ChunkDecoder {
    /// Creates a decoder.
    pub fn new() -> Self {
        ChunkDecoder {
            runs: RunDecoder::new(),
            report: ChunkReport::default(),
        }
    }

    /// Returns what became of the parts of the last frame.
    pub fn report(&self) -> ChunkReport {
        self.report
    }

    /// Decodes a part that arrived before the frame is complete. A part that is no chunk of points, or
    /// was decoded before, changes nothing.
    pub fn decode_ahead(&mut self, frame: &mut PartialCloud, part: &[u8]) {
        let place = Place::parse(part).map(|(place, _)| place);
        if let Some(place) = place.filter(|place| !place.is_parity) {
            self.add_chunk((place.slice, place.number), part, frame);
        }
    }

    /// Decodes the rest of a frame, from those of its parts that arrived. Repairs what parity chunks
    /// can repair.
    ///
    /// # Errors
    /// If there are parts and none of them is a chunk, but for parity chunks alone: what they belong to was lost, and
    /// the frame has no points.
    pub fn complete(
        &mut self,
        mut frame: PartialCloud,
        parts: &[&[u8]],
    ) -> Result<Cloud, DecodeError> {
        let (slices, refused) = sort_parts(parts);
        self.report = ChunkReport {
            refused,
            ..ChunkReport::default()
        };
        frame.cloud.reserve(announced_points(&slices, &frame.tried));
        let is_lost = refused == 0 && slices.values().all(|slice| slice.chunks.is_empty());
        for (id, mut slice) in slices {
            self.report.total += usize::from(slice.total);
            self.report.repaired += slice.repair();
            for (number, chunk) in &slice.chunks {
                match self.add_chunk((id, *number), chunk, &mut frame) {
                    true => self.report.decoded += 1,
                    false => self.report.refused += 1,
                }
            }
        }
        let is_valid = frame.tried.values().any(|is_valid| *is_valid);
        if !is_valid && !is_lost && !parts.is_empty() {
            return Err(DecodeError::Malformed("no part is a chunk of points"));
        }
        Ok(frame.cloud)
    }

    /// Adds the points of a chunk, unless they are there. Returns `false`, and adds none, if the chunk
    /// is damaged or they are too many.
    fn add_chunk(&mut self, id: ChunkId, chunk: &[u8], frame: &mut PartialCloud) -> bool {
        let PartialCloud {
            cloud,
            tried,
            refused,
        } = frame;
        *tried
            .entry(id)
            .or_insert_with(|| self.decode_chunk(chunk, cloud, refused).is_some())
    }

    /// Adds the points of a chunk. Those that are refused count, too: what it takes to decode a frame is bounded,
    /// whatever its chunks are.
    fn decode_chunk(&mut self, chunk: &[u8], cloud: &mut Cloud, refused: &mut usize) -> Option<()> {
        let (header, run) = Header::parse(chunk.get(COMMON_BYTES..)?)?;
        let (before, count) = (cloud.len(), usize::from(header.points));
        if count == 0 {
            return run.is_empty().then_some(());
        }
        if before + *refused + count > MAX_POINTS {
            return None;
        }
        let mut positions = Positions::new(header.grid);
        let packed = |Keyed { key, rgb }| {
            let ([x, y, z], [r, g, b]) = (positions.find(key), rgb);
            Point { x, y, z, r, g, b }.to_bytes()
        };
        let to = cloud.grow(count);
        let decoded = self.runs.decode(run, header.color_shift, to, packed);
        decoded
            .map_err(|_| {
                cloud.truncate(before);
                *refused += count;
            })
            .ok()
    }
}

impl Default for ChunkDecoder {
    fn default() -> Self {
        ChunkDecoder::new()
    }
}

/// Returns the parts of each slice, and the number of parts that were refused.
fn sort_parts<'a>(parts: &[&'a [u8]]) -> (BTreeMap<SliceId, Arrived<'a>>, usize) {
    let mut slices: BTreeMap<SliceId, Arrived<'a>> = BTreeMap::new();
    let mut refused = 0;
    for part in parts {
        let is_kept = Place::parse(part).is_some_and(|(place, rest)| {
            let slice = slices.entry(place.slice).or_default();
            slice.insert(place, part, rest)
        });
        refused += usize::from(!is_kept);
    }
    (slices, refused)
}

impl<'a> Arrived<'a> {
    /// Keeps a part. Returns `false` if it contradicts the others.
    fn insert(&mut self, place: Place, part: &'a [u8], rest: &'a [u8]) -> bool {
        if self.total == 0 {
            self.total = place.total;
        }
        if place.total != self.total {
            return false;
        }
        if place.is_parity {
            let parity = Parity::parse(place, rest);
            self.parity.extend(parity);
            return parity.is_some();
        }
        match self.chunks.entry(place.number) {
            Entry::Vacant(entry) => {
                entry.insert(Cow::Borrowed(part));
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// Returns the number of chunks that parity chunks can repair at most.
    fn max_repaired(&self) -> usize {
        let missing = usize::from(self.total).saturating_sub(self.chunks.len());
        missing.min(self.parity.len())
    }

    /// Repairs what parity chunks can repair. Returns the number of chunks.
    fn repair(&mut self) -> usize {
        let before = self.chunks.len();
        for parity in std::mem::take(&mut self.parity) {
            let arrived = |number: u16| self.chunks.get(&number).map(|chunk| &**chunk);
            if let Some((number, chunk)) = parity.repair(arrived) {
                self.chunks.insert(number, Cow::Owned(chunk));
            }
        }
        self.chunks.len() - before
    }
}

/// Returns the number of points of the chunks that are not yet decoded, as far as a frame may have
/// them.
fn announced_points(
    slices: &BTreeMap<SliceId, Arrived<'_>>,
    tried: &BTreeMap<ChunkId, bool>,
) -> usize {
    let chunks = slices.iter().flat_map(|(id, slice)| {
        let chunks = slice.chunks.iter();
        chunks.map(|(number, chunk)| ((*id, *number), chunk))
    });
    let new = chunks.filter(|(id, _)| !tried.contains_key(id));
    let points = new.filter_map(|(_, chunk)| Header::parse(chunk.get(COMMON_BYTES..)?));
    let points: usize = points.map(|(header, _)| usize::from(header.points)).sum();
    points.min(MAX_POINTS)
}

impl Decoder for ChunkDecoder {
    type Frame = Cloud;

    /// Decodes the points that arrived. An empty cloud has one part; no part at all is one, too.
    fn decode(&mut self, parts: &[&[u8]]) -> Result<Cloud, DecodeError> {
        self.complete(PartialCloud::default(), parts)
    }
}
