//! An end of a session that is given any datagrams does not panic, counts what it rejects, and
//! delivers no packet that no datagram had room for.

#[path = "../../wire/tests/support/mutation.rs"]
mod mutation;

use hawser_units::{ByteSize, Instant, PathId};
use hawser_xnc::{Config, Ecn, Endpoint, Hint, PathState, Rtt, Scheme, is_control};
use mutation::{changed, changes};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::time::Duration;

/// The largest datagram on a path.
const DATAGRAM_BYTES: usize = 1400;

fn path(index: u8) -> PathId {
    PathId::try_from(index).unwrap()
}

fn endpoint(scheme: Scheme, now: Instant) -> Endpoint {
    let mut end = Endpoint::new(Config::of(scheme));
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
fn datagrams(scheme: Scheme) -> Vec<Vec<u8>> {
    let mut now = Instant::ZERO;
    let mut end = endpoint(scheme, now);
    let mut datagrams = Vec::new();
    for number in 0..10u8 {
        let _ = end.handle_packet(now, vec![number; 100], Hint::default());
        now += Duration::from_millis(50);
        end.handle_timeout(now);
        datagrams.extend(
            std::iter::from_fn(|| end.poll_transmit(now))
                .take(20)
                .map(|transmit| transmit.datagram),
        );
    }
    datagrams
}

/// Passes datagrams to an end that also sends packets itself.
fn check(scheme: Scheme, received: &[Vec<u8>]) -> Result<(), TestCaseError> {
    let mut now = Instant::ZERO;
    let mut end = endpoint(scheme, now);
    for number in 0..10u8 {
        let taken = end.handle_packet(now, vec![number; 100], Hint::default());
        prop_assert_eq!(taken, Ok(()));
    }
    let mut rejected = 0;
    let longest = received.iter().map(Vec::len).max().unwrap_or(0);
    for (number, datagram) in received.iter().enumerate() {
        let on = path((number % 3) as u8);
        let result = end.handle_datagram(now, on, datagram, Ecn::Ect0);
        rejected += u64::from(result.is_err());
        prop_assert!(!datagram.is_empty() || result.is_err());
        now += Duration::from_millis(3);
        end.handle_timeout(now);
        while let Some(packet) = end.poll_packet() {
            prop_assert!(packet.recovered || packet.bytes.len() < longest);
            prop_assert!(packet.bytes.len() <= longest.max(DATAGRAM_BYTES));
        }
        for transmit in std::iter::from_fn(|| end.poll_transmit(now)).take(20) {
            let size = transmit.datagram.len();
            prop_assert!(size <= DATAGRAM_BYTES, "{size} bytes");
            prop_assert!(!is_control(&transmit.datagram) || size >= 2);
        }
        while end.poll_event().is_some() {}
    }
    let stats = end.stats();
    prop_assert_eq!(stats.rejected.iter().sum::<u64>(), rejected);
    Ok(())
}

fn scheme() -> impl Strategy<Value = Scheme> {
    select(Scheme::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn any_datagrams_are_rejected_or_handled(
        scheme in scheme(),
        datagrams in vec(vec(any::<u8>(), 0..60), 1..40),
        longer in vec(any::<u8>(), 0..DATAGRAM_BYTES),
    ) {
        let datagrams: Vec<Vec<u8>> = datagrams.into_iter().chain([longer]).collect();
        check(scheme, &datagrams)?;
    }

    #[test]
    fn any_frames_are_rejected_or_handled(
        scheme in scheme(),
        frames in vec((select(vec![1u8, 2, 63, 64]), vec(any::<u8>(), 0..60)), 1..20),
        controls in vec((0..4u8, vec(any::<u8>(), 0..60)), 1..20),
    ) {
        let frames = frames.into_iter().map(|(count, rest)| [&[count, 0, 1, 0, 0][..], &rest].concat());
        let controls = controls.into_iter().map(|(kind, rest)| [&[0, kind][..], &rest].concat());
        check(scheme, &frames.chain(controls).collect::<Vec<_>>())?;
    }

    #[test]
    fn changed_datagrams_are_rejected_or_handled(
        scheme in scheme(),
        choices in vec((any::<Index>(), changes()), 1..30),
    ) {
        let valid = datagrams(scheme);
        prop_assert!(!valid.is_empty());
        let received: Vec<Vec<u8>> = choices
            .iter()
            .map(|(choice, changes)| changed(choice.get::<Vec<u8>>(&valid), changes))
            .collect();
        check(scheme, &received)?;
    }
}
