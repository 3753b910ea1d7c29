//! A node in the kernel: loads and attaches the eBPF programs, and fills their tables from a
//! configuration.

mod attachments;
mod clock;
mod devices;
mod environment;
mod exits;
mod locals;
mod mtus;
mod own;
mod paths;
mod reach;

use crate::config::{Config, PathConfig};
use crate::flows::{Flows, Selectors, Sent};
use anyhow::{Context, Result, anyhow, ensure};
use clock::SendClock;
use devices::Devices;
pub(crate) use devices::{Modes, Use};
use environment::{Interfaces, load_receiver, tell_of_forwarding, warn_of_large_packets};
pub(crate) use environment::{next_hop, pins, remove_pins};
use hawser_io::clock::unix_ms;
use hawser_io::interface::LinkHeader;
use hawser_io::kept::{Filters, Keeper};
use hawser_io::segmenter::Segmenter;
use hawser_io::xdp::{Choice, Mode};
use hawser_io::{interface, netlink};
use hawser_replication_bpf::{
    AttachError, Prefix, ReceiveHook, Receiver, Rule, SendFlow, SendPolicy, Sender, SenderOptions,
    XdpMode,
};
use hawser_units::{FlowId, PathId};
use locals::Locals;
pub(crate) use locals::current_local;
use own::OwnTraffic;
use parking_lot::Mutex;
use paths::{Paths, Surroundings};
use reach::{Searches, Tunnels};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use tracing::{info, warn};

/// The index of an interface that does not exist. The kernel's indices start at 1.
const NO_INTERFACE: u32 = 0;

/// The eBPF programs of a node.
pub(crate) struct Node {
    config: Config,
    /// The flows that are replicated and deduplicated.
    flows: Flows,
    /// Flows and selectors that a failed attempt to set the flows may have left in the kernel.
    remains: Flows,
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    /// The state of each program at each interface where it should be attached.
    attached: BTreeMap<(Hook, String), Attached>,
    /// Every interface that the configuration names, as last read.
    interfaces: Interfaces,
    /// This node's address on each path, as last read.
    locals: Locals,
    /// The last change of each path.
    changes: BTreeMap<PathId, Change>,
    /// The reason that ICMP errors are not received.
    unwatched_because: Option<String>,
    paths: Paths,
    searches: Searches,
    tunnels: Tunnels,
    /// Whether the paths have to be looked up again.
    must_follow: bool,
    own: OwnTraffic,
    /// Whether a change of the discovered paths has failed, so that the kernel may have others.
    must_set_discovered: bool,
    /// Number of reloads of the file, used as the epoch of its policies, so that receivers can tell
    /// them apart.
    epoch: u32,
    /// The clock of send times. Present if there is a sender.
    clock: Option<SendClock>,
    /// The segmenters, by the program that they belong to and its interface. Removed when the node
    /// is dropped.
    segmenters: BTreeMap<(Hook, String), Segmenter>,
    devices: Devices,
    filters: Arc<Mutex<Filters>>,
    attachments: Keeper,
    /// The measurements that this node's own firewall should let out.
    requests: Keeper,
}

/// A change of a path while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Change {
    /// The time, milliseconds since 1970.
    pub(crate) at_unix_ms: u64,
    /// The change.
    pub(crate) what: String,
}

impl Change {
    fn now(what: String) -> Self {
        Change {
            at_unix_ms: unix_ms(),
            what,
        }
    }
}

/// The state of a program at an interface.
#[derive(Debug)]
struct Attached {
    /// The index of the interface to which the program was last attached.
    number: u32,
    /// The reason that the program is not attached to the current interface.
    obstacle: Option<String>,
}

/// The place where a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hook {
    Deduplicate,
    ReplicateTransit,
    ReplicateLocal,
}

