//! The results of a trial.

use super::contender::{self, SINGLE};
use super::drive::Set;
use super::histogram::Histogram;
use super::pictures::{self, Film, Picture};
use super::simulation::{Transfer, window};
use super::trial::Trial;
use super::video::{self, ReceivedFrame, Second};
use crate::experiment::Measured;
use anyhow::{Context, Result};
use hawser_qoe::Qoe;
use hawser_units::Instant;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The results of a trial.
pub(crate) struct Outcome {
    pub(super) trial: Trial,
    /// The duration of the part of the drive that was run.
    pub(super) length: Duration,
    pub(super) qoe: Qoe,
    /// The share of time for which the oracle stalls.
    pub(super) floor: f64,
    pub(super) seen: Vec<ReceivedFrame>,
    /// Its pictures, if the run has them.
    pub(super) pictures: Option<Vec<Picture>>,
    pub(super) packet_delays: Histogram,
    pub(super) frame_delays: Histogram,
    pub(super) lost_packets: u64,
    pub(super) by_second: Vec<Second>,
    /// Count of frames captured in the window, and of those that were not shown.
    pub(super) frames: u64,
    pub(super) lost_frames: u64,
    pub(super) first_bytes: u64,
    pub(super) further_bytes: u64,
    pub(super) datagrams: u64,
    pub(super) lost_datagrams: u64,
    /// The processor time.
    pub(super) cpu: Duration,
}

impl Measured for Outcome {}

impl Outcome {
    /// Evaluates a transfer over the first `length` of the drive. `floor` is the share of time for which
    /// the oracle stalls.
    pub(super) fn new(trial: &Trial, transfer: &Transfer, length: Duration, floor: f64) -> Self {
        let (from, to) = window(length);
        let viewer = &transfer.viewer;
        let seen = viewer.received_frames();
        let captured = || {
            seen.iter()
                .filter(|frame| (from..to).contains(&frame.captured))
        };
        let mut frame_delays = Histogram::default();
        for frame in captured() {
            if let Some(shown) = frame.shown {
                frame_delays.add(shown.saturating_since(frame.captured));
            }
        }
        let (packet_delays, lost_packets) = viewer.packet_delays(from, to);
        let frames = captured().count() as u64;
        Outcome {
            trial: trial.clone(),
            length,
            qoe: video::qoe(&seen, (from, to)),
            floor,
            lost_frames: frames - frame_delays.total(),
            frames,
            packet_delays,
            frame_delays,
            lost_packets,
            by_second: viewer.by_second(from, to),
            seen,
            pictures: None,
            first_bytes: transfer.first_bytes,
            further_bytes: transfer.further_bytes,
            datagrams: transfer.datagrams,
            lost_datagrams: transfer.lost_datagrams,
            cpu: Duration::ZERO,
        }
    }

    /// Returns the name of its drive.
    pub(super) fn drive(&self) -> &str {
        &self.trial.drive.name
    }

    /// Returns the drive and the path if only one is used, which repetitions share.
    pub(super) fn sample(&self) -> (&str, Option<usize>) {
        (self.drive(), self.trial.path)
    }

    /// Returns the set of its drive.
    pub(super) fn set(&self) -> Set {
        self.trial.drive.set
    }

    /// Returns the place of its set and contender in the results.
    pub(super) fn place(&self) -> (Set, Option<usize>) {
        let case = contender::all().position(|contender| contender == self.trial.contender);
        (self.set(), case)
    }

    /// Returns the share of time for which it stalls in excess of the oracle.
    pub(super) fn above_floor(&self) -> f64 {
        self.qoe.stall_ratio - self.floor
    }

    /// Returns the redundancy: the bytes sent in addition to the first transmission of each packet,
    /// relative to those.
    pub(super) fn redundancy(&self) -> f64 {
        self.further_bytes as f64 / self.first_bytes.max(1) as f64
    }

    /// Decodes the frames that the viewer was shown, and writes the similarity of the pictures to the
    /// raw data of the experiment.
    pub(super) fn decode(&mut self, film: &Film, out: &Path) -> Result<()> {
        let pictures = film.compare(&self.seen)?;
        let path = self.folder(out)?.join(format!("{}-ssim.csv", self.name()));
        pictures::write(&pictures, &path)?;
        self.pictures = Some(pictures);
        Ok(())
    }

    /// Returns the name of its files: the drive, and the number of the repetition from the second on.
    fn name(&self) -> String {
        let drive = self.drive();
        match self.trial.repetition {
            0 => drive.to_owned(),
            repetition => format!("{drive}-{}", repetition + 1),
        }
    }

    /// Creates the folder of the contender in the raw data of the experiment.
    fn folder(&self, out: &Path) -> Result<PathBuf> {
        let mut name = self.trial.contender.to_string();
        if let Some(path) = self.trial.path {
            name += &format!("-{path}");
        }
        let folder = out.join("raw").join(name);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder)
    }

    /// Writes all frames to the raw data of the experiment.
    pub(super) fn write(&self, out: &Path) -> Result<()> {
        let folder = self.folder(out)?;
        let ms = |at: Instant| at.as_nanos() as f64 / 1e6;
        let or_nothing =
            |at: Option<Instant>| at.map_or_else(String::new, |at| format!("{:.3}", ms(at)));
        let mut text = "captured_ms,bytes,complete_ms,shown_ms\n".to_owned();
        for ReceivedFrame {
            captured,
            complete,
            shown,
            size,
        } in &self.seen
        {
            let (captured, complete, shown) =
                (ms(*captured), or_nothing(*complete), or_nothing(*shown));
            writeln!(text, "{captured:.3},{},{complete},{shown}", size.0)?;
        }
        let path = folder.join(format!("{}.csv", self.name()));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
    /// Returns the path if this is an outcome of [`SINGLE`], of which only the best path counts.
    pub(super) fn candidate(&self) -> Option<usize> {
        self.trial.path.filter(|_| self.trial.contender == SINGLE)
    }

    /// Returns the number of seconds that are outages.
    pub(super) fn outages(&self) -> u64 {
        let outages = self.by_second.iter().filter(|second| second.is_outage());
        outages.count() as u64
    }

    /// Returns the maximum number of consecutive seconds that are outages.
    pub(super) fn longest_outage_s(&self) -> usize {
        let outages = self.by_second.split(|second| !second.is_outage());
        outages.map(<[Second]>::len).max().unwrap_or(0)
    }

    /// Returns the number of the drive modulo 2, if its name ends with a number.
    pub(super) fn parity(&self) -> Option<u32> {
        self.drive()
            .chars()
            .last()?
            .to_digit(10)
            .map(|digit| digit % 2)
    }
}
