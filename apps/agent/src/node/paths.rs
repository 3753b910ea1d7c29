//! The paths of a node that sends: where each leads now, and why some lead nowhere.

use super::surroundings::{Interfaces, resolve};
use crate::config::{Config, PathConfig};
use anyhow::Result;
use hawser_bpf::{SendPath, Sender};
use hawser_units::PathId;
use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// How long a start waits for next hops to tell their link-layer addresses. One that answers later is used from then on.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// The first pause between two looks at next hops that have not answered; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
pub(super) struct Paths {
    /// As the sender has them.
    resolved: BTreeMap<PathId, SendPath>,
    /// Why a path is not used, or not followed.
    obstacles: BTreeMap<PathId, String>,
}

/// Why it cannot be told where a path leads.
enum Obstacle {
    /// Nothing can leave by its interface.
    NoInterface(String),
    /// The next hop has been asked and has not answered.
    Silent(String),
    /// There is no route, or the question failed.
    Unknown(String),
}

type Found = Result<SendPath, Obstacle>;

impl Paths {
    /// Gives the sender every path that works. The others are taken when they do.
    pub(super) fn find(
        &mut self,
        sender: &mut Sender,
        config: &Config,
        interfaces: &Interfaces,
    ) -> Result<()> {
        let deadline = Instant::now() + ANSWERED_WITHIN;
        let mut pause = FIRST_PAUSE;
        let look =
            |(path, description): (&PathId, &PathConfig)| (*path, look(description, interfaces));
        let mut found: BTreeMap<PathId, Found> = config.paths.iter().map(look).collect();
        let is_silent = |found: &Found| matches!(found, Err(Obstacle::Silent(_)));
        while found.values().any(is_silent) && Instant::now() < deadline {
            thread::sleep(pause);
            pause *= 2;
            for (path, found) in found.iter_mut().filter(|(_, found)| is_silent(found)) {
                *found = self::look(&config.paths[path], interfaces);
            }
        }
        found.into_iter().try_for_each(|(path, found)| {
            self.take(
                sender,
                path,
                interfaces.number(&config.paths[&path].interface),
                found,
            )
        })
    }

    /// Follows paths whose interface has come, gone or been replaced, and next hops that have come or moved.
    /// One that the sender refuses keeps none of the others from being followed.
    pub(super) fn follow(&mut self, sender: &mut Sender, config: &Config, interfaces: &Interfaces) {
        for (path, description) in &config.paths {
            let found = look(description, interfaces);
            let number = interfaces.number(&description.interface);
            if let Err(error) = self.take(sender, *path, number, found) {
                warn!(%path, "cannot be changed in the kernel: {error:#}");
            }
        }
    }

    pub(super) fn is_used(&self, path: PathId) -> bool {
        self.resolved.contains_key(&path)
    }

    /// Why a path is not used, or not followed.
    pub(super) fn obstacle(&self, path: PathId) -> Option<&str> {
        self.obstacles.get(&path).map(String::as_str)
    }

    /// Whether a path is waited for.
    pub(super) fn has_obstacles(&self) -> bool {
        !self.obstacles.is_empty()
    }

    /// Tells the sender what was found, and the log when it is news.
    fn take(
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
            // As long as nothing better is known, copies go where they last arrived.
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
                        "go to where it was last"
                    } else {
                        "take the other paths"
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

fn look(path: &PathConfig, interfaces: &Interfaces) -> Found {
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
