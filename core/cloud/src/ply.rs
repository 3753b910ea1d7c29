//! Reading and writing PLY, the exchange format of point clouds.
//!
//! [`read`] accepts `ascii` and `binary_little_endian` files whose first element is `vertex` with
//! scalar properties, which must include `x`, `y`, `z` and `red`, `green`, `blue` (`uchar`). Other
//! properties and later elements are skipped. Header lines may end in CR LF.

use crate::{Cloud, Point};

/// The `unit_mm` of files in metres, such as those written by [`write`].
pub const MILLIMETRES_PER_METRE: f32 = 1000.0;

/// An error in a PLY file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlyError {
    /// The first line is not `ply`, or no line `end_header` follows.
    #[error("not a PLY file: it must begin with a line \"ply\" and have a line \"end_header\"")]
    NotPly,
    /// A header line is invalid or not supported.
    #[error("header line {line}: {reason}: \"{text}\"")]
    Header {
        /// The line number, starting at 1.
        line: usize,
        /// The text of the line.
        text: String,
        /// The problem.
        reason: &'static str,
    },
    /// A required header line is missing.
    #[error("the header has no line \"{0} ...\"")]
    Missing(&'static str),
    /// A required property is missing.
    #[error("the vertices have no property \"{0}\"")]
    NoProperty(&'static str),
    /// The file ends before its last vertex.
    #[error("the file ends in vertex {vertex} of {vertices}")]
    Truncated {
        /// The incomplete vertex, counted from zero.
        vertex: usize,
        /// The number of vertices in the header.
        vertices: usize,
    },
    /// A vertex of an ascii file contains a word that is not a number of its property's type.
    #[error("vertex {vertex}: \"{text}\" is not a valid number for its property")]
    Number {
        /// The vertex, counted from zero.
        vertex: usize,
        /// The text of the word.
        text: String,
    },
}

/// Reads the points of a PLY file whose coordinates are in units of `unit_mm` millimetres.
///
/// Vertices that are not finite or out of range of 16-bit millimetres are left out.
pub fn read(file: &[u8], unit_mm: f32) -> Result<Cloud, PlyError> {
    let (header, body) = Header::parse(file)?;
    let columns = header.columns()?;
    let values = match header.encoding {
        Encoding::Ascii => ascii_vertices(&header, columns, body)?,
        Encoding::BinaryLittleEndian => binary_vertices(&header, columns, body)?,
    };
    let point = |[x, y, z, r, g, b]: [f64; 6]| {
        let position = [x, y, z].map(|value| (value * f64::from(unit_mm)) as f32);
        Point::at(position, [r, g, b].map(|channel| channel as u8))
    };
    Ok(values.into_iter().filter_map(point).collect())
}

/// Writes a binary little-endian PLY file in metres. [`read`] returns the same cloud.
pub fn write(cloud: &Cloud) -> Vec<u8> {
    let mut file = format!(
        "ply\nformat binary_little_endian 1.0\ncomment Hawser: metres, y up\nelement vertex {}\n\
         property float x\nproperty float y\nproperty float z\n\
         property uchar red\nproperty uchar green\nproperty uchar blue\nend_header\n",
        cloud.len()
    )
    .into_bytes();
    file.reserve_exact(cloud.len() * 15);
    for point in cloud.points() {
        for coordinate in [point.x, point.y, point.z] {
            file.extend_from_slice(&(f32::from(coordinate) / MILLIMETRES_PER_METRE).to_le_bytes());
        }
        file.extend_from_slice(&[point.r, point.g, point.b]);
    }
    file
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Ascii,
    BinaryLittleEndian,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scalar {
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    F32,
    F64,
}

struct Header {
    encoding: Encoding,
    vertices: usize,
    properties: Vec<(String, Scalar)>,
}

/// The six properties of a point in a vertex: index of the property, offset of its first byte, and
/// type.
type Columns = [(usize, usize, Scalar); 6];

/// The lines of a header that have been read.
#[derive(Default)]
struct HeaderLines {
    encoding: Option<Encoding>,
    vertices: Option<usize>,
    properties: Vec<(String, Scalar)>,
    /// Whether an element after the vertices has begun.
    in_later_element: bool,
}

impl HeaderLines {
    /// Adds the words of a line. Fails with the reason for which it is not valid.
    fn add(&mut self, words: &[&str]) -> Result<(), &'static str> {
        match words {
            [] | ["comment" | "obj_info", ..] => {}
            ["format", "ascii", "1.0"] => self.encoding = Some(Encoding::Ascii),
            ["format", "binary_little_endian", "1.0"] => {
                self.encoding = Some(Encoding::BinaryLittleEndian);
            }
            ["format", ..] => {
                return Err("only ascii and binary_little_endian 1.0 are supported");
            }
            ["element", "vertex", count] if self.vertices.is_none() && !self.in_later_element => {
                self.vertices = Some(count.parse().map_err(|_| "not a number of vertices")?);
            }
            ["element", ..] if self.vertices.is_none() => {
                return Err("the first element must be vertex");
            }
            ["element", _, _] => self.in_later_element = true,
            ["property", ..] if self.in_later_element => {}
            ["property", kind, name] if self.vertices.is_some() => {
                let scalar = Scalar::parse(kind).ok_or("no such type")?;
                self.properties.push(((*name).to_owned(), scalar));
            }
            ["property", "list", ..] => return Err("vertices with lists are not supported"),
            _ => return Err("not understood"),
        }
        Ok(())
    }

    fn finish(self) -> Result<Header, PlyError> {
        Ok(Header {
            encoding: self.encoding.ok_or(PlyError::Missing("format"))?,
            vertices: self.vertices.ok_or(PlyError::Missing("element vertex"))?,
            properties: self.properties,
        })
    }
}

/// Returns the first line of a header, and the bytes after it.
fn split_line(bytes: &[u8]) -> Result<(String, &[u8]), PlyError> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let end = end.ok_or(PlyError::NotPly)?;
    let text = String::from_utf8_lossy(&bytes[..end]);
    Ok((text.trim_end().to_owned(), &bytes[end + 1..]))
}

