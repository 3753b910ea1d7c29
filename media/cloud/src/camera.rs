use crate::{Cloud, Point};
use serde::{Deserialize, Serialize};

/// The pinhole model of a camera, in pixels. A calibration is valid for one image size, so the size
/// is part of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intrinsics {
    /// Columns of the depth image.
    pub width: usize,
    /// Rows of the depth image.
    pub height: usize,
    /// Focal length along a row.
    pub fx: f32,
    /// Focal length along a column.
    pub fy: f32,
    /// Column of the optical axis.
    pub cx: f32,
    /// Row of the optical axis.
    pub cy: f32,
}

/// The pose of a camera: `x_camera = rotation * x_world + translation`, camera axes x right, y
/// down, z forward.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extrinsics {
    /// The rows of the rotation matrix.
    pub rotation: [[f32; 3]; 3],
    /// The translation in millimetres, in the camera's axes.
    pub translation_mm: [f32; 3],
}

/// A calibrated camera.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Camera {
    /// The projection.
    pub intrinsics: Intrinsics,
    /// The pose.
    pub extrinsics: Extrinsics,
}

/// Depth encoded as hue: hue 0 is `near_mm`, hue 1 is `far_mm`, linear in between (the Depthkit
/// format).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HueRange {
    /// Millimetres at hue 0.
    pub near_mm: f32,
    /// Millimetres at hue 1.
    pub far_mm: f32,
}

/// The error for an image whose size is not that of the calibration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the {image} image has {found} bytes instead of {expected}")]
pub struct ImageError {
    /// The kind of image.
    pub image: &'static str,
    /// The number of bytes given.
    pub found: usize,
    /// The number of bytes of an image of the calibration's size.
    pub expected: usize,
}

impl Intrinsics {
    /// Creates the model of a camera without distortion whose optical axis is in the middle of the
    /// image. `focal` is in pixels: half of the width for a horizontal field of view of 90 degrees.
    pub const fn centred(width: usize, height: usize, focal: f32) -> Self {
        Intrinsics {
            width,
            height,
            fx: focal,
            fy: focal,
            cx: width as f32 / 2.0 - 0.5,
            cy: height as f32 / 2.0 - 0.5,
        }
    }
}

impl Extrinsics {
    /// Returns how far `rotation` is from a proper rotation: the largest error of an element of
    /// `R * transpose(R)`, or infinity for a reflection and for elements that are not finite.
    pub fn rotation_error(&self) -> f32 {
        let [a, b, c] = self.rotation;
        let is_finite = self
            .rotation
            .iter()
            .flatten()
            .all(|element| element.is_finite());
        let determinant = dot(a, cross(b, c));
        if !is_finite || determinant <= 0.0 {
            return f32::INFINITY;
        }
        let lengths = [a, b, c].map(|row| (dot(row, row) - 1.0).abs());
        let angles = [dot(a, b), dot(b, c), dot(c, a)].map(f32::abs);
        lengths.into_iter().chain(angles).fold(0.0, f32::max)
    }
}

impl Camera {
    /// Returns the world position of a pixel at `depth_mm` along the optical axis.
    pub fn unproject(&self, column: usize, row: usize, depth_mm: f32) -> [f32; 3] {
        let Intrinsics { fx, fy, cx, cy, .. } = self.intrinsics;
        let Extrinsics {
            rotation,
            translation_mm,
        } = self.extrinsics;
        let x = (column as f32 - cx) / fx * depth_mm - translation_mm[0];
        let y = (row as f32 - cy) / fy * depth_mm - translation_mm[1];
        let z = depth_mm - translation_mm[2];
        // The inverse of a rotation is its transpose.
        std::array::from_fn(|axis| {
            rotation[0][axis] * x + rotation[1][axis] * y + rotation[2][axis] * z
        })
    }

    /// Returns the number of pixels whose points are out of range of 16-bit millimetres. The depths are in
    /// millimetres, row by row, `None` where nothing was measured.
    pub fn out_of_range(&self, depths_mm: impl Iterator<Item = Option<f32>>) -> usize {
        let width = self.intrinsics.width.max(1);
        let near = self.near_mm();
        let is_out = |(pixel, depth): &(usize, Option<f32>)| {
            let far = depth.filter(|depth| *depth > near);
            far.is_some_and(|depth| {
                let position = self.unproject(pixel % width, pixel / width, depth);
                Point::at(position, [0; 3]).is_none()
            })
        };
        depths_mm.enumerate().filter(is_out).count()
    }

