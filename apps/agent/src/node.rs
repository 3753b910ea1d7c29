//! A node in the kernel: the programs loaded, attached and filled from a configuration.

mod surroundings;

use crate::config::{Config, PathConfig};
use crate::flows::{Flows, Selectors, Sent};
use anyhow::{Context, Result, ensure};
use hawser_bpf::{Loop, Prefix, Receiver, Rule, SendFlow, SendPath, SendPolicy, Sender, SenderOptions};
use hawser_io::interface::{self, Interface};
use hawser_io::segmenter::Segmenter;
use hawser_units::{FlowId, PathId};
use std::collections::{BTreeMap, BTreeSet};
use surroundings::{load_receiver, pins, refuse_reverse_path_filter, resolve, warn_of_large_packets};
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
    /// The number of the interface at which each program is attached.
    attached: BTreeMap<(Hook, String), u32>,
    /// Every interface that the configuration names, with its number when it was last looked at.
    interfaces: BTreeMap<String, Option<u32>>,
    /// The paths as the sender has them.
    resolved: BTreeMap<PathId, SendPath>,
    /// Paths whose next hop does not answer.
    silent: BTreeSet<PathId>,
    /// Counts the policies of the file, so that receivers can tell one from the next.
    epoch: u32,
    /// Removed when the node ends.
    segmenters: Vec<Segmenter>,
}

/// Where a program sits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hook {
    Eliminate,
    ReplicateTransit,
    ReplicateLocal,
}

