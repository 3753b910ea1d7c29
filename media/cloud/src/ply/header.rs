use super::CloudFileError;

/// The number of bytes that hold any header.
pub const MAX_HEADER: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Ascii,
    LittleEndian,
    BigEndian,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

/// The type of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Scalar(Scalar),
    /// Values of a type behind their number.
    List(Scalar, Scalar),
}

/// Things of one kind, such as vertices.
#[derive(Debug)]
pub(crate) struct Element {
    pub(crate) name: String,
    pub(crate) count: u64,
    pub(crate) properties: Vec<(String, Kind)>,
}

#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) encoding: Encoding,
    /// The elements up to the vertices.
    pub(crate) elements: Vec<Element>,
}

/// The places of a point's values in a vertex.
pub(crate) struct Columns {
    pub(crate) position: [usize; 3],
    pub(crate) color: Option<Colors>,
}

/// The places of a point's colour.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Colors {
    /// A value of this type for each channel.
    Channels([usize; 3], Scalar),
    /// One value of the bytes 0, red, green and blue.
    Packed(usize),
    /// The same, as the number that the bytes are as `f32`.
    PackedAsFloat(usize),
}

/// The lines of a header that have been read.
#[derive(Default)]
struct HeaderLines {
    encoding: Option<Encoding>,
    elements: Vec<Element>,
}

impl HeaderLines {
    /// Adds the words of a line. Fails with the reason for which it is not valid.
    fn add(&mut self, words: &[&str]) -> Result<(), &'static str> {
        match words {
            [] | ["comment" | "obj_info", ..] => {}
            ["format", "ascii", "1.0"] => self.encoding = Some(Encoding::Ascii),
            ["format", "binary_little_endian", "1.0"] => {
                self.encoding = Some(Encoding::LittleEndian);
            }
            ["format", "binary_big_endian", "1.0"] => self.encoding = Some(Encoding::BigEndian),
            ["format", ..] => {
                return Err(
                    "only ascii, binary_little_endian and binary_big_endian 1.0 are supported",
                );
            }
            ["element", name, count] => {
                let count = count.parse().map_err(|_| match *name {
                    "vertex" => "not a number of vertices",
                    _ => "not a number of elements",
                })?;
                self.elements.push(Element {
                    name: (*name).to_owned(),
                    count,
                    properties: Vec::new(),
                });
            }
            ["property", "list", count, item, name] => {
                let count = Scalar::parse(count).ok_or("no such type")?;
                let item = Scalar::parse(item).ok_or("no such type")?;
                self.add_property(name, Kind::List(count, item))?;
            }
            ["property", kind, name] => {
                let scalar = Scalar::parse(kind).ok_or("no such type")?;
                self.add_property(name, Kind::Scalar(scalar))?;
            }
            _ => return Err("not understood"),
        }
        Ok(())
    }

    fn add_property(&mut self, name: &str, kind: Kind) -> Result<(), &'static str> {
        let element = self.elements.last_mut().ok_or("not understood")?;
        element.properties.push((name.to_owned(), kind));
        Ok(())
    }

    fn finish(mut self) -> Result<Header, CloudFileError> {
        let vertices = self
            .elements
            .iter()
            .position(|element| element.name == "vertex");
        let vertices = vertices.ok_or(CloudFileError::Missing("element vertex"))?;
        self.elements.truncate(vertices + 1);
        Ok(Header {
            encoding: self.encoding.ok_or(CloudFileError::Missing("format"))?,
            elements: self.elements,
        })
    }
}

/// Returns the first line of a header, and the bytes after it.
fn split_line(bytes: &[u8]) -> Result<(String, &[u8]), CloudFileError> {
    let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
    let end = end.ok_or(CloudFileError::NotPly)?;
    let text = String::from_utf8_lossy(&bytes[..end]);
    let ends_in_two = bytes[end..].starts_with(b"\r\n");
    Ok((
        text.into_owned(),
        &bytes[end + 1 + usize::from(ends_in_two)..],
    ))
}

