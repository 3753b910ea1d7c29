//! For any text, the parsers of traces do not panic, and what they
//! accept makes a link that packets can pass.

use crate::checks::*;
use crate::mutation::{Change, changed, changes};
use hawser_netem::{Admission, Drive, Link, LinkConfig, Opportunities, Rate, TraceError};
use hawser_units::{ByteSize, Instant};
use proptest::collection::vec;
use proptest::prelude::*;

fn changed_text(valid: &str, changes: &[Change]) -> String {
    String::from_utf8_lossy(&changed(valid.as_bytes(), changes)).into_owned()
}

/// Numbers as in traces, and unusual ones.
fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => (0..200u32).prop_map(|number| number.to_string()),
        2 => (0..100u32).prop_map(|number| format!("0.{number}")),
        1 => any::<f64>().prop_map(|number| number.to_string()),
        1 => proptest::sample::select(vec!["-1", "nan", "inf", "1e308", "1e-320", "", " 1", "+5"])
            .prop_map(str::to_owned),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_rejected_or_a_link(bytes in vec(any::<u8>(), 0..300)) {
        let text = String::from_utf8_lossy(&bytes);
        check_drive(&text);
        check_drive(&format!("t_ms,path,rate_mbps,owd_ms,loss\n{text}"));
        check_opportunities(&text);
    }

    #[test]
    fn a_drive_of_any_numbers_is_rejected_or_a_link(
        rows in vec((0..3u32, [number(), number(), number()]), 1..6),
    ) {
        let rows: Vec<String> = rows
            .into_iter()
            .enumerate()
            .map(|(row, (path, [rate, delay, loss]))| {
                format!("{},{path},{rate},{delay},{loss}\n", row / 3 * 100)
            })
            .collect();
        check_drive(&format!("t_ms,path,rate_mbps,owd_ms,loss\n{}", rows.concat()));
    }

    #[test]
    fn a_changed_drive_is_rejected_or_a_link(changes in changes()) {
        check_drive(&changed_text(DRIVE, &changes));
    }

    #[test]
    fn changed_opportunities_are_rejected_or_a_link(changes in changes()) {
        check_opportunities(&changed_text(OPPORTUNITIES, &changes));
    }

    #[test]
    fn any_sorted_opportunities_are_a_link(mut at_ms in vec(any::<u64>(), 1..6)) {
        at_ms.sort_unstable();
        let lines: Vec<String> = at_ms.iter().map(|ms| format!("{ms}\n")).collect();
        check_opportunities(&lines.concat());
    }
}

#[test]
fn opportunities_at_the_end_of_time_make_a_link() {
    let trace = Opportunities::parse("18446744073709551615\n").unwrap();
    let mut link = Link::new(
        LinkConfig {
            rate: Some(Rate::Opportunities(trace)),
            ..LinkConfig::default()
        },
        1,
        Instant::ZERO,
    );
    for _ in 0..3 {
        let admission = link.push(Instant::ZERO, ByteSize(1500), ());
        assert_eq!(admission, Admission::Leaves(Instant::MAX));
    }
}

#[test]
fn the_unchanged_texts_are_accepted() {
    assert!(Drive::parse(DRIVE).is_ok_and(|drive| drive.paths().count() == 2));
    assert!(Opportunities::parse(OPPORTUNITIES).is_ok());
    assert_eq!(Opportunities::parse(""), Err(TraceError::Opportunities));
}
