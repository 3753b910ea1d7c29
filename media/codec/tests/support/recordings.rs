//! Frames of real recordings; none where `$HAWSER_DATA` has none.
#![allow(dead_code, reason = "each test uses some of them")]

use hawser_cloud::{Cloud, View};
use hawser_recording::{Frame, Recording};
use std::iter;
use std::path::Path;

/// Returns one of `step` frames of a description in `media/recording/examples`.
fn frames(description: &str, step: usize) -> impl Iterator<Item = Frame> {
    let data = hawser_recording::data_dir();
    let data = data.join("volumetric").exists().then_some(data);
    if data.is_none() {
        eprintln!("without recordings, which $HAWSER_DATA names");
    }
    let descriptions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recording/examples");
    let player = data.map(|data| {
        let recording = Recording::read(&descriptions.join(description), &data);
        let player = recording.expect("a valid description").open();
        player.unwrap_or_else(|error| panic!("{error}"))
    });
    let played = player.into_iter().flat_map(|mut player| {
        iter::from_fn(move || {
            player
                .next_frame()
                .unwrap_or_else(|error| panic!("{error}"))
        })
    });
    played.step_by(step)
}

fn views(description: &str, step: usize) -> Vec<Vec<View>> {
    let views = |frame| match frame {
        Frame::Views(views) => views,
        Frame::Cloud(_) => panic!("{description} has no cameras"),
    };
    frames(description, step).map(views).collect()
}

/// Returns one of `step` frames of the person who talks, with both views of each.
pub(crate) fn talker_views(step: usize) -> Vec<Vec<View>> {
    views("talker.toml", step)
}

/// Returns one of `step` frames of the person who talks, both views merged.
pub(crate) fn talker(step: usize) -> Vec<Cloud> {
    let frames = frames("talker.toml", step);
    frames.map(Frame::into_cloud).collect()
}

/// Returns one of `step` frames of the person who types.
pub(crate) fn typist(step: usize) -> Vec<Cloud> {
    let frames = frames("typist.toml", step);
    frames.map(Frame::into_cloud).collect()
}

/// Returns one of `step` frames of the person who types.
pub(crate) fn typist_views(step: usize) -> Vec<View> {
    views("typist.toml", step).into_iter().flatten().collect()
}
