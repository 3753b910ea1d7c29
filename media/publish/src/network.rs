//! The thread that serves the socket: sessions, pacing, reports.

use crate::Config;
use crate::broadcast::Broadcast;
use crate::capture::{Demand, Message, ToNetwork, WakeOnDrop};
use crate::encode::TrackSlice;
use crate::log::StatsLog;
use crate::metrics::Figures;
use crate::report::{Captured, Sent};
use crate::sound;
use crate::web::Web;
use anyhow::Context;
use hawser_cloud::Pose;
use hawser_codec::Codec;
use hawser_congestion::DepartureFinding;
use hawser_experience::{Experience, Packet, Protocol, Report, Subject};
use hawser_io::clock::SteadyClock;
use hawser_io::failures::Kinds;
use hawser_io::reporter::{REPORT_EVERY, Reporter};
use hawser_io::udp::{self, Departure, Left, UdpSocket};
use hawser_objects::{
    EncodedLayer, EncodedSlice, LayerContent, Outgoing, Publication, PublicationEvent,
};
use hawser_packets::feedback;
use hawser_packets::media::DEFAULT_DATAGRAM;
use hawser_packets::session::Goodbye;
use hawser_units::{Bitrate, Instant};
use nix::errno::Errno;
use parking_lot::Mutex;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;

/// The time between two lines of statistics, and between two updates of the metrics.
const STATS_INTERVAL: Duration = Duration::from_millis(100);

/// The longest time between two checks whether the controller has replaced the secret.
const SECRET_POLL: Duration = Duration::from_secs(1);

/// The number of viewers whose flows the wished rate is reported for: an agent takes ten reports a second.
const REPORTED_VIEWERS: usize = 8;

/// The number of datagrams that are sent before messages of viewers are read.
const DATAGRAMS_OF_A_TURN: u32 = 64;

/// The longest time between two attempts to send while the kernel's buffer is full, and the time after
/// which attempts to send the last datagrams of a session end.
const FULL_BUFFER_POLL: Duration = Duration::from_millis(5);
const LAST_DATAGRAMS: Duration = Duration::from_millis(100);

/// The network's end of the publisher.
pub(crate) struct Network {
    clock: SteadyClock,
    socket: UdpSocket,
    broadcast: Broadcast,
    publication: Publication,
    web: Option<Web>,
    /// The rate of the stream while only browsers watch.
    web_rate: Bitrate,
    /// The datagram for which the kernel's buffer had no room.
    unsent: Option<Outgoing>,
    /// The kinds of errors of sending that have occurred.
    send_errors: Kinds,
    camera: Receiver<Message>,
    /// The number of frames that the camera has begun and that were not processed completely.
    waiting: Arc<AtomicUsize>,
    demand: Arc<Mutex<Demand>>,
    captured: Arc<Mutex<Captured>>,
    stats: Option<StatsLog>,
    /// The error that ended the table of statistics.
    table_error: Option<anyhow::Error>,
    figures: Option<Arc<Mutex<Figures>>>,
    next_stats: Instant,
    reporter: Option<Reporter>,
    wished: Bitrate,
    report: Sent,
}

impl Network {
    pub(crate) fn new(
        config: &Config,
        clock: SteadyClock,
        socket: UdpSocket,
        (broadcast, mut publication): (Broadcast, Publication),
        camera: Receiver<Message>,
        (figures, mut web): (Option<Arc<Mutex<Figures>>>, Option<Web>),
    ) -> anyhow::Result<Self> {
        if let Some(web) = &mut web {
            publication.keep_objects();
            web.announce(&publication);
        }
        Ok(Network {
            clock,
            socket,
            broadcast,
            publication,
            web,
            web_rate: config.bounds.initial(),
            unsent: None,
            send_errors: Kinds::default(),
            camera,
            waiting: Arc::default(),
            demand: Arc::default(),
            captured: Arc::default(),
            stats: config.stats.as_deref().map(StatsLog::create).transpose()?,
            table_error: None,
            figures,
            next_stats: clock.now(),
            reporter: config.report_to.clone().map(Reporter::new),
            wished: config.bounds.maximum(),
            report: Sent::default(),
        })
    }

