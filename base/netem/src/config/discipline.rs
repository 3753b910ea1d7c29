use crate::figure::Probability;
use hawser_units::ByteSize;
use std::time::Duration;

/// A queue discipline: it chooses, at the time at which the bottleneck is free, the packet that
/// leaves next, and may drop packets or mark them with CE.
#[derive(Debug, Clone, PartialEq)]
pub enum Discipline {
    /// One queue in order of arrival. Its departures are those of a link
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FqCodel {
    /// The delay that CoDel accepts as standing queue: 0.01 to 10000 ms. Default: 5 ms.
    pub target: Duration,
    /// The time for which the delay may exceed the target: 0.01 to 10000 ms. Default: 100 ms.
    pub interval: Duration,
    /// The bytes that a queue sends per round, and below which CoDel never acts: 64 to 65536.
    /// Default: 1514.
    pub quantum: ByteSize,
    /// The number of queues over which flows are hashed: 1 to 65536. Default: 1024.
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DualPi2 {
    /// The target delay of the Classic queue: 0.01 to 10000 ms. Default: 15 ms.
    pub target: Duration,
    /// The time between two updates of the base probability: 0.1 to 1000 ms. Default: 16 ms.
    pub update: Duration,
    /// The integral gain in Hz: 0.001 to 1000. Default: 0.16.
    pub alpha: f64,
    /// The proportional gain in Hz: 0.001 to 1000. Default: 3.2.
    pub beta: f64,
    /// The coupling factor k: 0.1 to 16. Default: 2.
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum L4sAqm {
    /// The marking probability rises from 0 at `min` to 1 at `min + range`.
    Ramp {
        /// The delay above which packets are marked.
        min: Duration,
        /// The range over which the probability rises.
        range: Duration,
    },
    /// Every packet that waited for this time or longer is marked.
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scheduler {
    /// Weighted round robin: the share of the bytes that Classic gets at least while both queues
    /// are occupied.
    Wrr(Probability),
    /// The packet that waited longest is next, after L4S packets are given this time in advance.
    TimeShift(Duration),
}

impl Default for Scheduler {
    /// A tenth for Classic, as in Linux.
    fn default() -> Self {
        let share = Probability::try_from(0.1).expect("a tenth is a probability");
        Scheduler::Wrr(share)
    }
}

/// How an AQM turns a probability into decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Paper {
    /// The rate of all L4S packets above which they are marked, as a share of the link's rate. It
    /// is also the rate that HTB assures to L4S; Classic is assured the rest. Default: 0.5.
    pub mark_share: Probability,
    /// The rate of all L4S packets above which they are dropped, as a share of the link's rate.
    /// Default: 1.
    pub drop_share: Probability,
    /// The depth of both token buckets, as a time at their rate: 0.01 to 10000 ms. The default of
    /// 20 ms passes a frame at 90 Mb/s that is sent within 20 ms: it needs 11 ms.
    pub burst: Duration,
    /// The packets that are marked while the rate is exceeded. Default: `all`.
    pub meter: MeterMode,
    /// The bytes that a flow sends per round: 64 to 65536. Default: 3028, as in Linux's `fq`.
    pub quantum: ByteSize,
    /// The packets that a flow may queue: 1 to 65536. Default: 100, as in Linux's `fq`.
    pub flow_packets: u32,
}

impl Default for Paper {
    fn default() -> Self {
        let share = |share| Probability::try_from(share).expect("a share");
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MeterMode {
    /// All: a marked packet takes tokens too, into a debt of at most 1 ms at the rate. This is the
    /// text of the paper.
    #[default]
    All,
    /// Those beyond the rate: a marked packet takes no tokens, as with the policer of `tc`.
    Excess,
}
