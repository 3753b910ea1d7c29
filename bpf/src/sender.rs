use crate::device_drops::DeviceDrops;
use crate::own::Endpoint;
use crate::path_sets::PathSets;
use crate::policy::Policies;
use crate::program::{RunError, TestRun, fd, log_libbpf, test_run};
use crate::receiver::shim_keys;
use crate::selection::{MAX_SELECTORS, Selection};
use crate::selector::{Prefix, Rule};
use crate::shared::Shared;
use crate::signals::Signals;
use crate::skeleton::replicate_tc::{ReplicateTcSkel, ReplicateTcSkelBuilder};
use crate::skeleton::replicate_xdp::{ReplicateXdpSkel, ReplicateXdpSkelBuilder, types};
use crate::table::{Table, TableError, bytes_of, plain, reasons, share_tables, value_of};
use crate::{
    AttachError, Link, LoadError, PolicyError, Reason, SendPolicy, SignalEvents, SignalOptions,
    SignalOutcome, SignalsError, XdpMode,
};
use hawser_units::{FlowId, MAX_PATHS, PathId, PathSet};
use hawser_wire::{Cover, KeySlot, OVERHEAD_V4, OVERHEAD_V6, SealKey};
use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

plain!(
    types::tx_flow,
    types::tx_path,
    types::tx_stats,
    types::route
);

const FLOW_TRANSPARENT: u8 = 0x1;
const FLOW_TAGGED: u8 = 0x2;
const FLOW_KEY_SLOT: u8 = 0x4;
const FLOW_WHOLE: u8 = 0x8;
const ROUTE_OUTER_IPV6: u8 = 0x1;

/// How a sender is loaded.
#[derive(Debug, Clone)]
pub struct SenderOptions {
    /// UDP port that replicas come from and go to.
    pub port: u16,
    /// What is added to the microseconds since the machine started (`CLOCK_BOOTTIME`) for send times, which must be greater
    /// than those of every sender before.
    pub clock_offset_micros: u64,
    /// The paths that may be described later: the kernel verifies a program for each.
    pub paths: PathSet,
    /// Whether what passes through this node may be replicated later.
    pub transit: bool,
    /// Whether what this node itself sends may be replicated later.
    pub local: bool,
}

impl SenderOptions {
    /// Whether a program of `replicate_xdp` is needed. Most of the time of loading goes into verifying programs.
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
    /// The interface that it leaves by.
    pub ifindex: u32,
    /// Source of the outer header; the family of both addresses is the same.
    pub local: IpAddr,
    /// Destination of the outer header.
    pub remote: IpAddr,
    /// MAC address of the interface.
    pub source_mac: [u8; 6],
    /// MAC address of the next hop.
    pub next_hop_mac: [u8; 6],
    /// Largest outer IP packet, bytes.
    pub mtu_bytes: u16,
}

/// A flow that is replicated.
#[derive(Debug, Clone)]
pub struct SendFlow {
    /// The receiver's number for it.
    pub label: FlowId,
    /// The paper's form: nothing is added to the packet.
    pub transparent: bool,
    /// The key that shims are tagged with, the receiver's slot for it, and what tags cover.
    pub key: Option<(KeySlot, SealKey, Cover)>,
    /// Where this session starts to count: above all numbers of the sessions before.
    pub first_sequence: u64,
}

/// A pair of virtual devices that cuts trains of segments from local senders, so that they can be replicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loop {
    /// The interface that the packets were to leave by.
    pub device: u32,
    /// The end that takes the trains; its segmentation and checksum offloads are off.
    pub entry: u32,
    /// The other end, which replicates.
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

