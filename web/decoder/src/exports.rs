//! The functions that the page's worker calls. Bytes go into a buffer whose place [`input`] returns. All times are
//! milliseconds of the page's clock.

#![allow(
    unsafe_code,
    reason = "a name that a page can call is an unsafe attribute; nothing here dereferences a pointer"
)]

use crate::{Part, SoundPacket, Stage, Stream};
use hawser_objects::TrackSecret;
use hawser_units::Instant;
use std::cell::RefCell;

/// The state between calls.
#[derive(Default)]
struct Page {
    input: Vec<u8>,
    stream: Option<Stream>,
    stage: Option<Stage>,
    /// The arrival of the newest frame that was decoded.
    arrived: Option<Instant>,
    /// Its capture.
    captured_ms: Option<f64>,
    /// The packet of sound that was taken last.
    sound: Option<SoundPacket>,
    /// Where the parts of the newest frame are, for a GPU: see [`place`].
    places: Vec<[usize; 6]>,
    matrix: crate::Matrix,
}

thread_local! {
    static PAGE: RefCell<Page> = RefCell::default();
}

fn with<T>(run: impl FnOnce(&mut Page) -> T) -> T {
    PAGE.with_borrow_mut(run)
}

fn instant(millis: f64) -> Instant {
    Instant::from_nanos((millis * 1e6) as u64)
}

/// Returns the place of `length` bytes for the next call.
#[unsafe(no_mangle)]
extern "C" fn input(length: usize) -> *mut u8 {
    with(|page| {
        page.input.resize(length, 0);
        page.input.as_mut_ptr()
    })
}

/// Opens a stream, in place of the one before. The input has the secret (32 bytes), the number of tracks (1), of each
/// the alias (4) and the epoch of its key (2), big-endian, and the announcement. Returns whether the announcement is one of a
/// holder of the secret.
#[unsafe(no_mangle)]
extern "C" fn open() -> bool {
    with(|page| {
        page.stream = opened(&page.input);
        page.input.fill(0);
        page.stream.is_some()
    })
}

fn opened(input: &[u8]) -> Option<Stream> {
    let (secret, rest) = input.split_first_chunk()?;
    let (tracks, rest) = rest.split_first()?;
    let (tracks, announced) = rest.split_at_checked(usize::from(*tracks) * 6)?;
    let tracks = tracks.as_chunks().0.iter();
    let epochs = tracks.map(|[a, b, c, d, e, f]| {
        let alias = u32::from_be_bytes([*a, *b, *c, *d]);
        (alias, u16::from_be_bytes([*e, *f]))
    });
    Stream::open(&TrackSecret::new(*secret), announced, epochs.collect()).ok()
}

/// Takes the object of MoQ that the input is.
#[unsafe(no_mangle)]
extern "C" fn take(now: f64) {
    with(|page| {
        if let Some(stream) = &mut page.stream {
            stream.take(instant(now), &page.input);
        }
    });
}

/// Decodes the newest frame. Returns whether there is one that was not decoded before.
#[unsafe(no_mangle)]
extern "C" fn decode(now: f64) -> bool {
    with(|page| {
        let stream = page.stream.as_mut();
        let decoded = stream.and_then(|stream| stream.decode(instant(now)));
        let Some((decoded, stage)) = decoded.zip(page.stage.as_mut()) else {
            return false;
        };
        stage.show(decoded.frames);
        page.arrived = decoded.arrived;
        page.captured_ms = decoded.captured_ms;
        true
    })
}

/// Sets the numbers of columns and rows of pictures.
#[unsafe(no_mangle)]
extern "C" fn resize(width: usize, height: usize) {
    with(|page| match &mut page.stage {
        Some(stage) => stage.resize(width, height),
        none => *none = Some(Stage::new(width, height)),
    });
}

/// Walks around by angles to the left and upwards in radians, and multiplies the distance.
#[unsafe(no_mangle)]
extern "C" fn turn(yaw: f32, pitch: f32, distance: f32) {
    with(|page| {
        if let Some(orbit) = page.stage.as_mut().and_then(Stage::orbit) {
            orbit.turn(yaw, pitch, distance);
        }
    });
}

/// Walks to the right and upwards, by shares of the width of what a picture shows.
#[unsafe(no_mangle)]
extern "C" fn pan(right: f32, up: f32) {
    with(|page| {
        if let Some(stage) = &mut page.stage {
            stage.pan(right, up);
        }
    });
}

/// Goes back to where the viewer was at first.
#[unsafe(no_mangle)]
extern "C" fn reset() {
    with(|page| {
        if let Some(orbit) = page.stage.as_mut().and_then(Stage::orbit) {
            orbit.reset();
        }
    });
}

