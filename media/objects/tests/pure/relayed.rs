//! A relay between a publisher and a viewer, which it needs no more than the access secret for.

use crate::support::*;
use hawser_objects::{
    EndReason, Host, HostConfig, HostEvent, ReceiverEvent, Refusal, Seed, Upstream, UpstreamConfig,
    UpstreamEnd, UpstreamEvent, Viewer, ViewerConfig, ViewerError, ViewerEvent,
};
use hawser_packets::feedback::{ClockStamp, Feedback};
use hawser_packets::media::{self, DEFAULT_DATAGRAM, Header, Hop};
use hawser_units::{Ecn, Instant};
use std::net::SocketAddr;

const START: Instant = Instant::from_nanos(1_000_000_000);

/// The random number of the relay.
const RELAY: u64 = 77;

/// The salt of the relay's hop keys.
const SALT: [u8; 16] = [0x66; 16];

/// A relay of one viewer.
struct Relay {
    upstream: Upstream,
    host: Option<Host>,
    reports: Vec<Feedback>,
}

impl Relay {
    fn new(number: u64) -> Self {
        let random = [number as u8; 16];
        Relay {
            upstream: Upstream::new(UpstreamConfig::new(number), access(), random),
            host: None,
            reports: Vec::new(),
        }
    }

    /// Exchanges messages with the publisher until neither has further ones.
    fn meet(&mut self, publisher: &mut Host, now: Instant) {
        for _ in 0..4 {
            while let Some(message) = self.upstream.poll_transmit(now) {
                publisher
                    .handle_datagram(now, relay_address(), &message)
                    .unwrap();
            }
            answer(publisher, now);
            while let Some((_, message)) = publisher.poll_transmit() {
                let taken = self.upstream.handle_datagram(now, &message, Ecn::NotEct);
                assert_eq!(taken, Ok(None));
            }
            self.take_events(now);
        }
    }

    fn take_events(&mut self, now: Instant) {
        while let Some(event) = self.upstream.poll_event() {
            match event {
                UpstreamEvent::Opened { bytes, .. } => {
                    let seed = Seed::new([0x45; 32]);
                    let config = HostConfig::new(access(), bytes, SALT, seed);
                    self.host = Some(Host::new(config));
                    self.upstream.subscribe(now, vec![(ALIAS, 2)]);
                }
                UpstreamEvent::Ended(reason) => panic!("{reason:?}"),
            }
        }
        let relays = self.upstream.relays();
        let epochs = self.upstream.status().map(|status| status.epochs.clone());
        if let Some(host) = &mut self.host {
            host.set_relays(relays);
            host.set_keys(0, epochs.unwrap_or_default());
            host.set_publisher_clock(self.upstream.publisher_ahead_nanos().unwrap_or_default());
        }
    }

    /// Exchanges messages with the viewer.
    fn serve(&mut self, viewer: &mut Viewer, now: Instant) {
        let host = self.host.as_mut().expect("the publisher is known");
        for _ in 0..4 {
            while let Some(message) = viewer.poll_transmit(now) {
                host.handle_datagram(now, viewer_address(), &message)
                    .unwrap();
            }
            self.reports.extend(answer(host, now));
            while let Some((_, message)) = host.poll_transmit() {
                viewer.handle_datagram(now, &message, Ecn::NotEct).unwrap();
            }
            while let Some(event) = viewer.poll_event() {
                match event {
                    ViewerEvent::Opened(_) => viewer.subscribe(now, vec![(ALIAS, 2)]),
                    ViewerEvent::Ended(reason) => panic!("{reason:?}"),
                }
            }
        }
    }
}

fn relay_address() -> SocketAddr {
    "192.0.2.9:41000".parse().unwrap()
}

/// Answers reports with statuses. Returns the reports.
fn answer(host: &mut Host, now: Instant) -> Vec<Feedback> {
    let mut reports = Vec::new();
    while let Some(event) = host.poll_event() {
        if let HostEvent::Report {
            session, report, ..
        } = event
        {
            let echo = Some(hawser_packets::feedback::StampEcho {
                stamp: report.clock.sent,
                held: ms(0),
            });
            host.send_status(session, ClockStamp { sent: now, echo });
            reports.push(report);
        }
    }
    reports
}

/// Returns a packet with the relay's tag.
fn retagged(datagram: &[u8], hop: &Hop) -> Vec<u8> {
    let mut datagram = datagram.to_vec();
    let header = datagram.first_chunk_mut::<{ Header::LEN }>().unwrap();
    media::write_hop(header, hop);
    datagram
}

