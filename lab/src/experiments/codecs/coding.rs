//! Frames from the encoder to the decoder.

mod draco_cpp;

use super::scenario::{Coder, Rate, Scenario};
use anyhow::Result;
use hawser_cloud::Cloud;
use hawser_codec::{Decoder, FrameDecoder};
use hawser_publish::{CodecName, Encoders};
use hawser_recording::Frame;
use hawser_units::ByteSize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// A frame that was encoded and decoded.
pub(super) struct Coded {
    pub(super) bytes: u64,
    pub(super) encode: Duration,
    pub(super) decode: Duration,
    pub(super) decoded: Cloud,
}

/// The way of frames to a viewer.
pub(super) enum Coding {
    Product {
        encoders: Encoders,
        /// By the alias of the track.
        decoders: BTreeMap<u32, FrameDecoder>,
        target: ByteSize,
    },
    DracoCpp,
}

impl Coding {
    /// Prepares for frames like the first one.
    ///
    /// # Errors
    /// If the codec does not encode such frames.
    pub(super) fn new(scenario: &Scenario, first: &Frame, fps: f64) -> Result<Self> {
        match scenario.coder {
            Coder::Product(codec) => Coding::product(codec, first, scenario.rate, fps),
            Coder::DracoCpp => Ok(Coding::DracoCpp),
        }
    }

    fn product(codec: CodecName, first: &Frame, rate: Rate, fps: f64) -> Result<Self> {
        let interval = Duration::from_secs_f64(1.0 / fps);
        Ok(Coding::Product {
            encoders: Encoders::new(codec, first)?,
            decoders: BTreeMap::new(),
            target: rate.target().bytes_in(interval),
        })
    }

    /// Encodes and decodes a frame. The folder is for files of programs.
    ///
    /// # Errors
    /// If a frame cannot be decoded, or a program is missing or fails.
    pub(super) fn code(&mut self, frame: Frame, folder: &Path) -> Result<Coded> {
        match self {
            Coding::DracoCpp => draco_cpp::code(&frame.into_cloud(), folder),
            Coding::Product {
                encoders,
                decoders,
                target,
            } => {
                let start = Instant::now();
                let encoded = encoders.encode(frame, usize::MAX, *target, None);
                let encode = start.elapsed();
                let tracks = encoded.tracks.iter();
                let bytes = tracks.map(|(_, track)| track.bytes() as u64).sum();
                let start = Instant::now();
                let mut decoded = Cloud::new();
                for (alias, track) in &encoded.tracks {
                    let decoder = decoders.entry(*alias).or_default();
                    match decoder.decode(&track.parts())? {
                        hawser_codec::Frame::View(view) => view.add_to(&mut decoded),
                        hawser_codec::Frame::Cloud(cloud) => decoded = cloud,
                    }
                }
                Ok(Coded {
                    bytes,
                    encode,
                    decode: start.elapsed(),
                    decoded,
                })
            }
        }
    }
}
