//! The agent of an edge node: replicates flows onto several paths and deduplicates the copies that
//! it receives.
//!
//! eBPF programs in the kernel process the packets. The agent loads them, tracks next hops, reads
//! the arrival records and writes a status file. Flows come from its configuration file or from a
//! controller, to which the agent then also reports. When the agent is killed, replication stops
//! and traffic takes the default route. Deduplication stays active in the kernel, because copies
//! may still be in flight.
//!
//! One loop owns all kernel state. A separate thread talks to the controller (`link`).

#![deny(clippy::print_stdout, clippy::print_stderr)]

#[cfg(test)]
mod any_bytes;
mod command;
pub mod config;
mod controlled;
mod device;
mod echo;
pub mod enrol;
mod experience;
mod flows;
mod kept;
mod link;
mod metrics;
mod node;
mod observer;
mod own_keys;
mod peer;
mod peers;
mod persisted;
mod rejected;
mod stamped;
pub mod status;
mod trace;
mod uplinks;
mod watch;

pub use command::{CommandLine, execute};
pub use config::{Config, ConfigError, generate_key};
pub use experience::{Args as ReportArgs, run as report};
pub use flows::{Flows, Selectors, Sent};
pub use status::Status;

use anyhow::{Context, Result, bail};
use config::Remains;
use controlled::{Controlled, Restored};
use device::Device;
use echo::Echoes;
use experience::Experiences;
use hawser_io::file;
use hawser_io::interface;
use hawser_io::kept::Filters;
use hawser_io::netlink::Monitor;
use hawser_io::segmenter::Segmenter;
use hawser_units::Instant;
use kept::Kept;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::time::{ClockId, clock_gettime};
use node::{Node, pins, remove_pins};
use observer::Observer;
use rejected::RejectedCopies;
use signal_hook::consts::SIGHUP;
use status::{StatusFile, Unselected};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::{info, warn};

/// Interval at which arrival records are read. The ring holds 65,536 of them.
const OBSERVE_EVERY: Duration = Duration::from_millis(10);

/// Interval at which the interfaces are checked and, unless [`Args`] says otherwise, the status is written.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Interval at which next hops are resolved again.
const FOLLOW_EVERY: Duration = Duration::from_secs(5);

/// Minimum interval between two reactions to changes of interfaces, addresses and routes, of which
/// there may be thousands a second.
const REACT_EVERY: Duration = Duration::from_millis(100);

/// The options of a node.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The node's configuration (docs/agent.md explains every key)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the configuration and exit
    #[arg(long, conflicts_with_all = ["detach", "enrol"])]
    pub check: bool,
    /// Obtain a certificate from the controller with the one-time token in this file ("-" reads
    /// standard input), and exit
    #[arg(long, value_name = "TOKENFILE", conflicts_with = "detach")]
    pub enrol: Option<PathBuf>,
    /// Remove the deduplication that an earlier agent of this node left in the kernel, and exit
    #[arg(long)]
    pub detach: bool,
    /// Interval at which the status is written. No option: tests wait for less than a second.
    #[arg(skip = CHECK_EVERY)]
    pub status_every: Duration,
}

/// Runs the agent until SIGINT or SIGTERM. SIGHUP makes it reload flows, policies and keys.
pub fn run(args: &Args) -> Result<()> {
    if args.detach {
        let remains = Remains::read(&args.config)?;
        let _lock = lock(&remains)?;
        return detach(&remains);
    }
    let config = Config::read(&args.config)?;
    if args.check {
        hawser_service::print(&format!("{config}\n"))?;
        return Ok(());
    }
    if let Some(token) = &args.enrol {
        return enrol::enrol(&config, token);
    }
    let _lock = lock(&config.remains())?;
    // Caught before anything that takes time: a signal must neither be missed nor kill an agent
    // that is starting.
    let signals = Signals::catch()?;
    Agent::start(config)?.run(args, &signals)
}

/// A running node.
struct Agent {
    /// Dropped before the programs: traffic that leaves through this interface without them is
    /// lost.
    device: Option<Device>,
    node: Node,
    observer: Option<Observer>,
    controlled: Option<Controlled>,
    /// The measurements of the paths. `None` under a controller, whose part of the agent has them.
    echoes: Option<Echoes>,
    status_file: StatusFile,
    rejected: RejectedCopies,
    unselected: Unselected,
    experiences: Experiences,
    monitor: Monitor,
    kept: Kept,
}

