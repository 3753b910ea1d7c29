//! Poses from which to look at a cloud.

use crate::{Cloud, Extrinsics, Intrinsics, Point, Pose};

/// The points beyond the bounds of a cloud on each side of an axis: one in this many.
const OUTLIERS: usize = 100;
/// The space that is left between the bounds and the edge of the picture, as a share of the cloud.
const MARGIN: f32 = 0.1;
/// The longest step between points that are next to each other in a row of a camera's image.
const NEIGHBOUR_MM: i32 = 60;
/// The least share of steps in one direction that shows how a cloud was captured.
const MIN_ORDER: f64 = 0.25;
/// The least correlation that shows on which side a surface is open.
const MIN_OUTLINE: f64 = 0.1;
/// Points in bands of `1 << BAND_BITS` millimetres of y are of the same height.
const BAND_BITS: u32 = 6;
const BANDS: usize = 1 << (16 - BAND_BITS);
/// The least distance between a viewer and the bounds of a cloud.
const MIN_DISTANCE_MM: f32 = 300.0;

impl Pose {
    /// Creates the pose of a viewer at a position in millimetres. `yaw` is the turn to the left from
    /// the direction of negative z, and `pitch` the angle upwards, in radians.
    pub fn looking(position_mm: [f32; 3], yaw: f32, pitch: f32) -> Pose {
        let (sin_yaw, cos_yaw) = (yaw / 2.0).sin_cos();
        let (sin_pitch, cos_pitch) = (pitch / 2.0).sin_cos();
        let rotation = [
            cos_yaw * sin_pitch,
            sin_yaw * cos_pitch,
            -sin_yaw * sin_pitch,
            cos_yaw * cos_pitch,
        ];
        Pose {
            position_mm,
            rotation,
        }
    }

    /// Returns the pose of a viewer who has walked around the vertical line through a position in
    /// millimetres, counterclockwise as seen from above by an angle in radians, and looks at the
    /// same side of it as before.
    #[must_use]
    pub fn around(&self, [x, _, z]: [f32; 3], angle: f32) -> Pose {
        let (sin, cos) = angle.sin_cos();
        let [from_x, height, from_z] = self.position_mm;
        let (from_x, from_z) = (from_x - x, from_z - z);
        let position_mm = [
            x + cos * from_x + sin * from_z,
            height,
            z - sin * from_x + cos * from_z,
        ];
        // The product of the turn around the vertical axis and the rotation.
        let (turn, scale) = (angle / 2.0).sin_cos();
        let [x, y, z, w] = self.rotation;
        let rotation = [
            scale * x + turn * z,
            scale * y + turn * w,
            scale * z - turn * x,
            scale * w - turn * y,
        ];
        Pose {
            position_mm,
            rotation,
        }
    }

    /// Returns a pose from which a pinhole camera sees the whole cloud, except for outliers, or
    /// `None` if the cloud has no points. The viewer looks along the z axis.
    ///
    /// The side is that from which cameras captured the cloud, as far as the cloud shows it. In
    /// capture order, the points of a depth image follow each other from left to right, so that
    /// their steps along x have one sign. In another order, a surface that recedes towards its
    /// outline is seen from its front. A closed or flat surface is seen from positive z.
    pub fn in_front_of(cloud: &Cloud, intrinsics: &Intrinsics) -> Option<Pose> {
        let x = bounds(cloud, |point| point.x)?;
        let y = bounds(cloud, |point| point.y)?;
        let (back, front) = bounds(cloud, |point| point.z)?;
        let middle = |(low, high): (f32, f32)| (low + high) / 2.0;
        // The distance at which half of an extent has `pixels` pixels.
        let distance = |(low, high): (f32, f32), focal: f32, pixels: f32| {
            (high - low) / 2.0 * (1.0 + MARGIN) * focal / pixels.max(1.0)
        };
        let Intrinsics {
            width,
            height,
            fx,
            fy,
            cx,
            cy,
        } = *intrinsics;
        let distance = distance(x, fx, cx.min(width as f32 - cx))
            .max(distance(y, fy, cy.min(height as f32 - cy)))
            .max(MIN_DISTANCE_MM);
        let (z, rotation) = if is_captured_from_negative_z(cloud) {
            (back - distance, [0.0, 1.0, 0.0, 0.0])
        } else {
            (front + distance, [0.0, 0.0, 0.0, 1.0])
        };
        Some(Pose {
            position_mm: [middle(x), middle(y), z],
            rotation,
        })
    }
}

