//! Reading and writing PLY, the exchange format of point clouds.
//!
//! [`read`] accepts `ascii`, `binary_little_endian` and `binary_big_endian` files with an element `vertex` that has the
//! properties `x`, `y` and `z`. Colours are the properties `red`, `green` and `blue`, also with `diffuse_` in front:
//! `uchar`, `ushort` up to 65535, or `float` and `double` up to 1, or up to 255 if one of them is above 1. Vertices
//! without colours are grey. Other elements and properties are skipped. Header lines may end in LF, CR LF or CR.

mod body;
mod header;

pub use header::MAX_HEADER;

use crate::{Cloud, Point};
use body::Values;
pub(crate) use header::{Colors, Columns, Element, Encoding, Header, Kind, Scalar};

/// The `unit_mm` of files in metres, such as those written by [`write`].
pub const MILLIMETRES_PER_METRE: f32 = 1000.0;

/// The colour of vertices without one.
const GREY: u8 = 190;

/// An error in a PLY or PCD file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CloudFileError {
    /// The first line is not `ply`, or no line `end_header` follows.
    #[error("not a PLY file: it must begin with a line \"ply\" and have a line \"end_header\"")]
    NotPly,
    /// The file does not begin with the header of a PCD file.
    #[error(
        "not a PCD file: it must begin with lines such as \"VERSION\", \"FIELDS\", and one \"DATA\""
    )]
    NotPcd,
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
    /// The lines of a PCD file that describe the values of a point are not valid.
    #[error("the lines FIELDS, SIZE, TYPE and COUNT do not fit each other: {0}")]
    Fields(&'static str),
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
    /// A list of a file is longer than the file.
    #[error("a list of the element \"{0}\" is longer than the file")]
    List(String),
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
pub fn read(file: &[u8], unit_mm: f32) -> Result<Cloud, CloudFileError> {
    read_counted(file, unit_mm).map(|(cloud, _)| cloud)
}

/// As [`read`]. Also returns the number of vertices that were left out.
pub fn read_counted(file: &[u8], unit_mm: f32) -> Result<(Cloud, usize), CloudFileError> {
    let (header, body) = Header::parse(file)?;
    read_body(&header, &header.columns()?, body, unit_mm)
}

/// Reads the points behind a header.
pub(crate) fn read_body(
    header: &Header,
    columns: &Columns,
    body: &[u8],
    unit_mm: f32,
) -> Result<(Cloud, usize), CloudFileError> {
    let text = match header.encoding {
        Encoding::Ascii => String::from_utf8_lossy(body),
        _ => "".into(),
    };
    let mut values = Values::new(header, &text, body)?;
    let (mut cloud, mut left_out) = (Cloud::new(), 0);
    let mut rows: Vec<Row> = Vec::new();
    for vertex in 0..header.vertex().count as usize {
        let row = values.vertex(vertex)?;
        let position = columns.position.map(|column| row[column]);
        let color = columns.color.map(|colors| match colors {
            Colors::Channels(channels, _) => channels.map(|column| row[column]),
            Colors::Packed(column) => unpacked(row[column] as i64 as u32),
            Colors::PackedAsFloat(column) => unpacked((row[column] as f32).to_bits()),
        });
        rows.push((position, color));
    }
    let whole = match columns.color {
        Some(Colors::Channels(_, scalar)) => whole(scalar, &rows),
        _ => 255.0,
    };
    for (position, color) in rows {
        let position = position.map(|value| (value * f64::from(unit_mm)) as f32);
        let channel = |value: f64| (value / whole * 255.0).round() as u8;
        let color = color.map_or([GREY; 3], |color| color.map(channel));
        match Point::at(position, color) {
            Some(point) => cloud.push(point),
            None => left_out += 1,
        }
    }
    Ok((cloud, left_out))
}

/// A vertex: position and colour.
type Row = ([f64; 3], Option<[f64; 3]>);

/// Returns the channels of a packed colour.
fn unpacked(packed: u32) -> [f64; 3] {
    let [_, red, green, blue] = packed.to_be_bytes();
    [red, green, blue].map(f64::from)
}

/// Returns the value of a channel at its brightest.
fn whole(scalar: Scalar, rows: &[Row]) -> f64 {
    match scalar {
        Scalar::U8 => 255.0,
        Scalar::U16 => 65_535.0,
        _ => {
            let mut channels = rows.iter().filter_map(|(_, color)| *color).flatten();
            // Rounding and filters leave values just above 1.
            if channels.any(|value| value > 2.0) {
                255.0
            } else {
                1.0
            }
        }
    }
}

/// Checks a file of a length in bytes by its first [`MAX_HEADER`] bytes: its header, and that its vertices can be
/// there.
pub fn check(start: &[u8], length: u64) -> Result<(), CloudFileError> {
    let (header, body) = Header::parse(start)?;
    header.columns()?;
    let left = length.saturating_sub((start.len() - body.len()) as u64);
    header.check_length(left)
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
            change("ascii", "binary_pdp_endian"),
            "header line 2: only ascii, binary_little_endian and binary_big_endian 1.0 are supported: \"format binary_pdp_endian 1.0\""
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
            change("uchar red", "int red"),
            "the vertices have no property \"red of type uchar, ushort, float or double, nor green and blue like it\""
        );
        assert_eq!(read(b"PK\x03\x04\n", 1.0), Err(CloudFileError::NotPly));
    }

    #[test]
    fn more_vertices_in_the_header_than_in_the_file_are_rejected() {
        let file = ASCII
            .replace("ascii", "binary_little_endian")
            .replace("vertex 2", "vertex 18446744073709551615");
        assert!(matches!(
            read(file.as_bytes(), 1.0),
            Err(CloudFileError::Truncated { .. })
        ));
    }

    /// A file of one vertex, 1 m to the right, in the colour 255, 128, 0.
    fn file(format: &str, elements: &str, body: &[u8]) -> Vec<u8> {
        let header = format!("ply\nformat {format} 1.0\n{elements}end_header\n");
        [header.as_bytes(), body].concat()
    }

    const XYZ: &str = "property float x\nproperty float y\nproperty float z\n";

    #[test]
    fn colours_of_every_type_and_name_are_read() {
        let colors = |kind: &str, prefix: &str| {
            let property = |color| format!("property {kind} {prefix}{color}\n");
            format!(
                "element vertex 1\n{XYZ}{}",
                ["red", "green", "blue"].map(property).concat()
            )
        };
        for (kind, prefix, values) in [
            ("uchar", "", "255 128 0"),
            ("uint8", "diffuse_", "255 128 0"),
            ("ushort", "", "65535 32896 0"),
            ("float", "", "1 0.502 0"),
            ("float", "", "1.0000002 0.502 0"),
            ("double", "diffuse_", "255 128 0"),
        ] {
            let body = format!("1 0 0 {values}");
            let cloud = read(
                &file("ascii", &colors(kind, prefix), body.as_bytes()),
                1000.0,
            );
            let point = Point {
                x: 1000,
                y: 0,
                z: 0,
                r: 255,
                g: 128,
                b: 0,
            };
            assert_eq!(
                cloud.unwrap().points().collect::<Vec<_>>(),
                [point],
                "{kind}"
            );
        }
        let grey = read(
            &file("ascii", &format!("element vertex 1\n{XYZ}"), b"1 0 0"),
            1.0,
        );
        let grey: Vec<_> = grey
            .unwrap()
            .points()
            .map(|point| (point.r, point.g, point.b))
            .collect();
        assert_eq!(grey, [(GREY, GREY, GREY)]);
    }

    #[test]
    fn elements_and_lists_around_the_points_are_skipped() {
        let elements = "element camera 2\nproperty list uchar short view\nproperty double f\n\
            element vertex 1\nproperty list ushort float weights\nproperty double x\nproperty short y\n\
            property char z\nelement face 1\nproperty list uchar int vertex_indices\n";
        let mut big = Vec::new();
        for view in [&[1_i16, 2][..], &[]] {
            big.push(view.len() as u8);
            big.extend(view.iter().flat_map(|value| value.to_be_bytes()));
            big.extend(0.5_f64.to_be_bytes());
        }
        big.extend([0, 1]);
        big.extend(0.25_f32.to_be_bytes());
        big.extend(12_f64.to_be_bytes());
        big.extend((-3_i16).to_be_bytes());
        big.extend([7, 3, 0, 0]);
        let cloud = read(&file("binary_big_endian", elements, &big), 1.0).unwrap();
        let position: Vec<_> = cloud
            .points()
            .map(|point| (point.x, point.y, point.z))
            .collect();
        assert_eq!(position, [(12, -3, 7)]);
        let text = read(
            &file("ascii", elements, b"2 1 2 0.5 0 0.5\n1 0.25 12 -3 7\n"),
            1.0,
        );
        assert_eq!(text, Ok(cloud));
    }

    #[test]
    fn header_lines_end_in_carriage_returns_alone() {
        let file = write(&Cloud::from_packed(vec![10; crate::POINT_BYTES]).unwrap());
        let end = file
            .windows(11)
            .position(|bytes| bytes == b"end_header\n")
            .unwrap()
            + 11;
        let header = String::from_utf8(file[..end].to_vec())
            .unwrap()
            .replace('\n', "\r");
        let old = [header.as_bytes(), &file[end..]].concat();
        assert_eq!(read(&old, 1000.0), read(&file, 1000.0));
        assert!(read(&file, 1000.0).unwrap().len() == 1);
    }

    #[test]
    fn vertices_out_of_range_are_counted() {
        let elements = format!("element vertex 5\n{XYZ}");
        let body = b"nan 0 0\n-nan(ind) 0 0\n1.#QNAN 0 0\n40 0 0\n1 0 0\n";
        let (cloud, left_out) = read_counted(&file("ascii", &elements, body), 1000.0).unwrap();
        assert_eq!((cloud.len(), left_out), (1, 4));
    }

    #[test]
    fn files_that_are_cut_off_are_found_by_their_length() {
        let whole = write(&Cloud::from_packed(vec![0; 20 * crate::POINT_BYTES]).unwrap());
        let length = whole.len() as u64;
        assert_eq!(check(&whole[..300], length), Ok(()));
        let cut_off = check(&whole[..300], length - 1);
        assert_eq!(
            cut_off,
            Err(CloudFileError::Truncated {
                vertex: 19,
                vertices: 20
            })
        );
        let text = file("ascii", &format!("element vertex 2\n{XYZ}"), b"0 0 0 1 1 1");
        assert_eq!(check(&text, text.len() as u64), Ok(()));
        assert!(check(&text, text.len() as u64 - 2).is_err());
    }

    #[test]
    fn elements_without_properties_are_skipped_at_once() {
        let elements = format!("element nothing {}\nelement vertex 1\n{XYZ}", u64::MAX);
        let cloud = read(&file("ascii", &elements, b"1 2 3\n"), 1.0).unwrap();
        assert_eq!(cloud.len(), 1);
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
