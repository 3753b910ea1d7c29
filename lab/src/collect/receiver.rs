//! The receiving end.

use super::datagram::{Datagram, Key, Kind, LENGTH};
use super::recording::Recording;
use super::{MAX_UPLINKS, ReceiveArgs, SILENCE, read_key, say};
use anyhow::{Context, Result, ensure};
use hawser_io::{file, sockopt};
use hawser_testbed::topology::Stop;
use nix::libc;
use nix::sys::socket::sockopt::{Ipv4PacketInfo, Ipv6RecvPacketInfo, RcvBuf, RcvBufForce};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, getsockopt, recvmsg, sendmsg,
    setsockopt,
};
use nix::sys::time::TimeSpec;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// The interval of answers to data, from which the sending end learns that this end is there.
const ANSWER_INTERVAL: Duration = Duration::from_millis(50);

/// How long this end still confirms that it has written everything, after the latest question.
const LINGER: Duration = Duration::from_secs(2);

/// The longest time without a look at the clock and at signals.
const POLL: Duration = Duration::from_millis(100);

/// The buffer of the socket in bytes. The kernel counts twice of it, and 2.3 kB for a packet: 0.8 s at 400 Mb/s, in which
/// a drive is written.
const BUFFER: usize = 32 << 20;

pub(super) fn run(args: &ReceiveArgs) -> Result<()> {
    let key = read_key(&args.key)?;
    let stop = Stop::on_signals()?;
    let out = &args.out;
    file::create_folder(out, 0o755).with_context(|| format!("cannot create {}", out.display()))?;
    tempfile::tempfile_in(out).with_context(|| format!("cannot write to {}", out.display()))?;
    let socket = listen(args.listen)?;
    Receiver::new(&socket, key, out)?.run(&stop)
}

fn listen(address: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    socket.set_read_timeout(Some(POLL))?;
    sockopt::stamp_arrivals(&socket)?;
    // An answer from another address of this machine would not be taken for one.
    match address.is_ipv4() {
        true => setsockopt(&socket, Ipv4PacketInfo, &true)?,
        false => setsockopt(&socket, Ipv6RecvPacketInfo, &true)?,
    }
    say(format!(
        "waiting for the sending end at {}",
        socket.local_addr()?
    ));
    // Without CAP_NET_ADMIN the system's limit applies.
    if setsockopt(&socket, RcvBufForce, &BUFFER).is_err() {
        setsockopt(&socket, RcvBuf, &BUFFER)?;
        // The kernel doubles the value for its own structures.
        let given = getsockopt(&socket, RcvBuf)? / 2;
        if given < BUFFER {
            say(format!(
                "the buffer for packets has {given} bytes instead of {BUFFER}: packets may be lost here. Increase \
                 net.core.rmem_max, or run this as root"
            ));
        }
    }
    Ok(socket)
}

struct Receiver<'a> {
    socket: &'a UdpSocket,
    key: Key,
    out: &'a Path,
    /// A random number that the sending end has to return, so that nobody can replay an earlier run.
    number: u64,
    /// The numbers of all runs. Only the last one is heard.
    runs: Vec<u64>,
    run: Option<Run<'a>>,
    /// The number of drives of all runs.
    drives: u32,
    /// Datagrams of others, and of earlier runs.
    ignored: u64,
    /// The address of this machine that the latest datagram was sent to, and from which it is answered.
    asked_at: Option<IpAddr>,
}

/// The run that is heard.
struct Run<'a> {
    recording: Recording<'a>,
    /// When its latest datagram arrived.
    heard: Instant,
    /// When the latest answer was sent over each uplink.
    answered: [Option<Instant>; MAX_UPLINKS],
    is_written: bool,
}

