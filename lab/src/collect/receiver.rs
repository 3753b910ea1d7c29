//! The receiving end.

use super::datagram::{Datagram, Key, Kind, LENGTH};
use super::trace::{Arrivals, drive};
use super::{MAX_UPLINKS, ReceiveArgs, read_key};
use anyhow::{Context, Result, ensure};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::RcvBufForce;
use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

/// The interval of answers, from which the sending end learns the round trip.
const ANSWER_INTERVAL: Duration = Duration::from_millis(50);

/// The time without a packet after which the collection ends.
const SILENCE: Duration = Duration::from_secs(15);

/// The buffer of the socket in bytes: a tenth of a second at 400 Mb/s.
const BUFFER: usize = 5 << 20;

pub(super) fn run(args: &ReceiveArgs) -> Result<()> {
    let key = read_key(&args.key)?;
    let socket = UdpSocket::bind(args.listen)
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    // Without CAP_NET_ADMIN the system's limit applies.
    let _ = setsockopt(&socket, RcvBufForce, &BUFFER);
    eprintln!("waiting for the sending end at {}", socket.local_addr()?);
    let collection = collect(&socket, &key)?;
    collection.write(&args.out)
}

/// The packets of one run of the sending end that arrived.
struct Collection {
    run: u64,
    start: Instant,
    uplinks: Vec<Uplink>,
    /// Datagrams that the sending end of this run has not sent.
    foreign: u64,
    /// Packets after the longest time.
    late: u64,
}

#[derive(Default)]
struct Uplink {
    arrivals: Arrivals,
    /// The latest datagram, when it arrived, and from where.
    latest: Option<(Datagram, Instant, SocketAddr)>,
    answered: Option<Instant>,
}

/// Waits for a run, and notes its packets until it has ended.
fn collect(socket: &UdpSocket, key: &Key) -> Result<Collection> {
    let mut buffer = [0; LENGTH + 1];
    let mut collection: Option<Collection> = None;
    loop {
        let received = socket.recv_from(&mut buffer);
        let now = Instant::now();
        let datagram = match received {
            Ok((length, from)) => Datagram::parse(&buffer[..length], key).map(|one| (one, from)),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return collection.context("nothing arrived");
            }
            Err(error) => return Err(error).context("cannot receive"),
        };
        if collection.is_none()
            && let Some((first, _)) = datagram.filter(|(one, _)| one.kind == Kind::Data)
        {
            socket.set_read_timeout(Some(SILENCE))?;
            collection = Some(Collection::new(first.run, now));
        }
        let Some(open) = &mut collection else {
            continue;
        };
        match datagram {
            Some((datagram, from)) if datagram.run == open.run => {
                if datagram.kind == Kind::End {
                    break;
                }
                open.note(datagram, from, now);
            }
            _ => open.foreign += 1,
        }
        open.answer(socket, key, now);
    }
    collection.context("nothing arrived")
}

impl Collection {
    fn new(run: u64, start: Instant) -> Collection {
        Collection {
            run,
            start,
            uplinks: Vec::new(),
            foreign: 0,
            late: 0,
        }
    }

    fn note(&mut self, datagram: Datagram, from: SocketAddr, now: Instant) {
        let index = usize::from(datagram.uplink);
        if datagram.kind != Kind::Data || index >= MAX_UPLINKS {
            self.foreign += 1;
            return;
        }
        if self.uplinks.len() <= index {
            self.uplinks.resize_with(index + 1, Uplink::default);
        }
        let uplink = &mut self.uplinks[index];
        if datagram.time_ns > 0 {
            uplink.arrivals.round_trip = Some(Duration::from_nanos(datagram.time_ns));
        }
        let at = now.saturating_duration_since(self.start);
        self.late += u64::from(!uplink.arrivals.note(at, datagram.number));
        uplink.latest = Some((datagram, now, from));
    }

    /// Answers the latest datagram of each uplink now and then. An answer has a thirtieth of its bytes.
    fn answer(&mut self, socket: &UdpSocket, key: &Key, now: Instant) {
        for uplink in &mut self.uplinks {
            let is_due = uplink.answered.is_none_or(|at| now >= at + ANSWER_INTERVAL);
            let Some((latest, arrived, from)) = uplink.latest.filter(|_| is_due) else {
                continue;
            };
            uplink.answered = Some(now);
            let answer = Datagram {
                kind: Kind::Answer,
                time_ns: now.saturating_duration_since(arrived).as_nanos() as u64,
                ..latest
            };
            // The next answer replaces one that cannot be sent.
            let _ = socket.send_to(&answer.emit(key), from);
        }
    }

    fn write(self, out: &Path) -> Result<()> {
        let uplinks: Vec<Arrivals> = self
            .uplinks
            .into_iter()
            .map(|uplink| uplink.arrivals)
            .collect();
        for (number, uplink) in uplinks.iter().enumerate() {
            let delay = uplink.round_trip.map(|time| format!("{time:.1?}"));
            eprintln!(
                "uplink {number}: {} packets, smallest round trip {}",
                uplink.packets(),
                delay.as_deref().unwrap_or("unknown")
            );
        }
        let ignored = self.foreign + self.late;
        if ignored > 0 {
            let (foreign, late) = (self.foreign, self.late);
            eprintln!(
                "{ignored} datagrams ignored: {foreign} of others, {late} after the longest time"
            );
        }
        ensure!(
            uplinks.iter().all(|uplink| uplink.round_trip.is_some()),
            "an uplink has no round trip: the answers did not reach the sending end"
        );
        fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
        let write = |name: &str, text: String| {
            let path = out.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        for (number, uplink) in uplinks.iter().enumerate() {
            write(&format!("uplink-{number}.up"), uplink.mahimahi())?;
        }
        write("drive.csv", drive(&uplinks))
    }
}
