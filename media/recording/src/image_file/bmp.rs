//! BMP without compression and without a palette.

use super::{ImageFileError, read_exact};
use crate::ffmpeg::{MAX_SIDE, PixelFormat};
use std::io::{BufRead, Cursor, Seek, SeekFrom};

const HEADER_BYTES: usize = 54;
/// The masks of red, green and blue that follow a header with bit fields, as Windows and ImageMagick write them.
const MASKS: [u32; 3] = [0xff_0000, 0xff00, 0xff];

/// The header of a file.
pub(super) struct Header {
    size: (usize, usize),
    is_bottom_up: bool,
    pixel_bytes: usize,
    offset: usize,
    length: u64,
}

impl Header {
    /// Reads a header from the start of a file.
    pub(super) fn read(file: &mut (impl BufRead + Seek)) -> Result<Self, ImageFileError> {
        file.rewind()?;
        let mut header = [0; HEADER_BYTES];
        read_exact(file, &mut header)?;
        let long = |at: usize| i32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let (width, height) = (long(18), long(22));
        let bits = u16::from_le_bytes([header[28], header[29]]);
        let compression = long(30);
        if !matches!((bits, compression), (24, 0) | (32, 0 | 3)) || width <= 0 {
            let kind = format!(
                "{bits} bits a pixel and compression {compression}; BMP is read with 24 or 32 and none"
            );
            return Err(ImageFileError::Unsupported(kind));
        }
        if compression == 3 {
            let mut masks = [0; 12];
            read_exact(file, &mut masks)?;
            if masks.as_chunks::<4>().0 != MASKS.map(u32::to_le_bytes) {
                let kind = "bit fields in another order than blue, green, red, alpha".to_owned();
                return Err(ImageFileError::Unsupported(kind));
            }
        }
        Ok(Header {
            size: (width as usize, height.unsigned_abs() as usize),
            is_bottom_up: height > 0,
            pixel_bytes: usize::from(bits / 8),
            offset: long(10).max(0) as usize,
            length: file.seek(SeekFrom::End(0))?,
        })
    }

    /// Returns the size of an image that is complete and can be decoded to a format.
    pub(super) fn check(self, format: PixelFormat) -> Result<(usize, usize), ImageFileError> {
        if format == PixelFormat::Gray16 {
            return Err(ImageFileError::NotDepth("of BMP, 8 bits".to_owned()));
        }
        let rows = self.size.1.min(MAX_SIDE);
        let end = self.offset as u64 + (self.stride() * rows) as u64;
        match self.length >= end {
            true => Ok(self.size),
            false => Err(ImageFileError::CutOff),
        }
    }

    /// Returns the bytes of a row, which are a multiple of four.
    fn stride(&self) -> usize {
        (self.size.0.min(MAX_SIDE) * self.pixel_bytes).next_multiple_of(4)
    }
}

/// Decodes a file to RGB.
pub(super) fn decode(file: &[u8]) -> Result<Vec<u8>, ImageFileError> {
    let header = Header::read(&mut Cursor::new(file))?;
    let (width, height) = header.size;
    let rows = file.get(header.offset..).ok_or(ImageFileError::CutOff)?;
    let rows: Vec<&[u8]> = rows.chunks_exact(header.stride()).take(height).collect();
    let mut pixels = Vec::with_capacity(width * height * 3);
    for number in 0..rows.len() {
        let row = if header.is_bottom_up {
            rows.len() - 1 - number
        } else {
            number
        };
        let row = rows[row].chunks_exact(header.pixel_bytes).take(width);
        pixels.extend(row.flat_map(|pixel| [pixel[2], pixel[1], pixel[0]]));
    }
    Ok(pixels)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a file whose pixels have the numbers of their rows and columns.
    pub(in super::super) fn file(width: i32, height: i32) -> Vec<u8> {
        let mut file = vec![0; HEADER_BYTES];
        file[..2].copy_from_slice(b"BM");
        file[10] = HEADER_BYTES as u8;
        file[14] = 40;
        file[18..22].copy_from_slice(&width.to_le_bytes());
        file[22..26].copy_from_slice(&height.to_le_bytes());
        file[28] = 24;
        for row in 0..height.unsigned_abs() as u8 {
            let start = file.len();
            file.extend((0..width as u8).flat_map(|column| [9, row, column]));
            let padding = (file.len() - start).next_multiple_of(4) - (file.len() - start);
            file.extend(std::iter::repeat_n(0, padding));
        }
        file
    }

    #[test]
    fn rows_are_in_the_order_in_which_they_are_shown() {
        let bottom_up = decode(&file(1, 2)).unwrap();
        assert_eq!(bottom_up, [0, 1, 9, 0, 0, 9]);
        assert_eq!(decode(&file(2, -1)).unwrap(), [0, 0, 9, 1, 0, 9]);
    }
}
