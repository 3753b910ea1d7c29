//! Where a depth image has depths, row by row, as facsimile machines send black and white
//! (ITU-T T.6): each change of a row is given by the changes of the row above.

use crate::bits::{BitReader, BitWriter};
use crate::huffman::{Code, InvalidCode, Table};

/// A change at most three columns from that above, as distance plus 3; else one of the two others.
const MODES: usize = 9;
const REACH: i32 = 3;
/// The two changes above are both passed over.
const PASS: usize = 7;
/// The next two changes are given by their distances.
const HORIZONTAL: usize = 8;
/// Bits of the number of bits of a distance.
const LENGTH_BITS: u32 = 4; // columns below 32,768

/// The columns of a row at which depths begin and end in turn.
pub(super) type Changes = Vec<u16>;

/// Returns the changes of each row.
pub(super) fn of_rows(depth: &[u16], width: usize) -> Vec<Changes> {
    let row = |row: &[u16]| {
        let mut changes = Changes::new();
        let mut inside = false;
        for (column, depth) in (0..).zip(row) {
            if (*depth != 0) != inside {
                inside = !inside;
                changes.push(column);
            }
        }
        if inside {
            changes.push(row.len() as u16);
        }
        changes
    };
    depth.chunks(width).map(row).collect()
}

/// Returns the columns with depth of a row.
pub(super) fn runs(changes: &Changes) -> impl Iterator<Item = std::ops::Range<usize>> {
    let runs = changes.as_chunks().0.iter();
    runs.map(|[start, end]| usize::from(*start)..usize::from(*end))
}

/// A position in a row while it is coded.
struct Cursor<'a> {
    above: &'a [u16],
    /// The first change above to the right of `at`.
    next: usize,
    width: u16,
    /// The last change of the row, or where a pass ended; none at the beginning (a0 of T.6).
    at: Option<u16>,
    inside: bool,
}

impl<'a> Cursor<'a> {
    fn new(above: &'a [u16], width: u16) -> Self {
        Cursor {
            above,
            next: 0,
            width,
            at: None,
            inside: false,
        }
    }

    /// Returns the first change above to the right that goes the same way as the next change of the
    /// row, and the one after it (b1 and b2 of T.6).
    fn above(&mut self) -> (u16, u16) {
        let is_left = |change: &&u16| self.at.is_some_and(|at| **change <= at);
        self.next += self.above[self.next..].iter().take_while(is_left).count();
        let first = self.next + ((self.next ^ usize::from(self.inside)) & 1);
        let change = |index: usize| self.above.get(index).copied().unwrap_or(self.width);
        (change(first), change(first + 1))
    }

    fn start(&self) -> u16 {
        self.at.unwrap_or(0)
    }

    fn change(&mut self, at: u16) {
        self.at = Some(at);
        self.inside = !self.inside;
    }

    /// Returns whether a change may be at `at`.
    fn may_change(&self, at: u16) -> bool {
        at <= self.width && self.at.is_none_or(|last| at > last)
    }
}

/// A mode, and the distances of the horizontal one.
type Step = (u8, u16, u16);

/// Appends the steps of a row.
fn steps_of_row(changes: &[u16], above: &[u16], width: u16, steps: &mut Vec<Step>) {
    let mut cursor = Cursor::new(above, width);
    let mut rest = changes.iter().copied();
    let mut next = || rest.next().unwrap_or(width);
    let mut change = next();
    while cursor.at.is_none_or(|at| at < width) {
        let (first, second) = cursor.above();
        let distance = i32::from(change) - i32::from(first);
        if second < change {
            steps.push((PASS as u8, 0, 0));
            cursor.at = Some(second);
            continue;
        }
        if distance.abs() <= REACH {
            steps.push(((distance + REACH) as u8, 0, 0));
            cursor.change(change);
        } else {
            let last = if change < width { next() } else { width };
            steps.push((HORIZONTAL as u8, change - cursor.start(), last - change));
            cursor.at = Some(last);
        }
        change = next();
    }
}

/// Writes the changes of all rows.
pub(super) fn write(rows: &[Changes], width: usize, to: &mut BitWriter) {
    let (width, mut steps) = (width as u16, Vec::new());
    let mut above: &[u16] = &[];
    for row in rows {
        steps_of_row(row, above, width, &mut steps);
        above = row;
    }
    let mut counts = [0; MODES];
    steps
        .iter()
        .for_each(|(mode, ..)| counts[usize::from(*mode)] += 1);
    let code = Code::new(&counts);
    code.describe(to);
    for (mode, first, second) in steps {
        let (word, bits) = code.word(mode.into());
        to.put(word, bits);
        if usize::from(mode) == HORIZONTAL {
            put_distance(first, to);
            put_distance(second, to);
        }
    }
}

