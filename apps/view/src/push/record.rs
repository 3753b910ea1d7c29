//! Records decoded frames.

use super::PushConfig;
use super::row::PushRow;
use super::summary::Decoded;
use crate::picture::PictureThread;
use crate::recorder::{SUMMARISED, Table};
use crate::save::SavedFrames;
use hawser_cloud::Cloud;
use hawser_units::Instant;
use std::collections::VecDeque;

/// Records decoded frames in memory and in files.
pub(super) struct Recorder {
    timeline: Option<Table>,
    save: Option<SavedFrames>,
    pictures: Option<PictureThread>,
    frames: u64,
    /// The newest frames.
    rows: VecDeque<PushRow>,
    undecodable: u64,
}

impl Recorder {
    pub(super) fn create(config: &PushConfig) -> anyhow::Result<Self> {
        Ok(Recorder {
            timeline: config.timeline.as_deref().map(Table::create).transpose()?,
            save: config
                .save
                .as_deref()
                .map(SavedFrames::create)
                .transpose()?,
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
        let shown_ns = row.captured_ns.unwrap_or(row.received_ns);
        if let Some(save) = &mut self.save {
            save.save(shown_ns, &cloud)?;
        }
        if let Some(pictures) = &mut self.pictures {
            pictures.show(shown_ns, cloud)?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self, end: Instant) -> anyhow::Result<Decoded> {
        if let Some(timeline) = &mut self.timeline {
            timeline.flush()?;
        }
        if let Some(save) = self.save {
            save.finish()?;
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
