//! The client: one session at a time, with the nearest server that answers, over all uplinks.

mod commands;
mod connections;
mod dial;
mod dial_errors;
mod dns;
mod files;
mod fit;
mod inner_addresses;
mod kept;
pub(crate) mod kill_switch;
mod modems;
mod narrow;
mod path;
mod portal;
mod resolv_conf;
mod servers;
mod settings;
mod show;
mod sizes;
mod stale_flows;
mod uplinks;
mod usage;

use crate::budget::Budget;
use crate::config::{ClientConfig, Prefix};
use crate::device::Device;
use crate::interfaces::Networks;
use crate::join::{Opened, Secret, SessionId};
use crate::metrics::{self, LastStatus};
use crate::nat::Nat;
use crate::session::{self, Admission, Handle, Report, Settings, canonical};
use crate::status::{Progress, Status};
use crate::tables::{self, Table};
use crate::time;
use anyhow::{Context, Result};
use connections::Connections;
use dial::Dialer;
use dns::Dns;
use files::Files;
use hawser_device::Buffer;
use hawser_io::json_file::StatusFile;
use hawser_units::{ByteSize, Instant};
use hawser_uplinks::{
    Event, Notice, PathFigures, Reachability, SessionFigures, Supervisor, Uplink,
};
use hawser_xnc::frame::PacketBuffer;
use inner_addresses::InnerAddresses;
use kept::Kept;
use kill_switch::KillSwitch;
use modems::Modems;
use narrow::NarrowUplinks;
use parking_lot::Mutex;
use servers::Servers;
use settings::Pushed;
use sizes::SizesFile;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep, sleep_until};
use tracing::{debug, info, warn};
use usage::UsageFile;

/// The interval at which the session is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The interval at which the status is written without a change, in polls.
const POLLS_PER_STATUS: u32 = 4;

