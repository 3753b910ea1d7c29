use super::addresses::Addresses;
use crate::config::{self, ServerConfig};
use crate::device::Batch;
use crate::join::{CloseCode, Secret, SessionId};
use crate::packet;
use crate::session::{Handle, Report};
use crate::status::SessionStatus;
use crate::tls::Peer;
use hawser_io::rate_limit::RateLimit;
use hawser_model::tunnel::Client;
use hawser_xnc::frame::PacketBuffer;
use noq::Connection;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime};
use tokio::sync::mpsc;

/// The sessions that a client may open on average and at once. A client that loses its server
/// repeatedly does not exceed them, but one in a loop does.
const OPENED_PER_S: f64 = 0.5;
const OPENED_AT_ONCE: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// The number of clients whose opened sessions are remembered.
const MAX_CLIENTS: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();

/// An open session of a client.
pub(crate) struct OpenSession {
    pub(crate) id: SessionId,
    pub(crate) client: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) secret: Secret,
    pub(crate) handle: Handle,
    pub(crate) since: SystemTime,
    /// Its connections by stable ID, with the certificates that they were admitted with.
    connections: Mutex<HashMap<usize, (Connection, Peer)>>,
}

impl OpenSession {
    /// Adds a connection with the certificate that it was admitted with.
    pub(crate) fn attach(&self, connection: Connection, peer: Peer) {
        self.connections
            .lock()
            .insert(connection.stable_id(), (connection, peer));
    }

    /// Removes a closed connection.
    pub(crate) fn detach(&self, connection: usize) {
        self.connections.lock().remove(&connection);
    }

    /// Closes the connections whose certificates are not admitted; returns their number.
    pub(crate) fn close_unless(&self, admits: impl Fn(&Peer) -> bool) -> usize {
        let connections = self.connections.lock();
        let foreign = connections.values().filter(|(_, peer)| !admits(peer));
        foreign
            .inspect(|(connection, _)| CloseCode::Refused.close(connection))
            .count()
    }

    pub(crate) fn status(&self, report: Report) -> SessionStatus {
        SessionStatus::new(&self.client, &self.addresses, self.since, report)
    }
}

/// The open sessions, and the session that each inner address belongs to.
pub(crate) struct Registry {
    max_clients: usize,
    own: Vec<(IpAddr, u8)>,
    /// Limits the sessions that each client opens.
    opened: RateLimit<String>,
    clients: Mutex<Clients>,
    /// Read for every batch of packets, written when a session is opened or closed.
    by_address: RwLock<HashMap<IpAddr, mpsc::Sender<PacketBuffer>>>,
    no_client: AtomicU64,
    queue_full: AtomicU64,
    refused: Mutex<BTreeMap<&'static str, u64>>,
}

struct Clients {
    addresses: Addresses,
    by_id: HashMap<SessionId, Arc<OpenSession>>,
    by_name: HashMap<String, SessionId>,
}

impl Registry {
    pub(crate) fn new(config: &ServerConfig) -> Registry {
        let addresses = Addresses::new(
            config.prefixes.clone(),
            &config.client_list.clients,
            config.session_timeout,
        );
        Registry {
            max_clients: config.max_clients,
            own: addresses.of_server(),
            opened: RateLimit::new(OPENED_PER_S, OPENED_AT_ONCE, MAX_CLIENTS),
            clients: Mutex::new(Clients {
                addresses,
                by_id: HashMap::new(),
                by_name: HashMap::new(),
            }),
            by_address: RwLock::default(),
            no_client: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
            refused: Mutex::default(),
        }
    }

    /// Returns the server's inner addresses with their prefix lengths.
    pub(crate) fn own_addresses(&self) -> Vec<(IpAddr, u8)> {
        self.own.clone()
    }

    /// Returns the server's inner addresses.
    pub(crate) fn own_ips(&self) -> Vec<IpAddr> {
        self.own.iter().map(|(address, _)| *address).collect()
    }

    /// Returns the number of sessions.
    pub(crate) fn count(&self) -> usize {
        self.clients.lock().by_id.len()
    }

    /// Returns whether the client has a session.
    pub(crate) fn has(&self, client: &str) -> bool {
        self.clients.lock().by_name.contains_key(client)
    }

    /// Returns whether the client may open a session now, and counts it if so.
    pub(crate) fn may_open(&self, client: &str) -> bool {
        self.opened.take(client.to_owned()).is_ok()
    }

    /// Opens a session for `client` and closes its previous one, so that a restarted client does
    /// not have to wait until that expires. `start` gets the ID and the addresses of the session.
    /// Returns none if the server is full.
    pub(crate) fn open(
        &self,
        client: &str,
        wanted: &[IpAddr],
        secret: impl FnOnce(SessionId) -> Option<Secret>,
        start: impl FnOnce(SessionId, &[IpAddr]) -> Handle,
    ) -> Option<Arc<OpenSession>> {
        let mut clients = self.clients.lock();
        self.supersede(&mut clients, client);
        if clients.by_id.len() >= self.max_clients {
            return None;
        }
        let id = SessionId::random();
        let secret = secret(id)?;
        let addresses = clients.addresses.take(client, wanted, Instant::now())?;
        let handle = start(id, &addresses);
        let mut by_address = self.by_address.write();
        by_address.extend(
            addresses
                .iter()
                .map(|address| (*address, handle.packets.clone())),
        );
        let open = Arc::new(OpenSession {
            id,
            client: client.to_owned(),
            addresses,
            secret,
            handle,
            since: SystemTime::now(),
            connections: Mutex::default(),
        });
        clients.by_name.insert(client.to_owned(), id);
        clients.by_id.insert(id, Arc::clone(&open));
        Some(open)
    }