impl Header {
    /// Returns the header, and the bytes after it.
    fn parse(file: &[u8]) -> Result<(Header, &[u8]), PlyError> {
        let (first, mut rest) = split_line(file)?;
        if first.trim_ascii_start() != "ply" {
            return Err(PlyError::NotPly);
        }
        let mut lines = HeaderLines::default();
        for line in 2.. {
            let (text, after) = split_line(rest)?;
            rest = after;
            let words: Vec<&str> = text.split_ascii_whitespace().collect();
            if words == ["end_header"] {
                break;
            }
            lines.add(&words).map_err(|reason| PlyError::Header {
                line,
                text: text.clone(),
                reason,
            })?;
        }
        Ok((lines.finish()?, rest))
    }

    fn columns(&self) -> Result<Columns, PlyError> {
        let find = |wanted: &'static str| {
            let index = self.properties.iter().position(|(name, _)| name == wanted);
            let index = index.ok_or(PlyError::NoProperty(wanted))?;
            let offset = self.properties[..index]
                .iter()
                .map(|(_, scalar)| scalar.bytes())
                .sum();
            Ok((index, offset, self.properties[index].1))
        };
        let color = |wanted| match find(wanted)? {
            column @ (_, _, Scalar::U8) => Ok(column),
            _ => Err(PlyError::NoProperty(match wanted {
                "red" => "red of type uchar",
                "green" => "green of type uchar",
                _ => "blue of type uchar",
            })),
        };
        Ok([
            find("x")?,
            find("y")?,
            find("z")?,
            color("red")?,
            color("green")?,
            color("blue")?,
        ])
    }

    /// Returns the number of bytes of a vertex.
    fn stride(&self) -> usize {
        self.properties
            .iter()
            .map(|(_, scalar)| scalar.bytes())
            .sum()
    }
}

fn binary_vertices(
    header: &Header,
    columns: Columns,
    body: &[u8],
) -> Result<Vec<[f64; 6]>, PlyError> {
    let (stride, vertices) = (header.stride(), header.vertices);
    if body.len() / stride < vertices {
        return Err(PlyError::Truncated {
            vertex: body.len() / stride,
            vertices,
        });
    }
    let value =
        |vertex: &[u8], (_, offset, scalar): (usize, usize, Scalar)| scalar.read(&vertex[offset..]);
    Ok(body
        .chunks_exact(stride)
        .take(vertices)
        .map(|vertex| columns.map(|column| value(vertex, column)))
        .collect())
}

