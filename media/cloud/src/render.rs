use crate::{Cloud, Digest, Intrinsics, Point, Pose};
use twox_hash::XxHash3_64;

/// The maximum number of pixels of a picture. Bounds the memory of a [`Renderer`] (8 bytes each,
/// 128 MiB).
const MAX_PIXELS: usize = 1 << 24;
/// The distances along the optical axis between which points are drawn, in millimetres.
const DEPTH_MM: std::ops::RangeInclusive<f32> = 50.0..=1e6;
/// The largest side of a drawn point in pixels, which bounds the time that a picture takes.
const MAX_SIDE: i32 = 48;
/// The smallest side of a point in millimetres if it follows from the points' spacing: half of the
/// noise of a depth camera.
const MIN_POINT_MM: f32 = 2.0;
/// The side of a point as a multiple of the mean spacing. Points that are spread at random leave
/// `exp(-1.75^2)`, 5 % of a surface, to the points around them.
const SIDE_PER_SPACING: f32 = 1.75;
/// Steps of the depth buffer in a millimetre.
const STEPS_PER_MM: f32 = 16.0;
/// A pixel without a point.
const EMPTY: u64 = u64::MAX;
const DARK_GREY: [u8; 3] = [32, 32, 32];

/// A picture: RGB, 3 bytes a pixel, row by row from the top left.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

/// Draws point clouds as a pinhole camera sees them.
///
/// Each point is a square that faces the viewer, and the nearest one is shown. The picture depends
/// neither on the order of the points nor on the platform.
///
/// ```
/// use hawser_cloud::{Intrinsics, Performer, Pose, Renderer};
/// use std::time::Duration;
///
/// let cloud = Performer::new(1, 20_000).cloud(Duration::ZERO);
/// let mut renderer = Renderer::new(Intrinsics::centred(320, 240, 280.0))?;
/// let pose = Pose::in_front_of(&cloud, renderer.intrinsics()).expect("the cloud has points");
/// let image = renderer.render(&cloud, &pose);
/// assert_eq!((image.width(), image.height()), (320, 240));
/// assert_ne!(image.pixel(138, 83), image.pixel(0, 0), "the shirt, and the background");
/// # Ok::<(), hawser_cloud::RendererError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Renderer {
    intrinsics: Intrinsics,
    point_mm: Option<f32>,
    background: [u8; 3],
    /// The depth of the nearest point in the upper 40 bits, its colour in the lower 24.
    pixels: Vec<u64>,
}

/// The error for intrinsics with which nothing can be drawn.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum RendererError {
    /// The picture has no pixels or too many.
    #[error("a picture of {width} x {height} pixels: must have 1 to {MAX_PIXELS} pixels")]
    Size {
        /// Columns.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// A focal length is not above 0, or the optical axis is not a number.
    #[error(
        "focal lengths of {fx} and {fy} pixels: must be above 0, and the optical axis a position"
    )]
    Projection {
        /// Focal length along a row.
        fx: f32,
        /// Focal length along a column.
        fy: f32,
    },
}

impl Image {
    /// Returns the number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of rows.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Returns the pixels, 3 bytes each, row by row.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// Returns the colour of a pixel, or `None` outside of the picture.
    pub fn pixel(&self, column: usize, row: usize) -> Option<[u8; 3]> {
        let is_inside = column < self.width && row < self.height;
        let pixels = self.rgb.as_chunks().0;
        is_inside.then(|| pixels[row * self.width + column])
    }

    /// Returns a picture of this one on the left and another one on the right.
    ///
    /// # Panics
    /// If the other one has a different number of rows.
    #[must_use]
    pub fn beside(&self, right: &Image) -> Image {
        assert_eq!(self.height, right.height, "pictures of one height");
        let rows = |image: &Image| 3 * image.width.max(1);
        let left_rows = self.rgb.chunks(rows(self));
        let right_rows = right.rgb.chunks(rows(right));
        let rgb = left_rows
            .zip(right_rows)
            .flat_map(|(left, right)| [left, right].concat());
        Image {
            width: self.width + right.width,
            height: self.height,
            rgb: rgb.collect(),
        }
    }

