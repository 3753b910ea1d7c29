//! The check of the PLY reader, for the property tests and for `fuzz/`.

use hawser_cloud::ply::{self, MILLIMETRES_PER_METRE};

/// The fewest bytes of a vertex: three coordinates and three colours of one byte each.
pub(crate) const MIN_VERTEX_BYTES: usize = 6;

pub(crate) const ASCII: &str = "ply\nformat ascii 1.0\nelement vertex 2\n\
    property float x\nproperty double y\nproperty int z\nproperty float nx\n\
    property uchar red\nproperty uchar green\nproperty uchar blue\n\
    element face 1\nproperty list uchar int vertex_indices\nend_header\n\
    0.001 -0.002 1 0 1 2 3\n4 5 6 nan 6 7 8\n";

pub(crate) fn check(file: &[u8], unit_mm: f32) {
    if let Ok(cloud) = ply::read(file, unit_mm) {
        assert!(cloud.len() * MIN_VERTEX_BYTES <= file.len());
        let again = ply::write(&cloud);
        assert_eq!(ply::read(&again, MILLIMETRES_PER_METRE), Ok(cloud));
    }
}
