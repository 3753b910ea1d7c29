//! The client: one session at a time, with the nearest server that answers, over all uplinks.

mod attach;
mod cost;
mod dial;
mod dial_errors;
mod hold;
mod indices;
pub(crate) mod kill_switch;
mod search;
mod servers;
mod show;
mod uplinks;
mod usage;

use crate::budget::Budget;
use crate::config::{ClientConfig, ServerEntry};
use crate::device::Device;
use crate::interfaces::Networks;
use crate::join::{CloseCode, Opened, PathNumber};
use crate::metrics;
use crate::nat::Nat;
use crate::session::{self, Admission, Handle, Settings};
use crate::status::{Status, StatusFile};
use crate::tables::{self, Table};
use crate::time;
use anyhow::{Context, Result};
use attach::{Membership, SessionLoss};
use cost::CostLevel;
use dial::{Attached, Dialed, Dialer, Refused};
use hawser_client::Backoff;
use hawser_io::tun::Buffer;
use hawser_units::{ByteSize, PathId};
use kill_switch::KillSwitch;
use parking_lot::Mutex;
use search::{Found, search};
use servers::Servers;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use tracing::{error, info, warn};
use uplinks::Uplink;
use usage::Usage;

/// The interval at which the session is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The interval at which the status is written without a change, in polls.
const POLLS_PER_STATUS: u32 = 4;

/// The initial and the largest pause before all servers are tried again.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// The capacity of the queue of session losses; further ones are discarded.
const SESSION_LOSS_QUEUE: usize = 16;