    /// Returns a picture of this one above another one.
    ///
    /// # Panics
    /// If the other one has a different number of columns.
    #[must_use]
    pub fn above(&self, below: &Image) -> Image {
        assert_eq!(self.width, below.width, "pictures of one width");
        Image {
            width: self.width,
            height: self.height + below.height,
            rgb: [&self.rgb[..], &below.rgb].concat(),
        }
    }

    /// Returns the XXH3-64 of the pixels.
    pub fn digest(&self) -> Digest {
        Digest(XxHash3_64::oneshot(&self.rgb))
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Image { width, height, .. } = self;
        write!(f, "Image({width} x {height}, {})", self.digest())
    }
}

impl Renderer {
    /// Creates a renderer of pictures with the size and field of view of `intrinsics`, on a dark
    /// grey background. The side of a point follows from the spacing of each cloud's points.
    ///
    /// # Errors
    /// If the size is 0 or too large, or the projection is none.
    pub fn new(intrinsics: Intrinsics) -> Result<Self, RendererError> {
        let Intrinsics { width, height, .. } = intrinsics;
        let count = width.saturating_mul(height);
        if !(1..=MAX_PIXELS).contains(&count) {
            return Err(RendererError::Size { width, height });
        }
        let Intrinsics { fx, fy, cx, cy, .. } = intrinsics;
        let has_focus = [fx, fy].iter().all(|focal| *focal > 0.0);
        if !has_focus || ![fx, fy, cx, cy].iter().all(|value| value.is_finite()) {
            return Err(RendererError::Projection { fx, fy });
        }
        Ok(Renderer {
            intrinsics,
            point_mm: None,
            background: DARK_GREY,
            pixels: vec![EMPTY; count],
        })
    }

    /// Draws every point with this side in millimetres, whatever the spacing. Pictures that are
    /// compared with each other need the same side.
    #[must_use]
    pub fn with_point_mm(self, side: f32) -> Self {
        Renderer {
            point_mm: Some(side),
            ..self
        }
    }

    /// Shows this colour where there is no point.
    #[must_use]
    pub fn with_background(self, background: [u8; 3]) -> Self {
        Renderer { background, ..self }
    }

    /// Returns the size and the projection of the pictures.
    pub fn intrinsics(&self) -> &Intrinsics {
        &self.intrinsics
    }

    /// Draws a cloud as it is seen from a pose. From a pose that is not finite, nothing is seen.
    pub fn render(&mut self, cloud: &Cloud, pose: &Pose) -> Image {
        self.pixels.fill(EMPTY);
        if let Some(viewer) = Viewer::new(pose) {
            let side_mm = self.point_mm.unwrap_or_else(|| point_side_mm(cloud));
            for point in cloud.points() {
                self.draw(&viewer, point, side_mm);
            }
        }
        self.image()
    }

    fn draw(&mut self, viewer: &Viewer, point: Point, side_mm: f32) {
        let [x, y, depth_mm] = viewer.relative(point);
        if !DEPTH_MM.contains(&depth_mm) {
            return;
        }
        let Intrinsics { fx, fy, cx, cy, .. } = self.intrinsics;
        let scale = 1.0 / depth_mm;
        let columns = Span::new(cx + fx * x * scale, fx * side_mm * scale);
        let rows = Span::new(cy - fy * y * scale, fy * side_mm * scale);
        if let (Some(columns), Some(rows)) = (columns, rows) {
            self.fill(columns, rows, point, depth_mm);
        }
    }

