//! The sources of tracks: publishers and relays, and their addresses. They announce themselves again and again, and are
//! forgotten when they stop.
//!
//! As with the [liveness](crate::lease) of nodes, the controller that a node tells it to writes it under its
//! lease, for all controllers. Repetitions change only memory.

use crate::access::{Certified, Peer};
use crate::controller::Controller;
use crate::heard::Place;
use crate::limit::Checked;
use crate::record::{SourceRecord, emit, key};
use crate::refusal::{HandlerError, Refusal};
use crate::store::{Error, Expect, Revision, Write};
use crate::view::View;
use hawser_model::Name;
use hawser_model::track::{Serving, TrackRole, TrackUse};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// The maximum number of addresses at which a node serves a track.
const MAX_ADDRESSES: usize = 16;

impl Controller {
    /// Handles what a program of a node says that it does with a track that the node may publish, watch or relay.
    /// Changes are written to the store for all controllers.
    pub(crate) async fn on_track_use(
        &self,
        caller: &Certified,
        peer: &Peer,
        track: &Name,
        role: TrackRole,
        what: TrackUse,
    ) -> Result<(), HandlerError> {
        let node = &caller.node.node;
        let Some(serving) = what.serves else {
            return Ok(());
        };
        let place = (track.clone(), (node.clone(), what.role, serving.address));
        if serving.max_viewers == 0 {
            return self.withdraw(caller, &place).await;
        }
        if !role.serves_as(what.role) {
            self.metrics.refused("no_source");
            return Err(Refusal::forbidden(format!(
                "{node} is a {role} of the track {track} and may not serve it as {}: an operator allows it with \
                 `hawser ctl track set`",
                what.role
            ))
            .into());
        }
        let address = reached_at(serving.address, peer.address.to_canonical());
        let record = SourceRecord {
            controller: self.name.clone(),
            serving: Serving {
                address: address.map_err(Refusal::meaningless)?,
                ..serving
            },
        };
        self.keep_source(caller, place, &record).await
    }

    /// Writes that a node serves a track, unless that is known.
    async fn keep_source(
        &self,
        caller: &Certified,
        place: Place,
        record: &SourceRecord,
    ) -> Result<(), HandlerError> {
        let lease = self.session.lease().await?;
        let known = stored(&self.view(), &place);
        if known.is_none() && addresses_of(&self.view(), &place) >= MAX_ADDRESSES {
            return Err(Refusal::meaningless(format!(
                "the node serves the track at {MAX_ADDRESSES} addresses already"
            ))
            .into());
        }
        let is_known = known.is_some_and(|(known, _)| !has_changed(&known, record));
        if is_known && self.heard.repeated(&place, lease, Instant::now()) {
            return Ok(());
        }
        if !self.admits_change(caller).await? {
            // The node repeats it.
            return Ok(());
        }
        let (track, server) = &place;
        let write = Write::put(key::source(track, server), emit(record)).under(lease);
        self.write_under_lease(caller, write).await?;
        self.heard.stored(place, lease, Instant::now());
        Ok(())
    }

    /// Removes what a node has said before, if there is anything.
    async fn withdraw(&self, caller: &Certified, place: &Place) -> Result<(), HandlerError> {
        let known = stored(&self.view(), place);
        let Some((_, revision)) = known else {
            return Ok(());
        };
        if !self.admits_change(caller).await? {
            return Ok(());
        }
        self.write_under_lease(caller, removal(place, revision))
            .await
    }

