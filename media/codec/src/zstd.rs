//! The codec [`Codec::Zstd`]: whole clouds without loss.

use crate::{Choices, Codec, DecodeError, Decoder, Encoder, Setting, Slice, single_part};
use hawser_cloud::{Cloud, MAX_POINTS, POINT_BYTES};
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{compress_bound, get_frame_content_size};

/// The fastest of zstd's ordinary levels, since encoding adds to every frame's delay.
const LEVEL: i32 = 1;

/// Returns the maximum compressed size of `points` points, in bytes.
pub fn max_compressed_bytes(points: usize) -> usize {
    compress_bound(points * POINT_BYTES)
}

/// Encodes clouds as [`Codec::Zstd`], reusing its working memory for every frame.
pub struct ZstdEncoder {
    compressor: Compressor<'static>,
    planes: Vec<u8>,
}

impl ZstdEncoder {
    /// Creates an encoder.
    pub fn new() -> Self {
        ZstdEncoder {
            compressor: Compressor::new(LEVEL).expect("zstd has a level 1 and memory for it"),
            planes: Vec::new(),
        }
    }

    /// Compresses a cloud, to at most [`max_compressed_bytes`], without a tag.
    pub fn compress(&mut self, cloud: &Cloud) -> Vec<u8> {
        split_planes(cloud.packed(), &mut self.planes);
        self.compressor
            .compress(&self.planes)
            .expect("the output has room for the worst case")
    }
}

impl Default for ZstdEncoder {
    fn default() -> Self {
        ZstdEncoder::new()
    }
}

impl Encoder for ZstdEncoder {
    type Frame = Cloud;

    fn codec(&self) -> Codec {
        Codec::Zstd
    }

    fn choices(&self) -> Choices {
        Choices::only(3.3)
    }

    fn encode_slices(&mut self, cloud: &Cloud, _: Setting, done: &mut dyn FnMut(Slice)) {
        done(Slice::whole(Codec::Zstd, &self.compress(cloud)));
    }
}

/// Decodes clouds of [`Codec::Zstd`], reusing its working memory for every frame.
pub struct ZstdDecoder {
    decompressor: Decompressor<'static>,
}

impl ZstdDecoder {
    /// Creates a decoder.
    pub fn new() -> Self {
        ZstdDecoder {
            decompressor: Decompressor::new().expect("there is memory for a zstd decompressor"),
        }
    }

    /// Decompresses a cloud of exactly `points` points.
    ///
    /// Never allocates more than these points take, regardless of the bytes.
    pub fn decompress(&mut self, points: usize, compressed: &[u8]) -> Result<Cloud, DecodeError> {
        if points > MAX_POINTS {
            return Err(DecodeError::TooManyPoints(points));
        }
        let expected = points * POINT_BYTES;
        let planes = self.decompressor.decompress(compressed, expected);
        let planes = planes.map_err(|error| DecodeError::Zstd {
            points,
            reason: error.to_string(),
        })?;
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

impl Default for ZstdDecoder {
    fn default() -> Self {
        ZstdDecoder::new()
    }
}

impl Decoder for ZstdDecoder {
    type Frame = Cloud;

    fn decode(&mut self, parts: &[&[u8]]) -> Result<Cloud, DecodeError> {
        let compressed = single_part(Codec::Zstd, parts)?;
        let bytes = content_bytes(compressed)
            .ok_or(DecodeError::Malformed("the zstd frame has no content size"))?;
        if !bytes.is_multiple_of(POINT_BYTES) {
            return Err(DecodeError::Malformed("part of a point in the zstd frame"));
        }
        self.decompress(bytes / POINT_BYTES, compressed)
    }
}

/// Returns the size that a zstd frame announces, if it does.
fn content_bytes(compressed: &[u8]) -> Option<usize> {
    let bytes = get_frame_content_size(compressed).ok().flatten()?;
    Some(usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Returns the number of points that a frame announces, as far as it may have them.
pub(crate) fn max_points(parts: &[&[u8]]) -> usize {
    let compressed = single_part(Codec::Zstd, parts).ok();
    let bytes = compressed.and_then(content_bytes).unwrap_or_default();
    (bytes / POINT_BYTES).min(MAX_POINTS)
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
        let cloud = Cloud::from_packed(vec![0; 1000 * POINT_BYTES]).unwrap();
        let compressed = ZstdEncoder::new().compress(&cloud);
        let mut decoder = ZstdDecoder::new();
        assert!(matches!(
            decoder.decompress(999, &compressed),
            Err(DecodeError::Zstd { .. })
        ));
        assert_eq!(
            decoder.decompress(1001, &compressed),
            Err(DecodeError::TooFew {
                found: 9000,
                expected: 9009
            })
        );
        assert_eq!(
            decoder.decompress(MAX_POINTS + 1, &compressed),
            Err(DecodeError::TooManyPoints(MAX_POINTS + 1))
        );
        assert!(
            decoder.decompress(1000, &compressed).is_ok(),
            "the decoder is usable after an error"
        );
    }

    proptest! {
        #[test]
        fn decoding_gives_back_the_same_points(cloud in any_cloud()) {
            let mut encoder = ZstdEncoder::new();
            let compressed = encoder.compress(&cloud);
            prop_assert!(compressed.len() <= max_compressed_bytes(cloud.len()));
            let mut decoder = ZstdDecoder::new();
            prop_assert_eq!(decoder.decompress(cloud.len(), &compressed), Ok(cloud.clone()));

            let encoded = encoder.encode(&cloud, Setting::BEST);
            prop_assert_eq!(encoded.layers.concat(), [[&[1], &compressed[..]].concat()]);
            prop_assert_eq!(decoder.decode(&encoded.parts()), Ok(cloud));
        }

        #[test]
        fn garbage_is_an_error(garbage in prop::collection::vec(any::<u8>(), 0..400), points in 1usize..5000) {
            let mut decoder = ZstdDecoder::new();
            prop_assert!(decoder.decompress(points, &garbage).is_err());
            prop_assert!(decoder.decode(&[&garbage]).is_err());
        }

        #[test]
        fn damage_never_panics(cloud in any_cloud(), at: prop::sample::Index, byte: u8) {
            let mut compressed = ZstdEncoder::new().compress(&cloud);
            *at.get_mut(&mut compressed) = byte;
            let _ = ZstdDecoder::new().decompress(cloud.len(), &compressed);
        }
    }
}
