use crate::figure::{Figure, Probability, deserialize_within, serialize};
use hawser_units::ByteSize;
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;

/// A queue discipline: it chooses, at the time at which the bottleneck is free, the packet that
/// leaves next, and may drop packets or mark them with CE.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Discipline {
    /// One queue in order of arrival: `discipline = "fifo"`. Its departures are those of a link
    /// without a discipline.
    Fifo,
    /// FQ-CoDel (RFC 8290). The default limit is 10240 packets.
    FqCodel(FqCodel),
    /// DualPI2 (RFC 9332, appendix A). The default limit is 250 ms.
    DualPi2(DualPi2),
    /// The queue of De Fré et al. (MMSys 2025, figure 5). The default limit is 10000 packets.
    Paper(Paper),
}

/// FQ-CoDel: fair queueing by deficit round robin with a CoDel instance for each queue.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FqCodel {
    /// The delay that CoDel accepts as standing queue: 0.01 to 10000 ms. Default: 5 ms.
    #[serde(rename = "target_ms", serialize_with = "serialize")]
    #[serde(deserialize_with = "delay")]
    pub target: Duration,
    /// The time for which the delay may exceed the target: 0.01 to 10000 ms. Default: 100 ms.
    #[serde(rename = "interval_ms", serialize_with = "serialize")]
    #[serde(deserialize_with = "delay")]
    pub interval: Duration,
    /// The bytes that a queue sends per round, and below which CoDel never acts: 64 to 65536.
    /// Default: 1514.
    #[serde(rename = "quantum_bytes", deserialize_with = "quantum")]
    pub quantum: ByteSize,
    /// The number of queues over which flows are hashed: 1 to 65536. Default: 1024.
    #[serde(deserialize_with = "count")]
    pub flows: u32,
    /// Whether ECN-capable packets are marked instead of dropped. Default: true.
    pub ecn: bool,
}

/// The settings of one CoDel instance (RFC 8289).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CodelSettings {
    /// The delay that is accepted as standing queue.
    pub(crate) target: Duration,
    /// The time for which the delay may exceed the target.
    pub(crate) interval: Duration,
    /// The size of the largest packet. CoDel does not act on a queue that holds no more.
    pub(crate) mtu: ByteSize,
    /// Whether ECN-capable packets are marked instead of dropped.
    pub(crate) ecn: bool,
}

impl Default for FqCodel {
    /// The values of RFC 8290, section 5.2.
    fn default() -> Self {
        FqCodel {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            quantum: ByteSize(1514),
            flows: 1024,
            ecn: true,
        }
    }
}

impl FqCodel {
    /// Returns the settings of the CoDel instance of each queue.
    pub(crate) fn codel(&self) -> CodelSettings {
        CodelSettings {
            target: self.target,
            interval: self.interval,
            mtu: self.quantum,
            ecn: self.ecn,
        }
    }
}

/// DualPI2: a queue for L4S and one for Classic packets, whose marking and dropping probabilities
/// are coupled.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DualPi2 {
    /// The target delay of the Classic queue: 0.01 to 10000 ms. Default: 15 ms.
    #[serde(rename = "target_ms", serialize_with = "serialize")]
    #[serde(deserialize_with = "delay")]
    pub target: Duration,
    /// The time between two updates of the base probability: 0.1 to 1000 ms. Default: 16 ms.
    #[serde(rename = "update_ms", serialize_with = "serialize")]
    #[serde(deserialize_with = "update")]
    pub update: Duration,
    /// The integral gain in Hz: 0.001 to 1000. Default: 0.16.
    #[serde(rename = "alpha_hz", deserialize_with = "gain")]
    pub alpha: f64,
    /// The proportional gain in Hz: 0.001 to 1000. Default: 3.2.
    #[serde(rename = "beta_hz", deserialize_with = "gain")]
    pub beta: f64,
    /// The coupling factor k: 0.1 to 16. Default: 2.
    #[serde(deserialize_with = "coupling")]
    pub coupling: f64,
    /// The native AQM of the L4S queue. Default: a ramp from 0.8 to 1.2 ms.
    pub l4s: L4sAqm,
    /// The number of packets left behind up to which the native AQM does not mark. Default: 1.
    pub l4s_min_packets: u32,
    /// The scheduler. Default: weighted round robin with a share of 0.1 for Classic.
    pub scheduler: Scheduler,
    /// How probabilities become decisions. Default: `recur`.
    pub decisions: Decisions,
}

