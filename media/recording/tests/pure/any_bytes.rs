//! For any text, the description of a recording is read without a panic, and what is accepted is
//! within its bounds.

use crate::mutation::{changed, changes};
use hawser_recording::{Recording, Source};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::fs;
use std::path::Path;

const CAMERAS: &str = r#"
fps = 25
[[rgbd]]
color = "color.mkv"
depth = "$HAWSER_DATA/depth.mkv"
depth_unit_mm = 1
intrinsics = { width = 848, height = 480, fx = 425, fy = 425, cx = 424, cy = 240 }
extrinsics = { rotation = [[-1, 0, 0], [0, -1, 0], [0, 0, 1]], translation_mm = [25, 1400, 1010] }
[[hue-depth]]
video = "video.mov"
range = { near_mm = 520.7, far_mm = 1259.61 }
intrinsics = { width = 512, height = 424, fx = 366.5, fy = 366.5, cx = 254.5, cy = 205.1 }
extrinsics = { rotation = [[1, 0, 0], [0, -1, 0], [0, 0, -1]], translation_mm = [0, 0, 890] }
"#;

const LIVE: &str = r#"
fps = 30
[[rgbd]]
color = { input = ["-f", "v4l2", "-i", "/dev/video2"] }
depth = { input = ["-f", "v4l2", "-i", "/dev/video0"] }
depth_unit_mm = 1
intrinsics = { width = 640, height = 480, fx = 617, fy = 617, cx = 320, cy = 240 }
extrinsics = { rotation = [[1, 0, 0], [0, -1, 0], [0, 0, -1]], translation_mm = [0, 0, 0] }
"#;

const PLY_SEQUENCE: &str = "fps = 30\n[ply-sequence]\ndirectory = \"frames\"\nunit_mm = 1000\n";

const SYNTHETIC: &str = "fps = 30\n[synthetic]\nseed = 1\npoints = 184000\nseconds = 4\n";

/// Reads a description from a file; returns whether it is accepted.
fn check(text: &[u8]) -> Result<bool, TestCaseError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("recording.toml");
    fs::write(&path, text).unwrap();
    let Ok(recording) = Recording::read(&path, Path::new("/data")) else {
        return Ok(false);
    };
    prop_assert!(recording.fps.is_finite() && recording.fps > 0.0);
    match recording.source {
        Source::Cameras { rgbd, hue_depth } => {
            prop_assert!(!rgbd.is_empty() || !hue_depth.is_empty());
            let of_rgbd = rgbd.iter().map(|camera| camera.camera());
            let of_hue_depth = hue_depth.iter().map(|camera| camera.camera());
            for camera in of_rgbd.chain(of_hue_depth) {
                prop_assert!(camera.intrinsics.width > 0 && camera.intrinsics.height > 0);
                prop_assert!(camera.intrinsics.fx > 0.0 && camera.intrinsics.fy > 0.0);
                let rotation = camera.extrinsics.rotation;
                prop_assert!(rotation.iter().flatten().all(|value| value.abs() < 1.1));
            }
            prop_assert!(rgbd.iter().all(|camera| camera.depth_unit_mm > 0.0));
        }
        Source::PlySequence(sequence) => prop_assert!(sequence.unit_mm > 0.0),
        Source::Synthetic(synthetic) => {
            prop_assert!((1.0..=3600.0).contains(&synthetic.seconds));
        }
    }
    Ok(true)
}

proptest! {
    #[test]
    fn any_bytes_are_rejected_or_a_recording(bytes in vec(any::<u8>(), 0..300)) {
        check(&bytes)?;
    }

    #[test]
    fn a_changed_description_is_rejected_or_a_recording(
        valid in select(vec![CAMERAS, LIVE, PLY_SEQUENCE, SYNTHETIC]),
        changes in changes(),
    ) {
        check(&changed(valid.as_bytes(), &changes))?;
    }

    #[test]
    fn a_description_with_any_number_is_rejected_or_a_recording(
        valid in select(vec![CAMERAS, LIVE, PLY_SEQUENCE, SYNTHETIC]),
        place in any::<Index>(),
        number in select(vec![
            "nan", "inf", "-inf", "-1", "0", "1e-40", "1e300", "9223372036854775807",
        ]),
    ) {
        // Replaces one of the numbers of the text.
        let is_part = |c: char| c.is_ascii_digit() || c == '-' || c == '.';
        let words: Vec<&str> = valid.split_inclusive([' ', '[', ',', ']', '\n']).collect();
        let numbers: Vec<usize> = (0..words.len())
            .filter(|index| words[*index].starts_with(is_part))
            .collect();
        let chosen = *place.get(&numbers);
        let replaced = format!("{number}{}", words[chosen].trim_start_matches(is_part));
        let mut words = words.clone();
        words[chosen] = &replaced;
        check(words.concat().as_bytes())?;
    }
}

#[test]
fn a_rotation_that_is_not_a_number_is_rejected() {
    let text = CAMERAS.replace("[[-1, 0, 0]", "[[nan, 0, 0]");
    assert!(!check(text.as_bytes()).unwrap());
}

#[test]
fn the_unchanged_descriptions_are_accepted() {
    for text in [CAMERAS, LIVE, PLY_SEQUENCE, SYNTHETIC] {
        assert!(check(text.as_bytes()).unwrap());
    }
}
