//! A viewer whose own address changes.

#[path = "support/machines.rs"]
mod machines;

use hawser_media::{Recording, Source, Synthetic};
use hawser_publish::push::{PushConfig, PushPublisher};
use hawser_view::push;
use machines::Machines;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// The silence after which either end gives up a session.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the number of frames in a timeline that is being written.
fn frames(timeline: &Path) -> usize {
    let rows = std::fs::read_to_string(timeline).unwrap_or_default();
    rows.lines().count().saturating_sub(1)
}

#[test]
fn a_viewer_goes_on_at_another_address() {
    let machines = Machines::create("roaming");
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    hawser_publish::generate_secret(&path("media.key")).unwrap();
    let source = Source::Synthetic(Synthetic {
        seed: 1,
        points: 3000,
        seconds: 1.0,
    });
    let config = PushConfig {
        fps: 30.0,
        listen: "192.0.2.1:0".parse().unwrap(),
        ..PushConfig::new(Recording { fps: 30.0, source }, path("media.key"))
    };
    let open = || PushPublisher::open(&config).unwrap();
    let publisher = machines.publisher.run(open).unwrap();
    let viewer = push::PushConfig {
        timeline: Some(path("timeline.csv")),
        duration: Some(Duration::from_secs(60)),
        ..push::PushConfig::new(publisher.address().to_string(), path("media.key"))
    };
    let wait_for = |count: usize| {
        while frames(&path("timeline.csv")) < count {
            thread::sleep(Duration::from_millis(20));
        }
    };
    let (stop, stop_viewer) = (AtomicBool::new(false), AtomicBool::new(false));
    let (summary, report) = thread::scope(|scope| {
        let publishing = scope.spawn(|| publisher.run(&stop).unwrap());
        let watching = scope.spawn(|| {
            let watch = || push::watch(&viewer, &stop_viewer).unwrap();
            machines.viewer.run(watch).unwrap()
        });
        wait_for(30);
        machines
            .viewer
            .ip("addr del 192.0.2.2/24 dev eth0\naddr add 192.0.2.3/24 dev eth0")
            .unwrap();
        let before = frames(&path("timeline.csv"));
        wait_for(before + 60);
        stop_viewer.store(true, Relaxed);
        let summary = watching.join().unwrap();
        stop.store(true, Relaxed);
        (summary, publishing.join().unwrap())
    });
    println!("{report}\n{summary}");
    let (watched, qoe) = summary.decoded.qoe.as_ref().expect("frames were shown");

    assert_eq!(summary.received.sessions, 2, "{summary}");
    assert_eq!(summary.decoded.failed, 0, "{summary}");
    let stalled = watched.mul_f64(qoe.stall_ratio);
    assert!(stalled < SESSION_TIMEOUT, "stalled for {stalled:?}");
    assert_eq!(report.sent.viewers, 2, "{report}");
}
