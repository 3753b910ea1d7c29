//! A viewer to whom a publisher pushes, on the loopback interface.

use hawser_cloud::ply;
use hawser_publish::{CodecName, Config, Publisher, Report};
use hawser_recording::{Recording, Source, Synthetic};
use hawser_view::Pictures;
use hawser_view::{Row, Summary};
use parking_lot::Mutex;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixListener;
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
        audio: None,
    }
}

/// The maximum time to wait for a condition.
const TIMEOUT: Duration = Duration::from_secs(60);

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
            // So long that a busy machine delivers them.
            lifetime: Duration::from_secs(5),
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
            duration: Some(TIMEOUT),
            ..hawser_view::Config::new(publisher.to_string(), self.path("media.key"))
        }
    }
}

/// An agent that takes reports, until one is as wanted. Returns that one.
fn reports_at(
    socket: &Path,
    is_wanted: impl Fn(&serde_json::Value) -> bool + Send + 'static,
) -> JoinHandle<serde_json::Value> {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        let (application, _) = listener.accept().unwrap();
        let lines = BufReader::new(application).lines();
        let mut reports = lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap());
        reports.find(|report| is_wanted(report)).unwrap()
    })
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
    wait_until(|| rows(timeline).len() >= count);
}

fn wait_until(is_met: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_met() {
        assert!(began.elapsed() < TIMEOUT, "it does not happen");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the frames in a table, the last line of which may be incomplete.
fn rows(timeline: &Path) -> Vec<Row> {
    let Ok(mut table) = csv::Reader::from_path(timeline) else {
        return Vec::new();
    };
    table.deserialize().map_while(Result::ok).collect()
}

/// Watches until a condition holds.
fn watch_until(config: &hawser_view::Config, is_met: impl Fn() -> bool) -> Summary {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let watching = scope.spawn(|| hawser_view::watch(config, &stop).unwrap());
        while !is_met() && !watching.is_finished() {
            thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Relaxed);
        let summary = watching.join().unwrap();
        assert!(is_met(), "{summary}");
        summary
    })
}

fn watch(config: &hawser_view::Config) -> Summary {
    hawser_view::watch(config, &AtomicBool::new(false)).unwrap()
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap().lines().count()
}

#[test]
fn frames_arrive_whole_and_files_tell_of_them() {
    let began = Instant::now();
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let timeline = broadcast.path("timeline.csv");
    let config = hawser_view::Config {
        timeline: Some(timeline.clone()),
        save: Some(broadcast.path("saved")),
        frames: None,
        ..broadcast.viewer_config(publishing.address)
    };
    let summary = watch_until(&config, || {
        let rows = rows(&timeline);
        let mut runs = rows.chunk_by(|one, next| one.is_whole && next.is_whole);
        runs.any(|run| run.len() >= 30)
    });
    let report = publishing.stop();

    assert_eq!(
        (summary.decoded.damaged.total(), summary.received.sessions),
        (0, 1)
    );
    let rows = rows(&timeline);
    assert_eq!(rows.len() as u64, summary.decoded.frames);
    for row in &rows {
        // How well the clocks are related depends on how long their exchange took.
        let (captured, arrived) = (row.captured_ns.unwrap(), row.first_packet_ns.unwrap());
        let apart = Duration::from_nanos(captured.abs_diff(arrived));
        assert!(apart <= began.elapsed(), "{row:?}");
        assert!(row.received_ns <= row.decoding_ns && row.decoding_ns <= row.decoded_ns);
    }
    let whole = rows.iter().find(|row| row.is_whole).unwrap();
    let name = format!("saved/frame-{:019}.ply", whole.captured_ns.unwrap());
    let saved = fs::read(broadcast.path(&name)).unwrap();
    assert_eq!(ply::read(&saved, 1.0).unwrap().len(), 3000);

    assert_eq!((report.sent.viewers, report.sent.send_failures), (1, 0));
    assert!(report.captured.encoded <= report.captured.frames);
    assert!(lines(&broadcast.path("frames.csv")) > 20);
    assert!(lines(&broadcast.path("stats.csv")) > 2);
}

