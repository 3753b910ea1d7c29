//! The paths of a sending node: the interface and next hop of each, and the reasons that some
//! cannot be used.

use super::environment::{Interfaces, resolve};
use crate::config::{Config, PathConfig};
use anyhow::Result;
use hawser_bpf::{SendPath, Sender};
use hawser_units::PathId;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The longest time that a start waits for the link-layer addresses of next hops. A next hop that
/// answers later is used from then on.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(1);

/// The first pause between two attempts to resolve next hops. Each pause is twice as long as the
/// previous one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(super) struct Paths {
    /// The paths that were set in the sender.
    resolved: BTreeMap<PathId, SendPath>,
    /// The reason that a path is not used, or not tracked.
    obstacles: BTreeMap<PathId, String>,
}

/// The reason that the interface and next hop of a path cannot be resolved.
enum Obstacle {
    /// No packet can leave on its interface.
    NoInterface(String),
    /// The next hop did not answer ARP or neighbour solicitations.
    Silent(String),
    /// There is no route, or it could not be read.
    Unknown(String),
}

type Found = Result<SendPath, Obstacle>;

impl Paths {
    /// Sets every path that works in the sender. The other ones are set as soon as they work.
    pub(super) fn find(
        &mut self,
        sender: &mut Sender,
        config: &Config,
        interfaces: &Interfaces,
    ) -> Result<()> {
        let deadline = Instant::now() + RESOLVE_TIMEOUT;
        let mut pause = FIRST_PAUSE;
        let look_up =
            |(path, description): (&PathId, &PathConfig)| (*path, look_up(description, interfaces));
        let mut found: BTreeMap<PathId, Found> = config.paths.iter().map(look_up).collect();
        let is_silent = |found: &Found| matches!(found, Err(Obstacle::Silent(_)));
        while found.values().any(is_silent) && Instant::now() < deadline {
            thread::sleep(pause);
            pause *= 2;
            for (path, found) in found.iter_mut().filter(|(_, found)| is_silent(found)) {
                *found = self::look_up(&config.paths[path], interfaces);
            }
        }
        found.into_iter().try_for_each(|(path, found)| {
            self.apply(
                sender,
                path,
                interfaces.number(&config.paths[&path].interface),
                found,
            )
        })
    }

    /// Updates paths whose interface was created, deleted or replaced, and next hops that appeared
    /// or moved. A path that the sender rejects does not keep the other ones from being updated.
    pub(super) fn follow(&mut self, sender: &mut Sender, config: &Config, interfaces: &Interfaces) {
        for (path, description) in &config.paths {
            let found = look_up(description, interfaces);
            let number = interfaces.number(&description.interface);
            if let Err(error) = self.apply(sender, *path, number, found) {
                warn!(%path, "cannot change the path in the kernel: {error:#}");
            }
        }
    }

    pub(super) fn is_used(&self, path: PathId) -> bool {
        self.resolved.contains_key(&path)
    }

    /// The reason that a path is not used, or not tracked.
    pub(super) fn obstacle(&self, path: PathId) -> Option<&str> {
        self.obstacles.get(&path).map(String::as_str)
    }

    /// Returns whether a path is not usable yet.
    pub(super) fn has_obstacles(&self) -> bool {
        !self.obstacles.is_empty()
    }

    /// Sets a path in the sender, and logs changes.
    fn apply(
        &mut self,
        sender: &mut Sender,
        path: PathId,
        interface: Option<u32>,
        found: Found,
    ) -> Result<()> {
        let before = self.resolved.get(&path).copied();
        let now = match &found {
            Ok(now) => Some(*now),
            Err(Obstacle::NoInterface(_)) => None,
            // While nothing newer is known, copies are sent to the last known next hop.
            Err(Obstacle::Silent(_) | Obstacle::Unknown(_)) => {
                before.filter(|before| Some(before.ifindex) == interface)
            }
        };
        if now != before {
            sender.set_path(path, now)?;
            match now {
                Some(now) => self.resolved.insert(path, now),
                None => self.resolved.remove(&path),
            };
        }
        match found {
            Err(obstacle) => {
                let why = obstacle.into_text();
                if self.obstacles.get(&path) != Some(&why) {
                    let then = if now.is_some() {
                        "are sent to its last known address"
                    } else {
                        "are sent on the other paths"
                    };
                    warn!(%path, "{why}; copies {then}");
                    self.obstacles.insert(path, why);
                }
            }
            Ok(_) => {
                let is_back = self.obstacles.remove(&path).is_some();
                if before.is_some() && now != before {
                    info!(%path, "the path has another interface or next hop than before");
                } else if is_back || before.is_none() {
                    info!(%path, "the path can be used");
                }
            }
        }
        Ok(())
    }
}

impl Obstacle {
    fn into_text(self) -> String {
        match self {
            Obstacle::NoInterface(why) | Obstacle::Silent(why) | Obstacle::Unknown(why) => why,
        }
    }
}

fn look_up(path: &PathConfig, interfaces: &Interfaces) -> Found {
    if let Some(why) = interfaces.obstacle(&path.interface) {
        return Err(Obstacle::NoInterface(why));
    }
    match resolve(path) {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(Obstacle::Silent(format!(
            "next hop {} does not answer on {}: check the cable, the address and the route",
            path.next_hop.unwrap_or(path.remote),
            path.interface
        ))),
        Err(error) => Err(Obstacle::Unknown(format!("{error:#}"))),
    }
}