    /// Returns a depth up to which the points of all pixels are in range: most images have none beyond it.
    fn near_mm(&self) -> f32 {
        let Intrinsics {
            width,
            height,
            fx,
            fy,
            cx,
            cy,
        } = self.intrinsics;
        let side = |pixels: usize, centre: f32, focal: f32| {
            let most = centre.abs().max((pixels as f32 - centre).abs());
            most / focal.abs()
        };
        let (x, y) = (side(width, cx, fx), side(height, cy, fy));
        let translation = self.extrinsics.translation_mm;
        // A hundredth is left for rotations that are not exact.
        let reach = f32::from(i16::MAX) * 0.99 - dot(translation, translation).sqrt();
        reach / dot([x, y, 1.0], [x, y, 1.0]).sqrt()
    }

    /// Adds the points of an RGB-D image to `cloud`, row by row.
    ///
    /// `color` is RGB, 3 bytes per pixel. `depth` is 16-bit little-endian in units of `unit_mm`, 0
    /// where nothing was measured. Points out of range of 16-bit millimetres are left out.
    pub fn add_rgbd(
        &self,
        color: &[u8],
        depth: &[u8],
        unit_mm: f32,
        cloud: &mut Cloud,
    ) -> Result<(), ImageError> {
        self.check_size("colour", color.len(), 3)?;
        self.check_size("depth", depth.len(), 2)?;
        let depths = depth
            .as_chunks()
            .0
            .iter()
            .map(|bytes| match u16::from_le_bytes(*bytes) {
                0 => None,
                depth => Some(f32::from(depth) * unit_mm),
            });
        self.add_pixels(color, depths, cloud);
        Ok(())
    }

    /// Adds the points of a hue-depth image to `cloud`: RGB, colour in the upper half, depth as hue
    /// in the lower one.
    ///
    /// A depth is valid where saturation and value are above one half.
    pub fn add_hue_depth(
        &self,
        image: &[u8],
        range: HueRange,
        cloud: &mut Cloud,
    ) -> Result<(), ImageError> {
        self.check_size("hue-depth", image.len(), 6)?;
        let (color, depth) = image.split_at(image.len() / 2);
        self.add_pixels(
            color,
            depth
                .as_chunks()
                .0
                .iter()
                .map(|pixel| range.depth_mm(*pixel)),
            cloud,
        );
        Ok(())
    }

    fn add_pixels(
        &self,
        color: &[u8],
        depths: impl Iterator<Item = Option<f32>>,
        cloud: &mut Cloud,
    ) {
        let width = self.intrinsics.width;
        for (pixel, (color, depth)) in color.as_chunks().0.iter().zip(depths).enumerate() {
            let Some(depth_mm) = depth else { continue };
            let position = self.unproject(pixel % width, pixel / width, depth_mm);
            if let Some(point) = Point::at(position, *color) {
                cloud.push(point);
            }
        }
    }

    pub(crate) fn check_size(
        &self,
        image: &'static str,
        found: usize,
        pixel_bytes: usize,
    ) -> Result<(), ImageError> {
        let Intrinsics { width, height, .. } = self.intrinsics;
        let expected = width.saturating_mul(height).saturating_mul(pixel_bytes);
        if found == expected {
            Ok(())
        } else {
            Err(ImageError {
                image,
                found,
                expected,
            })
        }
    }
}

impl HueRange {
    /// Returns the depth that an RGB pixel encodes, or `None` if nothing was measured.
    pub fn depth_mm(self, rgb: [u8; 3]) -> Option<f32> {
        let [r, g, b] = rgb.map(f32::from);
        let value = r.max(g).max(b);
        let chroma = value - r.min(g).min(b);
        let (is_saturated, is_bright) = (chroma > 0.5 * value, value > 0.5 * 255.0);
        if !(is_saturated && is_bright) {
            return None;
        }
        let sixth = if value == r {
            ((g - b) / chroma).rem_euclid(6.0)
        } else if value == g {
            (b - r) / chroma + 2.0
        } else {
            (r - g) / chroma + 4.0
        };
        Some(self.near_mm + sixth / 6.0 * (self.far_mm - self.near_mm))
    }
}

