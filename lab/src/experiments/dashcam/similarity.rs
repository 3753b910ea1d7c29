//! Similarity of what a viewer sees to the video that the camera sent.

use super::access_unit::AccessUnit;
use super::clip::{FPS, finish};
use anyhow::{Context, Result};
use hawser_units::Instant;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;
use tempfile::TempPath;

/// The data of a frame that the decoder receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::experiments) enum Received {
    /// All of it.
    Whole,
    /// The packets that had arrived when the frame was due for decoding.
    Part(Vec<u8>),
    /// No data.
    Nothing,
}

/// The times of a frame at a viewer to whom whole frames are shown only. Both ascend from frame to
/// frame.
#[derive(Debug, Clone, Copy)]
pub(in crate::experiments) struct Showing {
    /// The time at which the frame is to be on the screen.
    pub(in crate::experiments) due: Instant,
    /// The time at which it was shown, which may be later; `None` if it was not.
    pub(in crate::experiments) shown: Option<Instant>,
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

impl Showing {
    fn is_in_time(&self) -> bool {
        self.shown.is_some_and(|shown| shown <= self.due)
    }
}

/// Returns the similarity (SSIM over all planes) of each received frame to the frame that was sent;
/// `None` for frames that the decoder did not output. Temporary files go to `folder`.
///
/// If all frames from one key frame to the next are whole, the decoder's input and output are the
/// same as the camera's. Therefore only the other groups are decoded, each with the group before
/// it, from which the decoder conceals missing data.
///
/// # Errors
/// If ffmpeg is not installed, or fails.
pub(in crate::experiments) fn ssim(
    sent: &[&AccessUnit],
    received: &[Received],
    folder: &Path,
) -> Result<Vec<Option<f64>>> {
    let is_whole = |frame: usize| received[frame] == Received::Whole;
    let to_decode = to_decode(sent, is_whole);
    let wanted = |from: usize| (from..sent.len()).filter(|frame| to_decode[*frame]);
    let compared = match beginning(sent, wanted(0), is_whole) {
        Some(begins) => {
            let stamp = |frame: usize| frame as u64;
            let camera = wanted(0).map(|frame| (stamp(frame), &sent[frame].bytes[..]));
            let viewer = wanted(begins)
                .filter_map(|frame| Some((stamp(frame), received[frame].bytes(sent[frame])?)));
            let camera = Stream::write(folder, "camera.ivf", FPS as u32, camera)?;
            let viewer = Stream::write(folder, "viewer.ivf", FPS as u32, viewer)?;
            compare(&viewer, &camera, folder)?
        }
        None => BTreeMap::new(),
    };
    let of_frame = |frame: usize| match to_decode[frame] {
        true => compared.get(&(frame as u64)).copied(),
        false => Some(1.0),
    };
    Ok((0..sent.len()).map(of_frame).collect())
}

/// Returns, for each frame that was sent, the similarity (SSIM over all planes) to it of the picture
/// that is on the viewer's screen when the frame is due: its own, or the newest of those before it
/// that was shown by then. `None` if there is none yet. Temporary files go to `folder`.
///
/// # Errors
/// If ffmpeg is not installed, or fails.
pub(in crate::experiments) fn ssim_on_screen(
    sent: &[&AccessUnit],
    showings: &[Showing],
    folder: &Path,
) -> Result<Vec<Option<f64>>> {
    let to_decode = to_decode(sent, |frame| showings[frame].is_in_time());
    let wanted = |from: usize| (from..sent.len()).filter(|frame| to_decode[*frame]);
    let is_shown = |frame: usize| showings[frame].shown.is_some();
    let compared = match beginning(sent, wanted(0), is_shown) {
        Some(begins) => {
            let appearances = appearances(showings);
            let stamp = |frame: usize| microseconds(showings[frame].due);
            let camera = wanted(0).map(|frame| (stamp(frame), &sent[frame].bytes[..]));
            let viewer = wanted(begins)
                .filter_map(|frame| Some((appearances[frame]?, &sent[frame].bytes[..])));
            let camera = Stream::write(folder, "camera.ivf", MICROSECONDS, camera)?;
            let viewer = Stream::write(folder, "viewer.ivf", MICROSECONDS, viewer)?;
            compare(&camera, &viewer, folder)?
        }
        None => BTreeMap::new(),
    };
    let of_frame = |frame: usize| match to_decode[frame] {
        true => compared.get(&microseconds(showings[frame].due)).copied(),
        false => Some(1.0),
    };
    Ok((0..sent.len()).map(of_frame).collect())
}

/// Returns the picture that is on the viewer's screen when frame `moment` is due, as a PNG file of the
/// given width in pixels; `None` if there is none yet. It is the picture that [`ssim_on_screen`]
/// compares. Temporary files go to `folder`.
///
/// # Errors
/// If ffmpeg is not installed, or fails.
pub(in crate::experiments) fn screenshot(
    sent: &[&AccessUnit],
    showings: &[Showing],
    moment: usize,
    width: u32,
    folder: &Path,
) -> Result<Option<Vec<u8>>> {
    let is_of_no_interest = |frame: usize| frame != moment && showings[frame].is_in_time();
    let to_decode = to_decode(sent, is_of_no_interest);
    let wanted = |from: usize| (from..=moment).filter(|frame| to_decode[*frame]);
    let is_shown = |frame: usize| showings[frame].shown.is_some();
    let Some(begins) = beginning(sent, wanted(0), is_shown) else {
        return Ok(None);
    };
    let due = microseconds(showings[moment].due);
    let appearances = appearances(showings);
    let seen = wanted(begins).filter_map(|frame| {
        let appears = appearances[frame].filter(|appears| *appears <= due)?;
        Some((appears, &sent[frame].bytes[..]))
    });
    let mut seen = seen.peekable();
    if seen.peek().is_none() {
        return Ok(None);
    }
    let viewer = Stream::write(folder, "viewer.ivf", MICROSECONDS, seen)?;
    // The camera's picture supplies the time, and the viewer's the contents.
    let key = (0..=moment).rev().find(|frame| sent[*frame].is_key);
    let since_key = (key.unwrap_or(0)..=moment)
        .map(|frame| (microseconds(showings[frame].due), &sent[frame].bytes[..]));
    let camera = Stream::write(folder, "camera.ivf", MICROSECONDS, since_key)?;
    let file = folder.join("screenshot.png");
    let filter = format!(
        "[0:v]select='eq(pts,{due})'[moment];[moment][1:v]blend=all_expr=B,scale={width}:-2"
    );
    let mut ffmpeg = decoder(&[&camera, &viewer]);
    ffmpeg.args(["-y", "-lavfi", &filter, "-frames:v", "1"]);
    ffmpeg.args(["-update", "1"]).arg(&file);
    finish(ffmpeg)?;
    let png = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
    Ok(Some(png))
}

/// Returns which frames have to be decoded, given which ones are as they should be.
fn to_decode(sent: &[&AccessUnit], is_good: impl Fn(usize) -> bool) -> Vec<bool> {
    let keys = (0..sent.len()).filter(|frame| sent[*frame].is_key);
    let mut boundaries: Vec<usize> = [0].into_iter().chain(keys).chain([sent.len()]).collect();
    boundaries.dedup();
    let is_damaged = |bounds: &[usize]| (bounds[0]..bounds[1]).any(|frame| !is_good(frame));
    let damaged: Vec<bool> = boundaries.windows(2).map(is_damaged).collect();
    let mut to_decode = vec![false; sent.len()];
    for (group, bounds) in boundaries.windows(2).enumerate() {
        let next = damaged.get(group + 1).copied().unwrap_or(false);
        to_decode[bounds[0]..bounds[1]].fill(damaged[group] || next);
    }
    to_decode
}

/// Returns the frame with which decoding begins: the first whole key frame.
fn beginning(
    sent: &[&AccessUnit],
    mut frames: impl Iterator<Item = usize>,
    is_whole: impl Fn(usize) -> bool,
) -> Option<usize> {
    frames.find(|frame| sent[*frame].is_key && is_whole(*frame))
}

/// Returns the time from which each frame that was shown is on the screen, µs: when it is due, or
/// later. Of frames that appear at the same time only the last one is seen; the others are a
/// microsecond earlier each, because time stamps have to ascend.
fn appearances(showings: &[Showing]) -> Vec<Option<u64>> {
    let mut next = u64::MAX;
    let mut appear = |showing: &Showing| {
        let at = microseconds(showing.shown?.max(showing.due));
        next = at.min(next - 1);
        Some(next)
    };
    let mut appearances: Vec<_> = showings.iter().rev().map(&mut appear).collect();
    appearances.reverse();
    appearances
}

/// Ticks per second of time stamps in µs. ffmpeg compares pictures at no finer times.
const MICROSECONDS: u32 = 1_000_000;

fn microseconds(at: Instant) -> u64 {
    at.as_nanos() / 1000
}

/// A file with frames and their time stamps: IVF, the simplest container with time stamps. It is
/// removed when it is dropped.
struct Stream {
    file: TempPath,
}

impl Stream {
    /// Writes frames with their time stamps.
    fn write<'a>(
        folder: &Path,
        name: &str,
        ticks_per_second: u32,
        frames: impl Iterator<Item = (u64, &'a [u8])>,
    ) -> Result<Self> {
        let path = folder.join(name);
        let wrong = || format!("cannot write {}", path.display());
        let mut file = BufWriter::new(fs::File::create(&path).with_context(wrong)?);
        let stream = Stream {
            file: TempPath::try_from_path(&path)?,
        };
        let put = || -> std::io::Result<()> {
            let (version, header_bytes, size_of_pictures, count) = (0_u16, 32_u16, 0_u32, 0_u32);
            file.write_all(b"DKIF")?;
            file.write_all(&version.to_le_bytes())?;
            file.write_all(&header_bytes.to_le_bytes())?;
            file.write_all(b"H264")?;
            for word in [size_of_pictures, ticks_per_second, 1, count, 0] {
                file.write_all(&word.to_le_bytes())?;
            }
            for (stamp, bytes) in frames {
                file.write_all(&(bytes.len() as u32).to_le_bytes())?;
                file.write_all(&stamp.to_le_bytes())?;
                file.write_all(bytes)?;
            }
            file.flush()
        };
        put().with_context(wrong)?;
        Ok(stream)
    }
}

/// Returns a command that decodes streams as a receiver does: it also shows frames that it could only
/// repair in part. Decoder messages about damage are not needed.
fn decoder(streams: &[&Stream]) -> Command {
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-nostdin", "-v", "fatal", "-copyts"]);
    for stream in streams {
        ffmpeg
            .args(["-flags", "+output_corrupt", "-i"])
            .arg(&stream.file);
    }
    ffmpeg
}

/// Decodes both streams, and compares each picture of the first one with the picture of the other one
/// that has the same time stamp, or else the last one before it. Returns the similarities by time
/// stamp.
fn compare(stream: &Stream, other: &Stream, folder: &Path) -> Result<BTreeMap<u64, f64>> {
    let log = folder.join("ssim.txt");
    let filter = format!(
        "[0:v][1:v]ssim,metadata=mode=print:key=lavfi.ssim.All:file={}",
        log.display()
    );
    let mut ffmpeg = decoder(&[stream, other]);
    ffmpeg.args(["-lavfi", &filter, "-fps_mode", "passthrough"]);
    ffmpeg.args(["-f", "null", "-"]);
    finish(ffmpeg)?;
    let text =
        fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?;
    parse(&text).with_context(|| {
        format!(
            "cannot parse {}: it does not have the format that ffmpeg writes",
            log.display()
        )
    })
}

/// Parses pairs of lines such as `frame:0 pts:7 pts_time:0.23` and `lavfi.ssim.All=0.98`.
fn parse(text: &str) -> Option<BTreeMap<u64, f64>> {
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
    use super::super::access_unit::split;
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
        let frames: Vec<&AccessUnit> = frames.iter().collect();
        let (yes, no) = (true, false);

        assert_eq!(to_decode(&frames, |_| true), [no; 8]);
        assert_eq!(
            to_decode(&frames, |frame| frame != 5),
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

    /// Encodes 40 frames with a key frame every ten.
    fn encoded(folder: &Path) -> Vec<AccessUnit> {
        let video = folder.join("video.h264");
        let mut ffmpeg = Command::new("ffmpeg");
        ffmpeg.args(["-nostdin", "-v", "error", "-f", "lavfi"]);
        ffmpeg.args(["-i", "testsrc2=size=320x180:rate=30", "-frames:v", "40"]);
        ffmpeg.args(["-c:v", "libx264", "-preset", "ultrafast"]);
        ffmpeg.args(["-tune", "zerolatency", "-g", "10"]);
        ffmpeg.args(["-x264-params", "scenecut=0:aud=1:slices=1", "-f", "h264"]);
        ffmpeg.arg(&video);
        finish(ffmpeg).unwrap();
        let frames = split(&fs::read(&video).unwrap());
        assert_eq!(frames.len(), 40);
        frames
    }

    #[test]
    fn pictures_are_aligned_by_frame_number() {
        let folder = tempfile::tempdir().unwrap();
        let frames = encoded(folder.path());
        let received = (0..frames.len()).map(|frame| match frame {
            0 | 23 => Received::Nothing,
            24 => Received::Part(frames[frame].bytes[..frames[frame].bytes.len() / 2].to_vec()),
            _ => Received::Whole,
        });
        let (sent, received) = (
            frames.iter().collect::<Vec<_>>(),
            received.collect::<Vec<_>>(),
        );

        let ssim = ssim(&sent, &received, folder.path()).unwrap();

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

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    /// Returns the showings of 40 frames, one in 100 ms, of which the first is missing, and number
    /// 13, 14 and 15 are shown together, as late as 15 should be. Number 31 is the only late one of
    /// its group.
    fn showings() -> Vec<Showing> {
        let showing = |frame: u64| Showing {
            due: at(100 * frame + 50),
            shown: match frame {
                0 => None,
                13..=15 => Some(at(1550)),
                31 => Some(at(3200)),
                _ => Some(at(100 * frame)),
            },
        };
        (0..40).map(showing).collect()
    }

    #[test]
    fn a_screen_has_the_last_picture_until_the_next_one_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let frames = encoded(folder.path());
        let sent: Vec<&AccessUnit> = frames.iter().collect();

        let ssim = ssim_on_screen(&sent, &showings(), folder.path()).unwrap();

        assert_eq!(ssim.len(), 40);
        for (frame, ssim) in ssim.into_iter().enumerate() {
            match frame {
                0..10 => assert_eq!(ssim, None, "{frame} needs the lost key frame"),
                13 | 14 | 31 => assert!(ssim.unwrap() < 0.999, "{frame}: {ssim:?}"),
                _ => assert_eq!(ssim, Some(1.0), "{frame}"),
            }
        }
        let left = fs::read_dir(folder.path()).unwrap();
        let left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
        assert!(
            !left
                .iter()
                .any(|name| name.to_string_lossy().ends_with("ivf")),
            "{left:?}"
        );
    }

    #[test]
    fn a_screenshot_is_the_picture_that_was_compared() {
        let folder = tempfile::tempdir().unwrap();
        let frames = encoded(folder.path());
        let sent: Vec<&AccessUnit> = frames.iter().collect();
        let in_time: Vec<Showing> = showings()
            .into_iter()
            .map(|Showing { due, .. }| Showing {
                due,
                shown: Some(due),
            })
            .collect();
        let take = |showings: &[Showing], moment: usize| {
            screenshot(&sent, showings, moment, 160, folder.path()).unwrap()
        };

        assert!(take(&showings(), 5).is_none(), "no key frame was shown");
        let held = take(&showings(), 14).unwrap();
        assert!(held == take(&in_time, 12).unwrap());
        assert!(held != take(&in_time, 14).unwrap());
        assert!(take(&showings(), 15).unwrap() == take(&in_time, 15).unwrap());
    }
}
