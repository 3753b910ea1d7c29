//! A source of MoQ that can publish anything.

use super::*;
use bytes::Bytes;
use hawser_packets::moq::{self, CATALOG, track_name};
use moq_net::{Timestamp, Version, broadcast, group, origin, track};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// A publisher that connects to an ingest.
pub(crate) struct Source {
    client: Client,
    broadcast: broadcast::Producer,
    tracks: BTreeMap<String, track::Producer>,
}

impl Source {
    pub(crate) async fn connect(
        server: SocketAddr,
        fingerprint: &str,
        over: Over,
        version: Version,
        target: &str,
    ) -> Result<Self, String> {
        let (origin, driver) = origin::Producer::new(origin::Config::default());
        tokio::spawn(moq_net::time::run(driver));
        let broadcast = origin.create_broadcast(NAME).unwrap();
        let builder = moq_net::Client::new().with_publisher(&origin);
        let client = Client::connect_as(builder, server, fingerprint, over, version, target);
        let mut source = Source {
            client: client.await?,
            broadcast,
            tracks: BTreeMap::new(),
        };
        source.track(CATALOG);
        for layer in 0..LAYERS {
            source.track(&track_name(ALIAS, layer));
        }
        source.broadcast.announce(origin::Route::default()).unwrap();
        Ok(source)
    }

    fn track(&mut self, name: &str) -> &mut track::Producer {
        let broadcast = &self.broadcast;
        let info = track::Info::default().with_max_age(Duration::from_secs(2));
        let create = || broadcast.create_track(name, info).unwrap();
        self.tracks.entry(name.to_owned()).or_insert_with(create)
    }

    pub(crate) async fn closed(&self) {
        self.client.session.closed().await;
    }

    /// Publishes an object in a group of its own.
    pub(crate) fn write(&mut self, track: &str, sequence: u64, payload: impl Into<Bytes>) {
        let info = group::Info { sequence };
        let mut group = self.track(track).create_group(info).unwrap();
        group.write_frame(Timestamp::now(), payload.into()).unwrap();
        group.finish().unwrap();
    }

    pub(crate) fn write_catalog(&mut self, sequence: u64, publisher: &Publisher) {
        let catalog = Catalog::new(&publisher.contents(0), &secret().access()).unwrap();
        self.write(CATALOG, sequence, serde_json::to_vec(&catalog).unwrap());
    }

    pub(crate) fn write_object(&mut self, object: &WholeObject) {
        let id = object.header.id.object;
        self.write(
            &track_name(id.alias, id.layer),
            1 + u64::from(id.group),
            payload(object),
        );
    }
}

pub(crate) fn payload(object: &WholeObject) -> Vec<u8> {
    moq::emit(object.datagrams.iter().map(|datagram| &datagram[..])).unwrap()
}
