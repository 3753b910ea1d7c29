use hawser_units::ByteSize;
use hawser_xnc::{Config, NoScheme, Scheme};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
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
    /// The same while packets wait for an uplink.
    pub loss_threshold_waiting_ms: Option<u64>,
    /// Packets of an encoding range at most, 1 to 63.
    pub range_packets: Option<usize>,
    /// A packet later than expected by this counts as lost, if its frame lacks little or its uplink is quiet.
    pub straggler_ms: Option<u64>,
    /// The share of a frame's packets that is little.
    pub straggler_share: Option<f64>,
    /// From the first packet of an encoding range to its last at most.
    pub range_span_ms: Option<u64>,
    /// After this time a packet is of no use any more.
    pub expiry_ms: Option<u64>,
    /// A packet that waited this long for an uplink is not sent any more.
    pub patience_ms: Option<u64>,
    /// A video frame that waited this long is not begun.
    pub frame_patience_ms: Option<u64>,
    /// How much longer the next one may wait for each frame that was dropped since one was sent.
    pub frame_patience_step_ms: Option<u64>,
    /// The share of an uplink's congestion window that may wait in its connection.
    pub connection_share: Option<f64>,
    /// An uplink gets no more than it drains within its least round-trip time and this.
    pub queue_target_ms: Option<u64>,
    /// The same for packets of other flows while there is a video.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_target_shared_ms: Option<u64>,
    /// Of a flow whose packets wait for longer than this, some are dropped or marked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codel_target_ms: Option<u64>,
    /// As soon as they have done so for this long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codel_interval_ms: Option<u64>,
    /// An uplink whose acknowledgements are later than at best by more than this gets nothing new.
    pub queue_delay_ms: Option<u64>,
    /// Coded packets beyond the number of lost ones.
    pub extra_packets: Option<usize>,
    /// The same while packets wait for an uplink.
    pub extra_packets_waiting: Option<usize>,
    /// The share of coded packets that one path gets at most.
    pub path_share: Option<f64>,
    /// The share of coded packets that all paths get together at most.
    pub total_share: Option<f64>,
    /// Paths that get a copy where one packet was lost alone.
    pub copies: Option<usize>,
    /// The same where an earlier shot did not suffice.
    pub copies_again: Option<usize>,
    /// An uplink on which nothing was acknowledged for this long is quiet.
    pub quiet_after_ms: Option<u64>,
    /// What is recovered takes a path last that was not heard of for this long beyond its least round-trip time.
    pub heard_within_ms: Option<u64>,
    /// Shots for the same packets at most.
    pub shots: Option<u32>,
    /// How long the losses of a range are gathered before the shot.
    pub gather_ms: Option<u64>,
    /// How long a receiver waits before it acknowledges.
    pub ack_delay_ms: Option<u64>,
    /// A path on which nothing was sent for this long is probed.
    pub probe_idle_ms: Option<u64>,
    /// The same when no packet went either way for as long.
    pub probe_rest_ms: Option<u64>,
    /// The time between the single packets by which a silent path is tried.
    pub probe_silent_ms: Option<u64>,
    /// How long packets wait for those before them; 0: not at all.
    pub reorder_ms: Option<u64>,
    /// What may wait for a path, kilobytes.
    pub queue_kb: Option<u64>,
    /// What is kept of packets, in each direction: sent ones until it is known what became of them, received ones until
    /// combinations and packets before them have come. Kilobytes.
    pub pool_kb: Option<u64>,
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
        let reorder = match self.reorder_ms {
            None => defaults.reorder,
            Some(0) => None,
            Some(_) => Some(time("reorder_ms", self.reorder_ms, Duration::ZERO)?),
        };
        let share = (1.0..=10.0, "1.0 to 10.0");
        let queue_kb = within(
            "queue_kb",
            self.queue_kb,
            QUEUE_KB,
            (64..=65_536, "64 to 65536"),
        )?;
        let usual_pool_kb = POOL_KB.min(defaults.pool_limit.0 / 1000);
        let pool_kb = within(
            "pool_kb",
            self.pool_kb,
            usual_pool_kb,
            (256..=262_144, "256 to 262144"),
        )?;
        Ok(Config {
            loss_threshold: time(
                "loss_threshold_ms",
                self.loss_threshold_ms,
                defaults.loss_threshold,
            )?,
            loss_threshold_waiting: time(
                "loss_threshold_waiting_ms",
                self.loss_threshold_waiting_ms,
                defaults.loss_threshold_waiting,
            )?,
            range_packets: within(
                "range_packets",
                self.range_packets,
                defaults.range_packets,
                (1..=63, "1 to 63"),
            )?,
            range_span: time("range_span_ms", self.range_span_ms, defaults.range_span)?,
            expiry: time("expiry_ms", self.expiry_ms, defaults.expiry)?,
            patience: time("patience_ms", self.patience_ms, defaults.patience)?,
            frame_patience: time(
                "frame_patience_ms",
                self.frame_patience_ms,
                defaults.frame_patience,
            )?,
            frame_patience_step: time(
                "frame_patience_step_ms",
                self.frame_patience_step_ms,
                defaults.frame_patience_step,
            )?,
            connection_share: within(
                "connection_share",
                self.connection_share,
                defaults.connection_share,
                (0.0..=1.0, "0.0 to 1.0"),
            )?,
            straggler: time("straggler_ms", self.straggler_ms, defaults.straggler)?,
            straggler_share: within(
                "straggler_share",
                self.straggler_share,
                defaults.straggler_share,
                (0.0..=1.0, "0.0 to 1.0"),
            )?,
            queue_target: time(
                "queue_target_ms",
                self.queue_target_ms,
                defaults.queue_target,
            )?,
            queue_target_shared: time(
                "queue_target_shared_ms",
                self.queue_target_shared_ms,
                defaults.queue_target_shared,
            )?,
            codel_target: time(
                "codel_target_ms",
                self.codel_target_ms,
                defaults.codel_target,
            )?,
            codel_interval: time(
                "codel_interval_ms",
                self.codel_interval_ms,
                defaults.codel_interval,
            )?,
            queue_delay: time("queue_delay_ms", self.queue_delay_ms, defaults.queue_delay)?,
            extra_packets: within(
                "extra_packets",
                self.extra_packets,
                defaults.extra_packets,
                (0..=63, "0 to 63"),
            )?,
            extra_packets_waiting: within(
                "extra_packets_waiting",
                self.extra_packets_waiting,
                defaults.extra_packets_waiting,
                (0..=63, "0 to 63"),
            )?,
            path_share: within(
                "path_share",
                self.path_share,
                defaults.path_share,
                share.clone(),
            )?,
            total_share: within("total_share", self.total_share, defaults.total_share, share)?,
            copies: within("copies", self.copies, defaults.copies, (1..=8, "1 to 8"))?,
            copies_again: within(
                "copies_again",
                self.copies_again,
                defaults.copies_again,
                (1..=8, "1 to 8"),
            )?,
            quiet_after: time("quiet_after_ms", self.quiet_after_ms, defaults.quiet_after)?,
            heard_within: time(
                "heard_within_ms",
                self.heard_within_ms,
                defaults.heard_within,
            )?,
            shots: within("shots", self.shots, defaults.shots, (1..=10, "1 to 10"))?,
            gather: time("gather_ms", self.gather_ms, defaults.gather)?,
            ack_delay: time("ack_delay_ms", self.ack_delay_ms, defaults.ack_delay)?,
            probe_idle: interval("probe_idle_ms", self.probe_idle_ms, defaults.probe_idle)?,
            probe_rest: interval("probe_rest_ms", self.probe_rest_ms, defaults.probe_rest)?,
            probe_silent: time(
                "probe_silent_ms",
                self.probe_silent_ms,
                defaults.probe_silent,
            )?,
            reorder,
            queue_limit: ByteSize(queue_kb * 1000),
            pool_limit: ByteSize(pool_kb * 1000),
            ..defaults
        })
    }
}