fn put_distance(distance: u16, to: &mut BitWriter) {
    let bits = u16::BITS - distance.leading_zeros();
    to.put(bits.into(), LENGTH_BITS);
    to.put(distance.into(), bits);
}

/// Reads the changes of `rows` rows of at most 32,767 columns.
pub(super) fn read(
    width: usize,
    rows: usize,
    from: &mut BitReader<'_>,
) -> Result<Vec<Changes>, InvalidCode> {
    let mut table = Table::<MODES>::new();
    table.read(from, |mode| mode as u32)?;
    let mut all: Vec<Changes> = Vec::with_capacity(rows);
    for _ in 0..rows {
        let above = all.last().map_or(&[][..], Vec::as_slice);
        let row = read_row(above, width as u16, &table, from).ok_or(InvalidCode)?;
        all.push(row);
    }
    Ok(all)
}

fn read_row(
    above: &[u16],
    width: u16,
    table: &Table<MODES>,
    from: &mut BitReader<'_>,
) -> Option<Changes> {
    let mut row = Changes::new();
    let mut cursor = Cursor::new(above, width);
    loop {
        from.refill();
        let (first, second) = cursor.above();
        let last = match table.take(from) as usize {
            PASS if second >= width => return None,
            PASS => {
                cursor.at = Some(second);
                continue;
            }
            HORIZONTAL => read_pair(&mut cursor, &mut row, from)?,
            mode => change_near(first, mode, &mut cursor, &mut row)?,
        };
        if last == width {
            return Some(row);
        }
    }
}

/// Changes at most three columns from `first`.
fn change_near(first: u16, mode: usize, cursor: &mut Cursor<'_>, row: &mut Changes) -> Option<u16> {
    let at = u16::try_from(i32::from(first) + mode as i32 - REACH).ok()?;
    if !cursor.may_change(at) {
        return None;
    }
    push(row, at, cursor.inside, cursor.width);
    cursor.change(at);
    Some(at)
}

/// Reads two changes, the second only if the first is within the row. Returns the last.
fn read_pair(cursor: &mut Cursor<'_>, row: &mut Changes, from: &mut BitReader<'_>) -> Option<u16> {
    let mut at = cursor.start();
    let inside = cursor.inside;
    for inside in [inside, !inside] {
        let bits = from.take(LENGTH_BITS) as u32;
        at = at.checked_add(from.take(bits) as u16)?;
        if at == cursor.width && cursor.at == Some(at) {
            break;
        }
        if !cursor.may_change(at) {
            return None;
        }
        push(row, at, inside, cursor.width);
        cursor.at = Some(at);
    }
    Some(at)
}

/// Appends a change. A row without depth at its end has none there.
fn push(row: &mut Changes, at: u16, inside: bool, width: u16) {
    if at < width || inside {
        row.push(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(depth: &[u16], width: usize) -> usize {
        let rows = of_rows(depth, width);
        let mut writer = BitWriter::default();
        write(&rows, width, &mut writer);
        let bytes = writer.finish();
        let mut reader = BitReader::new(&bytes);
        assert_eq!(read(width, rows.len(), &mut reader), Ok(rows));
        assert!(!reader.is_overrun() && reader.rest().is_empty());
        bytes.len()
    }

    #[test]
    fn a_disc_takes_six_bits_a_row() {
        let inside = |row: i32, column: i32| (row - 100).pow(2) + (column - 100).pow(2) < 8000;
        let pixel = |at: i32| u16::from(inside(at / 200, at % 200));
        let disc: Vec<u16> = (0..200 * 200).map(pixel).collect();
        let bytes = round_trip(&disc, 200);
        assert!(bytes < 170, "{bytes} bytes for 200 rows");
        assert!(round_trip(&[0; 200 * 200], 200) < 4);
        assert!(round_trip(&[1; 200 * 200], 200) < 70);
    }

    proptest! {
        #[test]
        fn any_mask_is_read_as_it_was_written(
            pixels in prop::collection::vec(any::<bool>(), 1..600),
            width in 1usize..70,
            spread in 1usize..9,
        ) {
            // Wide runs and narrow ones.
            let rows = pixels.len() * spread / width;
            let depth: Vec<u16> = (0..rows * width).map(|at| pixels[at / spread].into()).collect();
            round_trip(&depth, width);
        }

        #[test]
        fn any_bytes_are_refused_or_rows_of_the_width(bytes in prop::collection::vec(any::<u8>(), 0..200), width in 1usize..100) {
            let mut reader = BitReader::new(&bytes);
            if let Ok(rows) = read(width, 20, &mut reader) {
                for row in &rows {
                    prop_assert!(row.len().is_multiple_of(2) && row.is_sorted_by(|a, b| a < b));
                    prop_assert!(row.last().is_none_or(|last| usize::from(*last) <= width));
                }
            }
        }
    }
}
