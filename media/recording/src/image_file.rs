//! Files of one image each: PNG, JPEG, PNM and BMP, by their content and not by their names.

mod bmp;
mod exif;
mod pnm;

use crate::ffmpeg::{MAX_SIDE, PixelFormat, swap_bytes};
use crate::regular_file;
use exif::UPRIGHT;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::Path;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZByteReaderTrait;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// The reason that an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageFileError {
    #[error(transparent)]
    Read(#[from] io::Error),
    #[error("the file is empty")]
    Empty,
    #[error("it is no PNG, JPEG, PGM, PPM or BMP image")]
    Kind,
    #[error("the image is damaged: {0}")]
    Damaged(String),
    #[error("the image is cut off")]
    CutOff,
    #[error("it has {0}")]
    Unsupported(String),
    /// The image is not depth.
    #[error("it has the pixel format {0}")]
    NotDepth(String),
    #[error("its metadata say that it is shown {0}")]
    Orientation(&'static str),
}

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Png,
    Jpeg,
    Pnm,
    Bmp,
}

/// Returns columns and rows of an image whose header is valid, whose file is complete, and whose pixels can be
/// decoded to a format without loss of depth.
pub(crate) fn check(path: &Path, format: PixelFormat) -> Result<(usize, usize), ImageFileError> {
    check_image(&mut BufReader::new(regular_file::open(path)?), format)
}

/// Checks an image as [`check`] does.
fn check_image(
    file: &mut (impl BufRead + Seek),
    format: PixelFormat,
) -> Result<(usize, usize), ImageFileError> {
    let kind = kind(file.fill_buf()?)?;
    let size = match kind {
        Kind::Png => png_size(&mut *file, format)?,
        Kind::Jpeg => jpeg_size(&mut *file, format)?,
        Kind::Pnm => pnm::Header::read(file)?.check(format)?,
        Kind::Bmp => bmp::Header::read(file)?.check(format)?,
    };
    let (width, height) = size;
    if width.max(height) > MAX_SIDE || width.min(height) == 0 {
        let size = format!("{width} x {height} pixels, at most {MAX_SIDE} a side are read");
        return Err(ImageFileError::Unsupported(size));
    }
    check_end(file, kind)?;
    Ok(size)
}

/// Decodes an image to the pixels of a format. Returns its columns and rows, too.
pub(crate) fn decode(
    path: &Path,
    format: PixelFormat,
) -> Result<((usize, usize), Vec<u8>), ImageFileError> {
    let bytes = regular_file::read(path)?;
    // It may have been replaced since the recording was opened.
    let size = check_image(&mut Cursor::new(&bytes), format)?;
    let pixels = match kind(&bytes)? {
        Kind::Png => decode_png(&bytes, format)?,
        Kind::Jpeg => decode_jpeg(&bytes)?,
        Kind::Pnm => pnm::decode(&bytes, format)?,
        Kind::Bmp => bmp::decode(&bytes)?,
    };
    if pixels.len() != format.image_bytes(size) {
        return Err(ImageFileError::CutOff);
    }
    Ok((size, pixels))
}

/// The most bytes of EXIF data that are read; orientation is at its beginning.
const MAX_EXIF: u32 = 1 << 16;

fn kind(start: &[u8]) -> Result<Kind, ImageFileError> {
    match start {
        [] => Err(ImageFileError::Empty),
        [0x89, b'P', b'N', b'G', ..] => Ok(Kind::Png),
        [0xff, 0xd8, ..] => Ok(Kind::Jpeg),
        [b'P', b'2' | b'3' | b'5' | b'6', ..] => Ok(Kind::Pnm),
        [b'B', b'M', ..] => Ok(Kind::Bmp),
        _ => Err(ImageFileError::Kind),
    }
}