/// What was given, if it is allowed, or the default.
fn within<T: PartialOrd>(
    key: &'static str,
    given: Option<T>,
    default: T,
    (allowed, text): (RangeInclusive<T>, &'static str),
) -> Result<T, InvalidCoding> {
    match given {
        None => Ok(default),
        Some(value) if allowed.contains(&value) => Ok(value),
        Some(_) => Err(InvalidCoding::Range { key, allowed: text }),
    }
}

/// What was given in milliseconds, or the default, which may be finer.
fn time(
    key: &'static str,
    given: Option<u64>,
    default: Duration,
) -> Result<Duration, InvalidCoding> {
    time_within(key, given, default, (1..=10_000, "1 to 10000"))
}

/// The same of a time between pings over an idle path, which are to cost little.
fn interval(
    key: &'static str,
    given: Option<u64>,
    default: Duration,
) -> Result<Duration, InvalidCoding> {
    time_within(key, given, default, (10..=10_000, "10 to 10000"))
}

fn time_within(
    key: &'static str,
    given: Option<u64>,
    default: Duration,
    allowed: (RangeInclusive<u64>, &'static str),
) -> Result<Duration, InvalidCoding> {
    given.map_or(Ok(default), |ms| {
        within(key, Some(ms), 0, allowed).map(milliseconds)
    })
}

fn milliseconds(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A queue that is full for 0.1 s at 300 Mb/s.
const QUEUE_KB: u64 = 4000;

/// What 300 Mb/s carry in 0.4 s, which is longer than most recoveries take. With both directions and the queue, a session
/// keeps no more than some 36 MB.
const POOL_KB: u64 = 16_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_given_is_the_paper_s() {
        let config = Coding::default().config().unwrap();
        let paper = Config::default();
        let Config {
            queue_limit,
            pool_limit,
            ..
        } = paper;
        let ours = Config {
            queue_limit,
            pool_limit,
            ..config
        };
        assert_eq!(ours, paper);
    }

    #[test]
    fn what_is_not_given_is_not_told_to_clients_that_may_not_know_it() {
        let told = serde_json::to_string(&Coding::default()).unwrap();
        assert!(
            !told.contains("codel") && !told.contains("shared"),
            "{told}"
        );
        let given = Coding {
            codel_target_ms: Some(5),
            codel_interval_ms: Some(50),
            ..Coding::default()
        };
        let told: Coding = serde_json::from_str(&serde_json::to_string(&given).unwrap()).unwrap();
        let config = told.config().unwrap();
        assert_eq!(
            [config.codel_target, config.codel_interval],
            [5, 50].map(Duration::from_millis)
        );
    }

    #[test]
    fn what_is_kept_of_packets_is_bounded_and_can_be_chosen() {
        let pool = |coding: Coding| coding.config().unwrap().pool_limit;
        assert_eq!(pool(Coding::default()), ByteSize(16_000_000));
        assert_eq!(
            pool(Coding {
                pool_kb: Some(1000),
                ..Coding::default()
            }),
            ByteSize(1_000_000)
        );
        let reliable = Coding {
            scheme: Some("minrtt".into()),
            ..Coding::default()
        };
        assert!(pool(reliable) <= Config::of(Scheme::MinRtt).pool_limit);
    }

    #[test]
    fn what_cannot_work_is_refused() {
        for coding in [
            Coding {
                scheme: Some("best".into()),
                ..Coding::default()
            },
            Coding {
                range_packets: Some(64),
                ..Coding::default()
            },
            Coding {
                path_share: Some(f64::NAN),
                ..Coding::default()
            },
            Coding {
                expiry_ms: Some(0),
                ..Coding::default()
            },
            Coding {
                queue_kb: Some(0),
                ..Coding::default()
            },
            Coding {
                probe_idle_ms: Some(9),
                ..Coding::default()
            },
            Coding {
                probe_rest_ms: Some(9),
                ..Coding::default()
            },
            Coding {
                pool_kb: Some(100),
                ..Coding::default()
            },
        ] {
            assert!(coding.config().is_err(), "{coding:?}");
        }
    }
}
