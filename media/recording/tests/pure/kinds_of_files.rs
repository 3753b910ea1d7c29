//! Files as cameras, recorders and other tools write them. Needs the `ffmpeg` program.

use crate::support;

use hawser_recording::{Frame, Player, Recording};
use std::fs;
use std::path::Path;
use std::process::Command;
use support::{color_video, depth_video, description, read, rgbd_camera, video, video_at};
use tempfile::TempDir;

fn ffmpeg(directory: &TempDir, arguments: &str) {
    let status = Command::new("ffmpeg")
        .args(["-nostdin", "-v", "error", "-y"])
        .args(arguments.split(' '))
        .current_dir(directory)
        .status();
    assert!(
        status.expect("ffmpeg is installed").success(),
        "{arguments}"
    );
}

fn recording(directory: &TempDir, color: &str, depth: &str, fps: u32) -> Recording {
    let camera = rgbd_camera(color, depth);
    let camera = camera.replace("\"{", "{").replace("}\"", "}");
    read(&description(directory, &format!("fps = {fps}\n{camera}")))
}

fn error_of(recording: &Recording) -> String {
    match recording.open() {
        Ok(mut player) => player.next_frame().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

/// Returns the first depth and the red of every frame.
fn played(player: &mut Player) -> Vec<(u16, u8)> {
    let frames = std::iter::from_fn(|| player.next_frame().unwrap());
    let images = frames.map(|frame| match frame {
        Frame::Views(views) => (views[0].depth()[0], views[0].color()[0]),
        Frame::Cloud(_) => panic!("a camera has views"),
    });
    images.collect()
}

fn play(recording: &Recording) -> Vec<(u16, u8)> {
    played(&mut recording.open().unwrap())
}

/// Writes three images of each kind to `color.mkv` and `depth.mkv`.
fn three(directory: &TempDir) {
    color_video(
        directory,
        "color.mkv",
        &[[10, 0, 0], [20, 0, 0], [30, 0, 0]],
    );
    depth_video(
        directory,
        "depth.mkv",
        "gray16le",
        &[[1, 0], [2, 0], [3, 0]],
    );
}

const THREE: [(u16, u8); 3] = [(1, 10), (2, 20), (3, 30)];

#[test]
fn videos_that_are_shown_turned_or_mirrored_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    three(&directory);
    ffmpeg(&directory, "-i color.mkv -c:v mpeg4 -q:v 1 upright.mp4");
    let upright = fs::read(directory.path().join("upright.mp4")).unwrap();
    let matrix = |[a, b, c, d]: [i32; 4]| {
        [a, b, 0, c, d]
            .map(|value| (value << 16).to_be_bytes())
            .concat()
    };
    let identity = matrix([1, 0, 0, 1]);
    // The first matrix is that of the movie, the second one that of the track.
    let mut places = upright.windows(identity.len()).enumerate();
    let mut next = || places.find(|(_, bytes)| *bytes == identity).unwrap().0;
    let (_, place) = (next(), next());
    for (turned, how) in [
        ([0, 1, -1, 0], "turned by"),
        ([-1, 0, 0, -1], "turned by"),
        ([0, -1, 1, 0], "turned by"),
        ([-1, 0, 0, 1], ""),
    ] {
        let mut file = upright.clone();
        file[place..place + identity.len()].copy_from_slice(&matrix(turned));
        fs::write(directory.path().join("turned.mp4"), file).unwrap();
        let error = error_of(&recording(&directory, "turned.mp4", "depth.mkv", 25));
        assert!(
            error.contains("turned.mp4: its metadata say that it is shown"),
            "{error}"
        );
        assert!(error.contains(how), "{turned:?}: {error}");
        let live = format!(
            "{{ input = [\"-stream_loop\", \"-1\", \"-i\", \"{}/FILE\"] }}",
            directory.path().display()
        );
        let live = |file: &str| live.replace("FILE", file);
        let live = recording(&directory, &live("turned.mp4"), &live("depth.mkv"), 25);
        assert!(
            error_of(&live).contains("its metadata say that it is shown"),
            "live {turned:?}"
        );
    }
    let frames = play(&recording(&directory, "upright.mp4", "depth.mkv", 25));
    assert_eq!(frames.len(), 3);
}

#[test]
fn images_of_transposed_or_changing_size_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    three(&directory);
    ffmpeg(&directory, "-i color.mkv -vf transpose upright-%03d.png");
    ffmpeg(&directory, "-i color.mkv c-%03d.png");
    let error = error_of(&recording(&directory, "upright-%03d.png", "depth.mkv", 25));
    assert!(
        error.contains("upright-001.png has images of 2 x 16 pixels"),
        "{error}"
    );
    assert!(error.contains("for 16 x 2"), "{error}");
    fs::rename(
        directory.path().join("upright-002.png"),
        directory.path().join("c-002.png"),
    )
    .unwrap();
    let error = error_of(&recording(&directory, "c-%03d.png", "depth.mkv", 25));
    assert!(
        error.contains("c-002.png has images of 2 x 16 pixels"),
        "{error}"
    );
    ffmpeg(&directory, "-i depth.mkv -vf crop=8:2 -c:v ffv1 small.mkv");
    let error = error_of(&recording(&directory, "color.mkv", "small.mkv", 25));
    assert!(
        error.contains("small.mkv has images of 8 x 2 pixels"),
        "{error}"
    );
}

