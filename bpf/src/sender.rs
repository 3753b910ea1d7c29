use crate::device_drops::DeviceDrops;
use crate::program::{RunError, TestRun, fd, log_libbpf, test_run};
use crate::receiver::key_words;
use crate::selector::{Prefix, Rule, select};
use crate::shared::Shared;
use crate::skeleton::replicate_tc::{ReplicateTcSkel, ReplicateTcSkelBuilder};
use crate::skeleton::replicate_xdp::{ReplicateXdpSkel, ReplicateXdpSkelBuilder, types};
use crate::table::{Table, TableError, bytes_of, plain, reasons, share_tables, value_of};
use crate::{AttachError, Link, LoadError, Reason, XdpMode};
use hawser_units::{FlowId, MAX_PATHS, PathId, PathSet, PolicyCode};
use hawser_wire::{Key, KeySlot, OVERHEAD_V4, OVERHEAD_V6};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use std::collections::{BTreeSet, HashMap};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

plain!(types::tx_flow, types::tx_path, types::tx_stats, types::policy);

const FLOW_TRANSPARENT: u8 = 0x1;
const FLOW_TAGGED: u8 = 0x2;
const FLOW_KEY_SLOT: u8 = 0x4;
const POLICY_OUTER_IPV6: u8 = 0x1;

/// How a sender is loaded.
#[derive(Debug, Clone)]
pub struct SenderOptions {
    /// UDP port that replicas come from and go to.
    pub port: u16,
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
    /// The key that shims are tagged with, and the receiver's slot for it.
    pub key: Option<(KeySlot, Key)>,
    /// Where this session starts to count: a random number.
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
    links: Vec<Link>,
    /// Every flow that was ever described.
    flows: BTreeSet<FlowId>,
    paths: [Option<SendPath>; MAX_PATHS],
    /// Written with one store each, as the programs read them while packets fly.
    policies: Shared<AtomicU64>,
    /// The sets that policies name, by code.
    sets: HashMap<u8, MapHandle>,
    drops: DeviceDrops,
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
        let open = ReplicateXdpSkelBuilder::default().open(storage).map_err(&failed)?;
        let xdp = open.load().map_err(&failed)?;

