//! Live inputs. ffmpeg's test sources play the cameras.

use crate::support::{CAMERA, description, read};
use hawser_cloud::{Level, View};
use hawser_recording::{Frame, LoadError, Player, Recording};
use std::path::Path;

/// Returns the option of a test source of 16x2 pixels, in real time.
fn input(source: &str, format: &str) -> String {
    let graph = format!("{source},realtime,format={format}");
    format!("{{ input = [\"-f\", \"lavfi\", \"-i\", \"{graph}\"] }}")
}

fn camera(color: &str, depth: &str) -> String {
    format!("[[rgbd]]\ncolor = {color}\ndepth = {depth}\ndepth_unit_mm = 1\n{CAMERA}")
}

/// A source whose pixels have the number of the image, in 16 bits.
fn numbers(rate: u32) -> String {
    format!("color=black:size=16x2:rate={rate},format=gray16le,geq=lum=N")
}

fn recording(cameras: &[String]) -> Recording {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("fps = 20\n{}", cameras.concat());
    read(&description(&directory, &text))
}

fn next_views(player: &mut Player) -> Vec<View> {
    match player.next_frame().unwrap().unwrap() {
        Frame::Views(views) => views,
        Frame::Cloud(_) => panic!("a camera has views"),
    }
}

#[test]
fn live_cameras_are_played_in_step() {
    let color = input(&numbers(20), "rgb24");
    let depth = input(&numbers(20), "gray16le");
    let recording = recording(&[camera(&color, &depth), camera(&color, &depth)]);
    assert!(recording.is_live());
    let refused = recording.load(Level::Fhd, 1).unwrap_err();
    assert!(matches!(refused, LoadError::Live), "{refused}");

    let mut player = recording.open_looped().unwrap();
    let mut before = None;
    for _ in 0..12 {
        let views = next_views(&mut player);
        assert_eq!((views.len(), views[0].size()), (2, (16, 2)));
        let numbers = [views[0].depth()[0], views[1].depth()[0]];
        let is_newer = |before: [u16; 2]| before[0] < numbers[0] && before[1] < numbers[1];
        assert!(before.is_none_or(is_newer), "{before:?}, then {numbers:?}");
        before = Some(numbers);
        // A live camera has no first image to return to.
        player.rewind().unwrap();
    }
}

#[test]
fn images_that_come_too_fast_are_skipped_and_counted() {
    let color = input(&numbers(5), "rgb24");
    let depth = input(&numbers(100), "gray16le");
    let mut player = recording(&[camera(&color, &depth)]).open().unwrap();
    let mut before = next_views(&mut player)[0].depth()[0];
    loop {
        let number = next_views(&mut player)[0].depth()[0];
        if number > before + 1 {
            assert!(player.skipped_images() >= u64::from(number - before - 1));
            break;
        }
        before = number;
    }
}

#[test]
fn a_live_input_that_ends_is_named() {
    let color = input("color=black:size=16x2:rate=20:duration=0.2", "rgb24");
    let depth = input(&numbers(20), "gray16le");
    let mut player = recording(&[camera(&color, &depth)]).open().unwrap();
    let error = loop {
        match player.next_frame() {
            Ok(frame) => assert!(frame.is_some()),
            Err(error) => break error.to_string(),
        }
    };
    assert!(
        error.starts_with("-f lavfi -i color=black:size=16x2")
            && error.ends_with("has ended, but a live input must not"),
        "{error}"
    );
}

fn error_of(color: &str, depth: &str) -> String {
    let mut player = recording(&[camera(color, depth)]).open().unwrap();
    player.next_frame().unwrap_err().to_string()
}

#[test]
fn live_inputs_of_another_kind_are_rejected() {
    let color = input(&numbers(20), "rgb24");
    let depth = input(&numbers(20), "gray16le");
    let grey = error_of(&color, &input(&numbers(20), "gray"));
    assert!(grey.contains("has the pixel format gray, depth"), "{grey}");
    let large = error_of(&input("testsrc2=size=32x2:rate=20", "rgb24"), &depth);
    assert!(large.contains("has images of 32 x 2 pixels"), "{large}");
    let missing = "{ input = [\"-f\", \"v4l2\", \"-i\", \"/dev/no-camera\"] }";
    let error = error_of(missing, &depth);
    assert!(
        error.starts_with("-f v4l2 -i /dev/no-camera: ") && error.contains("No such file"),
        "{error}"
    );
}

#[test]
fn descriptions_of_incomplete_inputs_are_rejected() {
    let error = |color: &str, depth: &str| {
        let directory = tempfile::tempdir().unwrap();
        let path = description(&directory, &format!("fps = 20\n{}", camera(color, depth)));
        let error = Recording::read(&path, Path::new("/data")).unwrap_err();
        error.to_string()
    };
    let live = "{ input = [\"-i\", \"camera\"] }";
    let mixed = error(live, "\"depth.mkv\"");
    assert!(
        mixed.contains("must all be live inputs, or all be recorded"),
        "{mixed}"
    );
    for incomplete in [
        "[\"-i\"]",
        "[\"camera\"]",
        "[\"-i\", \"a\", \"-i\", \"b\"]",
        "[]",
    ] {
        let incomplete = error(live, &format!("{{ input = {incomplete} }}"));
        assert!(
            incomplete.contains("input must end with \"-i\""),
            "{incomplete}"
        );
    }
    let number = error("7", live);
    assert!(
        number.contains("the path of a video, or { input ="),
        "{number}"
    );
}
