//! The paths of a sending node: the interface and next hop of each, and the reasons that some
//! cannot be used.

use super::environment::{Interfaces, resolve};
use super::locals::Locals;
use super::mtus::LearnedMtus;
use crate::config::{Config, PathConfig};
use anyhow::Result;
use hawser_io::kept::{Deviation, Item, Keeper, Problem};
use hawser_io::xdp::Mode;
use hawser_replication_bpf::{PathError, SendPath, Sender};
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
    /// The paths on which copies do not arrive, with the reason.
    losing: BTreeMap<PathId, String>,
    /// The paths on which nothing seems to arrive, with the reason. While the other node answers on
    /// another path, copies are sent on them, as the silence may be that of the way back.
    unanswered: BTreeMap<PathId, String>,
    next_hops: Keeper,
    /// The MTUs that were learned.
    learned: LearnedMtus,
    /// Changes since the last call of [`Paths::take_changes`].
    changes: Vec<(PathId, String)>,
}

/// The reason that the interface and next hop of a path cannot be resolved.
enum Obstacle {
    /// No packet can leave on its interface.
    NoInterface(String),
    /// This node has no address on it.
    NoAddress(String),
    /// The next hop did not answer ARP or neighbour solicitations.
    Silent(String),
    /// There is no route, or it could not be read.
    Unknown(String),
    /// Copies do not arrive, although other packets do.
    Loses(String),
}

type Found = Result<SendPath, Obstacle>;

/// The state of the machine that decides whether a path can be used.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) interfaces: &'a Interfaces,
    pub(super) locals: &'a Locals,
    pub(super) exits: &'a Exits,
}

/// The mode in which copies leave by each interface of a path, or the reason that they cannot.
pub(super) type Exits = BTreeMap<String, Result<Mode, String>>;

impl Paths {
    /// Sets every path that works in the sender. The other ones are set as soon as they work.
    pub(super) fn find(
        &mut self,
        sender: &mut Sender,
        config: &Config,
        around: &Surroundings<'_>,
    ) -> Result<()> {
        let mut next_hops = Vec::new();
        for (path, found) in look_up_all(config, around) {
            let description = &config.paths[&path];
            let next_hop = self.next_hop(path, description, &found);
            let number = around.interfaces.number(&description.interface);
            self.apply(sender, path, number, found)?;
            next_hops.push(next_hop);
        }
        self.keep(next_hops);
        Ok(())
    }

    /// Updates paths whose interface was created, deleted or replaced, and next hops that appeared
    /// or moved. A path that the sender rejects does not keep the other ones from being updated.
    pub(super) fn follow(
        &mut self,
        sender: &mut Sender,
        config: &Config,
        around: &Surroundings<'_>,
    ) {
        let mut next_hops = Vec::new();
        for (path, description) in &config.paths {
            let found = look_up(*path, description, around);
            let mut next_hop = self.next_hop(*path, description, &found);
            let number = around.interfaces.number(&description.interface);
            if let Err(error) = self.apply(sender, *path, number, found) {
                warn!(
                    path = path.number(),
                    "cannot change the path in the kernel: {error:#}"
                );
                next_hop.is_followed = false;
            }
            next_hops.push(next_hop);
        }
        self.keep(next_hops);
    }

    /// Compares the next hop to which copies are sent with that of the kernel's neighbour table.
    fn next_hop(&self, path: PathId, description: &PathConfig, found: &Found) -> NextHop {
        let before = self.resolved.get(&path);
        let (problem, is_followed) = match (found, before) {
            (Err(Obstacle::Silent(_)), _) => (Some(silent(description)), false),
            (Ok(now), Some(before)) => (moved(before, now), true),
            _ => (None, true),
        };
        NextHop {
            path,
            interface: description.interface.clone(),
            problem,
            is_followed,
        }
    }

    fn keep(&mut self, next_hops: Vec<NextHop>) {
        let items = next_hops.into_iter();
        let mut items: Vec<_> = items.map(|item| Box::new(item) as Box<dyn Item>).collect();
        self.next_hops.keep(&mut items);
    }

    /// Returns the next hops that moved or do not answer since the agent was started.
    pub(super) fn deviations(&self) -> Vec<Deviation> {
        self.next_hops.deviations()
    }

    /// Removes a path that the node does not have any more.
    pub(super) fn forget(&mut self, sender: &mut Sender, path: PathId) -> Result<()> {
        if self.resolved.contains_key(&path) {
            self.set(sender, path, None)?;
        }
        self.obstacles.remove(&path);
        self.learned.forget(path);
        Ok(())
    }