/// Checks that the last part of an image is there.
fn check_end(file: &mut (impl Read + Seek), kind: Kind) -> Result<(), ImageFileError> {
    let last: &[u8] = match kind {
        Kind::Png => b"IEND\xae\x42\x60\x82",
        Kind::Jpeg => b"\xff\xd9",
        // Their headers have been compared with the length.
        Kind::Pnm | Kind::Bmp => return Ok(()),
    };
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(last.len() as u64)))?;
    let mut end = Vec::new();
    file.read_to_end(&mut end)?;
    if end == last {
        return Ok(());
    }
    // Cameras and tools write data behind the image.
    file.rewind()?;
    let mut all = Vec::new();
    file.read_to_end(&mut all)?;
    let start = match kind {
        Kind::Jpeg => jpeg_scan(&all).unwrap_or(all.len()),
        _ => 0,
    };
    match all[start..].windows(last.len()).any(|bytes| bytes == last) {
        true => Ok(()),
        false => Err(ImageFileError::CutOff),
    }
}

/// Returns where the pixels of a JPEG file begin, behind the segments that may have a smaller image of their own.
fn jpeg_scan(file: &[u8]) -> Option<usize> {
    const SCAN: u8 = 0xda;
    let mut at = 2;
    while let [0xff, marker, high, low, ..] = *file.get(at..)? {
        if marker == SCAN {
            return Some(at);
        }
        // Markers may follow bytes that fill.
        at += match marker {
            0xff => 1,
            _ => 2 + usize::from(u16::from_be_bytes([high, low])),
        };
    }
    None
}

fn png_error(error: png::DecodingError) -> ImageFileError {
    match error {
        png::DecodingError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            ImageFileError::CutOff
        }
        other => ImageFileError::Damaged(other.to_string()),
    }
}

fn png_size(
    mut file: impl BufRead + Seek,
    format: PixelFormat,
) -> Result<(usize, usize), ImageFileError> {
    if let Some(exif) = png_exif(&mut file)? {
        check_orientation(&exif)?;
    }
    file.rewind()?;
    let reader = png::Decoder::new(file).read_info().map_err(png_error)?;
    let info = reader.info();
    let is_depth =
        (info.color_type, info.bit_depth) == (png::ColorType::Grayscale, png::BitDepth::Sixteen);
    if format == PixelFormat::Gray16 && !is_depth {
        let kind = match info.color_type {
            png::ColorType::Grayscale => "gray",
            png::ColorType::GrayscaleAlpha => "gray with alpha",
            png::ColorType::Rgb => "rgb",
            png::ColorType::Rgba => "rgba",
            png::ColorType::Indexed => "palette",
        };
        let found = format!("{kind} of {} bits", info.bit_depth as u8);
        return Err(ImageFileError::NotDepth(found));
    }
    if info.is_animated() {
        return Err(ImageFileError::Unsupported("several images".to_owned()));
    }
    Ok((info.width as usize, info.height as usize))
}

/// Returns the EXIF data of a PNG file, before or behind its pixels.
fn png_exif(file: &mut (impl Read + Seek)) -> Result<Option<Vec<u8>>, ImageFileError> {
    const SIGNATURE: u64 = 8;
    const CHECKSUM: i64 = 4;
    file.seek(SeekFrom::Start(SIGNATURE))?;
    let mut head = [0; 8];
    while file.read_exact(&mut head).is_ok() {
        let [a, b, c, d, name @ ..] = head;
        let length = u32::from_be_bytes([a, b, c, d]);
        if &name == b"eXIf" {
            let mut exif = Vec::new();
            file.take(length.min(MAX_EXIF).into())
                .read_to_end(&mut exif)?;
            return Ok(Some(exif));
        }
        file.seek_relative(i64::from(length) + CHECKSUM)?;
    }
    Ok(None)
}

fn decode_png(bytes: &[u8], format: PixelFormat) -> Result<Vec<u8>, ImageFileError> {
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    if format == PixelFormat::Rgb24 {
        decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    }
    let mut reader = decoder.read_info().map_err(png_error)?;
    let size = reader.output_buffer_size();
    let mut pixels = vec![0; size.ok_or(ImageFileError::Unsupported("too many pixels".into()))?];
    let color = reader
        .next_frame(&mut pixels)
        .map_err(png_error)?
        .color_type;
    if format == PixelFormat::Gray16 {
        swap_bytes(&mut pixels);
        return Ok(pixels);
    }
    Ok(rgb(pixels, color.samples()))
}

