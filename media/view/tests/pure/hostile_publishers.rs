//! Hostile publishers: each connection is one script of bytes.

use hawser_cloud::{Digest, Level, Performer};
use hawser_codec::pull::{FrameHeader, REQUEST};
use hawser_codec::{Codec, ZstdEncoder};
use hawser_view::pull::{Config, Summary, watch};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

/// Runs a viewer for one frame against a publisher that sends one script on each connection.
fn watch_scripts(scripts: &[Vec<u8>]) -> Summary {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let config = Config {
        frames: Some(1),
        in_flight: 1,
        ..Config::new(address)
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for script in scripts {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; REQUEST.len()]).unwrap();
                stream.write_all(script).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                // Wait until the viewer has closed the connection: closing it here first could
                // discard data that the viewer has not read.
                let _ = stream.read_to_end(&mut Vec::new());
            }
        });
        watch(&config, &AtomicBool::new(false)).unwrap()
    })
}

fn frame() -> (FrameHeader, Vec<u8>) {
    let cloud = Performer::new(1, 500).cloud(Duration::ZERO);
    let encoded = ZstdEncoder::new().compress(&cloud);
    let header = FrameHeader {
        number: 1,
        captured_ns: 1_000,
        level: Level::Nfov,
        codec: Codec::Zstd,
        points: 500,
        length: u32::try_from(encoded.len()).unwrap(),
        digest: cloud.digest(),
    };
    (header, encoded)
}

fn message(header: FrameHeader, encoded: &[u8]) -> Vec<u8> {
    [header.to_bytes().as_slice(), encoded].concat()
}

#[test]
fn errors_are_counted_and_the_viewer_connects_again() {
    let (header, encoded) = frame();
    let good = message(header, &encoded);
    let mut undecodable = good.clone();
    undecodable[60..].fill(0xff);

    let summary = watch_scripts(&[
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec(),
        undecodable,
        message(
            FrameHeader {
                points: 499,
                ..header
            },
            &encoded,
        ),
        good,
    ]);

    assert_eq!(
        (summary.frames, summary.protocol_errors, summary.connections),
        (1, 3, 4)
    );
}

#[test]
fn an_end_in_the_middle_of_a_frame_is_no_error_of_the_protocol() {
    let (header, encoded) = frame();
    let good = message(header, &encoded);
    let summary = watch_scripts(&[good[..20].to_vec(), good[..100].to_vec(), good]);
    assert_eq!(
        (summary.frames, summary.protocol_errors, summary.connections),
        (1, 0, 3)
    );
}

#[test]
fn a_frame_that_differs_is_counted() {
    let (header, encoded) = frame();
    let summary = watch_scripts(&[message(
        FrameHeader {
            digest: Digest(1),
            ..header
        },
        &encoded,
    )]);
    assert_eq!((summary.frames, summary.frames_damaged), (1, 1));
}
