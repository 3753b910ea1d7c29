//! One session: packets of the device on one side, QUIC connections on the other, the coded transport between.
//!
//! One task owns all of it. What wakes it comes in batches: packets from the device, datagrams from the connections,
//! acknowledgements that open a window, timers. Both ends run the same task.

mod admission;
mod path;
mod report;

pub(crate) use admission::{Admission, Closed};
pub(crate) use path::{Link, WakeCell, canonical};
pub(crate) use report::{PathReport, Report};

use crate::budget::Claim;
use crate::config::Borders;
use crate::device::Device;
use crate::join::{CloseCode, PathNumber};
use crate::packet::Flows;
use crate::time;
use bytes::Bytes;
use hawser_units::{Instant, MAX_PATHS, PathId};
use hawser_xnc::{Config, Ecn, Endpoint, is_control};
use path::{Datagrams, Path, READ as BATCH, Wake};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep_until;

/// Packets that the kernel handed over at once.
pub(crate) type Batch = Vec<Vec<u8>>;

/// Packets that wait until a session comes round to them: a few trains. They are counted one by one, because those of a
/// modest client come one by one.
const PACKETS: usize = 2048;

/// Batches of datagrams that wait for a session.
const DATAGRAM_BATCHES: usize = 16;

/// Datagrams handed to the connections before received ones get a turn.
const MOST_TRANSMITS: usize = 512;

/// When packets wait, how soon a connection that paces what it has is looked at again. Nobody tells when it has sent.
const PACED: Duration = Duration::from_millis(1);

/// What a session may have been told and not have done: who says more has to wait.
const COMMANDS: usize = 16;

/// What a session is told.
pub(crate) enum Command {
    /// A path; it replaces the one that has its index.
    Add(PathNumber, Link),
    /// The path's connection has ended.
    Remove(PathId, usize),
    /// The path waits, or does so no longer.
    Standby(PathId, bool),
}

/// What reaches a session.
#[derive(Clone)]
pub(crate) struct Handle {
    pub(crate) packets: mpsc::Sender<Vec<u8>>,
    commands: mpsc::Sender<Command>,
    reports: mpsc::Sender<oneshot::Sender<Report>>,
    stop: watch::Sender<Option<CloseCode>>,
}

impl Handle {
    /// How things are; none when the session has ended.
    pub(crate) async fn report(&self) -> Option<Report> {
        let (answer, report) = oneshot::channel();
        self.reports.send(answer).await.ok()?;
        report.await.ok()
    }

    /// Tells the session, as soon as it has done most of what it was told before; one that has ended need not be told.
    pub(crate) async fn tell(&self, command: Command) {
        let _ = self.commands.send(command).await;
    }

    /// Ends the session, and says why to the other end.
    pub(crate) fn stop(&self, code: CloseCode) {
        self.stop.send_replace(Some(code));
    }

    /// Returns when the session has ended.
    pub(crate) async fn ended(&self) {
        self.commands.closed().await;
    }

    /// Whether the session has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.commands.is_closed()
    }
}

/// What a session needs to know.
pub(crate) struct Settings {
    pub(crate) coding: Config,
    pub(crate) borders: Borders,
    pub(crate) device: Arc<Device>,
    pub(crate) admission: Admission,
    /// What it keeps counts against the memory of all sessions.
    pub(crate) claim: Claim,
    /// How long it waits for a path when it has none.
    pub(crate) keep: Duration,
    /// Called with the largest packet when that has changed.
    pub(crate) mtu_changed: Box<dyn Fn(u16) + Send>,
    pub(crate) mtu: u16,
}

/// Packets of the other end that were not passed on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Dropped {
    /// As in [`Closed::ALL`].
    pub(crate) closed: [u64; Closed::ALL.len()],
    /// Datagrams of a connection that was no path any more.
    pub(crate) path_ended: u64,
    /// Packets of either direction for which all sessions together had no memory left.
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
    /// Bytes passed on, and taken from the device.
    received_bytes: u64,
    sent_bytes: u64,
    /// What waited in the connections when that was last looked at.
    queued_bytes: u64,
    mtu: u16,
    without_path_since: Option<Instant>,
    outgoing: Vec<Vec<u8>>,
}

