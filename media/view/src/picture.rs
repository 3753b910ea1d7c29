//! Pictures of the received frames: the newest one as a PNG file, all of them as an MP4 file. They
//! are drawn in a thread of their own, so that receiving does not wait for them.

use crate::failure::attempt;
use anyhow::{Context, anyhow};
use hawser_cloud::{Cloud, Image, Intrinsics, Pose, Renderer};
use hawser_io::scheduling;
use hawser_recording::{Mp4Writer, encode_png};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Columns and rows of a picture.
const SIZE: (usize, usize) = (960, 720);
/// The focal length in pixels for a horizontal field of view of 60 degrees.
const FOCAL: f32 = 831.0;
/// The factor by which pictures from in front of the first frame show more than that frame, of which the
/// edges are filled otherwise: raised hands reach 0.5 m above the head of an adult, of whom a quarter of 2 m is.
const MARGIN: f32 = 1.6;
/// The number of frames that wait for being drawn, and the bytes of their points. A larger one waits alone.
const QUEUE: usize = 3;
const QUEUE_BYTES: usize = 64 << 20;
/// The time between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time without a frame that the video shows. A longer one is shortened to this, since
/// the publisher's clock may have been changed.
const MAX_GAP_NS: u64 = 10_000_000_000;
/// A frame that is older than the one before by less than this is late. If it is older by more, the
/// publisher's clock has been changed.
const MAX_LATE_NS: u64 = 1_000_000_000;

/// The pictures that are made of received frames.
#[derive(Debug, Clone, clap::Args)]
pub struct Pictures {
    /// Write a picture of the newest frame to this PNG file, once a second and at the end
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// Write a video of the frames to this MP4 file, at the times of their capture. While frames
    /// are missing, it shows the last one. Requires ffmpeg
    #[arg(long = "render", value_name = "FILE")]
    pub video: Option<PathBuf>,
    /// Frames per second of the video
    #[arg(long = "render-fps", value_name = "N", default_value_t = Pictures::DEFAULT_FPS,
        value_parser = clap::value_parser!(u32).range(1..=240))]
    pub fps: u32,
    /// The position from which pictures show the scene, in metres, and the turn to the left and the
    /// angle upwards in degrees, for example 0,1.4,2 or 2,1.4,0,90,-10. x goes to the right, y up and z
    /// towards the viewer, from the recording's origin; with angles of 0, they look towards negative z
    /// [default: in front of the first frame, with room for raised hands]
    #[arg(long, value_name = "X,Y,Z[,YAW,PITCH]", value_parser = parse_pose,
        allow_hyphen_values = true)]
    pub pose: Option<Pose>,
}

impl Pictures {
    const DEFAULT_FPS: u32 = 30;
}

impl Default for Pictures {
    /// No pictures.
    fn default() -> Self {
        Pictures {
            snapshot: None,
            video: None,
            fps: Self::DEFAULT_FPS,
            pose: None,
        }
    }
}

/// Numbers of frames of which pictures were or were not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Drawn {
    /// Pictures that were drawn.
    pub pictures: u64,
    /// Frames that were skipped because earlier ones were still being drawn or encoded.
    pub skipped: u64,
    /// Frames that the video does not show because it shows a newer one at that time.
    pub hidden: u64,
}

impl fmt::Display for Drawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Drawn {
            pictures,
            skipped,
            hidden,
        } = self;
        write!(
            f,
            "{pictures} pictures drawn, {skipped} frames skipped because drawing took too long, {hidden} hidden by newer ones"
        )
    }
}

/// A frame, with its capture time.
struct Frame {
    captured_ns: u64,
    cloud: Cloud,
    /// The viewer's pose then, if it changes over time.
    pose: Option<Pose>,
}

impl Frame {
    /// Returns the bytes of the points.
    fn bytes(&self) -> usize {
        self.cloud.packed().len()
    }
}

/// The counts of a thread that has ended, and the errors that ended the snapshot or the video.
type Finished = (Drawn, Vec<anyhow::Error>);

/// The thread that draws pictures.
pub(crate) struct PictureThread {
    /// `None` when no more frames follow.
    frames: Option<SyncSender<Frame>>,
    /// The bytes of the points that wait in the thread's queue.
    bytes: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Finished>>,
    /// The newest frame, if there was no room for it.
    waiting: Option<Frame>,
    skipped: u64,
}

