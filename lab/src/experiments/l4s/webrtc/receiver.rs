//! The viewer: which frames are complete.

use super::endpoint::{Endpoint, Side, declare};
use super::packet::{FIRST_NUMBER, FRAMES, Part, REPAIR, request};
use crate::experiments::l4s::frames::Frame;
use hawser_units::Instant;
use std::collections::BTreeMap;
use std::time;
use str0m::{Event, RtcConfig};

/// The viewer's end.
pub(super) struct Receiver {
    endpoint: Endpoint,
    /// Which packets of each frame have not arrived.
    missing: BTreeMap<u32, Vec<bool>>,
    /// The number that the next packet of the stream of frames has if none is lost.
    next_number: u64,
}

impl Receiver {
    pub(super) fn new(origin: time::Instant) -> Self {
        let mut endpoint = Endpoint::new(Side::Viewer, origin, RtcConfig::new());
        declare(&mut endpoint.rtc, Side::Viewer);
        Receiver {
            endpoint,
            missing: BTreeMap::new(),
            next_number: FIRST_NUMBER,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.endpoint.is_open()
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.endpoint.poll_timeout()
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        if self.endpoint.poll_timeout() <= now {
            self.endpoint.handle_timeout(now);
        }
    }

    /// Takes a datagram of the publisher, and writes down which frames are complete.
    pub(super) fn handle_datagram(&mut self, now: Instant, datagram: &[u8], frames: &mut [Frame]) {
        self.endpoint.handle_datagram(now, datagram);
        while let Some(event) = self.endpoint.poll_event() {
            if let Event::RtpPacket(packet) = event {
                let part = Part::of(&packet.payload);
                if *packet.header.ssrc == FRAMES {
                    self.follow(now, *packet.seq_no);
                }
                if self.completes(part) {
                    frames[part.frame as usize].complete[0].get_or_insert(now);
                }
            }
        }
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.endpoint.poll_transmit()
    }

    /// Asks once for the packets that a packet of the stream of frames shows to be lost: none
    /// overtakes another.
    fn follow(&mut self, now: Instant, number: u64) {
        let lost = self.next_number..number;
        self.next_number = self.next_number.max(number + 1);
        if !lost.is_empty() {
            let mut direct = self.endpoint.rtc.direct_api();
            direct.send_app_specific_feedback(REPAIR.into(), FRAMES.into(), request(&lost));
            self.endpoint.handle_timeout(now);
        }
    }

    /// Takes a packet. Returns whether it is the last that its frame needs.
    fn completes(&mut self, part: Part) -> bool {
        let missing = self.missing.entry(part.frame);
        let missing = missing.or_insert_with(|| vec![true; part.count]);
        missing[part.index] = false;
        !missing.contains(&true)
    }
}