/// Replication at an ingress edge.
pub struct Sender {
    pub(crate) xdp: ReplicateXdpSkel<'static>,
    pub(crate) tc: ReplicateTcSkel<'static>,
    /// What sends local traffic into the loops, with the interface of each: ends before they do.
    local: Vec<(u32, Link)>,
    /// The other programs, with the interface of each.
    links: Vec<(u32, Link)>,
    /// By the interface that their packets were to leave by.
    loops: BTreeMap<u32, Loop>,
    /// Every flow that was ever described.
    flows: BTreeSet<FlowId>,
    paths: [Option<SendPath>; MAX_PATHS],
    pub(crate) selection: Selection,
    pub(crate) own_endpoints: BTreeSet<Endpoint>,
    policies: Policies,
    /// By code; written with one store each, as the programs read them while packets fly.
    routes: Shared<AtomicU64>,
    sets: PathSets,
    signals: Signals,
    drops: DeviceDrops,
    /// By path: copies that the devices refused by which it left before.
    dropped_before: [u64; MAX_PATHS],
    pub(crate) port: u16,
}

impl Sender {
    /// Loads the programs. Their attachments end with the process. Devices of paths are those of the calling thread's network
    /// namespace.
    pub fn load(options: &SenderOptions) -> Result<Self, LoadError> {
        log_libbpf();
        // The skeletons borrow their objects; a process loads one of each, so the few bytes may stay until it ends.
        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let failed = LoadError::of("replicate_xdp");
        let mut open = ReplicateXdpSkelBuilder::default()
            .open(storage)
            .map_err(&failed)?;
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the program has constants");
        rodata.port = options.port;
        rodata.clock_offset_us = options.clock_offset_micros;
        open.maps
            .selectors
            .set_max_entries(MAX_SELECTORS)
            .map_err(&failed)?;
        for mut program in open.open_object_mut().progs_mut() {
            let is_used = options.uses(program.name());
            program.set_autoload(is_used);
        }
        let xdp = open.load().map_err(&failed)?;

        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let failed = LoadError::of("replicate_tc");
        let mut open = ReplicateTcSkelBuilder::default()
            .open(storage)
            .map_err(&failed)?;
        let rodata = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the program has constants");
        rodata.port = options.port;
        rodata.clock_offset_us = options.clock_offset_micros;
        share_tables(open.open_object_mut(), xdp.object()).map_err(&failed)?;
        let tc = open.load().map_err(&failed)?;
        Ok(Sender {
            policies: Policies::map(&xdp.maps.policies)?,
            routes: Shared::map(&xdp.maps.routes)?,
            sets: PathSets::create(&xdp.maps.path_sets)?,
            signals: Signals::load(xdp.object())?,
            xdp,
            tc,
            local: Vec::new(),
            links: Vec::new(),
            loops: BTreeMap::new(),
            flows: BTreeSet::new(),
            paths: [None; MAX_PATHS],
            selection: Selection::new(),
            own_endpoints: BTreeSet::new(),
            drops: DeviceDrops::watch()?,
            dropped_before: [0; MAX_PATHS],
            port: options.port,
        })
    }

    /// Describes a path, or takes it out, while packets fly. A flow without any path left takes the default route.
    ///
    /// # Panics
    /// With a path that [`SenderOptions::paths`] does not have.
    pub fn set_path(
        &mut self,
        path: PathId,
        description: Option<SendPath>,
    ) -> Result<(), TableError> {
        let index = path.index();
        let before = self.paths[index];
        match description {
            Some(end) => {
                self.xdp
                    .maps
                    .tx_paths
                    .set(&(index as u32), &end.row(self.port))?;
                let name = path_program(path);
                let program = self
                    .xdp
                    .object()
                    .progs()
                    .find(|program| program.name() == &*name);
                let program = program
                    .filter(|program| program.autoload())
                    .expect("a path of the options");
                self.sets.set(path, Some((end.ifindex, fd(&program))))?;
                self.drops.add(end.ifindex)?;
                self.paths[index] = description;
                self.write_routes();
            }
            None => {
                // Routes first: what is broadcast to a set without paths is lost.
                self.paths[index] = None;
                self.write_routes();
                self.sets.set(path, None)?;
                self.xdp
                    .maps
                    .tx_paths
                    .set(&(index as u32), &types::tx_path::default())?;
            }
        }
        if let Some(before) = before {
            self.end_count(path, before.ifindex)?;
        }
        Ok(())
    }

