//! The pictures on a viewer's screen: those that a decoder makes of the frames that arrived.

use super::simulation::WARM_UP;
use super::video::{ReceivedFrame, encoded_frames};
use crate::experiments::dashcam::{
    AccessUnit, Clip, Received, Showing, screenshot, ssim, ssim_on_screen,
};
use anyhow::{Context, Result};
use hawser_qoe::STALL_THRESHOLD;
use hawser_units::Instant;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// The frames of the encode before those whose sizes the simulation has: the rate control settles.
const SETTLING: usize = 30;

/// The time from a frame's capture until it is to be on the screen.
const PLAYOUT: Duration = STALL_THRESHOLD;

/// The width of screenshots in pixels.
const WIDTH: u32 = 640;

/// The frames of the video that the car sends.
pub(super) struct Film {
    units: Vec<AccessUnit>,
    /// The name of the video.
    pub(super) name: &'static str,
}

/// The similarities (SSIM over all planes) of one frame of a drive.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Picture {
    pub(super) captured: Instant,
    /// That of the frame as the viewer's decoder outputs it; `None` if it was not shown.
    pub(super) ssim: Option<f64>,
    /// That of the picture on the viewer's screen when the frame is to be seen; `None` before the
    /// first picture.
    pub(super) on_screen: Option<f64>,
}

impl Film {
    /// Encodes the video by the command with which the frame sizes were measured.
    ///
    /// # Errors
    /// If ffmpeg is not installed, or fails.
    pub(super) fn encode() -> Result<Self> {
        let clip = Clip::encode((SETTLING + encoded_frames()) as u64)?;
        Ok(Film {
            units: clip.access_units()?.split_off(SETTLING),
            name: clip.name(),
        })
    }

    /// Returns the similarities of the frames of a drive, without those of the warm-up.
    ///
    /// # Errors
    /// If ffmpeg fails.
    pub(super) fn compare(&self, seen: &[ReceivedFrame]) -> Result<Vec<Picture>> {
        let folder = temporary()?;
        let sent = self.sent(seen.len());
        let received = seen.iter().map(|frame| match frame.shown {
            Some(_) => Received::Whole,
            None => Received::Nothing,
        });
        let received: Vec<Received> = received.collect();
        let ssim = ssim(&sent, &received, folder.path())?;
        let on_screen = ssim_on_screen(&sent, &showings(seen), folder.path())?;
        let picture = |((frame, ssim), on_screen): ((&ReceivedFrame, _), Option<f64>)| Picture {
            captured: frame.captured,
            ssim,
            on_screen,
        };
        let pictures = seen.iter().zip(ssim).zip(on_screen).map(picture);
        Ok(pictures.skip(warm_up(seen)).collect())
    }

    /// Returns the picture on the viewer's screen when a frame of the drive is to be seen, as a PNG
    /// file; `None` before the first picture. Frames are counted without those of the warm-up.
    ///
    /// # Errors
    /// If ffmpeg fails.
    pub(super) fn on_screen(
        &self,
        seen: &[ReceivedFrame],
        frame: usize,
    ) -> Result<Option<Vec<u8>>> {
        self.screenshot(seen, &showings(seen), frame)
    }

    /// Returns the picture of a frame as the camera sent it, as a PNG file. Frames are counted as by
    /// [`on_screen`](Film::on_screen).
    ///
    /// # Errors
    /// If ffmpeg fails.
    pub(super) fn original(&self, seen: &[ReceivedFrame], frame: usize) -> Result<Vec<u8>> {
        let in_time = |frame: &ReceivedFrame| Showing {
            due: frame.captured,
            shown: Some(frame.captured),
        };
        let showings: Vec<Showing> = seen.iter().map(in_time).collect();
        let picture = self.screenshot(seen, &showings, frame)?;
        picture.context("the encode does not begin with a key frame")
    }

    fn screenshot(
        &self,
        seen: &[ReceivedFrame],
        showings: &[Showing],
        frame: usize,
    ) -> Result<Option<Vec<u8>>> {
        let (sent, folder) = (self.sent(seen.len()), temporary()?);
        let moment = warm_up(seen) + frame;
        screenshot(&sent, showings, moment, WIDTH, folder.path())
    }

    /// Returns the frames of a video, which repeats the encode.
    fn sent(&self, frames: usize) -> Vec<&AccessUnit> {
        self.units.iter().cycle().take(frames).collect()
    }
}

/// Writes pictures to a file.
pub(super) fn write(pictures: &[Picture], path: &Path) -> Result<()> {
    let mut text = "captured_ms,ssim,ssim_on_screen\n".to_owned();
    for Picture {
        captured,
        ssim,
        on_screen,
    } in pictures
    {
        let [ssim, on_screen] = [ssim, on_screen]
            .map(|ssim| ssim.map_or_else(String::new, |ssim| format!("{ssim:.6}")));
        let captured_ms = captured.as_nanos() as f64 / 1e6;
        writeln!(text, "{captured_ms:.3},{ssim},{on_screen}")?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the times at which frames are to be seen, and those at which they were.
fn showings(seen: &[ReceivedFrame]) -> Vec<Showing> {
    let showing = |frame: &ReceivedFrame| Showing {
        due: frame.captured + PLAYOUT,
        shown: frame.shown,
    };
    seen.iter().map(showing).collect()
}

/// Returns the number of frames that were captured before the drive.
fn warm_up(seen: &[ReceivedFrame]) -> usize {
    let drive = Instant::ZERO + WARM_UP;
    seen.partition_point(|frame| frame.captured < drive)
}

fn temporary() -> Result<TempDir> {
    tempfile::tempdir().context("cannot create a temporary folder")
}

#[cfg(test)]
mod tests {
    use super::super::simulation::VIDEO_BEGINS;
    use super::super::video::{BITRATE, FPS, Source};
    use super::*;

    #[test]
    fn a_video_repeats_and_the_drive_begins_after_warm_up() {
        let unit = |number: usize| AccessUnit {
            bytes: number.to_be_bytes().to_vec(),
            is_key: number.is_multiple_of(30),
        };
        let film = Film {
            units: (0..encoded_frames()).map(unit).collect(),
            name: "test picture",
        };
        let begins = Instant::ZERO + VIDEO_BEGINS;
        let source = Source::new(begins, Duration::from_secs(15), BITRATE);
        let seen = source.viewer().received_frames();

        let sent = film.sent(seen.len());
        assert_eq!(sent.len(), seen.len());
        assert_eq!(*sent[encoded_frames() + 7], film.units[7]);
        assert_eq!(warm_up(&seen) as u64, 2 * FPS);
    }
}
