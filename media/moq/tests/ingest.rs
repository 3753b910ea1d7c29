//! Broadcasts that are taken from another server, and from publishers that connect.

mod support;

use hawser_moq::{Catalog, Config, Ingest, IngestConfig, IngestSource, SourceUrl, Trust, versions};
use hawser_objects::{EndReason, Seed, TrackSecret};
use hawser_packets::media::ObjectId;
use hawser_packets::moq::{CATALOG, track_name};
use hawser_packets::session::Goodbye;
use hawser_tls::Identity;
use moq_net::Version;
use support::source::{Source, payload};
use support::viewer::Watching;
use support::*;

const TOKEN: &str = "0123456789abcdef";

fn ingest(from: IngestSource) -> Ingest {
    Ingest::open(IngestConfig {
        from,
        access: secret().access(),
        hop_salt: [4; 16],
        seed: Seed::new([5; 32]),
    })
    .unwrap()
}

/// Takes the broadcast of a server whose certificate has this fingerprint.
fn ingest_of(scheme: &str, server: std::net::SocketAddr, fingerprint: &str) -> Ingest {
    let url: SourceUrl = format!("{scheme}://{server}").parse().unwrap();
    let mut digest = [0; 32];
    hex::decode_to_slice(fingerprint, &mut digest).unwrap();
    ingest(IngestSource::Server {
        url: url.with_token(TOKEN),
        name: NAME.to_owned(),
        trust: Trust::Certificate(digest),
    })
}

fn ingest_of_publishers() -> Ingest {
    let mut config = Config::new("127.0.0.1:0".parse().unwrap(), NAME);
    config.token = Some(TOKEN.parse().unwrap());
    ingest(IngestSource::Publisher(config))
}

async fn publisher_of(ingest: &Ingest, over: Over, version: Version) -> Source {
    let (address, fingerprint) = (ingest.listens_at().unwrap(), ingest.fingerprint().unwrap());
    let target = format!("/?token={TOKEN}");
    let source = Source::connect(address, &fingerprint, over, version, &target);
    source.await.unwrap()
}

fn current() -> Version {
    all_versions().next().unwrap()
}

fn all_versions() -> impl Iterator<Item = Version> {
    let alpns = versions().alpns().into_iter();
    alpns.map(|alpn| Version::from_alpn(alpn).unwrap())
}

/// Bytes of an object that need several packets, and differ.
fn bytes(group: u32, layer: u8) -> Vec<u8> {
    let length = 900 + 700 * (group as usize % 7) + 3000 * usize::from(layer);
    vec![group as u8 ^ layer; length]
}

const GROUPS: u32 = 60;

fn assert_all(watching: &Watching) {
    for (ObjectId { group, layer, .. }, opened) in &watching.objects {
        assert_eq!(opened, &bytes(*group, *layer));
    }
}

#[tokio::test]
async fn every_object_of_another_servers_broadcast_is_opened() {
    for scheme in ["https", "moqt"] {
        let (server, mut egress) = open(|config| config.token = Some(TOKEN.parse().unwrap()));
        let mut publisher = Publisher::new(1);
        publisher.announce(&mut egress, 0);
        let ingest = ingest_of(scheme, server.local_address(), &server.fingerprint());
        let mut watching = Watching::connect(ingest.address()).await;
        watching.until_open().await;
        watching.watch(std::time::Duration::from_millis(50)).await;
        for group in 0..GROUPS {
            for layer in 0..LAYERS {
                egress.publish(&publisher.object(group, layer, &bytes(group, layer)));
            }
            let all = (group as usize + 1) * usize::from(LAYERS);
            watching
                .until(|watching| watching.objects.len() == all)
                .await;
        }
        assert_all(&watching);
        // Figures are written once what there is has been sent.
        watching.until(|_| ingest.stats().objects == 120).await;
        let stats = ingest.stats();
        assert!(stats.is_connected && stats.is_announced, "{stats:?}");
        assert_eq!(stats.failures, 0, "{stats:?}");
        assert_eq!(
            (stats.late, stats.stale, stats.full),
            (0, 0, 0),
            "{stats:?}"
        );
    }
}

