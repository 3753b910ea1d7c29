//! Measuring the delays of those who serve a track: the first request for a session, whose answer costs them no state.

use anyhow::Context;
use hawser_io::clock;
use hawser_io::udp::{Received, UdpSocket};
use hawser_objects::{AccessSecret, Upstream, UpstreamConfig};
use hawser_units::{Ecn, Instant};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The time for which an answer is awaited.
const WAIT: Duration = Duration::from_secs(2);

/// Probes, and the sockets that they leave from.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    /// One for IPv4 and one for IPv6, while they are needed.
    sockets: [Option<UdpSocket>; 2],
    pending: Vec<Probe>,
}

#[derive(Debug)]
struct Probe {
    to: SocketAddr,
    sent: Instant,
    request: Upstream,
}

impl Probes {
    /// Sends a probe.
    ///
    /// # Errors
    /// If there is no route to the address.
    pub(crate) fn send(&mut self, to: SocketAddr, access: AccessSecret) -> anyhow::Result<()> {
        let (socket, any): (_, IpAddr) = match to {
            SocketAddr::V4(_) => (&mut self.sockets[0], Ipv4Addr::UNSPECIFIED.into()),
            SocketAddr::V6(_) => (&mut self.sockets[1], Ipv6Addr::UNSPECIFIED.into()),
        };
        if socket.is_none() {
            *socket = Some(UdpSocket::bind((any, 0).into())?);
        }
        let socket = socket.as_ref().context("there is no socket")?;
        let mut random = [0; 16];
        getrandom::fill(&mut random).context("the system has no random numbers")?;
        let mut request = Upstream::new(UpstreamConfig::new(0), access, random);
        let sent = clock::monotonic();
        let hello = request.poll_transmit(sent).context("there is no request")?;
        socket.send(to, Ecn::NotEct, &hello)?;
        self.pending.retain(|probe| probe.to != to);
        self.pending.push(Probe { to, sent, request });
        Ok(())
    }

    /// Takes the answers that have arrived, with their round trips.
    pub(crate) fn receive(&mut self, mut answered: impl FnMut(SocketAddr, Duration)) {
        let Probes { sockets, pending } = self;
        if pending.is_empty() {
            *sockets = [None, None];
            return;
        }
        let now = clock::monotonic();
        let mut take = |datagram: Received<'_>| {
            let (arrived, from) = (now - datagram.age, datagram.from);
            let is_from = |to: SocketAddr| (to.ip(), to.port()) == (from.ip(), from.port());
            pending.retain_mut(|probe| {
                let is_answer = is_from(probe.to)
                    && (probe
                        .request
                        .handle_datagram(now, datagram.bytes, Ecn::NotEct))
                    .is_ok();
                if is_answer {
                    answered(probe.to, arrived.saturating_since(probe.sent));
                }
                !is_answer
            });
        };
        for socket in sockets.iter_mut().flatten() {
            if let Err(error) = socket.receive(&mut take) {
                tracing::debug!("no answers to probes: {error}");
            }
        }
        pending.retain(|probe| now.saturating_since(probe.sent) < WAIT);
    }
}
