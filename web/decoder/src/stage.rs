use crate::Orbit;
use crate::gpu::{self, Matrix, Part};
use hawser_cloud::{Cloud, Image, Intrinsics, Pose, Renderer, RendererError, point_side_mm};
use hawser_codec::{Frame, merge_frames};

/// The focal length as a share of a picture's width, for a horizontal field of view of 60 degrees.
const FOCAL: f32 = 0.866;

/// The newest frame, and the viewer who looks at it.
#[derive(Debug)]
pub struct Stage {
    lens: Intrinsics,
    /// Made when it is used first: a GPU may draw instead.
    renderer: Option<Renderer>,
    frames: Vec<Frame>,
    /// The points of several frames, once they are used.
    merged: Option<Cloud>,
    /// The triangles of each frame that is a view.
    triangles: Vec<Vec<u32>>,
    orbit: Option<Orbit>,
    rgba: Vec<u8>,
}

impl Stage {
    /// Creates an empty stage with pictures of a number of columns and rows.
    pub fn new(width: usize, height: usize) -> Self {
        Stage {
            lens: lens(width, height),
            renderer: None,
            frames: Vec::new(),
            merged: None,
            triangles: Vec::new(),
            orbit: None,
            rgba: Vec::new(),
        }
    }

    /// Changes the size of pictures.
    pub fn resize(&mut self, width: usize, height: usize) {
        self.lens = lens(width, height);
        self.renderer = None;
    }

    /// Shows a frame: the view or the points of each track. The viewer stays where it is, and begins in front of the
    /// first frame that has points.
    pub fn show(&mut self, frames: Vec<Frame>) {
        self.frames = frames;
        self.merged = None;
        if self.orbit.is_none() {
            let cloud = points(&self.frames, &mut self.merged);
            self.orbit = Orbit::in_front_of(cloud, &self.lens);
        }
    }

    /// Returns the viewer; `None` before the first frame.
    pub const fn orbit(&mut self) -> Option<&mut Orbit> {
        self.orbit.as_mut()
    }

    /// Moves the viewer to the right and upwards, by shares of the width of what a picture shows at the viewer's distance.
    pub fn pan(&mut self, right: f32, up: f32) {
        if let Some(orbit) = &mut self.orbit {
            orbit.pan(right / FOCAL, up / FOCAL);
        }
    }

    /// Draws the frame as the viewer sees it.
    ///
    /// # Errors
    /// If a picture has no pixels or too many.
    pub fn draw(&mut self) -> Result<Image, RendererError> {
        // Without points, every pose has the same picture.
        let origin = || Pose::looking([0.0; 3], 0.0, 0.0);
        let pose = self.orbit.as_ref().map_or_else(origin, Orbit::pose);
        let renderer = match &mut self.renderer {
            Some(renderer) => renderer,
            none => none.insert(Renderer::new(self.lens)?),
        };
        Ok(renderer.render(points(&self.frames, &mut self.merged), &pose))
    }

    /// Draws the frame as [`Stage::draw`], for a canvas: RGBA, 4 bytes a pixel, row by row from the top left.
    ///
    /// # Errors
    /// As those of [`Stage::draw`].
    pub fn draw_rgba(&mut self) -> Result<&[u8], RendererError> {
        let image = self.draw()?;
        self.rgba
            .resize(image.width() * image.height() * 4, u8::MAX);
        let pixels = image.rgb().as_chunks::<3>().0;
        for (to, from) in self.rgba.as_chunks_mut::<4>().0.iter_mut().zip(pixels) {
            to[..3].copy_from_slice(from);
        }
        Ok(&self.rgba)
    }

    /// Returns the parts of the frame, for a GPU.
    pub fn parts(&mut self) -> impl Iterator<Item = Part<'_>> {
        self.triangles.resize_with(self.frames.len(), Vec::new);
        let frames = self.frames.iter().zip(&mut self.triangles);
        frames.map(|(frame, triangles)| match frame {
            Frame::View(view) => {
                gpu::connect(view, triangles);
                Part::View { view, triangles }
            }
            Frame::Cloud(cloud) => Part::Points {
                cloud,
                side_mm: point_side_mm(cloud),
            },
        })
    }

    /// Returns the matrix with which a GPU draws a part of the frame; `None` if there is none.
    pub fn to_clip(&self, part: usize) -> Option<Matrix> {
        let orbit = self.orbit.as_ref()?;
        let camera = match self.frames.get(part)? {
            Frame::View(view) => Some(view),
            Frame::Cloud(_) => None,
        };
        Some(gpu::to_clip(orbit, &self.lens, camera))
    }
}

/// Returns the points of frames.
fn points<'a>(frames: &'a [Frame], merged: &'a mut Option<Cloud>) -> &'a Cloud {
    match frames {
        [Frame::Cloud(only)] => only,
        several => merged.get_or_insert_with(|| merge_frames(several)),
    }
}

fn lens(width: usize, height: usize) -> Intrinsics {
    Intrinsics::centred(width, height, FOCAL * width as f32)
}
