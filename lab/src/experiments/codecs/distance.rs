//! The distance between clouds.

use hawser_cloud::{Cloud, Point};
use rstar::RTree;
use rstar::primitives::GeomWithData;

/// The ratio that stands for clouds without any difference.
const LOSSLESS_DB: f64 = 100.0;

/// The peak signal-to-noise ratios of a cloud from point to point (MPEG's metric D1), each the
/// smaller one of both directions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Psnr {
    /// The ratio for positions. The peak is the diagonal of the captured cloud's bounding box.
    pub(super) geometry_db: f64,
    /// The ratio for the luma (BT.709) of nearest points. The peak is 255.
    pub(super) luma_db: f64,
}

/// Compares a cloud with the captured one. Returns `None` if one of them has no points.
pub(super) fn psnr(reference: &Cloud, decoded: &Cloud) -> Option<Psnr> {
    if reference.is_empty() || decoded.is_empty() {
        return None;
    }
    let there = mean_squares(decoded, &index(reference));
    let back = mean_squares(reference, &index(decoded));
    let ratio =
        |peak_squared: f64, error: f64| (10.0 * (peak_squared / error).log10()).min(LOSSLESS_DB);
    Some(Psnr {
        geometry_db: ratio(
            diagonal_squared(reference),
            there.position.max(back.position),
        ),
        luma_db: ratio(255.0 * 255.0, there.luma.max(back.luma)),
    })
}

/// Points with their luma. The squares of distances exceed 32 bits.
type Index = RTree<GeomWithData<[i64; 3], f32>>;

fn index(cloud: &Cloud) -> Index {
    let entry = |point: Point| GeomWithData::new(position(point), luma(point));
    RTree::bulk_load(cloud.points().map(entry).collect())
}

fn position(point: Point) -> [i64; 3] {
    [point.x, point.y, point.z].map(i64::from)
}

fn luma(point: Point) -> f32 {
    0.2126 * f32::from(point.r) + 0.7152 * f32::from(point.g) + 0.0722 * f32::from(point.b)
}

/// Mean squared differences.
struct MeanSquares {
    position: f64,
    luma: f64,
}

/// Returns the differences of a cloud's points from the nearest ones of another cloud.
fn mean_squares(cloud: &Cloud, nearest: &Index) -> MeanSquares {
    let (mut distances, mut lumas) = (0.0, 0.0);
    for point in cloud.points() {
        let at = position(point);
        let Some(found) = nearest.nearest_neighbor(&at) else {
            continue;
        };
        let difference = f64::from(luma(point) - found.data);
        lumas += difference * difference;
        let parts = at.iter().zip(found.geom()).map(|(a, b)| (a - b).pow(2));
        distances += parts.sum::<i64>() as f64;
    }
    let count = cloud.len() as f64;
    MeanSquares {
        position: distances / count,
        luma: lumas / count,
    }
}

fn diagonal_squared(cloud: &Cloud) -> f64 {
    let mut bounds = [(i64::MAX, i64::MIN); 3];
    for point in cloud.points() {
        for ((low, high), axis) in bounds.iter_mut().zip(position(point)) {
            (*low, *high) = ((*low).min(axis), (*high).max(axis));
        }
    }
    let sides = bounds.iter().map(|(low, high)| (high - low).pow(2));
    sides.sum::<i64>().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::Performer;
    use std::time::Duration;

    fn cloud<const N: usize>(points: [([i16; 3], u8); N]) -> Cloud {
        let point = |([x, y, z], grey): ([i16; 3], u8)| Point {
            x,
            y,
            z,
            r: grey,
            g: grey,
            b: grey,
        };
        points.into_iter().map(point).collect()
    }

    #[test]
    fn equal_clouds_have_the_greatest_ratio_in_any_order() {
        let performer = Performer::new(1, 2000).cloud(Duration::ZERO);
        let mut points: Vec<Point> = performer.points().collect();
        points.reverse();
        let reversed: Cloud = points.into_iter().collect();
        let psnr = psnr(&performer, &reversed).unwrap();
        assert_eq!((psnr.geometry_db, psnr.luma_db), (100.0, 100.0));
    }

    #[test]
    fn the_worse_direction_counts() {
        let whole = cloud([([0, 0, 0], 100), ([1000, 0, 0], 100)]);
        // Half of the points is right, and half is missing: the mean of 0 and 1000^2.
        let half = cloud([([0, 0, 0], 100)]);
        let psnr = psnr(&whole, &half).unwrap();
        assert!((psnr.geometry_db - 10.0 * 2f64.log10()).abs() < 1e-9);
        assert_eq!(psnr.luma_db, 100.0);
    }

    #[test]
    fn the_colour_is_that_of_the_nearest_point() {
        let a = cloud([([0, 0, 0], 100), ([1000, 0, 0], 50)]);
        let b = cloud([([1, 0, 0], 110), ([1001, 0, 0], 60)]);
        let psnr = psnr(&a, &b).unwrap();
        assert!(
            (psnr.luma_db - 20.0 * 25.5f64.log10()).abs() < 1e-4,
            "{psnr:?}"
        );
        assert!((psnr.geometry_db - 60.0).abs() < 1e-9, "{psnr:?}");
    }

    #[test]
    fn nothing_cannot_be_compared() {
        assert_eq!(psnr(&Cloud::new(), &cloud([([0; 3], 0)])), None);
        assert_eq!(psnr(&cloud([([0; 3], 0)]), &Cloud::new()), None);
    }
}
