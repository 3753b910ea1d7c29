use hawser_coding::kernel::Kernel;
use hawser_units::ByteSize;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The parameters of a session. Both ends have to use the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The scheme, which selects the path of each packet and recovers lost packets.
    pub scheme: Scheme,
    /// The rule by which packets count as lost.
    pub loss_detection: LossDetection,
    /// The time after which an unacknowledged packet counts as lost. If the path's probe timeout is
    /// shorter, it is used instead (Ni, section 4.4.1). QUIC's loss detection ignores this.
    pub loss_threshold: Duration,
    /// Replaces `loss_threshold` while packets wait for window. A retransmission then takes the
    /// place of a new packet, and most packets that are this late still arrive, because paths
    /// pause.
    pub loss_threshold_waiting: Duration,
    /// If the application marks ends of frames, a packet whose acknowledgement is later than
    /// expected by this time counts as lost, provided that its frame lacks at most
    /// `straggler_share` of its packets, or that its path does not deliver and no packets wait. Only
    /// with [`LossDetection::Early`]; not at all with [`Duration::MAX`].
    pub straggler_delay: Duration,
    /// The share of a frame's packets, 0 to 1. A frame that lacks more is not worth an early
    /// recovery, unless there is room for all of it.
    pub straggler_share: f64,
    /// The maximum number of packets in an encoding range, 1 to 63 (r in Ni, section 4.4.2).
    pub range_packets: usize,
    /// The maximum time from the first packet of an encoding range to its last (t in Ni, section
    /// 4.4.2).
    pub range_span: Duration,
    /// The age at which a packet expires, counted from
    /// [`handle_packet`](crate::Endpoint::handle_packet). It is then not recovered any more
    /// (t_expire in Ni, section 4.4.3), except by fully reliable schemes.
    pub expiry: Duration,
    /// The maximum time that a packet waits for window; it is dropped afterwards.
    pub max_queue_delay: Duration,
    /// Whether frames of a flow whose ends of frames are marked are dropped as a whole, after
    /// `max_frame_queue_delay`. Otherwise, single packets are dropped after `max_queue_delay`.
    pub drop_frames: bool,
    /// The maximum time that a frame waits of which nothing was sent. It is dropped afterwards, so
    /// that the frames that can be sent are not late.
    pub max_frame_queue_delay: Duration,
    /// The time added to `max_frame_queue_delay` for each frame that was dropped since the last one
    /// was sent, up to `max_queue_delay`. With window for half of the frames, every other frame is
    /// then sent, and the video does not freeze.
    pub frame_queue_delay_step: Duration,
    /// Whether each urgent packet is sent over two paths at once. Not part of the paper.
    pub duplicate_urgent: bool,
    /// The share of a path's congestion window that may wait in its connection, which paces it.
    /// With XNC it is just enough to keep the connection busy, because a packet that waits in the
    /// sender can still take another path. At least 10 kB, at most 500 kB.
    pub connection_share: f64,
    /// The maximum queue on a path: the path gets no more data than it drains within its minimum
    /// round-trip time plus this time, at its estimated rate. [`Duration::MAX`]: as much as its
    /// congestion window allows.
    pub queue_target: Duration,
    /// Replaces `queue_target` for packets of other flows while there is a flow with marked ends of
    /// frames. The difference is reserved for the next frame.
    pub queue_target_shared: Duration,
    /// The target delay of CoDel (RFC 8289) for flows without marked ends of frames. If packets of
    /// a flow wait for longer than this during `codel_interval`, packets are dropped, or marked if
    /// the sender supports ECN, at increasing frequency until the queue is shorter.
    pub codel_target: Duration,
    /// The time that a packet marked ECT(1) may wait behind others of its flow, also of a flow with
    /// marked ends of frames. Above it, every such packet is marked, as L4S senders expect (RFC
    /// 9331). Longer than in a router, because windows open in steps of some milliseconds.
    pub l4s_threshold: Duration,
    /// The interval of CoDel: the time that senders take to react, a round-trip time that is rarely
    /// exceeded. The default is 150 ms, with a tenth of it as the target. With the 100 ms of RFC
    /// 8289, a single CUBIC flow uses less of the capacity that a video leaves.
    pub codel_interval: Duration,
    /// The delay of acknowledgements, in excess of the minimum, above which a path has a queue and
    /// gets no new packets.
    pub max_path_backlog: Duration,
    /// The time without acknowledgements after which a path no longer counts as delivering. A path
    /// that delivers gets new packets, even if the acknowledged ones are old because of a pause.
    pub quiet_after: Duration,
    /// The age, in excess of the minimum round-trip time, of the latest acknowledged transmission
    /// of a path. A path that exceeds it may be down, and is the last choice for recovery packets.
    pub delivered_within: Duration,
    /// Whether a shot consists of coded packets. Otherwise, it repeats the lost packets.
    pub coded: bool,
    /// The implementation of coding and decoding. The ends may use different ones, which all give
    /// the same results.
    pub kernel: Kernel,
    /// Whether a shot is sent as a whole: for contiguous lost packets, once the windows of all paths
    /// together allow all of it, and over every path as far as its window and `path_share` allow
    /// (Ni, section 4.5.2). Otherwise, a shot covers its range, begins with the first open window,
    /// and is spread over the paths so that it survives the failure of any one of them, unless all
    /// that it recovers are stragglers.
    pub whole_shots: bool,
    /// The number of coded packets in addition to the number of lost ones (Ni, section 4.5.1). A
    /// shot that is spread has more of them, by the share of one path, unless all that it recovers
    /// are stragglers.
    pub extra_packets: usize,
    /// The maximum share of the coded packets for one path (rho in Ni, section 4.5.2). Only for
    /// whole shots.
    pub path_share: f64,
    /// The maximum number of shots for the same packet, one in the paper. The next shot follows as
    /// soon as acknowledgements show that the previous one cannot suffice any more.
    pub shots: u32,
    /// The time from the first loss in a range to the shot, in which further losses are collected.
    pub recovery_delay: Duration,
    /// The time by which a receiver delays acknowledgements.
    pub ack_delay: Duration,
    /// The interval at which an idle path is probed while the session is active.
    pub probe_idle: Duration,
    /// The interval at which an idle path is probed, and the time without packets in either
    /// direction after which the session is idle. It keeps the cost of idle sessions low.
    pub probe_rest: Duration,
    /// The interval at which a silent path is probed with single packets.
    pub probe_silent: Duration,
    /// The maximum time that a missing packet delays later ones, which are delivered in order. With
    /// [`Duration::MAX`], packets wait until the missing one arrives. With `None`, packets are
    /// delivered as they arrive.
    pub reorder: Option<Duration>,
    /// The maximum size of the queue of packets that wait for window. Above it, packets are dropped
    /// from the flows with the longest queues.
    pub queue_limit: ByteSize,
    /// The maximum size of the packets kept for recovery, and at the receiver for decoding and
    /// reordering. When a fully reliable scheme has this much unacknowledged data, it stops
    /// sending, as with the flow control of a stream. The other schemes give up the oldest packets.
    /// Schemes that recover by coded packets do so before the receiver's decoder would forget them.
    pub packet_memory: ByteSize,
}

