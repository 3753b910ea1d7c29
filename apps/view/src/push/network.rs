//! The thread that has the socket: session, reassembly, reports.

use super::PushConfig;
use super::decode::ToDecode;
use super::summary::Received;
use anyhow::Context;
use hawser_io::clock::SteadyClock;
use hawser_io::udp::{self, UdpSocket};
use hawser_objects::{
    EndReason, FrameAssembler, ReceivedFrame, TrackSecret, TrackTiming, Viewer, ViewerConfig,
    ViewerEvent,
};
use hawser_units::{Ecn, Instant};
use hawser_wire::feedback::Pose;
use hawser_wire::session::{Announcement, Goodbye, Track};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

/// The longest time between two looks at whether to stop.
const STOP_POLL: Duration = Duration::from_millis(50);

/// The time without an answer after which the user is told.
const NO_ANSWER: Duration = Duration::from_secs(3);

/// The pause before a new session is asked for.
const PAUSE: Duration = Duration::from_millis(500);

/// The network's end of a viewer.
pub(super) struct Network {
    clock: SteadyClock,
    publisher: SocketAddr,
    secret: TrackSecret,
    layers: u8,
    pose: Option<Pose>,
    socket: UdpSocket,
    session: Session,
    to_decoder: Option<SyncSender<ToDecode>>,
    received: Received,
    report_at: Instant,
}

/// A session, and what it has announced.
struct Session {
    viewer: Viewer,
    assembler: FrameAssembler,
    tracks: Arc<BTreeMap<u32, Track>>,
    lifetime: Duration,
    /// The time at which a new session is asked for, if this one has ended.
    again_at: Option<Instant>,
}

impl Session {
    fn new(secret: &TrackSecret, pose: Option<Pose>) -> anyhow::Result<Self> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).context("the system has no random numbers")?;
        let mut viewer = Viewer::new(ViewerConfig::default(), secret.clone(), random);
        viewer.set_pose(pose);
        Ok(Session {
            viewer,
            assembler: FrameAssembler::new([]),
            tracks: Arc::default(),
            lifetime: Duration::ZERO,
            again_at: None,
        })
    }

    /// Selects up to `layers` of each announced track.
    fn subscribe(&mut self, now: Instant, announcement: Announcement, layers: u8) {
        let selected = announcement.tracks.iter();
        let selected = selected.map(|track| (track.alias, track.layers.min(layers)));
        let selected: Vec<(u32, u8)> = selected.collect();
        self.assembler = FrameAssembler::new(selected.iter().copied());
        self.viewer.subscribe(now, selected);
        let timings = announcement.tracks.iter();
        let timing = timings.filter_map(|track| TrackTiming::parse(&track.parameters));
        self.lifetime = timing
            .map(|timing| timing.lifetime)
            .max()
            .unwrap_or_default();
        let tracks = announcement.tracks.into_iter();
        self.tracks = Arc::new(tracks.map(|track| (track.alias, track)).collect());
    }
}

impl Network {
    pub(super) fn open(
        config: &PushConfig,
        clock: SteadyClock,
        publisher: SocketAddr,
        secret: TrackSecret,
        to_decoder: SyncSender<ToDecode>,
    ) -> anyhow::Result<Self> {
        let pose = config.pictures.pose.as_ref().and_then(pose_in_metres);
        let any = match publisher {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = UdpSocket::bind((any, 0).into()).context("cannot open a UDP socket")?;
        socket
            .connect(publisher)
            .with_context(|| format!("there is no route to {publisher}"))?;
        Ok(Network {
            session: Session::new(&secret, pose)?,
            clock,
            publisher,
            secret,
            layers: config.layers,
            pose,
            socket,
            to_decoder: Some(to_decoder),
            received: Received::default(),
            report_at: clock.now() + NO_ANSWER,
        })
    }

    /// Runs until `is_over`.
    pub(super) fn run(&mut self, is_over: impl Fn() -> bool) -> anyhow::Result<()> {
        udp::wake_precisely();
        while !is_over() {
            self.receive()?;
            let now = self.clock.now();
            if self
                .session
                .viewer
                .poll_timeout()
                .is_some_and(|due| due <= now)
            {
                self.session.viewer.handle_timeout(now);
            }
            self.take_events(now)?;
            if !self.take_media(now) {
                // The decoder has failed, and says why.
                return Ok(());
            }
            self.transmit();
            self.socket
                .wait(Some(self.timeout()))
                .context("cannot wait")?;
        }
        Ok(())
    }

    /// Leaves the session, and returns the counts.
    pub(super) fn finish(&mut self) -> Received {
        self.add_session();
        self.session.viewer.close(Goodbye::Ended);
        self.transmit();
        self.to_decoder = None;
        self.received.kernel_drops = self.socket.drops().unwrap_or_default().into();
        self.received
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        let Network {
            clock,
            socket,
            session,
            ..
        } = self;
        let received = socket.receive(|datagram| {
            let arrived = clock.now() - datagram.age;
            let taken = session
                .viewer
                .handle_datagram(arrived, datagram.bytes, datagram.ecn);
            if let Err(error) = taken {
                tracing::debug!("datagram refused: {error}");
            }
        });
        match received {
            Ok(_) => Ok(()),
            // Nobody listens there at the moment.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused
                        | ErrorKind::HostUnreachable
                        | ErrorKind::NetworkUnreachable
                ) =>
            {
                self.received.unreachable += 1;
                Ok(())
            }
            Err(error) => Err(error).context("cannot receive"),
        }
    }

