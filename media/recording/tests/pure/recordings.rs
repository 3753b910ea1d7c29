//! Valid and invalid descriptions and videos. Needs the `ffmpeg` program.

use crate::support::{CAMERA, color_video, depth_video, description, read, rgbd};
use hawser_cloud::{Level, Point};
use hawser_recording::Recording;
use std::fs;
use std::path::Path;

fn error_of(description: &Path) -> String {
    read(description)
        .load(Level::Fhd, 100)
        .unwrap_err()
        .to_string()
}

#[test]
fn colour_and_depth_become_points() {
    let directory = tempfile::tempdir().unwrap();
    color_video(&directory, "color.mkv", &[[10, 20, 30], [40, 50, 60]]);
    depth_video(
        &directory,
        "depth.mkv",
        "gray16le",
        &[[2000, 4000], [0, 6000]],
    );

    let recording = read(&rgbd(&directory));
    let frames = recording.load(Level::Fhd, 100).unwrap();

    let point = |x, z, [r, g, b]: [u8; 3]| Point {
        x,
        y: 0,
        z,
        r,
        g,
        b,
    };
    let points: Vec<Vec<Point>> = frames
        .iter()
        .map(|cloud| cloud.points().collect())
        .collect();
    let first = vec![
        point(0, 1000, [10, 20, 30]),
        point(2000, 2000, [10, 20, 30]),
    ];
    assert_eq!(points, [first, vec![point(3000, 3000, [40, 50, 60])]]);
    assert_eq!(recording.load(Level::Fhd, 1).unwrap().len(), 1);
}

#[test]
fn videos_of_different_length_play_their_common_part() {
    let directory = tempfile::tempdir().unwrap();
    color_video(&directory, "color.mkv", &[[1, 1, 1]]);
    depth_video(&directory, "depth.mkv", "gray16le", &[[1, 1], [1, 1]]);
    let frames = read(&rgbd(&directory)).load(Level::Fhd, 100).unwrap();
    assert_eq!(frames.len(), 1);
}

#[test]
fn videos_that_are_missing_or_no_videos_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let description = rgbd(&directory);
    assert!(
        error_of(&description).contains("color.mkv: No such file"),
        "{}",
        error_of(&description)
    );

    fs::write(directory.path().join("color.mkv"), b"not a video").unwrap();
    assert!(
        error_of(&description).contains("color.mkv: Invalid data"),
        "{}",
        error_of(&description)
    );
}

#[test]
fn a_depth_video_of_eight_bits_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    color_video(&directory, "color.mkv", &[[1, 1, 1]]);
    depth_video(&directory, "depth.mkv", "gray", &[[1, 1]]);
    let error = error_of(&rgbd(&directory));
    assert!(
        error.contains("pixel format gray, depth must be 16-bit grey"),
        "{error}"
    );
}

#[test]
fn videos_of_another_size_than_the_calibration_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    color_video(&directory, "color.mkv", &[[1, 1, 1]]);
    depth_video(&directory, "depth.mkv", "gray16le", &[[1, 1]]);
    let text = fs::read_to_string(rgbd(&directory))
        .unwrap()
        .replace("width = 16", "width = 8");
    let error = error_of(&description(&directory, &text));
    assert!(
        error.contains("color.mkv has images of 16 x 2 pixels") && error.contains("for 8 x 2"),
        "{error}"
    );
}

#[test]
fn a_wrong_description_is_rejected_with_the_line_and_the_key() {
    let directory = tempfile::tempdir().unwrap();
    let error = |text: &str| {
        Recording::read(&description(&directory, text), Path::new("/data"))
            .unwrap_err()
            .to_string()
    };
    let misspelt = error("fps = 25\n[synthetic]\nsed = 1\npoints = 9\nseconds = 1\n");
    assert!(
        misspelt.contains("line 3") && misspelt.contains("sed"),
        "{misspelt}"
    );
    let both = error(
        "fps = 25\n[synthetic]\nseed = 1\npoints = 9\nseconds = 1\n[ply-sequence]\ndirectory = \".\"\nunit_mm = 1\n",
    );
    assert!(both.contains("one of these kinds"), "{both}");
    let mirrored =
        format!("fps = 25\n[[rgbd]]\ncolor = \"c\"\ndepth = \"d\"\ndepth_unit_mm = 1\n{CAMERA}")
            .replace("[0, 0, 1]]", "[0, 0, -1]]");
    assert!(
        error(&mirrored).contains("rotation must be a rotation"),
        "{}",
        error(&mirrored)
    );
    assert!(error("fps = 0\n").contains("fps must be above 0"));
}

#[test]
fn ply_files_are_played_in_the_order_of_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let frame = |x: i16| {
        [Point {
            x,
            y: 0,
            z: 0,
            r: 0,
            g: 0,
            b: 0,
        }]
        .into_iter()
        .collect()
    };
    for (name, x) in [("b.ply", 2), ("a.ply", 1), ("notes.txt", 3)] {
        fs::write(
            directory.path().join(name),
            hawser_cloud::ply::write(&frame(x)),
        )
        .unwrap();
    }
    let path = description(
        &directory,
        "fps = 30\n[ply-sequence]\ndirectory = \".\"\nunit_mm = 1000\n",
    );

    let frames = read(&path).load(Level::Fhd, 100).unwrap();

    assert_eq!(frames, [frame(1), frame(2)]);
}

#[test]
fn the_descriptions_in_the_tree_are_valid() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for entry in fs::read_dir(directory).unwrap() {
        Recording::read(&entry.unwrap().path(), Path::new("/data")).unwrap();
    }
}
