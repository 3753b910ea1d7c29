//! The codec [`Codec::Draco`]: Google's Draco, for comparison and exchange, as De Fre et al. use it
//! (section 4): positions of 11 bits, a KD-tree, speed 7.

use crate::{Choices, Codec, DecodeError, Decoder, Encoder, Setting, Slice, single_part};
use draco_core::{
    DataType, DecodeLimits, DecoderBuffer, EncoderBuffer, EncoderOptions, GeometryAttributeType,
    PointAttribute, PointCloud, PointCloudDecoder, PointCloudEncoder,
};
use hawser_cloud::{Cloud, MAX_POINTS, Point};

const POSITION_BITS: i32 = 11;
const SPEED: i32 = 7;
/// Draco's number of the KD-tree method.
const KD_TREE: i32 = 1;
/// The bit of the upper byte of the flags that says that there are metadata.
const METADATA: u8 = 0x80;
/// Bytes of attributes that a decoder accepts: more than twice what the largest cloud has.
const MAX_DECODED_BYTES: u64 = 32 * MAX_POINTS as u64;

/// Encodes clouds as [`Codec::Draco`]. Positions are floating-point numbers in millimetres. Any
/// setting gives the paper's parameters.
#[derive(Debug, Default)]
pub struct DracoEncoder {}

impl DracoEncoder {
    /// Creates an encoder.
    pub fn new() -> Self {
        DracoEncoder {}
    }
}

impl Encoder for DracoEncoder {
    type Frame = Cloud;

    fn codec(&self) -> Codec {
        Codec::Draco
    }

    fn choices(&self) -> Choices {
        Choices::only(1.7)
    }

    fn encode_slices(&mut self, cloud: &Cloud, _: Setting, done: &mut dyn FnMut(Slice)) {
        if cloud.is_empty() {
            return done(Slice::whole(Codec::Draco, &[]));
        }
        let mut options = EncoderOptions::new();
        options.set_compression_level(10 - SPEED);
        options.set_encoding_method(KD_TREE);
        options.set_attribute_quantization(POSITION, POSITION_BITS);
        let mut encoder = PointCloudEncoder::new();
        encoder.set_point_cloud(point_cloud(cloud));
        let mut buffer = EncoderBuffer::new();
        encoder
            .encode(&options, &mut buffer)
            .expect("positions and colours of at least one point can be encoded");
        done(Slice::whole(Codec::Draco, buffer.data()));
    }
}

/// The number of the attribute that is added first.
const POSITION: i32 = 0;

fn point_cloud(cloud: &Cloud) -> PointCloud {
    let coordinates = |point: Point| [point.x, point.y, point.z].map(f32::from);
    let values: Vec<f32> = cloud.points().flat_map(coordinates).collect();
    let rgb: Vec<u8> = cloud
        .points()
        .flat_map(|point| [point.r, point.g, point.b])
        .collect();
    let mut positions = attribute(GeometryAttributeType::Position, DataType::Float32, cloud);
    let mut colors = attribute(GeometryAttributeType::Color, DataType::Uint8, cloud);
    positions.buffer_mut().update_f32s_le(0, &values);
    colors.buffer_mut().write(0, &rgb);
    let mut points = PointCloud::new();
    points.set_num_points(cloud.len());
    points.add_attribute(positions);
    points.add_attribute(colors);
    points
}

fn attribute(kind: GeometryAttributeType, data_type: DataType, cloud: &Cloud) -> PointAttribute {
    let mut attribute = PointAttribute::new();
    // Colours of a byte stand for numbers from 0 to 1.
    let is_normalized = data_type == DataType::Uint8;
    attribute.init(kind, 3, data_type, is_normalized, cloud.len());
    attribute
}

/// Returns the three values of an attribute of each point; `None` if it is of another kind.
fn values(
    cloud: &PointCloud,
    kind: GeometryAttributeType,
    data_type: DataType,
) -> Option<Vec<f32>> {
    let count = cloud.num_points();
    let attribute = cloud.named_attribute(kind)?;
    let is_known = attribute.data_type() == data_type && attribute.num_components() == 3;
    (is_known && count <= MAX_POINTS).then(|| attribute.read_f32s(count, 3))
}

