use hawser_objects::{ReceiverEvent, TrackTiming};
use hawser_packets::media::MediaTime;
use hawser_packets::session::Announcement;
use hawser_units::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// The longest packet of Opus, in bytes (RFC 6716, section 3.2.1, with a code of 0).
const LONGEST: usize = 1276;

/// The most packets that wait to be taken: more than a second.
const WAITING: usize = 64;

/// A packet of Opus of 20 ms.
#[derive(Debug, Clone, PartialEq)]
pub struct SoundPacket {
    /// The number of the packet: those of a publisher follow each other.
    pub number: u32,
    /// The capture of its first sample, in milliseconds of the clock that [`Decoded`](crate::Decoded) also has.
    pub captured_ms: f64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The track of sound, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Sound {
    alias: Option<u32>,
    lifetime: Duration,
    waiting: VecDeque<SoundPacket>,
}

/// The publisher's clock, without the wrapping of its time stamps.
#[derive(Debug, Default)]
pub(crate) struct PublisherClock(Option<Instant>);

impl PublisherClock {
    /// Returns the time of a capture, in milliseconds since any instant.
    pub(crate) fn captured_ms(&mut self, deadline: MediaTime, lifetime: Duration) -> f64 {
        // The first time is far from the ends.
        let middle = Instant::ZERO + Duration::from_millis(1 << 40);
        let deadline = deadline.nearest(self.0.unwrap_or(middle));
        self.0 = Some(deadline);
        ((deadline - lifetime).as_nanos() / 1_000) as f64 / 1e3
    }
}

impl Sound {
    pub(crate) fn of(announcement: &Announcement) -> Self {
        let mut tracks = announcement.tracks.iter();
        let found = tracks.find(|track| track.is_sound());
        let timing = found.and_then(|track| TrackTiming::parse(&track.parameters));
        Sound {
            alias: found.map(|track| track.alias),
            lifetime: timing.map(|timing| timing.lifetime).unwrap_or_default(),
            waiting: VecDeque::new(),
        }
    }

    /// Takes an event, if it is one of this track.
    pub(crate) fn take(&mut self, event: &ReceiverEvent, clock: &mut PublisherClock) -> bool {
        let id = match event {
            ReceiverEvent::Packet { id, .. } => &id.object,
            ReceiverEvent::Object(object) => &object.id,
            ReceiverEvent::GivenUp { id, .. } => id,
        };
        if Some(id.alias) != self.alias {
            return false;
        }
        if let ReceiverEvent::Object(object) = event
            && object.payloads.iter().map(|part| part.len()).sum::<usize>() <= LONGEST
        {
            self.waiting.push_back(SoundPacket {
                number: id.group,
                captured_ms: clock.captured_ms(object.begun.deadline, self.lifetime),
                bytes: object.payloads.concat(),
            });
            if self.waiting.len() > WAITING {
                self.waiting.pop_front();
            }
        }
        true
    }

    pub(crate) fn poll(&mut self) -> Option<SoundPacket> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_keep_their_distance_when_time_stamps_wrap() {
        let mut clock = PublisherClock::default();
        let lifetime = Duration::from_millis(150);
        let mut at = |stamp: u32| clock.captured_ms(MediaTime(stamp), lifetime);
        let first = at(u32::MAX - 9);
        assert_eq!(at(10) - first, 20.0);
        assert_eq!(at(u32::MAX) - first, 9.0);
    }
}
