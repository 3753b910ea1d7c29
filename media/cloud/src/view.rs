use crate::{Camera, Cloud, ImageError, Intrinsics, Point};

/// The maximum number of pixels of a transmitted view. Bounds the memory that a receiver allocates
/// per frame (5 bytes each, 20 MiB).
pub const MAX_PIXELS: usize = 1 << 22;

/// A view as one camera captured it: colour and depth of the same pixels.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    camera: Camera,
    unit_mm: f32,
    color: Vec<u8>,
    depth: Vec<u16>,
}

impl View {
    /// Takes the images of a camera. `color` is RGB, 3 bytes a pixel; `depth` is in units of
    /// `unit_mm`, 0 where nothing was measured.
    ///
    /// # Errors
    /// If an image is not of the size of the calibration.
    pub fn new(
        camera: Camera,
        unit_mm: f32,
        color: Vec<u8>,
        depth: Vec<u16>,
    ) -> Result<Self, ImageError> {
        camera.check_size("colour", color.len(), 3)?;
        camera.check_size("depth", 2 * depth.len(), 2)?;
        Ok(View {
            camera,
            unit_mm,
            color,
            depth,
        })
    }

    /// Returns the calibration.
    pub fn camera(&self) -> &Camera {
        &self.camera
    }

    /// Returns the depth of one step in millimetres.
    pub fn unit_mm(&self) -> f32 {
        self.unit_mm
    }

    /// Returns the colour image.
    pub fn color(&self) -> &[u8] {
        &self.color
    }

    /// Returns the depth image.
    pub fn depth(&self) -> &[u16] {
        &self.depth
    }

    /// Returns the depth image for changes, such as the removal of the background.
    pub fn depth_mut(&mut self) -> &mut [u16] {
        &mut self.depth
    }

    /// Returns the number of columns and rows.
    pub fn size(&self) -> (usize, usize) {
        let Intrinsics { width, height, .. } = self.camera.intrinsics;
        (width, height)
    }

    /// Returns the number of pixels with a depth.
    pub fn points(&self) -> usize {
        self.depth.iter().filter(|depth| **depth != 0).count()
    }

    /// Returns the points of all views, in their order. Points out of range of 16-bit millimetres are
    /// left out.
    pub fn merge(views: &[View]) -> Cloud {
        let mut cloud = Cloud::with_capacity(views.iter().map(View::points).sum());
        views.iter().for_each(|view| view.add_to(&mut cloud));
        cloud
    }

    /// Adds the points to a cloud, row by row. Points out of range of 16-bit millimetres are left
    /// out.
    pub fn add_to(&self, cloud: &mut Cloud) {
        let (width, _) = self.size();
        let pixels = self.depth.iter().zip(self.color.as_chunks().0);
        for (pixel, (depth, color)) in pixels.enumerate().filter(|(_, (depth, _))| **depth != 0) {
            let depth_mm = f32::from(*depth) * self.unit_mm;
            let position = self
                .camera
                .unproject(pixel % width, pixel / width, depth_mm);
            if let Some(point) = Point::at(position, *color) {
                cloud.push(point);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Extrinsics;

    const CAMERA: Camera = Camera {
        intrinsics: Intrinsics {
            width: 3,
            height: 2,
            fx: 425.0,
            fy: 425.0,
            cx: 1.0,
            cy: 0.0,
        },
        extrinsics: Extrinsics {
            rotation: [[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]],
            translation_mm: [25.0, 1400.0, 1010.0],
        },
    };

    #[test]
    fn a_view_has_the_points_of_its_images() {
        let depth = [0u16, 1000, 40_000, 900, 0, 1];
        let color: Vec<u8> = (0..18).collect();
        let view = View::new(CAMERA, 1.0, color.clone(), depth.to_vec()).unwrap();
        let (mut cloud, mut expected) = (Cloud::new(), Cloud::new());
        view.add_to(&mut cloud);
        let depth: Vec<u8> = depth.into_iter().flat_map(u16::to_le_bytes).collect();
        CAMERA.add_rgbd(&color, &depth, 1.0, &mut expected).unwrap();
        assert_eq!(cloud, expected);
        assert_eq!((cloud.len(), view.points()), (3, 4));
    }

    #[test]
    fn images_of_another_size_are_refused() {
        let images = |color, depth| View::new(CAMERA, 1.0, vec![0; color], vec![0; depth]);
        assert!(images(18, 6).is_ok());
        let refused = images(18, 5).unwrap_err();
        assert_eq!((refused.found, refused.expected), (10, 12));
        assert_eq!(images(17, 6).unwrap_err().image, "colour");
    }
}
