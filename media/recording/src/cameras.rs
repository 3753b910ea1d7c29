use crate::LoadError;
use crate::description::{HueDepthCamera, RgbdCamera};
use crate::ffmpeg::{PixelFormat, VideoError};
use crate::pairing::Frames;
use crate::recorded::{self, Read};
use crate::video::{Clip, Video};
use hawser_cloud::{Camera, Cloud, HueRange, ImageError, Intrinsics, View};
use std::time::Duration;
use std::{iter, mem};

/// The number of frames before the end of a pass from which on its videos are opened again, one after the other. ffmpeg
/// needs a fraction of a second for the first image, and decodes some images ahead, which takes processors
/// from what plays.
const FRAMES_AHEAD: usize = 30;

/// Hues of saturated colours with 8 bits per channel: the steps of a depth that is coded as hue.
const HUES: f32 = 6.0 * 255.0;

/// The videos of all cameras, image by image in step.
pub(crate) struct Cameras {
    clips: Vec<CameraClips>,
    /// The frames of recorded cameras.
    frames: Frames,
    videos: Vec<CameraVideos>,
    /// The recorded videos of the next pass that are opened, in the order of [`recorded`].
    ahead: Vec<Video>,
    /// Number of frames of this pass that have been played or left out.
    passed: usize,
    /// Whether one of them has been played.
    has_played: bool,
    /// Number of frames that were left out because an image was missing or damaged.
    lost: u64,
    /// Whether this is the first pass, in which missing and damaged images are named.
    is_first_pass: bool,
    /// Number of points of the frames so far that are out of range.
    out_of_range: u64,
    /// The time between two frames.
    interval: Duration,
    is_live: bool,
}

impl Cameras {
    pub(crate) fn open(
        rgbd: &[RgbdCamera],
        hue_depth: &[HueDepthCamera],
        fps: f64,
    ) -> Result<Self, LoadError> {
        let rgbd = rgbd
            .iter()
            .map(|camera| CameraClips::open_rgbd(camera, fps));
        let hue_depth = hue_depth
            .iter()
            .map(|camera| CameraClips::open_hue_depth(camera, fps));
        let clips = rgbd.chain(hue_depth).collect::<Result<Vec<_>, _>>()?;
        let recorded: Vec<_> = recorded(&clips).collect();
        let frames = Frames::of(&recorded, fps)?;
        for (clip, images) in recorded.iter().zip(&frames.images) {
            clip.check_files(images)?;
        }
        Ok(Cameras {
            is_live: recorded.is_empty(),
            videos: play(&clips, &frames, Vec::new())?,
            clips,
            frames,
            ahead: Vec::new(),
            passed: 0,
            has_played: false,
            lost: 0,
            is_first_pass: true,
            out_of_range: 0,
            interval: Duration::try_from_secs_f64(1.0 / fps).unwrap_or(Duration::MAX),
        })
    }

    /// Reads the next image of every video. Returns `false` if all have ended.
    ///
    /// Recorded frames of which an image is missing or damaged are left out; a pass of which all are is an error. Of
    /// live inputs, reads the newest images:
    /// one of them, and of the others those that arrive at most half an interval before or, if the inputs have the
    /// frame rate, after it.
    pub(crate) fn advance(&mut self) -> Result<bool, LoadError> {
        let mut last = None;
        loop {
            match self.read_images()? {
                None => match last.filter(|_| !self.has_played) {
                    Some(error) => return Err(LoadError::Video(error)),
                    None => return Ok(false),
                },
                Some(Read::Image) => {
                    self.has_played = true;
                    self.count_out_of_range();
                    return Ok(true);
                }
                Some(Read::Lost(error)) => {
                    self.lost += 1;
                    if self.is_first_pass {
                        tracing::warn!(%error, "a frame is left out");
                    }
                    last = Some(error);
                }
            }
        }
    }

