//! The codec [`Codec::Chunks`]: points in chunks of a packet's size, each decoded alone.
//!
//! The points are sorted in Morton order, so that a chunk is a patch of the surface. The base layer
//! has every k-th of them, the next layer the rest. Of the chunks of a layer, groups get a parity
//! chunk each, which repairs the loss of any one of them. What arrives is shown.

mod color;
mod header;
mod order;
mod parity;
mod run;
mod symbols;

use crate::{Choices, Codec, DecodeError, Decoder, Encoder, Layer, Setting};
use hawser_cloud::{Cloud, MAX_POINTS, Point};
use header::{COMMON_BYTES, HEADER_BYTES, Header, MAX_LAYERS, Place};
use order::{Grid, Keyed, Order, Sorted};
use parity::Parity;
use run::{RunDecoder, RunEncoder};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The shape of the chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkConfig {
    /// The maximum size of a part in bytes, at least [`ChunkConfig::MIN_PAYLOAD`]: the payload of a
    /// packet.
    pub payload: usize,
    /// The base layer has one of this many points; 1: there is no other layer.
    pub stride: usize,
    /// The maximum number of chunks that share a parity chunk, at most 64; 0: there are none.
    pub parity: usize,
}

impl ChunkConfig {
    /// The smallest payload.
    pub const MIN_PAYLOAD: usize = 512;
}

impl Default for ChunkConfig {
    fn default() -> Self {
        ChunkConfig {
            payload: 1100,
            stride: 4,
            parity: 10,
        }
    }
}

/// The precision of positions and colours: binary logarithms of the steps in millimetres and in
/// values of luma and chroma.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Precision {
    grid: u8,
    color: u8,
}

impl Precision {
    /// The maximum of `color`.
    const MAX_COLOR: u8 = 4;

    /// Lossless from 100, then colours in steps of 2, 4, 8 from 80, 60, 40, then positions in steps
    /// of 2 mm too.
    fn of(setting: Setting) -> Self {
        let (grid, color) = match setting.quality {
            100.. => (0, 0),
            80.. => (0, 1),
            60.. => (0, 2),
            40.. => (0, 3),
            _ => (1, 3),
        };
        Precision { grid, color }
    }
}

/// Encodes clouds as [`Codec::Chunks`], reusing its working memory for every frame.
#[derive(Debug)]
pub struct ChunkEncoder {
    config: ChunkConfig,
    order: Order,
    runs: RunEncoder,
}

impl ChunkEncoder {
    /// Creates an encoder.
    ///
    /// # Panics
    /// If the payload is too small, the stride 0, or the groups of parity too large.
    pub fn new(config: ChunkConfig) -> Self {
        assert!(config.payload >= ChunkConfig::MIN_PAYLOAD);
        assert!(config.stride > 0 && config.parity <= parity::MAX_SPAN);
        ChunkEncoder {
            config,
            order: Order::default(),
            runs: RunEncoder::new(),
        }
    }
}

impl Default for ChunkEncoder {
    fn default() -> Self {
        ChunkEncoder::new(ChunkConfig::default())
    }
}

impl Encoder for ChunkEncoder {
    type Frame = Cloud;

    fn codec(&self) -> Codec {
        Codec::Chunks
    }

    fn choices(&self) -> Choices {
        let steps = [(100, 2.4), (80, 2.1), (60, 1.7), (40, 1.4), (0, 1.0)];
        Choices::new(&steps, true)
    }

    fn encode_layers(&mut self, cloud: &Cloud, setting: Setting, done: &mut dyn FnMut(Layer)) {
        let precision = Precision::of(setting);
        let (grid, points) = self.order.sort(cloud, precision.grid);
        let shape = Shape {
            grid,
            color_shift: precision.color,
            config: self.config,
        };
        match points {
            Sorted::Words(words) => shape.layers(words, &mut self.runs, done),
            Sorted::Wide(points) => shape.layers(&points, &mut self.runs, done),
        }
    }
}

/// Returns the points of a layer.
fn layer<P: Copy>(points: &[P], stride: usize, layer: u8) -> Vec<P> {
    let mut kept = Vec::with_capacity(points.len());
    for group in points.chunks(stride) {
        let (base, rest) = group.split_at(1);
        kept.extend_from_slice(if layer == 0 { base } else { rest });
    }
    kept
}

/// The properties that all chunks of a frame have.
#[derive(Debug, Clone, Copy)]
struct Shape {
    grid: Grid,
    color_shift: u8,
    config: ChunkConfig,
}

impl Shape {
    /// Encodes sorted points to layers of chunks with their parity, and hands each over.
    fn layers<P: Copy + Into<Keyed>>(
        &self,
        points: &[P],
        runs: &mut RunEncoder,
        done: &mut dyn FnMut(Layer),
    ) {
        // The first point is in the base, and the second one in the next layer.
        let layers = if self.config.stride > 1 && points.len() > 1 {
            2
        } else {
            1
        };
        for number in 0..layers {
            let points = layer(points, self.config.stride, number);
            let mut parts = self.chunks(&points, runs);
            number_chunks(&mut parts, number);
            let parity = parity::of(&parts, number, self.config.parity);
            parts.extend(parity);
            let is_top = number + 1 == layers;
            done(Layer { parts, is_top });
        }
    }

