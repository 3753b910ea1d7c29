use crate::attachments::{Attachments, Programs, TcPrograms};
use crate::keys::shim_keys;
use crate::pins::Pins;
use crate::reason::reasons;
use crate::selector::{Prefix, Rule, select};
use crate::skeleton::dedup::{DedupSkel, DedupSkelBuilder, types};
use crate::skeleton::dedup_link::{DedupLinkSkel, DedupLinkSkelBuilder, types as link_types};
use crate::{Arrivals, AttachError, LoadError, Reason, ReceiveHook};
use hawser_kernel::address::{address, family_and_address};
use hawser_kernel::plain;
use hawser_kernel::program::{RunError, TestRun, fd, open, test_run};
use hawser_kernel::table::{Table, TableError, share_tables, value_of};
use hawser_shim::echo::Echo;
use hawser_shim::{Cover, SealRing};
use hawser_units::{FlowId, MAX_FLOWS, MAX_PATHS, PathId};
use libbpf_rs::skel::{OpenSkel, Skel};
use libbpf_rs::{MapCore, MapFlags, Object};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

plain!(
    types::rx_flow,
    types::rx_path,
    types::rx_stats,
    types::rx_destination,
    types::seen_echo
);

/// Options for loading a receiver.
#[derive(Debug, Clone)]
pub struct ReceiverOptions {
    /// UDP port that replicas are addressed to.
    pub port: u16,
    /// How long a copy of a transparent packet is remembered; less than 4 hours.
    pub transparent_within: Duration,
    /// The maximum time that a tagged copy may take in excess of the fastest one.
    pub max_age: Duration,
    /// Key of the fingerprints of transparent packets, unless there are pins with the key of an
    /// earlier process. Random, so that an attacker cannot construct two packets with the same
    /// fingerprint.
    pub fingerprint_key: [u64; 2],
    /// Number of CPUs, counted from the first, whose arrivals are recorded; at least one. Each takes
    /// 2 MiB. The records of other CPUs count as [`Arrivals::overflowed`].
    pub recording_cpus: u32,
    /// Directory in a bpf file system that preserves tables and attachments when the process exits;
    /// `None` if they end with it.
    pub pins: Option<PathBuf>,
}

/// Writes options into the constants of an object, whose types are in the module `$types`.
macro_rules! write_constants {
    ($options:expr, $types:ident, $constants:expr) => {{
        let (options, constants): (&ReceiverOptions, &mut $types::rodata) = ($options, $constants);
        constants.port = options.port;
        constants.transparent_within_ms =
            u32::try_from(options.transparent_within.as_millis()).unwrap_or(u32::MAX);
        constants.max_age_us = u32::try_from(options.max_age.as_micros()).unwrap_or(u32::MAX);
    }};
}

/// An echo request that arrived at the port of replicas. Anybody may have sent it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenEcho {
    /// The address that it was sent to.
    pub local: IpAddr,
    /// The address that it was sent from.
    pub remote: IpAddr,
    /// The payload of the datagram.
    pub bytes: [u8; Echo::LEN],
}

/// Counters of one flow on one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RxStats {
    /// Copies with a valid shim and tag.
    pub packets: u64,
    /// Bytes of their inner packets.
    pub bytes: u64,
    /// Copies passed on, including the late, reset and contended ones.
    pub first: u64,
    /// Copies dropped because another copy had arrived.
    pub duplicates: u64,
    /// Untagged copies passed on although they are older than the window.
    pub late: u64,
    /// Copies passed on because the session was unknown or the sequence number jumped.
    pub reset: u64,
    /// Copies passed on because two CPUs raced too often.
    pub contended: u64,
    /// Copies dropped because the tag was wrong or missing, or covers too little.
    pub tag_failures: u64,
    /// Tagged copies dropped because they are older than the window remembers, or of an ended
    /// session.
    pub outdated: u64,
    /// Tagged copies dropped because they were sent too long ago.
    pub expired: u64,
}