    /// Counts the points of a frame that are too far away to be sent as points.
    fn count_out_of_range(&mut self) {
        let of_frame: usize = self.videos.iter().map(CameraVideos::out_of_range).sum();
        if of_frame > 0 && self.out_of_range == 0 {
            tracing::warn!(
                out_of_range = of_frame,
                "points of a frame left out that are farther than 32.767 m, and of later ones without a word; are depth_unit_mm and the extrinsics right?"
            );
        }
        self.out_of_range += of_frame as u64;
    }

    fn read_images(&mut self) -> Result<Option<Read>, LoadError> {
        let mut newest = None;
        for video in self.videos.iter_mut().flat_map(CameraVideos::videos_mut) {
            newest = newest.max(video.wait()?);
        }
        let since = newest.and_then(|newest| newest.checked_sub(self.interval / 2));
        let mut of_frame = Read::Image;
        for video in self.videos.iter_mut().flat_map(CameraVideos::videos_mut) {
            match video.read_image(since)? {
                None => return Ok(None),
                Some(Read::Image) => {}
                Some(lost) => of_frame = lost,
            }
        }
        self.passed += 1;
        Ok(Some(of_frame))
    }

    /// Returns the time of the next frame in seconds after the first one of the pass; `None` after the last frame,
    /// and for live inputs.
    pub(crate) fn next_time_s(&self) -> Option<f64> {
        self.frames.times_s.get(self.passed).copied()
    }

    /// Returns the time of the last frame in seconds after the first one.
    pub(crate) fn last_time_s(&self) -> f64 {
        self.frames.times_s.last().copied().unwrap_or_default()
    }

    /// Returns the time of the first frame in the first video, in seconds.
    pub(crate) fn start_s(&self) -> f64 {
        self.frames.start_s
    }

    /// Opens a video for the next pass if this pass ends soon.
    pub(crate) fn open_ahead(&mut self) -> Result<(), LoadError> {
        let frames = self.frames.times_s.len();
        let window = frames.min(FRAMES_AHEAD);
        let opened = self.ahead.len();
        let due = frames - window + opened * window / (self.frames.images.len() + 1);
        let next = recorded(&self.clips).zip(&self.frames.images).nth(opened);
        if let Some((clip, images)) = next.filter(|_| self.passed >= due) {
            self.ahead.push(Video::Recorded(clip.play(images)?));
        }
        Ok(())
    }

    /// Continues with the first images. Live inputs continue as they are.
    pub(crate) fn rewind(&mut self) -> Result<(), LoadError> {
        if self.passed == 0 || self.is_live {
            return Ok(());
        }
        let opened = mem::take(&mut self.ahead);
        self.videos = play(&self.clips, &self.frames, opened)?;
        self.passed = 0;
        self.has_played = false;
        self.is_first_pass = false;
        Ok(())
    }

    pub(crate) fn is_live(&self) -> bool {
        self.is_live
    }

    /// Returns the number of images of live inputs that were not read.
    pub(crate) fn skipped(&self) -> u64 {
        let videos = self.videos.iter().flat_map(CameraVideos::videos);
        videos.map(Video::skipped).sum()
    }

    /// Returns the number of frames that were left out because an image was missing or damaged.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of points so far that are out of range.
    pub(crate) fn out_of_range(&self) -> u64 {
        self.out_of_range
    }

    /// Returns the views of the images that were read last.
    pub(crate) fn views(&self) -> Result<Vec<View>, LoadError> {
        self.videos.iter().map(CameraVideos::view).collect()
    }

    /// Returns the points of the images that were read last.
    pub(crate) fn cloud(&self) -> Result<Cloud, LoadError> {
        let mut cloud = Cloud::new();
        for camera in &self.videos {
            camera.add_to(&mut cloud)?;
        }
        Ok(cloud)
    }
}

/// Returns the recorded clips of all cameras.
fn recorded(clips: &[CameraClips]) -> impl Iterator<Item = &recorded::Clip> {
    let clips = clips.iter().flat_map(CameraClips::clips);
    clips.filter_map(Clip::recorded)
}

