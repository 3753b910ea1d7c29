mod own;

pub use own::{Endpoint, MANAGEMENT_PORTS};

use crate::device_drops::DeviceDrops;
use crate::keys::shim_keys;
use crate::path_errors::PathErrors;
use crate::path_sets::PathSets;
use crate::policy::Policies;
use crate::reason::reasons;
use crate::selection::{MAX_SELECTORS, Selection};
use crate::selector::{Prefix, Rule};
use crate::signals::Signals;
use crate::skeleton::replicate_tc::{ReplicateTcSkel, ReplicateTcSkelBuilder, types as tc_types};
use crate::skeleton::replicate_xdp::types::{self, flow_flag, limit, path_flag, route_flag};
use crate::skeleton::replicate_xdp::{ReplicateXdpSkel, ReplicateXdpSkelBuilder};
use crate::{
    AttachError, Link, LoadError, PathError, PolicyError, REASONS, Reason, SendPolicy,
    SignalEvents, SignalOptions, SignalOutcome, SignalsError, XdpMode,
};
use hawser_kernel::address::family_and_address;
use hawser_kernel::plain;
use hawser_kernel::program::{RunError, TestRun, fd, open, test_run};
use hawser_kernel::shared::Shared;
use hawser_kernel::table::{Table, TableError, bytes_of, share_tables, value_of};
use hawser_shim::{Cover, KeySlot, OVERHEAD_V4, OVERHEAD_V6, SealKey, Shim};
use hawser_units::{FlowId, MAX_FLOWS, MAX_PATHS, PathId, PathSet};
use libbpf_rs::Object;
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;
use libbpf_rs::skel::{OpenSkel, Skel};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

plain!(
    types::tx_flow,
    types::tx_path,
    types::tx_stats,
    types::route,
    types::missed,
    tc_types::transit,
    tc_types::loop_device
);

const FLOW_TRANSPARENT: u8 = flow_flag::FLOW_TRANSPARENT.0 as u8;
const FLOW_TAGGED: u8 = flow_flag::FLOW_TAGGED.0 as u8;
const FLOW_KEY_SLOT: u8 = flow_flag::FLOW_KEY_SLOT.0 as u8;
const FLOW_WHOLE: u8 = flow_flag::FLOW_WHOLE.0 as u8;
const ROUTE_OUTER_IPV6: u8 = route_flag::ROUTE_OUTER_IPV6.0 as u8;
const ROUTE_CLONED: u8 = route_flag::ROUTE_CLONED.0 as u8;
const PATH_UNCHECKED: u8 = path_flag::PATH_UNCHECKED.0 as u8;

/// The reasons of copies that a program has made, and that their device did not take.
const BY_DEVICE: [types::reason; 2] = [
    types::reason::DROPPED_BY_QUEUE,
    types::reason::DROPPED_CLONE_FAILED,
];

/// The reasons of copies that a program has not made.
const BY_PROGRAM: [types::reason; 4] = [
    types::reason::DROPPED_PATH_NOT_CONFIGURED,
    types::reason::DROPPED_NO_ROOM,
    types::reason::DROPPED_REFUSED,
    types::reason::DROPPED_MALFORMED,
];

const _: () = assert!(limit::MAX_PATHS.0 as usize == MAX_PATHS);
const _: () = assert!(limit::MAX_FLOWS.0 as usize == MAX_FLOWS);

/// Number of packets of a flow that an ICMP error may be late: those of a second at 1 Mpacket/s.
const LATELY_SENT: u64 = 1 << 20;

/// Options for loading a sender.
#[derive(Debug, Clone)]
pub struct SenderOptions {
    /// Source and destination UDP port of replicas.
    pub port: u16,
    /// Offset in microseconds that is added to the time since boot (`CLOCK_BOOTTIME`) to form send
    /// times. They must be greater than those of every earlier sender.
    pub clock_offset_micros: u64,
    /// The paths that may be configured later. The kernel verifies one program for each.
    pub paths: PathSet,
    /// Whether traffic that passes through this node may be replicated later.
    pub transit: bool,
    /// Whether traffic that this node itself sends may be replicated later.
    pub local: bool,
}

