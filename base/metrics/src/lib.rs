//! Figures of a program in the OpenMetrics text format, served over HTTP.
//!
//! A struct of figures names each of them once: [`Metrics`] is derived, a [`page`] is made of it, and the comments are the
//! help texts and the reference, `docs/reference/metrics.md`. [`server`] serves the pages.
//!
//! ```
//! use hawser_metrics::{Metrics, page};
//!
//! #[derive(Metrics)]
//! struct Queue {
//!     #[label("port")]
//!     port: u8,
//!     /// Bytes that wait.
//!     #[gauge("bytes")]
//!     bytes: u64,
//! }
//!
//! let text = page("queue", &Queue { port: 1, bytes: 7 });
//! assert!(text.contains("# HELP queue_bytes Bytes that wait\n"));
//! assert!(text.contains("queue_bytes{port=\"1\"} 7.0\n"));
//! ```

#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod server;

/// Derives [`Metrics`] for a struct. The attributes of its fields:
/// - `#[counter("name")]` for a figure that only grows, whose name gets the suffix `_total`, and `#[gauge("name")]` for others.
///   The help is the first paragraph of the field's comment, or `help = "text"`. A map has a sample for each of its entries,
///   with their keys as the values of the labels that follow the name;
/// - `#[metrics]` for what has figures itself, with the labels of its maps;
/// - `#[label("name")]` for the value of a label of all that follows in the struct.
///
/// With `of = function` at the end, the figure is the function's value for the field, or for the struct if the attribute is
/// the struct's own.
pub use hawser_metrics_derive::Metrics;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A figure, or something that has figures.
pub trait Metrics {
    /// Writes it as a metric of `family`, or its own figures if there is none. `labels` are the names of the labels whose
    /// values are the keys of maps.
    fn write(&self, page: &mut Page, family: Option<Family>, labels: &[&'static str]);
}

/// A metric without its samples.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    name: &'static str,
    help: &'static str,
    is_counter: bool,
}

impl Family {
    /// Returns a metric that only grows. Its name gets the suffix `_total`.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Family {
            name,
            help,
            is_counter: true,
        }
    }

    /// Returns a metric that grows and shrinks.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Family {
            name,
            help,
            is_counter: false,
        }
    }
}

/// Takes the samples of a page.
#[derive(Debug, Default)]
pub struct Page {
    families: Vec<(Family, Vec<Sample>)>,
    labels: Labels,
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug, Clone, Copy)]
enum Value {
    Integer(u64),
    Real(f64),
}

#[derive(Debug)]
struct Sample {
    labels: Labels,
    value: Value,
}

impl Page {
    /// Writes a figure that grows and shrinks. A value that is not known is NaN.
    pub fn gauge(&mut self, name: &'static str, help: &'static str, value: impl Metrics) {
        value.write(self, Some(Family::gauge(name, help)), &[]);
    }

    /// Adds a label to the samples that follow.
    pub fn enter(&mut self, label: &'static str, value: impl ToString) {
        self.labels.push((label, value.to_string()));
    }

    /// Returns the number of labels of the samples that follow.
    pub fn depth(&self) -> usize {
        self.labels.len()
    }

    /// Removes the labels beyond `depth`.
    pub fn leave(&mut self, depth: usize) {
        self.labels.truncate(depth);
    }

