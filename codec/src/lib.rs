//! Point-cloud codecs, and the pull protocol that carries their frames.
//!
//! ```
//! use hawser_cloud::Performer;
//! use hawser_codec::{Codec, Decoder, Encoder};
//! use std::time::Duration;
//!
//! let cloud = Performer::new(1, 5000).cloud(Duration::ZERO);
//! let encoded = Encoder::new(Codec::Zstd).encode(&cloud);
//! assert_eq!(Decoder::new().decode(Codec::Zstd, cloud.len(), &encoded).unwrap(), cloud);
//! ```

pub mod pull;

use hawser_cloud::{Cloud, MAX_POINTS, POINT_BYTES};
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::compress_bound;

/// An encoding of point clouds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Codec {
    /// zstd at level 1 over all x, all y, all z (16-bit little-endian), all red, all green and all
    /// blue, in capture order: lossless, and markedly smaller than compressing whole points,
    /// because neighbouring points have similar values.
    Zstd,
}

/// The fastest of zstd's ordinary levels, since encoding adds to every frame's delay.
const ZSTD_LEVEL: i32 = 1;

/// The reason that bytes cannot be decoded to a cloud.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// More points than a frame may have.
    #[error("{0} points are more than the {MAX_POINTS} of a frame")]
    TooManyPoints(usize),
    /// The bytes are not what the codec writes.
    #[error("not valid zstd, or more than {points} points: {reason}")]
    Malformed {
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
}

impl Codec {
    /// Returns the codec's number on the wire.
    pub const fn wire_id(self) -> u8 {
        match self {
            Codec::Zstd => 1,
        }
    }

    /// Returns the codec with a number on the wire.
    pub const fn from_wire_id(id: u8) -> Option<Codec> {
        match id {
            1 => Some(Codec::Zstd),
            _ => None,
        }
    }

    /// Returns the maximum encoded size of `points` points, in bytes.
    pub fn max_encoded_bytes(self, points: usize) -> usize {
        match self {
            Codec::Zstd => compress_bound(points * POINT_BYTES),
        }
    }
}

/// Encodes clouds, reusing its working memory for every frame.
pub struct Encoder {
    codec: Codec,
    zstd: Compressor<'static>,
    planes: Vec<u8>,
}

impl Encoder {
    /// Creates an encoder for `codec`.
    pub fn new(codec: Codec) -> Self {
        let zstd = Compressor::new(ZSTD_LEVEL).expect("zstd has a level 1 and memory for it");
        Encoder {
            codec,
            zstd,
            planes: Vec::new(),
        }
    }

    /// Returns the codec of this encoder.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Encodes a cloud, to at most [`Codec::max_encoded_bytes`].
    pub fn encode(&mut self, cloud: &Cloud) -> Vec<u8> {
        match self.codec {
            Codec::Zstd => {
                split_planes(cloud.packed(), &mut self.planes);
                self.zstd
                    .compress(&self.planes)
                    .expect("the output has room for the worst case")
            }
        }
    }
}

/// Decodes clouds, reusing its working memory for every frame.
pub struct Decoder {
    zstd: Decompressor<'static>,
}

impl Decoder {
    /// Creates a decoder for all codecs.
    pub fn new() -> Self {
        Decoder {
            zstd: Decompressor::new().expect("there is memory for a zstd decompressor"),
        }
    }

    /// Decodes a cloud of exactly `points` points from `encoded`.
    ///
    /// Never allocates more than these points take, regardless of the bytes.
    pub fn decode(
        &mut self,
        codec: Codec,
        points: usize,
        encoded: &[u8],
    ) -> Result<Cloud, DecodeError> {
        if points > MAX_POINTS {
            return Err(DecodeError::TooManyPoints(points));
        }
        let expected = points * POINT_BYTES;
        let planes =
            match codec {
                Codec::Zstd => self.zstd.decompress(encoded, expected).map_err(|error| {
                    DecodeError::Malformed {
                        points,
                        reason: error.to_string(),
                    }
                })?,
            };
        if planes.len() != expected {
            return Err(DecodeError::TooFew {
                found: planes.len(),
                expected,
            });
        }
        Ok(Cloud::from_packed(join_planes(&planes))
            .expect("a whole number of points, by the check above"))
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder::new()
    }
}

/// Offset and length of each value in a packed point: x, y, z, red, green, blue.
const VALUES: [(usize, usize); 6] = [(0, 2), (2, 2), (4, 2), (6, 1), (7, 1), (8, 1)];

/// Groups the values of all points: all x first, then all y, and so on.
fn split_planes(packed: &[u8], planes: &mut Vec<u8>) {
    planes.clear();
    planes.reserve_exact(packed.len());
    let points = packed.as_chunks::<POINT_BYTES>().0;
    for (at, bytes) in VALUES {
        planes.extend(points.iter().flat_map(|point| &point[at..at + bytes]));
    }
}

/// The inverse of [`split_planes`].
fn join_planes(planes: &[u8]) -> Vec<u8> {
    let mut packed = vec![0; planes.len()];
    let points = packed.as_chunks_mut::<POINT_BYTES>().0;
    let mut rest = planes;
    for (at, bytes) in VALUES {
        let (plane, next) = rest.split_at(points.len() * bytes);
        for (point, value) in points.iter_mut().zip(plane.chunks_exact(bytes)) {
            point[at..at + bytes].copy_from_slice(value);
        }
        rest = next;
    }
    packed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_cloud() -> impl Strategy<Value = Cloud> {
        prop::collection::vec(any::<[u8; POINT_BYTES]>(), 0..300)
            .prop_map(|points| Cloud::from_packed(points.concat()).expect("whole points"))
    }

    #[test]
    fn more_points_than_announced_are_rejected() {
        let encoded = Encoder::new(Codec::Zstd)
            .encode(&Cloud::from_packed(vec![0; 1000 * POINT_BYTES]).unwrap());
        let mut decoder = Decoder::new();
        assert!(matches!(
            decoder.decode(Codec::Zstd, 999, &encoded),
            Err(DecodeError::Malformed { .. })
        ));
        assert_eq!(
            decoder.decode(Codec::Zstd, 1001, &encoded),
            Err(DecodeError::TooFew {
                found: 9000,
                expected: 9009
            })
        );
        assert_eq!(
            decoder.decode(Codec::Zstd, MAX_POINTS + 1, &encoded),
            Err(DecodeError::TooManyPoints(MAX_POINTS + 1))
        );
        assert!(
            decoder.decode(Codec::Zstd, 1000, &encoded).is_ok(),
            "the decoder is usable after an error"
        );
    }

    proptest! {
        #[test]
        fn decoding_gives_back_the_same_points(cloud in any_cloud()) {
            let encoded = Encoder::new(Codec::Zstd).encode(&cloud);

            prop_assert!(encoded.len() <= Codec::Zstd.max_encoded_bytes(cloud.len()));
            prop_assert_eq!(Decoder::new().decode(Codec::Zstd, cloud.len(), &encoded), Ok(cloud));
        }

        #[test]
        fn garbage_is_an_error(garbage in prop::collection::vec(any::<u8>(), 0..400), points in 1usize..5000) {
            prop_assert!(Decoder::new().decode(Codec::Zstd, points, &garbage).is_err());
        }

        #[test]
        fn damage_never_panics(cloud in any_cloud(), at: prop::sample::Index, byte: u8) {
            let mut encoded = Encoder::new(Codec::Zstd).encode(&cloud);
            *at.get_mut(&mut encoded) = byte;
            let _ = Decoder::new().decode(Codec::Zstd, cloud.len(), &encoded);
        }
    }
}
