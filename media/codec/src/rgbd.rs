//! The codec [`Codec::Rgbd`]: one view as a camera captured it, depth without loss and colour as a
//! JPEG image.
//!
//! The base layer has a quarter of the pixels and is decoded alone. The refinement has the depths of
//! the other pixels, predicted from those of the base, and the colours at full resolution.

mod color;
mod depth;
mod header;
mod mask;

use crate::bits::{BitReader, BitWriter};
use crate::{Choices, Codec, DecodeError, Decoder, Encoder, Setting, Slice};
pub use header::{MAX_SIDE, is_valid_size};

use depth::{Pixels, Plane};
use hawser_cloud::View;
use header::{Header, Kind};

/// The layers of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layers {
    /// All in one: the smallest.
    One,
    /// A base and a refinement, which a relay can drop.
    Two,
}

/// The precision of depths and colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Precision {
    /// Binary logarithm of the steps of depths, in units.
    depth_shift: u8,
    /// Quality of the JPEG image, from 1 to 100.
    color: u8,
    /// Whether there is a base layer alone.
    is_half: bool,
}

impl Precision {
    /// The maximum of `depth_shift`.
    const MAX_SHIFT: u8 = 3;

    /// Depths are lossless from 75 on, and in steps of 2, 4 and 8 units from 50, 30 and 10. Within
    /// each of these, the quality of the colours rises with that of the view. Below 10 there is a
    /// quarter of the pixels only, with depths in steps of 1, 2 and 4 units from 7, 4 and 0.
    fn of(setting: Setting) -> Self {
        let quality = setting.quality.min(Setting::MAX_QUALITY);
        let (depth_shift, color) = match quality {
            75.. => (0, 60 + (quality - 75) * 7 / 5),
            50.. => (1, 50 + (quality - 50) * 7 / 5),
            30.. => (2, 40 + (quality - 30) * 2),
            10.. => (3, 20 + (quality - 10) * 2),
            7.. => (0, 30 + quality * 6),
            4.. => (1, 30 + quality * 6),
            _ => (2, 30 + quality * 6),
        };
        Precision {
            depth_shift,
            color,
            is_half: quality < 10,
        }
    }

    /// The quality of the colours of a base layer, which the refinement replaces.
    const BASE_COLOR: u8 = 60;
}

/// Encodes views as [`Codec::Rgbd`].
#[derive(Debug)]
pub struct RgbdEncoder {
    layers: Layers,
}

impl RgbdEncoder {
    /// Returns the largest number of layers that the encoder makes of a view.
    pub const fn layers(&self) -> u8 {
        match self.layers {
            Layers::One => 1,
            Layers::Two => 2,
        }
    }

    /// Creates an encoder.
    pub fn new(layers: Layers) -> Self {
        RgbdEncoder { layers }
    }
}

impl Encoder for RgbdEncoder {
    type Frame = View;

    fn codec(&self) -> Codec {
        Codec::Rgbd
    }

    fn choices(&self) -> Choices {
        let steps = (0..=Setting::MAX_QUALITY).rev().map(|quality| {
            let bytes_per_point = match quality {
                // A better image of the colours takes ever more.
                90.. => 0.33 + 0.017 * f32::from(quality - 90),
                75.. => 0.27 + 0.004 * f32::from(quality - 75),
                50.. => 0.22 + 0.0032 * f32::from(quality - 50),
                30.. => 0.17 + 0.0034 * f32::from(quality - 30),
                10.. => 0.12 + 0.0034 * f32::from(quality - 10),
                _ => 0.05 + 0.007 * f32::from(quality),
            };
            (quality, bytes_per_point)
        });
        Choices::new(&steps.collect::<Vec<_>>(), false)
    }