impl Default for DualPi2 {
    /// The values of RFC 9332, appendix A.1, for a maximum RTT of 100 ms.
    fn default() -> Self {
        DualPi2 {
            target: Duration::from_millis(15),
            update: Duration::from_millis(16),
            alpha: 0.16,
            beta: 3.2,
            coupling: 2.0,
            l4s: L4sAqm::default(),
            l4s_min_packets: 1,
            scheduler: Scheduler::default(),
            decisions: Decisions::default(),
        }
    }
}

/// The native AQM of an L4S queue.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum L4sAqm {
    /// The marking probability rises from 0 at `min` to 1 at `min + range`:
    /// `{ ramp = { min_ms = 0.8, range_ms = 0.4 } }`.
    Ramp {
        /// The delay above which packets are marked.
        #[serde(rename = "min_ms", with = "crate::figure")]
        min: Duration,
        /// The range over which the probability rises.
        #[serde(rename = "range_ms", with = "crate::figure")]
        range: Duration,
    },
    /// Every packet that waited for this time or longer is marked: `{ step_ms = 1 }`.
    #[serde(rename = "step_ms", with = "crate::figure")]
    Step(Duration),
}

impl Default for L4sAqm {
    fn default() -> Self {
        L4sAqm::Ramp {
            min: Duration::from_micros(800),
            range: Duration::from_micros(400),
        }
    }
}

/// The scheduler between the two queues of DualPI2 (RFC 9332, section 4.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Scheduler {
    /// Weighted round robin: the share of the bytes that Classic gets at least while both queues
    /// are occupied: `{ wrr = 0.1 }`.
    Wrr(Probability),
    /// The packet that waited longest is next, after L4S packets are given this time in advance:
    /// `{ time_shift_ms = 50 }`.
    #[serde(rename = "time_shift_ms", with = "crate::figure")]
    TimeShift(Duration),
}

impl Default for Scheduler {
    /// A tenth for Classic, as in Linux.
    fn default() -> Self {
        let share = Probability::from_figure(0.1).expect("a tenth is a probability");
        Scheduler::Wrr(share)
    }
}

/// How an AQM turns a probability into decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decisions {
    /// The probabilities of the packets are added up, and each time the sum exceeds 1 a packet is
    /// hit (`recur()` of RFC 9332, appendix A).
    #[default]
    Recur,
    /// Each packet is hit independently, by the seed of the link.
    Random,
}

/// The queue of De Fré et al. (MMSys 2025, section 4.3 and figure 5). ECN-capable packets are L4S.
/// A policer drops them above one rate, and a meter marks them above another. They then share the
/// link with the others by HTB: a class for each, L4S first, that borrow from each other, with fair
/// queueing in each class.
///
/// The paper's link has 200 Mb/s, drops above 200 and marks above 100: the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Paper {
    /// The rate of all L4S packets above which they are marked, as a share of the link's rate. It
    /// is also the rate that HTB assures to L4S; Classic is assured the rest. Default: 0.5.
    pub mark_share: Probability,
    /// The rate of all L4S packets above which they are dropped, as a share of the link's rate.
    /// Default: 1.
    pub drop_share: Probability,
    /// The depth of both token buckets, as a time at their rate: 0.01 to 10000 ms. The default of
    /// 20 ms passes a frame at 90 Mb/s that is sent within 20 ms: it needs 11 ms.
    #[serde(rename = "burst_ms", serialize_with = "serialize")]
    #[serde(deserialize_with = "delay")]
    pub burst: Duration,
    /// The packets that are marked while the rate is exceeded. Default: `all`.
    pub meter: MeterMode,
    /// The bytes that a flow sends per round: 64 to 65536. Default: 3028, as in Linux's `fq`.
    #[serde(rename = "quantum_bytes", deserialize_with = "quantum")]
    pub quantum: ByteSize,
    /// The packets that a flow may queue: 1 to 65536. Default: 100, as in Linux's `fq`.
    #[serde(deserialize_with = "count")]
    pub flow_packets: u32,
}

impl Default for Paper {
    fn default() -> Self {
        let share = |share| Probability::from_figure(share).expect("a share");
        Paper {
            mark_share: share(0.5),
            drop_share: share(1.0),
            burst: Duration::from_millis(20),
            meter: MeterMode::default(),
            quantum: ByteSize(3028),
            flow_packets: 100,
        }
    }
}

/// The packets that a meter marks while its rate is exceeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeterMode {
    /// All: a marked packet takes tokens too, into a debt of at most 1 ms at the rate. This is the
    /// text of the paper.
    #[default]
    All,
    /// Those beyond the rate: a marked packet takes no tokens, as with the policer of `tc`.
    Excess,
}