impl Node {
    /// Loads the programs that `config` and `flows` require, and attaches those that replicate.
    /// Under a controller, the programs for all flows that it may assign are loaded now, because
    /// loading takes a second.
    ///
    /// Paths that do not work yet and interfaces that do not exist yet are used as soon as they can
    /// be.
    pub(crate) fn start(config: Config, flows: Flows) -> Result<Self> {
        let mut node = Node {
            sender: None,
            receiver: None,
            own: OwnTraffic::default(),
            attached: BTreeMap::new(),
            interfaces: Interfaces::read(&config)?,
            locals: Locals::read(&config)?,
            changes: BTreeMap::new(),
            unwatched_because: None,
            paths: Paths::default(),
            searches: Searches::default(),
            tunnels: Tunnels::default(),
            must_follow: false,
            must_set_discovered: false,
            epoch: 0,
            segmenters: BTreeMap::new(),
            devices: Devices::default(),
            filters: Arc::new(Mutex::new(Filters::read(&config.directory()))),
            attachments: Keeper::default(),
            requests: Keeper::default(),
            clock: None,
            remains: Flows::default(),
            config,
            flows,
        };
        node.find_tunnels();
        if node.may_receive() {
            node.start_receiver()
                .context("cannot start deduplication")?;
        }
        if node.may_send() {
            node.start_sender().context("cannot start replication")?;
        }
        Ok(node)
    }

    /// Returns whether the node has flows to receive, or a controller may assign some.
    fn may_receive(&self) -> bool {
        let is_assignable =
            self.config.controller.is_some() && !self.config.possible_paths().is_empty();
        is_assignable || !self.flows.receive.is_empty()
    }

    /// Returns whether the node has flows to send, or a controller may assign some.
    fn may_send(&self) -> bool {
        let is_assignable = self.config.controller.is_some() && self.config.replicates();
        is_assignable || !self.flows.send.is_empty()
    }

    /// Attaches the programs that deduplicate, in place of those of an earlier agent. This is the
    /// last step of a start, so that a failed start leaves the earlier programs in the kernel.
    pub(crate) fn deduplicate(&mut self) -> Result<()> {
        if self.receiver.is_none() {
            if remove_pins(&self.config.remains())? {
                info!(
                    "removed the deduplication of an earlier agent: no flow is received here any more"
                );
            }
            self.filters.lock().restore_except(&BTreeSet::new());
            return Ok(());
        }
        // A controller may assign received flows later.
        if self.flows.receive.is_empty() {
            Ok(())
        } else {
            self.attach_receiver()
        }
    }

    /// Returns the reverse path filters of the interfaces where copies are deduplicated.
    pub(crate) fn filters(&self) -> Arc<Mutex<Filters>> {
        Arc::clone(&self.filters)
    }

