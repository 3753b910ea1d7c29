//! Numbered packets of every kind that applications send, and what became of them at the other end.
//!
//! Traffic that carries its own proof: each packet has a number and a digest, so a receiver knows what is missing, what
//! came twice and what was altered, without asking the sender.

mod datagram;
mod ledger;
mod pace;
mod payload;
mod tcp;

pub use payload::MIN_PAYLOAD;

use crate::topology::{Lab, Stop};
use anyhow::{Context, Result, ensure};
use hawser_io::netns::Namespace;
use ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use std::{panic, thread};

/// How packets are sent; each makes packets that look different to a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// UDP from a connected socket, with the kernel's defaults: DF, and an IPv4 ID that counts.
    UdpConnected,
    /// UDP from an unconnected socket without path-MTU discovery: no DF.
    UdpUnconnected,
    /// UDP from an unconnected socket that insists on DF: the IPv4 ID is always 0.
    UdpDf,
    /// UDP handed to the kernel in trains that it cuts into packets (`UDP_SEGMENT`).
    UdpGso,
    /// Records in a TCP stream.
    Tcp,
    /// ICMP echo requests.
    Icmp,
}

/// An IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// What to send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// How.
    pub kind: Kind,
    /// Over which IP version.
    pub family: Family,
    /// How many packets, or records in a TCP stream.
    pub packets: u64,
    /// Packets a second.
    pub rate_pps: u32,
    /// The size of each without headers, at least [`MIN_PAYLOAD`].
    pub payload_bytes: usize,
}

impl Stream {
    /// A stream of every kind over each IP version, all else the same.
    pub fn of_every_kind(packets: u64, rate_pps: u32, payload_bytes: usize) -> Vec<Stream> {
        use Kind::*;
        let kinds = [UdpConnected, UdpUnconnected, UdpDf, UdpGso, Tcp, Icmp];
        let pairs = kinds
            .into_iter()
            .flat_map(|kind| [(kind, Family::Ipv4), (kind, Family::Ipv6)]);
        pairs
            .map(|(kind, family)| Stream {
                kind,
                family,
                packets,
                rate_pps,
                payload_bytes,
            })
            .collect()
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::UdpConnected => "udp-connected",
            Kind::UdpUnconnected => "udp-unconnected",
            Kind::UdpDf => "udp-df",
            Kind::UdpGso => "udp-gso",
            Kind::Tcp => "tcp",
            Kind::Icmp => "icmp",
        };
        let family = match self.family {
            Family::Ipv4 => "ipv4",
            Family::Ipv6 => "ipv6",
        };
        write!(f, "{kind}/{family}")
    }
}

/// What became of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamReport {
    /// The stream.
    pub stream: Stream,
    /// Packets that the sender got rid of.
    pub sent: u64,
    /// Different packets that arrived intact.
    pub received: u64,
    /// Packets that were sent and never arrived intact.
    pub missing: u64,
    /// Intact arrivals of packets that had arrived before.
    pub duplicates: u64,
    /// Arrivals whose digest or number is wrong.
    pub corrupt: u64,
    /// First arrivals after the arrival of a later packet.
    pub reordered: u64,
    /// Packets that reached the receiving socket and were dropped there, for want of buffer or for a wrong checksum.
    /// These are missing too, and where it is not 0 a missing packet says nothing about the network.
    pub receiver_overflow: u64,
    /// Segments that TCP sent again; `None` for other kinds.
    pub retransmissions: Option<u32>,
    /// The numbers of the first missing packets, at most [`StreamReport::MISSING_SHOWN`].
    pub first_missing: Vec<u64>,
    /// What ended the stream early.
    pub error: Option<String>,
}

impl StreamReport {
    /// How many missing packets a report names.
    pub const MISSING_SHOWN: usize = 16;

    /// Whether every packet that was to be sent arrived, unaltered.
    pub fn is_complete(&self) -> bool {
        self.received == self.stream.packets && self.corrupt == 0 && self.error.is_none()
    }
}

/// Between whom traffic flows.
#[derive(Debug, Clone)]
pub struct Endpoints {
    /// Where the senders are.
    pub source: Namespace,
    /// Where the receivers are.
    pub viewer: Namespace,
    /// The receivers' IPv4 address.
    pub viewer_v4: Ipv4Addr,
    /// The receivers' IPv6 address.
    pub viewer_v6: Ipv6Addr,
}

impl Endpoints {
    fn viewer_address(&self, family: Family) -> IpAddr {
        match family {
            Family::Ipv4 => self.viewer_v4.into(),
            Family::Ipv6 => self.viewer_v6.into(),
        }
    }
}

impl From<&Lab> for Endpoints {
    fn from(lab: &Lab) -> Self {
        Endpoints {
            source: lab.source().clone(),
            viewer: lab.viewer().clone(),
            viewer_v4: lab.viewer_v4(),
            viewer_v6: lab.viewer_v6(),
        }
    }
}

