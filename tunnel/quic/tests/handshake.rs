//! Two endpoints of a connection, directly connected.

use bytes::{Bytes, BytesMut};
use hawser_quic::{Congestion, Live, MarkCounter, MarkedDatagrams, Transport, tls};
use noq_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, Event,
    FourTuple, ServerConfig,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

const PROTOCOL: &[u8] = b"test";

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, name: &str) -> tls::Identity {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &self.0).unwrap();
        tls::Identity::from_pem(&certificate.pem(), &key.serialize_pem()).unwrap()
    }

    fn trusted(&self) -> Arc<rustls::RootCertStore> {
        tls::authorities(&self.0.pem()).unwrap()
    }
}

struct End {
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    live: Arc<Live>,
    marked: Arc<MarkedDatagrams>,
    counter: MarkCounter,
    peer: SocketAddr,
    is_connected: bool,
    is_lost: bool,
}

impl End {
    fn new(
        peer: u16,
        transport: Transport,
        server: Option<Arc<noq_proto::crypto::rustls::QuicServerConfig>>,
    ) -> Self {
        let live = Arc::new(Live::new(|| {}));
        let marked = Arc::new(MarkedDatagrams::default());
        let counter = MarkCounter::new(Arc::clone(&marked));
        let server = server.map(|crypto| {
            let mut config = ServerConfig::with_crypto(counter.server(crypto));
            config.transport_config(Arc::new(
                transport
                    .config(Congestion::bbr(Arc::clone(&live), 1))
                    .unwrap(),
            ));
            Arc::new(config)
        });
        End {
            endpoint: Endpoint::new(Arc::new(EndpointConfig::default()), server, false),
            connection: None,
            live,
            marked,
            counter,
            peer: SocketAddr::from(([127, 0, 0, 1], peer)),
            is_connected: false,
            is_lost: false,
        }
    }

    fn connect(
        &mut self,
        transport: Transport,
        crypto: Arc<noq_proto::crypto::rustls::QuicClientConfig>,
    ) {
        let mut config = ClientConfig::new(self.counter.client(crypto));
        config.transport_config(Arc::new(
            transport
                .config(Congestion::bbr(Arc::clone(&self.live), 1))
                .unwrap(),
        ));
        self.connection = Some(
            self.endpoint
                .connect(Instant::now(), config, self.peer, "server.test")
                .unwrap(),
        );
    }

    fn receive(&mut self, packet: BytesMut) {
        let (now, mut response) = (Instant::now(), Vec::new());
        match self.endpoint.handle(
            now,
            FourTuple::from_remote(self.peer),
            None,
            packet,
            &mut response,
        ) {
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.connection = self
                    .endpoint
                    .accept(incoming, now, &mut response, None)
                    .ok();
            }
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.connection().handle_event(event),
            _ => {}
        }
    }

    fn connection(&mut self) -> &mut Connection {
        &mut self.connection.as_mut().unwrap().1
    }

    fn transmit(&mut self) -> Vec<BytesMut> {
        let Some((handle, connection)) = &mut self.connection else {
            return Vec::new();
        };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            self.is_connected |= matches!(event, Event::Connected);
            self.is_lost |= matches!(event, Event::ConnectionLost { .. });
        }
        let mut packets = Vec::new();
        let mut packet = Vec::new();
        while connection
            .poll_transmit(Instant::now(), NonZeroUsize::MIN, &mut packet)
            .is_some()
        {
            packets.push(packet.as_slice().into());
            packet.clear();
        }
        packets
    }
}

/// Exchanges packets until neither end has any more to send.
fn talk(client: &mut End, server: &mut End) {
    loop {
        let (up, down) = (client.transmit(), server.transmit());
        if up.is_empty() && down.is_empty() {
            return;
        }
        up.into_iter().for_each(|packet| server.receive(packet));
        down.into_iter().for_each(|packet| client.receive(packet));
    }
}

fn pair(client_of: &Authority, server_of: &Authority, transport: &Transport) -> (End, End) {
    let server = tls::server(
        server_of.trusted(),
        &server_of.sign("server.test"),
        PROTOCOL,
    )
    .unwrap();
    let client = tls::client(
        server_of.trusted(),
        &client_of.sign("client.test"),
        PROTOCOL,
    )
    .unwrap();
    let mut ends = (
        End::new(2, transport.clone(), None),
        End::new(1, transport.clone(), Some(server)),
    );
    ends.0.connect(transport.clone(), client);
    talk(&mut ends.0, &mut ends.1);
    ends
}

#[test]
fn datagrams_of_the_pinned_size_arrive() {
    let authority = Authority::new();
    let transport = Transport {
        udp_payload: 1472,
        ..Transport::default()
    };
    let (mut client, mut server) = pair(&authority, &authority, &transport);
    assert!(client.is_connected && server.is_connected);

    let largest = client.connection().datagrams().max_size().unwrap();
    assert_eq!(
        largest,
        1472 - 1 - 8 - 4 - 16 - 9,
        "header, connection, number, tag, frame"
    );
    client
        .connection()
        .datagrams()
        .send(Bytes::from(vec![7; largest]), false)
        .unwrap();
    talk(&mut client, &mut server);

    assert_eq!(
        server.connection().datagrams().recv().unwrap().len(),
        largest
    );
    assert!(client.live.figures(Instant::now()).rtt.is_some());
    assert!(client.live.figures(Instant::now()).congestion_window.0 > 0);
}

#[test]
fn marked_packets_count_if_they_are_authentic() {
    let authority = Authority::new();
    let (mut client, mut server) = pair(&authority, &authority, &Transport::default());
    for (from_client, is_marked, is_forged) in [
        (true, false, false),
        (true, true, false),
        (false, true, false),
        (true, true, true),
    ] {
        let (from, to) = match from_client {
            true => (&mut client, &mut server),
            false => (&mut server, &mut client),
        };
        let before = to.counter.received().totals();
        let datagram = Bytes::from(vec![7; 1000]);
        from.connection().datagrams().send(datagram, false).unwrap();
        for mut packet in from.transmit() {
            packet[500] ^= u8::from(is_forged);
            if is_marked {
                to.marked.note(&packet);
            }
            to.receive(packet);
        }
        let after = to.counter.received().totals();
        let (all, marked) = (after.0 - before.0, after.1 - before.1);
        assert_eq!(
            all,
            if is_forged { 0 } else { 1003 },
            "with the frame's header"
        );
        assert_eq!(marked, if is_marked { all } else { 0 });
        talk(&mut client, &mut server);
    }
}

#[test]
fn a_client_of_another_authority_is_refused() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (client, server) = pair(&theirs, &ours, &Transport::default());
    assert!(client.is_lost && !server.is_connected);
}
