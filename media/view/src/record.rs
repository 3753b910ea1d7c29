//! Records decoded frames.

use crate::Config;
use crate::files::Files;
use crate::measured::SUMMARISED;
use crate::row::Row;
use crate::sound::SoundPacket;
use crate::summary::{Damaged, Decoded};
use hawser_cloud::{Cloud, Pose};
use hawser_units::Instant;
use std::collections::VecDeque;

/// Records decoded frames in memory and in files.
pub(crate) struct Recorder {
    files: Files,
    frames: u64,
    /// The newest frames.
    rows: VecDeque<Row>,
}

impl Recorder {
    pub(crate) fn create(config: &Config) -> anyhow::Result<Self> {
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

    pub(crate) fn record(&mut self, row: Row, cloud: Cloud, pose: Option<Pose>) {
        self.frames += 1;
        if self.rows.len() == SUMMARISED {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
        let shown_ns = row.captured_ns.unwrap_or(row.received_ns);
        self.files.record(row, shown_ns, cloud, pose);
    }

    pub(crate) fn record_sound(&mut self, packet: SoundPacket) {
        self.files.record_sound(packet);
    }

    /// Completes the files. Also returns the errors that ended some of them.
    pub(crate) fn finish(self, damaged: Damaged, end: Instant) -> (Decoded, Vec<anyhow::Error>) {
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
