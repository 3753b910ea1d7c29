use super::{HOP_SALT, Input, START, TRACKS, access, announcement, named, packet, secret};
use crate::session::{
    Host, HostConfig, HostEvent, Upstream, UpstreamConfig, UpstreamEvent, ViewerError,
};
use crate::{Refusal, RelayedPacket, Seed};
use hawser_packets::feedback::ClockStamp;
use hawser_packets::media::{DEFAULT_DATAGRAM, Hop, ObjectId, Packet, PacketId, is_from_hop};
use hawser_packets::session::{MESSAGE, Message};
use hawser_units::{Ecn, Instant};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// The number of datagrams that are kept to be repeated.
const KEPT: usize = 64;

/// The number of objects of a track that the relay remembers.
const OBJECTS: usize = 6;

/// The number of packets of an object that the relay takes.
const PACKETS: u16 = 40;

/// Checks that a relay's end takes each packet once if the sender has tagged it, refuses no other without
/// the reason that it names, and reports only accepted packets. The packets are of a holder of the hop
/// keys, or are repeated, changed, in any order, or no packets.
pub fn check_upstream(input: &[u8]) {
    let mut relay = Relay::opened();
    let mut input = Input(input);
    let mut now = START;
    while let Some(action) = input.next::<12>() {
        match action[0] % 16 {
            0..=6 => relay.take(now, packet(now, &action), action[1]),
            7 | 8 => relay.repeat(now, &action),
            9 => relay.take_changed(now, &action),
            10 => {
                let length = usize::from(action[1]).min(input.0.len());
                relay.take(now, input.0[..length].to_vec(), action[2]);
            }
            11 => relay.take(now, long(now, &action), action[1]),
            12 | 13 => now += Duration::from_millis(action[1].into()),
            14 => relay.report(now),
            _ => relay.announce(now, (action[1] % 4).into()),
        }
        if !relay.upstream.is_open() {
            return;
        }
        relay.check();
    }
}

/// Returns a packet that is longer than a relay forwards.
fn long(now: Instant, action: &[u8; 12]) -> Vec<u8> {
    let mut long = packet(now, action);
    long.resize(DEFAULT_DATAGRAM + 1 + usize::from(action[11]), 0);
    long
}

/// A relay's end of a session, and what it has relayed.
struct Relay {
    host: Host,
    upstream: Upstream,
    /// The newest datagrams.
    kept: VecDeque<Vec<u8>>,
    relayed: BTreeSet<PacketId>,
    bytes: u64,
    refused: u64,
}

impl Relay {
    fn opened() -> Self {
        let announced = secret().announce(&announcement()).expect("two tracks");
        let seed = Seed::new([4; 32]);
        let host = HostConfig::new(access(), announced, HOP_SALT, seed);
        let config = UpstreamConfig {
            objects: OBJECTS,
            packets: PACKETS,
            ..UpstreamConfig::new(9)
        };
        let mut relay = Relay {
            host: Host::new(host),
            upstream: Upstream::new(config, access(), [5; 16]),
            kept: VecDeque::new(),
            relayed: BTreeSet::new(),
            bytes: 0,
            refused: 0,
        };
        for _ in 0..3 {
            relay.report(START);
        }
        let opened = relay.upstream.poll_event();
        assert!(matches!(opened, Some(UpstreamEvent::Opened { .. })));
        relay
    }

    fn take(&mut self, now: Instant, datagram: Vec<u8>, ecn: u8) {
        // Messages of the session are the matter of another check.
        if datagram.first() == Some(&MESSAGE) {
            return;
        }
        let ecn = Ecn::from_octet(ecn);
        let is_media = datagram.first() == Some(&hawser_packets::media::VERSION);
        let held = self.upstream.hops().expect("the session is open").clone();
        match self.upstream.handle_datagram(now, &datagram, ecn) {
            Ok(Some(packet)) => self.add(&packet, &datagram),
            Ok(None) => panic!("neither taken nor refused"),
            Err(ViewerError::Packet(refusal)) => {
                self.refused += 1;
                let is_right = self.is_reason(&refusal, &datagram, &held);
                assert!(is_media && is_right, "{refusal}");
            }
            Err(error) => assert!(!is_media, "{error}"),
        }
        self.kept.push_back(datagram);
        if self.kept.len() > KEPT {
            self.kept.pop_front();
        }
    }

