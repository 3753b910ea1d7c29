//! Recordings of people: their description files, and their frames as RGB-D views or point clouds.
//! Pictures of point clouds as PNG and MP4 files. Their sound as packets of Opus.
//!
//! A description is a small TOML file; the ones in `media/recording/examples` are examples of every key.
//! Videos, images and live inputs are decoded by the `ffmpeg` program. A file's path is relative to the description, unless
//! it begins with `$HAWSER_DATA/`, which is replaced by the directory that [`data_dir`] returns.
//!
//! ```
//! use hawser_recording::Recording;
//!
//! let mut player = Recording::synthetic().open()?;
//! let frame = player.next_frame()?.expect("a first frame");
//! assert!(frame.into_cloud().len() > 100_000);
//! # Ok::<(), hawser_recording::LoadError>(())
//! ```

mod cameras;
mod description;
mod ffmpeg;
mod image_file;
mod images;
mod live;
mod natural;
mod nut;
mod opus;
mod pairing;
mod picture;
mod player;
mod probe;
mod recorded;
mod regular_file;
mod sound;
mod video;

pub use description::{
    Audio, AudioFile, DescriptionError, HueDepthCamera, LiveInput, PlySequence, Recorded,
    Recording, RgbdCamera, Source, Synthetic, VideoSource,
};
pub use ffmpeg::VideoError;
pub use opus::{OpusWriter, PACKET, is_packet, missing_beside};
pub use picture::{Mp4Writer, PictureError, add_sound, encode_png};
pub use player::{Frame, Pass, Player};
pub use sound::{Sound, SoundPacket};

use hawser_cloud::ply::CloudFileError;
use hawser_cloud::{Cloud, ImageError, Level};
use std::io;
use std::path::PathBuf;

/// Returns the directory of shared recordings: `$HAWSER_DATA`, or else `../shared` beside the working
/// directory. In the source tree, Cargo sets the variable to the directory beside the tree.
pub fn data_dir() -> PathBuf {
    let dir = std::env::var_os("HAWSER_DATA");
    dir.map_or_else(|| "../shared".into(), PathBuf::from)
}

/// The reason that a recording cannot be opened or played.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A video cannot be decoded.
    #[error(transparent)]
    Video(#[from] VideoError),
    /// An image does not have the calibration's size.
    #[error(transparent)]
    Size(#[from] ImageError),
    /// A file of a sequence cannot be read.
    #[error("cannot read {path}: {error}", path = path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The error from the system.
        error: io::Error,
    },
    /// A PLY or PCD file of a sequence is not valid.
    #[error("{path}: {error}", path = path.display())]
    Ply {
        /// The file.
        path: PathBuf,
        /// The error in the file.
        error: CloudFileError,
    },
    /// A live recording is to be loaded.
    #[error("live inputs cannot be loaded before they are played")]
    Live,
    /// The recording has no frames.
    #[error("the recording has no frames")]
    Empty,
}

/// The maximum number of intervals that a loaded recording is shown for: an hour at 60 frames per second.
const MAX_SHOWN: usize = 216_000;

impl Recording {
    /// Returns the first `max_frames` frames, sampled to the level's budget of points.
    ///
    /// Everything is decoded before this returns, so that streaming takes no time for decoding. A
    /// frame takes 9 bytes per point. [`Recording::open`] decodes frames when they are needed.
    ///
    /// # Errors
    /// If the recording is live or empty, or if a frame cannot be decoded.
    pub fn load(&self, level: Level, max_frames: usize) -> Result<Vec<Cloud>, LoadError> {
        let mut player = self.open_to_load(level)?;
        let mut frames = Vec::new();
        while frames.len() < max_frames
            && let Some(cloud) = player.next_cloud()?
        {
            frames.push(cloud.sample(level.points()));
        }
        if frames.is_empty() {
            return Err(LoadError::Empty);
        }
        Ok(frames)
    }

    /// As [`Recording::load`], for a stream of `fps` frames per second that plays the recording in real time. Frames
    /// that are not shown are left out. Also returns which frame is shown at each interval of the stream.
    ///
    /// # Errors
    /// As [`Recording::load`].
    pub fn load_at(
        &self,
        level: Level,
        max_frames: usize,
        fps: f64,
    ) -> Result<(Vec<Cloud>, Vec<usize>), LoadError> {
        let mut player = self.open_to_load(level)?;
        let (mut frames, mut shown) = (Vec::new(), Vec::new());
        let mut place = 0.0;
        while frames.len() < max_frames && shown.len() < MAX_SHOWN && !player.is_over() {
            if let Some(cloud) = player.cloud_at(place)? {
                frames.push(cloud.sample(level.points()));
            }
            shown.extend(frames.len().checked_sub(1));
            place += self.step(fps);
        }
        let out_of_range = player.out_of_range();
        if out_of_range > 0 {
            tracing::warn!(
                out_of_range,
                frames = frames.len(),
                "points of all loaded frames left out"
            );
        }
        match frames.is_empty() {
            true => Err(LoadError::Empty),
            false => Ok((frames, shown)),
        }
    }

    fn open_to_load(&self, level: Level) -> Result<Player, LoadError> {
        match self.is_live() {
            true => Err(LoadError::Live),
            false => Player::open(self, false, level.points()),
        }
    }

    /// Opens the recording, to be played once.
    ///
    /// # Errors
    /// If a video or the directory of a sequence cannot be opened.
    pub fn open(&self) -> Result<Player, LoadError> {
        Player::open(self, false, usize::MAX)
    }

    /// Opens the recording, to be played in a loop: the first frame follows the last one. The videos
    /// are opened again ahead of their end, so that the first frame is ready when it is needed.
    ///
    /// # Errors
    /// If a video or the directory of a sequence cannot be opened.
    pub fn open_looped(&self) -> Result<Player, LoadError> {
        Player::open(self, true, usize::MAX)
    }
}
