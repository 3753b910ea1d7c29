//! Recordings that are played frame by frame. Needs the `ffmpeg` program.

use crate::support;

use hawser_cloud::{Cloud, Level};
use hawser_recording::{Frame, LoadError, Player, Recording};
use std::fs;
use std::path::Path;
use support::{color_video, depth_video, read, rgbd, rgbd_camera};

/// Returns the depth of the first pixel, and the colour, of every camera of the next frame.
fn next_images(player: &mut Player) -> Option<Vec<(u16, [u8; 3])>> {
    match player.next_frame().unwrap()? {
        Frame::Views(views) => {
            let image =
                |view: &hawser_cloud::View| (view.depth()[0], view.color().as_chunks().0[0]);
            Some(views.iter().map(image).collect())
        }
        Frame::Cloud(_) => panic!("cameras have views"),
    }
}

#[test]
fn cameras_keep_their_images_and_units() {
    let directory = tempfile::tempdir().unwrap();
    color_video(&directory, "color.mkv", &[[10, 20, 30]]);
    depth_video(&directory, "depth.mkv", "gray16le", &[[2001, 65_535]]);

    let mut player = read(&rgbd(&directory)).open().unwrap();
    let Frame::Views(views) = player.next_frame().unwrap().unwrap() else {
        panic!("cameras have views");
    };

    let [view] = &views[..] else {
        panic!("one camera has one view");
    };
    assert_eq!((view.unit_mm(), view.size()), (0.5, (16, 2)));
    assert_eq!(view.color(), [10, 20, 30].repeat(32));
    assert_eq!(view.depth()[..3], [2001, 65_535, 0]);
    assert!(player.next_frame().unwrap().is_none());
    assert!(
        player.next_frame().unwrap().is_none(),
        "it stays at the end"
    );
}

#[test]
fn a_player_starts_again_when_it_is_rewound() {
    let directory = tempfile::tempdir().unwrap();
    color_video(&directory, "color.mkv", &[[1, 1, 1], [2, 2, 2], [3, 3, 3]]);
    depth_video(
        &directory,
        "depth.mkv",
        "gray16le",
        &[[10, 0], [20, 0], [30, 0]],
    );
    let recording = read(&rgbd(&directory));

    for mut player in [recording.open().unwrap(), recording.open_looped().unwrap()] {
        let mut first = || next_images(&mut player).unwrap()[0];
        assert_eq!((first(), first()), ((10, [1, 1, 1]), (20, [2, 2, 2])));
        player.rewind().unwrap();
        player.rewind().unwrap();
        let mut first = || next_images(&mut player).unwrap()[0];
        assert_eq!([first().0, first().0, first().0], [10, 20, 30]);
        player.rewind().unwrap();
        assert_eq!(next_images(&mut player).unwrap()[0], (10, [1, 1, 1]));
    }
}

#[test]
fn a_loop_goes_from_the_last_frame_of_all_cameras_to_the_first() {
    let directory = tempfile::tempdir().unwrap();
    // More frames than are opened ahead in the later passes.
    let depths = |base: u16| (1..=40).map(|n| [base + n, 0]).collect::<Vec<_>>();
    let colors: Vec<[u8; 3]> = (1..=40).map(|n| [n, 0, n]).collect();
    for (name, base) in [("left", 1000), ("right", 2000)] {
        color_video(&directory, &format!("{name}.mp4.mkv"), &colors);
        depth_video(
            &directory,
            &format!("{name}.mkv"),
            "gray16le",
            &depths(base),
        );
    }
    let cameras = ["left", "right"]
        .map(|name| rgbd_camera(&format!("{name}.mp4.mkv"), &format!("{name}.mkv")));
    let path = support::description(&directory, &format!("fps = 25\n{}", cameras.concat()));

    let mut player = read(&path).open_looped().unwrap();

    for number in (1..=40u8).cycle().take(100) {
        let color = [number, 0, number];
        let depth = u16::from(number);
        let expected = [(1000 + depth, color), (2000 + depth, color)];
        assert_eq!(next_images(&mut player).unwrap(), expected);
    }
}

#[test]
fn a_loop_of_nothing_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let text = "fps = 30\n[ply-sequence]\ndirectory = \".\"\nunit_mm = 1000\n";
    let recording = read(&support::description(&directory, text));
    let error = recording.open_looped().unwrap().next_frame().unwrap_err();
    assert!(matches!(error, LoadError::Empty), "{error}");
    assert!(recording.open().unwrap().next_frame().unwrap().is_none());
}

#[test]
fn clouds_are_played_in_a_loop_too() {
    let recording = support::read(Path::new("examples/synthetic.toml"));
    let mut player = recording.open_looped().unwrap();
    let mut frames = (0..121).map(|_| match player.next_frame().unwrap().unwrap() {
        Frame::Cloud(cloud) => cloud.digest(),
        Frame::Views(_) => panic!("the performer has no views"),
    });
    let (first, second) = (frames.next().unwrap(), frames.next().unwrap());
    assert_ne!(first, second);
    assert_eq!(frames.last(), Some(first), "after 120 frames");
}

#[test]
fn loaded_frames_are_the_points_of_the_played_ones() {
    let directory = tempfile::tempdir().unwrap();
    color_video(&directory, "color.mkv", &[[10, 20, 30], [40, 50, 60]]);
    depth_video(
        &directory,
        "depth.mkv",
        "gray16le",
        &[[2000, 4000], [0, 6000]],
    );
    let recording: Recording = read(&rgbd(&directory));

    let mut player = recording.open().unwrap();
    let played: Vec<Cloud> =
        std::iter::from_fn(|| player.next_frame().unwrap().map(Frame::into_cloud)).collect();

    assert_eq!(recording.load(Level::Fhd, 100).unwrap(), played);
    fs::remove_file(directory.path().join("color.mkv")).unwrap();
    assert!(recording.open().is_err());
}

#[test]
fn points_out_of_range_are_counted_in_every_frame() {
    let directory = tempfile::tempdir().unwrap();
    color_video(&directory, "color.mkv", &[[1, 1, 1], [2, 2, 2], [3, 3, 3]]);
    let depths = [[1000, 1000], [1000, 40_000], [50_000, 40_000]];
    depth_video(&directory, "depth.mkv", "gray16le", &depths);
    let text = fs::read_to_string(rgbd(&directory)).unwrap();
    let text = text.replace("depth_unit_mm = 0.5", "depth_unit_mm = 1");
    let mut player = read(&support::description(&directory, &text))
        .open()
        .unwrap();
    let mut counts = Vec::new();
    while player.next_frame().unwrap().is_some() {
        counts.push(player.out_of_range());
    }
    assert_eq!(counts, [0, 1, 3]);
}