    /// Returns what wakes this thread.
    pub(crate) fn waker(&self) -> WakeOnDrop {
        WakeOnDrop(self.socket.waker())
    }

    /// Returns the camera's channel to this thread.
    pub(crate) fn sender(&self, messages: Sender<Message>) -> ToNetwork {
        ToNetwork {
            demand: Arc::clone(&self.demand),
            captured: Arc::clone(&self.captured),
            messages,
            waiting: Arc::clone(&self.waiting),
            waker: self.waker(),
        }
    }

    /// Runs until the camera has ended. The camera ends with it. Also returns the error that ended it, or the
    /// table of statistics, too early.
    pub(crate) fn run(mut self) -> (Sent, Vec<anyhow::Error>) {
        udp::wake_precisely();
        let over = OverOnDrop(Arc::clone(&self.demand));
        let served = self.serve().err();
        drop(over);
        self.end_sessions(Goodbye::Ended);
        self.report
            .finish(&self.publication.host_stats(), &self.socket);
        let errors = self.table_error.into_iter().chain(served);
        (self.report, errors.collect())
    }

    fn serve(&mut self) -> anyhow::Result<()> {
        while self.take_frames()? {
            if let Some(web) = &mut self.web {
                web.take(self.clock.now(), &mut self.publication);
            }
            self.take_secret()?;
            self.receive()?;
            self.publication.handle_timeout(self.clock.now());
            let is_all_sent = self.transmit();
            self.take_events();
            self.update_stats();
            self.report_wishes();
            self.tell_camera();
            self.wait(is_all_sent).context("cannot wait")?;
        }
        Ok(())
    }

