//! The server: many clients' sessions behind one device.

mod addresses;
mod connection;
pub(crate) mod guests;
mod opens;
mod places;
mod registry;
mod routes;
mod strays;

use crate::budget::Budget;
use crate::config::ServerConfig;
use crate::device::Device;
use crate::interfaces::Networks;
use crate::metrics;
use crate::nat::{Nat, SERVERS, check_forwarding};
use crate::quic::{SERVER_ID_BYTES, endpoint, socket, udp_payload};
use crate::status::{SessionStatus, Status, StatusFile};
use crate::tables::{self, Table};
use crate::tls;
use anyhow::{Context, Result};
use guests::Guests;
use hawser_io::tun::Buffer;
use places::Places;
use registry::{Open, Registry};
use routes::Routes;
use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use strays::Strays;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval, sleep, sleep_until, timeout};
use tracing::{error, info, warn};

/// How often the status is written.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// How soon it is written when sessions or their paths have changed: a little later, because changes come in groups, and so that no
/// more than one part in twenty of the time is spent on it.
const SETTLE: Duration = Duration::from_millis(50);
const STATUS_SHARE: u32 = 20;

/// How long sessions may take to say how they are.
const REPORTING: Duration = Duration::from_secs(1);

/// How long connections may take to say that they are closed.
const CLOSING: Duration = Duration::from_secs(1);

