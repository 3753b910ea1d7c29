use crate::{Cloud, POINT_BYTES, Point};
use std::collections::BTreeMap;
use std::f32::consts::TAU;

/// The pose of a viewer in the world frame of the cameras.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pose {
    /// The position in millimetres.
    pub position_mm: [f32; 3],
    /// The rotation from the viewer's axes to those of the world, as a unit quaternion x, y, z, w.
    /// The viewer's axes are x right, y up and z backwards, as in OpenXR.
    pub rotation: [f32; 4],
}

/// A viewer's field of view, divided into regions of equal angle around its middle, with the
/// maximum sampling rate of each (De Fre et al., section 3.4).
#[derive(Debug, Clone, PartialEq)]
pub struct FieldOfView {
    /// The angle from the left to the right edge, in radians.
    pub horizontal: f32,
    /// The angle from the lower to the upper edge, in radians.
    pub vertical: f32,
    /// The maximum share of points of each region, from the middle to the edge.
    pub rates: Vec<f32>,
    /// The maximum share of points outside of the field of view. Not 0, since a viewer may turn
    /// before a frame arrives.
    pub outside: f32,
}

impl Default for FieldOfView {
    /// A headset's field of view in four regions. The paper gives neither number nor rates.
    fn default() -> Self {
        FieldOfView {
            horizontal: 100f32.to_radians(),
            vertical: 90f32.to_radians(),
            rates: vec![1.0, 0.8, 0.6, 0.4],
            outside: 0.1,
        }
    }
}

impl FieldOfView {
    /// Returns the maximum sampling rate at a position in the world, in millimetres.
    pub fn rate(&self, pose: &Pose, position: [f32; 3]) -> f32 {
        let distance = self.distance(pose, position);
        if !(0.0..1.0).contains(&distance) {
            return self.outside;
        }
        let region = (distance * self.rates.len() as f32) as usize;
        self.rates.get(region).copied().unwrap_or(self.outside)
    }

    /// Returns whether a position in the world, in millimetres, is in the field of view.
    pub fn contains(&self, pose: &Pose, position: [f32; 3]) -> bool {
        (0.0..1.0).contains(&self.distance(pose, position))
    }

    /// Returns a field of view that is wider by an angle in radians on each side, up to all around.
    #[must_use]
    pub fn widened(self, angle: f32) -> FieldOfView {
        let widened = |field: f32| (field + 2.0 * angle).min(TAU);
        FieldOfView {
            horizontal: widened(self.horizontal),
            vertical: widened(self.vertical),
            ..self
        }
    }

    /// Returns the distance of a position from the middle, as a share of that of the edge.
    fn distance(&self, pose: &Pose, position: [f32; 3]) -> f32 {
        let [x, y, z] = pose.relative(position);
        let share = |side: f32, field: f32| side.abs().atan2(-z) / (field / 2.0);
        share(x, self.horizontal).max(share(y, self.vertical))
    }

    /// Returns at most `budget` points of a cloud, in capture order. The space is divided into cubes
    /// of equal size; of the points of each, at most the maximum rate of its middle is kept, spread
    /// evenly. If the budget does not suffice, it goes to the cubes in proportion to these rates.
    ///
    /// The result depends on the arguments alone. What other points hide is not taken into account.
    #[must_use]
    pub fn sample(&self, cloud: &Cloud, pose: &Pose, budget: usize) -> Cloud {
        let mut cubes: BTreeMap<[i16; 3], Cube> = BTreeMap::new();
        for (corner, points) in runs(cloud) {
            cubes.entry(corner).or_default().points += points.len();
        }
        self.allot(&mut cubes, pose, budget);
        let mut sample = Vec::with_capacity(POINT_BYTES * budget.min(cloud.len()));
        for (corner, points) in runs(cloud) {
            let cube = cubes.get_mut(&corner).expect("a cube of the first pass");
            let kept = points.iter().filter(|_| cube.keeps_next());
            sample.extend(kept.flatten());
        }
        Cloud::from_packed(sample).expect("whole points")
    }

    /// Sets the numbers of points that the cubes keep.
    fn allot(&self, cubes: &mut BTreeMap<[i16; 3], Cube>, pose: &Pose, budget: usize) {
        let wanted = |(corner, cube): (&[i16; 3], &Cube)| {
            let middle = corner.map(|corner| f32::from(corner) + f32::from(CUBE_MM) / 2.0);
            cube.points as f64 * f64::from(self.rate(pose, middle).clamp(0.0, 1.0))
        };
        let total: f64 = cubes.iter().map(wanted).sum();
        let scale = (budget as f64 / total).min(1.0);
        // The sum is rounded, not each cube, so that the budget is kept and used.
        let mut sum = 0.0;
        for (corner, cube) in cubes {
            let before = sum as usize;
            sum += wanted((corner, cube)) * scale;
            cube.kept = (sum as usize).min(budget) - before;
        }
    }
}

/// Side of a cube in millimetres.
const CUBE_MM: i16 = 256;

/// The points of a cube.
#[derive(Debug, Default)]
struct Cube {
    points: usize,
    /// The number of points to keep.
    kept: usize,
    /// The number of points that were passed.
    passed: usize,
}

impl Cube {
    /// Returns whether the next point is one of those to keep, which are spread evenly.
    fn keeps_next(&mut self) -> bool {
        let before = self.passed * self.kept / self.points;
        self.passed += 1;
        self.passed * self.kept / self.points > before
    }
}

