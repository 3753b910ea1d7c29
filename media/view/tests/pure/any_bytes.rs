//! For any bytes, the timelines of a viewer are read without a panic, and what is accepted has no more
//! rows than the file has lines.

use crate::mutation::{changed, changes};
use hawser_view::pull::timeline;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::fs;

const FRAMES: &str = "frame,captured_ns,requested_ns,received_ns,decoded_ns,bytes,points,is_identical\n\
    0,1700000000000000000,1,2,3,690000,183000,true\n\
    18446744073709551615,18446744073709551615,0,0,0,0,0,false\n";

const ARRIVALS: &str = "received_ns,bytes\n1700000000000000000,65536\n2,18446744073709551615\n";

/// Returns the numbers of frames and arrivals that are read from a file.
fn rows(text: &[u8]) -> [Option<usize>; 2] {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let frames = timeline::read(file.path()).ok();
    for row in frames.iter().flatten() {
        let _ = hawser_qoe::Frame::from(*row);
    }
    let arrivals = timeline::read_arrivals(file.path()).ok();
    [
        frames.map(|rows| rows.len()),
        arrivals.map(|rows| rows.len()),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_rejected_or_a_timeline(bytes in vec(any::<u8>(), 0..300)) {
        for count in rows(&bytes).into_iter().flatten() {
            prop_assert!(count <= bytes.len());
        }
    }

    #[test]
    fn a_changed_timeline_is_rejected_or_a_timeline(
        valid in select(vec![FRAMES, ARRIVALS]),
        changes in changes(),
    ) {
        let text = changed(valid.as_bytes(), &changes);
        // A line ends with either of the two bytes.
        let lines = text.split(|byte| matches!(byte, b'\n' | b'\r')).count();
        for count in rows(&text).into_iter().flatten() {
            prop_assert!(count <= lines);
        }
    }
}

#[test]
fn the_unchanged_timelines_are_accepted() {
    assert_eq!(rows(FRAMES.as_bytes())[0], Some(2));
    assert_eq!(rows(ARRIVALS.as_bytes())[1], Some(2));
}
