//! The relay: sends each packet of media that arrives to many subscribers, in the kernel.
//!
//! `docs/design/relay.md` describes the tables and gives the reasons. All decisions are specified by
//! `hawser_fanout`, which the program has to agree with.

mod reason;
mod records;
mod rows;
mod subscribers;

pub use reason::{Loss, Reason};
pub use records::{Arrival, Arrivals, Registrations};
pub use subscribers::{Route, SlotStats};

use crate::skeleton::relay::types::{self, relay_limit as Limit, relay_track_flag as Flag};
use crate::skeleton::relay::{RelaySkel, RelaySkelBuilder};
use crate::{AttachError, Link, LoadError, RunError, TestRun};
use hawser_fanout::{Frame, TrackHop, TrackIndex};
use hawser_kernel::address::mapped;
use hawser_kernel::keys::key_words;
use hawser_kernel::plain;
use hawser_kernel::program::{fd, open, summed_run, test_run};
use hawser_kernel::table::{Table, TableError};
use hawser_packets::media::Hop;
use libbpf_rs::skel::OpenSkel;
use rows::Rows;
use std::collections::BTreeMap;
use std::net::SocketAddr;

plain!(
    types::relay_endpoint,
    types::relay_session,
    types::relay_upstream,
    types::relay_alias,
);

/// The row of the counters of packets that belong to no track.
const NO_TRACK: u32 = Limit::RELAY_TRACKS.0;

/// Both ends of a session with an upstream or a subscriber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Session {
    /// This node's address.
    pub local: SocketAddr,
    /// The other end's address.
    pub remote: SocketAddr,
}

/// A publisher, or another relay, that sends media to this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// The relay's number of the upstream, to which track aliases belong.
    pub number: u32,
    /// The keys of its hop tags, such as the one before, the current one and the one after.
    pub hops: [Option<Hop>; 3],
}

/// The treatment of a track.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackOptions {
    /// The hop fields of the packets that leave.
    pub hop: TrackHop,
    /// Packets go to the relay's socket too, with the hop fields of those that leave. This includes
    /// those that are not forwarded because they were seen before or are outdated.
    pub copy: bool,
    /// Arrivals are recorded, see [`Arrivals`].
    pub arrivals: bool,
}

/// The program, its tables and attachments. They end with this value.
pub struct Relay {
    pub(crate) skeleton: RelaySkel<'static>,
    rows: Rows,
    links: BTreeMap<u32, Link>,
}

impl Relay {
    /// Loads the program. `datagram_bytes` is the length of the longest UDP payload that is relayed.
    pub fn load(datagram_bytes: u16) -> Result<Self, LoadError> {
        let failed = LoadError::of("relay");
        let mut open = open::<RelaySkelBuilder>().map_err(&failed)?;
        let constants = open
            .maps
            .rodata_data
            .as_deref_mut()
            .expect("the program has constants");
        constants.datagram_bytes = datagram_bytes;
        let skeleton = open.load().map_err(&failed)?;
        Ok(Relay {
            rows: Rows::map(&skeleton.maps)?,
            skeleton,
            links: BTreeMap::new(),
        })
    }

