//! The properties of a video file, which ffprobe reads without decoding it.

use crate::ffmpeg::{MAX_SIDE, PixelFormat, VideoError, file_argument, read_error};
use crate::regular_file;
use hawser_units::Line;
use serde::Deserialize;
use std::path::Path;
use std::process::{Command, Stdio};

/// The properties of a video track that its images are checked by.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Track {
    /// The index of the track's stream in the file.
    pub(crate) stream: usize,
    /// Columns and rows as they are stored.
    pub(crate) size: (usize, usize),
    /// The time of each image in seconds, in the order in which they are shown; `None` if the file has no times, or
    /// ones that go back.
    pub(crate) times_s: Option<Vec<f64>>,
    /// The one of these times that is zero on the clock that the file has in common with others.
    pub(crate) zero_s: f64,
    /// The number of images.
    pub(crate) images: usize,
}

/// The containers whose times begin anywhere.
const OF_ANY_CLOCK: [&str; 2] = ["mpegts", "mpeg"];

/// Returns the track of a file whose images are of a format: the one with this number among those with video, or
/// else the one that its title or its pixel format says it is.
pub(crate) fn track(
    path: &Path,
    number: Option<usize>,
    format: PixelFormat,
) -> Result<Track, VideoError> {
    regular_file::open(path).map_err(read_error(path))?;
    let file = parse_file(&ffprobe(path, &STREAM_OPTIONS)?);
    let refused = |complaint: String| VideoError::Decode {
        path: path.to_owned(),
        complaint,
    };
    let File {
        streams,
        format: container,
    } = file.map_err(refused)?;
    let number = match number {
        None => chosen(&streams, format),
        Some(number) if number < streams.len() => number,
        Some(number) => {
            let tracks = streams.len();
            return Err(refused(format!(
                "there is no video track {number}; the {tracks} tracks are numbered from 0"
            )));
        }
    };
    let stream = &streams[number];
    let size = stream.check(format).map_err(|reason| match reason {
        Refusal::NotDepth(found) => VideoError::NotDepth {
            path: path.to_owned(),
            found,
        },
        Refusal::Orientation(orientation) => VideoError::Orientation {
            path: path.to_owned(),
            orientation,
        },
        Refusal::Other(complaint) => refused(complaint),
    })?;
    if streams.len() > 1 {
        let title = stream.title();
        tracing::info!(video = %path.display(), track = number, tracks = streams.len(), title, "track chosen");
    }
    if let Some(order @ ("tt" | "bb" | "tb" | "bt")) = stream.field_order.as_deref() {
        tracing::warn!(video = %path.display(), order, "interlaced images are not deinterlaced");
    }
    let packets = ffprobe(path, &packet_options(stream.index))?;
    let (times_s, images) = parse_packets(&packets, stream.has_b_frames);
    if images == 0 {
        return Err(refused("the track has no images".to_owned()));
    }
    let is_of_any_clock = OF_ANY_CLOCK.contains(&&*container.format_name);
    let first_s = times_s.iter().flatten().next().copied();
    let zero_s = first_s.filter(|_| is_of_any_clock || is_delayed(&packets));
    Ok(Track {
        stream: stream.index,
        size,
        times_s,
        zero_s: zero_s.unwrap_or_default(),
        images,
    })
}

const STREAM_OPTIONS: [&str; 6] = [
    "-select_streams",
    "v",
    "-of",
    "json",
    "-show_entries",
    "stream=index,width,height,pix_fmt,field_order,has_b_frames:stream_tags:stream_disposition=attached_pic:stream_side_data:format=format_name",
];

fn packet_options(stream: usize) -> [String; 6] {
    let stream = stream.to_string();
    [
        "-select_streams",
        &stream,
        "-of",
        "csv=p=0",
        "-show_entries",
        "packet=pts_time,dts_time,flags",
    ]
    .map(str::to_owned)
}

