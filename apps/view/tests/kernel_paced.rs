//! A publisher whose packets the kernel paces, because its device has the queueing discipline `fq`.

#[path = "support/machines.rs"]
mod machines;

use hawser_media::{Recording, Source, Synthetic};
use hawser_publish::push::{PushConfig, PushPublisher};
use hawser_view::push;
use machines::Machines;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Creates machines of which the publisher's has a queueing discipline.
fn machines_with(discipline: &str) -> Machines {
    let machines = Machines::create(&format!("paced-{discipline}"));
    let mut tc = machines.publisher.command("tc").unwrap();
    tc.args(["qdisc", "replace", "dev", "eth0", "root", discipline]);
    assert!(tc.status().unwrap().success());
    machines
}

#[test]
fn the_kernel_paces_where_it_obeys_and_frames_arrive_whole() {
    for (discipline, kernel_paced) in [("pfifo", "0"), ("fq", "1")] {
        let machines = machines_with(discipline);
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
            stats: Some(path("stats.csv")),
            ..PushConfig::new(Recording { fps: 30.0, source }, path("media.key"))
        };
        let open = || PushPublisher::open(&config).unwrap();
        let publisher = machines.publisher.run(open).unwrap();
        let viewer = push::PushConfig {
            frames: Some(60),
            duration: Some(Duration::from_secs(60)),
            ..push::PushConfig::new(publisher.address().to_string(), path("media.key"))
        };
        let stop = AtomicBool::new(false);
        let watch = || push::watch(&viewer, &AtomicBool::new(false)).unwrap();
        let (summary, report) = thread::scope(|scope| {
            let publishing = scope.spawn(|| publisher.run(&stop).unwrap());
            let summary = machines.viewer.run(watch);
            stop.store(true, Relaxed);
            (summary.unwrap(), publishing.join().unwrap())
        });
        println!("{discipline}:\n{report}\n{summary}");

        assert!(summary.decoded.frames >= 60, "{summary}");
        assert_eq!(
            (report.sent.send_failures, report.sent.objects.lost),
            (0, 0)
        );
        assert_eq!(report.sent.refused_parts, 0, "{report}");
        let mut stats = csv::Reader::from_path(path("stats.csv")).unwrap();
        let columns = stats.headers().unwrap().clone();
        let column = columns.iter().position(|name| name == "kernel_paced");
        let rows: Vec<csv::StringRecord> = stats.records().map(Result::unwrap).collect();
        let last = rows.last().expect("a viewer was there");
        assert_eq!(
            last.get(column.unwrap()),
            Some(kernel_paced),
            "{discipline}"
        );
    }
}
