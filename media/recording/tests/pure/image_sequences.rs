//! Recordings whose images are files. Needs the `ffmpeg` program.

use crate::support::{color_video, depth_video, description, read, rgbd_camera};
use hawser_recording::{Frame, Recording};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// Writes the images of a video to files that are numbered from `first`, and removes the video.
fn split(directory: &TempDir, video: &str, pattern: &str, first: u32) {
    let path = |name: &str| directory.path().join(name);
    fs::create_dir_all(path(pattern).parent().unwrap()).unwrap();
    let status = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-i"])
        .arg(path(video))
        .args(["-start_number", &first.to_string()])
        .arg(path(pattern))
        .status();
    assert!(status.expect("ffmpeg is installed").success());
    fs::remove_file(path(video)).unwrap();
}

/// Makes colour images from number 7 and depth images from number 998.
fn images(directory: &TempDir) {
    color_video(directory, "c.mkv", &[[1, 2, 3], [4, 5, 6], [7, 8, 9]]);
    depth_video(
        directory,
        "d.mkv",
        "gray16le",
        &[[257, 1], [2000, 2], [65_535, 3]],
    );
    split(directory, "c.mkv", "color/%010d.png", 7);
    split(directory, "d.mkv", "depth/d%03d.png", 998);
}

fn numbered(directory: &TempDir) -> Recording {
    let camera = rgbd_camera("color/%010d.png", "depth/d%03d.png");
    read(&description(directory, &format!("fps = 25\n{camera}")))
}

/// The depths of the first two pixels of a frame, and their colour.
type Images = ([u16; 2], [u8; 3]);

/// Returns the images of every frame.
fn play(recording: &Recording) -> Result<Vec<Images>, String> {
    let mut player = recording.open().map_err(|error| error.to_string())?;
    let mut frames = Vec::new();
    while let Some(frame) = player.next_frame().map_err(|error| error.to_string())? {
        let Frame::Views(views) = frame else {
            panic!("a camera has views");
        };
        let depth = views[0].depth();
        frames.push(([depth[0], depth[1]], views[0].color().as_chunks().0[0]));
    }
    Ok(frames)
}

#[test]
fn numbered_images_are_played_from_the_first_number() {
    let directory = tempfile::tempdir().unwrap();
    images(&directory);
    let frames = play(&numbered(&directory)).unwrap();
    let expected = [
        ([257, 1], [1, 2, 3]),
        ([2000, 2], [4, 5, 6]),
        ([65_535, 3], [7, 8, 9]),
    ];
    assert_eq!(frames, expected);
}

#[test]
fn jpeg_images_are_played() {
    let directory = tempfile::tempdir().unwrap();
    color_video(&directory, "c.mkv", &[[80, 80, 80], [160, 160, 160]]);
    depth_video(&directory, "d.mkv", "gray16le", &[[1, 1], [2, 2]]);
    split(&directory, "c.mkv", "%06d.jpg", 0);
    let camera = rgbd_camera("%06d.jpg", "d.mkv");
    let recording = read(&description(&directory, &format!("fps = 25\n{camera}")));
    let frames = play(&recording).unwrap();
    let near = |value: u8, expected: u8| value.abs_diff(expected) <= 2;
    let [([1, 1], first), ([2, 2], second)] = frames[..] else {
        panic!("two frames: {frames:?}");
    };
    assert!(first.iter().all(|value| near(*value, 80)), "{first:?}");
    assert!(second.iter().all(|value| near(*value, 160)), "{second:?}");
}

#[test]
fn missing_images_are_named() {
    let directory = tempfile::tempdir().unwrap();
    images(&directory);
    let recording = numbered(&directory);
    let empty = directory.path().join("depth/d1000.png");
    fs::write(&empty, b"").unwrap();
    let error = play(&recording).unwrap_err();
    assert!(
        error.contains("depth/d1000.png: the file is empty"),
        "{error}"
    );

    fs::remove_file(directory.path().join("depth/d999.png")).unwrap();
    let error = play(&recording).unwrap_err();
    assert!(
        error.ends_with("d%03d.png: number 999 is missing between 998 and 1000"),
        "{error}"
    );

    fs::remove_dir_all(directory.path().join("depth")).unwrap();
    fs::create_dir(directory.path().join("depth")).unwrap();
    let error = play(&recording).unwrap_err();
    assert!(error.contains("no file has such a name"), "{error}");
}

#[test]
fn a_damaged_image_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    images(&directory);
    let damaged = directory.path().join("depth/d999.png");
    let mut bytes = fs::read(&damaged).unwrap();
    bytes.truncate(60);
    fs::write(&damaged, bytes).unwrap();
    play(&numbered(&directory)).unwrap_err();
}

#[test]
fn images_of_eight_bits_are_no_depth() {
    let directory = tempfile::tempdir().unwrap();
    images(&directory);
    let camera = rgbd_camera("color/%010d.png", "color/%010d.png");
    let recording = read(&description(&directory, &format!("fps = 25\n{camera}")));
    let error = play(&recording).unwrap_err();
    assert!(
        error.contains("color/0000000007.png has the pixel format rgb"),
        "{error}"
    );
}

/// Writes the index files of a TUM RGB-D sequence.
fn write_indexes(directory: &TempDir, color: &str, depth: &str) {
    fs::write(directory.path().join("rgb.txt"), color).unwrap();
    fs::write(directory.path().join("depth.txt"), depth).unwrap();
}

const COLORS: &str = "# color images\n# timestamp filename\n\
    10.000 color/0000000007.png\n10.033 color/0000000008.png\n10.066 color/0000000009.png\n";

#[test]
fn images_of_index_files_are_associated_by_time() {
    let directory = tempfile::tempdir().unwrap();
    images(&directory);
    // The second colour image has no partner; 10.050 is nearer to the third.
    let depth = "# depth maps\n10.050 depth/d999.png\n9.990 depth/d998.png\n11 depth/d1000.png\n";
    write_indexes(&directory, COLORS, depth);
    let camera = rgbd_camera("rgb.txt", "depth.txt");
    let path = description(&directory, &format!("fps = 30\n{camera}"));

    let frames = play(&read(&path)).unwrap();
    assert_eq!(frames, [([257, 1], [1, 2, 3]), ([2000, 2], [7, 8, 9])]);

    write_indexes(&directory, COLORS, "10.0 depth/missing.png\n");
    let error = play(&read(&path)).unwrap_err();
    assert!(error.contains("depth/missing.png: No such file"), "{error}");
    write_indexes(
        &directory,
        COLORS,
        "10.0 depth/d998.png\n10.03 missing.png\n",
    );
    let error = play(&read(&path)).unwrap_err();
    assert!(error.contains("missing.png: No such file"), "{error}");
    write_indexes(&directory, COLORS, "20.0 depth/d998.png\n");
    let error = play(&read(&path)).unwrap_err();
    assert!(error.contains("no image was taken within 20 ms"), "{error}");
    write_indexes(&directory, COLORS, "noon depth/d998.png\n");
    let error = play(&read(&path)).unwrap_err();
    assert!(error.contains("depth.txt: line 1 is not a time"), "{error}");
}

#[test]
fn one_index_file_alone_is_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let camera = rgbd_camera("rgb.txt", "depth.mkv");
    let path = description(&directory, &format!("fps = 30\n{camera}"));
    let error = Recording::read(&path, Path::new("/data")).unwrap_err();
    assert!(
        error.to_string().contains("must both be index files"),
        "{error}"
    );
}
