use hawser_cloud::{Cloud, Intrinsics, Pose};
use std::f32::consts::PI;

/// The share of the height of a picture that a frame fills at first, inverted: raised hands stay inside.
const MARGIN: f32 = 1.3;

/// The bounds of the angle upwards or downwards, in radians: beyond it left and right would change places.
const MAX_PITCH: f32 = 1.5;

/// The bounds of the distance from which a viewer looks, in millimetres.
const DISTANCE_MM: std::ops::RangeInclusive<f32> = 300.0..=20_000.0;

/// The greatest coordinate of what a viewer looks at, in millimetres: beyond it there are no points.
const MAX_MIDDLE_MM: f32 = i16::MAX as f32;

/// A viewer who walks around what there is to see, and looks at its middle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Orbit {
    middle_mm: [f32; 3],
    first_middle_mm: [f32; 3],
    /// The angles at first; upwards is 0.
    first_yaw: f32,
    first_distance_mm: f32,
    yaw: f32,
    pitch: f32,
    distance_mm: f32,
}

impl Orbit {
    /// Creates the viewer in front of a cloud. `None` if it has no points.
    pub fn in_front_of(cloud: &Cloud, intrinsics: &Intrinsics) -> Option<Self> {
        let camera = Intrinsics {
            fx: intrinsics.fx * MARGIN,
            fy: intrinsics.fy * MARGIN,
            ..*intrinsics
        };
        let pose = Pose::in_front_of(cloud, &camera)?;
        let middle_z = middle_z(cloud);
        let [x, y, z] = pose.position_mm;
        let distance = (z - middle_z).abs();
        let first_yaw = if z < middle_z { PI } else { 0.0 };
        let middle_mm = [x, y, middle_z];
        Some(Orbit {
            middle_mm,
            first_middle_mm: middle_mm,
            first_yaw,
            first_distance_mm: distance,
            yaw: first_yaw,
            pitch: 0.0,
            distance_mm: distance,
        })
    }

    /// Walks around by angles to the left and upwards in radians, and multiplies the distance.
    pub fn turn(&mut self, yaw: f32, pitch: f32, distance: f32) {
        self.yaw = (self.yaw + yaw) % (2.0 * PI);
        self.pitch = (self.pitch + pitch).clamp(-MAX_PITCH, MAX_PITCH);
        let (least, most) = (*DISTANCE_MM.start(), *DISTANCE_MM.end());
        self.distance_mm = (self.distance_mm * distance).clamp(least, most);
    }

    /// Walks to the right and upwards, by shares of the distance.
    pub fn pan(&mut self, right: f32, up: f32) {
        let [to_right, to_up, _] = self.axes();
        for (axis, middle) in self.middle_mm.iter_mut().enumerate() {
            let step = self.distance_mm * (right * to_right[axis] + up * to_up[axis]);
            *middle = (*middle + step).clamp(-MAX_MIDDLE_MM, MAX_MIDDLE_MM);
        }
    }

    /// Goes back to where it was at first.
    pub fn reset(&mut self) {
        self.middle_mm = self.first_middle_mm;
        (self.yaw, self.pitch) = (self.first_yaw, 0.0);
        self.distance_mm = self.first_distance_mm;
    }

    /// Returns where the viewer is.
    pub fn pose(&self) -> Pose {
        Pose::looking(self.position_mm(), self.yaw, self.pitch)
    }

    /// Returns the position in millimetres.
    pub fn position_mm(&self) -> [f32; 3] {
        let [_, _, back] = self.axes();
        std::array::from_fn(|axis| self.middle_mm[axis] + self.distance_mm * back[axis])
    }

    /// Returns the directions to the right, upwards and back in the world.
    pub fn axes(&self) -> [[f32; 3]; 3] {
        let (sin_yaw, cos_yaw) = self.yaw.sin_cos();
        let (sin_pitch, cos_pitch) = self.pitch.sin_cos();
        [
            [cos_yaw, 0.0, -sin_yaw],
            [sin_yaw * sin_pitch, cos_pitch, cos_yaw * sin_pitch],
            [sin_yaw * cos_pitch, -sin_pitch, cos_yaw * cos_pitch],
        ]
    }
}

/// Returns the median of z in millimetres, which outliers do not move.
fn middle_z(cloud: &Cloud) -> f32 {
    let mut values: Vec<i16> = cloud.points().map(|point| point.z).collect();
    let middle = values.len() / 2;
    f32::from(*values.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::{Performer, Point, Renderer};
    use std::time::Duration;

    fn orbit() -> Orbit {
        let cloud = Performer::new(1, 20_000).cloud(Duration::ZERO);
        Orbit::in_front_of(&cloud, &Intrinsics::centred(640, 480, 554.0)).unwrap()
    }

    #[test]
    fn it_stays_at_its_distance_and_looks_at_the_middle() {
        let mut orbit = orbit();
        let [x, y, z] = orbit.middle_mm;
        let point = Point::at([x, y, z], [255, 0, 0]).unwrap();
        let mut renderer = Renderer::new(Intrinsics::centred(101, 101, 100.0)).unwrap();
        for _ in 0..10 {
            orbit.turn(0.7, 0.2, 1.0);
            let pose = orbit.pose();
            let [to_x, to_y, to_z] = pose.position_mm;
            let squares = (to_x - x).powi(2) + (to_y - y).powi(2) + (to_z - z).powi(2);
            assert!((squares.sqrt() - orbit.first_distance_mm).abs() < 1.0);
            let picture = renderer.render(&[point].into_iter().collect(), &pose);
            assert_eq!(picture.pixel(50, 50), Some([255, 0, 0]), "{pose:?}");
        }
    }

    #[test]
    fn it_does_not_turn_over_and_comes_back() {
        let mut orbit = orbit();
        let first = orbit.pose();
        orbit.turn(1.0, 100.0, 1e9);
        orbit.pan(1.0, 1.0);
        assert_ne!(orbit.middle_mm, orbit.first_middle_mm);
        assert_eq!(orbit.pitch, MAX_PITCH);
        assert_eq!(orbit.distance_mm, *DISTANCE_MM.end());
        orbit.reset();
        assert_eq!(orbit.pose(), first);
    }

    #[test]
    fn nothing_is_in_front_of_an_empty_cloud() {
        let camera = Intrinsics::centred(640, 480, 554.0);
        assert_eq!(Orbit::in_front_of(&Cloud::new(), &camera), None);
    }
}
