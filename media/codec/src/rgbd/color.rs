//! The colours of the pixels that have a depth, as a baseline JPEG image (ITU-T T.81) of the blocks
//! of 16 x 16 pixels in which there are any.
//!
//! The other blocks cost nothing, neither bytes nor time. In a block, pixels without depth get the
//! mean colour of the others, so that the edge of a person does not ring. The Huffman tables are
//! those of T.81, annex K.3, and are left out, as cameras do that send JPEG.

use super::mask::{self, Changes};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use std::ops::Range;
use std::sync::LazyLock;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Side of a block: one MCU of a JPEG image whose chroma has half the resolution.
const BLOCK: usize = 16;
/// The colour of what is left of the last row of blocks; any would do.
const REST: u8 = 128;

/// Where the blocks of an image are in the JPEG image: in its order, row by row.
#[derive(Debug, PartialEq, Eq)]
struct Atlas {
    /// Row and column of each block in the image.
    blocks: Vec<(usize, usize)>,
    /// Blocks in a row of the JPEG image.
    columns: usize,
}

impl Atlas {
    /// Returns the blocks of an image with pixels between the changes of its rows.
    fn of(rows: &[Changes], width: usize) -> Self {
        let columns = width.div_ceil(BLOCK);
        let mut blocks = Vec::new();
        let mut occupied = vec![false; columns];
        for (row, changes) in rows.chunks(BLOCK).enumerate() {
            occupied.fill(false);
            for Range { start, end } in changes.iter().flat_map(mask::runs) {
                occupied[start / BLOCK..end.div_ceil(BLOCK)].fill(true);
            }
            let of_row = (0..columns).filter(|column| occupied[*column]);
            blocks.extend(of_row.map(|column| (row, column)));
        }
        Atlas { blocks, columns }
    }

    /// Returns columns and rows of the JPEG image in pixels.
    fn size(&self) -> (usize, usize) {
        let rows = self.blocks.len().div_ceil(self.columns);
        (self.columns * BLOCK, rows * BLOCK)
    }

    /// Returns the ranges of RGB bytes of each pixel row of each block: row and column in the image,
    /// and the place in the JPEG image.
    fn lines(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        let stride = self.columns * BLOCK;
        let blocks = self.blocks.iter().enumerate();
        blocks.flat_map(move |(number, (row, column))| {
            let (to_row, to_column) = (number / self.columns, number % self.columns);
            (0..BLOCK).map(move |line| {
                let to = (to_row * BLOCK + line) * stride + to_column * BLOCK;
                (row * BLOCK + line, column * BLOCK, 3 * to)
            })
        })
    }
}

/// Encodes the colours of an image at a quality of 1 to 100.
pub(super) fn encode(color: &[u8], depth: &[u16], width: usize, quality: u8) -> Vec<u8> {
    let atlas = Atlas::of(&mask::of_rows(depth, width), width);
    if atlas.blocks.is_empty() {
        return Vec::new();
    }
    let image = atlas.image(color, depth, width);
    let (width, height) = atlas.size();
    let mut jpeg = Vec::new();
    let mut encoder = Encoder::new(&mut jpeg, quality);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder
        .encode(&image, width as u16, height as u16, ColorType::Rgb)
        .expect("a Vec takes all bytes, and the image has its size");
    without_huffman_tables(&jpeg)
}

impl Atlas {
    /// Returns the image that is to be encoded.
    fn image(&self, color: &[u8], depth: &[u16], width: usize) -> Vec<u8> {
        let (columns, rows) = self.size();
        let mut image = vec![REST; 3 * columns * rows];
        let mut holes = Vec::with_capacity(BLOCK);
        for lines in self.lines().collect::<Vec<_>>().chunks(BLOCK) {
            let mut mean = Mean::default();
            holes.clear();
            for (row, column, to) in lines {
                let count = BLOCK.min(width - column);
                let from = row * width + column;
                let Some(depths) = depth.get(from..from + count) else {
                    holes.push(u16::MAX);
                    continue;
                };
                let line = &color[3 * from..3 * (from + count)];
                image[*to..to + 3 * count].copy_from_slice(line);
                holes.push(mean.add(line, depths));
            }
            for ((_, _, to), holes) in lines.iter().zip(&holes) {
                mean.fill(&mut image[*to..to + 3 * BLOCK], *holes);
            }
        }
        image
    }
}

