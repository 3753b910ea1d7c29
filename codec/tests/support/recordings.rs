//! Real recordings, decoded by ffmpeg; none without `$HAWSER_DATA`.
#![allow(dead_code, reason = "each test uses some of them")]

use hawser_cloud::{Camera, Cloud, Extrinsics, HueRange, Intrinsics, View};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;

/// The cameras of `lab/recordings/talker.toml`.
const TALKER: [(&str, Extrinsics); 2] = [
    (
        "cam0_yaw180",
        Extrinsics {
            rotation: [[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]],
            translation_mm: [25.0, 1400.0, 1010.0],
        },
    ),
    (
        "cam1_yaw240",
        Extrinsics {
            rotation: [[-0.5, 0.0, 0.866], [0.0, -1.0, 0.0], [0.866, 0.0, 0.5]],
            translation_mm: [280.97, 1400.0, 833.35],
        },
    ),
];

fn folder() -> Option<PathBuf> {
    let data = std::env::var_os("HAWSER_DATA");
    if data.is_none() {
        eprintln!("without recordings, which $HAWSER_DATA names");
    }
    data.map(|data| Path::new(&data).join("volumetric"))
}

/// Decodes one of `step` images of a video to bytes.
fn images(video: &Path, format: &str, step: usize) -> Vec<u8> {
    let output = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-i"])
        .arg(video)
        .args(["-vf", &format!("select=not(mod(n\\,{step}))")])
        .args([
            "-fps_mode",
            "passthrough",
            "-f",
            "rawvideo",
            "-pix_fmt",
            format,
            "-",
        ])
        .output()
        .expect("ffmpeg runs");
    assert!(output.status.success(), "{}", video.display());
    output.stdout
}

/// Returns one of `step` frames of the person who talks, with both views of each.
pub(crate) fn talker_views(step: usize) -> Vec<Vec<View>> {
    let Some(folder) = folder().map(|folder| folder.join("talker")) else {
        return Vec::new();
    };
    let mut frames: Vec<Vec<View>> = Vec::new();
    for (name, extrinsics) in TALKER {
        let intrinsics = Intrinsics {
            width: 848,
            height: 480,
            fx: 425.0,
            fy: 425.0,
            cx: 424.0,
            cy: 240.0,
        };
        let camera = Camera {
            intrinsics,
            extrinsics,
        };
        let color = images(&folder.join(format!("{name}_color.mp4")), "rgb24", step);
        let depth = images(
            &folder.join(format!("{name}_depth_mm.mkv")),
            "gray16le",
            step,
        );
        let pixels = intrinsics.width * intrinsics.height;
        let images = color.chunks(3 * pixels).zip(depth.chunks(2 * pixels));
        for (number, (color, depth)) in images.enumerate() {
            let depth = depth
                .as_chunks()
                .0
                .iter()
                .map(|bytes| u16::from_le_bytes(*bytes));
            let view = View::new(camera, 1.0, color.to_vec(), depth.collect());
            if frames.len() == number {
                frames.push(Vec::new());
            }
            frames[number].push(view.expect("images of the camera's size"));
        }
    }
    frames
}

/// Returns one of `step` frames of the person who talks, both views merged.
pub(crate) fn talker(step: usize) -> Vec<Cloud> {
    talker_views(step)
        .iter()
        .map(|views| merged(views))
        .collect()
}

/// Returns one of `step` frames of the person who types.
pub(crate) fn typist(step: usize) -> Vec<Cloud> {
    let views = typist_views(step);
    views
        .iter()
        .map(|view| merged(slice::from_ref(view)))
        .collect()
}

fn merged(views: &[View]) -> Cloud {
    let mut cloud = Cloud::new();
    views.iter().for_each(|view| view.add_to(&mut cloud));
    cloud
}

/// Returns one of `step` frames of the person who types. Depths are rounded to millimetres.
pub(crate) fn typist_views(step: usize) -> Vec<View> {
    let Some(folder) = folder() else {
        return Vec::new();
    };
    let intrinsics = Intrinsics {
        width: 512,
        height: 424,
        fx: 366.557,
        fy: 366.557,
        cx: 254.503,
        cy: 205.052,
    };
    let camera = Camera {
        intrinsics,
        extrinsics: Extrinsics {
            rotation: [[1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, -1.0]],
            translation_mm: [0.0, 0.0, 890.0],
        },
    };
    let range = HueRange {
        near_mm: 520.7,
        far_mm: 1259.61,
    };
    let images = images(&folder.join("typist/Test.mov"), "rgb24", step);
    let bytes = 3 * intrinsics.width * intrinsics.height;
    let view = |image: &[u8]| {
        let (color, hues) = image.split_at(bytes);
        let depth = |hue: &[u8; 3]| range.depth_mm(*hue).map_or(0, |depth| depth.round() as u16);
        let depth = hues.as_chunks().0.iter().map(depth).collect();
        View::new(camera, 1.0, color.to_vec(), depth).expect("images of the camera's size")
    };
    images.chunks(2 * bytes).map(view).collect()
}