impl Config {
    /// Returns the parameters of a scheme. [`Scheme::XncPaper`] has those of Ni (30 Mb/s, section
    /// 4), and [`Scheme::Xnc`] those and ours. Schemes that are built as reliable transports deliver
    /// in order and wait for missing packets, as their streams do.
    pub fn of(scheme: Scheme) -> Self {
        let config = Config::common(scheme);
        match scheme {
            Scheme::Xnc => Config {
                loss_detection: LossDetection::Early,
                range_packets: 63,
                extra_packets: 1,
                drop_frames: true,
                connection_share: 0.3,
                ..config
            },
            Scheme::XncPaper => Config {
                loss_detection: LossDetection::Timeout,
                queue_target: Duration::MAX,
                queue_target_shared: Duration::MAX,
                whole_shots: true,
                shots: 1,
                ..config
            },
            _ => config,
        }
    }

    /// Returns the parameters that do not depend on the scheme, and those of schemes other than
    /// XNC.
    fn common(scheme: Scheme) -> Self {
        Config {
            scheme,
            loss_detection: LossDetection::Quic,
            loss_threshold: Duration::from_millis(100),
            loss_threshold_waiting: Duration::from_millis(200),
            straggler_delay: Duration::from_millis(30),
            straggler_share: 0.2,
            range_packets: 10,
            range_span: Duration::from_millis(60),
            expiry: Duration::from_millis(700),
            max_queue_delay: Duration::from_millis(300),
            drop_frames: false,
            max_frame_queue_delay: Duration::from_millis(60),
            frame_queue_delay_step: Duration::from_millis(40),
            duplicate_urgent: false,
            connection_share: 1.0,
            queue_target: Duration::from_millis(40),
            queue_target_shared: Duration::from_millis(20),
            codel_target: Duration::from_millis(15),
            codel_interval: Duration::from_millis(150),
            l4s_threshold: Duration::from_millis(5),
            max_path_backlog: Duration::from_millis(100),
            quiet_after: Duration::from_millis(50),
            delivered_within: Duration::from_millis(60),
            coded: true,
            kernel: Kernel::best(),
            whole_shots: false,
            extra_packets: 3,
            path_share: 1.1,
            shots: 3,
            recovery_delay: Duration::from_millis(3),
            ack_delay: Duration::from_millis(5),
            probe_idle: Duration::from_millis(100),
            probe_rest: Duration::from_secs(1),
            probe_silent: Duration::from_millis(20),
            reorder: scheme.is_reliable().then_some(Duration::MAX),
            queue_limit: ByteSize(32 << 20),
            packet_memory: ByteSize(if scheme.is_reliable() {
                4 << 20
            } else {
                64 << 20
            }),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config::of(Scheme::Xnc)
    }
}

/// The rule by which a packet counts as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossDetection {
    /// After the loss threshold or the probe timeout, whichever is shorter, or when later
    /// transmissions of its path have arrived. Stragglers count as lost even sooner.
    Early,
    /// After the loss threshold or the probe timeout, whichever is shorter (Ni, section 4.4.1).
    Timeout,
    /// QUIC's: when later transmissions have arrived (RFC 9002).
    Quic,
}

