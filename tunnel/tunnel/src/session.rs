//! One session: packets of the device on one side, QUIC connections on the other, the coded
//! transport in between.
//!
//! A single task owns the whole session. It wakes up for batches of packets from the device,
//! batches of datagrams from the connections, acknowledgements that open a congestion window, and
//! timers. Client and server run the same task.

mod admission;
mod path;
mod report;

pub(crate) use admission::{Admission, DenyReason, is_source};
pub(crate) use path::{Link, WakeCell, canonical};
pub(crate) use report::{PathReport, Report};

use crate::budget::Claim;
use crate::config::FrameBoundary;
use crate::device::{Batch, Device};
use crate::join::{CloseCode, PathNumber};
use crate::packet::{Flows, mss};
use crate::time;
use bytes::Bytes;
use hawser_units::{Ecn, Instant, MAX_PATHS, PathId};
use hawser_xnc::frame::PacketBuffer;
use hawser_xnc::{Config, Endpoint, Event, is_control};
use path::{Datagram, Datagrams, Path, READ_BATCH, Wake};
use std::future::pending;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep_until;
use tracing::{debug, warn};

/// The capacity of a session's packet queue: a few trains of segmentation offload. Packets are
/// counted one by one, because those of a client that sends little arrive one by one.
const PACKET_QUEUE: usize = 2048;

/// The capacity of a session's datagram queue, in batches.
const DATAGRAM_QUEUE: usize = 16;

/// The largest number of datagrams handed to the connections before received ones are processed.
const MAX_TRANSMITS: usize = 512;

/// The poll interval while packets wait for a connection that paces its own queue: there is no
/// notification when it has sent.
const PACING_POLL: Duration = Duration::from_millis(1);

/// The capacity of a session's command queue; a sender waits while it is full.
const COMMAND_QUEUE: usize = 16;

/// A command to a session.
pub(crate) enum Command {
    /// Adds a path. It replaces the one with the same index.
    Add(PathNumber, Link),
    /// Removes a path if it still has the connection with this stable ID.
    Remove(PathId, usize),
    /// Puts a path on standby, or into use.
    Standby(PathId, bool),
    /// Tells that the connection of a path with this stable ID has moved to another network.
    Moved(PathId, usize),
}

/// The channels to a session.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) packets: mpsc::Sender<PacketBuffer>,
    commands: mpsc::Sender<Command>,
    reports: mpsc::Sender<oneshot::Sender<Report>>,
    stop: watch::Sender<Option<CloseCode>>,
}

impl Handle {
    /// Returns a report on the session; none if the session has ended.
    pub(crate) async fn report(&self) -> Option<Report> {
        let (answer, report) = oneshot::channel();
        self.reports.send(answer).await.ok()?;
        report.await.ok()
    }

    /// Sends a command, waiting while the queue is full. A session that has ended ignores it.
    pub(crate) async fn send_command(&self, command: Command) {
        let _ = self.commands.send(command).await;
    }

    /// Ends the session and closes its connections with `code`.
    pub(crate) fn stop(&self, code: CloseCode) {
        self.stop.send_replace(Some(code));
    }

    /// Returns when the session has ended.
    pub(crate) async fn ended(&self) {
        self.commands.closed().await;
    }
}

/// The parameters of a session.
pub(crate) struct Settings {
    pub(crate) coding: Config,
    pub(crate) frame_boundary: FrameBoundary,
    pub(crate) device: Arc<Device>,
    pub(crate) admission: Admission,
    /// The session's share of the memory of all sessions.
    pub(crate) claim: Claim,
    /// The time without any path after which the session ends.
    pub(crate) session_timeout: Duration,
    /// The time for which smaller datagrams are used on a path when large ones did not arrive.
    pub(crate) mtu_retry: Duration,
    /// Called with the largest inner packet, in bytes, whenever it changes.
    pub(crate) mtu_changed: Box<dyn Fn(u16) + Send>,
    pub(crate) mtu: u16,
}

/// Packets that were not forwarded.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dropped {
    /// Those of the peer by reason, in the order of [`DenyReason::ALL`].
    pub(crate) denied: [u64; DenyReason::ALL.len()],
    /// Packets to a server whose source is not an address of this client.
    pub(crate) foreign_source: u64,
    /// Datagrams of a connection that is no longer a path.
    pub(crate) path_ended: u64,
    /// Packets of either direction dropped because the memory of all sessions was used up.
    pub(crate) memory: u64,
}