/// What all connections share.
pub(crate) struct Server {
    pub(crate) config: ServerConfig,
    pub(crate) device: Arc<Device>,
    /// Those that this machine is in.
    networks: watch::Receiver<Networks>,
    pub(crate) registry: Arc<Registry>,
    /// The memory of all sessions.
    budget: Arc<Budget>,
    strays: Arc<Strays>,
    /// Whom a controller lets in; without one, whoever has a certificate.
    pub(crate) guests: Option<Arc<Guests>>,
    /// Whether the server is about to end.
    pub(crate) draining: watch::Sender<bool>,
    pub(crate) routes: Arc<Routes>,
    /// Tables of nftables that are restored when another program changes or removes them.
    tables: Vec<Arc<Table>>,
    /// Sessions or paths have changed.
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

/// Serves until SIGINT or SIGTERM, and then until clients have gone elsewhere or their time is up.
pub(crate) async fn run(config: ServerConfig) -> Result<()> {
    // Before anything that takes time: none is missed, and none ends a server that is starting.
    let signals = Signals::catch()?;
    if config.nat {
        check_forwarding(&config.prefixes)?;
    }
    let tls = tls::server(&config.common.credentials)?;
    let quic = watch::Sender::new(noq::ServerConfig::with_crypto(tls.clone()));
    let strays = Arc::new(Strays::default());
    let registry = Arc::new(Registry::new(&config));
    let networks = Networks::watch(&config.common.interface)?;
    let device = Device::create(&config.common.interface, config.common.mtu, &registry.own_addresses())?;
    device.serve(SERVERS)?;
    let nat = set_up_rules(&config)?;
    let tables: Vec<_> = nat.iter().map(Nat::table).collect();
    tables::keep(tables.clone())?;
    let mut endpoints = Vec::new();
    for address in &config.listen {
        let payload = udp_payload(config.outer_mtu, Ipv4Addr::UNSPECIFIED.into(), config.common.mtu);
        let config = endpoint(SERVER_ID_BYTES, payload)?;
        endpoints.push(strays.endpoint(config, tls.clone(), socket(*address, None)?)?);
    }
    let status_file = StatusFile::at(config.common.status_file());
    let metrics_address = config.common.metrics;
    let routes = Arc::new(Routes::default());
    let device = Arc::new(device);
    std::thread::spawn({
        let (routes, device, registry) = (Arc::clone(&routes), Arc::clone(&device), Arc::clone(&registry));
        move || routes.apply(&device, &registry)
    });
    let listed = config.listed.clone();
    let guests = listed.as_ref().map(Guests::read).transpose()?.map(Arc::new);
    let draining = watch::Sender::new(false);
    let budget = Budget::new(config.memory);
    let server = Arc::new(Server {
        config,
        device,
        networks,
        registry,
        budget,
        strays,
        guests: guests.clone(),
        draining,
        routes,
        tables,
        changed: Notify::new(),
    });
    let places = Arc::new(Places::default());
    for endpoint in &endpoints {
        info!(address = %endpoint.local_addr()?, "waiting for clients");
        let (server, places) = (Arc::clone(&server), Arc::clone(&places));
        tokio::spawn(connection::accept(server, endpoint.clone(), places, quic.subscribe()));
    }
    tokio::spawn(dispatch(Arc::clone(&server)));
    if let (Some(guests), Some(listed)) = (guests, listed) {
        tokio::spawn(guests::keep_listed(Arc::clone(&server), guests, listed));
    }
    if let Some(address) = metrics_address {
        let server = Arc::clone(&server);
        metrics::serve(address, move || {
            let server = Arc::clone(&server);
            async move { server.status().await }
        })
        .await?;
    }
    serve(&server, status_file, &quic, signals).await?;
    for endpoint in &endpoints {
        endpoint.close(0u8.into(), b"the server has ended");
        // Whoever does not hear it notices soon.
        let _ = timeout(CLOSING, endpoint.wait_all_draining()).await;
    }
    Ok(())
}

/// The rules of the firewall. Without NAT a server does without them where there is no nftables.
fn set_up_rules(config: &ServerConfig) -> Result<Option<Nat>> {
    let tun = &config.common.interface;
    if config.nat {
        let with = |most| Nat::of_server(tun, &config.prefixes, most);
        return with(Some(config.most_connections)).map(Some).or_else(|error| {
            let nat = with(None).context("source NAT")?;
            warn!("one client's connections may fill the table of all: {error:#}");
            Ok(Some(nat))
        });
    }
    match Nat::of_server(tun, &[], None) {
        Ok(nat) => Ok(Some(nat)),
        Err(error) => {
            warn!("clients of other servers on this machine are not kept away from this one's: {error:#}");
            Ok(None)
        }
    }
}

/// Writes the status until a signal comes, then drains. SIGHUP makes it read the certificates again.
async fn serve(
    server: &Server,
    mut status_file: StatusFile,
    quic: &watch::Sender<noq::ServerConfig>,
    Signals { mut interrupt, mut terminate, mut hangup }: Signals,
) -> Result<()> {
    let mut tick = interval(STATUS_EVERY);
    let (mut due, mut took) = (None, Duration::ZERO);
    loop {
        tokio::select! {
            _ = tick.tick() => took = write(server, &mut status_file).await,
            () = server.changed.notified() => {
                due.get_or_insert(Instant::now() + SETTLE.max(took * STATUS_SHARE));
            }
            () = at(due) => {
                due = None;
                took = write(server, &mut status_file).await;
            }
            _ = hangup.recv() => match tls::server(&server.config.common.credentials) {
                Ok(tls) => {
                    quic.send_replace(noq::ServerConfig::with_crypto(tls));
                    info!("certificates read again");
                }
                Err(error) => error!("the certificates stay as they were: {error:#}"),
            },
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        }
    }
    server.draining.send_replace(true);
    let sessions = server.registry.count();
    info!(
        sessions,
        seconds = server.config.drain.as_secs(),
        "ending: clients may go to other servers; again to end at once"
    );
    let until = Instant::now() + server.config.drain;
    while server.registry.count() > 0 && Instant::now() < until {
        tokio::select! {
            () = sleep(Duration::from_millis(50)) => {}
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
        }
    }
    server.registry.stop_all();
    status_file.write(server.status().await);
    Ok(())
}

/// Writes the status; returns how long that took.
async fn write(server: &Server, status_file: &mut StatusFile) -> Duration {
    let began = Instant::now();
    status_file.write(server.status().await);
    began.elapsed()
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

/// Brings what the kernel hands over to the session whose client it is for.
async fn dispatch(server: Arc<Server>) {
    let mut buffer = Buffer::default();
    loop {
        match server.device.read(&mut buffer).await {
            Ok(packets) => server.registry.dispatch(packets),
            Err(error) => {
                error!("{error:#}");
                return;
            }
        }
    }
}

async fn status_of(open: Arc<Open>) -> Option<SessionStatus> {
    open.handle.report().await.map(|report| open.status(report))
}

impl Server {
    async fn status(&self) -> Status {
        let mut status = Status::new(&self.config.common, "server");
        status.draining = *self.draining.borrow();
        status.addresses = self.registry.own_addresses().into_iter().map(|(address, _)| address).collect();
        status.kept_bytes = self.budget.used().0;
        status.tables_restored = self.tables.iter().map(|table| table.restored()).sum();
        status.not_passed_on = self.registry.counted();
        status.not_passed_on.extend(self.device.counted());
        status.not_passed_on.extend(self.strays.counted());
        let mut reports: JoinSet<_> = self.registry.sessions().into_iter().map(status_of).collect();
        // Whoever does not answer in time is left out this time.
        let all = async {
            while let Some(answer) = reports.join_next().await {
                status.sessions.extend(answer.ok().flatten());
            }
        };
        let _ = timeout(REPORTING, all).await;
        status.sessions.sort_by(|one, other| one.peer.cmp(&other.peer));
        status
    }
}
