//! A node in the kernel: the programs loaded, attached and filled from a configuration.

use crate::config::{Config, PathConfig, SendConfig};
use anyhow::{Context, Result, bail, ensure};
use hawser_bpf::{Loop, Prefix, Receiver, ReceiverOptions, Rule, SendFlow, SendPath, Sender, SenderOptions};
use hawser_io::interface;
use hawser_io::segmenter;
use hawser_units::PathId;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
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
    /// The paths as the sender has them.
    resolved: BTreeMap<PathId, SendPath>,
    /// Counts policies, so that receivers can tell one from the next.
    epoch: u8,
    /// Removed when the node ends.
    _segmenters: Vec<segmenter::Segmenter>,
}

impl Node {
    /// Loads and attaches everything that `config` asks for; traffic flows through the programs when this returns.
    pub(crate) fn start(config: Config) -> Result<Self> {
        let mut node = Node {
            sender: None,
            receiver: None,
            resolved: BTreeMap::new(),
            epoch: 0,
            _segmenters: Vec::new(),
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
        let fixed = |config: &Config| {
            let programs = (!config.send.is_empty(), !config.receive.is_empty());
            (
                config.name.clone(),
                config.port,
                config.transit.clone(),
                config.local.clone(),
                config.xdp,
                programs,
            )
        };
        ensure!(
            fixed(old) == fixed(&new) && old.paths == new.paths,
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
                sender.set_policy(*flow, hawser_units::PolicyCode::OFF, self.epoch)?;
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

    /// Looks whether next hops have moved to another link-layer address, and follows them.
    pub(crate) fn refresh_neighbours(&mut self) -> Result<()> {
        let Some(sender) = &mut self.sender else { return Ok(()) };
        for (path, resolved) in &mut self.resolved {
            let description = &self.config.paths[path];
            let interface = interface::find(&description.interface)?;
            let next_hop = next_hop(description)?;
            match interface::known_neighbour(next_hop, &interface)? {
                Some(mac) if mac != resolved.next_hop_mac || interface.index != resolved.ifindex => {
                    info!(%path, %next_hop, "the next hop has another link-layer address or interface");
                    resolved.next_hop_mac = mac;
                    resolved.ifindex = interface.index;
                    sender.set_path(*path, Some(*resolved))?;
                }
                Some(_) => {}
                None => {
                    warn!(%path, %next_hop, "the next hop does not answer; copies go to where it was last")
                }
            }
        }
        Ok(())
    }

    fn start_receiver(&mut self) -> Result<()> {
        let config = &self.config;
        let pins = config.pins.join(&config.name);
        fs::create_dir_all(&pins).with_context(|| {
            format!(
                "cannot create {}: is a bpf file system mounted? (`mount -t bpf bpf /sys/fs/bpf`)",
                pins.display()
            )
        })?;
        let mut receiver = load_receiver(config.port, pins)?;
        for (path, description) in &config.paths {
            receiver.set_path(*path, Some(description.local))?;
        }
        for (flow, keys) in &config.receive {
            receiver.set_flow(*flow, Some(keys))?;
        }
        for (prefix, rules) in &config.receive_selectors {
            receiver.select_transparent(*prefix, rules)?;
        }
        let interfaces: BTreeSet<_> = config.paths.values().map(|path| path.interface.as_str()).collect();
        for name in interfaces {
            refuse_reverse_path_filter(name)?;
            let interface = interface::find(name)?;
            receiver.attach(interface.index, config.xdp)?;
            info!(interface = name, "eliminating copies");
        }
        self.receiver = Some(receiver);
        Ok(())
    }

    fn start_sender(&mut self) -> Result<()> {
        let mut sender = Sender::load(&SenderOptions { port: self.config.port })?;
        let used: BTreeSet<PathId> =
            self.config.send.values().flat_map(|flow| flow.policy.paths().iter()).collect();
        for (path, description) in &self.config.paths {
            match resolve(description) {
                Ok(resolved) => {
                    sender.set_path(*path, Some(resolved))?;
                    self.resolved.insert(*path, resolved);
                }
                Err(error) if used.contains(path) => return Err(error.context(format!("{path}"))),
                Err(error) => warn!(%path, "not usable now: {error:#}"),
            }
        }
        for (flow, description) in &self.config.send {
            sender.set_flow(*flow, &session(description)?)?;
            sender.set_policy(*flow, description.policy, self.epoch)?;
        }
        for (prefix, rules) in &self.config.send_selectors {
            sender.select(*prefix, rules)?;
            warn_of_large_packets(*prefix, &sender, rules);
        }
        for name in &self.config.transit {
            sender.attach_transit(interface::find(name)?.index, self.config.xdp)?;
            info!(interface = name, "replicating transit traffic");
        }
        for (number, name) in self.config.local.iter().enumerate() {
            let device = interface::find(name)?;
            let segmenter = segmenter::Segmenter::create(&device, number)?;
            let ends = Loop { device: device.index, entry: segmenter.entry(), exit: segmenter.exit() };
            sender.attach_loop(ends)?;
            sender.attach_local(device.index)?;
            self._segmenters.push(segmenter);
            info!(interface = name, "replicating local traffic");
        }
        self.sender = Some(sender);
        Ok(())
    }
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

/// What the kernel needs to know of a path, from the routing and neighbour tables.
fn resolve(path: &PathConfig) -> Result<SendPath> {
    let interface = interface::find(&path.interface)?;
    let mtu_bytes = match path.mtu_bytes {
        Some(mtu) => mtu,
        None => u16::try_from(interface.mtu_bytes).unwrap_or(u16::MAX),
    };
    Ok(SendPath {
        ifindex: interface.index,
        local: path.local,
        remote: path.remote,
        source_mac: interface.mac,
        next_hop_mac: interface::neighbour(next_hop(path)?, &interface)?,
        mtu_bytes,
    })
}

fn next_hop(path: &PathConfig) -> Result<std::net::IpAddr> {
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
    let strict = |scope: &str| {
        let file = Path::new("/proc/sys/net/ipv4/conf").join(scope).join("rp_filter");
        fs::read_to_string(file).is_ok_and(|value| value.trim() == "1")
    };
    if strict(interface) || strict("all") {
        bail!(
            "{interface} has a strict reverse path filter, which drops what arrives by other paths than the route back; \
             run `sysctl -w net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.{interface}.rp_filter=2`"
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
