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
    #[inline]
    pub(crate) fn position(self, key: u64) -> [i16; 3] {
        let middle = (1 << self.shift) >> 1;
        let value = |axis: usize| {
            let steps = gather(key >> axis) << self.shift;
            let value = i32::from(self.corner[axis]) + steps as i32 + middle;
            value.min(i16::MAX.into()) as i16
        };
        [value(0), value(1), value(2)]
    }
}

/// Bits of a key whose coordinates are looked up at once.
const LOOKUP_BITS: u32 = 9;
/// Bits of the keys of a block.
const BLOCK_BITS: u32 = 2 * LOOKUP_BITS;

/// Finds the positions of keys, quickly if most are in the block of the last one: 64 steps of each
/// axis, whose keys have the same upper bits.
#[derive(Debug)]
pub(crate) struct Positions {
    grid: Grid,
    /// The upper bits of the keys of the block.
    block: u64,
    /// The position of the first key of the block, 16 bits an axis, counted from [`i16::MIN`] so that
    /// no sum carries over to the next axis.
    corner: u64,
}

impl Positions {
    pub(crate) fn new(grid: Grid) -> Self {
        Positions {
            grid,
            block: u64::MAX,
            corner: 0,
        }
    }

    /// Returns the same as [`Grid::position`].
    #[inline]
    pub(crate) fn find(&mut self, key: u64) -> [i16; 3] {
        if key >> BLOCK_BITS != self.block {
            return self.enter(key);
        }
        let low = |at: u32| GATHERED[(key >> at) as usize % GATHERED.len()];
        let steps = (low(0) | low(LOOKUP_BITS) << (LOOKUP_BITS / 3)) << self.grid.shift;
        let position = (self.corner + steps) ^ 0x8000_8000_8000;
        [
            position as i16,
            (position >> 16) as i16,
            (position >> 32) as i16,
        ]
    }

    /// Finds the position of a key of another block, and moves to that block unless it reaches the
    /// last position in range.
    #[cold]
    fn enter(&mut self, key: u64) -> [i16; 3] {
        let corner = self.grid.position(key & (u64::MAX << BLOCK_BITS));
        if corner
            .iter()
            .all(|value| *value <= i16::MAX - (64 << Grid::MAX_SHIFT))
        {
            let [x, y, z] = corner.map(|value| u64::from(value as u16 ^ 0x8000));
            self.block = key >> BLOCK_BITS;
            self.corner = x | y << 16 | z << 32;
        }
        self.grid.position(key)
    }
}

/// The coordinates of each key of 9 bits, 16 bits each.
const GATHERED: [u64; 1 << LOOKUP_BITS] = {
    let mut gathered = [0; 1 << LOOKUP_BITS];
    let mut at = 0;
    while at < (LOOKUP_BITS as usize) << LOOKUP_BITS {
        let (key, bit) = (at / LOOKUP_BITS as usize, at % LOOKUP_BITS as usize);
        gathered[key] |= (key as u64 >> bit & 1) << (16 * (bit % 3) + bit / 3);
        at += 1;
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
        fn the_positions_of_any_keys_are_those_of_the_grid(
            corner: [i16; 3],
            shift in 0..=Grid::MAX_SHIFT,
            gaps in prop::collection::vec((any::<u64>(), 0u32..=63), 0..200),
        ) {
            let grid = Grid { corner, shift };
            let mut positions = Positions::new(grid);
            let mut key = 0u64;
            for (gap, bits) in gaps {
                key = key.wrapping_add(gap >> (63 - bits));
                prop_assert_eq!(positions.find(key), grid.position(key));
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
