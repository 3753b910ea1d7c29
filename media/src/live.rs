use crate::ffmpeg::{Ffmpeg, PixelFormat, VideoError, parse_size};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The time for which a live input may deliver nothing. The first image takes longest: ffmpeg
/// analyses some streams for 5 s.
const STALL: Duration = Duration::from_secs(10);

/// The longest line in front of an image, in bytes.
const MAX_LINE: u64 = 1024;

/// A live input, of which only the newest image is kept: a reader that is too slow skips images and
/// never gets an old one.
pub(crate) struct Live {
    ffmpeg: Ffmpeg,
    mailbox: Arc<Mailbox>,
    stall: Duration,
    image: Vec<u8>,
}

#[derive(Default)]
struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    newest: Option<(Instant, Vec<u8>)>,
    skipped: u64,
    has_ended: bool,
    error: Option<VideoError>,
}

/// The reason that there is no image.
enum Outage {
    Stalled,
    Ended(Option<VideoError>),
}

impl Live {
    /// Starts to receive from the input of these options of ffmpeg.
    pub(crate) fn open(options: &[String], format: PixelFormat) -> Result<Self, VideoError> {
        // The images carry their size, so the input is opened once and not also to find its format.
        let output = match format {
            PixelFormat::Rgb24 => "-pix_fmt rgb24 -c:v ppm -f image2pipe",
            // No other format is converted to this one: `Images` refuses it.
            PixelFormat::Gray16 => "-strict -1 -f yuv4mpegpipe",
        };
        let mut command = Ffmpeg::command();
        command.args(["-flags", "low_delay"]).args(options);
        command.args(["-map", "0:v:0", "-fps_mode", "passthrough"]);
        command.args(output.split(' '));
        command.args(["-flush_packets", "1", "-"]);
        let name = PathBuf::from(options.join(" "));
        let (ffmpeg, output) = Ffmpeg::start(&name, command, Stdio::null())?;
        let mailbox = Arc::<Mailbox>::default();
        let receiver = Arc::clone(&mailbox);
        let images = Images::new(BufReader::new(output), name, format);
        thread::spawn(move || receiver.receive(images));
        Ok(Live {
            ffmpeg,
            mailbox,
            stall: STALL,
            image: Vec::new(),
        })
    }

    /// Returns the options of the input.
    pub(crate) fn name(&self) -> &Path {
        self.ffmpeg.name()
    }

    /// Returns the image that was read last.
    pub(crate) fn image(&self) -> &[u8] {
        &self.image
    }

    /// Returns the number of images that were replaced by newer ones before they were read.
    pub(crate) fn skipped(&self) -> u64 {
        self.mailbox.state.lock().skipped
    }

    /// Waits for an image that has not been read. Returns when it arrived.
    pub(crate) fn wait(&mut self) -> Result<Instant, VideoError> {
        let arrival = self
            .mailbox
            .wait(None, self.stall)
            .map(|(arrival, _)| arrival);
        arrival.map_err(|outage| self.outage_error(outage))
    }

    /// Reads the newest image as soon as there is one that has arrived after `since`.
    pub(crate) fn read_image(&mut self, since: Option<Instant>) -> Result<(), VideoError> {
        let read = self.mailbox.wait(since, self.stall);
        let read = read.map(|(_, mut state)| state.newest.take());
        match read {
            Ok(newest) => {
                self.image = newest.map(|(_, image)| image).unwrap_or_default();
                Ok(())
            }
            Err(outage) => Err(self.outage_error(outage)),
        }
    }

    fn outage_error(&mut self, outage: Outage) -> VideoError {
        let path = self.name().to_owned();
        match outage {
            Outage::Stalled => VideoError::Stalled {
                path,
                seconds: self.stall.as_secs_f64(),
            },
            Outage::Ended(Some(error)) => error,
            Outage::Ended(None) => match self.ffmpeg.finish() {
                Ok(()) => VideoError::Ended { path },
                Err(error) => error,
            },
        }
    }
}