impl PictureThread {
    /// Starts to draw. Returns `None` if no pictures are requested.
    ///
    /// # Errors
    /// If the video cannot be created.
    pub(crate) fn start(pictures: &Pictures) -> anyhow::Result<Option<Self>> {
        if pictures.snapshot.is_none() && pictures.video.is_none() {
            return Ok(None);
        }
        let (frames, received) = mpsc::sync_channel(QUEUE);
        let (opened, is_open) = mpsc::channel();
        let pictures = pictures.clone();
        let bytes: Arc<AtomicUsize> = Arc::default();
        let waiting = Arc::clone(&bytes);
        let thread = thread::Builder::new()
            .name("pictures".to_owned())
            .spawn(move || {
                // The video's encoder inherits the priority.
                scheduling::run_in_background();
                let studio = Studio::open(&pictures);
                let (studio, error) = match studio {
                    Ok(studio) => (Some(studio), None),
                    Err(error) => (None, Some(error)),
                };
                // The other end waits for it.
                let _ = opened.send(error.map_or(Ok(()), Err));
                studio.map_or_else(Finished::default, |studio| studio.run(&received, &waiting))
            })
            .context("cannot start a thread for pictures")?;
        is_open
            .recv()
            .context("the thread for pictures panicked")??;
        Ok(Some(PictureThread {
            frames: Some(frames),
            bytes,
            thread: Some(thread),
            waiting: None,
            skipped: 0,
        }))
    }

    /// Takes a frame without waiting. If there is no room, the newest frame is kept until there is, unless it is
    /// a large one.
    pub(crate) fn show(&mut self, captured_ns: u64, cloud: Cloud, pose: Option<Pose>) {
        let frame = Frame {
            captured_ns,
            cloud,
            pose,
        };
        if let Some(waiting) = self.waiting.take()
            && let Some(waiting) = self.offer(waiting)
        {
            drop(waiting);
            self.skipped += 1;
            self.keep(frame);
        } else if let Some(frame) = self.offer(frame) {
            self.keep(frame);
        }
    }

    fn keep(&mut self, frame: Frame) {
        if frame.bytes() <= QUEUE_BYTES {
            self.waiting = Some(frame);
        } else {
            self.skipped += 1;
        }
    }

    /// Passes a frame to the thread. Returns it if there is no room.
    fn offer(&self, frame: Frame) -> Option<Frame> {
        let (bytes, waiting) = (frame.bytes(), self.bytes.load(Relaxed));
        if waiting > 0 && waiting + bytes > QUEUE_BYTES {
            return Some(frame);
        }
        // Counted first, so that the thread never counts below zero.
        self.bytes.fetch_add(bytes, Relaxed);
        match self.frames.as_ref()?.try_send(frame) {
            Err(TrySendError::Full(frame)) => {
                self.bytes.fetch_sub(bytes, Relaxed);
                Some(frame)
            }
            // If the thread has panicked, the end says so.
            Ok(()) | Err(TrySendError::Disconnected(_)) => None,
        }
    }

    /// Waits until all files are complete. Also returns the errors that ended some of them.
    pub(crate) fn finish(mut self) -> (Drawn, Vec<anyhow::Error>) {
        if let (Some(frames), Some(frame)) = (&self.frames, self.waiting.take()) {
            self.bytes.fetch_add(frame.bytes(), Relaxed);
            // If the thread has panicked, the end says so.
            let _ = frames.send(frame);
        }
        let (drawn, errors) = self.end();
        let skipped = self.skipped;
        (Drawn { skipped, ..drawn }, errors)
    }

    fn end(&mut self) -> Finished {
        drop(self.frames.take());
        let Some(thread) = self.thread.take() else {
            return Finished::default();
        };
        thread.join().unwrap_or_else(|_| {
            let panicked = anyhow!("the thread for pictures panicked");
            (Drawn::default(), vec![panicked])
        })
    }
}