/// Sends all `streams` at once and reports on each, in their order.
///
/// A receiver is done when its sender is and nothing came for `grace`, which should be longer than any delay in the
/// network: it is what late copies are given to be seen. A requested `stop` ends the senders early.
pub fn run(
    ends: &Endpoints,
    streams: &[Stream],
    grace: Duration,
    stop: &Stop,
) -> Result<Vec<StreamReport>> {
    for stream in streams {
        ensure!(
            stream.payload_bytes >= MIN_PAYLOAD,
            "{stream}: a payload has at least {MIN_PAYLOAD} bytes"
        );
        ensure!(
            stream.rate_pps > 0,
            "{stream}: a rate of 0 packets a second never ends"
        );
    }
    // A socket belongs to the namespace that it was made in, whichever thread uses it.
    let receivers: Vec<Receiver> = ends.viewer.run(|| {
        let bind = |(id, stream)| Receiver::bind(id, stream, ends.viewer_address(stream.family));
        numbered(streams).map(bind).collect::<Result<_>>()
    })??;
    let senders: Vec<Sender> = ends.source.run(|| {
        let open = |((id, stream), receiver)| Sender::open(id, stream, receiver);
        numbered(streams)
            .zip(&receivers)
            .map(open)
            .collect::<Result<_>>()
    })??;
    thread::scope(|scope| {
        let running: Vec<_> = (senders.into_iter().zip(receivers).zip(streams))
            .map(|((sender, receiver), stream)| {
                scope.spawn(move || run_one(sender, receiver, stream, grace, stop))
            })
            .collect();
        running.into_iter().map(join).collect()
    })
}

fn run_one(
    sender: Sender,
    receiver: Receiver,
    stream: &Stream,
    grace: Duration,
    stop: &Stop,
) -> Result<StreamReport> {
    let mut ledger = Ledger::new(stream.packets);
    thread::scope(|scope| {
        let sending = scope.spawn(|| sender.send(stream, stop));
        let drops = receiver
            .receive(stream, &mut ledger, grace, &|| sending.is_finished())
            .with_context(|| format!("{stream}: receiving"))?;
        let sent = join(sending);
        let missing = ledger.missing(sent.packets);
        Ok(StreamReport {
            stream: stream.clone(),
            sent: sent.packets,
            received: ledger.received,
            missing: missing.clone().count() as u64,
            duplicates: ledger.duplicates,
            corrupt: ledger.corrupt,
            reordered: ledger.reordered,
            receiver_overflow: drops.into(),
            retransmissions: sent.retransmissions,
            first_missing: missing.take(StreamReport::MISSING_SHOWN).collect(),
            error: sent.error.map(|error| error.to_string()),
        })
    })
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// Numbers streams for their packets, and for ICMP, which has no ports.
fn numbered(streams: &[Stream]) -> impl Iterator<Item = (u16, &Stream)> {
    (0..).zip(streams)
}

/// What a sender got done.
struct Sent {
    packets: u64,
    retransmissions: Option<u32>,
    error: Option<io::Error>,
}

enum Sender {
    Datagrams(datagram::Sender),
    Tcp(tcp::Sender),
}

impl Sender {
    fn open(id: u16, stream: &Stream, to: &Receiver) -> Result<Self> {
        match to {
            Receiver::Datagrams(receiver) => {
                datagram::Sender::open(id, stream, receiver).map(Sender::Datagrams)
            }
            Receiver::Tcp(receiver) => tcp::Sender::open(id, receiver).map(Sender::Tcp),
        }
        .with_context(|| format!("{stream}: opening the sender's socket"))
    }

    fn send(&self, stream: &Stream, stop: &Stop) -> Sent {
        match self {
            Sender::Datagrams(sender) => sender.send(stream, stop),
            Sender::Tcp(sender) => sender.send(stream, stop),
        }
    }
}

enum Receiver {
    Datagrams(datagram::Receiver),
    Tcp(tcp::Receiver),
}

impl Receiver {
    fn bind(id: u16, stream: &Stream, address: IpAddr) -> Result<Self> {
        match stream.kind {
            Kind::Tcp => tcp::Receiver::bind(id, address).map(Receiver::Tcp),
            _ => datagram::Receiver::bind(id, stream, address).map(Receiver::Datagrams),
        }
        .with_context(|| format!("{stream}: opening the receiver's socket at {address}"))
    }

    /// Returns the drops at the socket.
    fn receive(
        &self,
        stream: &Stream,
        ledger: &mut Ledger,
        grace: Duration,
        sender_is_done: &dyn Fn() -> bool,
    ) -> io::Result<u32> {
        match self {
            Receiver::Datagrams(receiver) => receiver.receive(ledger, grace, sender_is_done),
            Receiver::Tcp(receiver) => receiver
                .receive(stream, ledger, grace, sender_is_done)
                .map(|()| 0),
        }
    }
}