struct Session {
    settings: Settings,
    flows: Flows,
    endpoint: Endpoint,
    paths: [Option<Path>; MAX_PATHS],
    wake: Arc<Wake>,
    datagrams: mpsc::Sender<Datagrams>,
    dropped: Dropped,
    /// Bytes written to the device, and read from it.
    received_bytes: u64,
    sent_bytes: u64,
    /// Bytes queued in the connections when this was last checked.
    queued_bytes: u64,
    mtu: u16,
    without_path_since: Option<Instant>,
    outgoing: Vec<Bytes>,
}

/// Starts a session without paths. The task exits when it is stopped or has had no path for the
/// session timeout of its settings.
pub(crate) fn start(settings: Settings) -> (Handle, tokio::task::JoinHandle<()>) {
    let (packets, packet_batches) = mpsc::channel(PACKET_QUEUE);
    let (commands, command_requests) = mpsc::channel(COMMAND_QUEUE);
    let (reports, report_requests) = mpsc::channel(COMMAND_QUEUE);
    let stop = watch::Sender::new(None);
    let (datagrams, datagram_batches) = mpsc::channel(DATAGRAM_QUEUE);
    let session = Session::new(settings, datagrams);
    let control = ControlRx {
        commands: command_requests,
        report_requests,
        stop: stop.subscribe(),
    };
    let task = tokio::spawn(session.run(packet_batches, datagram_batches, control));
    (
        Handle {
            packets,
            commands,
            reports,
            stop,
        },
        task,
    )
}

/// The receiving ends of a session's control channels.
struct ControlRx {
    commands: mpsc::Receiver<Command>,
    report_requests: mpsc::Receiver<oneshot::Sender<Report>>,
    stop: watch::Receiver<Option<CloseCode>>,
}

impl Session {
    fn new(settings: Settings, datagrams: mpsc::Sender<Datagrams>) -> Session {
        Session {
            endpoint: Endpoint::new(settings.coding.clone()),
            paths: Default::default(),
            wake: Arc::default(),
            datagrams,
            dropped: Dropped::default(),
            received_bytes: 0,
            sent_bytes: 0,
            queued_bytes: 0,
            mtu: 0,
            without_path_since: Some(time::now()),
            outgoing: Vec::new(),
            flows: Flows::new(settings.frame_boundary),
            settings,
        }
    }

    async fn run(
        mut self,
        mut packets: mpsc::Receiver<PacketBuffer>,
        mut datagrams: mpsc::Receiver<Datagrams>,
        mut control: ControlRx,
    ) {
        let (mut received, mut taken) = (Vec::new(), Vec::new());
        loop {
            let deadline = self.deadline();
            let wake = Arc::clone(&self.wake);
            tokio::select! {
                biased;
                code = control.stop.wait_for(Option::is_some) => {
                    let code = code.ok().and_then(|code| *code).unwrap_or(CloseCode::Done);
                    return self.stop(code, packets, datagrams);
                }
                // The requester may have gone.
                Some(answer) = control.report_requests.recv() => drop(answer.send(self.report())),
                Some(command) = control.commands.recv() => self.handle_command(command),
                _ = datagrams.recv_many(&mut received, DATAGRAM_QUEUE) => {}
                Some(packet) = packets.recv() => taken.push(packet),
                () = wake.notified() => {}
                () = at(deadline) => {}
            }
            let now = time::now();
            // Takes from both queues, so that neither direction starves the other. Packets wait in
            // the queues of their flows, not in line before these.
            received.extend(std::iter::from_fn(|| datagrams.try_recv().ok()).take(DATAGRAM_QUEUE));
            taken.extend(std::iter::from_fn(|| packets.try_recv().ok()).take(PACKET_QUEUE));
            self.take(now, &mut received, &mut taken);
            self.drive(now);
            self.claim(packets.len(), datagrams.len());
            if self.is_abandoned(now) {
                return self.stop(CloseCode::Done, packets, datagrams);
            }
        }
    }

    fn take(&mut self, now: Instant, received: &mut Vec<Datagrams>, packets: &mut Batch) {
        for batch in received.drain(..) {
            self.take_datagrams(now, batch);
        }
        for packet in packets.drain(..) {
            self.take_packet(now, packet);
        }
    }

