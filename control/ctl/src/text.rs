//! Conversions between values and text for people.

use hawser_io::clock;
use hawser_units::{PathSet, PolicyCode};
use std::time::Duration;
use time::OffsetDateTime;
use time::macros::format_description;

/// The age from which a date is shown instead of an age.
const DAY_S: u64 = 24 * 60 * 60;

/// Formats a date: `2026-11-20 08:24:10 UTC`.
pub(crate) fn date(unix_ms: u64) -> String {
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second] UTC");
    let seconds = i64::try_from(unix_ms / 1000).ok();
    let date = seconds.and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok());
    date.and_then(|date| date.format(format).ok())
        .unwrap_or_else(|| format!("{unix_ms} ms"))
}

/// Formats the time since then, or the date if that is more than a day.
pub(crate) fn ago(unix_ms: u64) -> String {
    ago_at(unix_ms, clock::unix_ms())
}

fn ago_at(unix_ms: u64, now_ms: u64) -> String {
    let seconds = now_ms.saturating_sub(unix_ms) / 1000;
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..=DAY_S => format!("{} h ago", seconds / 3600),
        _ => date(unix_ms),
    }
}

/// Formats the paths of a policy: `1 2 4`.
pub(crate) fn paths(code: PolicyCode) -> String {
    let paths = code.paths();
    if paths.is_empty() {
        "the default route".to_owned()
    } else {
        numbers(paths)
    }
}

/// Formats the numbers of the paths; a dash for none.
pub(crate) fn numbers(paths: PathSet) -> String {
    let numbers: Vec<_> = paths
        .iter()
        .map(|path| (path.index() + 1).to_string())
        .collect();
    if numbers.is_empty() {
        none()
    } else {
        numbers.join(" ")
    }
}

/// Returns the text for a missing value.
pub(crate) fn none() -> String {
    "-".to_owned()
}

/// Formats a value; a dash if it is missing.
pub(crate) fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(none, |value| value.to_string())
}

/// Formats a duration in microseconds as milliseconds: `12.3 ms`.
pub(crate) fn milliseconds(us: u32) -> String {
    format!("{:.1} ms", f64::from(us) / 1e3)
}

/// Parses a number, or two with a dash between them.
pub(crate) fn parse_range(text: &str) -> Result<(u16, u16), String> {
    let number = |text: &str| {
        text.parse::<u16>()
            .map_err(|_| format!("{text:?} is not a number from 0 to 65535"))
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (number(first)?, number(last)?);
    if range.0 > range.1 {
        Err(format!(
            "the first number of {text} is greater than the last"
        ))
    } else {
        Ok(range)
    }
}

/// Formats a range so that [`parse_range`] can parse it.
pub(crate) fn range((first, last): (u16, u16)) -> String {
    if first == last {
        first.to_string()
    } else {
        format!("{first}-{last}")
    }
}

/// Parses a duration: seconds, or a number with a unit: `90`, `90s`, `15m`, `24h`, `7d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write 90s, 15m, 24h or 7d");
    let (number, unit) = text.split_at(
        text.find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len()),
    );
    let unit_s = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => DAY_S,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number
        .checked_mul(unit_s)
        .map(Duration::from_secs)
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_ages_when_recent_and_dates_otherwise() {
        let now_ms = 1_795_162_050_000;
        assert_eq!(ago_at(now_ms - 59_999, now_ms), "59 s ago");
        assert_eq!(ago_at(now_ms + 5_000, now_ms), "0 s ago");
        assert_eq!(ago_at(now_ms - 3_599_000, now_ms), "59 min ago");
        assert_eq!(ago_at(now_ms - 86_400_000, now_ms), "24 h ago");
        assert_eq!(
            ago_at(now_ms - 86_401_000, now_ms),
            "2026-11-19 08:07:29 UTC"
        );
    }

    #[test]
    fn policies_are_shown_by_their_paths() {
        assert_eq!(paths(PolicyCode(0b1011)), "1 2 4");
        assert_eq!(paths(PolicyCode::OFF), "the default route");
        assert_eq!(paths(PolicyCode::STOP), "the default route");
        assert_eq!(numbers(PathSet::from_bits(0xff)), "1 2 3 4 5 6 7 8");
    }

    #[test]
    fn ranges_and_times_are_read_as_people_write_them() {
        assert_eq!(parse_range("5004"), Ok((5004, 5004)));
        assert_eq!(parse_range("1-200"), Ok((1, 200)));
        assert!(parse_range("9-1").is_err());
        assert!(parse_range("1-70000").is_err());
        assert_eq!(range((1, 200)), "1-200");
        assert_eq!(parse_duration("15m"), Ok(Duration::from_secs(900)));
        assert_eq!(parse_duration("90"), Ok(Duration::from_secs(90)));
        for wrong in ["", "m", "1.5h", "-1", "1w", "99999999999999999d"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