    /// Closes the session that the client has, if any.
    fn supersede(&self, clients: &mut Clients, client: &str) {
        let Some(former) = clients.by_name.get(client).copied() else {
            return;
        };
        if let Some(former) = clients.by_id.get(&former) {
            former.handle.stop(CloseCode::Superseded);
            self.count_refusal("superseded");
        }
        self.remove(clients, former);
    }

    /// Sets the permanent addresses of the clients that have an entry in the configuration.
    pub(crate) fn fix(&self, clients: &BTreeMap<String, config::Client>) {
        self.clients.lock().addresses.fix(clients);
    }

    /// Sets the permanent addresses that a controller assigned to clients.
    pub(crate) fn assign<'a>(&self, clients: impl Iterator<Item = &'a Client>) {
        let of = |client: &Client| (client.name.to_string(), client.addresses.clone());
        self.clients.lock().addresses.assign(clients.map(of));
    }

    /// Returns the session with this ID if it belongs to the client.
    pub(crate) fn find(&self, id: SessionId, client: &str) -> Option<Arc<OpenSession>> {
        self.clients
            .lock()
            .by_id
            .get(&id)
            .filter(|open| open.client == client)
            .cloned()
    }

    /// Returns whether the session with this ID is open.
    pub(crate) fn is_open(&self, id: SessionId) -> bool {
        self.clients.lock().by_id.contains_key(&id)
    }

    /// Returns whether the address belongs to a session.
    pub(crate) fn is_taken(&self, address: IpAddr) -> bool {
        self.by_address.read().contains_key(&address)
    }

    /// Removes a session that has ended.
    pub(crate) fn close(&self, id: SessionId) {
        self.remove(&mut self.clients.lock(), id);
    }

    /// Stops all sessions.
    pub(crate) fn stop_all(&self) {
        for open in self.sessions() {
            open.handle.stop(CloseCode::Draining);
        }
    }

    pub(crate) fn sessions(&self) -> Vec<Arc<OpenSession>> {
        let mut sessions: Vec<_> = self.clients.lock().by_id.values().cloned().collect();
        sessions.sort_by(|one, other| one.client.cmp(&other.client));
        sessions
    }

    /// Queues packets for the sessions of their destinations. Packets of a full queue are dropped,
    /// which affects this client only.
    pub(crate) fn dispatch(&self, packets: Batch) {
        let batches = self.by_destination(packets);
        let by_address = self.by_address.read();
        for (destination, batch) in batches {
            // A session that has just ended counts as no client, too.
            let client = by_address
                .get(&destination)
                .filter(|client| !client.is_closed());
            match client {
                Some(client) => self.queue(client, batch),
                None => _ = self.no_client.fetch_add(batch.len() as u64, Relaxed),
            }
        }
    }

    /// Divides packets into batches for the same destination.
    fn by_destination(&self, packets: Batch) -> Vec<(IpAddr, Batch)> {
        let mut batches: Vec<(IpAddr, Batch)> = Vec::new();
        for packet in packets {
            let Some(destination) = packet::destination(&packet) else {
                self.no_client.fetch_add(1, Relaxed);
                continue;
            };
            match batches.iter_mut().rev().find(|(to, _)| *to == destination) {
                Some((_, batch)) => batch.push(packet),
                None => batches.push((destination, vec![packet])),
            }
        }
        batches
    }

    fn queue(&self, client: &mpsc::Sender<PacketBuffer>, batch: Batch) {
        // This is the only sender, so the capacity cannot shrink in between.
        let room = client.capacity().min(batch.len());
        self.queue_full
            .fetch_add((batch.len() - room) as u64, Relaxed);
        match client.try_reserve_many(room) {
            Ok(permits) => permits
                .zip(batch)
                .for_each(|(permit, packet)| permit.send(packet)),
            Err(_) => _ = self.no_client.fetch_add(room as u64, Relaxed),
        }
    }

    /// Counts a connection that was refused.
    pub(crate) fn count_refusal(&self, reason: &'static str) {
        self.count_refusals(reason, 1);
    }

    /// Counts connections that were refused.
    pub(crate) fn count_refusals(&self, reason: &'static str, count: usize) {
        *self.refused.lock().entry(reason).or_default() += count as u64;
    }

    /// Returns the packets not forwarded and the connections not admitted by reason, without
    /// reasons that did not occur.
    pub(crate) fn drop_counts(&self) -> BTreeMap<String, u64> {
        let refused = self.refused.lock();
        let refused = refused
            .iter()
            .map(|(reason, count)| (format!("connection_{reason}"), *count));
        let packets = [
            ("no_client", &self.no_client),
            ("queue_full", &self.queue_full),
        ];
        let packets = packets.map(|(reason, count)| (reason.to_owned(), count.load(Relaxed)));
        refused
            .chain(packets)
            .filter(|(_, count)| *count > 0)
            .collect()
    }

    fn remove(&self, clients: &mut Clients, id: SessionId) {
        let Some(open) = clients.by_id.remove(&id) else {
            return;
        };
        clients.by_name.remove(&open.client);
        let mut by_address = self.by_address.write();
        for address in &open.addresses {
            by_address.remove(address);
        }
        clients
            .addresses
            .release(&open.client, open.addresses.clone(), Instant::now());
    }
}
