//! Pictures of the frames of a run, as a viewer sees them, and their VMAF.

use super::encoder::INTERVAL;
use super::frames::Frame;
use super::scenario::{Controller, Media, Scenario};
use crate::experiments::studio::{SIZE, Studio};
use crate::recordings;
use crate::vmaf::Vmaf;
use anyhow::{Context, Result, ensure};
use hawser_cloud::{Cloud, Image, Level};
use hawser_codec::{Decoder, FrameDecoder};
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_publish::{CodecName, Encoders, payload};
use hawser_recording::{Frame as Captured, Recording};
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// The number of frames of the recording that are played in a loop.
const FRAMES: usize = 100;

/// A picture is made of one frame in so many.
const EVERY: usize = 3;

/// The frames before the first picture that teach the rate control of the encoder.
const LEARNING: usize = 10;

/// The pictures of a run.
#[derive(Debug, Clone, Default)]
pub(super) struct Pictures {
    /// The number of the frame that was to be seen, and the score of what was shown.
    pub(super) scores: Vec<(usize, f64)>,
    /// The last picture: as captured, and as shown.
    pub(super) last: Option<(Image, Image)>,
    /// The times that the shown frames took.
    pub(super) stages: Vec<Stages>,
}

/// The times that a frame takes on this machine, which the simulation does not have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stages {
    pub(super) encode: Duration,
    pub(super) decode: Duration,
    pub(super) render: Duration,
}

/// The recording, and its pictures as they were captured.
pub(super) struct Gallery {
    frames: Vec<Cloud>,
    references: Vec<Image>,
    vmaf: Vmaf,
}

impl Gallery {
    /// Loads the recording of a person, or the synthetic performer where there is none.
    ///
    /// # Errors
    /// If there is no ffmpeg with libvmaf, or the recording cannot be loaded.
    pub(super) fn open() -> Result<Self> {
        let vmaf = Vmaf::find()?;
        let recording = recordings::talker()?.unwrap_or_else(Recording::synthetic);
        let frames = recording.load(Level::Fhd, FRAMES)?;
        let mut studio = Studio::in_front_of(&frames[0])?;
        let references = frames.iter().map(|frame| studio.draw(frame)).collect();
        Ok(Gallery {
            frames,
            references,
            vmaf,
        })
    }

    /// Encodes frames of a run for the targets that they had, decodes the layers that arrived, and
    /// compares the pictures. Where a frame cannot be decoded, the one before stays.
    ///
    /// # Errors
    /// If ffmpeg fails.
    pub(super) fn show(
        &self,
        scenario: Scenario,
        frames: &[Frame],
        pictured: Range<usize>,
        folder: &Path,
    ) -> Result<Pictures> {
        let mut screen = Screen::new(self, scenario.media)?;
        let learning = pictured.start.saturating_sub(LEARNING)..pictured.start;
        for number in learning {
            screen.show(number, &frames[number])?;
        }
        let mut comparison = self.vmaf.compare(SIZE, &folder.join("vmaf.json"))?;
        let mut numbers = Vec::new();
        for number in pictured.step_by(EVERY) {
            let newest = frames[..=number].iter().rposition(Frame::is_decodable);
            if let Some(newest) = newest {
                screen.show(newest, &frames[newest])?;
            }
            // Before the first frame, there is nothing to compare.
            if let Some((_, shown)) = &screen.shown {
                comparison.write(self.reference(number), shown)?;
                numbers.push(number);
            }
        }
        let scores = comparison.finish()?;
        ensure!(scores.len() == numbers.len(), "VMAF of some pictures only");
        let last = numbers.last().map(|number| self.reference(*number).clone());
        Ok(Pictures {
            last: last.zip(screen.shown.map(|(_, shown)| shown)),
            stages: screen.stages,
            scores: numbers.into_iter().zip(scores).collect(),
        })
    }

    fn reference(&self, number: usize) -> &Image {
        &self.references[number % self.references.len()]
    }
}

/// A viewer with the encoder that works for it.
struct Screen<'a> {
    gallery: &'a Gallery,
    encoders: Encoders,
    decoder: FrameDecoder,
    studio: Studio,
    /// The frame that is shown.
    shown: Option<(usize, Image)>,
    stages: Vec<Stages>,
}

impl<'a> Screen<'a> {
    fn new(gallery: &'a Gallery, media: Media) -> Result<Self> {
        let first = &gallery.frames[0];
        Ok(Screen {
            gallery,
            encoders: Encoders::new(codec(media), &Captured::Cloud(first.clone()))?,
            decoder: FrameDecoder::new(),
            studio: Studio::in_front_of(first)?,
            shown: None,
            stages: Vec::new(),
        })
    }

    /// Shows what arrived of a frame, unless it is shown already.
    fn show(&mut self, number: usize, frame: &Frame) -> Result<()> {
        if self
            .shown
            .as_ref()
            .is_some_and(|(shown, _)| *shown == number)
        {
            return Ok(());
        }
        let captured = self.gallery.frames[number % self.gallery.frames.len()].clone();
        let size = payload(frame.target.bytes_in(INTERVAL), DEFAULT_DATAGRAM);
        let captured = Captured::Cloud(captured);
        let start = Instant::now();
        let encoded = self.encoders.encode(captured, usize::MAX, size, None);
        let encode = start.elapsed();
        let (_, track) = encoded.tracks.first().context("a cloud has one track")?;
        let layers = track.layers.iter().zip(&frame.complete);
        let arrived = layers.filter(|(_, complete)| complete.is_some());
        let parts: Vec<&[u8]> = arrived
            .flat_map(|(parts, _)| parts.iter().map(Vec::as_slice))
            .collect();
        // A frame of which nothing arrived only teaches the rate control.
        if !parts.is_empty() {
            let start = Instant::now();
            let hawser_codec::Frame::Cloud(cloud) = self.decoder.decode(&parts)? else {
                unreachable!("the codecs of clouds decode to clouds");
            };
            let decode = start.elapsed();
            let start = Instant::now();
            let picture = self.studio.draw(&cloud);
            self.stages.push(Stages {
                encode,
                decode,
                render: start.elapsed(),
            });
            self.shown = Some((number, picture));
        }
        Ok(())
    }
}

/// Returns the codec of the frames: Hawser's own for points, whose layers are those of the
/// simulation, and that of the paper for the paper's senders.
fn codec(media: Media) -> CodecName {
    match media {
        Media::Hawser(Controller::Prague) => CodecName::Chunks,
        Media::Hawser(Controller::Paper) | Media::WebRtc => CodecName::Draco,
    }
}
