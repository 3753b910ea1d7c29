//! One uplink: a QUIC connection between two endpoints over two emulated links, in virtual time.

use super::clock::Clock;
use super::drive::Drive;
use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use hawser_netem::{Link, LinkStats};
use hawser_quic::{BbrConfig, Congestion, Figures, Live, Transport, tls};
use hawser_units::{ByteSize, Instant};
use noq_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint,
    EndpointConfig, Event, FourTuple, ServerConfig,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the IPv4 and UDP headers in front of a QUIC packet.
const OUTER_HEADERS: u64 = 28;

/// Payload of a UDP datagram over IPv4 with an MTU of 1500 bytes.
const UDP_PAYLOAD: u16 = 1472;

/// The timeout is longer than a drive. Some uplinks are dead for half a minute; a tunnel would
/// reconnect then, which is not part of this comparison.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

const PROTOCOL: &[u8] = b"hawser-simulation";
const SERVER_NAME: &str = "cloud.invalid";

/// The certificates of both ends. They are derived from fixed keys, so that handshakes have the
/// same size in every run.
pub(super) struct Identities {
    authority: String,
    car: tls::Identity,
    cloud: tls::Identity,
}

impl Identities {
    /// Signs a certificate for each end.
    pub(super) fn sign() -> Result<Self> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, key(1)?)?;
        let signed = |name: &str, seed: u8| -> Result<tls::Identity> {
            let mut parameters = CertificateParams::new(vec![name.to_owned()])?;
            parameters.serial_number = Some(vec![seed].into());
            let key = key(seed)?;
            let certificate = parameters.signed_by(&key, &authority)?;
            Ok(tls::Identity::from_pem(
                &certificate.pem(),
                &key.serialize_pem(),
            )?)
        };
        Ok(Identities {
            car: signed("car.invalid", 2)?,
            cloud: signed(SERVER_NAME, 3)?,
            authority: authority.pem(),
        })
    }
}

/// Creates an Ed25519 key, because its signatures have a fixed size.
fn key(seed: u8) -> Result<KeyPair> {
    /// PKCS #8, version 1, of Ed25519 (RFC 8410, section 7), without the 32 bytes of the key.
    const PREFIX: [u8; 16] = [
        0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
    ];
    let der = [&PREFIX[..], &[seed; 32]].concat();
    KeyPair::try_from(der).context("cannot parse the fixed key")
}

/// Returns the seed of the link from the car to the cloud. All senders use the same link.
pub(super) fn uplink_seed(seed: u64, path: usize) -> u64 {
    part_seed(seed, path, 2)
}

fn part_seed(seed: u64, path: usize, part: u64) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (path as u64 * 8 + part)
}

/// An uplink of the car: the QUIC endpoints of the car and the cloud, and the links between them.
pub(super) struct Uplink {
    clock: Clock,
    pub(super) car: Side,
    pub(super) cloud: Side,
    up: Link<BytesMut>,
    down: Link<BytesMut>,
}

impl Uplink {
    /// Creates an uplink. Its trace begins at `starts`; before that its first row applies.
    pub(super) fn new(
        drive: &Drive,
        path: usize,
        seed: u64,
        starts: Instant,
        clock: &Clock,
        identities: &Identities,
    ) -> Result<Self> {
        let up = uplink_seed(seed, path);
        let seed = |what: u64| part_seed(seed, path, what);
        let address = |last: u8| {
            SocketAddr::from(([10, 0, u8::try_from(path).expect("few paths"), last], 4433))
        };
        Ok(Uplink {
            car: Side::connecting(address(1), address(2), seed(0), clock, identities)?,
            cloud: Side::listening(address(2), address(1), seed(1), clock, identities)?,
            up: Link::new(drive.uplink(path), up, starts),
            down: Link::new(drive.downlink(path), seed(3), starts),
            clock: clock.clone(),
        })
    }

