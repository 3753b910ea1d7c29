//! The choice among those who serve a track.

use hawser_model::track::{TrackRole, TrackSource};
use hawser_units::Instant;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// The time for which others are tried before a source that did not answer.
const AGAIN: Duration = Duration::from_secs(3);

/// The time after which a source that did not answer is preferred again, and a stream that arrives is left for it.
/// The controller still names one that is dead for some time. It doubles with each failure until media arrives.
const TRUSTED: Duration = Duration::from_secs(30);

/// The number of times that it doubles.
const MAX_DOUBLED: u32 = 5;

/// The time without a datagram after which other sources are probed. A source answers each report, of which there
/// are four in a second while nothing arrives.
const SUSPECT: Duration = Duration::from_millis(400);

/// The time without a datagram after which another source is asked. Two reports or their answers may be lost.
const QUIET: Duration = Duration::from_millis(800);

/// The same, if the network says that nobody receives at the address.
const REFUSED: Duration = Duration::from_millis(500);

/// The time in which a source answers the request for a session.
pub const ATTEMPT: Duration = Duration::from_secs(1);

/// The time without media after which a source is left: it may have lost the stream itself, or its path does not carry
/// packets of this length.
pub const NO_MEDIA: Duration = Duration::from_secs(3);

/// The number of sources whose delay is measured: the first ones of the controller's order.
const PROBED: usize = 8;

/// The time between two measurements of a source's delay, and the same while the stream is suspected to have ended.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);
const PROBE_SOON: Duration = Duration::from_secs(1);

/// The time for which a program that has no session waits for the answers before it chooses.
const WORTH_WAITING: Duration = Duration::from_millis(250);

/// The least difference of delays that counts. Among sources that are as near as the nearest, the load decides.
const NEAR: Duration = Duration::from_millis(10);

/// The least gain for which a source that works is left for a nearer one, and as a part of the delay, and the time
/// after a move before the next one.
const GAIN: Duration = Duration::from_millis(20);
const GAIN_PART: u32 = 4;
const SETTLED: Duration = Duration::from_secs(10);

/// The sources of a track as the controller orders them, which of them did not answer, and their delays.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    list: Vec<TrackSource>,
    failed: BTreeMap<SocketAddr, Failure>,
    probed: BTreeMap<SocketAddr, Probed>,
    /// The number of packets of media so far, and when it last changed.
    media: Option<(u64, Instant)>,
    /// The source of the session that is open, and since when.
    opened: Option<(SocketAddr, Instant)>,
}

/// The last time that a source did not answer, and how often it did not since media arrived from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Failure {
    at: Instant,
    times: u32,
}

/// The newest measurement of a source's delay.
#[derive(Debug, Clone, Copy)]
struct Probed {
    sent: Instant,
    /// The round trip; `None` before the answer.
    delay: Option<Duration>,
}

/// The state of a session with a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    /// The address of the source.
    pub address: SocketAddr,
    /// Whether the session is open.
    pub is_open: bool,
    /// Whether the network says that nobody receives at the address.
    pub is_refused: bool,
    /// The time since the newest datagram or, if none has arrived, since the session was requested.
    pub silence: Duration,
    /// The number of packets of media so far.
    pub packets: u64,
    /// Whether the program is to leave a source that the controller names if no media arrives. A relay stays: it may
    /// have asked for none.
    pub wants_media: bool,
}

impl Contact {
    /// Returns whether nothing has arrived for so long that the source may be gone.
    pub fn is_silent(&self) -> bool {
        self.silence >= SUSPECT
    }
}

impl Sources {
    /// Takes another list, the best first.
    pub(crate) fn replace(&mut self, list: Vec<TrackSource>) {
        let is_listed = |address: &SocketAddr| list.iter().any(|of| of.serving.address == *address);
        self.failed.retain(|address, _| is_listed(address));
        self.probed.retain(|address, _| is_listed(address));
        self.list = list;
    }

    /// Records that a source does not answer.
    pub(crate) fn fail(&mut self, now: Instant, address: SocketAddr) {
        let failure = self
            .failed
            .entry(address)
            .or_insert(Failure { at: now, times: 0 });
        failure.at = now;
        failure.times = failure.times.saturating_add(1);
    }

