//! The server: the sessions of many clients behind one device.

mod addresses;
pub(crate) mod allowlist;
mod connection;
mod endpoint;
mod kept;
mod registry;
mod revocation;
mod routes;
mod stale_flows;
mod tcp;

use crate::budget::Budget;
use crate::config::{ClientList, ServerConfig};
use crate::device::Device;
use crate::ecn_socket::EcnSocket;
use crate::interfaces::Networks;
use crate::metrics::{self, LastStatus};
use crate::nat::{Nat, SERVER_GROUP, check_forwarding};
use crate::quic::{socket, udp_payload};
use crate::status::{Progress, SessionStatus, Status};
use crate::tables::{self, Table};
use crate::tcp::{Streams, TcpSocket};
use crate::tls::{self, ServerTls};
use allowlist::Allowlist;
use anyhow::{Context, Result};
use endpoint::SocketDrops;
use hawser_device::Buffer;
use hawser_io::handshakes::HandshakeSlots;
use hawser_io::json_file::StatusFile;
use hawser_io::kept::Watch;
use hawser_quic::MarkedDatagrams;
use noq::{AsyncUdpSocket, Endpoint};
use parking_lot::{Mutex, RwLock};
use registry::{OpenSession, Registry};
use routes::Routes;
use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tcp::Listeners;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};
use tracing::{error, info, warn};

/// The interval at which the status is written.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// The delay after which the status is written when sessions or their paths have changed. Changes
/// come in groups, and writing should take no more than one twentieth of the time.
const SETTLE: Duration = Duration::from_millis(50);
const STATUS_SHARE: u32 = 20;

/// The time limit for the reports of sessions.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// The time limit for telling clients that their connections are closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The state shared by all connections.
pub(crate) struct Server {
    pub(crate) config: ServerConfig,
    /// The file that the configuration was read from.
    file: PathBuf,
    /// The clients that are admitted, as the file said when it was read last.
    client_list: RwLock<ClientList>,
    /// Why the file was rejected when it was read last.
    rejected_file: Mutex<Option<String>>,
    pub(crate) device: Arc<Device>,
    /// The networks that this machine is in.
    networks: watch::Receiver<Networks>,
    pub(crate) registry: Arc<Registry>,
    /// The memory of all sessions.
    budget: Arc<Budget>,
    socket_drops: SocketDrops,
    /// The streams over TCP, if the server listens for them.
    streams: Option<Streams>,
    /// The datagrams of all clients that the network has marked, until they are decrypted.
    marked: Arc<MarkedDatagrams>,
    /// The clients that a controller admits. Without a controller, `client_list` alone decides.
    pub(crate) allowlist: Option<Arc<Allowlist>>,
    /// Whether the server is shutting down.
    pub(crate) draining: watch::Sender<bool>,
    pub(crate) routes: Arc<Routes>,
    /// The nftables tables that are restored when another program changes or removes them.
    tables: Vec<Arc<Table>>,
    /// The watch that restores the device.
    device_watch: Watch,
    kept: Watch,
    /// Notified when sessions or paths have changed.
    pub(crate) changed: Notify,
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn catch() -> Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }
}

