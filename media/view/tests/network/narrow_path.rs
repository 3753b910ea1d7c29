//! A viewer at the end of a path that drops long packets and says so to nobody.

use crate::machines::{Broadcast, Machines};
use hawser_publish::Publisher;
use hawser_view::Row;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// The number of whole frames, one after the other, that show that packets fit the path.
const WHOLE: usize = 15;

/// Returns whether the newest rows of a timeline that is being written are of whole frames.
fn newest_are_whole(timeline: &Path) -> bool {
    let Ok(mut table) = csv::Reader::from_path(timeline) else {
        return false;
    };
    // The last row may be incomplete.
    let rows: Vec<Row> = table.deserialize().map_while(Result::ok).collect();
    rows.len() >= WHOLE && rows.iter().rev().take(WHOLE).all(|row| row.is_whole)
}

#[test]
fn refinements_arrive_over_a_path_that_drops_long_packets() {
    for mtu in [1220, 800] {
        let machines = Machines::create(&format!("narrow-{mtu}"));
        let broadcast = Broadcast::new();
        let timeline = broadcast.path("timeline.csv");
        let open = || Publisher::open(&broadcast.publisher(20_000)).unwrap();
        let publisher = machines.publisher.run(open).unwrap();
        let viewer = hawser_view::Config {
            timeline: Some(timeline.clone()),
            ..broadcast.viewer(&publisher)
        };
        // The device at the far end drops what is longer; the one at the publisher's has 1500.
        machines
            .viewer
            .ip(&format!("link set eth0 mtu {mtu}"))
            .unwrap();
        let (stop, stop_viewer) = (AtomicBool::new(false), AtomicBool::new(false));
        let (fits, summary) = thread::scope(|scope| {
            let publishing = scope.spawn(|| publisher.run(&stop).unwrap());
            let watching = scope.spawn(|| {
                let watch = || hawser_view::watch(&viewer, &stop_viewer).unwrap();
                machines.viewer.run(watch).unwrap()
            });
            let mut fits = false;
            while !fits && !watching.is_finished() {
                thread::sleep(Duration::from_millis(50));
                fits = newest_are_whole(&timeline);
            }
            stop_viewer.store(true, Relaxed);
            let summary = watching.join().unwrap();
            stop.store(true, Relaxed);
            println!("{}", publishing.join().unwrap());
            (fits, summary)
        });
        println!("{summary}");
        assert!(fits, "{mtu}: {summary}");
        // The device lets a tag of a VLAN through.
        assert!(summary.received.longest <= mtu - 28 + 4, "{summary}");
    }
}