impl SenderOptions {
    /// Returns whether a program of `replicate_xdp` is needed. Verifying programs takes most of the
    /// loading time.
    fn uses(&self, program: &OsStr) -> bool {
        match program.to_str() {
            Some("replicate") => self.transit,
            Some("replicate_looped") => self.local,
            _ => PathId::all()
                .all(|path| self.paths.contains(path) || program != &*path_program(path)),
        }
    }
}

/// One path to the receiving node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendPath {
    /// The interface that copies leave by.
    pub ifindex: u32,
    /// Source address of the outer header, of the same family as the destination.
    pub local: IpAddr,
    /// Destination of the outer header.
    pub remote: IpAddr,
    /// MAC address of the interface.
    pub source_mac: [u8; 6],
    /// MAC address of the next hop.
    pub next_hop_mac: [u8; 6],
    /// Largest outer IP packet, bytes.
    pub mtu_bytes: u16,
    /// Whether the interface accepts frames that XDP redirects to it. Copies of a flow are clones,
    /// made at TC, if the interface of one of its paths does not.
    pub takes_frames: bool,
    /// Whether the interface leads into a tunnel. Copies have no UDP checksum there: the program of a tunnel
    /// may join datagrams with checksums to trains, which nothing takes apart at the other end.
    pub is_tunnel: bool,
}

/// A flow that is replicated.
#[derive(Debug, Clone)]
pub struct SendFlow {
    /// The receiver's number for the flow.
    pub label: FlowId,
    /// Whether copies are transparent, as in the paper: nothing is added to the packet.
    pub transparent: bool,
    /// The key of the shims' tags, the receiver's slot for it, and the part of the packet that tags
    /// cover.
    pub key: Option<(KeySlot, SealKey, Cover)>,
    /// The first sequence number of this session, above all numbers of earlier sessions.
    pub first_sequence: u64,
}

/// A pair of virtual devices that segments GSO packets, so that they can be replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loop {
    /// The interface that the packets were routed to, or arrived on.
    pub device: u32,
    /// The end that receives the GSO packets; its segmentation and checksum offloads are off.
    pub entry: u32,
    /// The other end, whose program replicates.
    pub exit: u32,
}

/// Counters of a flow, or of a flow on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TxStats {
    /// Packets of a flow, or copies on a path.
    pub packets: u64,
    /// Bytes of inner packets.
    pub bytes: u64,
}

/// Packets to a destination of flows that matched none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missed {
    /// Their number.
    pub packets: u64,
    /// The destination of the last one.
    pub destination: IpAddr,
    /// The number of its protocol.
    pub protocol: u8,
    /// Its destination port, if it has one.
    pub port: Option<u16>,
}

/// Replication at an ingress edge.
pub struct Sender {
    pub(crate) xdp: ReplicateXdpSkel<'static>,
    pub(crate) tc: ReplicateTcSkel<'static>,
    /// The links that direct traffic into the loops, with the interface of each. Detached before
    /// the loops are.
    entrances: Vec<(u32, Link)>,
    /// The other programs, with the interface of each.
    links: Vec<(u32, Link)>,
    /// The loops of local traffic, by the interface that their packets were routed to.
    loops: BTreeMap<u32, Loop>,
    /// The loops of transit traffic, by the interface that their packets arrived on.
    transit_loops: BTreeMap<u32, Loop>,
    /// Every flow that was ever configured.
    flows: BTreeSet<FlowId>,
    paths: [Option<SendPath>; MAX_PATHS],
    selection: Selection,
    own_endpoints: BTreeSet<Endpoint>,
    policies: Policies,
    /// The routes, by policy code. Each is written with one store because the programs read them
    /// concurrently.
    routes: Shared<AtomicU64>,
    sets: PathSets,
    signals: Signals,
    drops: DeviceDrops,
    path_errors: PathErrors,
    /// Copies that devices dropped which the path used earlier, by path.
    dropped_before: [u64; MAX_PATHS],
    /// The most copies that were known to be missing behind the first program, by path.
    missing: [AtomicU64; MAX_PATHS],
    port: u16,
}

