//! A node in the kernel: the programs loaded, attached and filled from a configuration.

mod clock;
mod own;
mod paths;
mod surroundings;

use crate::config::Config;
use crate::flows::{Flows, Selectors, Sent};
use anyhow::{Context, Result, ensure};
use clock::SendClock;
use hawser_bpf::{Loop, Prefix, Receiver, Rule, SendFlow, SendPolicy, Sender, SenderOptions};
use hawser_io::interface::{self, Interface};
use hawser_io::segmenter::Segmenter;
use hawser_units::{FlowId, PathId};
use own::Own;
use paths::Paths;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
pub(crate) use surroundings::remove_pins;
use surroundings::{
    Interfaces, load_receiver, pins, refuse_reverse_path_filter, warn_of_large_packets,
};
use tracing::{info, warn};

/// The number of an interface that is not there: those of the kernel begin at 1.
const NO_INTERFACE: u32 = 0;

/// The programs of a node.
pub(crate) struct Node {
    config: Config,
    /// What is done for which traffic.
    flows: Flows,
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    /// Where each program is to be attached.
    attached: BTreeMap<(Hook, String), Attached>,
    /// Every interface that the configuration names, when it was last looked at.
    interfaces: Interfaces,
    paths: Paths,
    own: Own,
    /// Counts the policies of the file, so that receivers can tell one from the next.
    epoch: u32,
    /// The time that packets are sent at; read when there is a sender.
    clock: Option<SendClock>,
    /// By interface. Removed when the node ends.
    segmenters: BTreeMap<String, Segmenter>,
}

/// A program at an interface.
#[derive(Debug)]
struct Attached {
    /// Of the interface that the program was last attached to.
    number: u32,
    /// Why it is not attached to the interface that is there now.
    obstacle: Option<String>,
}

/// Where a program sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hook {
    Eliminate,
    ReplicateTransit,
    ReplicateLocal,
}

impl Node {
    /// Loads everything that `config` and `flows` ask for, and attaches what replicates. Under a controller, what it may ask
    /// for later is loaded now: loading takes a second.
    ///
    /// Paths that do not work and interfaces that are missing are taken when they come, as later ones are.
    pub(crate) fn start(config: Config, flows: Flows) -> Result<Self> {
        let mut node = Node {
            sender: None,
            receiver: None,
            own: Own::default(),
            attached: BTreeMap::new(),
            interfaces: Interfaces::look(&config)?,
            paths: Paths::default(),
            epoch: 0,
            segmenters: BTreeMap::new(),
            clock: None,
            config,
            flows,
        };
        let Config {
            controller,
            transit,
            local,
            paths,
            ..
        } = &node.config;
        let controlled = controller.is_some();
        let may_send = controlled && !(transit.is_empty() && local.is_empty());
        let may_receive = controlled && !paths.is_empty();
        if may_receive || !node.flows.receive.is_empty() {
            node.start_receiver()
                .context("cannot start to eliminate copies")?;
        }
        if may_send || !node.flows.send.is_empty() {
            node.start_sender().context("cannot start to replicate")?;
        }
        Ok(node)
    }

