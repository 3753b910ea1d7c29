//! Sealed packets: golden vectors, forgeries, replays, epochs and restarts.

use crate::support::*;
use hawser_objects::{
    LayerContent, Packetiser, PacketiserConfig, Receiver, ReceiverConfig, ReceiverEvent, Refusal,
    SealedPacket, TrackSecret,
};
use hawser_packets::feedback::{ClockStamp, Feedback, StampEcho};
use hawser_packets::golden;
use hawser_packets::media::{self, Header, MediaTime, Packet};
use hawser_packets::session::{Accept, Status};
use hawser_units::{Ecn, Instant};
use std::collections::HashMap;
use std::num::NonZeroU8;
use std::time::Duration;

const START: Instant = Instant::from_nanos(1_000_000_000);

fn status(epoch: u16) -> Status {
    Status {
        clock: ClockStamp {
            sent: START,
            echo: None,
        },
        publisher_ahead_nanos: 0,
        hop: 0,
        subscription: 0,
        report_interval_ms: NonZeroU8::MIN,
        relays: Vec::new(),
        epochs: vec![(ALIAS, epoch)],
    }
}

fn receiver_with(secret: &TrackSecret, config: ReceiverConfig) -> Receiver {
    let accept = Accept {
        status: status(0),
        hop_salt: [0x33; 16],
        announcement: &[],
    };
    Receiver::new(config, secret, &announcement(2), &accept)
}

fn receiver() -> Receiver {
    receiver_with(&secret(), ReceiverConfig::default())
}

fn packets(packetiser: &mut Packetiser, group: u32, length: usize) -> Vec<SealedPacket> {
    let info = info(group, 0, 0, START + ms(100));
    let object = packetiser.packetise(info, &content(group, length));
    object.unwrap().packets
}

fn take(receiver: &mut Receiver, packet: &SealedPacket) -> Result<(), Refusal> {
    receiver.handle_packet(START, &packet.datagram, Ecn::Ect1)
}

/// Returns the packet with right hop fields, as a holder of the hop key can make them.
fn tagged_again(datagram: &[u8]) -> Vec<u8> {
    let mut datagram = datagram.to_vec();
    let header = datagram.first_chunk_mut::<{ Header::LEN }>().unwrap();
    media::write_hop(header, &access().hop(&[0x33; 16], 0));
    datagram
}

/// Returns a receiver that has related its clock with a publisher's whose clock is the same.
fn related(config: ReceiverConfig) -> Receiver {
    let mut receiver = receiver_with(&secret(), config);
    let report = receiver.poll_report(START, None).unwrap();
    let mut answer = status(0);
    answer.clock.echo = Some(StampEcho {
        stamp: report.clock.sent,
        held: Duration::ZERO,
    });
    receiver.handle_status(START, &answer).unwrap();
    receiver
}

fn named(report: &Feedback) -> usize {
    let blocks = report.blocks.iter();
    blocks
        .map(|block| block.packets.iter().flatten().count())
        .sum()
}

#[test]
fn packets_are_sealed_as_the_other_implementation_did() {
    let vectors = golden::media_packets();
    let [base, open] = &vectors[..] else {
        panic!("two vectors");
    };
    let packetiser = |vector: &golden::MediaVector, datagram| {
        let secret = TrackSecret::new(vector.secret);
        let hop = secret.access().hop(&vector.hop_salt, vector.hop);
        let alias = vector.header.id.object.alias;
        let config = PacketiserConfig {
            datagram,
            ..PacketiserConfig::new(alias, vector.incarnation)
        };
        Packetiser::new(config, secret, hop)
    };
    let info = |header: &Header| hawser_objects::ObjectInfo {
        id: header.id.object,
        priority: header.priority,
        deadline: header
            .deadline
            .nearest(Instant::ZERO + ms(header.deadline.0.into())),
        flags: header.flags,
    };
    let others: [&[u8]; 2] = [b"before", b"after"];
    let chunks = [others[0], others[0], &base.payload, others[1], others[1]];
    let sealed = packetiser(base, 1200).packetise_chunks(info(&base.header), &chunks);
    let datagram = &sealed.unwrap().packets[2].datagram;
    assert_eq!(hex::encode(datagram), hex::encode(&base.datagram));

    let mut packetiser = packetiser(open, Header::OVERHEAD + 1);
    for _ in 0..open.header.epoch {
        packetiser.rotate().unwrap();
    }
    let mut object = packetiser.begin(info(&open.header)).unwrap();
    let sealed = packetiser
        .push(&mut object, LayerContent::Whole(&[0; 65_534]))
        .unwrap();
    let datagram = &sealed.last().unwrap().datagram;
    assert_eq!(hex::encode(datagram), hex::encode(&open.datagram));
}

