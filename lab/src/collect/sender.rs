//! The sending end.

use super::datagram::{Datagram, HEADERS, Key, Kind, LENGTH};
use super::{MAX_UPLINKS, SendArgs, Uplink, read_key};
use anyhow::{Context, Result, anyhow, ensure};
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// The interval at which due packets are sent.
const TICK: Duration = Duration::from_millis(1);

/// The largest burst after a delay of this process.
const MAX_BURST: Duration = Duration::from_millis(20);

/// How often the end is announced over each uplink, and the interval.
const ENDS: u32 = 10;
const END_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(args: &SendArgs) -> Result<()> {
    ensure!(
        args.uplinks.len() <= MAX_UPLINKS,
        "at most {MAX_UPLINKS} uplinks"
    );
    let key = read_key(&args.key)?;
    let run = getrandom::u64().context("no random number")?;
    let start = Instant::now();
    let length = Duration::from_secs(args.seconds.into());
    let outcomes: Vec<Result<Sent>> = thread::scope(|scope| {
        let ends: Vec<_> = (0..)
            .zip(&args.uplinks)
            .map(|(number, uplink)| {
                let key = &key;
                scope.spawn(move || {
                    let mut flow = Flow::open(args.to, uplink, number, run, start)?;
                    flow.send(uplink, key, length)?;
                    Ok(flow.sent)
                })
            })
            .collect();
        ends.into_iter()
            .map(|end| {
                end.join()
                    .unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
            })
            .collect()
    });
    for (uplink, outcome) in args.uplinks.iter().zip(outcomes) {
        let sent = outcome.with_context(|| uplink.interface.clone())?;
        ensure!(
            sent.round_trip.is_some(),
            "{}: the receiving end does not answer: is it running, with the same key?",
            uplink.interface
        );
        println!(
            "{}: {} packets sent, {} not taken by the device, smallest round trip {:.1?}",
            uplink.interface,
            sent.packets,
            sent.refused,
            sent.round_trip.unwrap_or_default()
        );
    }
    Ok(())
}

/// Counters of the packets to one uplink.
#[derive(Debug, Default)]
struct Sent {
    packets: u64,
    /// Packets that could not be sent for the moment.
    refused: u64,
    round_trip: Option<Duration>,
}

/// The packets of one uplink.
struct Flow {
    socket: UdpSocket,
    next: Datagram,
    start: Instant,
    sent: Sent,
}

impl Flow {
    fn open(to: SocketAddr, uplink: &Uplink, number: u8, run: u64, start: Instant) -> Result<Flow> {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
        let interface = &uplink.interface;
        socket
            .bind_device(Some(interface.as_bytes()))
            .with_context(|| format!("cannot use the interface {interface}"))?;
        socket.connect(&to.into()).with_context(|| {
            format!("cannot reach {to} over {interface}: it needs a route of its own")
        })?;
        socket.set_nonblocking(true)?;
        Ok(Flow {
            socket: socket.into(),
            next: Datagram {
                run,
                uplink: number,
                kind: Kind::Data,
                number: 1,
                sent_ns: 0,
                time_ns: 0,
            },
            start,
            sent: Sent::default(),
        })
    }

    /// Sends at the rate of the uplink for `length`, then announces the end.
    fn send(&mut self, uplink: &Uplink, key: &Key, length: Duration) -> Result<()> {
        let interval =
            Duration::from_secs_f64((LENGTH + HEADERS) as f64 * 8.0 / uplink.rate.bps() as f64);
        let mut due = Duration::ZERO;
        while due < length {
            let now = self.start.elapsed();
            due = due.max(now.saturating_sub(MAX_BURST));
            while due <= now {
                self.send_one(key)?;
                due += interval;
            }
            self.read_answers(key);
            thread::sleep(TICK);
        }
        for _ in 0..ENDS {
            self.next.kind = Kind::End;
            self.send_one(key)?;
            thread::sleep(END_INTERVAL);
        }
        Ok(())
    }

    fn send_one(&mut self, key: &Key) -> Result<()> {
        self.next.sent_ns = self.start.elapsed().as_nanos() as u64;
        match self.socket.send(&self.next.emit(key)) {
            Ok(_) => {
                self.sent.packets += 1;
                self.next.number += 1;
            }
            Err(error) if is_temporary(&error) => self.sent.refused += 1,
            Err(error) => return Err(error).context("cannot send"),
        }
        Ok(())
    }

    /// Reads the answers that have arrived. Errors of the socket are also those of sending.
    fn read_answers(&mut self, key: &Key) {
        let mut buffer = [0; 64];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            let answer = Datagram::parse(&buffer[..length], key)
                .filter(|answer| answer.kind == Kind::Answer && answer.run == self.next.run);
            let Some(answer) = answer else {
                continue;
            };
            let passed = self.start.elapsed().as_nanos() as u64;
            let taken = passed
                .saturating_sub(answer.sent_ns)
                .saturating_sub(answer.time_ns);
            let round_trip = Duration::from_nanos(taken.max(1));
            let smallest = self
                .sent
                .round_trip
                .map_or(round_trip, |known| known.min(round_trip));
            self.sent.round_trip = Some(smallest);
            self.next.time_ns = smallest.as_nanos() as u64;
        }
    }
}

/// Returns whether the device has no room, the uplink is down for a moment, or nobody listens yet.
fn is_temporary(error: &io::Error) -> bool {
    // ENOBUFS has no kind of its own.
    error.raw_os_error() == Some(Errno::ENOBUFS as i32)
        || matches!(
            error.kind(),
            ErrorKind::WouldBlock
                | ErrorKind::ConnectionRefused
                | ErrorKind::NetworkUnreachable
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkDown
        )
}