impl Drop for PictureThread {
    /// Completes the files also if watching ends with an error, which is the one that counts.
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Draws frames and writes pictures.
struct Studio {
    renderer: Renderer,
    pose: Option<Pose>,
    snapshot: Option<Snapshot>,
    video: Option<Video>,
    drawn: Drawn,
    /// The errors that ended the snapshot or the video.
    errors: Vec<anyhow::Error>,
}

impl Studio {
    fn open(pictures: &Pictures) -> anyhow::Result<Self> {
        let (width, height) = SIZE;
        let renderer = Renderer::new(Intrinsics::centred(width, height, FOCAL))?;
        let video = pictures.video.as_deref();
        let video = video.map(|path| Video::create(path, pictures.fps));
        Ok(Studio {
            renderer,
            pose: pictures.pose,
            snapshot: pictures.snapshot.clone().map(Snapshot::new),
            video: video.transpose()?,
            drawn: Drawn::default(),
            errors: Vec::new(),
        })
    }

    /// Draws frames until no more follow.
    fn run(mut self, frames: &Receiver<Frame>, bytes: &AtomicUsize) -> Finished {
        loop {
            let wait = self.snapshot.as_ref().map(Snapshot::wait);
            match frames.recv_timeout(wait.unwrap_or(SNAPSHOT_INTERVAL)) {
                Ok(frame) => {
                    bytes.fetch_sub(frame.bytes(), Relaxed);
                    self.show(frame);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.finish(),
            }
            if self.snapshot.as_ref().is_some_and(Snapshot::is_due) {
                self.write_snapshot();
            }
        }
    }

    fn show(&mut self, frame: Frame) {
        self.pose = frame.pose.or(self.pose);
        if self.video.is_some() {
            let image = self.draw(&frame.cloud);
            let (hidden, errors) = (&mut self.drawn.hidden, &mut self.errors);
            attempt(&mut self.video, "--render", errors, |video| {
                *hidden += u64::from(!video.show(frame.captured_ns, image)?);
                Ok(())
            });
        }
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.newest = Some(frame.cloud);
        }
    }

    fn draw(&mut self, cloud: &Cloud) -> Image {
        let in_front = || Pose::in_front_of(cloud, &with_margin(self.renderer.intrinsics()));
        self.pose = self.pose.or_else(in_front);
        // Without points, every pose has the same picture.
        let origin = Pose::looking([0.0; 3], 0.0, 0.0);
        self.drawn.pictures += 1;
        self.renderer.render(cloud, &self.pose.unwrap_or(origin))
    }

    fn write_snapshot(&mut self) {
        let newest = self.snapshot.as_mut().and_then(|own| own.newest.take());
        let Some(cloud) = newest else { return };
        let image = self.draw(&cloud);
        let errors = &mut self.errors;
        attempt(&mut self.snapshot, "--snapshot", errors, |snapshot| {
            snapshot.write(&image)
        });
    }

    fn finish(mut self) -> Finished {
        self.write_snapshot();
        if let Some(error) = self.video.and_then(|video| video.finish().err()) {
            tracing::error!("the end of --render is missing: {error:#}");
            self.errors.push(error);
        }
        (self.drawn, self.errors)
    }
}

/// Returns a camera that sees a part of the picture, around which there is room for what moves later.
fn with_margin(camera: &Intrinsics) -> Intrinsics {
    Intrinsics {
        fx: camera.fx * MARGIN,
        fy: camera.fy * MARGIN,
        ..*camera
    }
}

/// A picture of the newest frame.
struct Snapshot {
    path: PathBuf,
    /// The newest frame, unless the file shows it.
    newest: Option<Cloud>,
    written: Option<Instant>,
}

impl Snapshot {
    fn new(path: PathBuf) -> Self {
        Snapshot {
            path,
            newest: None,
            written: None,
        }
    }

    /// Returns the time until the next picture may be written.
    fn wait(&self) -> Duration {
        match (&self.newest, self.written) {
            (Some(_), Some(written)) => SNAPSHOT_INTERVAL.saturating_sub(written.elapsed()),
            _ => SNAPSHOT_INTERVAL,
        }
    }

    fn is_due(&self) -> bool {
        let is_first = self.written.is_none();
        self.newest.is_some() && (is_first || self.wait().is_zero())
    }