/// Watches until the frames are as they should be: two seconds from in front of the performer, two seconds the other way,
/// and so on.
fn watch_and_turn_away(layers_unseen: u8, is_right: impl Fn(&[Row]) -> bool) -> Summary {
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let pose = |time_s: f64, yaw: u16| format!("{time_s},0,1.2,2,{yaw},0\n");
    let poses = (0..30)
        .zip([0, 180].into_iter().cycle())
        .map(|(turn, yaw)| {
            let from = f64::from(2 * turn);
            pose(from, yaw) + &pose(from + 1.9, yaw)
        });
    let poses = format!("time_s,x,y,z,yaw,pitch\n{}", poses.collect::<String>());
    fs::write(broadcast.path("poses.csv"), poses).unwrap();
    let timeline = broadcast.path("timeline.csv");
    let config = hawser_view::Config {
        layers_unseen,
        poses: Some(broadcast.path("poses.csv")),
        timeline: Some(timeline.clone()),
        frames: None,
        ..broadcast.viewer_config(publishing.address)
    };
    let summary = watch_until(&config, || is_right(&rows(&timeline)));
    publishing.stop();
    let looked = summary.received.looked.unwrap();
    assert!(looked.changes >= 2, "{summary}");
    assert!(looked.away > Duration::from_secs(1), "{summary}");
    summary
}

#[test]
fn a_viewer_who_turns_away_gets_the_base_until_he_looks_again() {
    watch_and_turn_away(1, |rows| {
        let kind = |row: &Row| (row.is_looked_at, row.layers, row.is_whole);
        let runs = rows.chunk_by(|one, next| kind(one) == kind(next));
        let mut runs = runs.filter(|run| run.len() >= 30).map(|run| kind(&run[0]));
        let all = [(true, 2, true), (false, 1, true), (true, 2, true)];
        all.into_iter().all(|kind| runs.any(|run| run == kind))
    });
}

#[test]
fn deselected_tracks_out_of_view_return_with_the_view() {
    let summary = watch_and_turn_away(0, |rows| {
        // Nothing comes while the viewer looks away.
        let is_next = |one: &Row, next: &Row| next.decoded_ns < one.decoded_ns + 1_000_000_000;
        let mut runs = rows.chunk_by(is_next);
        let looked_at = |run: &[Row]| run.iter().filter(|row| row.is_looked_at).count();
        runs.any(|run| looked_at(run) >= 30) && runs.any(|run| looked_at(run) >= 30)
    });
    assert_eq!(summary.received.sessions, 1, "{summary}");
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
    let publisher = Publisher::open(&Config {
        metrics: Some("127.0.0.1:0".parse().unwrap()),
        ..broadcast.publisher_config()
    });
    let publisher = publisher.unwrap();
    let metrics = publisher.metrics_address().unwrap();
    let publishing = Publishing::start(publisher);
    let stranger = Broadcast::new();
    let summary = watch_until(&stranger.viewer_config(publishing.address), || {
        let refused = "hawser_publish_datagrams_refused_total{reason=\"without_key\"}";
        value(&page(metrics), refused) >= 2.0
    });
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
    // It does not wait until the session ends, after ten seconds.
    let stalled = watched.mul_f64(qoe.stall_ratio);
    assert!(stalled < Duration::from_secs(10), "stalled for {stalled:?}");
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
    let metrics = free_address();
    let config = hawser_view::Config {
        metrics: Some(metrics),
        frames: None,
        timeline: Some(broadcast.file_of_one_line("timeline.csv")),
        save: Some(saved.clone()),
        pictures: Pictures {
            snapshot: Some(broadcast.path("missing/picture.png")),
            ..Pictures::default()
        },
        ..broadcast.viewer_config(publishing.address)
    };
    // The directory goes away with its first frames.
    let stop = AtomicBool::new(false);
    let failure = thread::scope(|scope| {
        let watching = scope.spawn(|| hawser_view::watch(&config, &stop).unwrap_err());
        wait_until(|| fs::read_dir(&saved).is_ok_and(|mut entries| entries.next().is_some()));
        // A file that gets its name meanwhile makes it fail.
        while saved.exists() {
            let _ = fs::remove_dir_all(&saved);
        }
        let decoded = || value(&page(metrics), "hawser_view_frames_decoded_total{}");
        let before = decoded();
        wait_until(|| decoded() >= before + 30.0);
        stop.store(true, Relaxed);
        watching.join().unwrap()
    });
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

/// Returns an address at which nothing listens. Its port is used by nobody else: other tests use 127.0.0.1.
fn free_address() -> SocketAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    let listener = TcpListener::bind((Ipv4Addr::new(127, 14, high, low), 0));
    listener.unwrap().local_addr().unwrap()
}