#[test]
fn images_of_other_rates_are_paired_by_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let colors: Vec<Vec<u8>> = (0..30).map(|n| vec![2 * n; 96]).collect();
    let depths = |step: u16| -> Vec<Vec<u8>> {
        (0..30 / step)
            .map(|n| (step * n + 1).to_le_bytes().repeat(32))
            .collect()
    };
    video_at("30", &path("c30.mkv"), ("rgb24", "bgr0"), &colors);
    for (rate, step) in [("15", 2), ("10", 3), ("30", 1)] {
        video_at(
            rate,
            &path("d.mkv"),
            ("gray16le", "gray16le"),
            &depths(step),
        );
        let expected: Vec<_> = (0..30 / step)
            .map(|n| (step * n + 1, 2 * (step * n) as u8))
            .collect();
        assert_eq!(
            play(&recording(&directory, "c30.mkv", "d.mkv", 30)),
            expected,
            "{rate}"
        );
    }
    // The first four images were not recorded.
    ffmpeg(&directory, "-itsoffset 0.133333 -i d.mkv -c copy late.mkv");
    let late = play(&recording(&directory, "c30.mkv", "late.mkv", 30));
    assert_eq!((late.len(), late[0], late[25]), (26, (1, 8), (26, 58)));
    ffmpeg(&directory, "-itsoffset 100 -i d.mkv -c copy other.mkv");
    let error = error_of(&recording(&directory, "c30.mkv", "other.mkv", 30));
    assert!(error.contains("no image was taken within 20 ms"), "{error}");
}

#[test]
fn a_damaged_image_costs_its_frame_only() {
    let directory = tempfile::tempdir().unwrap();
    three(&directory);
    ffmpeg(&directory, "-i color.mkv c-%03d.png");
    ffmpeg(&directory, "-i depth.mkv d-%03d.png");
    let damaged = directory.path().join("d-002.png");
    let mut file = fs::read(&damaged).unwrap();
    let data = file.windows(4).position(|bytes| bytes == b"IDAT").unwrap();
    file[data + 8] ^= 0xff;
    fs::write(&damaged, file).unwrap();
    let recording = recording(&directory, "c-%03d.png", "d-%03d.png", 25);
    let mut player = recording.open().unwrap();
    assert_eq!(played(&mut player), [(1, 10), (3, 30)]);
    assert_eq!(player.lost(), 1);
    // A file that vanishes while it is played in a loop.
    let mut player = recording.open_looped().unwrap();
    fs::remove_file(directory.path().join("c-003.png")).unwrap();
    for _ in 0..20 {
        assert!(player.next_frame().unwrap().is_some());
    }
    assert!(player.lost() > 10);
}

