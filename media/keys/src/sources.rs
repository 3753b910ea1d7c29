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

/// The time without a datagram after which another source is asked. A source answers each report, of which there is
/// one in a second.
const QUIET: Duration = Duration::from_millis(1500);

/// The same, if the network says that nobody receives at the address.
const REFUSED: Duration = Duration::from_millis(300);

/// The time in which a source answers the request for a session.
const ATTEMPT: Duration = Duration::from_secs(1);

/// The time without media after which a source is left: it may have lost the stream itself, or its path does not carry
/// packets of this length.
const NO_MEDIA: Duration = Duration::from_secs(3);

/// The sources of a track as the controller orders them, and which of them did not answer.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    list: Vec<TrackSource>,
    failed: BTreeMap<SocketAddr, Failure>,
    /// The number of packets of media so far, and when it last changed.
    media: Option<(u64, Instant)>,
}

/// The last time that a source did not answer, and how often it did not since media arrived from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Failure {
    at: Instant,
    times: u32,
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

impl Sources {
    /// Takes another list, the best first.
    pub(crate) fn replace(&mut self, list: Vec<TrackSource>) {
        let is_listed = |address: &SocketAddr| list.iter().any(|of| of.serving.address == *address);
        self.failed.retain(|address, _| is_listed(address));
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

    /// Returns the address to try next: the first that has not failed lately, or that which failed first.
    pub(crate) fn next(&self, now: Instant) -> Option<SocketAddr> {
        let addresses = self.list.iter().map(|of| of.serving.address);
        addresses.min_by_key(|address| {
            let has_just_failed = self.has_failed(now, address, AGAIN);
            let order = has_just_failed.then(|| self.failed.get(address));
            (order, self.is_distrusted(now, address))
        })
    }

    /// Returns whether to ask another source than this one, which does not answer or has no media.
    pub(crate) fn has_to_leave(&mut self, now: Instant, contact: &Contact) -> bool {
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
    fn has_other(&self, now: Instant, current: SocketAddr) -> bool {
        (self.others(current)).any(|other| !self.has_failed(now, &other, AGAIN))
    }

    fn others(&self, current: SocketAddr) -> impl Iterator<Item = SocketAddr> {
        let addresses = self.list.iter().map(|of| of.serving.address);
        addresses.filter(move |address| *address != current)
    }

    /// Returns whether viewers who get the stream from this address should rather go to a relay, because they have
    /// it from the publisher and a relay has room.
    pub(crate) fn has_better(&self, now: Instant, current: SocketAddr) -> bool {
        let current = (self.list.iter()).find(|of| of.serving.address == current);
        let is_publisher = current.is_some_and(|of| of.role == TrackRole::Writer);
        let is_better = |of: &TrackSource| {
            let address = &of.serving.address;
            of.role == TrackRole::Relay
                && of.serving.has_room()
                && !self.is_distrusted(now, address)
        };
        is_publisher && self.list.first().is_some_and(is_better)
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

    #[test]
    fn a_viewer_of_the_publisher_goes_to_a_relay_with_room() {
        let (mut sources, now) = (sources(), Instant::ZERO);
        assert!(sources.has_better(now, address(3)));
        assert!(!sources.has_better(now, address(2)), "it is a relay");
        assert!(
            !sources.has_better(now, address(9)),
            "it is no longer listed"
        );
        sources.fail(now, address(1));
        assert!(!sources.has_better(now + AGAIN, address(3)));
        assert!(sources.has_better(now + TRUSTED, address(3)));
        let publisher = source(3, TrackRole::Writer, 0);
        sources.replace(vec![publisher, source(1, TrackRole::Relay, 10)]);
        assert!(!sources.has_better(now + TRUSTED, address(3)), "it is full");
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
        for doubled in 0..8 {
            sources.fail(now, address(1));
            let trusted = TRUSTED * (1 << doubled.min(MAX_DOUBLED));
            assert!(!sources.has_better(now + trusted - AGAIN, address(3)));
            now += trusted;
            assert!(sources.has_better(now, address(3)), "{doubled}");
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
        assert!(sources.has_better(now + TRUSTED, address(3)));
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
