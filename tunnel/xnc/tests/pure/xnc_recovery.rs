//! Which packets are coded together, and until when: the boundaries of encoding ranges and the
//! expiry (Ni, sections 4.4.2 and 4.4.3).

use hawser_units::{ByteSize, Instant, PathId};
use hawser_xnc::experiment::Experiment;
use hawser_xnc::frame::{AckBlock, Frame, emit_acks};
use hawser_xnc::{Config, Endpoint, Hint, PathState, Rtt, Stats};
use std::collections::BTreeSet;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

const PACKETS: u64 = 10;

/// The number of packets that count as lost when only the last of ten packets is acknowledged (RFC
/// 9002, section 6.1.1).
const LOST: u64 = 7;

/// The coded packets cover the whole range.
const ALL: u8 = PACKETS as u8;

fn config() -> Config {
    Config {
        expiry: 700 * MS,
        experiment: Experiment {
            range_packets: 63,
            range_span: 10_000 * MS,
            ..Experiment::default()
        },
        ..Config::default()
    }
}

/// Sends ten packets, with a pause after the third, then receives an acknowledgement of the last
/// one after `ack_after`. Returns the first packet and the packet count of each coded packet that
/// follows.
fn coded_packets(
    config: Config,
    frame_ends: &[u64],
    pause: Duration,
    ack_after: Duration,
) -> (Vec<(u32, u8)>, Stats) {
    let path = PathId::all().next().unwrap();
    let mut end = Endpoint::new(config);
    let mut now = Instant::ZERO;
    end.add_path(now, path);
    let state = PathState {
        congestion_window: ByteSize(1 << 20),
        in_flight: ByteSize(0),
        queued: ByteSize(0),
        rtt: Rtt::default(),
        datagram_size: 1400,
    };
    end.update_path(path, state);
    let mut last = 0;
    for id in 0..PACKETS {
        let hint = Hint {
            end_of_frame: frame_ends.contains(&id),
            ..Hint::default()
        };
        end.handle_packet(now, vec![7; 1000], hint).unwrap();
        while let Some(transmit) = end.poll_transmit(now) {
            if let Ok(Frame::Packet(header, _)) = Frame::parse(&transmit.datagram) {
                last = header.transmission.into();
            }
        }
        now += if id == 2 { pause } else { Duration::ZERO };
    }
    now += ack_after;
    let block = AckBlock {
        path,
        delay: Duration::ZERO,
        ranges: vec![last..=last],
        ecn: None,
    };
    end.handle_datagram(now, path, emit_acks(&[block], 1400).0, None)
        .unwrap();
    now += 3 * MS;
    end.handle_timeout(now);
    let mut coded = BTreeSet::new();
    // One window for the first part of a shot, further ones for the rest.
    for _ in 0..3 {
        end.update_path(path, state);
        while let Some(transmit) = end.poll_transmit(now) {
            if let Ok(Frame::Packet(header, _)) = Frame::parse(&transmit.datagram)
                && header.count > 1
            {
                coded.insert((header.start, header.count));
            }
        }
    }
    (coded.into_iter().collect(), end.stats())
}

#[test]
fn a_range_ends_by_frame_time_or_number_of_packets() {
    let ack_after = 100 * MS;
    let whole = coded_packets(config(), &[], Duration::ZERO, ack_after).0;
    assert_eq!(whole, [(0, ALL)]);

    let framed = coded_packets(config(), &[2], Duration::ZERO, ack_after).0;
    assert_eq!(framed, [(0, 3), (3, ALL - 3)]);

    let short = Config {
        experiment: Experiment {
            range_span: 5 * MS,
            ..config().experiment
        },
        ..config()
    };
    assert_eq!(
        coded_packets(short.clone(), &[], 4 * MS, ack_after).0,
        [(0, ALL)]
    );
    assert_eq!(
        coded_packets(short, &[], 5 * MS, ack_after).0,
        [(0, 3), (3, ALL - 3)]
    );

    let small = Config {
        experiment: Experiment {
            range_packets: 4,
            ..config().experiment
        },
        ..config()
    };
    assert_eq!(
        coded_packets(small, &[], Duration::ZERO, ack_after).0,
        [(0, 4), (4, 4)]
    );
}

#[test]
fn expired_packets_are_given_up_and_counted() {
    let (in_time, stats) = coded_packets(config(), &[], Duration::ZERO, 690 * MS);
    assert!(!in_time.is_empty());
    assert_eq!(stats.sender.given_up, 0);

    let (late, stats) = coded_packets(config(), &[], Duration::ZERO, 700 * MS);
    assert_eq!(late, []);
    assert!(stats.sender.given_up >= LOST, "{:?}", stats.sender);
}

#[test]
fn a_path_gets_its_share_of_a_whole_shot_and_no_more() {
    // Seven lost packets and three more, times rho.
    for (path_share, max) in [(1.1, 11), (1.5, 15), (2.0, 20)] {
        let config = Config {
            extra_packets: 3,
            experiment: Experiment {
                whole_shots: true,
                path_share,
                ..config().experiment
            },
            ..config()
        };
        let (_, stats) = coded_packets(config, &[], Duration::ZERO, 100 * MS);
        assert_eq!(stats.sender.paths[0].recovery, max, "rho {path_share}");
    }
}

#[test]
fn the_only_path_gets_what_is_needed() {
    let (_, stats) = coded_packets(config(), &[], Duration::ZERO, 100 * MS);
    assert_eq!(stats.sender.paths[0].recovery, LOST + 1);
}
