//! One end of WebRTC, which virtual time drives.

use super::packet::{FRAMES, PADDING, REPAIR};
use super::session;
use hawser_units::Instant;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{self, Duration};
use str0m::media::{MediaKind, Mid};
use str0m::net::{Protocol, Receive};
use str0m::rtp::{Extension, Ssrc};
use str0m::{Candidate, Event, IceCreds, Input, Output, Rtc, RtcConfig};

/// The number of the RTP header extension that numbers packets for the receiver's reports.
const TRANSPORT_NUMBER: u8 = 1;

/// One of the two ends.
pub(super) struct Endpoint {
    pub(super) rtc: Rtc,
    /// The start of virtual time.
    origin: time::Instant,
    side: Side,
    due: Instant,
    transmits: VecDeque<Vec<u8>>,
    events: VecDeque<Event>,
    is_open: bool,
}

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Publisher,
    Viewer,
}

impl Endpoint {
    pub(super) fn new(side: Side, origin: time::Instant, config: RtcConfig) -> Self {
        let mut rtc = configured(config, side).build(origin);
        connect(&mut rtc, side);
        Endpoint {
            rtc,
            origin,
            side,
            due: Instant::ZERO,
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            is_open: false,
        }
    }

    /// Returns whether packets of media can be sent.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns when [`handle_timeout`](Endpoint::handle_timeout) is due.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.due
    }

    /// Returns the time as WebRTC has it.
    pub(super) fn at(&self, now: Instant) -> time::Instant {
        self.origin + Duration::from_nanos(now.as_nanos())
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.handle(now, Input::Timeout(self.at(now)));
    }

    pub(super) fn handle_datagram(&mut self, now: Instant, datagram: &[u8]) {
        let contents = datagram.try_into();
        let receive = Receive {
            proto: Protocol::Udp,
            source: self.side.other().address(),
            destination: self.side.address(),
            contents: contents.expect("the other end sends what the protocols have"),
        };
        self.handle(now, Input::Receive(self.at(now), receive));
    }

    pub(super) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.transmits.pop_front()
    }

    fn handle(&mut self, now: Instant, input: Input<'_>) {
        // A figure of a session that broke would mean nothing.
        let handled = self.rtc.handle_input(input);
        handled.expect("an end takes what the other sends");
        self.drain(now);
    }

    fn drain(&mut self, now: Instant) {
        loop {
            let output = self.rtc.poll_output();
            match output.expect("an end takes what the other sends") {
                Output::Timeout(at) => {
                    let due = at.saturating_duration_since(self.origin);
                    self.due = now.max(Instant::ZERO + due);
                    return;
                }
                Output::Transmit(transmit) => self.transmits.push_back(transmit.contents.into()),
                Output::Event(Event::Connected) => self.is_open = true,
                Output::Event(event) => self.events.push_back(event),
            }
        }
    }
}

impl Side {
    fn other(self) -> Self {
        match self {
            Side::Publisher => Side::Viewer,
            Side::Viewer => Side::Publisher,
        }
    }

    fn address(self) -> SocketAddr {
        let host = match self {
            Side::Publisher => 1,
            Side::Viewer => 2,
        };
        SocketAddr::from((Ipv4Addr::new(192, 0, 2, host), 5004))
    }

    /// Returns what connectivity checks are addressed and signed with.
    fn credentials(self) -> IceCreds {
        let (ufrag, pass) = match self {
            Side::Publisher => ("publ", "the password of the publisher"),
            Side::Viewer => ("view", "the password of the viewer"),
        };
        IceCreds {
            ufrag: ufrag.to_owned(),
            pass: pass.to_owned(),
        }
    }
}

fn configured(config: RtcConfig, side: Side) -> RtcConfig {
    config
        .set_crypto_provider(Arc::new(session::provider()))
        .set_local_ice_credentials(side.credentials())
        .clear_codecs()
        .enable_vp8(true)
        .clear_extension_map()
        .set_extension(TRANSPORT_NUMBER, Extension::TransportSequenceNumber)
        .set_rtp_mode(true)
}

/// Tells an end of the other, as an offer and its answer do.
fn connect(rtc: &mut Rtc, side: Side) {
    let candidate = |side: Side| {
        let candidate = Candidate::host(side.address(), "udp");
        candidate.expect("a host has an address and a port")
    };
    rtc.add_local_candidate(candidate(side));
    rtc.add_remote_candidate(candidate(side.other()));
    let is_publisher = side == Side::Publisher;
    let mut direct = rtc.direct_api();
    direct.set_ice_controlling(is_publisher);
    direct.set_remote_ice_credentials(side.other().credentials());
    // Both have the same certificate.
    let certificate = direct.local_dtls_fingerprint().clone();
    direct.set_remote_fingerprint(certificate);
    let started = direct.start_dtls(is_publisher);
    started.expect("the handshake has not begun");
}

/// Declares the streams at an end. `str0m` asks for what was lost by itself, but only for the newest
/// 100 packets and every 33 ms, in which three times as many arrive: the ends do so instead.
pub(super) fn declare(rtc: &mut Rtc, side: Side) {
    let mut direct = rtc.direct_api();
    let padding = Some(PADDING.into());
    for (number, name, padding) in [(FRAMES, "frames", padding), (REPAIR, "repair", None)] {
        let (ssrc, mid) = (Ssrc::from(number), Mid::from(name));
        direct.declare_media(mid, MediaKind::Video);
        match side {
            Side::Publisher => {
                direct.declare_stream_tx(ssrc, padding, mid, None);
            }
            Side::Viewer => {
                let stream = direct.expect_stream_rx(ssrc, padding, mid, None);
                stream.suppress_nack(true);
            }
        }
    }
    if side == Side::Viewer {
        direct.enable_twcc_feedback();
    }
}