    /// Returns the next source whose delay is to be measured now.
    pub(crate) fn poll_probe(
        &mut self,
        now: Instant,
        contact: Option<&Contact>,
    ) -> Option<SocketAddr> {
        if self.list.len() < 2 {
            return None;
        }
        let works = |contact: &&Contact| contact.is_open && !contact.is_silent();
        let interval = match contact.filter(works) {
            Some(_) => PROBE_INTERVAL,
            None => PROBE_SOON,
        };
        let is_due = |address: &SocketAddr| {
            let probed = self.probed.get(address);
            probed.is_none_or(|probed| now.saturating_since(probed.sent) >= interval)
        };
        let first = self.list.iter().take(PROBED);
        let mut addresses = first.map(|of| of.serving.address);
        let address = addresses.find(is_due)?;
        let probed = Probed {
            sent: now,
            delay: None,
        };
        self.probed.insert(address, probed);
        Some(address)
    }

    /// Records that the answer of a source to the last probe has arrived.
    pub(crate) fn answered(&mut self, address: SocketAddr, delay: Duration) {
        if let Some(probed) = self.probed.get_mut(&address) {
            probed.delay = Some(delay);
        }
    }

    /// Returns whether an answer that is worth waiting for may still come before a session is requested.
    pub(crate) fn awaits_answer(&self, now: Instant) -> bool {
        let awaits = |probed: &Probed| {
            probed.delay.is_none() && now.saturating_since(probed.sent) < WORTH_WAITING
        };
        self.probed.values().any(awaits)
    }

    /// Returns the address to try next: the best of those that have not failed lately, or that which failed first.
    pub(crate) fn next(&self, now: Instant) -> Option<SocketAddr> {
        self.best(now, |_| true).map(|of| of.serving.address)
    }

    /// Returns the best of the sources that `may` be taken: one with room that answers, a relay for viewers, the
    /// nearest, the least loaded.
    fn best(&self, now: Instant, may: impl Fn(&TrackSource) -> bool) -> Option<&TrackSource> {
        let delay = |of: &TrackSource| self.probed.get(&of.serving.address)?.delay;
        let nearest = self.list.iter().filter_map(delay).min();
        let near = nearest.unwrap_or_default();
        let near = near + NEAR.max(near / GAIN_PART);
        let preferred = self.list.first().map(|of| of.role);
        let candidates = self.list.iter().filter(|of| may(of));
        candidates.min_by_key(|of| {
            let address = &of.serving.address;
            let has_just_failed = self.has_failed(now, address, AGAIN);
            (
                has_just_failed.then(|| self.failed.get(address)),
                self.is_distrusted(now, address),
                !of.serving.has_room(),
                delay(of).is_none(),
                Some(of.role) != preferred,
                delay(of).filter(|delay| *delay > near),
            )
        })
    }

    /// Returns whether to ask another source than this one, which does not answer or has no media.
    pub(crate) fn has_to_leave(&mut self, now: Instant, contact: &Contact) -> bool {
        if !contact.is_open {
            self.opened = None;
        } else if self.opened.is_none_or(|(of, _)| of != contact.address) {
            (self.opened, self.media) = (Some((contact.address, now)), None);
        }
        let before = self.media.filter(|_| contact.is_open);
        if before.is_some_and(|(packets, _)| packets < contact.packets) {
            self.failed.remove(&contact.address);
        }
        let before = before.filter(|(packets, _)| *packets == contact.packets);
        let (_, media_at) = *self.media.insert(before.unwrap_or((contact.packets, now)));
        let limit = match (contact.is_open, contact.is_refused) {
            (true, false) => QUIET,
            (true, true) => REFUSED,
            (false, true) => Duration::ZERO,
            (false, false) => ATTEMPT,
        };
        let is_listed = |of: &TrackSource| of.serving.address == contact.address;
        let is_without_media = now.saturating_since(media_at) >= NO_MEDIA;
        let is_left = !self.list.iter().any(is_listed)
            || contact.wants_media
                && (self.others(contact.address)).any(|other| !self.is_distrusted(now, &other));
        let is_useless = is_without_media && is_left;
        (contact.silence >= limit || is_useless) && self.has_other(now, contact.address)
    }