/// Deduplication of replicas at an egress edge.
pub struct Receiver {
    pub(crate) skeleton: DedupSkel<'static>,
    /// The programs at TC. Loaded when one is first needed.
    link: Option<DedupLinkSkel<'static>>,
    options: ReceiverOptions,
    attachments: Attachments,
    replaced: Vec<String>,
}

impl Receiver {
    /// Loads the program. With `pins`, it takes over the packet history of an earlier process,
    /// whose program continues to deduplicate with its own paths and flows until
    /// [`attach`](Receiver::attach).
    pub fn load(options: &ReceiverOptions) -> Result<Self, LoadError> {
        let failed = LoadError::of("dedup");
        let mut open = open::<DedupSkelBuilder>().map_err(&failed)?;
        let constants = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the program has constants");
        write_constants!(options, types, constants);
        let rings = &mut open.maps.arrivals;
        rings
            .set_max_entries(options.recording_cpus.max(1))
            .map_err(&failed)?;
        let pins = options.pins.clone().map(Pins::at);
        let replaced = match &pins {
            Some(pins) => pins.reuse_tables(open.open_object_mut())?,
            None => Vec::new(),
        };
        let skeleton = open.load().map_err(&failed)?;
        let key = &skeleton.maps.fingerprint_key;
        if key.get::<[u64; 2]>(0)? == [0; 2] {
            key.set(&0u32, &options.fingerprint_key)?;
        }
        Ok(Receiver {
            skeleton,
            link: None,
            options: options.clone(),
            attachments: Attachments::new(pins),
            replaced,
        })
    }

    /// Sets the address that replicas on `path` are sent to; `None` removes the path.
    pub fn set_path(&self, path: PathId, local: Option<IpAddr>) -> Result<(), TableError> {
        let (family, address) = local.map_or((0, [0; 16]), family_and_address);
        self.skeleton.maps.rx_paths.set(
            &(path.index() as u32),
            &types::rx_path {
                family,
                reserved: 0,
                local: address,
            },
        )
    }

    /// Accepts replicas of `flow`, tagged with one of `keys` if there are any; `None` removes the
    /// flow.
    ///
    /// The replay window is kept while keys are replaced one at a time. It is cleared when the new
    /// keys have none in common with the previous ones, which means that the flow has another
    /// sender.
    pub fn set_flow(&self, flow: FlowId, keys: Option<&SealRing>) -> Result<(), TableError> {
        let row = keys.map_or_else(Default::default, flow_row);
        self.skeleton
            .maps
            .rx_flows
            .set(&(flow.index() as u32), &row)?;
        let before: types::rx_flow = self.skeleton.maps.rx_senders.get(flow.index() as u32)?;
        // The program of an earlier process keeps filling the windows of its flows until this one
        // is attached.
        let is_settled = self.attachments.is_active() || before.configured == 0;
        if is_settled {
            self.claim_window(flow, &row)
        } else {
            Ok(())
        }
    }

    /// Makes sure that the window of a flow belongs to the flow's sender.
    fn claim_window(&self, flow: FlowId, row: &types::rx_flow) -> Result<(), TableError> {
        // The window of a flow that is no longer received stays: the flow may come back.
        if row.configured == 0 {
            return Ok(());
        }
        let senders = &self.skeleton.maps.rx_senders;
        let index = flow.index() as u32;
        if !has_same_sender(&senders.get(index)?, row) {
            self.clear_window(flow)?;
        }
        senders.set(&index, row)
    }

    fn clear_window(&self, flow: FlowId) -> Result<(), TableError> {
        let windows = &self.skeleton.maps.windows;
        let empty = vec![0; size_of::<types::window>()];
        let index = (flow.index() as u32).to_ne_bytes();
        windows
            .update(&index, &empty, MapFlags::ANY)
            .map_err(|source| windows.failed(source))
    }

    /// Sets the rules that assign packets to a prefix to transparent flows, see
    /// [`crate::Sender::select`].
    pub fn select_transparent(&self, prefix: Prefix, rules: &[Rule]) -> Result<(), TableError> {
        select(&self.skeleton.maps.selectors, prefix, rules)
    }

