//! Viewers that verify and measure and do not decode, in a thread of their own.

use super::score::{Seen, Watched};
use super::venue::Venue;
use crate::audience::{Member, Shown, watch};
use anyhow::{Context, Result, anyhow};
use hawser_io::clock::SteadyClock;
use hawser_io::key_file;
use hawser_testbed::netns::Namespace;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The longest time for which a crowd watches.
const MAX: Duration = Duration::from_secs(24 * 3600);

/// Viewers that watch. They stop when this is dropped.
pub(super) struct Crowd {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Watched>>>,
}

impl Crowd {
    /// Starts viewers of a relay. `key` is the file with the secret of the broadcast.
    pub(super) fn start(
        namespace: &Namespace,
        relay: SocketAddr,
        key: &Path,
        count: usize,
    ) -> Result<Self> {
        let secret = *key_file::read_media(key).map_err(anyhow::Error::msg)?;
        let stop = Arc::new(AtomicBool::new(false));
        let work = {
            let (namespace, stop) = (namespace.clone(), Arc::clone(&stop));
            move || {
                namespace.enter()?;
                use_all_processors()?;
                let clock = SteadyClock::start();
                let own = Venue::audience_address().into();
                let open = |number| Member::open(own, relay, secret, number as u64);
                let mut members = (0..count).map(open).collect::<Result<Vec<_>>>()?;
                watch(&mut members, MAX, |_| stop.load(Relaxed))?;
                watched(&members, &clock)
            }
        };
        Ok(Crowd {
            stop,
            thread: Some(thread::Builder::new().name("crowd".into()).spawn(work)?),
        })
    }

    /// Ends watching.
    pub(super) fn stop(mut self) -> Result<Watched> {
        self.end().context("the viewers were stopped before")?
    }

    fn end(&mut self) -> Option<Result<Watched>> {
        self.stop.store(true, Relaxed);
        let watched = self.thread.take()?.join();
        Some(watched.unwrap_or_else(|_| Err(anyhow!("the thread of viewers panicked"))))
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.end() {
            tracing::warn!("the viewers failed: {error:#}");
        }
    }
}

fn watched(members: &[Member], clock: &SteadyClock) -> Result<Watched> {
    let seen = |shown: &Shown| Seen {
        captured: shown.captured.map(|captured| clock.shown_at(captured)),
        ready: clock.shown_at(shown.completed),
        size: shown.size,
        is_whole: shown.is_whole,
    };
    let frames = |member: &Member| member.view.shown.iter().map(seen).collect();
    let drops = members.iter().map(Member::drops);
    Ok(Watched {
        frames: members.iter().map(frames).collect(),
        overflow: drops.sum::<Result<_>>()?,
    })
}

/// Lets the calling thread use the emulator's processor, too: it sends little, and the emulator's real-time thread
/// interrupts it at once.
fn use_all_processors() -> Result<()> {
    let mut all = CpuSet::new();
    // Those that the machine does not have are ignored.
    (0..CpuSet::count()).try_for_each(|cpu| all.set(cpu))?;
    sched_setaffinity(Pid::from_raw(0), &all).context("cannot use all processors")
}
