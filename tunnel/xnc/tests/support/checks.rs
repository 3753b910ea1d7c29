//! The check of an end of a session, for the property tests and for `fuzz/`.

use hawser_units::{ByteSize, Ecn, Instant, PathId};
use hawser_xnc::frame::{self, AckBlock, EcnCounts, Frame, PacketHeader};
use hawser_xnc::{Config, Endpoint, Hint, PathState, Rtt, is_control};
use std::time::Duration;

/// The largest datagram on a path.
pub(crate) const DATAGRAM_BYTES: usize = 1400;

pub(crate) fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

pub(crate) fn endpoint(config: &Config, now: Instant) -> Endpoint {
    let mut end = Endpoint::new(config.clone());
    for index in 0..2 {
        end.add_path(now, path(index));
        let state = PathState {
            congestion_window: ByteSize(14_000),
            in_flight: ByteSize(0),
            queued: ByteSize(0),
            rtt: Rtt::default(),
            datagram_size: DATAGRAM_BYTES,
        };
        end.update_path(path(index), state);
    }
    end
}

/// Returns what an end sends: packets, coded packets and pings after a silence of the other end.
pub(crate) fn datagrams(config: &Config) -> Vec<Vec<u8>> {
    let mut now = Instant::ZERO;
    let mut end = endpoint(config, now);
    let mut datagrams = Vec::new();
    for number in 0..10u8 {
        let _ = end.handle_packet(now, vec![number; 100], Hint::default());
        now += Duration::from_millis(50);
        end.handle_timeout(now);
        datagrams.extend(
            std::iter::from_fn(|| end.poll_transmit(now))
                .take(20)
                .map(|transmit| transmit.datagram.to_vec()),
        );
    }
    datagrams
}

/// Passes datagrams to an end that also sends packets itself.
pub(crate) fn check(config: &Config, received: &[Vec<u8>]) {
    let mut now = Instant::ZERO;
    let mut end = endpoint(config, now);
    for number in 0..10u8 {
        let taken = end.handle_packet(now, vec![number; 100], Hint::default());
        assert_eq!(taken, Ok(()));
    }
    let mut rejected = 0;
    let longest = received.iter().map(Vec::len).max().unwrap_or(0);
    for (number, datagram) in received.iter().enumerate() {
        let on = path((number % 3) as u8);
        let result = end.handle_datagram(now, on, datagram.to_vec(), Some(Ecn::Ect0));
        rejected += u64::from(result.is_err());
        assert!(!datagram.is_empty() || result.is_err());
        now += Duration::from_millis(3);
        end.handle_timeout(now);
        while let Some(packet) = end.poll_packet() {
            assert!(packet.recovered || packet.bytes.len() < longest);
            assert!(packet.bytes.len() <= longest.max(DATAGRAM_BYTES));
        }
        for transmit in std::iter::from_fn(|| end.poll_transmit(now)).take(20) {
            let size = transmit.datagram.len();
            assert!(size <= DATAGRAM_BYTES, "{size} bytes");
            assert!(!is_control(&transmit.datagram) || size >= 2);
        }
        while end.poll_event().is_some() {}
    }
    let stats = end.stats();
    assert_eq!(stats.rejected.iter().sum::<u64>(), rejected);
}

fn blocks() -> Vec<AckBlock> {
    let ecn = EcnCounts {
        ect0: 1,
        ect1: 2,
        ce: u32::MAX,
    };
    let block = |index: u8, ecn: Option<EcnCounts>| AckBlock {
        path: path(index),
        delay: Duration::from_micros(1500),
        ranges: vec![70_000..=70_010, 69_990..=69_990, 5_000..=5_001],
        ecn,
    };
    vec![block(2, None), block(7, Some(ecn))]
}

/// Returns a valid frame of each kind.
pub(crate) fn frames() -> [Vec<u8>; 3] {
    let header = PacketHeader {
        count: 63,
        transmission: 1,
        start: 2,
    };
    [
        [&header.emit()[..], b"a symbol"].concat(),
        frame::emit_acks(&blocks(), DATAGRAM_BYTES).0,
        frame::emit_ping(u64::MAX),
    ]
}

/// Checks that what the parser accepts is within its bounds and is emitted as it was parsed.
pub(crate) fn check_frame(datagram: &[u8]) {
    match Frame::parse(datagram) {
        Err(_) => {}
        Ok(Frame::Packet(header, bytes)) => {
            assert!((1..=frame::MAX_COUNT).contains(&header.count));
            assert!(header.start < 1 << 24 && !bytes.is_empty());
            let again = [&header.emit()[..], bytes].concat();
            assert_eq!(&again[..], datagram);
        }
        Ok(Frame::Ping(number)) => {
            let again = frame::emit_ping(number);
            assert_eq!(&again[..], datagram);
        }
        Ok(Frame::Acks(blocks)) => {
            assert!((1..=8).contains(&blocks.len()));
            for AckBlock { ranges, .. } in &blocks {
                assert!((1..=frame::MAX_RANGES).contains(&ranges.len()));
                assert!(ranges.iter().all(|range| range.start() <= range.end()));
                let is_below =
                    |pair: &[std::ops::RangeInclusive<u64>]| pair[1].end() + 1 < *pair[0].start();
                assert!(ranges.windows(2).all(is_below));
            }
            let (again, emitted) = frame::emit_acks(&blocks, datagram.len());
            assert_eq!(emitted, blocks.len());
            assert_eq!(&again[..], datagram);
        }
    }
}
