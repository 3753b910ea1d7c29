//! A node in the kernel: the programs loaded, attached and filled from a configuration.

use crate::config::{Config, PathConfig, SendConfig};
use anyhow::{Context, Result, bail, ensure};
use hawser_bpf::{Loop, Prefix, Receiver, ReceiverOptions, Rule, SendFlow, SendPath, Sender, SenderOptions};
use hawser_io::interface::{self, Interface};
use hawser_io::segmenter::Segmenter;
use hawser_units::{PathId, PolicyCode};
use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::{info, warn};

/// Copies of a transparent packet come within this time (the paper's threshold).
const TRANSPARENT_WITHIN: Duration = Duration::from_secs(1);

/// The programs of a node.
pub(crate) struct Node {
    config: Config,
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
    /// Counts policies, so that receivers can tell one from the next.
    epoch: u8,
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
    /// Loads and attaches everything that `config` asks for; traffic flows through the programs when this returns.
    pub(crate) fn start(config: Config) -> Result<Self> {
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
        };
        if !node.config.receive.is_empty() {
            node.start_receiver().context("cannot start to eliminate copies")?;
        }
        if !node.config.send.is_empty() {
            node.start_sender().context("cannot start to replicate")?;
        }
        Ok(node)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn sender(&self) -> Option<&Sender> {
        self.sender.as_ref()
    }

    pub(crate) fn receiver(&self) -> Option<&Receiver> {
        self.receiver.as_ref()
    }

    /// Takes over what may change while packets fly: flows, policies, keys. Sessions go on.
    pub(crate) fn reload(&mut self, new: Config) -> Result<()> {
        let old = &self.config;
        let directions = |config: &Config| (!config.send.is_empty(), !config.receive.is_empty());
        ensure!(
            old.is_same_node(&new) && directions(old) == directions(&new),
            "only flows, policies and keys can change while the agent runs; restart it for the rest"
        );
        let old = std::mem::replace(&mut self.config, new);
        if let Some(receiver) = &self.receiver {
            for flow in old.receive.keys().filter(|flow| !self.config.receive.contains_key(flow)) {
                receiver.set_flow(*flow, None)?;
            }
            for (flow, keys) in &self.config.receive {
                receiver.set_flow(*flow, Some(keys))?;
            }
            let select = |prefix: Prefix, rules: &[Rule]| receiver.select_transparent(prefix, rules);
            replace_selectors(&old.receive_selectors, &self.config.receive_selectors, select)?;
        }
        if let Some(sender) = &mut self.sender {
            self.epoch = self.epoch.wrapping_add(1);
            for flow in old.send.keys().filter(|flow| !self.config.send.contains_key(flow)) {
                sender.set_policy(*flow, PolicyCode::OFF, self.epoch)?;
            }
            for (flow, description) in &self.config.send {
                match old.send.get(flow) {
                    Some(before) if same_session(before, description) => {
                        sender.update_flow(*flow, &session(description)?)?;
                    }
                    _ => sender.set_flow(*flow, &session(description)?)?,
                }
                sender.set_policy(*flow, description.policy, self.epoch)?;
            }
            let select = |prefix: Prefix, rules: &[Rule]| sender.select(prefix, rules);
            replace_selectors(&old.send_selectors, &self.config.send_selectors, select)?;
        }
        Ok(())
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
        for (flow, keys) in &config.receive {
            receiver.set_flow(*flow, Some(keys))?;
        }
        for (prefix, rules) in &config.receive_selectors {
            receiver.select_transparent(*prefix, rules)?;
        }
        let interfaces: BTreeSet<_> = config.paths.values().map(|path| path.interface.clone()).collect();
        self.receiver = Some(receiver);
        interfaces.iter().try_for_each(|name| self.attach(Hook::Eliminate, name))
    }