    /// Attaches what eliminates, in the place of what an earlier agent left. The last step of a start: a refusal leaves in the
    /// kernel what was there.
    pub(crate) fn eliminate(&mut self) -> Result<()> {
        if self.receiver.is_none() {
            if remove_pins(&self.config)? {
                info!(
                    "the elimination of an earlier agent has ended: nothing is received here any more"
                );
            }
            return Ok(());
        }
        // A controller may be about to say what is received.
        if self.flows.receive.is_empty() {
            Ok(())
        } else {
            self.attach_receiver()
        }
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

    /// Keeps where the send clock is, so that it goes on from there after a reboot.
    pub(crate) fn keep_clock(&mut self) {
        if let Some(clock) = &mut self.clock {
            clock.keep();
        }
    }

    pub(crate) fn sender_mut(&mut self) -> Option<&mut Sender> {
        self.sender.as_mut()
    }

    /// Takes over what a file may change while packets fly: flows, policies, keys. Sessions go on.
    pub(crate) fn reload(&mut self, new: Config) -> Result<()> {
        let old = &self.config;
        let directions = |flows: &Flows| (!flows.send.is_empty(), !flows.receive.is_empty());
        ensure!(
            old.is_same_node(&new)
                && (new.controller.is_some() || directions(&self.flows) == directions(&new.flows)),
            "only flows, policies and keys can change while the agent runs; restart it for the rest"
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

    /// Replaces the flows while packets fly. Sessions go on, and of two policies of a session the newer one stays, unless
    /// they are to be replaced. Returns the flows whose policy was put into force.
    pub(crate) fn set_flows(&mut self, new: Flows, replace_policies: bool) -> Result<Vec<FlowId>> {
        let old = std::mem::replace(&mut self.flows, new);
        if let Some(receiver) = &self.receiver {
            for flow in old
                .receive
                .keys()
                .filter(|flow| !self.flows.receive.contains_key(flow))
            {
                receiver.set_flow(*flow, None)?;
            }
            for (flow, keys) in &self.flows.receive {
                receiver.set_flow(*flow, Some(keys))?;
            }
            let select =
                |prefix: Prefix, rules: &[Rule]| receiver.select_transparent(prefix, rules);
            replace_selectors(
                &old.receive_selectors,
                &self.flows.receive_selectors,
                select,
            )?;
        }
        let eliminated = if self.flows.receive.is_empty() {
            self.release_others()
        } else {
            self.attach_receiver()
        };
        let mut changed = Vec::new();
        if let (Some(sender), Some(clock)) = (&mut self.sender, &self.clock) {
            for flow in old
                .send
                .keys()
                .filter(|flow| !self.flows.send.contains_key(flow))
            {
                sender.remove_flow(*flow)?;
            }
            for (flow, description) in &self.flows.send {
                let continues = old
                    .send
                    .get(flow)
                    .is_some_and(|before| description.continues(before));
                if continues {
                    sender.update_flow(*flow, &session(description, clock))?;
                } else {
                    sender.set_flow(*flow, &session(description, clock))?;
                }
                let applied = if continues && !replace_policies {
                    sender.set_policy(*flow, description.policy)?
                } else {
                    sender.replace_policy(*flow, description.policy)?;
                    true
                };
                if applied {
                    changed.push(*flow);
                }
            }
            let select = |prefix: Prefix, rules: &[Rule]| sender.select(prefix, rules);
            replace_selectors(&old.send_selectors, &self.flows.send_selectors, select)?;
            for (prefix, rules) in &self.flows.send_selectors {
                if !old.send_selectors.contains_key(prefix) {
                    warn_of_large_packets(*prefix, sender, rules);
                }
            }
        }
        // Only now: flows that the sender was not told of would go on at a number that receivers take for an old one.
        eliminated?;
        Ok(changed)
    }

    /// Puts a policy into force if it is newer than the one that is; says whether it was.
    pub(crate) fn set_policy(&self, flow: FlowId, policy: SendPolicy) -> Result<bool> {
        let sender = self
            .sender
            .as_ref()
            .context("this node does not replicate")?;
        Ok(sender.set_policy(flow, policy)?)
    }

    /// Copies of a flow that took a path since the programs were loaded.
    pub(crate) fn copies(&self, flow: FlowId, path: PathId) -> u64 {
        // A table that cannot be read shows elsewhere.
        self.sender
            .as_ref()
            .and_then(|sender| sender.path_stats(flow, path).ok())
            .map_or(0, |stats| stats.packets)
    }

    /// Whether a path can be used: its interface is up and its next hop known.
    pub(crate) fn is_up(&self, path: PathId) -> bool {
        let is_used = self.sender.is_none() || self.paths.is_used(path);
        is_used && self.obstacle(path).is_none()
    }

    /// What keeps a path from being used, or from being followed.
    pub(crate) fn obstacle(&self, path: PathId) -> Option<String> {
        match &self.sender {
            Some(_) => self.paths.obstacle(path).map(str::to_owned),
            None => self
                .interfaces
                .obstacle(&self.config.paths.get(&path)?.interface),
        }
    }

    /// Interfaces that a program is missing from, and why.
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

    /// Whether this node's own traffic is replicated at the interface that has this name and number.
    pub(crate) fn replicates_local(&self, name: &str, number: u32) -> bool {
        let attached = self.attached.get(&(Hook::ReplicateLocal, name.to_owned()));
        attached.is_some_and(|attached| attached.number == number)
    }

    /// The interfaces of the node, with their numbers when they were last looked at.
    pub(crate) fn interface_number(&self, name: &str) -> Option<u32> {
        self.interfaces.number(name)
    }

    /// Whether something is waited for, or an interface of the configuration has come, gone, been replaced, or has gone up or
    /// down since [`follow`](Node::follow).
    pub(crate) fn should_follow(&self) -> bool {
        self.paths.has_obstacles()
            || Interfaces::look(&self.config).is_ok_and(|now| now != self.interfaces)
    }

    /// Follows the node's addresses.
    pub(crate) fn follow_addresses(&mut self) -> Result<()> {
        self.sender
            .as_mut()
            .map_or(Ok(()), |sender| self.own.follow(sender))
    }

    /// Takes in where the controllers are.
    pub(crate) fn set_controllers(&mut self, controllers: BTreeSet<SocketAddr>) -> Result<()> {
        let Some(sender) = &mut self.sender else {
            return Ok(());
        };
        self.own.set_controllers(sender, &self.config, controllers)
    }

    /// Follows interfaces that have come, gone or been replaced, and next hops that have moved to another link-layer
    /// address.
    pub(crate) fn follow(&mut self) -> Result<()> {
        self.interfaces = Interfaces::look(&self.config)?;
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
        if let Some(sender) = &mut self.sender {
            self.paths.follow(sender, &self.config, &self.interfaces);
        }
        Ok(())
    }

    fn start_receiver(&mut self) -> Result<()> {
        let config = &self.config;
        if !self.flows.receive.is_empty() {
            let mut interfaces = config.paths.values().map(|path| path.interface.as_str());
            interfaces.try_for_each(refuse_reverse_path_filter)?;
        }
        let receiver = load_receiver(config, pins(config)?)?;
        for (path, description) in &config.paths {
            receiver.set_path(*path, Some(description.local))?;
        }
        for (flow, keys) in &self.flows.receive {
            receiver.set_flow(*flow, Some(keys))?;
        }
        for (prefix, rules) in &self.flows.receive_selectors {
            receiver.select_transparent(*prefix, rules)?;
        }
        self.receiver = Some(receiver);
        Ok(())
    }

    /// A node that only replicates keeps its path interfaces free of programs.
    fn attach_receiver(&mut self) -> Result<()> {
        let interfaces: BTreeSet<_> = self
            .config
            .paths
            .values()
            .map(|path| path.interface.clone())
            .collect();
        let is_new = |name: &String| !self.attached.contains_key(&(Hook::Eliminate, name.clone()));
        let new: Vec<_> = interfaces.into_iter().filter(is_new).collect();
        let (present, missing): (Vec<_>, Vec<_>) = new
            .into_iter()
            .partition(|name| self.interfaces.number(name).is_some());
        if present.is_empty() {
            self.release_others()?
        } else {
            self.attach_elimination(&present)?
        }
        missing
            .into_iter()
            .for_each(|name| self.await_interface(Hook::Eliminate, name));
        Ok(())
    }

    fn start_sender(&mut self) -> Result<()> {
        let clock = SendClock::start(&self.config.lasting);
        let options = SenderOptions {
            port: self.config.port,
            clock_offset_micros: clock.offset_micros(),
            paths: self.config.paths.keys().copied().collect(),
            transit: !self.config.transit.is_empty(),
            local: !self.config.local.is_empty(),
        };
        let mut sender = Sender::load(&options)?;
        if !self.config.transit.is_empty() && !sender.tells_foreign_frames() {
            warn!(
                "this kernel is older than Linux 6.2: frames to other hosts, which interfaces in promiscuous mode or in a \
                 bridge hear too, are not told from this node's own and are replicated where they are selected"
            );
        }
        self.paths
            .find(&mut sender, &self.config, &self.interfaces)?;
        for (flow, description) in &self.flows.send {
            sender.set_flow(*flow, &session(description, &clock))?;
            sender.replace_policy(*flow, description.policy)?;
        }
        self.own.begin(&mut sender, &self.config)?;
        for (prefix, rules) in &self.flows.send_selectors {
            sender.select(*prefix, rules)?;
            warn_of_large_packets(*prefix, &sender, rules);
        }
        let (transit, local) = (self.config.transit.clone(), self.config.local.clone());
        self.sender = Some(sender);
        self.clock = Some(clock);
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

    /// Leaves a program to [`follow`](Node::follow).
    fn await_interface(&mut self, hook: Hook, name: String) {
        let then = match hook {
            Hook::Eliminate => "copies will be eliminated",
            Hook::ReplicateTransit | Hook::ReplicateLocal => "traffic will be replicated",
        };
        warn!(
            interface = name,
            "the interface does not exist; {then} when it is there"
        );
        self.attached.insert(
            (hook, name),
            Attached {
                number: NO_INTERFACE,
                obstacle: None,
            },
        );
    }

    /// Attaches a program to the interface that has this name now.
    fn attach(&mut self, hook: Hook, name: &str) -> Result<()> {
        match hook {
            Hook::Eliminate => self.attach_elimination(&[name.to_owned()]),
            Hook::ReplicateTransit | Hook::ReplicateLocal => {
                let interface = interface::find(name)?;
                let before = self
                    .attached
                    .get(&(hook, name.to_owned()))
                    .map(|attached| attached.number);
                if let (Some(sender), Some(gone)) = (&mut self.sender, before) {
                    sender.detach(gone)?;
                }
                self.attach_replication(hook, &interface)
                    .with_context(|| format!("interface {name}"))?;
                self.is_attached(hook, name, interface.index);
                Ok(())
            }
        }
    }

    fn attach_replication(&mut self, hook: Hook, interface: &Interface) -> Result<()> {
        let (name, xdp) = (&interface.name, self.config.xdp);
        let sender = self
            .sender
            .as_mut()
            .context("programs are attached after they are loaded")?;
        if hook == Hook::ReplicateTransit {
            sender.attach_transit(interface.index, xdp)?;
            info!(interface = name, "replicating transit traffic");
        } else {
            let segmenter = Segmenter::create(interface)?;
            let (entry, exit) = (segmenter.entry(), segmenter.exit());
            // The kernel closes a killed process's links from the last to the first, and nothing may go into a loop that has
            // ended.
            sender.attach_loop(Loop {
                device: interface.index,
                entry,
                exit,
            })?;
            sender.attach_local(interface.index)?;
            self.segmenters.insert(name.clone(), segmenter);
            info!(interface = name, "replicating local traffic");
        }
        Ok(())
    }

    /// Attaches elimination to all of the interfaces or to none.
    fn attach_elimination(&mut self, names: &[String]) -> Result<()> {
        let interfaces = &self.interfaces;
        let in_context = |name: &str| format!("interface {name}");
        for name in names {
            refuse_reverse_path_filter(name)?;
        }
        let numbers: Vec<u32> = names
            .iter()
            .filter_map(|name| interfaces.number(name))
            .collect();
        let receiver = self
            .receiver
            .as_mut()
            .context("programs are attached after they are loaded")?;
        let switched = receiver
            .attach(&numbers, self.config.xdp)
            .map_err(|error| {
                let name = error
                    .interface()
                    .and_then(|number| interfaces.name(number))
                    .map(in_context);
                match name {
                    Some(name) => anyhow::Error::from(error).context(name),
                    None => error.into(),
                }
            })?;
        for (number, gap) in switched {
            let interface = interfaces.name(number);
            warn!(
                interface,
                "elimination is in another XDP mode now; copies were not eliminated for {gap:?}"
            );
        }
        for (name, number) in names.iter().zip(numbers) {
            info!(interface = name, "eliminating copies");
            self.is_attached(Hook::Eliminate, name, number);
        }
        self.release_others()
    }

    /// Ends the elimination that an earlier agent left on other interfaces, with its flows and keys.
    fn release_others(&self) -> Result<()> {
        let Some(receiver) = &self.receiver else {
            return Ok(());
        };
        let released = receiver
            .release_others()
            .context("cannot end what an earlier agent left")?;
        if !released.is_empty() {
            info!(interfaces = ?released, "the elimination of an earlier agent has ended");
        }
        Ok(())
    }

    fn is_attached(&mut self, hook: Hook, name: &str, number: u32) {
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
    /// Nothing goes into a loop whose exit has no program any more.
    fn drop(&mut self) {
        if let Some(sender) = &mut self.sender {
            sender.detach_local();
        }
        for segmenter in self.segmenters.values() {
            segmenter
                .drain()
                .unwrap_or_else(|error| warn!("packets may be lost: {error}"));
        }
    }
}

/// A flow with a new session: numbers start above those of every session before, so that no receiver takes them for old ones.
fn session(description: &Sent, clock: &SendClock) -> SendFlow {
    SendFlow {
        label: description.label,
        transparent: description.transparent,
        key: description.key.clone(),
        first_sequence: clock.first_sequence(),
    }
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