    /// # Panics
    /// If the view has more columns or rows than [`MAX_SIDE`], or more than
    /// [`MAX_PIXELS`](hawser_cloud::MAX_PIXELS) pixels.
    fn encode_slices(&mut self, view: &View, setting: Setting, done: &mut dyn FnMut(Slice)) {
        let precision = Precision::of(setting);
        let plane = quantised(view, precision.depth_shift);
        let header = |kind| Header::of(view, kind, precision.depth_shift);
        let upper = |kind, pixels| {
            let color = color::encode(view.color(), &plane.depth, plane.width, precision.color);
            layer(header(kind), &plane, pixels, &color)
        };
        let base = |quality| base_layer(header(Kind::Base), view.color(), &plane, quality);
        let mut done = |part, is_top| done(Slice::layer(part, is_top));
        match self.layers {
            _ if precision.is_half => done(base(precision.color), true),
            Layers::One => done(upper(Kind::Whole, Pixels::All), true),
            Layers::Two => {
                done(base(precision.color.min(Precision::BASE_COLOR)), false);
                done(upper(Kind::Refinement, Pixels::Refinement), true);
            }
        }
    }
}

fn base_layer(header: Header, color: &[u8], plane: &Plane, quality: u8) -> Vec<u8> {
    let half = plane.halved();
    let color = halved_color(color, plane);
    let color = color::encode(&color, &half.depth, half.width, quality);
    layer(header, &half, Pixels::All, &color)
}

/// Returns the depths in steps. A depth never becomes 0.
fn quantised(view: &View, shift: u8) -> Plane {
    let half = (1 << shift) >> 1;
    let step = |depth: &u16| match *depth {
        0 => 0,
        depth => (depth.saturating_add(half) >> shift).max(1),
    };
    Plane {
        width: view.size().0,
        depth: view.depth().iter().map(step).collect(),
    }
}

/// Returns a quarter of the pixels: the mean colours of each four, as far as they have a depth.
fn halved_color(color: &[u8], plane: &Plane) -> Vec<u8> {
    let pixels = color.as_chunks::<3>().0;
    let mut small = Vec::with_capacity(color.len() / 4 + 3 * plane.width);
    for row in (0..plane.height()).step_by(2) {
        for column in (0..plane.width).step_by(2) {
            small.extend(mean_of_four(pixels, plane, row, column));
        }
    }
    small
}

fn mean_of_four(pixels: &[[u8; 3]], plane: &Plane, row: usize, column: usize) -> [u8; 3] {
    let (mut sum, mut count) = ([0u32; 3], 0);
    if plane.depth[row * plane.width + column] == 0 {
        return [0; 3];
    }
    let rows = row..(row + 2).min(plane.height());
    for at in rows.map(|row| row * plane.width) {
        let columns = at + column..at + (column + 2).min(plane.width);
        let pair = plane.depth[columns.clone()].iter().zip(&pixels[columns]);
        for (_, color) in pair.filter(|(depth, _)| **depth != 0) {
            (0..3).for_each(|channel| sum[channel] += u32::from(color[channel]));
            count += 1;
        }
    }
    sum.map(|sum| ((sum + count / 2) / count) as u8)
}

/// Returns a layer: header, the lengths of what follows the bits of the depths, and these three.
fn layer(header: Header, plane: &Plane, pixels: Pixels, color: &[u8]) -> Vec<u8> {
    let mut bits = BitWriter::default();
    let symbols = depth::write(plane, pixels, &mut bits);
    let length = |bytes: &[u8]| {
        u32::try_from(bytes.len())
            .expect("few pixels")
            .to_be_bytes()
    };
    let lengths = [length(&symbols), length(color)].concat();
    [
        &header.to_bytes(),
        &lengths,
        &bits.finish(),
        &symbols,
        color,
    ]
    .concat()
}

/// Decodes views of [`Codec::Rgbd`].
///
/// From a base layer alone it makes a view of half the columns and rows.
#[derive(Debug, Default)]
pub struct RgbdDecoder {}

impl RgbdDecoder {
    /// Creates a decoder.
    pub fn new() -> Self {
        RgbdDecoder {}
    }
}

/// Returns the number of pixels of the view that the layers announce.
pub(crate) fn max_points(parts: &[&[u8]]) -> usize {
    let headers = parts.iter().filter_map(|part| Header::parse(part).ok());
    let pixels = headers.map(|(header, _)| header.plane_size());
    let pixels = pixels.map(|(width, height)| width * height);
    pixels.max().unwrap_or_default()
}

