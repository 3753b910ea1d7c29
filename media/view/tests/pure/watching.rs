//! A viewer and a publisher on the loopback interface.

use hawser_cloud::{Cloud, Level, ply};
use hawser_publish::pull::{Publisher, Report};
use hawser_recording::{Recording, Source, Synthetic};
use hawser_view::pull::{Config, Summary, timeline, watch};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

fn small_performance() -> Recording {
    Recording {
        fps: 100.0,
        source: Source::Synthetic(Synthetic {
            seed: 1,
            points: 2000,
            seconds: 1.0,
        }),
        audio: None,
    }
}

fn publisher(listen: SocketAddr, log: Option<&Path>) -> Publisher {
    let config = hawser_publish::pull::Config {
        fps: 100.0,
        listen,
        congestion: "reno".to_owned(),
        log: log.map(Path::to_owned),
        ..hawser_publish::pull::Config::new(small_performance(), Level::Nfov)
    };
    Publisher::open(&config).unwrap()
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A publisher that runs in a thread.
struct Publishing {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Report>,
}

impl Publishing {
    fn start(publisher: Publisher) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let stop = Arc::clone(&stop);
            move || publisher.run(&stop).unwrap()
        });
        Publishing { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

/// Watches a publisher for as long as the configuration says.
fn watch_publisher(publisher: Publisher, config: Config) -> anyhow::Result<Summary> {
    let config = Config {
        address: publisher.address().to_string(),
        ..config
    };
    let publishing = Publishing::start(publisher);
    let summary = watch(&config, &AtomicBool::new(false));
    publishing.stop();
    Ok(summary?)
}

#[test]
fn what_is_received_is_what_was_captured() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let config = Config {
        frames: Some(20),
        timeline: Some(path("timeline.csv")),
        arrivals: Some(path("arrivals.csv")),
        save: Some(path("saved")),
        ..Config::new("")
    };

    let summary = watch_publisher(publisher(any_port(), Some(&path("log.csv"))), config).unwrap();

    assert_eq!(
        (
            summary.frames,
            summary.frames_damaged,
            summary.protocol_errors
        ),
        (20, 0, 0)
    );
    let rows = timeline::read(&path("timeline.csv")).unwrap();
    let log = fs::read_to_string(path("log.csv")).unwrap();
    let performance = small_performance().load(Level::Nfov, 300).unwrap();
    for row in &rows {
        let saved =
            fs::read(path("saved").join(format!("frame-{:019}.ply", row.captured_ns))).unwrap();
        let saved: Cloud = ply::read(&saved, ply::MILLIMETRES_PER_METRE).unwrap();
        assert!(row.is_identical);
        assert!(performance.contains(&saved), "frame {}", row.frame);
        let captured = format!(
            "{},{},{},{},{}",
            row.frame,
            row.captured_ns,
            row.points,
            row.bytes,
            saved.digest()
        );
        assert!(
            log.lines().any(|line| line == captured),
            "{captured} is not in the publisher's log"
        );
        assert!(row.captured_ns < row.received_ns && row.requested_ns < row.received_ns);
        assert!(row.received_ns < row.decoded_ns);
    }
    let arrived: u64 = timeline::read_arrivals(&path("arrivals.csv"))
        .unwrap()
        .iter()
        .map(|arrival| arrival.bytes)
        .sum();
    let received: u64 = rows.iter().map(|row| row.bytes + 48).sum();
    assert_eq!((rows.len(), arrived), (20, received));
}

#[test]
fn a_publisher_that_comes_back_is_watched_again() {
    let first = publisher(any_port(), None);
    let address = first.address();
    let directory = tempfile::tempdir().unwrap();
    let table = directory.path().join("timeline.csv");
    let frames = || timeline::read(&table).map_or(0, |rows| rows.len());
    let stop = Arc::new(AtomicBool::new(false));
    let viewer = thread::spawn({
        let config = Config {
            timeline: Some(table.clone()),
            ..Config::new(address.to_string())
        };
        let stop = Arc::clone(&stop);
        move || watch(&config, &stop).unwrap()
    });

    let publishing = Publishing::start(first);
    wait_until(|| frames() > 0);
    publishing.stop();
    let before = frames();
    let publishing = Publishing::start(publisher(address, None));
    wait_until(|| frames() > before + 1);
    stop.store(true, Ordering::Relaxed);
    let summary = viewer.join().unwrap();
    publishing.stop();

    assert_eq!(
        (
            summary.connections,
            summary.frames_damaged,
            summary.protocol_errors
        ),
        (2, 0, 0)
    );
}

fn wait_until(condition: impl Fn() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(
            Instant::now() < give_up,
            "timed out waiting for the condition"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_full_disk_ends_the_viewer_with_the_file_s_name() {
    let config = Config {
        frames: Some(20),
        timeline: Some("/dev/full".into()),
        ..Config::new("")
    };
    let error = watch_publisher(publisher(any_port(), None), config).unwrap_err();
    assert!(
        format!("{error:#}").contains("/dev/full: No space left"),
        "{error:#}"
    );
}

#[test]
fn an_address_without_a_port_is_refused_at_once() {
    let error = watch(&Config::new("localhost"), &AtomicBool::new(false)).unwrap_err();
    assert!(
        error.to_string().contains("\"localhost\" is not HOST:PORT"),
        "{error}"
    );
}

#[test]
fn a_viewer_reports_to_the_agent_of_its_machine() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("viewer.sock");
    let agent = UnixListener::bind(&socket).unwrap();
    let publisher = publisher(any_port(), None);
    let address = publisher.address();
    let report = thread::spawn(move || {
        let (application, _) = agent.accept().unwrap();
        let line = BufReader::new(application).lines().next().unwrap();
        serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap()
    });
    let config = Config {
        duration: Some(Duration::from_secs(3)),
        report_to: Some(socket),
        ..Config::new("")
    };
    watch_publisher(publisher, config).unwrap();
    let report = report.join().unwrap();
    assert_eq!(report["packet"]["protocol"], "tcp");
    assert_eq!(report["packet"]["source"], address.to_string());
    assert!(report["frames"].as_u64() > Some(0), "{report}");
}