#[test]
fn a_damaged_jpeg_is_not_shown() {
    let directory = tempfile::tempdir().unwrap();
    three(&directory);
    ffmpeg(&directory, "-i color.mkv -q:v 1 c-%03d.jpg");
    ffmpeg(&directory, "-i depth.mkv d-%03d.png");
    let damaged = directory.path().join("c-002.jpg");
    let mut file = fs::read(&damaged).unwrap();
    let scan = file
        .windows(2)
        .position(|bytes| bytes == [0xff, 0xda])
        .unwrap();
    let data = scan + 14;
    // No code is as long as these bits, and an image that is cut off has the end of another one.
    file.truncate(data);
    file.extend([0xff, 0x00, 0xff, 0x00, 0xff, 0xd9]);
    fs::write(&damaged, file).unwrap();
    let mut player = recording(&directory, "c-%03d.jpg", "d-%03d.png", 25)
        .open()
        .unwrap();
    assert_eq!(played(&mut player).len(), 2);
    assert_eq!(player.lost(), 1);
}

#[test]
fn names_are_no_protocols_options_or_patterns() {
    let directory = tempfile::tempdir().unwrap();
    three(&directory);
    for name in [
        "2019-03-08T09:31:15.mkv",
        "-i.mkv",
        "http:a.mkv",
        "50%d?.mkv",
        "a b'c.mkv",
    ] {
        fs::copy(
            directory.path().join("color.mkv"),
            directory.path().join(name),
        )
        .unwrap();
        assert_eq!(
            play(&recording(&directory, name, "depth.mkv", 25)),
            THREE,
            "{name}"
        );
    }
}

#[test]
fn one_file_has_the_tracks_of_a_camera() {
    let directory = tempfile::tempdir().unwrap();
    three(&directory);
    depth_video(&directory, "ir.mkv", "gray16le", &[[7, 0], [8, 0], [9, 0]]);
    ffmpeg(
        &directory,
        "-i ir.mkv -i depth.mkv -i color.mkv -map 0 -map 1 -map 2 -c copy -metadata:s:v:0 title=IR \
         -metadata:s:v:1 title=DEPTH all.mkv",
    );
    assert_eq!(
        play(&recording(&directory, "all.mkv", "all.mkv", 25)),
        THREE
    );
    let infrared = recording(&directory, "all.mkv", "{ file = 'all.mkv', track = 0 }", 25);
    assert_eq!(play(&infrared), [(7, 10), (8, 20), (9, 30)]);
    let error = error_of(&recording(
        &directory,
        "all.mkv",
        "{ file = 'all.mkv', track = 3 }",
        25,
    ));
    assert!(error.contains("there is no video track 3"), "{error}");
    ffmpeg(&directory, "-i color.mkv c-%d.png");
    let images = "{ file = 'c-%d.png', track = 0 }";
    let error = error_of(&recording(&directory, images, "depth.mkv", 25));
    assert!(error.contains("`track` is for videos"), "{error}");
}

#[test]
fn depth_is_exact_in_every_format_that_has_it() {
    let directory = tempfile::tempdir().unwrap();
    three(&directory);
    let depths: Vec<Vec<u8>> = [1_u16, 1000, 4095]
        .map(|depth| depth.to_le_bytes().repeat(32))
        .to_vec();
    for format in ["gray16le", "gray12le"] {
        video(&directory.path().join("d.mkv"), format, format, &depths);
        let frames = play(&recording(&directory, "color.mkv", "d.mkv", 25));
        assert_eq!(frames, [(1, 10), (1000, 20), (4095, 30)], "{format}");
    }
    ffmpeg(
        &directory,
        "-i d.mkv -c:v rawvideo -pix_fmt gray16be -allow_raw_vfw 1 big.nut",
    );
    let big = play(&recording(&directory, "color.mkv", "big.nut", 25));
    assert_eq!(big.len(), 3);
    for maximum in [4095, 10_000] {
        for (number, depth) in [1_u16, 1000, 4095].iter().enumerate() {
            let header = format!("P5\n# Kinect\n16 2\n{maximum}\n");
            let file = [header.as_bytes(), &depth.to_be_bytes().repeat(32)].concat();
            fs::write(directory.path().join(format!("d{number}.pgm")), file).unwrap();
        }
        let frames = play(&recording(&directory, "color.mkv", "d%d.pgm", 25));
        assert_eq!(frames, [(1, 10), (1000, 20), (4095, 30)], "{maximum}");
    }
}

