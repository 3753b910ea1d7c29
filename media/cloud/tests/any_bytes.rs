//! For any file, the PLY reader does not panic, and what it accepts has no more points than the
//! file has room for and is written as it was read.

#[path = "support/checks.rs"]
mod checks;
#[path = "../../../base/wire/tests/support/mutation.rs"]
mod mutation;

use checks::*;
use hawser_cloud::ply::{self, MILLIMETRES_PER_METRE};
use hawser_cloud::{Cloud, POINT_BYTES, Performer};
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::time::Duration;

const LINES: [&str; 20] = [
    "format ascii 1.0",
    "format binary_little_endian 1.0",
    "format binary_big_endian 1.0",
    "comment any words",
    "",
    "element vertex 0",
    "element vertex 3",
    "element vertex 18446744073709551615",
    "element face 2",
    "property list uchar int vertex_indices",
    "property char x",
    "property float x",
    "property double y",
    "property ushort z",
    "property int nx",
    "property uchar red",
    "property uint8 green",
    "property uchar blue",
    "property float blue",
    "end_header",
];

fn unit_mm() -> impl Strategy<Value = f32> {
    select(vec![
        1.0,
        MILLIMETRES_PER_METRE,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::INFINITY,
    ])
}

proptest! {
    #[test]
    fn any_bytes_are_rejected_or_a_cloud(bytes in vec(any::<u8>(), 0..2000), with_magic: bool) {
        let magic = if with_magic { &b"ply\n"[..] } else { b"" };
        check(&[magic, &bytes].concat(), 1.0);
    }

    #[test]
    fn any_header_lines_are_rejected_or_a_cloud(
        lines in vec(select(LINES.to_vec()), 0..14),
        body in vec(any::<u8>(), 0..200),
        unit_mm in unit_mm(),
    ) {
        let header = format!("ply\n{}\nend_header\n", lines.join("\n"));
        check(&[header.as_bytes(), &body].concat(), unit_mm);
    }

    #[test]
    fn any_properties_in_any_order_are_a_cloud_or_truncated(
        kinds in vec(select(vec!["char", "ushort", "int", "uint", "float", "double"]), 4),
        vertices in 0..20usize,
        body in vec(any::<u8>(), 0..400),
        unit_mm in unit_mm(),
    ) {
        let header = format!(
            "ply\nformat binary_little_endian 1.0\nelement vertex {vertices}\n\
             property {} z\nproperty uchar red\nproperty {} y\nproperty uchar green\n\
             property {} other\nproperty {} x\nproperty uchar blue\nend_header\n",
            kinds[0], kinds[1], kinds[2], kinds[3]
        );
        check(&[header.as_bytes(), &body].concat(), unit_mm);
    }

    #[test]
    fn a_changed_binary_file_is_rejected_or_a_cloud(changes in changes(), unit_mm in unit_mm()) {
        let file = ply::write(&Performer::new(1, 12).cloud(Duration::ZERO));
        check(&changed(&file, &changes), unit_mm);
    }

    #[test]
    fn a_changed_ascii_file_is_rejected_or_a_cloud(changes in changes(), unit_mm in unit_mm()) {
        check(&changed(ASCII.as_bytes(), &changes), unit_mm);
    }

    #[test]
    fn any_packed_points_are_a_cloud_or_have_a_part_of_a_point(packed in vec(any::<u8>(), 0..200)) {
        let length = packed.len();
        match Cloud::from_packed(packed) {
            Ok(cloud) => prop_assert_eq!(cloud.len() * POINT_BYTES, length),
            Err(_) => prop_assert_ne!(length % POINT_BYTES, 0),
        }
    }
}
