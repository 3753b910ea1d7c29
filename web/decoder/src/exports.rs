//! The functions that the page's worker calls. Bytes go into a buffer whose place [`input`] returns. All times are
//! milliseconds of the page's clock.

#![allow(
    unsafe_code,
    reason = "a name that a page can call is an unsafe attribute; nothing here dereferences a pointer"
)]

use crate::{Stage, Stream};
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
        stage.show(decoded.cloud);
        page.arrived = decoded.arrived;
        true
    })
}

/// Sets the numbers of columns and rows of pictures. Returns whether they can be drawn.
#[unsafe(no_mangle)]
extern "C" fn resize(width: usize, height: usize) -> bool {
    with(|page| match &mut page.stage {
        Some(stage) => stage.resize(width, height).is_ok(),
        None => {
            page.stage = Stage::new(width, height).ok();
            page.stage.is_some()
        }
    })
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

/// Goes back to where the viewer was at first.
#[unsafe(no_mangle)]
extern "C" fn reset() {
    with(|page| {
        if let Some(orbit) = page.stage.as_mut().and_then(Stage::orbit) {
            orbit.reset();
        }
    });
}

/// Draws the newest frame. Returns the place of its RGBA pixels, or 0 before a size is set.
#[unsafe(no_mangle)]
extern "C" fn draw() -> *const u8 {
    with(|page| match &mut page.stage {
        Some(stage) => stage.draw_rgba().as_ptr(),
        None => std::ptr::null(),
    })
}

/// Returns the arrival of the first packet of the newest frame that was decoded, in milliseconds, or 0.
#[unsafe(no_mangle)]
extern "C" fn arrived() -> f64 {
    with(|page| page.arrived.map_or(0.0, |at| at.as_nanos() as f64 / 1e6))
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