    /// Keeps what a device has refused, when no path leaves by it any more.
    fn end_count(&mut self, path: PathId, ifindex: u32) -> Result<(), TableError> {
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

    /// Describes a flow and starts a new session of it; the policy stays as it is.
    pub fn set_flow(&mut self, flow: FlowId, description: &SendFlow) -> Result<(), TableError> {
        self.flows.insert(flow);
        self.update_flow(flow, description)?;
        self.xdp
            .maps
            .sequences
            .set(&(flow.index() as u32), &description.first_sequence)
    }

    /// Replaces the description of a flow while packets fly; its session goes on.
    pub fn update_flow(&self, flow: FlowId, description: &SendFlow) -> Result<(), TableError> {
        let mut row: types::tx_flow = self.xdp.maps.tx_flows.get(flow.index() as u32)?;
        row.configured = 1;
        row.flow = description.label.into();
        row.flags = if description.transparent {
            FLOW_TRANSPARENT
        } else {
            0
        };
        if let Some((slot, key, cover)) = &description.key {
            row.flags |= FLOW_TAGGED
                | if *slot == KeySlot::One {
                    FLOW_KEY_SLOT
                } else {
                    0
                };
            row.flags |= if *cover == Cover::Whole {
                FLOW_WHOLE
            } else {
                0
            };
            row.keys[slot.index()] = shim_keys!(types, key);
        }
        self.xdp.maps.tx_flows.set(&(flow.index() as u32), &row)
    }

    /// Forgets a flow: its packets take the default route, and no signal changes that.
    pub fn remove_flow(&mut self, flow: FlowId) -> Result<(), TableError> {
        let (rows, index) = (&self.xdp.maps.tx_flows, flow.index() as u32);
        // Packets that a program is at now are still sealed as they should be.
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

    /// Which packets to a prefix are of which flow; replaces what the prefix had. The longest prefix decides alone. What no
    /// router would forward is of no flow.
    ///
    /// # Panics
    /// With more than [`crate::MAX_RULES`] rules.
    pub fn select(&mut self, prefix: Prefix, rules: &[Rule]) -> Result<(), TableError> {
        self.selection
            .select(&self.xdp.maps.selectors, prefix, rules)
    }

    /// Puts a policy into force while packets fly, unless the one in force has the same epoch or a greater one; whether
    /// it did.
    pub fn set_policy(&self, flow: FlowId, policy: SendPolicy) -> Result<bool, PolicyError> {
        self.policies.advance(flow, policy)
    }

    /// Puts a policy into force whatever epoch the one before had.
    pub fn replace_policy(&self, flow: FlowId, policy: SendPolicy) -> Result<(), PolicyError> {
        self.policies.replace(flow, policy)
    }

    /// The policy in force, whether a signal or this process has set it.
    pub fn policy_in_force(&self, flow: FlowId) -> SendPolicy {
        self.policies.get(flow)
    }

    /// The largest packet of a flow that is replicated under its policy; `None` when it has no path to take.
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

    /// Lets in-band signals change policies; those that were taken before are taken no more unless they are named again.
    pub fn enable_signals(&mut self, options: &SignalOptions) -> Result<(), SignalsError> {
        self.signals.enable(options)
    }

    /// Leaves in-band signals to the kernel, which knows nothing of them.
    pub fn disable_signals(&mut self) {
        self.signals.disable();
    }

    /// The reader of what became of signals. There is to be one.
    pub fn signal_events(&self) -> Result<SignalEvents, TableError> {
        self.signals.events()
    }

    /// How many signals had which outcome.
    pub fn signal_counts(&self) -> Result<Vec<(SignalOutcome, u64)>, TableError> {
        self.signals.counts()
    }

    /// Whether transit frames to other hosts' link-layer addresses are left alone: only since Linux 6.2 can the programs see
    /// an interface's own. Frames to groups of hosts always are.
    pub fn tells_foreign_frames(&self) -> bool {
        const NEEDED: [&str; 2] = ["bpf_cast_to_kern_ctx", "bpf_rdonly_cast"];
        let has = |kernel: &Btf<'_>| {
            NEEDED
                .iter()
                .all(|name| kernel.type_by_name::<Func<'_>>(name).is_some())
        };
        Btf::from_vmlinux().is_ok_and(|kernel| has(&kernel))
    }

    /// Starts to replicate what comes in by an interface and passes through this node.
    pub fn attach_transit(&mut self, ifindex: u32, mode: XdpMode) -> Result<(), AttachError> {
        self.links.push((
            ifindex,
            Link::xdp(fd(&self.xdp.progs.replicate), ifindex, mode)?,
        ));
        Ok(())
    }

    /// Starts to replicate what this node itself sends by an interface.
    pub fn attach_local(&mut self, ifindex: u32) -> Result<(), AttachError> {
        self.local.push((
            ifindex,
            Link::tcx_egress(fd(&self.tc.progs.replicate_local), ifindex)?,
        ));
        Ok(())
    }

    /// Stops to replicate what this node itself sends. Loops go on with what is in them.
    pub fn detach_local(&mut self) {
        self.local.clear();
    }

    /// Has trains of segments that are to leave by `ends.device` cut by a loop first.
    pub fn attach_loop(&mut self, ends: Loop) -> Result<(), AttachError> {
        let failed = |error| AttachError::Other {
            ifindex: ends.device,
            source: std::io::Error::other(error),
        };
        self.remove_loop(ends.device).map_err(failed)?;
        let exit = Link::xdp(
            fd(&self.xdp.progs.replicate_looped),
            ends.exit,
            XdpMode::Native,
        )?;
        let passing = Link::tcx_ingress(fd(&self.tc.progs.pass_looped), ends.exit)?;
        self.links.extend([(ends.exit, exit), (ends.exit, passing)]);
        self.loops.insert(ends.device, ends);
        self.tc
            .maps
            .loop_devices
            .set(&ends.exit, &ends.device)
            .map_err(failed)?;
        self.tc
            .maps
            .loops
            .set(&ends.device, &ends.entry)
            .map_err(failed)
    }

    /// Ends what is attached to an interface, and its loop. One that is gone has to be detached from too: numbers of
    /// interfaces do not come back, and what is kept of them would fill tables.
    pub fn detach(&mut self, ifindex: u32) -> Result<(), TableError> {
        self.local.retain(|(attached, _)| *attached != ifindex);
        self.links.retain(|(attached, _)| *attached != ifindex);
        self.remove_loop(ifindex)
    }

    fn remove_loop(&mut self, device: u32) -> Result<(), TableError> {
        let Some(ends) = self.loops.remove(&device) else {
            return Ok(());
        };
        self.tc.maps.loops.remove(&ends.device)?;
        self.tc.maps.loop_devices.remove(&ends.exit)?;
        self.links.retain(|(attached, _)| *attached != ends.exit);
        Ok(())
    }

    /// Counters of a flow, summed over CPUs.
    pub fn flow_stats(&self, flow: FlowId) -> Result<TxStats, TableError> {
        sum(&self.xdp.maps.tx_flow_stats, flow.index())
    }

    /// Counters of a flow's copies on a path, summed over CPUs.
    pub fn path_stats(&self, flow: FlowId, path: PathId) -> Result<TxStats, TableError> {
        sum(
            &self.xdp.maps.tx_path_stats,
            flow.index() * MAX_PATHS + path.index(),
        )
    }

    /// Copies of all flows that a path's device refused, being down or its queue full. A lower bound while packets fly.
    pub fn refused(&self, path: PathId) -> Result<u64, TableError> {
        // What is counted last may have moved on meanwhile, so that a copy on its way is not taken for a refused one.
        let mut to_send = 0;
        for paths in (0..=u8::MAX).filter(|paths| PathSet::from_bits(*paths).contains(path)) {
            to_send += sum(&self.xdp.maps.tx_set_stats, usize::from(paths))?.packets;
        }
        let mut handed_over = 0;
        for flow in &self.flows {
            handed_over += self.path_stats(*flow, path)?.packets;
        }
        let dropped_now = match self.paths[path.index()] {
            Some(path) => self.drops.count(path.ifindex)?.unwrap_or(0),
            None => 0,
        };
        let dropped = self.dropped_before[path.index()] + dropped_now;
        Ok(to_send.saturating_sub(handed_over) + dropped)
    }

    /// Frames that were not replicated, by reason.
    pub fn reasons(&self) -> Result<Vec<(Reason, u64)>, TableError> {
        reasons(&self.xdp.maps.reasons)
    }

    /// Runs the transit program on a frame without a network: what it leaves is `[handover | shim | packet]` for the
    /// paths.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        test_run(&self.xdp.progs.replicate, frame, repeat)
    }

    /// Runs the program for locally generated traffic on a frame.
    pub fn run_local(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        test_run(&self.tc.progs.replicate_local, frame, repeat)
    }

    /// Runs the program for in-band signals on a frame.
    pub fn run_signal(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        self.signals.run(frame, repeat)
    }

    fn route(&self, code: u8) -> &AtomicU64 {
        // SAFETY: an aligned row of the mapping, which both sides access as one word.
        unsafe { &*self.routes.row(usize::from(code)) }
    }

    /// Writes down what follows for every code from the paths as they are now.
    fn write_routes(&self) {
        for code in 0..=u8::MAX {
            let there = PathSet::from_bits(code)
                .iter()
                .filter(|path| self.paths[path.index()].is_some());
            let paths: PathSet = there.collect();
            let ends = || paths.iter().filter_map(|path| self.paths[path.index()]);
            let route = types::route {
                inner_mtu_bytes: ends().map(|path| path.inner_mtu_bytes()).min().unwrap_or(0),
                path_mtu_bytes: ends().map(|path| path.mtu_bytes).min().unwrap_or(0),
                paths: paths.bits(),
                flags: if ends().any(|path| path.local.is_ipv6()) {
                    ROUTE_OUTER_IPV6
                } else {
                    0
                },
                ..Default::default()
            };
            let word =
                u64::from_ne_bytes(bytes_of(&route).try_into().expect("a route is one word"));
            self.route(code).store(word, Ordering::Release);
        }
    }
}

/// The name of the program that writes the headers of a path.
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
        (row.family, row.local) = family_and_address(self.local);
        (_, row.remote) = family_and_address(self.remote);
        row.macs.source = self.source_mac;
        row.macs.next_hop = self.next_hop_mac;
        row
    }

    fn inner_mtu_bytes(&self) -> u16 {
        let overhead = if self.local.is_ipv6() {
            OVERHEAD_V6
        } else {
            OVERHEAD_V4
        };
        self.mtu_bytes.saturating_sub(overhead as u16)
    }
}

/// The address family's number, and the address in the first bytes of sixteen.
pub(crate) fn family_and_address(address: IpAddr) -> (u16, [u8; 16]) {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(v4) => {
            bytes[..4].copy_from_slice(&v4.octets());
            (libc::AF_INET as u16, bytes)
        }
        IpAddr::V6(v6) => (libc::AF_INET6 as u16, v6.octets()),
    }
}

fn sum(table: &impl Table, index: usize) -> Result<TxStats, TableError> {
    let rows = table.per_cpu::<types::tx_stats>(index as u32)?;
    Ok(TxStats {
        packets: rows.iter().map(|row| row.packets).sum(),
        bytes: rows.iter().map(|row| row.bytes).sum(),
    })
}
