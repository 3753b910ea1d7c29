//! A viewer hears what it sees: a recording with a clap, on the loopback interface.

use crate::clap;
use hawser_publish::{CodecName, Config, Publisher};
use hawser_recording::{Audio, Recording};
use hawser_view::Pictures;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Returns the codecs of the tracks of a file.
fn ffprobe(directory: &Path, file: &str) -> String {
    let options = [
        "-v",
        "error",
        "-show_entries",
        "stream=codec_name",
        "-of",
        "csv=p=0",
    ];
    let mut command = Command::new("ffprobe");
    let output = command
        .args(options)
        .arg(file)
        .current_dir(directory)
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

#[test]
fn a_clap_is_seen_and_heard_at_the_same_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    hawser_publish::generate_secret(&path("media.key")).unwrap();
    let config = Config {
        codec: CodecName::Zstd,
        // So long that a busy machine delivers all.
        lifetime: Duration::from_secs(5),
        listen: "127.0.0.1:0".parse().unwrap(),
        ..Config::new(clap::clap(directory.path()), path("media.key"))
    };
    let publisher = Publisher::open(&config).unwrap();
    let address = publisher.address().to_string();
    let stop = AtomicBool::new(false);
    let summary = thread::scope(|scope| {
        let publishing = scope.spawn(|| publisher.run(&stop).unwrap());
        let watching = hawser_view::Config {
            frames: Some(150),
            duration: Some(Duration::from_secs(60)),
            save: Some(path("saved")),
            speaker: Some("null".to_owned()),
            pictures: Pictures {
                video: Some(path("video.mp4")),
                ..Pictures::default()
            },
            ..hawser_view::Config::new(address, path("media.key"))
        };
        let summary = hawser_view::watch(&watching, &AtomicBool::new(false)).unwrap();
        stop.store(true, Relaxed);
        publishing.join().unwrap();
        summary
    });
    assert!(summary.received.sound > 100, "{summary}");

    clap::check(&path("saved"));

    let streams = ffprobe(directory.path(), "video.mp4");
    assert_eq!(streams.lines().collect::<Vec<_>>(), ["h264", "aac"]);
    assert!(!path("video.mp4.opus").exists());

    let saved = Recording::read(&path("saved/recording.toml"), directory.path()).unwrap();
    assert!(matches!(saved.audio, Some(Audio::Recorded(_))));
}
