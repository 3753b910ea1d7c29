//! Records decoded frames.

use super::PushConfig;
use super::row::PushRow;
use super::summary::{Damaged, Decoded};
use crate::files::Files;
use crate::recorder::SUMMARISED;
use hawser_cloud::{Cloud, Pose};
use hawser_units::Instant;
use std::collections::VecDeque;

/// Records decoded frames in memory and in files.
pub(super) struct Recorder {
    files: Files,
    frames: u64,
    /// The newest frames.
    rows: VecDeque<PushRow>,
}

impl Recorder {
    pub(super) fn create(config: &PushConfig) -> anyhow::Result<Self> {
        Ok(Recorder {
            files: Files::create(
                config.timeline.as_deref(),
                config.save.as_deref(),
                &config.pictures,
            )?,
            frames: 0,
            rows: VecDeque::new(),
        })
    }

    pub(super) fn record(&mut self, row: PushRow, cloud: Cloud, pose: Option<Pose>) {
        self.frames += 1;
        if self.rows.len() == SUMMARISED {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
        let shown_ns = row.captured_ns.unwrap_or(row.received_ns);
        self.files.record(row, shown_ns, cloud, pose);
    }

    /// Completes the files. Also returns the errors that ended some of them.
    pub(super) fn finish(self, damaged: Damaged, end: Instant) -> (Decoded, Vec<anyhow::Error>) {
        let measured = Decoded::measure(&self.rows, damaged, end);
        let (pictures, errors) = self.files.finish();
        let decoded = Decoded {
            frames: self.frames,
            pictures,
            ..measured
        };
        (decoded, errors)
    }
}