    /// Removes the sources of which this controller has heard nothing for the time of the lease.
    pub(crate) async fn remove_silent_sources(&self, own: &Checked) -> Result<(), Error> {
        let silent = {
            let view = self.view();
            let here = view.sources.iter().flat_map(|(track, sources)| {
                let here = |record: &SourceRecord| record.controller == self.name;
                let sources = sources.iter().filter(move |(_, of)| here(&of.value));
                sources.map(|(server, of)| ((track.clone(), server.clone()), of.revision))
            });
            self.heard.silent(here, Instant::now(), self.config.lease())
        };
        for (place, revision) in silent {
            let (track, (node, role, address)) = &place;
            tracing::info!(%track, %node, %role, %address, "node no longer says that it serves the track");
            let removed = self.store(own).commit(vec![removal(&place, revision)]);
            match removed.await {
                // The node has said it again.
                Ok(_) | Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Returns what is stored of a place.
fn stored(view: &View, (track, server): &Place) -> Option<(SourceRecord, Revision)> {
    let known = view.sources.get(track)?.get(server)?;
    Some((known.value.clone(), known.revision))
}

/// Returns the number of addresses at which a node serves a track.
fn addresses_of(view: &View, (track, (node, ..)): &Place) -> usize {
    let sources = view.sources.get(track).into_iter().flatten();
    sources.filter(|((of, ..), _)| of == node).count()
}

fn removal((track, server): &Place, revision: Revision) -> Write {
    Write::delete(key::source(track, server)).when(Expect::Revision(revision))
}

/// Returns whether a source differs enough from what is stored to be written: by a tenth of its viewers.
fn has_changed(known: &SourceRecord, now: &SourceRecord) -> bool {
    let (old, new) = (&known.serving, &now.serving);
    let moved = old.viewers.abs_diff(new.viewers);
    let is_same = SourceRecord {
        serving: Serving {
            viewers: old.viewers,
            ..*new
        },
        ..now.clone()
    } == *known;
    !is_same || old.has_room() != new.has_room() || moved > old.viewers / 10
}

/// Returns the address at which others reach a program that listens at `address`, whose request came from `from`.
fn reached_at(address: SocketAddr, from: IpAddr) -> Result<SocketAddr, String> {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() && from.is_ipv6() => {
            return Err(format!(
                "the program listens on IPv4, and its request came from {from}: say at which address others reach it"
            ));
        }
        ip if ip.is_unspecified() => from,
        ip => ip.to_canonical(),
    };
    let is_group = match ip {
        IpAddr::V4(ip) => ip.is_multicast() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_multicast(),
    };
    if is_group || address.port() == 0 {
        return Err("`serves.address` must be the address and port of one program".to_owned());
    }
    Ok(SocketAddr::new(ip, address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str, from: &str) -> Result<String, String> {
        let reached = reached_at(address.parse().unwrap(), from.parse().unwrap());
        reached.map(|address| address.to_string())
    }

    #[test]
    fn an_unspecified_address_is_that_of_the_request() {
        assert_eq!(at("0.0.0.0:7", "192.0.2.7").unwrap(), "192.0.2.7:7");
        assert_eq!(at("[::]:7", "192.0.2.7").unwrap(), "192.0.2.7:7");
        assert_eq!(at("[::]:7", "fd77::1").unwrap(), "[fd77::1]:7");
        assert_eq!(at("198.51.100.1:7", "192.0.2.7").unwrap(), "198.51.100.1:7");
        assert!(at("0.0.0.0:7", "fd77::1").unwrap_err().contains("IPv4"));
        for wrong in [
            "224.0.0.1:7",
            "[ff02::1]:7",
            "192.0.2.7:0",
            "255.255.255.255:7",
        ] {
            assert!(at(wrong, "192.0.2.7").is_err(), "{wrong}");
        }
    }

    #[test]
    fn small_changes_of_the_load_are_not_written() {
        let record = |viewers| SourceRecord {
            controller: "a".to_owned(),
            serving: Serving {
                address: ([192, 0, 2, 1], 7).into(),
                viewers,
                max_viewers: 101,
            },
        };
        let changed = |old, new| has_changed(&record(old), &record(new));
        assert!(!changed(50, 50) && !changed(50, 55) && !changed(55, 50));
        assert!(changed(0, 1) && changed(50, 56) && changed(100, 101));
        let elsewhere = SourceRecord {
            controller: "b".to_owned(),
            ..record(50)
        };
        assert!(has_changed(&record(50), &elsewhere));
    }
}
