use super::CloudFileError;
use super::header::{Element, Encoding, Header, Kind, Scalar};
use std::borrow::Cow;
use std::str::SplitAsciiWhitespace;

/// The values of the vertices of a file, one vertex after the other. Lists count as 0.
pub(super) struct Values<'a> {
    vertex: &'a Element,
    source: Source<'a>,
    row: Vec<f64>,
}

enum Source<'a> {
    Ascii(SplitAsciiWhitespace<'a>),
    Binary { body: &'a [u8], is_big: bool },
}

/// A value that cannot be read.
enum Fault<'a> {
    End,
    Number(&'a str),
}

impl<'a> Values<'a> {
    /// Skips the elements before the vertices.
    pub(super) fn new(
        header: &'a Header,
        body: &'a Cow<'a, str>,
        bytes: &'a [u8],
    ) -> Result<Self, CloudFileError> {
        header.check_length(bytes.len() as u64)?;
        let source = match header.encoding {
            Encoding::Ascii => Source::Ascii(body.split_ascii_whitespace()),
            encoding => Source::Binary {
                body: bytes,
                is_big: encoding == Encoding::BigEndian,
            },
        };
        let vertex = header.vertex();
        let mut values = Values {
            vertex,
            source,
            row: Vec::new(),
        };
        for element in &header.elements[..header.elements.len() - 1] {
            // Without properties they take no bytes, and no length bounds their number.
            if element.properties.is_empty() {
                continue;
            }
            for _ in 0..element.count {
                let read = values.source.read(element, &mut values.row);
                read.map_err(|_| CloudFileError::List(element.name.clone()))?;
            }
        }
        Ok(values)
    }

    /// Returns the values of the next vertex, whose number is this.
    pub(super) fn vertex(&mut self, vertex: usize) -> Result<&[f64], CloudFileError> {
        let vertices = self.vertex.count as usize;
        match self.source.read(self.vertex, &mut self.row) {
            Ok(()) => Ok(&self.row),
            Err(Fault::End) => Err(CloudFileError::Truncated { vertex, vertices }),
            Err(Fault::Number(text)) => Err(CloudFileError::Number {
                vertex,
                text: text.to_owned(),
            }),
        }
    }
}

impl<'a> Source<'a> {
    /// Reads the values of one of an element.
    fn read(&mut self, element: &Element, row: &mut Vec<f64>) -> Result<(), Fault<'a>> {
        row.clear();
        for (_, kind) in &element.properties {
            match *kind {
                Kind::Scalar(scalar) => row.push(self.value(scalar)?),
                Kind::List(count, item) => {
                    let count = self.value(count)?.max(0.0) as u64;
                    for _ in 0..count {
                        self.value(item)?;
                    }
                    row.push(0.0);
                }
            }
        }
        Ok(())
    }

    fn value(&mut self, scalar: Scalar) -> Result<f64, Fault<'a>> {
        match self {
            Source::Ascii(words) => {
                let word = words.next().ok_or(Fault::End)?;
                parse(word, scalar).ok_or(Fault::Number(word))
            }
            Source::Binary { body, is_big } => {
                let (value, rest) = body.split_at_checked(scalar.bytes()).ok_or(Fault::End)?;
                *body = rest;
                Ok(scalar.read(value, *is_big))
            }
        }
    }
}

/// Parses a number. C libraries write some that are not finite as "-nan(ind)" and "1.#QNAN".
fn parse(word: &str, scalar: Scalar) -> Option<f64> {
    match scalar {
        Scalar::U8 => word.parse::<u8>().ok().map(f64::from),
        Scalar::U16 => word.parse::<u16>().ok().map(f64::from),
        _ => word.parse().ok().or_else(|| {
            let text = word.trim_start_matches(['+', '-']).to_ascii_lowercase();
            let is_no_number = text.starts_with("nan") || text.starts_with("1.#");
            is_no_number.then_some(f64::NAN)
        }),
    }
}

impl Scalar {
    /// Returns the value of [`Scalar::bytes`].
    fn read(self, bytes: &[u8], is_big: bool) -> f64 {
        let mut padded = [0; 8];
        let value = &mut padded[..bytes.len()];
        value.copy_from_slice(bytes);
        if is_big {
            value.reverse();
        }
        let [b0, b1, b2, b3, ..] = padded;
        match self {
            Scalar::I8 => f64::from(b0 as i8),
            Scalar::U8 => f64::from(b0),
            Scalar::I16 => f64::from(i16::from_le_bytes([b0, b1])),
            Scalar::U16 => f64::from(u16::from_le_bytes([b0, b1])),
            Scalar::I32 => f64::from(i32::from_le_bytes([b0, b1, b2, b3])),
            Scalar::U32 => f64::from(u32::from_le_bytes([b0, b1, b2, b3])),
            Scalar::I64 => i64::from_le_bytes(padded) as f64,
            Scalar::U64 => u64::from_le_bytes(padded) as f64,
            Scalar::F32 => f64::from(f32::from_le_bytes([b0, b1, b2, b3])),
            Scalar::F64 => f64::from_le_bytes(padded),
        }
    }
}
