//! Points in Morton order (G. M. Morton, 1966): the bits of the coordinates interleaved, so that
//! points with close keys are close to each other.

use hawser_cloud::{Cloud, Point};

/// Bits of the colour in a sorted word; the key is above them.
const COLOR_BITS: u32 = 24;
/// Bits of a digit of the radix sort.
const DIGIT_BITS: u32 = 11;
const DIGITS: usize = 1 << DIGIT_BITS;

/// A point as it is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keyed {
    pub(crate) key: u64,
    pub(crate) rgb: [u8; 3],
}

/// The grid of a cloud: coordinates count from a corner in steps of 1, 2, 4, ... millimetres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid {
    /// The least coordinate of each axis, in millimetres.
    pub(crate) corner: [i16; 3],
    /// Binary logarithm of the step in millimetres.
    pub(crate) shift: u8,
}

impl Grid {
    /// The maximum of `shift`: steps of 64 mm.
    pub(crate) const MAX_SHIFT: u8 = 6;

    /// Returns the grid of the points of a cloud.
    fn of(cloud: &Cloud, shift: u8) -> Self {
        let mut corner = [i16::MAX; 3];
        for Point { x, y, z, .. } in cloud.points() {
            corner = [corner[0].min(x), corner[1].min(y), corner[2].min(z)];
        }
        Grid { corner, shift }
    }

    #[inline]
    fn key(self, point: Point) -> u64 {
        let step = |axis: usize, value: i16| {
            spread((i32::from(value) - i32::from(self.corner[axis])) as u64 >> self.shift)
        };
        step(0, point.x) | step(1, point.y) << 1 | step(2, point.z) << 2
    }

    /// Returns the position of a key: the middle of its cell. Out of range, it is moved to the last
    /// position in range.
    pub(crate) fn position(self, key: u64) -> [i16; 3] {
        self.unlimited(key)
            .map(|value| value.min(i16::MAX.into()) as i16)
    }

    #[inline]
    fn unlimited(self, key: u64) -> [i32; 3] {
        let middle = (1 << self.shift) >> 1;
        let value = |axis: usize| {
            let steps = gather(key >> axis) << self.shift;
            i32::from(self.corner[axis]) + steps as i32 + middle
        };
        [value(0), value(1), value(2)]
    }
}

/// The positions of keys that mostly are close to the one before: those in the same cell differ in
/// few bits.
#[derive(Debug)]
pub(crate) struct Positions {
    grid: Grid,
    /// The upper bits of the keys in the cell.
    cell: u64,
    /// The coordinates of the first key of the cell in 16 bits each, x lowest, plus 2^15, so that sums
    /// with the coordinates within the cell have no carry.
    origin: u64,
}

impl Positions {
    const CELL_BITS: u32 = 18;

    pub(crate) fn new(grid: Grid) -> Self {
        Positions {
            grid,
            cell: u64::MAX,
            origin: 0,
        }
    }

    /// Returns what [`Grid::position`] does, in 16 bits each, x lowest.
    #[inline]
    pub(crate) fn of(&mut self, key: u64) -> u64 {
        let cell = key >> Positions::CELL_BITS;
        if cell != self.cell {
            let Some(origin) = self.grid.origin(cell) else {
                return joined(self.grid.position(key));
            };
            (self.cell, self.origin) = (cell, origin);
        }
        let [low, high] = [key, key >> 9].map(|bits| GATHERED[bits as usize % GATHERED.len()]);
        (self.origin + ((low | high << 3) << self.grid.shift)) ^ OFFSETS
    }
}

impl Grid {
    /// Returns [`Positions::origin`], or `None` if a part of the cell is out of range.
    #[inline(never)]
    fn origin(self, cell: u64) -> Option<u64> {
        let first = cell << Positions::CELL_BITS;
        let last = first | ((1 << Positions::CELL_BITS) - 1);
        let [first, last] = [first, last].map(|key| self.unlimited(key));
        let is_inside = last.iter().all(|value| *value <= i16::MAX.into());
        is_inside.then(|| joined(first.map(|value| value as i16)) ^ OFFSETS)
    }
}