impl Sender {
    /// Loads the programs. Their attachments end with the process. The paths' devices are those of
    /// the calling thread's network namespace.
    pub fn load(options: &SenderOptions) -> Result<Self, LoadError> {
        let xdp = load_xdp(options)?;
        let tc = load_tc(options, xdp.object())?;
        Ok(Sender {
            policies: Policies::map(&xdp.maps.policies)?,
            routes: Shared::map(&xdp.maps.routes)?,
            sets: PathSets::create(&xdp.maps.path_sets)?,
            signals: Signals::load(xdp.object())?,
            drops: DeviceDrops::watch(xdp.object(), options.port)?,
            path_errors: PathErrors::load(xdp.object(), options.port)?,
            xdp,
            tc,
            entrances: Vec::new(),
            links: Vec::new(),
            loops: BTreeMap::new(),
            transit_loops: BTreeMap::new(),
            flows: BTreeSet::new(),
            paths: [None; MAX_PATHS],
            selection: Selection::new(),
            own_endpoints: BTreeSet::new(),
            dropped_before: [0; MAX_PATHS],
            missing: Default::default(),
            port: options.port,
        })
    }

    /// Configures a path, or removes it, while traffic flows. A flow that has no path left takes
    /// the default route.
    ///
    /// # Panics
    /// If `path` is not in [`SenderOptions::paths`].
    pub fn set_path(
        &mut self,
        path: PathId,
        description: Option<SendPath>,
    ) -> Result<(), TableError> {
        let before = self.paths[path.index()];
        match description {
            Some(end) => self.add_path(path, end)?,
            None => self.remove_path(path)?,
        }
        if let Some(before) = before {
            self.stop_counting_drops(path, before.ifindex)?;
        }
        Ok(())
    }

    fn add_path(&mut self, path: PathId, end: SendPath) -> Result<(), TableError> {
        let index = path.index() as u32;
        let table = &self.xdp.maps.tx_paths;
        table.set(&index, &end.row(self.port))?;
        let name = path_program(path);
        let mut programs = self.xdp.object().progs();
        let program = programs
            .find(|program| program.name() == &*name && program.autoload())
            .expect("a path of the options");
        self.sets.set(path, Some((end.ifindex, fd(&program))))?;
        self.drops.add(end.ifindex)?;
        self.paths[path.index()] = Some(end);
        self.write_routes();
        Ok(())
    }

    fn remove_path(&mut self, path: PathId) -> Result<(), TableError> {
        // Routes first: packets that are broadcast to a set without paths are lost.
        self.paths[path.index()] = None;
        self.write_routes();
        self.sets.set(path, None)?;
        let table = &self.xdp.maps.tx_paths;
        table.set(&(path.index() as u32), &types::tx_path::default())
    }

    /// Saves a device's drop count once no path uses the device any more.
    fn stop_counting_drops(&mut self, path: PathId, ifindex: u32) -> Result<(), TableError> {
        if self
            .paths
            .iter()
            .flatten()
            .all(|path| path.ifindex != ifindex)
        {
            self.dropped_before[path.index()] += self.drops.remove(ifindex)?;
        }
        Ok(())
    }

    /// Configures a flow and starts a new session of it. The policy stays the same.
    pub fn set_flow(&mut self, flow: FlowId, description: &SendFlow) -> Result<(), TableError> {
        self.flows.insert(flow);
        self.update_flow(flow, description)?;
        self.xdp
            .maps
            .sequences
            .set(&(flow.index() as u32), &description.first_sequence)
    }

    /// Replaces the configuration of a flow while traffic flows. Its session continues.
    pub fn update_flow(&self, flow: FlowId, description: &SendFlow) -> Result<(), TableError> {
        let mut row: types::tx_flow = self.xdp.maps.tx_flows.get(flow.index() as u32)?;
        row.configured = 1;
        row.flow = description.label.into();
        row.flags = description.flags();
        if let Some((slot, key, _)) = &description.key {
            row.keys[slot.index()] = shim_keys!(types, key);
        }
        self.xdp.maps.tx_flows.set(&(flow.index() as u32), &row)
    }

    /// Removes a flow. Its packets take the default route, and no signal changes that.
    pub fn remove_flow(&mut self, flow: FlowId) -> Result<(), TableError> {
        let (rows, index) = (&self.xdp.maps.tx_flows, flow.index() as u32);
        // Packets that a program is processing are still sealed with the right key.
        rows.set(
            &index,
            &types::tx_flow {
                configured: 0,
                ..rows.get(index)?
            },
        )?;
        self.policies
            .replace(flow, SendPolicy::default())
            .expect("nothing is probed");
        rows.set(&index, &types::tx_flow::default())
    }