    /// Returns whether there is another source than this one that has not failed lately.
    pub(crate) fn has_other(&self, now: Instant, current: SocketAddr) -> bool {
        (self.others(current)).any(|other| !self.has_failed(now, &other, AGAIN))
    }

    fn others(&self, current: SocketAddr) -> impl Iterator<Item = SocketAddr> {
        let addresses = self.list.iter().map(|of| of.serving.address);
        addresses.filter(move |address| *address != current)
    }

    /// Returns the relay to which viewers who get the stream from this address should rather go: they have it from
    /// the publisher, or from a relay that is much farther away.
    pub(crate) fn better(&self, now: Instant, current: SocketAddr) -> Option<SocketAddr> {
        let delay = |address: &SocketAddr| self.probed.get(address)?.delay;
        let from = (self.list.iter()).find(|of| of.serving.address == current)?;
        let is_relay_with_room = |of: &TrackSource| {
            let address = &of.serving.address;
            of.role == TrackRole::Relay
                && *address != current
                && of.serving.has_room()
                && !self.is_distrusted(now, address)
                && delay(address).is_some()
        };
        let best = self.best(now, is_relay_with_room)?.serving.address;
        let is_better = from.role == TrackRole::Writer || {
            let [before, after] = [delay(&current)?, delay(&best)?];
            let is_settled = (self.opened)
                .is_some_and(|(of, since)| of == current && now.saturating_since(since) >= SETTLED);
            is_settled && before >= after + GAIN.max(before / GAIN_PART)
        };
        is_better.then_some(best)
    }

    fn has_failed(&self, now: Instant, address: &SocketAddr, lately: Duration) -> bool {
        let failed = self.failed.get(address);
        failed.is_some_and(|failure| now.saturating_since(failure.at) < lately)
    }