fn joined(position: [i16; 3]) -> u64 {
    let [x, y, z] = position.map(|value| u64::from(value as u16));
    x | y << 16 | z << 32
}

/// 2^15 in each of three times 16 bits.
const OFFSETS: u64 = 0x8000_8000_8000;

/// The bits of each number of 9 bits, gathered for each axis and in 16 bits each, x lowest.
const GATHERED: [u64; 512] = {
    let mut gathered = [0; 512];
    let mut bit = 0;
    while bit < 512 * 9 {
        let (number, at) = (bit / 9, bit % 9);
        gathered[number] |= (number as u64 >> at & 1) << (at / 3 + 16 * (at % 3));
        bit += 1;
    }
    gathered
};

/// Each number of 8 bits with two zero bits between its bits.
const SPREAD: [u32; 256] = {
    let mut spread = [0; 256];
    let mut value = 0;
    while value < 256 * 8 {
        let bit = value % 8;
        spread[value / 8] |= ((((value / 8) >> bit) & 1) << (3 * bit)) as u32;
        value += 1;
    }
    spread
};

/// Puts two zero bits between the low 16 bits of a number.
#[inline]
fn spread(value: u64) -> u64 {
    let [low, high] = [value, value >> 8].map(|byte| u64::from(SPREAD[usize::from(byte as u8)]));
    low | high << 24
}

/// The inverse of [`spread`]; ignores the bits between.
#[inline]
fn gather(value: u64) -> u64 {
    let value = value & 0x2492_4924_9249;
    let value = (value | value >> 2) & 0x0c30_c30c_30c3;
    let value = (value | value >> 4) & 0x00f0_0f00_f00f;
    let value = (value | value >> 8) & 0x0000_ff00_00ff;
    (value | value >> 16) & 0xffff
}

/// Sorts points by their keys, reusing its memory.
#[derive(Debug, Default)]
pub(crate) struct Order {
    words: Vec<Word>,
    spare: Vec<Word>,
}

/// A point whose key is short enough to share a word with the colour.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Word(u64);

/// The points of a cloud in the order of their keys.
#[derive(Debug)]
pub(crate) enum Sorted<'a> {
    Words(&'a [Word]),
    Wide(Vec<Keyed>),
}

impl Order {
    /// Sorts the points of a cloud. Points of the same key stay in capture order.
    pub(crate) fn sort(&mut self, cloud: &Cloud, shift: u8) -> (Grid, Sorted<'_>) {
        let grid = Grid::of(cloud, shift);
        let keyed = |point: Point| Keyed {
            key: grid.key(point),
            rgb: [point.r, point.g, point.b],
        };
        self.words.clear();
        let mut all_bits = 0u64;
        self.words.extend(cloud.points().map(|point| {
            let point = keyed(point);
            all_bits |= point.key;
            Word::from(point)
        }));
        let key_bits = u64::BITS - all_bits.leading_zeros();
        if key_bits + COLOR_BITS <= u64::BITS {
            self.sort_words(key_bits);
            return (grid, Sorted::Words(&self.words));
        }
        let mut wide: Vec<Keyed> = cloud.points().map(keyed).collect();
        wide.sort_by_key(|point| point.key);
        (grid, Sorted::Wide(wide))
    }

    /// Sorts by the digits of the key, the lowest first.
    fn sort_words(&mut self, key_bits: u32) {
        self.spare.resize(self.words.len(), Word::default());
        for digit in 0..key_bits.div_ceil(DIGIT_BITS) {
            let at = COLOR_BITS + digit * DIGIT_BITS;
            sort_by_digit(&self.words, &mut self.spare, at);
            std::mem::swap(&mut self.words, &mut self.spare);
        }
    }
}