/// The mean colour of the pixels with depth of a block.
#[derive(Default)]
struct Mean {
    sum: [u32; 3],
    count: u32,
}

impl Mean {
    /// Adds the pixels of a line. Returns the bits of those without depth.
    fn add(&mut self, line: &[u8], depths: &[u16]) -> u16 {
        let mut holes = u16::MAX;
        let pixels = line.as_chunks::<3>().0.iter().zip(depths).enumerate();
        for (pixel, (color, _)) in pixels.filter(|(_, (_, depth))| **depth != 0) {
            (0..3).for_each(|channel| self.sum[channel] += u32::from(color[channel]));
            self.count += 1;
            holes &= !(1 << pixel);
        }
        holes
    }

    fn fill(&self, line: &mut [u8], holes: u16) {
        let mean = self.sum.map(|sum| (sum / self.count.max(1)) as u8);
        let pixels = line.as_chunks_mut::<3>().0.iter_mut().enumerate();
        let holes = pixels.filter(|(pixel, _)| holes & 1 << pixel != 0);
        holes.for_each(|(_, color)| *color = mean);
    }
}

/// Decodes the colours of the pixels with depth to an RGB image; the others are black. `None` if the
/// bytes are not a JPEG image of the size that the depths demand.
pub(super) fn decode(jpeg: &[u8], depth: &[u16], width: usize) -> Option<Vec<u8>> {
    let mut color = vec![0; 3 * depth.len()];
    let rows = mask::of_rows(depth, width);
    let atlas = Atlas::of(&rows, width);
    if atlas.blocks.is_empty() {
        return jpeg.is_empty().then_some(color);
    }
    let image = decode_jpeg(jpeg, atlas.size())?;
    for (row, column, from) in atlas.lines() {
        for run in rows.get(row).into_iter().flat_map(mask::runs) {
            let (start, end) = (run.start.max(column), run.end.min(column + BLOCK));
            if start < end {
                let line = &image[from + 3 * (start - column)..from + 3 * (end - column)];
                color[3 * (row * width + start)..][..line.len()].copy_from_slice(line);
            }
        }
    }
    Some(color)
}

/// The least number of bytes of a block: four parts of luma of 6 bits and two of chroma of 4, with the Huffman
/// tables of T.81, annex K.3, if all of their coefficients are 0.
const MIN_BLOCK_BYTES: usize = (4 * 6 + 2 * 4) / 8;

/// Returns the largest number of pixels with depth that a view with this JPEG image can have.
pub(super) const fn max_pixels(jpeg: &[u8]) -> usize {
    jpeg.len() / MIN_BLOCK_BYTES * BLOCK * BLOCK
}

/// Decodes a JPEG image of known columns and rows to RGB.
fn decode_jpeg(jpeg: &[u8], (columns, rows): (usize, usize)) -> Option<Vec<u8>> {
    let jpeg = with_huffman_tables(jpeg, (columns, rows))?;
    let options = DecoderOptions::default().jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&jpeg), options);
    let image = decoder.decode().ok()?;
    (image.len() == 3 * columns * rows).then_some(image)
}

/// A marker segment of a JPEG image: its marker, and its bytes with the marker.
struct Segment<'a> {
    marker: u8,
    bytes: &'a [u8],
}

const DHT: u8 = 0xc4;
const SOF0: u8 = 0xc0;
const SOS: u8 = 0xda;
const SOI: [u8; 2] = [0xff, 0xd8];
const EOI: [u8; 2] = [0xff, 0xd9];

/// Returns the marker segments up to the scan, and the scan; `None` if they are not valid.
fn segments(jpeg: &[u8]) -> Option<(Vec<Segment<'_>>, &[u8])> {
    let mut rest = jpeg.strip_prefix(&SOI)?;
    let mut segments = Vec::new();
    loop {
        let [0xff, marker, l0, l1, ..] = *rest else {
            return None;
        };
        if marker == SOS {
            return Some((segments, rest));
        }
        let length = 2 + usize::from(u16::from_be_bytes([l0, l1]));
        let (bytes, after) = rest.split_at_checked(length)?;
        segments.push(Segment { marker, bytes });
        rest = after;
    }
}

