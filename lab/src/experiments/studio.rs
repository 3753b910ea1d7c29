//! Pictures of clouds from two sides, of which scores and reports are made.

use anyhow::{Context, Result};
use hawser_cloud::{Cloud, Image, Intrinsics, Pose, Renderer};

/// Columns and rows of a picture of one side.
const SIDE: (usize, usize) = (640, 720);
/// The focal length in pixels, for a vertical field of view of 50 degrees.
const FOCAL: f32 = 772.0;
/// The angle between the two sides in degrees. Errors of depth show from aside only.
const ASIDE_DEGREES: f32 = 30.0;

/// Columns and rows of a picture of both sides.
pub(super) const SIZE: (usize, usize) = (2 * SIDE.0, SIDE.1);

/// Draws clouds from the front, and from 30 degrees beside that.
pub(super) struct Studio {
    renderer: Renderer,
    poses: [Pose; 2],
}

impl Studio {
    /// Places the viewer in front of a cloud.
    ///
    /// # Errors
    /// If the cloud has no points.
    pub(super) fn in_front_of(cloud: &Cloud) -> Result<Self> {
        let intrinsics = Intrinsics::centred(SIDE.0, SIDE.1, FOCAL);
        let front =
            Pose::in_front_of(cloud, &intrinsics).context("the first frame has no points")?;
        let aside = front.around(mean(cloud), ASIDE_DEGREES.to_radians());
        Ok(Studio {
            renderer: Renderer::new(intrinsics)?,
            poses: [front, aside],
        })
    }

    /// Draws a cloud from both sides.
    pub(super) fn draw(&mut self, cloud: &Cloud) -> Image {
        let [front, aside] = self.poses.map(|pose| self.renderer.render(cloud, &pose));
        front.beside(&aside)
    }
}

/// Returns the mean position of a cloud's points.
fn mean(cloud: &Cloud) -> [f32; 3] {
    let mut sums = [0i64; 3];
    for point in cloud.points() {
        for (sum, axis) in sums.iter_mut().zip([point.x, point.y, point.z]) {
            *sum += i64::from(axis);
        }
    }
    sums.map(|sum| sum as f32 / cloud.len().max(1) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::Performer;
    use std::time::Duration;

    #[test]
    fn both_sides_show_the_performer() {
        let cloud = Performer::new(1, 20_000).cloud(Duration::ZERO);
        let mut studio = Studio::in_front_of(&cloud).unwrap();
        let image = studio.draw(&cloud);
        assert_eq!((image.width(), image.height()), SIZE);
        let background = image.pixel(0, 0).unwrap();
        for side in [0..SIDE.0, SIDE.0..SIZE.0] {
            let pixels = side.flat_map(|column| (0..SIDE.1).map(move |row| (column, row)));
            let shown =
                pixels.filter(|(column, row)| image.pixel(*column, *row) != Some(background));
            assert!(shown.count() > 20_000);
        }
        assert!(Studio::in_front_of(&Cloud::new()).is_err());
    }
}