/// Keeps a tunnel up until SIGINT or SIGTERM. SIGHUP has no effect.
pub(crate) async fn run(config: ClientConfig, kill_switch: Option<KillSwitch>) -> Result<()> {
    let hangup = signal(SignalKind::hangup())?;
    let mut client = Client::start(config, kill_switch).await?;
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    tokio::select! {
        never = client.stay_connected() => match never {},
        never = log_hangups(hangup) => match never {},
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    client.shut_down().await;
    Ok(())
}

async fn log_hangups(mut hangup: Signal) -> Infallible {
    while hangup.recv().await.is_some() {
        info!(
            "SIGHUP has no effect: certificates are read for each connection, other settings need a restart"
        );
    }
    std::future::pending().await
}

struct Client {
    config: ClientConfig,
    dialer: Arc<Dialer>,
    device: Arc<Device>,
    uplinks: watch::Receiver<Vec<Uplink>>,
    /// The networks that this node is in.
    networks: watch::Receiver<Networks>,
    servers: Servers,
    /// The packet queue of the current session.
    to_session: watch::Sender<Option<mpsc::Sender<Vec<u8>>>>,
    /// The MTU to be set at the device, in bytes.
    mtu: std::sync::mpsc::Sender<u16>,
    /// The inner addresses of the device.
    addresses: Vec<(IpAddr, u8)>,
    current: Option<Current>,
    /// The server that refused the last session; the next search prefers others.
    refused_by: Option<String>,
    /// The uplink over which opening a session failed last; the next search prefers others.
    failed_uplink: Option<String>,
    usage: Usage,
    status_file: StatusFile,
    /// The last status, for metrics.
    last_status: Arc<Mutex<Status>>,
    /// The nftables tables that are restored when another program changes or removes them.
    tables: Vec<Arc<Table>>,
    _nat: Option<Nat>,
}

/// The current session and its uplinks.
struct Current {
    membership: Arc<Membership>,
    addresses: Vec<IpAddr>,
    since: SystemTime,
    session_loss: mpsc::Receiver<SessionLoss>,
    /// The uplinks of the session by interface, updated through their senders. Dropping a sender
    /// removes the uplink.
    members: BTreeMap<String, watch::Sender<Uplink>>,
    tasks: JoinSet<()>,
    cost: CostLevel,
    silent_since: Option<std::time::Instant>,
    /// The part of the status that changes rarely: each path with its standby state, and the MTU.
    /// After a change the status is written at once.
    shape: (Vec<(String, bool)>, u16),
}

impl Current {
    /// Adds an uplink to the session, with its connection if there is one already.
    fn add(&mut self, dialer: &Arc<Dialer>, uplink: Uplink, attached: Option<Attached>) {
        let (sender, receiver) = watch::channel(uplink.clone());
        self.members.insert(uplink.interface, sender);
        let membership = Arc::clone(&self.membership);
        self.tasks.spawn(attach::run_uplink(
            Arc::clone(dialer),
            membership,
            receiver,
            attached,
        ));
    }
}

impl Client {
    async fn start(config: ClientConfig, kill_switch: Option<KillSwitch>) -> Result<Client> {
        let common = &config.common;
        let kill_switch = kill_switch.map(Arc::new);
        let mut tables: Vec<_> = kill_switch
            .iter()
            .map(|kill_switch| kill_switch.table())
            .collect();
        // First, because removals before this are not noticed.
        tables::watch(tables.clone())?;
        let dialer = Arc::new(Dialer::new(&config, kill_switch)?);
        let usage = Usage::read(config.usage_file.clone())?;
        let uplinks = uplinks::watch(config.uplinks.clone())?;
        let networks = Networks::watch(&common.interface)?;
        let device = Arc::new(Device::create(&common.interface, common.mtu, &[])?);
        let nat = config
            .masquerade
            .then(|| Nat::for_client(&common.interface))
            .transpose()?;
        tables::watch(nat.iter().map(Nat::table).collect())?;
        tables.extend(nat.iter().map(Nat::table));
        let to_session = watch::Sender::new(None);
        tokio::spawn(forward_packets(Arc::clone(&device), to_session.subscribe()));
        let (mtu, mtus) = std::sync::mpsc::channel();
        std::thread::spawn({
            let device = Arc::clone(&device);
            move || {
                for mtu in mtus {
                    info!(mtu, "inner MTU changed");
                    device
                        .set_mtu(mtu)
                        .unwrap_or_else(|error| warn!("{error:#}"));
                }
            }
        });
        let last_status = Arc::new(Mutex::new(Status::new(common, "client")));
        if let Some(address) = common.metrics {
            let last_status = Arc::clone(&last_status);
            metrics::serve(address, move || {
                let status = last_status.lock().clone();
                async move { status }
            })
            .await?;
        }
        let status_file = StatusFile::at(common.status_file());
        Ok(Client {
            dialer,
            device,
            uplinks,
            networks,
            servers: Servers::watch(&config),
            to_session,
            mtu,
            addresses: Vec::new(),
            current: None,
            refused_by: None,
            failed_uplink: None,
            usage,
            status_file,
            last_status,
            tables,
            _nat: nat,
            config,
        })
    }

    async fn stay_connected(&mut self) -> std::convert::Infallible {
        let mut next: Found = None;
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        loop {
            let (dialed, server) = match next.take() {
                Some(found) => found,
                None => self.find().await,
            };
            let (interface, name) = (dialed.uplink.interface.clone(), server.name.clone());
            match self.open(dialed, server).await {
                Ok(()) => {
                    backoff.reset();
                    next = self.run_session().await;
                }
                Err(error) => {
                    self.dialer.dial_errors.record(&interface, &name, &error);
                    match error.is::<Refused>() {
                        true => self.refused_by = Some(name),
                        false => self.failed_uplink = Some(interface),
                    }
                    self.show_while(backoff.pause()).await;
                }
            }
        }
    }

    /// Closes the session, so that the server does not have to wait for a timeout.
    async fn shut_down(&mut self) {
        self.close_session();
        self.usage.write();
        self.show().await;
        // Leaves time for the packets that close the connections. A server that misses them closes
        // the session later.
        sleep(Duration::from_millis(50)).await;
    }

    fn close_session(&mut self) {
        if let Some(current) = self.current.take() {
            current.membership.handle.stop(CloseCode::Done);
        }
    }

    /// Returns the uplinks whose monthly cap is not used up.
    fn usable(&self) -> Vec<Uplink> {
        let uplinks = self.uplinks.borrow();
        let left = |uplink: &&Uplink| {
            uplink
                .monthly_cap
                .is_none_or(|cap| self.usage.of(&uplink.interface) < cap)
        };
        uplinks.iter().filter(left).cloned().collect()
    }

    /// Searches until a server answers over any uplink; returns the nearest one.
    async fn find(&mut self) -> (Dialed, ServerEntry) {
        let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
        loop {
            self.uplinks.mark_unchanged();
            let mut servers = self.servers.get().await;
            if let Some(name) = self.refused_by.take().filter(|_| servers.len() > 1) {
                servers.retain(|server| server.name != name);
            }
            let mut uplinks = self.usable();
            if let Some(interface) = self.failed_uplink.take().filter(|_| uplinks.len() > 1) {
                uplinks.retain(|uplink| uplink.interface != interface);
            }
            let search = search(Arc::clone(&self.dialer), uplinks, servers);
            let try_all = async {
                let found = search.await;
                if found.is_none() {
                    backoff.pause().await;
                }
                found
            };
            let mut uplinks = self.uplinks.clone();
            let attempt = async {
                tokio::select! {
                    found = try_all => found,
                    // A change of the uplinks restarts the search.
                    Ok(()) = uplinks.changed() => None,
                }
            };
            if let Some(found) = self.show_while(attempt).await {
                return found;
            }
        }
    }

    /// Awaits `work`, and keeps the status up to date while there is no session.
    async fn show_while<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut tick = interval(POLL_INTERVAL * POLLS_PER_STATUS);
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = tick.tick() => self.show().await,
            }
        }
    }

    /// Opens a session over `dialed`, which replaces the current one.
    async fn open(&mut self, dialed: Dialed, server: ServerEntry) -> Result<()> {
        let wanted = match self.servers.addresses() {
            given if !given.is_empty() => given,
            _ => self.addresses.iter().map(|(address, _)| *address).collect(),
        };
        let first = PathNumber {
            index: PathId::all().next().expect("there are paths"),
            standby: false,
        };
        let (opened, secret, attached) = dialed.open(&wanted, first).await?;
        let addresses: Vec<_> = opened
            .addresses
            .iter()
            .map(|(address, _)| *address)
            .collect();
        info!(server = server.name, ?addresses, "session opened");
        let handle = self.start_session(&opened)?;
        let (session_loss, session_losses) = mpsc::channel(SESSION_LOSS_QUEUE);
        self.configure(&opened)?;
        self.close_session();
        self.to_session.send_replace(Some(handle.packets.clone()));
        let mut current = Current {
            membership: Arc::new(Membership::new(
                server,
                opened.session,
                secret,
                handle,
                session_loss,
                first.index,
            )),
            addresses,
            since: SystemTime::now(),
            session_loss: session_losses,
            members: BTreeMap::new(),
            tasks: JoinSet::new(),
            cost: CostLevel::new(time::now()),
            silent_since: None,
            shape: Default::default(),
        };
        current.add(&self.dialer, attached.uplink.clone(), Some(attached));
        self.current = Some(current);
        self.follow_uplinks();
        Ok(())
    }

    fn start_session(&self, opened: &Opened) -> Result<Handle> {
        let mtu = self.mtu.clone();
        let (handle, _) = session::start(Settings {
            coding: opened
                .coding
                .config()
                .context("the server sent invalid coding parameters")?,
            frame_boundary: opened.coding.frame_boundary,
            device: Arc::clone(&self.device),
            admission: Admission::FromServer {
                own: opened
                    .addresses
                    .iter()
                    .map(|(address, _)| *address)
                    .collect(),
                lan: self.config.lan.clone(),
                networks: self.networks.clone(),
            },
            // A client has a single session, which is bounded by its own limits.
            claim: Budget::new(ByteSize(u64::MAX)).claim(),
            session_timeout: self.config.session_timeout,
            // The receiving thread runs as long as the client.
            mtu_changed: Box::new(move |fits| _ = mtu.send(fits)),
            mtu: opened.mtu.min(self.config.common.mtu),
        });
        Ok(handle)
    }

    /// Sets the addresses of the session at the device. Connections inside the tunnel survive if
    /// they are unchanged.
    fn configure(&mut self, opened: &Opened) -> Result<()> {
        if self.addresses == opened.addresses {
            return Ok(());
        }
        if !self.addresses.is_empty() {
            warn!("inner addresses changed: connections inside the tunnel will break");
        }
        self.device.set_addresses(&opened.addresses)?;
        self.device.set_routes(&self.config.routes)?;
        self.addresses = opened.addresses.clone();
        Ok(())
    }

    /// Adds, updates and removes uplinks of the session to match the usable ones.
    fn follow_uplinks(&mut self) {
        let usable = self.usable();
        let Some(current) = &mut self.current else {
            return;
        };
        current
            .members
            .retain(|interface, _| usable.iter().any(|uplink| uplink.interface == *interface));
        for uplink in usable {
            match current.members.get(&uplink.interface) {
                Some(member) => {
                    member.send_if_modified(|known| {
                        std::mem::replace(known, uplink.clone()) != uplink
                    });
                }
                None => current.add(&self.dialer, uplink, None),
            }
        }
    }
}

/// Forwards packets from the device to the session, waiting while its queue is full.
async fn forward_packets(
    device: Arc<Device>,
    session: watch::Receiver<Option<mpsc::Sender<Vec<u8>>>>,
) {
    let mut buffer = Buffer::default();
    loop {
        match device.read(&mut buffer).await {
            Ok(packets) => {
                let session = session.borrow().clone();
                match session {
                    Some(session) => match session.reserve_many(packets.len()).await {
                        Ok(places) => places
                            .zip(packets)
                            .for_each(|(place, packet)| place.send(packet)),
                        Err(_) => device.count_without_session(packets.len()),
                    },
                    None => device.count_without_session(packets.len()),
                }
            }
            Err(error) => {
                error!("{error:#}");
                return;
            }
        }
    }
}
