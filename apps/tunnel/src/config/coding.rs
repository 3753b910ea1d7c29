use hawser_units::ByteSize;
use hawser_xnc::{Config, Scheme, UnknownScheme};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::time::Duration;

/// `[coding]` of a server's file: the parameters by which packets are sent and recovered. The
/// server sends them to its clients. Parameters that are not given have the values of the paper
/// that published the scheme.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coding {
    /// The name of the scheme; `xnc` by default.
    pub scheme: Option<String>,
    /// The time without an acknowledgement after which a packet is considered lost.
    pub loss_threshold_ms: Option<u64>,
    /// The same while packets wait for an uplink.
    pub loss_threshold_waiting_ms: Option<u64>,
    /// The largest number of packets in an encoding range, 1 to 63.
    pub range_packets: Option<usize>,
    /// The delay beyond the expected acknowledgement after which a packet is considered lost, if
    /// its frame lacks little or its uplink is quiet.
    pub straggler_delay_ms: Option<u64>,
    /// The largest share of a frame's packets that counts as little.
    pub straggler_share: Option<f64>,
    /// The longest time from the first packet of an encoding range to its last.
    pub range_span_ms: Option<u64>,
    /// The time after which a packet is of no use any more.
    pub expiry_ms: Option<u64>,
    /// The time after which a packet that waits for an uplink is dropped.
    pub max_queue_delay_ms: Option<u64>,
    /// The time after which a waiting video frame is not begun.
    pub max_frame_queue_delay_ms: Option<u64>,
    /// The additional time for each frame that was dropped since the last one was sent.
    pub frame_queue_delay_step_ms: Option<u64>,
    /// The share of an uplink's congestion window that may wait in its connection.
    pub connection_share: Option<f64>,
    /// An uplink gets no more data than it drains within its minimum round-trip time plus this
    /// time.
    pub queue_target_ms: Option<u64>,
    /// The same for packets of other flows while there is a video.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_target_shared_ms: Option<u64>,
    /// The queueing delay above which packets of a flow are dropped or marked (CoDel).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codel_target_ms: Option<u64>,
    /// The time for which the delay has to stay above the target before that (CoDel).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub codel_interval_ms: Option<u64>,
    /// The queueing delay above which an uplink gets no new packets.
    pub max_path_backlog_ms: Option<u64>,
    /// The number of coded packets in addition to the number of lost ones.
    pub extra_packets: Option<usize>,
    /// The same while packets wait for an uplink.
    pub extra_packets_waiting: Option<usize>,
    /// The largest share of the coded packets that one path gets.
    pub path_share: Option<f64>,
    /// The largest share of the coded packets that all paths get together.
    pub total_share: Option<f64>,
    /// The number of paths that get a copy where a single packet was lost.
    pub copies: Option<usize>,
    /// The same where an earlier shot was not enough.
    pub retry_copies: Option<usize>,
    /// The time without an acknowledgement after which an uplink is quiet.
    pub quiet_after_ms: Option<u64>,
    /// The time without an acknowledgement, beyond the minimum round-trip time, after which
    /// recovery packets use a path only as the last choice.
    pub delivered_within_ms: Option<u64>,
    /// The largest number of shots for the same packets.
    pub shots: Option<u32>,
    /// The time for which losses of a range are collected before a shot.
    pub recovery_delay_ms: Option<u64>,
    /// The time that a receiver waits before it acknowledges.
    pub ack_delay_ms: Option<u64>,
    /// The time without sending after which a path is probed.
    pub probe_idle_ms: Option<u64>,
    /// The same while no packets are carried in either direction.
    pub probe_rest_ms: Option<u64>,
    /// The interval of the single packets by which a silent path is probed.
    pub probe_silent_ms: Option<u64>,
    /// The time that packets wait in the reordering buffer for earlier ones; 0 disables it.
    pub reorder_ms: Option<u64>,
    /// The largest queue for the paths, in kilobytes.
    pub queue_kb: Option<u64>,
    /// The memory for packets in each direction, in kilobytes: sent ones until their outcome is
    /// known, received ones until coded packets and earlier packets have arrived.
    pub packet_memory_kb: Option<u64>,
    /// The method to recognize the end of a video frame.
    pub frame_boundary: FrameBoundary,
}

/// The method to recognize the last packet of a video frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FrameBoundary {
    /// Frames are not recognized.
    None,
    /// By the marker of packets that look like RTP over UDP.
    #[default]
    Rtp,
}

/// Invalid parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCoding {
    /// An unknown scheme.
    #[error("{0}")]
    Scheme(#[from] UnknownScheme),
    /// A number out of range.
    #[error("{key} is {allowed}")]
    Range {
        /// The key.
        key: &'static str,
        /// The valid range.
        allowed: &'static str,
    },
}

