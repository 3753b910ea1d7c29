//! The counts of a publisher's run.

use hawser_io::udp::UdpSocket;
use hawser_metrics::Metrics;
use hawser_objects::{HostStats, SenderStats, ViewerStatus};
use std::fmt;
use std::time::Duration;

/// The counts of a run of [`Publisher`](crate::Publisher).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The counts of the camera.
    pub captured: Captured,
    /// The counts of the network.
    pub sent: Sent,
}

/// The errors of a run of [`Publisher`](crate::Publisher), and its counts.
#[derive(Debug)]
pub struct Failure {
    /// The counts.
    pub report: Report,
    /// The errors, of which there is at least one.
    pub errors: Vec<anyhow::Error>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.errors.iter().map(|error| format!("{error:#}"));
        f.write_str(&errors.collect::<Vec<_>>().join("; "))
    }
}

impl std::error::Error for Failure {}

/// The counts of the camera.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Metrics)]
#[gauge("encode_mean_seconds", help = "Mean time to encode a frame since the start", of = Self::encode_mean)]
pub struct Captured {
    /// Frames that were captured.
    #[counter("frames_captured")]
    pub frames: u64,
    /// Frames that were not captured because an earlier one took longer than its interval.
    #[counter("frames_missed")]
    pub missed: u64,
    /// Frames of the recording that were left out because it has more in a second than are captured.
    pub left_out: u64,
    /// Frames of the recording that were left out because an image or a file is missing or damaged.
    pub damaged: u64,
    /// Points that were left out because they are farther than 32.767 m or not finite.
    pub out_of_range: u64,
    /// Frames that were encoded.
    ///
    /// Without viewers, none are.
    #[counter("frames_encoded")]
    pub encoded: u64,
    /// Encoded frames that were not sent because earlier ones still were.
    #[counter("frames_discarded")]
    pub discarded: u64,
    /// The time that encoding took, in total and at most for a frame.
    pub encode_total: Duration,
    /// The longest time that encoding a frame took.
    pub encode_max: Duration,
}

/// The counts of the network.
#[derive(Debug, Clone, PartialEq, Eq, Default, Metrics)]
#[counter("objects_dropped", "reason", help = "Layers of frames that were not delivered, by reason", of = Self::dropped)]
#[counter("datagrams_refused", "reason", help = "Datagrams that were refused, by reason", of = Self::refused)]
#[counter("report_parts_unused", "reason", help = "Parts of viewers' reports that were not used, by reason", of = Self::unused)]
pub struct Sent {
    /// Frames that were offered to the viewers.
    pub frames: u64,
    /// Viewers that joined.
    #[counter("sessions")]
    pub viewers: u64,
    /// Datagrams that were sent.
    pub datagrams: u64,
    /// Datagrams that the kernel did not send.
    #[counter("send_failures")]
    pub send_failures: u64,
    /// Datagrams that are longer than any message of a viewer.
    pub too_long: u64,
    /// Parts of reports of viewers that the rate control refused.
    pub refused_parts: u64,
    /// Datagrams that the kernel dropped because they were not read in time.
    #[counter("receive_drops")]
    pub receive_drops: u64,
    /// The counts of the in-flight buffers of all viewers.
    #[counter("packets", help = "Packets sent for the first time", of = |objects| objects.packets)]
    #[counter("packets_repeated", help = "Packets sent again", of = |objects| objects.repeated)]
    #[counter("packets_lost", help = "Packets that were considered lost", of = |objects| objects.lost)]
    #[counter("packets_spurious", help = "Those of the lost packets that were acknowledged later", of = |objects| objects.spurious)]
    #[counter("objects_delivered", help = "Layers of frames that viewers have acknowledged", of = |objects| objects.delivered)]
    pub objects: SenderStats,
    /// Bytes of UDP payloads that viewers reported as received.
    #[counter("received_bytes")]
    pub received_bytes: u64,
    /// Those of the received bytes that the network had marked (ECN).
    #[counter("marked_bytes")]
    pub marked_bytes: u64,
    /// The counts of the sessions.
    pub sessions: HostStats,
    /// The counts of the sessions under earlier secrets.
    pub(crate) sessions_before: HostStats,
}

impl Captured {
    pub(crate) fn handle_encoded(&mut self, took: Duration) {
        self.encoded += 1;
        self.encode_total += took;
        self.encode_max = self.encode_max.max(took);
    }

    /// Returns the mean time to encode a frame.
    pub fn encode_mean(&self) -> Duration {
        let frames = u32::try_from(self.encoded.max(1)).unwrap_or(u32::MAX);
        self.encode_total / frames
    }
}

