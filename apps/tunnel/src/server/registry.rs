use super::addresses::Addresses;
use super::opens::Opens;
use crate::config::ServerConfig;
use crate::join::{CloseCode, Secret, SessionId};
use crate::packet;
use crate::session::{Batch, Handle, Report};
use crate::status::SessionStatus;
use crate::tls::Peer;
use hawser_control::tunnel::Client;
use noq::Connection;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Instant, SystemTime};
use tokio::sync::mpsc;

/// A session of a client.
pub(crate) struct Open {
    pub(crate) id: SessionId,
    pub(crate) client: String,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) secret: Secret,
    pub(crate) handle: Handle,
    pub(crate) since: SystemTime,
    /// Its connections, by what the library calls them, with the certificates that they were let in by.
    connections: Mutex<HashMap<usize, (Connection, Peer)>>,
}

impl Open {
    /// Remembers a connection, and by which certificate it was let in.
    pub(crate) fn attach(&self, connection: Connection, peer: Peer) {
        self.connections()
            .insert(connection.stable_id(), (connection, peer));
    }

    /// Forgets a connection that has ended.
    pub(crate) fn detach(&self, connection: usize) {
        self.connections().remove(&connection);
    }

    /// Closes the connections of those that are not admitted; returns how many these were.
    pub(crate) fn close_unless(&self, admits: impl Fn(&Peer) -> bool) -> usize {
        let connections = self.connections();
        let foreign = connections.values().filter(|(_, peer)| !admits(peer));
        foreign
            .inspect(|(connection, _)| CloseCode::Refused.close(connection))
            .count()
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<usize, (Connection, Peer)>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn status(&self, report: Report) -> SessionStatus {
        SessionStatus::new(&self.client, &self.addresses, self.since, report)
    }
}

/// Who is there, and which packet is whose.
pub(crate) struct Registry {
    most: usize,
    own: Vec<(IpAddr, u8)>,
    clients: Mutex<Clients>,
    /// Read for every batch of packets, written when somebody comes or goes.
    by_address: RwLock<HashMap<IpAddr, mpsc::Sender<Vec<u8>>>>,
    for_nobody: AtomicU64,
    queue_full: AtomicU64,
    refused: Mutex<BTreeMap<&'static str, u64>>,
}

struct Clients {
    opens: Opens,
    addresses: Addresses,
    by_id: HashMap<SessionId, Arc<Open>>,
    by_name: HashMap<String, SessionId>,
}

impl Registry {
    pub(crate) fn new(config: &ServerConfig) -> Registry {
        let addresses = Addresses::new(config.prefixes.clone(), &config.clients, config.keep);
        Registry {
            most: config.most_clients,
            own: addresses.of_server(),
            clients: Mutex::new(Clients {
                opens: Opens::default(),
                addresses,
                by_id: HashMap::new(),
                by_name: HashMap::new(),
            }),
            by_address: RwLock::default(),
            for_nobody: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
            refused: Mutex::default(),
        }
    }

    /// The server's inner addresses, with the lengths of their prefixes.
    pub(crate) fn own_addresses(&self) -> Vec<(IpAddr, u8)> {
        self.own.clone()
    }

    /// How many sessions there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().by_id.len()
    }

    /// Whether the client has a session.
    pub(crate) fn has(&self, client: &str) -> bool {
        self.lock().by_name.contains_key(client)
    }

    /// Whether the client has not opened too many sessions of late; it counts as one more.
    pub(crate) fn may_open(&self, client: &str) -> bool {
        self.lock().opens.allow(client, Instant::now())
    }

    /// Makes a session for `client`, in place of the one that it may have: a client that was restarted does not wait for
    /// what it left behind. `start` gets its name and addresses. None when the server is full.
    pub(crate) fn open(
        &self,
        client: &str,
        wanted: &[IpAddr],
        secret: impl FnOnce(SessionId) -> Option<Secret>,
        start: impl FnOnce(SessionId, &[IpAddr]) -> Handle,
    ) -> Option<Arc<Open>> {
        let mut clients = self.lock();
        if let Some(former) = clients.by_name.get(client).copied() {
            if let Some(former) = clients.by_id.get(&former) {
                former.handle.stop(CloseCode::Superseded);
                self.refuse("superseded");
            }
            self.remove(&mut clients, former);
        }
        if clients.by_id.len() >= self.most {
            return None;
        }
        let id = SessionId::random();
        let secret = secret(id)?;
        let addresses = clients.addresses.take(client, wanted, Instant::now())?;
        let handle = start(id, &addresses);
        let mut by_address = self
            .by_address
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        by_address.extend(
            addresses
                .iter()
                .map(|address| (*address, handle.packets.clone())),
        );
        let since = SystemTime::now();
        let (client_name, connections) = (client.to_owned(), Mutex::default());
        let open = Open {
            id,
            client: client_name,
            addresses,
            secret,
            handle,
            since,
            connections,
        };
        let open = Arc::new(open);
        clients.by_name.insert(client.to_owned(), id);
        clients.by_id.insert(id, Arc::clone(&open));
        Some(open)
    }

