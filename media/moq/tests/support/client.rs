//! Clients of a MoQ server, and what viewers do with what they get.

#![allow(dead_code, reason = "each test uses a part")]

use hawser_moq::{Catalog, Transport};
use hawser_objects::{Receiver, ReceiverConfig, ReceiverEvent, TrackSecret};
use hawser_packets::feedback::ClockStamp;
use hawser_packets::media::{Hop, ObjectId};
use hawser_packets::moq::{self, CATALOG};
use hawser_packets::session::{Accept, Status};
use hawser_tls::{ServerVerifier, provider};
use hawser_units::{Ecn, Instant};
use moq_net::{Version, broadcast, origin, track};
use noq::crypto::rustls::QuicClientConfig;
use rustls::version;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU8;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::time::timeout;
use web_transport_proto::ConnectRequest;

/// The time within which everything has to happen.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// The bytes that a client takes without reading them.
const WINDOW: u32 = 1 << 20;

/// How a client reaches the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Quic,
    WebTransport,
}

/// A session that can be made to do nothing for a time.
struct Gate<D> {
    driver: D,
    is_shut: Arc<AtomicBool>,
}

impl<D: moq_net::time::Driver> moq_net::time::Driver for Gate<D> {
    fn poll(
        &mut self,
        now: std::time::Instant,
        waiter: &moq_net::kio::Waiter,
    ) -> Result<Option<std::time::Instant>, moq_net::Error> {
        match self.is_shut.load(Relaxed) {
            true => Ok(Some(now + Duration::from_millis(20))),
            false => self.driver.poll(now, waiter),
        }
    }
}

/// A client with its session.
pub(crate) struct Client {
    pub(crate) session: moq_net::Session,
    /// The client does not read anything while this is set.
    pub(crate) is_shut: Arc<AtomicBool>,
    /// A stream without a header, over WebTransport. Browsers have some of QPACK, which they do not use.
    pub(crate) silent: Option<noq::SendStream>,
    origin: origin::Consumer,
    _endpoint: noq::Endpoint,
}

impl Client {
    /// Connects. `target` is the path and the query of the URL.
    pub(crate) async fn connect(
        server: SocketAddr,
        fingerprint: &str,
        over: Over,
        version: Version,
        target: &str,
    ) -> Result<Self, String> {
        let client = moq_net::Client::new();
        Client::connect_as(client, server, fingerprint, over, version, target).await
    }

    /// Connects from an address, over QUIC.
    pub(crate) async fn connect_from(
        from: IpAddr,
        server: SocketAddr,
        fingerprint: &str,
        version: Version,
    ) -> Result<Self, String> {
        let endpoint = noq::Endpoint::client((from, 0).into()).unwrap();
        let client = moq_net::Client::new();
        Client::connect_on(
            endpoint,
            client,
            server,
            fingerprint,
            Over::Quic,
            version,
            "/",
        )
        .await
    }

    /// Connects as [`Client::connect`], with what a client has to publish.
    pub(crate) async fn connect_as(
        client: moq_net::Client,
        server: SocketAddr,
        fingerprint: &str,
        over: Over,
        version: Version,
        target: &str,
    ) -> Result<Self, String> {
        let endpoint = noq::Endpoint::client("0.0.0.0:0".parse().unwrap()).unwrap();
        Client::connect_on(endpoint, client, server, fingerprint, over, version, target).await
    }

    async fn connect_on(
        endpoint: noq::Endpoint,
        client: moq_net::Client,
        server: SocketAddr,
        fingerprint: &str,
        over: Over,
        version: Version,
        target: &str,
    ) -> Result<Self, String> {
        let config = quic(fingerprint, over, version);
        let connecting = endpoint.connect_with(config, server, "localhost").unwrap();
        let connection = connecting.await.map_err(|error| error.to_string())?;
        let mut silent = None;
        let (transport, client) = match over {
            Over::Quic => {
                let client = client.with_path(target);
                (Transport::raw(connection).unwrap(), client)
            }
            Over::WebTransport => {
                let url = format!("https://localhost:{}{target}", server.port());
                let url: url::Url = url.parse().unwrap();
                let request = ConnectRequest::new(url).with_protocol(version.alpn());
                let transport = Transport::web_transport(connection.clone(), request);
                let transport = transport.await.map_err(|error| error.to_string())?;
                silent = connection.open_uni().await.ok();
                (transport, client)
            }
        };
        let (origin, driver) = origin::Producer::new(origin::Config::default());
        tokio::spawn(moq_net::time::run(driver));
        let consumer = origin.consume();
        let client = client.with_subscriber(origin).with_versions(version.into());
        let connected = client.connect(std::time::Instant::now(), transport).await;
        let (session, driver) = connected.map_err(|error| error.to_string())?;
        let is_shut = Arc::new(AtomicBool::new(false));
        tokio::spawn(moq_net::time::run(Gate {
            driver,
            is_shut: Arc::clone(&is_shut),
        }));
        Ok(Client {
            session,
            is_shut,
            silent,
            origin: consumer,
            _endpoint: endpoint,
        })
    }