    /// Fills a square of pixels, except where something nearer is. The depth grows from the middle
    /// to the corners, so that of overlapping points of one surface, each pixel shows the one whose
    /// middle is nearest.
    fn fill(&mut self, columns: Span, rows: Span, point: Point, depth_mm: f32) {
        let Intrinsics {
            width, height, fx, ..
        } = self.intrinsics;
        let color = u64::from(u32::from_be_bytes([0, point.r, point.g, point.b]));
        let depth = (depth_mm * STEPS_PER_MM) as u64;
        // The depth of a corner is greater by about a side of the square.
        let slope = depth * 2 / (fx * columns.side() as f32).max(1.0) as u64;
        for row in rows.within(height) {
            let start = row as usize * width;
            for column in columns.within(width) {
                let distance = (column - columns.middle).pow(2) + (row - rows.middle).pow(2);
                let value = (depth + slope * u64::from(distance.unsigned_abs())) << 24 | color;
                let pixel = &mut self.pixels[start + column as usize];
                *pixel = value.min(*pixel);
            }
        }
    }

    fn image(&self) -> Image {
        let Intrinsics { width, height, .. } = self.intrinsics;
        let mut rgb = vec![0; 3 * self.pixels.len()];
        for (shown, pixel) in rgb.as_chunks_mut().0.iter_mut().zip(&self.pixels) {
            let [.., r, g, b] = pixel.to_be_bytes();
            *shown = if *pixel == EMPTY {
                self.background
            } else {
                [r, g, b]
            };
        }
        Image { width, height, rgb }
    }
}

/// The columns or rows of a square of pixels.
#[derive(Clone, Copy)]
struct Span {
    start: i32,
    end: i32,
    middle: i32,
}

impl Span {
    /// Creates the span of `side` pixels, rounded up, around a position. Returns `None` where it is
    /// far outside of any picture.
    fn new(position: f32, side: f32) -> Option<Self> {
        const FAR: f32 = (MAX_PIXELS + MAX_SIDE as usize) as f32;
        if !(-(MAX_SIDE as f32)..FAR).contains(&position) {
            return None;
        }
        let whole = side as i32;
        let side = (whole.saturating_add(i32::from(side > whole as f32))).clamp(1, MAX_SIDE);
        // The middle of a pixel is at a whole number. A conversion truncates, and rounds down if the
        // value is not negative.
        let floor = |value: f32| (value + 2.0 * MAX_SIDE as f32) as i32 - 2 * MAX_SIDE;
        let start = floor(position + 1.0 - side as f32 / 2.0);
        Some(Span {
            start,
            end: start + side,
            middle: floor(position + 0.5),
        })
    }

    fn side(self) -> i32 {
        self.end - self.start
    }

    fn within(self, size: usize) -> std::ops::Range<i32> {
        self.start.max(0)..self.end.min(size as i32)
    }
}

/// A pose as the viewer's axes.
struct Viewer {
    position: [f32; 3],
    /// Right, up and forward in the world.
    axes: [[f32; 3]; 3],
}

impl Viewer {
    /// Returns `None` if the position is not finite or the rotation is none.
    fn new(pose: &Pose) -> Option<Self> {
        let squares: f32 = pose.rotation.iter().map(|part| part * part).sum();
        let is_finite = pose.position_mm.iter().all(|axis| axis.is_finite());
        if !is_finite || !(f32::MIN_POSITIVE..=f32::MAX).contains(&squares) {
            return None;
        }
        let length = squares.sqrt();
        let [x, y, z, w] = pose.rotation.map(|part| part / length);
        let right = [
            1.0 - 2.0 * (y * y + z * z),
            2.0 * (x * y + z * w),
            2.0 * (x * z - y * w),
        ];
        let up = [
            2.0 * (x * y - z * w),
            1.0 - 2.0 * (x * x + z * z),
            2.0 * (y * z + x * w),
        ];
        let back = [
            2.0 * (x * z + y * w),
            2.0 * (y * z - x * w),
            1.0 - 2.0 * (x * x + y * y),
        ];
        Some(Viewer {
            position: pose.position_mm,
            axes: [right, up, back.map(|part| -part)],
        })
    }

