use super::frame;
use super::health::{DeviceDrops, Health, Lateness};
use super::{EmulatedPath, EmulatorReport, PathReport};
use anyhow::Result;
use hawser_netem::{Link, LinkConfig};
use hawser_testbed::ring::{self, FrameError, Port, Sender};
use hawser_units::Instant;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::PipeReader;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The polling interval of the links while frames move. The average departure is half of it late;
/// frames with a shorter spacing share a wake-up.
const TICK: Duration = Duration::from_micros(100);

/// The maximum polling interval of the rings while frames are in the links, so that no burst fills
/// a ring.
const MAX_TICK: Duration = Duration::from_millis(1);

/// The commands of the owner to the running thread.
#[derive(Debug)]
pub(super) struct Control {
    stop: AtomicBool,
    origin_ns: AtomicU64,
    /// The minimum time from an arrival until its frame can be due.
    lookahead_ns: AtomicU64,
    /// The number of changes of the links.
    changes: AtomicU64,
    /// The links that each direction has to take.
    links: Mutex<Vec<Option<LinkConfig>>>,
}

impl Control {
    pub(super) fn starting_at(origin: Instant) -> Self {
        Control {
            stop: AtomicBool::new(false),
            origin_ns: AtomicU64::new(origin.as_nanos()),
            lookahead_ns: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            links: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_origin(&self, origin: Instant) {
        self.origin_ns.store(origin.as_nanos(), Ordering::Relaxed);
    }

    /// Replaces the links of all directions: of each path both, in order.
    pub(super) fn change(&self, origin: Instant, links: Vec<LinkConfig>) {
        let mut waiting = self.links.lock();
        self.set_lookahead(&links);
        self.set_origin(origin);
        *waiting = links.into_iter().map(Some).collect();
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn set_lookahead<'a>(&self, links: impl IntoIterator<Item = &'a LinkConfig>) {
        let delays = links.into_iter().map(LinkConfig::min_delay);
        let lookahead = delays.min().unwrap_or_default().min(MAX_TICK);
        self.lookahead_ns
            .store(lookahead.as_nanos() as u64, Ordering::Relaxed);
    }

    fn lookahead(&self) -> Duration {
        Duration::from_nanos(self.lookahead_ns.load(Ordering::Relaxed))
    }

    fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn origin(&self) -> Instant {
        Instant::from_nanos(self.origin_ns.load(Ordering::Relaxed))
    }
}

/// The state of the thread that moves the frames.
pub(super) struct Driver {
    names: Vec<String>,
    devices: Vec<String>,
    ports: Vec<Port>,
    directions: Vec<Direction>,
    control: Arc<Control>,
    stopped: PipeReader,
    departing: Departing,
    health: Health,
    lateness: Lateness,
}

/// One direction of a path.
struct Direction {
    /// The position among the directions.
    number: usize,
    seed: u64,
    link: Link<Vec<u8>>,
    /// The changes that it has followed.
    changes: u64,
    /// The link before the last change, while frames are in it.
    before: Option<Link<Vec<u8>>>,
    origin: Instant,
    from: usize,
    to: usize,
}

/// The frames of one send call, and their departure times.
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
        let mut seeds = ChaCha8Rng::seed_from_u64(seed);
        let configs = paths
            .iter()
            .flat_map(|path| [&path.forward, &path.backward]);
        control.set_lookahead(configs);
        let mut driver = Driver {
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
            driver.add(path, &mut seeds)?;
        }
        Ok(driver)
    }

    /// Opens the devices of a path and creates the links of both directions.
    fn add(&mut self, path: EmulatedPath, seeds: &mut ChaCha8Rng) -> Result<()> {
        let origin = self.control.origin();
        let (ingress, egress) = (self.ports.len(), self.ports.len() + 1);
        for (config, from, to) in [
            (path.forward, ingress, egress),
            (path.backward, egress, ingress),
        ] {
            let seed = seeds.next_u64();
            self.directions.push(Direction {
                number: self.directions.len(),
                seed,
                link: link(config, seed, origin),
                changes: 0,
                before: None,
                origin,
                from,
                to,
            });
        }
        for device in [path.ingress_device, path.egress_device] {
            self.ports.push(super::open(&device)?);
            self.devices.push(device);
        }
        self.names.push(path.name);
        Ok(())
    }