impl Agent {
    fn start(mut config: Config) -> Result<Self> {
        let status_file = StatusFile::at(config.status_file());
        if let Some(address) = config.metrics {
            metrics::serve(address, &status_file.last())?;
        }
        let deadline = config.arrival_deadline;
        let restored = Restored::read(&mut config)?;
        let flows = restored
            .as_ref()
            .map_or_else(|| config.flows.clone(), |restored| restored.flows(&config));
        // Before anything is read, so that no change is missed.
        let monitor = Monitor::start(device::PROTOCOL)
            .context("cannot listen to changes of interfaces and addresses")?;
        let device = Device::create(&config)?;
        let mut node = Node::start(config, flows)?;
        let arrivals = node
            .receiver()
            .map(|receiver| receiver.arrivals())
            .transpose()?;
        let observer = arrivals.map(|arrivals| Observer::new(arrivals, deadline));
        let controlled = restored
            .map(|restored| restored.start(&mut node, observer.as_ref()))
            .transpose()?;
        node.deduplicate().context("cannot start deduplication")?;
        if device.is_none() {
            // Only now: a refused start leaves the entries of an earlier agent's device in place.
            Device::remove(&node.config().remains());
        }
        let kept = Kept::watch(&node)?;
        let echoes = match &controlled {
            None => Some(measured(&node)),
            Some(_) => None,
        };
        let experiences = Experiences::listen(&node);
        info!(status = %status_file, "agent running");
        let mut agent = Agent {
            device,
            node,
            observer,
            controlled,
            echoes,
            status_file,
            rejected: RejectedCopies::default(),
            unselected: Unselected::default(),
            experiences,
            monitor,
            kept,
        };
        agent.follow_device(monotonic_now());
        Ok(agent)
    }

    fn run(mut self, args: &Args, signals: &Signals) -> Result<()> {
        let (mut next_status, mut next_check) = (Instant::ZERO, Instant::ZERO);
        let mut next_follow = Instant::ZERO;
        let (mut next_reaction, mut has_changed) = (Instant::ZERO, false);
        while !signals.stop.load(Ordering::Relaxed) {
            let now = monotonic_now();
            self.poll(now);
            if signals.reload.swap(false, Ordering::Relaxed) {
                let outcome = self.reconfigure(&args.config);
                self.status_file.configuration_reloaded(outcome);
                (next_status, next_check) = (now, now);
            }
            if now >= next_status {
                next_status = now + args.status_every;
                self.write_status();
            }
            let check_is_due = now >= next_check;
            if check_is_due {
                next_check = now + CHECK_EVERY;
                self.check(now);
            }
            has_changed |= self.monitor.has_changed();
            let reacts = has_changed && now >= next_reaction;
            if now >= next_follow || reacts || (check_is_due && self.node.should_follow()) {
                has_changed = false;
                (next_follow, next_reaction) = (now + FOLLOW_EVERY, now + REACT_EVERY);
                self.follow();
            }
            let tunnels_changed = self.follow_tunnels();
            if check_is_due || tunnels_changed {
                self.check_reach(now);
            }
            if tunnels_changed {
                self.follow();
                self.follow_device(now);
            }
            self.wait();
        }
        self.stop(&args.config);
        Ok(())
    }

    /// Follows what may have changed within a second.
    fn check(&mut self, now: Instant) {
        self.node
            .follow_addresses()
            .unwrap_or_else(|error| warn!("{error:#}"));
        self.follow_device(now);
        self.node.persist_clock();
        self.kept.follow(&self.node);
        self.rejected.check(&self.node);
        self.unselected.check(&self.node);
    }

    /// Checks whether copies arrive at the other ends of the paths.
    fn check_reach(&mut self, now: Instant) {
        let controlled = self.controlled.as_ref();
        let echoes = self.echoes.as_ref();
        if let Some(echoes) = echoes.or(controlled.map(Controlled::echoes)) {
            self.node.check_reach(echoes, now);
        }
    }

    /// Returns whether a tunnel has failed or works again.
    fn follow_tunnels(&mut self) -> bool {
        let controlled = self.controlled.as_ref();
        let echoes = self.echoes.as_ref();
        let echoes = echoes.or(controlled.map(Controlled::echoes));
        echoes.is_some_and(|echoes| self.node.follow_tunnels(echoes))
    }

    /// Waits until the kernel has to be polled again.
    fn wait(&mut self) {
        match &mut self.controlled {
            Some(controlled) => controlled.wait(&mut self.node, self.observer.as_ref()),
            None => std::thread::sleep(OBSERVE_EVERY),
        }
    }

    /// Writes the last status and removes the device.
    fn stop(mut self, file: &Path) {
        self.write_status();
        drop(self.device.take());
        if self.node.receiver().is_some() {
            info!(
                "deduplication stays active in the kernel; `hawser agent --config {} --detach` removes it",
                file.display()
            );
        }
    }

