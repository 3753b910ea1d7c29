use crate::description::{Recorded, VideoSource};
use crate::ffmpeg::{PixelFormat, VideoError};
use crate::images;
use crate::live::Live;
use crate::recorded::{self, Decoder, Read};
use std::time::Instant;

/// A video that can be played.
pub(crate) enum Clip {
    Recorded(recorded::Clip),
    Live {
        options: Vec<String>,
        format: PixelFormat,
        size: (usize, usize),
    },
}

impl Clip {
    /// Opens a video whose images have this size, and numbered images whose rate is `fps`.
    pub(crate) fn open(
        source: &VideoSource,
        format: PixelFormat,
        size: (usize, usize),
        fps: f64,
    ) -> Result<Self, VideoError> {
        let Recorded { path, track } = match source {
            VideoSource::Live(live) => {
                return Ok(Clip::Live {
                    options: live.input.clone(),
                    format,
                    size,
                });
            }
            VideoSource::Recorded(recorded) => recorded,
        };
        let files = match images::is_index(path) {
            true => Some(images::indexed(path)?),
            false if path.is_file() => None,
            false => images::find_numbered(path, fps)?,
        };
        let clip = match files {
            Some(_) if track.is_some() => {
                let reason = "`track` is for videos, and these are images".to_owned();
                return Err(images::images_error(path, reason));
            }
            Some(files) => recorded::Clip::of_images(files, (format, size)),
            None => recorded::Clip::of_video(path, *track, (format, size), fps)?,
        };
        Ok(Clip::Recorded(clip))
    }

    /// Returns the clip if it is recorded.
    pub(crate) fn recorded(&self) -> Option<&recorded::Clip> {
        match self {
            Clip::Recorded(clip) => Some(clip),
            Clip::Live { .. } => None,
        }
    }

    /// Starts to decode the video: the images of these numbers if it is recorded.
    pub(crate) fn play(&self, images: &[usize]) -> Result<Video, VideoError> {
        match self {
            Clip::Recorded(clip) => clip.play(images).map(Video::Recorded),
            Clip::Live {
                options,
                format,
                size,
            } => Live::open(options, *format, *size).map(Video::Live),
        }
    }
}

/// A video while it is decoded, image by image.
pub(crate) enum Video {
    Recorded(Decoder),
    Live(Live),
}

impl Video {
    /// Returns the image that was read last.
    pub(crate) fn image(&self) -> &[u8] {
        match self {
            Video::Recorded(decoder) => decoder.image(),
            Video::Live(live) => live.image(),
        }
    }

    /// Waits for the next image of a live input. Returns when it arrived.
    pub(crate) fn wait(&mut self) -> Result<Option<Instant>, VideoError> {
        match self {
            Video::Recorded(_) => Ok(None),
            Video::Live(live) => live.wait().map(Some),
        }
    }

    /// Reads the next image, or the newest one of a live input as soon as there is one that has
    /// arrived after `since`. Returns `None` at the end of a recorded video.
    pub(crate) fn read_image(
        &mut self,
        since: Option<Instant>,
    ) -> Result<Option<Read>, VideoError> {
        match self {
            Video::Recorded(decoder) => decoder.read_image(),
            Video::Live(live) => live.read_image(since).map(|()| Some(Read::Image)),
        }
    }

    /// Returns the number of images of a live input that were replaced by newer ones.
    pub(crate) fn skipped(&self) -> u64 {
        match self {
            Video::Recorded(_) => 0,
            Video::Live(live) => live.skipped(),
        }
    }
}