#[test]
fn an_object_is_opened_and_reassembled_in_any_order() {
    let mut receiver = receiver();
    for packet in packets(&mut packetiser(), 5, 10_000).iter().rev() {
        take(&mut receiver, packet).unwrap();
    }
    let Some(ReceiverEvent::Object(object)) = receiver.poll_event() else {
        panic!("no object");
    };
    assert_eq!(object.bytes(), content(5, 10_000));
    assert_eq!((receiver.poll_event(), receiver.buffered()), (None, 0));
}

#[test]
fn packets_that_decode_alone_are_delivered_as_they_arrive() {
    let config = ReceiverConfig {
        packet_events: true,
        ..ReceiverConfig::default()
    };
    let mut receiver = receiver_with(&secret(), config);
    let mut packetiser = packetiser();
    let mut info = info(5, 0, 0, START + ms(100));
    info.flags.packets_alone = true;
    let object = packetiser.packetise_chunks(info, &[b"one", b"two"]);
    let alone = object.unwrap().packets;
    take(&mut receiver, &alone[1]).unwrap();
    let Some(ReceiverEvent::Packet { id, payload }) = receiver.poll_event() else {
        panic!("no packet");
    };
    assert_eq!((id.index, &payload[..]), (1, &b"two"[..]));
    take(&mut receiver, &alone[0]).unwrap();
    let events: Vec<_> = std::iter::from_fn(|| receiver.poll_event()).collect();
    assert!(matches!(
        events[..],
        [ReceiverEvent::Packet { .. }, ReceiverEvent::Object(_)]
    ));
    for packet in packets(&mut packetiser, 6, 2000) {
        take(&mut receiver, &packet).unwrap();
    }
    let events: Vec<_> = std::iter::from_fn(|| receiver.poll_event()).collect();
    assert!(matches!(events[..], [ReceiverEvent::Object(_)]));
}

#[test]
fn no_bit_of_a_packet_can_be_changed() {
    let packet = &packets(&mut packetiser(), 1, 100)[0];
    let mut receiver = receiver();
    for bit in 0..packet.datagram.len() * 8 {
        let mut forged = packet.datagram.to_vec();
        forged[bit / 8] ^= 1 << (bit % 8);
        let refused = receiver.handle_packet(START, &forged, Ecn::Ect1);
        let in_header = bit < Header::LEN * 8;
        assert_eq!(refused == Err(Refusal::Forged), !in_header, "bit {bit}");
        assert!(refused.is_err(), "bit {bit}");
        if bit < Header::IMMUTABLE * 8 {
            // A holder of the hop key makes a right tag. The payload is wrong.
            let refused = receiver.handle_packet(START, &tagged_again(&forged), Ecn::Ect1);
            assert!(
                matches!(
                    refused,
                    Err(Refusal::Forged
                        | Refusal::Header(_)
                        | Refusal::UnknownTrack
                        | Refusal::UnknownEpoch
                        | Refusal::TooManyPackets)
                ),
                "bit {bit}: {refused:?}"
            );
        }
    }
    assert_eq!((receiver.buffered(), receiver.totals().packets), (0, 0));
    assert_eq!(take(&mut receiver, packet), Ok(()), "nothing was spoilt");
}

#[test]
fn a_layer_that_was_not_announced_is_refused_and_not_kept() {
    let mut receiver = receiver();
    for (group, layer) in (0..1000u32).zip((2..8u8).cycle()) {
        let info = info(group, 0, layer, START + ms(100));
        let object = packetiser().packetise(info, &[7]).unwrap();
        let refused = take(&mut receiver, &object.packets[0]);
        assert_eq!(refused, Err(Refusal::UnknownLayer), "layer {layer}");
    }
    assert_eq!((receiver.buffered(), receiver.poll_event()), (0, None));
    assert_eq!(receiver.refusals().unknown_layer, 1000);
}

#[test]
fn wrong_keys_are_refused_by_the_check_that_knows_them() {
    let refused = |secret: [u8; 32], incarnation, salt: [u8; 16], hop_of: [u8; 32]| {
        let hop = TrackSecret::new(hop_of).access().hop(&salt, 0);
        let config = PacketiserConfig::new(ALIAS, incarnation);
        let mut packetiser = Packetiser::new(config, TrackSecret::new(secret), hop);
        take(&mut receiver(), &packets(&mut packetiser, 1, 10)[0])
    };
    let [right, other] = [[0x11; 32], [0x12; 32]];
    assert_eq!(refused(right, [0x22; 16], [0x33; 16], right), Ok(()));
    assert_eq!(
        refused(other, [0x22; 16], [0x33; 16], right),
        Err(Refusal::Forged)
    );
    assert_eq!(
        refused(right, [0x23; 16], [0x33; 16], right),
        Err(Refusal::Forged)
    );
    assert_eq!(
        refused(right, [0x22; 16], [0x34; 16], right),
        Err(Refusal::HopTag)
    );
    assert_eq!(
        refused(right, [0x22; 16], [0x33; 16], other),
        Err(Refusal::HopTag)
    );
}