/// The Huffman tables of every image, as marker segments.
static HUFFMAN_TABLES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut jpeg = Vec::new();
    let encoded = Encoder::new(&mut jpeg, 50).encode(&[0; 3], 1, 1, ColorType::Rgb);
    encoded.expect("a Vec takes all bytes, and the image has its size");
    let (segments, _) = segments(&jpeg).expect("an image that was encoded");
    let tables = segments.iter().filter(|segment| segment.marker == DHT);
    tables.flat_map(|segment| segment.bytes).copied().collect()
});

fn without_huffman_tables(jpeg: &[u8]) -> Vec<u8> {
    let (segments, scan) = segments(jpeg).expect("an image that was encoded");
    let mut stripped = SOI.to_vec();
    for segment in segments.iter().filter(|segment| segment.marker != DHT) {
        stripped.extend_from_slice(segment.bytes);
    }
    stripped.extend_from_slice(scan);
    stripped
}

/// Returns the image with the tables; `None` if it is not a baseline image of this size with one scan of three
/// components that can have all of its blocks, so that a decoder's memory and time are bounded by its bytes.
fn with_huffman_tables(jpeg: &[u8], (width, height): (usize, usize)) -> Option<Vec<u8>> {
    let (segments, scan) = segments(jpeg)?;
    let mut frames = segments.iter().filter(|segment| segment.marker == SOF0);
    let frame = frames.next()?.bytes.get(4..)?;
    let [8, h0, h1, w0, w1, 3, _, 0x22, _, _, 0x11, _, _, 0x11, _] = *frame else {
        return None;
    };
    let blocks = width * height / (BLOCK * BLOCK);
    if !is_one_scan(scan) || scan.len() < blocks * MIN_BLOCK_BYTES {
        return None;
    }
    let found = [[w0, w1], [h0, h1]].map(|side| usize::from(u16::from_be_bytes(side)));
    let is_known = |segment: &Segment<'_>| matches!(segment.marker, SOF0 | 0xdb | 0xe0);
    if found != [width, height] || frames.next().is_some() || !segments.iter().all(is_known) {
        return None;
    }
    let mut whole = SOI.to_vec();
    segments
        .iter()
        .for_each(|segment| whole.extend_from_slice(segment.bytes));
    whole.extend_from_slice(&HUFFMAN_TABLES);
    whole.extend_from_slice(scan);
    Some(whole)
}