/// Starts a session without paths. The task ends when it is told to or has had no path for too long.
pub(crate) fn start(settings: Settings) -> (Handle, tokio::task::JoinHandle<()>) {
    let (packets, packet_batches) = mpsc::channel(PACKETS);
    let (commands, orders) = mpsc::channel(COMMANDS);
    let (reports, questions) = mpsc::channel(COMMANDS);
    let stop = watch::Sender::new(None);
    let (datagrams, datagram_batches) = mpsc::channel(DATAGRAM_BATCHES);
    let session = Session {
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
        flows: Flows::new(settings.borders),
        settings,
    };
    let told = Told { commands: orders, questions, stop: stop.subscribe() };
    let task = tokio::spawn(session.run(packet_batches, datagram_batches, told));
    (Handle { packets, commands, reports, stop }, task)
}

/// Where a session hears what it is told.
struct Told {
    commands: mpsc::Receiver<Command>,
    questions: mpsc::Receiver<oneshot::Sender<Report>>,
    stop: watch::Receiver<Option<CloseCode>>,
}

impl Session {
    async fn run(
        mut self,
        mut packets: mpsc::Receiver<Vec<u8>>,
        mut datagrams: mpsc::Receiver<Datagrams>,
        mut told: Told,
    ) {
        let (mut received, mut taken) = (Vec::new(), Vec::new());
        loop {
            let deadline = self.deadline();
            let wake = Arc::clone(&self.wake);
            tokio::select! {
                biased;
                code = told.stop.wait_for(Option::is_some) => {
                    let code = code.ok().and_then(|code| *code).unwrap_or(CloseCode::Done);
                    return self.stop(code, packets, datagrams);
                }
                // Whoever asked may have gone.
                Some(answer) = told.questions.recv() => drop(answer.send(self.report())),
                Some(command) = told.commands.recv() => self.obey(command),
                _ = datagrams.recv_many(&mut received, DATAGRAM_BATCHES) => {}
                Some(packet) = packets.recv() => taken.push(packet),
                () = wake.wanted() => {}
                () = at(deadline) => {}
            }
            let now = time::now();
            // Neither direction waits for the other one to have nothing to do.
            received.extend(std::iter::from_fn(|| datagrams.try_recv().ok()).take(DATAGRAM_BATCHES));
            received.drain(..).for_each(|batch| self.take_datagrams(now, batch));
            // Packets wait where flows are told apart, and not in line before that.
            taken.extend(std::iter::from_fn(|| packets.try_recv().ok()).take(PACKETS));
            taken.drain(..).for_each(|packet| self.take_packet(now, packet));
            self.drive(now);
            self.claim(packets.len(), datagrams.len());
            if self.is_abandoned(now) {
                return self.stop(CloseCode::Done, packets, datagrams);
            }
        }
    }

    fn obey(&mut self, command: Command) {
        let now = time::now();
        match command {
            Command::Add(number, link) => self.add(now, number, link),
            Command::Remove(id, connection) => {
                if self.paths[id.index()].as_ref().is_some_and(|path| path.is(connection)) {
                    self.remove(now, id, None);
                }
            }
            Command::Standby(id, standby) => self.set_standby(now, id, standby),
        }
    }

    fn add(&mut self, now: Instant, number: PathNumber, link: Link) {
        self.remove(now, number.index, Some(CloseCode::Replaced));
        link.wake_up(Arc::clone(&self.wake));
        let path = Path::start(number, link, self.datagrams.clone());
        if !number.standby {
            self.endpoint.add_path(now, number.index);
        }
        self.paths[number.index.index()] = Some(path);
        self.without_path_since = None;
        self.update_mtu();
    }

    fn remove(&mut self, now: Instant, id: PathId, code: Option<CloseCode>) {
        let Some(path) = self.paths[id.index()].take() else { return };
        path.end(code);
        self.endpoint.remove_path(now, id);
        if self.paths.iter().all(Option::is_none) {
            self.without_path_since = Some(now);
        }
        self.update_mtu();
    }

    fn set_standby(&mut self, now: Instant, id: PathId, standby: bool) {
        let Some(path) = &mut self.paths[id.index()] else { return };
        if std::mem::replace(&mut path.standby, standby) != standby {
            if let Some(tell) = &path.link.standby {
                tell.send_replace(standby);
            }
            match standby {
                true => self.endpoint.remove_path(now, id),
                false => self.endpoint.add_path(now, id),
            }
        }
    }

    /// Tells whoever sets the device's or the route's MTU what fits all paths.
    fn update_mtu(&mut self) {
        let Some(fits) = self.paths.iter().flatten().map(Path::largest_packet).min() else { return };
        let mtu = fits.min(self.settings.mtu);
        if std::mem::replace(&mut self.mtu, mtu) != mtu {
            (self.settings.mtu_changed)(mtu);
        }
    }

