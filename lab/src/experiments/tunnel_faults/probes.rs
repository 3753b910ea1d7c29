use super::exchanges::Exchanges;
use super::network::{HOST, Network};
use anyhow::Result;
use hawser_testbed::ring;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The interval between requests.
const INTERVAL: Duration = Duration::from_millis(10);

/// The maximum time for the last replies to arrive.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// The interval in which a thread that waits for packets checks whether to exit.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A client that sends small datagrams from the car to the host, and a server that echoes them.
pub(super) struct Ping {
    exchanges: Arc<Exchanges>,
    sending: Arc<AtomicBool>,
    answering: Arc<AtomicBool>,
    threads: [JoinHandle<()>; 3],
}

impl Ping {
    pub(super) fn start(network: &Network) -> Result<Ping> {
        let (socket, echo) = sockets(network)?;
        let exchanges = Arc::<Exchanges>::default();
        let (sending, answering) = (
            Arc::new(AtomicBool::new(true)),
            Arc::new(AtomicBool::new(true)),
        );
        let receiver = socket.try_clone()?;
        let threads = [
            thread::spawn({
                let (exchanges, sending) = (Arc::clone(&exchanges), Arc::clone(&sending));
                move || send_requests(&socket, &exchanges, &sending)
            }),
            thread::spawn({
                let (exchanges, answering) = (Arc::clone(&exchanges), Arc::clone(&answering));
                move || receive_replies(&receiver, &exchanges, &answering)
            }),
            thread::spawn({
                let answering = Arc::clone(&answering);
                move || send_replies(&echo, &answering)
            }),
        ];
        Ok(Ping {
            exchanges,
            sending,
            answering,
            threads,
        })
    }

    pub(super) fn stop(self) -> Result<Arc<Exchanges>> {
        self.sending.store(false, Relaxed);
        thread::sleep(DRAIN_TIME);
        self.answering.store(false, Relaxed);
        for thread in self.threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a ping thread panicked"))?;
        }
        Ok(self.exchanges)
    }
}

/// Returns the sockets of the client and of the server.
fn sockets(network: &Network) -> Result<(UdpSocket, UdpSocket)> {
    let echo = network.host.run(|| UdpSocket::bind((HOST, 0)))??;
    let socket = network
        .car
        .run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
    socket.connect(echo.local_addr()?)?;
    for socket in [&echo, &socket] {
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
    }
    Ok((socket, echo))
}

fn send_requests(socket: &UdpSocket, exchanges: &Exchanges, sending: &AtomicBool) {
    let mut due = Instant::now();
    while sending.load(Relaxed) {
        let number = exchanges.record_request(ring::now());
        // Requests that cannot be sent count as unanswered.
        let _ = socket.send(&(number as u64).to_be_bytes());
        due += INTERVAL;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn receive_replies(socket: &UdpSocket, exchanges: &Exchanges, answering: &AtomicBool) {
    let mut number = [0; 8];
    while answering.load(Relaxed) {
        if let Ok(8) = socket.recv(&mut number) {
            exchanges.record_reply(u64::from_be_bytes(number) as usize, ring::now());
        }
    }
}

fn send_replies(socket: &UdpSocket, answering: &AtomicBool) {
    let mut datagram = [0; 8];
    while answering.load(Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut datagram) {
            // Replies that cannot be sent count as unanswered.
            let _ = socket.send_to(&datagram[..length], from);
        }
    }
}