#[test]
fn replays_are_refused_and_counted() {
    let config = ReceiverConfig {
        remembered: 4,
        ..ReceiverConfig::default()
    };
    let mut receiver = receiver_with(&secret(), config);
    let mut packetiser = packetiser();
    let first = packets(&mut packetiser, 0, 2000);
    take(&mut receiver, &first[0]).unwrap();
    assert_eq!(
        take(&mut receiver, &first[0]),
        Err(Refusal::Duplicate),
        "incomplete"
    );
    take(&mut receiver, &first[1]).unwrap();
    assert_eq!(
        take(&mut receiver, &first[0]),
        Err(Refusal::Duplicate),
        "complete"
    );
    for group in 1..6 {
        take(&mut receiver, &packets(&mut packetiser, group, 10)[0]).unwrap();
    }
    assert_eq!(
        take(&mut receiver, &first[0]),
        Err(Refusal::TooOld),
        "forgotten"
    );
    assert_eq!(receiver.totals().packets, 7);
    assert_eq!(
        (receiver.refusals().duplicate, receiver.refusals().too_old),
        (2, 1)
    );
}

#[test]
fn late_packets_are_counted_once_and_not_kept() {
    let mut receiver = related(ReceiverConfig::default());
    let mut packetiser = packetiser();
    let packets = packets(&mut packetiser, 0, 3000);
    take(&mut receiver, &packets[0]).unwrap();
    let due = receiver.poll_timeout().unwrap().max(START + ms(100));
    receiver.handle_timeout(due);
    let given_up = receiver.poll_event().unwrap();
    assert!(matches!(
        given_up,
        ReceiverEvent::GivenUp {
            arrived: 1,
            count: Some(3),
            ..
        }
    ));
    let mut take = |index: usize| receiver.handle_packet(due, &packets[index].datagram, Ecn::Ce);
    assert_eq!(take(1), Err(Refusal::Late));
    assert_eq!(take(1), Err(Refusal::Duplicate));
    assert_eq!(take(0), Err(Refusal::Duplicate));
    let ce_bytes = packets[1].datagram.len() as u64;
    let totals = receiver.totals();
    assert_eq!(
        (totals.packets, totals.ce_bytes, receiver.buffered()),
        (2, ce_bytes, 0)
    );
    let report = receiver.poll_report(due + ms(5), None).unwrap();
    assert_eq!(named(&report), 2, "both are reported");
}

#[test]
fn an_object_whose_deadline_passed_is_not_begun() {
    let mut receiver = related(ReceiverConfig::default());
    let packets = packets(&mut packetiser(), 0, 3000);
    let late = START + ms(101);
    for _ in 0..2 {
        let _ = receiver.handle_packet(late, &packets[0].datagram, Ecn::Ect1);
    }
    let refusals = receiver.refusals();
    assert_eq!((refusals.late, refusals.duplicate), (1, 1));
    assert!(matches!(
        receiver.poll_event(),
        Some(ReceiverEvent::GivenUp { arrived: 0, .. })
    ));
    assert_eq!(receiver.poll_event(), None);
}

#[test]
fn reports_are_as_frequent_as_asked_or_sooner_after_a_loss() {
    let mut receiver = receiver();
    let asked = Status {
        report_interval_ms: NonZeroU8::new(100).unwrap(),
        ..status(0)
    };
    receiver.handle_status(START, &asked).unwrap();
    assert!(receiver.poll_report(START, None).is_some(), "the first one");
    let mut packetiser = packetiser();
    for packet in packets(&mut packetiser, 0, 200_000) {
        take(&mut receiver, &packet).unwrap();
    }
    assert!(receiver.poll_report(START + ms(99), None).is_none());
    let reported = |report: Feedback| {
        let blocks = report.blocks.iter();
        blocks
            .map(|block| block.packets.iter().flatten().count())
            .sum::<usize>()
    };
    let report = receiver.poll_report(START + ms(100), None).unwrap();
    assert!(reported(report) > 150, "all packets");

    let mut lossy = packets(&mut packetiser, 1, 10_000);
    lossy.remove(4);
    for packet in &lossy {
        take(&mut receiver, packet).unwrap();
    }
    assert!(receiver.poll_report(START + ms(104), None).is_none());
    let report = receiver.poll_report(START + ms(105), None).unwrap();
    assert!(reported(report) >= lossy.len());
    assert!(receiver.poll_report(START + ms(200), None).is_none());
}

