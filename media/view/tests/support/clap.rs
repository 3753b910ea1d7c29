//! A recording with a clap: a flash and a click at the same time.

use hawser_cloud::{Cloud, ply};
use hawser_recording::Recording;
use std::fs;
use std::path::Path;
use std::process::Command;

fn ffmpeg(directory: &Path, options: &str) -> Vec<u8> {
    let output = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error"])
        .args(options.split(' '))
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Makes a recording of a second, with a flash and a click after 0.4 s.
pub(crate) fn clap(directory: &Path) -> Recording {
    let color = "color=black:s=64x48:r=25:d=1,drawbox=c=white:t=fill:enable=eq(n\\,10)";
    let depth = "color=gray:s=64x48:r=25:d=1,format=gray16le,geq=lum=1000";
    let click = "aevalsrc=if(between(t\\,0.4\\,0.41)\\,0.9*sin(2*PI*1000*t)\\,0):s=48000:d=1";
    ffmpeg(
        directory,
        &format!("-f lavfi -i {color} -pix_fmt bgr0 -c:v ffv1 color.mkv"),
    );
    ffmpeg(
        directory,
        &format!("-f lavfi -i {depth} -c:v ffv1 depth.mkv"),
    );
    ffmpeg(directory, &format!("-f lavfi -i {click} click.wav"));
    let text = "fps = 25\n\n[audio]\nfile = \"click.wav\"\n\n[[rgbd]]\ncolor = \"color.mkv\"\n\
        depth = \"depth.mkv\"\ndepth_unit_mm = 1\n\
        intrinsics = { width = 64, height = 48, fx = 60, fy = 60, cx = 32, cy = 24 }\n\
        extrinsics = { rotation = [[1, 0, 0], [0, 1, 0], [0, 0, 1]], translation_mm = [0, 0, 0] }\n";
    fs::write(directory.join("clap.toml"), text).unwrap();
    Recording::read(&directory.join("clap.toml"), directory).unwrap()
}

/// Returns the times of the saved frames in nanoseconds, and those of the ones with a flash.
fn frames(saved: &Path) -> (Vec<i64>, Vec<i64>) {
    let names = fs::read_dir(saved)
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    let mut frames: Vec<i64> = Vec::new();
    let mut flashes = Vec::new();
    for name in names {
        let name = name.into_string().unwrap();
        let time = name
            .strip_prefix("frame-")
            .and_then(|name| name.strip_suffix(".ply"));
        let Some(time_ns) = time.map(|time| time.parse().unwrap()) else {
            continue;
        };
        frames.push(time_ns);
        let bytes = fs::read(saved.join(&name)).unwrap();
        let cloud: Cloud = ply::read(&bytes, ply::MILLIMETRES_PER_METRE).unwrap();
        let brightness: u64 = cloud.points().map(|point| u64::from(point.g)).sum();
        if brightness > 128 * cloud.len() as u64 {
            flashes.push(time_ns);
        }
    }
    frames.sort_unstable();
    flashes.sort_unstable();
    (frames, flashes)
}

/// Returns the times of clicks in nanoseconds after the first sample of a file.
fn clicks(saved: &Path) -> Vec<i64> {
    let samples = ffmpeg(
        saved,
        "-c:a libopus -i sound.opus -ac 1 -ar 48000 -f s16le -",
    );
    let samples = samples
        .as_chunks::<2>()
        .0
        .iter()
        .map(|bytes| i16::from_le_bytes(*bytes));
    let mut clicks: Vec<i64> = Vec::new();
    for (number, sample) in (0_i64..).zip(samples) {
        let time_ns = number * 1_000_000_000 / 48_000;
        let is_first = clicks
            .last()
            .is_none_or(|last| time_ns - last > 500_000_000);
        if sample.unsigned_abs() > 6000 && is_first {
            clicks.push(time_ns);
        }
    }
    clicks
}

/// Returns the times by which the clicks that a viewer has saved are later than their flashes, in milliseconds, the
/// smallest first. Those of a busy machine may be captured late.
pub(crate) fn apart_ms(saved: &Path) -> Vec<i64> {
    let (frames, flashes) = frames(saved);
    let clicks = clicks(saved);
    let apart = flashes.iter().map(|flash| {
        let times = clicks
            .iter()
            .map(|click| (frames[0] + click - flash) / 1_000_000);
        times.min_by_key(|apart| apart.abs()).unwrap_or(i64::MAX)
    });
    let mut apart: Vec<i64> = apart.collect();
    apart.sort_unstable_by_key(|apart| apart.unsigned_abs());
    apart
}

/// Checks that a viewer has seen and heard claps, and two of them at most 40 ms apart: a busy machine holds up pictures.
pub(crate) fn check(saved: &Path) {
    let apart = apart_ms(saved);
    println!("picture and sound are apart by {apart:?} ms");
    let are_near = apart.get(1).is_some_and(|apart| apart.unsigned_abs() <= 40);
    assert!(apart.len() >= 3 && are_near, "{apart:?}");
}