    /// Sets the rules that assign packets to a prefix to flows, replacing the prefix's previous
    /// rules. Only the longest matching prefix is considered. Packets that no router would forward
    /// belong to no flow.
    ///
    /// # Panics
    /// If there are more than [`crate::MAX_RULES`] rules.
    pub fn select(&mut self, prefix: Prefix, rules: &[Rule]) -> Result<(), TableError> {
        self.selection
            .select(&self.xdp.maps.selectors, prefix, rules)
    }

    /// Makes packets to these prefixes, which are for peers, count as [missed](Self::missed) where no flow selects them.
    pub fn expect(&mut self, prefixes: BTreeSet<Prefix>) -> Result<(), TableError> {
        self.selection.expect(&self.xdp.maps.selectors, prefixes)
    }

    /// Puts a policy into force while traffic flows, unless the current one has the same or a
    /// greater epoch. Returns whether it did.
    pub fn set_policy(&self, flow: FlowId, policy: SendPolicy) -> Result<bool, PolicyError> {
        self.policies.advance(flow, policy)
    }

    /// Puts a policy into force regardless of the current one's epoch.
    pub fn replace_policy(&self, flow: FlowId, policy: SendPolicy) -> Result<(), PolicyError> {
        self.policies.replace(flow, policy)
    }

    /// Returns the policy in force, whether a signal or this process set it.
    pub fn policy_in_force(&self, flow: FlowId) -> SendPolicy {
        self.policies.get(flow)
    }

    /// Returns the largest packet of a flow, in bytes, that fits all paths of its policy; `None` if no
    /// path is available. Larger packets are replicated on the paths that they fit.
    pub fn inner_mtu_bytes(&self, flow: FlowId) -> Result<Option<u16>, TableError> {
        let word = self
            .route(self.policies.get(flow).code.0)
            .load(Ordering::Relaxed);
        let route: types::route = value_of(&word.to_ne_bytes());
        let row: types::tx_flow = self.xdp.maps.tx_flows.get(flow.index() as u32)?;
        let transparent = row.flags & FLOW_TRANSPARENT != 0;
        let mtu_bytes = if transparent {
            route.path_mtu_bytes
        } else {
            route.inner_mtu_bytes
        };
        Ok((route.inner_mtu_bytes != 0).then_some(mtu_bytes))
    }

    /// Lets in-band signals change policies. Replaces the interfaces and addresses of the last
    /// call.
    pub fn enable_signals(&mut self, options: &SignalOptions) -> Result<(), SignalsError> {
        self.signals.enable(options)
    }

    /// Stops processing in-band signals. The kernel then handles them like any other packet.
    pub fn disable_signals(&mut self) {
        self.signals.disable();
    }

    /// Returns the reader of signal outcomes. There must be only one.
    pub fn signal_events(&self) -> Result<SignalEvents, TableError> {
        self.signals.events()
    }

    /// Returns the number of signals with each outcome.
    pub fn signal_counts(&self) -> Result<Vec<(SignalOutcome, u64)>, TableError> {
        self.signals.counts()
    }

    /// Returns whether transit frames to other hosts' link-layer addresses are recognised and not
    /// replicated. The programs need Linux 6.2 or later to see an interface's own address.
    /// Multicast and broadcast frames are never replicated.
    pub fn detects_foreign_frames(&self) -> bool {
        const NEEDED: [&str; 2] = ["bpf_cast_to_kern_ctx", "bpf_rdonly_cast"];
        let has = |kernel: &Btf<'_>| {
            NEEDED
                .iter()
                .all(|name| kernel.type_by_name::<Func<'_>>(name).is_some())
        };
        Btf::from_vmlinux().is_ok_and(|kernel| has(&kernel))
    }

    /// Starts replicating the packets that arrive on an interface and pass through this node, in
    /// native XDP. Packets whose copies are clones are left to
    /// [`attach_transit_loop`](Self::attach_transit_loop).
    pub fn attach_transit(&mut self, ifindex: u32) -> Result<(), AttachError> {
        let program = fd(&self.xdp.progs.replicate);
        let link = Link::xdp(program, ifindex, XdpMode::Native)?;
        self.links.push((ifindex, link));
        Ok(())
    }