    /// Returns the received flows with the destination of the last packet of each, if there was one.
    pub(crate) fn last_destinations(&self) -> Vec<(FlowId, Option<IpAddr>)> {
        let receiver = self.receiver.as_ref();
        let last = |flow| receiver.and_then(|receiver| receiver.last_destination(flow).ok()?);
        let flows = self.flows.receive.keys();
        flows.map(|flow| (*flow, last(*flow))).collect()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn flows(&self) -> &Flows {
        &self.flows
    }

    pub(crate) fn sender(&self) -> Option<&Sender> {
        self.sender.as_ref()
    }

    pub(crate) fn receiver(&self) -> Option<&Receiver> {
        self.receiver.as_ref()
    }

    /// Saves the send clock, so that it continues from there after a reboot.
    pub(crate) fn persist_clock(&mut self) {
        if let Some(clock) = &mut self.clock {
            clock.persist();
        }
    }

    pub(crate) fn sender_mut(&mut self) -> Option<&mut Sender> {
        self.sender.as_mut()
    }

    /// Applies the parts of a configuration that can change while packets are in flight: flows,
    /// policies and keys. Sessions continue.
    pub(crate) fn reload(&mut self, mut new: Config) -> Result<()> {
        let old = &self.config;
        new.set_discovered(old.discovered());
        let directions = |flows: &Flows| (!flows.send.is_empty(), !flows.receive.is_empty());
        ensure!(
            old.is_same_node(&new)
                && (new.controller.is_some() || directions(&self.flows) == directions(&new.flows)),
            "only flows, policies and keys can change while the agent runs; restart it for other changes"
        );
        if new.controller.is_none() {
            let mut flows = new.flows.clone();
            self.epoch += 1;
            flows
                .send
                .values_mut()
                .for_each(|flow| flow.policy.epoch = self.epoch);
            self.set_flows(flows, false)?;
        }
        self.config = new;
        Ok(())
    }

    /// Replaces the paths that the controller has made, while packets are in flight. The other paths
    /// are not disturbed. Returns whether there is a change.
    ///
    /// # Errors
    /// If a table or a program cannot be changed. The next call tries everything again.
    pub(crate) fn set_discovered(&mut self, paths: BTreeMap<PathId, PathConfig>) -> Result<bool> {
        let before = self.config.discovered();
        self.config.set_discovered(paths);
        let now = self.config.discovered();
        if now == before && !self.must_set_discovered {
            return Ok(false);
        }
        self.must_set_discovered = true;
        for path in PathId::all() {
            // A path with another address is changed by `follow`, without a gap.
            let stays = self.config.paths.get(&path).is_some_and(|now| {
                let before = before.get(&path);
                before.is_none_or(|before| before.interface == now.interface)
            });
            if !stays {
                self.unset_path(path)?;
            }
        }
        if let Some(receiver) = &self.receiver {
            for (path, description) in &now {
                receiver.set_path(*path, description.local)?;
            }
        }
        if let Some(sender) = &mut self.sender {
            self.own.set_endpoints(sender, &self.config)?;
        }
        self.interfaces = Interfaces::read(&self.config)?;
        self.leave_other_interfaces()?;
        if !self.flows.receive.is_empty() {
            self.attach_receiver()?;
        }
        self.follow()?;
        self.must_set_discovered = false;
        Ok(true)
    }

    /// Excepts the measurement of ways to these addresses from replication.
    pub(crate) fn set_probed(&mut self, remotes: impl Iterator<Item = IpAddr>) -> Result<()> {
        match &mut self.sender {
            Some(sender) => self.own.set_probed(sender, &self.config, remotes.collect()),
            None => Ok(()),
        }
    }

    fn unset_path(&mut self, path: PathId) -> Result<()> {
        if let Some(sender) = &mut self.sender {
            self.paths.forget(sender, path)?;
        }
        if let Some(receiver) = &self.receiver {
            receiver.set_path(path, None)?;
        }
        self.changes.remove(&path);
        Ok(())
    }

    /// Ends deduplication on interfaces that no path uses any more.
    fn leave_other_interfaces(&mut self) -> Result<()> {
        let paths = &self.config.paths;
        let is_used = |name: &str| paths.values().any(|path| path.interface == name);
        self.attached
            .retain(|(hook, name), _| *hook != Hook::Deduplicate || is_used(name));
        let Some(receiver) = &mut self.receiver else {
            return Ok(());
        };
        let attached = self.attached.iter();
        let kept = attached.filter(|((hook, _), _)| *hook == Hook::Deduplicate);
        let kept = kept.map(|(_, attached)| attached.number).collect();
        receiver
            .keep_only(&kept)
            .context("cannot end deduplication on an interface that no path uses any more")?;
        let held = paths.values().map(|path| path.interface.clone()).collect();
        self.filters.lock().restore_except(&held);
        Ok(())
    }

    /// Replaces the flows while packets are in flight. Sessions continue. Within a session the
    /// policy with the newer epoch stays, unless `replace_policies` is set. Returns the flows whose
    /// policy took effect.
    ///
    /// # Errors
    /// If a table or a program cannot be changed. The next call tries everything again.
    pub(crate) fn set_flows(&mut self, new: Flows, replace_policies: bool) -> Result<Vec<FlowId>> {
        let old = std::mem::replace(&mut self.flows, new);
        let mut known = old.clone();
        known.add_missing(std::mem::take(&mut self.remains));
        let set = self.set_known(&old, &known, replace_policies);
        if set.is_err() {
            known.add_missing(std::mem::replace(&mut self.flows, old));
            self.remains = known;
        }
        set
    }

    /// Replaces the flows, of which `old` continue, and what else the kernel may have.
    fn set_known(
        &mut self,
        old: &Flows,
        known: &Flows,
        replace_policies: bool,
    ) -> Result<Vec<FlowId>> {
        self.set_received(known)?;
        let deduplicated = if self.flows.receive.is_empty() {
            self.release_others()
        } else {
            self.attach_receiver()
        };
        let changed = self.set_sent(old, known, replace_policies)?;
        self.select_sent(known)?;
        // Returned only now: flows that the sender does not know would continue with sequence
        // numbers that receivers take for old ones.
        deduplicated?;
        Ok(changed)
    }

    /// Replaces the received flows and their selectors in the kernel.
    fn set_received(&self, known: &Flows) -> Result<()> {
        let Some(receiver) = &self.receiver else {
            return Ok(());
        };
        let new = &self.flows;
        for flow in gone(&known.receive, &new.receive) {
            receiver.set_flow(flow, None)?;
        }
        for (flow, keys) in &new.receive {
            receiver.set_flow(*flow, Some(keys))?;
        }
        let select = |prefix: Prefix, rules: &[Rule]| receiver.select_transparent(prefix, rules);
        replace_selectors(&known.receive_selectors, &new.receive_selectors, select)?;
        Ok(())
    }

    /// Replaces the sent flows in the kernel. Returns those whose policy took effect.
    fn set_sent(
        &mut self,
        old: &Flows,
        known: &Flows,
        replace_policies: bool,
    ) -> Result<Vec<FlowId>> {
        let (Some(sender), Some(clock)) = (&mut self.sender, &self.clock) else {
            return Ok(Vec::new());
        };
        for flow in gone(&known.send, &self.flows.send) {
            sender.remove_flow(flow)?;
        }
        let mut changed = Vec::new();
        for (flow, description) in &self.flows.send {
            let before = old.send.get(flow);
            let continues = before.is_some_and(|before| description.continues(before));
            let parameters = session(description, clock);
            if continues {
                sender.update_flow(*flow, &parameters)?;
            } else {
                sender.set_flow(*flow, &parameters)?;
            }
            if !continues || replace_policies {
                sender.replace_policy(*flow, description.policy)?;
                changed.push(*flow);
            } else if sender.set_policy(*flow, description.policy)? {
                changed.push(*flow);
            }
        }
        Ok(changed)
    }

    /// Replaces the selectors of the sent flows in the kernel.
    fn select_sent(&mut self, known: &Flows) -> Result<()> {
        let Some(sender) = &mut self.sender else {
            return Ok(());
        };
        let (known, new) = (&known.send_selectors, &self.flows.send_selectors);
        replace_selectors(known, new, |prefix, rules| sender.select(prefix, rules))?;
        for (prefix, rules) in new {
            if !known.contains_key(prefix) {
                warn_of_large_packets(*prefix, sender, rules);
            }
        }
        Ok(())
    }

    /// Applies a policy if it is newer than the one in force. Returns whether it was.
    pub(crate) fn set_policy(&self, flow: FlowId, policy: SendPolicy) -> Result<bool> {
        let sender = self
            .sender
            .as_ref()
            .context("this node does not replicate")?;
        Ok(sender.set_policy(flow, policy)?)
    }

    /// Returns the number of copies of a flow that were sent on a path since the programs were
    /// loaded.
    pub(crate) fn copies(&self, flow: FlowId, path: PathId) -> u64 {
        // A table that cannot be read is reported elsewhere.
        self.sender
            .as_ref()
            .and_then(|sender| sender.path_stats(flow, path).ok())
            .map_or(0, |stats| stats.packets)
    }

    /// Returns whether a path can be used: its interface is up and its next hop known.
    pub(crate) fn is_up(&self, path: PathId) -> bool {
        let is_used = self.sender.is_none() || self.paths.is_used(path);
        is_used && self.obstacle(path).is_none()
    }

    /// Returns this node's current address on a path.
    pub(crate) fn local(&self, path: PathId) -> Option<IpAddr> {
        self.locals.get(path)
    }

    /// Returns the last change of a path's interface, addresses or next hop while the agent runs.
    pub(crate) fn last_change(&self, path: PathId) -> Option<&Change> {
        self.changes.get(&path)
    }

    /// Returns the modes in which interfaces are used.
    pub(crate) fn modes(&self) -> &Modes {
        self.devices.modes()
    }

    /// Returns the reason that a path is not used, or not tracked.
    pub(crate) fn obstacle(&self, path: PathId) -> Option<String> {
        match &self.sender {
            Some(_) => self.paths.obstacle(path).map(str::to_owned),
            None => {
                let interface = &self.config.paths.get(&path)?.interface;
                let address = || self.locals.obstacle(path).map(str::to_owned);
                let unanswered = || self.paths.unanswered(path).map(str::to_owned);
                let obstacle = self.interfaces.obstacle(interface);
                obstacle.or_else(address).or_else(unanswered)
            }
        }
    }

    /// Returns the interfaces to which a program is not attached, with the reason.
    pub(crate) fn unattached(&self) -> BTreeMap<String, String> {
        let why = |((_, name), attached): (&(Hook, String), &Attached)| {
            let missing = || "it does not exist".to_owned();
            let number = self.interfaces.number(name);
            let why = if number.is_none() {
                Some(missing())
            } else {
                attached.obstacle.clone()
            };
            Some((name.clone(), why?))
        };
        self.attached.iter().filter_map(why).collect()
    }

    /// Returns whether this node's own traffic is replicated at the interface of this name and
    /// index.
    pub(crate) fn replicates_local(&self, name: &str, number: u32) -> bool {
        let attached = self.attached.get(&(Hook::ReplicateLocal, name.to_owned()));
        attached.is_some_and(|attached| attached.number == number)
    }

    /// Returns the index of an interface of the node, as last read.
    pub(crate) fn interface_number(&self, name: &str) -> Option<u32> {
        self.interfaces.number(name)
    }

    /// Returns whether a path is not usable yet, an interface of the configuration was created,
    /// deleted, replaced, or went up or down, or the address of a path changed since
    /// [`follow`](Node::follow).
    pub(crate) fn should_follow(&self) -> bool {
        self.must_follow
            || self.paths.has_obstacles()
            || Interfaces::read(&self.config).is_ok_and(|now| now != self.interfaces)
            || Locals::read(&self.config).is_ok_and(|now| now != self.locals)
    }

    /// Updates the node's own addresses in the sender.
    pub(crate) fn follow_addresses(&mut self) -> Result<()> {
        self.sender
            .as_mut()
            .map_or(Ok(()), |sender| self.own.follow(sender))
    }

    /// Updates the addresses of the controllers in the sender.
    pub(crate) fn set_controllers(&mut self, controllers: BTreeSet<SocketAddr>) -> Result<()> {
        let Some(sender) = &mut self.sender else {
            return Ok(());
        };
        self.own.set_controllers(sender, &self.config, controllers)
    }

    /// Updates the programs and paths after interfaces were created, deleted or replaced, and after
    /// next hops changed their link-layer address.
    pub(crate) fn follow(&mut self) -> Result<()> {
        self.must_follow = false;
        self.interfaces = Interfaces::read(&self.config)?;
        self.find_tunnels();
        self.devices.forget_others(&self.interfaces);
        self.notice_detached();
        self.detach_changed()?;
        let moved = |(key, attached): (&(Hook, String), &Attached)| {
            let now = self.interfaces.number(&key.1)?;
            (now != attached.number).then(|| key.clone())
        };
        let moved: Vec<_> = self.attached.iter().filter_map(moved).collect();
        for (hook, name) in moved {
            if let Err(error) = self.attach(hook, &name) {
                let why = format!("{error:#}");
                let attached = self.attached.get_mut(&(hook, name));
                let attached = attached.filter(|attached| attached.obstacle.as_ref() != Some(&why));
                if let Some(attached) = attached {
                    warn!("{why}");
                    attached.obstacle = Some(why);
                }
            }
        }
        self.watch_path_errors();
        self.record_attachments();
        self.follow_locals()?;
        let exits = self.choose_exits()?;
        if let Some(sender) = &mut self.sender {
            let found = Surroundings {
                interfaces: &self.interfaces,
                locals: &self.locals,
                exits: &exits,
            };
            self.paths.follow(sender, &self.config, &found);
        }
        self.record_changes();
        Ok(())
    }

    fn record_changes(&mut self) {
        for (path, what) in self.paths.take_changes() {
            self.changes.insert(path, Change::now(what));
        }
    }

    /// Listens for ICMP errors on the interfaces of the paths.
    fn watch_path_errors(&mut self) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        let names = self.config.paths.values().map(|path| &path.interface);
        let numbers = names.filter_map(|name| self.interfaces.number(name));
        let watched = sender.watch_path_errors(&numbers.collect::<Vec<_>>());
        let why = watched.err().map(|error| error.to_string());
        if let Some(why) = why.as_ref().filter(|_| why != self.unwatched_because) {
            warn!("the MTUs of routers on the paths are not noticed: {why}");
        }
        self.unwatched_because = why;
    }

