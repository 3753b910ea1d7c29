//! The round-trip time of every path: both nodes ask each other, and answer.
//!
//! A question is answered when the loop comes around; how long that took stands in the answer and is taken off, and the
//! kernel says when datagrams came. So the measure does not depend on how often the loop comes around.

use crate::config::{Config, Peer};
use hawser_io::stamped::StampedSocket;
use hawser_units::{Instant, PathId};
use hawser_wire::echo::{Echo, EchoKind};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};
use tracing::{debug, warn};

/// How often each path is asked.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// Questions that may still be answered: 5 s of them.
const MAX_OPEN: usize = 25;

/// A path is silent when no answer came for so long.
const SILENT_AFTER: Duration = Duration::from_secs(2);

/// Questions of a path that are answered between two of our own: twenty times as many as we ask.
const MAX_ANSWERS: u32 = 20;

/// How much of a new measurement goes into the smoothed one (RFC 6298, section 2.3).
const GAIN: f64 = 1.0 / 8.0;

/// All paths whose peer is known.
#[derive(Debug)]
pub(crate) struct Echoes {
    paths: BTreeMap<PathId, Line>,
    next: Instant,
}

/// One path.
#[derive(Debug)]
struct Line {
    path: PathId,
    interface: String,
    ends: (SocketAddr, SocketAddr),
    peer: Peer,
    /// While its interface is there, with the number that the interface had.
    socket: Option<(u32, StampedSocket)>,
    round_trip: RoundTrip,
    /// How many more questions are answered before we ask again.
    answers_left: u32,
}

/// What the answers say.
#[derive(Debug, Default)]
struct RoundTrip {
    next_number: u32,
    open: VecDeque<(u32, SystemTime)>,
    smoothed: Option<Duration>,
    answered: Option<Instant>,
}

impl Echoes {
    pub(crate) fn new(config: &Config) -> Self {
        let mut paths = BTreeMap::new();
        for (path, description) in &config.paths {
            let Some(peer) = description
                .peer
                .as_ref()
                .and_then(|name| config.peers.get(name))
            else {
                warn!(%path, "its round-trip time is not measured: several peers are known, and `peer` names none");
                continue;
            };
            let end = |address| SocketAddr::new(address, config.echo_port);
            let line = Line {
                path: *path,
                interface: description.interface.clone(),
                ends: (end(description.local), end(description.remote)),
                peer: peer.clone(),
                socket: None,
                round_trip: RoundTrip {
                    next_number: random(),
                    ..RoundTrip::default()
                },
                answers_left: MAX_ANSWERS,
            };
            paths.insert(*path, line);
        }
        Echoes {
            paths,
            next: Instant::ZERO,
        }
    }

    /// Takes over the keys of a configuration that was read again.
    pub(crate) fn reload(&mut self, config: &Config) {
        for line in self.paths.values_mut() {
            let name = config
                .paths
                .get(&line.path)
                .and_then(|path| path.peer.as_ref());
            if let Some(peer) = name.and_then(|name| config.peers.get(name)) {
                line.peer = peer.clone();
            }
        }
    }

    /// Uses the interfaces as they are now.
    pub(crate) fn follow(&mut self, number_of: impl Fn(&str) -> Option<u32>) {
        for line in self.paths.values_mut() {
            let number = number_of(&line.interface);
            if line.socket.as_ref().map(|(number, _)| *number) != number {
                line.socket = number.and_then(|number| Some((number, line.open()?)));
            }
        }
    }

    /// Answers and takes answers in; asks when it is time to.
    pub(crate) fn handle(&mut self, now: Instant) {
        let ask = now >= self.next;
        if ask {
            self.next = now + ASK_EVERY;
        }
        for line in self.paths.values_mut() {
            line.receive(now);
            if ask {
                line.ask();
            }
        }
    }

    /// The smoothed round-trip time of a path; none while the other node does not answer.
    pub(crate) fn round_trip(&self, path: PathId, now: Instant) -> Option<Duration> {
        self.paths.get(&path)?.round_trip.at(now)
    }
}

impl Line {
    fn open(&self) -> Option<StampedSocket> {
        let (local, remote) = self.ends;
        let opened = StampedSocket::open(&self.interface, local, remote);
        opened
            .inspect_err(|error| warn!(path = %self.path, "its round-trip time cannot be measured from {local}: {error}"))
            .ok()
    }

    fn receive(&mut self, now: Instant) {
        let mut buffer = [0; Echo::LEN + 1];
        while let Some((_, socket)) = &self.socket {
            let received = match socket.receive(&mut buffer) {
                Ok(Some(received)) => received,
                Ok(None) => return,
                // What the network said to an earlier question, such as that nobody listens there.
                Err(error) => {
                    debug!(path = %self.path, "{error}");
                    continue;
                }
            };
            let echo = Echo::parse(&buffer[..received.bytes], &self.peer.ring);
            let Some(echo) = echo.filter(|echo| echo.path == self.path) else {
                continue;
            };
            match echo.kind {
                EchoKind::Question => self.answer(echo, received.at),
                EchoKind::Answer => self.round_trip.answered(&echo, received.at, now),
            }
        }
    }

