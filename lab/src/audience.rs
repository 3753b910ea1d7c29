//! Viewers with real sessions, which verify packets, reassemble frames and decode nothing.

use anyhow::{Context, Result};
use hawser_io::clock;
use hawser_io::udp::{self, UdpSocket};
use hawser_netem::{Link, LinkConfig};
use hawser_objects::{
    Encodings, FrameAssembler, FrameConfig, ReceivedFrame, ReceiverConfig, TrackSecret,
    TrackTiming, Viewer, ViewerConfig, ViewerEvent,
};
use hawser_packets::media::VERSION;
use hawser_packets::session::Announcement;
use hawser_units::{ByteSize, Ecn, Instant};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Bytes of the headers in front of a datagram.
const HEADERS: u64 = 28;

/// The time after which a frame is shown without the layers that are missing, if the publisher does not announce it.
const LIFETIME: Duration = Duration::from_millis(150);

/// The pause before a new session is asked for.
const PAUSE: Duration = Duration::from_millis(500);

/// A frame that could be decoded. Times are those of the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    pub(crate) group: u32,
    /// `None` if the clocks were not related, or the publisher announces no lifetime of frames.
    pub(crate) captured: Option<Instant>,
    pub(crate) completed: Instant,
    /// The encoded size of what arrived in time.
    pub(crate) size: ByteSize,
    /// Whether it had all layers.
    pub(crate) is_whole: bool,
}

/// A viewer.
pub(crate) struct Member {
    socket: UdpSocket,
    relay: SocketAddr,
    pub(crate) asked: Instant,
    pub(crate) view: View,
    /// The frames that the viewer would see behind another path, of which the relay learns nothing.
    pub(crate) behind: Option<View>,
}

/// The session of a viewer and what it sees.
pub(crate) struct View {
    secret: [u8; 32],
    number: u64,
    /// The number of sessions that have ended.
    ended: u64,
    viewer: Viewer,
    assembler: FrameAssembler,
    /// The time from capture to deadline, if the publisher announces it.
    lifetime: Option<Duration>,
    /// The time at which a new session is asked for, if this one has ended.
    again_at: Option<Instant>,
    /// The path that its packets take, if it is not the cable alone.
    path: Option<Link<(Vec<u8>, Ecn)>>,
    pub(crate) shown: Vec<Shown>,
    /// The bytes of media that arrived.
    pub(crate) media: ByteSize,
}

impl Member {
    /// Opens the socket. `secret` has the bytes of the broadcast's secret, `number` differs from that of
    /// other viewers.
    pub(crate) fn open(
        own: IpAddr,
        relay: SocketAddr,
        secret: [u8; 32],
        number: u64,
    ) -> Result<Self> {
        let socket = UdpSocket::bind((own, 0).into()).context("cannot view")?;
        Ok(Member {
            socket,
            relay,
            asked: clock::monotonic(),
            view: View::new(secret, number),
            behind: None,
        })
    }

    /// Sees what arrives a second time, behind a path that [`View::set_path`] sets. As the relay knows only of what
    /// arrives here, nothing that is lost there is repeated, and the rate does not adapt to it.
    pub(crate) fn see_behind(&mut self, secret: [u8; 32], number: u64) {
        self.behind = Some(View::new(secret, number));
    }

    /// Returns the number of packets that were dropped at the socket, because nobody read them in time.
    pub(crate) fn drops(&self) -> Result<u32> {
        Ok(self.socket.drops()?)
    }

    fn run(&mut self) -> Result<()> {
        let Member {
            socket,
            view,
            behind,
            ..
        } = self;
        let received = socket.receive(|datagram| {
            let now = clock::monotonic();
            for view in [Some(&mut *view), behind.as_mut()].into_iter().flatten() {
                view.handle(now, datagram.bytes, datagram.ecn);
            }
        });
        let mut is_refused = received.as_ref().is_err_and(udp::is_refused);
        udp::unless_of_a_peer(received)?;
        let now = clock::monotonic();
        for view in [Some(&mut *view), behind.as_mut()].into_iter().flatten() {
            view.advance(now);
        }
        while let Some(message) = self.view.viewer.poll_transmit(now) {
            // Messages are repeated.
            let sent = self.socket.send(self.relay, Ecn::NotEct, &message);
            is_refused |= sent.as_ref().is_err_and(udp::is_refused);
        }
        if is_refused {
            self.view.viewer.handle_refused(now);
        }
        if let Some(behind) = &mut self.behind {
            while behind.viewer.poll_transmit(now).is_some() {}
        }
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let behind = self.behind.as_ref().and_then(View::poll_timeout);
        [self.view.poll_timeout(), behind]
            .into_iter()
            .flatten()
            .min()
    }
}

impl View {
    fn new(secret: [u8; 32], number: u64) -> Self {
        View {
            secret,
            number,
            ended: 0,
            viewer: viewer(secret, number, 0),
            assembler: assembler(BTreeMap::new(), Encodings::default(), LIFETIME),
            lifetime: None,
            again_at: None,
            path: None,
            shown: Vec::new(),
            media: ByteSize(0),
        }
    }

    /// Has its packets take an emulated path, or the cable alone.
    pub(crate) fn set_path(&mut self, path: Option<LinkConfig>) {
        self.path = path.map(|path| Link::new(path, 1, clock::monotonic()));
    }

