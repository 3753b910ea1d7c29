//! What a decoder makes of the frames that it gets, compared with what it makes of all.

use super::clip::{FPS, finish};
use super::rtp::AccessUnit;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;

/// The likeness (SSIM over all planes) of each shown frame with what was filmed; none for frames that were not shown or
/// that the decoder could make no picture of.
///
/// Where all frames from one key frame to the next were shown, the decoder gets what the camera sent, and the pictures are
/// the same: only the rest is decoded, and what comes before it, from which a decoder conceals what is missing.
pub(super) fn likeness(frames: &[AccessUnit], shown: &[bool], folder: &Path) -> Result<Vec<Option<f64>>> {
    let doubtful = doubtful(frames, shown);
    let mut likeness: Vec<Option<f64>> = shown.iter().map(|shown| shown.then_some(1.0)).collect();
    // Before the first key frame nothing can be decoded.
    let begins = (0..frames.len()).find(|frame| doubtful[*frame] && shown[*frame] && frames[*frame].is_key);
    let compared = match begins {
        Some(begins) => {
            let (reference, received) = (folder.join("reference.ivf"), folder.join("received.ivf"));
            write(&reference, frames, |frame| doubtful[frame])?;
            write(&received, frames, |frame| frame >= begins && doubtful[frame] && shown[frame])?;
            let compared = compare(&received, &reference, &folder.join("likeness.txt"))?;
            for file in [reference, received] {
                fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
            }
            compared
        }
        None => BTreeMap::new(),
    };
    for (frame, likeness) in likeness.iter_mut().enumerate().filter(|(frame, _)| doubtful[*frame]) {
        *likeness = compared.get(&frame).copied();
    }
    Ok(likeness)
}

/// Which frames have to be decoded.
fn doubtful(frames: &[AccessUnit], shown: &[bool]) -> Vec<bool> {
    let keys = (0..frames.len()).filter(|frame| frames[*frame].is_key);
    let mut borders: Vec<usize> = [0].into_iter().chain(keys).chain([frames.len()]).collect();
    borders.dedup();
    let is_damaged = |border: &[usize]| shown[border[0]..border[1]].contains(&false);
    let damaged: Vec<bool> = borders.windows(2).map(is_damaged).collect();
    let mut doubtful = vec![false; frames.len()];
    for (group, border) in borders.windows(2).enumerate() {
        let next = damaged.get(group + 1).copied().unwrap_or(false);
        doubtful[border[0]..border[1]].fill(damaged[group] || next);
    }
    doubtful
}

/// Writes some of the frames with their numbers as time stamps, in the simplest container that has time stamps (IVF).
fn write(path: &Path, frames: &[AccessUnit], chosen: impl Fn(usize) -> bool) -> Result<()> {
    let wrong = || format!("cannot write {}", path.display());
    let mut file = BufWriter::new(fs::File::create(path).with_context(wrong)?);
    let chosen: Vec<usize> = (0..frames.len()).filter(|frame| chosen(*frame)).collect();
    let mut put = || -> std::io::Result<()> {
        let (version, header_bytes, width, height) = (0_u16, 32_u16, 0_u16, 0_u16);
        file.write_all(b"DKIF")?;
        file.write_all(&version.to_le_bytes())?;
        file.write_all(&header_bytes.to_le_bytes())?;
        file.write_all(b"H264")?;
        file.write_all(&width.to_le_bytes())?;
        file.write_all(&height.to_le_bytes())?;
        for word in [FPS as u32, 1, chosen.len() as u32, 0] {
            file.write_all(&word.to_le_bytes())?;
        }
        for frame in &chosen {
            let bytes = &frames[*frame].bytes;
            file.write_all(&(bytes.len() as u32).to_le_bytes())?;
            file.write_all(&(*frame as u64).to_le_bytes())?;
            file.write_all(bytes)?;
        }
        file.flush()
    };
    put().with_context(wrong)
}