#[test]
fn a_damaged_ply_file_costs_its_frame_only_in_every_pass() {
    let directory = tempfile::tempdir().unwrap();
    for (name, body) in [("1.ply", "1 0 0"), ("2.ply", "2 x 0"), ("3.ply", "3 0 0")] {
        write_ply(&directory, name, body);
    }
    let text = "fps = 30\n[ply-sequence]\ndirectory = \".\"\nunit_mm = 1\n";
    let recording = read(&description(&directory, text));
    let mut player = recording.open_looped().unwrap();
    for _ in 0..20 {
        assert!(player.next_frame().unwrap().is_some());
    }
    assert!(player.lost() > 6, "{}", player.lost());
    for name in ["1.ply", "3.ply"] {
        write_ply(&directory, name, "x 0 0");
    }
    assert!(
        error_of(&recording).contains("ply"),
        "nothing is left to play"
    );
}

/// Writes a file with one vertex.
fn write_ply(directory: &TempDir, name: &str, vertex: &str) {
    let header = "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\n";
    let file = format!("{header}end_header\n{vertex}\n");
    fs::write(directory.path().join(name), file).unwrap();
}

#[test]
fn ply_files_are_in_the_order_of_their_numbers() {
    let directory = tempfile::tempdir().unwrap();
    for (name, vertex) in [
        ("f10.PLY", "10 0 0"),
        ("f9.ply", "9 0 0"),
        ("f2.Ply", "2 0 0"),
    ] {
        write_ply(&directory, name, vertex);
    }
    fs::write(directory.path().join("._f2.ply"), [0, 5, 22, 7]).unwrap();
    let text = "fps = 30\n[ply-sequence]\ndirectory = \".\"\nunit_mm = 1\n";
    let mut player = read(&description(&directory, text)).open().unwrap();
    let clouds = std::iter::from_fn(|| player.next_frame().unwrap());
    let places: Vec<i16> = clouds
        .map(|frame| frame.into_cloud().points().next().unwrap().x)
        .collect();
    assert_eq!(places, [2, 9, 10]);
    fs::write(directory.path().join("f3.ply"), "ply\nformat ascii 1.0\n").unwrap();
    let error = error_of(&read(&description(&directory, text)));
    assert!(error.contains("f3.ply"), "{error}");
}

#[test]
fn frames_are_left_out_to_play_in_real_time() {
    let mut recording = read(Path::new("examples/synthetic.toml"));
    for (fps, left_out) in [(60.0, 20), (90.0, 40), (45.0, 10), (30.0, 0), (10.0, 0)] {
        recording.fps = fps;
        let mut player = recording.open_looped().unwrap();
        let step = recording.step(30.0);
        let frames = (0..21).filter_map(|tick| player.frame_at(f64::from(tick) * step).unwrap());
        assert_eq!(frames.count(), 21, "{fps}");
        assert_eq!(player.left_out(), left_out, "{fps}");
    }
}