    /// Starts replicating the packets that arrive on `ends.device` and pass through this node, at
    /// TC. If there is an XDP program of [`attach_transit`](Self::attach_transit) too, this
    /// concerns only packets whose copies are clones.
    pub fn attach_transit_loop(&mut self, ends: Loop) -> Result<(), AttachError> {
        let failed = failed_at(ends.device);
        self.remove_transit_loop(ends.device).map_err(&failed)?;
        let behind_xdp = self
            .links
            .iter()
            .any(|(ifindex, _)| *ifindex == ends.device);
        self.attach_exit(ends, true, false)?;
        self.transit_loops.insert(ends.device, ends);
        let row = tc_types::transit {
            entry: ends.entry,
            behind_xdp: behind_xdp.into(),
        };
        let table = &self.tc.maps.transits;
        table.set(&ends.device, &row).map_err(&failed)?;
        let program = fd(&self.tc.progs.replicate_transit);
        let link = Link::tcx_ingress(program, ends.device)?;
        self.entrances.push((ends.device, link));
        Ok(())
    }

    /// Starts replicating the packets that this node itself sends by an interface.
    pub fn attach_local(&mut self, ifindex: u32) -> Result<(), AttachError> {
        self.entrances.push((
            ifindex,
            Link::tcx_egress(fd(&self.tc.progs.replicate_local), ifindex)?,
        ));
        Ok(())
    }

    /// Stops replicating at TC. Loops still process the packets inside them.
    pub fn close_loops(&mut self) {
        self.entrances.clear();
    }

    /// Directs GSO packets that would leave by `ends.device` through a loop, which segments them
    /// first.
    pub fn attach_loop(&mut self, ends: Loop) -> Result<(), AttachError> {
        let failed = failed_at(ends.device);
        self.remove_loop(ends.device).map_err(&failed)?;
        let program = fd(&self.xdp.progs.replicate_looped);
        // Without XDP, as with a large MTU, the program at TC makes all copies.
        let behind_xdp = match Link::xdp(program, ends.exit, XdpMode::Native) {
            Ok(exit) => {
                self.links.push((ends.exit, exit));
                true
            }
            Err(error) if error.refusal().is_some() => false,
            Err(error) => return Err(error),
        };
        self.attach_exit(ends, false, behind_xdp)?;
        self.loops.insert(ends.device, ends);
        self.tc
            .maps
            .loops
            .set(&ends.device, &ends.entry)
            .map_err(failed)
    }

    /// Attaches the TC program to the exit of a loop, `behind_xdp` if an XDP program is attached there.
    fn attach_exit(
        &mut self,
        ends: Loop,
        is_transit: bool,
        behind_xdp: bool,
    ) -> Result<(), AttachError> {
        let link = Link::tcx_ingress(fd(&self.tc.progs.replicate_exit), ends.exit)?;
        self.links.push((ends.exit, link));
        let row = tc_types::loop_device {
            ifindex: ends.device,
            is_transit: is_transit.into(),
            behind_xdp: behind_xdp.into(),
        };
        let table = &self.tc.maps.loop_devices;
        table.set(&ends.exit, &row).map_err(failed_at(ends.device))
    }

    /// Returns whether all programs of an interface and its loops are attached: another process may have
    /// detached some.
    pub fn is_attached(&self, ifindex: u32) -> bool {
        let loops = [&self.loops, &self.transit_loops];
        let exits = loops.map(|loops| loops.get(&ifindex).map(|ends| ends.exit));
        let is_of = |number: u32| number == ifindex || exits.contains(&Some(number));
        let links = self.links.iter().chain(&self.entrances);
        let mut links = links.filter(|(number, _)| is_of(*number));
        links.all(|(_, link)| link.is_attached())
    }

    /// Detaches everything from an interface and removes its loops. Also call this for an interface
    /// that no longer exists: the kernel does not reuse interface numbers, so its table entries
    /// would accumulate.
    pub fn detach(&mut self, ifindex: u32) -> Result<(), TableError> {
        Link::end_all(&mut self.entrances, ifindex);
        Link::end_all(&mut self.links, ifindex);
        self.remove_loop(ifindex)?;
        self.remove_transit_loop(ifindex)
    }

    fn remove_loop(&mut self, device: u32) -> Result<(), TableError> {
        let Some(ends) = self.loops.remove(&device) else {
            return Ok(());
        };
        self.tc.maps.loops.remove(&ends.device)?;
        self.remove_exit(ends)
    }

