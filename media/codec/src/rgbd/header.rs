//! The bytes in front of a layer; `docs/design/codecs.md` draws them.

use super::Precision;
use crate::{Codec, DecodeError};
use hawser_cloud::{Camera, Extrinsics, Intrinsics, MAX_PIXELS, View};

/// The maximum number of columns and of rows of a view.
pub const MAX_SIDE: usize = 8192;

/// Numbers of a camera: intrinsics, pose, and the unit of depths.
const CAMERA_VALUES: usize = 4 + 9 + 3 + 1;
const COMMON_BYTES: usize = 8;
const CAMERA_BYTES: usize = 4 * CAMERA_VALUES;

/// The layer of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The only layer.
    Whole = 0,
    /// Even rows and columns.
    Base = 1,
    /// The other pixels.
    Refinement = 2,
}

/// The fields in front of each layer. The camera is that of the decoded view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) depth_shift: u8,
    /// Columns and rows of the whole view.
    size: (usize, usize),
    pub(super) camera: Camera,
    pub(super) unit_mm: f32,
}

impl Header {
    /// # Panics
    /// If the view is too large.
    pub(super) fn of(view: &View, kind: Kind, depth_shift: u8) -> Self {
        let size = view.size();
        assert!(is_valid_size(size), "a view of {size:?} pixels");
        Header {
            kind,
            depth_shift,
            size,
            camera: *view.camera(),
            unit_mm: view.unit_mm(),
        }
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        let [[w0, w1], [h0, h1]] =
            [self.size.0, self.size.1].map(|side| (side as u16).to_be_bytes());
        let common = [
            Codec::Rgbd.tag(),
            self.kind as u8,
            self.depth_shift,
            0,
            w0,
            w1,
            h0,
            h1,
        ];
        let mut bytes = common.to_vec();
        if self.kind != Kind::Refinement {
            let values = values(&self.camera, self.unit_mm);
            bytes.extend(values.iter().flat_map(|value| value.to_be_bytes()));
        }
        bytes
    }

    /// Parses a header and returns what follows it.
    pub(super) fn parse(part: &[u8]) -> Result<(Header, &[u8]), DecodeError> {
        if part.first() != Some(&Codec::Rgbd.tag()) {
            return Err(DecodeError::Tag(Codec::Rgbd));
        }
        parse(part).ok_or(DecodeError::Malformed("not the header of a view's layer"))
    }

    /// Returns columns and rows of the pixels of the layer and those below it.
    pub(super) fn plane_size(&self) -> (usize, usize) {
        match self.kind {
            Kind::Base => half(self.size),
            Kind::Whole | Kind::Refinement => self.size,
        }
    }

    pub(super) fn is_refined_by(&self, above: &Header) -> bool {
        let is_same = (self.size, self.depth_shift) == (above.size, above.depth_shift);
        is_same && self.kind == Kind::Base
    }

    /// Returns the header of a base layer with its refinement: the camera has all pixels.
    pub(super) fn refined(mut self) -> Self {
        self.camera.intrinsics = scaled(self.camera.intrinsics, 2.0, self.size);
        self
    }
}

fn parse(part: &[u8]) -> Option<(Header, &[u8])> {
    let (common, rest) = part.split_first_chunk::<COMMON_BYTES>()?;
    let [_, kind, depth_shift, _, w0, w1, h0, h1] = *common;
    let mut kinds = [Kind::Whole, Kind::Base, Kind::Refinement].into_iter();
    let kind = kinds.find(|known| *known as u8 == kind)?;
    let side = |bytes| usize::from(u16::from_be_bytes(bytes));
    let size = (side([w0, w1]), side([h0, h1]));
    if !is_valid_size(size) || depth_shift > Precision::MAX_SHIFT {
        return None;
    }
    let (camera, rest) = match kind {
        Kind::Refinement => (&[0; CAMERA_BYTES], rest),
        Kind::Whole | Kind::Base => rest.split_first_chunk()?,
    };
    let (camera, unit_mm) = camera_of(camera, size, kind);
    let header = Header {
        kind,
        depth_shift,
        size,
        camera,
        unit_mm,
    };
    Some((header, rest))
}

/// Returns whether a view of so many columns and rows can be encoded.
pub fn is_valid_size((width, height): (usize, usize)) -> bool {
    let sides = 1..=MAX_SIDE;
    sides.contains(&width) && sides.contains(&height) && width * height <= MAX_PIXELS
}

fn values(camera: &Camera, unit_mm: f32) -> [f32; CAMERA_VALUES] {
    let Intrinsics { fx, fy, cx, cy, .. } = camera.intrinsics;
    let Extrinsics {
        rotation: [[a, b, c], [d, e, f], [g, h, i]],
        translation_mm: [x, y, z],
    } = camera.extrinsics;
    [fx, fy, cx, cy, a, b, c, d, e, f, g, h, i, x, y, z, unit_mm]
}

/// Returns the camera of a layer's pixels and those below, and the unit of depths.
fn camera_of(bytes: &[u8; CAMERA_BYTES], size: (usize, usize), kind: Kind) -> (Camera, f32) {
    let mut values = [0.0; CAMERA_VALUES];
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        *value = f32::from_be_bytes(*bytes);
    }
    let [fx, fy, cx, cy, rest @ ..] = values;
    let [a, b, c, d, e, f, g, h, i, x, y, z, unit_mm] = rest;
    let extrinsics = Extrinsics {
        rotation: [[a, b, c], [d, e, f], [g, h, i]],
        translation_mm: [x, y, z],
    };
    let camera = Camera {
        intrinsics: intrinsics([fx, fy, cx, cy], size, kind),
        extrinsics,
    };
    (camera, unit_mm)
}

fn intrinsics([fx, fy, cx, cy]: [f32; 4], size: (usize, usize), kind: Kind) -> Intrinsics {
    let (width, height) = size;
    let whole = Intrinsics {
        width,
        height,
        fx,
        fy,
        cx,
        cy,
    };
    match kind {
        Kind::Base => scaled(whole, 0.5, half(size)),
        Kind::Whole | Kind::Refinement => whole,
    }
}

/// Returns the size of every other column and row.
fn half((width, height): (usize, usize)) -> (usize, usize) {
    (width.div_ceil(2), height.div_ceil(2))
}

/// Returns the intrinsics of an image that is larger by a factor: the first pixels are the same.
fn scaled(of: Intrinsics, factor: f32, (width, height): (usize, usize)) -> Intrinsics {
    Intrinsics {
        width,
        height,
        fx: of.fx * factor,
        fy: of.fy * factor,
        cx: of.cx * factor,
        cy: of.cy * factor,
    }
}