#[tokio::test]
async fn every_version_accepts_publishers_of_both_transports() {
    for over in [Over::Quic, Over::WebTransport] {
        for version in all_versions() {
            let ingest = ingest_of_publishers();
            let mut source = publisher_of(&ingest, over, version).await;
            let mut publisher = Publisher::new(1);
            source.write_catalog(1, &publisher);
            let mut watching = Watching::connect(ingest.address()).await;
            watching.until_open().await;
            watching.watch(std::time::Duration::from_millis(50)).await;
            for group in 0..10 {
                for layer in 0..LAYERS {
                    source.write_object(&publisher.object(group, layer, &bytes(group, layer)));
                }
                let all = (group as usize + 1) * usize::from(LAYERS);
                watching
                    .until(|watching| watching.objects.len() == all)
                    .await;
            }
            assert_all(&watching);
        }
    }
}

#[tokio::test]
async fn a_large_object_does_not_overflow_the_socket_of_the_relay() {
    let (server, mut egress) = open(|config| config.token = Some(TOKEN.parse().unwrap()));
    let mut publisher = Publisher::new(1);
    publisher.announce(&mut egress, 0);
    let ingest = ingest_of("https", server.local_address(), &server.fingerprint());
    let mut watching = Watching::connect(ingest.address()).await;
    watching.until_open().await;
    watching.watch(std::time::Duration::from_millis(50)).await;
    for group in 0..20 {
        let (objects, lost) = (watching.objects.len(), ingest.stats().lost_packets);
        // 4,000 packets: many times what the receive buffer holds.
        egress.publish(&publisher.object(group, 0, &vec![7; 4000 * 1148]));
        let packets = 4000 * (u64::from(group) + 1);
        watching.until(|_| ingest.stats().packets == packets).await;
        // Also where a busy machine does not report in time.
        let is_lost = || ingest.stats().lost_packets > lost;
        watching
            .until(|watching| watching.objects.len() > objects || is_lost())
            .await;
        if !is_lost() {
            return;
        }
    }
    panic!("{:?}", ingest.stats());
}

#[tokio::test]
async fn a_publisher_that_starts_again_is_another_session() {
    let (server, mut egress) = open(|config| config.token = Some(TOKEN.parse().unwrap()));
    let mut publisher = Publisher::new(1);
    publisher.announce(&mut egress, 0);
    let ingest = ingest_of("moqt", server.local_address(), &server.fingerprint());
    let mut watching = Watching::connect(ingest.address()).await;
    watching.until_open().await;
    watching.watch(std::time::Duration::from_millis(50)).await;
    egress.publish(&publisher.object(9, 0, b"of the first incarnation"));
    watching.until(|watching| watching.objects.len() == 1).await;

    let mut publisher = Publisher::new(2);
    publisher.announce(&mut egress, 0);
    watching.until(|watching| !watching.ended.is_empty()).await;
    assert_eq!(watching.ended, [EndReason::Left(Goodbye::Restarting)]);
    watching.until_open().await;
    watching.watch(std::time::Duration::from_millis(50)).await;
    egress.publish(&publisher.object(0, 0, b"of the second incarnation"));
    watching.until(|watching| watching.objects.len() == 2).await;
    let first = watching.objects.values().next().unwrap();
    assert_eq!(
        first, b"of the second incarnation",
        "its numbers begin again"
    );
}

#[tokio::test]
async fn a_server_that_starts_again_is_connected_to_again() {
    let [chain, key] = certificate();
    let open_at = |port: u16| {
        open(|config| {
            config.listen.set_port(port);
            config.token = Some(TOKEN.parse().unwrap());
            config.identity = Some(Identity::from_pem(&chain, &key).unwrap());
        })
    };
    let (server, mut egress) = open_at(0);
    let mut publisher = Publisher::new(1);
    publisher.announce(&mut egress, 0);
    let address = server.local_address();
    let ingest = ingest_of("https", address, &server.fingerprint());
    let mut watching = Watching::connect(ingest.address()).await;
    watching.until_open().await;
    watching.watch(std::time::Duration::from_millis(50)).await;
    egress.publish(&publisher.object(0, 0, b"before"));
    watching.until(|watching| watching.objects.len() == 1).await;
    drop((egress, server));
    let (_server, mut egress) = open_at(address.port());
    publisher.announce(&mut egress, 0);
    watching.until(|_| ingest.stats().failures > 0).await;
    watching.until(|_| ingest.stats().is_announced).await;
    watching.watch(std::time::Duration::from_millis(100)).await;
    egress.publish(&publisher.object(1, 0, b"after"));
    watching.until(|watching| watching.objects.len() == 2).await;
    assert_eq!(watching.ended, [], "the session with the relay stays");
}

