use crate::images;
use hawser_cloud::{Camera, Extrinsics, HueRange, Intrinsics, MAX_POINTS};
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};

/// A recording: the source of its frames and their rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// Frames per second.
    pub fps: f64,
    /// The source of the frames.
    pub source: Source,
    /// The sound.
    pub audio: Option<Audio>,
}

/// The sound of a recording.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged, expecting = "file = path, or input = [options of ffmpeg]")]
pub enum Audio {
    /// That of a file, from the same beginning as the first video.
    Recorded(AudioFile),
    /// Sound that is captured while it is played.
    Live(LiveInput),
}

/// A file with sound.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AudioFile {
    /// A file that ffmpeg decodes. The first track of sound is played.
    pub file: PathBuf,
}

/// The source of a recording's frames.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Cameras that recorded at the same time; their points are merged in this order.
    Cameras {
        /// Colour and depth in two videos.
        rgbd: Vec<RgbdCamera>,
        /// Colour above hue-coded depth in one video.
        hue_depth: Vec<HueDepthCamera>,
    },
    /// A directory of PLY files.
    PlySequence(PlySequence),
    /// A synthetic performer.
    Synthetic(Synthetic),
}

/// The images of a camera.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    untagged,
    expecting = "the path of a video, or { input = [options of ffmpeg] }, or { file = path, track = number }"
)]
pub enum VideoSource {
    /// Recorded images.
    Recorded(Recorded),
    /// Images that are captured while they are played.
    Live(LiveInput),
}

/// Recorded images: a video; numbered images, by a pattern such as `color/%06d.png`, from the
/// smallest number that exists; or the images that an index file of the TUM RGB-D format
/// (`rgb.txt`) names.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "RecordedForm")]
pub struct Recorded {
    /// The video, the pattern or the index file.
    pub path: PathBuf,
    /// The number of the track among the video tracks of the file, from 0; by default the one that its title or its
    /// pixel format says it is.
    pub track: Option<usize>,
}

/// The forms of [`Recorded`] in a description.
#[derive(Deserialize)]
#[serde(untagged)]
enum RecordedForm {
    Path(PathBuf),
    Track(TrackForm),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TrackForm {
    file: PathBuf,
    track: usize,
}

impl From<RecordedForm> for Recorded {
    fn from(form: RecordedForm) -> Self {
        let (path, track) = match form {
            RecordedForm::Path(path) => (path, None),
            RecordedForm::Track(TrackForm { file, track }) => (file, Some(track)),
        };
        Recorded { path, track }
    }
}

/// A live input, such as a camera.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LiveInput {
    /// Options of ffmpeg that open the input. The last two are `-i` and the name of the device or
    /// the address of the stream.
    pub input: Vec<String>,
}

/// An RGB-D camera: a colour video and a 16-bit depth video of the same size. A depth of 0 means that nothing was
/// measured.
///
/// Colour and depth images belong together that are nearest in time: those of index files within 20 ms, others
/// within half of the time between two images. Images without a partner are left out.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RgbdCamera {
    /// The colour video.
    pub color: VideoSource,
    /// The depth video.
    pub depth: VideoSource,
    /// Depth of one step of the depth video, in millimetres.
    pub depth_unit_mm: f32,
    /// The projection of the camera; its size is that of both videos.
    pub intrinsics: Intrinsics,
    /// The pose of the camera.
    pub extrinsics: Extrinsics,
}

/// A camera whose single video has colour in the upper half and depth, coded as hue, in the lower
/// half.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HueDepthCamera {
    /// The video, twice as high as the intrinsics.
    pub video: VideoSource,
    /// The depths that hue 0 and hue 1 stand for.
    pub range: HueRange,
    /// The projection of the camera; its size is that of one half.
    pub intrinsics: Intrinsics,
    /// The pose of the camera.
    pub extrinsics: Extrinsics,
}

/// PLY files, one per frame, played in the order of their names.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlySequence {
    /// The directory of the files, whose names end in `.ply`.
    pub directory: PathBuf,
    /// Length of one unit of the files in millimetres: 1000 for files in metres.
    pub unit_mm: f32,
}

/// A synthetic performer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Synthetic {
    /// Seed of the random number generator for noise.
    pub seed: u64,
    /// Points per frame, before the level's budget.
    pub points: usize,
    /// Duration of the performance in seconds.
    pub seconds: f64,
}

/// The reason that a description is invalid.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// The file cannot be read.
    #[error("cannot read the recording {path}: {error}", path = path.display())]
    Read {
        /// The description.
        path: PathBuf,
        /// The error from the system.
        error: io::Error,
    },
    /// The file does not have the form of a description.
    #[error("{path}: {error}", path = path.display())]
    Parse {
        /// The description.
        path: PathBuf,
        /// Line, key and what is expected.
        #[source]
        error: Box<toml::de::Error>,
    },
    /// A value is invalid.
    #[error("{path}: {key} {reason}", path = path.display())]
    Value {
        /// The description.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// The valid values.
        reason: &'static str,
    },
}