/// Returns the output of ffprobe about a file.
fn ffprobe(path: &Path, options: &[impl AsRef<str>]) -> Result<String, VideoError> {
    let output = Command::new("ffprobe")
        .args(["-v", "error"])
        .args(options.iter().map(AsRef::as_ref))
        .arg(file_argument(path))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| VideoError::Program {
            program: "ffprobe",
            error,
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    // The line with the name of the file says why it cannot be opened.
    let name = file_argument(path).to_string_lossy().into_owned() + ": ";
    let reason = complaint.lines().find_map(|line| line.strip_prefix(&*name));
    Err(VideoError::Decode {
        path: path.to_owned(),
        complaint: Line::of_output(reason.unwrap_or(&complaint).as_bytes()).into_string(),
    })
}

/// A video stream as ffprobe describes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Stream {
    index: usize,
    width: i64,
    height: i64,
    pix_fmt: Option<String>,
    field_order: Option<String>,
    /// The number of images that are decoded before an earlier one.
    has_b_frames: usize,
    tags: Tags,
    disposition: Disposition,
    side_data_list: Vec<SideData>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Tags {
    #[serde(alias = "TITLE", alias = "name")]
    title: Option<String>,
    handler_name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Disposition {
    attached_pic: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SideData {
    displaymatrix: Option<String>,
    rotation: Option<f64>,
}

enum Refusal {
    NotDepth(String),
    Orientation(String),
    Other(String),
}

impl Stream {
    fn title(&self) -> &str {
        let title = self.tags.title.as_deref();
        title
            .or(self.tags.handler_name.as_deref())
            .unwrap_or_default()
    }

    /// Returns whether the title has one of these words.
    fn is_called(&self, words: &[&str]) -> bool {
        let title = self.title().to_ascii_lowercase();
        let mut of_title = title.split(|letter: char| !letter.is_ascii_alphanumeric());
        of_title.any(|word| words.contains(&word))
    }

    fn is_depth(&self) -> bool {
        self.pix_fmt.as_deref().is_some_and(is_depth)
    }

    /// Returns the size, if the images can be decoded to a format as they are stored.
    fn check(&self, format: PixelFormat) -> Result<(usize, usize), Refusal> {
        let Some(found) = &self.pix_fmt else {
            let reason = "its pixel format is not known: the file may be cut off";
            return Err(Refusal::Other(reason.to_owned()));
        };
        if format == PixelFormat::Gray16 && !is_depth(found) {
            return Err(Refusal::NotDepth(found.clone()));
        }
        if let Some(orientation) = self.orientation() {
            return Err(Refusal::Orientation(orientation));
        }
        let side = |side: i64| {
            usize::try_from(side)
                .ok()
                .filter(|side| (1..=MAX_SIDE).contains(side))
        };
        side(self.width).zip(side(self.height)).ok_or_else(|| {
            let (width, height) = (self.width, self.height);
            Refusal::Other(format!(
                "it has {width} x {height} pixels; 1 to {MAX_SIDE} a side are read"
            ))
        })
    }

    /// Says how the images are shown if that is not as they are stored.
    fn orientation(&self) -> Option<String> {
        let data = self.side_data_list.iter();
        let mut matrices =
            data.filter(|data| data.displaymatrix.is_some() || data.rotation.is_some());
        matrices.find_map(|data| {
            let matrix = data.displaymatrix.as_deref().and_then(parse_matrix);
            match (data.rotation, matrix) {
                (Some(0.0) | None, None) => None,
                (_, Some(matrix)) if is_upright(matrix) => None,
                (Some(degrees), _) if degrees != 0.0 => {
                    Some(format!("turned by {degrees} degrees (display matrix)"))
                }
                _ => Some("mirrored (display matrix)".to_owned()),
            }
        })
    }
}

/// Parses the first two rows of a display matrix, each of which follows a number and a colon.
fn parse_matrix(text: &str) -> Option<[i64; 4]> {
    let rows = text.lines().filter_map(|line| line.split_once(':'));
    let numbers: Vec<i64> = rows
        .take(2)
        .flat_map(|(_, row)| row.split_whitespace().take(2))
        .filter_map(|number| number.parse().ok())
        .collect();
    numbers.try_into().ok()
}

fn is_upright([a, b, c, d]: [i64; 4]) -> bool {
    a > 0 && d > 0 && b == 0 && c == 0
}

/// Returns whether a pixel format has grey values of more than 8 bits, one a pixel.
fn is_depth(pixel_format: &str) -> bool {
    let bits = pixel_format.strip_prefix("gray");
    let bits = bits.and_then(|bits| bits.strip_suffix("le").or(bits.strip_suffix("be")));
    bits.is_some_and(|bits| matches!(bits.parse(), Ok(9..=16)))
}

/// Returns the number of the track of a format.
fn chosen(streams: &[Stream], format: PixelFormat) -> usize {
    let is_of_kind = |stream: &&Stream| stream.is_depth() == (format == PixelFormat::Gray16);
    let words: &[&str] = match format {
        PixelFormat::Gray16 => &["depth", "z16"],
        PixelFormat::Rgb24 => &["color", "colour", "rgb"],
    };
    let candidates = || {
        streams
            .iter()
            .enumerate()
            .filter(|(_, stream)| is_of_kind(stream))
    };
    let called = candidates().find(|(_, stream)| stream.is_called(words));
    let not_infrared = || candidates().find(|(_, stream)| !stream.is_called(&["ir", "infrared"]));
    let found = called.or_else(not_infrared).or_else(|| candidates().next());
    found.map_or(0, |(number, _)| number)
}

/// A file as ffprobe describes it.
#[derive(Debug, Deserialize)]
struct File {
    #[serde(default)]
    streams: Vec<Stream>,
    #[serde(default)]
    format: Format,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Format {
    format_name: String,
}

fn parse_file(json: &str) -> Result<File, String> {
    let mut file: File =
        serde_json::from_str(json).map_err(|error| format!("ffprobe wrote no JSON: {error}"))?;
    // Pictures of covers are no tracks.
    file.streams
        .retain(|stream| stream.disposition.attached_pic == 0);
    match file.streams.is_empty() {
        true => Err("it contains no video track".to_owned()),
        false => Ok(file),
    }
}

/// Returns whether the first image is shown later than the file begins because others are decoded before it: where a
/// container has no times before zero, all of its times are later by this.
fn is_delayed(packets: &str) -> bool {
    let mut first = packets
        .lines()
        .next()
        .into_iter()
        .flat_map(|line| line.split(','));
    let mut time = || first.next().and_then(|time| time.parse::<f64>().ok());
    let (shown, decoded) = (time(), time());
    decoded == Some(0.0) && shown.is_some_and(|shown| shown > 0.0)
}

/// Returns the times of the packets that are shown, in order, and their number. `ahead` of them are decoded before an
/// image that is shown earlier.
fn parse_packets(text: &str, ahead: usize) -> (Option<Vec<f64>>, usize) {
    // The flag D is that of a packet that is decoded and not shown.
    let shown = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let shown: Vec<_> = shown
        .filter(|fields| fields.len() >= 3 && !fields[2].contains('D'))
        .collect();
    let times = shown.iter().map(|fields| fields[0].parse::<f64>());
    let times: Option<Vec<f64>> = times
        .map(|time| time.ok().filter(|time| time.is_finite()))
        .collect();
    (times.and_then(|times| in_order(&times, ahead)), shown.len())
}

/// Returns the times in the order in which images are shown; `None` if a decoder that looks ahead by this number of
/// images cannot show them in order.
fn in_order(decoded: &[f64], ahead: usize) -> Option<Vec<f64>> {
    let mut shown = decoded.to_vec();
    shown.sort_by(f64::total_cmp);
    let place = |time: &f64| shown.partition_point(|other| other < time);
    let mut decoded = decoded.iter().enumerate();
    let are_near = decoded.all(|(number, time)| number <= place(time).saturating_add(ahead));
    are_near.then_some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn streams(json: &str) -> Vec<Stream> {
        let file = parse_file(&format!("{{\"streams\": [{json}]}}"));
        file.unwrap().streams
    }

    #[test]
    fn the_track_is_that_of_the_title_or_of_the_pixel_format() {
        let stream = |format: &str, title: &str| {
            format!("{{\"pix_fmt\": \"{format}\", \"tags\": {{\"title\": \"{title}\"}}}}")
        };
        let (color, depth, grey) = ("yuvj444p", "gray16be", "gray16le");
        for (tracks, expected) in [
            ([(color, "COLOR"), (depth, "DEPTH"), (depth, "IR")], (0, 1)),
            ([(depth, "IR"), (depth, "Depth 1"), (color, "")], (2, 1)),
            ([(depth, "ir"), (grey, ""), (color, "RGB")], (2, 1)),
            ([(grey, ""), (color, "left"), (color, "color")], (2, 0)),
        ] {
            let tracks = tracks.map(|(format, title)| stream(format, title));
            let streams = streams(&tracks.join(","));
            let chosen = |format| chosen(&streams, format);
            let found = (chosen(PixelFormat::Rgb24), chosen(PixelFormat::Gray16));
            assert_eq!(found, expected, "{tracks:?}");
        }
    }

    #[test]
    fn orientations_are_found_and_upright_ones_are_none() {
        let orientation = |matrix: &str, rotation: &str| {
            let data = format!("{{\"displaymatrix\": \"{matrix}\", \"rotation\": {rotation}}}");
            streams(&format!("{{\"side_data_list\": [{data}]}}"))[0].orientation()
        };
        let rows = |[a, b, c, d]: [i64; 4]| {
            format!("\\n00000000: {a} {b} 0\\n00000001: {c} {d} 0\\n00000002: 0 0 1073741824\\n")
        };
        assert_eq!(orientation(&rows([65_536, 0, 0, 65_536]), "0"), None);
        let turned = orientation(&rows([0, -65_536, 65_536, 0]), "90").unwrap();
        assert!(turned.contains("turned by 90 degrees"), "{turned}");
        let half = orientation(&rows([-65_536, 0, 0, -65_536]), "-180").unwrap();
        assert!(half.contains("turned by -180 degrees"), "{half}");
        let mirrored = orientation(&rows([-65_536, 0, 0, 65_536]), "0").unwrap();
        assert!(mirrored.contains("mirrored"), "{mirrored}");
    }

    #[test]
    fn times_are_those_of_shown_packets_in_order() {
        let packets = "-0.1,N/A,KD_\n0.0,-0.1,K__\n0.2,0.0,___\n0.1,0.1,___\n";
        assert_eq!(parse_packets(packets, 1), (Some(vec![0.0, 0.1, 0.2]), 3));
        assert_eq!(parse_packets(packets, 0), (None, 3), "they go back");
        assert_eq!(parse_packets("N/A,0.0,K__\n0.1,0.1,___\n", 2), (None, 2));
    }

    #[test]
    fn a_delay_of_the_decoder_is_no_later_start() {
        for (packets, expected) in [
            ("0.2,0.0,K_\n0.4,0.1,__\n", true),
            ("0.0,-0.2,K_\n", false),
            ("0.0,N/A,K_\n", false),
            ("0.0,0.0,K_\n", false),
            ("0.5,0.3,K_\n", false),
            ("N/A,0.0,K_\n", false),
            ("", false),
        ] {
            assert_eq!(is_delayed(packets), expected, "{packets}");
        }
    }

    proptest! {
        #[test]
        fn any_output_of_ffprobe_is_parsed_or_refused(
            json in r#"\{"streams": ?\[\{"width": -?[0-9]{1,20}, "height": 9\}\]\}|\PC{0,30}"#,
            packets in "([-0-9.A/N]{0,6},?[-0-9.A/N]{0,6},?[KD_]{0,3}\n){0,4}\\PC{0,8}",
        ) {
            for stream in parse_file(&json).into_iter().flat_map(|file| file.streams) {
                if let Ok((width, height)) = stream.check(PixelFormat::Rgb24) {
                    prop_assert!(width <= MAX_SIDE && height <= MAX_SIDE);
                }
            }
            is_delayed(&packets);
            let (times, images) = parse_packets(&packets, 1);
            prop_assert!(times.is_none_or(|times| times.len() == images));
        }
    }
}
