use std::fmt;
use twox_hash::XxHash3_64;

/// The size of a packed [`Point`] in bytes.
pub const POINT_BYTES: usize = 9;

/// The maximum number of points of a transmitted cloud. Bounds the memory that a receiver allocates
/// per frame (9 MiB).
pub const MAX_POINTS: usize = 1 << 20;

/// A coloured point: whole millimetres in the world frame shared by all cameras, y up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the axes and the colours of the type's own description"
)]
pub struct Point {
    pub x: i16,
    pub y: i16,
    pub z: i16,
    pub r: u8,
    pub g: u8,
    pub b: u8,
}

impl Point {
    /// Creates a point at `position` in millimetres, rounded. Returns `None` if a coordinate
    /// exceeds the 32.767 m that 16 bits hold, or is not a number.
    pub fn at(position: [f32; 3], [r, g, b]: [u8; 3]) -> Option<Point> {
        let [x, y, z] = position.map(whole_millimetres);
        Some(Point {
            x: x?,
            y: y?,
            z: z?,
            r,
            g,
            b,
        })
    }

    /// Returns the packed form: x, y, z in little-endian, then red, green, blue.
    #[inline]
    pub fn to_bytes(self) -> [u8; POINT_BYTES] {
        let ([x0, x1], [y0, y1], [z0, z1]) = (
            self.x.to_le_bytes(),
            self.y.to_le_bytes(),
            self.z.to_le_bytes(),
        );
        [x0, x1, y0, y1, z0, z1, self.r, self.g, self.b]
    }

    #[inline]
    pub(crate) fn from_bytes([x0, x1, y0, y1, z0, z1, r, g, b]: [u8; POINT_BYTES]) -> Point {
        let coordinate = i16::from_le_bytes;
        Point {
            x: coordinate([x0, x1]),
            y: coordinate([y0, y1]),
            z: coordinate([z0, z1]),
            r,
            g,
            b,
        }
    }
}

fn whole_millimetres(value: f32) -> Option<i16> {
    let rounded = value.round();
    (f32::from(i16::MIN)..=f32::from(i16::MAX))
        .contains(&rounded)
        .then_some(rounded as i16)
}

/// The points of one capture, in capture order. They are held in packed form, which is what is
/// compressed, hashed and compared.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Cloud {
    packed: Vec<u8>,
}

/// The error for bytes that are not a whole number of packed points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes are not a whole number of points of {POINT_BYTES} bytes")]
pub struct PartialPoint(pub usize);

impl Cloud {
    /// Creates an empty cloud.
    pub const fn new() -> Self {
        Cloud { packed: Vec::new() }
    }

    /// Creates an empty cloud with capacity for `points`.
    pub fn with_capacity(points: usize) -> Self {
        Cloud {
            packed: Vec::with_capacity(points * POINT_BYTES),
        }
    }

    /// Makes room for further points.
    pub fn reserve(&mut self, points: usize) {
        self.packed.reserve(points * POINT_BYTES);
    }

    /// Returns the number of points for which there is memory.
    pub fn capacity(&self) -> usize {
        self.packed.capacity() / POINT_BYTES
    }

    /// Takes packed points (see [`Point::to_bytes`]). Any bytes are valid as long as the last point
    /// is complete.
    pub fn from_packed(packed: Vec<u8>) -> Result<Self, PartialPoint> {
        if packed.len().is_multiple_of(POINT_BYTES) {
            Ok(Cloud { packed })
        } else {
            Err(PartialPoint(packed.len()))
        }
    }

    /// Returns the packed points, [`POINT_BYTES`] each.
    pub fn packed(&self) -> &[u8] {
        &self.packed
    }

    /// Returns the number of points.
    pub fn len(&self) -> usize {
        self.packed.len() / POINT_BYTES
    }

    /// Returns whether the cloud is empty.
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// Appends a point.
    #[inline]
    pub fn push(&mut self, point: Point) {
        self.packed.extend_from_slice(&point.to_bytes());
    }

    /// Appends points at the origin, and returns their packed form (see [`Point::to_bytes`]), to be
    /// overwritten.
    pub fn grow(&mut self, points: usize) -> &mut [[u8; POINT_BYTES]] {
        let before = self.packed.len();
        self.packed.resize(before + points * POINT_BYTES, 0);
        self.packed[before..].as_chunks_mut().0
    }