/// Returns pixels of so many samples of 8 bits, of which an even number has alpha last, as RGB.
fn rgb(pixels: Vec<u8>, samples: usize) -> Vec<u8> {
    match samples {
        3 => pixels,
        4 => pixels
            .chunks_exact(4)
            .flat_map(|pixel| [pixel[0], pixel[1], pixel[2]])
            .collect(),
        _ => pixels
            .chunks_exact(samples)
            .flat_map(|pixel| [pixel[0]; 3])
            .collect(),
    }
}

fn jpeg_error(error: impl std::fmt::Debug) -> ImageFileError {
    ImageFileError::Damaged(format!("{error:?}"))
}

fn jpeg_headers<T: ZByteReaderTrait>(from: T) -> Result<JpegDecoder<T>, ImageFileError> {
    let options = DecoderOptions::default().set_strict_mode(true);
    let mut decoder = JpegDecoder::new_with_options(from, options);
    decoder.decode_headers().map_err(jpeg_error)?;
    Ok(decoder)
}

fn jpeg_size(
    file: impl BufRead + Seek,
    format: PixelFormat,
) -> Result<(usize, usize), ImageFileError> {
    if format == PixelFormat::Gray16 {
        return Err(ImageFileError::NotDepth(
            "of JPEG, which is lossy".to_owned(),
        ));
    }
    let decoder = jpeg_headers(file)?;
    if let Some(exif) = decoder.exif() {
        check_orientation(exif)?;
    }
    let info = decoder.info().ok_or(ImageFileError::CutOff)?;
    Ok((info.width.into(), info.height.into()))
}

fn decode_jpeg(bytes: &[u8]) -> Result<Vec<u8>, ImageFileError> {
    let mut decoder = jpeg_headers(Cursor::new(bytes))?;
    let is_grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let wanted = if is_grey {
        ColorSpace::Luma
    } else {
        ColorSpace::RGB
    };
    let options = decoder.options().jpeg_set_out_colorspace(wanted);
    decoder.set_options(options);
    let pixels = decoder.decode().map_err(jpeg_error)?;
    Ok(rgb(pixels, wanted.num_components()))
}

fn check_orientation(exif: &[u8]) -> Result<(), ImageFileError> {
    match exif::orientation(exif) {
        UPRIGHT => Ok(()),
        turned => Err(ImageFileError::Orientation(exif::name(turned))),
    }
}

