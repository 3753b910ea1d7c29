//! Viewers with real sessions, which reassemble frames and decode nothing.

use super::publisher::{ALIAS, LAYERS};
use anyhow::{Context, Result};
use hawser_io::clock;
use hawser_io::udp::{self, UdpSocket};
use hawser_netem::{Link, LinkConfig};
use hawser_objects::{
    Encodings, FrameAssembler, FrameConfig, TrackSecret, Viewer, ViewerConfig, ViewerEvent,
};
use hawser_packets::media::VERSION;
use hawser_units::{ByteSize, Ecn, Instant};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Bytes of the headers in front of a datagram.
const HEADERS: u64 = 28;

/// The time after which a frame is shown without the layers that are missing.
const LIFETIME: Duration = Duration::from_millis(150);

/// A frame that could be decoded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown {
    pub(super) group: u32,
    pub(super) completed: Instant,
    /// Whether it had all layers.
    pub(super) is_whole: bool,
}

/// A viewer.
pub(super) struct Member {
    socket: UdpSocket,
    relay: SocketAddr,
    pub(super) asked: Instant,
    pub(super) view: View,
    /// The frames that the viewer would see behind another path, of which the relay learns nothing.
    pub(super) behind: Option<View>,
}

/// The session of a viewer and what it sees.
pub(super) struct View {
    viewer: Viewer,
    assembler: FrameAssembler,
    /// The path that its packets take, if it is not the cable alone.
    path: Option<Link<(Vec<u8>, Ecn)>>,
    pub(super) shown: Vec<Shown>,
    /// The bytes of media that arrived.
    pub(super) media: ByteSize,
}

impl Member {
    /// Opens the socket. `secret` has the bytes of the broadcast's secret, `number` differs from that of
    /// other viewers.
    pub(super) fn open(
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
    pub(super) fn see_behind(&mut self, secret: [u8; 32], number: u64) {
        self.behind = Some(View::new(secret, number));
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
        udp::unless_of_a_peer(received)?;
        let now = clock::monotonic();
        for view in [Some(&mut *view), behind.as_mut()].into_iter().flatten() {
            view.advance(now);
        }
        while let Some(message) = self.view.viewer.poll_transmit(now) {
            // Messages are repeated.
            let _ = self.socket.send(self.relay, Ecn::NotEct, &message);
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
        let secret = TrackSecret::new(secret);
        let mut random = [0; 16];
        random[..8].copy_from_slice(&number.to_ne_bytes());
        View {
            viewer: Viewer::new(ViewerConfig::default(), secret, random),
            assembler: FrameAssembler::new(FrameConfig {
                selected: [(ALIAS, LAYERS)].into(),
                encodings: Encodings::default(),
                lifetime: LIFETIME,
            }),
            path: None,
            shown: Vec::new(),
            media: ByteSize(0),
        }
    }

    /// Has its packets take an emulated path, or the cable alone.
    pub(super) fn set_path(&mut self, path: Option<LinkConfig>) {
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
        // What is not valid is counted.
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
            if let ViewerEvent::Opened(_) = event {
                self.viewer.subscribe(now, vec![(ALIAS, LAYERS)]);
            }
        }
        while let Some(event) = self.viewer.poll_media() {
            self.assembler.handle_event(now, event);
        }
        self.assembler.handle_timeout(now);
        while let Some(frame) = self.assembler.poll_frame() {
            self.shown.push(Shown {
                group: frame.id.0,
                completed: frame.completed,
                is_whole: frame.is_whole,
            });
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let path = self.path.as_ref().and_then(Link::next_departure);
        let times = [
            self.viewer.poll_timeout(),
            self.assembler.poll_timeout(),
            path,
        ];
        times.into_iter().flatten().min()
    }
}

fn is_media(datagram: &[u8]) -> bool {
    datagram.first() == Some(&VERSION)
}

/// Runs viewers for a time, or until `is_over`.
pub(super) fn watch(
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
        UdpSocket::wait_any(&sockets, &[], due.saturating_since(clock::monotonic()))?;
    }
    Ok(())
}
