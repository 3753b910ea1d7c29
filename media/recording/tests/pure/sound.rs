//! Sound as packets of Opus.

use hawser_recording::{
    Audio, AudioFile, LiveInput, OpusWriter, Pass, Recording, Sound, SoundPacket,
};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn parse(audio: &str) -> Result<Recording, String> {
    let text = format!(
        "fps = 30\n\n[synthetic]\nseed = 1\npoints = 100\nseconds = 1.0\n\n[audio]\n{audio}\n"
    );
    let parsed = Recording::parse(&text, Path::new("here/r.toml"), Path::new("/data"));
    parsed.map_err(|error| error.to_string())
}

#[test]
fn sound_is_a_file_or_a_live_input() {
    let file = parse("file = \"speech.wav\"").unwrap().audio;
    let speech = AudioFile {
        file: "here/speech.wav".into(),
    };
    assert_eq!(file, Some(Audio::Recorded(speech)));
    let input = ["-f", "alsa", "-i", "default"].map(str::to_owned).to_vec();
    let live = parse("input = [\"-f\", \"alsa\", \"-i\", \"default\"]").unwrap();
    assert_eq!(live.audio, Some(Audio::Live(LiveInput { input })));
    assert!(!live.is_live(), "the pictures are not");
    for wrong in ["input = [\"default\"]", "volume = 3", "", "file = 3"] {
        parse(wrong).unwrap_err();
    }
}

#[test]
fn the_sound_of_live_cameras_is_live() {
    let text = "fps = 30\naudio = { file = \"a.wav\" }\n[[rgbd]]\n\
        color = { input = [\"-i\", \"a\"] }\ndepth = { input = [\"-i\", \"b\"] }\ndepth_unit_mm = 1\n\
        intrinsics = { width = 2, height = 1, fx = 1, fy = 1, cx = 1, cy = 0.5 }\n\
        extrinsics = { rotation = [[1, 0, 0], [0, 1, 0], [0, 0, 1]], translation_mm = [0, 0, 0] }\n";
    let parsed = Recording::parse(text, Path::new("r.toml"), Path::new("/data"));
    let error = parsed.unwrap_err().to_string();
    assert!(
        error.ends_with("audio must be a live input, as the cameras are"),
        "{error}"
    );
}

fn ffmpeg(directory: &Path, options: &[&str]) -> Vec<u8> {
    let mut command = Command::new("ffmpeg");
    command.args(["-nostdin", "-v", "error"]).args(options);
    let output = command.current_dir(directory).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// Makes a file of 0.3 s with a click after 0.1 s.
fn click(directory: &Path) -> Audio {
    let source = "aevalsrc=if(between(t\\,0.1\\,0.105)\\,0.9*sin(2*PI*2000*t)\\,0):s=44100:d=0.3";
    ffmpeg(directory, &["-f", "lavfi", "-i", source, "click.wav"]);
    Audio::Recorded(AudioFile {
        file: directory.join("click.wav"),
    })
}

fn take(sound: &mut Sound, packets: u64) -> Vec<SoundPacket> {
    let wait = Duration::from_secs(30);
    let next = |number| {
        let packet = sound.next(wait).unwrap().unwrap();
        assert_eq!(packet.number, number);
        packet
    };
    (0..packets).map(next).collect()
}

/// Returns the times of the clicks that are decoded, in milliseconds after the first sample of the file.
fn clicks(directory: &Path, packets: &[SoundPacket]) -> Vec<u64> {
    let path = directory.join("decoded.opus");
    let file = std::fs::File::create(path).unwrap();
    let mut writer = OpusWriter::create(file, packets[0].decoder_delay).unwrap();
    for packet in packets {
        writer.write(&packet.bytes).unwrap();
    }
    writer.finish().unwrap();
    let decoded = [
        "-i",
        "decoded.opus",
        "-ac",
        "1",
        "-ar",
        "48000",
        "-f",
        "s16le",
        "-",
    ];
    let bytes = ffmpeg(directory, &decoded);
    let samples = bytes.as_chunks::<2>().0;
    let mut clicks: Vec<u64> = Vec::new();
    for (number, sample) in (0u64..).zip(samples) {
        let is_loud = i16::from_le_bytes(*sample).unsigned_abs() > 6000;
        let millis = number / 48;
        if is_loud && clicks.last().is_none_or(|last| millis > last + 100) {
            clicks.push(millis);
        }
    }
    clicks
}

#[test]
fn a_file_is_repeated_with_the_pictures() {
    let directory = tempfile::tempdir().unwrap();
    let audio = click(directory.path());
    let pass = |start_s, length_s| Some(Pass { start_s, length_s });
    // With silence after it, and without its end and its beginning.
    for (pass, first, interval) in [(pass(0.0, 0.4504), 100, 450), (pass(0.05, 0.2), 50, 200)] {
        let mut sound = Sound::open(&audio, pass).unwrap();
        assert!(!sound.is_live());
        let packets = take(&mut sound, 100);
        let clicks = clicks(directory.path(), &packets);
        let expected = (0..).map(|number| first + interval * number);
        let near = |(click, expected): (&u64, u64)| click.abs_diff(expected) <= 4;
        assert!(
            clicks.len() >= 4 && clicks.iter().zip(expected).all(near),
            "{clicks:?}"
        );
    }
}

#[test]
fn what_has_no_sound_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let silent = directory.path().join("silent.mp4");
    let source = "color=black:s=16x16:r=10:d=0.2";
    ffmpeg(
        directory.path(),
        &["-f", "lavfi", "-i", source, "-c:v", "mpeg4", "silent.mp4"],
    );
    let pass = Some(Pass {
        start_s: 0.0,
        length_s: 1.0,
    });
    for file in [silent, directory.path().join("none.wav")] {
        let audio = Audio::Recorded(AudioFile { file: file.clone() });
        let error = Sound::open(&audio, pass).err().unwrap().to_string();
        assert!(error.starts_with(&file.display().to_string()), "{error}");
    }
}

#[test]
fn a_live_input_is_encoded_until_it_ends() {
    let source = "sine=frequency=440:duration=0.5";
    let input = ["-f", "lavfi", "-i", source].map(str::to_owned).to_vec();
    let mut sound = Sound::open(&Audio::Live(LiveInput { input }), None).unwrap();
    assert!(sound.is_live());
    assert_eq!(take(&mut sound, 20).len(), 20);
    let ended = loop {
        if let Err(error) = sound.next(Duration::from_secs(30)) {
            break error.to_string();
        }
    };
    assert!(
        ended.ends_with("has ended, but a live input must not"),
        "{ended}"
    );
}