        let storage = Box::leak(Box::new(MaybeUninit::uninit()));
        let failed = LoadError::of("replicate_tc");
        let mut open = ReplicateTcSkelBuilder::default().open(storage).map_err(&failed)?;
        open.maps.rodata_data.as_deref_mut().expect("the program has constants").port = options.port;
        share_tables(open.open_object_mut(), xdp.object()).map_err(&failed)?;
        let tc = open.load().map_err(&failed)?;
        Ok(Sender {
            policies: Shared::map(&xdp.maps.policies)?,
            xdp,
            tc,
            links: Vec::new(),
            flows: BTreeSet::new(),
            paths: [None; MAX_PATHS],
            sets: HashMap::new(),
            drops: DeviceDrops::watch()?,
            port: options.port,
        })
    }

    /// Describes a path, or takes it out. Sets and policies that hold it are replaced while packets fly; a flow without
    /// any path left takes the default route.
    pub fn set_path(&mut self, path: PathId, description: Option<SendPath>) -> Result<(), TableError> {
        let mut row = types::tx_path::default();
        if let Some(path) = &description {
            row.ifindex = path.ifindex;
            (row.family, row.local) = family_and_address(path.local);
            (_, row.remote) = family_and_address(path.remote);
            row.port_be = self.port.to_be();
            row.macs.source = path.source_mac;
            row.macs.next_hop = path.next_hop_mac;
        }
        self.xdp.maps.tx_paths.set(&(path.index() as u32), &row)?;
        if let Some(path) = &description {
            self.drops.add(path.ifindex)?;
        }
        self.paths[path.index()] = description;
        // No policy may name a set without paths: what is broadcast to nobody is lost.
        let holding: Vec<u8> =
            self.sets.keys().copied().filter(|code| code & 1 << path.index() != 0).collect();
        if description.is_none() {
            self.fit_policies();
        }
        holding.into_iter().try_for_each(|code| self.install_set(code))?;
        self.fit_policies();
        Ok(())
    }

    /// Describes a flow and starts a new session of it; the policy stays as it is.
    pub fn set_flow(&mut self, flow: FlowId, description: &SendFlow) -> Result<(), TableError> {
        self.flows.insert(flow);
        self.update_flow(flow, description)?;
        self.xdp.maps.sequences.set(&(flow.index() as u32), &description.first_sequence)
    }

    /// Replaces the description of a flow while packets fly; its session goes on.
    ///
    /// When the key changes, so must its slot: copies already on their way to a path are tagged with the old slot's key.
    pub fn update_flow(&self, flow: FlowId, description: &SendFlow) -> Result<(), TableError> {
        let mut row: types::tx_flow = self.xdp.maps.tx_flows.get(flow.index() as u32)?;
        row.flow = description.label.into();
        row.flags = if description.transparent { FLOW_TRANSPARENT } else { 0 };
        if let Some((slot, key)) = &description.key {
            row.flags |= FLOW_TAGGED | if *slot == KeySlot::One { FLOW_KEY_SLOT } else { 0 };
            let [k0, k1] = key_words(key);
            row.keys[slot.index()] = types::siphash_key { k0, k1 };
        }
        self.xdp.maps.tx_flows.set(&(flow.index() as u32), &row)
    }

    /// Which packets to a prefix are of which flow; replaces what the prefix had. The longest prefix decides alone.
    ///
    /// # Panics
    /// With more than [`crate::MAX_RULES`] rules.
    pub fn select(&self, prefix: Prefix, rules: &[Rule]) -> Result<(), TableError> {
        select(&self.xdp.maps.selectors, prefix, rules)
    }

    /// Sets the paths of a flow with one store, while packets fly. `epoch` tells receivers one policy from the next.
    pub fn set_policy(&mut self, flow: FlowId, code: PolicyCode, epoch: u8) -> Result<(), TableError> {
        let code = code.paths().bits();
        if code != 0 && !self.sets.contains_key(&code) {
            self.install_set(code)?;
        }
        self.store_policy(flow.index(), self.fitted(types::policy { code, epoch, ..Default::default() }));
        Ok(())
    }

    /// The largest packet of a flow that is replicated under its policy; `None` when it has no path to take.
    pub fn inner_mtu_bytes(&self, flow: FlowId) -> Result<Option<u16>, TableError> {
        let policy = self.policy(flow.index());
        let row: types::tx_flow = self.xdp.maps.tx_flows.get(flow.index() as u32)?;
        let transparent = row.flags & FLOW_TRANSPARENT != 0;
        let mtu_bytes = if transparent { policy.path_mtu_bytes } else { policy.inner_mtu_bytes };
        Ok((policy.inner_mtu_bytes != 0).then_some(mtu_bytes))
    }

    /// Starts to replicate what comes in by an interface and passes through this node.
    pub fn attach_transit(&mut self, ifindex: u32, mode: XdpMode) -> Result<(), AttachError> {
        self.links.push(Link::xdp(fd(&self.xdp.progs.replicate), ifindex, mode)?);
        Ok(())
    }

    /// Starts to replicate what this node itself sends by an interface.
    pub fn attach_local(&mut self, ifindex: u32) -> Result<(), AttachError> {
        self.links.push(Link::tcx_egress(fd(&self.tc.progs.replicate_local), ifindex)?);
        Ok(())
    }

    /// Has trains of segments that are to leave by `ends.device` cut by a loop first.
    pub fn attach_loop(&mut self, ends: Loop) -> Result<(), AttachError> {
        self.links.push(Link::xdp(fd(&self.xdp.progs.replicate_looped), ends.exit, XdpMode::Native)?);
        let set = |result: Result<(), TableError>| {
            result.map_err(|error| AttachError::Other {
                ifindex: ends.device,
                source: std::io::Error::other(error),
            })
        };
        self.links.push(Link::tcx_ingress(fd(&self.tc.progs.pass_looped), ends.exit)?);
        set(self.tc.maps.loop_devices.set(&ends.exit, &ends.device))?;
        set(self.tc.maps.loops.set(&ends.device, &ends.entry))
    }

    /// Counters of a flow, summed over CPUs.
    pub fn flow_stats(&self, flow: FlowId) -> Result<TxStats, TableError> {
        sum(&self.xdp.maps.tx_flow_stats, flow.index())
    }

    /// Counters of a flow's copies on a path, summed over CPUs.
    pub fn path_stats(&self, flow: FlowId, path: PathId) -> Result<TxStats, TableError> {
        sum(&self.xdp.maps.tx_path_stats, flow.index() * MAX_PATHS + path.index())
    }

    /// Copies of all flows that a path's device refused, being down or its queue full. A lower bound while packets fly.
    pub fn refused(&self, path: PathId) -> Result<u64, TableError> {
        // What is counted last may have moved on meanwhile, so that a copy on its way is not taken for a refused one.
        let mut to_send = 0;
        for code in self.sets.keys().filter(|code| **code & 1 << path.index() != 0) {
            to_send += sum(&self.xdp.maps.tx_code_stats, usize::from(*code))?.packets;
        }
        let mut handed_over = 0;
        for flow in &self.flows {
            handed_over += self.path_stats(*flow, path)?.packets;
        }
        let dropped = match self.paths[path.index()] {
            Some(path) => self.drops.count(path.ifindex)?.unwrap_or(0),
            None => 0,
        };
        Ok(to_send.saturating_sub(handed_over) + dropped)
    }

    /// Frames that were not replicated, by reason.
    pub fn reasons(&self) -> Result<Vec<(Reason, u64)>, TableError> {
        reasons(&self.xdp.maps.reasons)
    }

    /// Runs the transit program on a frame without a network: what it leaves is `[shim | packet]` for the paths.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        test_run(&self.xdp.progs.replicate, frame, repeat)
    }

    /// Runs the program for locally generated traffic on a frame.
    pub fn run_local(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        test_run(&self.tc.progs.replicate_local, frame, repeat)
    }

    fn policy(&self, flow: usize) -> types::policy {
        value_of(&self.policy_word(flow).load(Ordering::Relaxed).to_ne_bytes())
    }

    fn store_policy(&self, flow: usize, policy: types::policy) {
        let word = u64::from_ne_bytes(bytes_of(&policy).try_into().expect("a policy is one word"));
        self.policy_word(flow).store(word, Ordering::Release);
    }

    fn policy_word(&self, flow: usize) -> &AtomicU64 {
        // SAFETY: an aligned row of the mapping, which both sides access as one word.
        unsafe { &*self.policies.row(flow) }
    }

    fn fit_policies(&self) {
        for flow in 0..self.policies.len() {
            let policy = self.policy(flow);
            if policy.code != 0 {
                self.store_policy(flow, self.fitted(policy));
            }
        }
    }

    /// The policy with what follows from the paths of its code as they are now.
    fn fitted(&self, policy: types::policy) -> types::policy {
        let paths = || PathSet::from_bits(policy.code).iter().filter_map(|path| self.paths[path.index()]);
        types::policy {
            inner_mtu_bytes: paths().map(|path| path.inner_mtu_bytes()).min().unwrap_or(0),
            path_mtu_bytes: paths().map(|path| path.mtu_bytes).min().unwrap_or(0),
            flags: if paths().any(|path| path.local.is_ipv6()) { POLICY_OUTER_IPV6 } else { 0 },
            ..policy
        }
    }

    /// Fills the set of a code and puts it in place of what was there.
    fn install_set(&mut self, code: u8) -> Result<(), TableError> {
        let failed = |source| TableError { table: "path_set".to_owned(), source };
        let set = self.build_set(code).map_err(failed)?;
        self.xdp.maps.path_sets.set(&u32::from(code), &(set.as_fd().as_raw_fd() as u32))?;
        self.sets.insert(code, set);
        Ok(())
    }

    fn build_set(&self, code: u8) -> Result<MapHandle, libbpf_rs::Error> {
        let progs = &self.xdp.progs;
        let programs: [_; MAX_PATHS] = [
            &progs.path_0,
            &progs.path_1,
            &progs.path_2,
            &progs.path_3,
            &progs.path_4,
            &progs.path_5,
            &progs.path_6,
            &progs.path_7,
        ];
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as libbpf_rs::libbpf_sys::size_t,
            ..Default::default()
        };
        let set = MapHandle::create(MapType::Devmap, Some("path_set"), 4, 8, MAX_PATHS as u32, &options)?;
        for (index, program) in programs.into_iter().enumerate() {
            let Some(path) = self.paths[index].filter(|_| code & 1 << index != 0) else { continue };
            // struct bpf_devmap_val: the interface, then the program's descriptor
            let value = [path.ifindex, fd(program).as_raw_fd() as u32].map(u32::to_ne_bytes).concat();
            set.update(&(index as u32).to_ne_bytes(), &value, MapFlags::ANY)?;
        }
        Ok(set)
    }
}

impl SendPath {
    fn inner_mtu_bytes(&self) -> u16 {
        let overhead = if self.local.is_ipv6() { OVERHEAD_V6 } else { OVERHEAD_V4 };
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
