use crate::connection::Delivery;
use crate::timeline::{Arrival, Row};
use crate::{Config, Summary, unix_time_ns};
use anyhow::Context;
use hawser_cloud::ply;
use hawser_qoe::Frame;
use hawser_units::Instant;
use serde::Serialize;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Writes down what arrives.
pub(crate) struct Recorder {
    timeline: Option<Table>,
    arrivals: Option<Table>,
    save: Option<PathBuf>,
    wanted: Option<u64>,
    frames: Vec<Frame>,
    damaged: u64,
    connections: u64,
    protocol_errors: u64,
}

impl Recorder {
    pub(crate) fn create(config: &Config) -> anyhow::Result<Self> {
        if let Some(directory) = &config.save {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot create the directory {}", directory.display()))?;
        }
        Ok(Recorder {
            timeline: config.timeline.as_deref().map(Table::create).transpose()?,
            arrivals: config.arrivals.as_deref().map(Table::create).transpose()?,
            save: config.save.clone(),
            wanted: config.frames,
            frames: Vec::new(),
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

    /// Frames that were decoded, damaged ones among them.
    pub(crate) fn frames(&self) -> u64 {
        self.frames.len() as u64 + self.damaged
    }

    /// Whether there are as many frames as were wanted.
    pub(crate) fn is_full(&self) -> bool {
        self.wanted.is_some_and(|wanted| self.frames() >= wanted)
    }

    /// Bytes came out of the socket.
    pub(crate) fn arrive(&mut self, bytes: usize) -> anyhow::Result<()> {
        match &mut self.arrivals {
            Some(arrivals) => arrivals.write(Arrival {
                received_ns: unix_time_ns(),
                bytes: bytes as u64,
            }),
            None => Ok(()),
        }
    }

    /// A frame was decoded.
    pub(crate) fn deliver(&mut self, delivery: &Delivery<'_>) -> anyhow::Result<()> {
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
            self.frames.push(row.into());
        } else {
            self.damaged += 1;
            tracing::error!(frame = row.frame, captured = %delivery.header.digest, decoded = %digest, "the frame differs");
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.write(row)?;
            timeline.flush()?;
        }
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.flush()?;
        }
        if let Some(directory) = &self.save {
            let path = directory.join(format!("frame-{:019}.ply", row.captured_ns));
            fs::write(&path, ply::write(delivery.cloud))
                .inspect_err(|_| {
                    // A part of a frame would spoil the sequence; when it cannot be removed, the error says where it is.
                    let _ = fs::remove_file(&path);
                })
                .with_context(|| format!("cannot save {}", path.display()))?;
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> anyhow::Result<Summary> {
        for table in self.timeline.iter_mut().chain(&mut self.arrivals) {
            table.flush()?;
        }
        Ok(Summary {
            frames: self.frames(),
            frames_damaged: self.damaged,
            protocol_errors: self.protocol_errors,
            connections: self.connections,
            qoe: Summary::measure(&self.frames, Instant::from_nanos(unix_time_ns())),
        })
    }
}

/// A CSV file.
struct Table {
    path: PathBuf,
    csv: csv::Writer<File>,
}

impl Table {
    fn create(path: &Path) -> anyhow::Result<Self> {
        let csv = csv::Writer::from_path(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Table {
            path: path.to_owned(),
            csv,
        })
    }

    fn write(&mut self, row: impl Serialize) -> anyhow::Result<()> {
        self.csv
            .serialize(row)
            .with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.csv
            .flush()
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}
