//! A publisher whose packets the kernel paces, because its device has the queueing discipline `fq`.

#[path = "support/machines.rs"]
mod machines;

use hawser_congestion::Bounds;
use hawser_publish::{Config, Publisher, Report};
use hawser_units::Bitrate;
use hawser_view::Summary;
use machines::{Broadcast, Machines};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// Creates machines of which the publisher's has a queueing discipline.
fn machines_with(discipline: &str) -> Machines {
    let name = discipline.split(' ').next().unwrap_or_default();
    let machines = Machines::create(&format!("paced-{name}"));
    let mut tc = machines.publisher.command("tc").unwrap();
    tc.args(["qdisc", "replace", "dev", "eth0", "root"]);
    assert!(tc.args(discipline.split(' ')).status().unwrap().success());
    machines
}

/// Publishes until each of several viewers has so many frames.
fn run(
    machines: &Machines,
    broadcast: &Broadcast,
    config: &Config,
    (viewers, frames): (usize, u64),
) -> (Report, Vec<Summary>) {
    let open = || Publisher::open(config).unwrap();
    let publisher = machines.publisher.run(open).unwrap();
    let viewer = hawser_view::Config {
        frames: Some(frames),
        ..broadcast.viewer(&publisher)
    };
    let stop = AtomicBool::new(false);
    let watch = || hawser_view::watch(&viewer, &AtomicBool::new(false)).unwrap();
    thread::scope(|scope| {
        let publishing = scope.spawn(|| publisher.run(&stop).unwrap());
        let start = |_| scope.spawn(|| machines.viewer.run(watch).unwrap());
        let watching: Vec<_> = (0..viewers).map(start).collect();
        let watched = watching.into_iter().map(|viewer| viewer.join().unwrap());
        let summaries = watched.collect();
        stop.store(true, Relaxed);
        (publishing.join().unwrap(), summaries)
    })
}

/// Returns the last value of a column for each viewer of a table of flows.
fn last_values(stats: &Path, column: &str) -> Vec<String> {
    let mut stats = csv::Reader::from_path(stats).unwrap();
    let columns = stats.headers().unwrap().clone();
    let at = |name: &str| columns.iter().position(|column| column == name).unwrap();
    let (viewer, column) = (at("viewer"), at(column));
    let mut last = std::collections::BTreeMap::new();
    for row in stats.records().map(Result::unwrap) {
        last.insert(row[viewer].to_owned(), row[column].to_owned());
    }
    last.into_values().collect()
}

#[test]
fn the_kernel_paces_where_it_obeys_and_frames_arrive_whole() {
    for (discipline, kernel_paced) in [("pfifo", "0"), ("fq", "1")] {
        let machines = machines_with(discipline);
        let broadcast = Broadcast::new();
        let config = Config {
            stats: Some(broadcast.path("stats.csv")),
            ..broadcast.publisher(3000)
        };
        let (report, summaries) = run(&machines, &broadcast, &config, (1, 60));
        let [summary] = &summaries[..] else {
            panic!("{summaries:?}");
        };
        println!("{discipline}:\n{report}\n{summary}");

        assert!(summary.decoded.frames >= 60, "{summary}");
        assert_eq!(
            (report.sent.send_failures, report.sent.objects.lost),
            (0, 0)
        );
        assert_eq!(report.sent.refused_parts, 0, "{report}");
        let paced = last_values(&broadcast.path("stats.csv"), "kernel_paced");
        assert_eq!(paced, [kernel_paced], "{discipline}");
    }
}

#[test]
fn several_viewers_share_a_full_send_buffer() {
    // A frame of each viewer is given at once to a device that needs ten times as long to send it. There is room
    // for seven packets, as there is for 185 by default.
    let rate = Bitrate::from_mbps(90.0);
    let machines = machines_with("tbf rate 9mbit burst 3kb limit 1mb");
    let most = "/proc/sys/net/core/wmem_max";
    let before = fs::read_to_string(most).unwrap();
    fs::write(most, "8192").unwrap();
    let broadcast = Broadcast::new();
    let config = Config {
        bounds: Bounds::new(rate, rate, rate),
        ..broadcast.publisher(1000)
    };
    let (report, summaries) = run(&machines, &broadcast, &config, (3, 60));
    fs::write(most, before).unwrap();
    println!("{report}");
    for summary in &summaries {
        println!("{summary}");
        assert!(summary.decoded.frames >= 60, "{summary}");
    }
    assert_eq!(report.sent.send_failures, 0, "{report}");
}
