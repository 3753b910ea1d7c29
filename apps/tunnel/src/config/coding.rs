use hawser_units::ByteSize;
use hawser_xnc::{Config, NoScheme, Scheme};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// `[coding]` of a server's file, which its clients are told: how packets are sent and recovered. What is not given is
/// as in the paper that published the scheme.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coding {
    /// The name of a scheme; `xnc` when not given.
    pub scheme: Option<String>,
    /// A packet that is not acknowledged after this time counts as lost.
    pub loss_threshold_ms: Option<u64>,
    /// Packets of an encoding range at most, 1 to 63.
    pub range_packets: Option<usize>,
    /// From the first packet of an encoding range to its last at most.
    pub range_span_ms: Option<u64>,
    /// After this time a packet is of no use any more.
    pub expiry_ms: Option<u64>,
    /// Coded packets beyond the number of lost ones.
    pub extra_packets: Option<usize>,
    /// The share of coded packets that one path gets at most.
    pub path_share: Option<f64>,
    /// How long a receiver waits before it acknowledges.
    pub ack_delay_ms: Option<u64>,
    /// A path on which nothing was sent for this long is probed.
    pub probe_idle_ms: Option<u64>,
    /// The time between the single packets by which a silent path is tried.
    pub probe_silent_ms: Option<u64>,
    /// How long packets wait for those before them; 0: not at all.
    pub reorder_ms: Option<u64>,
    /// What may wait for a path, kilobytes.
    pub queue_kb: Option<u64>,
    /// Which packets end a video frame.
    pub borders: Borders,
}

/// What shows that a packet is the last of a video frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Borders {
    /// Nothing.
    None,
    /// The marker of what looks like RTP over UDP.
    #[default]
    Rtp,
}

/// Parameters outside what can work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCoding {
    /// Not the name of a scheme.
    #[error("{0}")]
    Scheme(#[from] NoScheme),
    /// A number out of range.
    #[error("{key} is {allowed}")]
    Range {
        /// Which.
        key: &'static str,
        /// What it may be.
        allowed: &'static str,
    },
}

impl Coding {
    /// The parameters of both ends.
    pub fn config(&self) -> Result<Config, InvalidCoding> {
        let defaults = Config::of(self.scheme.as_deref().map_or(Ok(Scheme::Xnc), str::parse)?);
        let time =
            |key, given: Option<u64>, default, allowed: std::ops::RangeInclusive<u64>, text| match given {
                None => Ok(default),
                Some(ms) if allowed.contains(&ms) => Ok(Duration::from_millis(ms)),
                Some(_) => Err(InvalidCoding::Range { key, allowed: text }),
            };
        let within = |key, ok, allowed| if ok { Ok(()) } else { Err(InvalidCoding::Range { key, allowed }) };
        let range_packets = self.range_packets.unwrap_or(defaults.range_packets);
        within("range_packets", (1..=63).contains(&range_packets), "1 to 63")?;
        let extra_packets = self.extra_packets.unwrap_or(defaults.extra_packets);
        within("extra_packets", extra_packets <= 63, "0 to 63")?;
        let path_share = self.path_share.unwrap_or(defaults.path_share);
        within("path_share", (1.0..=10.0).contains(&path_share), "1.0 to 10.0")?;
        let queue_kb = self.queue_kb.unwrap_or(QUEUE_KB);
        within("queue_kb", (64..=65_536).contains(&queue_kb), "64 to 65536")?;
        let reorder = match self.reorder_ms {
            None => defaults.reorder,
            Some(0) => None,
            Some(_) => Some(time("reorder_ms", self.reorder_ms, Duration::ZERO, 1..=10_000, "0 to 10000")?),
        };
        const TO_10_S: &str = "1 to 10000";
        Ok(Config {
            loss_threshold: time(
                "loss_threshold_ms",
                self.loss_threshold_ms,
                defaults.loss_threshold,
                1..=10_000,
                TO_10_S,
            )?,
            range_packets,
            range_span: time("range_span_ms", self.range_span_ms, defaults.range_span, 1..=10_000, TO_10_S)?,
            expiry: time("expiry_ms", self.expiry_ms, defaults.expiry, 1..=10_000, TO_10_S)?,
            extra_packets,
            path_share,
            ack_delay: time("ack_delay_ms", self.ack_delay_ms, defaults.ack_delay, 0..=1_000, "0 to 1000")?,
            probe_idle: time("probe_idle_ms", self.probe_idle_ms, PROBE_IDLE, 10..=10_000, "10 to 10000")?,
            probe_silent: time(
                "probe_silent_ms",
                self.probe_silent_ms,
                defaults.probe_silent,
                5..=10_000,
                "5 to 10000",
            )?,
            reorder,
            queue_limit: ByteSize(queue_kb * 1000),
            ..defaults
        })
    }
}

/// A queue that is full for 0.1 s at 300 Mb/s.
const QUEUE_KB: u64 = 4000;

/// Idle uplinks cost data and batteries, idle clients a server's time; a path whose round-trip time is a second old is
/// still known well enough.
const PROBE_IDLE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_given_is_the_paper_s() {
        let config = Coding::default().config().unwrap();
        let paper = Config::default();
        let ours = Config { queue_limit: paper.queue_limit, probe_idle: paper.probe_idle, ..config };
        assert_eq!(ours, paper);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for coding in [
            Coding { scheme: Some("best".into()), ..Coding::default() },
            Coding { range_packets: Some(64), ..Coding::default() },
            Coding { path_share: Some(f64::NAN), ..Coding::default() },
            Coding { expiry_ms: Some(0), ..Coding::default() },
            Coding { queue_kb: Some(0), ..Coding::default() },
        ] {
            assert!(coding.config().is_err(), "{coding:?}");
        }
    }
}