    /// Replaces the file, so that a reader sees the former picture or the whole new one.
    fn write(&mut self, image: &Image) -> anyhow::Result<()> {
        const MODE: u32 = 0o644;
        hawser_io::file::write(&self.path, &encode_png(image), MODE)
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.written = Some(Instant::now());
        Ok(())
    }
}

/// A video of all frames.
struct Video {
    file: Mp4Writer,
    cadence: Cadence,
    /// The picture of the newest frame, which is shown until the next one.
    shown: Option<Image>,
}

impl Video {
    fn create(path: &Path, fps: u32) -> anyhow::Result<Self> {
        let (width, height) = SIZE;
        let file = Mp4Writer::create(path, width, height, fps)?;
        let (encoder, path) = (file.encoder(), path.display());
        tracing::info!(%path, encoder, fps, "rendering a video");
        if !encoder.contains("264") {
            tracing::warn!(%path, encoder, "ffmpeg has no encoder for H.264: browsers may not play the video");
        }
        Ok(Video {
            file,
            cadence: Cadence::new(fps),
            shown: None,
        })
    }

    /// Shows a picture from its capture time on. Returns whether every frame so far is shown: not if
    /// this one is late, or takes the place of the one before.
    fn show(&mut self, captured_ns: u64, image: Image) -> anyhow::Result<bool> {
        let Some(ticks) = self.cadence.advance(captured_ns) else {
            return Ok(false);
        };
        for _ in 0..ticks {
            self.write()?;
        }
        let is_first = self.shown.replace(image).is_none();
        Ok(is_first || ticks > 0)
    }

    fn write(&mut self) -> anyhow::Result<()> {
        match &self.shown {
            Some(image) => Ok(self.file.write(image)?),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.write()?;
        Ok(self.file.finish()?)
    }
}

/// Converts capture times to the ticks of a video with a constant frame rate.
struct Cadence {
    fps: u32,
    /// The capture time at which the newest one is `tick` ticks later, and the newest one.
    start_ns: Option<u64>,
    newest_ns: u64,
    tick: u64,
}

impl Cadence {
    fn new(fps: u32) -> Self {
        Cadence {
            fps,
            start_ns: None,
            newest_ns: 0,
            tick: 0,
        }
    }

    /// Returns the ticks from the frame before to this one, or `None` if it is older.
    fn advance(&mut self, captured_ns: u64) -> Option<u64> {
        let newest_ns = std::mem::replace(&mut self.newest_ns, captured_ns);
        let Some(start_ns) = self.start_ns else {
            self.start_ns = Some(captured_ns);
            return Some(0);
        };
        let (late, gap) = (
            newest_ns.saturating_sub(captured_ns),
            captured_ns.saturating_sub(newest_ns),
        );
        if (1..MAX_LATE_NS).contains(&late) {
            self.newest_ns = newest_ns;
            return None;
        }
        if late > 0 || gap > MAX_GAP_NS {
            let seconds = (i128::from(captured_ns) - i128::from(newest_ns)) / 1_000_000_000;
            tracing::warn!("capture times jump by {seconds} s: the video shows fewer");
            (self.start_ns, self.tick) = (Some(captured_ns), 0);
            return Some(self.ticks(gap.min(MAX_GAP_NS)).max(1));
        }
        let tick = self.ticks(captured_ns - start_ns);
        let before = std::mem::replace(&mut self.tick, tick);
        Some(tick - before)
    }