    /// Handles the ICMP errors about copies since the last call.
    pub(crate) fn poll_path_errors(&mut self) -> Result<()> {
        let Some(sender) = &mut self.sender else {
            return Ok(());
        };
        for error in sender.path_errors()? {
            self.paths.handle_error(sender, &error)?;
        }
        self.record_changes();
        Ok(())
    }

    /// Returns the MTU of a path that copies are sent on, bytes, and whether it was learned.
    pub(crate) fn mtu(&self, path: PathId) -> Option<(u16, bool)> {
        self.paths.mtu(path)
    }

    /// Returns the size of the largest packet that fits all paths on which copies are sent, bytes.
    pub(crate) fn inner_mtu_bytes(&self) -> Option<u16> {
        self.paths.inner_mtu_bytes()
    }

    /// Updates this node's addresses on the paths where they are not fixed.
    fn follow_locals(&mut self) -> Result<()> {
        let now = Locals::read(&self.config)?;
        let before = std::mem::replace(&mut self.locals, now);
        for (path, description) in &self.config.paths {
            let (before, now) = (before.get(*path), self.locals.get(*path));
            if before == now {
                continue;
            }
            if let (Some(receiver), None) = (&self.receiver, description.local) {
                receiver.set_path(*path, now)?;
            }
            let text = |address: Option<IpAddr>| {
                address.map_or_else(|| "none".to_owned(), |address| address.to_string())
            };
            let what = format!("address {} instead of {}", text(now), text(before));
            let interface = &description.interface;
            info!(
                path = path.number(),
                interface, "the path has changed: {what}"
            );
            self.changes.insert(*path, Change::now(what));
        }
        Ok(())
    }

