//! The client: one session at a time, at the nearest server that answers, over every uplink.

mod attach;
mod complaints;
mod cost;
mod dial;
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
use attach::{Membership, Trouble};
use cost::CostLevel;
use dial::{Attached, Dialed, Dialer, Refused};
use hawser_client::Backoff;
use hawser_io::tun::Buffer;
use hawser_units::{ByteSize, PathId};
use kill_switch::KillSwitch;
use search::{Found, search};
use servers::Servers;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep};
use tracing::{error, info, warn};
use uplinks::Uplink;
use usage::Usage;

/// How often the session is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How often the status is written when nothing has changed, in looks.
const STATUS_EVERY: u32 = 4;

/// The pauses before all servers are tried again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));

/// What is heard of a session's trouble and not acted upon yet; a server that says more of it is not listened to.
const TROUBLES: usize = 16;

/// Keeps a tunnel up until SIGINT or SIGTERM; SIGHUP does not end it.
pub(crate) async fn run(config: ClientConfig, kill_switch: Option<KillSwitch>) -> Result<()> {
    let hangup = signal(SignalKind::hangup())?;
    let mut client = Client::start(config, kill_switch).await?;
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    tokio::select! {
        never = client.stay_connected() => match never {},
        never = say_what_is_read_again(hangup) => match never {},
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    client.leave().await;
    Ok(())
}

async fn say_what_is_read_again(mut hangup: Signal) -> Infallible {
    while hangup.recv().await.is_some() {
        info!(
            "nothing is read again: certificates are read for each connection, the rest needs a restart"
        );
    }
    std::future::pending().await
}

struct Client {
    config: ClientConfig,
    dialer: Arc<Dialer>,
    device: Arc<Device>,
    uplinks: watch::Receiver<Vec<Uplink>>,
    /// Those that this node is in.
    networks: watch::Receiver<Networks>,
    servers: Servers,
    /// Where the device's packets go.
    to_session: watch::Sender<Option<mpsc::Sender<Vec<u8>>>>,
    /// What the device's MTU is to be.
    mtu: std::sync::mpsc::Sender<u16>,
    /// The inner addresses that the device has.
    addresses: Vec<(IpAddr, u8)>,
    current: Option<Current>,
    /// The server that refused a session last, which the others are preferred to.
    refused_by: Option<String>,
    /// The uplink over which it came to nothing last, which the others are preferred to.
    failed_over: Option<String>,
    usage: Usage,
    status_file: StatusFile,
    /// What was written last, for metrics.
    shown: Arc<Mutex<Status>>,
    /// Tables of nftables that are restored when another program changes or removes them.
    tables: Vec<Arc<Table>>,
    _nat: Option<Nat>,
}

/// The session, and what belongs to it.
struct Current {
    membership: Arc<Membership>,
    addresses: Vec<IpAddr>,
    since: SystemTime,
    trouble: mpsc::Receiver<Trouble>,
    /// What each interface is told of itself; who is not told any more leaves.
    members: BTreeMap<String, watch::Sender<Uplink>>,
    tasks: JoinSet<()>,
    cost: CostLevel,
    silent_since: Option<std::time::Instant>,
    /// The slow part of the status: each path with whether it is on standby, and the MTU. A change has it written at once.
    shape: (Vec<(String, bool)>, u16),
}

impl Current {
    /// Lets the session have an uplink, which may have a connection already.
    fn add(&mut self, dialer: &Arc<Dialer>, uplink: Uplink, attached: Option<Attached>) {
        let (sender, receiver) = watch::channel(uplink.clone());
        self.members.insert(uplink.interface, sender);
        let membership = Arc::clone(&self.membership);
        self.tasks.spawn(attach::keep(
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
        // Before anything that takes time, in which it would not be noticed that they are removed.
        tables::keep(tables.clone())?;
        let dialer = Arc::new(Dialer::new(&config, kill_switch)?);
        let usage = Usage::read(config.usage_file.clone())?;
        let uplinks = uplinks::watch(config.uplinks.clone())?;
        let networks = Networks::watch(&common.interface)?;
        let device = Arc::new(Device::create(&common.interface, common.mtu, &[])?);
        let nat = config
            .masquerade
            .then(|| Nat::of_client(&common.interface))
            .transpose()?;
        tables::keep(nat.iter().map(Nat::table).collect())?;
        tables.extend(nat.iter().map(Nat::table));
        let to_session = watch::Sender::new(None);
        tokio::spawn(feed(Arc::clone(&device), to_session.subscribe()));
        let (mtu, mtus) = std::sync::mpsc::channel();
        std::thread::spawn({
            let device = Arc::clone(&device);
            move || {
                for mtu in mtus {
                    info!(mtu, "largest packet that fits all uplinks");
                    device
                        .set_mtu(mtu)
                        .unwrap_or_else(|error| warn!("{error:#}"));
                }
            }
        });
        let shown = Arc::new(Mutex::new(Status::new(common, "client")));
        if let Some(address) = common.metrics {
            let shown = Arc::clone(&shown);
            metrics::serve(address, move || {
                let status = shown.lock().expect("nobody panics with it").clone();
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
            failed_over: None,
            usage,
            status_file,
            shown,
            tables,
            _nat: nat,
            config,
        })
    }

    async fn stay_connected(&mut self) -> std::convert::Infallible {
        let mut next: Found = None;
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            let (dialed, server) = match next.take() {
                Some(found) => found,
                None => self.find().await,
            };
            let (interface, name) = (dialed.uplink.interface.clone(), server.name.clone());
            match self.open(dialed, server).await {
                Ok(()) => {
                    backoff.reset();
                    next = self.hold().await;
                }
                Err(error) => {
                    self.dialer.complaints.note(&interface, &name, &error);
                    match error.is::<Refused>() {
                        true => self.refused_by = Some(name),
                        false => self.failed_over = Some(interface),
                    }
                    self.show_while(backoff.pause()).await;
                }
            }
        }
    }

    /// Ends the session, so that the server need not wait for it.
    async fn leave(&mut self) {
        self.end();
        self.usage.write();
        self.show().await;
        // Lets the connections say so; whoever does not hear it notices later.
        sleep(Duration::from_millis(50)).await;
    }

    fn end(&mut self) {
        if let Some(current) = self.current.take() {
            current.membership.handle.stop(CloseCode::Done);
        }
    }

    /// Uplinks whose cap is not used up.
    fn usable(&self) -> Vec<Uplink> {
        let uplinks = self.uplinks.borrow();
        let left = |uplink: &&Uplink| {
            uplink
                .monthly_cap
                .is_none_or(|cap| self.usage.of(&uplink.interface) < cap)
        };
        uplinks.iter().filter(left).cloned().collect()
    }

    /// The nearest server that answers, over any uplink.
    async fn find(&mut self) -> (Dialed, ServerEntry) {
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        loop {
            self.uplinks.mark_unchanged();
            let mut servers = self.servers.get().await;
            if let Some(name) = self.refused_by.take().filter(|_| servers.len() > 1) {
                servers.retain(|server| server.name != name);
            }
            let mut uplinks = self.usable();
            if let Some(interface) = self.failed_over.take().filter(|_| uplinks.len() > 1) {
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
                    // With other uplinks the search begins anew.
                    Ok(()) = uplinks.changed() => None,
                }
            };
            if let Some(found) = self.show_while(attempt).await {
                return found;
            }
        }
    }

    /// Keeps the status up to date until `work` is done, while there is no session.
    async fn show_while<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut tick = interval(LOOK_EVERY * STATUS_EVERY);
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                _ = tick.tick() => self.show().await,
            }
        }
    }

    /// Opens a session over `dialed`, in place of the one that there may be.
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
        let (trouble, troubles) = mpsc::channel(TROUBLES);
        self.configure(&opened)?;
        self.end();
        self.to_session.send_replace(Some(handle.packets.clone()));
        let mut current = Current {
            membership: Arc::new(Membership::new(
                server,
                opened.session,
                secret,
                handle,
                trouble,
                first.index,
            )),
            addresses,
            since: SystemTime::now(),
            trouble: troubles,
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
                .context("what the server says of coding makes no sense")?,
            borders: opened.coding.borders,
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
            // A client has one session, which its own limits bound.
            claim: Budget::new(ByteSize(u64::MAX)).claim(),
            keep: self.config.keep,
            // The one who sets it lives as long as the client.
            mtu_changed: Box::new(move |fits| _ = mtu.send(fits)),
            mtu: opened.mtu.min(self.config.common.mtu),
        });
        Ok(handle)
    }

    /// Gives the device the addresses of the session; connections survive when these are the ones that it has.
    fn configure(&mut self, opened: &Opened) -> Result<()> {
        if self.addresses == opened.addresses {
            return Ok(());
        }
        if !self.addresses.is_empty() {
            warn!("the inner addresses have changed: connections inside will break");
        }
        self.device.set_addresses(&opened.addresses)?;
        self.device.set_routes(&self.config.routes)?;
        self.addresses = opened.addresses.clone();
        Ok(())
    }

    /// Lets the session have the uplinks that there are now.
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

/// Brings the device's packets to the session, and waits when that has enough of them.
async fn feed(device: Arc<Device>, session: watch::Receiver<Option<mpsc::Sender<Vec<u8>>>>) {
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
                        Err(_) => device.lose(packets.len()),
                    },
                    None => device.lose(packets.len()),
                }
            }
            Err(error) => {
                error!("{error:#}");
                return;
            }
        }
    }
}
