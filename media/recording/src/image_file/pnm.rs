//! PGM and PPM. Values of depth are kept exactly, for any maximum.

use super::{ImageFileError, read_exact};
use crate::ffmpeg::{MAX_SIDE, PixelFormat};
use std::io::{BufRead, Read, Seek, SeekFrom};

/// The longest header that is read, with its comments.
const MAX_HEADER: u64 = 1 << 16;

/// The header of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    size: (usize, usize),
    maximum: u32,
    is_text: bool,
    samples: usize,
    /// Bytes after the header.
    body: u64,
}

impl Header {
    /// Reads a header from the start of a file.
    pub(super) fn read(file: &mut (impl BufRead + Seek)) -> Result<Self, ImageFileError> {
        file.rewind()?;
        let mut header = file.take(MAX_HEADER);
        let mut magic = [0; 2];
        read_exact(&mut header, &mut magic)?;
        let is_text = magic[1] < b'5';
        let samples = if magic[1] == b'2' || magic[1] == b'5' {
            1
        } else {
            3
        };
        let mut number = || number(&mut header);
        let (width, height, maximum) = (number()?, number()?, number()?);
        if !(1..=65_535).contains(&maximum) {
            return Err(damaged("the maximum is not from 1 to 65535"));
        }
        let start = file.stream_position()?;
        let end = file.seek(SeekFrom::End(0))?;
        Ok(Header {
            size: (width as usize, height as usize),
            maximum,
            is_text,
            samples,
            body: end - start,
        })
    }

    /// Returns the size of an image that is complete and can be decoded to a format.
    pub(super) fn check(self, format: PixelFormat) -> Result<(usize, usize), ImageFileError> {
        let is_depth = self.samples == 1 && self.maximum > 255;
        if format == PixelFormat::Gray16 && !is_depth {
            let kind = if self.samples == 1 { "gray" } else { "rgb" };
            let found = format!("{kind} of values to {}", self.maximum);
            return Err(ImageFileError::NotDepth(found));
        }
        let (width, height) = self.size;
        let values = (width.min(MAX_SIDE) * height.min(MAX_SIDE) * self.samples) as u64;
        // A text has a space between values.
        let least = match self.is_text {
            true => (2 * values).saturating_sub(1),
            false => values * self.value_bytes(),
        };
        match self.body >= least {
            true => Ok(self.size),
            false => Err(ImageFileError::CutOff),
        }
    }

    fn value_bytes(self) -> u64 {
        if self.maximum > 255 { 2 } else { 1 }
    }

    /// Returns the values of a file.
    fn values(self, body: &[u8]) -> Result<Vec<u16>, ImageFileError> {
        let count = self.size.0 * self.size.1 * self.samples;
        let values: Vec<u16> = match (self.is_text, self.maximum > 255) {
            (true, _) => {
                let mut text = body;
                let mut values = Vec::new();
                for _ in 0..count {
                    let value = u16::try_from(number(&mut text)?);
                    values.push(value.map_err(|_| damaged("a value is above the maximum"))?);
                }
                values
            }
            (false, true) => {
                let values = body.as_chunks().0.iter().take(count);
                values.map(|bytes| u16::from_be_bytes(*bytes)).collect()
            }
            (false, false) => body
                .iter()
                .take(count)
                .map(|value| (*value).into())
                .collect(),
        };
        match values.iter().all(|value| u32::from(*value) <= self.maximum) {
            true => Ok(values),
            false => Err(damaged("a value is above the maximum")),
        }
    }
}

/// Decodes a file: depth as it is, colour to 8 bits.
pub(super) fn decode(file: &[u8], format: PixelFormat) -> Result<Vec<u8>, ImageFileError> {
    let header = Header::read(&mut std::io::Cursor::new(file))?;
    let start = file.len() - header.body as usize;
    let values = header.values(&file[start..])?;
    if format == PixelFormat::Gray16 {
        return Ok(values.into_iter().flat_map(u16::to_le_bytes).collect());
    }
    let half = header.maximum / 2;
    let scaled = |value: u16| ((u32::from(value) * 255 + half) / header.maximum) as u8;
    let values = values.into_iter().map(scaled);
    Ok(match header.samples {
        1 => values.flat_map(|grey| [grey; 3]).collect(),
        _ => values.collect(),
    })
}

fn damaged(reason: &str) -> ImageFileError {
    ImageFileError::Damaged(reason.to_owned())
}

/// Reads a number and the character after it. Comments and spaces precede it.
fn number(from: &mut impl Read) -> Result<u32, ImageFileError> {
    let mut value: Option<u32> = None;
    let mut byte = [0];
    loop {
        if from.read(&mut byte)? == 0 {
            return value.ok_or(ImageFileError::CutOff);
        }
        match (byte[0], value) {
            (digit @ b'0'..=b'9', _) => {
                let more = value.unwrap_or(0).checked_mul(10);
                let more = more.and_then(|more| more.checked_add(u32::from(digit - b'0')));
                value = Some(more.ok_or_else(|| damaged("a number is too large"))?);
            }
            (b'#', None) => skip_line(from)?,
            (space, Some(value)) if space.is_ascii_whitespace() => return Ok(value),
            (space, None) if space.is_ascii_whitespace() => {}
            _ => return Err(damaged("the header has something else than numbers")),
        }
    }
}

fn skip_line(from: &mut impl Read) -> Result<(), ImageFileError> {
    let mut byte = [0];
    while from.read(&mut byte)? == 1 && byte[0] != b'\n' {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_exact_for_any_maximum() {
        let pixels = [0x03, 0xe8, 0x0f, 0xff];
        for maximum in ["4095", "10000", "\n# mm\n65535"] {
            let file = [format!("P5\n# Kinect\n2 1 {maximum}\n").as_bytes(), &pixels].concat();
            let depth = decode(&file, PixelFormat::Gray16).unwrap();
            assert_eq!(depth, [0xe8, 0x03, 0xff, 0x0f], "{maximum}");
        }
        let text = decode(b"P2 2 1 5000\n1000\n4095\n", PixelFormat::Gray16).unwrap();
        assert_eq!(text, [0xe8, 0x03, 0xff, 0x0f]);
        let above = decode(b"P5 2 1 4094\n\x03\xe8\x0f\xff", PixelFormat::Gray16).unwrap_err();
        assert!(above.to_string().contains("above the maximum"), "{above}");
    }

    #[test]
    fn colours_have_their_whole_range() {
        let color = decode(b"P6 1 1 15\n\x00\x07\x0f", PixelFormat::Rgb24).unwrap();
        assert_eq!(color, [0, 119, 255]);
        let grey = decode(b"P5 1 1 1023\n\x03\xff", PixelFormat::Rgb24).unwrap();
        assert_eq!(grey, [255; 3]);
    }
}
