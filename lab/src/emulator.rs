//! Emulated links between real devices, in real time.
//!
//! For each path a namespace holds two devices: one leads to the ingress edge, the other to the egress edge. What
//! arrives on one goes through that direction's [`Link`](hawser_netem::Link) and, when its time has come, out of the
//! other. One thread does this for all paths. The kernel's receive time stamps count, not the time at which the thread
//! came to look, so a late wake-up makes a frame late only if it is late for the frame's departure.
//!
//! The thread keeps watch over itself: a run in which it fell behind, or lost a frame that the configuration did not ask
//! it to lose, says so in its [`Health`].
//!
//! The devices belong to the caller, who switches segmentation and receive offloads off at both ends and sees to it that
//! the namespace says nothing of its own: [`topology`](crate::topology) does. A device that sends trains of packets all
//! the same is found out and makes the run invalid.

mod driver;
mod health;
mod load;
mod placement;
mod self_test;

pub use health::{Health, Lateness};
pub use self_test::{SelfTest, self_test};

use anyhow::{Context, Result, anyhow};
use driver::{Control, Driver};
use hawser_io::netns::Namespace;
use hawser_io::ring;
use hawser_netem::{LinkConfig, LinkStats};
use hawser_units::Instant;
use nix::unistd::{Pid, gettid};
use placement::{Placement, Withdrawn};
use serde::{Deserialize, Serialize};
use std::io::PipeWriter;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

/// One path of the emulated network.
#[derive(Debug, Clone, PartialEq)]
pub struct EmulatedPath {
    /// Its name in the report.
    pub name: String,
    /// The device that leads to the ingress edge.
    pub ingress_device: String,
    /// The device that leads to the egress edge.
    pub egress_device: String,
    /// From ingress to egress.
    pub forward: LinkConfig,
    /// From egress to ingress.
    pub backward: LinkConfig,
}

/// Running links. They stop when this is dropped.
#[derive(Debug)]
pub struct Emulator {
    control: Arc<Control>,
    wake: Option<PipeWriter>,
    thread: Option<JoinHandle<Result<EmulatorReport>>>,
    id: Pid,
    withdrawn: Option<Withdrawn>,
}

/// What became of the traffic, and whether the emulator kept up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmulatorReport {
    /// The paths, in the order in which they were given.
    pub paths: Vec<PathReport>,
    /// How well the emulator did.
    pub health: Health,
}

/// What became of the traffic of one path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    /// The path's name.
    pub name: String,
    /// From ingress to egress.
    pub forward: LinkStats,
    /// From egress to ingress.
    pub backward: LinkStats,
}

impl Emulator {
    /// Starts the links between the devices of `namespace`; when this returns, they carry. Schedules and traces begin
    /// now, until [`set_origin`](Emulator::set_origin) begins them anew.
    ///
    /// # Errors
    /// When a device is missing, without root, or without eBPF and packet rings in the kernel.
    pub fn start(namespace: &Namespace, paths: Vec<EmulatedPath>, seed: u64) -> Result<Self> {
        let control = Arc::new(Control::starting_at(ring::now()));
        let (stopped, wake) = std::io::pipe()?;
        let (ready, is_ready) = sync_channel(1);
        let run = {
            let (namespace, control) = (namespace.clone(), control.clone());
            move || {
                namespace.enter()?;
                // The starter waits for this and for nothing else.
                let ready = || ready.send(gettid()).unwrap_or(());
                Driver::open(paths, seed, control, stopped)?.run(ready)
            }
        };
        let thread = thread::Builder::new().name("emulator".into()).spawn(run)?;
        let mut emulator = Emulator {
            control,
            wake: Some(wake),
            thread: Some(thread),
            id: gettid(),
            withdrawn: None,
        };
        match is_ready.recv() {
            Ok(id) => {
                emulator.id = id;
                Ok(emulator)
            }
            Err(_) => match emulator.end() {
                Err(error) => Err(error.context("the emulator did not start")),
                Ok(_) => Err(anyhow!("the emulator ended before it started")),
            },
        }
    }

    /// Gives the emulator a processor of its own: all devices of `neighbours` receive on the others, and so does the
    /// calling thread with all that it starts from now on run on them, until the emulator stops.
    ///
    /// The kernel delivers a frame on the processor that sends it: forwarding, TCP, and whatever is sent in answer would
    /// all run inside the emulator's calls, and everything behind them would be late. And a process that sends a frame of
    /// video has the kernel carry hundreds of packets to the emulator in one go, which not even a real-time thread
    /// interrupts. So an experiment with more than test frames calls this, before it starts its processes, with every
    /// namespace that works on what the links deliver. With a single processor it changes nothing.
    ///
    /// # Errors
    /// When the kernel does not allow to move the thread or has no receive packet steering.
    pub fn steer(&mut self, neighbours: &[&Namespace]) -> Result<()> {
        let Some(placement) = Placement::choose()? else {
            return Ok(());
        };
        for neighbour in neighbours {
            placement.receive_elsewhere(neighbour)?;
        }
        self.withdrawn = Some(placement.withdraw()?);
        placement.settle(self.id)
    }

    /// Makes second 0 of every schedule and trace the time `origin` of the monotonic clock.
    pub fn set_origin(&self, origin: Instant) {
        self.control.set_origin(origin);
    }

    /// Stops the links. What they hold is not delivered any more and counts as in the link.
    ///
    /// # Errors
    /// When the emulator failed on the way.
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

impl Drop for Emulator {
    fn drop(&mut self) {
        if self.thread.is_some()
            && let Err(error) = self.end()
        {
            tracing::warn!("the emulator failed: {error:#}");
        }
    }
}
