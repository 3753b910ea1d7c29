//! The pictures of a stream on the loopback interface.

use hawser_cloud::Level;
use hawser_publish::pull::Publisher;
use hawser_recording::{Recording, Source, Synthetic};
use hawser_view::Pictures;
use hawser_view::pull::{Config, timeline, watch};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn publisher() -> Publisher {
    let performance = Recording {
        fps: 20.0,
        source: Source::Synthetic(Synthetic {
            seed: 1,
            points: 5000,
            seconds: 1.0,
        }),
        audio: None,
    };
    let config = hawser_publish::pull::Config {
        fps: 20.0,
        listen: "127.0.0.1:0".parse().unwrap(),
        congestion: "reno".to_owned(),
        ..hawser_publish::pull::Config::new(performance, Level::Nfov)
    };
    Publisher::open(&config).unwrap()
}

#[test]
fn the_newest_frame_and_the_video_are_pictures_of_what_arrived() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let publisher = publisher();
    let config = Config {
        frames: Some(10),
        timeline: Some(path("timeline.csv")),
        pictures: Pictures {
            snapshot: Some(path("newest.png")),
            video: Some(path("stream.mp4")),
            fps: 60,
            ..Pictures::default()
        },
        ..Config::new(publisher.address().to_string())
    };
    let stop = AtomicBool::new(false);
    let summary = thread::scope(|scope| {
        let publishing = scope.spawn(|| publisher.run(&stop).unwrap());
        let summary = watch(&config, &AtomicBool::new(false));
        stop.store(true, Ordering::Relaxed);
        publishing.join().unwrap();
        summary.unwrap()
    });

    let drawn = summary.pictures.unwrap();
    assert!(drawn.pictures + drawn.skipped >= 10, "{drawn}");
    assert!(summary.to_string().contains(&drawn.to_string()));
    let rows = timeline::read(&path("timeline.csv")).unwrap();
    let captured_ns = rows[9].captured_ns - rows[0].captured_ns;
    let expected = (captured_ns as f64 * 60.0 / 1e9).round() as u64 + 1;
    assert_eq!(
        images_and_rate(&path("stream.mp4")),
        (expected, "60/1".to_owned())
    );
    assert_is_a_picture_of_something(&path("newest.png"));
}

fn images_and_rate(video: &Path) -> (u64, String) {
    let output = Command::new("ffprobe")
        .args(["-v", "error", "-count_packets", "-of", "csv=p=0"])
        .args(["-show_entries", "stream=r_frame_rate,nb_read_packets"])
        .arg(video)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let (rate, images) = text.trim().split_once(',').expect(&text);
    (images.parse().unwrap(), rate.to_owned())
}

/// Checks the size, and that a part of the middle differs from the corner: the performer, with a margin.
fn assert_is_a_picture_of_something(path: &Path) {
    let decoder = png::Decoder::new(BufReader::new(File::open(path).unwrap()));
    let mut reader = decoder.read_info().unwrap();
    let mut image = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut image).unwrap();
    assert_eq!((info.width, info.height), (960, 720));
    assert_eq!(image.len(), 960 * 720 * 3);
    let pixels = image.as_chunks::<3>().0;
    let drawn = pixels.iter().filter(|pixel| **pixel != pixels[0]).count();
    let share = drawn as f64 / pixels.len() as f64;
    assert!(
        (0.02..0.5).contains(&share),
        "{share} of the picture differs"
    );
}