/// Keeps a tunnel up until SIGINT or SIGTERM. The second one ends it at once. SIGHUP has no effect.
///
/// # Errors
/// If the tunnel cannot be set up, or its device fails or is removed.
pub(crate) async fn run(config: ClientConfig, kill_switch: Option<KillSwitch>) -> Result<()> {
    // Before anything that takes time: a signal must not be missed.
    hawser_service::ignore_hangups(
        "certificates are read for each connection, other settings need a restart",
    )?;
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let _stop = hawser_service::stop_flag()?;
    let mut client = Client::start(config, kill_switch).await?;
    let ended = tokio::select! {
        error = client.stay_connected() => Err(error),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    // Ends after the device and its routes, which do not wait for a slow disk.
    client.shut_down().await.finish().await;
    ended
}

/// Carries out the decisions of its supervisor.
struct Client {
    config: ClientConfig,
    supervisor: Supervisor,
    dialer: Arc<Dialer>,
    connections: Connections,
    device: Arc<Device>,
    uplinks: watch::Receiver<Vec<Uplink>>,
    narrow: NarrowUplinks,
    modems: watch::Receiver<Modems>,
    /// The networks that this node is in.
    networks: watch::Receiver<Networks>,
    servers: Servers,
    /// The settings of the controller.
    settings: Pushed,
    /// The packet queue of the current session.
    to_session: watch::Sender<Option<mpsc::Sender<PacketBuffer>>>,
    /// Reads the device, which it keeps open, until that fails.
    reader: JoinHandle<anyhow::Error>,
    /// The MTU to be set at the device, in bytes.
    mtu: std::sync::mpsc::Sender<u16>,
    /// The inner addresses that the device is configured for.
    addresses: InnerAddresses,
    current: Option<Current>,
    /// The files that were damaged at the start, for the status.
    damaged_files: Vec<String>,
    files: Files,
    progress: Progress,
    /// The part of the status that changes rarely. After a change the status is written at once.
    shape: Option<Shape>,
    /// The last status, for metrics.
    last_status: LastStatus,
    /// The nftables tables that are restored when another program changes or removes them.
    tables: Vec<Arc<Table>>,
    _nat: Option<Nat>,
    /// How often routes and rules were restored when stale flows were last forgotten.
    flows_forgotten_at: u64,
    dns: Dns,
    kept: Arc<Kept>,
}

/// The current session.
struct Current {
    /// The name of the server.
    server: String,
    session: SessionId,
    secret: Secret,
    handle: Handle,
    addresses: Vec<IpAddr>,
    since: SystemTime,
}

/// The start of the session, each path with its standby state, and the MTU.
type Shape = (SystemTime, Vec<(String, bool)>, u16);

impl Client {
    async fn start(config: ClientConfig, kill_switch: Option<KillSwitch>) -> Result<Client> {
        let common = &config.common;
        // First: servers or controllers may have host names, which have to be resolved.
        let dns = Dns::prepare(&config);
        let mut tables: Vec<_> = kill_switch.iter().map(KillSwitch::table).collect();
        // First, because removals before this are not noticed.
        tables::watch(tables.clone())?;
        // Before uplinks are used.
        let kept = Arc::new(Kept::watch(&config)?);
        let dialer = Dialer::new(&config, kill_switch.map(Arc::new), Arc::clone(&kept))?;
        let dialer = Arc::new(dialer);
        let mut usage_file = UsageFile::read(config.usage_file.clone())?;
        let usage = usage_file.stored().cloned().unwrap_or_default();
        let mut damaged_files = usage_file.damaged_files().to_vec();
        let mut sizes_file = SizesFile::read(config.sizes_file.clone(), &mut damaged_files)?;
        let seed = getrandom::u64().context("the kernel provides no random numbers")?;
        let uplinks = uplinks::watch(&config)?;
        let networks = Networks::watch(&common.interface)?;
        let device = Arc::new(Device::create(&common.interface, common.mtu, &[])?);
        if config.table.is_some() {
            device.accept_other_routes()?;
        }
        let watched = config.clone();
        let items = move || kept::inside(&watched);
        kept.watch_device(Device::watch(&device, items)?);
        let nat = masquerade(&config)?;
        tables.extend(nat.iter().map(Nat::table));
        let to_session = watch::Sender::new(None);
        let reader = tokio::spawn(forward_packets(Arc::clone(&device), to_session.subscribe()));
        let last_status = Arc::new(Mutex::new(Status::new(common, "client")));
        if let Some(address) = common.metrics {
            metrics::serve(address, Arc::clone(&last_status)).await?;
        }
        let supervisor = Supervisor::new(time::now(), seed, usage);
        let (inbox, pushed) = settings::channel(&config);
        let mut status_file = StatusFile::at(common.status_file());
        Ok(Client {
            supervisor,
            connections: Connections::new(Arc::clone(&dialer)),
            dialer,
            mtu: set_mtus(Arc::clone(&device)),
            device,
            servers: Servers::watch(&config, uplinks.clone(), inbox),
            uplinks,
            narrow: NarrowUplinks::new(config.mtu_retry, sizes_file.stored().clone()),
            modems: modems::watch(),
            networks,
            settings: pushed,
            to_session,
            reader,
            addresses: InnerAddresses::default(),
            current: None,
            damaged_files,
            files: Files::start(move |contents| {
                // First: what the status says of caps is to outlive this process.
                usage_file.write(&contents.usage);
                sizes_file.write(&contents.sizes);
                status_file.write(&contents.status);
            })?,
            progress: Progress::new(common),
            shape: None,
            last_status,
            tables,
            _nat: nat,
            flows_forgotten_at: 0,
            dns,
            kept,
            config,
        })
    }

    /// Keeps a session until the device fails: without it, the tunnel would carry nothing.
    async fn stay_connected(&mut self) -> anyhow::Error {
        let mut poll = interval(POLL_INTERVAL);
        let mut polls = 0;
        self.apply_settings();
        self.handle_servers();
        loop {
            self.carry_out_commands().await;
            let deadline = self.supervisor.poll_timeout().map(|(at, _)| at);
            tokio::select! {
                Ok(()) = self.uplinks.changed() => self.handle_uplinks(),
                () = self.servers.changed() => self.handle_servers(),
                () = self.settings.changed() => {
                    if self.settings.take() {
                        self.apply_settings();
                    }
                }
                outcome = self.connections.next() => self.handle_outcome(outcome).await,
                _ = poll.tick() => {
                    self.poll(polls % POLLS_PER_STATUS == 0).await;
                    polls += 1;
                }
                () = at(deadline) => self.supervisor.handle_timeout(time::now()),
                failed = &mut self.reader => return failed.unwrap_or_else(anyhow::Error::from),
            }
        }
    }

    /// Applies the settings of the controller, and those of the file for what it does not set.
    fn apply_settings(&mut self) {
        let search_every = self.settings.search_every();
        let search_every = search_every.unwrap_or(self.config.search_every);
        self.supervisor.survey_every(time::now(), search_every);
        let report_every = self.settings.report_every();
        self.progress
            .report_every(report_every.unwrap_or(self.config.common.report_every));
        self.handle_uplinks();
    }

    fn handle_uplinks(&mut self) {
        let now = time::now();
        let uplinks = self.narrow.limit(now, self.usable_uplinks());
        self.supervisor.handle_uplinks(now, uplinks);
    }

    /// Limits the uplinks of paths on which large packets do not arrive any more.
    fn follow_narrow_paths(&mut self) {
        let now = time::now();
        let uplinks = self.usable_uplinks();
        for (interface, mtu) in self.connections.narrowed() {
            let mut uplinks = uplinks.iter();
            if let Some(uplink) = uplinks.find(|uplink| uplink.interface == interface) {
                self.narrow.shrink(now, uplink, mtu);
            }
        }
    }

    /// Returns the uplinks that are up, with the settings of the controller.
    fn usable_uplinks(&self) -> Vec<Uplink> {
        self.settings.over(self.uplinks.borrow().clone())
    }

    fn handle_servers(&mut self) {
        if let Some(servers) = self.servers.get() {
            self.supervisor.handle_servers(time::now(), servers);
        }
    }

    /// Reports the state of the session to the supervisor. Writes the usage and the status if
    /// `write` is true, and after a change.
    async fn poll(&mut self, write: bool) {
        self.follow_narrow_paths();
        // Trials of larger packets begin and end.
        self.handle_uplinks();
        let report = match &self.current {
            Some(current) => current.handle.report().await,
            None => None,
        };
        self.report_figures(report.as_ref());
        self.carry_out_commands().await;
        self.follow_restorations();
        let shape = report.and_then(|report| self.shape_of(&report));
        let has_changed = std::mem::replace(&mut self.shape, shape) != self.shape;
        if write || has_changed {
            self.show().await;
        }
    }

    fn report_figures(&mut self, report: Option<&Report>) {
        let now = time::now();
        let month = usage::month(SystemTime::now());
        let is_synchronized = usage::is_clock_synchronized();
        self.supervisor.handle_month(now, &month, is_synchronized);
        match report {
            Some(report) => {
                let figures = self.figures(report);
                self.supervisor.handle_figures(now, &figures);
            }
            None if self.current.is_some() => self.supervisor.handle_notice(now, Notice::Ended),
            None => {}
        }
    }

    fn figures(&self, report: &Report) -> SessionFigures {
        let paths = report.paths.iter().filter_map(|path| {
            Some(PathFigures {
                connection: self.connections.of_path(path.connection)?,
                unacknowledged: path.figures.unacknowledged,
                bytes: path.outer_bytes,
            })
        });
        SessionFigures {
            paths: paths.collect(),
            waiting: report.waiting > 0,
        }
    }

    fn shape_of(&self, report: &Report) -> Option<Shape> {
        let paths = report.paths.iter();
        let paths = paths
            .map(|path| (path.name.clone(), path.standby))
            .collect();
        Some((self.current.as_ref()?.since, paths, report.mtu))
    }

    /// Carries out what the supervisor has decided, and logs what it has found.
    async fn carry_out_commands(&mut self) {
        loop {
            while let Some(event) = self.supervisor.poll_event() {
                self.log(event);
            }
            let commands: Vec<_> = std::iter::from_fn(|| self.supervisor.poll_command()).collect();
            if commands.is_empty() {
                return;
            }
            self.connections.allow_servers(&commands);
            for command in commands {
                self.carry_out(command).await;
            }
        }
    }

    fn log(&self, event: Event) {
        match event {
            Event::PathChanged {
                interface,
                from,
                to,
            } => {
                if to == Reachability::Reachable {
                    self.dialer.dial_errors.clear(&interface);
                }
                log_reachability(&interface, from, to);
            }
            Event::SessionSilent => {
                info!("no acknowledgement over any uplink: trying all servers");
            }
            Event::Nearer { from, to } => info!(from, to, "moving to a nearer server"),
            Event::SessionLost { server, loss } => warn!(server, "{loss}"),
            Event::TooManyPaths { server, interface } => {
                let limit = hawser_units::MAX_PATHS;
                let error =
                    anyhow::anyhow!("the session already has {limit} paths, which is the limit");
                self.dialer.dial_errors.record(&interface, &server, &error);
            }
        }
    }

    /// Closes the session, so that the server does not have to wait for a timeout. Returns the files
    /// that are still to be written.
    async fn shut_down(mut self) -> Files {
        self.supervisor.shut_down(time::now());
        self.carry_out_commands().await;
        self.show().await;
        self.reader.abort();
        self.kept.end();
        // Leaves time for the packets that close the connections. A server that misses them closes
        // the session later.
        sleep(Duration::from_millis(50)).await;
        self.files
    }

    /// Starts the session that a server has opened, and sets its addresses at the device.
    fn prepare(&mut self, server: String, opened: Opened, secret: Secret) -> Result<Current> {
        let networks = self.networks.borrow().clone();
        let addresses = InnerAddresses::of(&opened, &self.config, &networks, &self.peers())?;
        info!(server, addresses = ?addresses.own, "session opened");
        let handle = self.start_session(&opened, addresses.own.clone())?;
        self.configure(&addresses)?;
        Ok(Current {
            server,
            session: opened.session,
            secret,
            handle,
            addresses: addresses.own,
            since: SystemTime::now(),
        })
    }

    /// Returns the outer addresses of servers and controllers, apart from controllers with a host
    /// name.
    fn peers(&self) -> Vec<IpAddr> {
        let named = self.servers.get().unwrap_or_default().into_iter();
        let servers = named.flat_map(|server| server.addresses);
        let configured = self.config.servers.iter();
        let configured = configured.flat_map(|server| server.addresses.iter().copied());
        let controllers = self.config.controllers.iter();
        let controllers = controllers.filter_map(|controller| controller.address());
        let all = servers.chain(configured).chain(controllers);
        all.map(|address| canonical(address).ip()).collect()
    }

    fn start_session(&self, opened: &Opened, own: Vec<IpAddr>) -> Result<Handle> {
        let mtu = self.mtu.clone();
        let (handle, _) = session::start(Settings {
            coding: opened
                .coding
                .config(&self.config.transport)
                .context("the server sent invalid coding parameters")?,
            frame_boundary: opened.coding.frame_boundary,
            device: Arc::clone(&self.device),
            admission: Admission::FromServer {
                own,
                lan: self.config.lan.clone(),
                networks: self.networks.clone(),
            },
            // A client has a single session, which is bounded by its own limits.
            claim: Budget::new(ByteSize(u64::MAX)).claim(),
            session_timeout: self.config.session_timeout,
            mtu_retry: self.config.mtu_retry,
            // The receiving thread runs as long as the client.
            mtu_changed: Box::new(move |fits| _ = mtu.send(fits)),
            mtu: opened.mtu.min(self.config.common.mtu),
        });
        Ok(handle)
    }

    /// Configures the device for the addresses of a session. Connections inside the tunnel survive
    /// if they are unchanged.
    fn configure(&mut self, addresses: &InnerAddresses) -> Result<()> {
        if self.addresses == *addresses {
            return Ok(());
        }
        if !self.addresses.own.is_empty() && self.addresses.own != addresses.own {
            warn!("inner addresses changed: connections inside the tunnel will break");
        }
        let before = std::mem::take(&mut self.addresses);
        if let Err(error) = self.set_at_device(addresses) {
            // The session before goes on with its own.
            if !before.own.is_empty() && self.set_at_device(&before).is_ok() {
                self.addresses = before;
            }
            return Err(error);
        }
        self.addresses = addresses.clone();
        self.forget_stale_flows();
        self.dns.set();
        self.warn_of_unrouted_name_servers();
        Ok(())
    }

    fn set_at_device(&self, addresses: &InnerAddresses) -> Result<()> {
        self.device
            .configure(&addresses.own, &self.routes(addresses))
    }

    /// Returns what is routed into the tunnel, with the numbers of the routing tables: the
    /// destinations of the configuration, and the server itself.
    fn routes(&self, addresses: &InnerAddresses) -> Vec<(Prefix, Option<u32>)> {
        let table = self.config.table;
        let inside = self.config.inside().into_iter();
        // A route to each half of all addresses precedes the default routes of uplinks, of any metric,
        // and is in the way of none: DHCP clients add and replace these at any time.
        let inside = inside.flat_map(|prefix| match (table, prefix.length()) {
            (None, 0) => prefix.halves().to_vec(),
            _ => vec![prefix],
        });
        let inside = inside.map(|prefix| (prefix, table));
        // A network of an uplink may have the addresses of name servers, too.
        let names = self.config.name_servers_inside();
        let names = names.map(|address| (Prefix::host(address), table));
        let server = addresses.server.iter();
        let server = server.map(|address| (Prefix::host(*address), None));
        // Without an address of its family, a packet would enter the tunnel and not leave it.
        let has_own = |(prefix, _): &(Prefix, Option<u32>)| {
            let mut own = addresses.own.iter();
            own.any(|own| own.is_ipv4() == prefix.is_ipv4())
        };
        // A route to the server may also be in the configuration.
        let routes: BTreeSet<_> = inside.chain(names).chain(server).filter(has_own).collect();
        routes.into_iter().collect()
    }

    /// Warns of name servers that are not reached through the tunnel.
    fn warn_of_unrouted_name_servers(&self) {
        let routes = self.routes(&self.addresses);
        let networks = self.networks.borrow().clone();
        let inside = self.config.name_servers_inside();
        for server in inside.filter(|server| networks.contains(*server)) {
            warn!(%server, "a name server's address is also in a network of this node: it is reached through the tunnel only");
        }
        for server in &self.config.dns {
            if !routes.iter().any(|(prefix, _)| prefix.contains(*server)) {
                warn!(%server, "`dns` is neither in `routes` nor the server's inner address: it is asked outside the tunnel");
            }
        }
    }
}

/// Installs the rules that translate the sources of forwarded packets, if the configuration says so.
fn masquerade(config: &ClientConfig) -> Result<Option<Nat>> {
    let nat = config
        .masquerade
        .then(|| Nat::for_client(&config.common.interface))
        .transpose()?;
    tables::watch(nat.iter().map(Nat::table).collect())?;
    Ok(nat)
}

/// Starts a thread that sets the MTUs that it is sent at the device.
fn set_mtus(device: Arc<Device>) -> std::sync::mpsc::Sender<u16> {
    let (sender, mtus) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mtu in mtus {
            info!(mtu, "inner MTU changed");
            device
                .set_mtu(mtu)
                .unwrap_or_else(|error| warn!("{error:#}"));
        }
    });
    sender
}