    fn start_receiver(&mut self) -> Result<()> {
        let config = &self.config;
        let receiver = load_receiver(config, pins(&config.remains())?)?;
        for (path, description) in &config.paths {
            let local = description.local.or_else(|| self.locals.get(*path));
            receiver.set_path(*path, local)?;
        }
        for (flow, keys) in &self.flows.receive {
            receiver.set_flow(*flow, Some(keys))?;
        }
        for (prefix, rules) in &self.flows.receive_selectors {
            receiver.select_transparent(*prefix, rules)?;
        }
        self.receiver = Some(receiver);
        tell_of_forwarding(&self.config);
        Ok(())
    }

    /// Attaches the receiver to the interfaces of the paths. A node that only replicates has no
    /// program there.
    fn attach_receiver(&mut self) -> Result<()> {
        let interfaces: BTreeSet<_> = self
            .config
            .paths
            .values()
            .map(|path| path.interface.clone())
            .collect();
        let is_new = |name: &String| {
            !self
                .attached
                .contains_key(&(Hook::Deduplicate, name.clone()))
        };
        let new: Vec<_> = interfaces.into_iter().filter(is_new).collect();
        let (present, missing): (Vec<_>, Vec<_>) = new
            .into_iter()
            .partition(|name| self.interfaces.number(name).is_some());
        if present.is_empty() {
            self.release_others()?
        } else {
            self.attach_deduplication(&present)?
        }
        missing
            .into_iter()
            .for_each(|name| self.await_interface(Hook::Deduplicate, name));
        Ok(())
    }