/// Returns what is served at an address; nothing where nothing is served yet, or a request took too long.
fn page(address: SocketAddr) -> String {
    let mut page = String::new();
    let _ = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")?;
        stream.read_to_string(&mut page)
    });
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
    let of_viewer = free_address();
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
        let delay = value(&received, "hawser_view_frame_delay_seconds{}");
        if decoded > 20.0 && delivered > 20.0 && delay > 0.0 {
            break (sent, received);
        }
        assert!(started.elapsed() < TIMEOUT, "{sent}\n{received}");
    };
    assert_eq!(value(&sent, "hawser_publish_viewers{}"), 1.0);
    assert!(
        value(&sent, "hawser_publish_packets_total{}") > 20.0,
        "{sent}"
    );
    assert!(sent.contains("hawser_publish_viewer_rtt_seconds{viewer=\"127.0.0.1:"));
    assert_eq!(value(&received, "hawser_view_session_open{}"), 1.0);

    stop.store(true, Relaxed);
    let summary = viewer.join().unwrap();
    assert!(
        summary.decoded.frames as f64 >= value(&received, "hawser_view_frames_decoded_total{}")
    );
    wait_until(|| page(of_publisher).contains("hawser_publish_viewers{} 0"));
    publishing.stop();
}

#[test]
fn frames_of_more_points_than_a_viewer_takes_are_damaged() {
    let broadcast = Broadcast::new();
    let publishing = broadcast.publish();
    let metrics = free_address();
    let config = hawser_view::Config {
        metrics: Some(metrics),
        max_points: 100,
        frames: None,
        ..broadcast.viewer_config(publishing.address)
    };
    // The part that was served when the viewer ends is enough.
    let damaged = AtomicBool::new(false);
    let summary = watch_until(&config, || {
        let sample = "hawser_view_frames_damaged_total{reason=\"too_many_points\"}";
        damaged.fetch_or(value(&page(metrics), sample) >= 10.0, Relaxed);
        damaged.load(Relaxed)
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
    // A busy machine leaves out some of the 60 a second.
    assert!((1.0..=80.0).contains(&recording.fps), "{}", recording.fps);
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

#[test]
fn both_ends_report_to_their_agents() {
    let broadcast = Broadcast::new();
    let [of_publisher, of_viewer] =
        ["publisher.sock", "viewer.sock"].map(|name| broadcast.path(name));
    let wish = reports_at(&of_publisher, |report| report["rate_bps"].is_u64());
    let experience = reports_at(&of_viewer, |report| report["frames"].as_u64() > Some(0));
    let config = Config {
        report_to: Some(of_publisher),
        ..broadcast.publisher_config()
    };
    let publishing = Publishing::start(Publisher::open(&config).unwrap());
    let publisher = publishing.address;
    let stop = AtomicBool::new(false);
    let (wish, experience) = thread::scope(|scope| {
        scope.spawn(|| {
            let config = hawser_view::Config {
                frames: None,
                report_to: Some(of_viewer),
                ..broadcast.viewer_config(publisher)
            };
            hawser_view::watch(&config, &stop).unwrap();
        });
        let reported = (wish.join().unwrap(), experience.join().unwrap());
        stop.store(true, Relaxed);
        reported
    });
    publishing.stop();
    assert_eq!(wish["rate_bps"], config.bounds.maximum().bps());
    for report in [&wish, &experience] {
        assert_eq!(report["packet"]["protocol"], "udp", "{report}");
        assert_eq!(
            report["packet"]["source"],
            publisher.to_string(),
            "{report}"
        );
    }
    assert_eq!(wish["packet"], experience["packet"]);
}