impl<'a> Receiver<'a> {
    fn new(socket: &'a UdpSocket, key: Key, out: &'a Path) -> Result<Receiver<'a>> {
        Ok(Receiver {
            socket,
            key,
            out,
            number: getrandom::u64().context("no random number")?,
            runs: Vec::new(),
            run: None,
            drives: 0,
            ignored: 0,
            asked_at: None,
        })
    }

    /// Receives until a run has ended or a stop is requested, and writes what has arrived.
    fn run(mut self, stop: &Stop) -> Result<()> {
        self.receive(stop)?;
        self.finish(None, Instant::now())?;
        if self.ignored > 0 {
            say(format!(
                "{} datagrams of others or of earlier runs ignored",
                self.ignored
            ));
        }
        ensure!(self.drives > 0, "no drive: too little data arrived");
        Ok(())
    }

    fn receive(&mut self, stop: &Stop) -> Result<()> {
        let mut buffer = [0; LENGTH + 1];
        while !stop.requested() && !self.has_ended(Instant::now())? {
            match receive(self.socket, &mut buffer) {
                Ok(arrival) => {
                    self.asked_at = arrival.to;
                    self.handle(&buffer[..arrival.length], arrival.from, arrival.at)?;
                }
                Err(error) if is_no_datagram(error.kind()) => {}
                Err(error) => {
                    self.finish(None, Instant::now())?;
                    return Err(error).context("cannot receive");
                }
            }
        }
        Ok(())
    }

    /// Returns whether everything is written and confirmed, or the run is silent. A run that was silent before its first
    /// data is forgotten.
    fn has_ended(&mut self, now: Instant) -> Result<bool> {
        let Some(run) = &self.run else {
            return Ok(false);
        };
        let silent = now.saturating_duration_since(run.heard);
        if run.is_written {
            return Ok(silent >= LINGER);
        }
        if silent < SILENCE {
            return Ok(false);
        }
        let seconds = SILENCE.as_secs();
        if run.recording.has_begun() {
            say(format!(
                "the sending end was silent for {seconds} s, so the run has ended"
            ));
            self.finish(None, now)?;
            return Ok(true);
        }
        say("the sending end has gone before it sent data");
        self.run = None;
        Ok(false)
    }

    fn handle(&mut self, bytes: &[u8], from: SocketAddr, now: Instant) -> Result<()> {
        let sent = Datagram::parse(bytes, &self.key)
            .filter(|one| one.kind.is_of_sender() && !self.is_earlier(one.run));
        let Some(datagram) = sent else {
            self.ignored += 1;
            return Ok(());
        };
        if datagram.receiver != self.number {
            // A new sending end learns this end's number from the echo.
            match datagram.kind {
                Kind::Probe => self.answer(datagram, Kind::Echo, from),
                _ => self.ignored += 1,
            }
            return Ok(());
        }
        if self.runs.last() != Some(&datagram.run) {
            self.begin(datagram.run, now)?;
        }
        let Some(run) = &mut self.run else {
            // It was forgotten.
            self.ignored += 1;
            return Ok(());
        };
        run.heard = now;
        if !run.is_written {
            let had_begun = run.recording.has_begun();
            run.recording.note(&datagram, now)?;
            if run.recording.has_begun() && !had_begun {
                say("collecting");
            }
        }
        match datagram.kind {
            Kind::Probe => self.answer(datagram, Kind::Echo, from),
            Kind::Data => {
                let answered = &mut run.answered[usize::from(datagram.uplink)];
                if answered.is_none_or(|at| now >= at + ANSWER_INTERVAL) {
                    *answered = Some(now);
                    self.answer(datagram, Kind::Received, from);
                }
            }
            _ => {
                self.finish(Some(Duration::from_nanos(datagram.time_ns)), now)?;
                self.answer(datagram, Kind::Written, from);
            }
        }
        Ok(())
    }

    /// Returns whether a run has been replaced by a later one.
    fn is_earlier(&self, run: u64) -> bool {
        let earlier = self.runs.split_last().map(|(_, earlier)| earlier);
        earlier.is_some_and(|earlier| earlier.contains(&run))
    }

    /// Begins a run. The sending end has been started again if there is one already, which is written.
    fn begin(&mut self, run: u64, now: Instant) -> Result<()> {
        if self.run.as_ref().is_some_and(|run| !run.is_written) {
            say("the sending end was started again");
            self.finish(None, now)?;
        }
        self.runs.push(run);
        self.run = Some(Run {
            recording: Recording::new(self.socket, self.out)?,
            heard: now,
            answered: [None; MAX_UPLINKS],
            is_written: false,
        });
        Ok(())
    }

    /// Writes what is left of the run, if it is not written yet. `length` is its length at the sending end, if known.
    fn finish(&mut self, length: Option<Duration>, now: Instant) -> Result<()> {
        let Some(run) = self.run.as_mut().filter(|run| !run.is_written) else {
            return Ok(());
        };
        run.is_written = true;
        self.drives += run.recording.finish(length, now)?;
        Ok(())
    }

    fn answer(&self, datagram: Datagram, kind: Kind, to: SocketAddr) {
        let answer = Datagram {
            kind,
            receiver: self.number,
            ..datagram
        };
        // The next answer replaces one that cannot be sent.
        let _ = send_from(self.socket, self.asked_at, &answer.emit(&self.key), to);
    }
}