    fn handle_command(&mut self, command: Command) {
        let now = time::now();
        match command {
            Command::Add(number, link) => self.add(now, number, link),
            Command::Remove(id, connection) => {
                if self.paths[id.index()]
                    .as_ref()
                    .is_some_and(|path| path.is(connection))
                {
                    self.remove(now, id, None);
                }
            }
            Command::Standby(id, standby) => self.set_standby(now, id, standby),
            Command::Moved(id, connection) => {
                let path = self.paths[id.index()].as_mut();
                if let Some(path) = path.filter(|path| path.is(connection)) {
                    path.widen_at(now);
                }
            }
        }
    }

    fn add(&mut self, now: Instant, number: PathNumber, link: Link) {
        self.remove(now, number.index, Some(CloseCode::Replaced));
        link.set_wake(Arc::clone(&self.wake));
        let path = Path::start(number, link, self.datagrams.clone());
        if !number.standby {
            self.endpoint.add_path(now, number.index);
        }
        self.paths[number.index.index()] = Some(path);
        self.without_path_since = None;
        self.update_mtu();
    }

    fn remove(&mut self, now: Instant, id: PathId, code: Option<CloseCode>) {
        let Some(path) = self.paths[id.index()].take() else {
            return;
        };
        path.end(code);
        self.endpoint.remove_path(now, id);
        if self.paths.iter().all(Option::is_none) {
            self.without_path_since = Some(now);
        }
        self.update_mtu();
    }

    fn set_standby(&mut self, now: Instant, id: PathId, standby: bool) {
        let Some(path) = &mut self.paths[id.index()] else {
            return;
        };
        if std::mem::replace(&mut path.standby, standby) != standby {
            if let Some(changes) = &path.link.standby {
                changes.send_replace(standby);
            }
            match standby {
                true => self.endpoint.remove_path(now, id),
                false => self.endpoint.add_path(now, id),
            }
        }
    }

    /// Reports the largest packet that fits all paths if it has changed.
    fn update_mtu(&mut self) {
        let Some(fits) = self.paths.iter().flatten().map(Path::largest_packet).min() else {
            return;
        };
        let mtu = fits.min(self.settings.mtu);
        if std::mem::replace(&mut self.mtu, mtu) != mtu {
            (self.settings.mtu_changed)(mtu);
        }
    }

    /// Closes the connections, and counts the packets that still wait.
    fn stop(
        self,
        code: CloseCode,
        mut packets: mpsc::Receiver<PacketBuffer>,
        mut datagrams: mpsc::Receiver<Datagrams>,
    ) {
        packets.close();
        datagrams.close();
        let packets = std::iter::from_fn(|| packets.try_recv().ok()).map(|_| 1);
        let datagrams =
            std::iter::from_fn(|| datagrams.try_recv().ok()).map(|batch| batch.datagrams.len());
        let waiting = packets.chain(datagrams).sum::<usize>() + self.endpoint.waiting();
        self.settings.device.count_ended(waiting);
        for path in self.paths.into_iter().flatten() {
            path.end(Some(code));
        }
    }

    fn is_abandoned(&self, now: Instant) -> bool {
        self.without_path_since
            .is_some_and(|since| now.saturating_since(since) >= self.settings.session_timeout)
    }

    fn deadline(&mut self) -> Option<Instant> {
        let abandoned = self
            .without_path_since
            .map(|since| since + self.settings.session_timeout);
        let has_path = abandoned.is_none();
        let paced = (has_path && self.endpoint.waiting() > 0).then(|| time::now() + PACING_POLL);
        [self.endpoint.poll_timeout(), abandoned, paced]
            .into_iter()
            .flatten()
            .min()
    }

    /// Updates the memory claim: the packets kept here, in the queues before the session and in the
    /// connections behind it.
    fn claim(&mut self, packets: usize, batches: usize) {
        let channels = (packets + batches * READ_BATCH) as u64 * u64::from(self.settings.mtu);
        let unread: u64 = self.paths.iter().flatten().map(Path::unread_bytes).sum();
        let kept = self.endpoint.memory().0 + channels + self.queued_bytes;
        self.settings
            .claim
            .set(kept, self.paths.iter().flatten().count(), unread);
    }