    fn take_events(&mut self, now: Instant) -> anyhow::Result<()> {
        while let Some(event) = self.session.viewer.poll_event() {
            match event {
                ViewerEvent::Opened(announcement) => {
                    self.received.sessions += 1;
                    tracing::info!(publisher = %self.publisher, tracks = announcement.tracks.len(), "session opened");
                    self.session.subscribe(now, announcement, self.layers);
                }
                ViewerEvent::Ended(reason) => self.ended(now, reason),
            }
        }
        if self.session.again_at.is_some_and(|at| at <= now) {
            self.add_session();
            self.session = Session::new(&self.secret, self.pose)?;
        }
        if self.session.viewer.receiver().is_none() && self.report_at <= now {
            self.report_at = now + NO_ANSWER * 10;
            let publisher = self.publisher;
            tracing::warn!(%publisher, "no answer: is the publisher running with --push and the same key?");
        }
        Ok(())
    }

    fn ended(&mut self, now: Instant, reason: EndReason) {
        let publisher = self.publisher;
        tracing::warn!(%publisher, ?reason, "session ended; asking for another one");
        self.session.again_at = Some(now + PAUSE);
        self.report_at = now + NO_ANSWER;
    }

    /// Hands complete frames to the decoder. Returns `false` if there is none any more.
    fn take_media(&mut self, now: Instant) -> bool {
        while let Some(event) = self.session.viewer.poll_media() {
            self.session.assembler.handle_event(now, event);
        }
        while let Some(frame) = self.session.assembler.poll_frame() {
            let to_decode = ToDecode {
                captured: self.captured(now, &frame),
                tracks: Arc::clone(&self.session.tracks),
                frame,
            };
            match self.to_decoder.as_ref().map(|to| to.try_send(to_decode)) {
                Some(Ok(())) => {}
                Some(Err(TrySendError::Full(_))) => self.received.not_decoded += 1,
                Some(Err(TrySendError::Disconnected(_))) | None => return false,
            }
        }
        true
    }

    /// Returns the time of capture by the own clock.
    fn captured(&self, now: Instant, frame: &ReceivedFrame) -> Option<Instant> {
        let receiver = self.session.viewer.receiver()?;
        let deadline = receiver.local_time_of_deadline(now, frame.deadline?)?;
        Some(deadline - self.session.lifetime)
    }

    fn transmit(&mut self) {
        while let Some(message) = self.session.viewer.poll_transmit(self.clock.now()) {
            if let Err(error) = self.socket.send(self.publisher, Ecn::NotEct, &message) {
                // Messages are repeated, and reports follow each other.
                self.received.send_failures += 1;
                tracing::debug!("cannot send: {error}");
            }
        }
    }

    fn timeout(&self) -> Duration {
        let due = self.session.viewer.poll_timeout();
        let left = due.map(|due| due.saturating_since(self.clock.now()));
        left.map_or(STOP_POLL, |left| left.min(STOP_POLL))
    }

    /// Adds the counts of the session to those of all.
    fn add_session(&mut self) {
        let Session {
            viewer, assembler, ..
        } = &self.session;
        self.received.add(viewer, assembler.stats());
    }
}

fn pose_in_metres(pose: &hawser_cloud::Pose) -> Option<Pose> {
    let position = pose.position_mm.map(|mm| mm / 1000.0);
    Pose::new(position, pose.rotation)
}