impl Coding {
    /// Returns the parameters of both ends.
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
        let usual_packet_memory_kb = PACKET_MEMORY_KB.min(defaults.packet_memory.0 / 1000);
        let packet_memory_kb = within(
            "packet_memory_kb",
            self.packet_memory_kb,
            usual_packet_memory_kb,
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
            max_queue_delay: time(
                "max_queue_delay_ms",
                self.max_queue_delay_ms,
                defaults.max_queue_delay,
            )?,
            max_frame_queue_delay: time(
                "max_frame_queue_delay_ms",
                self.max_frame_queue_delay_ms,
                defaults.max_frame_queue_delay,
            )?,
            frame_queue_delay_step: time(
                "frame_queue_delay_step_ms",
                self.frame_queue_delay_step_ms,
                defaults.frame_queue_delay_step,
            )?,
            connection_share: within(
                "connection_share",
                self.connection_share,
                defaults.connection_share,
                (0.0..=1.0, "0.0 to 1.0"),
            )?,
            straggler_delay: time(
                "straggler_delay_ms",
                self.straggler_delay_ms,
                defaults.straggler_delay,
            )?,
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
            max_path_backlog: time(
                "max_path_backlog_ms",
                self.max_path_backlog_ms,
                defaults.max_path_backlog,
            )?,
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
            retry_copies: within(
                "retry_copies",
                self.retry_copies,
                defaults.retry_copies,
                (1..=8, "1 to 8"),
            )?,
            quiet_after: time("quiet_after_ms", self.quiet_after_ms, defaults.quiet_after)?,
            delivered_within: time(
                "delivered_within_ms",
                self.delivered_within_ms,
                defaults.delivered_within,
            )?,
            shots: within("shots", self.shots, defaults.shots, (1..=10, "1 to 10"))?,
            recovery_delay: time(
                "recovery_delay_ms",
                self.recovery_delay_ms,
                defaults.recovery_delay,
            )?,
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
            packet_memory: ByteSize(packet_memory_kb * 1000),
            ..defaults
        })
    }
}

/// Returns the given value if it is valid, or the default.
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

/// Converts milliseconds, if given and valid; the default may be finer.
fn time(
    key: &'static str,
    given: Option<u64>,
    default: Duration,
) -> Result<Duration, InvalidCoding> {
    time_within(key, given, default, (1..=10_000, "1 to 10000"))
}

/// Like `time`, for the interval of pings on an idle path, which must not cost much.
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

/// The default queue, in kilobytes: full after 0.1 s at 300 Mb/s.
const QUEUE_KB: u64 = 4000;

/// The default memory for packets, in kilobytes: 0.4 s at 300 Mb/s, which is longer than most
/// recoveries take. With both directions and the queue, a session uses no more than about 36 MB.
const PACKET_MEMORY_KB: u64 = 16_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_given_is_the_paper_s() {
        let config = Coding::default().config().unwrap();
        let paper = Config::default();
        let Config {
            queue_limit,
            packet_memory,
            ..
        } = paper;
        let ours = Config {
            queue_limit,
            packet_memory,
            ..config
        };
        assert_eq!(ours, paper);
    }

    #[test]
    fn what_is_not_given_is_not_sent_to_clients_that_may_not_know_it() {
        let json = serde_json::to_string(&Coding::default()).unwrap();
        assert!(
            !json.contains("codel") && !json.contains("shared"),
            "{json}"
        );
        let given = Coding {
            codel_target_ms: Some(5),
            codel_interval_ms: Some(50),
            ..Coding::default()
        };
        let received: Coding =
            serde_json::from_str(&serde_json::to_string(&given).unwrap()).unwrap();
        let config = received.config().unwrap();
        assert_eq!(
            [config.codel_target, config.codel_interval],
            [5, 50].map(Duration::from_millis)
        );
    }

    #[test]
    fn what_is_kept_of_packets_is_bounded_and_can_be_chosen() {
        let packet_memory = |coding: Coding| coding.config().unwrap().packet_memory;
        assert_eq!(packet_memory(Coding::default()), ByteSize(16_000_000));
        assert_eq!(
            packet_memory(Coding {
                packet_memory_kb: Some(1000),
                ..Coding::default()
            }),
            ByteSize(1_000_000)
        );
        let reliable = Coding {
            scheme: Some("minrtt".into()),
            ..Coding::default()
        };
        assert!(packet_memory(reliable) <= Config::of(Scheme::MinRtt).packet_memory);
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
                packet_memory_kb: Some(100),
                ..Coding::default()
            },
        ] {
            assert!(coding.config().is_err(), "{coding:?}");
        }
    }
}
