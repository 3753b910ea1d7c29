use crate::LoadError;
use crate::cameras::Cameras;
use crate::description::{PlySequence, Recording, Source, Synthetic};
use hawser_cloud::{Cloud, Performer, View, ply};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A frame of a recording.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    /// The views of the cameras as they were captured, in the order of [`Source::Cameras`].
    ///
    /// Depth that a camera codes as hue is in steps of (far - near) / 1530, as many as there are
    /// saturated hues of 8 bits, or of far / 65535 if that is more.
    Views(Vec<View>),
    /// The points of a PLY file or of the synthetic performer.
    Cloud(Cloud),
}

impl Frame {
    /// Returns the points of the cloud or of all views, in the order of the cameras.
    pub fn into_cloud(self) -> Cloud {
        match self {
            Frame::Views(views) => View::merge(&views),
            Frame::Cloud(cloud) => cloud,
        }
    }
}

/// Plays a recording frame by frame, forwards. Frames are decoded when they are needed, so the
/// memory does not depend on the length of the recording.
///
/// Of live inputs, a frame has the newest images. Frames come at the rate of the slowest input, and
/// images of inputs that are faster are skipped. The images of a frame have arrived within an
/// interval of each other if all inputs have the recording's frame rate.
pub struct Player {
    frames: Frames,
    looped: bool,
}

impl Player {
    /// Opens a recording. The synthetic performer gets at most `max_performer_points`.
    pub(crate) fn open(
        recording: &Recording,
        looped: bool,
        max_performer_points: usize,
    ) -> Result<Self, LoadError> {
        let frames = match &recording.source {
            Source::Cameras { rgbd, hue_depth } => {
                let interval = Duration::try_from_secs_f64(1.0 / recording.fps);
                let interval = interval.unwrap_or(Duration::MAX);
                Frames::Cameras(Cameras::open(rgbd, hue_depth, interval)?)
            }
            Source::PlySequence(sequence) => Frames::Ply(PlyFiles::open(sequence)?),
            Source::Synthetic(synthetic) => {
                let performance = Performance::new(synthetic, max_performer_points, recording.fps);
                Frames::Performance(performance)
            }
        };
        Ok(Player { frames, looped })
    }

    /// Returns the next frame, or `None` after the last one unless the recording is played in a
    /// loop. Waits until the frame is decoded.
    ///
    /// # Errors
    /// If the frame cannot be decoded, if some videos of a recording have ended and others have not,
    /// or if a live input has ended or has delivered no image for 10 s.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, LoadError> {
        if !self.advance()? {
            return Ok(None);
        }
        self.frames.frame().map(Some)
    }

    /// Returns the points of the next frame; those of views are not rounded to the views' units.
    pub(crate) fn next_cloud(&mut self) -> Result<Option<Cloud>, LoadError> {
        if !self.advance()? {
            return Ok(None);
        }
        match &self.frames {
            Frames::Cameras(cameras) => cameras.cloud().map(Some),
            frames => frames.frame().map(|frame| Some(frame.into_cloud())),
        }
    }

    /// Continues with the first frame, which is ready at once if the recording is played in a loop.
    /// Live inputs continue with the next frame.
    pub fn rewind(&mut self) -> Result<(), LoadError> {
        match &mut self.frames {
            Frames::Cameras(cameras) => cameras.rewind()?,
            Frames::Ply(files) => files.read = 0,
            Frames::Performance(performance) => performance.shown = 0,
        }
        Ok(())
    }

    /// Returns the number of images of live inputs that were skipped so far, because newer ones
    /// arrived before [`Player::next_frame`] was called, or because another camera was slower.
    pub fn skipped_images(&self) -> u64 {
        match &self.frames {
            Frames::Cameras(cameras) => cameras.skipped(),
            Frames::Ply(_) | Frames::Performance(_) => 0,
        }
    }

    /// Moves to the next frame. Returns `false` after the last one.
    fn advance(&mut self) -> Result<bool, LoadError> {
        let mut advanced = self.frames.advance()?;
        if !advanced && self.looped {
            self.rewind()?;
            advanced = self.frames.advance()?;
            if !advanced {
                return Err(LoadError::Empty);
            }
        }
        if let (Frames::Cameras(cameras), true) = (&mut self.frames, self.looped) {
            cameras.open_ahead()?;
        }
        Ok(advanced)
    }
}

/// The frames of a source, and the position in them.
enum Frames {
    Cameras(Cameras),
    Ply(PlyFiles),
    Performance(Performance),
}

impl Frames {
    fn advance(&mut self) -> Result<bool, LoadError> {
        Ok(match self {
            Frames::Cameras(cameras) => cameras.advance()?,
            Frames::Ply(files) => next(&mut files.read, files.paths.len()),
            Frames::Performance(performance) => next(&mut performance.shown, performance.frames),
        })
    }

    /// Returns the frame to which `advance` has moved.
    fn frame(&self) -> Result<Frame, LoadError> {
        match self {
            Frames::Cameras(cameras) => cameras.views().map(Frame::Views),
            Frames::Ply(files) => files.cloud().map(Frame::Cloud),
            Frames::Performance(performance) => Ok(Frame::Cloud(performance.cloud())),
        }
    }
}

/// Counts one more of `count`, if there is one.
fn next(number: &mut usize, count: usize) -> bool {
    let is_left = *number < count;
    *number += usize::from(is_left);
    is_left
}

/// The PLY files of a directory.
struct PlyFiles {
    paths: Vec<PathBuf>,
    unit_mm: f32,
    /// Number of files played.
    read: usize,
}

impl PlyFiles {
    fn open(sequence: &PlySequence) -> Result<Self, LoadError> {
        let directory = &sequence.directory;
        let mut paths = Vec::new();
        for entry in fs::read_dir(directory).map_err(read_error(directory))? {
            let path = entry.map_err(read_error(directory))?.path();
            if path.extension().is_some_and(|extension| extension == "ply") {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(PlyFiles {
            paths,
            unit_mm: sequence.unit_mm,
            read: 0,
        })
    }

    fn cloud(&self) -> Result<Cloud, LoadError> {
        let path = &self.paths[self.read - 1];
        let file = fs::read(path).map_err(read_error(path))?;
        ply::read(&file, self.unit_mm).map_err(|error| LoadError::Ply {
            path: path.clone(),
            error,
        })
    }
}

fn read_error(path: &Path) -> impl Fn(std::io::Error) -> LoadError {
    move |error| LoadError::Read {
        path: path.to_owned(),
        error,
    }
}

/// The frames of a synthetic performer.
struct Performance {
    performer: Performer,
    fps: f64,
    frames: usize,
    /// Number of frames played.
    shown: usize,
}

impl Performance {
    fn new(synthetic: &Synthetic, max_points: usize, fps: f64) -> Self {
        Performance {
            performer: Performer::new(synthetic.seed, synthetic.points.min(max_points)),
            fps,
            frames: (synthetic.seconds * fps).round() as usize,
            shown: 0,
        }
    }

    fn cloud(&self) -> Cloud {
        let seconds = (self.shown - 1) as f64 / self.fps;
        self.performer.cloud(Duration::from_secs_f64(seconds))
    }
}