/// Returns whether nothing follows the first scan of an image but its end: no restarts, no further scans, no
/// tables.
fn is_one_scan(scan: &[u8]) -> bool {
    let header = scan.get(2..4).and_then(|length| length.first_chunk());
    let length = header.map_or(usize::MAX, |length| {
        usize::from(u16::from_be_bytes(*length))
    });
    let coded = scan.get(2_usize.saturating_add(length)..);
    let Some(coded) = coded.and_then(|coded| coded.strip_suffix(&EOI)) else {
        return false;
    };
    let mut markers = coded.windows(2).filter(|pair| pair[0] == 0xff);
    markers.all(|pair| pair[1] == 0) && coded.last() != Some(&0xff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WIDTH: usize = 70;
    const HEIGHT: usize = 50;

    /// A disc with depth in an image whose background is of another colour.
    fn disc() -> (Vec<u8>, Vec<u16>) {
        let inside = |at: usize| {
            let (row, column) = (at / WIDTH, at % WIDTH);
            row.abs_diff(30).pow(2) + column.abs_diff(45).pow(2) < 400
        };
        let pixels = 0..WIDTH * HEIGHT;
        let depth = pixels
            .clone()
            .map(|at| if inside(at) { 900 } else { 0 })
            .collect();
        let color = pixels.flat_map(|at| {
            if inside(at) {
                [200, 120 + (at % WIDTH) as u8, 90]
            } else {
                [0, 255, 0]
            }
        });
        (color.collect(), depth)
    }

    #[test]
    fn colours_inside_are_kept_and_those_outside_cost_nothing() {
        let (color, depth) = disc();
        let jpeg = encode(&color, &depth, WIDTH, 90);
        let found = decode(&jpeg, &depth, WIDTH).unwrap();
        for (at, depth) in depth.iter().enumerate() {
            let of = |image: &[u8]| [image[3 * at], image[3 * at + 1], image[3 * at + 2]];
            let (expected, found) = (of(&color), of(&found));
            if *depth == 0 {
                assert_eq!(found, [0; 3]);
            } else {
                // No green of the background reaches the edge of the disc.
                let error = (0..3)
                    .map(|channel| expected[channel].abs_diff(found[channel]))
                    .max();
                assert!(error < Some(30), "{found:?} instead of {expected:?}");
            }
        }
        let gray = vec![77; color.len()];
        let flat = encode(&gray, &depth, WIDTH, 90).len();
        assert!(
            jpeg.len() < 3 * flat,
            "{} bytes, {flat} of one colour",
            jpeg.len()
        );
    }

    #[test]
    fn an_image_without_depth_is_empty() {
        let none = [0; WIDTH * HEIGHT];
        assert!(encode(&[9; 3 * WIDTH * HEIGHT], &none, WIDTH, 90).is_empty());
        assert_eq!(decode(&[], &none, WIDTH), Some(vec![0; 3 * WIDTH * HEIGHT]));
        assert_eq!(decode(&[1], &none, WIDTH), None);
    }

    #[test]
    fn the_tables_that_are_left_out_are_those_of_the_standard() {
        // Four segments; the numbers of codes of each length in the table of luma's DC values.
        assert_eq!(HUFFMAN_TABLES.len(), 4 * (2 + 2 + 17) + 12 + 12 + 162 + 162);
        let first = [
            0xff, DHT, 0, 31, 0, 0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(HUFFMAN_TABLES[..first.len()], first);
        let (color, depth) = disc();
        let jpeg = encode(&color, &depth, WIDTH, 50);
        assert!(
            segments(&jpeg)
                .unwrap()
                .0
                .iter()
                .all(|segment| segment.marker != DHT)
        );
    }

    #[test]
    fn an_image_of_another_size_or_kind_is_refused() {
        let (color, depth) = disc();
        let jpeg = encode(&color, &depth, WIDTH, 50);
        let other: Vec<u16> = depth.iter().rev().map(|depth| depth + 1).collect();
        assert_eq!(decode(&jpeg, &other, WIDTH), None);
        let mut progressive = Vec::new();
        let mut encoder = Encoder::new(&mut progressive, 50);
        encoder.set_progressive(true);
        encoder
            .encode(&[0; 3 * 64 * 64], 64, 64, ColorType::Rgb)
            .unwrap();
        assert_eq!(
            decode(&without_huffman_tables(&progressive), &depth, WIDTH),
            None
        );
    }

    /// Returns the image of a disc with other bytes before its end.
    fn with_before_end(bytes: &[u8]) -> (Vec<u8>, Vec<u16>) {
        let (color, depth) = disc();
        let mut jpeg = encode(&color, &depth, WIDTH, 50);
        jpeg.truncate(jpeg.len() - EOI.len());
        jpeg.extend_from_slice(bytes);
        jpeg.extend(EOI);
        (jpeg, depth)
    }

    #[test]
    fn an_image_with_more_than_one_scan_is_refused() {
        let (color, depth) = disc();
        let jpeg = encode(&color, &depth, WIDTH, 50);
        let (_, scan) = segments(&jpeg).unwrap();
        let restart = [0xff, 0xd0];
        let tables = [0xff, DHT, 0, 2];
        let dangling = [0xff];
        for further in [scan, &restart, &tables, &dangling] {
            let (jpeg, depth) = with_before_end(further);
            assert_eq!(decode(&jpeg, &depth, WIDTH), None, "{:?}", &further[..1]);
        }
        let (same, depth) = with_before_end(&[]);
        assert!(decode(&same, &depth, WIDTH).is_some());
    }

    #[test]
    fn an_image_cut_before_its_last_block_is_refused() {
        let (color, depth) = (vec![90; 3 << 20], vec![900; 1 << 20]);
        let mut jpeg = encode(&color, &depth, 1024, 1);
        assert!(
            decode(&jpeg, &depth, 1024).is_some(),
            "the smallest there is"
        );
        jpeg.truncate(jpeg.len() / 2);
        jpeg.extend(EOI);
        assert_eq!(decode(&jpeg, &depth, 1024), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn damage_never_panics(at: prop::sample::Index, byte: u8, cut: prop::sample::Index) {
            let (color, depth) = disc();
            let mut jpeg = encode(&color, &depth, WIDTH, 50);
            *at.get_mut(&mut jpeg) = byte;
            let _ = decode(&jpeg, &depth, WIDTH);
            jpeg.truncate(cut.index(jpeg.len()));
            let _ = decode(&jpeg, &depth, WIDTH);
        }
    }
}
