//! The sound of a recording or of a live input, as packets of Opus that ffmpeg encodes.

use crate::description::{Audio, LiveInput};
use crate::ffmpeg::{Ffmpeg, VideoError, file_argument};
use crate::opus::{OpusReader, PACKET, RATE};
use crate::player::Pass;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// The options with which ffmpeg encodes. Speech of full bandwidth, with what is needed of a packet in the next one; each
/// packet is written at once.
const OUTPUT: [&str; 25] = [
    "-vn",
    "-ac",
    "1",
    "-ar",
    "48000",
    "-c:a",
    "libopus",
    "-b:a",
    "32k",
    "-frame_duration",
    "20",
    "-application",
    "voip",
    "-fec",
    "1",
    "-packet_loss",
    "10",
    "-page_duration",
    "20000",
    "-flush_packets",
    "1",
    "-map_metadata",
    "-1",
    "-f",
    "ogg",
];

/// The number of packets that wait to be read. A recording is encoded as far ahead, and of a live input more are dropped.
const WAITING: usize = 32;

/// The time within which the first packet is there. ffmpeg analyses some inputs for 5 s.
const FIRST: Duration = Duration::from_secs(10);

/// The bytes of a sample: 16 bits of one channel.
const SAMPLE: u64 = 2;

/// Sound while it is played.
pub struct Sound {
    ffmpeg: Ffmpeg,
    packets: Receiver<Result<SoundPacket, VideoError>>,
    first: Option<SoundPacket>,
    is_live: bool,
}

/// A packet of Opus of [`PACKET`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SoundPacket {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The number of the packet in the stream, from 0.
    pub number: u64,
    /// The time by which what decoders have of the stream is later than what was encoded.
    pub decoder_delay: Duration,
    /// When ffmpeg had encoded it.
    pub arrived: Instant,
}

impl SoundPacket {
    /// Returns the time of its first sample after that of the stream, in seconds; a little less than 0 for the first one.
    pub fn time_s(&self) -> f64 {
        let begins = self.number as f64 * PACKET.as_secs_f64();
        begins - self.decoder_delay.as_secs_f64()
    }
}

impl Sound {
    /// Begins to encode. `pass` is a pass of the recording's pictures: that of a file is repeated with it. Waits for the
    /// first packet.
    ///
    /// # Errors
    /// If ffmpeg or libopus is missing, or there is no sound.
    pub fn open(audio: &Audio, pass: Option<Pass>) -> Result<Self, VideoError> {
        let (mut sound, to_encode, ended) = match audio {
            Audio::Live(live) => Self::encode_live(live)?,
            Audio::Recorded(recorded) => Self::encode_samples(&recorded.file)?,
        };
        if let (Audio::Recorded(recorded), Some(to)) = (audio, to_encode) {
            let (file, pass) = (recorded.file.clone(), pass.unwrap_or_default());
            thread::spawn(move || {
                if let Err(error) = play(&file, pass, to) {
                    // If nobody reads any more, it is of no interest.
                    let _ = ended.send(Err(error));
                }
            });
        }
        sound.first = match sound.next(FIRST)? {
            Some(first) => Some(first),
            None => {
                return Err(VideoError::Silent {
                    path: sound.ffmpeg.name().to_owned(),
                    seconds: FIRST.as_secs_f64(),
                });
            }
        };
        Ok(sound)
    }

    /// Returns whether the sound is captured while it is played.
    pub const fn is_live(&self) -> bool {
        self.is_live
    }