impl Decoder for RgbdDecoder {
    type Frame = View;

    fn decode(&mut self, parts: &[&[u8]]) -> Result<View, DecodeError> {
        let (first, refinement) = sort_parts(parts)?;
        let (header, rest) = first.ok_or(DecodeError::Missing)?;
        let (width, height) = header.plane_size();
        let depth = vec![0; width * height];
        let mut plane = Plane { width, depth };
        let color = read_layer(&mut plane, Pixels::All, rest)?;
        let Some((above, rest)) = refinement else {
            return view(header, plane, color);
        };
        if !header.is_refined_by(&above) {
            return Err(DecodeError::Malformed("a refinement of another view"));
        }
        let mut plane = doubled(&plane, above.plane_size());
        let color = read_layer(&mut plane, Pixels::Refinement, rest)?;
        view(header.refined(), plane, color)
    }
}

/// The header of a layer, and what follows it.
type Part<'a> = (Header, &'a [u8]);

/// Returns the first layer and the refinement, as far as they are there.
fn sort_parts<'a>(parts: &[&'a [u8]]) -> Result<(Option<Part<'a>>, Option<Part<'a>>), DecodeError> {
    let (mut first, mut refinement) = (None, None);
    for part in parts {
        let part = Header::parse(part)?;
        let place = match part.0.kind {
            Kind::Whole | Kind::Base => &mut first,
            Kind::Refinement => &mut refinement,
        };
        if place.replace(part).is_some() {
            return Err(DecodeError::Malformed("two parts of one layer"));
        }
    }
    Ok((first, refinement))
}

/// Reads the depths of a layer. Returns its JPEG image.
fn read_layer<'a>(
    plane: &mut Plane,
    pixels: Pixels,
    bytes: &'a [u8],
) -> Result<&'a [u8], DecodeError> {
    let malformed = DecodeError::Malformed("not the depths of a view");
    let (bits, symbols, color) = sections(bytes).ok_or(malformed.clone())?;
    let most = color::max_pixels(color);
    let read = depth::read(plane, pixels, &mut BitReader::new(bits), symbols, most);
    read.map(|()| color).map_err(|_| malformed)
}

/// Splits what follows the header of a layer.
fn sections(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (symbols, rest) = bytes.split_first_chunk()?;
    let (color, rest) = rest.split_first_chunk()?;
    let [symbols, color] = [symbols, color].map(|bytes| u32::from_be_bytes(*bytes) as usize);
    let (rest, color) = rest.split_at_checked(rest.len().checked_sub(color)?)?;
    let (bits, symbols) = rest.split_at_checked(rest.len().checked_sub(symbols)?)?;
    Some((bits, symbols, color))
}

/// Returns a plane with the pixels of one of half the size in its even rows and columns.
fn doubled(half: &Plane, (width, height): (usize, usize)) -> Plane {
    let mut depth = vec![0; width * height];
    for (row, from) in half.depth.chunks(half.width).enumerate() {
        let to = depth[2 * row * width..].iter_mut().take(width).step_by(2);
        to.zip(from).for_each(|(to, from)| *to = *from);
    }
    Plane { width, depth }
}

/// Returns the view of a plane and its JPEG image.
fn view(header: Header, plane: Plane, color: &[u8]) -> Result<View, DecodeError> {
    let color = color::decode(color, &plane.depth, plane.width)
        .ok_or(DecodeError::Malformed("not the JPEG image of a view"))?;
    let mut depth = plane.depth;
    if header.depth_shift > 0 {
        let restore = |depth: &mut u16| {
            *depth = (u32::from(*depth) << header.depth_shift).min(u16::MAX.into()) as u16;
        };
        depth.iter_mut().for_each(restore);
    }
    View::new(header.camera, header.unit_mm, color, depth)
        .map_err(|_| DecodeError::Malformed("images of another size than the camera's"))
}
