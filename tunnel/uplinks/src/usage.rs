//! The bytes that uplinks have carried this month.

use super::Uplink;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The bytes that each uplink has carried in a calendar month, in both directions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// The calendar month (UTC), as in `2026-11`.
    month: String,
    /// Whether the clock was known to be right in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_certain: bool,
    bytes: BTreeMap<String, u64>,
    /// The last months before, in case that the clock was ahead when this one began.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    earlier: BTreeMap<String, BTreeMap<String, u64>>,
    /// The certain months that a later correction of the clock has taken back, with their bytes and those
    /// counted since, in case that the correction was wrong: who answers an NTP request sets the clock.
    /// The month that is counted has these bytes too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    taken_back: BTreeMap<String, BTreeMap<String, u64>>,
}

/// The number of earlier months, and of those taken back, that are kept: the clock may jump more than
/// once.
const EARLIER_MONTHS: usize = 3;

impl Usage {
    /// Returns the bytes that the uplink has carried this month.
    pub fn of(&self, interface: &str) -> u64 {
        self.bytes.get(interface).copied().unwrap_or(0)
    }

    /// Returns whether the uplink has carried as much as it may in a month.
    pub fn is_used_up(&self, uplink: &Uplink) -> bool {
        uplink
            .monthly_cap
            .is_some_and(|cap| self.of(&uplink.interface) >= cap)
    }

    /// Restarts counting if `month` is later than the one that is counted. A clock that is behind,
    /// for example before it is synchronized, does not reset the usage.
    ///
    /// If `is_certain`, the clock is right, so a later month that is counted was begun by a clock that
    /// was ahead. What was counted since `month` then belongs to `month`. Returns the later month. If that
    /// one was certain as well, one of the two times was wrong: if it begins again before another month
    /// that is certain, it has its count again.
    pub(crate) fn begin_month(&mut self, month: &str, is_certain: bool) -> Option<String> {
        if self.month.as_str() < month {
            let resumed = self.taken_back.remove(month).unwrap_or_default();
            if is_certain {
                self.taken_back.clear();
            }
            self.is_certain = is_certain;
            let before = std::mem::replace(&mut self.month, month.to_owned());
            let mut bytes = std::mem::replace(&mut self.bytes, resumed);
            for (interface, resumed) in &self.bytes {
                let bytes = bytes.entry(interface.clone()).or_default();
                *bytes = bytes.saturating_sub(*resumed);
            }
            if !bytes.is_empty() {
                self.earlier.insert(before, bytes);
            }
            while self.earlier.len() > EARLIER_MONTHS {
                self.earlier.pop_first();
            }
        } else if is_certain && self.month.as_str() > month {
            let later = std::mem::replace(&mut self.month, month.to_owned());
            let of_later = self.bytes.clone();
            for (interface, bytes) in self.earlier.split_off(month).into_values().flatten() {
                add(&mut self.bytes, &interface, bytes);
            }
            if std::mem::replace(&mut self.is_certain, true) {
                self.taken_back.insert(later.clone(), of_later);
            }
            while self.taken_back.len() > EARLIER_MONTHS {
                self.taken_back.pop_last();
            }
            return Some(later);
        } else if is_certain && !self.is_certain {
            self.is_certain = true;
            self.taken_back.clear();
        }
        None
    }

    pub(crate) fn add(&mut self, interface: &str, bytes: u64) {
        for counts in self.taken_back.values_mut().chain([&mut self.bytes]) {
            add(counts, interface, bytes);
        }
    }
}