    /// Returns the time of the next event.
    pub(super) fn next(&self) -> Option<Instant> {
        let timeouts = [
            self.car.timeout,
            self.cloud.timeout,
            self.up.next_departure(),
            self.down.next_departure(),
        ];
        timeouts.into_iter().flatten().min()
    }

    /// Processes all events that are due.
    pub(super) fn advance(&mut self, now: Instant) -> Result<()> {
        let at = self.clock.std(now);
        while let Some((_, packet)) = self.up.pop(now) {
            self.cloud.receive(at, packet)?;
        }
        while let Some((_, packet)) = self.down.pop(now) {
            self.car.receive(at, packet)?;
        }
        for side in [&mut self.car, &mut self.cloud] {
            if side.timeout.is_some_and(|timeout| timeout <= now) {
                side.connection()?.handle_timeout(at);
                side.needs_flush = true;
            }
        }
        Ok(())
    }

    /// Sends the pending packets of both ends over the links.
    pub(super) fn flush(&mut self, now: Instant) -> Result<()> {
        let at = self.clock.std(now);
        for (side, link) in [
            (&mut self.car, &mut self.up),
            (&mut self.cloud, &mut self.down),
        ] {
            if !std::mem::take(&mut side.needs_flush) {
                continue;
            }
            while let Some(packet) = side.transmit(at)? {
                link.push(now, ByteSize(packet.len() as u64 + OUTER_HEADERS), packet);
            }
            let timeout = side
                .connection
                .as_ref()
                .and_then(|(_, connection)| connection.poll_timeout());
            side.timeout = timeout.map(|timeout| self.clock.instant(timeout));
        }
        Ok(())
    }

    /// Returns the statistics of the link from the car to the cloud.
    pub(super) fn stats(&self) -> LinkStats {
        self.up.stats()
    }
}

/// One end of an uplink.
pub(super) struct Side {
    clock: Clock,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    live: Arc<Live>,
    seed: u64,
    peer: FourTuple,
    /// The space of the connection's datagram buffer when it is empty.
    send_buffer_bytes: usize,
    timeout: Option<Instant>,
    needs_flush: bool,
    is_connected: bool,
}

impl Side {
    fn connecting(
        local: SocketAddr,
        peer: SocketAddr,
        seed: u64,
        clock: &Clock,
        identities: &Identities,
    ) -> Result<Self> {
        let mut side = Side::new(peer, seed, clock);
        let crypto = tls::client(
            tls::authorities(&identities.authority)?,
            &identities.car,
            PROTOCOL,
        )?;
        let mut config = ClientConfig::new(crypto);
        config.transport_config(side.transport()?);
        let connected = side
            .endpoint
            .connect(clock.now(), config, peer, SERVER_NAME);
        side.connection = Some(connected.with_context(|| format!("{local} cannot connect"))?);
        side.needs_flush = true;
        Ok(side)
    }

    fn listening(
        local: SocketAddr,
        peer: SocketAddr,
        seed: u64,
        clock: &Clock,
        identities: &Identities,
    ) -> Result<Self> {
        let mut side = Side::new(peer, seed, clock);
        let crypto = tls::server(
            tls::authorities(&identities.authority)?,
            &identities.cloud,
            PROTOCOL,
        )
        .with_context(|| format!("{local} cannot listen"))?;
        let mut config = ServerConfig::with_crypto(crypto);
        config.transport_config(side.transport()?);
        side.endpoint.set_server_config(Some(Arc::new(config)));
        Ok(side)
    }

