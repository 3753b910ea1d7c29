//! The sound: packets at the times of the pictures that are played with them.

use crate::capture::{Message, WakeOnDrop};
use crate::playing::{Playing, seconds};
use hawser_io::clock::SteadyClock;
use hawser_recording::{PACKET, Sound, SoundPacket};
use hawser_units::{Bitrate, Instant};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

/// The rate of sound with all headers: 50 packets a second, at 32 kb/s and with 80 bytes of headers each.
pub(crate) const RATE: Bitrate = Bitrate::from_bps(64_000);

/// The longest time between two looks at whether to stop.
const STOP_POLL: Duration = Duration::from_millis(20);

/// The difference from the time of the pictures beyond which sound leaves out or waits, seconds, instead of approaching
/// them by [`STEP_S`] with each packet.
const JUMP_S: f64 = 0.040;
const STEP_S: f64 = 0.000_5;

/// The time by which the clock of a sound card is slower than ours at most, for each packet, seconds: a thousandth.
const DRIFT_S: f64 = 0.000_02;

/// The lateness from which on a packet is left out.
const TOO_LATE: Duration = Duration::from_millis(100);

/// The thread of the sound.
pub(crate) struct Player {
    pub(crate) clock: SteadyClock,
    pub(crate) sound: Sound,
    pub(crate) playing: Arc<Playing>,
    pub(crate) messages: Sender<Message>,
    // Dropped after the messages, so that the network's thread finds their end when it wakes.
    pub(crate) waker: WakeOnDrop,
}

impl Player {
    /// Plays until the pictures end. If the sound ends before, the pictures go on.
    pub(crate) fn run(mut self) {
        let mut beginning = Beginning::default();
        while !self.playing.is_over() {
            match self.sound.next(STOP_POLL) {
                Ok(Some(packet)) => self.play(packet, &mut beginning),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(%error, "the sound has ended; the pictures go on");
                    return;
                }
            }
        }
    }

    fn play(&self, packet: SoundPacket, beginning: &mut Beginning) {
        let time_s = packet.time_s();
        let captured = match self.sound.is_live() {
            true => {
                // The time since its first sample.
                let held = packet.arrived.elapsed() + PACKET + packet.decoder_delay;
                let sample_s = seconds(self.clock.now() - held) - time_s;
                beginning.of_live(sample_s) + time_s
            }
            false => match self.wait(time_s, beginning) {
                Some(captured) => captured,
                None => return,
            },
        };
        let captured = Instant::from_nanos((captured.max(0.0) * 1e9) as u64);
        // If the network's thread has ended, it returns the reason.
        let _ = self.messages.send(Message::Sound {
            captured,
            packet: packet.bytes,
        });
        self.waker.0.wake();
    }

    /// Waits for a time of the recording. Returns that of our clock; `None` if it is over, or the pictures are.
    fn wait(&self, time_s: f64, beginning: &mut Beginning) -> Option<f64> {
        loop {
            if self.playing.is_over() {
                return None;
            }
            let now_s = seconds(self.clock.now());
            let due_s = self.playing.beginning_s();
            let due_s = due_s.map(|at| beginning.of_recording(at) + time_s);
            let left_s = due_s.map_or(STOP_POLL.as_secs_f64(), |due_s| due_s - now_s);
            if left_s <= 0.0 {
                let is_too_late = -left_s > TOO_LATE.as_secs_f64();
                beginning.settle();
                return due_s.filter(|_| !is_too_late);
            }
            thread::sleep(STOP_POLL.min(Duration::from_secs_f64(left_s)));
        }
    }
}

/// The time of our clock in seconds at which the sound began, without what moves each packet about.
#[derive(Debug, Default)]
struct Beginning {
    at_s: Option<f64>,
    /// The one of the next packet, if that is played now.
    next_s: Option<f64>,
}

impl Beginning {
    /// Follows the beginning of the pictures: by a little with each packet, or at once if it is far away.
    fn of_recording(&mut self, pictures_s: f64) -> f64 {
        let next_s = match self.at_s {
            Some(at_s) if (pictures_s - at_s).abs() <= JUMP_S => {
                at_s + (pictures_s - at_s).clamp(-STEP_S, STEP_S)
            }
            _ => pictures_s,
        };
        self.next_s = Some(next_s);
        next_s
    }

    /// Goes on from the newest packet.
    fn settle(&mut self) {
        self.at_s = self.next_s.or(self.at_s);
    }

    /// Follows the packets that were held up least.
    fn of_live(&mut self, sample_s: f64) -> f64 {
        let at_s = match self.at_s {
            // A pause of the device, whose packets have no numbers for it.
            Some(at_s) if sample_s - at_s > 5.0 * JUMP_S => sample_s,
            Some(at_s) => sample_s.min(at_s + DRIFT_S),
            None => sample_s,
        };
        self.at_s = Some(at_s);
        at_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sound_of_a_recording_approaches_the_pictures() {
        let mut beginning = Beginning::default();
        let mut play = |pictures_s: f64| {
            let at_s = beginning.of_recording(pictures_s);
            beginning.settle();
            (at_s * 1e4).round() / 1e4
        };
        assert_eq!(play(100.0), 100.0);
        assert_eq!(play(100.03), 100.0005);
        assert_eq!(play(100.0006), 100.0006, "as long as it is near");
        assert_eq!(play(99.0), 99.0, "pictures that were held up");
    }

    #[test]
    fn live_sound_was_captured_when_nothing_held_it_up() {
        let mut beginning = Beginning::default();
        let delays_s = [0.03, 0.0, 0.02, 0.04, 0.01];
        let at_s = delays_s.map(|delay_s| beginning.of_live(100.0 + delay_s));
        assert_eq!(at_s[0], 100.03);
        assert!(at_s[1..].iter().all(|at_s| (at_s - 100.0).abs() < 0.0001));
        assert_eq!(beginning.of_live(103.0), 103.0, "after a pause");
    }
}
