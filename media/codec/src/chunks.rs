//! The codec [`Codec::Chunks`]: points in chunks of a packet's size, each decoded alone.
//!
//! The points are sorted in Morton order, so that a chunk is a patch of the surface. The base layer
//! has every k-th of them, the next layer the rest. A layer is encoded in slices. Of the chunks of a
//! slice, groups get a parity chunk each, which repairs the loss of any one of them. What arrives is
//! shown.

mod color;
mod decoder;
mod header;
mod order;
mod parity;
mod run;
mod symbols;

pub use decoder::{ChunkDecoder, ChunkReport, PartialCloud};

use crate::{Choices, Codec, Encoder, Setting, Slice};
use hawser_cloud::Cloud;
use header::{COMMON_BYTES, HEADER_BYTES, Header, MAX_SLICES, Place, SliceId};
use order::{Grid, Keyed, Order, Sorted};
use run::RunEncoder;

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

/// The number of points of a slice, if the layer has not too many: a millisecond of encoding or less.
const SLICE_POINTS: usize = 16_384;

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

    fn set_payload(&mut self, bytes: usize) {
        self.config.payload = bytes.max(ChunkConfig::MIN_PAYLOAD);
    }

    fn encode_slices(&mut self, cloud: &Cloud, setting: Setting, done: &mut dyn FnMut(Slice)) {
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
    /// Encodes sorted points to slices of chunks with their parity, and hands each over.
    fn layers<P: Copy + Into<Keyed>>(
        &self,
        points: &[P],
        runs: &mut RunEncoder,
        done: &mut dyn FnMut(Slice),
    ) {
        // The first point is in the base, and the second one in the next layer.
        let layers = if self.config.stride > 1 && points.len() > 1 {
            2
        } else {
            1
        };
        for number in 0..layers {
            let points = layer(points, self.config.stride, number);
            let is_top = number + 1 == layers;
            self.slices(number, &points, runs, |parts, ends_layer| {
                done(Slice {
                    parts,
                    ends_layer,
                    is_top,
                });
            });
        }
    }

    /// Encodes the points of a layer to slices, and hands over the parts of each, and whether it is the
    /// last one.
    fn slices<P: Copy + Into<Keyed>>(
        &self,
        layer: u8,
        points: &[P],
        runs: &mut RunEncoder,
        mut done: impl FnMut(Vec<Vec<u8>>, bool),
    ) {
        let least = points.len().div_ceil(MAX_SLICES.into());
        let slices = points.chunks(SLICE_POINTS.max(least));
        let count = slices.len();
        if count == 0 {
            // An empty frame is a frame: the picture becomes empty when the scene does.
            done(vec![self.empty_chunk(layer)], true);
        }
        for (number, points) in slices.enumerate() {
            let slice = SliceId {
                layer,
                number: u8::try_from(number).expect("a layer has few slices"),
            };
            let mut parts = self.chunks(points, runs);
            number_chunks(&mut parts, slice);
            let parity = parity::of(&parts, slice, self.config.parity);
            parts.extend(parity);
            done(parts, number + 1 == count);
        }
    }

    /// Returns the only chunk of a layer without points.
    fn empty_chunk(&self, layer: u8) -> Vec<u8> {
        let place = Place {
            slice: SliceId { layer, number: 0 },
            is_parity: false,
            number: 0,
            total: 1,
        };
        let header = Header {
            points: 0,
            grid: self.grid,
            color_shift: self.color_shift,
        };
        [&place.to_bytes()[..], &header.to_bytes()].concat()
    }

    /// Encodes the points of a slice to chunks without their places.
    fn chunks<P: Copy + Into<Keyed>>(
        &self,
        mut points: &[P],
        runs: &mut RunEncoder,
    ) -> Vec<Vec<u8>> {
        let mut chunks = Vec::new();
        // Even if each point takes the 18 bytes of the worst case, a slice has fewer chunks.
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

/// Writes the places of the chunks of a slice.
fn number_chunks(chunks: &mut [Vec<u8>], slice: SliceId) {
    let total = u16::try_from(chunks.len()).expect("a slice has few chunks");
    for (number, chunk) in (0..).zip(chunks) {
        let place = Place {
            slice,
            is_parity: false,
            number,
            total,
        };
        chunk[..COMMON_BYTES].copy_from_slice(&place.to_bytes());
    }
}
