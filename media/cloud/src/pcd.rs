//! Reading PCD, the format of the Point Cloud Library, which Open3D writes too.
//!
//! [`read_counted`] accepts `DATA ascii` and `DATA binary` with the fields `x`, `y` and `z`. Colours are one field `rgb`
//! or `rgba` of 4 bytes, an integer or the number that its bytes are as `float`, or three fields as in
//! [`ply`](crate::ply). The viewpoint is not applied.

use crate::Cloud;
use crate::ply::{CloudFileError, Colors, Columns, Element, Encoding, Header, Kind, Scalar};

/// The most values of a point.
const MAX_VALUES: usize = 4096;

/// The names of a colour in one field.
const PACKED: [&str; 2] = ["rgb", "rgba"];

/// Reads the points of a PCD file whose coordinates are in units of `unit_mm` millimetres. Also returns the number of
/// points that are not finite or out of range of 16-bit millimetres, and are left out.
///
/// # Errors
/// If the file is damaged or compressed, or has no coordinates.
pub fn read_counted(file: &[u8], unit_mm: f32) -> Result<(Cloud, usize), CloudFileError> {
    let (header, columns, body) = parse(file)?;
    crate::ply::read_body(&header, &columns, body, unit_mm)
}

/// Checks a file of a length in bytes by its first [`MAX_HEADER`](crate::ply::MAX_HEADER) bytes, as
/// [`ply::check`](crate::ply::check) does.
///
/// # Errors
/// As [`read_counted`].
pub fn check(start: &[u8], length: u64) -> Result<(), CloudFileError> {
    let (header, _, body) = parse(start)?;
    let left = length.saturating_sub((start.len() - body.len()) as u64);
    header.check_length(left)
}

/// The lines of a header that have been read.
#[derive(Default)]
struct Lines<'a> {
    fields: Vec<&'a str>,
    sizes: Vec<&'a str>,
    types: Vec<&'a str>,
    counts: Vec<&'a str>,
    width: Option<u64>,
    height: Option<u64>,
    points: Option<u64>,
    encoding: Option<Encoding>,
}