    fn start_sender(&mut self) -> Result<()> {
        let config = &self.config;
        let clock = SendClock::start(&config.persistent_state);
        let sender = Sender::load(&sender_options(config, &clock))?;
        if !config.transit.is_empty() && !sender.detects_foreign_frames() {
            warn!(
                "this kernel is older than Linux 6.2: frames to other hosts, which interfaces in promiscuous mode or in a \
                 bridge receive, cannot be told from frames to this node and are replicated where they are selected"
            );
        }
        self.sender = Some(sender);
        self.attach_sender()?;
        let exits = self.choose_exits()?;
        let sender = self.sender.as_mut().expect("has just been set");
        let config = &self.config;
        let found = Surroundings {
            interfaces: &self.interfaces,
            locals: &self.locals,
            exits: &exits,
        };
        self.paths.find(sender, config, &found)?;
        for (flow, description) in &self.flows.send {
            sender.set_flow(*flow, &session(description, &clock))?;
            sender.replace_policy(*flow, description.policy)?;
        }
        self.own.begin(sender, config)?;
        sender.expect(destinations_of_peers(config))?;
        for (prefix, rules) in &self.flows.send_selectors {
            sender.select(*prefix, rules)?;
            warn_of_large_packets(*prefix, sender, rules);
        }
        self.clock = Some(clock);
        self.watch_path_errors();
        Ok(())
    }