    /// Publishes the slices of the camera. Returns `false` after the last frame.
    fn take_frames(&mut self) -> anyhow::Result<bool> {
        loop {
            match self.camera.try_recv() {
                Ok(message) => self.take(&message)?,
                Err(TryRecvError::Empty) => return Ok(true),
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn take(&mut self, message: &Message) -> anyhow::Result<()> {
        match message {
            Message::Frame(captured) => {
                self.publication.begin_frame(self.clock.now(), *captured);
            }
            Message::Slice(slice) => self.publish(slice)?,
            Message::End => {
                self.publication.end_frame(self.clock.now());
                self.waiting.fetch_sub(1, Relaxed);
                self.report.frames += 1;
            }
            Message::Sound { captured, packet } => {
                let now = self.clock.now();
                let sent = self.publication.publish_sound(now, *captured, packet);
                sent.context("sound cannot be sent")?;
            }
        }
        Ok(())
    }

    fn publish(&mut self, slice: &TrackSlice) -> anyhow::Result<()> {
        let parts: Vec<&[u8]> = slice.slice.parts.iter().map(Vec::as_slice).collect();
        let content = match parts.as_slice() {
            [] => return Ok(()),
            [only] if slice.codec != Codec::Chunks => LayerContent::Whole(only),
            chunks => LayerContent::Chunks(chunks),
        };
        let slice = EncodedSlice {
            layer: EncodedLayer {
                alias: slice.alias,
                layer: slice.layer,
                content,
            },
            ends_layer: slice.slice.ends_layer,
            is_top: slice.slice.is_top,
        };
        self.publication
            .publish_slice(self.clock.now(), &slice)
            .context("a frame cannot be sent")
    }

    /// Starts a new publication if the controller has replaced the secret. Viewers that have the new one request
    /// new sessions.
    fn take_secret(&mut self) -> anyhow::Result<()> {
        self.broadcast.announce(self.publication.viewers());
        let Some((mut next, secret)) = self.broadcast.poll_replaced()? else {
            return Ok(());
        };
        if let Some(web) = &mut self.web {
            next.keep_objects();
            web.announce(&next);
            web.print_link(&secret)?;
        }
        self.end_sessions(Goodbye::Revoked);
        self.report.sessions_before += self.publication.host_stats();
        // The rest of a frame that has begun is not sent under the new secret.
        self.publication = next;
        Ok(())
    }

    fn end_sessions(&mut self, reason: Goodbye) {
        self.take_events();
        self.report.add_viewers(&self.publication.status());
        self.publication.close(reason);
        let until = self.clock.now() + LAST_DATAGRAMS;
        while !self.transmit() && self.clock.now() < until {
            // If the buffer is full, it is retried.
            let _ = self.wait(false);
        }
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        let Network {
            clock,
            socket,
            publication,
            report,
            ..
        } = self;
        let received = socket.receive_checked(|datagram| {
            if datagram.bytes.len() > DEFAULT_DATAGRAM {
                report.too_long += 1;
                return false;
            }
            let taken = publication.handle_datagram(clock.now(), datagram.from, datagram.bytes);
            if let Err(error) = &taken {
                tracing::debug!(from = %datagram.from, "datagram refused: {error}");
            }
            taken.is_ok()
        });
        // An ICMP error tells that a viewer is unreachable.
        udp::unless_of_a_peer(received).context("cannot receive")?;
        self.take_departures()
    }

    /// Tells the publication the actual departures of datagrams.
    fn take_departures(&mut self) -> anyhow::Result<()> {
        let left = |socket: &mut UdpSocket| socket.next_left().context("cannot read time stamps");
        while let Some(Left { to, planned, left }) = left(&mut self.socket)? {
            let [planned, left] = [planned, left].map(|at| self.clock.shown_at(at));
            self.publication
                .handle_left(self.clock.now(), to, planned, left);
        }
        Ok(())
    }

    /// Sends the datagrams that are due, up to a maximum number. Returns whether those were all.
    fn transmit(&mut self) -> bool {
        for _ in 0..DATAGRAMS_OF_A_TURN {
            let next = || self.publication.poll_transmit(self.clock.now());
            let Some(outgoing) = self.unsent.take().or_else(next) else {
                return true;
            };
            match self.send(&outgoing) {
                Ok(()) => self.report.datagrams += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Datagrams that the kernel holds for one viewer fill the buffer of all. None is lost.
                    self.unsent = Some(outgoing);
                    return false;
                }
                Err(error) => {
                    // It counts as lost, and is sent again if it can arrive in time.
                    self.report.send_failures += 1;
                    let to = outgoing.to;
                    if self.send_errors.is_new(&error) {
                        let advice = advice(&error);
                        tracing::warn!(%to, advice, "cannot send: {error}; further such errors are counted only");
                    } else {
                        tracing::debug!(%to, "cannot send: {error}");
                    }
                }
            }
        }
        false
    }

    /// Waits for a datagram, a frame or a timeout.
    fn wait(&self, is_all_sent: bool) -> io::Result<()> {
        match (&self.unsent, is_all_sent) {
            (Some(_), _) => self.socket.wait_for_room(Some(FULL_BUFFER_POLL)),
            (None, false) => self.socket.wait(Some(Duration::ZERO)),
            (None, true) => self.socket.wait(Some(self.timeout())),
        }
    }

    fn send(&mut self, outgoing: &Outgoing) -> io::Result<()> {
        let Outgoing { to, ecn, .. } = *outgoing;
        match outgoing.at {
            None => self.socket.send(to, ecn, &outgoing.datagram),
            Some(at) => {
                let departure = Departure {
                    at: self.clock.monotonic_at(at),
                    is_stamped: outgoing.is_stamped,
                };
                self.socket.send_at(to, ecn, &outgoing.datagram, departure)
            }
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.publication.poll_event() {
            match event {
                PublicationEvent::Joined { address, .. } => {
                    self.report.viewers += 1;
                    tracing::info!(%address, viewers = self.publication.viewers(), "viewer joined");
                }
                PublicationEvent::Left { status, reason } => {
                    let address = status.address;
                    self.report.add_viewers(&[*status]);
                    tracing::info!(%address, %reason, "viewer left");
                }
                PublicationEvent::Paced { address, finding } => {
                    let (pacer, reason) = pacer(finding);
                    tracing::info!(%address, pacer, reason, "pacer selected");
                }
                PublicationEvent::Narrow { address, datagram } => {
                    tracing::warn!(%address, "the path to a viewer drops long packets: all viewers get datagrams of at most {datagram} bytes while it watches");
                }
                PublicationEvent::Object { session, event } => {
                    tracing::trace!(session, ?event, "object ended");
                }
            }
        }
    }

    fn update_stats(&mut self) {
        let now = self.clock.now();
        if !self.has_stats() || now < self.next_stats {
            return;
        }
        self.next_stats = now + STATS_INTERVAL;
        let viewers = self.publication.status();
        if let Some(stats) = &mut self.stats
            && let Err(error) = stats.write(now, &viewers)
        {
            // The broadcast continues when the disk is full.
            tracing::error!("no further lines of --stats: {error:#}");
            self.stats = None;
            self.table_error = Some(error);
        }
        if let Some(figures) = &self.figures {
            let mut sent = self.report.clone();
            sent.add_viewers(&viewers);
            sent.finish(&self.publication.host_stats(), &self.socket);
            let mut figures = figures.lock();
            figures.captured = *self.captured.lock();
            figures.sent = sent;
            figures.watching = self.publication.viewers();
            figures.viewers = viewers;
        }
    }

    /// Reports the rate that the flows to the viewers would have if their paths bore it.
    fn report_wishes(&mut self) {
        let now = self.clock.now();
        let Some(reporter) = self
            .reporter
            .as_mut()
            .filter(|reporter| reporter.next_at() <= now)
        else {
            return;
        };
        reporter.postpone(now + REPORT_EVERY);
        let Ok(local) = self.socket.local_address() else {
            return;
        };
        for viewer in self.publication.status().iter().take(REPORTED_VIEWERS) {
            let report = Report {
                subject: Subject::Packet(packet(local, viewer.address)),
                experience: Experience {
                    rate_bps: Some(self.wished.bps()),
                    ..Experience::default()
                },
            };
            reporter.report(now, &report);
        }
    }

    fn has_stats(&self) -> bool {
        self.stats.is_some() || self.figures.is_some()
    }

    fn tell_camera(&self) {
        let mut demand = self.demand.lock();
        let has_browsers = self.web.as_ref().is_some_and(Web::is_watched);
        let taken = if self.broadcast.has_sound() {
            sound::RATE.bps()
        } else {
            0
        };
        let target = self.publication.target(self.clock.now());
        let target = target.or(has_browsers.then_some(self.web_rate));
        demand.target = target.map(|all| Bitrate::from_bps(all.bps().saturating_sub(taken)));
        // Each browser looks from where it wants to.
        let pose = self.publication.pose().filter(|_| !has_browsers);
        demand.pose = pose.map(pose_in_mm);
        demand.datagram = self.publication.datagram();
    }

    fn timeout(&self) -> Duration {
        let stats = self.has_stats().then_some(self.next_stats);
        let due = self.publication.poll_timeout().into_iter().chain(stats);
        let left = due.min().map(|due| due.saturating_since(self.clock.now()));
        let longest = self.web.as_ref().map_or(SECRET_POLL, |_| Web::POLL);
        left.map_or(longest, |left| left.min(longest))
    }
}

/// Returns a packet to a viewer. The socket may have no address of its own, of a version that the viewer's is not.
fn packet(local: SocketAddr, viewer: SocketAddr) -> Packet {
    let to = viewer.ip().to_canonical();
    let from = match (local.ip().is_unspecified(), to) {
        (true, IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        _ => local.ip().to_canonical(),
    };
    Packet {
        protocol: Protocol::Udp,
        source: SocketAddr::new(from, local.port()),
        destination: SocketAddr::new(to, viewer.port()),
    }
}

/// Enables departure times at a socket. Returns whether the kernel accepts them.
pub(crate) fn allow_departure_times(socket: &mut UdpSocket) -> bool {
    let allowed = socket.allow_departure_times();
    if let Err(error) = &allowed {
        let reason = format!("the kernel accepts no departure times: {error}");
        tracing::info!(pacer = PROGRAM, reason, "pacer selected");
    }
    allowed.is_ok()
}

/// The name of the program itself as a pacer, in log lines.
const PROGRAM: &str = "program";

/// Returns the pacer of the packets to a viewer, and the reason.
fn pacer(finding: DepartureFinding) -> (&'static str, &'static str) {
    match finding {
        DepartureFinding::Followed => ("kernel", "it followed their departure times"),
        DepartureFinding::Early => (PROGRAM, "the kernel did not follow their departure times"),
        DepartureFinding::Late => (PROGRAM, "the kernel sent them too late"),
        DepartureFinding::Unstamped => (PROGRAM, "the kernel did not report when they left"),
    }
}

/// Returns what the user can do about an error of sending.
fn advice(error: &io::Error) -> Option<&'static str> {
    match Errno::from_raw(error.raw_os_error()?) {
        Errno::EMSGSIZE => Some(
            "packets of media have up to 1228 bytes with IPv4, 1248 with IPv6: raise the MTU of the device",
        ),
        Errno::EPERM => Some("a packet filter of this machine forbids it"),
        Errno::ENETUNREACH | Errno::EHOSTUNREACH => Some("check the routes of this machine"),
        _ => None,
    }
}

/// Ends the camera when it is dropped: also when the network's thread panics.
struct OverOnDrop(Arc<Mutex<Demand>>);

impl Drop for OverOnDrop {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
    }
}

fn pose_in_mm(pose: feedback::Pose) -> Pose {
    Pose {
        position_mm: pose.position().map(|metres| metres * 1000.0),
        rotation: pose.rotation(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broadcast::timing;
    use crate::encode::Encoders;
    use crate::{CodecName, generate_secret};
    use hawser_cloud::Cloud;
    use hawser_codec::Slice;
    use hawser_congestion::Bounds;
    use hawser_io::udp::Received;
    use hawser_keys::{Keyring, TrackRole};
    use hawser_objects::{TrackSecret, Viewer, ViewerConfig, ViewerEvent};
    use hawser_recording::{Frame, Recording};
    use hawser_units::{Bitrate, Ecn};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc::channel;
    use std::thread;

    /// A publisher's thread with a viewer that has selected layers of its track.
    struct Rig {
        network: Network,
        viewer: Viewer,
        socket: UdpSocket,
    }

    impl Rig {
        /// Opens a session in which packets may leave at 10 gigabits per second.
        fn new(layers: u8, figures: Option<Arc<Mutex<Figures>>>) -> Rig {
            let directory = tempfile::tempdir().unwrap();
            let key = directory.path().join("media.key");
            generate_secret(&key).unwrap();
            let rate = Bitrate::from_mbps(10_000.0);
            let config = Config {
                bounds: Bounds::new(rate, rate, rate),
                lifetime: Duration::from_secs(60),
                ..Config::new(Recording::synthetic(), key)
            };
            let (keyring, secret) = Keyring::open(&config.key, TrackRole::Writer).unwrap();
            let encoders = Encoders::new(CodecName::Zstd, &Frame::Cloud(Cloud::new()));
            let tracks = encoders.unwrap().tracks(timing(&config));
            let bind = || UdpSocket::bind(([127, 0, 0, 1], 0).into()).unwrap();
            let broadcast = Broadcast::new(&config, tracks, keyring, config.listen, false);
            let publication = broadcast.publication(&secret).unwrap();
            let (_, camera) = channel();
            let clock = SteadyClock::start();
            let published = (broadcast, publication);
            let network = Network::new(&config, clock, bind(), published, camera, (figures, None));
            let secret = TrackSecret::new(*secret);
            let mut rig = Rig {
                network: network.unwrap(),
                viewer: Viewer::new(ViewerConfig::default(), secret, [7; 16]),
                socket: bind(),
            };
            while rig.network.publication.status().is_empty() {
                rig.turn(layers);
            }
            rig
        }

        /// Exchanges the datagrams of both ends.
        fn turn(&mut self, layers: u8) {
            let Rig {
                network,
                viewer,
                socket,
            } = self;
            let now = network.clock.now();
            let publisher = network.socket.local_address().unwrap();
            while let Some(message) = viewer.poll_transmit(now) {
                socket.send(publisher, Ecn::NotEct, &message).unwrap();
            }
            network.receive().unwrap();
            network.transmit();
            let take = |datagram: Received<'_>| {
                let _ = viewer.handle_datagram(now, datagram.bytes, datagram.ecn);
            };
            socket.receive(take).unwrap();
            while let Some(event) = viewer.poll_event() {
                assert!(matches!(event, ViewerEvent::Opened(_)));
                viewer.subscribe(now, vec![(0, layers)]);
            }
        }
    }

    #[test]
    fn messages_of_viewers_are_read_while_much_is_to_be_sent() {
        let mut rig = Rig::new(1, None);
        let frame = TrackSlice {
            alias: 0,
            codec: Codec::Zstd,
            layer: 0,
            slice: Slice {
                parts: vec![vec![0; 1 << 20]],
                ends_layer: true,
                is_top: true,
            },
        };
        rig.network
            .take(&Message::Frame(rig.network.clock.now()))
            .unwrap();
        rig.network.take(&Message::Slice(frame)).unwrap();
        let before = rig.network.report.datagrams;
        let is_all = rig.network.transmit();
        let sent = rig.network.report.datagrams - before;
        assert_eq!((sent, is_all), (DATAGRAMS_OF_A_TURN.into(), false));
    }

    #[test]
    fn a_viewer_that_has_selected_nothing_is_not_counted() {
        for (layers, watching) in [(1, 1), (0, 0)] {
            let figures: Arc<Mutex<Figures>> = Arc::default();
            let mut rig = Rig::new(layers, Some(Arc::clone(&figures)));
            rig.network.update_stats();
            let figures = figures.lock();
            assert_eq!((figures.watching, figures.viewers.len()), (watching, 1));
        }
    }

    #[test]
    fn packets_that_are_too_long_for_a_device_are_explained() {
        let error = io::Error::from(Errno::EMSGSIZE);
        assert!(advice(&error).unwrap().contains("MTU"));
        assert_eq!(advice(&ErrorKind::Other.into()), None);
    }

    #[test]
    fn a_camera_that_panics_ends_the_network() {
        let socket = UdpSocket::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let (messages, camera) = channel::<Message>();
        let network = ToNetwork {
            demand: Arc::default(),
            captured: Arc::default(),
            messages,
            waiting: Arc::default(),
            waker: WakeOnDrop(socket.waker()),
        };
        let panicking = thread::spawn(move || {
            let _network = network;
            std::panic::resume_unwind(Box::new("a panic"));
        });
        while !matches!(camera.try_recv(), Err(TryRecvError::Disconnected)) {
            socket.wait(None).unwrap();
        }
        assert!(panicking.join().is_err());
    }

    #[test]
    fn a_network_that_panics_ends_the_camera() {
        let demand: Arc<Mutex<Demand>> = Arc::default();
        let network = catch_unwind(AssertUnwindSafe(|| {
            let _over = OverOnDrop(Arc::clone(&demand));
            std::panic::resume_unwind(Box::new("a panic"));
        }));
        assert!(network.is_err() && demand.lock().is_over);
    }
}