impl From<Extrinsics> for Pose {
    /// Returns the pose of a camera, from which a viewer sees what it captures.
    fn from(extrinsics: Extrinsics) -> Pose {
        let [right, down, forward] = extrinsics.rotation;
        let [x, y, z] = extrinsics.translation_mm;
        let position_mm =
            std::array::from_fn(|axis| -(right[axis] * x + down[axis] * y + forward[axis] * z));
        let axes = [right, down.map(|part| -part), forward.map(|part| -part)];
        Pose {
            position_mm,
            rotation: quaternion(axes),
        }
    }
}

/// Returns the rotation that turns the axes of the world to these ones (Shepperd 1978, with the
/// largest part first, so that no root is of a small difference).
fn quaternion([[xx, xy, xz], [yx, yy, yz], [zx, zy, zz]]: [[f32; 3]; 3]) -> [f32; 4] {
    let trace = xx + yy + zz;
    let quaternion = if trace > xx.max(yy).max(zz) {
        [yz - zy, zx - xz, xy - yx, 1.0 + trace]
    } else if xx >= yy.max(zz) {
        [1.0 + xx - yy - zz, xy + yx, xz + zx, yz - zy]
    } else if yy >= zz {
        [xy + yx, 1.0 + yy - xx - zz, yz + zy, zx - xz]
    } else {
        [xz + zx, yz + zy, 1.0 + zz - xx - yy, xy - yx]
    };
    let length = quaternion
        .iter()
        .map(|part| part * part)
        .sum::<f32>()
        .sqrt();
    quaternion.map(|part| part / length)
}

/// Returns the least and the greatest coordinate on an axis without the outliers, or `None` without
/// points.
fn bounds(cloud: &Cloud, axis: fn(Point) -> i16) -> Option<(f32, f32)> {
    let mut values: Vec<i16> = cloud.points().map(axis).collect();
    let outliers = values.len() / OUTLIERS;
    let last = values.len().checked_sub(1 + outliers)?;
    let (_, low, _) = values.select_nth_unstable(outliers);
    let low = f32::from(*low);
    let (_, high, _) = values.select_nth_unstable(last);
    Some((low, f32::from(*high)))
}

/// Returns whether the cameras looked from negative z, by the order of the points or else by their
/// outline.
fn is_captured_from_negative_z(cloud: &Cloud) -> bool {
    let order = order(cloud);
    if order.abs() > MIN_ORDER {
        order < 0.0
    } else {
        outline(cloud) > MIN_OUTLINE
    }
}

/// Returns the sum of the steps along x between neighbours in the order of the points, as a share of
/// their lengths: 1 if all go towards positive x, and 0 without steps.
fn order(cloud: &Cloud) -> f64 {
    let coordinates = |point: Point| [point.x, point.y, point.z].map(i32::from);
    let (mut sum, mut total) = (0i64, 0i64);
    let mut last = None;
    for position in cloud.points().map(coordinates) {
        if let Some(last) = last.replace(position) {
            let step: [i32; 3] = std::array::from_fn(|axis| position[axis] - last[axis]);
            if step.iter().all(|part| part.abs() <= NEIGHBOUR_MM) {
                sum += i64::from(step[0]);
                total += i64::from(step[0].abs());
            }
        }
    }
    sum as f64 / total.max(1) as f64
}