/// Starts to decode the images of all frames, but for those of the first videos, which are `opened`.
fn play(
    clips: &[CameraClips],
    frames: &Frames,
    opened: Vec<Video>,
) -> Result<Vec<CameraVideos>, LoadError> {
    let mut opened = opened.into_iter();
    let mut images = frames.images.iter();
    let mut next = |clip: &Clip| {
        let images = images.next().map_or(&[][..], Vec::as_slice);
        opened.next().map_or_else(|| clip.play(images), Ok)
    };
    let videos = clips.iter().map(|clips| clips.play(&mut next));
    Ok(videos.collect::<Result<_, _>>()?)
}

/// The recorded images of one camera.
enum CameraClips {
    Rgbd {
        camera: Camera,
        unit_mm: f32,
        color: Clip,
        depth: Clip,
    },
    HueDepth {
        camera: Camera,
        range: HueRange,
        clip: Clip,
    },
}

impl CameraClips {
    fn open_rgbd(description: &RgbdCamera, fps: f64) -> Result<Self, LoadError> {
        let Intrinsics { width, height, .. } = description.intrinsics;
        let open = |video, format| Clip::open(video, format, (width, height), fps);
        Ok(CameraClips::Rgbd {
            camera: description.camera(),
            unit_mm: description.depth_unit_mm,
            color: open(&description.color, PixelFormat::Rgb24)?,
            depth: open(&description.depth, PixelFormat::Gray16)?,
        })
    }

    fn open_hue_depth(description: &HueDepthCamera, fps: f64) -> Result<Self, LoadError> {
        let Intrinsics { width, height, .. } = description.intrinsics;
        let size = (width, height.saturating_mul(2));
        Ok(CameraClips::HueDepth {
            camera: description.camera(),
            range: description.range,
            clip: Clip::open(&description.video, PixelFormat::Rgb24, size, fps)?,
        })
    }

    fn clips(&self) -> impl Iterator<Item = &Clip> {
        let (first, second) = match self {
            CameraClips::Rgbd { color, depth, .. } => (color, Some(depth)),
            CameraClips::HueDepth { clip, .. } => (clip, None),
        };
        iter::once(first).chain(second)
    }