/// A datagram that was received.
struct Arrival {
    length: usize,
    from: SocketAddr,
    /// The address of this machine that it was sent to.
    to: Option<IpAddr>,
    /// When it arrived at this machine: this process may have been writing, or waiting for a processor.
    at: Instant,
}

fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<Arrival> {
    let mut parts = [IoSliceMut::new(buffer)];
    let mut space = nix::cmsg_space!(TimeSpec, libc::in6_pktinfo);
    let (descriptor, flags) = (socket.as_raw_fd(), MsgFlags::empty());
    let message = recvmsg::<SockaddrStorage>(descriptor, &mut parts, Some(&mut space), flags)?;
    let (mut stamp, mut to) = (None, None);
    for control in message.cmsgs()? {
        match control {
            ControlMessageOwned::ScmTimestampns(at) => stamp = Some(Duration::from(at)),
            ControlMessageOwned::Ipv4PacketInfo(info) => {
                to = Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
            }
            ControlMessageOwned::Ipv6PacketInfo(info) => {
                to = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
            }
            _ => {}
        }
    }
    let age = stamp.and_then(|stamp| UNIX_EPOCH.elapsed().ok()?.checked_sub(stamp));
    let now = Instant::now();
    let from = message.address.as_ref().and_then(address);
    let from = from.ok_or(ErrorKind::AddrNotAvailable)?;
    let at = now.checked_sub(age.unwrap_or_default()).unwrap_or(now);
    Ok(Arrival {
        length: message.bytes,
        from,
        to,
        at,
    })
}

/// Sends a datagram from an address of this machine, or from the one that the kernel chooses.
fn send_from(
    socket: &UdpSocket,
    from: Option<IpAddr>,
    bytes: &[u8],
    to: SocketAddr,
) -> io::Result<()> {
    let (mut ipv4, mut ipv6) = (None, None);
    match from {
        // The kernel chooses the interface.
        Some(IpAddr::V4(own)) => {
            let own = libc::in_addr {
                s_addr: u32::from_ne_bytes(own.octets()),
            };
            ipv4 = Some(libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: own,
                ipi_addr: own,
            });
        }
        Some(IpAddr::V6(own)) => {
            let own = libc::in6_addr {
                s6_addr: own.octets(),
            };
            ipv6 = Some(libc::in6_pktinfo {
                ipi6_addr: own,
                ipi6_ifindex: 0,
            });
        }
        None => {}
    }
    let ipv4 = ipv4.iter().map(ControlMessage::Ipv4PacketInfo);
    let ipv6 = ipv6.iter().map(ControlMessage::Ipv6PacketInfo);
    let controls: Vec<_> = ipv4.chain(ipv6).collect();
    let (parts, to) = ([IoSlice::new(bytes)], SockaddrStorage::from(to));
    let flags = MsgFlags::empty();
    sendmsg(socket.as_raw_fd(), &parts, &controls, flags, Some(&to))?;
    Ok(())
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage
        .as_sockaddr_in()
        .map(|v4| SocketAddr::V4((*v4).into()));
    let v6 = || {
        storage
            .as_sockaddr_in6()
            .map(|v6| SocketAddr::V6((*v6).into()))
    };
    v4.or_else(v6)
}

