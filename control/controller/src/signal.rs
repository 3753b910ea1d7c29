//! In-band delivery of policies to an ingress (Qian, step 3): an authenticated datagram whose ToS
//! is the policy's code.
//!
//! The stream delivers the same policy. The one that arrives first is applied. The other one, like
//! a replay, has no greater epoch and is ignored.

use crate::controller::Controller;
use crate::tasks::Tasks;
use hawser_io::clock::unix_ns;
use hawser_model::resource::Policy;
use hawser_units::FlowId;
use hawser_wire::{Key, Signal, SignalError};
use socket2::SockRef;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// The number of repetitions of a signal, and the interval between them. A datagram may be lost on
/// the impaired paths.
const REPEATS: u32 = 2;
const REPEAT_AFTER: Duration = Duration::from_millis(5);

/// The error for a signal that was not sent.
#[derive(Debug, thiserror::Error)]
enum Unsent {
    #[error("its key is malformed: {0}")]
    Key(#[from] hex::FromHexError),
    #[error(transparent)]
    Number(#[from] hawser_units::OutOfRange),
    #[error(transparent)]
    Signal(#[from] SignalError),
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// The address and key of the ingress of a flow.
struct Target {
    address: SocketAddr,
    key: String,
    number: u16,
}

impl Controller {
    /// Sends a policy to the flow's ingress, if that accepts signals. The stream delivers it if the
    /// signal is lost.
    pub(crate) fn signal(&self, policy: &Policy) {
        let Some(target) = self.target(policy).filter(|_| self.config.nodes.signals) else {
            return;
        };
        match send(&self.tasks, &target, policy) {
            Ok(()) => self.metrics.pushed("signal"),
            Err(error) => {
                self.metrics.refused("signal_unsent");
                tracing::warn!(flow = %policy.flow, address = %target.address, "in-band signal not sent: {error}");
            }
        }
    }

    fn target(&self, policy: &Policy) -> Option<Target> {
        let view = self.view();
        let flow = &view.flow(&policy.flow)?.value;
        let (node, record) = view.node(&flow.flow.ingress)?;
        let address = node.registration.as_ref()?.value.signals?;
        Some(Target {
            address,
            key: record.value.signal_key.clone()?,
            number: flow.number,
        })
    }
}

fn send(tasks: &Tasks, target: &Target, policy: &Policy) -> Result<(), Unsent> {
    let mut key = [0; 16];
    hex::decode_to_slice(&target.key, &mut key)?;
    let signal = Signal {
        flow: FlowId::try_from(target.number)?,
        epoch: policy.epoch,
        code: policy.code,
        probes: policy.probes,
        probe_every: policy.probe_every,
        sent_unix_micros: unix_ns() / 1000,
    };
    let payload = signal.emit(&Key::from_bytes(key))?;
    let socket = socket(target.address, signal.traffic_class())?;
    socket.send_to(&payload, target.address)?;
    let address = target.address;
    tasks.spawn(async move {
        for _ in 0..REPEATS {
            tokio::time::sleep(REPEAT_AFTER).await;
            // The first datagram was sent; errors of the repetitions do not matter.
            let _ = socket.send_to(&payload, address);
        }
    });
    Ok(())
}

/// Opens a socket for one signal, because the ToS is a property of the socket.
fn socket(to: SocketAddr, traffic_class: u8) -> io::Result<UdpSocket> {
    let any = match to {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    let options = SockRef::from(&socket);
    match to {
        SocketAddr::V4(_) => options.set_tos_v4(traffic_class.into())?,
        SocketAddr::V6(_) => options.set_tclass_v6(traffic_class.into())?,
    }
    Ok(socket)
}