    fn start_sender(&mut self) -> Result<()> {
        let config = &self.config;
        let mut sender = Sender::load(&SenderOptions { port: config.port })?;
        let used: BTreeSet<PathId> =
            config.send.values().flat_map(|flow| flow.policy.paths().iter()).collect();
        for (path, description) in &config.paths {
            let wait = |address, interface: &_| interface::neighbour(address, interface).map(Some);
            match resolve(description, wait) {
                Ok(Some(resolved)) => {
                    sender.set_path(*path, Some(resolved))?;
                    self.resolved.insert(*path, resolved);
                }
                Ok(None) => {}
                Err(error) if used.contains(path) => return Err(error.context(path.to_string())),
                Err(error) => warn!(%path, "not usable now: {error:#}"),
            }
        }
        for (flow, description) in &config.send {
            sender.set_flow(*flow, &session(description)?)?;
            sender.set_policy(*flow, description.policy, self.epoch)?;
        }
        for (prefix, rules) in &config.send_selectors {
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
    let names = of_paths.chain(&config.transit).chain(&config.local);
    names.map(|name| (name.clone(), interface::index(name))).collect()
}

/// The directory of this node's pins, made when missing.
fn pins(config: &Config) -> Result<PathBuf> {
    let pins = config.pins.join(&config.name);
    let directory = pins.display();
    fs::create_dir_all(&pins).with_context(|| {
        format!("cannot create {directory} (the agent runs as root, and pins are kept in a bpf file system)")
    })?;
    ensure!(
        statfs(&pins)?.filesystem_type() == BPF_FS_MAGIC,
        "{directory} is not in a bpf file system: `mount -t bpf bpf /sys/fs/bpf`, and let `pins` be a place in it"
    );
    Ok(pins)
}

fn load_receiver(port: u16, pins: PathBuf) -> Result<Receiver> {
    let mut key = [0; 16];
    getrandom::fill(&mut key)?;
    let (low, high) = key.split_at(8);
    let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("half of 16 bytes"));
    let options = ReceiverOptions {
        port,
        transparent_within: TRANSPARENT_WITHIN,
        fingerprint_key: [word(low), word(high)],
        pins: Some(pins),
    };
    Ok(Receiver::load(&options)?)
}

/// What the kernel needs to know of a path, from the routing table and, for the next hop, from `neighbour`.
fn resolve(
    path: &PathConfig,
    neighbour: impl Fn(IpAddr, &Interface) -> Result<Option<[u8; 6]>, interface::Error>,
) -> Result<Option<SendPath>> {
    let interface = interface::find(&path.interface)?;
    let mtu_bytes = match path.mtu_bytes {
        Some(mtu) => mtu,
        None => u16::try_from(interface.mtu_bytes).unwrap_or(u16::MAX),
    };
    Ok(neighbour(next_hop(path)?, &interface)?.map(|next_hop_mac| SendPath {
        ifindex: interface.index,
        local: path.local,
        remote: path.remote,
        source_mac: interface.mac,
        next_hop_mac,
        mtu_bytes,
    }))
}

fn next_hop(path: &PathConfig) -> Result<IpAddr> {
    match path.next_hop {
        Some(address) => Ok(address),
        None => Ok(interface::route(path.remote, Some(&path.interface))?.next_hop),
    }
}

/// A flow with a new session: numbers start at a random place, so that no receiver takes them for old ones.
fn session(description: &SendConfig) -> Result<SendFlow> {
    let mut first = [0; 8];
    getrandom::fill(&mut first)?;
    Ok(SendFlow {
        label: description.label,
        transparent: description.transparent,
        key: description.key.clone(),
        first_sequence: u64::from_le_bytes(first),
    })
}

fn same_session(before: &SendConfig, after: &SendConfig) -> bool {
    (before.label, before.transparent) == (after.label, after.transparent)
}

fn replace_selectors<E>(
    old: &BTreeMap<Prefix, Vec<Rule>>,
    new: &BTreeMap<Prefix, Vec<Rule>>,
    select: impl Fn(Prefix, &[Rule]) -> Result<(), E>,
) -> Result<(), E> {
    for (prefix, rules) in new {
        select(*prefix, rules)?;
    }
    old.keys().filter(|prefix| !new.contains_key(prefix)).try_for_each(|prefix| select(*prefix, &[]))
}

/// A packet that came by another path than the route back would take is dropped by a strict filter, after elimination.
fn refuse_reverse_path_filter(interface: &str) -> Result<()> {
    const STRICT: u8 = 1;
    let setting = |scope: &str| {
        let file = Path::new("/proc/sys/net/ipv4/conf").join(scope).join("rp_filter");
        fs::read_to_string(file).ok().and_then(|value| value.trim().parse::<u8>().ok()).unwrap_or(0)
    };
    // The larger of the two is in force (Documentation/networking/ip-sysctl.rst).
    if setting("all").max(setting(interface)) == STRICT {
        bail!(
            "the reverse path filter is strict, which drops what arrives by other paths than the route back; \
             run `sysctl -w net.ipv4.conf.{interface}.rp_filter=2`"
        );
    }
    Ok(())
}

/// Packets that do not fit a path with the outer headers are not replicated: say so before it is noticed.
fn warn_of_large_packets(prefix: Prefix, sender: &Sender, rules: &[Rule]) {
    let Some(fits) = rules.iter().filter_map(|rule| sender.inner_mtu_bytes(rule.flow).ok()?).min() else {
        return;
    };
    // A destination without a route shows itself in other ways.
    let Ok(route) = interface::route(prefix.address(), None) else { return };
    let Ok(device) = interface::find(&route.interface) else { return };
    let mtu = route.mtu_bytes.unwrap_or(device.mtu_bytes);
    if mtu > u32::from(fits) {
        warn!(
            destination = %prefix,
            "packets of more than {fits} bytes are forwarded without being replicated, and the route allows {mtu}; \
             give the route `mtu {fits}` (ip route change)"
        );
    }
}