    /// Removes the points after the first `points`.
    pub fn truncate(&mut self, points: usize) {
        self.packed.truncate(points.saturating_mul(POINT_BYTES));
    }

    /// Returns the points in capture order.
    pub fn points(&self) -> impl ExactSizeIterator<Item = Point> {
        self.packed
            .as_chunks()
            .0
            .iter()
            .map(|bytes| Point::from_bytes(*bytes))
    }

    /// Returns at most `budget` points, spread evenly over the capture order and kept in it. The
    /// result depends only on the points and the budget.
    #[must_use]
    pub fn sample(&self, budget: usize) -> Cloud {
        let count = self.len();
        if count <= budget {
            return self.clone();
        }
        let mut sample = Cloud::with_capacity(budget);
        for index in 0..budget {
            let at = index * count / budget * POINT_BYTES;
            sample
                .packed
                .extend_from_slice(&self.packed[at..at + POINT_BYTES]);
        }
        sample
    }

    /// Returns the XXH3-64 of the packed points. It detects a damaged or wrong cloud, but not a
    /// forged one.
    pub fn digest(&self) -> Digest {
        Digest(XxHash3_64::oneshot(&self.packed))
    }
}

impl fmt::Debug for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cloud({} points, {})", self.len(), self.digest())
    }
}

impl FromIterator<Point> for Cloud {
    fn from_iter<I: IntoIterator<Item = Point>>(points: I) -> Self {
        Cloud {
            packed: points.into_iter().flat_map(Point::to_bytes).collect(),
        }
    }
}

/// The hash of a cloud's packed points; see [`Cloud::digest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest(pub u64);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn points_are_packed_little_endian_position_first() {
        let point = Point {
            x: 1,
            y: -2,
            z: 0x1234,
            r: 7,
            g: 8,
            b: 9,
        };
        assert_eq!(point.to_bytes(), [1, 0, 0xfe, 0xff, 0x34, 0x12, 7, 8, 9]);
    }

    #[test]
    fn a_point_out_of_reach_is_none() {
        assert_eq!(
            Point::at([32_767.4, 0.0, -0.6], [0; 3]).map(|p| (p.x, p.z)),
            Some((32_767, -1))
        );
        assert_eq!(Point::at([32_767.6, 0.0, 0.0], [0; 3]), None);
        assert_eq!(Point::at([f32::NAN, 0.0, 0.0], [0; 3]), None);
    }

    #[test]
    fn a_cloud_grows_by_points_at_the_origin_that_are_overwritten() {
        let mut cloud = Cloud::from_packed(vec![1; POINT_BYTES]).unwrap();
        let added = cloud.grow(2);
        assert_eq!(added, [[0; POINT_BYTES]; 2]);
        added[1] = [2; POINT_BYTES];
        let packed = [[1; POINT_BYTES], [0; POINT_BYTES], [2; POINT_BYTES]];
        assert_eq!(cloud.packed(), packed.as_flattened());
    }

    #[test]
    fn part_of_a_point_is_refused() {
        assert_eq!(Cloud::from_packed(vec![0; 10]), Err(PartialPoint(10)));
    }

    proptest! {
        #[test]
        fn a_sample_fills_its_budget_in_capture_order(count in 0usize..2000, budget in 0usize..2500) {
            let cloud: Cloud = (0..count as i16).map(|x| Point { x, y: 0, z: 0, r: 0, g: 0, b: 0 }).collect();

            let sample = cloud.sample(budget);

            prop_assert_eq!(sample.len(), count.min(budget));
            let kept: Vec<i16> = sample.points().map(|point| point.x).collect();
            prop_assert!(kept.is_sorted_by(|a, b| a < b));
        }

        #[test]
        fn packed_points_are_taken_unchanged(packed in prop::collection::vec(any::<[u8; POINT_BYTES]>(), 0..50)) {
            let cloud = Cloud::from_packed(packed.concat()).unwrap();
            prop_assert_eq!(cloud.points().collect::<Cloud>(), cloud);
        }
    }
}
