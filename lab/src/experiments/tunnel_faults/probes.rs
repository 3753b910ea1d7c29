use super::exchanges::Exchanges;
use super::network::{HOST, Network};
use anyhow::Result;
use hawser_io::ring;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the host is asked.
const EVERY: Duration = Duration::from_millis(10);

/// How long the last answers may take.
const LAST: Duration = Duration::from_secs(2);

/// How often a thread that waits for packets looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Small datagrams from the car to the host and back.
pub(super) struct Ping {
    exchanges: Arc<Exchanges>,
    sending: Arc<AtomicBool>,
    answering: Arc<AtomicBool>,
    threads: [JoinHandle<()>; 3],
}

impl Ping {
    pub(super) fn start(network: &Network) -> Result<Ping> {
        let echo = network.host.run(|| UdpSocket::bind((HOST, 0)))??;
        let socket = network
            .car
            .run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
        socket.connect(echo.local_addr()?)?;
        for socket in [&echo, &socket] {
            socket.set_read_timeout(Some(LOOK_EVERY))?;
        }
        let exchanges = Arc::<Exchanges>::default();
        let (sending, answering) = (
            Arc::new(AtomicBool::new(true)),
            Arc::new(AtomicBool::new(true)),
        );
        let receiver = socket.try_clone()?;
        let threads = [
            thread::spawn({
                let (exchanges, sending) = (Arc::clone(&exchanges), Arc::clone(&sending));
                move || ask(&socket, &exchanges, &sending)
            }),
            thread::spawn({
                let (exchanges, answering) = (Arc::clone(&exchanges), Arc::clone(&answering));
                move || hear(&receiver, &exchanges, &answering)
            }),
            thread::spawn({
                let answering = Arc::clone(&answering);
                move || answer(&echo, &answering)
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
        thread::sleep(LAST);
        self.answering.store(false, Relaxed);
        for thread in self.threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread that pings panicked"))?;
        }
        Ok(self.exchanges)
    }
}

fn ask(socket: &UdpSocket, exchanges: &Exchanges, sending: &AtomicBool) {
    let mut due = Instant::now();
    while sending.load(Relaxed) {
        let number = exchanges.ask(ring::now());
        // What cannot be sent is not answered, and so counted.
        let _ = socket.send(&(number as u64).to_be_bytes());
        due += EVERY;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn hear(socket: &UdpSocket, exchanges: &Exchanges, answering: &AtomicBool) {
    let mut number = [0; 8];
    while answering.load(Relaxed) {
        if let Ok(8) = socket.recv(&mut number) {
            exchanges.answer(u64::from_be_bytes(number) as usize, ring::now());
        }
    }
}

fn answer(socket: &UdpSocket, answering: &AtomicBool) {
    let mut datagram = [0; 8];
    while answering.load(Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut datagram) {
            // As above.
            let _ = socket.send_to(&datagram[..length], from);
        }
    }
}
