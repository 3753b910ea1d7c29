//! Descriptions and small lossless videos in a temporary directory. Needs the `ffmpeg` program.
#![allow(dead_code, reason = "each test uses some of them")]

use hawser_recording::Recording;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Two adjacent pixels; the camera is at the origin and looks along z.
pub(crate) const CAMERA: &str = "intrinsics = { width = 16, height = 2, fx = 1, fy = 1, cx = 0, cy = 0 }\n\
    extrinsics = { rotation = [[1, 0, 0], [0, 1, 0], [0, 0, 1]], translation_mm = [0, 0, 0] }\n";
const PIXELS: usize = 32;

pub(crate) fn description(directory: &TempDir, text: &str) -> PathBuf {
    let path = directory.path().join("recording.toml");
    fs::write(&path, text).unwrap();
    path
}

pub(crate) fn rgbd(directory: &TempDir) -> PathBuf {
    let camera = rgbd_camera("color.mkv", "depth.mkv");
    description(directory, &format!("fps = 25\n{camera}"))
}

/// Returns the description of a camera with a depth unit of half a millimetre.
pub(crate) fn rgbd_camera(color: &str, depth: &str) -> String {
    format!("[[rgbd]]\ncolor = \"{color}\"\ndepth = \"{depth}\"\ndepth_unit_mm = 0.5\n{CAMERA}")
}

pub(crate) fn read(description: &Path) -> Recording {
    Recording::read(description, Path::new("/data")).unwrap()
}

/// Writes a lossless video of 16x2 pixels and 25 images a second.
pub(crate) fn video(path: &Path, pixel_format: &str, stored_as: &str, frames: &[Vec<u8>]) {
    video_at("25", path, (pixel_format, stored_as), frames);
}

/// Writes a lossless video of 16x2 pixels with so many images a second.
pub(crate) fn video_at(
    rate: &str,
    path: &Path,
    (pixel_format, stored_as): (&str, &str),
    frames: &[Vec<u8>],
) {
    let mut ffmpeg = Command::new("ffmpeg")
        .args([
            "-y",
            "-v",
            "error",
            "-f",
            "rawvideo",
            "-pix_fmt",
            pixel_format,
            "-s",
            "16x2",
            "-r",
            rate,
            "-i",
            "-",
        ])
        .args(["-c:v", "ffv1", "-pix_fmt", stored_as])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("ffmpeg is installed");
    ffmpeg
        .stdin
        .take()
        .unwrap()
        .write_all(&frames.concat())
        .unwrap();
    assert!(ffmpeg.wait().unwrap().success());
}

pub(crate) fn color_video(directory: &TempDir, name: &str, frames: &[[u8; 3]]) {
    let images: Vec<Vec<u8>> = frames.iter().map(|color| color.repeat(PIXELS)).collect();
    video(&directory.path().join(name), "rgb24", "bgr0", &images);
}

pub(crate) fn depth_video(directory: &TempDir, name: &str, stored_as: &str, frames: &[[u16; 2]]) {
    let image = |depths: &[u16; 2]| {
        let mut pixels = vec![0u16; PIXELS];
        pixels[..2].copy_from_slice(depths);
        pixels.into_iter().flat_map(u16::to_le_bytes).collect()
    };
    let images: Vec<Vec<u8>> = frames.iter().map(image).collect();
    video(&directory.path().join(name), "gray16le", stored_as, &images);
}