    /// Attaches the programs that replicate to the interfaces that exist.
    fn attach_sender(&mut self) -> Result<()> {
        let (transit, local) = (self.config.transit.clone(), self.config.local.clone());
        let transit = transit
            .into_iter()
            .map(|name| (Hook::ReplicateTransit, name));
        let local = local.into_iter().map(|name| (Hook::ReplicateLocal, name));
        for (hook, name) in transit.chain(local) {
            match self.interfaces.number(&name) {
                Some(_) => self.attach(hook, &name)?,
                None => self.await_interface(hook, name),
            }
        }
        Ok(())
    }

    /// Leaves attaching a program to [`follow`](Node::follow).
    fn await_interface(&mut self, hook: Hook, name: String) {
        let then = match hook {
            Hook::Deduplicate => "copies will be deduplicated",
            Hook::ReplicateTransit | Hook::ReplicateLocal => "traffic will be replicated",
        };
        warn!(
            interface = name,
            "the interface does not exist; {then} when it does"
        );
        self.attached.insert(
            (hook, name),
            Attached {
                number: NO_INTERFACE,
                obstacle: None,
            },
        );
    }

    /// Attaches a program to the current interface of this name.
    fn attach(&mut self, hook: Hook, name: &str) -> Result<()> {
        match hook {
            Hook::Deduplicate => self.attach_deduplication(&[name.to_owned()]),
            Hook::ReplicateTransit | Hook::ReplicateLocal => {
                let interface = interface::find(name).map_err(with_device_advice)?;
                self.attach_replication(hook, &interface)
                    .with_context(|| format!("interface {name}"))?;
                self.record_attached(hook, name, interface.index);
                Ok(())
            }
        }
    }

    /// Attaches deduplication to all of the interfaces or to none.
    fn attach_deduplication(&mut self, names: &[String]) -> Result<()> {
        let mut loosened = BTreeSet::new();
        let attached = self.attach_deduplication_and_loosen(names, &mut loosened);
        match &attached {
            Ok(()) => {
                let of_paths = self.config.paths.values();
                let held = of_paths.map(|path| path.interface.clone()).collect();
                self.filters.lock().restore_except(&held);
            }
            Err(_) => self.filters.lock().restore(|name| loosened.contains(name)),
        }
        attached
    }

    /// As [`attach_deduplication`](Node::attach_deduplication). Records in `loosened` the interfaces
    /// whose reverse path filter it has changed.
    fn attach_deduplication_and_loosen(
        &mut self,
        names: &[String],
        loosened: &mut BTreeSet<String>,
    ) -> Result<()> {
        for name in names {
            if self.filters.lock().loosen(name)? {
                loosened.insert(name.clone());
            }
        }
        let numbers: Vec<u32> = names
            .iter()
            .filter_map(|name| self.interfaces.number(name))
            .collect();
        let modes = self.attach_in_a_mode_that_works(names, &numbers)?;
        for ((name, number), choice) in names.iter().zip(numbers).zip(modes) {
            info!(interface = name, "deduplicating copies");
            self.devices.record(name, Use::Deduplicate, choice);
            self.record_attached(Hook::Deduplicate, name, number);
        }
        self.release_others()
    }

    /// Attaches the programs that deduplicate to these interfaces, to each in the first mode that it
    /// does not refuse. Returns the modes.
    fn attach_in_a_mode_that_works(
        &mut self,
        names: &[String],
        numbers: &[u32],
    ) -> Result<Vec<Choice>> {
        loop {
            let (mut modes, mut hooks) = (Vec::new(), Vec::new());
            for (name, number) in names.iter().zip(numbers) {
                let device = self.devices.examine(&self.interfaces, name);
                let device = device.context("it is gone")?;
                let choice = device.deduplicating(self.config.xdp);
                let choice = choice.map_err(|why| anyhow!("interface {name}: {why}"))?;
                self.devices.make_way(name, *number);
                hooks.push((*number, receive_hook(choice.mode, device.header)));
                modes.push(choice);
            }
            let Err(error) = self.attach_dedup(&hooks) else {
                return Ok(modes);
            };
            // An error without an interface is that of the kernel's lack of TC hooks.
            let number = error.interface();
            let is_refused = |(own, choice): &(&u32, &Choice)| match number {
                Some(number) => **own == number,
                None => choice.mode == Mode::Tc,
            };
            let Some((number, choice)) = numbers.iter().zip(&modes).find(is_refused) else {
                return Err(error.into());
            };
            let name = self.interfaces.name(*number).unwrap_or_default();
            (self.devices)
                .refuse((name, *number), choice.mode, self.config.xdp, error)
                .with_context(|| format!("interface {name}"))?;
        }
    }