    fn new(peer: SocketAddr, seed: u64, clock: &Clock) -> Self {
        let mut config = EndpointConfig::default();
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_be_bytes());
        config.rng_seed(Some(bytes));
        Side {
            endpoint: Endpoint::new(Arc::new(config), None, false),
            connection: None,
            live: Arc::new(Live::starting(clock.origin(), || {})),
            peer: FourTuple::from_remote(peer),
            seed,
            send_buffer_bytes: 0,
            timeout: None,
            needs_flush: false,
            is_connected: false,
            clock: clock.clone(),
        }
    }

    fn transport(&self) -> Result<Arc<noq_proto::TransportConfig>> {
        let clock = self.clock.clone();
        let live = Arc::clone(&self.live);
        let bbr = Arc::new(BbrConfig { seed: self.seed });
        let congestion = Congestion::new(bbr, live, move || clock.now());
        let transport = Transport {
            udp_payload: UDP_PAYLOAD,
            idle_timeout: IDLE_TIMEOUT,
            ..Transport::default()
        };
        Ok(Arc::new(transport.config(congestion)?))
    }

    /// Returns whether the handshake is complete on this side.
    pub(super) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Returns the figures of congestion control, and the bytes of datagrams that the connection
    /// has queued.
    pub(super) fn figures(&mut self) -> (Figures, ByteSize) {
        let queued = match &mut self.connection {
            Some((_, connection)) => self
                .send_buffer_bytes
                .saturating_sub(connection.datagrams().send_buffer_space()),
            None => 0,
        };
        (self.live.figures(self.clock.now()), ByteSize(queued as u64))
    }

    /// Returns the maximum size of a datagram.
    pub(super) fn datagram_size(&mut self) -> usize {
        let connection = self.connection.as_mut();
        connection
            .and_then(|(_, connection)| connection.datagrams().max_size())
            .unwrap_or(0)
    }

    /// Passes a datagram to the connection.
    pub(super) fn send(&mut self, datagram: Bytes) -> Result<()> {
        self.needs_flush = true;
        Ok(self.connection()?.datagrams().send(datagram, false)?)
    }

    /// Returns a datagram received from the other side.
    pub(super) fn poll_datagram(&mut self) -> Option<Bytes> {
        self.connection.as_mut()?.1.datagrams().recv()
    }

    fn connection(&mut self) -> Result<&mut Connection> {
        Ok(&mut self
            .connection
            .as_mut()
            .context("there is no connection yet")?
            .1)
    }

    fn receive(&mut self, now: std::time::Instant, packet: BytesMut) -> Result<()> {
        self.needs_flush = true;
        let mut response = Vec::new();
        match self
            .endpoint
            .handle(now, self.peer, None::<EcnCodepoint>, packet, &mut response)
        {
            Some(DatagramEvent::ConnectionEvent(_, event)) => {
                self.connection()?.handle_event(event)
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = self.endpoint.accept(incoming, now, &mut response, None);
                let accepted =
                    accepted.map_err(|error| anyhow::anyhow!("not accepted: {}", error.cause))?;
                self.connection = Some(accepted);
            }
            Some(DatagramEvent::Response(_)) => bail!("a packet belongs to no connection"),
            None => {}
        }
        self.process_events()
    }

    /// Processes the events of the endpoint and the connection.
    fn process_events(&mut self) -> Result<()> {
        let Some((handle, connection)) = &mut self.connection else {
            return Ok(());
        };
        while let Some(event) = connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(*handle, event) {
                connection.handle_event(event);
            }
        }
        while let Some(event) = connection.poll() {
            match event {
                Event::Connected => {
                    self.is_connected = true;
                    self.send_buffer_bytes = connection.datagrams().send_buffer_space();
                }
                Event::ConnectionLost { reason } => bail!("a connection was lost: {reason}"),
                _ => {}
            }
        }
        Ok(())
    }

    fn transmit(&mut self, now: std::time::Instant) -> Result<Option<BytesMut>> {
        self.process_events()?;
        let Some((_, connection)) = &mut self.connection else {
            return Ok(None);
        };
        let mut packet = Vec::with_capacity(UDP_PAYLOAD.into());
        let transmit = connection.poll_transmit(now, NonZeroUsize::MIN, &mut packet);
        Ok(transmit.map(|_| packet.as_slice().into()))
    }
}
