use super::health::{DeviceDrops, Health, Lateness};
use super::{EmulatedPath, EmulatorReport, PathReport};
use anyhow::{Context, Result};
use hawser_io::ring::{self, Port, Refusal, Sender};
use hawser_netem::{Link, LinkConfig};
use hawser_units::{ByteSize, Instant};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::PipeReader;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The time between two looks at the links while frames move. Half of it is what a departure is late on average; frames
/// that come closer together share a wake-up.
const TICK: Duration = Duration::from_micros(100);

/// The longest time without a look at the rings while frames are in the links, so that no burst fills a ring.
const LONGEST_TICK: Duration = Duration::from_millis(1);

/// What the owner tells the running thread.
#[derive(Debug)]
pub(super) struct Control {
    stop: AtomicBool,
    origin_ns: AtomicU64,
}

impl Control {
    pub(super) fn starting_at(origin: Instant) -> Self {
        Control {
            stop: AtomicBool::new(false),
            origin_ns: AtomicU64::new(origin.as_nanos()),
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_origin(&self, origin: Instant) {
        self.origin_ns.store(origin.as_nanos(), Ordering::Relaxed);
    }

    fn origin(&self) -> Instant {
        Instant::from_nanos(self.origin_ns.load(Ordering::Relaxed))
    }
}

/// The thread that moves the frames.
pub(super) struct Driver {
    names: Vec<String>,
    devices: Vec<String>,
    ports: Vec<Port>,
    directions: Vec<Direction>,
    /// What arrives is not due before this time has passed.
    lookahead: Duration,
    control: Arc<Control>,
    stopped: PipeReader,
    departing: Departing,
    health: Health,
    lateness: Lateness,
}

/// One direction of a path.
struct Direction {
    link: Link<Vec<u8>>,
    origin: Instant,
    from: usize,
    to: usize,
}

/// The frames of one send call, and when each should have left.
#[derive(Default)]
struct Departing {
    frames: Vec<Vec<u8>>,
    due: Vec<Instant>,
}

impl Driver {
    /// Opens the devices, which must be in the calling thread's namespace.
    pub(super) fn open(
        paths: Vec<EmulatedPath>,
        seed: u64,
        control: Arc<Control>,
        stopped: PipeReader,
    ) -> Result<Self> {
        let origin = control.origin();
        let mut seeds = ChaCha8Rng::seed_from_u64(seed);
        let configs = paths
            .iter()
            .flat_map(|path| [&path.forward, &path.backward]);
        let least_delay = configs
            .map(LinkConfig::least_delay)
            .min()
            .unwrap_or_default();
        let mut driver = Driver {
            lookahead: least_delay.min(LONGEST_TICK),
            names: Vec::new(),
            devices: Vec::new(),
            ports: Vec::new(),
            directions: Vec::new(),
            control,
            stopped,
            departing: Departing::default(),
            health: Health::default(),
            lateness: Lateness::default(),
        };
        for path in paths {
            let mut direction = |config: LinkConfig, from, to| {
                let link = Link::new(config, seeds.next_u64(), origin)
                    .corrupting_by(|frame: &mut Vec<u8>| corrupt(frame));
                driver.directions.push(Direction {
                    link,
                    origin,
                    from,
                    to,
                });
            };
            let (ingress, egress) = (driver.ports.len(), driver.ports.len() + 1);
            direction(path.forward, ingress, egress);
            direction(path.backward, egress, ingress);
            for device in [path.ingress_device, path.egress_device] {
                let port = Port::open(&device)
                    .with_context(|| format!("cannot read and write device {device}"))?;
                driver.ports.push(port);
                driver.devices.push(device);
            }
            driver.names.push(path.name);
        }
        Ok(driver)
    }

    /// Moves frames until told to stop, having called `ready`.
    pub(super) fn run(mut self, ready: impl FnOnce()) -> Result<EmulatorReport> {
        match ring::rise_to_realtime() {
            Ok(()) => self.health.realtime = true,
            Err(error) => tracing::warn!("the emulator runs without real-time priority: {error}"),
        }
        let drops_before = DeviceDrops::read(&self.devices)?;
        // What came while the devices were being opened came before the links were up.
        for port in &mut self.ports {
            port.receiver.receive(|_| ());
        }
        let (began, cpu_began) = (ring::now(), ring::cpu_time());
        ready();

        while !self.control.stop.load(Ordering::Relaxed) {
            let begin = ring::now();
            let moved = self.receive() + self.send_due();
            self.rest(begin, moved)?;
        }

        self.health.wall_ms = millis(ring::now().saturating_since(began));
        self.health.cpu_ms = millis(ring::cpu_time() - cpu_began);
        self.health.device_drops = DeviceDrops::read(&self.devices)?.since(&drops_before);
        for port in &self.ports {
            self.health.ring_drops += u64::from(port.receiver.drops()?);
        }
        Ok(self.report())
    }

    fn receive(&mut self) -> usize {
        let (health, control) = (&mut self.health, &self.control);
        let mut received = 0;
        for direction in &mut self.directions {
            received += self.ports[direction.from]
                .receiver
                .receive(|frame| match frame {
                    Ok(frame) => {
                        let bytes = frame.to_vec();
                        direction.follow(control.origin());
                        direction
                            .link
                            .push(frame.arrived(), ByteSize(bytes.len() as u64), bytes);
                    }
                    Err(Refusal::TooLarge) => health.too_large += 1,
                    Err(Refusal::Train) => health.trains += 1,
                });
        }
        self.health.frames_received += received as u64;
        received
    }

    fn send_due(&mut self) -> usize {
        let mut sent = 0;
        for Direction { link, to, .. } in &mut self.directions {
            while self.departing.fill(link, ring::now()) {
                if let Err((refused, error)) = self.ports[*to].sender.send(&self.departing.frames) {
                    tracing::debug!("{} refused a frame: {error}", self.devices[*to]);
                    self.health.send_failures += refused as u64;
                }
                let now = ring::now();
                self.departing
                    .due
                    .iter()
                    .for_each(|due| self.lateness.record(now.saturating_since(*due)));
                sent += self.departing.frames.len();
            }
        }
        self.health.frames_sent += sent as u64;
        sent
    }

    /// Waits until the next departure or until something that has arrived meanwhile may be due, but at least for a tick
    /// while frames move. Only links that are at rest, or that may have to deliver at once, wake up for an arrival.
    fn rest(&self, begin: Instant, moved: usize) -> Result<()> {
        let stopped = self.stopped.as_fd();
        let next = self
            .directions
            .iter()
            .filter_map(|direction| direction.link.next_departure())
            .min();
        let at_rest = moved == 0 && (next.is_none() || self.lookahead < TICK);
        if at_rest {
            let arrivals = self.ports.iter().map(|port| port.receiver.as_fd());
            let sources: Vec<BorrowedFd<'_>> = arrivals.chain([stopped]).collect();
            return Ok(ring::wait(
                &sources,
                next.map(|next| next.saturating_since(ring::now())),
            )?);
        }
        let blind_until = begin + self.lookahead;
        let until = next
            .map_or(blind_until, |next| next.min(blind_until))
            .max(begin + TICK);
        let left = until.saturating_since(ring::now());
        if left.is_zero() {
            Ok(())
        } else {
            Ok(ring::wait(&[stopped], Some(left))?)
        }
    }

    fn report(self) -> EmulatorReport {
        let paths = self.names.into_iter().zip(self.directions.chunks_exact(2));
        let paths = paths.map(|(name, directions)| PathReport {
            name,
            forward: directions[0].link.stats(),
            backward: directions[1].link.stats(),
        });
        EmulatorReport {
            paths: paths.collect(),
            health: self.health.with_lateness(&self.lateness),
        }
    }
}

/// Changes a byte of the payload that a frame ends with, as a link without a checksum does. What a network needs to find
/// neighbours, which is short, is left alone.
fn corrupt(frame: &mut [u8]) {
    const SHORTEST: usize = 200;
    if frame.len() >= SHORTEST
        && let Some(last) = frame.last_mut()
    {
        *last ^= 0x20;
    }
}

impl Direction {
    /// Asked before every frame, so that a new origin holds for whatever arrives after it was set.
    fn follow(&mut self, origin: Instant) {
        if origin != self.origin {
            self.origin = origin;
            self.link.restart(origin);
        }
    }
}

impl Departing {
    /// Takes what has left the link by `now`, as much as one call sends. False when there is nothing.
    fn fill(&mut self, link: &mut Link<Vec<u8>>, now: Instant) -> bool {
        self.frames.clear();
        self.due.clear();
        while self.frames.len() < Sender::BATCH
            && let Some((due, frame)) = link.pop(now)
        {
            self.due.push(due);
            self.frames.push(frame);
        }
        !self.frames.is_empty()
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
