use hawser_units::ByteSize;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How packets are sent and recovered. Both ends of a session are configured alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Which packets take which path, and what is done about those that are lost.
    pub scheme: Scheme,
    /// A packet that is not acknowledged after this time counts as lost, or after the path's probe timeout if that is
    /// shorter (Ni, section 4.4.1). The schemes with QUIC's own loss detection do without.
    pub loss_threshold: Duration,
    /// The same while packets wait for a window. Then what is sent again takes the place of something new, and most of
    /// what is that late arrives after all: paths pause.
    pub loss_threshold_waiting: Duration,
    /// Where ends of frames are known, a packet whose acknowledgement is later than expected by this counts as lost if its
    /// frame lacks no more than `straggler_share`, or if its path is quiet and nothing waits.
    pub straggler: Duration,
    /// The share of a frame's packets, 0 to 1: a frame that lacks more is not worth to be hurried, unless there is room for
    /// all of it.
    pub straggler_share: f64,
    /// Packets of an encoding range at most, 1 to 63 (r of Ni, section 4.4.2).
    pub range_packets: usize,
    /// The time from the first packet of an encoding range to its last at most (t of Ni, section 4.4.2).
    pub range_span: Duration,
    /// A packet this long after it was handed in is of no use any more, and not recovered
    /// (t_expire of Ni, section 4.4.3). Schemes that are fully reliable recover it nevertheless.
    pub expiry: Duration,
    /// A packet that waited this long for a window is not sent any more.
    pub patience: Duration,
    /// Where it is known where frames end, a whole frame that waited this long is not sent, so that what can be sent is
    /// not late, ...
    pub frame_patience: Duration,
    /// ... but it may wait so much longer for each frame that was dropped since one was sent, up to `patience`: where
    /// there is window for half of them, every other one goes, and the picture does not stand.
    pub frame_patience_step: Duration,
    /// The share of a path's congestion window that may wait in its connection, which paces it: with XNC no more than
    /// keeps the connection busy, for a packet that waits can still take another path. At least 10 kB, at most 500 kB.
    pub connection_share: f64,
    /// A path gets no more than it drains within its least round-trip time and this, by the rate that it was seen to take.
    pub queue_target: Duration,
    /// The same for packets of other flows while there is one of which it is known where its frames end: the rest of
    /// `queue_target` is for its next frame.
    pub queue_target_shared: Duration,
    /// Where ends of frames are not known: packets of a flow that wait for longer than this for as long as `codel_interval`
    /// are dropped, or marked if their sender takes marks for losses, one at first and then more often, until its queue is
    /// shorter (RFC 8289). ...
    pub codel_target: Duration,
    /// ... It is what senders take to notice, a round-trip time that is not exceeded often. Default: 150 ms, and a tenth of that
    /// as the target; with RFC 8289's 100 ms a single CUBIC flow fills less of what a video leaves.
    pub codel_interval: Duration,
    /// A path on which acknowledgements are later than at best by more than this has a queue, and gets nothing new.
    pub queue_delay: Duration,
    /// A path on which nothing was acknowledged for this long is quiet. One that is not delivers, even if what it delivers is
    /// old because of a pause: it is not silent, and takes new packets again.
    pub quiet_after: Duration,
    /// A path of which the last acknowledged transmission is older than its least round-trip time and this may be dead, and
    /// what is recovered takes it last.
    pub heard_within: Duration,
    /// Coded packets beyond the number of lost ones (Ni, section 4.5.1).
    pub extra_packets: usize,
    /// The same while packets wait for a window, in the first shot for them.
    pub extra_packets_waiting: usize,
    /// The share of the coded packets that one path gets at most (rho of Ni, section 4.5.2).
    pub path_share: f64,
    /// The share of the coded packets that all paths get together at most: beyond the paper, which lets each path have
    /// its full share.
    pub total_share: f64,
    /// Paths that get a copy where one packet was lost alone; all of them in the paper.
    pub copies: usize,
    /// The same where an earlier shot did not suffice: for a third one it is mostly too late.
    pub copies_again: usize,
    /// Shots for the same packets at most; one in the paper. The next one is fired when acknowledgements say that the
    /// one before did not suffice.
    pub shots: u32,
    /// How long the losses of a range are gathered before the shot.
    pub gather: Duration,
    /// How long a receiver waits before it acknowledges.
    pub ack_delay: Duration,
    /// A path on which nothing was sent for this long is probed, ...
    pub probe_idle: Duration,
    /// ... or for this long, when no packet went either way for as long: sessions that rest cost next to nothing.
    pub probe_rest: Duration,
    /// The time between the single packets by which a silent path is tried.
    pub probe_silent: Duration,
    /// Packets are handed out in the order in which they were handed in; one that is missing holds the others back for
    /// this long at most, [`Duration::MAX`] until it comes. None: as they arrive.
    pub reorder: Option<Duration>,
    /// What may wait for a path with window; for what is more, packets of a flow are dropped of those that have most waiting.
    pub queue_limit: ByteSize,
    /// Packets kept for recovery, and at the receiver for decoding and for order. When a fully reliable scheme has sent
    /// so much that is not acknowledged, it waits, as for a stream's flow control; the others give the oldest up.
    pub pool_limit: ByteSize,
}

