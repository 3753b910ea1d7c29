use crate::congestion::Congestion;
use hawser_units::ByteSize;
use noq_proto::{IdleTimeout, TransportConfig, VarInt};
use std::sync::Arc;
use std::time::Duration;

/// The transport parameters of a tunnel's uplink: datagrams, a constant packet size, and a timeout
/// long enough to survive a road tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transport {
    /// UDP payload of a packet, in bytes. It is not probed: datagrams that fit when the tunnel's
    /// MTU was announced must still fit later. Default: 1452, which fits into 1500 bytes over IPv6.
    pub udp_payload: u16,
    /// Time without a packet from the peer after which the connection is closed. Default: 30 s.
    pub idle_timeout: Duration,
    /// Interval at which an idle connection sends keep-alives, which also preserve NAT bindings.
    /// Default: 10 s.
    pub keep_alive: Option<Duration>,
    /// The round-trip time assumed before the first measurement. Default: 100 ms, so that a lost
    /// first packet is retransmitted soon.
    pub initial_rtt: Duration,
    /// Maximum size of the datagram queue in each direction. Default: 4 MiB, more than the window
    /// of any uplink.
    pub datagram_buffer: ByteSize,
}

/// The error for parameters that QUIC does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTransport {
    /// QUIC packets must have room for 1200 bytes.
    #[error("{0} bytes of UDP payload are too few for QUIC: at least 1200")]
    UdpPayload(u16),
    /// The timeout does not fit QUIC's encoding.
    #[error("an idle timeout of {0:?} is too long for QUIC")]
    IdleTimeout(Duration),
}

impl Default for Transport {
    fn default() -> Self {
        Transport {
            udp_payload: 1452,
            idle_timeout: Duration::from_secs(30),
            keep_alive: Some(Duration::from_secs(10)),
            initial_rtt: Duration::from_millis(100),
            datagram_buffer: ByteSize(4 << 20),
        }
    }
}

impl Transport {
    /// Returns the parameters of one connection, whose figures are in the `Live` of `congestion`.
    ///
    /// # Errors
    /// If QUIC does not allow a parameter.
    pub fn config(&self, congestion: Congestion) -> Result<TransportConfig, InvalidTransport> {
        const MIN_UDP_PAYLOAD: u16 = 1200;
        if self.udp_payload < MIN_UDP_PAYLOAD {
            return Err(InvalidTransport::UdpPayload(self.udp_payload));
        }
        let idle = IdleTimeout::try_from(self.idle_timeout)
            .map_err(|_| InvalidTransport::IdleTimeout(self.idle_timeout))?;
        let buffer = usize::try_from(self.datagram_buffer.0).unwrap_or(usize::MAX);
        let mut config = TransportConfig::default();
        config
            .initial_mtu(self.udp_payload)
            .min_mtu(self.udp_payload)
            .mtu_discovery_config(None)
            .max_idle_timeout(Some(idle))
            .keep_alive_interval(self.keep_alive)
            .initial_rtt(self.initial_rtt)
            // noq-proto 1.4 writes an ACK_FREQUENCY frame without checking for space, and panics if
            // there is none.
            .ack_frequency_config(None)
            .datagram_receive_buffer_size(Some(buffer))
            .datagram_send_buffer_size(buffer)
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .allow_spin(false)
            .congestion_controller_factory(Arc::new(congestion));
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Live;

    #[test]
    fn what_quic_does_not_allow_is_refused() {
        let config = |transport: Transport| {
            transport
                .config(Congestion::bbr(Arc::new(Live::new(|| {})), 1))
                .map(|_| ())
        };
        let small = Transport {
            udp_payload: 1199,
            ..Transport::default()
        };
        assert_eq!(config(small), Err(InvalidTransport::UdpPayload(1199)));
        let long = Transport {
            idle_timeout: Duration::MAX,
            ..Transport::default()
        };
        assert_eq!(
            config(long),
            Err(InvalidTransport::IdleTimeout(Duration::MAX))
        );
        assert_eq!(config(Transport::default()), Ok(()));
    }
}