#[test]
fn pcd_files_are_frames_where_there_are_no_ply_files() {
    let directory = tempfile::tempdir().unwrap();
    for (name, x) in [("c10.PCD", 10), ("c9.pcd", 9)] {
        let header =
            "VERSION .7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH 1\nHEIGHT 1\n";
        let file =
            format!("# .PCD v.7\n{header}VIEWPOINT 0 0 0 1 0 0 0\nPOINTS 1\nDATA ascii\n{x} 0 0\n");
        fs::write(directory.path().join(name), file).unwrap();
    }
    let text = "fps = 30\n[ply-sequence]\ndirectory = \".\"\nunit_mm = 1\n";
    let places = || {
        let mut player = read(&description(&directory, text)).open().unwrap();
        let clouds = std::iter::from_fn(move || player.next_frame().unwrap());
        let place = |frame: Frame| frame.into_cloud().points().next().unwrap().x;
        clouds.map(place).collect::<Vec<i16>>()
    };
    assert_eq!(places(), [9, 10]);
    let ply = "ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\n";
    let ply = format!("{ply}end_header\n7 0 0\n");
    fs::write(directory.path().join("c9.ply"), ply).unwrap();
    assert_eq!(places(), [7]);
}

#[test]
fn pipes_devices_and_folders_are_no_files_of_a_recording() {
    let directory = tempfile::tempdir().unwrap();
    three(&directory);
    let path = |name: &str| directory.path().join(name);
    let made = std::process::Command::new("mkfifo")
        .arg(path("pipe.mkv"))
        .status();
    assert!(made.unwrap().success());
    fs::create_dir(path("folder.mkv")).unwrap();
    for (name, reason) in [
        ("pipe.mkv", "a pipe or a device"),
        ("folder.mkv", "directory"),
    ] {
        let error = error_of(&recording(&directory, name, "depth.mkv", 25));
        assert!(error.contains(name) && error.contains(reason), "{error}");
    }
    fs::rename(path("pipe.mkv"), path("000001.png")).unwrap();
    let error = error_of(&recording(&directory, "%06d.png", "depth.mkv", 25));
    assert!(error.contains("a pipe or a device"), "{error}");
    fs::rename(path("000001.png"), path("f1.ply")).unwrap();
    let text = "fps = 30\n[ply-sequence]\ndirectory = \".\"\nunit_mm = 1\n";
    let error = error_of(&read(&description(&directory, text)));
    assert!(
        error.contains("f1.ply: it is a pipe or a device"),
        "{error}"
    );
    let zero = hawser_recording::Recording::read(Path::new("/dev/zero"), Path::new("/data"));
    let error = zero.unwrap_err().to_string();
    assert!(error.contains("a socket or a device"), "{error}");
}