/// Decodes both and compares pictures with the same time stamp.
fn compare(received: &Path, reference: &Path, log: &Path) -> Result<BTreeMap<usize, f64>> {
    let mut ffmpeg = Command::new("ffmpeg");
    // A receiver shows what it could repair, too. What the decoder says of damages is not asked for.
    ffmpeg.args(["-nostdin", "-v", "fatal", "-copyts", "-flags", "+output_corrupt", "-i"]).arg(received);
    ffmpeg.arg("-i").arg(reference);
    let filter = format!("[0:v][1:v]ssim,metadata=mode=print:key=lavfi.ssim.All:file={}", log.display());
    ffmpeg.args(["-lavfi", &filter, "-fps_mode", "passthrough", "-f", "null", "-"]);
    finish(ffmpeg)?;
    let text = fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    parse(&text).with_context(|| format!("{} is not what ffmpeg writes", log.display()))
}

/// Reads pairs of lines such as `frame:0 pts:7 pts_time:0.23` and `lavfi.ssim.All=0.98`.
fn parse(text: &str) -> Option<BTreeMap<usize, f64>> {
    let mut likeness = BTreeMap::new();
    let mut frame = None;
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("lavfi.ssim.All=") {
            likeness.insert(frame.take()?, value.parse().ok()?);
        } else {
            let stamp = line.split_whitespace().find_map(|word| word.strip_prefix("pts:"))?;
            frame = Some(stamp.parse().ok()?);
        }
    }
    Some(likeness)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(keys: &[bool]) -> Vec<AccessUnit> {
        keys.iter().map(|is_key| AccessUnit { bytes: Vec::new(), is_key: *is_key }).collect()
    }

    #[test]
    fn a_damaged_group_is_decoded_with_the_one_before_it() {
        let (key, other) = (true, false);
        let frames = frames(&[key, other, key, other, key, other, key, other]);
        let (yes, no) = (true, false);

        assert_eq!(doubtful(&frames, &[yes; 8]), [no; 8]);
        let shown = [yes, yes, yes, yes, yes, no, yes, yes];
        assert_eq!(doubtful(&frames, &shown), [no, no, yes, yes, yes, yes, no, no]);
    }

    #[test]
    fn figures_belong_to_time_stamps() {
        let text = "frame:0    pts:4       pts_time:0.13\nlavfi.ssim.All=1.000000\n\
                    frame:1    pts:6       pts_time:0.2\nlavfi.ssim.All=0.947570\n";
        assert_eq!(parse(text), Some(BTreeMap::from([(4, 1.0), (6, 0.94757)])));
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn pictures_are_aligned_by_frame_number() {
        let folder = tempfile::tempdir().unwrap();
        let video = folder.path().join("video.h264");
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-nostdin", "-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=30"]);
        ffmpeg.args(["-frames:v", "40", "-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency"]);
        ffmpeg.args(["-g", "10", "-x264-params", "scenecut=0:aud=1:slices=1", "-f", "h264"]).arg(&video);
        finish(ffmpeg).unwrap();
        let frames = access_units(&fs::read(&video).unwrap());
        let shown: Vec<bool> = (0..frames.len()).map(|frame| ![0, 23, 24].contains(&frame)).collect();

        let likeness = likeness(&frames, &shown, folder.path()).unwrap();

        assert_eq!(likeness.len(), 40);
        for (frame, likeness) in likeness.into_iter().enumerate() {
            match frame {
                0..10 | 23 | 24 => assert_eq!(likeness, None, "{frame}"),
                25..30 => assert!(likeness.unwrap() < 0.999, "{frame} lacks what it refers to: {likeness:?}"),
                _ => assert_eq!(likeness, Some(1.0), "{frame}"),
            }
        }
    }

    /// Each begins with a delimiter.
    fn access_units(video: &[u8]) -> Vec<AccessUnit> {
        const DELIMITER: [u8; 5] = [0, 0, 0, 1, 9];
        const KEY_SLICE: [u8; 4] = [0, 0, 1, 0x65];
        let holds = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        let starts = (0..video.len()).filter(|at| video[*at..].starts_with(&DELIMITER));
        let borders: Vec<usize> = starts.chain([video.len()]).collect();
        let unit = |border: &[usize]| {
            let bytes = video[border[0]..border[1]].to_vec();
            AccessUnit { is_key: holds(&bytes, &KEY_SLICE), bytes }
        };
        borders.windows(2).map(unit).collect()
    }
}