impl<'a> Lines<'a> {
    /// Adds the words of a line. Fails with the reason for which it is not valid.
    fn add(&mut self, words: &[&'a str]) -> Result<(), &'static str> {
        let number = |word: &str| word.parse().map_err(|_| "not a number of points");
        match words {
            [] | ["VERSION" | "VIEWPOINT", ..] => {}
            [word, ..] if word.starts_with('#') => {}
            ["FIELDS" | "COLUMNS", fields @ ..] => self.fields = fields.to_vec(),
            ["SIZE", sizes @ ..] => self.sizes = sizes.to_vec(),
            ["TYPE", types @ ..] => self.types = types.to_vec(),
            ["COUNT", counts @ ..] => self.counts = counts.to_vec(),
            ["WIDTH", count] => self.width = Some(number(count)?),
            ["HEIGHT", count] => self.height = Some(number(count)?),
            ["POINTS", count] => self.points = Some(number(count)?),
            ["DATA", "ascii"] => self.encoding = Some(Encoding::Ascii),
            ["DATA", "binary"] => self.encoding = Some(Encoding::LittleEndian),
            ["DATA", "binary_compressed"] => {
                return Err(
                    "compressed points are not read; pcl_convert_pcd_ascii_binary IN.pcd OUT.pcd 1 unpacks them",
                );
            }
            _ => return Err("not understood"),
        }
        Ok(())
    }

    fn finish(self, encoding: Encoding) -> Result<(Header, Columns), CloudFileError> {
        let counts = match self.counts.is_empty() {
            true => vec!["1"; self.fields.len()],
            false => self.counts,
        };
        let words = [&self.sizes, &self.types, &counts].map(Vec::len);
        if words.iter().any(|words| *words != self.fields.len()) {
            return Err(CloudFileError::Fields(
                "they have different numbers of words",
            ));
        }
        let count = self
            .points
            .or_else(|| self.width?.checked_mul(self.height?));
        let mut vertex = Element {
            name: "vertex".to_owned(),
            count: count.ok_or(CloudFileError::Missing("POINTS"))?,
            properties: Vec::new(),
        };
        let mut packed = None;
        let kinds = self.sizes.iter().zip(&self.types).zip(&counts);
        for (name, ((size, kind), count)) in self.fields.iter().zip(kinds) {
            let mut scalar =
                scalar(kind, size).ok_or(CloudFileError::Fields("a TYPE has no such SIZE"))?;
            if PACKED.contains(name) && scalar.bytes() == 4 {
                let place = vertex.properties.len();
                packed = Some(match (scalar, encoding) {
                    // Numbers that are not finite have a colour too, but only as bytes.
                    (Scalar::F32, Encoding::Ascii) => Colors::PackedAsFloat(place),
                    _ => {
                        scalar = Scalar::U32;
                        Colors::Packed(place)
                    }
                });
            }
            let count: usize = count.parse().unwrap_or(usize::MAX);
            if vertex.properties.len().saturating_add(count) > MAX_VALUES {
                return Err(CloudFileError::Fields("a point has more than 4096 values"));
            }
            let property = ((*name).to_owned(), Kind::Scalar(scalar));
            vertex
                .properties
                .extend(std::iter::repeat_n(property, count));
        }
        let header = Header {
            encoding,
            elements: vec![vertex],
        };
        let columns = header.columns()?;
        let color = packed.or(columns.color);
        Ok((header, Columns { color, ..columns }))
    }
}

/// Returns the type of a field.
fn scalar(kind: &str, size: &str) -> Option<Scalar> {
    Some(match (kind, size) {
        ("I", "1") => Scalar::I8,
        ("I", "2") => Scalar::I16,
        ("I", "4") => Scalar::I32,
        ("I", "8") => Scalar::I64,
        ("U", "1") => Scalar::U8,
        ("U", "2") => Scalar::U16,
        ("U", "4") => Scalar::U32,
        ("U", "8") => Scalar::U64,
        ("F", "4") => Scalar::F32,
        ("F", "8") => Scalar::F64,
        _ => return None,
    })
}

/// Returns the header, the places of a point's values, and the bytes after the header.
fn parse(file: &[u8]) -> Result<(Header, Columns, &[u8]), CloudFileError> {
    let mut lines = Lines::default();
    let mut rest = file;
    for number in 1.. {
        let end = rest.iter().position(|byte| *byte == b'\n');
        let (line, after) = rest.split_at(end.ok_or(CloudFileError::NotPcd)?);
        rest = &after[1..];
        // A line of other bytes belongs to a file of another kind.
        let text = str::from_utf8(line).map_err(|_| CloudFileError::NotPcd)?;
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        lines.add(&words).map_err(|reason| match number {
            1 => CloudFileError::NotPcd,
            line => CloudFileError::Header {
                line,
                text: text.trim_end().to_owned(),
                reason,
            },
        })?;
        if let Some(encoding) = lines.encoding {
            let (header, columns) = lines.finish(encoding)?;
            return Ok((header, columns, rest));
        }
    }
    Err(CloudFileError::NotPcd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns the points as coordinates and colours.
    fn points(file: &[u8]) -> Vec<([i16; 3], [u8; 3])> {
        assert_eq!(
            check(&file[..file.len().min(300)], file.len() as u64),
            Ok(())
        );
        let (cloud, _) = read_counted(file, 1000.0).unwrap();
        cloud
            .points()
            .map(|p| ([p.x, p.y, p.z], [p.r, p.g, p.b]))
            .collect()
    }

    const EXPECTED: [([i16; 3], [u8; 3]); 2] = [
        ([1000, -500, 2000], [255, 128, 1]),
        ([0, 0, 1500], [0, 64, 255]),
    ];

    /// The fields of `PointXYZRGBNormal` as the Point Cloud Library writes them: with gaps, alpha 255, and points
    /// without a depth.
    fn of_pcl() -> Vec<u8> {
        let mut file = b"# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\nFIELDS x y z _ rgba normal _\n\
            SIZE 4 4 4 1 4 4 1\nTYPE F F F U U F U\nCOUNT 1 1 1 4 1 3 4\nWIDTH 3\nHEIGHT 1\n\
            VIEWPOINT 0 0 0 1 0 0 0\nPOINTS 3\nDATA binary\n"
            .to_vec();
        let points = [
            ([1.0_f32, -0.5, 2.0], 0xffff_8001_u32),
            ([f32::NAN; 3], 0),
            ([0.0, 0.0, 1.5], 0xff00_40ff),
        ];
        for (position, rgba) in points {
            file.extend(position.iter().flat_map(|value| value.to_le_bytes()));
            file.extend([0; 4]);
            file.extend(rgba.to_le_bytes());
            file.extend([0; 16]);
        }
        file
    }

    #[test]
    fn files_of_the_point_cloud_library_are_read() {
        assert_eq!(points(&of_pcl()), EXPECTED);
        let file = of_pcl();
        let (header, body) = file.split_at(file.len() - 3 * 36);
        let as_float = String::from_utf8_lossy(header).replace("F F F U U F U", "F F F U F F U");
        assert_eq!(points(&[as_float.as_bytes(), body].concat()), EXPECTED);
        // Its text has the colour as an integer.
        let text = "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\nFIELDS x y z rgb\nSIZE 4 4 4 4\n\
            TYPE F F F U\nCOUNT 1 1 1 1\nWIDTH 3\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS 3\nDATA ascii\n\
            1 -0.5 2 4294934529\nnan nan nan 4278190080\n0 0 1.5 16639\n";
        assert_eq!(points(text.as_bytes()), EXPECTED);
        let signed = text
            .replace("F F F U", "F F F I")
            .replace("4294934529", "-32767")
            .replace("4278190080", "-16777216");
        assert_eq!(points(signed.as_bytes()), EXPECTED);
        let (_, left_out) = read_counted(text.as_bytes(), 1000.0).unwrap();
        assert_eq!(left_out, 1);
    }

    #[test]
    fn files_of_open3d_are_read() {
        let colors = [0x00ff_8001_u32, 0x0000_40ff].map(f32::from_bits);
        let header = |data| {
            format!(
                "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\nFIELDS x y z normal_x normal_y normal_z rgb\n\
                 SIZE 4 4 4 4 4 4 4\nTYPE F F F F F F F\nCOUNT 1 1 1 1 1 1 1\nWIDTH 2\nHEIGHT 1\n\
                 VIEWPOINT 0 0 0 1 0 0 0\nPOINTS 2\nDATA {data}\n"
            )
        };
        let rows = [
            [1.0, -0.5, 2.0, 0.0, 0.0, 1.0, colors[0]],
            [0.0, 0.0, 1.5, 0.0, 0.0, 1.0, colors[1]],
        ];
        let bytes = rows.iter().flatten().flat_map(|value| value.to_le_bytes());
        let binary: Vec<u8> = header("binary")
            .into_bytes()
            .into_iter()
            .chain(bytes)
            .collect();
        assert_eq!(points(&binary), EXPECTED);
        let text: Vec<String> = rows
            .iter()
            .map(|row| row.map(|value| format!("{value:e}")).join(" "))
            .collect();
        let text = header("ascii") + &text.join("\n") + "\n";
        assert_eq!(points(text.as_bytes()), EXPECTED);
    }

    #[test]
    fn files_that_are_not_read_say_why() {
        let error = |from: &str, to: &str| {
            let file = String::from_utf8_lossy(&of_pcl()).replace(from, to);
            read_counted(file.as_bytes(), 1.0).unwrap_err().to_string()
        };
        let compressed = error("DATA binary", "DATA binary_compressed");
        assert!(
            compressed.contains("pcl_convert_pcd_ascii_binary"),
            "{compressed}"
        );
        assert!(error("FIELDS x", "FIELDS i").contains("no property \"x\""));
        assert!(error("COUNT 1 1 1 4", "COUNT 1 1 1 99999999999").contains("4096"));
        assert!(error("SIZE 4 4", "SIZE 4").contains("different numbers"));
        assert!(error("SIZE 4", "SIZE 3").contains("no such SIZE"));
        assert!(error("POINTS 3", "POINTS 18446744073709551615").contains("ends in vertex"));
        assert_eq!(
            read_counted(b"ply\nformat ascii 1.0\n", 1.0),
            Err(CloudFileError::NotPcd)
        );
        assert_eq!(read_counted(b"\x89PNG\n", 1.0), Err(CloudFileError::NotPcd));
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(cut in 0usize..300, at in 0usize..300, byte: u8) {
            let mut file = of_pcl();
            if let Some(damaged) = file.get_mut(at) { *damaged = byte; }
            file.truncate(file.len().saturating_sub(cut));
            let _ = read_counted(&file, 1.0);
            let _ = check(&file, file.len() as u64);
        }
    }
}
