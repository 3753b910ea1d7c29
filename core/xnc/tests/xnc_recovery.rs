//! What is combined with what, and until when: the borders of encoding ranges and the expiry (Ni, sections 4.4.2 and 4.4.3).

use hawser_units::{ByteSize, Instant, PathId};
use hawser_wire::xnc::{AckBlock, Frame, emit_acks};
use hawser_xnc::{Config, Ecn, Endpoint, Hint, PathState, Rtt, Stats};
use std::collections::BTreeSet;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

const PACKETS: u64 = 10;

/// With the last of ten packets acknowledged, so many count as lost at once (RFC 9002, section 6.1.1).
const LOST: u64 = 7;

fn config() -> Config {
    Config {
        range_packets: 63,
        range_span: 10_000 * MS,
        expiry: 700 * MS,
        ..Config::default()
    }
}

/// Sends ten packets, `pause` after the third of which passes, and then hears of the last one alone. Returns the first and
/// the number of the packets of each combination that follows.
fn combinations(
    config: Config,
    borders: &[u64],
    pause: Duration,
    heard: Duration,
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
    end.update_path(now, path, state);
    let mut last = 0;
    for id in 0..PACKETS {
        let hint = Hint {
            border: borders.contains(&id),
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
    now += heard;
    let block = AckBlock {
        path,
        delay: Duration::ZERO,
        ranges: vec![last..=last],
        ecn: None,
    };
    end.handle_datagram(now, path, &emit_acks(&[block], 1400).0, Ecn::Unknown)
        .unwrap();
    now += 3 * MS;
    end.handle_timeout(now);
    let mut combined = BTreeSet::new();
    // A window for the first part of a shot, and for the rest of it.
    for _ in 0..3 {
        end.update_path(now, path, state);
        while let Some(transmit) = end.poll_transmit(now) {
            if let Ok(Frame::Packet(header, _)) = Frame::parse(&transmit.datagram)
                && header.count > 1
            {
                combined.insert((header.start, header.count));
            }
        }
    }
    (combined.into_iter().collect(), end.stats())
}

#[test]
fn a_range_ends_with_a_frame_with_its_time_and_with_its_number_of_packets() {
    let heard = 100 * MS;
    let whole = combinations(config(), &[], Duration::ZERO, heard).0;
    assert_eq!(whole, [(0, LOST as u8)]);

    let framed = combinations(config(), &[2], Duration::ZERO, heard).0;
    assert_eq!(framed, [(0, 3), (3, 4)]);

    let short = Config {
        range_span: 5 * MS,
        ..config()
    };
    assert_eq!(
        combinations(short.clone(), &[], 4 * MS, heard).0,
        [(0, LOST as u8)]
    );
    assert_eq!(combinations(short, &[], 5 * MS, heard).0, [(0, 3), (3, 4)]);

    let small = Config {
        range_packets: 4,
        ..config()
    };
    assert_eq!(
        combinations(small, &[], Duration::ZERO, heard).0,
        [(0, 4), (4, 3)]
    );
}

#[test]
fn what_is_of_no_use_any_more_is_given_up_and_counted() {
    let (in_time, stats) = combinations(config(), &[], Duration::ZERO, 690 * MS);
    assert!(!in_time.is_empty());
    assert_eq!(stats.sender.given_up, 0);

    let (late, stats) = combinations(config(), &[], Duration::ZERO, 700 * MS);
    assert_eq!(late, []);
    assert!(stats.sender.given_up >= LOST, "{:?}", stats.sender);
}

#[test]
fn a_path_gets_its_share_of_a_shot_and_no_more() {
    // Seven lost packets and three more, times rho.
    for (path_share, most) in [(None, 11), (Some(1.5), 15), (Some(2.0), 20)] {
        let paper = config();
        let path_share = path_share.unwrap_or(paper.path_share);
        let config = Config {
            total_share: f64::INFINITY,
            path_share,
            ..paper
        };
        let (_, stats) = combinations(config, &[], Duration::ZERO, 100 * MS);
        assert_eq!(stats.sender.paths[0].recovery, most, "rho {path_share}");
    }
}
