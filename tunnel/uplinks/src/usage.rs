//! The bytes that uplinks have carried this month.

use super::Uplink;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The bytes that each uplink has carried in a calendar month, in both directions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// The bytes of each uplink by calendar month (UTC), as in `2026-11`. The last month is the one that is
    /// counted. The others are kept because the clock may have been ahead when a later one began.
    months: BTreeMap<String, BTreeMap<String, u64>>,
}

/// The number of months that are kept, because the clock may jump ahead more than once.
const MAX_MONTHS: usize = 4;

impl Usage {
    /// Returns the bytes that the uplink has carried this month.
    pub fn of(&self, interface: &str) -> u64 {
        let counted = self.months.last_key_value();
        counted
            .and_then(|(_, bytes)| bytes.get(interface).copied())
            .unwrap_or(0)
    }

    /// Returns whether the uplink has carried as much as it may in a month.
    pub fn is_used_up(&self, uplink: &Uplink) -> bool {
        uplink
            .monthly_cap
            .is_some_and(|cap| self.of(&uplink.interface) >= cap)
    }

    /// Restarts counting if `month` is later than the month that is counted. An earlier one changes nothing,
    /// unless the clock `is_synchronized`: then it was ahead before, and the bytes of all later months belong
    /// to `month`.
    pub(crate) fn begin_month(&mut self, month: &str, is_synchronized: bool) {
        let counted = self.months.last_key_value();
        let is_later = counted.is_none_or(|(counted, _)| counted.as_str() < month);
        if is_later || is_synchronized {
            let of_later = self.months.split_off(month);
            self.months.insert(month.to_owned(), sum(of_later));
        }
        while self.months.len() > MAX_MONTHS {
            self.months.pop_first();
        }
    }

    /// Counts bytes of the month that has begun.
    pub(crate) fn add(&mut self, interface: &str, bytes: u64) {
        if let Some(mut counted) = self.months.last_entry() {
            add(counted.get_mut(), interface, bytes);
        }
    }
}

fn sum(months: BTreeMap<String, BTreeMap<String, u64>>) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for (interface, bytes) in months.into_values().flatten() {
        add(&mut sum, &interface, bytes);
    }
    sum
}

fn add(counts: &mut BTreeMap<String, u64>, interface: &str, bytes: u64) {
    let used = counts.entry(interface.to_owned()).or_default();
    *used = used.saturating_add(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_month_restarts_the_count() {
        let mut usage = Usage::default();
        usage.begin_month("2026-12", false);
        usage.add("wwan0", 5_000_000_000);
        usage.begin_month("2027-01", false);
        assert_eq!(usage.of("wwan0"), 0);
    }

    #[test]
    fn a_clock_that_is_behind_resets_nothing() {
        let mut usage = Usage::default();
        usage.begin_month("2026-12", true);
        usage.add("wwan0", 5_000_000_000);
        for month in ["1970-01", "2026-10", "2026-12"] {
            usage.begin_month(month, false);
            usage.add("wwan0", 1);
        }
        usage.begin_month("2026-12", true);
        assert_eq!(usage.of("wwan0"), 5_000_000_003);
    }

    #[test]
    fn a_clock_that_was_ahead_costs_no_count() {
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
        let stored = serde_json::to_string(&usage).unwrap();
        let mut usage: Usage = serde_json::from_str(&stored).unwrap();
        for _ in 0..2 {
            usage.begin_month("2026-11", true);
            assert_eq!((usage.of("wwan0"), usage.of("wwan1")), (210, 2000));
        }
        usage.begin_month("2026-12", true);
        assert_eq!(usage.of("wwan0"), 0);
    }

    #[test]
    fn months_are_not_kept_for_ever() {
        let mut usage = Usage::default();
        for month in 10..99 {
            usage.begin_month(&format!("2026-{month}"), false);
        }
        assert_eq!(usage.months.len(), MAX_MONTHS);
    }

    #[test]
    fn usage_does_not_overflow() {
        let text = r#"{"months":{"2026-11":{"wwan0":18446744073709551614}}}"#;
        let mut usage: Usage = serde_json::from_str(text).unwrap();
        usage.add("wwan0", 1500);
        assert_eq!(usage.of("wwan0"), u64::MAX);
    }

    #[test]
    fn the_stored_form_has_the_bytes_of_each_uplink_by_month() {
        let mut usage = Usage::default();
        usage.begin_month("2026-11", false);
        usage.add("wwan0", 7);
        let text = r#"{"months":{"2026-11":{"wwan0":7}}}"#;
        assert_eq!(serde_json::to_string(&usage).unwrap(), text);
        assert_eq!(serde_json::from_str::<Usage>(text).unwrap(), usage);
    }
}