fn is_no_datagram(error: ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const HERE: u64 = 7;

    fn socket() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    fn key() -> Key {
        Key::new(&[1; 32])
    }

    fn receiver<'a>(socket: &'a UdpSocket, out: &'a Path) -> Receiver<'a> {
        Receiver {
            number: HERE,
            ..Receiver::new(socket, key(), out).unwrap()
        }
    }

    impl Receiver<'_> {
        /// Handles a datagram of a run that was sent to the receiving end with a number.
        fn hear(&mut self, run: u64, receiver: u64, kind: Kind, now: Instant) {
            let datagram = Datagram {
                run,
                receiver,
                uplink: 0,
                kind,
                number: 1,
                sent_ns: 0,
                time_ns: 1_000_000,
                away_ms: [0; MAX_UPLINKS],
            };
            let from = self.socket.local_addr().unwrap();
            self.handle(&datagram.emit(&key()), from, now).unwrap();
        }
    }

    #[test]
    fn a_datagram_has_the_time_of_its_arrival() {
        let socket = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let own = socket.local_addr().unwrap();
        // The kernel stamps datagrams only a moment after it was asked to.
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let before = Instant::now();
            socket.send_to(b"early", own).unwrap();
            std::thread::sleep(Duration::from_millis(500));
            let read = Instant::now();
            let mut buffer = [0; 10];
            let Arrival {
                length, from, at, ..
            } = receive(&socket, &mut buffer).unwrap();
            assert_eq!((&buffer[..length], from), (&b"early"[..], own));
            // The time of day may be adjusted meanwhile.
            let error = Duration::from_millis(5);
            assert!(at + error >= before);
            if at < read {
                break;
            }
            assert!(Instant::now() < deadline, "stamped when it was read");
        }
    }

    #[test]
    fn an_answer_comes_from_the_address_that_was_asked() {
        for (any, asked) in [
            ("0.0.0.0:0", "127.0.0.7"),
            ("[::]:0", "::1"),
            ("[::]:0", "127.0.0.7"),
        ] {
            let socket = listen(any.parse().unwrap()).unwrap();
            let to = SocketAddr::new(asked.parse().unwrap(), socket.local_addr().unwrap().port());
            let peer = match to.is_ipv4() {
                true => UdpSocket::bind("127.0.0.1:0").unwrap(),
                false => UdpSocket::bind("[::1]:0").unwrap(),
            };
            peer.set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            peer.send_to(b"question", to).unwrap();
            let mut buffer = [0; 10];
            let arrival = loop {
                match receive(&socket, &mut buffer) {
                    Err(error) if is_no_datagram(error.kind()) => {}
                    arrival => break arrival.unwrap(),
                }
            };
            send_from(&socket, arrival.to, b"answer", arrival.from).unwrap();
            assert_eq!(peer.recv_from(&mut buffer).unwrap(), (6, to), "{any}");
        }
    }

    #[test]
    fn silence_counts_from_the_last_datagram_of_the_run() {
        let (folder, socket) = (tempfile::tempdir().unwrap(), socket());
        let mut receiver = receiver(&socket, folder.path());
        let start = Instant::now();
        receiver.hear(1, HERE, Kind::Data, start);
        let second = Duration::from_secs(1);
        let before = start + SILENCE - second;
        let from = socket.local_addr().unwrap();
        receiver.handle(b"of a stranger", from, before).unwrap();
        receiver.hear(2, HERE + 1, Kind::Data, before);
        receiver.hear(2, 0, Kind::Probe, before);
        assert!(!receiver.has_ended(before).unwrap());
        assert!(receiver.has_ended(start + SILENCE).unwrap());
        assert_eq!(receiver.ignored, 2);
    }

    #[test]
    fn a_new_run_replaces_the_last_one_and_a_replayed_one_does_not() {
        let (folder, socket) = (tempfile::tempdir().unwrap(), socket());
        let mut receiver = receiver(&socket, folder.path());
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        // Packets of a collection with another receiving end.
        receiver.hear(1, HERE + 1, Kind::Probe, start);
        receiver.hear(1, HERE + 1, Kind::Data, start);
        assert!(receiver.run.is_none());

        receiver.hear(2, HERE, Kind::Data, start);
        receiver.hear(2, HERE, Kind::Data, after(750));
        assert!(!folder.path().join("drive-000.csv").exists());
        receiver.hear(3, HERE, Kind::Probe, after(800));
        let drive = fs::read_to_string(folder.path().join("drive-000.csv")).unwrap();
        assert_eq!(drive.lines().count(), 1 + 7);

        receiver.hear(3, HERE, Kind::Data, after(900));
        for kind in [Kind::Probe, Kind::Data, Kind::End] {
            receiver.hear(2, HERE, kind, after(1000));
        }
        assert_eq!(receiver.runs, [2, 3]);
        receiver.hear(3, HERE, Kind::Data, after(1050));
        receiver.hear(3, HERE, Kind::End, after(1050));
        assert_eq!(receiver.drives, 1, "the end says that 1 ms was sent");
        assert_eq!(receiver.ignored, 4);
    }

    #[test]
    fn a_run_without_data_is_forgotten() {
        let (folder, socket) = (tempfile::tempdir().unwrap(), socket());
        let mut receiver = receiver(&socket, folder.path());
        let start = Instant::now();
        receiver.hear(1, HERE, Kind::Probe, start);
        assert!(!receiver.has_ended(start + SILENCE).unwrap());
        assert!(receiver.run.is_none());
        receiver.hear(2, HERE, Kind::Data, start + SILENCE);
        assert!(receiver.run.is_some());
    }
}