    /// Starts deduplication on the interfaces that paths arrive on: on all of them, or on none, and
    /// then earlier processes' attachments stay unchanged. An attachment of theirs gets this
    /// program, with the paths, flows and keys of this receiver, without missing a packet. An
    /// attachment has to be made again only if its hook differs; returns these interfaces, and how
    /// long each had no program.
    pub fn attach<H: Into<ReceiveHook> + Copy>(
        &mut self,
        interfaces: &[(u32, H)],
    ) -> Result<Vec<(u32, Duration)>, AttachError> {
        let interfaces = interfaces
            .iter()
            .map(|(ifindex, hook)| (*ifindex, (*hook).into()))
            .collect::<Vec<(u32, ReceiveHook)>>();
        let at_tc = |(_, hook): &&(u32, ReceiveHook)| matches!(hook, ReceiveHook::Tc { .. });
        if let (None, Some((ifindex, _))) = (&self.link, interfaces.iter().find(at_tc)) {
            let loaded = load_link(&self.options, self.skeleton.object());
            self.link = Some(loaded.map_err(|error| AttachError::Other {
                ifindex: *ifindex,
                source: io::Error::other(error),
            })?);
        }
        let programs = Programs {
            xdp: fd(&self.skeleton.progs.dedup),
            tc: self.link.as_ref().map(|link| TcPrograms {
                with_ethernet: fd(&link.progs.dedup_frame),
                without_ethernet: fd(&link.progs.dedup_link),
            }),
        };
        let switched = self
            .attachments
            .attach(programs, self.skeleton.object(), &interfaces)?;
        for flow in (0..MAX_FLOWS as u16).filter_map(|index| FlowId::try_from(index).ok()) {
            let keep =
                || self.claim_window(flow, &self.skeleton.maps.rx_flows.get(flow.index() as u32)?);
            keep().map_err(|error| AttachError::Other {
                ifindex: interfaces.first().map_or(0, |(ifindex, _)| *ifindex),
                source: io::Error::other(error),
            })?;
        }
        Ok(switched)
    }

    /// Returns whether the program is attached to an interface: another process may have detached it.
    pub fn is_attached(&self, ifindex: u32) -> bool {
        self.attachments.is_attached(ifindex)
    }

    /// Ends the deduplication on all but these interfaces. Returns the others.
    pub fn keep_only(&mut self, interfaces: &BTreeSet<u32>) -> io::Result<Vec<u32>> {
        self.attachments.keep_only(interfaces)
    }

    /// Ends the deduplication that earlier processes left on interfaces that this one is not
    /// attached to. Returns these interfaces.
    pub fn release_others(&self) -> io::Result<Vec<u32>> {
        self.attachments.release_others()
    }

    /// Returns the names of the tables that were replaced because their layout has changed since an
    /// earlier process pinned them. Their counters restart, and the second copy of a packet in
    /// flight may pass.
    pub fn replaced_tables(&self) -> &[String] {
        &self.replaced
    }

    /// Ends deduplication everywhere and removes the pins. Dropping the receiver leaves pinned
    /// parts in place.
    pub fn detach(self) -> io::Result<()> {
        self.attachments.detach()
    }

    /// Returns the counters of one flow on one path, summed over CPUs.
    pub fn stats(&self, flow: FlowId, path: PathId) -> Result<RxStats, TableError> {
        let index = (flow.index() * MAX_PATHS + path.index()) as u32;
        let rows = self
            .skeleton
            .maps
            .rx_stats
            .per_cpu::<types::rx_stats>(index)?;
        let sum = |field: fn(&types::rx_stats) -> u64| rows.iter().map(field).sum();
        Ok(RxStats {
            packets: sum(|row| row.packets),
            bytes: sum(|row| row.bytes),
            first: sum(|row| row.first),
            duplicates: sum(|row| row.duplicates),
            late: sum(|row| row.late),
            reset: sum(|row| row.reset),
            contended: sum(|row| row.contended),
            tag_failures: sum(|row| row.tag_failures),
            outdated: sum(|row| row.outdated),
            expired: sum(|row| row.expired),
        })
    }