fn ascii_vertices(
    header: &Header,
    columns: Columns,
    body: &[u8],
) -> Result<Vec<[f64; 6]>, PlyError> {
    let text = String::from_utf8_lossy(body);
    let mut words = text.split_ascii_whitespace();
    let mut values = Vec::new();
    for vertex in 0..header.vertices {
        let truncated = || PlyError::Truncated {
            vertex,
            vertices: header.vertices,
        };
        let row: Vec<&str> = words.by_ref().take(header.properties.len()).collect();
        let mut numbers = [0.0; 6];
        for (number, (index, _, scalar)) in numbers.iter_mut().zip(columns) {
            let word = row.get(index).ok_or_else(truncated)?;
            *number = match scalar {
                Scalar::U8 => word.parse::<u8>().ok().map(f64::from),
                _ => word.parse().ok(),
            }
            .ok_or_else(|| PlyError::Number {
                vertex,
                text: (*word).to_owned(),
            })?;
        }
        if row.len() < header.properties.len() {
            return Err(truncated());
        }
        values.push(numbers);
    }
    Ok(values)
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

    const fn bytes(self) -> usize {
        match self {
            Scalar::I8 | Scalar::U8 => 1,
            Scalar::I16 | Scalar::U16 => 2,
            Scalar::I32 | Scalar::U32 | Scalar::F32 => 4,
            Scalar::F64 => 8,
        }
    }

    /// Returns the value at the start of `bytes`, which must hold at least [`Scalar::bytes`].
    fn read(self, bytes: &[u8]) -> f64 {
        match self {
            Scalar::I8 => f64::from(i8::from_le_bytes(first(bytes))),
            Scalar::U8 => f64::from(bytes[0]),
            Scalar::I16 => f64::from(i16::from_le_bytes(first(bytes))),
            Scalar::U16 => f64::from(u16::from_le_bytes(first(bytes))),
            Scalar::I32 => f64::from(i32::from_le_bytes(first(bytes))),
            Scalar::U32 => f64::from(u32::from_le_bytes(first(bytes))),
            Scalar::F32 => f64::from(f32::from_le_bytes(first(bytes))),
            Scalar::F64 => f64::from_le_bytes(first(bytes)),
        }
    }
}

fn first<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("a whole vertex")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ASCII: &str = "ply\r\nformat ascii 1.0\r\ncomment by hand\r\nelement vertex 2\r\n\
        property float x\r\nproperty float y\r\nproperty float z\r\nproperty float nx\r\n\
        property uchar red\r\nproperty uchar green\r\nproperty uchar blue\r\n\
        element face 0\r\nproperty list uchar int vertex_indices\r\nend_header\r\n\
        0.001 -0.002 1.5 0 1 2 3\r\n4 5 nan 0 6 7 8\r\n";

    #[test]
    fn ascii_with_carriage_returns_and_extra_properties() {
        let cloud = read(ASCII.as_bytes(), MILLIMETRES_PER_METRE).unwrap();
        let point = Point {
            x: 1,
            y: -2,
            z: 1500,
            r: 1,
            g: 2,
            b: 3,
        };
        assert_eq!(
            cloud.points().collect::<Vec<_>>(),
            [point],
            "the vertex that is not a number is left out"
        );
    }

    #[test]
    fn errors_name_the_line_and_the_vertex() {
        let change = |from, to| {
            read(ASCII.replace(from, to).as_bytes(), 1.0)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            change("ascii", "binary_big_endian"),
            "header line 2: only ascii and binary_little_endian 1.0 are supported: \"format binary_big_endian 1.0\""
        );
        assert_eq!(
            change("vertex 2", "vertex 3"),
            "the file ends in vertex 2 of 3"
        );
        assert_eq!(
            change("1 2 3", "1 2 300"),
            "vertex 0: \"300\" is not a valid number for its property"
        );
        assert_eq!(
            change("uchar red", "float red"),
            "the vertices have no property \"red of type uchar\""
        );
        assert_eq!(read(b"PK\x03\x04\n", 1.0), Err(PlyError::NotPly));
    }

    #[test]
    fn more_vertices_in_the_header_than_in_the_file_are_rejected() {
        let file = ASCII
            .replace("ascii", "binary_little_endian")
            .replace("vertex 2", "vertex 18446744073709551615");
        assert!(matches!(
            read(file.as_bytes(), 1.0),
            Err(PlyError::Truncated { .. })
        ));
    }

    proptest! {
        #[test]
        fn written_files_are_read_back(packed in prop::collection::vec(any::<[u8; crate::POINT_BYTES]>(), 0..200)) {
            let cloud = Cloud::from_packed(packed.concat()).unwrap();
            prop_assert_eq!(read(&write(&cloud), MILLIMETRES_PER_METRE).unwrap(), cloud);
        }

        #[test]
        fn damaged_files_never_panic(cut in 0usize..400, at in 0usize..400, byte: u8) {
            let mut file = write(&crate::Performer::new(1, 12).cloud(std::time::Duration::ZERO));
            if let Some(damaged) = file.get_mut(at) { *damaged = byte; }
            file.truncate(file.len().saturating_sub(cut));
            let _ = read(&file, 1.0);
        }
    }
}