    /// Starts to decode. `play` is called with one clip after the other.
    fn play(
        &self,
        play: &mut impl FnMut(&Clip) -> Result<Video, VideoError>,
    ) -> Result<CameraVideos, VideoError> {
        Ok(match self {
            CameraClips::Rgbd {
                camera,
                unit_mm,
                color,
                depth,
            } => CameraVideos::Rgbd {
                camera: *camera,
                unit_mm: *unit_mm,
                color: play(color)?,
                depth: play(depth)?,
            },
            CameraClips::HueDepth {
                camera,
                range,
                clip,
            } => CameraVideos::HueDepth {
                camera: *camera,
                range: *range,
                video: play(clip)?,
            },
        })
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
    fn videos(&self) -> impl Iterator<Item = &Video> {
        let (first, second) = match self {
            CameraVideos::Rgbd { color, depth, .. } => (color, Some(depth)),
            CameraVideos::HueDepth { video, .. } => (video, None),
        };
        iter::once(first).chain(second)
    }

    fn videos_mut(&mut self) -> impl Iterator<Item = &mut Video> {
        let (first, second) = match self {
            CameraVideos::Rgbd { color, depth, .. } => (color, Some(depth)),
            CameraVideos::HueDepth { video, .. } => (video, None),
        };
        iter::once(first).chain(second)
    }

    fn view(&self) -> Result<View, LoadError> {
        Ok(match self {
            CameraVideos::Rgbd {
                camera,
                unit_mm,
                color,
                depth,
            } => {
                let depths = depth.image().as_chunks().0.iter();
                let depths = depths.map(|bytes| u16::from_le_bytes(*bytes)).collect();
                View::new(*camera, *unit_mm, color.image().to_vec(), depths)?
            }
            CameraVideos::HueDepth {
                camera,
                range,
                video,
            } => hue_depth_view(*camera, *range, video.image())?,
        })
    }

    /// Returns the number of points of the view that are out of range.
    fn out_of_range(&self) -> usize {
        match self {
            CameraVideos::Rgbd {
                camera,
                unit_mm,
                depth,
                ..
            } => {
                let depths = depth.image().as_chunks().0.iter();
                let depths = depths.map(|bytes| u16::from_le_bytes(*bytes));
                let in_mm = |depth| (depth > 0).then_some(f32::from(depth) * unit_mm);
                camera.out_of_range(depths.map(in_mm))
            }
            CameraVideos::HueDepth {
                camera,
                range,
                video,
            } => {
                let image = video.image();
                let hues = image[image.len() / 2..].as_chunks().0.iter();
                camera.out_of_range(hues.map(|rgb| range.depth_mm(*rgb)))
            }
        }
    }

    /// Adds the points of a view. Depths that are coded as hue are not rounded to steps.
    fn add_to(&self, cloud: &mut Cloud) -> Result<(), LoadError> {
        match self {
            CameraVideos::Rgbd {
                camera,
                unit_mm,
                color,
                depth,
            } => camera.add_rgbd(color.image(), depth.image(), *unit_mm, cloud)?,
            CameraVideos::HueDepth {
                camera,
                range,
                video,
            } => camera.add_hue_depth(video.image(), *range, cloud)?,
        }
        Ok(())
    }
}

/// Returns the view of an image with colour in the upper half and depth, coded as hue, in the lower
/// one. Depths are rounded to the steps of [`hue_unit_mm`].
fn hue_depth_view(camera: Camera, range: HueRange, image: &[u8]) -> Result<View, ImageError> {
    let unit_mm = hue_unit_mm(range);
    let (color, hues) = image.split_at(image.len() / 2);
    let steps = |depth_mm: f32| (depth_mm / unit_mm).round().max(1.0) as u16;
    let depth = hues.as_chunks().0.iter();
    let depth = depth.map(|rgb| range.depth_mm(*rgb).map_or(0, steps));
    View::new(camera, unit_mm, color.to_vec(), depth.collect())
}

/// Returns the depth by which neighbouring hues differ, or, where 16 bits do not hold the farthest
/// depth in such steps, the smallest step that they hold it in.
fn hue_unit_mm(range: HueRange) -> f32 {
    let hue_step_mm = (range.far_mm - range.near_mm) / HUES;
    hue_step_mm.max(range.far_mm / f32::from(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::Extrinsics;

    const CAMERA: Camera = Camera {
        intrinsics: Intrinsics {
            width: 2,
            height: 1,
            fx: 1.0,
            fy: 1.0,
            cx: 0.0,
            cy: 0.0,
        },
        extrinsics: Extrinsics {
            rotation: [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
            translation_mm: [0.0; 3],
        },
    };

    #[test]
    fn hues_become_depths_within_half_a_step() {
        // The relative error of a few operations on 32-bit numbers.
        let rounding = 4.0 * f32::EPSILON;
        let ranges = [(600.0, 1200.0), (100.0, 5000.0), (3000.0, 3001.0)];
        for (near_mm, far_mm) in ranges {
            let range = HueRange { near_mm, far_mm };
            let unit_mm = hue_unit_mm(range);
            for (red, green) in (0..=255).flat_map(|green| [(255, green), (green, 255)]) {
                let hue = [red, green, 3];
                let image = [&[10, 20, 30, 40, 50, 60][..], &hue, &[9, 9, 9]].concat();
                let view = hue_depth_view(CAMERA, range, &image).unwrap();
                let depth_mm = f32::from(view.depth()[0]) * view.unit_mm();
                let expected = range.depth_mm(hue).unwrap();
                assert!(
                    (depth_mm - expected).abs() <= 0.5 * unit_mm + rounding * expected,
                    "{range:?} {hue:?}: {depth_mm} instead of {expected}"
                );
                assert_eq!(view.depth()[1], 0, "grey is no depth");
            }
        }
    }

    #[test]
    fn a_hue_depth_image_of_another_size_is_rejected() {
        let range = HueRange {
            near_mm: 600.0,
            far_mm: 1200.0,
        };
        let error = hue_depth_view(CAMERA, range, &[0; 18]).unwrap_err();
        assert_eq!((error.found, error.expected), (9, 6));
    }
}