    fn ask(&mut self) {
        self.answers_left = MAX_ANSWERS;
        if self.socket.is_none() {
            return;
        }
        let number = self.round_trip.ask(SystemTime::now());
        self.send(&Echo {
            kind: EchoKind::Question,
            path: self.path,
            number,
            held_micros: 0,
        });
    }

    fn answer(&mut self, question: Echo, since: SystemTime) {
        let Some(left) = self.answers_left.checked_sub(1) else {
            return;
        };
        self.answers_left = left;
        let held = since.elapsed().unwrap_or_default();
        let held_micros = u32::try_from(held.as_micros()).unwrap_or(u32::MAX);
        self.send(&Echo {
            kind: EchoKind::Answer,
            held_micros,
            ..question
        });
    }

    fn send(&self, echo: &Echo) {
        let Some((_, socket)) = &self.socket else {
            return;
        };
        let bytes = echo.emit(self.peer.key.as_ref().map(|(slot, key)| (*slot, key)));
        if let Err(error) = socket.send(&bytes) {
            // The path is not heard of, which is what there is to be known of it.
            debug!(path = %self.path, "{error}");
        }
    }
}

impl RoundTrip {
    /// Notes a question that is sent now; returns its number.
    fn ask(&mut self, now: SystemTime) -> u32 {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        if self.open.len() == MAX_OPEN {
            self.open.pop_front();
        }
        self.open.push_back((number, now));
        number
    }

    fn answered(&mut self, answer: &Echo, at: SystemTime, now: Instant) {
        let Some(index) = self
            .open
            .iter()
            .position(|(number, _)| *number == answer.number)
        else {
            return;
        };
        let (_, asked) = self.open.remove(index).expect("the position was found");
        let held = Duration::from_micros(answer.held_micros.into());
        // A clock that was set meanwhile makes nonsense, and the next answer will not.
        let Some(sample) = at
            .duration_since(asked)
            .ok()
            .and_then(|all| all.checked_sub(held))
        else {
            return;
        };
        let before = self.at(now);
        let smoothed = before.map_or(sample, |before| {
            before.mul_f64(1.0 - GAIN) + sample.mul_f64(GAIN)
        });
        self.smoothed = Some(smoothed);
        self.answered = Some(now);
    }

    fn at(&self, now: Instant) -> Option<Duration> {
        let answered = self.answered?;
        self.smoothed
            .filter(|_| now.saturating_since(answered) < SILENT_AFTER)
    }
}

/// So that answers to an agent before this one are not taken for answers to this one.
fn random() -> u32 {
    // Without entropy the tags still keep strangers out.
    getrandom::u32().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wall(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000) + Duration::from_millis(millis)
    }

    fn now(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn answer(number: u32, held_millis: u32) -> Echo {
        let path = PathId::try_from(0).unwrap();
        Echo {
            kind: EchoKind::Answer,
            path,
            number,
            held_micros: held_millis * 1000,
        }
    }

    #[test]
    fn the_time_that_the_other_node_had_the_question_is_taken_off_and_the_rest_is_smoothed() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.at(now(0)), None);
        let number = round_trip.ask(wall(0));
        round_trip.answered(&answer(number, 9), wall(49), now(49));
        assert_eq!(round_trip.at(now(49)), Some(Duration::from_millis(40)));
        let number = round_trip.ask(wall(200));
        round_trip.answered(&answer(number, 0), wall(248), now(248));
        assert_eq!(round_trip.at(now(248)), Some(Duration::from_millis(41)));
    }

    #[test]
    fn a_path_that_is_not_answered_has_no_round_trip_time() {
        let mut round_trip = RoundTrip::default();
        let number = round_trip.ask(wall(0));
        round_trip.answered(&answer(number, 0), wall(10), now(10));
        assert_eq!(round_trip.at(now(2_009)), Some(Duration::from_millis(10)));
        assert_eq!(round_trip.at(now(2_010)), None);
        // What was before the silence says nothing about the path as it is now.
        let number = round_trip.ask(wall(5_000));
        round_trip.answered(&answer(number, 0), wall(5_090), now(5_090));
        assert_eq!(round_trip.at(now(5_090)), Some(Duration::from_millis(90)));
    }

    #[test]
    fn an_answer_counts_once_and_only_to_a_question() {
        let mut round_trip = RoundTrip::default();
        let number = round_trip.ask(wall(0));
        round_trip.answered(&answer(number.wrapping_add(1), 0), wall(1), now(1));
        assert_eq!(round_trip.at(now(1)), None);
        round_trip.answered(&answer(number, 0), wall(2), now(2));
        round_trip.answered(&answer(number, 0), wall(80), now(80));
        assert_eq!(round_trip.at(now(80)), Some(Duration::from_millis(2)));
        // More than the whole time cannot have been spent at the other node.
        let number = round_trip.ask(wall(100));
        round_trip.answered(&answer(number, 50), wall(120), now(120));
        assert_eq!(round_trip.at(now(120)), Some(Duration::from_millis(2)));
    }
}