    /// Says the end to the other end, and counts what waits still.
    fn stop(
        self,
        code: CloseCode,
        mut packets: mpsc::Receiver<Vec<u8>>,
        mut datagrams: mpsc::Receiver<Datagrams>,
    ) {
        packets.close();
        datagrams.close();
        let packets = std::iter::from_fn(|| packets.try_recv().ok()).map(|_| 1);
        let datagrams = std::iter::from_fn(|| datagrams.try_recv().ok()).map(|batch| batch.datagrams.len());
        let waiting = packets.chain(datagrams).sum::<usize>() + self.endpoint.waiting();
        self.settings.device.count_ended(waiting);
        for path in self.paths.into_iter().flatten() {
            path.end(Some(code));
        }
    }

    fn is_abandoned(&self, now: Instant) -> bool {
        self.without_path_since.is_some_and(|since| now.saturating_since(since) >= self.settings.keep)
    }

    fn deadline(&mut self) -> Option<Instant> {
        let abandoned = self.without_path_since.map(|since| since + self.settings.keep);
        let has_path = abandoned.is_none();
        let paced = (has_path && self.endpoint.waiting() > 0).then(|| time::now() + PACED);
        [self.endpoint.poll_timeout(), abandoned, paced].into_iter().flatten().min()
    }

    /// Says what is kept here, and what waits before this and behind it.
    fn claim(&mut self, packets: usize, batches: usize) {
        let channels = (packets + batches * BATCH) as u64 * u64::from(self.settings.mtu);
        let unread: u64 = self.paths.iter().flatten().map(Path::unread_bytes).sum();
        let kept = self.endpoint.memory().0 + channels + self.queued_bytes;
        self.settings.claim.set(kept, self.paths.iter().flatten().count(), unread);
    }

    fn take_packet(&mut self, now: Instant, packet: Vec<u8>) {
        if !self.settings.claim.may_grow() {
            self.dropped.memory += 1;
            return;
        }
        let hint = self.flows.hint(now, &packet);
        let bytes = packet.len() as u64;
        // What is refused is counted by the endpoint.
        if self.endpoint.handle_packet(now, packet, hint).is_ok() {
            self.sent_bytes += bytes;
        }
    }

    fn take_datagrams(&mut self, now: Instant, batch: Datagrams) {
        let path = self.paths[batch.path.index()].as_mut().filter(|path| path.is(batch.connection));
        let Some(path) = path else {
            self.dropped.path_ended += batch.datagrams.len() as u64;
            return;
        };
        path.received(&batch.datagrams);
        for datagram in &batch.datagrams {
            // Acknowledgements and pings are not kept, and what is acknowledged is not kept any longer.
            if !is_control(datagram) && !self.settings.claim.may_grow() {
                self.dropped.memory += 1;
                continue;
            }
            // What is refused is counted by the endpoint.
            let _ = self.endpoint.handle_datagram(now, batch.path, datagram, Ecn::Unknown);
        }
    }

    fn pass_on(&mut self) {
        let mut packets = std::mem::take(&mut self.outgoing);
        while let Some(packet) = self.endpoint.poll_packet() {
            if self.admits(&packet.bytes) {
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
        outcome.inspect_err(|why| self.dropped.closed[*why as usize] += 1).is_ok()
    }

    /// Does what is due, and hands the connections what their windows take.
    fn drive(&mut self, now: Instant) {
        self.endpoint.handle_timeout(now);
        self.pass_on();
        self.wake.rest();
        let clock = std::time::Instant::now();
        self.queued_bytes = 0;
        for path in self.paths.iter().flatten().filter(|path| !path.standby) {
            let state = path.state(clock);
            self.queued_bytes += state.queued.0;
            self.endpoint.update_path(now, path.id, state);
        }
        for _ in 0..MOST_TRANSMITS {
            let Some(transmit) = self.endpoint.poll_transmit(now) else { break };
            if let Some(path) = &mut self.paths[transmit.path.index()] {
                path.outgoing.push(Bytes::from(transmit.datagram));
            }
        }
        for path in self.paths.iter_mut().flatten() {
            path.flush();
        }
        while self.endpoint.poll_event().is_some() {}
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(time::timer(deadline)).await,
        None => pending().await,
    }
}