    /// Attaches the programs that deduplicate to the interfaces with these indices, at these hooks.
    fn attach_dedup(&mut self, programs: &[(u32, ReceiveHook)]) -> Result<(), AttachError> {
        let receiver = self.receiver.as_mut();
        let receiver = receiver.expect("programs are attached after they are loaded");
        for (number, gap) in receiver.attach(programs)? {
            let interface = self.interfaces.name(number);
            warn!(
                interface,
                "deduplication is in another mode now; copies were not deduplicated for {gap:?}"
            );
        }
        Ok(())
    }

    /// Removes the deduplication of an earlier agent on other interfaces, with its flows and keys.
    fn release_others(&self) -> Result<()> {
        let Some(receiver) = &self.receiver else {
            return Ok(());
        };
        let released = receiver
            .release_others()
            .context("cannot remove the deduplication of an earlier agent")?;
        if !released.is_empty() {
            info!(interfaces = ?released, "removed the deduplication of an earlier agent");
        }
        Ok(())
    }

    fn record_attached(&mut self, hook: Hook, name: &str, number: u32) {
        self.attached.insert(
            (hook, name.to_owned()),
            Attached {
                number,
                obstacle: None,
            },
        );
    }
}

impl Drop for Node {
    /// Closes the loops first, so that no packet enters one whose exit has no program.
    fn drop(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.close_loops();
        }
        for segmenter in self.segmenters.values() {
            segmenter
                .drain()
                .unwrap_or_else(|error| warn!("packets may be lost: {error}"));
        }
    }
}

/// Returns the destinations that are routed to the agent's own interface: what no flow selects there is said.
fn destinations_of_peers(config: &Config) -> BTreeSet<Prefix> {
    let routes = config.device.iter().flat_map(|device| &device.routes);
    routes.map(|route| route.destination).collect()
}

fn sender_options(config: &Config, clock: &SendClock) -> SenderOptions {
    SenderOptions {
        port: config.port,
        clock_offset_micros: clock.offset_micros(),
        paths: config.possible_paths(),
        transit: !config.transit.is_empty(),
        local: !config.local.is_empty(),
    }
}

fn receive_hook(mode: Mode, header: LinkHeader) -> ReceiveHook {
    match mode {
        Mode::Native => XdpMode::Native.into(),
        Mode::Generic => XdpMode::Generic.into(),
        Mode::Tc => ReceiveHook::Tc {
            has_ethernet: header == LinkHeader::Ethernet,
        },
    }
}

/// Adds the way around an interface on which nothing can be replicated.
fn with_device_advice(error: netlink::Error) -> anyhow::Error {
    match error {
        netlink::Error::NotEthernet(name) => anyhow!(
            "interface {name}: its packets have no Ethernet header, so traffic that arrives on it or leaves by it cannot be \
             replicated there: remove it from `transit` and `local`, and use a [device] for this node's own traffic"
        ),
        error => error.into(),
    }
}

/// Returns the parameters of a flow. A new session starts with sequence numbers above those of
/// every earlier session, so that no receiver takes them for old ones.
fn session(description: &Sent, clock: &SendClock) -> SendFlow {
    SendFlow {
        label: description.label,
        transparent: description.transparent,
        key: description.key.clone(),
        first_sequence: clock.first_sequence(),
    }
}

/// Returns the flows of `old` that `new` does not have.
fn gone<T>(old: &BTreeMap<FlowId, T>, new: &BTreeMap<FlowId, T>) -> impl Iterator<Item = FlowId> {
    old.keys().copied().filter(|flow| !new.contains_key(flow))
}

fn replace_selectors<E>(
    old: &Selectors,
    new: &Selectors,
    mut select: impl FnMut(Prefix, &[Rule]) -> Result<(), E>,
) -> Result<(), E> {
    for (prefix, rules) in new {
        select(*prefix, rules)?;
    }
    old.keys()
        .filter(|prefix| !new.contains_key(prefix))
        .try_for_each(|prefix| select(*prefix, &[]))
}