impl Config {
    /// The settings of the paper that published the scheme: XNC's are Ni's (30 Mb/s, section 4), and schemes built as
    /// reliable transports keep order and wait for what is missing, as their streams do.
    pub fn of(scheme: Scheme) -> Self {
        Config {
            scheme,
            loss_threshold: Duration::from_millis(100),
            loss_threshold_waiting: Duration::from_millis(200),
            straggler: Duration::from_millis(30),
            straggler_share: 0.3,
            range_packets: 10,
            range_span: Duration::from_millis(60),
            expiry: Duration::from_millis(700),
            patience: Duration::from_millis(300),
            frame_patience: Duration::from_millis(60),
            frame_patience_step: Duration::from_millis(40),
            connection_share: if scheme.is_xnc() { 0.3 } else { 1.0 },
            queue_target: Duration::from_millis(40),
            queue_target_shared: Duration::from_millis(20),
            codel_target: Duration::from_millis(15),
            codel_interval: Duration::from_millis(150),
            queue_delay: Duration::from_millis(100),
            quiet_after: Duration::from_millis(50),
            heard_within: Duration::from_millis(60),
            extra_packets: 3,
            extra_packets_waiting: 1,
            path_share: 1.1,
            total_share: 1.0,
            copies: 1,
            copies_again: 2,
            shots: 3,
            gather: Duration::from_millis(3),
            ack_delay: Duration::from_millis(5),
            probe_idle: Duration::from_millis(100),
            probe_rest: Duration::from_secs(1),
            probe_silent: Duration::from_millis(20),
            reorder: scheme.is_reliable().then_some(Duration::MAX),
            queue_limit: ByteSize(32 << 20),
            pool_limit: ByteSize(if scheme.is_reliable() {
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

/// Which packets take which path, and what is done about those that are lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// CellFusion's (Ni, section 4): at once on the path that delivers soonest, lost packets recovered in one shot by
    /// random linear combinations over all paths.
    Xnc,
    /// Multipath QUIC's: the path of the lowest smoothed round-trip time that has window (Raiciu, NSDI 2012; De Coninck,
    /// CoNEXT 2017), fully reliable.
    MinRtt,
    /// Every packet on every path that has window (Froemmgen, ICC 2016), fully reliable.
    Redundant,
    /// Multipath QUIC with unacknowledged packets sent again, on another path, when what is left of the play-out buffer
    /// is short (Zheng, SIGCOMM 2021), fully reliable.
    Xlink,
    /// Earliest completion first (Lim, CoNEXT 2017), fully reliable.
    Ecf,
    /// Blocking estimation (Ferlin, Networking 2016), fully reliable.
    Blest,
    /// A flow is hashed onto a path; what is lost is lost.
    Bonding,
    /// Sliding-window coding ahead of losses, as much as the measured loss asks for (after Pluribus: Mahajan, ATC 2012).
    Fec,
    /// [`Scheme::Xnc`] that recovers by sending the lost packets themselves (Ni, figure 13a).
    XncUncoded,
    /// [`Scheme::Xnc`] with QUIC's own loss detection (Ni, figure 13b).
    XncSlowLoss,
    /// Everything on the path of the lowest index; what is lost is lost.
    Single,
}

impl Scheme {
    /// Every scheme.
    pub const ALL: [Scheme; 11] = [
        Scheme::Xnc,
        Scheme::MinRtt,
        Scheme::Redundant,
        Scheme::Xlink,
        Scheme::Ecf,
        Scheme::Blest,
        Scheme::Bonding,
        Scheme::Fec,
        Scheme::XncUncoded,
        Scheme::XncSlowLoss,
        Scheme::Single,
    ];

    /// The name in configurations and reports, such as `xnc-uncoded`.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Xnc => "xnc",
            Scheme::MinRtt => "minrtt",
            Scheme::Redundant => "redundant",
            Scheme::Xlink => "xlink",
            Scheme::Ecf => "ecf",
            Scheme::Blest => "blest",
            Scheme::Bonding => "bonding",
            Scheme::Fec => "fec",
            Scheme::XncUncoded => "xnc-uncoded",
            Scheme::XncSlowLoss => "xnc-slow-loss",
            Scheme::Single => "single",
        }
    }

    /// Whether it is XNC, whole or with a part left out.
    pub(crate) const fn is_xnc(self) -> bool {
        matches!(self, Scheme::Xnc | Scheme::XncUncoded | Scheme::XncSlowLoss)
    }

    /// Whether a packet that was sent is sent again until it arrived.
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

/// A scheme that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no scheme `{0}`")]
pub struct NoScheme(String);

impl FromStr for Scheme {
    type Err = NoScheme;

    fn from_str(name: &str) -> Result<Self, NoScheme> {
        Scheme::ALL
            .into_iter()
            .find(|scheme| scheme.name() == name)
            .ok_or_else(|| NoScheme(name.into()))
    }
}
