use hawser_experience::Experience;
use hawser_metrics::Metrics;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The reports of applications on how their flows fare.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Metrics)]
pub struct ExperienceStatus {
    /// The socket at which they arrive. `None` if the agent cannot listen there.
    pub socket: Option<String>,
    /// Applications that are connected.
    #[gauge(
        "experience_applications",
        help = "Applications that are connected to report how their flows fare"
    )]
    pub applications: usize,
    /// Reports and applications that were refused, by reason.
    ///
    /// `user`: not of `reporters`; `applications`: too many are connected; `line`: not a report; `flow`: of no flow of this
    /// node; `flows`: of too many flows in one connection; `rate`: too many in a second.
    #[counter("experience_refused", "reason")]
    pub refused: BTreeMap<String, u64>,
    /// The flows that applications have reported on, by direction (`received`, `sent`), then by flow number.
    #[metrics("direction", "flow")]
    pub flows: BTreeMap<String, BTreeMap<u16, FlowExperience>>,
}

/// The reports on a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Metrics)]
#[gauge("experience_age_seconds", help = "Age of the newest report on a flow",
    of = |flow: &Self| Duration::from_millis(flow.age_ms))]
#[counter("experience_stalled_seconds", help = "Time for which an application could show nothing new, as it reports",
    of = |flow: &Self| Duration::from_millis(flow.stalled_ms))]
#[gauge("experience_delay_seconds", help = "Time from capture to display, as an application reports",
    of = |flow: &Self| flow.newest.delay_ms.map(|ms| Duration::from_millis(ms.into())))]
#[gauge("experience_rate_bits_per_second", help = "Rate at which an application would like to send or receive",
    of = |flow: &Self| flow.newest.rate_bps)]
pub struct FlowExperience {
    /// The flow's name under a controller, else its number.
    pub flow: String,
    /// The time of the newest report, milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Its age when this was written, milliseconds.
    pub age_ms: u64,
    /// Reports on a flow.
    #[counter("experience_reports")]
    pub reports: u64,
    /// Frames that were due, as an application reports.
    #[counter("experience_frames")]
    pub frames: u64,
    /// Frames that came too late or not at all, as an application reports.
    #[counter("experience_late_frames")]
    pub late: u64,
    /// The time for which the application could show nothing new, milliseconds.
    pub stalled_ms: u64,
    /// The newest report.
    pub newest: Experience,
}
