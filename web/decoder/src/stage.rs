use crate::Orbit;
use hawser_cloud::{Cloud, Image, Intrinsics, Pose, Renderer, RendererError};

/// The focal length as a share of a picture's width, for a horizontal field of view of 60 degrees.
const FOCAL: f32 = 0.866;

/// The newest frame, and the viewer who looks at it.
#[derive(Debug)]
pub struct Stage {
    renderer: Renderer,
    cloud: Cloud,
    orbit: Option<Orbit>,
    rgba: Vec<u8>,
}

impl Stage {
    /// Creates an empty stage with pictures of a number of columns and rows.
    ///
    /// # Errors
    /// If a picture has no pixels or too many.
    pub fn new(width: usize, height: usize) -> Result<Self, RendererError> {
        Ok(Stage {
            renderer: renderer(width, height)?,
            cloud: Cloud::new(),
            orbit: None,
            rgba: Vec::new(),
        })
    }

    /// Changes the size of pictures.
    ///
    /// # Errors
    /// As those of [`Stage::new`].
    pub fn resize(&mut self, width: usize, height: usize) -> Result<(), RendererError> {
        self.renderer = renderer(width, height)?;
        Ok(())
    }

    /// Shows a frame. The viewer stays where it is, and begins in front of the first frame that has points.
    pub fn show(&mut self, cloud: Cloud) {
        let in_front = || Orbit::in_front_of(&cloud, self.renderer.intrinsics());
        self.orbit = self.orbit.or_else(in_front);
        self.cloud = cloud;
    }

    /// Returns the viewer; `None` before the first frame.
    pub const fn orbit(&mut self) -> Option<&mut Orbit> {
        self.orbit.as_mut()
    }

    /// Draws the frame as the viewer sees it.
    pub fn draw(&mut self) -> Image {
        // Without points, every pose has the same picture.
        let origin = || Pose::looking([0.0; 3], 0.0, 0.0);
        let pose = self.orbit.as_ref().map_or_else(origin, Orbit::pose);
        self.renderer.render(&self.cloud, &pose)
    }

    /// Draws the frame as [`Stage::draw`], for a canvas: RGBA, 4 bytes a pixel, row by row from the top left.
    pub fn draw_rgba(&mut self) -> &[u8] {
        let image = self.draw();
        self.rgba
            .resize(image.width() * image.height() * 4, u8::MAX);
        let pixels = image.rgb().as_chunks::<3>().0;
        for (to, from) in self.rgba.as_chunks_mut::<4>().0.iter_mut().zip(pixels) {
            to[..3].copy_from_slice(from);
        }
        &self.rgba
    }
}

fn renderer(width: usize, height: usize) -> Result<Renderer, RendererError> {
    Renderer::new(Intrinsics::centred(width, height, FOCAL * width as f32))
}