/// Returns the number of points that a frame announces, as far as it may have them. Metadata in front of
/// the number are not read: such a frame counts as the largest one.
pub(crate) fn max_points(parts: &[&[u8]]) -> usize {
    let bytes = single_part(Codec::Draco, parts).unwrap_or_default();
    // The magic word, the version, the kind and the method of encoding; then flags, and the number.
    let announced = bytes.split_at_checked(9).and_then(|(_, rest)| {
        let [_, flags, n0, n1, n2, n3] = *rest.first_chunk()?;
        let points = u32::from_le_bytes([n0, n1, n2, n3]);
        let has_metadata = flags & METADATA != 0;
        Some(if has_metadata { u32::MAX } else { points } as usize)
    });
    announced.map_or(0, |points| points.min(MAX_POINTS))
}

/// Decodes clouds of [`Codec::Draco`].
#[derive(Debug, Default)]
pub struct DracoDecoder {}

impl DracoDecoder {
    /// Creates a decoder.
    pub fn new() -> Self {
        DracoDecoder {}
    }
}

impl Decoder for DracoDecoder {
    type Frame = Cloud;

    /// Decodes a cloud, rounded to millimetres, in Draco's order. Points out of range of 16-bit
    /// millimetres are left out.
    fn decode(&mut self, parts: &[&[u8]]) -> Result<Cloud, DecodeError> {
        let bytes = single_part(Codec::Draco, parts)?;
        if bytes.is_empty() {
            return Ok(Cloud::new());
        }
        let limits = DecodeLimits::default()
            .with_max_points(MAX_POINTS as u64)
            .with_max_decoded_bytes(MAX_DECODED_BYTES);
        let mut buffer = DecoderBuffer::new(bytes).with_limits(limits);
        let mut decoded = PointCloud::new();
        PointCloudDecoder::new()
            .decode(&mut buffer, &mut decoded)
            .map_err(|_| DecodeError::Malformed("not a point cloud of Draco"))?;
        let positions = values(&decoded, GeometryAttributeType::Position, DataType::Float32);
        let colors = values(&decoded, GeometryAttributeType::Color, DataType::Uint8);
        let (Some(positions), Some(colors)) = (positions, colors) else {
            return Err(DecodeError::Malformed("not positions and colours"));
        };
        let points = positions.as_chunks().0.iter().zip(colors.as_chunks().0);
        let point = |(position, color): (&[f32; 3], &[f32; 3])| {
            Point::at(*position, color.map(|channel| channel as u8))
        };
        Ok(points.filter_map(point).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::Performer;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn colours_are_kept_and_positions_within_half_a_step() {
        let cloud = Performer::new(1, 5000).cloud(Duration::ZERO);
        let encoded = DracoEncoder::new().encode(&cloud, Setting::BEST);
        let decoded = DracoDecoder::new().decode(&encoded.parts()).unwrap();
        assert_eq!(decoded.len(), cloud.len());

        let mut before: Vec<Point> = cloud.points().collect();
        let mut after: Vec<Point> = decoded.points().collect();
        // Unlike positions, colours are exact, but do not tell the points apart alone.
        let key = |point: &Point| (point.r, point.g, point.b);
        before.sort_by_key(key);
        after.sort_by_key(key);
        assert!(before.iter().map(key).eq(after.iter().map(key)));
        let near = |a: &Point, b: &Point| {
            [a.x - b.x, a.y - b.y, a.z - b.z]
                .iter()
                .all(|axis| axis.abs() <= 1)
        };
        let same_color = |point: &Point| {
            let from = after.partition_point(|other| key(other) < key(point));
            after[from..]
                .iter()
                .take_while(|other| key(other) == key(point))
                .any(|other| near(point, other))
        };
        // Two metres in 2,047 steps.
        assert!(before.iter().all(same_color));
    }

    #[test]
    fn clouds_of_few_points_are_encoded() {
        for points in [0, 1, 2, 3] {
            let cloud = Performer::new(1, points).cloud(Duration::ZERO);
            let encoded = DracoEncoder::new().encode(&cloud, Setting::BEST);
            let decoded = DracoDecoder::new().decode(&encoded.parts()).unwrap();
            assert_eq!(decoded.len(), points);
        }
    }

    proptest! {
        #[test]
        fn any_points_are_encoded(points in prop::collection::vec(any::<[u8; 9]>(), 0..50)) {
            let cloud = Cloud::from_packed(points.concat()).unwrap();
            let encoded = DracoEncoder::new().encode(&cloud, Setting::BEST);
            let decoded = DracoDecoder::new().decode(&encoded.parts()).unwrap();
            // Quantisation may move the outermost points out of range.
            prop_assert!(decoded.len() <= cloud.len());
        }
    }
}