#[test]
fn descriptions_with_impossible_numbers_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let camera = support::rgbd_camera("a.mkv", "b.mkv");
    for (text, reason) in [
        (format!("fps = 1e9\n{camera}"), "at most 1000"),
        (format!("fps = nan\n{camera}"), "above 0"),
        (
            format!("fps = 30\n{camera}").replace("= 0.5", "= inf"),
            "depth_unit_mm",
        ),
        (
            format!("fps = 30\n{camera}").replace("[0, 0, 0]", "[0, nan, 0]"),
            "finite",
        ),
        (
            format!("fps = 30\n{camera}").replace("cx = 0", "cx = inf"),
            "finite",
        ),
        (
            "fps = 30\n[synthetic]\nseed = 1\npoints = 0\nseconds = 1\n".to_owned(),
            "points",
        ),
        (
            "fps = 30\n[synthetic]\nseed = 1\npoints = 9223372036854775807\nseconds = 1\n"
                .to_owned(),
            "points",
        ),
        (
            "fps = 30\n[synthetic]\nseed = 1\npoints = 9\nseconds = inf\n".to_owned(),
            "seconds",
        ),
        (
            "fps = 30\n[ply-sequence]\ndirectory = \".\"\nunit_mm = inf\n".to_owned(),
            "unit_mm",
        ),
    ] {
        let file = description(&directory, &text);
        let error = hawser_recording::Recording::read(&file, Path::new("/data")).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

/// Ten colour images, which may be compressed, and ten depth images of the same numbers.
fn ten(directory: &TempDir) {
    let path = |name: &str| directory.path().join(name);
    let colors: Vec<Vec<u8>> = (0..10).map(|n| vec![20 * n; 96]).collect();
    let depths: Vec<Vec<u8>> = (1..=10_u16).map(|n| n.to_le_bytes().repeat(32)).collect();
    video_at("10", &path("c10.mkv"), ("rgb24", "bgr0"), &colors);
    video_at("10", &path("d10.mkv"), ("gray16le", "gray16le"), &depths);
}

/// Fails unless every colour image is shown with the depth image of its number.
fn assert_paired(recording: &Recording, count: usize) {
    let frames = play(recording);
    assert_eq!(frames.len(), count);
    for (depth, red) in frames {
        let expected = 20 * (i32::from(depth) - 1);
        assert!((i32::from(red) - expected).abs() < 10, "{depth} {red}");
    }
}

#[test]
fn containers_that_begin_later_are_paired_by_their_first_image() {
    let directory = tempfile::tempdir().unwrap();
    ten(&directory);
    let encoded = "-c:v mpeg4 -q:v 1 -bf 2";
    for (name, options) in [
        ("c.ts", "-c:v mpeg2video -q:v 1 -bf 2 -r 25"),
        ("c.frag.mp4", "-movflags frag_keyframe+empty_moov"),
        ("c.mp4", ""),
        ("c.mkv", ""),
        ("c.avi", ""),
    ] {
        let options = match options.contains("-c:v") {
            true => options.to_owned(),
            false => format!("{encoded} {options}").trim_end().to_owned(),
        };
        ffmpeg(&directory, &format!("-i c10.mkv {options} {name}"));
        assert_paired(&recording(&directory, name, "d10.mkv", 10), 10);
    }
}

#[test]
fn numbered_files_are_paired_by_number() {
    let directory = tempfile::tempdir().unwrap();
    ten(&directory);
    ffmpeg(&directory, "-i c10.mkv -start_number 5 c%d.png");
    ffmpeg(&directory, "-i d10.mkv -start_number 5 d%d.png");
    for missing in ["d5.png", "d6.png", "c14.png"] {
        fs::remove_file(directory.path().join(missing)).unwrap();
    }
    assert_paired(&recording(&directory, "c%d.png", "d%d.png", 10), 7);
}

#[test]
fn times_of_another_unit_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    ten(&directory);
    ffmpeg(&directory, "-i c10.mkv c%d.png");
    ffmpeg(&directory, "-i d10.mkv d%d.png");
    for (unit, is_read) in [(1.0, true), (10.0, true), (1e3, false), (1e6, false)] {
        for kind in ["c", "d"] {
            let line = |n: u32| format!("{} {kind}{n}.png\n", f64::from(n) * 0.1 * unit);
            let lines: String = (1..=10).map(line).collect();
            fs::write(directory.path().join(format!("{kind}.txt")), lines).unwrap();
        }
        let recording = recording(&directory, "c.txt", "d.txt", 10);
        match is_read {
            true => assert_paired(&recording, 10),
            false => assert!(error_of(&recording).contains("times are in seconds")),
        }
    }
}

#[test]
fn the_last_picture_stays_while_a_file_is_written_again() {
    let directory = tempfile::tempdir().unwrap();
    write_ply(&directory, "1.ply", "1 0 0");
    let text = "fps = 30\n[ply-sequence]\ndirectory = \".\"\nunit_mm = 1\n";
    let mut player = read(&description(&directory, text)).open_looped().unwrap();
    assert!(player.frame_at(0.0).unwrap().is_some());
    fs::write(directory.path().join("1.ply"), "").unwrap();
    for place in 1..250 {
        assert_eq!(player.frame_at(f64::from(place)).unwrap(), None);
    }
    write_ply(&directory, "1.ply", "1 0 0");
    assert!(player.frame_at(250.0).unwrap().is_some());
    fs::remove_file(directory.path().join("1.ply")).unwrap();
    let ended = (251..900).find_map(|place| player.frame_at(f64::from(place)).err());
    let ended = ended.expect("10 s are over").to_string();
    assert!(ended.contains("1.ply"), "{ended}");
}