fn delay<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserialize_within(deserializer, 0.01..=10_000.0)
}

fn update<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserialize_within(deserializer, 0.1..=1000.0)
}

fn gain<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserialize_within(deserializer, 0.001..=1000.0)
}

fn coupling<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserialize_within(deserializer, 0.1..=16.0)
}

fn quantum<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    deserialize_within(deserializer, 64.0..=65_536.0).map(|bytes: f64| ByteSize(bytes as u64))
}

fn count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    deserialize_within(deserializer, 1.0..=65_536.0).map(|count: f64| count as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{LinkConfig, QueueLimit};

    fn parsed(text: &str) -> Discipline {
        let config: LinkConfig = toml::from_str(text).unwrap();
        let again = toml::to_string(&config).unwrap();
        assert_eq!(
            toml::from_str::<LinkConfig>(&again).unwrap(),
            config,
            "{again}"
        );
        config.discipline.unwrap()
    }

    #[test]
    fn a_discipline_needs_nothing_but_its_name() {
        assert_eq!(parsed("discipline = 'fifo'"), Discipline::Fifo);
        assert_eq!(
            parsed("discipline = { fq_codel = {} }"),
            Discipline::FqCodel(FqCodel::default())
        );
        assert_eq!(
            parsed("discipline = { dual_pi2 = {} }"),
            Discipline::DualPi2(DualPi2::default())
        );
        assert_eq!(
            parsed("discipline = { paper = {} }"),
            Discipline::Paper(Paper::default())
        );
    }

    #[test]
    fn settings_are_in_the_units_of_their_keys() {
        let text = "discipline = { dual_pi2 = { target_ms = 20, alpha_hz = 0.5, l4s = { step_ms = 1 }, \
                    scheduler = { time_shift_ms = 50 }, decisions = 'random' } }";
        let expected = DualPi2 {
            target: Duration::from_millis(20),
            alpha: 0.5,
            l4s: L4sAqm::Step(Duration::from_millis(1)),
            scheduler: Scheduler::TimeShift(Duration::from_millis(50)),
            decisions: Decisions::Random,
            ..DualPi2::default()
        };
        assert_eq!(parsed(text), Discipline::DualPi2(expected));

        let text = "discipline = { paper = { mark_share = 0.4, burst_ms = 5, meter = 'excess', quantum_bytes = 1500 } }";
        let expected = Paper {
            mark_share: Probability::from_figure(0.4).unwrap(),
            burst: Duration::from_millis(5),
            meter: MeterMode::Excess,
            quantum: ByteSize(1500),
            ..Paper::default()
        };
        assert_eq!(parsed(text), Discipline::Paper(expected));
    }

    #[test]
    fn a_limit_and_a_discipline_are_one_queue() {
        let text = "queue = { packets = 50 }\ndiscipline = 'fifo'";
        let config: LinkConfig = toml::from_str(text).unwrap();
        assert_eq!(config.queue, Some(QueueLimit::Packets(50)));
        assert_eq!(config.discipline, Some(Discipline::Fifo));
    }

    #[test]
    fn settings_out_of_range_are_rejected_with_the_range() {
        for (wrong, range) in [
            ("{ fq_codel = { target_ms = 0 } }", "from 0.01 to 10000"),
            ("{ fq_codel = { flows = 0 } }", "from 1 to 65536"),
            ("{ fq_codel = { quantum_bytes = 1 } }", "from 64 to 65536"),
            ("{ dual_pi2 = { update_ms = 0 } }", "from 0.1 to 1000"),
            ("{ dual_pi2 = { alpha_hz = nan } }", "from 0.001 to 1000"),
            ("{ dual_pi2 = { coupling = 0 } }", "from 0.1 to 16"),
            ("{ dual_pi2 = { scheduler = { wrr = 2 } } }", "from 0 to 1"),
            ("{ dual_pi2 = { l4s = { step_ms = -1 } } }", "zero or more"),
            ("{ paper = { mark_share = 1.5 } }", "from 0 to 1"),
            ("{ paper = { flow_packets = 1e9 } }", "from 1 to 65536"),
            ("{ paper = { rate = 3 } }", "unknown field `rate`"),
            ("'red'", "unknown variant `red`"),
        ] {
            let text = format!("discipline = {wrong}");
            let error = toml::from_str::<LinkConfig>(&text).unwrap_err().to_string();
            assert!(error.contains(range), "{wrong}: {error}");
        }
    }
}