    fn remove_transit_loop(&mut self, device: u32) -> Result<(), TableError> {
        let Some(ends) = self.transit_loops.remove(&device) else {
            return Ok(());
        };
        self.tc.maps.transits.remove(&ends.device)?;
        self.remove_exit(ends)
    }

    fn remove_exit(&mut self, ends: Loop) -> Result<(), TableError> {
        self.tc.maps.loop_devices.remove(&ends.exit)?;
        Link::end_all(&mut self.links, ends.exit);
        Ok(())
    }

    /// Returns the counters of a flow, summed over CPUs.
    pub fn flow_stats(&self, flow: FlowId) -> Result<TxStats, TableError> {
        sum(&self.xdp.maps.tx_flow_stats, flow.index())
    }

    /// Returns the counters of a flow's copies on a path, summed over CPUs.
    pub fn path_stats(&self, flow: FlowId, path: PathId) -> Result<TxStats, TableError> {
        sum(
            &self.xdp.maps.tx_path_stats,
            flow.index() * MAX_PATHS + path.index(),
        )
    }

    /// Returns the copies of all flows that a path's device dropped because it was down or its
    /// queue was full. Never less than before. A lower bound while traffic flows.
    pub fn device_drops(&self, path: PathId) -> Result<u64, TableError> {
        let missing = &self.missing[path.index()];
        // A copy between the programs seems to be missing, but rarely twice in a row.
        let now = self.missing(path)?.min(self.missing(path)?);
        let missing = missing.fetch_max(now, Ordering::Relaxed).max(now);
        let refused = BY_DEVICE.map(|reason| self.lost(path, reason));
        let dropped_now = match self.paths[path.index()] {
            Some(path) => self.drops.count(path.ifindex)?.unwrap_or(0),
            None => 0,
        };
        let refused = refused.into_iter().sum::<Result<u64, _>>()?;
        Ok(missing + refused + self.dropped_before[path.index()] + dropped_now)
    }

    /// Returns the copies on a path that the first program has counted, and that are not counted
    /// behind it.
    fn missing(&self, path: PathId) -> Result<u64, TableError> {
        // Read the counters of the last stage last, so that a copy in transit is not taken for a
        // dropped one.
        let mut to_send = 0;
        for paths in (0..=u8::MAX).filter(|paths| PathSet::from_bits(*paths).contains(path)) {
            to_send += sum(&self.xdp.maps.tx_set_stats, usize::from(paths))?.packets;
        }
        let mut counted = 0;
        for flow in &self.flows {
            counted += self.path_stats(*flow, path)?.packets;
        }
        for reason in BY_PROGRAM {
            counted += self.lost(path, reason)?;
        }
        Ok(to_send.saturating_sub(counted))
    }

    fn lost(&self, path: PathId, code: types::reason) -> Result<u64, TableError> {
        let index = path.index() * REASONS.len() + code.0 as usize;
        let lost = &self.xdp.maps.lost_copies;
        Ok(lost.per_cpu::<u64>(index as u32)?.iter().sum())
    }

    /// Returns the number of copies that did not leave by a path, by reason, as far as the programs
    /// know it. [`reasons`](Self::reasons) includes them.
    pub fn lost_copies(&self, path: PathId) -> Result<Vec<(Reason, u64)>, TableError> {
        let count = |code: types::reason| {
            let reason = REASONS[code.0 as usize];
            Ok((reason, self.lost(path, code)?))
        };
        BY_DEVICE.into_iter().chain(BY_PROGRAM).map(count).collect()
    }

    /// Returns the copies that were not sent on a path because they are larger than its MTU.
    pub fn too_large(&self, path: PathId) -> Result<u64, TableError> {
        let rows = self
            .xdp
            .maps
            .tx_too_large
            .per_cpu::<u64>(path.index() as u32)?;
        Ok(rows.iter().sum())
    }

    /// Listens for ICMP errors about copies on these interfaces, and on no others.
    ///
    /// # Errors
    /// [`AttachError::NoTcx`] before Linux 6.6.
    pub fn watch_path_errors(&mut self, interfaces: &[u32]) -> Result<(), AttachError> {
        self.path_errors.attach(interfaces)
    }

    /// Returns whether the program that listens for ICMP errors is still attached to an interface. `None`
    /// if it has not been.
    pub fn hears_path_errors(&self, ifindex: u32) -> Option<bool> {
        self.path_errors.is_attached(ifindex)
    }

