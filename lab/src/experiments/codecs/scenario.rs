//! The cases: a recording, a codec and a rate.

use crate::recordings;
use anyhow::{Context, Result};
use hawser_publish::CodecName;
use hawser_recording::{Recording, data_dir};
use hawser_units::Bitrate;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The rates of the stream, Mb/s.
const RATES_MBPS: [u32; 8] = [5, 10, 15, 20, 30, 45, 60, 90];

/// A measurement of one codec.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scenario {
    pub(super) clip: Clip,
    pub(super) coder: Coder,
    pub(super) rate: Rate,
}

/// A recording by its name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Clip {
    name: Arc<str>,
    source: Source,
}

#[derive(Debug, Clone, PartialEq)]
enum Source {
    /// The text of a description that belongs to the lab.
    Known(&'static str),
    File(PathBuf),
}

/// An encoder with its decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coder {
    Product(CodecName),
    /// The programs of Google's implementation of Draco.
    DracoCpp,
}

/// The size of the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rate {
    Mbps(u32),
    /// All points, at the best quality.
    Best,
}

impl Scenario {
    /// Returns the cases of the recordings that are known.
    pub(super) fn all() -> Vec<Scenario> {
        Clip::known().iter().flat_map(Scenario::of).collect()
    }

    /// Returns the cases of a recording.
    pub(super) fn of(clip: &Clip) -> Vec<Scenario> {
        let rates = || {
            let rates = RATES_MBPS.into_iter().map(Rate::Mbps);
            rates.chain([Rate::Best])
        };
        let case = |coder, rate| Scenario {
            clip: clip.clone(),
            coder,
            rate,
        };
        let codecs = [CodecName::Rgbd, CodecName::Chunks, CodecName::Draco];
        let codecs = codecs.into_iter().map(Coder::Product);
        let mut all: Vec<_> = codecs
            .filter(|coder| clip.has_views() || *coder != Coder::Product(CodecName::Rgbd))
            .flat_map(|coder| rates().map(move |rate| case(coder, rate)))
            .collect();
        let lossless = Coder::Product(CodecName::Zstd);
        all.extend([lossless, Coder::DracoCpp].map(|coder| case(coder, Rate::Best)));
        all
    }
}

impl Clip {
    fn known() -> Vec<Clip> {
        let clip = |(name, text): (&str, _)| Clip {
            name: name.into(),
            source: Source::Known(text),
        };
        [
            ("talker", recordings::TALKER),
            ("typist", recordings::TYPIST),
            ("synthetic", recordings::SYNTHETIC),
        ]
        .map(clip)
        .to_vec()
    }

    /// Returns the recording that a file describes, under the file's name.
    ///
    /// # Errors
    /// If it describes none.
    pub(super) fn of_file(path: &Path) -> Result<Clip> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let clip = Clip {
            name: name.into(),
            source: Source::File(path.to_owned()),
        };
        clip.recording()?;
        Ok(clip)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Reads the description.
    pub(super) fn recording(&self) -> Result<Recording> {
        let data_dir = data_dir();
        let recording = match &self.source {
            Source::Known(text) => Recording::parse(text, Path::new(&*self.name), &data_dir),
            Source::File(path) => Recording::read(path, &data_dir),
        };
        recording.with_context(|| format!("recording {}", self.name))
    }

    /// Returns whether all files of the recording are there.
    pub(super) fn is_there(&self) -> bool {
        let player = self.recording().ok().map(|recording| recording.open());
        player.is_some_and(|player| player.is_ok())
    }

    /// Returns whether the frames are views of cameras.
    fn has_views(&self) -> bool {
        let recording = self.recording();
        recording.is_ok_and(|recording| {
            matches!(recording.source, hawser_recording::Source::Cameras { .. })
        })
    }
}

impl Coder {
    pub(super) fn name(self) -> &'static str {
        match self {
            Coder::Product(CodecName::Rgbd) => "rgbd",
            Coder::Product(CodecName::Chunks) => "chunks",
            Coder::Product(CodecName::Draco) => "draco",
            Coder::Product(CodecName::Zstd) => "zstd",
            Coder::DracoCpp => "draco-cpp",
        }
    }
}

impl Rate {
    /// Returns the rate at which frames are encoded.
    pub(super) fn target(self) -> Bitrate {
        match self {
            Rate::Mbps(rate) => Bitrate::from_mbps(f64::from(rate)),
            // More than any frame takes.
            Rate::Best => Bitrate::from_mbps(1e5),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { clip, coder, rate } = self;
        write!(f, "{}/{}/{rate}", clip.name, coder.name())
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Mbps(rate) => write!(f, "{rate}"),
            Rate::Best => f.write_str("best"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clouds_have_no_cases_of_the_codec_of_views() {
        let names: Vec<String> = Scenario::all().iter().map(Scenario::to_string).collect();
        assert!(names.contains(&"talker/rgbd/20".to_owned()));
        assert!(names.contains(&"typist/draco-cpp/best".to_owned()));
        assert!(!names.iter().any(|name| name.starts_with("synthetic/rgbd")));
    }

    #[test]
    fn a_recording_of_a_file_has_the_files_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dancer.toml");
        assert!(Clip::of_file(&path).is_err());
        std::fs::write(&path, recordings::SYNTHETIC).unwrap();
        let clip = Clip::of_file(&path).unwrap();
        assert_eq!(clip.name(), "dancer");
        assert!(clip.is_there());
    }
}
