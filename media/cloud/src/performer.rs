use crate::{Cloud, Point};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::f32::consts::{PI, TAU};
use std::time::Duration;

/// A synthetic person who sways and waves, for use without a recording. It always has the same
/// number of points and the noise of a depth camera. The same seed and time give the same points.
#[derive(Debug, Clone)]
pub struct Performer {
    seed: u64,
    points: usize,
}

/// A body part: an ellipsoid whose second axis points along the limb.
struct Part {
    centre: [f32; 3],
    radii: [f32; 3],
    /// Rotation about the line of sight, in radians.
    roll: f32,
    color: [u8; 3],
}

/// Standard deviation of the noise along the surface normal: that of an RGB-D sensor at a distance
/// of 1 m.
const NOISE_MM: f32 = 1.5;
/// Amplitude of the noise of a colour channel.
const COLOR_NOISE: i16 = 6;

const SKIN: [u8; 3] = [214, 160, 132];
const SHIRT: [u8; 3] = [40, 96, 148];
const TROUSERS: [u8; 3] = [58, 54, 62];

impl Performer {
    /// Creates a performer of exactly `points` points.
    pub fn new(seed: u64, points: usize) -> Self {
        Performer { seed, points }
    }

    /// Returns the performer's points at a time since the start.
    pub fn cloud(&self, at: Duration) -> Cloud {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(at.as_nanos() as u64);
        let parts = pose(at.as_secs_f32());
        let total_area: f32 = parts.iter().map(Part::relative_area).sum();

        let mut cloud = Cloud::with_capacity(self.points);
        let mut area = 0.0;
        for (index, part) in parts.iter().enumerate() {
            area += part.relative_area();
            let end = if index + 1 == parts.len() {
                self.points
            } else {
                (area / total_area * self.points as f32) as usize
            };
            part.scan(end - cloud.len(), &mut rng, &mut cloud);
        }
        cloud
    }
}

impl Part {
    fn new(centre: [f32; 3], radii: [f32; 3], roll: f32, color: [u8; 3]) -> Self {
        Part {
            centre,
            radii,
            roll,
            color,
        }
    }

    /// Returns a value approximately proportional to the surface area, to spread points evenly
    /// (Thomsen's formula without its power).
    fn relative_area(&self) -> f32 {
        let [a, b, c] = self.radii;
        a * b + b * c + c * a
    }

    /// Adds points along a spiral from pole to pole, where neighbours are close to each other as in
    /// the rows of an image (Rakhmanov, Saff and Zhou 1994).
    fn scan(&self, count: usize, rng: &mut ChaCha8Rng, cloud: &mut Cloud) {
        let (sin_roll, cos_roll) = self.roll.sin_cos();
        let mut longitude = 0.0_f32;
        for index in 0..count {
            let height = 1.0 - (2 * index + 1) as f32 / count as f32;
            let ring = (1.0 - height * height).sqrt();
            longitude = (longitude + 3.6 / ((count as f32).sqrt() * ring)) % TAU;
            let (sin, cos) = longitude.sin_cos();

            let noise =
                NOISE_MM * (rng.random::<f32>() + rng.random::<f32>() - 1.0) * 6.0_f32.sqrt();
            let unit = [ring * cos, height, ring * sin];
            let [x, y, z]: [f32; 3] =
                std::array::from_fn(|axis| unit[axis] * (self.radii[axis] + noise));
            let turned = [x * cos_roll - y * sin_roll, x * sin_roll + y * cos_roll, z];
            let position = std::array::from_fn(|axis| self.centre[axis] + turned[axis]);

            let light = 0.75 + 0.25 * unit[2];
            let grain = rng.random_range(-COLOR_NOISE..=COLOR_NOISE);
            let color = self
                .color
                .map(|channel| ((f32::from(channel) * light) as i16 + grain).clamp(0, 255) as u8);
            cloud.push(Point::at(position, color).expect("the performer is two metres tall"));
        }
    }
}

/// Returns the body parts at a time: one sway every four seconds, one wave of the right arm every
/// second.
fn pose(seconds: f32) -> [Part; 8] {
    let sway = (seconds / 4.0 * TAU).sin();
    let wave = (seconds * TAU).sin();
    let lean = 40.0 * sway;
    let arm = |side: f32, roll: f32, shoulder: [f32; 3]| {
        let (sin, cos) = roll.sin_cos();
        let hang = |distance: f32| {
            [
                shoulder[0] + distance * sin,
                shoulder[1] - distance * cos,
                shoulder[2],
            ]
        };
        let upper = Part::new(hang(260.0), [48.0, 290.0, 48.0], roll, SHIRT);
        let hand = Part::new(hang(600.0), [42.0, 90.0, 30.0], roll + 0.1 * side, SKIN);
        (upper, hand)
    };
    let (right_arm, right_hand) = arm(1.0, PI * 0.7 + 0.35 * wave, [210.0 + lean, 1420.0, 0.0]);
    let (left_arm, left_hand) = arm(-1.0, -0.15 - 0.08 * sway, [-210.0 + lean, 1420.0, 0.0]);
    [
        Part::new(
            [lean * 1.3, 1690.0, 10.0 * wave],
            [80.0, 120.0, 95.0],
            -0.1 * sway,
            SKIN,
        ),
        Part::new(
            [lean * 0.8, 1210.0, 0.0],
            [210.0, 330.0, 125.0],
            -0.06 * sway,
            SHIRT,
        ),
        right_arm,
        right_hand,
        left_arm,
        left_hand,
        Part::new(
            [105.0 + lean * 0.2, 460.0, 0.0],
            [95.0, 470.0, 95.0],
            0.02,
            TROUSERS,
        ),
        Part::new(
            [-105.0 + lean * 0.2, 460.0, 0.0],
            [95.0, 470.0, 95.0],
            -0.02,
            TROUSERS,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn the_same_seed_and_time_give_the_same_points() {
        let at = Duration::from_millis(1234);
        let performer = Performer::new(7, 5000);
        assert_eq!(performer.cloud(at), performer.cloud(at));
        assert_ne!(performer.cloud(at), Performer::new(8, 5000).cloud(at));
        assert_ne!(
            performer.cloud(at),
            performer.cloud(at + Duration::from_millis(33))
        );
    }

    #[test]
    fn every_level_is_filled_exactly() {
        for level in Level::ALL {
            assert_eq!(
                Performer::new(1, level.points())
                    .cloud(Duration::ZERO)
                    .len(),
                level.points()
            );
        }
    }

    #[test]
    fn the_performer_stays_on_the_stage() {
        for tenth in 0..40 {
            let cloud = Performer::new(1, 2000).cloud(Duration::from_millis(100 * tenth));
            assert!(
                cloud
                    .points()
                    .all(|p| p.x.abs() < 1200 && (-50..2200).contains(&p.y) && p.z.abs() < 300)
            );
        }
    }
}