    fn add(&mut self, family: Option<Family>, value: Value) {
        let Some(family) = family else { return };
        let sample = Sample {
            labels: self.labels.clone(),
            value,
        };
        let same = |known: &&mut (Family, Vec<Sample>)| known.0.name == family.name;
        match self.families.iter_mut().find(same) {
            Some((_, samples)) => samples.push(sample),
            None => self.families.push((family, vec![sample])),
        }
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (
            Family {
                name,
                help,
                is_counter,
            },
            samples,
        ) in &self.families
        {
            let kind = match is_counter {
                true => MetricType::Counter,
                false => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for Sample { labels, value } in samples {
                let sample = family.encode_family(labels)?;
                match (is_counter, *value) {
                    (true, Value::Integer(value)) => ConstCounter::new(value).encode(sample)?,
                    (true, Value::Real(value)) => ConstCounter::new(value).encode(sample)?,
                    (false, Value::Integer(value)) => {
                        ConstGauge::new(value as f64).encode(sample)?
                    }
                    (false, Value::Real(value)) => ConstGauge::new(value).encode(sample)?,
                }
            }
        }
        Ok(())
    }
}

/// Returns a page of figures, with `prefix` in front of their names.
pub fn page(prefix: &str, figures: &(impl Metrics + ?Sized)) -> String {
    let mut page = Page::default();
    figures.write(&mut page, None, &[]);
    let mut registry = Registry::with_prefix(prefix);
    registry.register_collector(Box::new(page));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes everything");
    text
}

/// Returns the function's value. The derived code calls it, so that a closure's argument needs no type.
#[doc(hidden)]
pub fn apply<T: ?Sized, V>(value: &T, function: impl FnOnce(&T) -> V) -> V {
    function(value)
}

impl Metrics for u64 {
    fn write(&self, page: &mut Page, family: Option<Family>, _: &[&'static str]) {
        page.add(family, Value::Integer(*self));
    }
}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Metrics for $integer {
            fn write(&self, page: &mut Page, family: Option<Family>, labels: &[&'static str]) {
                (*self as u64).write(page, family, labels);
            }
        }
    )*};
}

integers!(bool u8 u16 usize);

impl Metrics for f64 {
    fn write(&self, page: &mut Page, family: Option<Family>, _: &[&'static str]) {
        page.add(family, Value::Real(*self));
    }
}

/// In seconds.
impl Metrics for Duration {
    fn write(&self, page: &mut Page, family: Option<Family>, _: &[&'static str]) {
        page.add(family, Value::Real(self.as_secs_f64()));
    }
}

/// `None` is NaN, or has no figures.
impl<T: Metrics> Metrics for Option<T> {
    fn write(&self, page: &mut Page, family: Option<Family>, labels: &[&'static str]) {
        match self {
            Some(value) => value.write(page, family, labels),
            None => page.add(family, Value::Real(f64::NAN)),
        }
    }
}

impl<T: Metrics> Metrics for [T] {
    fn write(&self, page: &mut Page, family: Option<Family>, labels: &[&'static str]) {
        self.iter()
            .for_each(|value| value.write(page, family, labels));
    }
}

impl<T: Metrics> Metrics for Vec<T> {
    fn write(&self, page: &mut Page, family: Option<Family>, labels: &[&'static str]) {
        self.as_slice().write(page, family, labels);
    }
}

impl<T: Metrics + ?Sized> Metrics for &T {
    fn write(&self, page: &mut Page, family: Option<Family>, labels: &[&'static str]) {
        (**self).write(page, family, labels);
    }
}

impl<K: fmt::Display, V: Metrics> Metrics for BTreeMap<K, V> {
    fn write(&self, page: &mut Page, family: Option<Family>, labels: &[&'static str]) {
        write_entries(self.iter(), page, family, labels);
    }
}

impl<K: fmt::Display, V: Metrics, const N: usize> Metrics for [(K, V); N] {
    fn write(&self, page: &mut Page, family: Option<Family>, labels: &[&'static str]) {
        write_entries(
            self.iter().map(|(key, value)| (key, value)),
            page,
            family,
            labels,
        );
    }
}

fn write_entries<'a, K: fmt::Display + 'a, V: Metrics + 'a>(
    entries: impl Iterator<Item = (&'a K, &'a V)>,
    page: &mut Page,
    family: Option<Family>,
    labels: &[&'static str],
) {
    let (label, rest) = labels.split_first().expect("a label for each map");
    let depth = page.depth();
    for (key, value) in entries {
        page.enter(label, key);
        value.write(page, family, rest);
        page.leave(depth);
    }
}