impl From<Keyed> for Word {
    #[inline]
    fn from(
        Keyed {
            key,
            rgb: [r, g, b],
        }: Keyed,
    ) -> Self {
        Word(key << COLOR_BITS | u64::from(u32::from_be_bytes([0, r, g, b])))
    }
}

impl From<Word> for Keyed {
    #[inline]
    fn from(Word(word): Word) -> Self {
        let [_, r, g, b] = (word as u32).to_be_bytes();
        Keyed {
            key: word >> COLOR_BITS,
            rgb: [r, g, b],
        }
    }
}

/// Copies the words in the order of the digit at `at`; equal digits keep their order.
fn sort_by_digit(words: &[Word], to: &mut [Word], at: u32) {
    let digit = |word: Word| (word.0 >> at) as usize % DIGITS;
    let mut starts = [0u32; DIGITS];
    for word in words {
        starts[digit(*word)] += 1;
    }
    let mut start = 0;
    for count in &mut starts {
        start += std::mem::replace(count, start);
    }
    for word in words {
        let next = &mut starts[digit(*word)];
        to[*next as usize] = *word;
        *next += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bits_are_spread_and_gathered() {
        assert_eq!(spread(0b1011), 0b001_000_001_001);
        for value in 0..=0xffff {
            assert_eq!(gather(spread(value)), value);
            assert_eq!(gather(spread(value) | spread(!value) << 1), value);
        }
    }

    proptest! {
        #[test]
        fn points_are_sorted_by_key_and_found_again(
            points in prop::collection::vec((any::<[i16; 3]>(), any::<[u8; 3]>()), 0..200),
            reach in 1i16..=i16::MAX,
        ) {
            // A small reach takes the radix sort, a large one the other.
            let points: Vec<Point> = points.iter().map(|([x, y, z], [r, g, b])| {
                Point { x: x % reach, y: y % reach, z: z % reach, r: *r, g: *g, b: *b }
            }).collect();
            let mut order = Order::default();
            let (grid, sorted) = order.sort(&points.iter().copied().collect(), 0);

            let mut expected: Vec<_> = points.iter().map(|point| (grid.key(*point), [point.r, point.g, point.b])).collect();
            expected.sort_by_key(|(key, _)| *key);
            let found: Vec<Keyed> = match sorted {
                Sorted::Words(words) => words.iter().map(|word| Keyed::from(*word)).collect(),
                Sorted::Wide(keyed) => keyed,
            };
            let found: Vec<_> = found.iter().map(|point| (point.key, point.rgb)).collect();
            prop_assert_eq!(found, expected);
            for point in points {
                prop_assert_eq!(grid.position(grid.key(point)), [point.x, point.y, point.z]);
            }
        }

        #[test]
        fn positions_in_cells_are_those_of_their_keys(
            corner: [i16; 3],
            shift in 0..=Grid::MAX_SHIFT,
            first: u64,
            gaps in prop::collection::vec((any::<u64>(), 0u32..64), 0..200),
        ) {
            let grid = Grid { corner, shift };
            let mut positions = Positions::new(grid);
            let mut key = first;
            for (gap, bits) in gaps {
                key = key.wrapping_add(gap & ((1 << bits) - 1));
                prop_assert_eq!(positions.of(key), joined(grid.position(key)));
            }
        }

        #[test]
        fn a_coarse_grid_moves_a_point_by_half_a_step_at_most(a: [i16; 3], b: [i16; 3], shift in 0..=Grid::MAX_SHIFT) {
            let point = |[x, y, z]: [i16; 3]| Point { x, y, z, r: 0, g: 0, b: 0 };
            let cloud: Cloud = [a, b].map(point).into_iter().collect();
            let grid = Grid::of(&cloud, shift);
            for position in [a, b] {
                let found = grid.position(grid.key(point(position)));
                let moved = (0..3).map(|axis| (i32::from(found[axis]) - i32::from(position[axis])).abs()).max();
                prop_assert!(moved <= Some((1 << shift) / 2));
            }
        }
    }
}