/// A scheme, which selects the path of each packet and recovers lost packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// XNC with our additions: packets take the path that delivers earliest, and lost packets are
    /// recovered by random linear network coding over the best paths.
    Xnc,
    /// CellFusion's XNC as published (Ni, section 4): packets take the path with the lowest
    /// round-trip time of those with window, and lost packets are recovered in one shot over all
    /// paths.
    XncPaper,
    /// Multipath QUIC: the path with the lowest smoothed round-trip time of those with window
    /// (Raiciu, NSDI 2012; De Coninck, CoNEXT 2017), fully reliable.
    MinRtt,
    /// Every packet on every path with window (Froemmgen, ICC 2016), fully reliable.
    Redundant,
    /// Multipath QUIC that retransmits unacknowledged packets on another path when the play-out
    /// buffer runs low (Zheng, SIGCOMM 2021), fully reliable.
    Xlink,
    /// Earliest completion first (Lim, CoNEXT 2017), fully reliable.
    Ecf,
    /// Blocking estimation (Ferlin, Networking 2016), fully reliable.
    Blest,
    /// Each flow is hashed onto a path, without recovery.
    Bonding,
    /// Sliding-window coding ahead of losses, at a rate that follows the measured loss, without
    /// retransmission.
    Fec,
    /// Pluribus: coded packets fill the spare capacity of the paths (Mahajan, ATC 2012), without
    /// retransmission.
    Pluribus,
    /// All packets on the path with the lowest index, without recovery.
    Single,
}

impl Scheme {
    /// All schemes.
    pub const ALL: [Scheme; 11] = [
        Scheme::Xnc,
        Scheme::XncPaper,
        Scheme::MinRtt,
        Scheme::Redundant,
        Scheme::Xlink,
        Scheme::Ecf,
        Scheme::Blest,
        Scheme::Bonding,
        Scheme::Fec,
        Scheme::Pluribus,
        Scheme::Single,
    ];

    /// Returns the name in configurations and reports, such as `xnc-paper`.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Xnc => "xnc",
            Scheme::XncPaper => "xnc-paper",
            Scheme::MinRtt => "minrtt",
            Scheme::Redundant => "redundant",
            Scheme::Xlink => "xlink",
            Scheme::Ecf => "ecf",
            Scheme::Blest => "blest",
            Scheme::Bonding => "bonding",
            Scheme::Fec => "fec",
            Scheme::Pluribus => "pluribus",
            Scheme::Single => "single",
        }
    }

    /// Returns whether lost packets are retransmitted until they arrive.
    pub const fn is_reliable(self) -> bool {
        matches!(
            self,
            Scheme::MinRtt | Scheme::Redundant | Scheme::Xlink | Scheme::Ecf | Scheme::Blest
        )
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error that a scheme does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown scheme `{0}`")]
pub struct UnknownScheme(String);

impl FromStr for Scheme {
    type Err = UnknownScheme;

    fn from_str(name: &str) -> Result<Self, UnknownScheme> {
        Scheme::ALL
            .into_iter()
            .find(|scheme| scheme.name() == name)
            .ok_or_else(|| UnknownScheme(name.into()))
    }
}
