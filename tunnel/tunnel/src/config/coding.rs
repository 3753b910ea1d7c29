use super::parameter::{InvalidParameter, TIME_MS, kilobytes, set};
use hawser_units::ByteSize;
use hawser_xnc::Config;
use serde::{Deserialize, Serialize};
use std::convert::identity;
use std::ops::RangeInclusive;
use std::time::Duration;

/// `[coding]` of a server's file: how packets are sent and recovered. The server sends it to its
/// clients.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Coding {
    /// The method to recognize the end of a video frame.
    pub frame_boundary: FrameBoundary,
    /// Whether urgent packets are sent over the two best uplinks at once.
    pub duplicate: Duplicate,
    /// How long packets wait for earlier ones; 0: not at all. Default: 0.
    pub reorder_ms: Option<u64>,
    /// The time after which a packet that waits for an uplink is dropped. Default: 300.
    pub max_queue_delay_ms: Option<u64>,
    /// The time after which a packet is of no use any more, and is not recovered. Default: 700.
    pub expiry_ms: Option<u64>,
    /// Coded packets beyond the number of lost ones that are left if an uplink fails; no more than one
    /// while packets wait for an uplink. More of them recover more at once and cost more data. Default: 1.
    pub extra_packets: Option<usize>,
    /// The interval at which an idle uplink is probed while packets go in either direction (about 5 MB per
    /// hour of use). Default: 100.
    pub probe_idle_ms: Option<u64>,
    /// The interval at which an uplink is probed when there was no packet in either direction for this
    /// time. Default: 1000.
    pub probe_rest_ms: Option<u64>,
    /// The limit of the packets that are kept: sent ones until their outcome is known, and as many bytes of
    /// received ones while they can help to recover others. A packet of 750 bytes or more counts with 1550,
    /// a shorter one with at least 512. Packets beyond it are not recovered, and count as `given_up`. The
    /// default is enough for 0.4 s of 300 Mb/s. Default: 16000.
    pub packet_memory_kb: Option<u64>,
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

/// The packets that are sent over two paths at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Duplicate {
    /// None.
    #[default]
    None,
    /// Urgent packets, by their DSCP.
    Urgent,
}

/// The valid intervals of probes on an idle path, which must not cost much, in milliseconds.
const PROBE_MS: RangeInclusive<u64> = 10..=10_000;

/// The default queue: full after 0.1 s at 300 Mb/s.
const QUEUE_LIMIT: ByteSize = ByteSize(4_000_000);

/// The default memory for packets: 0.4 s at 300 Mb/s, which is longer than most recoveries take.
/// With both directions and the queue, a session uses no more than about 41 MB.
const PACKET_MEMORY: ByteSize = ByteSize(16_000_000);

impl Coding {
    /// Returns the parameters of an endpoint; `transport` are those that are not given.
    ///
    /// # Errors
    /// If a number is out of range.
    pub fn config(&self, transport: &Config) -> Result<Config, InvalidParameter> {
        let mut config = transport.clone();
        config.duplicate_urgent = self.duplicate == Duplicate::Urgent;
        config.queue_limit = QUEUE_LIMIT;
        config.packet_memory = config.packet_memory.min(PACKET_MEMORY);
        set!(self, config, 0..=*TIME_MS.end(), reordering, reorder_ms => reorder);
        set!(self, config, TIME_MS, Duration::from_millis,
            max_queue_delay_ms => max_queue_delay, expiry_ms => expiry);
        set!(self, config, 0..=63, identity, extra_packets => extra_packets);
        set!(self, config, PROBE_MS, Duration::from_millis,
            probe_idle_ms => probe_idle, probe_rest_ms => probe_rest);
        set!(self, config, 256..=262_144, kilobytes, packet_memory_kb => packet_memory);
        Ok(config)
    }
}

/// Returns the longest time in the reordering buffer; `None` if it is disabled.
fn reordering(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(coding: &str) -> Result<Config, InvalidParameter> {
        let coding: Coding = toml::from_str(coding).unwrap();
        coding.config(&Config::default())
    }

    fn config(coding: &str) -> Config {
        parsed(coding).unwrap()
    }

    #[test]
    fn nothing_given_is_the_default_with_less_memory() {
        let ours = Config {
            queue_limit: Config::default().queue_limit,
            packet_memory: Config::default().packet_memory,
            ..config("")
        };
        assert_eq!(ours, Config::default());
    }

    #[test]
    fn each_key_of_an_operator_sets_its_parameter() {
        let given = config(
            "frame_boundary = 'none'\nduplicate = 'urgent'\nreorder_ms = 1\nmax_queue_delay_ms = 2\n\
             expiry_ms = 3\nextra_packets = 4\nprobe_idle_ms = 50\nprobe_rest_ms = 60\npacket_memory_kb = 700",
        );
        let expected = Config {
            duplicate_urgent: true,
            reorder: Some(Duration::from_millis(1)),
            max_queue_delay: Duration::from_millis(2),
            expiry: Duration::from_millis(3),
            extra_packets: 4,
            probe_idle: Duration::from_millis(50),
            probe_rest: Duration::from_millis(60),
            packet_memory: ByteSize(700_000),
            ..config("")
        };
        assert_eq!(given, expected);
    }

    #[test]
    fn a_reordering_time_of_zero_disables_the_default() {
        let in_order = Config {
            reorder: Some(Duration::MAX),
            ..Config::default()
        };
        let coding: Coding = toml::from_str("reorder_ms = 0").unwrap();
        assert_eq!(coding.config(&in_order).unwrap().reorder, None);
        assert_eq!(
            Coding::default().config(&in_order).unwrap().reorder,
            in_order.reorder
        );
    }

    #[test]
    fn the_memory_for_packets_is_bounded_and_can_be_chosen() {
        let memory = |coding| config(coding).packet_memory;
        assert_eq!(memory(""), ByteSize(16_000_000));
        assert_eq!(memory("packet_memory_kb = 1000"), ByteSize(1_000_000));
    }

    #[test]
    fn a_value_out_of_range_is_rejected_with_the_range() {
        for (coding, expected) in [
            ("reorder_ms = 10001", "reorder_ms is 0 to 10000"),
            ("expiry_ms = 0", "expiry_ms is 1 to 10000"),
            ("extra_packets = 64", "extra_packets is 0 to 63"),
            ("probe_idle_ms = 9", "probe_idle_ms is 10 to 10000"),
            ("probe_rest_ms = 9", "probe_rest_ms is 10 to 10000"),
            (
                "packet_memory_kb = 100",
                "packet_memory_kb is 256 to 262144",
            ),
        ] {
            assert_eq!(parsed(coding).unwrap_err().to_string(), expected);
        }
    }
}