impl Node {
    /// Loads and attaches everything that `config` and `flows` ask for; traffic flows through the programs when this
    /// returns. Under a controller, what it may ask for later is loaded now: loading takes a second.
    pub(crate) fn start(config: Config, flows: Flows) -> Result<Self> {
        let mut node = Node {
            sender: None,
            receiver: None,
            attached: BTreeMap::new(),
            interfaces: interfaces(&config),
            resolved: BTreeMap::new(),
            silent: BTreeSet::new(),
            epoch: 0,
            segmenters: Vec::new(),
            config,
            flows,
        };
        let Config { controller, transit, local, paths, .. } = &node.config;
        let controlled = controller.is_some();
        let may_send = controlled && !(transit.is_empty() && local.is_empty());
        let may_receive = controlled && !paths.is_empty();
        if may_receive || !node.flows.receive.is_empty() {
            node.start_receiver().context("cannot start to eliminate copies")?;
        }
        if may_send || !node.flows.send.is_empty() {
            node.start_sender().context("cannot start to replicate")?;
        }
        Ok(node)
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
            flows.send.values_mut().for_each(|flow| flow.policy.epoch = self.epoch);
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
            for flow in old.receive.keys().filter(|flow| !self.flows.receive.contains_key(flow)) {
                receiver.set_flow(*flow, None)?;
            }
            for (flow, keys) in &self.flows.receive {
                receiver.set_flow(*flow, Some(keys))?;
            }
            let select = |prefix: Prefix, rules: &[Rule]| receiver.select_transparent(prefix, rules);
            replace_selectors(&old.receive_selectors, &self.flows.receive_selectors, select)?;
        }
        if !self.flows.receive.is_empty() {
            self.attach_receiver()?;
        }
        let mut changed = Vec::new();
        if let Some(sender) = &mut self.sender {
            for flow in old.send.keys().filter(|flow| !self.flows.send.contains_key(flow)) {
                sender.remove_flow(*flow)?;
            }
            for (flow, description) in &self.flows.send {
                let continues = old.send.get(flow).is_some_and(|before| description.continues(before));
                if continues {
                    sender.update_flow(*flow, &session(description)?)?;
                } else {
                    sender.set_flow(*flow, &session(description)?)?;
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
        Ok(changed)
    }

    /// Puts a policy into force if it is newer than the one that is; says whether it was.
    pub(crate) fn set_policy(&self, flow: FlowId, policy: SendPolicy) -> Result<bool> {
        let sender = self.sender.as_ref().context("this node does not replicate")?;
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

    /// Whether a path can be used: its interface is there and its next hop known.
    pub(crate) fn is_up(&self, path: PathId) -> bool {
        let interface = self.config.paths.get(&path).and_then(|path| self.interfaces.get(&path.interface));
        let has_interface = interface.is_some_and(Option::is_some);
        let has_next_hop = self.sender.is_none() || self.resolved.contains_key(&path);
        has_interface && has_next_hop && !self.silent.contains(&path)
    }

    /// The interfaces of the node, with their numbers when they were last looked at.
    pub(crate) fn interface_number(&self, name: &str) -> Option<u32> {
        self.interfaces.get(name).copied().flatten()
    }

    /// Whether an interface of the configuration has come, gone or been replaced since [`follow`](Node::follow).
    pub(crate) fn interfaces_changed(&self) -> bool {
        self.interfaces != interfaces(&self.config)
    }

    /// Follows interfaces that have come, gone or been replaced, and next hops that have moved to another link-layer
    /// address.
    pub(crate) fn follow(&mut self) -> Result<()> {
        self.interfaces = interfaces(&self.config);
        let moved = |(key, number): (&(Hook, String), &u32)| {
            let now = self.interfaces[&key.1]?;
            (now != *number).then(|| key.clone())
        };
        let moved: Vec<_> = self.attached.iter().filter_map(moved).collect();
        for (hook, name) in moved {
            self.attach(hook, &name).unwrap_or_else(|error| warn!("{error:#}"));
        }
        if self.sender.is_some() {
            let paths: Vec<_> = self.config.paths.clone().into_iter().collect();
            paths.iter().try_for_each(|(path, description)| self.follow_path(*path, description))?;
        }
        Ok(())
    }

    fn follow_path(&mut self, path: PathId, description: &PathConfig) -> Result<()> {
        let before = self.resolved.get(&path).copied();
        let interface = self.interfaces[&description.interface];
        let now = match interface {
            None => None,
            Some(number) => self.look(path, description).or(before.filter(|path| path.ifindex == number)),
        };
        if now == before {
            return Ok(());
        }
        match now {
            Some(_) => info!(%path, "the path has another interface or next hop than before"),
            None => {
                warn!(%path, "its interface {} is gone; copies take the other paths", description.interface)
            }
        }
        self.sender.as_mut().context("only a sender follows paths")?.set_path(path, now)?;
        match now {
            Some(resolved) => self.resolved.insert(path, resolved),
            None => self.resolved.remove(&path),
        };
        Ok(())
    }

    /// The path as it is now; none when that cannot be told, which is said once.
    fn look(&mut self, path: PathId, description: &PathConfig) -> Option<SendPath> {
        let why = match resolve(description, interface::follow_neighbour) {
            Ok(Some(found)) => {
                self.silent.remove(&path);
                return Some(found);
            }
            Ok(None) => "the next hop does not answer".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if self.silent.insert(path) {
            warn!(%path, "{why}; copies go to where it was last");
        }
        None
    }

    fn start_receiver(&mut self) -> Result<()> {
        let config = &self.config;
        let receiver = load_receiver(config.port, pins(config)?)?;
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
        if self.flows.receive.is_empty() { Ok(()) } else { self.attach_receiver() }
    }

    /// A node that only replicates keeps its path interfaces free of programs.
    fn attach_receiver(&mut self) -> Result<()> {
        let interfaces: BTreeSet<_> = self.config.paths.values().map(|path| path.interface.clone()).collect();
        let is_new = |name: &&String| !self.attached.contains_key(&(Hook::Eliminate, (*name).clone()));
        let new: Vec<_> = interfaces.iter().filter(is_new).collect();
        for name in new {
            if self.config.controller.is_some() && interface::index(name).is_none() {
                warn!(interface = name, "copies will be eliminated on it when it is there");
                self.attached.insert((Hook::Eliminate, name.clone()), NO_INTERFACE);
            } else {
                self.attach(Hook::Eliminate, name)?;
            }
        }
        Ok(())
    }

    fn start_sender(&mut self) -> Result<()> {
        let config = &self.config;
        let mut sender = Sender::load(&SenderOptions { port: config.port })?;
        let required: BTreeSet<PathId> = match config.controller {
            // What is missing is told to the controller.
            Some(_) => BTreeSet::new(),
            None => self.flows.send.values().flat_map(|flow| flow.policy.code.paths().iter()).collect(),
        };
        for (path, description) in &config.paths {
            let wait = |address, interface: &_| interface::neighbour(address, interface).map(Some);
            match resolve(description, wait) {
                Ok(Some(resolved)) => {
                    sender.set_path(*path, Some(resolved))?;
                    self.resolved.insert(*path, resolved);
                }
                Ok(None) => {}
                Err(error) if required.contains(path) => return Err(error.context(path.to_string())),
                Err(error) => warn!(%path, "not usable now: {error:#}"),
            }
        }
        for (flow, description) in &self.flows.send {
            sender.set_flow(*flow, &session(description)?)?;
            sender.replace_policy(*flow, description.policy)?;
        }
        for (prefix, rules) in &self.flows.send_selectors {
            sender.select(*prefix, rules)?;
            warn_of_large_packets(*prefix, &sender, rules);
        }
        let (transit, local) = (config.transit.clone(), config.local.clone());
        self.sender = Some(sender);
        transit.iter().try_for_each(|name| self.attach(Hook::ReplicateTransit, name))?;
        local.iter().try_for_each(|name| self.attach(Hook::ReplicateLocal, name))
    }

    /// Attaches a program to the interface that has this name now.
    fn attach(&mut self, hook: Hook, name: &str) -> Result<()> {
        let interface = interface::find(name)?;
        self.attach_to(hook, &interface).with_context(|| format!("interface {name}"))?;
        self.attached.insert((hook, name.to_owned()), interface.index);
        Ok(())
    }

    fn attach_to(&mut self, hook: Hook, interface: &Interface) -> Result<()> {
        const LOADED: &str = "programs are attached after they are loaded";
        let (name, xdp) = (&interface.name, self.config.xdp);
        match hook {
            Hook::Eliminate => {
                refuse_reverse_path_filter(name)?;
                self.receiver.as_mut().context(LOADED)?.attach(interface.index, xdp)?;
                info!(interface = name, "eliminating copies");
            }
            Hook::ReplicateTransit => {
                self.sender.as_mut().context(LOADED)?.attach_transit(interface.index, xdp)?;
                info!(interface = name, "replicating transit traffic");
            }
            Hook::ReplicateLocal => {
                let sender = self.sender.as_mut().context(LOADED)?;
                let segmenter = Segmenter::create(interface)?;
                let (entry, exit) = (segmenter.entry(), segmenter.exit());
                sender.attach_loop(Loop { device: interface.index, entry, exit })?;
                sender.attach_local(interface.index)?;
                self.segmenters.push(segmenter);
                info!(interface = name, "replicating local traffic");
            }
        }
        Ok(())
    }
}

/// The interfaces that a node works on, with their numbers now.
fn interfaces(config: &Config) -> BTreeMap<String, Option<u32>> {
    let of_paths = config.paths.values().map(|path| &path.interface);
    let named = [&config.transit, &config.local, &config.watch].into_iter().flatten();
    let signalled = config.controller.iter().flat_map(|controller| &controller.interfaces);
    let names = of_paths.chain(named).chain(signalled);
    names.map(|name| (name.clone(), interface::index(name))).collect()
}

/// A flow with a new session: numbers start at a random place, so that no receiver takes them for old ones.
fn session(description: &Sent) -> Result<SendFlow> {
    let mut first = [0; 8];
    getrandom::fill(&mut first)?;
    Ok(SendFlow {
        label: description.label,
        transparent: description.transparent,
        key: description.key.clone(),
        first_sequence: u64::from_le_bytes(first),
    })
}

fn replace_selectors<E>(
    old: &Selectors,
    new: &Selectors,
    select: impl Fn(Prefix, &[Rule]) -> Result<(), E>,
) -> Result<(), E> {
    for (prefix, rules) in new {
        select(*prefix, rules)?;
    }
    old.keys().filter(|prefix| !new.contains_key(prefix)).try_for_each(|prefix| select(*prefix, &[]))
}
