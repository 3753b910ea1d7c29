use crate::description::VideoSource;
use crate::ffmpeg::{PixelFormat, VideoError};
use crate::images;
use crate::live::Live;
use crate::recorded::{self, Decoder};
use std::path::Path;
use std::time::Instant;

/// A video that can be played.
pub(crate) enum Clip {
    Recorded(recorded::Clip),
    Live {
        options: Vec<String>,
        format: PixelFormat,
    },
}

impl Clip {
    pub(crate) fn open(source: &VideoSource, format: PixelFormat) -> Result<Self, VideoError> {
        let path = match source {
            VideoSource::Live(live) => {
                return Ok(Clip::Live {
                    options: live.input.clone(),
                    format,
                });
            }
            VideoSource::File(path) => path,
        };
        let files = match images::is_index(path) {
            true => Some(images::indexed(path)?),
            false if path.is_file() => None,
            false => images::find_numbered(path)?,
        };
        let clip = match files {
            Some(files) => recorded::Clip::of_images(files, format),
            None => recorded::Clip::open(path, format),
        };
        clip.map(Clip::Recorded)
    }

    /// Opens the colour and the depth of one camera. Images that index files name are associated.
    pub(crate) fn open_pair(
        color: &VideoSource,
        depth: &VideoSource,
    ) -> Result<(Self, Self), VideoError> {
        if let (VideoSource::File(color), VideoSource::File(depth)) = (color, depth)
            && images::is_index(color)
            && images::is_index(depth)
        {
            let (color, depth) = images::associated(color, depth)?;
            let color = recorded::Clip::of_images(color, PixelFormat::Rgb24)?;
            let depth = recorded::Clip::of_images(depth, PixelFormat::Gray16)?;
            return Ok((Clip::Recorded(color), Clip::Recorded(depth)));
        }
        Ok((
            Clip::open(color, PixelFormat::Rgb24)?,
            Clip::open(depth, PixelFormat::Gray16)?,
        ))
    }

    /// Starts to decode the video: from the first image if it is recorded.
    pub(crate) fn play(&self) -> Result<Video, VideoError> {
        match self {
            Clip::Recorded(clip) => clip.play().map(Video::Recorded),
            Clip::Live { options, format } => Live::open(options, *format).map(Video::Live),
        }
    }
}

/// A video while it is decoded, image by image.
pub(crate) enum Video {
    Recorded(Decoder),
    Live(Live),
}

impl Video {
    /// Returns the path, or the options of a live input.
    pub(crate) fn name(&self) -> &Path {
        match self {
            Video::Recorded(decoder) => decoder.name(),
            Video::Live(live) => live.name(),
        }
    }

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
    /// arrived after `since`. Returns `false` at the end of a recorded video.
    pub(crate) fn read_image(&mut self, since: Option<Instant>) -> Result<bool, VideoError> {
        match self {
            Video::Recorded(decoder) => decoder.read_image(),
            Video::Live(live) => live.read_image(since).map(|()| true),
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
