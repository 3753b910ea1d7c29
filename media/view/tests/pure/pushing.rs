//! A viewer to whom a publisher pushes, on the loopback interface.

use hawser_cloud::ply;
use hawser_publish::{CodecName, Config, Publisher, Report};
use hawser_recording::{Recording, Source, Synthetic};
use hawser_view::Pictures;
use hawser_view::{Row, Summary};
use parking_lot::Mutex;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn small_performance() -> Recording {
    Recording {
        fps: 60.0,
        source: Source::Synthetic(Synthetic {
            seed: 1,
            points: 3000,
            seconds: 1.0,
        }),
    }
}

/// A directory with the secret of a broadcast.
struct Broadcast {
    directory: TempDir,
    codec: CodecName,
    listen: SocketAddr,
}

impl Broadcast {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        hawser_publish::generate_secret(&directory.path().join("media.key")).unwrap();
        Broadcast {
            directory,
            codec: CodecName::Chunks,
            listen: "127.0.0.1:0".parse().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Creates a file that refuses what is written after its first line, as one on a full disk does.
    fn file_of_one_line(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        assert!(
            Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        // Also for writing, as this does not wait for the other end, which is refused without a reader.
        let mut both_ends = fs::File::options();
        let file = both_ends.read(true).write(true).open(&path).unwrap();
        thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(file).read_line(&mut line).unwrap();
        });
        path
    }

    fn publisher_config(&self) -> Config {
        Config {
            codec: self.codec,
            fps: 60.0,
            listen: self.listen,
            log: Some(self.path("frames.csv")),
            stats: Some(self.path("stats.csv")),
            ..Config::new(small_performance(), self.path("media.key"))
        }
    }

    fn publish(&self) -> Publishing {
        self.publish_recording(small_performance())
    }

    fn publish_recording(&self, recording: Recording) -> Publishing {
        let config = Config {
            recording,
            ..self.publisher_config()
        };
        Publishing::start(Publisher::open(&config).unwrap())
    }

    fn viewer_config(&self, publisher: SocketAddr) -> hawser_view::Config {
        hawser_view::Config {
            frames: Some(30),
            duration: Some(Duration::from_secs(20)),
            ..hawser_view::Config::new(publisher.to_string(), self.path("media.key"))
        }
    }
}

/// A publisher that runs in a thread.
struct Publishing {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Report>,
}

impl Publishing {
    fn start(publisher: Publisher) -> Self {
        let (address, stop) = (publisher.address(), Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let stop = Arc::clone(&stop);
            move || publisher.run(&stop).unwrap()
        });
        Publishing {
            address,
            stop,
            thread,
        }
    }

    fn stop(self) -> Report {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap()
    }
}

/// Passes datagrams between a viewer and a publisher, which may vanish and be another one then.
struct Relay {
    address: SocketAddr,
    publisher: Arc<Mutex<Option<SocketAddr>>>,
    /// Whether each datagram is followed by one that says nothing.
    adds_garbage: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    fn start(publisher: SocketAddr) -> Relay {
        let socket = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let poll = Some(Duration::from_millis(20));
            socket.set_read_timeout(poll).unwrap();
            socket
        };
        let (front, back) = (socket(), socket());
        let mut relay = Relay {
            address: front.local_addr().unwrap(),
            publisher: Arc::new(Mutex::new(Some(publisher))),
            adds_garbage: Arc::default(),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        let viewer = Arc::new(Mutex::new(None));
        let (publisher, newest) = (Arc::clone(&relay.publisher), Arc::clone(&viewer));
        let (from, to) = [&front, &back].map(|s| s.try_clone().unwrap()).into();
        relay.pass(from, to, move |from| {
            *newest.lock() = Some(from);
            *publisher.lock()
        });
        let publisher = Arc::clone(&relay.publisher);
        relay.pass(back, front, move |from| {
            let is_there = *publisher.lock() == Some(from);
            viewer.lock().filter(|_| is_there)
        });
        relay
    }