    fn take_packet(&mut self, now: Instant, packet: PacketBuffer) {
        if !self.settings.claim.may_grow() {
            self.dropped.memory += 1;
            return;
        }
        if let Some(source) = self.settings.admission.foreign_source(&packet) {
            self.drop_foreign(source);
            return;
        }
        let hint = self.flows.hint(now, &packet);
        let bytes = packet.len() as u64;
        // The endpoint counts rejected ones.
        if self.endpoint.handle_packet(now, packet, hint).is_ok() {
            self.sent_bytes += bytes;
        }
    }

    /// Counts a packet that the server would not accept. The first one is logged.
    fn drop_foreign(&mut self, source: IpAddr) {
        self.dropped.foreign_source += 1;
        if self.dropped.foreign_source == 1 {
            warn!(
                %source,
                "packets whose source is no address of this client are dropped: a program has used its socket since before \
                 the tunnel was up and has to be restarted, or a host behind this client needs `masquerade`"
            );
        }
    }

    fn take_datagrams(&mut self, now: Instant, batch: Datagrams) {
        let path = self.paths[batch.path.index()]
            .as_mut()
            .filter(|path| path.is(batch.connection));
        let Some(path) = path else {
            self.dropped.path_ended += batch.datagrams.len() as u64;
            return;
        };
        path.received(&batch.datagrams);
        for Datagram { bytes, is_marked } in batch.datagrams {
            // Acknowledgements and pings take no memory, and acknowledgements free some.
            if !is_control(&bytes) && !self.settings.claim.may_grow() {
                self.dropped.memory += 1;
                continue;
            }
            let ecn = is_marked.then_some(Ecn::Ce);
            // The endpoint counts rejected ones.
            let _ = self.endpoint.handle_datagram(now, batch.path, bytes, ecn);
        }
    }

    fn pass_on(&mut self) {
        let mut packets = std::mem::take(&mut self.outgoing);
        while let Some(mut packet) = self.endpoint.poll_packet() {
            if self.admits(&packet.bytes) {
                // Each end lowers what it receives, because the size that a SYN announces is that
                // of packets in the opposite direction.
                mss::clamp(&mut packet.bytes, self.mtu);
                self.received_bytes += packet.bytes.len() as u64;
                packets.push(packet.bytes);
            }
        }
        if !packets.is_empty() {
            self.settings.device.write(&packets);
        }
        packets.clear();
        self.outgoing = packets;
    }

    fn admits(&mut self, packet: &[u8]) -> bool {
        let outcome = self.settings.admission.check(packet);
        outcome
            .inspect_err(|reason| self.dropped.denied[*reason as usize] += 1)
            .is_ok()
    }

    /// Handles timers, forwards received packets, and hands the connections as many datagrams as
    /// their windows allow.
    fn drive(&mut self, now: Instant) {
        self.endpoint.handle_timeout(now);
        self.pass_on();
        self.wake.rearm();
        self.follow_sizes(now);
        self.update_paths();
        self.transmit(now);
        while let Some(event) = self.endpoint.poll_event() {
            self.log(event);
        }
    }

    /// Uses each path with packets of a size that arrives.
    fn follow_sizes(&mut self, now: Instant) {
        let mut has_changed = false;
        for path in self.paths.iter_mut().flatten() {
            has_changed |= path.narrow(now, self.settings.mtu_retry);
            has_changed |= path.widen(now);
        }
        if has_changed {
            self.update_mtu();
        }
    }

    fn update_paths(&mut self) {
        let clock = std::time::Instant::now();
        self.queued_bytes = 0;
        for path in self.paths.iter().flatten().filter(|path| !path.standby) {
            let state = path.state(clock);
            self.queued_bytes += state.queued.0;
            self.endpoint.update_path(path.id, state);
        }
    }

    fn transmit(&mut self, now: Instant) {
        for _ in 0..MAX_TRANSMITS {
            let Some(transmit) = self.endpoint.poll_transmit(now) else {
                break;
            };
            if let Some(path) = &mut self.paths[transmit.path.index()] {
                path.outgoing.push(transmit.datagram);
            }
        }
        for path in self.paths.iter_mut().flatten() {
            path.flush();
        }
    }

    fn log(&self, event: Event) {
        let Event { path, from, to } = event;
        if let Some(path) = &self.paths[path.index()] {
            debug!(path = path.link.name, %from, %to, "liveness of a path changed");
        }
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(time::timer(deadline)).await,
        None => pending().await,
    }
}
