use std::ops::RangeInclusive;

/// Approximate number of ticks of an axis.
const TICKS: f64 = 5.0;

/// An axis of a plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// The quantity, with its unit in brackets.
    pub label: String,
    /// Linear or logarithmic.
    pub kind: Kind,
    /// The range that is shown. Without it the axis covers all values, and zero if it is linear.
    pub range: Option<RangeInclusive<f64>>,
}

/// The spacing of values on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Even spacing.
    Linear,
    /// Powers of ten. Values that are not positive are not shown.
    Logarithmic,
}

/// The mapping from the values of an axis to positions in the drawing.
pub(super) struct Scale {
    kind: Kind,
    from: f64,
    to: f64,
    pixels: (f64, f64),
}

pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: String,
}

impl Axis {
    /// Creates an axis that begins at zero and covers all values.
    pub fn linear(label: impl Into<String>) -> Self {
        Axis {
            label: label.into(),
            kind: Kind::Linear,
            range: None,
        }
    }

    /// Creates a logarithmic axis.
    pub fn logarithmic(label: impl Into<String>) -> Self {
        Axis {
            label: label.into(),
            kind: Kind::Logarithmic,
            range: None,
        }
    }

    /// Restricts the axis to a range.
    #[must_use]
    pub fn showing(mut self, range: RangeInclusive<f64>) -> Self {
        self.range = Some(range);
        self
    }
}

impl Kind {
    /// Returns a range with round ends that covers all values, and zero if it is linear.
    fn covering(self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let is_shown = |value: &f64| value.is_finite() && (self == Kind::Linear || *value > 0.0);
        let (from, to) = values
            .filter(is_shown)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        let (from, to) = match self {
            _ if from <= to => (from, to),
            Kind::Linear => (0.0, 1.0),
            Kind::Logarithmic => (1.0, 10.0),
        };
        match self {
            Kind::Linear => {
                let from = from.min(0.0);
                let step = step(to - from);
                ((from / step).floor() * step, (to / step).ceil() * step)
            }
            Kind::Logarithmic => (
                10f64.powf(from.log10().floor()),
                10f64.powf(to.log10().ceil()),
            ),
        }
    }
}

impl Scale {
    pub(super) fn new(axis: &Axis, values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let (from, to) = match &axis.range {
            Some(range) => (*range.start(), *range.end()),
            None => axis.kind.covering(values),
        };
        let to = match axis.kind {
            Kind::Linear if to <= from => from + 1.0,
            Kind::Logarithmic if to <= from => from * 10.0,
            _ => to,
        };
        Scale {
            kind: axis.kind,
            from,
            to,
            pixels,
        }
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let share = match self.kind {
            Kind::Linear => (value - self.from) / (self.to - self.from),
            Kind::Logarithmic => (value / self.from).log10() / (self.to / self.from).log10(),
        };
        self.pixels.0 + share * (self.pixels.1 - self.pixels.0)
    }

    /// Like [`Scale::at`], but places values beyond the axis at its end.
    pub(super) fn clamped(&self, value: f64) -> f64 {
        self.at(value.clamp(self.from, self.to))
    }

    pub(super) fn shows(&self, value: f64) -> bool {
        (self.from..=self.to).contains(&value)
    }

    pub(super) fn ticks(&self) -> Vec<Tick> {
        let values: Vec<f64> = match self.kind {
            Kind::Linear => {
                let step = step(self.to - self.from);
                let first = (self.from / step - 1e-9).ceil() as i64;
                let last = (self.to / step + 1e-9).floor() as i64;
                (first..=last).map(|count| count as f64 * step).collect()
            }
            Kind::Logarithmic => {
                let (first, last) = (
                    self.from.log10().ceil() as i32,
                    self.to.log10().floor() as i32,
                );
                (first..=last).map(|power| 10f64.powi(power)).collect()
            }
        };
        // Rounded, so that 3 x 0.1 is not labelled 0.30000000000000004.
        let label = |value: f64| ((value * 1e9).round() / 1e9).to_string();
        values
            .into_iter()
            .map(|value| Tick {
                value,
                label: label(value),
            })
            .collect()
    }
}

/// Returns the distance between ticks: 1, 2 or 5 times a power of ten.
fn step(span: f64) -> f64 {
    let rough = (span / TICKS).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|digit| rough <= digit * power * 1.000_001);
    digit.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, values: &[f64]) -> Vec<String> {
        let scale = Scale::new(axis, values.iter().copied(), (0.0, 100.0));
        scale.ticks().into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn ticks_are_round_and_hold_every_value() {
        assert_eq!(
            labels(&Axis::linear("x"), &[3.0, 29.7]),
            ["0", "10", "20", "30"]
        );
        assert_eq!(
            labels(&Axis::linear("x"), &[0.31]),
            ["0", "0.1", "0.2", "0.3", "0.4"]
        );
        assert_eq!(
            labels(&Axis::logarithmic("x"), &[0.0, 15.0, 2300.0]),
            ["10", "100", "1000", "10000"]
        );
        assert_eq!(
            labels(&Axis::linear("x").showing(10.0..=60.0), &[]),
            ["10", "20", "30", "40", "50", "60"]
        );
    }

    #[test]
    fn one_value_or_none_is_enough_for_an_axis() {
        for axis in [Axis::linear("x"), Axis::logarithmic("x")] {
            for values in [&[][..], &[0.0], &[7.0], &[f64::NAN, f64::INFINITY]] {
                let scale = Scale::new(&axis, values.iter().copied(), (0.0, 100.0));
                assert!(scale.at(scale.to) == 100.0 && !scale.ticks().is_empty());
            }
        }
    }
}