fn add(counts: &mut BTreeMap<String, u64>, interface: &str, bytes: u64) {
    let used = counts.entry(interface.to_owned()).or_default();
    *used = used.saturating_add(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_month_starts_from_zero_and_a_clock_that_is_behind_resets_nothing() {
        let mut usage = Usage::default();
        usage.begin_month("2026-12", false);
        usage.add("wwan0", 5_000_000_000);
        for month in ["2026-12", "1970-01", "2026-10", "2026-12"] {
            assert_eq!(usage.begin_month(month, false), None);
            assert_eq!(usage.of("wwan0"), 5_000_000_000, "{month}");
        }
        usage.begin_month("2027-01", false);
        assert_eq!((usage.of("wwan0"), usage.month.as_str()), (0, "2027-01"));
    }

    #[test]
    fn a_clock_that_was_ahead_costs_no_count_once_it_is_right() {
        let mut usage = Usage::default();
        usage.begin_month("2026-10", true);
        usage.add("wwan0", 1);
        usage.begin_month("2026-11", true);
        usage.add("wwan0", 10);
        for ahead in ["2031-05", "2036-01"] {
            usage.begin_month(ahead, false);
            usage.add("wwan0", 100);
            usage.add("wwan1", 1000);
        }
        assert_eq!(
            usage.begin_month("2026-11", false),
            None,
            "it may be behind"
        );
        assert_eq!(usage.of("wwan0"), 100);
        let stored = serde_json::to_string(&usage).unwrap();
        let mut usage: Usage = serde_json::from_str(&stored).unwrap();
        let corrected = usage.begin_month("2026-11", true);
        assert_eq!(corrected.as_deref(), Some("2036-01"));
        assert_eq!((usage.of("wwan0"), usage.of("wwan1")), (210, 2000));
        assert_eq!(usage.begin_month("2026-11", true), None);
        usage.begin_month("2026-12", true);
        assert_eq!(usage.of("wwan0"), 0);
        // A clock may be set back by a moment when a month has just begun.
        usage.begin_month("2026-11", true);
        assert_eq!(usage.of("wwan0"), 210);
    }

    #[test]
    fn a_clock_that_was_set_back_wrongly_costs_no_count() {
        let mut usage = Usage::default();
        usage.begin_month("2026-10", true);
        usage.add("wwan0", 1);
        usage.begin_month("2026-12", true);
        usage.add("wwan0", 100);
        assert!(usage.begin_month("2026-10", true).is_some());
        usage.add("wwan0", 10);
        assert_eq!(usage.of("wwan0"), 111);
        let stored = serde_json::to_string(&usage).unwrap();
        let mut usage: Usage = serde_json::from_str(&stored).unwrap();
        assert_eq!(usage.begin_month("2026-12", true), None);
        assert_eq!(usage.of("wwan0"), 110, "with what was counted meanwhile");
        assert!(usage.begin_month("2026-10", true).is_some());
        assert_eq!(usage.of("wwan0"), 111, "nothing counts twice");
        usage.begin_month("2026-11", true);
        usage.begin_month("2026-12", true);
        assert_eq!(usage.of("wwan0"), 0, "the correction was right");
    }

    #[test]
    fn a_month_that_an_uncertain_clock_began_too_early_starts_from_zero() {
        let mut usage = Usage::default();
        usage.begin_month("2026-10", true);
        for month in ["2026-11", "2026-12"] {
            usage.begin_month(month, false);
            assert!(usage.begin_month("2026-10", true).is_some());
            usage.add("wwan0", 95);
        }
        usage.begin_month("2026-11", true);
        assert_eq!(usage.of("wwan0"), 0, "with October's packets");
    }

    #[test]
    fn a_month_that_becomes_certain_later_ends_what_was_taken_back() {
        let mut usage = Usage::default();
        usage.begin_month("2026-12", true);
        assert!(usage.begin_month("2026-10", true).is_some());
        usage.begin_month("2026-11", false);
        usage.begin_month("2026-11", true);
        usage.add("wwan0", 95);
        usage.begin_month("2026-12", true);
        assert_eq!(usage.of("wwan0"), 0);
    }

    #[test]
    fn months_are_not_kept_for_ever() {
        let mut usage = Usage::default();
        for month in 10..99 {
            usage.begin_month(&format!("2026-{month}"), false);
            usage.add("wwan0", 1);
        }
        assert_eq!(usage.earlier.len(), EARLIER_MONTHS);
        for month in (10..99).rev() {
            usage.begin_month(&format!("2026-{month}"), true);
        }
        assert_eq!(usage.taken_back.len(), EARLIER_MONTHS);
    }

    #[test]
    fn usage_does_not_overflow() {
        let text = r#"{"month":"2026-11","bytes":{"wwan0":18446744073709551614}}"#;
        let mut usage: Usage = serde_json::from_str(text).unwrap();
        usage.add("wwan0", 1500);
        assert_eq!(usage.of("wwan0"), u64::MAX);
    }

    #[test]
    fn the_stored_form_has_the_month_and_the_bytes_of_each_uplink() {
        let mut usage = Usage::default();
        usage.begin_month("2026-11", false);
        usage.add("wwan0", 7);
        let text = r#"{"month":"2026-11","bytes":{"wwan0":7}}"#;
        assert_eq!(serde_json::to_string(&usage).unwrap(), text);
        assert_eq!(serde_json::from_str::<Usage>(text).unwrap(), usage);
    }
}