    /// Starts to relay what arrives on an interface.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), AttachError> {
        if !self.links.contains_key(&ifindex) {
            let link = Link::tcx_ingress(fd(&self.skeleton.progs.relay), ifindex)?;
            self.links.insert(ifindex, link);
        }
        Ok(())
    }

    /// Ends relaying what arrives on an interface.
    pub fn detach(&mut self, ifindex: u32) {
        if let Some(link) = self.links.remove(&ifindex) {
            link.end();
        }
    }

    /// Takes media at an address of this node. Media to it that is not from an upstream is dropped;
    /// everything else is passed to the socket.
    pub fn listen(&self, address: SocketAddr) -> Result<(), TableError> {
        let endpoints = &self.skeleton.maps.relay_endpoints;
        endpoints.set(&endpoint(address), &1u8)
    }

    /// Passes everything to an address of this node to its socket.
    pub fn unlisten(&self, address: SocketAddr) -> Result<(), TableError> {
        let endpoints = &self.skeleton.maps.relay_endpoints;
        endpoints.remove(&endpoint(address))
    }

    /// Takes media from the other end of a session, or no longer does.
    pub fn set_upstream(
        &self,
        session: &Session,
        upstream: Option<&Upstream>,
    ) -> Result<(), TableError> {
        let table = &self.skeleton.maps.relay_upstreams;
        let key = types::relay_session {
            remote: mapped(session.remote.ip()),
            local: mapped(session.local.ip()),
            remote_port_be: session.remote.port().to_be(),
            local_port_be: session.local.port().to_be(),
        };
        match upstream {
            Some(upstream) => table.set(&key, &upstream_row(upstream)),
            None => table.remove(&key),
        }
    }

    /// Gives a name at an upstream to a track; `None`: refuses packets of this name.
    pub fn name_track(
        &self,
        upstream: u32,
        alias: u32,
        track: Option<TrackIndex>,
    ) -> Result<(), TableError> {
        let table = &self.skeleton.maps.relay_aliases;
        let key = types::relay_alias { upstream, alias };
        match track {
            Some(track) => table.set(&key, &(track.get() as u32)),
            None => table.remove(&key),
        }
    }

    /// Starts to relay a track that nothing is known of and that nobody has subscribed to. It must
    /// have no name yet.
    pub fn add_track(&mut self, track: TrackIndex, options: &TrackOptions) {
        self.rows.clear_track(track);
        self.set_track(track, options);
    }

    /// Changes the treatment of a track.
    pub fn set_track(&mut self, track: TrackIndex, options: &TrackOptions) {
        let mut flags = Flag::TRACK_ACTIVE.0;
        for (is_set, flag) in [
            (options.copy, Flag::TRACK_COPY),
            (options.arrivals, Flag::TRACK_ARRIVALS),
        ] {
            if is_set {
                flags |= flag.0;
            }
        }
        self.rows.set_track(track, &options.hop, flags);
    }

    /// Ends relaying a track.
    pub fn remove_track(&mut self, track: TrackIndex) {
        self.rows.clear_track(track);
    }

    /// Says that an object was lost on its way here: what depends on it is sent to nobody. Objects that
    /// have begun are sent nevertheless.
    pub fn lose(&mut self, track: TrackIndex, frame: Frame, layer: u8) {
        self.rows.lose(track, frame, layer);
    }

    /// Returns the highest frame of a track of which an object has begun.
    pub fn newest(&self, track: TrackIndex) -> Option<Frame> {
        self.rows.newest(track)
    }

    /// Returns the outcomes of packets: those of a track, or those that belong to none.
    pub fn counts(&self, track: Option<TrackIndex>) -> Result<Vec<(Reason, u64)>, TableError> {
        let row = track.map_or(NO_TRACK, |track| track.get() as u32);
        let columns = Reason::ALL.len() as u32;
        let count = |reason: Reason| {
            let table = &self.skeleton.maps.relay_reasons;
            let counts = table.per_cpu::<u64>(row * columns + reason as u32)?;
            Ok((reason, counts.iter().sum()))
        };
        Reason::ALL.into_iter().map(count).collect()
    }

    /// Returns the reader of the records of objects. There must be only one.
    pub fn registrations(&self) -> Result<Registrations, TableError> {
        Registrations::map(&self.skeleton.maps.relay_registrations)
    }

    /// Returns the reader of the records of arrivals. There must be only one.
    pub fn arrivals(&self) -> Result<Arrivals, TableError> {
        Arrivals::map(&self.skeleton.maps.relay_arrivals)
    }

    /// Runs the program on a frame. Clones are sent by the slots' interfaces.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun, RunError> {
        test_run(&self.skeleton.progs.relay, frame, repeat)
    }

    /// As [`run`](Relay::run), for a packet of which a device has computed the sum of all bytes; an
    /// error if the sum is wrong afterwards.
    pub fn run_with_sum(&self, frame: &[u8]) -> Result<TestRun, RunError> {
        summed_run(&self.skeleton.progs.relay, frame)
    }
}

fn endpoint(address: SocketAddr) -> types::relay_endpoint {
    types::relay_endpoint {
        address: mapped(address.ip()),
        port_be: address.port().to_be(),
        reserved: [0; 2],
    }
}

fn upstream_row(upstream: &Upstream) -> types::relay_upstream {
    let mut row = types::relay_upstream {
        number: upstream.number,
        ..Default::default()
    };
    for (index, hop) in upstream.hops.iter().enumerate() {
        if let Some(hop) = hop {
            let [k0, k1] = key_words(&hop.key);
            row.keys[index] = types::siphash_key { k0, k1 };
            row.hops_be[index] = hop.number.to_be();
            row.keys_valid |= 1 << index;
        }
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_may_change_its_thread() {
        fn is_sent<T: Send>() {}
        is_sent::<Relay>();
        is_sent::<Arrivals>();
    }
}
