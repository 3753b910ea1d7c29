//! Codecs of point clouds and RGB-D views, and the pull protocol that carries whole clouds.
//!
//! An [`Encoder`] turns a frame into layers, the base first, and a [`Decoder`] turns what arrived of
//! them into a frame. A layer is a list of parts, each of which begins with the tag of its codec.
//! `docs/design/codecs.md` specifies the bytes and compares the codecs.
//!
//! ```
//! use hawser_cloud::Performer;
//! use hawser_codec::{ChunkDecoder, ChunkEncoder, Decoder, Encoder, Setting};
//! use std::time::Duration;
//!
//! let cloud = Performer::new(1, 5000).cloud(Duration::ZERO);
//! let encoded = ChunkEncoder::default().encode(&cloud, Setting::BEST);
//! let parts = encoded.parts();
//! let decoded = ChunkDecoder::new().decode(&parts[1..])?;
//! assert_eq!(decoded.len(), cloud.len(), "one lost packet is repaired");
//! # Ok::<(), hawser_codec::DecodeError>(())
//! ```

mod ans;
mod bits;
pub mod chunks;
pub mod draco;
mod huffman;
pub mod pull;
pub mod rate;
pub mod rgbd;
pub mod zstd;

pub use chunks::{ChunkConfig, ChunkDecoder, ChunkEncoder};
pub use draco::{DracoDecoder, DracoEncoder};
pub use rate::{Choices, RateControl};
pub use rgbd::{RgbdDecoder, RgbdEncoder};
pub use zstd::{ZstdDecoder, ZstdEncoder};

use hawser_cloud::{Cloud, MAX_POINTS, View};

/// An encoding of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// zstd at level 1 over all x, all y, all z (16-bit little-endian), all red, all green and all
    /// blue, in capture order: lossless, and markedly smaller than compressing whole points,
    /// because neighbouring points have similar values.
    Zstd,
    /// A view as a camera captured it: see [`rgbd`].
    Rgbd,
    /// Points in chunks of a packet's size that are decoded independently: see [`chunks`].
    Chunks,
    /// Google's Draco, as the L4S paper uses it: see [`draco`].
    Draco,
}

impl Codec {
    /// Returns the codec's number on the wire.
    pub const fn tag(self) -> u8 {
        match self {
            Codec::Zstd => 1,
            Codec::Rgbd => 2,
            Codec::Chunks => 3,
            Codec::Draco => 4,
        }
    }

    /// Returns the codec with a number on the wire.
    pub const fn from_tag(tag: u8) -> Option<Codec> {
        match tag {
            1 => Some(Codec::Zstd),
            2 => Some(Codec::Rgbd),
            3 => Some(Codec::Chunks),
            4 => Some(Codec::Draco),
            _ => None,
        }
    }
}

/// Encodes frames with one codec.
pub trait Encoder {
    /// The frames: clouds or views.
    type Frame;

    /// Returns the codec.
    fn codec(&self) -> Codec;

    /// Returns the precisions that a rate control may choose from.
    fn choices(&self) -> Choices;

    /// Encodes a frame. Hands over each layer as soon as it is encoded, the base first.
    fn encode_layers(&mut self, frame: &Self::Frame, setting: Setting, done: &mut dyn FnMut(Layer));

    /// Encodes a frame as a whole.
    fn encode(&mut self, frame: &Self::Frame, setting: Setting) -> Encoded {
        let mut layers = Vec::new();
        self.encode_layers(frame, setting, &mut |layer| layers.push(layer.parts));
        let codec = self.codec();
        Encoded { codec, layers }
    }
}

/// Decodes frames of one codec.
///
/// The parts come from the network. A decoder does not panic regardless of the bytes, and allocates
/// no more than the largest frame takes.
pub trait Decoder {
    /// The frames: clouds or views.
    type Frame;

    /// Decodes a frame from those of its parts that arrived, in any order.
    ///
    /// # Errors
    /// If the parts are not of this codec, or not enough for a frame.
    fn decode(&mut self, parts: &[&[u8]]) -> Result<Self::Frame, DecodeError>;
}

/// A decoded frame of any codec.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// Points of one view or several.
    Cloud(Cloud),
    /// One view.
    View(View),
}