/// Serves clients until SIGINT or SIGTERM, then drains: exits when all clients have left or the
/// drain time is over. The second signal ends it at once.
///
/// # Errors
/// If the server cannot be set up, or its device fails or is removed.
pub(crate) async fn run(config: ServerConfig, file: PathBuf) -> Result<()> {
    // Caught before anything that takes time: a signal must neither be missed nor kill a server
    // that is starting.
    let signals = Signals::catch()?;
    let _stop = hawser_service::stop_flag()?;
    if config.nat {
        check_forwarding(&config.prefixes)?;
    }
    let tls = tls::server(&config.common.credentials)?;
    let (listeners, socket) = Listeners::open(&config)?.unzip();
    let streams = listeners.as_ref().map(Listeners::streams);
    let (server, _nat) = Server::create(config, file, streams)?;
    let server = Arc::new(server);
    let endpoints = server.endpoints(&tls, socket)?;
    let tls = watch::Sender::new(tls);
    accept_clients(&server, &endpoints, listeners, &tls)?;
    let dispatched = tokio::spawn(dispatch(Arc::clone(&server)));
    report_to_controller(&server, &tls);
    let last_status = LastStatus::new(Mutex::new(server.status().await));
    if let Some(address) = server.config.common.metrics {
        metrics::serve(address, Arc::clone(&last_status)).await?;
    }
    let report = StatusReport {
        file: StatusFile::at(server.config.common.status_file()),
        progress: Progress::new(&server.config.common),
        last: last_status,
        flows_forgotten_at: None,
    };
    let ended = tokio::select! {
        () = serve(&server, report, &tls, signals) => Ok(()),
        // Without its device, the server would carry nothing: its clients find another one.
        failed = dispatched => {
            server.registry.stop_all();
            Err(failed.unwrap_or_else(anyhow::Error::from))
        }
    };
    close(&endpoints).await;
    ended
}

impl Server {
    /// Creates the server with its device and its firewall rules, which last as long as the [`Nat`].
    fn create(
        config: ServerConfig,
        file: PathBuf,
        streams: Option<Streams>,
    ) -> Result<(Server, Option<Nat>)> {
        let registry = Arc::new(Registry::new(&config));
        let networks = Networks::watch(&config.common.interface)?;
        let device = Arc::new(create_device(&config, &registry)?);
        let nat = set_up_rules(&config)?;
        let tables: Vec<_> = nat.iter().map(Nat::table).collect();
        tables::watch(tables.clone())?;
        let device_watch = Device::watch(&device, kept::inside(&config))?;
        let kept = kept::watch(&config)?;
        let registration = config.registration.as_ref();
        let allowlist = registration.map(Allowlist::read).transpose()?;
        let server = Server {
            routes: apply_routes(&device, &registry),
            device,
            networks,
            registry,
            budget: Budget::new(config.memory),
            socket_drops: SocketDrops::default(),
            streams,
            marked: Arc::default(),
            allowlist: allowlist.map(Arc::new),
            draining: watch::Sender::new(false),
            tables,
            device_watch,
            kept,
            changed: Notify::new(),
            client_list: RwLock::new(config.client_list.clone()),
            rejected_file: Mutex::default(),
            file,
            config,
        };
        Ok((server, nat))
    }

    /// Opens the endpoints at which the server listens for clients: one for each UDP address, and
    /// one for all TCP streams, if it listens for them.
    fn endpoints(&self, tls: &ServerTls, tcp: Option<TcpSocket>) -> Result<Vec<Endpoint>> {
        let config = &self.config;
        let any = Ipv4Addr::UNSPECIFIED.into();
        let payload = udp_payload(config.outer_mtu, any, config.common.mtu);
        let udp = config.listen.iter().map(|address| self.udp(*address));
        let tcp = tcp.map(|socket| Ok(Box::new(socket) as Box<dyn AsyncUdpSocket>));
        udp.chain(tcp)
            .map(|socket| endpoint::open(socket?, Arc::clone(&tls.quic.crypto), payload))
            .collect()
    }

    fn udp(&self, address: SocketAddr) -> Result<Box<dyn AsyncUdpSocket>> {
        let socket = socket(address, None)?;
        self.socket_drops.count(&socket)?;
        Ok(Box::new(EcnSocket::new(socket, Arc::clone(&self.marked))?))
    }
}

fn create_device(config: &ServerConfig, registry: &Registry) -> Result<Device> {
    let common = &config.common;
    let device = Device::create(&common.interface, common.mtu, &registry.own_addresses())?;
    device.configure_for_server(SERVER_GROUP)?;
    Ok(device)
}

/// Starts the thread that applies changes of routes to clients.
fn apply_routes(device: &Arc<Device>, registry: &Arc<Registry>) -> Arc<Routes> {
    let routes = Arc::new(Routes::default());
    std::thread::spawn({
        let (routes, device, registry) = (
            Arc::clone(&routes),
            Arc::clone(device),
            Arc::clone(registry),
        );
        move || routes.apply(&device, &registry)
    });
    routes
}

