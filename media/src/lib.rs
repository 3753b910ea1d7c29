//! Recordings of people: their description files, and their frames as point clouds.
//!
//! A description is a small TOML file; the ones in `lab/recordings` are examples of every key.
//! Videos are decoded by the `ffmpeg` program. A file's path is relative to the description, unless
//! it begins with `$HAWSER_DATA/`, which is replaced by the directory that [`data_dir`] returns.
//!
//! ```
//! use hawser_cloud::Level;
//! use hawser_media::Recording;
//!
//! let frames = Recording::synthetic().load(Level::Fhd, 2)?;
//! assert_eq!(frames.len(), 2);
//! # Ok::<(), hawser_media::LoadError>(())
//! ```

mod description;
mod video;

pub use description::{
    DescriptionError, HueDepthCamera, PlySequence, Recording, RgbdCamera, Source, Synthetic,
};
pub use video::VideoError;

use hawser_cloud::ply::{self, PlyError};
use hawser_cloud::{Camera, Cloud, HueRange, ImageError, Level, Performer};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use video::{PixelFormat, Video};

/// Returns the directory of shared recordings: `$HAWSER_DATA`, or else `../shared` beside the
/// source tree of this build.
pub fn data_dir() -> PathBuf {
    match std::env::var_os("HAWSER_DATA") {
        Some(dir) => dir.into(),
        None => concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared").into(),
    }
}

/// The reason that a recording cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A video cannot be decoded.
    #[error(transparent)]
    Video(#[from] VideoError),
    /// A video's images do not have the calibration's size.
    #[error("{video}: {error}; the intrinsics belong to another image size", video = video.display())]
    Size {
        /// The video.
        video: PathBuf,
        /// The sizes.
        error: ImageError,
    },
    /// Videos of one recording have different lengths.
    #[error("{short} ends after {frames} frames, {long} continues: cut them to the same length", short = short.display(), long = long.display())]
    Length {
        /// The video that ends first.
        short: PathBuf,
        /// A video that continues.
        long: PathBuf,
        /// The length of the short one.
        frames: usize,
    },
    /// A file of a sequence cannot be read.
    #[error("cannot read {path}: {error}", path = path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The error from the system.
        error: io::Error,
    },
    /// A file of a sequence is not valid.
    #[error("{path}: {error}", path = path.display())]
    Ply {
        /// The file.
        path: PathBuf,
        /// The error in the file.
        error: PlyError,
    },
    /// The recording has no frames.
    #[error("the recording has no frames")]
    Empty,
}

impl Recording {
    /// Returns the first `max_frames` frames, sampled to the level's budget of points.
    ///
    /// Everything is decoded before this returns, so that streaming takes no time for decoding. A
    /// frame takes 9 bytes per point.
    pub fn load(&self, level: Level, max_frames: usize) -> Result<Vec<Cloud>, LoadError> {
        let budget = level.points();
        let frames = match &self.source {
            Source::Cameras { rgbd, hue_depth } => {
                load_cameras(rgbd, hue_depth, budget, max_frames)?
            }
            Source::PlySequence(sequence) => load_ply_sequence(sequence, budget, max_frames)?,
            Source::Synthetic(synthetic) => self.perform(synthetic, budget, max_frames),
        };
        if frames.is_empty() {
            return Err(LoadError::Empty);
        }
        Ok(frames)
    }

    fn perform(&self, synthetic: &Synthetic, budget: usize, max_frames: usize) -> Vec<Cloud> {
        let performer = Performer::new(synthetic.seed, synthetic.points.min(budget));
        let count = (synthetic.seconds * self.fps).round() as usize;
        let time = |frame: usize| Duration::from_secs_f64(frame as f64 / self.fps);
        (0..count.min(max_frames))
            .map(|frame| performer.cloud(time(frame)))
            .collect()
    }
}

