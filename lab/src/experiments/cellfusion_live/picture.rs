//! Quality of the decoded frames, compared with the frames that the camera sent.

use super::clip::{FPS, finish};
use super::rtp::AccessUnit;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;

/// The data of a frame that the decoder receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Received {
    /// All of it.
    Whole,
    /// The packets that had arrived when the frame was due for decoding.
    Part(Vec<u8>),
    /// No data.
    Nothing,
}

impl Received {
    /// Returns the data of a frame that was sent as `sent`; `None` if there is none.
    fn bytes<'a>(&'a self, sent: &'a AccessUnit) -> Option<&'a [u8]> {
        match self {
            Received::Whole => Some(&sent.bytes),
            Received::Part(bytes) => Some(bytes),
            Received::Nothing => None,
        }
    }
}

/// Returns the similarity (SSIM over all planes) of each received frame to the frame that was sent;
/// `None` for frames that the decoder did not output.
///
/// If all frames from one key frame to the next are whole, the decoder's input and output are the
/// same as the camera's. Therefore only the other groups are decoded, each with the group before
/// it, from which the decoder conceals missing data.
pub(super) fn ssim(
    sent: &[AccessUnit],
    received: &[Received],
    folder: &Path,
) -> Result<Vec<Option<f64>>> {
    let to_decode = to_decode(sent, received);
    // Decoding starts with the first whole key frame.
    let is_beginning = |frame: &usize| {
        to_decode[*frame] && sent[*frame].is_key && received[*frame] == Received::Whole
    };
    let compared = match (0..sent.len()).find(is_beginning) {
        Some(begins) => {
            let frames = |from: usize| (from..sent.len()).filter(|frame| to_decode[*frame]);
            let reference = frames(0).map(|frame| (frame, &sent[frame].bytes[..]));
            let video = frames(begins)
                .filter_map(|frame| Some((frame, received[frame].bytes(&sent[frame])?)));
            decode(reference, video, folder)?
        }
        None => BTreeMap::new(),
    };
    let ssim = |frame| {
        if to_decode[frame] {
            compared.get(&frame).copied()
        } else {
            Some(1.0)
        }
    };
    Ok((0..sent.len()).map(ssim).collect())
}

/// Returns the similarity of decoded frames, by their numbers. Temporary files go to `folder`.
fn decode<'a>(
    reference: impl Iterator<Item = (usize, &'a [u8])>,
    video: impl Iterator<Item = (usize, &'a [u8])>,
    folder: &Path,
) -> Result<BTreeMap<usize, f64>> {
    let files = [folder.join("reference.ivf"), folder.join("received.ivf")];
    write(&files[0], reference)?;
    write(&files[1], video)?;
    let compared = compare(&files[1], &files[0], &folder.join("ssim.txt"))?;
    for file in files {
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    Ok(compared)
}

/// Returns which frames have to be decoded.
fn to_decode(sent: &[AccessUnit], received: &[Received]) -> Vec<bool> {
    let keys = (0..sent.len()).filter(|frame| sent[*frame].is_key);
    let mut boundaries: Vec<usize> = [0].into_iter().chain(keys).chain([sent.len()]).collect();
    boundaries.dedup();
    let is_damaged = |bounds: &[usize]| {
        received[bounds[0]..bounds[1]]
            .iter()
            .any(|frame| *frame != Received::Whole)
    };
    let damaged: Vec<bool> = boundaries.windows(2).map(is_damaged).collect();
    let mut to_decode = vec![false; sent.len()];
    for (group, bounds) in boundaries.windows(2).enumerate() {
        let next = damaged.get(group + 1).copied().unwrap_or(false);
        to_decode[bounds[0]..bounds[1]].fill(damaged[group] || next);
    }
    to_decode
}

/// Writes frames with their numbers as time stamps to an IVF file, the simplest container with time
/// stamps.
fn write<'a>(path: &Path, frames: impl Iterator<Item = (usize, &'a [u8])>) -> Result<()> {
    let wrong = || format!("cannot write {}", path.display());
    let mut file = BufWriter::new(fs::File::create(path).with_context(wrong)?);
    let put = || -> std::io::Result<()> {
        let (version, header_bytes, size_of_pictures, count) = (0_u16, 32_u16, 0_u32, 0_u32);
        file.write_all(b"DKIF")?;
        file.write_all(&version.to_le_bytes())?;
        file.write_all(&header_bytes.to_le_bytes())?;
        file.write_all(b"H264")?;
        for word in [size_of_pictures, FPS as u32, 1, count, 0] {
            file.write_all(&word.to_le_bytes())?;
        }
        for (number, bytes) in frames {
            file.write_all(&(bytes.len() as u32).to_le_bytes())?;
            file.write_all(&(number as u64).to_le_bytes())?;
            file.write_all(bytes)?;
        }
        file.flush()
    };
    put().with_context(wrong)
}

