//! Depth images without loss: the mask of the pixels that have a depth, then the difference of each
//! depth to a prediction from its neighbours, with shares of symbols that depend on how much these
//! differ.

use super::mask::{self, Changes};
use crate::ans::{self, Model};
use crate::bits::{BitReader, BitWriter};
use crate::huffman::InvalidCode;

/// Models of the differences, by the activity of the neighbourhood.
const ACTIVITIES: usize = 11;
/// A pixel with neighbours on all sides of its past, then one between two that are known, then any
/// other.
const CONTEXTS: usize = 2 * ACTIVITIES + 1;
const OTHER: usize = 2 * ACTIVITIES;

/// Symbols: small differences, then powers of two with the bits below the highest.
const SMALL: u32 = 32;
const SYMBOLS: usize = SMALL as usize + 12;

/// A depth image with its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plane {
    pub(super) width: usize,
    pub(super) depth: Vec<u16>,
}

/// Which pixels of a plane are coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pixels {
    All,
    /// All but those of even rows and columns, which are known already.
    Refinement,
}

impl Pixels {
    fn contain(self, row: usize, column: usize) -> bool {
        self == Pixels::All || !(row.is_multiple_of(2) && column.is_multiple_of(2))
    }
}

impl Plane {
    pub(super) fn height(&self) -> usize {
        self.depth.len() / self.width
    }

    /// Returns the pixels of even rows and columns.
    pub(super) fn halved(&self) -> Plane {
        let rows = self.depth.chunks(self.width).step_by(2);
        Plane {
            width: self.width.div_ceil(2),
            depth: rows
                .flat_map(|row| row.iter().step_by(2).copied())
                .collect(),
        }
    }

    /// The depth of a pixel relative to another, 0 outside of the image.
    #[inline]
    fn at(&self, row: usize, column: usize, down: isize, right: isize) -> i32 {
        let (row, column) = (
            row.wrapping_add_signed(down),
            column.wrapping_add_signed(right),
        );
        if column >= self.width {
            return 0;
        }
        let depth = self
            .depth
            .get(row.wrapping_mul(self.width).wrapping_add(column));
        depth.map_or(0, |depth| i32::from(*depth))
    }

    /// Predicts a depth, and chooses the model of the difference.
    #[inline]
    fn predict(&self, row: usize, column: usize, pixels: Pixels, last: i32) -> (i32, usize) {
        if pixels == Pixels::Refinement {
            let (a, b) = self.known_pair(row, column);
            let distance = (a - b).abs();
            // Between the sides of an edge in depth, one of them is the better prediction.
            if a != 0 && b != 0 && distance < a / 16 {
                return ((a + b) / 2, ACTIVITIES + bucket(2 * distance));
            }
        }
        let at = |down, right| self.at(row, column, down, right);
        let (left, up, corner) = (at(0, -1), at(-1, 0), at(-1, -1));
        if left != 0 && up != 0 && corner != 0 {
            let [right, further] = [(at(-1, 1), corner), (at(0, -2), left)].map(known_or);
            let activity = (left - corner).abs() + (up - corner).abs();
            let activity = activity + (up - right).abs() + (left - further).abs();
            return (median_edge(left, up, corner), bucket(activity));
        }
        let [left, up] = [(left, up), (up, left)].map(known_or);
        let predicted = if left == 0 { last } else { (left + up) / 2 };
        (predicted, OTHER)
    }

    /// Returns the two depths of a refinement between which a pixel is: those beside it, those above
    /// and below it, or that above and the mean of those diagonally below.
    #[inline]
    fn known_pair(&self, row: usize, column: usize) -> (i32, i32) {
        let at = |down, right| self.at(row, column, down, right);
        match (row % 2, column % 2) {
            (0, _) => (at(0, -1), at(0, 1)),
            (_, 0) => (at(-1, 0), at(1, 0)),
            _ => (at(-1, 0), (at(1, -1) + at(1, 1)) / 2),
        }
    }
}

#[inline]
fn known_or((depth, other): (i32, i32)) -> i32 {
    if depth == 0 { other } else { depth }
}

/// The predictor of LOCO-I (Weinberger, Seroussi and Sapiro, 2000, section III-A).
#[inline]
fn median_edge(left: i32, up: i32, corner: i32) -> i32 {
    if corner >= left.max(up) {
        left.min(up)
    } else if corner <= left.min(up) {
        left.max(up)
    } else {
        left + up - corner
    }
}

#[inline]
fn bucket(activity: i32) -> usize {
    match activity {
        0..=4 => activity as usize,
        5..=6 => 5,
        7..=8 => 6,
        9..=13 => 7,
        14..=25 => 8,
        26..=60 => 9,
        _ => 10,
    }
}

/// A difference in a symbol and the bits that follow it.
#[derive(Debug, Clone, Copy)]
struct Difference {
    context: u8,
    symbol: u8,
    low_bits: u8,
    low: u32,
}

impl Difference {
    #[inline]
    fn new(difference: i32, context: usize) -> Self {
        let value = (difference << 1 ^ difference >> 31) as u32;
        let (symbol, low_bits) = match value {
            0..SMALL => (value, 0),
            _ => (SMALL + value.ilog2() - SMALL.ilog2(), value.ilog2()),
        };
        Difference {
            context: context as u8,
            symbol: symbol as u8,
            low_bits: low_bits as u8,
            low: if low_bits == 0 {
                0
            } else {
                value & ((1 << low_bits) - 1)
            },
        }
    }
}

impl Difference {
    /// Returns the difference of a symbol, with the bits that follow it.
    #[inline]
    fn read(symbol: u32, from: &mut BitReader<'_>) -> i32 {
        let value = match symbol {
            0..SMALL => symbol,
            _ => {
                let bits = symbol - SMALL + SMALL.ilog2();
                1 << bits | from.take(bits) as u32
            }
        };
        (value >> 1) as i32 ^ -((value & 1) as i32)
    }
}