/// Draws the newest frame. Returns the place of its RGBA pixels, or 0 if the size is not one of a picture.
#[unsafe(no_mangle)]
extern "C" fn draw() -> *const u8 {
    with(|page| {
        let drawn = page.stage.as_mut().and_then(|of| of.draw_rgba().ok());
        drawn.map_or(std::ptr::null(), <[u8]>::as_ptr)
    })
}

/// Prepares the newest frame for a GPU. Returns the number of its parts.
#[unsafe(no_mangle)]
extern "C" fn parts() -> usize {
    with(|page| {
        let Page { stage, places, .. } = page;
        places.clear();
        if let Some(stage) = stage {
            places.extend(stage.parts().map(place));
        }
        places.len()
    })
}

/// Returns the place of what [`place`] returns of a part, valid until the next frame is decoded.
#[unsafe(no_mangle)]
extern "C" fn part(number: usize) -> *const usize {
    with(|page| {
        let place = page.places.get(number);
        place.map_or(std::ptr::null(), |words| words.as_ptr())
    })
}

/// Returns the place of the matrix with which a part is drawn: 16 numbers, column by column. 0 if there is none.
#[unsafe(no_mangle)]
extern "C" fn matrix(part: usize) -> *const f32 {
    with(|page| {
        let found = page.stage.as_ref().and_then(|stage| stage.to_clip(part));
        let Some(matrix) = found else {
            return std::ptr::null();
        };
        page.matrix = matrix;
        page.matrix.as_flattened().as_ptr()
    })
}

/// Returns where a part is in the memory. A view: columns, rows, the places of depths, colours and triangles, the number of
/// corners of these. Points: 0, their number, the place of the packed points, the bits of their side in millimetres.
fn place(part: Part<'_>) -> [usize; 6] {
    match part {
        Part::View { view, triangles } => {
            let (columns, rows) = view.size();
            let [depth, color] = [view.depth().as_ptr().addr(), view.color().as_ptr().addr()];
            let place = triangles.as_ptr().addr();
            [columns, rows, depth, color, place, triangles.len()]
        }
        Part::Points { cloud, side_mm } => {
            let side = side_mm.to_bits() as usize;
            [0, cloud.len(), cloud.packed().as_ptr().addr(), side, 0, 0]
        }
    }
}

/// Returns the arrival of the first packet of the newest frame that was decoded, in milliseconds, or 0.
#[unsafe(no_mangle)]
extern "C" fn arrived() -> f64 {
    with(|page| page.arrived.map_or(0.0, |at| at.as_nanos() as f64 / 1e6))
}

/// Returns the capture of the newest frame that was decoded, in milliseconds of the publisher's clock since any instant, or 0.
#[unsafe(no_mangle)]
extern "C" fn captured() -> f64 {
    with(|page| page.captured_ms.unwrap_or_default())
}

/// Takes the next packet of sound. Returns its length, or 0 if there is none.
#[unsafe(no_mangle)]
extern "C" fn sound() -> usize {
    with(|page| {
        page.sound = page.stream.as_mut().and_then(Stream::poll_sound);
        page.sound.as_ref().map_or(0, |packet| packet.bytes.len())
    })
}

/// Returns the place of the packet of sound that was taken.
#[unsafe(no_mangle)]
extern "C" fn sound_bytes() -> *const u8 {
    with(|page| {
        let packet = page.sound.as_ref();
        packet.map_or(std::ptr::null(), |packet| packet.bytes.as_ptr())
    })
}

/// Returns the number of the packet of sound that was taken.
#[unsafe(no_mangle)]
extern "C" fn sound_number() -> f64 {
    with(|page| {
        page.sound
            .as_ref()
            .map_or(0.0, |packet| packet.number.into())
    })
}

/// Returns the capture of its first sample, as [`captured`] that of a frame.
#[unsafe(no_mangle)]
extern "C" fn sound_captured() -> f64 {
    with(|page| page.sound.as_ref().map_or(0.0, |packet| packet.captured_ms))
}

/// Returns the number of packets that were refused.
#[unsafe(no_mangle)]
extern "C" fn refused() -> f64 {
    count(|counts| counts.refused)
}

/// Returns the number of frames that were passed over.
#[unsafe(no_mangle)]
extern "C" fn passed_over() -> f64 {
    count(|counts| counts.passed_over)
}

/// Returns the number of frames that cannot be decoded.
#[unsafe(no_mangle)]
extern "C" fn damaged() -> f64 {
    count(|counts| counts.damaged)
}

fn count(of: impl Fn(crate::Counts) -> u64) -> f64 {
    with(|page| {
        page.stream
            .as_ref()
            .map_or(0.0, |stream| of(stream.counts()) as f64)
    })
}