/// Decodes both files and compares frames with the same time stamp.
fn compare(received: &Path, reference: &Path, log: &Path) -> Result<BTreeMap<usize, f64>> {
    let filter = format!(
        "[0:v][1:v]ssim,metadata=mode=print:key=lavfi.ssim.All:file={}",
        log.display()
    );
    let mut ffmpeg = Command::new("ffmpeg");
    // A receiver also shows frames that it could only repair in part. Decoder messages about damage
    // are not needed.
    ffmpeg.args(["-nostdin", "-v", "fatal", "-copyts"]);
    ffmpeg
        .args(["-flags", "+output_corrupt", "-i"])
        .arg(received);
    ffmpeg.arg("-i").arg(reference);
    ffmpeg.args(["-lavfi", &filter, "-fps_mode", "passthrough"]);
    ffmpeg.args(["-f", "null", "-"]);
    finish(ffmpeg)?;
    let text = fs::read_to_string(log).with_context(|| format!("cannot read {}", log.display()))?;
    parse(&text).with_context(|| {
        format!(
            "cannot parse {}: it does not have the format that ffmpeg writes",
            log.display()
        )
    })
}

/// Parses pairs of lines such as `frame:0 pts:7 pts_time:0.23` and `lavfi.ssim.All=0.98`.
fn parse(text: &str) -> Option<BTreeMap<usize, f64>> {
    let mut ssim = BTreeMap::new();
    let mut frame = None;
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("lavfi.ssim.All=") {
            ssim.insert(frame.take()?, value.parse().ok()?);
        } else {
            let stamp = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix("pts:"))?;
            frame = Some(stamp.parse().ok()?);
        }
    }
    Some(ssim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(keys: &[bool]) -> Vec<AccessUnit> {
        keys.iter()
            .map(|is_key| AccessUnit {
                bytes: Vec::new(),
                is_key: *is_key,
            })
            .collect()
    }

    #[test]
    fn a_damaged_group_is_decoded_with_the_one_before_it() {
        let (key, other) = (true, false);
        let frames = frames(&[key, other, key, other, key, other, key, other]);
        let (yes, no) = (true, false);
        let mut received = vec![Received::Whole; 8];

        assert_eq!(to_decode(&frames, &received), [no; 8]);
        received[5] = Received::Nothing;
        assert_eq!(
            to_decode(&frames, &received),
            [no, no, yes, yes, yes, yes, no, no]
        );
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
        ffmpeg.args([
            "-nostdin",
            "-v",
            "error",
            "-f",
            "lavfi",
            "-i",
            "testsrc2=size=320x180:rate=30",
        ]);
        ffmpeg.args([
            "-frames:v",
            "40",
            "-c:v",
            "libx264",
            "-preset",
            "ultrafast",
            "-tune",
            "zerolatency",
        ]);
        ffmpeg
            .args([
                "-g",
                "10",
                "-x264-params",
                "scenecut=0:aud=1:slices=1",
                "-f",
                "h264",
            ])
            .arg(&video);
        finish(ffmpeg).unwrap();
        let frames = access_units(&fs::read(&video).unwrap());
        let received = (0..frames.len()).map(|frame| match frame {
            0 | 23 => Received::Nothing,
            24 => Received::Part(frames[frame].bytes[..frames[frame].bytes.len() / 2].to_vec()),
            _ => Received::Whole,
        });

        let ssim = ssim(&frames, &received.collect::<Vec<_>>(), folder.path()).unwrap();

        assert_eq!(ssim.len(), 40);
        for (frame, ssim) in ssim.into_iter().enumerate() {
            match frame {
                0..10 | 23 => assert_eq!(ssim, None, "{frame}"),
                24..30 => assert!(
                    ssim.unwrap() < 0.999,
                    "{frame} lacks what it refers to: {ssim:?}"
                ),
                _ => assert_eq!(ssim, Some(1.0), "{frame}"),
            }
        }
    }

    /// Splits a stream into access units, each of which begins with a delimiter.
    fn access_units(video: &[u8]) -> Vec<AccessUnit> {
        const DELIMITER: [u8; 5] = [0, 0, 0, 1, 9];
        const KEY_SLICE: [u8; 4] = [0, 0, 1, 0x65];
        let holds =
            |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
        let starts = (0..video.len()).filter(|at| video[*at..].starts_with(&DELIMITER));
        let boundaries: Vec<usize> = starts.chain([video.len()]).collect();
        let unit = |bounds: &[usize]| {
            let bytes = video[bounds[0]..bounds[1]].to_vec();
            AccessUnit {
                is_key: holds(&bytes, &KEY_SLICE),
                bytes,
            }
        };
        boundaries.windows(2).map(unit).collect()
    }
}
