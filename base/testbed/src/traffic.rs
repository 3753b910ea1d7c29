//! Numbered packets of the kinds that applications send, and a check of their arrival.
//!
//! Each packet carries a number and a digest, so a receiver detects missing, duplicate and altered
//! packets without asking the sender.

mod datagram;
mod ledger;
mod pace;
mod payload;
mod tcp;

pub use payload::MIN_PAYLOAD;

use crate::netns::Namespace;
use crate::topology::{Lab, Stop};
use anyhow::{Context, Result, ensure};
use ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use std::{panic, thread};

/// The kind of packets. Each looks different to a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// UDP from a connected socket with the kernel's defaults: DF, and an IPv4 ID that counts.
    UdpConnected,
    /// UDP from an unconnected socket without path-MTU discovery: no DF.
    UdpUnconnected,
    /// UDP from an unconnected socket that enforces DF: the IPv4 ID is always 0.
    UdpDf,
    /// UDP with segmentation offload (`UDP_SEGMENT`): the kernel splits large buffers into packets.
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

/// A stream of packets to send.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// The kind of packets.
    pub kind: Kind,
    /// The IP version.
    pub family: Family,
    /// Number of packets, or of records in a TCP stream.
    pub packets: u64,
    /// Packets per second.
    pub rate_pps: u32,
    /// The size of each packet without headers in bytes, at least [`MIN_PAYLOAD`].
    pub payload_bytes: usize,
}

impl Stream {
    /// Returns a stream of every kind over each IP version, with the same parameters otherwise.
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

impl Stream {
    /// Returns an error if packets with these parameters cannot be sent.
    fn check(&self) -> Result<()> {
        ensure!(
            self.payload_bytes >= MIN_PAYLOAD,
            "{self}: a payload has at least {MIN_PAYLOAD} bytes"
        );
        ensure!(
            self.rate_pps > 0,
            "{self}: the rate has to be at least 1 packet per second"
        );
        Ok(())
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

/// The results of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StreamReport {
    /// The stream.
    pub stream: Stream,
    /// Packets that the sender sent.
    pub sent: u64,
    /// Distinct packets that arrived intact.
    pub received: u64,
    /// Packets that were sent and did not arrive intact.
    pub missing: u64,
    /// Intact arrivals of packets that had already arrived.
    pub duplicates: u64,
    /// Arrivals with a wrong digest or number.
    pub corrupt: u64,
    /// First arrivals after the arrival of a packet with a higher number.
    pub reordered: u64,
    /// Packets that reached the receiving socket and were dropped there, for lack of buffer space
    /// or for a wrong checksum. They count as missing too. If this is not 0, missing packets say
    /// nothing about the network.
    pub receiver_overflow: u64,
    /// Segments that TCP retransmitted; `None` for other kinds.
    pub retransmissions: Option<u32>,
    /// The numbers of the first missing packets, at most [`StreamReport::MISSING_SHOWN`].
    pub first_missing: Vec<u64>,
    /// The error that ended the stream early.
    pub error: Option<String>,
}

impl StreamReport {
    /// Maximum number of missing packets that a report lists.
    pub const MISSING_SHOWN: usize = 16;

    fn new(stream: &Stream, sent: Sent, ledger: &Ledger, drops: u32) -> Self {
        let missing = ledger.missing(sent.packets);
        StreamReport {
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
        }
    }

    /// Returns whether all packets of the stream arrived unaltered.
    pub fn is_complete(&self) -> bool {
        self.received == self.stream.packets && self.corrupt == 0 && self.error.is_none()
    }
}

/// The sending and the receiving host.
#[derive(Debug, Clone)]
pub struct Endpoints {
    /// The namespace of the senders.
    pub source: Namespace,
    /// The namespace of the receivers.
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

/// Sends all `streams` at the same time and returns their reports, in the same order.
///
/// A receiver finishes when its sender has finished and no packet arrived for `grace`. This should
/// be longer than any delay in the network, so that late copies are counted. A requested `stop`
/// ends the senders early.
pub fn run(
    endpoints: &Endpoints,
    streams: &[Stream],
    grace: Duration,
    stop: &Stop,
) -> Result<Vec<StreamReport>> {
    streams.iter().try_for_each(Stream::check)?;
    let (senders, receivers) = open(endpoints, streams)?;
    thread::scope(|scope| {
        let running: Vec<_> = (senders.into_iter().zip(receivers).zip(streams))
            .map(|((sender, receiver), stream)| {
                scope.spawn(move || run_one(sender, receiver, stream, grace, stop))
            })
            .collect();
        running.into_iter().map(join).collect()
    })
}

/// Opens the sockets of all streams. A socket belongs to the namespace in which it was created, even
/// if another thread uses it.
fn open(endpoints: &Endpoints, streams: &[Stream]) -> Result<(Vec<Sender>, Vec<Receiver>)> {
    let receivers: Vec<Receiver> = endpoints.viewer.run(|| {
        let bind =
            |(id, stream)| Receiver::bind(id, stream, endpoints.viewer_address(stream.family));
        numbered(streams).map(bind).collect::<Result<_>>()
    })??;
    let senders: Vec<Sender> = endpoints.source.run(|| {
        let open = |((id, stream), receiver)| Sender::open(id, stream, receiver);
        numbered(streams)
            .zip(&receivers)
            .map(open)
            .collect::<Result<_>>()
    })??;
    Ok((senders, receivers))
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
            .with_context(|| format!("{stream}: cannot receive"))?;
        Ok(StreamReport::new(stream, join(sending), &ledger, drops))
    })
}

fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| panic::resume_unwind(panic))
}

/// Numbers the streams. The number is part of their packets and identifies ICMP streams, which have
/// no ports.
fn numbered(streams: &[Stream]) -> impl Iterator<Item = (u16, &Stream)> {
    (0..).zip(streams)
}

/// Maps a timeout of a socket to `None`.
fn or_timeout(outcome: io::Result<usize>) -> io::Result<Option<usize>> {
    match outcome {
        Ok(length) => Ok(Some(length)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The results of a sender.
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
        .with_context(|| format!("{stream}: cannot open the sender's socket"))
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
        .with_context(|| format!("{stream}: cannot open the receiver's socket at {address}"))
    }

    /// Receives until the sender is done. Returns the number of packets dropped at the socket.
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