/// Decodes frames of all codecs, each with the one that its tag names.
#[derive(Default)]
pub struct FrameDecoder {
    zstd: ZstdDecoder,
    rgbd: RgbdDecoder,
    chunks: ChunkDecoder,
    draco: DracoDecoder,
}

impl FrameDecoder {
    /// Creates a decoder.
    pub fn new() -> Self {
        FrameDecoder::default()
    }
}

impl Decoder for FrameDecoder {
    type Frame = Frame;

    fn decode(&mut self, parts: &[&[u8]]) -> Result<Frame, DecodeError> {
        let tag = parts.iter().find_map(|part| part.first());
        let codec = Codec::from_tag(*tag.ok_or(DecodeError::Missing)?);
        match codec.ok_or(DecodeError::Malformed("a tag of no codec"))? {
            Codec::Zstd => self.zstd.decode(parts).map(Frame::Cloud),
            Codec::Rgbd => self.rgbd.decode(parts).map(Frame::View),
            Codec::Chunks => self.chunks.decode(parts).map(Frame::Cloud),
            Codec::Draco => self.draco.decode(parts).map(Frame::Cloud),
        }
    }
}

/// The precision of an encoder, which decides the size of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// From 0, the smallest, to [`Setting::MAX_QUALITY`]. Each codec documents the steps.
    pub quality: u8,
}

impl Setting {
    /// The largest quality.
    pub const MAX_QUALITY: u8 = 100;
    /// The best that a codec has.
    pub const BEST: Setting = Setting {
        quality: Setting::MAX_QUALITY,
    };
}

/// A layer that was encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// The parts, at least one except of a frame without points.
    pub parts: Vec<Vec<u8>>,
    /// Whether no other layer follows.
    pub is_top: bool,
}

impl Layer {
    /// Creates the only layer of a frame, of one part, from the bytes that follow the tag.
    fn whole(codec: Codec, bytes: &[u8]) -> Self {
        Layer {
            parts: vec![[&[codec.tag()], bytes].concat()],
            is_top: true,
        }
    }
}

/// A frame that was encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The codec.
    pub codec: Codec,
    /// The parts of each layer. The first layer can be decoded alone; each further one needs those
    /// before it.
    pub layers: Vec<Vec<Vec<u8>>>,
}

impl Encoded {
    /// Returns all parts, the base layer's first.
    pub fn parts(&self) -> Vec<&[u8]> {
        self.layers.iter().flatten().map(Vec::as_slice).collect()
    }

    /// Returns the size of all parts in bytes.
    pub fn bytes(&self) -> usize {
        self.layers.iter().flatten().map(Vec::len).sum()
    }
}

/// The reason that bytes cannot be decoded to a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More points than a frame may have.
    #[error("{0} points are more than the {MAX_POINTS} of a frame")]
    TooManyPoints(usize),
    /// The bytes are not what the codec [`Codec::Zstd`] writes.
    #[error("not valid zstd, or more than {points} points: {reason}")]
    Zstd {
        /// The announced number of points.
        points: usize,
        /// The decompressor's error.
        reason: String,
    },
    /// Fewer points than announced.
    #[error("{found} bytes of points instead of the {expected} announced")]
    TooFew {
        /// Decoded bytes.
        found: usize,
        /// Bytes of the announced number of points.
        expected: usize,
    },
    /// A part does not begin with the tag of the codec.
    #[error("a part without the tag {}", .0.tag())]
    Tag(Codec),
    /// The base layer, or the only part, is missing.
    #[error("the base layer is missing")]
    Missing,
    /// The bytes are not what the codec writes.
    #[error("{0}")]
    Malformed(&'static str),
}

/// Returns what follows the tag in the only part of a frame.
fn single_part<'a>(codec: Codec, parts: &[&'a [u8]]) -> Result<&'a [u8], DecodeError> {
    match parts {
        [] => Err(DecodeError::Missing),
        [part] => match part.split_first() {
            Some((tag, rest)) if *tag == codec.tag() => Ok(rest),
            _ => Err(DecodeError::Tag(codec)),
        },
        _ => Err(DecodeError::Malformed("more than one part")),
    }
}