    /// Returns the ICMP errors since the last call, except those that quote a shim that this sender
    /// has not sent lately.
    pub fn path_errors(&mut self) -> Result<Vec<PathError>, TableError> {
        let heard = self.path_errors.drain();
        let mut believed = Vec::new();
        for error in heard {
            let is_ours = match &error.shim {
                Some(shim) => shim.path == error.path && self.has_sent_lately(shim)?,
                None => true,
            };
            believed.extend(is_ours.then_some(error));
        }
        Ok(believed)
    }

    /// Returns whether a shim has one of the last numbers of a flow.
    fn has_sent_lately(&self, shim: &Shim) -> Result<bool, TableError> {
        for flow in &self.flows {
            let index = flow.index() as u32;
            let row: types::tx_flow = self.xdp.maps.tx_flows.get(index)?;
            let next: u64 = self.xdp.maps.sequences.get(index)?;
            let age = next.wrapping_sub(shim.sequence);
            if row.configured != 0
                && row.flow == u16::from(shim.flow)
                && (1..=LATELY_SENT).contains(&age)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the number of frames that were not replicated, by reason.
    pub fn reasons(&self) -> Result<Vec<(Reason, u64)>, TableError> {
        reasons(&self.xdp.maps.reasons)
    }

    /// Returns the packets to a destination of flows that matched none of them; `None` if there were
    /// none.
    pub fn missed(&self) -> Result<Option<Missed>, TableError> {
        let row: types::missed = self.xdp.maps.tx_missed.get(0)?;
        Ok((row.packets > 0).then(|| Missed {
            packets: row.packets,
            destination: Ipv6Addr::from(row.destination).to_canonical(),
            protocol: row.protocol,
            port: (row.destination_port != 0).then_some(row.destination_port),
        }))
    }

    /// Returns the programs for transit traffic and their tables, for measurements.
    pub fn transit_programs(&self) -> &Object {
        self.xdp.object()
    }

    /// Returns the program for locally generated traffic, for measurements.
    pub fn local_program(&self) -> BorrowedFd<'_> {
        fd(&self.tc.progs.replicate_local)
    }

    /// Runs the transit program on a frame without a network. The resulting frame is `[handover |
    /// shim | packet]` for the paths' programs.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        test_run(&self.xdp.progs.replicate, frame, repeat)
    }

    /// Runs the program for locally generated traffic on a frame.
    pub fn run_local(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        test_run(&self.tc.progs.replicate_local, frame, repeat)
    }

    /// Runs the program that receives ICMP errors on a frame.
    pub fn run_path_error(&self, frame: &[u8]) -> Result<TestRun, RunError> {
        self.path_errors.run(frame)
    }

    /// Runs the program for in-band signals on a frame.
    pub fn run_signal(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        self.signals.run(frame, repeat)
    }

    fn route(&self, code: u8) -> &AtomicU64 {
        // SAFETY: an aligned row of the mapping, which both sides access as one word.
        unsafe { &*self.routes.row(usize::from(code)) }
    }

    /// Recomputes the route of every policy code from the configured paths.
    fn write_routes(&self) {
        for code in 0..=u8::MAX {
            let route = bytes_of(&self.route_of(PathSet::from_bits(code)))
                .try_into()
                .expect("a route is one word");
            self.route(code)
                .store(u64::from_ne_bytes(route), Ordering::Release);
        }
    }

    /// Returns the route over those of the paths that are configured.
    fn route_of(&self, paths: PathSet) -> types::route {
        let configured = paths
            .iter()
            .filter_map(|path| Some((path, self.paths[path.index()]?)));
        let (paths, ends): (Vec<_>, Vec<_>) = configured.unzip();
        let over_ipv6 = paths
            .iter()
            .zip(&ends)
            .filter(|(_, end)| end.local.is_ipv6());
        let ipv6_paths = over_ipv6.map(|(path, _)| *path).collect::<PathSet>();
        let is_cloned = ends.iter().any(|end| !end.takes_frames);
        types::route {
            inner_mtu_bytes: ends
                .iter()
                .map(SendPath::inner_mtu_bytes)
                .min()
                .unwrap_or(0),
            path_mtu_bytes: ends.iter().map(|end| end.mtu_bytes).min().unwrap_or(0),
            paths: PathSet::from_iter(paths).bits(),
            flags: flag(ipv6_paths != PathSet::EMPTY, ROUTE_OUTER_IPV6)
                | flag(is_cloned, ROUTE_CLONED),
            ipv6_paths: ipv6_paths.bits(),
            ..Default::default()
        }
    }
}

