//! Hostile viewers must not disturb a publisher or its other viewers.

use hawser_cloud::Level;
use hawser_codec::pull::{FrameHeader, HEADER_BYTES, MAX_IN_FLIGHT, REQUEST};
use hawser_publish::pull::{Config, Publisher, Report};
use hawser_recording::{Recording, Source, Synthetic};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Runs `viewers` against a publisher of a small recording at 100 frames per second.
fn with_publisher(points: usize, viewers: impl FnOnce(SocketAddr)) -> Report {
    let source = Source::Synthetic(Synthetic {
        seed: 1,
        points,
        seconds: 1.0,
    });
    let config = Config {
        fps: 100.0,
        max_frames: 10,
        listen: "127.0.0.1:0".parse().unwrap(),
        congestion: "reno".to_owned(),
        ..Config::new(
            Recording {
                fps: 100.0,
                source,
                audio: None,
            },
            Level::Fhd,
        )
    };
    let publisher = Publisher::open(&config).unwrap();
    let address = publisher.address();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let report = scope.spawn(|| publisher.run(&stop));
        let stopping = StopOnDrop(&stop);
        viewers(address);
        drop(stopping);
        report.join().unwrap().unwrap()
    })
}

/// Stops the publisher even if an assertion fails, so that the test ends.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn read_frame(viewer: &mut TcpStream) -> FrameHeader {
    let mut header = [0; HEADER_BYTES];
    viewer.read_exact(&mut header).unwrap();
    let header = FrameHeader::parse(&header).unwrap();
    viewer
        .read_exact(&mut vec![0; header.length as usize])
        .unwrap();
    header
}

/// Reads until the publisher closes the connection.
fn wait_for_close(viewer: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is a close as well.
    let _ = viewer.read_to_end(&mut rest);
}

#[test]
fn each_request_gets_one_frame_and_no_frame_comes_twice() {
    let report = with_publisher(1000, |address| {
        let mut viewer = TcpStream::connect(address).unwrap();
        viewer.write_all(&REQUEST.repeat(3)).unwrap();
        let mut numbers: Vec<u64> = (0..3).map(|_| read_frame(&mut viewer).number).collect();
        viewer.write_all(&REQUEST).unwrap();
        numbers.push(read_frame(&mut viewer).number);
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    });
    assert_eq!((report.viewers, report.frames_sent), (1, 4));
}

#[test]
fn a_viewer_that_does_not_read_holds_up_nobody() {
    with_publisher(184_000, |address| {
        let mut lazy = TcpStream::connect(address).unwrap();
        lazy.write_all(&REQUEST.repeat(MAX_IN_FLIGHT)).unwrap();
        let mut viewer = TcpStream::connect(address).unwrap();
        // Far more than the lazy viewer's socket buffers hold.
        for _ in 0..30 {
            viewer.write_all(&REQUEST).unwrap();
            read_frame(&mut viewer);
        }
    });
}

#[test]
fn who_does_not_keep_to_the_protocol_is_refused() {
    let report = with_publisher(1000, |address| {
        let mut browser = TcpStream::connect(address).unwrap();
        browser
            .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        wait_for_close(&mut browser);

        let mut greedy = TcpStream::connect(address).unwrap();
        greedy
            .write_all(&REQUEST.repeat(100 * MAX_IN_FLIGHT))
            .unwrap();
        wait_for_close(&mut greedy);

        let mut viewer = TcpStream::connect(address).unwrap();
        viewer.write_all(&REQUEST).unwrap();
        read_frame(&mut viewer);
    });
    assert_eq!((report.viewers, report.viewers_refused), (3, 2));
}

#[test]
fn one_viewer_too_many_is_turned_away() {
    let report = with_publisher(1000, |address| {
        let viewers: Vec<TcpStream> = (0..64)
            .map(|_| {
                let mut viewer = TcpStream::connect(address).unwrap();
                viewer.write_all(&REQUEST).unwrap();
                read_frame(&mut viewer);
                viewer
            })
            .collect();
        wait_for_close(&mut TcpStream::connect(address).unwrap());
        drop(viewers);
    });
    assert_eq!((report.viewers, report.viewers_refused), (64, 1));
}