#[test]
fn three_epochs_are_accepted_while_packets_are_on_their_way() {
    let mut packetiser = packetiser();
    let of_epoch: Vec<_> = (0..4)
        .map(|group| {
            let packets = packets(&mut packetiser, group, 2500);
            packetiser.rotate().unwrap();
            packets
        })
        .collect();
    let mut receiver = receiver();
    let mut take = |epoch: usize, index: usize| take(&mut receiver, &of_epoch[epoch][index]);
    assert_eq!(take(2, 0), Err(Refusal::UnknownEpoch), "two ahead");
    assert_eq!((take(0, 0), take(1, 0)), (Ok(()), Ok(())), "the next one");
    assert_eq!(
        (take(0, 1), take(2, 0)),
        (Ok(()), Ok(())),
        "the one before, and the next"
    );
    assert_eq!(take(0, 2), Err(Refusal::UnknownEpoch), "two behind");
    assert_eq!((take(1, 1), take(3, 0)), (Ok(()), Ok(())));
}

#[test]
fn a_forged_epoch_does_not_move_the_keys() {
    let mut packetiser = packetiser();
    let genuine = packets(&mut packetiser, 0, 3000);
    let mut receiver = receiver();
    let mut forged = genuine[0].datagram.to_vec();
    forged[25] = 1;
    let refused = receiver.handle_packet(START, &tagged_again(&forged), Ecn::Ect1);
    assert_eq!(refused, Err(Refusal::Forged));
    assert_eq!(take(&mut receiver, &genuine[0]), Ok(()));
    packetiser.rotate().unwrap();
    packetiser.rotate().unwrap();
    let ahead = &packets(&mut packetiser, 1, 10)[0];
    assert_eq!(take(&mut receiver, ahead), Err(Refusal::UnknownEpoch));
    receiver.handle_status(START, &status(2)).unwrap();
    assert_eq!(take(&mut receiver, ahead), Ok(()), "the sender has said so");
}

/// Returns the key stream of each packet of a publisher's run: what zeros are encrypted to. Two
/// packets have the same only if they have the same key and nonce.
fn key_streams(incarnation: [u8; 16], frames: u32) -> Vec<[u8; 12]> {
    let mut streams = Vec::new();
    for alias in [ALIAS, ALIAS + 1] {
        let config = PacketiserConfig {
            datagram: Header::OVERHEAD + 12,
            packets_per_key: 11,
            ..PacketiserConfig::new(alias, incarnation)
        };
        let mut packetiser = Packetiser::new(config, secret(), access().hop(&[0; 16], 0));
        for frame in 0..frames {
            let mut info = info(frame / 3, frame % 3, (frame % 2) as u8, START);
            info.id.alias = alias;
            let object = packetiser.packetise(info, &[0; 48]).unwrap();
            streams.extend(object.packets.iter().map(|packet| {
                let sealed = Packet::parse(&packet.datagram).unwrap().sealed;
                *sealed.first_chunk().unwrap()
            }));
        }
    }
    streams
}

/// Returns the number of pairs of packets with the same key and nonce.
fn repeated(streams: impl IntoIterator<Item = [u8; 12]>) -> usize {
    let mut seen = HashMap::new();
    for stream in streams {
        *seen.entry(stream).or_insert(0) += 1;
    }
    seen.values().map(|times| times - 1).sum()
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(32))]
    #[test]
    fn restarts_with_the_same_secret_never_repeat_a_key_and_nonce(
        incarnations in proptest::collection::hash_set(proptest::prelude::any::<[u8; 16]>(), 2..5),
        frames in 1..30u32,
    ) {
        let runs = incarnations.iter().flat_map(|incarnation| key_streams(*incarnation, frames));
        proptest::prop_assert_eq!(repeated(runs), 0);
    }
}

#[test]
fn the_incarnation_is_all_that_keeps_restarts_apart() {
    let runs = [key_streams([1; 16], 10), key_streams([1; 16], 10)].concat();
    assert_eq!(repeated(runs), 80, "every packet of the second run");
}

#[test]
fn a_deadline_is_told_in_milliseconds_of_the_publishers_clock() {
    let packet = &packets(&mut packetiser(), 0, 10)[0];
    let header = Packet::parse(&packet.datagram).unwrap().header;
    assert_eq!(header.deadline, MediaTime(1100));
}
