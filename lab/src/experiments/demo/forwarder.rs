//! UDP between this machine's loopback interface and a server in a namespace: a browser is not in the namespace.

use anyhow::Result;
use hawser_testbed::netns::Namespace;
use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time after which a client is forgotten to which the server sends nothing: QUIC keeps connections alive.
const IDLE: Duration = Duration::from_secs(60);

/// The largest number of clients. Datagrams of further ones are dropped.
const MAX_CLIENTS: usize = 16;

/// The longest time for which a thread does not look whether it has to end.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The largest datagram.
const MAX_BYTES: usize = 65_536;

/// A forwarder. It ends when this is dropped.
pub(super) struct Forwarder {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A client's socket in the namespace, and the thread that returns the answers.
struct Client {
    socket: UdpSocket,
    answers: JoinHandle<()>,
}

impl Forwarder {
    /// Forwards from a free port of the loopback interface to `server`, an IPv4 address in `namespace`.
    ///
    /// # Errors
    /// If no socket can be opened, or no thread started.
    pub(super) fn start(namespace: &Namespace, server: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        let address = socket.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let forward = {
            let (namespace, stop) = (namespace.clone(), Arc::clone(&stop));
            move || forward(&Arc::new(socket), &namespace, server, &stop)
        };
        Ok(Forwarder {
            address,
            stop,
            thread: Some(
                thread::Builder::new()
                    .name("forwarder".into())
                    .spawn(forward)?,
            ),
        })
    }

    /// The address to which clients send.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the forwarder of {} panicked", self.address);
        }
    }
}

fn forward(
    socket: &Arc<UdpSocket>,
    namespace: &Namespace,
    server: SocketAddr,
    stop: &Arc<AtomicBool>,
) {
    let mut clients: HashMap<SocketAddr, Client> = HashMap::new();
    let mut buffer = vec![0; MAX_BYTES];
    while !stop.load(Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        clients.retain(|_, client| !client.answers.is_finished());
        if !clients.contains_key(&from) && clients.len() < MAX_CLIENTS {
            match Client::start(socket, from, namespace, server, stop) {
                Ok(client) => drop(clients.insert(from, client)),
                Err(error) => tracing::warn!("a browser cannot reach {server}: {error:#}"),
            }
        }
        if let Some(client) = clients.get(&from) {
            // A datagram that is lost here is lost like any other.
            let _ = client.socket.send(&buffer[..length]);
        }
    }
    for client in clients.into_values() {
        let _ = client.answers.join();
    }
}

impl Client {
    fn start(
        to: &Arc<UdpSocket>,
        address: SocketAddr,
        namespace: &Namespace,
        server: SocketAddr,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let open = || -> io::Result<UdpSocket> {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.connect(server)?;
            socket.set_read_timeout(Some(POLL_INTERVAL))?;
            Ok(socket)
        };
        let socket = namespace.run(open)??;
        let answers = {
            let (from, to, stop) = (socket.try_clone()?, Arc::clone(to), Arc::clone(stop));
            move || answer(&from, &to, address, &stop)
        };
        Ok(Client {
            socket,
            answers: thread::Builder::new()
                .name("answers".into())
                .spawn(answers)?,
        })
    }
}

/// Passes the server's datagrams to a client until there are none any more.
fn answer(from: &UdpSocket, to: &UdpSocket, client: SocketAddr, stop: &AtomicBool) {
    let mut buffer = vec![0; MAX_BYTES];
    let mut newest = Instant::now();
    while !stop.load(Relaxed) && newest.elapsed() < IDLE {
        if let Ok(length) = from.recv(&mut buffer) {
            newest = Instant::now();
            let _ = to.send_to(&buffer[..length], client);
        }
    }
}