    /// Returns the distances of a point to the right, up and forward.
    #[inline]
    fn relative(&self, point: Point) -> [f32; 3] {
        let x = f32::from(point.x) - self.position[0];
        let y = f32::from(point.y) - self.position[1];
        let z = f32::from(point.z) - self.position[2];
        self.axes
            .map(|axis| axis[0] * x + axis[1] * y + axis[2] * z)
    }
}

/// Returns the side of a cloud's points in millimetres with which surfaces have few holes: a
/// multiple of the mean spacing, which follows from the number of cubes in which there are points.
pub fn point_side_mm(cloud: &Cloud) -> f32 {
    const CUBE_BITS: u32 = 6;
    /// A plane in a random direction crosses 1.5 cubes for each area of a cube's side.
    const CUBES_PER_AREA: f32 = 1.5;
    let axis = |value: i16| (i32::from(value) >> CUBE_BITS) as u32 & 0x3ff;
    let cube = |point: Point| axis(point.x) << 20 | axis(point.y) << 10 | axis(point.z);
    let mut cubes: Vec<u32> = Vec::new();
    let mut last = None;
    for cube in cloud.points().map(cube) {
        // Most points are in the cube of the one before.
        if last.replace(cube) != Some(cube) {
            cubes.push(cube);
        }
    }
    cubes.sort_unstable();
    cubes.dedup();
    let area_per_point = cubes.len() as f32 / CUBES_PER_AREA / cloud.len().max(1) as f32;
    let spacing = (1 << CUBE_BITS) as f32 * area_per_point.sqrt();
    (SIDE_PER_SPACING * spacing).max(MIN_POINT_MM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Camera, Extrinsics, Performer, View};
    use proptest::prelude::*;
    use std::time::Duration;

    const LENS: Intrinsics = Intrinsics {
        width: 101,
        height: 81,
        fx: 100.0,
        fy: 100.0,
        cx: 50.0,
        cy: 40.0,
    };
    /// At the origin, towards negative z.
    const ORIGIN: Pose = Pose {
        position_mm: [0.0; 3],
        rotation: [0.0, 0.0, 0.0, 1.0],
    };
    const RED: [u8; 3] = [255, 0, 0];
    const BLUE: [u8; 3] = [0, 0, 255];

    fn points<const N: usize>(points: [([i16; 3], [u8; 3]); N]) -> Cloud {
        let point = |([x, y, z], [r, g, b]): ([i16; 3], [u8; 3])| Point { x, y, z, r, g, b };
        points.into_iter().map(point).collect()
    }

    fn render(cloud: &Cloud, pose: &Pose) -> Image {
        let renderer = Renderer::new(LENS).unwrap();
        renderer.with_point_mm(10.0).render(cloud, pose)
    }

    /// Returns the pixels that are not background.
    fn drawn(image: &Image) -> Vec<(usize, usize, [u8; 3])> {
        let pixels = image.rgb.as_chunks().0.iter().enumerate();
        let drawn = pixels.filter(|(_, color)| **color != DARK_GREY);
        drawn
            .map(|(at, color)| (at % image.width, at / image.width, *color))
            .collect()
    }

    #[test]
    fn a_point_lands_on_its_pixel() {
        // 0.2 m to the right and 0.1 m up at a distance of 1 m: 20 columns and 10 rows.
        let image = render(&points([([200, 100, -1000], RED)]), &ORIGIN);
        assert_eq!(drawn(&image), [(70, 30, RED)]);
        assert_eq!(image.pixel(70, 30), Some(RED));
        assert_eq!(image.pixel(101, 0), None);
        // At half of the distance, the side of 10 mm is 2 pixels.
        let image = render(&points([([100, 50, -500], RED)]), &ORIGIN);
        let square = [(70, 30, RED), (71, 30, RED), (70, 31, RED), (71, 31, RED)];
        assert_eq!(drawn(&image), square);
        // At 0.3 m it is 3.3, and only the first of 4 columns is in the picture.
        let image = render(&points([([153, 0, -300], RED)]), &ORIGIN);
        let edge: Vec<_> = (39..43).map(|row| (100, row, RED)).collect();
        assert_eq!(drawn(&image), edge);
    }

    #[test]
    fn two_pictures_are_put_together() {
        let left = render(&points([([200, 100, -1000], RED)]), &ORIGIN);
        let right = render(&points([([200, 100, -1000], BLUE)]), &ORIGIN);
        let both = left.beside(&right);
        assert_eq!((both.width(), both.height()), (202, 81));
        assert_eq!(drawn(&both), [(70, 30, RED), (171, 30, BLUE)]);
        let both = left.above(&right);
        assert_eq!((both.width(), both.height()), (101, 162));
        assert_eq!(drawn(&both), [(70, 30, RED), (70, 111, BLUE)]);
    }

    #[test]
    fn a_turned_viewer_sees_what_is_there() {
        let left = Pose::looking([0.0, 1000.0, 0.0], 90f32.to_radians(), 0.0);
        let cloud = points([([-1000, 1100, -200], RED), ([1000, 1000, 0], BLUE)]);
        assert_eq!(drawn(&render(&cloud, &left)), [(70, 30, RED)]);
    }

    #[test]
    fn what_is_nearer_hides_what_is_farther_in_any_order() {
        let (near, far) = (([0, 0, -900], RED), ([0, 0, -1000], BLUE));
        let image = render(&points([near, far]), &ORIGIN);
        assert!(drawn(&image).iter().all(|(_, _, color)| *color == RED));
        assert_eq!(image, render(&points([far, near]), &ORIGIN));
    }

    #[test]
    fn each_pixel_shows_the_nearest_middle_of_one_surface() {
        // Two points of one surface, 3 pixels apart and 4 wide.
        let cloud = points([([0, 0, -250], RED), ([8, 0, -250], BLUE)]);
        let image = render(&cloud, &ORIGIN);
        let row: Vec<_> = (49..55).map(|column| image.pixel(column, 40)).collect();
        let expected = [RED, RED, RED, BLUE, BLUE, BLUE];
        assert_eq!(row, expected.map(Some));
    }

    #[test]
    fn what_is_behind_or_too_near_is_left_out() {
        let cloud = points([([0, 0, 1000], RED), ([0, 0, -49], RED), ([0, 0, 0], RED)]);
        assert_eq!(drawn(&render(&cloud, &ORIGIN)), []);
    }

    #[test]
    fn a_pose_that_is_no_number_sees_nothing() {
        let cloud = points([([0, 0, -1000], RED)]);
        let poses = [
            Pose {
                position_mm: [0.0, f32::NAN, 0.0],
                ..ORIGIN
            },
            Pose {
                rotation: [f32::NAN; 4],
                ..ORIGIN
            },
            Pose {
                rotation: [0.0; 4],
                ..ORIGIN
            },
            Pose {
                rotation: [f32::INFINITY; 4],
                ..ORIGIN
            },
        ];
        for pose in poses {
            assert_eq!(drawn(&render(&cloud, &pose)), [], "{pose:?}");
        }
        assert_eq!(drawn(&render(&cloud, &ORIGIN)).len(), 1);
    }

    #[test]
    fn sizes_and_projections_that_are_none_are_refused() {
        let refused = |intrinsics| Renderer::new(intrinsics).unwrap_err();
        let size = |width, height| Intrinsics::centred(width, height, 100.0);
        for (width, height) in [(0, 10), (10, 0), (usize::MAX, 2), (4097, 4096)] {
            let error = refused(size(width, height));
            assert_eq!(error, RendererError::Size { width, height });
        }
        for focal in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let error = refused(Intrinsics { fy: focal, ..LENS });
            assert!(matches!(error, RendererError::Projection { .. }));
        }
    }

    #[test]
    fn a_camera_sees_what_it_captured() {
        let camera = Camera {
            intrinsics: LENS,
            extrinsics: Extrinsics {
                rotation: [[-0.5, 0.0, 0.866], [0.0, -1.0, 0.0], [0.866, 0.0, 0.5]],
                translation_mm: [280.97, 1400.0, 833.35],
            },
        };
        let mut depth = vec![0; 101 * 81];
        let mut color = vec![0; 3 * 101 * 81];
        let seen = [(3, 5, RED), (90, 60, BLUE)];
        for (column, row, rgb) in seen {
            let pixel = row * 101 + column;
            depth[pixel] = 1000 + pixel as u16 / 10;
            color[3 * pixel..][..3].copy_from_slice(&rgb);
        }
        let views = [View::new(camera, 1.0, color, depth).unwrap()];
        let renderer = Renderer::new(LENS).unwrap();
        let image = renderer
            .with_point_mm(1.0)
            .render(&View::merge(&views), &Pose::from(camera.extrinsics));
        assert_eq!(drawn(&image), seen);
    }

    #[test]
    fn sparse_surfaces_have_few_holes() {
        for count in [4000, 35_000, 184_000] {
            let cloud = Performer::new(1, count).cloud(Duration::ZERO);
            let mut renderer = Renderer::new(Intrinsics::centred(960, 720, 800.0)).unwrap();
            let pose = Pose::in_front_of(&cloud, renderer.intrinsics()).unwrap();
            let image = renderer.render(&cloud, &pose);
            // The chest and the stomach, far from every outline.
            let covered = (180..320)
                .flat_map(|row| (385..450).map(move |column| (column, row)))
                .filter(|(column, row)| image.pixel(*column, *row) != Some(DARK_GREY))
                .count();
            assert!(covered * 100 >= 65 * 140 * 98, "{count}: {covered}");
        }
    }

    #[test]
    fn the_picture_of_the_performer_does_not_change() {
        let cloud = Performer::new(1, 35_000).cloud(Duration::from_secs(1));
        let mut renderer = Renderer::new(Intrinsics::centred(240, 320, 200.0)).unwrap();
        let pose = Pose {
            position_mm: [0.0, 1200.0, 1800.0],
            ..ORIGIN
        };
        let image = renderer.render(&cloud, &pose);
        let digests = (cloud.digest(), image.digest());
        let expected = (Digest(0x3d1e17a698c7047b), Digest(0x154093c327cf7775));
        assert_eq!(digests, expected, "the points, and the picture");
        assert_eq!(renderer.render(&cloud, &pose), image, "drawn again");
    }

    fn any_points() -> impl Strategy<Value = Vec<Point>> {
        let point = |((x, y, z), (r, g, b))| Point { x, y, z, r, g, b };
        let near = -300i16..300;
        let near = (near.clone(), near.clone(), near);
        let position = prop_oneof![near, any::<(i16, i16, i16)>()];
        prop::collection::vec((position, any::<(u8, u8, u8)>()).prop_map(point), 0..60)
    }

    proptest! {
        #[test]
        fn any_cloud_from_any_pose_is_a_picture_whatever_the_order(
            points in any_points(),
            position_mm in prop_oneof![prop::array::uniform3(-500f32..500.0), any::<[f32; 3]>()],
            rotation in prop_oneof![prop::array::uniform4(-1f32..1.0), any::<[f32; 4]>()],
            point_mm in prop::option::of(any::<f32>()),
        ) {
            let mut renderer = Renderer::new(LENS).unwrap();
            renderer.point_mm = point_mm;
            let pose = Pose { position_mm, rotation };
            let image = renderer.render(&points.iter().copied().collect(), &pose);
            let reversed = renderer.render(&points.iter().rev().copied().collect(), &pose);
            prop_assert_eq!(image.rgb().len(), 3 * 101 * 81);
            prop_assert_eq!(&image, &reversed);
            let colors: Vec<[u8; 3]> = points.iter().map(|p| [p.r, p.g, p.b]).collect();
            for (_, _, color) in drawn(&image) {
                prop_assert!(colors.contains(&color));
            }
        }
    }
}
