//! The entrance of a server for the clients of a web server beside it: browsers.

use crate::admission::{Admission, Refusal};
use crate::transport::{Socket, choose};
use hawser_io::handshakes::{HandshakeSlot, HandshakeSlots};
use qmux::ws::tungstenite::handshake::server::create_response;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::timeout;
use web_transport_proto::http::header::{HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use web_transport_proto::http::{Request, Response, StatusCode};

/// A [`Server`](crate::Server) as a web server of the program sees it. Clones are the same entrance.
///
/// Browsers without WebTransport come through it by WebSocket, and have the limits of other clients, but need no token: the web
/// server decides who comes.
#[derive(Clone)]
pub struct Entrance {
    pub(crate) address: SocketAddr,
    pub(crate) admission: Arc<Admission>,
    pub(crate) handshakes: Arc<HandshakeSlots>,
    /// Whether the certificate is one that no authority has signed.
    pub(crate) own_certificate: bool,
    /// Ends with the server.
    pub(crate) open: watch::Receiver<()>,
}

/// A client that was told to go on with a WebSocket. It has a place among the handshakes.
pub struct SocketClient {
    entrance: Entrance,
    subprotocol: String,
    from: SocketAddr,
    slot: HandshakeSlot,
}

impl Entrance {
    /// Returns the address at which the server listens (UDP).
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the name of the broadcast.
    pub fn name(&self) -> &str {
        self.admission.name()
    }

    /// Returns the fingerprint of the certificate: its SHA-256 digest, hexadecimal.
    pub(crate) fn fingerprint(&self) -> String {
        self.admission.shared().fingerprint()
    }

    /// Returns the address of the server and its fingerprint, by which a page's script reaches it over WebTransport. `None` if
    /// none does: it wants a token, or the certificate is not for its address, or it listens everywhere or at an address of
    /// IPv6, which the policies of pages do not have.
    pub fn web_transport(&self) -> Option<(SocketAddr, String)> {
        let is_named = self.address.is_ipv4() && !self.address.ip().is_unspecified();
        let is_open = self.own_certificate && !self.admission.has_token();
        (is_named && is_open).then(|| (self.address, self.fingerprint()))
    }

    /// Answers a request for a WebSocket with MoQ. [`SocketClient::serve`] takes the connection after this answer.
    /// `from` is the client's address.
    ///
    /// # Errors
    /// The status to answer with instead: the request is not valid, it offers no version of MoQ in a wire format of QMux
    /// that is served here, or there is no room.
    pub fn accept(
        &self,
        request: &Request<()>,
        from: SocketAddr,
    ) -> Result<(Response<()>, SocketClient), StatusCode> {
        let offered = request.headers().get_all(SEC_WEBSOCKET_PROTOCOL).iter();
        let offered = offered.filter_map(|value| value.to_str().ok());
        let offered = offered.flat_map(|value| value.split(',')).map(str::trim);
        let subprotocol = choose(offered, self.admission.protocols());
        let subprotocol = subprotocol.ok_or(StatusCode::BAD_REQUEST)?;
        let response = create_response(request);
        let mut response = response.map_err(|_| StatusCode::BAD_REQUEST)?;
        let chosen = HeaderValue::from_str(subprotocol);
        let chosen = chosen.map_err(|_| StatusCode::BAD_REQUEST)?;
        response
            .headers_mut()
            .insert(SEC_WEBSOCKET_PROTOCOL, chosen);
        let slot = self.admission.take_slot(&self.handshakes, from);
        let client = SocketClient {
            entrance: self.clone(),
            subprotocol: subprotocol.to_owned(),
            from,
            slot: slot.ok_or(StatusCode::SERVICE_UNAVAILABLE)?,
        };
        Ok((response, client))
    }
}

impl SocketClient {
    /// Serves the client until it leaves, or the server ends.
    pub async fn serve(self, connection: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let SocketClient {
            entrance,
            subprotocol,
            from,
            slot,
        } = self;
        let admission = &entrance.admission;
        let source = from.ip().to_canonical();
        let opened = async {
            let groups = admission.shared().groups();
            let socket = Socket::accept(connection, &subprotocol, groups).await;
            admission.join(admission.begin(socket).await?, source).await
        };
        let opened = timeout(slot.time_limits().first_message, opened).await;
        match opened.unwrap_or_else(|_| Err(Refusal::late())) {
            Ok(joined) => {
                drop(slot);
                entrance.handshakes.remember(source);
                let mut open = entrance.open.clone();
                tokio::select! {
                    () = admission.serve(joined, from, "WebSocket") => {}
                    // Nothing is sent: it is dropped with the server.
                    _ = open.changed() => {}
                }
            }
            Err(refusal) => admission.refuse(&refusal, from),
        }
    }
}

impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entrance")
            .field("address", &self.address)
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SocketClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SocketClient")
            .field("subprotocol", &self.subprotocol)
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Contents, Egress, Server, versions};
    use hawser_audience::WholeObject;
    use hawser_objects::{ObjectInfo, Packetiser, PacketiserConfig, TrackSecret};
    use hawser_packets::media::{Flags, ObjectId, Packet};
    use hawser_packets::moq::track_name;
    use hawser_packets::session::{Announcement, Track};
    use hawser_units::Instant;
    use moq_net::{origin, track};
    use std::time::Duration;
    use web_transport_proto::http::header::{
        CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE,
    };

    const ALIAS: u32 = 7;

    fn open(config: Config) -> (Server, Egress, Packetiser) {
        let (server, mut egress) = Server::open(config).unwrap();
        let secret = TrackSecret::new([1; 32]);
        let announcement = Announcement {
            incarnation: [2; 16],
            started_unix_millis: 1,
            tracks: vec![Track {
                alias: ALIAS,
                codec: 1,
                layers: 1,
                name: "talker".to_owned(),
                parameters: Vec::new(),
            }],
        };
        let contents = Contents {
            announced: secret.announce(&announcement).unwrap(),
            epochs: vec![(ALIAS, 0)],
            relays: Vec::new(),
        };
        egress.announce(&contents, &secret.access());
        let hop = secret.access().hop(&[3; 16], 0);
        let packetiser = PacketiserConfig::new(ALIAS, [2; 16]);
        (server, egress, Packetiser::new(packetiser, secret, hop))
    }

    fn config() -> Config {
        Config::new("127.0.0.1:0".parse().unwrap(), "stage")
    }

    fn object(packetiser: &mut Packetiser, group: u32, bytes: &[u8]) -> WholeObject {
        let now = Instant::ZERO + Duration::from_millis(u64::from(group));
        let id = ObjectId {
            alias: ALIAS,
            group,
            object: 0,
            layer: 0,
        };
        let info = ObjectInfo {
            id,
            priority: 0,
            deadline: now,
            flags: Flags {
                last_in_group: true,
                ..Flags::default()
            },
        };
        let packets = packetiser.packetise(info, bytes).unwrap().packets;
        let datagrams: Vec<_> = packets.into_iter().map(|packet| packet.datagram).collect();
        WholeObject {
            header: Packet::parse(datagrams.last().unwrap()).unwrap().header,
            arrived: now,
            datagrams,
        }
    }

    /// Returns a browser's request for a WebSocket.
    fn request(subprotocols: &str) -> Request<()> {
        Request::get("/moq/stage")
            .header("host", "127.0.0.1:14780")
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, "dGhlIHNhbXBsZSBub25jZQ==")
            .header(SEC_WEBSOCKET_PROTOCOL, subprotocols)
            .body(())
            .unwrap()
    }

    fn from() -> SocketAddr {
        "127.0.0.1:9".parse().unwrap()
    }

    /// Connects a client, which speaks one version of MoQ.
    async fn connect(server: &Server, alpn: &str) -> Client {
        let offered = format!("qmux-02.moq-lite-01, qmux-02.{alpn}, qmux-02");
        let accepted = server.entrance().accept(&request(&offered), from());
        let (response, client) = accepted.unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        let headers = response.headers();
        // That of RFC 6455 for this key.
        let expected = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        assert_eq!(headers[SEC_WEBSOCKET_ACCEPT], expected);
        let chosen = headers[SEC_WEBSOCKET_PROTOCOL].to_str().unwrap();
        assert_eq!(chosen, format!("qmux-02.{alpn}"));
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        tokio::spawn(client.serve(theirs));
        let socket = Socket::connect(ours, chosen).await;
        let (origin, driver) = origin::Producer::new(origin::Config::default());
        tokio::spawn(moq_net::time::run(driver));
        let consumer = origin.consume();
        let version = moq_net::Version::from_alpn(alpn).unwrap();
        let client = moq_net::Client::new()
            .with_subscriber(origin)
            .with_versions(version.into());
        let connected = client.connect(std::time::Instant::now(), socket).await;
        let (session, driver) = connected.unwrap();
        let ended = tokio::spawn(moq_net::time::run(driver));
        Client {
            _session: session,
            consumer,
            ended,
        }
    }

    struct Client {
        _session: moq_net::Session,
        consumer: origin::Consumer,
        ended: tokio::task::JoinHandle<moq_net::Error>,
    }

    impl Client {
        async fn subscribe(&self, name: &str) -> track::Subscriber {
            let broadcast = self.consumer.routed_broadcast("stage").await.unwrap();
            let subscription = track::Subscription::default().with_max_age(Duration::from_secs(9));
            let track = broadcast.track(name).unwrap();
            track.subscribe(subscription).await.unwrap()
        }
    }

    #[tokio::test]
    async fn every_version_takes_every_object_over_a_websocket() {
        for alpn in versions().alpns() {
            let (server, mut egress, mut packetiser) = open(config());
            let client = connect(&server, alpn).await;
            let mut track = client.subscribe(&track_name(ALIAS, 0)).await;
            for group in 0..40 {
                // Beyond the pipe of a stream, and the window that the client grants.
                let bytes = vec![group as u8; 1 + 20_000 * group as usize];
                let object = object(&mut packetiser, group, &bytes);
                let datagrams = object.datagrams.iter().map(|datagram| &datagram[..]);
                let payload = hawser_packets::moq::emit(datagrams).unwrap();
                egress.publish(&object);
                let mut taken = track.recv_group().await.unwrap().unwrap();
                let frame = taken.read_frame().await.unwrap().unwrap();
                assert_eq!(frame.payload, payload, "{alpn}, group {group}");
            }
            let stats = server.stats();
            assert_eq!((stats.sessions, stats.cut_groups), (1, 0), "{stats:?}");
            drop(server);
            // The connection ends with the server.
            let _ = client.ended.await.unwrap();
        }
    }

    #[tokio::test]
    async fn there_is_no_more_room_than_for_others() {
        let (server, ..) = open(Config {
            token: Some("0123456789abcdef".parse().unwrap()),
            sessions: 1,
            ..config()
        });
        assert!(server.entrance().web_transport().is_none());
        let client = connect(&server, "moq-lite-05").await;
        while !server.is_watched() {
            tokio::task::yield_now().await;
        }
        let another = request("qmux-02.moq-lite-05");
        let refused = server.entrance().accept(&another, from());
        assert_eq!(refused.unwrap_err(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(server.stats().full, 1);
        drop(client);
    }

    #[test]
    fn invalid_requests_take_no_place() {
        let (server, ..) = open(config());
        let (address, _) = server.entrance().web_transport().unwrap();
        assert_eq!(address, server.local_address());
        let unknown = request("qmux-02.moq-lite-01, webtransport");
        let mut other = request("qmux-02.moq-lite-05");
        other.headers_mut().remove(UPGRADE);
        for request in [unknown, other] {
            let refused = server.entrance().accept(&request, from());
            assert_eq!(refused.unwrap_err(), StatusCode::BAD_REQUEST);
        }
    }
}
