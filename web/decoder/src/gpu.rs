//! The newest frame and the viewer's place in the form in which a GPU draws them.

use crate::Orbit;
use hawser_cloud::{Camera, Cloud, Intrinsics, View};

/// The columns of a matrix for homogeneous coordinates.
pub type Matrix = [[f32; 4]; 4];

/// The distances along the optical axis between which a GPU draws, in millimetres.
const DEPTH_MM: std::ops::RangeInclusive<f32> = 50.0..=1e6;

/// The tangent of the angle from which on a surface between neighbouring pixels is taken for a jump to another one.
const JUMP: f32 = 20.0;

/// The view or the points of a track.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Part<'a> {
    /// A surface through the pixels of a view.
    View {
        /// Depths and colours.
        view: &'a View,
        /// The triangles: three pixels each, which are counted row by row.
        triangles: &'a [u32],
    },
    /// Points.
    Points {
        /// The points.
        cloud: &'a Cloud,
        /// The side of a point in millimetres.
        side_mm: f32,
    },
}

/// Returns the matrix to the clip coordinates of a picture from what a vertex has: `(column, row, 1) * depth` and 1 for a
/// pixel of a view, with the depth in its units, or else the position of a point.
pub(crate) fn to_clip(orbit: &Orbit, lens: &Intrinsics, view: Option<&View>) -> Matrix {
    let from_world = world_to_clip(orbit, lens);
    match view {
        Some(view) => product(&from_world, &pixels_to_world(view.camera(), view.unit_mm())),
        None => from_world,
    }
}

/// Replaces `triangles` with those between neighbouring pixels of a view, except where the depth jumps.
pub(crate) fn connect(view: &View, triangles: &mut Vec<u32>) {
    triangles.clear();
    let (width, _) = view.size();
    let jump = JUMP / view.camera().intrinsics.fx;
    let rows = view.depth().chunks_exact(width);
    for (row, (above, below)) in rows.clone().zip(rows.skip(1)).enumerate() {
        let cells = above.windows(2).zip(below.windows(2));
        for (column, (above, below)) in cells.enumerate() {
            let depths = [above[0], above[1], below[0], below[1]];
            if depths.iter().filter(|depth| **depth != 0).count() < 3 {
                continue;
            }
            let first = (row * width + column) as u32;
            let pixels = [
                first,
                first + 1,
                first + width as u32,
                first + width as u32 + 1,
            ];
            for corners in split(depths) {
                if is_surface(corners.map(|corner| depths[corner]), jump) {
                    triangles.extend(corners.map(|corner| pixels[corner]));
                }
            }
        }
    }
}

/// Splits four pixels along the diagonal with the smaller step of depth.
fn split([a, b, c, d]: [u16; 4]) -> [[usize; 3]; 2] {
    if a.abs_diff(d) < b.abs_diff(c) {
        [[0, 2, 3], [0, 3, 1]]
    } else {
        [[0, 2, 1], [1, 2, 3]]
    }
}

/// Returns whether the depths of three neighbours are those of one surface: differences are up to `jump` as a share of
/// the depth.
fn is_surface(depths: [u16; 3], jump: f32) -> bool {
    let [a, b, c] = depths;
    let (least, most) = (a.min(b).min(c), a.max(b).max(c));
    least != 0 && f32::from(most - least) <= jump * f32::from(least)
}

/// Returns the matrix from positions in millimetres to clip coordinates (OpenGL: x to the right, y upwards, z forward).
fn world_to_clip(orbit: &Orbit, lens: &Intrinsics) -> Matrix {
    let (near, far) = (*DEPTH_MM.start(), *DEPTH_MM.end());
    let position = orbit.position_mm();
    let [right, up, back] = orbit.axes();
    let row = |axis: [f32; 3], scale: f32, offset: f32| {
        let to_axis: f32 = axis.iter().zip(position).map(|(a, p)| a * p).sum();
        [
            scale * axis[0],
            scale * axis[1],
            scale * axis[2],
            offset - scale * to_axis,
        ]
    };
    let rows = [
        row(right, 2.0 * lens.fx / lens.width as f32, 0.0),
        row(up, 2.0 * lens.fy / lens.height as f32, 0.0),
        row(
            back,
            -(far + near) / (far - near),
            -2.0 * far * near / (far - near),
        ),
        row(back, -1.0, 0.0),
    ];
    std::array::from_fn(|column| rows.map(|row| row[column]))
}

/// Returns the matrix from `(column, row, 1) * depth` in units, and 1, to positions in millimetres.
fn pixels_to_world(camera: &Camera, unit_mm: f32) -> Matrix {
    let Intrinsics { fx, fy, cx, cy, .. } = camera.intrinsics;
    let [x, y, z] = camera.extrinsics.translation_mm;
    let in_camera = [
        [unit_mm / fx, 0.0, 0.0],
        [0.0, unit_mm / fy, 0.0],
        [-cx / fx * unit_mm, -cy / fy * unit_mm, unit_mm],
        [-x, -y, -z],
    ];
    let rotation = camera.extrinsics.rotation;
    let in_world = |[x, y, z]: [f32; 3], w: f32| {
        // The inverse of a rotation is its transpose.
        let axis =
            |axis: usize| rotation[0][axis] * x + rotation[1][axis] * y + rotation[2][axis] * z;
        [axis(0), axis(1), axis(2), w]
    };
    let [column, row, depth, one] = in_camera;
    [
        in_world(column, 0.0),
        in_world(row, 0.0),
        in_world(depth, 0.0),
        in_world(one, 1.0),
    ]
}

