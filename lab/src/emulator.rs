//! Emulated links between real devices, in real time.
//!
//! For each path a namespace holds two devices: one leads to the ingress edge, the other to the
//! egress edge. A frame that arrives on one passes through that direction's
//! [`Link`](hawser_netem::Link) and is sent on the other when it is due. One thread does this for
//! all paths. Arrival times are the kernel's receive time stamps, so a late wake-up delays a frame
//! only if the thread also misses the frame's departure.
//!
//! If a link has a queue discipline, it reads the ECN field and the flow of the IP packet in a frame,
//! and its marks are written into the packet.
//!
//! The thread monitors itself: its [`Health`] shows whether it fell behind, or lost a frame that
//! the configuration did not drop.
//!
//! The devices belong to the caller, which has to switch off segmentation and receive offloads at
//! both ends and to keep the namespace from sending packets of its own, as
//! [`topology`](hawser_testbed::topology) does. If a device sends several packets in one frame nevertheless,
//! this is detected and makes the run invalid.

mod driver;
mod frame;
mod health;
pub mod load;
mod placement;

pub use health::{Health, Lateness};

use anyhow::{Context, Result, anyhow};
use driver::{Control, Driver};
use hawser_netem::{LinkConfig, LinkStats};
use hawser_testbed::netns::Namespace;
use hawser_testbed::ring::{self, Port};
use hawser_units::Instant;
use nix::unistd::{Pid, gettid};
use placement::{AffinityGuard, Placement};
use serde::{Deserialize, Serialize};
use std::io::PipeWriter;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

/// One path of the emulated network.
#[derive(Debug, Clone, PartialEq)]
pub struct EmulatedPath {
    /// The path's name in the report.
    pub name: String,
    /// The device that leads to the ingress edge.
    pub ingress_device: String,
    /// The device that leads to the egress edge.
    pub egress_device: String,
    /// The link from ingress to egress.
    pub forward: LinkConfig,
    /// The link from egress to ingress.
    pub backward: LinkConfig,
}

/// Running links. They stop when this is dropped.
#[derive(Debug)]
pub struct Emulator {
    control: Arc<Control>,
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<Result<EmulatorReport>>>,
    id: Pid,
    affinity_guard: Option<AffinityGuard>,
}

/// The statistics of all paths, and whether the emulator kept up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmulatorReport {
    /// The paths, in the order in which they were given.
    pub paths: Vec<PathReport>,
    /// How well the emulator kept up.
    pub health: Health,
}

/// The statistics of one path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    /// The path's name.
    pub name: String,
    /// The link from ingress to egress.
    pub forward: LinkStats,
    /// The link from egress to ingress.
    pub backward: LinkStats,
}

impl Emulator {
    /// Starts the links between the devices of `namespace`. They forward frames when this returns.
    /// Schedules and traces begin now, until [`set_origin`](Emulator::set_origin) restarts them.
    ///
    /// # Errors
    /// If a device is missing, without root, or without eBPF and packet rings in the kernel.
    pub fn start(namespace: &Namespace, paths: Vec<EmulatedPath>, seed: u64) -> Result<Self> {
        let control = Arc::new(Control::starting_at(ring::now()));
        let (stopped, wake) = std::io::pipe()?;
        let (ready, is_ready) = sync_channel(1);
        let run = {
            let (namespace, control) = (namespace.clone(), control.clone());
            move || {
                namespace.enter()?;
                // The starting thread does nothing but wait for this message.
                let ready = || ready.send(gettid()).unwrap_or(());
                Driver::open(paths, seed, control, stopped)?.run(ready)
            }
        };
        let thread = thread::Builder::new().name("emulator".into()).spawn(run)?;
        let emulator = Emulator {
            control,
            wake: Some(wake),
            thread: Some(thread),
            id: gettid(),
            affinity_guard: None,
        };
        emulator.when_ready(&is_ready)
    }

    /// Waits for the id of the new thread, which it sends when frames are forwarded.
    fn when_ready(mut self, is_ready: &Receiver<Pid>) -> Result<Self> {
        match is_ready.recv() {
            Ok(id) => {
                self.id = id;
                Ok(self)
            }
            Err(_) => match self.end() {
                Err(error) => Err(error.context("the emulator did not start")),
                Ok(_) => Err(anyhow!("the emulator stopped before it was ready")),
            },
        }
    }

    /// Reserves a processor for the emulator. All devices of `neighbours` then receive on the other
    /// processors. The calling thread, and the threads and processes that it starts from now on,
    /// run on the other processors until the emulator stops.
    ///
    /// The kernel delivers a frame on the processor that sends it: forwarding, TCP and the replies
    /// would all run inside the emulator's calls and delay the frames that follow. A process that
    /// sends a frame of video also makes the kernel deliver hundreds of packets to the emulator at
    /// once, which not even a real-time thread interrupts. An experiment with more than test frames
    /// should therefore call this, before it starts its processes, with every namespace that
    /// processes the delivered frames. With a single processor it has no effect.
    ///
    /// # Errors
    /// If the kernel does not allow moving the thread or lacks receive packet steering.
    pub fn steer(&mut self, neighbours: &[&Namespace]) -> Result<()> {
        let Some(placement) = Placement::choose()? else {
            return Ok(());
        };
        for neighbour in neighbours {
            placement.steer_receiving(neighbour)?;
        }
        self.affinity_guard = Some(placement.restrict_calling_thread()?);
        placement.pin_emulator(self.id)
    }

    /// Sets second 0 of every schedule and trace to the time `origin` of the monotonic clock.
    pub fn set_origin(&self, origin: Instant) {
        self.control.set_origin(origin);
    }

    /// Replaces the links of the paths, which are given in the order of the start; their devices stay. Schedules and
    /// traces begin now. Frames that are in the links until now still leave them when they are due. The report's
    /// statistics are those of the last links.
    pub fn change(&self, paths: Vec<EmulatedPath>) {
        let links = paths.into_iter();
        let links = links.flat_map(|path| [path.forward, path.backward]);
        self.control.change(ring::now(), links.collect());
    }

    /// Stops the links. Frames inside them are not delivered and count as still in the link.
    ///
    /// # Errors
    /// If the emulator failed while it ran.
    pub fn stop(mut self) -> Result<EmulatorReport> {
        self.end()
    }

    fn end(&mut self) -> Result<EmulatorReport> {
        self.control.stop();
        self.wake.take();
        let thread = self
            .thread
            .take()
            .context("the emulator was stopped before")?;
        thread
            .join()
            .map_err(|_| anyhow!("the emulator panicked"))?
    }
}

fn open(device: &str) -> Result<Port> {
    Port::open(device).with_context(|| format!("cannot read and write device {device}"))
}

impl Drop for Emulator {
    fn drop(&mut self) {
        if self.thread.is_some()
            && let Err(error) = self.end()
        {
            tracing::warn!("the emulator failed: {error:#}");
        }
    }
}