#[test]
fn a_viewer_behind_a_relay_gets_what_the_relay_cannot_read() {
    let mut publisher = host();
    let mut relay = Relay::new(RELAY);
    relay.meet(&mut publisher, START);
    let mut viewer = viewer(ViewerConfig::default());
    relay.serve(&mut viewer, START);
    assert!(
        viewer.receiver().is_some(),
        "it has verified the announcement"
    );

    let now = START + ms(10);
    let mut packetiser = packetiser();
    let hop = access().hop(&SALT, 0);
    let sealed = packetiser.packetise(info(3, 0, 0, START + ms(200)), &content(3, 5000));
    for packet in &sealed.unwrap().packets {
        let taken = relay
            .upstream
            .handle_datagram(now, &packet.datagram, Ecn::Ce);
        let relayed = taken.unwrap().expect("a packet of media");
        assert_eq!(relayed.header.id, packet.id);
        // The tag of the hop before is of no use at the next one.
        let refused = viewer.handle_datagram(now, &relayed.datagram, Ecn::Ce);
        assert_eq!(refused, Err(ViewerError::Packet(Refusal::HopTag)));
        let sent = retagged(&relayed.datagram, &hop);
        viewer.handle_datagram(now, &sent, Ecn::Ce).unwrap();
    }
    let Some(ReceiverEvent::Object(object)) = viewer.poll_media() else {
        panic!("no object");
    };
    assert_eq!(object.bytes(), content(3, 5000));

    // The publisher and the relay are both told of the marks.
    let totals = relay.upstream.totals().unwrap();
    assert_eq!((totals.packets, totals.ce_bytes), (5, totals.bytes));
    relay.meet(&mut publisher, START + ms(20));
    relay.serve(&mut viewer, START + ms(20));
    let last = relay.reports.last().unwrap();
    assert_eq!(
        (last.totals.packets, last.totals.ce_bytes),
        (5, totals.bytes)
    );
}

#[test]
fn a_packet_is_relayed_once_and_its_arrival_reported_again() {
    let mut publisher = host();
    let mut relay = Relay::new(RELAY);
    relay.meet(&mut publisher, START);
    let sealed = packetiser().packetise(info(0, 0, 0, START + ms(200)), &content(0, 3000));
    let packets = sealed.unwrap().packets;
    let mut take = |datagram: &[u8]| relay.upstream.handle_datagram(START, datagram, Ecn::Ect1);
    assert!(take(&packets[1].datagram).unwrap().is_some());
    let again = Err(ViewerError::Packet(Refusal::Duplicate));
    assert_eq!(take(&packets[1].datagram), again);
    let mut forged = packets[0].datagram.to_vec();
    forged[20] ^= 1;
    assert_eq!(take(&forged), Err(ViewerError::Packet(Refusal::HopTag)));
    assert!(take(&packets[0].datagram).unwrap().is_some());
    assert_eq!(relay.upstream.totals().unwrap().packets, 2);
}

#[test]
fn a_datagram_longer_than_the_default_is_not_relayed() {
    let mut publisher = host();
    let mut relay = Relay::new(RELAY);
    relay.meet(&mut publisher, START);
    let sealed = packetiser().packetise(info(0, 0, 0, START + ms(200)), &content(0, 2 * 1148));
    let packets = sealed.unwrap().packets;
    let full = packets[0].datagram.to_vec();
    assert_eq!(full.len(), DEFAULT_DATAGRAM);
    // The tag covers the header, so that anyone can append to a packet in flight.
    let long = [&full[..], &[0]].concat();
    let taken = relay.upstream.handle_datagram(START, &long, Ecn::Ect1);
    assert_eq!(taken, Err(ViewerError::Packet(Refusal::TooLong)));
    assert_eq!(relay.upstream.refusals().too_long, 1);
    assert_eq!(relay.upstream.totals().unwrap().refused, 1);
    let taken = relay.upstream.handle_datagram(START, &full, Ecn::Ect1);
    assert!(taken.unwrap().is_some());
}

