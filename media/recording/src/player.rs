use crate::LoadError;
use crate::cameras::Cameras;
use crate::description::{PlySequence, Recording, Source, Synthetic};
use crate::{natural, regular_file};
use hawser_cloud::{Cloud, Performer, View, pcd, ply};
use std::fs;
use std::io::Read;
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
/// A frame of live inputs has the newest images. Frames come at the rate of the slowest input, and
/// images of inputs that are faster are skipped. The images of a frame have arrived within an
/// interval of each other if all inputs have the recording's frame rate.
pub struct Player {
    frames: Frames,
    looped: bool,
    /// Frames per second.
    fps: f64,
    /// The place at which this pass begins.
    start: f64,
    /// Number of frames that were not returned because a later one was due.
    left_out: u64,
    /// Whether a frame has been played.
    has_played: bool,
    /// The place at which the first of the last passes began that had no frame.
    lost_since: Option<f64>,
}

/// A pass of a recording: what is played again when it is over.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pass {
    /// The time of its first frame in the file of the first camera, seconds.
    pub start_s: f64,
    /// Its length in seconds.
    pub length_s: f64,
}

/// The time after which a recording of which nothing can be read any more has ended, as for live inputs.
const LOST_S: f64 = 10.0;

impl Player {
    /// Opens a recording. The synthetic performer gets at most `max_performer_points`.
    pub(crate) fn open(
        recording: &Recording,
        looped: bool,
        max_performer_points: usize,
    ) -> Result<Self, LoadError> {
        let frames = match &recording.source {
            Source::Cameras { rgbd, hue_depth } => {
                Frames::Cameras(Cameras::open(rgbd, hue_depth, recording.fps)?)
            }
            Source::PlySequence(sequence) => Frames::Ply(PlyFiles::open(sequence)?),
            Source::Synthetic(synthetic) => {
                let performance = Performance::new(synthetic, max_performer_points, recording.fps);
                Frames::Performance(performance)
            }
        };
        Ok(Player {
            frames,
            looped,
            fps: recording.fps,
            start: 0.0,
            left_out: 0,
            has_played: false,
            lost_since: None,
        })
    }