/// Installs the firewall rules. Without NAT, a missing nftables is not an error.
fn set_up_rules(config: &ServerConfig) -> Result<Option<Nat>> {
    let tun = &config.common.interface;
    if config.nat {
        let with = |max_connections| Nat::for_server(tun, &config.prefixes, max_connections);
        return with(Some(config.max_connections))
            .map(Some)
            .or_else(|error| {
                let nat = with(None).context("source NAT")?;
                warn!("cannot limit the connections of each client, so one client can fill the connection table: {error:#}");
                Ok(Some(nat))
            });
    }
    match Nat::for_server(tun, &[], None) {
        Ok(nat) => Ok(Some(nat)),
        Err(error) => {
            warn!(
                "cannot keep clients of other servers on this machine apart from this server's: {error:#}"
            );
            Ok(None)
        }
    }
}

fn accept_clients(
    server: &Arc<Server>,
    endpoints: &[Endpoint],
    listeners: Option<Listeners>,
    tls: &watch::Sender<ServerTls>,
) -> Result<()> {
    let slots = Arc::new(HandshakeSlots::default());
    if let Some(listeners) = listeners {
        listeners.accept(server, slots.of_another_kind(), tls.subscribe())?;
    }
    for endpoint in endpoints {
        info!(address = %endpoint.local_addr()?, "listening for clients");
        let (server, slots) = (Arc::clone(server), Arc::clone(&slots));
        tokio::spawn(connection::accept(
            server,
            endpoint.clone(),
            slots,
            tls.subscribe(),
        ));
    }
    Ok(())
}

fn report_to_controller(server: &Arc<Server>, tls: &watch::Sender<ServerTls>) {
    let registration = server.config.registration.clone();
    if let (Some(allowlist), Some(registration)) = (server.allowlist.clone(), registration) {
        tokio::spawn(allowlist::report_regularly(
            Arc::clone(server),
            allowlist,
            registration,
            tls.clone(),
        ));
    }
}

/// The places where the status is reported.
struct StatusReport {
    file: StatusFile,
    progress: Progress,
    last: LastStatus,
    /// How often rules and the device were restored when stale flows were last forgotten.
    flows_forgotten_at: Option<u64>,
}

impl StatusReport {
    /// Writes the status; returns how long that took. Forgets stale flows the first time, and after another
    /// program's removals of rules or routes were undone.
    async fn write(&mut self, server: &Server) -> Duration {
        let began = Instant::now();
        let mut status = server.status().await;
        let restored = Some(status.tables_restored + status.device_restored);
        if std::mem::replace(&mut self.flows_forgotten_at, restored) != restored {
            server.forget_stale_flows();
        }
        self.progress.complete(&mut status);
        self.file.write(&status);
        *self.last.lock() = status;
        began.elapsed()
    }
}

/// Writes the status until a signal arrives, then drains.
async fn serve(
    server: &Server,
    mut report: StatusReport,
    tls: &watch::Sender<ServerTls>,
    mut signals: Signals,
) {
    write_until_signal(server, &mut report, tls, &mut signals).await;
    drain(server, &mut report).await;
    server.registry.stop_all();
    report.write(server).await;
}

/// Writes the status until a signal to stop arrives. SIGHUP reloads the certificates and the list
/// of clients.
async fn write_until_signal(
    server: &Server,
    report: &mut StatusReport,
    tls: &watch::Sender<ServerTls>,
    signals: &mut Signals,
) {
    let mut tick = interval(STATUS_INTERVAL);
    let (mut due, mut took) = (None, Duration::ZERO);
    loop {
        tokio::select! {
            _ = tick.tick() => took = report.write(server).await,
            () = server.changed.notified() => {
                due.get_or_insert(Instant::now() + SETTLE.max(took * STATUS_SHARE));
            }
            () = at(due) => {
                due = None;
                took = report.write(server).await;
            }
            _ = signals.hangup.recv() => {
                // First: a certificate that cannot be read must not keep a stolen one in use.
                server.reload_clients();
                reload_certificates(server, tls);
            }
            _ = signals.interrupt.recv() => return,
            _ = signals.terminate.recv() => return,
        }
    }
}