    /// Returns the changes of paths since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<(PathId, String)> {
        std::mem::take(&mut self.changes)
    }

    /// Sets the paths on which copies do not arrive, with the reason; [`follow`](Paths::follow) leaves
    /// them out. Returns whether there is a change.
    pub(super) fn set_losing(&mut self, losing: BTreeMap<PathId, String>) -> bool {
        let has_changed = losing != self.losing;
        self.losing = losing;
        has_changed
    }

    /// Sets the paths on which nothing seems to arrive, with the reason. Returns whether there is a
    /// change.
    pub(super) fn set_unanswered(&mut self, unanswered: BTreeMap<PathId, String>) -> bool {
        let has_changed = unanswered != self.unanswered;
        self.unanswered = unanswered;
        has_changed
    }

    /// Records and logs the paths on which nothing seems to arrive, at a node that sends no copies.
    pub(super) fn record_unanswered(&mut self) {
        let unanswered = self.unanswered.clone();
        self.obstacles
            .retain(|path, _| unanswered.contains_key(path));
        for (path, why) in unanswered {
            self.record_obstacle(path, why, "copies may not arrive on this path");
        }
    }

    /// Returns the reason that nothing seems to arrive on a path.
    pub(super) fn unanswered(&self, path: PathId) -> Option<&str> {
        self.unanswered.get(&path).map(String::as_str)
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
        let found = found.and_then(|now| match self.losing.get(&path) {
            Some(why) => Err(Obstacle::Loses(why.clone())),
            None => Ok(now),
        });
        let found = found.map(|now| self.narrowed(path, before, now));
        let now = match &found {
            Ok(now) => Some(*now),
            Err(Obstacle::NoInterface(_) | Obstacle::NoAddress(_) | Obstacle::Loses(_)) => None,
            // While nothing newer is known, copies are sent to the last known next hop.
            Err(Obstacle::Silent(_) | Obstacle::Unknown(_)) => before.filter(|before| {
                Some(before.ifindex) == interface && !self.losing.contains_key(&path)
            }),
        };
        if now != before {
            self.set(sender, path, now)?;
        }
        match found {
            Err(obstacle) => {
                let then = match now {
                    Some(_) => "copies on this path are sent to its last known address",
                    None => "no copies are sent on this path",
                };
                self.record_obstacle(path, obstacle.into_text(), then);
            }
            Ok(now) => match self.unanswered.get(&path).cloned() {
                Some(why) if before == Some(now) => {
                    self.record_obstacle(path, why, "copies are still sent on this path");
                }
                _ => self.record_usable(path, before, &now),
            },
        }
        Ok(())
    }

    /// Applies the learned MTU of a path, unless the path leads elsewhere than before.
    fn narrowed(&mut self, path: PathId, before: Option<SendPath>, now: SendPath) -> SendPath {
        let way = |end: &SendPath| (end.ifindex, end.local, end.remote, end.next_hop_mac);
        if before.is_some_and(|before| way(&before) != way(&now)) {
            self.learned.forget(path);
        }
        let learned = self.learned.get(path, Instant::now());
        SendPath {
            mtu_bytes: now.mtu_bytes.min(learned.unwrap_or(u16::MAX)),
            ..now
        }
    }

    /// Reduces the MTU of the path that an ICMP error is about.
    pub(super) fn handle_error(&mut self, sender: &mut Sender, error: &PathError) -> Result<()> {
        let told = error.mtu_bytes;
        let why = format!("a router on it carries packets of up to {told} bytes (ICMP)");
        self.reduce(sender, error.path, told, &why)
    }

    /// Reduces the MTU of a path to what was told, or to the least one if that is 0.
    pub(super) fn reduce(
        &mut self,
        sender: &mut Sender,
        path: PathId,
        told: u32,
        why: &str,
    ) -> Result<()> {
        let Some(before) = self.resolved.get(&path).copied() else {
            return Ok(());
        };
        let is_ipv6 = before.remote.is_ipv6();
        let (now, current) = (Instant::now(), before.mtu_bytes);
        let Some(learned) = self.learned.learn(path, is_ipv6, told, current, now) else {
            return Ok(());
        };
        let after = SendPath {
            mtu_bytes: learned,
            ..before
        };
        self.set(sender, path, Some(after))?;
        let what = format!("{}, because {why}", difference(&before, &after));
        warn!(path = path.number(), "the path has changed: {what}");
        self.changes.push((path, what));
        Ok(())
    }

    /// Returns the MTU of a path that is used, bytes, and whether it was learned.
    pub(super) fn mtu(&self, path: PathId) -> Option<(u16, bool)> {
        let mtu_bytes = self.resolved.get(&path)?.mtu_bytes;
        let is_learned = self.learned.get(path, Instant::now()) == Some(mtu_bytes);
        Some((mtu_bytes, is_learned))
    }

    /// Returns the size of the largest packet that fits all paths that are used, bytes.
    pub(super) fn inner_mtu_bytes(&self) -> Option<u16> {
        self.resolved.values().map(SendPath::inner_mtu_bytes).min()
    }

    fn set(&mut self, sender: &mut Sender, path: PathId, now: Option<SendPath>) -> Result<()> {
        sender.set_path(path, now)?;
        match now {
            Some(now) => self.resolved.insert(path, now),
            None => self.resolved.remove(&path),
        };
        Ok(())
    }

    /// Records and logs the reason that a path is not used, not tracked or not working, with the
    /// consequence.
    fn record_obstacle(&mut self, path: PathId, why: String, then: &str) {
        if self.obstacles.get(&path) == Some(&why) {
            return;
        }
        warn!(path = path.number(), "{why}; {then}");
        self.obstacles.insert(path, why);
    }

    /// Records that a path can be used, and logs changes.
    fn record_usable(&mut self, path: PathId, before: Option<SendPath>, now: &SendPath) {
        let is_back = self.obstacles.remove(&path).is_some();
        match before {
            Some(before) if before != *now => {
                let what = difference(&before, now);
                info!(path = path.number(), "the path has changed: {what}");
                self.changes.push((path, what));
            }
            Some(_) if !is_back => {}
            _ => info!(path = path.number(), "the path can be used"),
        }
    }
}