    /// Passes datagrams on to the address that `route` gives.
    fn pass(
        &mut self,
        from: UdpSocket,
        to: UdpSocket,
        route: impl Fn(SocketAddr) -> Option<SocketAddr> + Send + 'static,
    ) {
        let (stop, adds_garbage) = (Arc::clone(&self.stop), Arc::clone(&self.adds_garbage));
        self.threads.push(thread::spawn(move || {
            let mut bytes = [0; 2048];
            for count in 0_usize.. {
                if stop.load(Relaxed) {
                    return;
                }
                let Ok((length, peer)) = from.recv_from(&mut bytes) else {
                    continue;
                };
                let Some(receiver) = route(peer) else {
                    continue;
                };
                let _ = to.send_to(&bytes[..length], receiver);
                if adds_garbage.load(Relaxed) {
                    let first = [0x41, 5, 0, bytes[0]][count % 4];
                    let _ = to.send_to(&vec![first; 37 * count % 1400], receiver);
                }
            }
        }));
    }

    fn stop(self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

/// Waits until a viewer's table has so many frames.
fn wait_for_frames(timeline: &Path, count: usize) {
    let rows = || fs::read_to_string(timeline).map_or(0, |rows| rows.lines().count());
    while rows() <= count {
        thread::sleep(Duration::from_millis(10));
    }
}

fn watch(config: &hawser_view::Config) -> Summary {
    hawser_view::watch(config, &AtomicBool::new(false)).unwrap()
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap().lines().count()
}

#[test]
fn frames_arrive_whole_and_in_time_and_files_tell_of_them() {
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let config = hawser_view::Config {
        timeline: Some(broadcast.path("timeline.csv")),
        save: Some(broadcast.path("saved")),
        ..broadcast.viewer_config(publishing.address)
    };
    let summary = watch(&config);
    let report = publishing.stop();

    let frames = &summary.received.frames;
    assert!(summary.decoded.frames >= 30, "{summary}");
    assert!(frames.whole >= 28 && frames.undecodable == 0, "{summary}");
    assert_eq!(
        (summary.decoded.damaged.total(), summary.received.sessions),
        (0, 1)
    );
    let (_, qoe) = summary.decoded.qoe.as_ref().unwrap();
    assert!(qoe.frame_delay_p50_ms.unwrap() < 100.0, "{summary}");

    let mut rows = csv::Reader::from_path(broadcast.path("timeline.csv")).unwrap();
    let rows: Vec<Row> = rows.deserialize().map(Result::unwrap).collect();
    assert_eq!(rows.len() as u64, summary.decoded.frames);
    for row in &rows {
        // A whole millisecond, and the relation of the clocks, are what the time of capture may miss.
        let captured = row.captured_ns.unwrap();
        assert!(
            captured <= row.first_packet_ns.unwrap() + 5_000_000,
            "{row:?}"
        );
        assert!(row.received_ns <= row.decoding_ns && row.decoding_ns <= row.decoded_ns);
    }
    let name = format!("saved/frame-{:019}.ply", rows[0].captured_ns.unwrap());
    let saved = fs::read(broadcast.path(&name)).unwrap();
    assert_eq!(ply::read(&saved, 1.0).unwrap().len(), 3000);

    assert_eq!((report.sent.viewers, report.sent.send_failures), (1, 0));
    assert!(report.captured.encoded <= report.captured.frames);
    assert!(lines(&broadcast.path("frames.csv")) > 20);
    assert!(lines(&broadcast.path("stats.csv")) > 2);
}

/// Watches from in front of the performer, and the other way from the second second to the fourth. Returns
/// the frames, in runs of those that are looked at and those that are not.
fn watch_and_turn_away(layers_unseen: u8) -> (Summary, Vec<Vec<Row>>) {
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let poses = "time_s,x,y,z,yaw,pitch\n0,0,1.2,2,0,0\n1.9,0,1.2,2,0,0\n2,0,1.2,2,180,0\n\
                 3.9,0,1.2,2,180,0\n4,0,1.2,2,0,0\n";
    fs::write(broadcast.path("poses.csv"), poses).unwrap();
    let config = hawser_view::Config {
        layers_unseen,
        poses: Some(broadcast.path("poses.csv")),
        timeline: Some(broadcast.path("timeline.csv")),
        frames: None,
        duration: Some(Duration::from_secs(6)),
        ..broadcast.viewer_config(publishing.address)
    };
    let summary = watch(&config);
    publishing.stop();
    let looked = summary.received.looked.unwrap();
    assert_eq!(looked.changes, 2, "{summary}");
    assert!(looked.away > Duration::from_secs(1), "{summary}");
    let mut rows = csv::Reader::from_path(broadcast.path("timeline.csv")).unwrap();
    let rows: Vec<Row> = rows.deserialize().map(Result::unwrap).collect();
    let runs = rows.chunk_by(|one, next| one.is_looked_at == next.is_looked_at);
    (summary, runs.map(<[Row]>::to_vec).collect())
}

#[test]
fn a_viewer_who_turns_away_gets_the_base_until_he_looks_again() {
    let (summary, runs) = watch_and_turn_away(1);
    let looked: Vec<bool> = runs.iter().map(|run| run[0].is_looked_at).collect();
    assert_eq!(looked, [true, false, true], "{summary}");
    for (run, layers) in runs.iter().zip([2, 1, 2]) {
        let has_all = |row: &&Row| row.layers == layers && row.is_whole;
        let whole = run.iter().filter(has_all).count();
        assert!(
            10 * whole > 9 * run.len(),
            "{whole} of {}: {summary}",
            run.len()
        );
    }
}

#[test]
fn deselected_tracks_out_of_view_return_with_the_view() {
    let (summary, runs) = watch_and_turn_away(0);
    let frames = |is_looked_at: bool| {
        let runs = runs.iter().flatten();
        runs.filter(|row| row.is_looked_at == is_looked_at).count()
    };
    // Some were on their way.
    assert!(frames(false) < 20, "{summary}");
    let last = runs.last().unwrap();
    assert!(last[0].is_looked_at && last.len() > 60, "{summary}");
    assert_eq!(summary.received.sessions, 1, "{summary}");
    assert_eq!(summary.received.frames.undecodable, 0, "{summary}");
}

#[test]
fn every_codec_and_both_families_carry_frames() {
    for (codec, listen) in [
        (CodecName::Draco, "[::1]:0"),
        (CodecName::Zstd, "127.0.0.1:0"),
        (CodecName::Chunks, "[::]:0"),
    ] {
        let broadcast = Broadcast {
            codec,
            listen: listen.parse().unwrap(),
            ..Broadcast::new()
        };
        let publishing = broadcast.publish();
        // The last one is reached by IPv4 at a socket of IPv6.
        let address = match publishing.address {
            any if any.ip().is_unspecified() => SocketAddr::from(([127, 0, 0, 1], any.port())),
            own => own,
        };
        let summary = watch(&broadcast.viewer_config(address));
        publishing.stop();
        assert!(summary.decoded.frames >= 30, "{codec:?}: {summary}");
        assert_eq!(summary.decoded.damaged.total(), 0, "{codec:?}");
    }
}

#[test]
fn one_with_another_key_gets_nothing_and_is_counted() {
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let stranger = Broadcast::new();
    let config = hawser_view::Config {
        duration: Some(Duration::from_millis(1500)),
        ..stranger.viewer_config(publishing.address)
    };
    let summary = watch(&config);
    let report = publishing.stop();
    assert_eq!((summary.decoded.frames, summary.received.sessions), (0, 0));
    assert!(report.sent.sessions.unauthorised >= 2, "{report}");
    assert_eq!((report.sent.viewers, report.captured.encoded), (0, 0));
}

#[test]
fn a_viewer_goes_on_when_the_publisher_starts_again() {
    let mut broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    broadcast.listen = publishing.address;
    let config = hawser_view::Config {
        frames: Some(200),
        timeline: Some(broadcast.path("timeline.csv")),
        ..broadcast.viewer_config(publishing.address)
    };
    let watching = thread::spawn(move || watch(&config));
    wait_for_frames(&broadcast.path("timeline.csv"), 30);
    publishing.stop();
    let again = broadcast.publish();
    let summary = watching.join().unwrap();
    again.stop();
    assert!(summary.decoded.frames >= 200, "{summary}");
    assert!(summary.received.sessions >= 2, "{summary}");
}

#[test]
fn a_viewer_reconnects_soon_after_the_publisher_restarts() {
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let relay = Relay::start(publishing.address);
    let config = hawser_view::Config {
        frames: Some(200),
        timeline: Some(broadcast.path("timeline.csv")),
        ..broadcast.viewer_config(relay.address)
    };
    let watching = thread::spawn(move || watch(&config));
    wait_for_frames(&broadcast.path("timeline.csv"), 30);
    // No goodbye arrives.
    *relay.publisher.lock() = None;
    publishing.stop();
    let again = broadcast.publish();
    *relay.publisher.lock() = Some(again.address);
    let summary = watching.join().unwrap();
    relay.stop();
    again.stop();
    assert!(summary.decoded.frames >= 200, "{summary}");
    assert!(summary.received.sessions >= 2, "{summary}");
    let (watched, qoe) = summary.decoded.qoe.as_ref().unwrap();
    // After two seconds, on a machine that is not busy; a session ends after ten.
    let stalled = watched.mul_f64(qoe.stall_ratio);
    assert!(stalled < Duration::from_secs(4), "stalled for {stalled:?}");
}

#[test]
fn a_publisher_whose_tables_find_no_room_goes_on_and_reports() {
    let broadcast = Broadcast::new();
    let publisher = Publisher::open(&Config {
        log: Some(broadcast.file_of_one_line("log.csv")),
        stats: Some(broadcast.file_of_one_line("stats.csv")),
        ..broadcast.publisher_config()
    });
    let publisher = publisher.unwrap();
    let (address, stop) = (publisher.address(), AtomicBool::new(false));
    let (summary, failure) = thread::scope(|scope| {
        let publishing = scope.spawn(|| publisher.run(&stop));
        let summary = watch(&broadcast.viewer_config(address));
        stop.store(true, Relaxed);
        (summary, publishing.join().unwrap().unwrap_err())
    });
    assert!(summary.decoded.frames >= 30, "{summary}");
    assert!(failure.report.sent.objects.delivered > 0, "{failure}");
    assert_eq!(failure.errors.len(), 2, "{failure}");
    for name in ["log.csv", "stats.csv"] {
        assert!(failure.to_string().contains(name), "{failure}");
    }
}

#[test]
fn a_viewer_whose_files_find_no_room_goes_on_and_reports() {
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let saved = broadcast.path("saved");
    let config = hawser_view::Config {
        timeline: Some(broadcast.file_of_one_line("timeline.csv")),
        save: Some(saved.clone()),
        pictures: Pictures {
            snapshot: Some(broadcast.path("missing/picture.png")),
            ..Pictures::default()
        },
        ..broadcast.viewer_config(publishing.address)
    };
    // The directory goes away with its first frames.
    let ended = Arc::new(AtomicBool::new(false));
    let watching = ended.clone();
    let removing = thread::spawn(move || {
        let has_frames = || fs::read_dir(&saved).is_ok_and(|mut entries| entries.next().is_some());
        while !has_frames() && !watching.load(Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        // A file that gets its name meanwhile makes it fail.
        while saved.exists() {
            let _ = fs::remove_dir_all(&saved);
        }
    });
    let failure = hawser_view::watch(&config, &AtomicBool::new(false)).unwrap_err();
    ended.store(true, Relaxed);
    removing.join().unwrap();
    publishing.stop();
    let summary = failure.summary.as_ref().unwrap();
    assert!(summary.decoded.frames >= 30, "{summary}");
    assert_eq!(failure.errors.len(), 3, "{failure}");
    for name in ["timeline.csv", "saved", "picture.png"] {
        assert!(failure.to_string().contains(name), "{failure}");
    }
}

#[test]
fn garbage_at_both_ends_is_refused_and_counted() {
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let relay = Relay::start(publishing.address);
    relay.adds_garbage.store(true, Relaxed);
    let summary = watch(&broadcast.viewer_config(relay.address));
    relay.stop();
    let report = publishing.stop();
    assert!(summary.decoded.frames >= 30, "{summary}");
    let refused = &summary.received.refused;
    assert!(
        refused.messages.invalid > 0 && refused.too_long > 0,
        "{summary}"
    );
    assert!(refused.packets.total() > 0, "{summary}");
    assert_eq!(summary.decoded.damaged.total(), 0, "{summary}");
    assert!(report.sent.sessions.invalid > 0, "{report}");
    assert_eq!(report.sent.viewers, 1);
}

#[test]
fn two_viewers_have_a_flow_each() {
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let config = broadcast.viewer_config(publishing.address);
    let summaries: Vec<Summary> = thread::scope(|scope| {
        let viewers = [(); 2].map(|()| scope.spawn(|| watch(&config)));
        viewers.into_iter().map(|v| v.join().unwrap()).collect()
    });
    let report = publishing.stop();
    assert_eq!(report.sent.viewers, 2);
    for summary in summaries {
        assert!(summary.decoded.frames >= 30, "{summary}");
    }
}

#[test]
fn what_cannot_be_published_or_watched_is_said_at_the_start() {
    let broadcast = Broadcast::new();
    let views = Config {
        codec: CodecName::Rgbd,
        ..broadcast.publisher_config()
    };
    let error = |config: &Config| format!("{:#}", Publisher::open(config).err().unwrap());
    assert!(error(&views).contains("use chunks"));
    let keyless = Config {
        key: broadcast.path("missing.key").into(),
        ..broadcast.publisher_config()
    };
    assert!(error(&keyless).contains("missing.key"));
    let publishing = broadcast.publish();
    let taken = Config {
        listen: publishing.address,
        ..broadcast.publisher_config()
    };
    assert!(error(&taken).contains("cannot listen"));
    publishing.stop();

    let nowhere = hawser_view::Config::new("nowhere", broadcast.path("media.key"));
    let error = hawser_view::watch(&nowhere, &AtomicBool::new(false)).unwrap_err();
    assert!(format!("{error:#}").contains("HOST:PORT"), "{error:#}");
}

/// Returns what is served at an address.
fn page(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

/// Returns the value of a sample on a page; 0 if it is not there.
fn value(page: &str, sample: &str) -> f64 {
    let values = page.lines().filter_map(|line| line.split_once(' '));
    let mut values = values.filter(|(name, _)| *name == sample);
    values
        .next()
        .map_or(0.0, |(_, value)| value.parse().unwrap())
}

#[test]
fn metrics_of_both_ends_follow_the_stream() {
    let broadcast = Broadcast::new();
    let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let publisher = Publisher::open(&Config {
        metrics: Some(loopback),
        ..broadcast.publisher_config()
    });
    let publisher = publisher.unwrap();
    let of_publisher = publisher.metrics_address().unwrap();
    let publishing = Publishing::start(publisher);
    let of_viewer = TcpListener::bind(loopback).unwrap().local_addr().unwrap();
    let config = hawser_view::Config {
        metrics: Some(of_viewer),
        frames: None,
        ..broadcast.viewer_config(publishing.address)
    };
    let stop = Arc::new(AtomicBool::new(false));
    let viewer = thread::spawn({
        let stop = Arc::clone(&stop);
        move || hawser_view::watch(&config, &stop).unwrap()
    });
    let started = Instant::now();
    let (sent, received) = loop {
        thread::sleep(Duration::from_millis(200));
        let (sent, received) = (page(of_publisher), page(of_viewer));
        let decoded = value(&received, "hawser_view_frames_decoded_total{}");
        let delivered = value(&sent, "hawser_publish_objects_delivered_total{}");
        if decoded > 20.0 && delivered > 20.0 {
            break (sent, received);
        }
        assert!(started.elapsed().as_secs() < 15, "{sent}\n{received}");
    };
    assert_eq!(value(&sent, "hawser_publish_viewers{}"), 1.0);
    assert!(
        value(&sent, "hawser_publish_packets_total{}") > 20.0,
        "{sent}"
    );
    assert!(sent.contains("hawser_publish_viewer_rtt_seconds{viewer=\"127.0.0.1:"));
    assert_eq!(value(&received, "hawser_view_session_open{}"), 1.0);
    let delay = value(&received, "hawser_view_frame_delay_seconds{}");
    assert!(delay > 0.0 && delay < 0.5, "{received}");

    stop.store(true, Relaxed);
    let summary = viewer.join().unwrap();
    assert!(
        summary.decoded.frames as f64 >= value(&received, "hawser_view_frames_decoded_total{}")
    );
    let is_alone = || value(&page(of_publisher), "hawser_publish_viewers{}") == 0.0;
    while !is_alone() {
        assert!(started.elapsed().as_secs() < 20, "{}", page(of_publisher));
        thread::sleep(Duration::from_millis(50));
    }
    publishing.stop();
}

#[test]
fn frames_of_more_points_than_a_viewer_takes_are_damaged() {
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let loopback = TcpListener::bind("127.0.0.1:0").unwrap();
    let metrics = loopback.local_addr().unwrap();
    drop(loopback);
    let config = hawser_view::Config {
        metrics: Some(metrics),
        max_points: 100,
        frames: None,
        ..broadcast.viewer_config(publishing.address)
    };
    let stop = AtomicBool::new(false);
    let summary = thread::scope(|scope| {
        let watching = scope.spawn(|| hawser_view::watch(&config, &stop).unwrap());
        let sample = "hawser_view_frames_damaged_total{reason=\"too_many_points\"}";
        while TcpStream::connect(metrics).is_err() || value(&page(metrics), sample) < 10.0 {
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Relaxed);
        watching.join().unwrap()
    });
    publishing.stop();
    let damaged = summary.decoded.damaged;
    assert!(damaged.too_many_points >= 10, "{summary}");
    assert_eq!((damaged.invalid, summary.decoded.frames), (0, 0));
    let line = format!("{0} damaged ({0} of too many points)", damaged.total());
    assert!(summary.to_string().contains(&line), "{summary}");
}

#[test]
fn what_a_viewer_saved_is_published_again() {
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let first = hawser_view::Config {
        save: Some(broadcast.path("saved")),
        ..broadcast.viewer_config(publishing.address)
    };
    let frames = watch(&first).decoded.frames;
    publishing.stop();

    let read = |name| Recording::read(&broadcast.path(name), Path::new(".")).unwrap();
    let recording = read("saved/recording.toml");
    assert!((40.0..=80.0).contains(&recording.fps), "{}", recording.fps);
    let publishing = broadcast.publish_recording(recording);
    let second = hawser_view::Config {
        save: Some(broadcast.path("again")),
        ..broadcast.viewer_config(publishing.address)
    };
    let summary = watch(&second);
    publishing.stop();
    assert!(frames >= 30 && summary.decoded.frames >= 30, "{summary}");
    let heights = |recording: &Recording| {
        let mut player = recording.open().unwrap();
        let cloud = player.next_frame().unwrap().unwrap().into_cloud();
        let heights = cloud.points().map(|point| point.y);
        heights.fold((0, 0), |(low, high), y| (low.min(y), high.max(y)))
    };
    let (low, high) = heights(&read("again/recording.toml"));
    let (low_before, high_before) = heights(&small_performance());
    assert!(
        low.abs_diff(low_before) < 200 && high.abs_diff(high_before) < 200,
        "{low} to {high} mm, {low_before} to {high_before} before"
    );
}