    /// Calls `ready` and moves frames until stopped.
    pub(super) fn run(mut self, ready: impl FnOnce()) -> Result<EmulatorReport> {
        self.rise_to_realtime();
        let drops_before = DeviceDrops::read(&self.devices)?;
        // Frames that arrived while the devices were being opened arrived before the links were up.
        for port in &mut self.ports {
            port.receiver.receive(|_| ());
        }
        let (began, cpu_began) = (ring::now(), ring::cpu_time());
        ready();

        while !self.control.stop.load(Ordering::Relaxed) {
            let begin = ring::now();
            let moved = self.receive() + self.send_due();
            self.wait_for_work(begin, moved)?;
        }

        self.health.wall_ms = millis(ring::now().saturating_since(began));
        self.health.cpu_ms = millis(ring::cpu_time() - cpu_began);
        self.health.device_drops = DeviceDrops::read(&self.devices)?.since(&drops_before);
        for port in &self.ports {
            self.health.ring_drops += u64::from(port.receiver.drops()?);
        }
        Ok(self.report())
    }

    fn rise_to_realtime(&mut self) {
        match ring::rise_to_realtime() {
            Ok(()) => self.health.realtime = true,
            Err(error) => tracing::warn!("the emulator runs without real-time priority: {error}"),
        }
    }

    fn receive(&mut self) -> usize {
        let (health, control) = (&mut self.health, &self.control);
        let mut received = 0;
        for direction in &mut self.directions {
            received += self.ports[direction.from]
                .receiver
                .receive(|frame| match frame {
                    Ok(frame) => {
                        direction.follow(control);
                        let packet = frame::packet(frame.to_vec());
                        direction.link.push_packet(frame.arrived(), packet);
                    }
                    Err(FrameError::TooLarge) => health.too_large += 1,
                    Err(FrameError::Gso) => health.trains += 1,
                });
        }
        self.health.frames_received += received as u64;
        received
    }

    fn send_due(&mut self) -> usize {
        let mut sent = 0;
        for direction in &mut self.directions {
            let Direction {
                link, before, to, ..
            } = direction;
            for link in before.as_mut().into_iter().chain([link]) {
                while self.departing.fill(link, ring::now()) {
                    if let Err((refused, error)) =
                        self.ports[*to].sender.send(&self.departing.frames)
                    {
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
            before.take_if(|link| link.next_departure().is_none());
        }
        self.health.frames_sent += sent as u64;
        sent
    }

    /// Waits until the next departure may be due, or until a frame that has arrived meanwhile may be due, but
    /// at least for a tick while frames move. Only links that are idle, or that may have to deliver
    /// at once, wake up for an arrival.
    fn wait_for_work(&self, begin: Instant, moved: usize) -> Result<()> {
        let stopped = self.stopped.as_fd();
        let next = self.next_departure();
        let is_idle = moved == 0 && (next.is_none() || self.control.lookahead() < TICK);
        if is_idle {
            let arrivals = self.ports.iter().map(|port| port.receiver.as_fd());
            let sources: Vec<BorrowedFd<'_>> = arrivals.chain([stopped]).collect();
            return Ok(ring::wait(
                &sources,
                next.map(|next| next.saturating_since(ring::now())),
            )?);
        }
        let lookahead_end = begin + self.control.lookahead();
        let until = next
            .map_or(lookahead_end, |next| next.min(lookahead_end))
            .max(begin + TICK);
        let left = until.saturating_since(ring::now());
        if left.is_zero() {
            Ok(())
        } else {
            Ok(ring::wait(&[stopped], Some(left))?)
        }
    }

    fn next_departure(&self) -> Option<Instant> {
        self.directions
            .iter()
            .flat_map(|direction| [Some(&direction.link), direction.before.as_ref()])
            .filter_map(|link| link?.next_departure())
            .min()
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

fn link(config: LinkConfig, seed: u64, origin: Instant) -> Link<Vec<u8>> {
    Link::new(config, seed, origin)
        .corrupting_by(|frame: &mut Vec<u8>| corrupt(frame))
        .marking_by(|frame| frame::mark(frame))
}

/// Changes the last byte of a frame's payload, as a link without a checksum might. Short frames are
/// not changed, because neighbour discovery needs them.
fn corrupt(frame: &mut [u8]) {
    const MIN_LENGTH: usize = 200;
    if frame.len() >= MIN_LENGTH
        && let Some(last) = frame.last_mut()
    {
        *last ^= 0x20;
    }
}

impl Direction {
    /// Takes a new link or a new origin. It is called before every frame, so that they hold for all
    /// frames that arrive after they were set.
    fn follow(&mut self, control: &Control) {
        let (changes, origin) = (control.changes(), control.origin());
        if changes != self.changes {
            self.changes = changes;
            let mut links = control.links.lock();
            if let Some(config) = links.get_mut(self.number).and_then(Option::take) {
                let next = link(config, self.seed.wrapping_add(changes), origin);
                self.before = Some(mem::replace(&mut self.link, next));
                self.origin = origin;
            }
        }
        if origin != self.origin {
            self.origin = origin;
            self.link.restart(origin);
        }
    }
}

impl Departing {
    /// Takes the frames that have left the link by `now`, as many as one call sends. Returns
    /// `false` if there are none.
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