/// An attacker that reads packets to a relay and is faster than they are can replace the payload under a
/// header, which only viewers authenticate. It gains what dropping the packet would: the object is lost to
/// the viewers behind the relay, and no other.
#[test]
fn a_forged_payload_is_rejected_and_costs_its_object() {
    let mut publisher = host();
    let mut relay = Relay::new(RELAY);
    relay.meet(&mut publisher, START);
    let mut viewer = viewer(ViewerConfig::default());
    relay.serve(&mut viewer, START);
    let hop = access().hop(&SALT, 0);
    let mut packetiser = packetiser();
    let [attacked, next] = [0, 1].map(|group| {
        let info = info(group, 0, 0, START + ms(200));
        packetiser.packetise(info, &content(group, 3000)).unwrap()
    });
    let now = START + ms(10);
    let mut pass = |datagram: &[u8]| {
        let taken = relay.upstream.handle_datagram(now, datagram, Ecn::Ect1);
        let relayed = taken.map_err(|error| error.to_string())?.unwrap();
        let sent = retagged(&relayed.datagram, &hop);
        let taken = viewer.handle_datagram(now, &sent, Ecn::Ect1);
        taken.map_err(|error| format!("viewer: {error}"))
    };

    let original = &attacked.packets[1].datagram;
    let mut forged = original.to_vec();
    forged[Header::LEN..].fill(0xee);
    let refused = format!("viewer: {}", Refusal::Forged);
    assert_eq!(pass(&forged), Err(refused));
    assert_eq!(pass(original), Err(Refusal::Duplicate.to_string()));
    for packet in [&attacked.packets[0], &attacked.packets[2]] {
        assert_eq!(pass(&packet.datagram), Ok(()));
    }
    for packet in &next.packets {
        assert_eq!(pass(&packet.datagram), Ok(()));
    }

    let receiver = viewer.receiver().unwrap();
    assert_eq!(
        (receiver.refusals().forged, receiver.refusals().total()),
        (1, 1)
    );
    assert_eq!(
        (receiver.totals().packets, receiver.totals().refused),
        (5, 1)
    );
    assert_eq!(relay.upstream.refusals().duplicate, 1);
    viewer.handle_timeout(START + ms(1000));
    let media: Vec<ReceiverEvent> = std::iter::from_fn(|| viewer.poll_media()).collect();
    let [
        ReceiverEvent::Object(whole),
        ReceiverEvent::GivenUp { id, arrived, .. },
    ] = &media[..]
    else {
        panic!("{media:?}");
    };
    assert_eq!(whole.bytes(), content(1, 3000));
    assert_eq!((id.group, *arrived), (0, 2));
}

#[test]
fn only_packets_with_the_kernels_tag_are_accepted() {
    let mut publisher = host();
    let mut relay = Relay::new(RELAY);
    relay.meet(&mut publisher, START);
    let hop = access().hop(&SALT, 0);
    relay.upstream.expect_retagged(hop.clone());
    let sealed = packetiser().packetise(info(0, 0, 0, START + ms(200)), &content(0, 1000));
    let packet = &sealed.unwrap().packets[0].datagram;
    let bare = relay.upstream.handle_datagram(START, packet, Ecn::Ect1);
    assert_eq!(bare, Err(ViewerError::Packet(Refusal::HopTag)));
    let retagged = retagged(packet, &hop);
    let taken = relay.upstream.handle_datagram(START, &retagged, Ecn::Ect1);
    assert!(taken.unwrap().is_some());
}

#[test]
fn a_relay_without_the_senders_tags_knows_the_next_key() {
    let mut publisher = host();
    let mut relay = Relay::new(RELAY);
    relay.meet(&mut publisher, START);
    relay.upstream.expect_retagged(access().hop(&SALT, 0));
    for number in 1..5 {
        let held = relay.upstream.hops().unwrap();
        assert!(held.iter().any(|hop| hop.number == number), "{number}");
        publisher.set_keys(number, vec![(ALIAS, 0)]);
        relay.meet(&mut publisher, START + ms(1000) * number.into());
    }
}

/// Returns the end of a relay's session with a sender behind these relays.
fn end_behind(relays: Vec<u64>) -> Option<UpstreamEnd> {
    let mut sender = host();
    sender.set_relays(relays);
    let config = UpstreamConfig::new(RELAY);
    let mut upstream = Upstream::new(config, access(), [1; 16]);
    for _ in 0..3 {
        while let Some(message) = upstream.poll_transmit(START) {
            let _ = sender.handle_datagram(START, relay_address(), &message);
        }
        while let Some((_, message)) = sender.poll_transmit() {
            let _ = upstream.handle_datagram(START, &message, Ecn::NotEct);
        }
    }
    let mut events = std::iter::from_fn(|| upstream.poll_event());
    events.find_map(|event| match event {
        UpstreamEvent::Ended(reason) => Some(reason),
        UpstreamEvent::Opened { .. } => None,
    })
}

#[test]
fn a_relay_does_not_relay_its_own_stream_nor_one_from_too_far() {
    assert_eq!(end_behind(vec![1, 2]), None);
    assert_eq!(end_behind(vec![1, RELAY, 3]), Some(UpstreamEnd::Loop));
    assert_eq!(end_behind(vec![1; 8]), Some(UpstreamEnd::TooFar));
}

#[test]
fn a_relay_learns_that_the_publisher_has_gone() {
    let mut publisher = host();
    let mut relay = Relay::new(RELAY);
    relay.meet(&mut publisher, START);
    relay.upstream.handle_timeout(START + ms(11_000));
    let reason = UpstreamEnd::Session(EndReason::TimedOut);
    assert_eq!(
        relay.upstream.poll_event(),
        Some(UpstreamEvent::Ended(reason))
    );
    assert!(!relay.upstream.is_open() && relay.upstream.status().is_some());
}
