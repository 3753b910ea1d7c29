//! The bytes in front of a chunk or of a parity chunk; `docs/design/codecs.md` draws them.

use super::Precision;
use super::order::Grid;
use super::run::MAX_POINTS;
use crate::Codec;

/// Length of the header of a chunk; that of a parity chunk is shorter.
pub(super) const HEADER_BYTES: usize = 15;
/// Length of the fields that both kinds have: tag, slice and layer, number and total.
pub(super) const COMMON_BYTES: usize = 6;
/// Set beside slice and layer in a parity chunk.
const PARITY: u8 = 0x80;
/// The bits of the layer, below those of the slice.
const LAYER_BITS: u32 = 3;
const LAYER_MASK: u8 = (1 << LAYER_BITS) - 1;
/// The maximum number of slices of a layer.
pub(super) const MAX_SLICES: u8 = 16;

/// A slice of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SliceId {
    pub(super) layer: u8,
    /// Counts from 0 in each layer.
    pub(super) number: u8,
}

/// The position of a part within its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slice: SliceId,
    pub(super) is_parity: bool,
    /// The number of the chunk within the slice, or of the parity chunk's group.
    pub(super) number: u16,
    /// The number of chunks of the slice, without parity chunks.
    pub(super) total: u16,
}

impl Place {
    pub(super) fn to_bytes(self) -> [u8; COMMON_BYTES] {
        let parity = if self.is_parity { PARITY } else { 0 };
        let kind = parity | self.slice.number << LAYER_BITS | self.slice.layer;
        let ([n0, n1], [t0, t1]) = (self.number.to_be_bytes(), self.total.to_be_bytes());
        [Codec::Chunks.tag(), kind, n0, n1, t0, t1]
    }

    /// Parses the fields and returns what follows them; `None` if they are not valid.
    pub(super) fn parse(part: &[u8]) -> Option<(Place, &[u8])> {
        let ([tag, kind, n0, n1, t0, t1], rest) = part.split_first_chunk()?;
        let place = Place {
            slice: SliceId {
                layer: kind & LAYER_MASK,
                number: (kind & !PARITY) >> LAYER_BITS,
            },
            is_parity: kind & PARITY != 0,
            number: u16::from_be_bytes([*n0, *n1]),
            total: u16::from_be_bytes([*t0, *t1]),
        };
        let is_valid = *tag == Codec::Chunks.tag() && place.number < place.total;
        is_valid.then_some((place, rest))
    }
}

/// The fields of a chunk after its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The number of points, at most [`MAX_POINTS`]; 0 in the only chunk of an empty frame.
    pub(super) points: u16,
    pub(super) grid: Grid,
    /// Binary logarithm of the steps of colours.
    pub(super) color_shift: u8,
}

impl Header {
    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES - COMMON_BYTES] {
        let [p0, p1] = self.points.to_be_bytes();
        let [[x0, x1], [y0, y1], [z0, z1]] = self.grid.corner.map(i16::to_be_bytes);
        let shifts = self.grid.shift << 4 | self.color_shift;
        [p0, p1, shifts, x0, x1, y0, y1, z0, z1]
    }

    /// Parses the header and returns the run of points that follows it; `None` if it is not valid.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Header, &[u8])> {
        let ([p0, p1, shifts, x0, x1, y0, y1, z0, z1], run) = bytes.split_first_chunk()?;
        let header = Header {
            points: u16::from_be_bytes([*p0, *p1]),
            grid: Grid {
                corner: [[*x0, *x1], [*y0, *y1], [*z0, *z1]].map(i16::from_be_bytes),
                shift: shifts >> 4,
            },
            color_shift: shifts & 0x0f,
        };
        let is_valid = header.points <= MAX_POINTS
            && header.grid.shift <= Grid::MAX_SHIFT
            && header.color_shift <= Precision::MAX_COLOR;
        is_valid.then_some((header, run))
    }
}