    /// Remembers the addresses that clients always have.
    pub(crate) fn assign<'a>(&self, clients: impl Iterator<Item = &'a Client>) {
        let of = |client: &Client| (client.name.to_string(), client.addresses.clone());
        self.lock().addresses.assign(clients.map(of));
    }

    /// The session called `id`, if it is the client's.
    pub(crate) fn find(&self, id: SessionId, client: &str) -> Option<Arc<Open>> {
        self.lock()
            .by_id
            .get(&id)
            .filter(|open| open.client == client)
            .cloned()
    }

    /// Whether the session called `id` is open.
    pub(crate) fn is_open(&self, id: SessionId) -> bool {
        self.lock().by_id.contains_key(&id)
    }

    /// Whether a client has the address.
    pub(crate) fn is_taken(&self, address: IpAddr) -> bool {
        self.by_address
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .contains_key(&address)
    }

    /// Forgets a session that has ended.
    pub(crate) fn close(&self, id: SessionId) {
        self.remove(&mut self.lock(), id);
    }

    /// Ends all sessions.
    pub(crate) fn stop_all(&self) {
        for open in self.sessions() {
            open.handle.stop(CloseCode::Draining);
        }
    }

    pub(crate) fn sessions(&self) -> Vec<Arc<Open>> {
        let mut sessions: Vec<_> = self.lock().by_id.values().cloned().collect();
        sessions.sort_by(|one, other| one.client.cmp(&other.client));
        sessions
    }

    /// Brings packets to whom they are for. A client that does not keep up loses its own packets only.
    pub(crate) fn dispatch(&self, packets: Batch) {
        let mut batches: Vec<(IpAddr, Batch)> = Vec::new();
        for packet in packets {
            let Some(destination) = packet::destination(&packet) else {
                self.for_nobody.fetch_add(1, Relaxed);
                continue;
            };
            match batches.iter_mut().rev().find(|(to, _)| *to == destination) {
                Some((_, batch)) => batch.push(packet),
                None => batches.push((destination, vec![packet])),
            }
        }
        let by_address = self
            .by_address
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        for (destination, batch) in batches {
            // One that has gone, and whose addresses are about to, is nobody, too.
            let client = by_address
                .get(&destination)
                .filter(|client| !client.is_closed());
            let Some(client) = client else {
                self.for_nobody.fetch_add(batch.len() as u64, Relaxed);
                continue;
            };
            // Nobody else takes what room there is.
            let room = client.capacity().min(batch.len());
            self.queue_full
                .fetch_add((batch.len() - room) as u64, Relaxed);
            match client.try_reserve_many(room) {
                Ok(places) => places
                    .zip(batch)
                    .for_each(|(place, packet)| place.send(packet)),
                Err(_) => _ = self.for_nobody.fetch_add(room as u64, Relaxed),
            }
        }
    }

    /// Counts a connection that did not become a path.
    pub(crate) fn refuse(&self, reason: &'static str) {
        *self
            .refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(reason)
            .or_default() += 1;
    }

    /// What was not passed on or not let in, by reason.
    pub(crate) fn counted(&self) -> BTreeMap<String, u64> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let refused = refused
            .iter()
            .map(|(reason, count)| (format!("connection_{reason}"), *count));
        let packets = [
            ("for_nobody", &self.for_nobody),
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
        let mut by_address = self
            .by_address
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        for address in &open.addresses {
            by_address.remove(address);
        }
        clients
            .addresses
            .give_back(&open.client, open.addresses.clone(), Instant::now());
    }

    /// What a panicking thread left is whole: nothing in here panics half-way.
    fn lock(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