/// The next hop of a path, whose link-layer address copies should be sent to.
struct NextHop {
    path: PathId,
    interface: String,
    problem: Option<Problem>,
    /// Whether copies are sent to the address in the neighbour table.
    is_followed: bool,
}

impl Item for NextHop {
    fn name(&self) -> String {
        format!("next hop of path {}", self.path.number())
    }

    fn interface(&self) -> Option<&str> {
        Some(&self.interface)
    }

    fn examine(&self) -> Option<Problem> {
        self.problem.clone()
    }

    fn restore(&mut self) -> Result<bool, String> {
        Ok(self.is_followed)
    }
}

fn silent(path: &PathConfig) -> Problem {
    Problem {
        what: format!(
            "next hop {} does not answer on {}",
            path.next_hop.unwrap_or(path.remote),
            path.interface
        ),
        advice: "check the cable, the address and the route".to_owned(),
    }
}

fn moved(before: &SendPath, now: &SendPath) -> Option<Problem> {
    let is_same_way = (before.ifindex, before.remote) == (now.ifindex, now.remote);
    let has_moved = is_same_way && before.next_hop_mac != now.next_hop_mac;
    has_moved.then(|| Problem {
        what: "the next hop had another link-layer address, or was another one".to_owned(),
        advice: "look at the neighbour table with `ip neigh`".to_owned(),
    })
}

/// Describes what is different about a path.
fn difference(before: &SendPath, now: &SendPath) -> String {
    let mut parts = Vec::new();
    if before.ifindex != now.ifindex {
        parts.push("another interface of this name".to_owned());
    }
    if before.local != now.local {
        parts.push(format!("address {} instead of {}", now.local, before.local));
    }
    if before.mtu_bytes != now.mtu_bytes {
        let (now, before) = (now.mtu_bytes, before.mtu_bytes);
        parts.push(format!("MTU {now} instead of {before}"));
    }
    if before.takes_frames != now.takes_frames {
        parts.push("another mode".to_owned());
    }
    if (before.source_mac, before.next_hop_mac) != (now.source_mac, now.next_hop_mac) {
        parts.push("another link-layer address or next hop".to_owned());
    }
    parts.join(", ")
}

impl Obstacle {
    fn into_text(self) -> String {
        match self {
            Obstacle::NoInterface(why)
            | Obstacle::NoAddress(why)
            | Obstacle::Silent(why)
            | Obstacle::Unknown(why)
            | Obstacle::Loses(why) => why,
        }
    }
}

/// Looks up all paths, and waits for next hops that do not answer at once.
fn look_up_all(config: &Config, around: &Surroundings<'_>) -> BTreeMap<PathId, Found> {
    let deadline = Instant::now() + RESOLVE_TIMEOUT;
    let mut pause = FIRST_PAUSE;
    let mut found: BTreeMap<PathId, Found> = config
        .paths
        .iter()
        .map(|(path, description)| (*path, look_up(*path, description, around)))
        .collect();
    let is_silent = |found: &Found| matches!(found, Err(Obstacle::Silent(_)));
    while found.values().any(is_silent) && Instant::now() < deadline {
        thread::sleep(pause);
        pause *= 2;
        for (path, found) in found.iter_mut().filter(|(_, found)| is_silent(found)) {
            *found = look_up(*path, &config.paths[path], around);
        }
    }
    found
}

fn look_up(number: PathId, path: &PathConfig, around: &Surroundings<'_>) -> Found {
    let name = &path.interface;
    if let Some(why) = around.interfaces.obstacle(name) {
        return Err(Obstacle::NoInterface(why));
    }
    let takes_frames = match around.exits.get(name) {
        Some(Ok(mode)) => *mode == Mode::Native,
        Some(Err(why)) => return Err(Obstacle::NoInterface(format!("interface {name}: {why}"))),
        None => {
            let why = format!("its interface {name} has not been examined yet");
            return Err(Obstacle::NoInterface(why));
        }
    };
    let Some(local) = around.locals.get(number) else {
        let why = around
            .locals
            .obstacle(number)
            .unwrap_or("it has no address");
        return Err(Obstacle::NoAddress(why.to_owned()));
    };
    let is_tunnel = around.interfaces.is_tunnel(name);
    match resolve(path, local, takes_frames, is_tunnel) {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(Obstacle::Silent(silent(path).to_string())),
        Err(error) => Err(Obstacle::Unknown(format!("{error:#}"))),
    }
}
