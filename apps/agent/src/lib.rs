//! The agent of an edge node: replicates flows onto several paths and lets the first copy of each packet through.
//!
//! The work is done by eBPF programs in the kernel. The agent loads them from a configuration file, follows next hops,
//! reads the records of arrivals and keeps a status file. When it is killed, replication ends and traffic takes the
//! default route; elimination stays in the kernel, since copies may still be on their way.

pub mod config;
mod node;
mod observer;
pub mod status;

pub use config::{Config, ConfigError, generate_key};
pub use status::Status;

use anyhow::{Context, Result};
use hawser_io::interface;
use hawser_io::segmenter::Segmenter;
use hawser_units::Instant;
use nix::fcntl::{Flock, FlockArg};
use nix::time::{ClockId, clock_gettime};
use node::Node;
use observer::Observer;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use status::StatusFile;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tracing::{info, warn};

/// How often arrival records are read: a ring holds 65,536 of them.
const OBSERVE_EVERY: Duration = Duration::from_millis(10);

/// How often the status is written and interfaces are looked at, in rounds of reading.
const STATUS_EVERY: u32 = 100;

/// How often next hops are looked after, in rounds of reading.
const FOLLOW_EVERY: u32 = 500;

/// The command line of `hawser agent`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The node's configuration (docs/agent.md explains every key)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Check the configuration and end
    #[arg(long, conflicts_with = "detach")]
    pub check: bool,
    /// Remove the elimination that an earlier agent of this node left in the kernel, and end
    #[arg(long)]
    pub detach: bool,
}

/// Runs the agent until SIGINT or SIGTERM; SIGHUP makes it read flows, policies and keys again.
pub fn run(args: &Args) -> Result<()> {
    let config = Config::read(&args.config)?;
    if args.check {
        println!(
            "{}: {} paths, {} flows sent, {} received",
            config.name,
            config.paths.len(),
            config.send.len(),
            config.receive.len()
        );
        return Ok(());
    }
    let _lock = lock(&config)?;
    if args.detach {
        return detach(&config);
    }
    let signals = Signals::catch()?;
    let mut status_file = StatusFile::at(config.status_file());
    let deadline = config.arrival_deadline;
    let mut node = Node::start(config)?;
    let arrivals = node.receiver().map(|receiver| receiver.arrivals()).transpose()?;
    let mut observer = arrivals.map(|arrivals| Observer::new(arrivals, deadline));
    info!(status = %status_file, "running");

    let mut round = 0u32;
    while !signals.stop.load(Ordering::Relaxed) {
        if let Some(observer) = &mut observer {
            observer.observe(monotonic_now());
        }
        let reload = signals.reload.swap(false, Ordering::Relaxed);
        if reload {
            status_file.looked_at_configuration(reconfigure(&mut node, &args.config));
        }
        if reload || round.is_multiple_of(STATUS_EVERY) {
            status_file.write(&node, observer.as_ref());
        }
        if round.is_multiple_of(FOLLOW_EVERY)
            || (round.is_multiple_of(STATUS_EVERY) && node.interfaces_changed())
        {
            node.follow().unwrap_or_else(|error| warn!("{error:#}"));
        }
        round = round.wrapping_add(1);
        std::thread::sleep(OBSERVE_EVERY);
    }
    status_file.write(&node, observer.as_ref());
    if node.receiver().is_some() {
        info!(
            "elimination stays in the kernel; `hawser agent --config {} --detach` removes it",
            args.config.display()
        );
    }
    Ok(())
}

/// Reads the configuration again; the error says why it stays as it was.
fn reconfigure(node: &mut Node, path: &Path) -> Result<()> {
    Config::read(path).map_err(anyhow::Error::from).and_then(|config| node.reload(config))
}

fn detach(config: &Config) -> Result<()> {
    let pins = config.pins.join(&config.name);
    match fs::remove_dir_all(&pins) {
        Ok(()) => info!("removed"),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => info!("nothing was left in the kernel"),
        Err(error) => return Err(error).with_context(|| format!("cannot remove {}", pins.display())),
    }
    // A killed agent leaves these too.
    config.local.iter().filter_map(|name| interface::index(name)).for_each(Segmenter::remove);
    Ok(())
}

/// One agent a node: two would take each other's arrival records.
fn lock(config: &Config) -> Result<Flock<File>> {
    let directory = config.state.join(&config.name);
    fs::create_dir_all(&directory).with_context(|| {
        format!("cannot create {} (the agent runs as root; `state` says where)", directory.display())
    })?;
    let path = directory.join("lock");
    let file = File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno).with_context(|| {
        format!("another agent of node {:?} is running (it holds {})", config.name, path.display())
    })
}

/// The clock of the kernel's arrival records.
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
        let (stop, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, stop.clone())?;
        }
        signal_hook::flag::register(SIGHUP, reload.clone())?;
        Ok(Signals { stop, reload })
    }
}