/// The most frames per second of a recording.
const MAX_FPS: f64 = 1000.0;

/// Tolerance for a rotation matrix that is given with three digits.
const ROTATION_TOLERANCE: f32 = 0.01;

impl Recording {
    /// Returns the recording that is played if none is given.
    pub fn synthetic() -> Self {
        let synthetic = Synthetic {
            seed: 1,
            points: 184_000,
            seconds: 4.0,
        };
        Recording {
            fps: 30.0,
            source: Source::Synthetic(synthetic),
            audio: None,
        }
    }

    /// Returns whether the frames are captured while they are played.
    pub fn is_live(&self) -> bool {
        match &self.source {
            Source::Cameras { rgbd, hue_depth } => {
                rgbd.iter().any(|camera| camera.color.is_live())
                    || hue_depth.iter().any(|camera| camera.video.is_live())
            }
            Source::PlySequence(_) | Source::Synthetic(_) => false,
        }
    }

    /// Returns the number of frames by which the recording advances from one frame to the next of a stream, so that it
    /// is played in real time. A stream with more frames per second than the recording plays it faster.
    pub fn step(&self, fps: f64) -> f64 {
        match self.is_live() {
            true => 1.0,
            false => (self.fps / fps).max(1.0),
        }
    }

    /// Reads a description. `data_dir` replaces `$HAWSER_DATA` at the beginning of a path.
    pub fn read(path: &Path, data_dir: &Path) -> Result<Self, DescriptionError> {
        let text = hawser_io::file::read_text(path).map_err(|error| DescriptionError::Read {
            path: path.to_owned(),
            error,
        })?;
        // The mark of some editors for the order of bytes.
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        Self::parse(text, path, data_dir)
    }

    /// Parses a description. `path` is named in errors, and the paths in the description are relative
    /// to its directory; `data_dir` replaces `$HAWSER_DATA` at the beginning of a path.
    pub fn parse(text: &str, path: &Path, data_dir: &Path) -> Result<Self, DescriptionError> {
        let file: File = toml::from_str(text).map_err(|error| DescriptionError::Parse {
            path: path.to_owned(),
            error: Box::new(error),
        })?;
        let here = path.parent().unwrap_or(Path::new(""));
        let resolve = |file: &mut PathBuf| match file.strip_prefix("$HAWSER_DATA") {
            Ok(rest) => *file = data_dir.join(rest),
            Err(_) => *file = here.join(&*file),
        };
        file.into_recording(resolve)
            .map_err(|(key, reason)| DescriptionError::Value {
                path: path.to_owned(),
                key,
                reason,
            })
    }
}

/// A key and its valid values.
type Invalid = (&'static str, &'static str);

impl VideoSource {
    fn is_live(&self) -> bool {
        matches!(self, VideoSource::Live(_))
    }

    fn is_index(&self) -> bool {
        match self {
            VideoSource::Recorded(recorded) => images::is_index(&recorded.path),
            VideoSource::Live(_) => false,
        }
    }

    fn resolve(&mut self, resolve: impl Fn(&mut PathBuf)) {
        if let VideoSource::Recorded(recorded) = self {
            resolve(&mut recorded.path);
        }
    }

    fn check(&self) -> Result<(), Invalid> {
        match self {
            VideoSource::Recorded(_) => Ok(()),
            VideoSource::Live(live) => live.check(),
        }
    }
}

impl LiveInput {
    fn check(&self) -> Result<(), Invalid> {
        let input = &self.input;
        let places = (0..input.len()).filter(|place| input[*place] == "-i");
        require(
            input.len() >= 2 && places.eq([input.len() - 2]),
            "input",
            "must end with \"-i\" and the name of the input",
        )
    }
}

impl Audio {
    fn resolve(&mut self, resolve: impl Fn(&mut PathBuf)) -> Result<(), Invalid> {
        match self {
            Audio::Recorded(recorded) => resolve(&mut recorded.file),
            Audio::Live(live) => live.check()?,
        }
        Ok(())
    }
}

impl RgbdCamera {
    fn check(&self) -> Result<(), Invalid> {
        require(
            self.depth_unit_mm > 0.0 && self.depth_unit_mm.is_finite(),
            "depth_unit_mm",
            "must be above 0",
        )?;
        require(
            self.color.is_index() == self.depth.is_index(),
            "color and depth",
            "must both be index files (.txt), or neither",
        )?;
        self.color.check()?;
        self.depth.check()?;
        check(&self.camera())
    }

    /// Returns the calibration.
    pub fn camera(&self) -> Camera {
        Camera {
            intrinsics: self.intrinsics,
            extrinsics: self.extrinsics,
        }
    }
}