    fn handle(&mut self, now: Instant, bytes: &[u8], ecn: Ecn) {
        match &mut self.path {
            Some(path) => {
                let size = ByteSize(bytes.len() as u64 + HEADERS);
                path.push(now, size, (bytes.to_vec(), ecn));
            }
            None => self.arrive(now, bytes, ecn),
        }
    }

    fn arrive(&mut self, now: Instant, bytes: &[u8], ecn: Ecn) {
        if is_media(bytes) {
            self.media.0 += bytes.len() as u64;
        }
        // Datagrams that are not valid are counted.
        let _ = self.viewer.handle_datagram(now, bytes, ecn);
    }

    fn advance(&mut self, now: Instant) {
        while let Some((_, (datagram, ecn))) = self.path.as_mut().and_then(|path| path.pop(now)) {
            self.arrive(now, &datagram, ecn);
        }
        if self.viewer.poll_timeout().is_some_and(|due| due <= now) {
            self.viewer.handle_timeout(now);
        }
        while let Some(event) = self.viewer.poll_event() {
            match event {
                ViewerEvent::Opened(announcement) => self.subscribe(now, &announcement),
                ViewerEvent::Ended(_) => self.again_at = Some(now + PAUSE),
            }
        }
        if self.again_at.is_some_and(|at| at <= now) {
            self.again_at = None;
            self.ended += 1;
            self.viewer = viewer(self.secret, self.number, self.ended);
        }
        let relation = self
            .viewer
            .receiver()
            .and_then(|receiver| receiver.clock().relation());
        if let Some(relation) = relation {
            self.assembler.set_round_trip(relation.round_trip);
        }
        while let Some(event) = self.viewer.poll_media() {
            self.assembler.handle_event(now, event);
        }
        self.assembler.handle_timeout(now);
        while let Some(frame) = self.assembler.poll_frame() {
            let shown = self.show(now, &frame);
            self.shown.push(shown);
        }
    }

    /// Selects all layers of each track, or of one encoding of each source.
    fn subscribe(&mut self, now: Instant, announcement: &Announcement) {
        let tracks = announcement.tracks.iter();
        let selected = tracks.clone().map(|track| (track.alias, track.layers));
        let selected: BTreeMap<u32, u8> = selected.collect();
        let timings = tracks.filter_map(|track| TrackTiming::parse(&track.parameters));
        self.lifetime = timings.map(|timing| timing.lifetime).max();
        self.assembler = assembler(
            selected.clone(),
            Encodings::of(announcement),
            self.lifetime.unwrap_or(LIFETIME),
        );
        self.viewer
            .subscribe_to_any_encoding(now, selected.into_iter().collect());
    }

    fn show(&self, now: Instant, frame: &ReceivedFrame) -> Shown {
        let captured = || {
            let receiver = self.viewer.receiver()?;
            let deadline = receiver.local_time_of_deadline(now, frame.deadline?)?;
            Some(deadline - self.lifetime?)
        };
        let payloads = frame.tracks.values().flatten().flatten();
        Shown {
            group: frame.id.0,
            captured: captured(),
            completed: frame.completed,
            size: ByteSize(payloads.map(|payload| payload.len() as u64).sum()),
            is_whole: frame.is_whole,
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let path = self.path.as_ref().and_then(Link::next_departure);
        let times = [
            self.viewer.poll_timeout(),
            self.assembler.poll_timeout(),
            self.again_at,
            path,
        ];
        times.into_iter().flatten().min()
    }
}

/// Returns a session that differs from others by the viewer's number and that of the session.
fn viewer(secret: [u8; 32], number: u64, session: u64) -> Viewer {
    let mut random = [0; 16];
    random[..8].copy_from_slice(&number.to_ne_bytes());
    random[8..].copy_from_slice(&session.to_ne_bytes());
    let config = ViewerConfig {
        receiver: ReceiverConfig {
            packet_events: true,
            ..ReceiverConfig::default()
        },
        ..ViewerConfig::default()
    };
    Viewer::new(config, TrackSecret::new(secret), random)
}

fn assembler(
    selected: BTreeMap<u32, u8>,
    encodings: Encodings,
    lifetime: Duration,
) -> FrameAssembler {
    FrameAssembler::new(FrameConfig {
        selected,
        encodings,
        lifetime,
    })
}

fn is_media(datagram: &[u8]) -> bool {
    datagram.first() == Some(&VERSION)
}

/// Runs viewers for a time, or until `is_over`.
pub(crate) fn watch(
    members: &mut [Member],
    duration: Duration,
    is_over: impl Fn(&[Member]) -> bool,
) -> Result<()> {
    udp::wake_precisely();
    let end = clock::monotonic() + duration;
    while clock::monotonic() < end && !is_over(members) {
        for member in &mut *members {
            member.run()?;
        }
        let due = members.iter().filter_map(Member::poll_timeout);
        let due = due.fold(end, Instant::min);
        let sockets: Vec<&UdpSocket> = members.iter().map(|member| &member.socket).collect();
        UdpSocket::wait_any(&sockets, due.saturating_since(clock::monotonic()))?;
    }
    Ok(())
}
