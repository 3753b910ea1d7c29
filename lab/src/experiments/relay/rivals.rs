//! The set-up of Pfeifer's section 4.1 with relays in user space: one client and 30 s of video, of the rate and the
//! packets of the stream with real sessions. His client is 5 ms behind the relay, which these do not notice.

use super::calls::{self, Appendix, THESIS_S};
use super::live::STREAM_MBPS;
use super::scenario::Way;
use crate::experiment::Run;
use crate::relays::{
    Audience, HOW_TO_INSTALL, MoqPublisher, MoqRelay, Network, Publisher, Running, UserSpaceRelay,
    cpu_of_process, cpu_of_thread, remote,
};
use crate::summary::Case;
use anyhow::{Context, Result, ensure};
use hawser_lab_bpf::SyscallCounter;
use nix::unistd::gettid;
use std::fmt;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Packets of 1,200 bytes of each of 30 frames a second: with these, the stream has 4 Mb/s.
const PACKETS: u16 = 14;
const FRAME: Duration = Duration::from_nanos(1_000_000_000 / 30);

/// Frames before the measurement.
const WARM_UP: usize = 30;

/// The longest wait for the last frame.
const LAST: Duration = Duration::from_millis(500);

/// The set-up with a relay in user space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rival(pub(super) Way);

impl fmt::Display for Rival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thesis/{}", self.0.name())
    }
}

/// The figures over the time of the video.
struct Part {
    server: Duration,
    relay: Duration,
    client: Duration,
    calls: Vec<(u32, u64)>,
    frames: f64,
}

impl Rival {
    pub(super) const ALL: [Rival; 3] =
        [Rival(Way::Gso), Rival(Way::Sendmmsg), Rival(Way::MoqRelay)];

    pub(super) fn measure(self, run: &Run) -> Result<Case> {
        let seconds = run.seconds.unwrap_or(THESIS_S);
        let frames = (seconds / FRAME.as_secs_f64()).ceil() as usize;
        let mut case = Case::new(&self.to_string());
        case.set_param("seconds", seconds);
        case.set_param("stream_mbps", STREAM_MBPS);
        let network = Network::create()?;
        network.let_subscribers_answer()?;
        let part = match self.0 {
            Way::MoqRelay => {
                let program = MoqRelay::find()?.context(HOW_TO_INSTALL)?;
                case.set_param("program", &program.version[..]);
                let folder = run.raw(&self.to_string().replace('/', "-"))?;
                let relay = program.start(&network, &folder)?;
                let part = with_moq_relay(&network, &relay, frames);
                relay.stop()?;
                part?
            }
            way => in_user_space(&network, way, frames)?,
        };
        let cores = |cpu: Duration| cpu.as_secs_f64() / seconds;
        let mut set = |name: &str, figure: f64| case.metrics.set(name, figure);
        set("frames_ratio", part.frames / frames as f64);
        set("server_cpu_cores", cores(part.server));
        set("relay_cpu_cores", cores(part.relay));
        set("viewer_cpu_cores", cores(part.client));
        let total: u64 = part.calls.iter().map(|(_, count)| count).sum();
        let packets = part.frames * f64::from(PACKETS);
        set("syscalls_per_delivered_packets", total as f64 / packets);
        calls::set(&mut case, &part.calls, seconds, Appendix::B);
        Ok(case)
    }
}

/// Publishes frames at their pace.
fn play(frames: usize, mut publish: impl FnMut() -> Result<()>) -> Result<()> {
    let mut due = Instant::now();
    for _ in 0..frames {
        publish()?;
        due += FRAME;
        thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}

fn prepare() -> Result<()> {
    Ok(())
}

fn with_moq_relay(network: &Network, relay: &Running, frames: usize) -> Result<Part> {
    let publisher = MoqPublisher::open(network, relay, prepare)?;
    let audience = Audience::open(network, relay, 1, prepare)?;
    let publish = || publisher.publish(PACKETS);
    play(WARM_UP, publish)?;
    ensure!(
        audience.is_complete(),
        "the client of moq-relay received nothing"
    );
    audience.take(usize::MAX, Duration::ZERO)?;
    let syscalls = SyscallCounter::load()?;
    syscalls.add(relay.id())?;
    // The frames are made in this thread.
    let times = || -> Result<[Duration; 3]> {
        let server = cpu_of_thread(publisher.thread())? + cpu_of_thread(gettid().as_raw() as u32)?;
        Ok([
            server,
            cpu_of_process(relay.id())?,
            cpu_of_thread(audience.thread())?,
        ])
    };
    let before = times()?;
    play(frames, publish)?;
    let after = times()?;
    let calls = syscalls.counts()?;
    let received = audience.take(frames, LAST)?.len();
    let [server, relay, client] = [0, 1, 2].map(|part| after[part] - before[part]);
    Ok(Part {
        server,
        relay,
        client,
        calls,
        frames: received as f64,
    })
}

fn in_user_space(network: &Network, way: Way, frames: usize) -> Result<Part> {
    let mut publisher = Publisher::open(network)?;
    publisher.send_trains(true)?;
    let address = remote(0);
    network
        .peers
        .ip(&format!("addr add {}/32 dev far\n", address.ip()))?;
    let socket = network.peers.run(|| UdpSocket::bind(address))??;
    socket.set_read_timeout(Some(LAST))?;
    let syscalls = SyscallCounter::load()?;
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let (named, names) = mpsc::channel();
    thread::scope(|scope| {
        let (named_relay, named_client) = (named.clone(), named);
        let relay = scope.spawn(move || -> Result<()> {
            network.relay.run(|| -> Result<()> {
                let mut relay = UserSpaceRelay::open(1)?;
                relay.send_trains(way == Way::Gso)?;
                named_relay.send((0, gettid().as_raw() as u32))?;
                while relay.receive()? > 0 {
                    relay.send()?;
                }
                Ok(())
            })?
        });
        let (socket, stop, received) = (&socket, &stop, &received);
        let client = scope.spawn(move || -> Result<()> {
            let mut packet = [0; 2048];
            named_client.send((1, gettid().as_raw() as u32))?;
            while !stop.load(Relaxed) {
                match socket.recv(&mut packet) {
                    Ok(_) => drop(received.fetch_add(1, Relaxed)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(())
        });
        let mut measured = || -> Result<Part> {
            let mut ids = [0; 2];
            for _ in 0..ids.len() {
                let (part, id): (usize, u32) =
                    names.recv_timeout(LAST).context("a part has not begun")?;
                ids[part] = id;
            }
            let mut publish = || {
                let object = publisher.next_object(PACKETS);
                publisher.publish(&object)
            };
            play(WARM_UP, &mut publish)?;
            syscalls.add(ids[0])?;
            let times = || -> Result<[Duration; 3]> {
                let [relay, client] = ids.map(cpu_of_thread);
                Ok([cpu_of_thread(gettid().as_raw() as u32)?, relay?, client?])
            };
            let (before, packets) = (times()?, received.load(Relaxed));
            play(frames, &mut publish)?;
            let after = times()?;
            let calls = syscalls.counts()?;
            let packets = received.load(Relaxed) - packets;
            let [server, relay, client] = [0, 1, 2].map(|part| after[part] - before[part]);
            Ok(Part {
                server,
                relay,
                client,
                calls,
                frames: packets as f64 / f64::from(PACKETS),
            })
        };
        let measured = measured();
        stop.store(true, Relaxed);
        publisher.publish(&[])?;
        for part in [relay, client] {
            let ended = part.join();
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        measured
    })
}