/// Reads until a buffer is full; an end before it is an image that is cut off.
fn read_exact(from: &mut impl Read, buffer: &mut [u8]) -> Result<(), ImageFileError> {
    from.read_exact(buffer).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ImageFileError::CutOff,
        _ => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn decoded(bytes: &[u8], format: PixelFormat) -> Result<((usize, usize), Vec<u8>), String> {
        decode(written(bytes).path(), format).map_err(|error| error.to_string())
    }

    fn png(color: png::ColorType, depth: png::BitDepth, pixels: &[u8]) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 2, 1);
        encoder.set_color(color);
        encoder.set_depth(depth);
        if color == png::ColorType::Indexed {
            encoder.set_palette(vec![1, 2, 3, 4, 5, 6]);
        }
        encoder
            .write_header()
            .unwrap()
            .write_image_data(pixels)
            .unwrap();
        file
    }

    #[test]
    fn every_kind_of_png_is_colour() {
        use png::{BitDepth::*, ColorType::*};
        let rgb = [1, 2, 3, 4, 5, 6];
        for (color, depth, pixels) in [
            (Rgb, Eight, &[1, 2, 3, 4, 5, 6][..]),
            (Rgba, Eight, &[1, 2, 3, 0, 4, 5, 6, 255]),
            (Rgb, Sixteen, &[1, 9, 2, 9, 3, 9, 4, 9, 5, 9, 6, 9]),
            (Indexed, Eight, &[0, 1]),
            (Indexed, One, &[0b0100_0000]),
        ] {
            let file = png(color, depth, pixels);
            assert_eq!(
                decoded(&file, PixelFormat::Rgb24),
                Ok(((2, 1), rgb.to_vec()))
            );
        }
        for (color, depth, pixels) in [
            (Grayscale, Eight, &[7, 8][..]),
            (GrayscaleAlpha, Eight, &[7, 0, 8, 1]),
            (Grayscale, Sixteen, &[7, 1, 8, 1]),
        ] {
            let file = png(color, depth, pixels);
            let grey = vec![7, 7, 7, 8, 8, 8];
            assert_eq!(decoded(&file, PixelFormat::Rgb24), Ok(((2, 1), grey)));
        }
    }

    #[test]
    fn orientation_behind_the_pixels_is_found() {
        let file = png(png::ColorType::Rgb, png::BitDepth::Eight, &[0; 6]);
        let end = file.len() - 12;
        let exif = |orientation: u8| {
            let tiff = [
                &b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0"[..],
                &[orientation, 0, 0, 0, 0, 0, 0],
            ];
            let tiff = tiff.concat();
            let length = (tiff.len() as u32).to_be_bytes();
            let chunk = [&length[..], b"eXIf", &tiff, &[0; 4]].concat();
            let file = [&file[..end], &chunk, &file[end..]].concat();
            check_image(&mut Cursor::new(file), PixelFormat::Rgb24)
        };
        assert!(matches!(exif(6), Err(ImageFileError::Orientation(_))));
        assert!(exif(1).is_ok());
    }

    #[test]
    fn the_end_of_a_small_image_in_a_jpeg_file_is_not_its_own() {
        let check = |file: &[u8]| check_end(&mut Cursor::new(file), Kind::Jpeg);
        let segments = b"\xff\xd8\xff\xe1\0\x06\xff\xd9\0\0\xff\xff\xda\0\x02";
        assert!(check(&[segments, &b"\x12\x34"[..]].concat()).is_err());
        assert!(check(&[segments, &b"\x12\xff\xd9 more"[..]].concat()).is_ok());
        assert!(check(b"\xff\xd8\xff\xe1\0\x06\xff\xd9\0").is_err());
    }

    #[test]
    fn only_grey_of_16_bits_is_depth() {
        use png::{BitDepth::*, ColorType::*};
        let depth = png(Grayscale, Sixteen, &[0x12, 0x34, 0, 5]);
        let expected = vec![0x34, 0x12, 5, 0];
        assert_eq!(decoded(&depth, PixelFormat::Gray16), Ok(((2, 1), expected)));
        for (file, found) in [
            (png(Grayscale, Eight, &[7, 8]), "gray of 8 bits"),
            (png(Rgb, Sixteen, &[0; 12]), "rgb of 16 bits"),
            (png(Indexed, Eight, &[0, 1]), "palette of 8 bits"),
        ] {
            let error = decoded(&file, PixelFormat::Gray16).unwrap_err();
            assert!(error.ends_with(found), "{error}");
        }
    }

    #[test]
    fn images_that_are_cut_off_are_found_without_decoding() {
        let png = png(png::ColorType::Rgb, png::BitDepth::Eight, &[0; 6]);
        let pgm = b"P5 2 1 65535\n\0\x01\0\x02";
        for (file, format) in [(&png[..], PixelFormat::Rgb24), (pgm, PixelFormat::Gray16)] {
            assert!(check(written(file).path(), format).is_ok());
            for length in [file.len() - 1, file.len() / 2] {
                let error = check(written(&file[..length]).path(), format).unwrap_err();
                assert!(!matches!(error, ImageFileError::Read(_)), "{error}");
            }
        }
    }

    proptest! {
        #[test]
        fn damaged_images_are_decoded_or_refused(
            kind in 0_usize..4,
            at in 0_usize..120,
            byte: u8,
            cut in 0_usize..120,
        ) {
            let mut file = match kind {
                0 => png(png::ColorType::Rgb, png::BitDepth::Eight, &[9; 6]),
                1 => b"P5 2 1 65535\n\0\x01\0\x02".to_vec(),
                2 => b"P3\n2 1 255\n1 2 3 4 5 6\n".to_vec(),
                _ => bmp::tests::file(2, 1),
            };
            if let Some(changed) = file.get_mut(at) { *changed = byte; }
            file.truncate(file.len().saturating_sub(cut / 2));
            for format in [PixelFormat::Rgb24, PixelFormat::Gray16] {
                if let Ok((size, pixels)) = decoded(&file, format) {
                    prop_assert_eq!(pixels.len(), format.image_bytes(size));
                }
            }
        }
    }
}
