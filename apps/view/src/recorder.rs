use crate::picture::PictureThread;
use crate::save::SavedFrames;
use crate::timeline::{Arrival, Row};
use crate::{Config, Summary};
use anyhow::Context;
use hawser_cloud::Cloud;
use hawser_codec::pull::FrameHeader;
use hawser_io::clock::unix_ns;
use hawser_qoe::Frame;
use hawser_units::Instant;
use serde::Serialize;
use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A frame with its timestamps.
pub(crate) struct Delivery<'a> {
    pub(crate) header: FrameHeader,
    pub(crate) cloud: &'a Cloud,
    pub(crate) requested_ns: u64,
    pub(crate) received_ns: u64,
    pub(crate) decoded_ns: u64,
}

/// The number of newest frames of which the times are summarised: an hour of 30 frames per second.
pub(crate) const SUMMARISED: usize = 108_000;

/// Records received frames and bytes.
pub(crate) struct Recorder {
    timeline: Option<Table>,
    arrivals: Option<Table>,
    save: Option<SavedFrames>,
    pictures: Option<PictureThread>,
    max_frames: Option<u64>,
    identical: u64,
    /// The newest of them.
    frames: VecDeque<Frame>,
    damaged: u64,
    connections: u64,
    protocol_errors: u64,
}

impl Recorder {
    pub(crate) fn create(config: &Config) -> anyhow::Result<Self> {
        Ok(Recorder {
            timeline: config.timeline.as_deref().map(Table::create).transpose()?,
            arrivals: config.arrivals.as_deref().map(Table::create).transpose()?,
            save: config
                .save
                .as_deref()
                .map(SavedFrames::create)
                .transpose()?,
            pictures: PictureThread::start(&config.pictures)?,
            max_frames: config.frames,
            identical: 0,
            frames: VecDeque::new(),
            damaged: 0,
            connections: 0,
            protocol_errors: 0,
        })
    }

    pub(crate) fn connected(&mut self) {
        self.connections += 1;
    }

    pub(crate) fn protocol_error(&mut self) {
        self.protocol_errors += 1;
    }

    /// Returns the number of decoded frames, including damaged ones.
    pub(crate) fn frames(&self) -> u64 {
        self.identical + self.damaged
    }

    /// Returns whether the requested number of frames has been reached.
    pub(crate) fn is_full(&self) -> bool {
        self.max_frames
            .is_some_and(|max_frames| self.frames() >= max_frames)
    }

    /// Records a read of the socket.
    pub(crate) fn record_read(&mut self, bytes: usize) -> anyhow::Result<()> {
        match &mut self.arrivals {
            Some(arrivals) => arrivals.write(Arrival {
                received_ns: unix_ns(),
                bytes: bytes as u64,
            }),
            None => Ok(()),
        }
    }

    /// Records a decoded frame.
    pub(crate) fn record_frame(&mut self, delivery: &Delivery<'_>) -> anyhow::Result<()> {
        let digest = delivery.cloud.digest();
        let row = Row {
            frame: delivery.header.number,
            captured_ns: delivery.header.captured_ns,
            requested_ns: delivery.requested_ns,
            received_ns: delivery.received_ns,
            decoded_ns: delivery.decoded_ns,
            bytes: delivery.header.length.into(),
            points: delivery.header.points.into(),
            is_identical: digest == delivery.header.digest,
        };
        if row.is_identical {
            self.identical += 1;
            if self.frames.len() == SUMMARISED {
                self.frames.pop_front();
            }
            self.frames.push_back(row.into());
        } else {
            self.damaged += 1;
            tracing::error!(frame = row.frame, captured = %delivery.header.digest, decoded = %digest, "frame differs from the captured one");
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.write(row)?;
            timeline.flush()?;
        }
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.flush()?;
        }
        if let Some(save) = &mut self.save {
            save.save(row.captured_ns, delivery.cloud)?;
        }
        if let Some(pictures) = &mut self.pictures {
            pictures.show(row.captured_ns, delivery.cloud.clone())?;
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> anyhow::Result<Summary> {
        for table in self.timeline.iter_mut().chain(&mut self.arrivals) {
            table.flush()?;
        }
        if let Some(save) = self.save.take() {
            save.finish()?;
        }
        // Pictures are completed after the end of watching.
        let end = Instant::from_nanos(unix_ns());
        let pictures = self
            .pictures
            .take()
            .map(PictureThread::finish)
            .transpose()?;
        Ok(Summary {
            frames: self.frames(),
            frames_damaged: self.damaged,
            protocol_errors: self.protocol_errors,
            connections: self.connections,
            qoe: Summary::measure(self.frames.make_contiguous(), end),
            pictures,
        })
    }
}

/// A CSV file.
pub(crate) struct Table {
    path: PathBuf,
    csv: csv::Writer<File>,
}

impl Table {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let csv = csv::Writer::from_path(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Table {
            path: path.to_owned(),
            csv,
        })
    }

    pub(crate) fn write(&mut self, row: impl Serialize) -> anyhow::Result<()> {
        self.csv
            .serialize(row)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        self.csv
            .flush()
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}