    /// Returns the ticks in a time, rounded.
    fn ticks(&self, time_ns: u64) -> u64 {
        const SECOND_NS: u128 = 1_000_000_000;
        let ticks = (u128::from(time_ns) * u128::from(self.fps) + SECOND_NS / 2) / SECOND_NS;
        ticks as u64
    }
}

/// Parses the position in metres and optionally yaw and pitch in degrees.
/// The largest number of metres or degrees of a pose.
const MAX_POSE: f32 = 1e6;

fn parse_pose(text: &str) -> Result<Pose, String> {
    let numbers: Vec<f32> = text
        .split(',')
        .map(|number| {
            number
                .trim()
                .parse()
                .ok()
                .filter(|n: &f32| n.abs() <= MAX_POSE)
        })
        .collect::<Option<_>>()
        .ok_or("must be numbers up to 1000000 separated by commas")?;
    let (position, [yaw, pitch]) = match numbers[..] {
        [x, y, z] => ([x, y, z], [0.0; 2]),
        [x, y, z, yaw, pitch] => ([x, y, z], [yaw, pitch]),
        _ => return Err(format!("has {} numbers: must be 3 or 5", numbers.len())),
    };
    let position_mm = position.map(|metres| metres * 1000.0);
    Ok(Pose::looking(
        position_mm,
        yaw.to_radians(),
        pitch.to_radians(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::Performer;
    use proptest::prelude::*;

    const FRAME_NS: u64 = 33_333_333;

    fn ticks(fps: u32, times: &[u64]) -> Vec<Option<u64>> {
        let mut cadence = Cadence::new(fps);
        times.iter().map(|time| cadence.advance(*time)).collect()
    }

    #[test]
    fn frames_are_shown_at_their_capture_times_and_stalls_stay() {
        let start = 1_700_000_000_000_000_000;
        let times = [0, 1, 2, 62, 63].map(|frame| start + frame * FRAME_NS);
        let expected = [0, 1, 1, 60, 1].map(Some);
        assert_eq!(ticks(30, &times), expected);
        // 25 frames per second in a video of 30 stay in time with each other.
        let times: Vec<u64> = (0..26).map(|frame| start + frame * 40_000_000).collect();
        assert_eq!(ticks(30, &times).into_iter().flatten().sum::<u64>(), 30);
    }

    #[test]
    fn frames_of_the_same_tick_and_late_ones_are_hidden() {
        let times = [0, 10_000_000, 40_000_000, 39_000_000, 70_000_000];
        let expected = [Some(0), Some(0), Some(1), None, Some(1)];
        assert_eq!(ticks(30, &times), expected);
    }

    #[test]
    fn a_changed_clock_does_not_stop_the_video() {
        let times = [5_000_000_000, 0, FRAME_NS, u64::MAX, u64::MAX];
        let expected = [0, 1, 1, 300, 0].map(Some);
        assert_eq!(ticks(30, &times), expected);
    }

    #[test]
    fn a_pose_has_a_position_and_optionally_two_angles() {
        let pose = parse_pose("-1,1.5, 2").unwrap();
        assert_eq!(pose.position_mm, [-1000.0, 1500.0, 2000.0]);
        assert_eq!(pose.rotation, [0.0, 0.0, 0.0, 1.0]);
        let turned = parse_pose("0,0,0,90,0").unwrap().rotation;
        assert!((turned[1] - turned[3]).abs() < 1e-6 && turned[1] > 0.7);
        for (refused, reason) in [
            ("", "must be numbers"),
            ("1,2,nan", "must be numbers"),
            ("1,2", "has 2 numbers"),
            ("1,2,3,4", "has 4 numbers"),
        ] {
            let error = parse_pose(refused).unwrap_err();
            assert!(error.starts_with(reason), "{refused}: {error}");
        }
    }

    #[test]
    fn the_default_view_has_room_for_what_the_performer_does_later() {
        let performer = Performer::new(1, 3000);
        let (width, height) = SIZE;
        let camera = Intrinsics::centred(width, height, FOCAL);
        let first = performer.cloud(Duration::ZERO);
        let pose = Pose::in_front_of(&first, &with_margin(&camera)).unwrap();
        assert_eq!(pose.rotation, [0.0, 0.0, 0.0, 1.0]);
        let [eye_x, eye_y, eye_z] = pose.position_mm;
        let (mut most_x, mut most_y) = (0.0_f32, 0.0_f32);
        for frame in 0..300 {
            let cloud = performer.cloud(Duration::from_millis(33) * frame);
            for point in cloud.points() {
                let depth = eye_z - f32::from(point.z);
                most_x = most_x.max((f32::from(point.x) - eye_x).abs() / depth * FOCAL);
                most_y = most_y.max((f32::from(point.y) - eye_y).abs() / depth * FOCAL);
            }
        }
        let (half_x, half_y) = (width as f32 / 2.0, height as f32 / 2.0);
        assert!(most_x < half_x && most_y < half_y, "{most_x}, {most_y}");
        assert!(most_y > 0.5 * half_y, "{most_y}: the margin is too large");
    }

    #[test]
    fn a_failed_snapshot_is_reported_with_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let video = directory.path().join("video.mp4");
        let pictures = Pictures {
            snapshot: Some("/nowhere/picture.png".into()),
            video: Some(video.clone()),
            ..Pictures::default()
        };
        let mut thread = PictureThread::start(&pictures).unwrap().unwrap();
        for captured_ns in [1, 1 + FRAME_NS] {
            thread.show(captured_ns, Cloud::new(), None);
        }
        let (drawn, errors) = thread.finish();
        assert!(drawn.pictures >= 3, "{drawn}");
        let [error] = &errors[..] else {
            panic!("{errors:?}");
        };
        assert!(format!("{error:#}").starts_with("cannot write /nowhere/picture.png: No such"));
        assert!(std::fs::metadata(video).unwrap().len() > 0);
        assert!(
            PictureThread::start(&Pictures::default())
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_video_that_cannot_be_created_is_an_error_at_the_start() {
        let pictures = Pictures {
            video: Some("/nowhere/video.mp4".into()),
            ..Pictures::default()
        };
        let error = PictureThread::start(&pictures).err().unwrap();
        assert!(format!("{error:#}").contains("/nowhere/video.mp4"));
    }

    /// Returns the niceness of a process; `None` if it has ended.
    fn niceness(process: &Path) -> Option<i32> {
        let stat = std::fs::read_to_string(process.join("stat")).ok()?;
        // proc_pid_stat(5): it is the 19th field, and the second one is a name in parentheses.
        let (_, fields) = stat.rsplit_once(") ")?;
        fields.split(' ').nth(16)?.parse().ok()
    }

    #[test]
    fn the_encoder_of_a_video_leaves_the_processor_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let video = directory.path().join("video.mp4");
        let pictures = Pictures {
            video: Some(video.clone()),
            ..Pictures::default()
        };
        let thread = PictureThread::start(&pictures).unwrap().unwrap();
        let processes = std::fs::read_dir("/proc").unwrap();
        let writes_video = |process: &PathBuf| {
            let command = std::fs::read_to_string(process.join("cmdline")).unwrap_or_default();
            command.contains(video.to_str().unwrap())
        };
        let encoders: Vec<_> = processes.map(|process| process.unwrap().path()).collect();
        let encoders: Vec<_> = encoders.into_iter().filter(writes_video).collect();
        let own = niceness(Path::new("/proc/self"));
        assert!(!encoders.is_empty());
        // A process lowers its priority when it has begun.
        let until = Instant::now() + Duration::from_secs(30);
        while !encoders.iter().all(|process| niceness(process) > own) {
            assert!(Instant::now() < until, "{encoders:?}");
            thread::sleep(Duration::from_millis(5));
        }
        thread.finish();
    }

    #[test]
    fn excess_frames_are_skipped_and_counted_except_the_newest() {
        // Nobody takes the frames.
        let (frames, received) = mpsc::sync_channel(QUEUE);
        let thread = thread::spawn(Finished::default);
        let mut pictures = PictureThread {
            frames: Some(frames),
            bytes: Arc::default(),
            thread: Some(thread),
            waiting: None,
            skipped: 0,
        };
        for captured_ns in 0..QUEUE as u64 + 5 {
            pictures.show(captured_ns, Cloud::new(), None);
        }
        let first: Vec<u64> = received.try_iter().map(|f| f.captured_ns).collect();
        let (drawn, _) = pictures.finish();
        let last: Vec<u64> = received.try_iter().map(|f| f.captured_ns).collect();
        assert_eq!((first, last, drawn.skipped), (vec![0, 1, 2], vec![7], 4));
    }

    #[test]
    fn frames_that_wait_for_being_drawn_are_bounded_by_bytes() {
        let (frames, received) = mpsc::sync_channel(QUEUE);
        let thread = thread::spawn(Finished::default);
        let mut pictures = PictureThread {
            frames: Some(frames),
            bytes: Arc::default(),
            thread: Some(thread),
            waiting: None,
            skipped: 0,
        };
        let large = || Cloud::from_packed(vec![0; (QUEUE_BYTES / 9 + 1) * 9]).unwrap();
        for captured_ns in 0..3 {
            pictures.show(captured_ns, large(), None);
        }
        assert!(pictures.waiting.is_none());
        let (drawn, _) = pictures.finish();
        let held: Vec<u64> = received.try_iter().map(|f| f.captured_ns).collect();
        assert_eq!((held, drawn.skipped), (vec![0], 2));
    }

    proptest! {
        #[test]
        fn any_capture_times_have_a_bounded_number_of_ticks(times: Vec<u64>, fps in 1u32..=240) {
            for ticks in ticks(fps, &times).into_iter().flatten() {
                prop_assert!(ticks <= 10 * u64::from(fps) + 1);
            }
        }
    }
}
