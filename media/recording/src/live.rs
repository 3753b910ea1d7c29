use crate::ffmpeg::{Ffmpeg, PixelFormat, VideoError};
use crate::nut::{self, RawImage};
use crate::recorded::{check_size, nut_error};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The time for which a live input may deliver nothing. The first image takes longest: ffmpeg
/// analyses some streams for 5 s.
const STALL: Duration = Duration::from_secs(10);

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
    pub(crate) fn open(
        options: &[String],
        format: PixelFormat,
        size: (usize, usize),
    ) -> Result<Self, VideoError> {
        let mut command = Ffmpeg::describing();
        command
            .args(["-flags", "low_delay", "-noautorotate"])
            .args(options);
        command.args(["-map", "0:v:0"]).args(nut::OUTPUT);
        if format == PixelFormat::Rgb24 {
            // No format is converted to depth: other ones are refused.
            command.args(["-pix_fmt", "rgb24"]);
        }
        command.arg("-");
        let name = PathBuf::from(options.join(" "));
        let (ffmpeg, output) = Ffmpeg::start(&name, command, Stdio::null())?;
        let mailbox = Arc::<Mailbox>::default();
        let receiver = Arc::clone(&mailbox);
        let images = nut::Images::new(BufReader::new(output), format);
        let log = ffmpeg.log();
        thread::spawn(move || match log.orientation() {
            None => receiver.receive(images, &name, size),
            Some(orientation) => receiver.end(Some(VideoError::Orientation {
                path: name,
                orientation,
            })),
        });
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
    fn receive(&self, mut images: nut::Images<impl BufRead>, name: &Path, size: (usize, usize)) {
        let error = loop {
            let image = images.next().map_err(|error| nut_error(name, error));
            match image.and_then(|image| checked(image, name, size)) {
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
        self.end(error);
    }

    fn end(&self, error: Option<VideoError>) {
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

/// Returns the pixels of an image of the size that the intrinsics are for.
fn checked(
    image: Option<RawImage>,
    name: &Path,
    size: (usize, usize),
) -> Result<Option<Vec<u8>>, VideoError> {
    let Some(image) = image else {
        return Ok(None);
    };
    check_size(name, image.size, size)?;
    Ok(Some(image.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: PixelFormat = PixelFormat::Rgb24;

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

        let mut live = Live::open(&options, FORMAT, (2, 1)).unwrap();
        live.stall = Duration::from_millis(200);

        let error = live.read_image(None).unwrap_err().to_string();
        assert!(
            error.starts_with("-f rawvideo -video_size 2x1 -i ")
                && error.ends_with("/camera has delivered no image for 0.2 s"),
            "{error}"
        );
    }

    #[test]
    fn a_slow_reader_gets_the_newest_image() {
        let mailbox = Mailbox::default();
        let source = "color=size=1x1:rate=10:duration=0.3,format=rgb24,geq=r=N:g=7:b=7";
        let mut command = Ffmpeg::command();
        command
            .args(["-f", "lavfi", "-i", source])
            .args(nut::OUTPUT);
        let three = command
            .args(["-pix_fmt", "rgb24", "-"])
            .output()
            .unwrap()
            .stdout;
        let images = nut::Images::new(&three[..], FORMAT);
        mailbox.receive(images, Path::new("camera"), (1, 1));

        let (arrival, mut state) = mailbox.wait(None, Duration::ZERO).ok().unwrap();
        let newest = state.newest.take();
        assert_eq!((newest, state.skipped), (Some((arrival, vec![2, 7, 7])), 2));
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
