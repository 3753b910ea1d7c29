//! Delays, deliveries and redundancy of the last report interval.

use super::{SessionStatus, Status};
use crate::config::Common;
use hawser_metrics::Metrics;
use hawser_xnc::{Delays, SenderStats};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tracing::info;

/// The interval of the figures if there are no log lines.
const WITHOUT_LOG: Duration = Duration::from_secs(60);

/// The fate of the packets to a peer in the last report interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Metrics)]
pub struct Interval {
    /// The median of the packets' one-way delays, in milliseconds: from when the tunnel took a packet
    /// until it had arrived, waiting and recovery included. It is estimated from the acknowledgement,
    /// less half of the smallest round-trip time. It is too long by up to 5 ms and 13 % of a round
    /// trip if both directions take the same time without a queue. None if no packet arrived.
    #[gauge("delay_p50_seconds", help = "Median of the one-way delays of sent packets in the last report interval",
        of = |ms| ms.map(|ms| ms / 1e3))]
    pub delay_p50_ms: Option<f64>,
    /// Their 99th percentile.
    #[gauge("delay_p99_seconds", help = "99th percentile of the one-way delays of sent packets in the last report interval",
        of = |ms| ms.map(|ms| ms / 1e3))]
    pub delay_p99_ms: Option<f64>,
    /// Packets that arrived in the last report interval, as a share of those whose fate became known.
    ///
    /// 1 without any.
    #[gauge("interval_delivered_ratio")]
    pub delivered_ratio: f64,
    /// Bytes sent besides first transmissions in the last report interval, as a share of these.
    #[gauge("interval_redundancy_ratio")]
    pub redundancy_ratio: f64,
}

/// The counters of a session from which an interval is computed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Counted {
    confirmed_after: Delays,
    delivered: u64,
    undelivered: u64,
    first_bytes: u64,
    redundant_bytes: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Counted {
    pub(super) fn new(stats: &SenderStats, sent_bytes: u64, received_bytes: u64) -> Counted {
        let undelivered = [
            stats.given_up,
            stats.expired,
            stats.overflowed,
            stats.congested,
        ];
        Counted {
            confirmed_after: stats.confirmed_after,
            delivered: stats.delivered,
            undelivered: undelivered.iter().sum(),
            first_bytes: stats.first_bytes(),
            redundant_bytes: stats.redundant_bytes(),
            sent_bytes,
            received_bytes,
        }
    }
}

/// Computes the intervals of all sessions, and logs them.
#[derive(Debug)]
pub(super) struct Reports {
    every: Duration,
    is_logged: bool,
    began: Instant,
    /// The counters of each session when the interval began.
    before: HashMap<Key, Counted>,
    last: HashMap<Key, Interval>,
}

/// The peer of a session, and when it was opened.
type Key = (String, u64);

impl Reports {
    pub(super) fn new(common: &Common) -> Reports {
        let mut reports = Reports {
            every: WITHOUT_LOG,
            is_logged: false,
            began: Instant::now(),
            before: HashMap::new(),
            last: HashMap::new(),
        };
        reports.set_every(common.report_every);
        reports
    }

    /// Sets the interval, of the current one too; zero for none in the log.
    pub(super) fn set_every(&mut self, every: Duration) {
        self.is_logged = !every.is_zero();
        self.every = match self.is_logged {
            true => every,
            false => WITHOUT_LOG,
        };
    }

    /// Adds the last complete interval to each session. Completes the current one if it is over.
    pub(super) fn add_to(&mut self, status: &mut Status) {
        let elapsed = self.began.elapsed();
        if elapsed >= self.every {
            self.complete(status, elapsed);
        }
        for session in &mut status.sessions {
            session.interval = self.last.get(&key(session)).copied();
        }
    }

    fn complete(&mut self, status: &Status, elapsed: Duration) {
        self.last.clear();
        let before = std::mem::take(&mut self.before);
        for session in &status.sessions {
            // A session that was opened during the interval began with zero.
            let earlier = before.get(&key(session)).copied().unwrap_or_default();
            let interval = interval(session, &earlier);
            if self.is_logged {
                log(session, &interval, &earlier, elapsed);
            }
            self.last.insert(key(session), interval);
            self.before.insert(key(session), session.counted);
        }
        self.began = Instant::now();
    }
}

fn key(session: &SessionStatus) -> Key {
    (session.peer.clone(), session.since_unix_ms)
}

fn interval(session: &SessionStatus, earlier: &Counted) -> Interval {
    let now = &session.counted;
    let smallest = session.paths.iter().filter_map(|path| path.rtt_min_ms);
    let back_ms = smallest.reduce(f64::min).unwrap_or(0.0) / 2.0;
    let delays = now.confirmed_after.since(&earlier.confirmed_after);
    let one_way = |share| {
        let confirmed = delays.percentile(share)?.as_secs_f64() * 1e3;
        Some((confirmed - back_ms).max(0.0))
    };
    let delivered = now.delivered.saturating_sub(earlier.delivered) as f64;
    let undelivered = now.undelivered.saturating_sub(earlier.undelivered) as f64;
    let first = now.first_bytes.saturating_sub(earlier.first_bytes) as f64;
    let more = now.redundant_bytes.saturating_sub(earlier.redundant_bytes) as f64;
    Interval {
        delay_p50_ms: one_way(0.5),
        delay_p99_ms: one_way(0.99),
        delivered_ratio: match delivered + undelivered > 0.0 {
            true => delivered / (delivered + undelivered),
            false => 1.0,
        },
        redundancy_ratio: if first > 0.0 { more / first } else { 0.0 },
    }
}

fn log(session: &SessionStatus, interval: &Interval, earlier: &Counted, elapsed: Duration) {
    let mbps = |now: u64, before: u64| {
        let bits = now.saturating_sub(before) as f64 * 8.0;
        format!("{:.2}", bits / elapsed.as_secs_f64() / 1e6)
    };
    let ms = |delay: Option<f64>| delay.map_or("none".to_owned(), |ms| format!("{ms:.1}"));
    let percent = |ratio: f64| format!("{:.2}", ratio * 100.0);
    info!(
        peer = session.peer,
        seconds = elapsed.as_secs(),
        sent_mbps = mbps(session.counted.sent_bytes, earlier.sent_bytes),
        received_mbps = mbps(session.counted.received_bytes, earlier.received_bytes),
        delay_p50_ms = ms(interval.delay_p50_ms),
        delay_p99_ms = ms(interval.delay_p99_ms),
        delivered_percent = percent(interval.delivered_ratio),
        redundancy_percent = percent(interval.redundancy_ratio),
        paths = session.paths.len(),
        "session report"
    );
}
