use super::{HOP_SALT, Input, START, announcement, named, packet, secret, status};
use crate::receiver::{Receiver, ReceiverConfig};
use crate::{Refusal, ReportConfig};
use hawser_packets::feedback::{Feedback, StampEcho};
use hawser_packets::media::{DEFAULT_DATAGRAM, Packet, PacketId};
use hawser_packets::session::Accept;
use hawser_units::{Ecn, Instant};
use std::collections::BTreeSet;
use std::time::Duration;

/// Checks that a receiver keeps no more than it may, of authenticated packets with any headers, and that it
/// counts and reports each that it has not refused, and no other.
pub fn check_receiver(input: &[u8]) {
    let mut input = Input(input);
    let Some([options]) = input.next() else {
        return;
    };
    let config = ReceiverConfig {
        objects: 4,
        packets: 40,
        bytes: 1_000,
        remembered: 6,
        packet_events: options & 1 != 0,
        reports: ReportConfig {
            datagram: if options & 2 != 0 {
                200
            } else {
                DEFAULT_DATAGRAM
            },
            ..ReportConfig::default()
        },
        ..ReceiverConfig::default()
    };
    let accept = Accept {
        status: status(START, None),
        hop_salt: HOP_SALT,
        announcement: &[],
    };
    let mut receiver = Receiver::new(config, &secret(), &announcement(), &accept);
    let mut now = START;
    let (mut counted, mut arrived) = (BTreeSet::new(), BTreeSet::new());
    while let Some(action) = input.next::<12>() {
        match action[0] % 8 {
            0..=4 => {
                let packet = packet(now, &action);
                let taken = receiver.handle_packet(now, &packet, Ecn::from_octet(action[1]));
                // The arrival of a late packet counts. After an object is complete, all of its packets are
                // duplicates, even those that it should not have.
                if matches!(taken, Ok(()) | Err(Refusal::Late | Refusal::Duplicate)) {
                    let id = Packet::parse(&packet).expect("authentic").header.id;
                    arrived.insert(id);
                    let is_new = taken != Err(Refusal::Duplicate);
                    assert!(!is_new || counted.insert(id), "taken twice");
                }
            }
            5 => now += Duration::from_millis(action[1].into()),
            6 => report(&mut receiver, now, &config, &action, &arrived),
            _ => drop((0..action[1]).map_while(|_| receiver.poll_event()).count()),
        }
        if receiver.poll_timeout().is_some_and(|due| due <= now) {
            receiver.handle_timeout(now);
        }
        assert!(receiver.buffered() <= config.bytes);
        assert!(receiver.totals().ce_bytes <= receiver.totals().bytes);
        assert_eq!(receiver.totals().packets, counted.len() as u64);
    }
    while receiver.poll_event().is_some() {}
    receiver.handle_timeout(Instant::MAX);
    while receiver.poll_event().is_some() {}
    assert_eq!(receiver.buffered(), 0, "everything was given or given up");
}

fn report(
    receiver: &mut Receiver,
    now: Instant,
    config: &ReceiverConfig,
    action: &[u8; 12],
    arrived: &BTreeSet<PacketId>,
) {
    while let Some(report) = receiver.poll_report(now, None) {
        let bytes = report.emit();
        let overhead = hawser_packets::session::Sealed::LEN + hawser_packets::media::AEAD_TAG;
        assert!(bytes.len() + overhead <= config.reports.datagram);
        assert_eq!(Feedback::parse(&bytes).as_ref(), Ok(&report));
        assert!(named(&report).all(|id| arrived.contains(&id)));
        let echo = StampEcho {
            stamp: report.clock.sent,
            held: Duration::from_micros(action[2].into()),
        };
        let _ = receiver.handle_status(now, &status(now, Some(echo)));
    }
}