impl Mailbox {
    /// Keeps the newest image until the last one.
    fn receive(&self, mut images: Images<impl BufRead>) {
        let error = loop {
            match images.next() {
                Ok(Some(image)) => {
                    let mut state = self.state.lock();
                    let replaced = state.newest.replace((Instant::now(), image));
                    state.skipped += u64::from(replaced.is_some());
                    self.changed.notify_one();
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let mut state = self.state.lock();
        state.has_ended = true;
        state.error = error;
        self.changed.notify_one();
    }

    /// Waits for an image that has arrived after `since`. Returns when it did.
    fn wait(
        &self,
        since: Option<Instant>,
        stall: Duration,
    ) -> Result<(Instant, MutexGuard<'_, State>), Outage> {
        let arrival = |state: &State| {
            let arrival = state.newest.as_ref().map(|(arrival, _)| *arrival);
            arrival.filter(|arrival| since.is_none_or(|since| *arrival >= since))
        };
        let mut state = self.state.lock();
        let is_waiting = |state: &mut State| arrival(state).is_none() && !state.has_ended;
        self.changed.wait_while_for(&mut state, is_waiting, stall);
        match arrival(&state) {
            Some(arrival) => Ok((arrival, state)),
            None if state.has_ended => Err(Outage::Ended(state.error.take())),
            None => Err(Outage::Stalled),
        }
    }
}

/// Images behind headers that have their size: colour as PPM files that follow each other, depth as
/// YUV4MPEG2 with 16-bit grey.
struct Images<R> {
    from: R,
    name: PathBuf,
    format: PixelFormat,
    /// Size of the previous image.
    image_bytes: Option<usize>,
}

impl<R: BufRead> Images<R> {
    fn new(from: R, name: PathBuf, format: PixelFormat) -> Self {
        Images {
            from,
            name,
            format,
            image_bytes: None,
        }
    }

    /// Returns the next image. An incomplete image is the end.
    fn next(&mut self) -> Result<Option<Vec<u8>>, VideoError> {
        let has_image = match self.format {
            PixelFormat::Rgb24 => self.read_ppm_header()?,
            PixelFormat::Gray16 => self.read_frame_header()?,
        };
        let Some(image_bytes) = self.image_bytes.filter(|_| has_image) else {
            return Ok(None);
        };
        let mut image = Vec::new();
        let mut limited = self.from.by_ref().take(image_bytes as u64);
        match limited.read_to_end(&mut image) {
            Ok(read) => Ok((read == image_bytes).then_some(image)),
            Err(error) => Err(self.invalid(&error.to_string())),
        }
    }

    fn read_ppm_header(&mut self) -> Result<bool, VideoError> {
        let Some(magic) = self.line()? else {
            return Ok(false);
        };
        let (size, maximum) = (self.line()?, self.line()?);
        let size = size.as_deref().and_then(|size| size.split_once(' '));
        match size.and_then(|(width, height)| parse_size(width, height)) {
            Some(size) if magic == "P6" && maximum.as_deref() == Some("255") => {
                self.image_bytes = Some(self.format.image_bytes(size));
                Ok(true)
            }
            _ => Err(self.invalid("ffmpeg wrote no PPM image")),
        }
    }

    fn read_frame_header(&mut self) -> Result<bool, VideoError> {
        if self.image_bytes.is_none() {
            let Some(header) = self.line()? else {
                return Ok(false);
            };
            self.image_bytes = Some(self.parse_stream_header(&header)?);
        }
        match self.line()? {
            None => Ok(false),
            Some(line) if line.starts_with("FRAME") => Ok(true),
            Some(_) => Err(self.invalid("ffmpeg wrote no YUV4MPEG2 frame")),
        }
    }

    /// Returns the size of an image in bytes.
    fn parse_stream_header(&self, header: &str) -> Result<usize, VideoError> {
        let parameters = header.strip_prefix("YUV4MPEG2 ").unwrap_or_default();
        let parameter = |key| {
            parameters
                .split(' ')
                .find_map(|word| word.strip_prefix(key))
        };
        let (width, height) = (parameter('W'), parameter('H'));
        let Some(size) = width.zip(height).and_then(|(w, h)| parse_size(w, h)) else {
            return Err(self.invalid("ffmpeg wrote no YUV4MPEG2 stream"));
        };
        match parameter('C') {
            Some("mono16") => Ok(self.format.image_bytes(size)),
            other => Err(VideoError::NotDepth {
                path: self.name.clone(),
                found: other.unwrap_or("420").to_owned(),
            }),
        }
    }

    /// Returns the next line, or `None` at the end.
    fn line(&mut self) -> Result<Option<String>, VideoError> {
        let mut line = Vec::new();
        let read = self.read_line(&mut line);
        read.map_err(|error| self.invalid(&error.to_string()))?;
        if line.pop() != Some(b'\n') {
            return Ok(None);
        }
        Ok(Some(String::from_utf8_lossy(&line).into_owned()))
    }

    fn read_line(&mut self, line: &mut Vec<u8>) -> io::Result<usize> {
        self.from.by_ref().take(MAX_LINE).read_until(b'\n', line)
    }

    fn invalid(&self, complaint: &str) -> VideoError {
        VideoError::Decode {
            path: self.name.clone(),
            complaint: complaint.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn images(bytes: &[u8], format: PixelFormat) -> Vec<Result<Vec<u8>, String>> {
        let mut images = Images::new(bytes, "camera".into(), format);
        let next = || images.next().map_err(|error| error.to_string()).transpose();
        std::iter::from_fn(next).take(3).collect()
    }

    #[test]
    fn images_are_found_behind_their_headers() {
        let color = b"P6\n2 1\n255\nabcdefP6\n1 1\n255\nghiP6\n2 1\n255\nincom";
        assert_eq!(
            images(color, PixelFormat::Rgb24),
            [Ok(b"abcdef".to_vec()), Ok(b"ghi".to_vec())]
        );
        let depth = b"YUV4MPEG2 W2 H1 F25:1 Ip A1:1 Cmono16\nFRAME\nabcdFRAME Ip\nefghFRAME\nij";
        assert_eq!(
            images(depth, PixelFormat::Gray16),
            [Ok(b"abcd".to_vec()), Ok(b"efgh".to_vec())]
        );
    }

    #[test]
    fn depth_of_other_than_16_bits_is_refused() {
        for (name, format) in [("Cmono", "mono"), ("C420jpeg", "420jpeg"), ("Ip", "420")] {
            let header = format!("YUV4MPEG2 W2 H1 F25:1 {name}\nFRAME\nabcd");
            let error = images(header.as_bytes(), PixelFormat::Gray16)[0].clone();
            let error = error.unwrap_err();
            assert!(
                error.starts_with(&format!("camera has the pixel format {format}, depth must")),
                "{error}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_images_or_refused(
            header in select(),
            bytes in vec(any::<u8>(), 0..40),
            is_color in any::<bool>(),
        ) {
            let format = if is_color { PixelFormat::Rgb24 } else { PixelFormat::Gray16 };
            let bytes = [header.as_bytes(), &bytes].concat();
            for image in images(&bytes, format).into_iter().flatten() {
                prop_assert!(!image.is_empty() && image.len() <= bytes.len());
            }
        }
    }

    fn select() -> impl Strategy<Value = String> {
        "(|P6\n|YUV4MPEG2 |YUV4MPEG2 W2 H2 Cmono16\n)([0-9]{1,22} [0-9]{1,9}\n|W[0-9]{1,3} H[0-9]{1,3})?(255\n| Cmono16\nFRAME\n)?"
    }

    #[test]
    fn an_input_that_delivers_nothing_has_stalled() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("camera");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        // Both ends are open here, so that ffmpeg waits and finds no end.
        let opened = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&pipe);
        let _open = opened.unwrap();
        let options = ["-f", "rawvideo", "-video_size", "2x1", "-i"].map(str::to_owned);
        let options = [&options[..], &[pipe.display().to_string()]].concat();

        let mut live = Live::open(&options, PixelFormat::Rgb24).unwrap();
        live.stall = Duration::from_millis(200);

        let error = live.read_image(None).unwrap_err().to_string();
        assert!(
            error.starts_with("-f rawvideo -video_size 2x1 -i ")
                && error.ends_with("/camera has delivered no image for 0.2 s"),
            "{error}"
        );
    }

    #[test]
    fn a_slow_reader_gets_the_newest_image_and_the_others_are_counted() {
        let mailbox = Mailbox::default();
        let three = b"P6\n1 1\n255\nabcP6\n1 1\n255\ndefP6\n1 1\n255\nghi";
        mailbox.receive(Images::new(&three[..], "camera".into(), PixelFormat::Rgb24));

        let (arrival, mut state) = mailbox.wait(None, Duration::ZERO).ok().unwrap();
        let newest = state.newest.take();
        assert_eq!(
            (newest, state.skipped),
            (Some((arrival, b"ghi".to_vec())), 2)
        );
        drop(state);
        let outage = mailbox.wait(None, Duration::ZERO).err();
        assert!(matches!(outage, Some(Outage::Ended(None))));
    }

    #[test]
    fn an_image_from_before_is_not_waited_for_in_vain() {
        let mailbox = Mailbox::default();
        let old = Instant::now();
        mailbox.state.lock().newest = Some((old, vec![1]));
        let later = Some(old + Duration::from_millis(1));
        let outage = mailbox.wait(later, Duration::from_millis(10)).err();
        assert!(matches!(outage, Some(Outage::Stalled)));
        assert!(mailbox.wait(Some(old), Duration::ZERO).is_ok());
    }
}