    pub(crate) async fn broadcast(&self, name: &str) -> broadcast::Consumer {
        let broadcast = self.origin.routed_broadcast(name);
        timeout(LONG, broadcast).await.unwrap().unwrap()
    }
}

/// Returns the configuration of a connection to the server with a certificate.
fn quic(fingerprint: &str, over: Over, version: Version) -> noq::ClientConfig {
    let mut digest = [0; 32];
    hex::decode_to_slice(fingerprint, &mut digest).unwrap();
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&version::TLS13])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(ServerVerifier::certificate(digest))
        .with_no_client_auth();
    let protocol = match over {
        Over::Quic => version.alpn(),
        Over::WebTransport => "h3",
    };
    tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let config = QuicClientConfig::try_from(tls).unwrap();
    let mut config = noq::ClientConfig::new(Arc::new(config));
    let mut transport = noq::TransportConfig::default();
    transport.receive_window(WINDOW.into());
    config.transport_config(Arc::new(transport));
    config
}

/// Connects from a source and sends nothing; returns none if the server refuses the connection.
pub(crate) async fn connect_in_silence(
    from: IpAddr,
    server: SocketAddr,
    fingerprint: &str,
) -> Option<(noq::Endpoint, noq::Connection)> {
    let lite = "moq-lite-06".parse().unwrap();
    let config = quic(fingerprint, Over::WebTransport, lite);
    let endpoint = noq::Endpoint::client((from, 0).into()).unwrap();
    let connecting = endpoint.connect_with(config, server, "localhost").unwrap();
    let connection = connecting.await.ok()?;
    Some((endpoint, connection))
}

pub(crate) async fn subscribe(broadcast: &broadcast::Consumer, track: &str) -> track::Subscriber {
    let subscription = track::Subscription::default().with_max_age(Duration::from_secs(2));
    let track = broadcast.track(track).unwrap();
    let subscribed = track.subscribe(subscription);
    timeout(LONG, subscribed).await.unwrap().unwrap()
}

/// Returns the only object of the next group.
pub(crate) async fn next(track: &mut track::Subscriber) -> Option<Vec<u8>> {
    let taken = timeout(LONG, async {
        let mut group = track.recv_group().await.unwrap()?;
        let frame = group.read_frame().await.unwrap();
        Some(frame.expect("a group has an object").payload.to_vec())
    });
    taken.await.unwrap()
}

pub(crate) async fn catalog(broadcast: &broadcast::Consumer) -> Catalog {
    let mut track = subscribe(broadcast, CATALOG).await;
    serde_json::from_slice(&next(&mut track).await.unwrap()).unwrap()
}

/// Opens objects with the secret of the broadcast, as its viewers do.
pub(crate) struct Opener {
    receiver: Receiver,
    hop: Hop,
    pub(crate) objects: BTreeMap<ObjectId, Vec<u8>>,
}

impl Opener {
    pub(crate) fn new(secret: &TrackSecret, catalog: &Catalog) -> Self {
        let announced = hex::decode(&catalog.announcement).unwrap();
        let announcement = secret.verify(&announced).expect("of the publisher");
        let epochs = catalog.tracks.iter().map(|t| (t.alias, t.epoch));
        let accept = Accept {
            status: Status {
                clock: ClockStamp {
                    sent: Instant::ZERO,
                    echo: None,
                },
                publisher_ahead_nanos: 0,
                hop: 0,
                subscription: 0,
                report_interval_ms: NonZeroU8::MIN,
                relays: Vec::new(),
                epochs: epochs.collect(),
            },
            hop_salt: [9; 16],
            announcement: &announced,
        };
        let config = ReceiverConfig {
            objects: 1000,
            ..ReceiverConfig::default()
        };
        Opener {
            receiver: Receiver::new(config, secret, &announcement, &accept),
            hop: secret.access().hop(&[9; 16], 0),
            objects: BTreeMap::new(),
        }
    }

    pub(crate) fn open(&mut self, payload: &[u8]) {
        for packet in moq::packets(payload) {
            let datagram = packet.unwrap().datagram(&self.hop);
            let taken = self
                .receiver
                .handle_packet(Instant::ZERO, &datagram, Ecn::NotEct);
            taken.unwrap();
        }
        while let Some(event) = self.receiver.poll_event() {
            if let ReceiverEvent::Object(object) = event {
                let earlier = self.objects.insert(object.id, object.bytes());
                assert_eq!(earlier, None, "each object once");
            }
        }
    }
}