    /// Returns whether a source has failed so lately, or so often, that a stream that arrives is not left for it.
    fn is_distrusted(&self, now: Instant, address: &SocketAddr) -> bool {
        let times = self.failed.get(address).map_or(0, |failure| failure.times);
        let doubled = times.saturating_sub(1).min(MAX_DOUBLED);
        self.has_failed(now, address, TRUSTED * (1 << doubled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_model::track::Serving;
    use std::collections::VecDeque;

    fn address(host: u8) -> SocketAddr {
        ([192, 0, 2, host], 14748).into()
    }

    fn source(host: u8, role: TrackRole, viewers: u32) -> TrackSource {
        TrackSource {
            node: format!("n{host}").parse().unwrap(),
            role,
            serving: Serving {
                address: address(host),
                viewers,
                max_viewers: 10,
            },
        }
    }

    /// Two relays and the publisher.
    fn sources() -> Sources {
        let mut sources = Sources::default();
        let relays = [1, 2].map(|host| source(host, TrackRole::Relay, 0));
        sources.replace([&relays[..], &[source(3, TrackRole::Writer, 0)]].concat());
        sources
    }

    #[test]
    fn one_that_does_not_answer_is_tried_after_the_others() {
        let (mut sources, now) = (sources(), Instant::ZERO);
        for host in 1..=3 {
            assert_eq!(sources.next(now), Some(address(host)));
            assert_eq!(sources.has_other(now, address(host)), host < 3);
            sources.fail(now + Duration::from_millis(host.into()), address(host));
        }
        let later = now + Duration::from_millis(9);
        assert_eq!(sources.next(later), Some(address(1)), "it failed first");
        sources.fail(later, address(1));
        assert_eq!(sources.next(later), Some(address(2)));
        assert!(!sources.has_other(later, address(2)));
        assert!(sources.has_other(later + AGAIN, address(2)));
        let mut one = self::sources();
        one.fail(now, address(1));
        assert_eq!(one.next(now + AGAIN), Some(address(2)));
        assert_eq!(one.next(now + TRUSTED), Some(address(1)));
    }

    /// Measures the delay of each source: one millisecond for each number of its host.
    fn probe(sources: &mut Sources, now: Instant) {
        while let Some(address) = sources.poll_probe(now, None) {
            let SocketAddr::V4(of) = address else {
                panic!("{address}")
            };
            let [.., host] = of.ip().octets();
            sources.answered(address, Duration::from_millis(host.into()));
        }
    }

    #[test]
    fn a_viewer_of_the_publisher_goes_to_a_relay_with_room() {
        let (mut sources, now) = (sources(), Instant::ZERO);
        assert_eq!(sources.better(now, address(3)), None, "none has answered");
        probe(&mut sources, now);
        assert_eq!(sources.better(now, address(3)), Some(address(1)));
        assert_eq!(sources.better(now, address(2)), None, "it is a relay");
        assert_eq!(
            sources.better(now, address(9)),
            None,
            "it is no longer listed"
        );
        sources.fail(now, address(1));
        assert_eq!(sources.better(now, address(3)), Some(address(2)));
        sources.fail(now, address(2));
        assert_eq!(sources.better(now + AGAIN, address(3)), None);
        let later = now + TRUSTED;
        assert!(sources.better(later, address(3)).is_some());
        let publisher = source(3, TrackRole::Writer, 0);
        sources.replace(vec![publisher, source(1, TrackRole::Relay, 10)]);
        assert_eq!(sources.better(later, address(3)), None, "it is full");
    }

    #[test]
    fn a_viewer_moves_to_a_much_nearer_relay_but_not_at_once() {
        let (mut sources, now) = (Sources::default(), Instant::ZERO);
        let hosts = [60, 70, 35, 30, 200];
        sources.replace(hosts.map(|host| source(host, TrackRole::Relay, 0)).into());
        assert_eq!(sources.next(now), Some(address(60)), "the least loaded");
        probe(&mut sources, now);
        assert_eq!(
            sources.next(now),
            Some(address(35)),
            "30 ms are no nearer, and the load decides"
        );
        let at = |host| Contact {
            address: address(host),
            is_open: true,
            is_refused: false,
            silence: Duration::ZERO,
            packets: 0,
            wants_media: true,
        };
        for (host, better) in [(60, Some(30)), (30, None), (35, None), (45, None)] {
            let mut sources = Sources::default();
            let hosts = [host, 30, 35];
            sources.replace(hosts.map(|host| source(host, TrackRole::Relay, 0)).into());
            probe(&mut sources, now);
            sources.has_to_leave(now, &at(host));
            let settled = now + SETTLED;
            assert_eq!(sources.better(settled, address(host)), better.map(address));
            let early = settled - Duration::from_millis(1);
            assert_eq!(sources.better(early, address(host)), None);
        }
    }

    #[test]
    fn delays_are_measured_rarely_while_the_stream_arrives() {
        let (mut sources, mut now) = (sources(), Instant::ZERO);
        let mut contact = Contact {
            address: address(1),
            is_open: true,
            is_refused: false,
            silence: Duration::ZERO,
            packets: 0,
            wants_media: true,
        };
        let mut count = |now, contact: &Contact| {
            let probes = std::iter::from_fn(|| sources.poll_probe(now, Some(contact)));
            probes.count()
        };
        assert_eq!(count(now, &contact), 3);
        now += PROBE_SOON;
        assert_eq!(count(now, &contact), 0);
        contact.silence = SUSPECT;
        assert_eq!(count(now, &contact), 3);
        now += PROBE_INTERVAL;
        contact.silence = Duration::ZERO;
        assert_eq!(count(now, &contact), 3);
        let mut one = Sources::default();
        one.replace(vec![source(1, TrackRole::Relay, 0)]);
        assert_eq!(one.poll_probe(now, None), None, "there is no choice");
    }

    #[test]
    fn a_viewer_of_a_dead_relay_asks_a_living_one_within_a_second() {
        let (step, delay) = (Duration::from_millis(10), Duration::from_millis(80));
        for is_refused in [false, true] {
            let (mut sources, mut now) = (sources(), Instant::ZERO);
            sources.replace(
                [1, 3, 2]
                    .map(|host| source(host, TrackRole::Relay, 0))
                    .into(),
            );
            probe(&mut sources, now);
            now += PROBE_INTERVAL / 3;
            // The first two die. The controller does not know it yet.
            let mut answers: VecDeque<(Instant, SocketAddr)> = VecDeque::new();
            let mut contact = Contact {
                address: address(1),
                is_open: true,
                is_refused,
                silence: Duration::ZERO,
                packets: 7,
                wants_media: true,
            };
            while !sources.has_to_leave(now, &contact) {
                while let Some(probed) = sources.poll_probe(now, Some(&contact)) {
                    let lives = probed == address(2);
                    answers.extend(lives.then_some((now + delay, probed)));
                }
                while answers.front().is_some_and(|(at, _)| *at <= now) {
                    let answered = answers.pop_front();
                    answered
                        .iter()
                        .for_each(|(_, from)| sources.answered(*from, delay));
                }
                now += step;
                contact.silence += step;
            }
            sources.fail(now, contact.address);
            assert!(contact.silence < Duration::from_secs(1));
            assert_eq!(sources.next(now), Some(address(2)));
        }
    }

    #[test]
    fn a_source_without_answers_or_media_is_left() {
        let contact = |is_open, is_refused, silence| Contact {
            address: address(1),
            is_open,
            is_refused,
            silence,
            packets: 7,
            wants_media: false,
        };
        let leaves = |contact| sources().has_to_leave(Instant::ZERO, &contact);
        for (is_open, is_refused, limit) in [
            (true, false, QUIET),
            (true, true, REFUSED),
            (false, false, ATTEMPT),
        ] {
            let at = |silence| leaves(contact(is_open, is_refused, silence));
            assert!(
                at(limit) && !at(limit - Duration::from_millis(1)),
                "{limit:?}"
            );
        }
        assert!(leaves(contact(false, true, Duration::ZERO)));
        // Without media, one who wants it leaves, and others stay as long as the controller names the source.
        let (mut sources, open) = (sources(), contact(true, false, Duration::ZERO));
        assert!(!sources.has_to_leave(Instant::ZERO, &open));
        let later = Instant::ZERO + NO_MEDIA;
        assert!(!sources.has_to_leave(later, &open));
        let wanting = Contact {
            wants_media: true,
            ..open
        };
        assert!(sources.has_to_leave(later, &wanting));
        for host in [2, 3] {
            sources.fail(later - AGAIN, address(host));
        }
        assert!(!sources.has_to_leave(later, &wanting), "others have failed");
        sources.replace(vec![source(3, TrackRole::Writer, 0)]);
        assert!(sources.has_to_leave(later, &open));
        assert!(!sources.has_to_leave(later, &Contact { packets: 8, ..open }));
        sources.replace(Vec::new());
        assert!(
            !sources.has_to_leave(later + NO_MEDIA, &open),
            "there is no other"
        );
    }

    #[test]
    fn a_relay_that_fails_again_and_again_is_tried_less_often() {
        let (mut sources, mut now) = (sources(), Instant::ZERO);
        probe(&mut sources, now);
        for doubled in 0..8 {
            sources.fail(now, address(1));
            sources.fail(now, address(2));
            let trusted = TRUSTED * (1 << doubled.min(MAX_DOUBLED));
            assert_eq!(sources.better(now + trusted - AGAIN, address(3)), None);
            now += trusted;
            assert!(sources.better(now, address(3)).is_some(), "{doubled}");
        }
        let with = |packets| Contact {
            address: address(1),
            is_open: true,
            is_refused: false,
            silence: Duration::ZERO,
            packets,
            wants_media: true,
        };
        assert!(!sources.has_to_leave(now, &with(1)) && !sources.has_to_leave(now, &with(2)));
        sources.fail(now, address(1));
        let better = sources.better(now + TRUSTED, address(3));
        assert_eq!(better, Some(address(1)));
    }

    #[test]
    fn failures_of_unlisted_sources_are_forgotten() {
        let (mut sources, now) = (sources(), Instant::ZERO);
        sources.fail(now, address(1));
        sources.replace(vec![source(3, TrackRole::Writer, 0)]);
        sources.replace(vec![source(1, TrackRole::Relay, 0)]);
        assert_eq!(
            (sources.next(now), sources.failed.len()),
            (Some(address(1)), 0)
        );
        sources.replace(Vec::new());
        assert_eq!(sources.next(now), None);
    }
}