/// A count and its reason.
type Reason = (&'static str, u64);

impl Sent {
    /// Returns the layers that were not delivered, by reason.
    fn dropped(&self) -> [Reason; 6] {
        let objects = &self.objects;
        [
            ("no_room", objects.refused_no_room),
            ("too_late", objects.refused_expired + objects.expired),
            ("displaced", objects.displaced),
            ("dependent", objects.refused_dependent + objects.dependent),
            ("sent_in_part", objects.late),
            ("not_confirmed", objects.unconfirmed),
        ]
    }

    /// Returns the datagrams that were refused, by reason.
    fn refused(&self) -> [Reason; 13] {
        let sessions = &self.sessions;
        [
            ("without_key", sessions.unauthorised),
            ("no_room", sessions.full),
            ("too_many_requests", sessions.too_many_requests),
            ("not_answered", sessions.not_sent),
            ("forged", sessions.forged),
            ("repeated", sessions.replayed),
            ("invalid", sessions.invalid),
            ("unknown_session", sessions.unknown_session),
            ("too_many", sessions.too_many),
            ("unexpected", sessions.unexpected),
            ("too_long", self.too_long),
            ("impossible_report", self.objects.refused_reports),
            ("excessive_totals", self.objects.excessive_totals),
        ]
    }

    /// Returns the parts of reports that were not used, by reason.
    fn unused(&self) -> [Reason; 3] {
        [
            ("never_sent", self.objects.acknowledged_unsent),
            ("impossible_time", self.objects.impossible_times),
            ("rate_control", self.refused_parts),
        ]
    }

    /// Adds the counts of viewers whose sessions end.
    pub(crate) fn add_viewers(&mut self, viewers: &[ViewerStatus]) {
        for viewer in viewers {
            self.objects += viewer.sender;
            self.received_bytes += viewer.received.bytes;
            self.marked_bytes += viewer.received.ce_bytes;
            self.refused_parts += viewer.refusals.total();
        }
    }

    /// Adds the counts of the sessions under the secret in force, and those of the socket.
    pub(crate) fn finish(&mut self, sessions: &HostStats, socket: &UdpSocket) {
        self.sessions = self.sessions_before;
        self.sessions += *sessions;
        self.receive_drops = socket.drops().unwrap_or_default().into();
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { captured, sent } = self;
        let objects = &sent.objects;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        if captured.out_of_range > 0 {
            writeln!(
                f,
                "{} points left out that are farther than 32.767 m or not finite",
                captured.out_of_range
            )?;
        }
        writeln!(
            f,
            "captured {} frames, missed {}; left out {} for the frame rate and {} damaged; encoded {} in {:.1} ms \
             each, at most {:.1}; discarded {}",
            captured.frames,
            captured.missed,
            captured.left_out,
            captured.damaged,
            captured.encoded,
            ms(captured.encode_mean()),
            ms(captured.encode_max),
            captured.discarded
        )?;
        writeln!(
            f,
            "sent {} packets to {} viewers ({:.1} MB received, {:.2} % marked); lost {}, of which {} arrived later; sent again {}",
            objects.packets,
            sent.viewers,
            sent.received_bytes as f64 / 1e6,
            100.0 * sent.marked_bytes as f64 / sent.received_bytes.max(1) as f64,
            objects.lost,
            objects.spurious,
            objects.repeated
        )?;
        writeln!(
            f,
            "objects: {} delivered; not sent: {} without room, {} too late, {} displaced, {} dependent; \
             sent in part: {}; not confirmed in time: {}",
            objects.delivered,
            objects.refused_no_room,
            objects.refused_expired + objects.expired,
            objects.displaced,
            objects.refused_dependent + objects.dependent,
            objects.late,
            objects.unconfirmed
        )?;
        writeln!(
            f,
            "refused: {} requests without the key, {} beyond the share of their source, {} for lack of room, {} forged, {} repeated and {} \
             other messages, {} impossible reports, {} excessive totals, {} acknowledgements of \
             packets that were never sent, {} impossible times, {} parts of reports by the rate control",
            sent.sessions.unauthorised,
            sent.sessions.too_many_requests,
            sent.sessions.full,
            sent.sessions.forged,
            sent.sessions.replayed,
            sent.sessions.invalid
                + sent.sessions.unknown_session
                + sent.sessions.too_many
                + sent.sessions.unexpected
                + sent.too_long,
            objects.refused_reports,
            objects.excessive_totals,
            objects.acknowledged_unsent,
            objects.impossible_times,
            sent.refused_parts
        )?;
        write!(
            f,
            "kernel: {} datagrams not sent, {} not read",
            sent.send_failures, sent.receive_drops
        )
    }
}