impl HueDepthCamera {
    fn check(&self) -> Result<(), Invalid> {
        let HueRange { near_mm, far_mm } = self.range;
        require(
            0.0 < near_mm && near_mm < far_mm && far_mm.is_finite(),
            "range",
            "must have 0 < near_mm < far_mm",
        )?;
        self.video.check()?;
        check(&self.camera())
    }

    /// Returns the calibration.
    pub fn camera(&self) -> Camera {
        Camera {
            intrinsics: self.intrinsics,
            extrinsics: self.extrinsics,
        }
    }
}

/// The contents of a description file: cameras, a sequence or a synthetic performer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    fps: f64,
    #[serde(default)]
    rgbd: Vec<RgbdCamera>,
    #[serde(default)]
    hue_depth: Vec<HueDepthCamera>,
    ply_sequence: Option<PlySequence>,
    synthetic: Option<Synthetic>,
    audio: Option<Audio>,
}

impl File {
    fn into_recording(mut self, resolve: impl Fn(&mut PathBuf)) -> Result<Recording, Invalid> {
        require(
            self.fps > 0.0 && self.fps <= MAX_FPS,
            "fps",
            "must be above 0, and at most 1000",
        )?;
        let cameras = !self.rgbd.is_empty() || !self.hue_depth.is_empty();
        if let Some(audio) = &mut self.audio {
            audio.resolve(&resolve)?;
        }
        let audio = self.audio;
        let source = match (cameras, self.ply_sequence, self.synthetic) {
            (true, None, None) => Self::cameras(self.rgbd, self.hue_depth, resolve)?,
            (false, Some(mut sequence), None) => {
                require(
                    sequence.unit_mm > 0.0 && sequence.unit_mm.is_finite(),
                    "unit_mm",
                    "must be above 0",
                )?;
                resolve(&mut sequence.directory);
                Source::PlySequence(sequence)
            }
            (false, None, Some(synthetic)) => {
                require(
                    (1.0..=3600.0).contains(&synthetic.seconds),
                    "seconds",
                    "must be from 1 to 3600",
                )?;
                require(
                    (1..=MAX_POINTS).contains(&synthetic.points),
                    "points",
                    "must be from 1 to 1048576",
                )?;
                Source::Synthetic(synthetic)
            }
            _ => {
                return Err((
                    "the description",
                    "must have [[rgbd]] and [[hue-depth]] cameras, a [ply-sequence] or [synthetic]: one of these kinds",
                ));
            }
        };
        let recording = Recording {
            fps: self.fps,
            source,
            audio,
        };
        let is_file = matches!(recording.audio, Some(Audio::Recorded(_)));
        require(
            !(is_file && recording.is_live()),
            "audio",
            "must be a live input, as the cameras are",
        )?;
        Ok(recording)
    }

    fn cameras(
        mut rgbd: Vec<RgbdCamera>,
        mut hue_depth: Vec<HueDepthCamera>,
        resolve: impl Fn(&mut PathBuf),
    ) -> Result<Source, Invalid> {
        for camera in &mut rgbd {
            camera.check()?;
            camera.color.resolve(&resolve);
            camera.depth.resolve(&resolve);
        }
        for camera in &mut hue_depth {
            camera.check()?;
            camera.video.resolve(&resolve);
        }
        require(
            are_of_one_kind(&rgbd, &hue_depth),
            "color, depth and video",
            "must all be live inputs, or all be recorded",
        )?;
        Ok(Source::Cameras { rgbd, hue_depth })
    }
}

/// Returns whether all videos are live or all are recorded.
fn are_of_one_kind(rgbd: &[RgbdCamera], hue_depth: &[HueDepthCamera]) -> bool {
    let of_rgbd = rgbd
        .iter()
        .flat_map(|camera| [&camera.color, &camera.depth]);
    let mut videos = of_rgbd.chain(hue_depth.iter().map(|camera| &camera.video));
    let first_is_live = videos.next().is_some_and(VideoSource::is_live);
    videos.all(|video| video.is_live() == first_is_live)
}

fn check(camera: &Camera) -> Result<(), Invalid> {
    let Intrinsics {
        width,
        height,
        fx,
        fy,
        cx,
        cy,
    } = camera.intrinsics;
    require(
        width > 0 && height > 0,
        "intrinsics",
        "must have a width and a height above 0",
    )?;
    require(
        fx > 0.0 && fy > 0.0,
        "intrinsics",
        "must have fx and fy above 0",
    )?;
    let translation = camera.extrinsics.translation_mm;
    require(
        [fx, fy, cx, cy]
            .into_iter()
            .chain(translation)
            .all(f32::is_finite),
        "intrinsics and translation_mm",
        "must be numbers that are finite",
    )?;
    require(
        camera.extrinsics.rotation_error() < ROTATION_TOLERANCE,
        "rotation",
        "must be a rotation: rows of length 1, at right angles, determinant +1",
    )
}

fn require(condition: bool, key: &'static str, reason: &'static str) -> Result<(), Invalid> {
    if condition {
        Ok(())
    } else {
        Err((key, reason))
    }
}
