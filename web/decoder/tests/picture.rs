//! The decoder in WASM draws the same pictures as on the machine itself, pixel by pixel. Needs the page: `make page`.

use hawser_cloud::{Camera, Extrinsics, Intrinsics, View};
use hawser_codec::rgbd::Layers;
use hawser_codec::{Codec, Encoder, RgbdEncoder, Setting};
use hawser_decoder::{Stage, Stream};
use hawser_objects::{ObjectInfo, Packetiser, PacketiserConfig, TrackSecret, TrackTiming};
use hawser_packets::media::{Flags, ObjectId};
use hawser_packets::moq;
use hawser_packets::session::{Announcement, Track};
use hawser_recording::{Frame, Recording};
use hawser_units::Instant;
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const SIZE: (usize, usize) = (640, 480);
const SECRET: [u8; 32] = [0x11; 32];
const LIFETIME: Duration = Duration::from_millis(150);
/// Angles to the left and upwards, and the factor of the distance.
const TURN: (f32, f32, f32) = (0.6, -0.3, 0.9);

/// A view of a sphere.
fn sphere() -> View {
    let (width, height) = (320_i32, 240_i32);
    let camera = Camera {
        intrinsics: Intrinsics::centred(width as usize, height as usize, 300.0),
        extrinsics: Extrinsics {
            rotation: [[-1.0, 0.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]],
            translation_mm: [0.0, 0.0, 1000.0],
        },
    };
    let pixels = (0..height).flat_map(|row| (0..width).map(move |column| (row, column)));
    let (mut color, mut depth) = (Vec::new(), Vec::new());
    for (row, column) in pixels {
        let square = 100 * 100 - (row - 120).pow(2) - (column - 160).pow(2);
        let height = f64::from(square.max(0)).sqrt();
        depth.push(if square > 0 {
            (1000.0 - 3.0 * height) as u16
        } else {
            0
        });
        color.extend([row as u8, (column / 2) as u8, height as u8]);
    }
    View::new(camera, 1.0, color, depth).unwrap()
}

/// The person of the recordings, if they are here.
fn talker() -> Option<View> {
    let data = hawser_recording::data_dir();
    if !data.join("volumetric").exists() {
        eprintln!("without recordings, which $HAWSER_DATA names");
        return None;
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../media/recording/examples");
    let recording = Recording::read(&examples.join("talker-front.toml"), &data).unwrap();
    match recording.open().unwrap().next_frame().unwrap() {
        Some(Frame::Views(mut views)) => views.pop(),
        _ => panic!("the recording has a camera"),
    }
}

/// A frame as a page takes it: the announcement, and the payloads of MoQ.
fn broadcast(view: &View) -> (Vec<u8>, Vec<Vec<u8>>) {
    const ALIAS: u32 = 7;
    let timing = TrackTiming {
        lifetime: LIFETIME,
        frames_per_1000_s: 30_000,
    };
    let announcement = Announcement {
        incarnation: [2; 16],
        started_unix_millis: 1,
        tracks: vec![Track {
            alias: ALIAS,
            codec: Codec::Rgbd.tag(),
            layers: 2,
            name: "camera".to_owned(),
            parameters: timing.emit().to_vec(),
        }],
    };
    let secret = TrackSecret::new(SECRET);
    let hop = secret.access().hop(&[3; 16], 0);
    let config = PacketiserConfig::new(ALIAS, announcement.incarnation);
    let mut packetiser = Packetiser::new(config, secret.clone(), hop);
    let encoded = RgbdEncoder::new(Layers::Two).encode(view, Setting::BEST);
    let objects = (0..).zip(&encoded.layers).map(|(layer, parts)| {
        let info = ObjectInfo {
            id: ObjectId {
                alias: ALIAS,
                group: 1,
                object: 0,
                layer,
            },
            priority: layer,
            deadline: Instant::ZERO + LIFETIME,
            flags: Flags::default(),
        };
        let sealed = packetiser.packetise(info, &parts.concat()).unwrap();
        moq::emit(sealed.packets.iter().map(|packet| &packet.datagram[..])).unwrap()
    });
    (secret.announce(&announcement).unwrap(), objects.collect())
}

/// Draws the frame from two places.
fn draw(announced: &[u8], objects: &[Vec<u8>]) -> Vec<u8> {
    let secret = TrackSecret::new(SECRET);
    let mut stream = Stream::open(&secret, announced, vec![(7, 0)]).unwrap();
    let now = Instant::ZERO + Duration::from_millis(1);
    objects.iter().for_each(|object| stream.take(now, object));
    let mut stage = Stage::new(SIZE.0, SIZE.1);
    stage.show(stream.decode(now).unwrap().frames);
    assert_eq!(stream.counts().refused, 0);
    let first = stage.draw_rgba().unwrap().to_vec();
    let (yaw, pitch, distance) = TURN;
    stage.orbit().unwrap().turn(yaw, pitch, distance);
    [&first, stage.draw_rgba().unwrap()].concat()
}

/// Has the page's decoder do the same, in Node.
fn draw_in_wasm(announced: &[u8], objects: &[Vec<u8>]) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let [case, pictures] = ["case.json", "pictures"].map(|name| directory.path().join(name));
    let objects: Vec<String> = objects.iter().map(hex::encode).collect();
    let (width, height) = SIZE;
    let text = json!({
        "secret": hex::encode(SECRET), "announcement": hex::encode(announced), "epochs": [[7, 0]],
        "objects": objects, "width": width, "height": height, "turn": TURN,
    });
    std::fs::write(&case, text.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../viewer/tests/draw.js");
    let mut node = Command::new("node");
    let status = node.arg(script).arg(&case).arg(&pictures).status();
    assert!(status.expect("node").success());
    std::fs::read(&pictures).unwrap()
}

#[test]
fn the_picture_in_wasm_is_the_one_on_the_machine() {
    for view in [Some(sphere()), talker()].into_iter().flatten() {
        let (announced, objects) = broadcast(&view);
        let expected = draw(&announced, &objects);
        let found = draw_in_wasm(&announced, &objects);
        assert_eq!(found.len(), expected.len());
        let pixels = |of: &[u8]| of.as_chunks::<4>().0.to_vec();
        let (expected, found) = (pixels(&expected), pixels(&found));
        let background = expected[0];
        let drawn = expected
            .iter()
            .filter(|pixel| **pixel != background)
            .count();
        assert!(drawn > expected.len() / 20, "{drawn} pixels are drawn");
        let other = expected
            .iter()
            .zip(&found)
            .filter(|(one, other)| one != other);
        assert_eq!(other.count(), 0, "pixels of {}", expected.len());
    }
}
