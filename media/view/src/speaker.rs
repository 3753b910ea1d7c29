//! Plays sound as it arrives, through ffmpeg and ALSA.

use crate::sound::SoundPacket;
use anyhow::Context;
use hawser_io::process;
use hawser_recording::{OpusWriter, missing_beside};
use hawser_units::Line;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The most packets that wait for the device. More are left out, so that what is heard does not fall behind.
const WAITING: usize = 16;

/// The number of later packets after which a missing one is concealed, and the most that are concealed at once.
const REORDERED: usize = 3;
const CONCEALED: u32 = 10;

/// A device that plays.
pub(crate) struct Speaker {
    /// `None` when no more packets follow.
    packets: Option<SyncSender<SoundPacket>>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

impl Speaker {
    /// Opens a device of ALSA, such as `default`.
    ///
    /// # Errors
    /// If ffmpeg is missing.
    pub(crate) fn open(device: &str) -> anyhow::Result<Self> {
        let mut command = Command::new("ffmpeg");
        command
            .args(["-nostdin", "-v", "error", "-fflags", "nobuffer"])
            .args(["-probesize", "32", "-analyzeduration", "0"])
            .args(["-f", "ogg", "-c:a", "libopus", "-i", "-", "-f", "alsa"])
            .arg(device)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let ffmpeg = process::spawn(command);
        let ffmpeg = ffmpeg.context("cannot run ffmpeg; install it with \"apt install ffmpeg\"")?;
        let (packets, received) = sync_channel(WAITING);
        Ok(Speaker {
            packets: Some(packets),
            thread: Some(thread::spawn(move || {
                run(ffmpeg, &received)
                    .inspect_err(|error| tracing::error!("no more sound is played: {error:#}"))
            })),
        })
    }

    /// Plays a packet, unless the device is behind.
    pub(crate) fn play(&self, packet: SoundPacket) {
        if let Some(packets) = &self.packets {
            // If the thread has ended, `finish` says why.
            let _ = packets.try_send(packet);
        }
    }

    /// Ends when all has been played.
    ///
    /// # Errors
    /// If ffmpeg has failed.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        drop(self.packets.take());
        let thread = self.thread.take().map(JoinHandle::join);
        thread.map_or(Ok(()), |ended| ended.expect("the speaker does not panic"))
    }
}

fn run(mut ffmpeg: Child, packets: &Receiver<SoundPacket>) -> anyhow::Result<()> {
    let input = ffmpeg.stdin.take().context("ffmpeg has no input")?;
    let written = write(input, packets);
    let ended = ffmpeg.wait_with_output().context("ffmpeg has no end")?;
    if !ended.status.success() {
        anyhow::bail!("ffmpeg: {}", Line::of_output(&ended.stderr));
    }
    written.context("ffmpeg takes no more sound")
}

fn write(to: impl Write, packets: &Receiver<SoundPacket>) -> io::Result<()> {
    let mut writer = OpusWriter::create(to, Duration::ZERO)?.writing_each();
    let mut order = InOrder::default();
    while let Ok(packet) = packets.recv() {
        for packet in order.add(packet) {
            writer.write(&packet)?;
        }
    }
    writer.finish()
}

/// Packets in the order of their numbers, with others in place of missing ones.
#[derive(Debug, Default)]
struct InOrder {
    incarnation: [u8; 16],
    next: u32,
    waiting: BTreeMap<u32, Vec<u8>>,
}

impl InOrder {
    /// Adds a packet. Returns those to be played now.
    fn add(&mut self, packet: SoundPacket) -> Vec<Vec<u8>> {
        let is_far = packet.number.abs_diff(self.next) > WAITING as u32;
        if packet.incarnation != self.incarnation || is_far {
            (self.incarnation, self.next) = (packet.incarnation, packet.number);
            self.waiting.clear();
        }
        if packet.number >= self.next {
            self.waiting.insert(packet.number, packet.bytes);
        }
        let mut played = Vec::new();
        while let Some(entry) = self.waiting.first_entry() {
            let number = *entry.key();
            if number > self.next && self.waiting.len() <= REORDERED {
                break;
            }
            let Some((_, bytes)) = self.waiting.pop_first() else {
                break;
            };
            let missing = (number - self.next).min(CONCEALED) as usize;
            played.extend(std::iter::repeat_n(missing_beside(&bytes), missing));
            played.push(bytes);
            self.next = number.wrapping_add(1);
        }
        played
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::Instant;

    fn packet(number: u32) -> SoundPacket {
        SoundPacket {
            incarnation: [1; 16],
            number,
            captured: Instant::ZERO,
            bytes: vec![0x78, number as u8],
        }
    }

    #[test]
    fn packets_are_played_in_order_and_missing_ones_concealed() {
        let mut order = InOrder::default();
        let mut played = Vec::new();
        for number in [100, 102, 101, 103, 105, 106, 107, 108, 104, 109] {
            let now = order.add(packet(number)).into_iter();
            played.extend(now.map(|bytes| bytes.get(1).copied()));
        }
        let numbers = [100, 101, 102, 103].map(Some);
        let later = [105, 106, 107, 108, 109].map(Some);
        assert_eq!(played, [&numbers[..], &[None], &later].concat());
    }

    #[test]
    fn a_device_takes_what_is_played() {
        let speaker = Speaker::open("null").unwrap();
        for number in 0..10 {
            speaker.play(packet(number));
        }
        speaker.finish().unwrap();
        let missing = Speaker::open("no-such-device").unwrap();
        assert!(missing.finish().is_err());
    }
}