/// Logs that the server does not answer over an uplink any more, or answers again.
fn log_reachability(interface: &str, from: Reachability, to: Reachability) {
    match to {
        Reachability::Unreachable => {
            info!(interface, "the server does not answer over the uplink");
        }
        Reachability::New | Reachability::Reachable if from >= Reachability::Unreachable => {
            info!(interface, "the server answers over the uplink again");
        }
        _ => debug!(interface, ?from, ?to, "reachability changed"),
    }
}

/// Waits until `deadline`; for ever if there is none.
async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(time::timer(deadline)).await,
        None => std::future::pending().await,
    }
}

/// Forwards packets from the device to the session, waiting while its queue is full. Returns the
/// error when the device cannot be read any more.
async fn forward_packets(
    device: Arc<Device>,
    session: watch::Receiver<Option<mpsc::Sender<PacketBuffer>>>,
) -> anyhow::Error {
    let mut buffer = Buffer::default();
    loop {
        let packets = match device.read(&mut buffer).await {
            Ok(packets) => packets,
            Err(error) => return error,
        };
        let session = session.borrow().clone();
        let places = match &session {
            Some(session) => session.reserve_many(packets.len()).await.ok(),
            None => None,
        };
        match places {
            Some(places) => places
                .zip(packets)
                .for_each(|(place, packet)| place.send(packet)),
            None => device.count_without_session(packets.len()),
        }
    }
}