    /// Returns the next frame, or `None` after the last one unless the recording is played in a
    /// loop. Waits until the frame is decoded.
    ///
    /// # Errors
    /// If a video cannot be decoded, or if a live input has ended or has delivered no image for 10 s. Frames with
    /// missing or damaged images are left out.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, LoadError> {
        if !self.advance()? {
            return Ok(None);
        }
        self.frames.frame().map(Some)
    }

    /// Returns the newest frame that is due at a place: the time since the first frame, in intervals of the
    /// recording's frame rate. Returns `None` if no frame has become due since the last one that was returned.
    ///
    /// Frames are played in real time by this: those before the newest one are left out. Live inputs have the newest
    /// frame at any place.
    ///
    /// # Errors
    /// As [`Player::next_frame`].
    pub fn frame_at(&mut self, place: f64) -> Result<Option<Frame>, LoadError> {
        match self.advance_to(place)? {
            true => self.frames.frame().map(Some),
            false => Ok(None),
        }
    }

    /// Returns the points of [`Player::frame_at`]; those of views are not rounded to the views' units.
    pub(crate) fn cloud_at(&mut self, place: f64) -> Result<Option<Cloud>, LoadError> {
        match self.advance_to(place)? {
            true => self.frames.cloud().map(Some),
            false => Ok(None),
        }
    }

    /// Moves to the newest frame that is due. Returns whether there is a later one than before.
    fn advance_to(&mut self, place: f64) -> Result<bool, LoadError> {
        let mut moved = false;
        while self.is_due(place) && self.advance()? {
            self.left_out += u64::from(moved);
            moved = true;
            if self.is_live() {
                break;
            }
        }
        Ok(moved)
    }

    /// Returns whether all frames have been played.
    pub(crate) fn is_over(&self) -> bool {
        !self.looped && self.frames.next_place(self.fps).is_none()
    }

    /// Returns whether the next frame is due at a place, to half an interval.
    fn is_due(&self, place: f64) -> bool {
        let next = match self.frames.next_place(self.fps) {
            Some(next) => self.start + next,
            None if self.looped => self.start + self.frames.length(self.fps),
            None => self.start,
        };
        next <= place + 0.5
    }

    fn is_live(&self) -> bool {
        matches!(&self.frames, Frames::Cameras(cameras) if cameras.is_live())
    }

    /// Returns the pass that is repeated; `None` for live inputs.
    pub fn pass(&self) -> Option<Pass> {
        let start_s = match &self.frames {
            Frames::Cameras(cameras) => cameras.start_s(),
            Frames::Ply(_) | Frames::Performance(_) => 0.0,
        };
        let length_s = self.frames.length(self.fps) / self.fps;
        (!self.is_live()).then_some(Pass { start_s, length_s })
    }

    /// Returns the number of frames that [`Player::frame_at`] left out because a later one was due.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the number of frames that were left out because an image was missing or damaged.
    pub fn lost(&self) -> u64 {
        match &self.frames {
            Frames::Cameras(cameras) => cameras.lost(),
            Frames::Ply(files) => files.lost,
            Frames::Performance(_) => 0,
        }
    }

    /// Returns the number of points of the frames so far that are not finite or out of range, and are left out.
    pub fn out_of_range(&self) -> u64 {
        match &self.frames {
            Frames::Cameras(cameras) => cameras.out_of_range(),
            Frames::Ply(files) => files.out_of_range,
            Frames::Performance(_) => 0,
        }
    }

    /// Returns the points of the next frame; those of views are not rounded to the views' units.
    pub(crate) fn next_cloud(&mut self) -> Result<Option<Cloud>, LoadError> {
        if !self.advance()? {
            return Ok(None);
        }
        self.frames.cloud().map(Some)
    }

    /// Continues with the first frame, which is ready at once if the recording is played in a loop.
    /// Live inputs continue with the next frame.
    pub fn rewind(&mut self) -> Result<(), LoadError> {
        match &mut self.frames {
            Frames::Cameras(cameras) => cameras.rewind()?,
            Frames::Ply(files) => files.rewind(),
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

    /// Moves to the next frame. Returns `false` after the last one, and after a pass of which nothing could be read: a
    /// recording that has been played may be missing or damaged while its files are written again.
    fn advance(&mut self) -> Result<bool, LoadError> {
        match self.advance_in_passes() {
            Ok(true) => (self.has_played, self.lost_since) = (true, None),
            Ok(false) => return Ok(false),
            Err(error) if self.may_return() => {
                tracing::warn!(%error, "the last picture stays");
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Returns whether what is not there now may be there soon.
    fn may_return(&mut self) -> bool {
        let since_s = self.start - *self.lost_since.get_or_insert(self.start);
        self.looped && self.has_played && !self.is_live() && since_s / self.fps < LOST_S
    }

    /// Moves to the next frame, of the next pass after the last one if the recording is played in a loop.
    fn advance_in_passes(&mut self) -> Result<bool, LoadError> {
        let mut advanced = self.frames.advance()?;
        if !advanced && self.looped {
            self.start += self.frames.length(self.fps);
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
            Frames::Ply(files) => files.advance()?,
            Frames::Performance(performance) => next(&mut performance.shown, performance.frames),
        })
    }

    /// Returns the points of the frame to which `advance` has moved.
    fn cloud(&self) -> Result<Cloud, LoadError> {
        match self {
            Frames::Cameras(cameras) => cameras.cloud(),
            frames => frames.frame().map(Frame::into_cloud),
        }
    }

    /// Returns the place of the next frame, in intervals since the first one of the pass; `None` after the last one.
    fn next_place(&self, fps: f64) -> Option<f64> {
        let in_order = |passed: usize, count: usize| (passed < count).then_some(passed as f64);
        match self {
            Frames::Cameras(cameras) if cameras.is_live() => Some(f64::NEG_INFINITY),
            Frames::Cameras(cameras) => cameras.next_time_s().map(|time_s| time_s * fps),
            Frames::Ply(files) => in_order(files.read, files.paths.len()),
            Frames::Performance(performance) => in_order(performance.shown, performance.frames),
        }
    }

    /// Returns the length of a pass in intervals.
    fn length(&self, fps: f64) -> f64 {
        match self {
            Frames::Cameras(cameras) => cameras.last_time_s() * fps + 1.0,
            Frames::Ply(files) => files.paths.len() as f64,
            Frames::Performance(performance) => performance.frames as f64,
        }
    }

    /// Returns the frame to which `advance` has moved.
    fn frame(&self) -> Result<Frame, LoadError> {
        match self {
            Frames::Cameras(cameras) => cameras.views().map(Frame::Views),
            Frames::Ply(files) => Ok(Frame::Cloud(files.cloud.clone())),
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

/// The PLY files of a directory, or its PCD files.
struct PlyFiles {
    paths: Vec<PathBuf>,
    unit_mm: f32,
    /// Number of files played or left out.
    read: usize,
    /// The points of the file that was read last.
    cloud: Cloud,
    /// Whether one of them has been played.
    has_played: bool,
    /// Number of files that could not be read.
    lost: u64,
    /// Whether this is the first pass, in which these are named.
    is_first_pass: bool,
    /// Number of vertices of the files read so far that are not finite or out of range.
    out_of_range: u64,
}

impl PlyFiles {
    fn open(sequence: &PlySequence) -> Result<Self, LoadError> {
        let directory = &sequence.directory;
        let mut paths = Vec::new();
        let (mut others, mut hidden) = (Vec::new(), 0_usize);
        for entry in fs::read_dir(directory).map_err(read_error(directory))? {
            let path = entry.map_err(read_error(directory))?.path();
            if path.is_dir() {
                continue;
            }
            let extension = path.extension().unwrap_or_default();
            let is_ply = extension.eq_ignore_ascii_case("ply");
            if is_ply || is_pcd(&path) {
                // macOS writes "._NAME" beside NAME on other file systems.
                match (is_hidden(&path), is_ply) {
                    (true, _) => hidden += 1,
                    (false, true) => paths.push(path),
                    (false, false) => others.push(path),
                }
            }
        }
        if hidden > 0 {
            tracing::warn!(directory = %directory.display(), hidden, "files whose names begin with a dot are left out");
        }
        if paths.is_empty() {
            paths = others;
        } else if !others.is_empty() {
            let pcd = others.len();
            tracing::warn!(directory = %directory.display(), pcd, "PCD files beside PLY files are left out");
        }
        paths.sort_by(|a, b| natural::compare(&name(a), &name(b)));
        for path in &paths {
            ply_header(path)?;
        }
        Ok(PlyFiles {
            paths,
            unit_mm: sequence.unit_mm,
            read: 0,
            cloud: Cloud::new(),
            has_played: false,
            lost: 0,
            is_first_pass: true,
            out_of_range: 0,
        })
    }

    fn rewind(&mut self) {
        self.read = 0;
        self.has_played = false;
        self.is_first_pass = false;
    }

    /// Reads the next file that is valid. Returns `false` after the last one. A pass without one is an error.
    fn advance(&mut self) -> Result<bool, LoadError> {
        let mut last = None;
        while let Some(path) = self.paths.get(self.read) {
            self.read += 1;
            match self.points(path) {
                Ok((cloud, out_of_range)) => {
                    if out_of_range > 0 && self.out_of_range == 0 {
                        tracing::warn!(
                            file = %path.display(),
                            out_of_range,
                            points = cloud.len(),
                            "points of a file left out that are not finite or farther than 32.767 m, and of later ones without a word; is unit_mm right?"
                        );
                    }
                    self.out_of_range += out_of_range as u64;
                    self.cloud = cloud;
                    self.has_played = true;
                    return Ok(true);
                }
                Err(error) => {
                    self.lost += 1;
                    if self.is_first_pass {
                        tracing::warn!(%error, "a frame is left out");
                    }
                    last = Some(error);
                }
            }
        }
        last.filter(|_| !self.has_played).map_or(Ok(false), Err)
    }

    fn points(&self, path: &Path) -> Result<(Cloud, usize), LoadError> {
        let file = regular_file::read(path).map_err(read_error(path))?;
        let read = if is_pcd(path) {
            pcd::read_counted
        } else {
            ply::read_counted
        };
        read(&file, self.unit_mm).map_err(ply_error(path))
    }
}

/// Checks the header of a file, and that the file is as long as that says.
fn ply_header(path: &Path) -> Result<(), LoadError> {
    let file = regular_file::open(path).map_err(read_error(path))?;
    let length = file.metadata().map_err(read_error(path))?.len();
    let mut start = Vec::new();
    file.take(ply::MAX_HEADER as u64)
        .read_to_end(&mut start)
        .map_err(read_error(path))?;
    let check = if is_pcd(path) { pcd::check } else { ply::check };
    check(&start, length).map_err(ply_error(path))
}

fn ply_error(path: &Path) -> impl Fn(ply::CloudFileError) -> LoadError {
    move |error| LoadError::Ply {
        path: path.to_owned(),
        error,
    }
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn is_pcd(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default();
    extension.eq_ignore_ascii_case("pcd")
}

fn is_hidden(path: &Path) -> bool {
    name(path).starts_with('.')
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
