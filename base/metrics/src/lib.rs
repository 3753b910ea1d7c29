//! Figures of a program in the OpenMetrics text format, served over HTTP.
//!
//! A program describes each figure once, as a [`Metric`] of the structure that has it, and formats a
//! [`page`] of them. [`server`] serves the pages.
//!
//! ```
//! use hawser_metrics::{Metric, Sink, gauge, page};
//!
//! struct Queue {
//!     bytes: u64,
//! }
//!
//! const METRICS: [Metric<Queue>; 1] = [gauge("bytes", "Bytes that wait", |q| q.bytes as f64)];
//!
//! let queue = Queue { bytes: 7 };
//! let text = page("queue", move |sink: &mut Sink<'_>| {
//!     sink.write(&METRICS, || [([("port", "1")], &queue)])
//! });
//! assert!(text.contains("queue_bytes{port=\"1\"} 7.0"));
//! ```

#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
pub mod server;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// The labels of a program's only sample of a metric.
pub const NO_LABELS: [(&str, &str); 0] = [];

/// A metric with its value for each `T`.
#[derive(Debug)]
pub struct Metric<T> {
    name: &'static str,
    help: &'static str,
    value: Value<T>,
}

#[derive(Debug)]
enum Value<T> {
    Counter(fn(&T) -> u64),
    Gauge(fn(&T) -> f64),
}

/// Returns a metric that only grows. Its name gets the suffix `_total`.
pub const fn counter<T>(name: &'static str, help: &'static str, value: fn(&T) -> u64) -> Metric<T> {
    Metric {
        name,
        help,
        value: Value::Counter(value),
    }
}

/// Returns a metric that only grows, of which the samples are the values themselves: counts by reason.
pub const fn counts(name: &'static str, help: &'static str) -> [Metric<u64>; 1] {
    [counter(name, help, |count| *count)]
}

/// Returns the samples of counts with the label `reason`.
pub fn by_reason<'a>(
    counts: &'a [(&'static str, u64)],
) -> impl Iterator<Item = ([(&'static str, &'static str); 1], &'a u64)> {
    let counts = counts.iter();
    counts.map(|(reason, count)| ([("reason", *reason)], count))
}

/// Returns a metric that grows and shrinks. A value that is not known is NaN.
pub const fn gauge<T>(name: &'static str, help: &'static str, value: fn(&T) -> f64) -> Metric<T> {
    Metric {
        name,
        help,
        value: Value::Gauge(value),
    }
}

/// Returns a page of the metrics that `write` writes, each with `prefix` in front of its name.
pub fn page(
    prefix: &str,
    write: impl Fn(&mut Sink<'_>) -> fmt::Result + Send + Sync + 'static,
) -> String {
    let mut registry = Registry::with_prefix(prefix);
    registry.register_collector(Box::new(Written(write)));
    let mut text = String::new();
    encode(&mut text, &registry).expect("a string takes everything");
    text
}

/// Takes the samples of a page.
#[derive(Debug)]
pub struct Sink<'a>(DescriptorEncoder<'a>);

impl Sink<'_> {
    /// Writes the metrics, each with one sample for each item of `samples`: a set of labels, and the
    /// structure that has the value.
    pub fn write<'s, T: 's, L, S>(
        &mut self,
        metrics: &[Metric<T>],
        samples: impl Fn() -> S,
    ) -> fmt::Result
    where
        L: EncodeLabelSet,
        S: IntoIterator<Item = (L, &'s T)>,
    {
        for metric in metrics {
            let metric_type = match metric.value {
                Value::Counter(_) => MetricType::Counter,
                Value::Gauge(_) => MetricType::Gauge,
            };
            let mut family =
                self.0
                    .encode_descriptor(metric.name, metric.help, None, metric_type)?;
            for (labels, sampled) in samples() {
                let sample = family.encode_family(&labels)?;
                match metric.value {
                    Value::Counter(value) => ConstCounter::new(value(sampled)).encode(sample)?,
                    Value::Gauge(value) => ConstGauge::new(value(sampled)).encode(sample)?,
                }
            }
        }
        Ok(())
    }
}

struct Written<W>(W);

impl<W> fmt::Debug for Written<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Written")
    }
}

impl<W: Fn(&mut Sink<'_>) -> fmt::Result + Send + Sync + 'static> Collector for Written<W> {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        (self.0)(&mut Sink(encoder))
    }
}
