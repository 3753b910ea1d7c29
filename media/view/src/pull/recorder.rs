use super::timeline::{Arrival, Row};
use super::{Config, Summary};
use crate::Failure;
use crate::experience::Experienced;
use crate::failure::attempt;
use crate::files::Files;
use crate::measured::{self, CaptureInterval, SUMMARISED};
use crate::table::Table;
use hawser_cloud::Cloud;
use hawser_codec::pull::FrameHeader;
use hawser_experience::{Packet, Protocol};
use hawser_io::clock::{SteadyClock, unix_ns};
use hawser_qoe::Frame;
use hawser_units::Instant;
use std::collections::VecDeque;
use std::net::TcpStream;
use std::time::Duration;

/// A frame with its timestamps.
pub(crate) struct Delivery<'a> {
    pub(crate) header: FrameHeader,
    pub(crate) cloud: &'a Cloud,
    pub(crate) requested_ns: u64,
    pub(crate) received_ns: u64,
    pub(crate) decoded_ns: u64,
}

/// Records received frames and bytes.
pub(crate) struct Recorder {
    files: Files,
    arrivals: Option<Table>,
    /// The error that ended the table of arrivals.
    errors: Vec<anyhow::Error>,
    max_frames: Option<u64>,
    identical: u64,
    /// The newest of them.
    frames: VecDeque<Frame>,
    interval: CaptureInterval,
    damaged: u64,
    connections: u64,
    protocol_errors: u64,
    experience: Option<Experienced>,
    clock: SteadyClock,
}

impl Recorder {
    pub(crate) fn create(config: &Config) -> anyhow::Result<Self> {
        Ok(Recorder {
            files: Files::create(
                config.timeline.as_deref(),
                config.save.as_deref(),
                &config.pictures,
            )?,
            arrivals: config.arrivals.as_deref().map(Table::create).transpose()?,
            errors: Vec::new(),
            max_frames: config.frames,
            identical: 0,
            frames: VecDeque::new(),
            interval: CaptureInterval::default(),
            damaged: 0,
            connections: 0,
            protocol_errors: 0,
            experience: config.report_to.clone().map(Experienced::new),
            clock: SteadyClock::start(),
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

    /// Reports what the viewer experiences, if that is due, on the flow of this connection.
    pub(crate) fn report(&mut self, stream: &TcpStream) {
        let Some(experience) = &mut self.experience else {
            return;
        };
        experience.handle_timeout(self.clock.now(), || {
            Some(Packet {
                protocol: Protocol::Tcp,
                source: stream.peer_addr().ok()?,
                destination: stream.local_addr().ok()?,
            })
        });
    }

    /// Records a read of the socket.
    pub(crate) fn record_read(&mut self, bytes: usize) {
        self.write_arrivals(|arrivals| {
            arrivals.write(Arrival {
                received_ns: unix_ns(),
                bytes: bytes as u64,
            })
        });
    }

    fn write_arrivals(&mut self, write: impl FnOnce(&mut Table) -> anyhow::Result<()>) {
        attempt(&mut self.arrivals, "--arrivals", &mut self.errors, write);
    }

    /// Records a decoded frame.
    pub(crate) fn record_frame(&mut self, delivery: &Delivery<'_>) {
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
        if let Some(experience) = &mut self.experience {
            let delay = row.decoded_ns.saturating_sub(row.captured_ns);
            let delay = Duration::from_nanos(delay);
            experience.handle_frame(self.clock.now(), self.interval.get(), Some(delay));
        }
        if row.is_identical {
            self.identical += 1;
            if self.frames.len() == SUMMARISED {
                self.frames.pop_front();
            }
            self.frames.push_back(row.into());
            self.interval.record(row.frame, row.captured_ns);
        } else {
            self.damaged += 1;
            tracing::error!(frame = row.frame, captured = %delivery.header.digest, decoded = %digest, "frame differs from the captured one");
        }
        self.files
            .record(row, row.captured_ns, delivery.cloud.clone(), None);
        self.write_arrivals(Table::flush);
    }

    pub(crate) fn finish(mut self) -> Result<Summary, Box<Failure<Summary>>> {
        self.write_arrivals(Table::flush);
        // Pictures are completed after the end of watching.
        let end = Instant::from_nanos(unix_ns());
        let frames = self.frames();
        let (pictures, mut errors) = self.files.finish();
        errors.append(&mut self.errors);
        let summary = Summary {
            frames,
            frames_damaged: self.damaged,
            protocol_errors: self.protocol_errors,
            connections: self.connections,
            qoe: measured::measure(self.frames.make_contiguous(), end, self.interval.get()),
            pictures,
        };
        Failure::unless_empty(summary, errors)
    }
}