impl Header {
    /// Returns the header, and the bytes after it.
    pub(super) fn parse(file: &[u8]) -> Result<(Header, &[u8]), CloudFileError> {
        let (first, mut rest) = split_line(file)?;
        if first.trim_ascii() != "ply" {
            return Err(CloudFileError::NotPly);
        }
        let mut lines = HeaderLines::default();
        for line in 2.. {
            let (text, after) = split_line(rest)?;
            rest = after;
            let words: Vec<&str> = text.split_ascii_whitespace().collect();
            if words == ["end_header"] {
                break;
            }
            lines.add(&words).map_err(|reason| CloudFileError::Header {
                line,
                text: text.trim_end().to_owned(),
                reason,
            })?;
        }
        Ok((lines.finish()?, rest))
    }

    /// Returns the element with the vertices.
    pub(crate) fn vertex(&self) -> &Element {
        self.elements.last().expect("a header has vertices")
    }

    pub(crate) fn columns(&self) -> Result<Columns, CloudFileError> {
        let properties = &self.vertex().properties;
        let find = |wanted: &str| {
            let place = properties.iter().position(|(name, _)| name == wanted)?;
            match properties[place].1 {
                Kind::Scalar(scalar) => Some((place, scalar)),
                Kind::List(..) => None,
            }
        };
        let coordinate = |wanted| {
            find(wanted)
                .map(|(place, _)| place)
                .ok_or(CloudFileError::NoProperty(wanted))
        };
        let colors = |names: [&str; 3]| {
            let [red, green, blue] = names.map(find);
            Some((red?, green?, blue?))
        };
        let colors = colors(["red", "green", "blue"])
            .or_else(|| colors(["diffuse_red", "diffuse_green", "diffuse_blue"]))
            .or_else(|| colors(["r", "g", "b"]));
        if let Some(((_, scalar), (_, green), (_, blue))) = colors
            && ((scalar, scalar) != (green, blue)
                || !matches!(scalar, Scalar::U8 | Scalar::U16 | Scalar::F32 | Scalar::F64))
        {
            return Err(CloudFileError::NoProperty(
                "red of type uchar, ushort, float or double, nor green and blue like it",
            ));
        }
        Ok(Columns {
            position: [coordinate("x")?, coordinate("y")?, coordinate("z")?],
            color: colors.map(|((red, scalar), (green, _), (blue, _))| {
                Colors::Channels([red, green, blue], scalar)
            }),
        })
    }

    /// Fails if a body of so many bytes cannot have all vertices.
    pub(crate) fn check_length(&self, length: u64) -> Result<(), CloudFileError> {
        let least = |element: &Element| match self.encoding {
            // A digit and a space for each value.
            Encoding::Ascii => 2 * element.properties.len() as u64,
            _ => element.least_bytes(),
        };
        let (vertices, before) = self.elements.split_last().expect("a header has vertices");
        let before: u64 = before
            .iter()
            .map(|element| least(element).saturating_mul(element.count))
            .fold(0, u64::saturating_add);
        // The last space of a text may be missing.
        let left = (length + 1).saturating_sub(before);
        let left = if self.encoding == Encoding::Ascii {
            left
        } else {
            left.saturating_sub(1)
        };
        let complete = left / least(vertices).max(1);
        match complete >= vertices.count {
            true => Ok(()),
            false => Err(CloudFileError::Truncated {
                vertex: complete as usize,
                vertices: vertices.count as usize,
            }),
        }
    }
}

impl Element {
    /// Returns the bytes of one with empty lists.
    pub(crate) fn least_bytes(&self) -> u64 {
        let of = |(_, kind): &(String, Kind)| match kind {
            Kind::Scalar(scalar) | Kind::List(scalar, _) => scalar.bytes() as u64,
        };
        self.properties.iter().map(of).sum()
    }
}

impl Scalar {
    fn parse(name: &str) -> Option<Scalar> {
        Some(match name {
            "char" | "int8" => Scalar::I8,
            "uchar" | "uint8" => Scalar::U8,
            "short" | "int16" => Scalar::I16,
            "ushort" | "uint16" => Scalar::U16,
            "int" | "int32" => Scalar::I32,
            "uint" | "uint32" => Scalar::U32,
            "float" | "float32" => Scalar::F32,
            "double" | "float64" => Scalar::F64,
            _ => return None,
        })
    }

    pub(crate) const fn bytes(self) -> usize {
        match self {
            Scalar::I8 | Scalar::U8 => 1,
            Scalar::I16 | Scalar::U16 => 2,
            Scalar::I32 | Scalar::U32 | Scalar::F32 => 4,
            Scalar::I64 | Scalar::U64 | Scalar::F64 => 8,
        }
    }
}
