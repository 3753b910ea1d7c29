//! The viewer of the media flow, and what both ends have agreed on.

use super::frames::{self, Frame};
use super::scenario::{Controller, REPORT_INTERVAL};
use hawser_objects::{ReceiverEvent, TrackSecret, ViewerConfig, ViewerEvent};
use hawser_packets::session::{Announcement, Track};
use hawser_units::{Ecn, Instant};
use std::time::Duration;

/// The track's number.
pub(super) const ALIAS: u32 = 1;

/// The publisher's incarnation. Time and keys are virtual: nothing is sealed twice.
const INCARNATION: [u8; 16] = [0x22; 16];

/// The time by which the viewer's clock is ahead of the publisher's.
const AHEAD: Duration = Duration::from_secs(3600);

/// The viewer of the media flow.
pub(super) struct Viewer {
    inner: hawser_objects::Viewer,
}

pub(super) fn secret() -> TrackSecret {
    TrackSecret::new([0x11; 32])
}

pub(super) fn announcement(controller: Controller) -> Announcement {
    let layers = u8::try_from(controller.layers().len()).expect("few layers");
    Announcement {
        incarnation: INCARNATION,
        started_unix_millis: 0,
        tracks: vec![Track {
            alias: ALIAS,
            codec: 1,
            layers,
            name: "talker".to_owned(),
            parameters: Vec::new(),
        }],
    }
}

impl Viewer {
    pub(super) fn new() -> Self {
        let config = ViewerConfig::default();
        assert_eq!(config.receiver.reports.interval, REPORT_INTERVAL);
        Viewer {
            inner: hawser_objects::Viewer::new(config, secret(), [0x55; 16]),
        }
    }

    /// Returns when [`handle_timeout`](Viewer::handle_timeout) or
    /// [`poll_transmit`](Viewer::poll_transmit) is due.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout().map(|due| due - AHEAD)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            self.inner.handle_timeout(now + AHEAD);
        }
    }

    /// Returns the next message to the publisher.
    pub(super) fn poll_transmit(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.inner.poll_transmit(now + AHEAD)
    }

    /// Takes a datagram, and writes down which frames are complete.
    pub(super) fn handle_datagram(
        &mut self,
        now: Instant,
        datagram: &[u8],
        ecn: Ecn,
        frames: &mut [Frame],
    ) {
        if let Err(error) = self.inner.handle_datagram(now + AHEAD, datagram, ecn) {
            tracing::debug!("a datagram of the publisher is refused: {error}");
        }
        while let Some(event) = self.inner.poll_event() {
            if let ViewerEvent::Opened(announcement) = event {
                let tracks = announcement.tracks.iter().map(|t| (t.alias, t.layers));
                self.inner.subscribe(now + AHEAD, tracks.collect());
            }
        }
        while let Some(event) = self.inner.poll_media() {
            if let ReceiverEvent::Object(object) = event {
                frames::complete(frames, &object.id, now);
            }
        }
    }
}