    /// Returns the next packet; `None` if there is none within a time.
    ///
    /// # Errors
    /// If the input has ended, or ffmpeg has failed.
    pub fn next(&mut self, within: Duration) -> Result<Option<SoundPacket>, VideoError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        match self.packets.recv_timeout(within) {
            Ok(packet) => packet.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                self.ffmpeg.finish()?;
                Err(VideoError::Ended {
                    path: self.ffmpeg.name().to_owned(),
                })
            }
        }
    }

    fn encode_live(live: &LiveInput) -> Result<Started, VideoError> {
        let mut command = Ffmpeg::command();
        command.args(["-fflags", "nobuffer"]).args(&live.input);
        command.args(["-map", "0:a:0"]).args(OUTPUT).arg("-");
        let name = PathBuf::from(live.input.join(" "));
        Self::start(name, command, Stdio::null(), true)
    }

    fn encode_samples(file: &Path) -> Result<Started, VideoError> {
        let mut command = Ffmpeg::command();
        command.args(["-f", "s16le", "-ar", "48000", "-ac", "1", "-i", "-"]);
        command.args(OUTPUT).arg("-");
        Self::start(file.to_owned(), command, Stdio::piped(), false)
    }

    fn start(
        name: PathBuf,
        command: std::process::Command,
        input: Stdio,
        is_live: bool,
    ) -> Result<Started, VideoError> {
        let (mut ffmpeg, output) = Ffmpeg::start(&name, command, input)?;
        let (to, packets) = sync_channel(WAITING);
        let (input, ended) = (ffmpeg.take_input(), to.clone());
        thread::spawn(move || read(OpusReader::new(output), &name, &to));
        let sound = Sound {
            ffmpeg,
            packets,
            first: None,
            is_live,
        };
        Ok((sound, input, ended))
    }
}

/// The sound, the input of what encodes it, and the way for an error of what writes there.
type Started = (
    Sound,
    Option<ChildStdin>,
    SyncSender<Result<SoundPacket, VideoError>>,
);

/// Hands over packets until the last one.
fn read(
    mut from: OpusReader<impl Read>,
    name: &Path,
    to: &SyncSender<Result<SoundPacket, VideoError>>,
) {
    for number in 0.. {
        let packet = match from.next() {
            Ok(Some((header, bytes))) => Ok(SoundPacket {
                bytes,
                number,
                decoder_delay: Duration::from_secs_f64(f64::from(header.skipped) / RATE as f64),
                arrived: Instant::now(),
            }),
            Ok(None) => return,
            Err(error) => Err(VideoError::Decode {
                path: name.to_owned(),
                complaint: error.to_string(),
            }),
        };
        let is_last = packet.is_err();
        if to.send(packet).is_err() || is_last {
            return;
        }
    }
}

/// Writes the samples of a file, again and again with the passes of the pictures, for as long as they are read. Where the
/// file is shorter than a pass there is silence.
fn play(file: &Path, pass: Pass, mut to: ChildStdin) -> Result<(), VideoError> {
    let mut written: u64 = 0;
    for passes in 1.. {
        // So that no error adds up.
        let end = (f64::from(passes) * pass.length_s * RATE as f64).round() as u64;
        let bytes = end.saturating_sub(written).max(1) * SAMPLE;
        written = written.max(end);
        let (mut ffmpeg, samples) = decode(file, pass)?;
        let mut samples = samples.take(bytes);
        let Ok(copied) = io::copy(&mut samples, &mut to) else {
            return Ok(());
        };
        if copied == 0 {
            ffmpeg.finish()?;
            return Err(ffmpeg.decode_error("has no sound".to_owned()));
        }
        // A pass ends with a whole sample.
        let silence = io::copy(&mut io::repeat(0).take(bytes - copied), &mut to);
        if silence.and_then(|_| to.flush()).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn decode(file: &Path, pass: Pass) -> Result<(Ffmpeg, std::process::ChildStdout), VideoError> {
    let mut command = Ffmpeg::command();
    if pass.start_s > 0.0 {
        command.args(["-ss", &format!("{:.6}", pass.start_s)]);
    }
    command.arg("-i").arg(file_argument(file));
    command.args(["-map", "0:a:0", "-vn", "-ac", "1", "-ar", "48000"]);
    command.args(["-f", "s16le", "-"]);
    Ffmpeg::start(file, command, Stdio::null())
}