fn dot(a: [f32; 3], b: [f32; 3]) -> f32 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
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

    const FACING: Extrinsics = Extrinsics {
        rotation: [[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]],
        translation_mm: [25.0, 1400.0, 1010.0],
    };

    fn camera(width: usize, height: usize, extrinsics: Extrinsics) -> Camera {
        let intrinsics = Intrinsics {
            width,
            height,
            fx: 425.0,
            fy: 425.0,
            cx: 1.0,
            cy: 0.0,
        };
        Camera {
            intrinsics,
            extrinsics,
        }
    }

    #[test]
    fn a_pixel_lands_where_the_calibration_says() {
        let camera = camera(848, 480, FACING);

        let [x, y, z] = camera.unproject(426, 425, 1000.0);

        // In camera coordinates: (1000, 1000, 1000). Minus the translation: (975, -400, -10).
        // Rotated back: x and y change sign.
        assert_eq!([x, y, z], [-975.0, 400.0, -10.0]);
    }

    #[test]
    fn two_cameras_agree_on_a_point() {
        let turned = Extrinsics {
            rotation: [[-0.5, 0.0, 0.866], [0.0, -1.0, 0.0], [0.866, 0.0, 0.5]],
            translation_mm: [280.97, 1400.0, 833.35],
        };
        // World (0, 1400, 0) is (25, 0, 1010) to one camera and (280.97, 0, 833.35) to the other.
        let near = |world: [f32; 3]| {
            world
                .iter()
                .zip([0.0, 1400.0, 0.0])
                .all(|(a, b)| (a - b).abs() < 2.0)
        };
        let column = |x: f32, z: f32| (1.0 + 425.0 * x / z).round() as usize;
        assert!(near(camera(848, 480, FACING).unproject(
            column(25.0, 1010.0),
            0,
            1010.0
        )));
        assert!(near(camera(848, 480, turned).unproject(
            column(280.97, 833.35),
            0,
            833.35
        )));
        assert!(turned.rotation_error() < 1e-3);
    }

    #[test]
    fn a_reflection_is_no_rotation() {
        let mirror = Extrinsics {
            rotation: [[1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]],
            ..FACING
        };
        assert_eq!(mirror.rotation_error(), f32::INFINITY);
    }

    #[test]
    fn depths_out_of_range_are_as_many_as_points_left_out() {
        let turned = Extrinsics {
            rotation: [[0.6, 0.0, 0.8], [0.0, 1.0, 0.0], [-0.8, 0.0, 0.6]],
            translation_mm: [25.0, 1400.0, -9000.0],
        };
        for extrinsics in [FACING, turned] {
            let camera = camera(64, 48, extrinsics);
            for unit_mm in [0.25, 0.45, 1.0, 1000.0] {
                let depths: Vec<u16> = (0..64 * 48).map(|at: u32| (at * 977) as u16).collect();
                let bytes: Vec<u8> = depths
                    .iter()
                    .flat_map(|depth| depth.to_le_bytes())
                    .collect();
                let mut cloud = Cloud::new();
                let color = vec![0; 3 * depths.len()];
                camera
                    .add_rgbd(&color, &bytes, unit_mm, &mut cloud)
                    .unwrap();
                let measured = depths.iter().filter(|depth| **depth != 0).count();
                let depths = depths.iter().map(|depth| f32::from(*depth) * unit_mm);
                let out = camera.out_of_range(depths.map(|depth| (depth > 0.0).then_some(depth)));
                assert_eq!(out, measured - cloud.len(), "{unit_mm}");
            }
        }
    }

    #[test]
    fn pixels_without_depth_and_out_of_range_are_left_out() {
        let depth: Vec<u8> = [0u16, 1000, 40_000]
            .into_iter()
            .flat_map(u16::to_le_bytes)
            .collect();
        let color = [0, 0, 0, 1, 2, 3, 9, 9, 9];
        let mut cloud = Cloud::new();

        camera(3, 1, FACING)
            .add_rgbd(&color, &depth, 1.0, &mut cloud)
            .unwrap();

        let point = Point {
            x: 25,
            y: 1400,
            z: -10,
            r: 1,
            g: 2,
            b: 3,
        };
        assert_eq!(cloud.points().collect::<Vec<_>>(), [point]);
    }

    #[test]
    fn an_image_of_another_size_is_rejected() {
        let error = camera(3, 1, FACING)
            .add_rgbd(&[0; 9], &[0; 4], 1.0, &mut Cloud::new())
            .unwrap_err();
        assert_eq!(
            error,
            ImageError {
                image: "depth",
                found: 4,
                expected: 6
            }
        );
    }

    #[test]
    fn hues_go_from_near_to_far() {
        let range = HueRange {
            near_mm: 600.0,
            far_mm: 1200.0,
        };
        assert_eq!(range.depth_mm([255, 0, 0]), Some(600.0));
        assert_eq!(range.depth_mm([0, 255, 0]), Some(800.0));
        assert_eq!(range.depth_mm([0, 0, 255]), Some(1000.0));
        assert_eq!(range.depth_mm([255, 0, 255]), Some(1100.0));
        assert_eq!(range.depth_mm([255, 200, 200]), None, "too pale");
        assert_eq!(range.depth_mm([100, 0, 0]), None, "too dark");
    }
}