fn load_ply_sequence(
    sequence: &PlySequence,
    budget: usize,
    max_frames: usize,
) -> Result<Vec<Cloud>, LoadError> {
    let read_error = |path: &Path| {
        let path = path.to_owned();
        move |error| LoadError::Read { path, error }
    };
    let directory = &sequence.directory;
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(read_error(directory))? {
        let path = entry.map_err(read_error(directory))?.path();
        if path.extension().is_some_and(|extension| extension == "ply") {
            paths.push(path);
        }
    }
    paths.sort();
    let load = |path: PathBuf| {
        let file = fs::read(&path).map_err(read_error(&path))?;
        let cloud =
            ply::read(&file, sequence.unit_mm).map_err(|error| LoadError::Ply { path, error })?;
        Ok(cloud.sample(budget))
    };
    paths.into_iter().take(max_frames).map(load).collect()
}

fn load_cameras(
    rgbd: &[RgbdCamera],
    hue_depth: &[HueDepthCamera],
    budget: usize,
    max_frames: usize,
) -> Result<Vec<Cloud>, LoadError> {
    let rgbd = rgbd.iter().map(CameraVideos::open_rgbd);
    let hue_depth = hue_depth.iter().map(CameraVideos::open_hue_depth);
    let mut cameras = rgbd.chain(hue_depth).collect::<Result<Vec<_>, _>>()?;

    let mut frames = Vec::new();
    while frames.len() < max_frames && read_images(&mut cameras, frames.len())? {
        let mut cloud = Cloud::with_capacity(budget);
        for camera in &cameras {
            camera.add_points(&mut cloud)?;
        }
        frames.push(cloud.sample(budget));
    }
    Ok(frames)
}

/// Reads the next image of every video. Returns `false` if all have ended.
fn read_images(cameras: &mut [CameraVideos], frames: usize) -> Result<bool, LoadError> {
    let (mut continuing, mut ended) = (None, None);
    for video in cameras.iter_mut().flat_map(CameraVideos::videos) {
        match video.read_image()? {
            true => continuing = Some(video.path().to_owned()),
            false => ended = Some(video.path().to_owned()),
        }
    }
    match (continuing, ended) {
        (Some(long), Some(short)) => Err(LoadError::Length {
            short,
            long,
            frames,
        }),
        (continuing, _) => Ok(continuing.is_some()),
    }
}

/// The videos of one camera while they are decoded.
enum CameraVideos {
    Rgbd {
        camera: Camera,
        unit_mm: f32,
        color: Video,
        depth: Video,
    },
    HueDepth {
        camera: Camera,
        range: HueRange,
        video: Video,
    },
}

impl CameraVideos {
    fn open_rgbd(description: &RgbdCamera) -> Result<Self, LoadError> {
        Ok(CameraVideos::Rgbd {
            camera: description.camera(),
            unit_mm: description.depth_unit_mm,
            color: Video::open(&description.color, PixelFormat::Rgb24)?,
            depth: Video::open(&description.depth, PixelFormat::Gray16)?,
        })
    }

    fn open_hue_depth(description: &HueDepthCamera) -> Result<Self, LoadError> {
        Ok(CameraVideos::HueDepth {
            camera: description.camera(),
            range: description.range,
            video: Video::open(&description.video, PixelFormat::Rgb24)?,
        })
    }

    fn videos(&mut self) -> impl Iterator<Item = &mut Video> {
        let (first, second) = match self {
            CameraVideos::Rgbd { color, depth, .. } => (color, Some(depth)),
            CameraVideos::HueDepth { video, .. } => (video, None),
        };
        std::iter::once(first).chain(second)
    }

    fn add_points(&self, cloud: &mut Cloud) -> Result<(), LoadError> {
        let (result, video) = match self {
            CameraVideos::Rgbd {
                camera,
                unit_mm,
                color,
                depth,
            } => (
                camera.add_rgbd(color.image(), depth.image(), *unit_mm, cloud),
                color,
            ),
            CameraVideos::HueDepth {
                camera,
                range,
                video,
            } => (camera.add_hue_depth(video.image(), *range, cloud), video),
        };
        result.map_err(|error| LoadError::Size {
            video: video.path().to_owned(),
            error,
        })
    }
}
