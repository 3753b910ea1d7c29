//! Records decoded frames.

use super::PushConfig;
use super::row::PushRow;
use super::summary::Decoded;
use crate::picture::PictureThread;
use crate::recorder::{Table, save_ply};
use anyhow::Context;
use hawser_cloud::Cloud;
use hawser_units::Instant;
use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;

/// The number of newest frames of which the times are summarised: an hour of 30 frames per second.
const SUMMARISED: usize = 108_000;

/// Records decoded frames in memory and in files.
pub(super) struct Recorder {
    timeline: Option<Table>,
    save: Option<PathBuf>,
    pictures: Option<PictureThread>,
    frames: u64,
    /// The newest frames.
    rows: VecDeque<PushRow>,
    undecodable: u64,
}

impl Recorder {
    pub(super) fn create(config: &PushConfig) -> anyhow::Result<Self> {
        if let Some(directory) = &config.save {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot create the directory {}", directory.display()))?;
        }
        Ok(Recorder {
            timeline: config.timeline.as_deref().map(Table::create).transpose()?,
            save: config.save.clone(),
            pictures: PictureThread::start(&config.pictures)?,
            frames: 0,
            rows: VecDeque::new(),
            undecodable: 0,
        })
    }

    /// Records a frame that could not be decoded.
    pub(super) fn failed(&mut self) {
        self.undecodable += 1;
    }

    pub(super) fn record(&mut self, row: PushRow, cloud: Cloud) -> anyhow::Result<()> {
        self.frames += 1;
        if self.rows.len() == SUMMARISED {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
        if let Some(timeline) = &mut self.timeline {
            timeline.write(row)?;
            timeline.flush()?;
        }
        if let Some(directory) = &self.save {
            save_ply(
                directory,
                row.captured_ns.unwrap_or(row.received_ns),
                &cloud,
            )?;
        }
        if let Some(pictures) = &mut self.pictures {
            pictures.show(row.captured_ns.unwrap_or(row.received_ns), cloud)?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self, end: Instant) -> anyhow::Result<Decoded> {
        if let Some(timeline) = &mut self.timeline {
            timeline.flush()?;
        }
        let pictures = self.pictures.map(PictureThread::finish).transpose()?;
        let measured = Decoded::measure(&self.rows, self.undecodable, end);
        Ok(Decoded {
            frames: self.frames,
            pictures,
            ..measured
        })
    }
}