/// Returns the correlation of z with the squared distance to the left or right from the middle, at
/// the same height: positive if the surface recedes towards positive z at its outline, and 0 if it
/// is closed.
fn outline(cloud: &Cloud) -> f64 {
    let band = |point: Point| (i32::from(point.y) - i32::from(i16::MIN)) as usize >> BAND_BITS;
    let mut middles = [(0i64, 0i64); BANDS];
    for point in cloud.points() {
        let (sum, count) = &mut middles[band(point)];
        *sum += i64::from(point.x);
        *count += 1;
    }
    let mut bands = [Moments::default(); BANDS];
    for point in cloud.points() {
        let (sum, count) = middles[band(point)];
        let side = f64::from(point.x) - sum as f64 / count as f64;
        bands[band(point)].add(side * side, f64::from(point.z));
    }
    let sum = |part: fn(&Moments) -> f64| bands.iter().map(part).sum::<f64>();
    let variances = sum(|band| band.central(band.aa, band.a, band.a))
        * sum(|band| band.central(band.bb, band.b, band.b));
    let covariance = sum(|band| band.central(band.ab, band.a, band.b));
    if variances > 0.0 {
        covariance / variances.sqrt()
    } else {
        0.0
    }
}

/// Sums of two values and of their products.
#[derive(Clone, Copy, Default)]
struct Moments {
    count: f64,
    a: f64,
    b: f64,
    aa: f64,
    ab: f64,
    bb: f64,
}

impl Moments {
    fn add(&mut self, a: f64, b: f64) {
        self.count += 1.0;
        self.a += a;
        self.b += b;
        self.aa += a * a;
        self.ab += a * b;
        self.bb += b * b;
    }

    /// Returns a sum of products about the means.
    fn central(&self, products: f64, a: f64, b: f64) -> f64 {
        products - a * b / self.count.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Camera, Performer};
    use proptest::prelude::*;
    use std::f32::consts::PI;
    use std::time::Duration;

    const SQUARE: Intrinsics = Intrinsics {
        width: 400,
        height: 400,
        fx: 400.0,
        fy: 400.0,
        cx: 200.0,
        cy: 200.0,
    };

    /// A wall of 2 x 2 m at z = 0 as a camera captures it from a side, and one far outlier.
    fn wall(right: i16) -> Cloud {
        let row = |y: i16| (-100..=100).map(move |x| (right * x * 10, y * 10 + 1000));
        let positions = (-100..=100).rev().flat_map(row).chain([(30_000, -30_000)]);
        let point = |(x, y)| Point {
            x,
            y,
            z: 0,
            r: 9,
            g: 9,
            b: 9,
        };
        positions.map(point).collect()
    }

    #[test]
    fn a_viewer_walks_around_and_looks_at_the_same_side() {
        let middle = [100.0, 5.0, -300.0];
        let start = Pose::looking([100.0, 1000.0, 1700.0], 0.0, 0.2);
        let walked = start.around(middle, PI / 2.0);
        let expected = Pose::looking([2100.0, 1000.0, -300.0], PI / 2.0, 0.2);
        let parts = |pose: &Pose| [&pose.position_mm[..], &pose.rotation].concat();
        for (found, expected) in parts(&walked).iter().zip(parts(&expected)) {
            assert!((found - expected).abs() < 1e-3, "{walked:?}");
        }
    }

    #[test]
    fn a_cloud_fills_the_picture_from_the_side_of_its_camera() {
        let front = Pose::in_front_of(&wall(1), &SQUARE).unwrap();
        let [x, y, z] = front.position_mm;
        assert_eq!(
            (x.round(), (y / 10.0).round()),
            (0.0, 100.0),
            "in the middle"
        );
        assert!((2000.0..2300.0).contains(&z), "{z}");
        assert_eq!(front.rotation, [0.0, 0.0, 0.0, 1.0]);
        let back = Pose::in_front_of(&wall(-1), &SQUARE).unwrap();
        assert_eq!(back.position_mm, [x, y, -z]);
        assert_eq!(
            back.rotation,
            Pose::looking([0.0; 3], PI, 0.0).rotation.map(f32::round)
        );
    }