    /// Returns the destination of the last packet of a flow that this receiver has passed to the kernel.
    pub fn last_destination(&self, flow: FlowId) -> Result<Option<IpAddr>, TableError> {
        let table = &self.skeleton.maps.rx_destinations;
        let last: types::rx_destination = table.get(flow.index() as u32)?;
        Ok((last.family != 0).then(|| address(last.family, last.address)))
    }

    /// Returns the echo requests that arrived at the port of replicas after the first `count` ones,
    /// whether the node's firewall lets them in or not, and sets `count` to their number until now. Only
    /// the last 256 are kept.
    pub fn seen_echoes(&self, count: &mut u64) -> Result<Vec<SeenEcho>, TableError> {
        const COUNT_BYTES: usize = size_of::<u64>();
        let table = &self.skeleton.maps.rx_echoes;
        let found = table.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        let found = found.map_err(|source| table.failed(source))?;
        let found = found.unwrap_or_else(|| vec![0; size_of::<types::seen_echoes>()]);
        let rows: Vec<types::seen_echo> = found[COUNT_BYTES..]
            .chunks_exact(size_of::<types::seen_echo>())
            .map(value_of)
            .collect();
        let now = value_of::<u64>(&found);
        let oldest = now.saturating_sub(rows.len() as u64);
        // After a replacement of the table, the requests are counted from 0.
        let first = if *count > now {
            oldest
        } else {
            oldest.max(*count)
        };
        *count = now;
        let seen = (first..now).map(|at| {
            let row = &rows[at as usize % rows.len()];
            SeenEcho {
                local: address(row.family, row.local),
                remote: address(row.family, row.remote),
                bytes: row.bytes,
            }
        });
        Ok(seen.collect())
    }

    /// Returns the number of frames that were not handled as replicas, by reason.
    pub fn reasons(&self) -> Result<Vec<(Reason, u64)>, TableError> {
        reasons(&self.skeleton.maps.reasons)
    }

    /// Returns the programs and their tables, for measurements.
    pub fn programs(&self) -> &Object {
        self.skeleton.object()
    }

    /// Returns the reader of arrival records. There must be only one.
    pub fn arrivals(&self) -> Result<Arrivals, TableError> {
        Arrivals::map(&self.skeleton.maps.arrivals)
    }

    /// Runs the XDP program on a frame without a network.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        test_run(&self.skeleton.progs.dedup, frame, repeat)
    }
}

/// Loads the programs at TC, with the tables of the other one.
fn load_link(options: &ReceiverOptions, xdp: &Object) -> Result<DedupLinkSkel<'static>, LoadError> {
    let failed = LoadError::of("dedup_link");
    let mut open = open::<DedupLinkSkelBuilder>().map_err(&failed)?;
    let constants = open.maps.rodata_data.as_deref_mut();
    let constants = constants.expect("the program has constants");
    write_constants!(options, link_types, constants);
    share_tables(open.open_object_mut(), xdp).map_err(&failed)?;
    open.load().map_err(&failed)
}

fn flow_row(keys: &SealRing) -> types::rx_flow {
    let mut row = types::rx_flow {
        configured: 1,
        ..Default::default()
    };
    row.demands_whole = (keys.required_cover == Cover::Whole).into();
    for (slot, key) in keys.slots.iter().enumerate() {
        if let Some(key) = key {
            row.keys_valid |= 1 << slot;
            row.keys[slot] = shim_keys!(types, key);
        }
    }
    row
}

fn has_same_sender(before: &types::rx_flow, now: &types::rx_flow) -> bool {
    let keys = |row: &types::rx_flow| -> Vec<[u64; 2]> {
        let valid = row
            .keys
            .iter()
            .enumerate()
            .filter(|(slot, _)| row.keys_valid & 1 << slot != 0);
        valid.map(|(_, key)| [key.seal.k0, key.seal.k1]).collect()
    };
    let (before_keys, keys) = (keys(before), keys(now));
    let shares_key = before_keys.iter().any(|key| keys.contains(key));
    before.configured != 0 && (shares_key || before_keys.is_empty() && keys.is_empty())
}