fn product(a: &Matrix, b: &Matrix) -> Matrix {
    b.map(|column| transformed(a, column))
}

fn transformed(matrix: &Matrix, [x, y, z, w]: [f32; 4]) -> [f32; 4] {
    let [a, b, c, d] = matrix;
    std::array::from_fn(|row| a[row] * x + b[row] * y + c[row] * z + d[row] * w)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::{Extrinsics, Point, Renderer};

    const SIZE: (usize, usize) = (101, 81);

    /// A view with these depths in units of half a millimetre.
    fn view(width: usize, height: usize, depth: &[u16]) -> View {
        let camera = Camera {
            intrinsics: Intrinsics::centred(width, height, 20.0),
            extrinsics: Extrinsics {
                rotation: [[-0.6, 0.0, 0.8], [0.0, -1.0, 0.0], [0.8, 0.0, 0.6]],
                translation_mm: [25.0, 400.0, 1010.0],
            },
        };
        let color = [200, 90, 10].repeat(depth.len());
        View::new(camera, 0.5, color, depth.to_vec()).unwrap()
    }

    fn triangles(width: usize, height: usize, depth: &[u16]) -> Vec<u32> {
        let mut triangles = vec![99];
        connect(&view(width, height, depth), &mut triangles);
        triangles
    }

    /// Returns column and row of the pixel of clip coordinates.
    fn pixel([x, y, z, w]: [f32; 4]) -> [f32; 2] {
        assert!(w > 0.0 && (-w..=w).contains(&z), "z {z} of {w}");
        [
            (x / w + 1.0) / 2.0 * SIZE.0 as f32 - 0.5,
            (1.0 - y / w) / 2.0 * SIZE.1 as f32 - 0.5,
        ]
    }

    #[test]
    fn it_lands_where_the_renderer_draws_it() {
        let mut depth = vec![0; 40 * 30];
        (depth[10 * 40 + 12], depth[20 * 40 + 26]) = (2050, 1950);
        let view = view(40, 30, &depth);
        let cloud = View::merge(std::slice::from_ref(&view));
        let lens = Intrinsics::centred(SIZE.0, SIZE.1, 80.0);
        let mut orbit = Orbit::in_front_of(&cloud, &lens).unwrap();
        orbit.turn(0.0, 0.0, 1.3);
        let mut renderer = Renderer::new(lens).unwrap().with_point_mm(0.1);
        for _ in 0..3 {
            for (point, (column, row, depth)) in
                cloud.points().zip([(12, 10, 2050), (26, 20, 1950)])
            {
                let picture = renderer.render(&[point].into_iter().collect(), &orbit.pose());
                let pixels = 0..SIZE.0 * SIZE.1;
                let is_drawn =
                    |at: &usize| picture.pixel(at % SIZE.0, at / SIZE.0) != Some([32; 3]);
                let at = pixels.clone().find(is_drawn).expect("it is seen");
                let depth = depth as f32;
                let vertex = [column as f32 * depth, row as f32 * depth, depth, 1.0];
                let Point { x, y, z, .. } = point;
                let position = [f32::from(x), f32::from(y), f32::from(z), 1.0];
                for (view, vertex) in [(Some(&view), vertex), (None, position)] {
                    let to_clip = to_clip(&orbit, &lens, view);
                    let [column, row] = pixel(transformed(&to_clip, vertex));
                    let (to_column, to_row) = ((at % SIZE.0) as f32, (at / SIZE.0) as f32);
                    let is_near = (column - to_column).abs() < 0.7 && (row - to_row).abs() < 0.7;
                    assert!(is_near, "{column}, {row} instead of {to_column}, {to_row}");
                }
            }
            orbit.turn(0.4, -0.2, 1.1);
            orbit.pan(0.05, -0.05);
        }
    }

    #[test]
    fn four_neighbours_are_two_triangles() {
        assert_eq!(triangles(2, 2, &[1000; 4]), [0, 2, 1, 1, 2, 3]);
        let saddle = [1000, 1100, 1010, 1000];
        assert_eq!(triangles(2, 2, &saddle), [0, 2, 3, 0, 3, 1]);
        assert_eq!(triangles(3, 2, &[1000; 6]).len(), 4 * 3);
    }

    #[test]
    fn a_hole_or_a_jump_is_cut() {
        assert_eq!(triangles(2, 2, &[1000, 1000, 1000, 0]), [0, 2, 1]);
        assert_eq!(triangles(2, 2, &[0, 1000, 1000, 1000]), [1, 2, 3]);
        assert_eq!(triangles(2, 2, &[1000, 0, 1000, 1000]), [0, 2, 3]);
        assert_eq!(triangles(2, 2, &[1000, 1000, 0, 1000]), [0, 3, 1]);
        assert_eq!(triangles(2, 2, &[1000, 0, 0, 1000]), []);
        assert_eq!(triangles(2, 2, &[1000, 1000, 1000, 2100]), [0, 2, 1]);
        assert_eq!(triangles(2, 2, &[1000, 2100, 1000, 2100]), []);
        assert_eq!(triangles(1, 2, &[1000; 2]), []);
    }
}