fn reload_certificates(server: &Server, to: &watch::Sender<ServerTls>) {
    match tls::server(&server.config.common.credentials) {
        Ok(tls) => {
            to.send_replace(tls);
            info!("certificates reloaded");
        }
        Err(error) => {
            error!("cannot reload the certificates, the previous ones stay in use: {error:#}")
        }
    }
}

/// Writes the status until all clients have left or the drain time is over.
async fn drain(server: &Server, report: &mut StatusReport) {
    server.draining.send_replace(true);
    let sessions = server.registry.count();
    info!(
        sessions,
        seconds = server.config.drain.as_secs(),
        "shutting down: clients may move to other servers; repeat the signal to exit at once"
    );
    let until = Instant::now() + server.config.drain;
    let mut tick = interval(STATUS_INTERVAL);
    while server.registry.count() > 0 && Instant::now() < until {
        tokio::select! {
            _ = tick.tick() => {
                report.write(server).await;
            }
            () = sleep(Duration::from_millis(50)) => {}
        }
    }
}

/// Closes the connections, and waits until the clients have been told.
async fn close(endpoints: &[Endpoint]) {
    for endpoint in endpoints {
        endpoint.close(0u8.into(), b"the server has shut down");
        // A client that misses it notices soon.
        let _ = timeout(CLOSE_TIMEOUT, endpoint.wait_all_draining()).await;
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

/// Distributes packets from the device to the clients' sessions. Returns the error when the device
/// cannot be read any more.
async fn dispatch(server: Arc<Server>) -> anyhow::Error {
    let mut buffer = Buffer::default();
    loop {
        match server.device.read(&mut buffer).await {
            Ok(packets) => server.registry.dispatch(packets),
            Err(error) => return error,
        }
    }
}

async fn status_of(open: Arc<OpenSession>) -> Option<SessionStatus> {
    open.handle.report().await.map(|report| open.status(report))
}

impl Server {
    /// Returns whether packets to this address are carried by a stream over TCP.
    fn carries(&self, peer: SocketAddr) -> bool {
        let streams = self.streams.as_ref();
        streams.is_some_and(|streams| streams.have(peer))
    }

    async fn status(&self) -> Status {
        let mut status = Status::new(&self.config.common, "server");
        status.draining = *self.draining.borrow();
        status.addresses = self.registry.own_ips();
        status.memory_bytes = self.budget.used().0;
        status.tables_restored = self.tables.iter().map(|table| table.restored()).sum();
        status.device_restored = self.device_watch.restored();
        status.deviations = self.kept.deviations();
        status.deviations.extend(self.device_watch.deviations());
        let of_tables = self.tables.iter().flat_map(|table| table.deviations());
        status.deviations.extend(of_tables);
        status.rejected_file = self.rejected_file.lock().clone();
        if let Some(allowlist) = &self.allowlist {
            status.damaged_files = allowlist.damaged_files().to_vec();
        }
        status.dropped = self.registry.drop_counts();
        status.dropped.extend(self.device.drop_counts());
        status.dropped.extend(self.socket_drops.counts());
        status.sessions = self.session_statuses().await;
        status
    }

    /// Returns the status of each session, without those that do not answer in time.
    async fn session_statuses(&self) -> Vec<SessionStatus> {
        let sessions = self.registry.sessions().into_iter();
        let mut reports: JoinSet<_> = sessions.map(status_of).collect();
        let mut statuses: Vec<SessionStatus> = Vec::new();
        let all = async {
            while let Some(answer) = reports.join_next().await {
                statuses.extend(answer.ok().flatten());
            }
        };
        let _ = timeout(REPORT_TIMEOUT, all).await;
        statuses.sort_by(|one, other| one.peer.cmp(&other.peer));
        statuses
    }
}
