//! Clients of the same library take the objects of a broadcast.

mod support;

use hawser_audience::WholeObject;
use hawser_moq::{Catalog, versions};
use hawser_packets::media::ObjectId;
use hawser_packets::moq::{CATALOG, track_name};
use moq_net::Version;
use support::*;

/// Bytes of an object that need several packets, and differ.
fn bytes(group: u32, layer: u8) -> Vec<u8> {
    let length = 900 + 700 * (group as usize % 7) + 3000 * usize::from(layer);
    (0..length)
        .map(|at| (at as u32 * 31 + group * 7 + u32::from(layer)) as u8)
        .collect()
}

const GROUPS: u32 = 60;

async fn every_object_is_taken_and_opened(over: Over, version: Version) {
    let (server, mut egress) = open(|_| {});
    let mut publisher = Publisher::new(1);
    publisher.announce(&mut egress, 0);
    let fingerprint = server.fingerprint();
    let client = Client::connect(server.local_address(), &fingerprint, over, version, "/");
    let client = client.await.unwrap();
    assert_eq!(client.session.version(), version);
    let broadcast = client.broadcast(NAME).await;
    let mut opener = Opener::new(&secret(), &catalog(&broadcast).await);
    let mut tracks = Vec::new();
    for layer in 0..LAYERS {
        tracks.push(subscribe(&broadcast, &track_name(ALIAS, layer)).await);
    }
    for group in 0..GROUPS {
        for layer in 0..LAYERS {
            egress.publish(&publisher.object(group, layer, &bytes(group, layer)));
            opener.open(&next(&mut tracks[usize::from(layer)]).await.unwrap());
        }
    }
    assert_eq!(opener.objects.len(), (GROUPS * u32::from(LAYERS)) as usize);
    for (ObjectId { group, layer, .. }, opened) in &opener.objects {
        assert_eq!(opened, &bytes(*group, *layer));
    }
    let stats = egress.stats();
    assert_eq!((stats.objects, stats.late, stats.too_long), (120, 0, 0));
    let stats = server.stats();
    assert_eq!(stats.sessions, 1);
    assert!(stats.offered_groups > 120, "and the catalog: {stats:?}");
    assert_eq!((stats.cut_groups, stats.stale_groups), (0, 0), "{stats:?}");
}

fn all_versions() -> impl Iterator<Item = Version> {
    let alpns = versions().alpns().into_iter();
    alpns.map(|alpn| Version::from_alpn(alpn).unwrap())
}

#[tokio::test]
async fn every_object_is_taken_and_opened_over_quic_by_every_version() {
    for version in all_versions() {
        every_object_is_taken_and_opened(Over::Quic, version).await;
    }
}

#[tokio::test]
async fn every_version_opens_every_object_over_web_transport() {
    for version in all_versions() {
        every_object_is_taken_and_opened(Over::WebTransport, version).await;
    }
}

#[tokio::test]
async fn subscriptions_go_on_when_the_publisher_starts_again() {
    let (server, mut egress) = open(|_| {});
    let version = all_versions().next().unwrap();
    let fingerprint = server.fingerprint();
    let mut publisher = Publisher::new(1);
    publisher.announce(&mut egress, 0);
    let client = Client::connect(
        server.local_address(),
        &fingerprint,
        Over::Quic,
        version,
        "/",
    );
    let client = client.await.unwrap();
    let broadcast = client.broadcast(NAME).await;
    let mut catalogs = subscribe(&broadcast, CATALOG).await;
    let mut next_catalog = async || -> Catalog {
        serde_json::from_slice(&next(&mut catalogs).await.unwrap()).unwrap()
    };
    let first = next_catalog().await;
    publisher.announce(&mut egress, 0);
    publisher.announce(&mut egress, 1);
    let second = next_catalog().await;
    assert_eq!((first.tracks[0].epoch, second.tracks[0].epoch), (0, 1));

    let mut track = subscribe(&broadcast, &track_name(ALIAS, 0)).await;
    egress.publish(&publisher.object(5, 0, b"of the first incarnation"));
    next(&mut track).await.unwrap();

    // It restarts, and its numbers begin again.
    let mut publisher = Publisher::new(2);
    publisher.announce(&mut egress, 0);
    let mut opener = Opener::new(&secret(), &next_catalog().await);
    egress.publish(&publisher.object(0, 0, b"of the second incarnation"));
    opener.open(&next(&mut track).await.unwrap());
    let opened: Vec<_> = opener.objects.into_values().collect();
    assert_eq!(opened, [b"of the second incarnation"]);
}

#[tokio::test]
async fn what_cannot_be_published_is_counted() {
    let (_server, mut egress) = open(|_| {});
    let mut publisher = Publisher::new(1);
    egress.publish(&publisher.object(0, 0, b"before the announcement"));
    publisher.announce(&mut egress, 0);
    let object = publisher.object(1, 0, b"once");
    egress.publish(&object);
    egress.publish(&object);
    let stats = egress.stats();
    assert_eq!((stats.objects, stats.late, stats.unknown_track), (1, 1, 1));
}

#[tokio::test]
async fn groups_without_an_end_are_kept_open_up_to_a_number() {
    let (_server, mut egress) = open(|_| {});
    let mut publisher = Publisher::new(1);
    publisher.announce(&mut egress, 0);
    let mut objects: Vec<_> = (0..1000)
        .map(|group| publisher.object(group, 0, b"one of several"))
        .collect();
    for object in &mut objects {
        object.header.flags.last_in_group = false;
        object.arrived = at(0);
        egress.publish(object);
    }
    let mut publish_next = |object: &mut WholeObject| {
        object.header.id.object.object = 1;
        egress.publish(object);
        egress.stats()
    };
    assert_eq!(publish_next(&mut objects[999]).objects, 1001);
    assert_eq!(publish_next(&mut objects[0]).late, 1);
}
