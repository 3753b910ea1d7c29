//! The orientation in the EXIF metadata of an image.

/// The orientation of an image whose pixels are stored as they are shown.
pub(super) const UPRIGHT: u16 = 1;

const ORIENTATION: u16 = 0x0112;
const ENTRY_BYTES: usize = 12;

/// Returns the value of the tag Orientation, or [`UPRIGHT`] where there is none.
pub(super) fn orientation(exif: &[u8]) -> u16 {
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(exif);
    find(exif)
        .filter(|value| (1..=8).contains(value))
        .unwrap_or(UPRIGHT)
}

/// Says how an image of an orientation is shown.
pub(super) fn name(orientation: u16) -> &'static str {
    match orientation {
        2 => "mirrored (EXIF orientation 2)",
        3 => "turned by 180 degrees (EXIF orientation 3)",
        4 => "upside down and mirrored (EXIF orientation 4)",
        5 => "mirrored and turned by 270 degrees (EXIF orientation 5)",
        6 => "turned by 90 degrees (EXIF orientation 6)",
        7 => "mirrored and turned by 90 degrees (EXIF orientation 7)",
        _ => "turned by 270 degrees (EXIF orientation 8)",
    }
}

fn find(exif: &[u8]) -> Option<u16> {
    let is_little = match exif.get(..2)? {
        b"II" => true,
        b"MM" => false,
        _ => return None,
    };
    let short = |bytes: &[u8]| {
        let bytes = *bytes.first_chunk()?;
        Some(if is_little {
            u16::from_le_bytes(bytes)
        } else {
            u16::from_be_bytes(bytes)
        })
    };
    let long = |bytes: &[u8]| {
        let bytes = *bytes.first_chunk()?;
        Some(if is_little {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        })
    };
    let directory = exif.get(long(exif.get(4..)?)? as usize..)?;
    let entries = directory.get(2..)?.chunks_exact(ENTRY_BYTES);
    let mut entries = entries.take(short(directory)?.into());
    let entry = entries.find(|entry| short(entry) == Some(ORIENTATION))?;
    short(&entry[8..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_orientation_is_found_in_both_byte_orders() {
        let little = b"Exif\0\0II\x2a\0\x08\0\0\0\x02\0\x00\x01\x03\0\x01\0\0\0\x09\0\0\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        assert_eq!(orientation(little), 6);
        let big = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0";
        assert_eq!(orientation(big), 8);
        assert_eq!(orientation(&big[..12]), UPRIGHT);
    }

    proptest! {
        #[test]
        fn any_metadata_have_an_orientation(bytes in prop::collection::vec(any::<u8>(), 0..60), little: bool) {
            let start = if little { b"II\x2a\0\x08\0\0\0" } else { b"MM\0\x2a\0\0\0\x08" };
            let exif = [&start[..], &bytes].concat();
            prop_assert!((1..=8).contains(&orientation(&exif)));
        }
    }
}