#[tokio::test]
async fn catalogs_that_are_not_right_are_refused_and_counted() {
    let ingest = ingest_of_publishers();
    let mut source = publisher_of(&ingest, Over::Quic, current()).await;
    let mut watching = Watching::connect(ingest.address()).await;
    let publisher = Publisher::new(1);
    source.write(CATALOG, 1, &b"garbage"[..]);
    watching
        .until(|_| ingest.stats().catalog_invalid == 1)
        .await;
    source.write(CATALOG, 2, vec![b' '; Catalog::MAX + 1]);
    watching
        .until(|_| ingest.stats().catalog_too_long == 1)
        .await;
    // A viewer without the secret.
    let other = TrackSecret::new([0x22; 32]).access();
    let forged = Catalog::new(&publisher.contents(0), &other).unwrap();
    source.write(CATALOG, 3, serde_json::to_vec(&forged).unwrap());
    watching.until(|_| ingest.stats().catalog_forged == 1).await;
    assert_eq!(watching.sessions(), 0, "nobody is served");
    source.write_catalog(4, &publisher);
    watching.until_open().await;
}

#[tokio::test]
async fn invalid_objects_are_rejected_and_counted() {
    let ingest = ingest_of_publishers();
    let mut source = publisher_of(&ingest, Over::WebTransport, current()).await;
    let mut publisher = Publisher::new(1);
    source.write_catalog(1, &publisher);
    let mut watching = Watching::connect(ingest.address()).await;
    watching.until_open().await;
    watching.watch(std::time::Duration::from_millis(50)).await;
    let base = track_name(ALIAS, 0);
    source.write(&base, 1, &b"garbage"[..]);
    watching.until(|_| ingest.stats().invalid == 1).await;
    let mut cut = payload(&publisher.object(1, 0, &[1; 5000]));
    cut.truncate(2 * (2 + 26 + 1148 + 16));
    source.write(&base, 2, cut);
    watching.until(|_| ingest.stats().invalid == 2).await;
    source.write(
        &base,
        3,
        payload(&publisher.object(2, 1, b"the other layer")),
    );
    watching.until(|_| ingest.stats().wrong_track == 1).await;
    source.write(&base, 4, vec![0; 10 << 20]);
    watching.until(|_| ingest.stats().too_long == 1).await;
    // A number that cannot be.
    source.write(&base, 5, payload(&publisher.object(50, 0, b"group 50")));
    watching.until(|_| ingest.stats().invalid == 3).await;
    // No viewer requests it.
    source.write(
        "8/0",
        1,
        payload(&publisher.object(51, 0, b"an unknown track")),
    );
    source.write_object(&publisher.object(60, 0, b"right"));
    watching.until(|watching| watching.objects.len() == 1).await;
    assert_eq!(watching.objects.values().next().unwrap(), b"right");
    watching.until(|_| ingest.stats().objects == 1).await;
}

#[tokio::test]
async fn publishers_without_the_token_are_refused() {
    let ingest = ingest_of_publishers();
    let (address, fingerprint) = (ingest.listens_at().unwrap(), ingest.fingerprint().unwrap());
    let connect =
        |target| Source::connect(address, &fingerprint, Over::WebTransport, current(), target);
    let mut refused = connect("/?token=0123456789abcdeF").await.unwrap();
    refused.write_catalog(1, &Publisher::new(1));
    refused.closed().await;
    assert_eq!(ingest.server_stats().unwrap().unauthorised, 1);
    assert!(!ingest.stats().is_announced);
}

#[tokio::test]
async fn a_server_with_another_certificate_is_not_connected_to() {
    let (server, _egress) = open(|_| {});
    let ingest = ingest_of("https", server.local_address(), &"00".repeat(32));
    let mut watching = Watching::connect(ingest.address()).await;
    watching.until(|_| ingest.stats().failures > 0).await;
    assert!(!ingest.stats().is_connected);
    assert_eq!(server.stats().sessions, 0);
}
