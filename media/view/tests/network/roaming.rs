//! A viewer whose own address changes.

use crate::machines::{Broadcast, Machines};
use hawser_publish::Publisher;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The session would end after this time.
const BACK_WITHIN: Duration = Duration::from_secs(10);

/// Returns the number of frames in a timeline that is being written.
fn frames(timeline: &Path) -> usize {
    let rows = std::fs::read_to_string(timeline).unwrap_or_default();
    rows.lines().count().saturating_sub(1)
}

#[test]
fn a_viewer_goes_on_at_another_address() {
    let machines = Machines::create("roaming");
    let broadcast = Broadcast::new();
    let timeline = broadcast.path("timeline.csv");
    let open = || Publisher::open(&broadcast.publisher(3000)).unwrap();
    let publisher = machines.publisher.run(open).unwrap();
    let viewer = hawser_view::Config {
        timeline: Some(timeline.clone()),
        ..broadcast.viewer(&publisher)
    };
    let wait_for = |count: usize| {
        let began = Instant::now();
        while frames(&timeline) < count {
            assert!(began.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(20));
        }
    };
    let (stop, stop_viewer) = (AtomicBool::new(false), AtomicBool::new(false));
    let (summary, report) = thread::scope(|scope| {
        let publishing = scope.spawn(|| publisher.run(&stop).unwrap());
        let watching = scope.spawn(|| {
            let watch = || hawser_view::watch(&viewer, &stop_viewer).unwrap();
            machines.viewer.run(watch).unwrap()
        });
        wait_for(30);
        machines
            .viewer
            .ip("addr del 192.0.2.2/24 dev eth0\naddr add 192.0.2.3/24 dev eth0")
            .unwrap();
        let before = frames(&timeline);
        wait_for(before + 60);
        stop_viewer.store(true, Relaxed);
        let summary = watching.join().unwrap();
        stop.store(true, Relaxed);
        (summary, publishing.join().unwrap())
    });
    println!("{report}\n{summary}");
    let (watched, qoe) = summary.decoded.qoe.as_ref().expect("frames were shown");

    assert!(summary.received.sessions >= 2, "{summary}");
    assert_eq!(summary.decoded.damaged.total(), 0, "{summary}");
    let stalled = watched.mul_f64(qoe.stall_ratio);
    assert!(stalled < BACK_WITHIN, "stalled for {stalled:?}");
    assert!(report.sent.viewers >= 2, "{report}");
}

#[test]
fn a_viewer_waits_for_a_route_to_the_publisher() {
    let machines = Machines::create("early");
    let broadcast = Broadcast::new();
    let open = || Publisher::open(&broadcast.publisher(3000)).unwrap();
    let publisher = machines.publisher.run(open).unwrap();
    let viewer = hawser_view::Config {
        frames: Some(10),
        ..broadcast.viewer(&publisher)
    };
    machines
        .viewer
        .ip("addr del 192.0.2.2/24 dev eth0")
        .unwrap();
    let stop = AtomicBool::new(false);
    let summary = thread::scope(|scope| {
        let publishing = scope.spawn(|| publisher.run(&stop).unwrap());
        let watching = scope.spawn(|| {
            let watch = || hawser_view::watch(&viewer, &AtomicBool::new(false)).unwrap();
            machines.viewer.run(watch).unwrap()
        });
        // Whether the viewer has begun by then cannot be seen.
        thread::sleep(Duration::from_millis(300));
        machines
            .viewer
            .ip("addr add 192.0.2.2/24 dev eth0")
            .unwrap();
        let summary = watching.join().unwrap();
        stop.store(true, Relaxed);
        publishing.join().unwrap();
        summary
    });
    assert!(summary.decoded.frames >= 10, "{summary}");
}
