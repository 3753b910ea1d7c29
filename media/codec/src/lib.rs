//! Codecs of point clouds and RGB-D views, and the pull protocol that carries whole clouds.
//!
//! An [`Encoder`] turns a frame into layers, the base first, and a [`Decoder`] turns what arrived of
//! them into a frame. A layer is a list of parts, each of which begins with the tag of its codec. It
//! is encoded in slices, so that the first parts can leave while the next ones are encoded.
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
mod tracks;
pub mod zstd;

pub use chunks::{ChunkConfig, ChunkDecoder, ChunkEncoder, PartialCloud};
pub use draco::{DracoDecoder, DracoEncoder};
pub use rate::{Choices, RateControl};
pub use rgbd::{RgbdDecoder, RgbdEncoder};
pub use tracks::{Damage, TrackJob, decode_frames, decode_tracks, merge_frames};
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

    /// Sets the maximum size of a part in bytes, if the codec makes parts of a packet's size.
    fn set_payload(&mut self, _bytes: usize) {}

    /// Encodes a frame. Hands over each slice as soon as it is encoded, those of the base first.
    fn encode_slices(&mut self, frame: &Self::Frame, setting: Setting, done: &mut dyn FnMut(Slice));

    /// Encodes a frame as a whole.
    fn encode(&mut self, frame: &Self::Frame, setting: Setting) -> Encoded {
        let mut encoded = Encoded::new(self.codec());
        self.encode_slices(frame, setting, &mut |slice| encoded.push(slice));
        encoded
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

    /// Returns a number of points that a frame does not exceed, from the headers of its parts. Each pixel
    /// of a view counts as a point, and each chunk that may be repaired as the largest one. What
    /// [`FrameDecoder::complete`] makes of the same parts is no larger.
    pub fn max_points(decoded: &PartialCloud, parts: &[&[u8]]) -> usize {
        match codec_of(parts) {
            Err(_) => 0,
            Ok(Codec::Zstd) => zstd::max_points(parts),
            Ok(Codec::Rgbd) => rgbd::max_points(parts),
            Ok(Codec::Chunks) => decoded.max_points_with(parts),
            Ok(Codec::Draco) => draco::max_points(parts),
        }
    }

    /// Decodes a frame of which some chunks were decoded when they arrived. `decoded` has no effect if
    /// the codec is not [`Codec::Chunks`].
    ///
    /// # Errors
    /// As those of [`Decoder::decode`].
    pub fn complete(
        &mut self,
        decoded: PartialCloud,
        parts: &[&[u8]],
    ) -> Result<Frame, DecodeError> {
        match codec_of(parts)? {
            Codec::Zstd => self.zstd.decode(parts).map(Frame::Cloud),
            Codec::Rgbd => self.rgbd.decode(parts).map(Frame::View),
            Codec::Chunks => self.chunks.complete(decoded, parts).map(Frame::Cloud),
            Codec::Draco => self.draco.decode(parts).map(Frame::Cloud),
        }
    }
}

impl Decoder for FrameDecoder {
    type Frame = Frame;

    fn decode(&mut self, parts: &[&[u8]]) -> Result<Frame, DecodeError> {
        self.complete(PartialCloud::default(), parts)
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

/// A slice of a layer, which can be sent while the next one is encoded. Only [`Codec::Chunks`] has
/// several for a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// The parts, at least one except of a frame without points.
    pub parts: Vec<Vec<u8>>,
    /// Whether it is the last slice of its layer.
    pub ends_layer: bool,
    /// Whether its layer is the last one of the frame.
    pub is_top: bool,
}

impl Slice {
    /// Creates a layer of one part.
    fn layer(part: Vec<u8>, is_top: bool) -> Self {
        Slice {
            parts: vec![part],
            ends_layer: true,
            is_top,
        }
    }

    /// Creates the only layer of a frame, of one part, from the bytes that follow the tag.
    fn whole(codec: Codec, bytes: &[u8]) -> Self {
        Slice::layer([&[codec.tag()], bytes].concat(), true)
    }

    /// Returns the size of all parts in bytes.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
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
    /// Whether the last layer may have further slices.
    is_open: bool,
}

impl Encoded {
    /// Creates a frame without layers.
    pub const fn new(codec: Codec) -> Self {
        Encoded {
            codec,
            layers: Vec::new(),
            is_open: false,
        }
    }

    /// Adds the next slice.
    pub fn push(&mut self, slice: Slice) {
        match self.layers.last_mut().filter(|_| self.is_open) {
            Some(layer) => layer.extend(slice.parts),
            None => self.layers.push(slice.parts),
        }
        self.is_open = !slice.ends_layer;
    }

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

/// Returns the codec that the first tag of a frame names.
fn codec_of(parts: &[&[u8]]) -> Result<Codec, DecodeError> {
    let tag = parts.iter().find_map(|part| part.first());
    let codec = Codec::from_tag(*tag.ok_or(DecodeError::Missing)?);
    codec.ok_or(DecodeError::Malformed("a tag of no codec"))
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