/// Returns a flag of a table's row if a condition holds, and else no flag.
fn flag(holds: bool, flag: u8) -> u8 {
    if holds { flag } else { 0 }
}

impl SendFlow {
    fn flags(&self) -> u8 {
        let sealed = self.key.as_ref().map_or(0, |(slot, _, cover)| {
            FLOW_TAGGED
                | flag(*slot == KeySlot::One, FLOW_KEY_SLOT)
                | flag(*cover == Cover::Whole, FLOW_WHOLE)
        });
        flag(self.transparent, FLOW_TRANSPARENT) | sealed
    }
}

/// Loads the programs for transit traffic, the paths and the loops.
fn load_xdp(options: &SenderOptions) -> Result<ReplicateXdpSkel<'static>, LoadError> {
    let failed = LoadError::of("replicate_xdp");
    let mut open = open::<ReplicateXdpSkelBuilder>().map_err(&failed)?;
    let rodata = open.maps.rodata_data.as_deref_mut();
    let constants = rodata.expect("the program has constants");
    constants.port = options.port;
    constants.clock_offset_us = options.clock_offset_micros;
    open.maps
        .selectors
        .set_max_entries(MAX_SELECTORS)
        .map_err(&failed)?;
    for mut program in open.open_object_mut().progs_mut() {
        let is_used = options.uses(program.name());
        program.set_autoload(is_used);
    }
    open.load().map_err(&failed)
}

/// Loads the programs for locally generated traffic, with the tables of the others.
fn load_tc(options: &SenderOptions, xdp: &Object) -> Result<ReplicateTcSkel<'static>, LoadError> {
    let failed = LoadError::of("replicate_tc");
    let mut open = open::<ReplicateTcSkelBuilder>().map_err(&failed)?;
    let rodata = open.maps.rodata_data.as_deref_mut();
    let constants = rodata.expect("the program has constants");
    constants.port = options.port;
    constants.clock_offset_us = options.clock_offset_micros;
    for mut program in open.open_object_mut().progs_mut() {
        let is_transit = program.name() == "replicate_transit";
        program.set_autoload(!is_transit || options.transit);
    }
    share_tables(open.open_object_mut(), xdp).map_err(&failed)?;
    open.load().map_err(&failed)
}

/// Returns a function that makes a failure of a table one of attaching to an interface.
fn failed_at(ifindex: u32) -> impl Fn(TableError) -> AttachError {
    move |error| AttachError::Other {
        ifindex,
        source: io::Error::other(error),
    }
}

/// Returns the name of the program that writes the headers of a path.
fn path_program(path: PathId) -> String {
    format!("path_{}", path.index())
}

impl SendPath {
    fn row(&self, port: u16) -> types::tx_path {
        let mut row = types::tx_path {
            ifindex: self.ifindex,
            port_be: port.to_be(),
            ..Default::default()
        };
        let (family, local) = family_and_address(self.local);
        row.family = u8::try_from(family).expect("the kernel's families are small numbers");
        row.local = local;
        row.flags = if self.is_tunnel { PATH_UNCHECKED } else { 0 };
        (_, row.remote) = family_and_address(self.remote);
        row.macs.source = self.source_mac;
        row.macs.next_hop = self.next_hop_mac;
        row.mtu_bytes = self.mtu_bytes;
        row.inner_mtu_bytes = self.inner_mtu_bytes();
        row
    }

    /// Returns the size of the largest packet that fits the path with the outer headers, bytes.
    pub fn inner_mtu_bytes(&self) -> u16 {
        let overhead = if self.local.is_ipv6() {
            OVERHEAD_V6
        } else {
            OVERHEAD_V4
        };
        self.mtu_bytes.saturating_sub(overhead as u16)
    }
}

fn sum(table: &impl Table, index: usize) -> Result<TxStats, TableError> {
    let rows = table.per_cpu::<types::tx_stats>(index as u32)?;
    Ok(TxStats {
        packets: rows.iter().map(|row| row.packets).sum(),
        bytes: rows.iter().map(|row| row.bytes).sum(),
    })
}