/// Writes the pixels of a plane. Returns the symbols, which a reader needs beside the bits.
pub(super) fn write(plane: &Plane, pixels: Pixels, to: &mut BitWriter) -> Vec<u8> {
    let rows = mask::of_rows(&plane.depth, plane.width);
    mask::write(&rows, plane.width, to);
    let mut differences = Vec::with_capacity(plane.depth.len() / 2);
    let mut counts = [[0; SYMBOLS]; CONTEXTS];
    each_pixel(&rows, pixels, |row, column, last| {
        let depth = i32::from(plane.depth[row * plane.width + column]);
        let (predicted, context) = plane.predict(row, column, pixels, last);
        let difference = Difference::new(depth - predicted, context);
        counts[context][usize::from(difference.symbol)] += 1;
        differences.push(difference);
        depth
    });
    let models = counts.map(|counts| Model::new(&counts));
    models.iter().for_each(|model| model.describe(to));
    let put_low = |of: &Difference| to.put(of.low.into(), of.low_bits.into());
    differences.iter().for_each(put_low);
    let symbols = differences.iter().map(|of| (of.context, of.symbol));
    ans::encode(&models, symbols)
}

/// Calls `each` with row, column and the depth before for each pixel with a depth; it returns the
/// depth.
#[inline]
fn each_pixel(rows: &[Changes], pixels: Pixels, mut each: impl FnMut(usize, usize, i32) -> i32) {
    let mut last = 0;
    for (row, changes) in rows.iter().enumerate() {
        for column in mask::runs(changes).flatten() {
            if pixels.contain(row, column) {
                last = each(row, column, last);
            }
        }
    }
}

/// Reads the pixels of a plane of at most 32,767 columns. For a refinement the plane has the pixels
/// that are known already. More than `most` pixels with a depth are refused before they are read, because a few
/// bytes may have all of them.
pub(super) fn read(
    plane: &mut Plane,
    pixels: Pixels,
    from: &mut BitReader<'_>,
    symbols: &[u8],
    most: usize,
) -> Result<(), InvalidCode> {
    let rows = mask::read(plane.width, plane.height(), from)?;
    let runs = rows.iter().flat_map(mask::runs);
    if runs.map(|run| run.len()).sum::<usize>() > most {
        return Err(InvalidCode);
    }
    let models: Result<Vec<_>, _> = (0..CONTEXTS)
        .map(|_| Model::<SYMBOLS>::read(from))
        .collect();
    let models = models?;
    let mut symbols = ans::Decoder::new(&models, symbols);
    each_pixel(&rows, pixels, |row, column, last| {
        let (predicted, context) = plane.predict(row, column, pixels, last);
        let difference = Difference::read(symbols.take(context) as u32, from);
        // A depth of 0 would be a pixel without depth; no encoder writes it.
        let depth = predicted.wrapping_add(difference).clamp(1, u16::MAX.into());
        plane.depth[row * plane.width + column] = depth as u16;
        depth
    });
    let is_whole = symbols.is_whole() && !from.is_overrun() && from.rest().is_empty();
    is_whole.then_some(()).ok_or(InvalidCode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(plane: &Plane, pixels: Pixels, (bits, symbols): &(Vec<u8>, Vec<u8>)) -> Plane {
        let mut found = plane.clone();
        for (at, depth) in found.depth.iter_mut().enumerate() {
            if pixels.contain(at / plane.width, at % plane.width) {
                *depth = 0;
            }
        }
        let mut reader = BitReader::new(bits);
        read(&mut found, pixels, &mut reader, symbols, usize::MAX).expect("an encoded plane");
        found
    }

    fn encoded(plane: &Plane, pixels: Pixels) -> (Vec<u8>, Vec<u8>) {
        let mut writer = BitWriter::default();
        let symbols = write(plane, pixels, &mut writer);
        (writer.finish(), symbols)
    }

    #[test]
    fn a_smooth_surface_takes_less_than_a_bit_a_pixel() {
        let pixel = |at: usize| (1000 + at % 100 / 3 + at / 100 / 2) as u16;
        let plane = Plane {
            width: 100,
            depth: (0..10_000).map(pixel).collect(),
        };
        let (bits, symbols) = encoded(&plane, Pixels::All);
        let bytes = bits.len() + symbols.len();
        assert!(bytes < 1250, "{bytes} bytes for 10,000 pixels");
    }

    proptest! {
        #[test]
        fn any_depths_are_read_as_they_were_written(
            depths in prop::collection::vec(prop_oneof![Just(0), 900u16..910, any::<u16>()], 1..900),
            width in 1usize..40,
            repeat in 1usize..5,
        ) {
            let rows = depths.len() * repeat / width;
            let depth: Vec<u16> = (0..rows * width).map(|at| depths[at / repeat]).collect();
            let plane = Plane { width, depth };
            for pixels in [Pixels::All, Pixels::Refinement] {
                prop_assert_eq!(&decoded(&plane, pixels, &encoded(&plane, pixels)), &plane);
            }
        }

        #[test]
        fn any_bytes_are_refused_or_depths(
            bits in prop::collection::vec(any::<u8>(), 0..500),
            symbols in prop::collection::vec(any::<u8>(), 0..50),
            width in 1usize..60,
        ) {
            let mut plane = Plane { width, depth: vec![0; width * 30] };
            let _ = read(&mut plane, Pixels::All, &mut BitReader::new(&bits), &symbols, usize::MAX);
            prop_assert_eq!(plane.depth.len(), width * 30);
        }
    }
}