    /// Encodes the points of a layer to chunks without their places.
    fn chunks<P: Copy + Into<Keyed>>(
        &self,
        mut points: &[P],
        runs: &mut RunEncoder,
    ) -> Vec<Vec<u8>> {
        let mut chunks = Vec::new();
        // Even if each point takes the 18 bytes of the worst case, a layer has fewer chunks.
        while !points.is_empty() && chunks.len() < usize::from(u16::MAX) {
            let (count, chunk) = self.chunk(points, runs);
            chunks.push(chunk);
            points = &points[count..];
        }
        chunks
    }

    /// Encodes as many points as fit, and returns their number.
    fn chunk<P: Copy + Into<Keyed>>(
        &self,
        points: &[P],
        runs: &mut RunEncoder,
    ) -> (usize, Vec<u8>) {
        let max_bytes = self.config.payload - parity::OVERHEAD_BYTES;
        let mut start = Vec::with_capacity(self.config.payload);
        start.resize(HEADER_BYTES, 0);
        let (count, mut chunk) = runs.encode(points, self.color_shift, max_bytes, start);
        let header = Header {
            points: u16::try_from(count).expect("a run has few points"),
            grid: self.grid,
            color_shift: self.color_shift,
        };
        chunk[COMMON_BYTES..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        (count, chunk)
    }
}

/// Writes the places of the chunks of a layer.
fn number_chunks(chunks: &mut [Vec<u8>], layer: u8) {
    let total = u16::try_from(chunks.len()).expect("a layer has few chunks");
    for (number, chunk) in (0..).zip(chunks) {
        let place = Place {
            layer,
            is_parity: false,
            number,
            total,
        };
        chunk[..COMMON_BYTES].copy_from_slice(&place.to_bytes());
    }
}

/// The chunks of the last frame of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkReport {
    /// Chunks that the layers of the parts have, without parity.
    pub total: usize,
    /// Chunks that were decoded, repaired ones included.
    pub decoded: usize,
    /// Chunks that were lost and repaired.
    pub repaired: usize,
    /// Parts that were refused: not a chunk, damaged, twice, or beyond the maximum number of points.
    pub refused: usize,
}

/// Decodes clouds of [`Codec::Chunks`], reusing its working memory for every frame.
///
/// Each chunk that arrived whole is decoded; the others are counted in [`ChunkDecoder::report`].
#[derive(Debug)]
pub struct ChunkDecoder {
    runs: RunDecoder,
    report: ChunkReport,
}

/// The parts of a layer that arrived.
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

    /// Returns the parts of each layer.
    fn sort_parts<'a>(&mut self, parts: &[&'a [u8]]) -> [Arrived<'a>; MAX_LAYERS as usize] {
        let mut layers: [Arrived<'a>; MAX_LAYERS as usize] = Default::default();
        for part in parts {
            let is_kept = Place::parse(part).is_some_and(|(place, rest)| {
                layers[usize::from(place.layer)].insert(place, part, rest)
            });
            self.report.refused += usize::from(!is_kept);
        }
        layers
    }

    /// Adds the points of a chunk to `cloud`, or none if the chunk is damaged or they are too many.
    fn add_chunk(&mut self, chunk: &[u8], cloud: &mut Cloud) -> Option<()> {
        let (header, run) = Header::parse(chunk.get(COMMON_BYTES..)?)?;
        let (before, count) = (cloud.len(), usize::from(header.points));
        if before + count > MAX_POINTS {
            return None;
        }
        let add = |Keyed {
                       key,
                       rgb: [r, g, b],
                   }| {
            let [x, y, z] = header.grid.position(key);
            cloud.push(Point { x, y, z, r, g, b });
        };
        let decoded = self.runs.decode(run, count, header.color_shift, add);
        decoded.map_err(|_| cloud.truncate(before)).ok()
    }
}

impl Default for ChunkDecoder {
    fn default() -> Self {
        ChunkDecoder::new()
    }
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

/// Returns the number of points of the chunks that arrived, as far as a frame may have them.
fn announced_points(layers: &[Arrived<'_>]) -> usize {
    let chunks = layers.iter().flat_map(|layer| layer.chunks.values());
    let points = chunks.filter_map(|chunk| Header::parse(chunk.get(COMMON_BYTES..)?));
    let points: usize = points.map(|(header, _)| usize::from(header.points)).sum();
    points.min(MAX_POINTS)
}

impl Decoder for ChunkDecoder {
    type Frame = Cloud;

    /// Decodes the points that arrived. No part at all is an empty cloud only if an empty cloud was
    /// encoded, which has no parts.
    fn decode(&mut self, parts: &[&[u8]]) -> Result<Cloud, DecodeError> {
        self.report = ChunkReport::default();
        let layers = self.sort_parts(parts);
        let mut cloud = Cloud::with_capacity(announced_points(&layers));
        for mut layer in layers {
            self.report.total += usize::from(layer.total);
            self.report.repaired += layer.repair();
            for chunk in layer.chunks.values() {
                match self.add_chunk(chunk, &mut cloud) {
                    Some(()) => self.report.decoded += 1,
                    None => self.report.refused += 1,
                }
            }
        }
        if cloud.is_empty() && !parts.is_empty() {
            return Err(DecodeError::Malformed("no part is a chunk of points"));
        }
        Ok(cloud)
    }
}