    /// Processes the records of the kernel.
    fn poll(&mut self, now: Instant) {
        self.node
            .poll_path_errors()
            .unwrap_or_else(|error| warn!("{error:#}"));
        let Agent {
            node,
            observer,
            controlled,
            echoes,
            experiences,
            ..
        } = self;
        if let Some(echoes) = echoes {
            echoes.handle(
                now,
                |count| node.seen_echoes(count),
                |path| Some(node.mtu(path)?.0),
            );
        }
        if let Some(observer) = observer {
            observer.observe(now, |packet| {
                if let Some(controlled) = controlled {
                    controlled.handle_packet(packet);
                }
            });
        }
        experiences.poll(now, node, controlled.as_mut());
        if let Some(controlled) = controlled {
            controlled.poll(node, observer.as_ref(), now);
        }
    }

    /// Reloads the configuration. The error says why the previous one stays in force.
    fn reconfigure(&mut self, file: &Path) -> Result<()> {
        self.node.reload(Config::read(file)?)?;
        if let Some(echoes) = &mut self.echoes {
            echoes.set_peers(&self.node.config().peers);
        }
        match &mut self.controlled {
            Some(controlled) => {
                controlled.reload(&mut self.node, self.observer.as_ref(), monotonic_now())
            }
            None => Ok(()),
        }
    }

    fn follow(&mut self) {
        if let Some(device) = &mut self.device {
            device.restore();
        }
        self.node
            .follow()
            .unwrap_or_else(|error| warn!("{error:#}"));
        if let Some(controlled) = &mut self.controlled {
            controlled.follow(&mut self.node);
        }
        if let Some(echoes) = &mut self.echoes {
            follow_paths(echoes, &self.node);
        }
    }

    fn follow_device(&mut self, now: Instant) {
        if let Some(device) = &mut self.device {
            device
                .follow(&self.node, now)
                .unwrap_or_else(|error| warn!("{error:#}"));
        }
    }

    fn write_status(&mut self) {
        let now = monotonic_now();
        let controller = self
            .controlled
            .as_ref()
            .map(|controlled| controlled.status(&self.node, now));
        let experience = self
            .experiences
            .status(now, &self.node, self.controlled.as_ref());
        let device = self.device.as_ref();
        let of_device = device.map(Device::deviations).unwrap_or_default();
        self.status_file.write(
            &self.node,
            self.observer.as_ref(),
            (controller, experience),
            device,
            [self.kept.deviations(), self.node.deviations(), of_device].concat(),
        );
    }
}

/// Returns the measurements of the paths of a node without a controller.
fn measured(node: &Node) -> Echoes {
    let mut echoes = Echoes::new(node.config());
    echoes.set_peers(&node.config().peers);
    follow_paths(&mut echoes, node);
    echoes
}

/// Uses the current interfaces and addresses.
fn follow_paths(echoes: &mut Echoes, node: &Node) {
    let number_of = |name: &str| node.interface_number(name);
    echoes.follow(number_of, |path| node.local(path));
}

fn detach(remains: &Remains) -> Result<()> {
    // Whatever is in another file system, no agent has pinned it.
    if remains.pins().exists() {
        pins(remains)?;
    }
    let outcome = if remove_pins(remains)? {
        "removed the deduplication of an earlier agent"
    } else {
        "no deduplication of an earlier agent was found in the kernel"
    };
    info!("{outcome}");
    Filters::read(&remains.directory()).restore_except(&BTreeSet::new());
    Device::remove(remains);
    // A killed agent leaves these behind as well.
    let interfaces = &remains.interfaces;
    interfaces
        .iter()
        .filter_map(|name| interface::index(name))
        .for_each(Segmenter::remove);
    Segmenter::remove_orphans()?;
    Ok(())
}

/// Ensures that a node runs one agent only: two agents would take each other's arrival records.
fn lock(remains: &Remains) -> Result<Flock<File>> {
    let directory = remains.directory();
    file::create_folder(&directory, 0o755).with_context(|| {
        format!(
            "cannot create {}: root can write everywhere; the package's service only below /run/hawser/agent and \
             /var/lib/hawser/agent. `state` says where",
            directory.display()
        )
    })?;
    let path = directory.join("lock");
    // Others must not be able to open and hold it.
    let file = file::open_or_create(&path, 0o600)
        .with_context(|| format!("cannot open {}", path.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((_, Errno::EAGAIN)) => bail!(
            "another agent of node {:?} is running (it holds {})",
            remains.name,
            path.display()
        ),
        Err((_, error)) => Err(error).with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// Returns the time of the monotonic clock, which the kernel's arrival records use.
fn monotonic_now() -> Instant {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    Instant::from_nanos(u64::try_from(Duration::from(now).as_nanos()).unwrap_or(u64::MAX))
}

struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    fn catch() -> Result<Self> {
        let stop = hawser_service::stop_flag()?;
        let reload = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGHUP, reload.clone())?;
        Ok(Signals { stop, reload })
    }
}