/// Returns the packed points of a cloud in runs of one cube each, with the cube's least corner.
pub(crate) fn runs(cloud: &Cloud) -> impl Iterator<Item = ([i16; 3], &[[u8; POINT_BYTES]])> {
    let corner = |bytes: &[u8; POINT_BYTES]| {
        let Point { x, y, z, .. } = Point::from_bytes(*bytes);
        [x, y, z].map(|axis| axis & !(CUBE_MM - 1))
    };
    let points = cloud.packed().as_chunks().0;
    let runs = points.chunk_by(move |a, b| corner(a) == corner(b));
    runs.map(move |run| (corner(&run[0]), run))
}

impl Pose {
    /// Returns a position of the world in the viewer's axes.
    pub(crate) fn relative(&self, position: [f32; 3]) -> [f32; 3] {
        let offset: [f32; 3] = std::array::from_fn(|axis| position[axis] - self.position_mm[axis]);
        // The inverse of the rotation: v + 2 q x (q x v - w v), with the vector part q.
        let [x, y, z, w] = self.rotation;
        let q = [x, y, z];
        let inner = cross(q, offset);
        let outer = cross(
            q,
            std::array::from_fn(|axis| inner[axis] - w * offset[axis]),
        );
        std::array::from_fn(|axis| offset[axis] + 2.0 * outer[axis])
    }
}

fn cross(a: [f32; 3], b: [f32; 3]) -> [f32; 3] {
    [
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Performer;
    use proptest::prelude::*;
    use std::f32::consts::FRAC_1_SQRT_2;
    use std::time::Duration;

    /// Two metres in front of the performer, at the height of the chest.
    const FACING: Pose = Pose {
        position_mm: [0.0, 1200.0, 2000.0],
        rotation: [0.0, 0.0, 0.0, 1.0],
    };

    fn turned_left(pose: Pose) -> Pose {
        Pose {
            rotation: [0.0, FRAC_1_SQRT_2, 0.0, FRAC_1_SQRT_2],
            ..pose
        }
    }

    #[test]
    fn regions_have_the_same_angle_and_their_rates() {
        let field = FieldOfView::default();
        let at = |degrees: f32| {
            let (sin, cos) = degrees.to_radians().sin_cos();
            field.rate(&FACING, [2000.0 * sin, 1200.0, 2000.0 - 2000.0 * cos])
        };
        assert_eq!(
            [0.0, 12.0, -13.0, 26.0, -38.0, 49.0].map(at),
            [1.0, 1.0, 0.8, 0.6, 0.4, 0.4]
        );
        assert_eq!(
            [51.0, 90.0, 180.0].map(at),
            [0.1; 3],
            "outside, beside and behind"
        );
        // A quarter turn to the left looks along the negative x axis.
        let left = turned_left(FACING);
        assert_eq!(field.rate(&left, [-2000.0, 1200.0, 2000.0]), 1.0);
        assert_eq!(field.rate(&left, [0.0, 1200.0, 0.0]), 0.1);
        let (up, down) = ([0.0, 3100.0, 0.0], [0.0, 3300.0, 0.0]);
        assert_eq!(
            (field.rate(&FACING, up), field.rate(&FACING, down)),
            (0.4, 0.1)
        );
    }

    #[test]
    fn points_follow_the_gaze_and_the_distance_of_the_viewer() {
        let cloud = Performer::new(1, 30_000).cloud(Duration::ZERO);
        let field = FieldOfView::default();
        let all = field.sample(&cloud, &FACING, usize::MAX);
        assert!(all.len() * 4 > cloud.len() * 3, "{} points", all.len());
        let away = field.sample(&cloud, &turned_left(FACING), usize::MAX);
        assert!(away.len() * 9 < cloud.len(), "{} points", away.len());

        let share = |pose: &Pose, part: fn(&Point) -> bool| {
            let count = |cloud: &Cloud| cloud.points().filter(part).count() as f64;
            count(&field.sample(&cloud, pose, 6000)) / count(&cloud)
        };
        let near_head = Pose {
            position_mm: [0.0, 1700.0, 600.0],
            ..FACING
        };
        let head: fn(&Point) -> bool = |point| point.y > 1600;
        let feet: fn(&Point) -> bool = |point| point.y < 300;
        assert!(share(&near_head, head) > 3.0 * share(&near_head, feet));
        assert!(share(&FACING, head) < 2.0 * share(&FACING, feet));
    }

    #[test]
    fn a_pose_that_is_no_number_sees_nothing() {
        let field = FieldOfView::default();
        let pose = Pose {
            position_mm: [f32::NAN; 3],
            rotation: [f32::INFINITY; 4],
        };
        assert_eq!(field.rate(&pose, [0.0; 3]), field.outside);
    }

    proptest! {
        #[test]
        fn a_sample_is_within_the_budget_and_nearly_fills_it(
            budget in 0usize..4000,
            position in prop::array::uniform3(-3000f32..3000.0),
            rotation: [f32; 4],
        ) {
            let cloud = Performer::new(1, 3000).cloud(Duration::ZERO);
            let field = FieldOfView::default();
            let pose = Pose { position_mm: position, rotation };
            let sample = field.sample(&cloud, &pose, budget);
            let most = field.sample(&cloud, &pose, usize::MAX).len();
            prop_assert!(sample.len() <= budget);
            prop_assert!(sample.len() + 2 >= budget.min(most), "{} of {}", sample.len(), most);
        }
    }
}
