use crate::congestion::Congestion;
use hawser_units::ByteSize;
use noq_proto::{IdleTimeout, TransportConfig, VarInt};
use std::sync::Arc;
use std::time::Duration;

/// What a connection for a tunnel's uplink needs: datagrams, a packet size that nobody changes, and to outlive a tunnel
/// (of the road).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transport {
    /// Bytes of UDP payload that every packet may have. It is not probed: datagrams that fitted when a tunnel's MTU was
    /// told to its users have to fit later. Default: 1452, what 1500 bytes hold over IPv6.
    pub udp_payload: u16,
    /// After how long without a packet from the peer the connection is given up. Default: 30 s.
    pub idle_timeout: Duration,
    /// How often an idle connection says that it is there, which keeps NAT bindings too. Default: 10 s.
    pub keep_alive: Option<Duration>,
    /// The round trip assumed before the first is measured. Default: 100 ms, so that a lost first packet is sent again
    /// soon.
    pub initial_rtt: Duration,
    /// How many bytes of datagrams wait in the connection at most, in each direction. Default: 4 MiB,
    /// more than the window of any uplink.
    pub datagram_buffer: ByteSize,
}

/// Figures that QUIC does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTransport {
    /// QUIC packets have to have room for 1200 bytes.
    #[error("{0} bytes of UDP payload are too few for QUIC: at least 1200")]
    UdpPayload(u16),
    /// Longer than QUIC can say.
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
    /// The parameters of one connection, whose figures are in the `Live` of `congestion`.
    ///
    /// # Errors
    /// When QUIC does not allow a figure.
    pub fn config(&self, congestion: Congestion) -> Result<TransportConfig, InvalidTransport> {
        const LEAST_UDP_PAYLOAD: u16 = 1200;
        if self.udp_payload < LEAST_UDP_PAYLOAD {
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
            // noq-proto 1.4 writes an ACK_FREQUENCY frame without looking for room, and panics where there is none.
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