    fn add(&mut self, relayed: &RelayedPacket, datagram: &[u8]) {
        let packet = Packet::parse(datagram).expect("what is relayed is a packet");
        assert_eq!(relayed.header, packet.header);
        assert_eq!(*relayed.datagram, *datagram);
        let key = access().hop(&HOP_SALT, packet.hop).key;
        assert!(is_from_hop(datagram, &key) && datagram.len() <= DEFAULT_DATAGRAM);
        let hops = self.upstream.hops().expect("the session is open");
        assert!(hops.iter().any(|hop| hop.number == packet.hop));
        assert!(packet.header.id.index < PACKETS);
        assert!(TRACKS.contains(&packet.header.id.object.alias));
        assert!(self.relayed.insert(packet.header.id), "relayed twice");
        self.bytes += datagram.len() as u64;
    }

    /// Returns whether this is a reason to refuse a datagram, under the keys that were held before.
    fn is_reason(&self, refusal: &Refusal, datagram: &[u8], held: &[Hop; 3]) -> bool {
        let parsed = Packet::parse(datagram);
        let (packet, id) = match (refusal, parsed) {
            (Refusal::TooLong, _) => return datagram.len() > DEFAULT_DATAGRAM,
            (Refusal::Header(error), parsed) => return parsed.err() == Some(*error),
            (_, Ok(packet)) => (packet, packet.header.id),
            (_, Err(_)) => return false,
        };
        match refusal {
            Refusal::HopTag => {
                let hop = held.iter().find(|hop| hop.number == packet.hop);
                hop.is_none_or(|hop| !is_from_hop(datagram, &hop.key))
            }
            Refusal::TooManyPackets => id.index >= PACKETS,
            Refusal::UnknownTrack => !TRACKS.contains(&id.object.alias),
            Refusal::Duplicate => self.relayed.contains(&id),
            Refusal::TooOld => self.is_displaced(&id.object),
            _ => false,
        }
    }

    /// Returns whether as many objects of its track as are remembered are above an object.
    fn is_displaced(&self, object: &ObjectId) -> bool {
        let of_track = self.relayed.iter().map(|id| id.object);
        let above = of_track.filter(|of| of.alias == object.alias && of > object);
        above.collect::<BTreeSet<_>>().len() >= OBJECTS
    }

    fn repeat(&mut self, now: Instant, action: &[u8; 12]) {
        let before = self.relayed.len();
        let at = usize::from(action[1]) % self.kept.len().max(1);
        if let Some(datagram) = self.kept.get(at).cloned() {
            let is_known = Packet::parse(&datagram)
                .is_ok_and(|packet| self.relayed.contains(&packet.header.id));
            self.take(now, datagram, action[2]);
            assert!(!is_known || self.relayed.len() == before);
        }
    }

    /// Takes a packet of which a bit of the part that the hop tag covers is changed.
    fn take_changed(&mut self, now: Instant, action: &[u8; 12]) {
        let mut datagram = packet(now, action);
        let bit = usize::from(action[1]) % (36 * 8 - 8);
        datagram[1 + bit / 8] ^= 1 << (bit % 8);
        let before = self.relayed.len();
        self.take(now, datagram, 0);
        assert_eq!(self.relayed.len(), before);
    }

    /// Exchanges messages with the sender.
    fn report(&mut self, now: Instant) {
        let from = ([192, 0, 2, 1], 1).into();
        while let Some(message) = self.upstream.poll_transmit(now) {
            let _ = self.host.handle_datagram(now, from, &message);
        }
        while let Some(event) = self.host.poll_event() {
            let HostEvent::Report {
                session, report, ..
            } = event
            else {
                continue;
            };
            assert!(named(&report).all(|id| self.relayed.contains(&id)));
            let echo = None;
            self.host
                .send_status(session, ClockStamp { sent: now, echo });
        }
        while let Some((_, message)) = self.host.poll_transmit() {
            let taken = self.upstream.handle_datagram(now, &message, Ecn::NotEct);
            // The answer to a request arrives after other messages, which have made it unnecessary.
            let is_needless = matches!(Message::parse(&message), Ok(Message::Retry(_)))
                && matches!(taken, Err(ViewerError::Unexpected));
            assert!(taken.is_ok() || is_needless, "{taken:?}");
        }
        self.upstream.handle_timeout(now);
    }

    /// Changes the hop key of the sender.
    fn announce(&mut self, now: Instant, hop: u16) {
        self.host.set_keys(hop, vec![(0, 0), (1, 0)]);
        self.report(now);
    }

    fn check(&self) {
        let totals = self.upstream.totals().expect("the session was open");
        assert_eq!(totals.packets, self.relayed.len() as u64);
        assert_eq!(totals.bytes, self.bytes);
        assert!(totals.ce_bytes <= totals.bytes);
        assert_eq!(totals.refused, self.refused);
        assert_eq!(self.upstream.refusals().total(), self.refused);
    }
}
