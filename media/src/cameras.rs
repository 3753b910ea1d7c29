use crate::LoadError;
use crate::description::{HueDepthCamera, RgbdCamera};
use crate::ffmpeg::{PixelFormat, VideoError};
use crate::video::{Clip, Video};
use hawser_cloud::{Camera, Cloud, HueRange, ImageError, View};
use std::iter;
use std::time::Duration;

/// The number of frames before the end of a loop at which its videos are opened again. ffmpeg needs
/// a fraction of a second for the first image.
const FRAMES_AHEAD: usize = 30;

/// Hues of saturated colours with 8 bits per channel: the steps of a depth that is coded as hue.
const HUES: f32 = 6.0 * 255.0;

/// The videos of all cameras, image by image in step.
pub(crate) struct Cameras {
    clips: Vec<CameraClips>,
    videos: Vec<CameraVideos>,
    /// The videos of the next pass, as soon as they are opened.
    ahead: Option<Vec<CameraVideos>>,
    /// Number of frames read in this pass.
    frames: usize,
    /// Number of frames of the previous pass.
    length: Option<usize>,
    /// The time between two frames.
    interval: Duration,
    is_live: bool,
}

impl Cameras {
    pub(crate) fn open(
        rgbd: &[RgbdCamera],
        hue_depth: &[HueDepthCamera],
        interval: Duration,
    ) -> Result<Self, LoadError> {
        let rgbd = rgbd.iter().map(CameraClips::open_rgbd);
        let hue_depth = hue_depth.iter().map(CameraClips::open_hue_depth);
        let clips = rgbd.chain(hue_depth).collect::<Result<Vec<_>, _>>()?;
        let videos = play(&clips)?;
        let is_live = videos
            .iter()
            .flat_map(CameraVideos::videos)
            .any(|video| matches!(video, Video::Live(_)));
        Ok(Cameras {
            videos,
            clips,
            ahead: None,
            frames: 0,
            length: None,
            interval,
            is_live,
        })
    }

    /// Reads the next image of every video. Returns `false` if all have ended.
    ///
    /// Of live inputs, reads the newest images: one of them, and of the others those that arrive at
    /// most half an interval before or, if the inputs have the frame rate, after it.
    pub(crate) fn advance(&mut self) -> Result<bool, LoadError> {
        let mut newest = None;
        for video in self.videos.iter_mut().flat_map(CameraVideos::videos_mut) {
            newest = newest.max(video.wait()?);
        }
        let since = newest.and_then(|newest| newest.checked_sub(self.interval / 2));
        let (mut continuing, mut ended) = (None, None);
        for video in self.videos.iter_mut().flat_map(CameraVideos::videos_mut) {
            match video.read_image(since)? {
                true => continuing = Some(video.name().to_owned()),
                false => ended = Some(video.name().to_owned()),
            }
        }
        match (continuing, ended) {
            (Some(long), Some(short)) => Err(LoadError::Length {
                short,
                long,
                frames: self.frames,
            }),
            (None, _) => Ok(false),
            (Some(_), None) => {
                self.frames += 1;
                Ok(true)
            }
        }
    }

    /// Opens the videos for the next pass if this pass ends soon, or if its length is not known.
    pub(crate) fn open_ahead(&mut self) -> Result<(), LoadError> {
        let start = self
            .length
            .map_or(0, |length| length.saturating_sub(FRAMES_AHEAD));
        if !self.is_live && self.ahead.is_none() && self.frames >= start {
            self.ahead = Some(play(&self.clips)?);
        }
        Ok(())
    }

    /// Continues with the first images. Live inputs continue as they are.
    pub(crate) fn rewind(&mut self) -> Result<(), LoadError> {
        if self.frames == 0 || self.is_live {
            return Ok(());
        }
        self.videos = match self.ahead.take() {
            Some(videos) => videos,
            None => play(&self.clips)?,
        };
        self.length = Some(self.frames);
        self.frames = 0;
        Ok(())
    }

    /// Returns the number of images of live inputs that were not read.
    pub(crate) fn skipped(&self) -> u64 {
        let videos = self.videos.iter().flat_map(CameraVideos::videos);
        videos.map(Video::skipped).sum()
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

fn play(clips: &[CameraClips]) -> Result<Vec<CameraVideos>, LoadError> {
    let videos = clips.iter().map(CameraClips::play);
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
    fn open_rgbd(description: &RgbdCamera) -> Result<Self, LoadError> {
        let (color, depth) = Clip::open_pair(&description.color, &description.depth)?;
        Ok(CameraClips::Rgbd {
            camera: description.camera(),
            unit_mm: description.depth_unit_mm,
            color,
            depth,
        })
    }

    fn open_hue_depth(description: &HueDepthCamera) -> Result<Self, LoadError> {
        Ok(CameraClips::HueDepth {
            camera: description.camera(),
            range: description.range,
            clip: Clip::open(&description.video, PixelFormat::Rgb24)?,
        })
    }

    fn play(&self) -> Result<CameraVideos, VideoError> {
        Ok(match self {
            CameraClips::Rgbd {
                camera,
                unit_mm,
                color,
                depth,
            } => CameraVideos::Rgbd {
                camera: *camera,
                unit_mm: *unit_mm,
                color: color.play()?,
                depth: depth.play()?,
            },
            CameraClips::HueDepth {
                camera,
                range,
                clip,
            } => CameraVideos::HueDepth {
                camera: *camera,
                range: *range,
                video: clip.play()?,
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
        let (view, video) = match self {
            CameraVideos::Rgbd {
                camera,
                unit_mm,
                color,
                depth,
            } => {
                let depths = depth.image().as_chunks().0.iter();
                let depths = depths.map(|bytes| u16::from_le_bytes(*bytes)).collect();
                let image = color.image().to_vec();
                (View::new(*camera, *unit_mm, image, depths), color)
            }
            CameraVideos::HueDepth {
                camera,
                range,
                video,
            } => (hue_depth_view(*camera, *range, video.image()), video),
        };
        view.map_err(|error| size_error(video, error))
    }

    /// Adds the points of a view. Depths that are coded as hue are not rounded to steps.
    fn add_to(&self, cloud: &mut Cloud) -> Result<(), LoadError> {
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
        result.map_err(|error| size_error(video, error))
    }
}

fn size_error(video: &Video, error: ImageError) -> LoadError {
    LoadError::Size {
        video: video.name().to_owned(),
        error,
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
    use hawser_cloud::{Extrinsics, Intrinsics};

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