    #[test]
    fn the_performer_is_seen_from_positive_z() {
        let cloud = Performer::new(1, 20_000).cloud(Duration::ZERO);
        let pose = Pose::in_front_of(&cloud, &SQUARE).unwrap();
        assert!(pose.position_mm[2] > 1500.0, "{pose:?}");
    }

    #[test]
    fn a_surface_is_seen_from_the_front_in_any_order() {
        // Half of a cylinder around the y axis, in an order that mixes left and right.
        for front in [1, -1] {
            let x = |step: i16| step % 101 * 37 % 101 * 6 - 300;
            let y = |step: i16| step % 17 * 100;
            let z = |x: i16| front * (f32::from(300 - x.abs()) * 2.0) as i16;
            let steps = (0..1700).map(|step| (x(step), y(step)));
            let points = steps.map(|(x, y)| Point::at([x, y, z(x)].map(f32::from), [9; 3]));
            let pose = Pose::in_front_of(&points.flatten().collect(), &SQUARE).unwrap();
            assert_eq!(pose.position_mm[2].signum(), f32::from(front));
        }
    }

    #[test]
    fn nothing_is_in_front_of_an_empty_cloud() {
        assert_eq!(Pose::in_front_of(&Cloud::new(), &SQUARE), None);
    }

    #[test]
    fn yaw_turns_left_and_pitch_looks_up() {
        let seen = |yaw: f32, pitch: f32, position| {
            let pose = Pose::looking([0.0; 3], yaw.to_radians(), pitch.to_radians());
            pose.relative(position).map(f32::round)
        };
        assert_eq!(seen(90.0, 0.0, [-100.0, 0.0, 0.0]), [0.0, 0.0, -100.0]);
        assert_eq!(seen(0.0, 90.0, [0.0, 100.0, 0.0]), [0.0, 0.0, -100.0]);
        let turned = seen(90.0, 30.0, [-86.6, 50.0, 0.0]);
        assert_eq!(turned, [0.0, 0.0, -100.0], "first the turn, then the angle");
    }

    proptest! {
        /// The middle of a camera's image is in front of the viewer, and its right side on the right.
        #[test]
        fn the_pose_of_a_camera_sees_what_it_captures(
            yaw in -3.1f32..3.1, pitch in -1.5f32..1.5, roll in -3.1f32..3.1,
            translation_mm in prop::array::uniform3(-2000f32..2000.0),
        ) {
            let rotation = rotation(yaw, pitch, roll);
            let camera = Camera {
                intrinsics: SQUARE,
                extrinsics: Extrinsics { rotation, translation_mm },
            };
            let pose = Pose::from(camera.extrinsics);
            for (pixel, expected) in [
                ((200, 200), [0.0, 0.0, -1000.0]),
                ((300, 200), [250.0, 0.0, -1000.0]),
                ((200, 300), [0.0, -250.0, -1000.0]),
            ] {
                let seen = pose.relative(camera.unproject(pixel.0, pixel.1, 1000.0));
                for (seen, expected) in seen.iter().zip(expected) {
                    prop_assert!((seen - expected).abs() < 1.0, "{seen} instead of {expected}");
                }
            }
        }
    }

    fn rotation(yaw: f32, pitch: f32, roll: f32) -> [[f32; 3]; 3] {
        let product = |a: [[f32; 3]; 3], b: [[f32; 3]; 3]| {
            std::array::from_fn(|row| {
                std::array::from_fn(|column| (0..3).map(|k| a[row][k] * b[k][column]).sum())
            })
        };
        let about = |angle: f32, [a, b]: [usize; 2]| {
            let mut turn = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]];
            let (sin, cos) = angle.sin_cos();
            (turn[a][a], turn[a][b], turn[b][a], turn[b][b]) = (cos, -sin, sin, cos);
            turn
        };
        product(
            about(roll, [0, 1]),
            product(about(pitch, [1, 2]), about(yaw, [2, 0])),
        )
    }
}
