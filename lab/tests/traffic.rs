//! Traffic over a network that delivers everything: all of it arrives, once and unaltered.

mod bridge;

use bridge::bridge_paths;
use hawser_lab::topology::{Stop, Topology};
use hawser_lab::traffic::{Endpoints, Kind, Stream, run};
use std::time::Duration;

const GRACE: Duration = Duration::from_millis(200);

#[test]
fn everything_arrives_once_over_a_network_without_faults() {
    let lab = Topology::default().build().unwrap();
    bridge_paths(&lab);
    let streams = Stream::of_every_kind(2000, 2000, 1000);
    let reports = run(&Endpoints::from(&lab), &streams, GRACE, &Stop::default()).unwrap();
    assert_eq!(reports.len(), 12);
    for report in reports {
        assert!(report.is_complete(), "{report:?}");
        assert_eq!((report.sent, report.missing, report.duplicates), (2000, 0, 0), "{report:?}");
        assert_eq!((report.reordered, report.receiver_overflow), (0, 0), "{report:?}");
        assert_eq!(report.retransmissions.is_some(), report.stream.kind == Kind::Tcp);
    }
}

#[test]
fn what_a_cut_network_swallows_is_missing() {
    let lab = Topology::default().build().unwrap();
    let streams: Vec<_> =
        Stream::of_every_kind(100, 2000, 100).into_iter().filter(|stream| stream.kind != Kind::Tcp).collect();
    for report in run(&Endpoints::from(&lab), &streams, GRACE, &Stop::default()).unwrap() {
        assert_eq!((report.sent, report.received, report.missing), (100, 0, 100), "{report:?}");
        assert_eq!(report.first_missing, (0..16).collect::<Vec<_>>());
        assert!(!report.is_complete());
    }
}

#[test]
fn a_requested_stop_ends_the_senders() {
    let lab = Topology::default().build().unwrap();
    bridge_paths(&lab);
    let stop = Stop::default();
    stop.request();
    for report in run(&Endpoints::from(&lab), &Stream::of_every_kind(100_000, 10, 100), GRACE, &stop).unwrap()
    {
        assert_eq!((report.sent, report.missing), (0, 0), "{report:?}");
    }
}
