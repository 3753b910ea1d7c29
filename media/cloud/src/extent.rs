use crate::visibility::runs;
use crate::{Cloud, FieldOfView, POINT_BYTES, Point, Pose};
use std::collections::BTreeMap;

/// Where the points of a cloud are, to the accuracy of cubes of 256 mm: little enough to look at for each
/// pose of a viewer who moves.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Extent {
    /// The middle of the points of each cube, in millimetres, and their number.
    cubes: Vec<([f32; 3], u32)>,
    points: u64,
}

impl Extent {
    /// Returns the extent of a cloud.
    pub fn of(cloud: &Cloud) -> Extent {
        let mut cubes: BTreeMap<[i16; 3], Sum> = BTreeMap::new();
        for (corner, points) in runs(cloud) {
            cubes.entry(corner).or_default().add(points);
        }
        Extent {
            cubes: cubes.values().map(Sum::middle).collect(),
            points: cloud.len() as u64,
        }
    }

    /// Returns whether there are no points.
    pub const fn is_empty(&self) -> bool {
        self.points == 0
    }

    /// Returns the share of the points that are in a field of view; 0 without points. What other points hide
    /// is not taken into account.
    pub fn share_in(&self, field: &FieldOfView, pose: &Pose) -> f32 {
        let seen = self
            .cubes
            .iter()
            .filter(|(middle, _)| field.contains(pose, *middle));
        let seen: u64 = seen.map(|(_, points)| u64::from(*points)).sum();
        seen as f32 / self.points.max(1) as f32
    }
}

/// The sum of the positions of a cube's points, and their number.
#[derive(Debug, Default)]
struct Sum {
    position: [i64; 3],
    points: u32,
}

impl Sum {
    fn add(&mut self, points: &[[u8; POINT_BYTES]]) {
        for point in points {
            let Point { x, y, z, .. } = Point::from_bytes(*point);
            for (sum, axis) in self.position.iter_mut().zip([x, y, z]) {
                *sum += i64::from(axis);
            }
        }
        self.points += points.len() as u32;
    }

    fn middle(&self) -> ([f32; 3], u32) {
        let points = self.points.max(1) as f32;
        (self.position.map(|sum| sum as f32 / points), self.points)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Performer;
    use std::f32::consts::PI;
    use std::time::Duration;

    #[test]
    fn the_share_in_view_is_that_of_the_points() {
        let cloud = Performer::new(1, 6000).cloud(Duration::ZERO);
        let extent = Extent::of(&cloud);
        let field = FieldOfView::default();
        for yaw in 0..36 {
            let yaw = f32::from(i16::try_from(yaw).unwrap()) * PI / 18.0;
            let pose = Pose::looking([0.0, 1200.0, 1500.0], yaw, 0.1);
            let positions = cloud.points().map(|p| [p.x, p.y, p.z].map(f32::from));
            let seen = positions.filter(|position| field.contains(&pose, *position));
            let share = seen.count() as f32 / cloud.len() as f32;
            let estimated = extent.share_in(&field, &pose);
            assert!(
                (share - estimated).abs() < 0.1,
                "{share}, {estimated} at {yaw}"
            );
        }
    }

    #[test]
    fn nothing_has_no_share() {
        let extent = Extent::of(&Cloud::new());
        let pose = Pose::looking([0.0; 3], 0.0, 0.0);
        assert!(extent.is_empty());
        assert_eq!(extent.share_in(&FieldOfView::default(), &pose), 0.0);
    }
}
