//! The tunnel with an SSH session, pings and a video, while each of its four uplinks has each kind
//! of fault, alone, with another one, and beside uploads, and while its server is killed.

mod exchanges;
mod fault;
mod network;
mod probes;
mod report;
mod ssh;
mod tunnel;

use crate::emulator::EmulatorReport;
use crate::experiment::{Completed, Experiment, Measured, Results, Run, progress};
use crate::experiments::cross_traffic::{ActiveCrossTraffic, CrossTraffic};
use crate::experiments::rtp_video::Video;
use crate::summary::{Case, Metrics, Summary, quantile};
use anyhow::{Context, Result, bail};
use exchanges::{Exchanges, Figures};
use fault::{Circumstances, Fault, Planned, UPLINKS};
use hawser_qoe::{Frame, Qoe, Window, measure};
use hawser_testbed::ring;
use hawser_testbed::topology::Stop;
use hawser_tunnel::status::SessionStatus;
use hawser_units::Instant;
use network::{HOST, Network};
use probes::Ping;
use serde::Serialize;
use ssh::Ssh;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tunnel::Tunnel;

/// Total duration of the faults of uplinks in seconds.
const UPLINKS_S: f64 = 600.0;

/// Number of times that a server is killed, the interval between them, and the time for which a
/// killed server is down.
const KILLS: u32 = 12;
const KILL_INTERVAL: Duration = Duration::from_secs(15);
const DOWNTIME: Duration = Duration::from_secs(6);

/// The time before the first fault.
const UNDISTURBED: Duration = Duration::from_secs(5);

/// The target of the time without packets after a server was killed, milliseconds.
const RECOVERY_LIMIT_MS: f64 = 3_000.0;

/// The uploads that compete with the applications inside, where there are any.
const UPLOADS: CrossTraffic = CrossTraffic::cubic(8);

/// A case of the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The whole time in which uplinks fail.
    Uplinks(Circumstances),
    /// The faults of uplinks of one kind.
    Kind(Circumstances, Fault),
    /// Killed servers.
    Servers,
}

/// A part of the experiment, which has a tunnel of its own.
pub(crate) enum Part {
    /// Faults of uplinks, and the cases that are evaluated.
    Uplinks {
        circumstances: Circumstances,
        faults: Vec<Fault>,
        subjects: Vec<Subject>,
    },
    /// Killed servers.
    Servers,
}

/// The experiment.
pub(crate) struct TunnelFaults;

impl Experiment for TunnelFaults {
    type Case = Subject;
    type Trial = Part;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "tunnel-faults"
    }

    fn about(&self) -> &'static str {
        "ssh, pings and video inside the tunnel while uplinks have faults of every kind and servers are killed"
    }

    fn cases(&self) -> Vec<Subject> {
        Subject::all()
    }

    fn trials(&self, run: &Run) -> Result<Vec<Part>> {
        let subjects = run.chosen(self.cases())?;
        let of = |circumstances| {
            let subjects = subjects.iter().copied();
            let subjects: Vec<_> = subjects
                .filter(|subject| subject.circumstances() == Some(circumstances))
                .collect();
            let is_chosen = |fault: &Fault| {
                subjects.contains(&Subject::Uplinks(circumstances))
                    || subjects.contains(&Subject::Kind(circumstances, *fault))
            };
            let faults: Vec<_> = Fault::ALL.into_iter().filter(is_chosen).collect();
            (!faults.is_empty()).then_some(Part::Uplinks {
                circumstances,
                faults,
                subjects,
            })
        };
        let uplinks = Circumstances::ALL.into_iter().filter_map(of);
        let servers = subjects.contains(&Subject::Servers);
        Ok(uplinks.chain(servers.then_some(Part::Servers)).collect())
    }

    fn measure(&self, part: &Part, run: &Run) -> Result<Outcome> {
        match part {
            Part::Uplinks {
                circumstances,
                faults,
                ..
            } => uplinks(run, *circumstances, faults),
            Part::Servers => servers(run),
        }
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let mut sections = Vec::new();
        for Completed { trial, outcome, .. } in &completed {
            let (subjects, section) = match trial {
                Part::Uplinks {
                    circumstances,
                    subjects,
                    ..
                } => (&subjects[..], report::uplinks(*circumstances, outcome)),
                Part::Servers => (&[Subject::Servers][..], report::servers(outcome)),
            };
            let cases = subjects.iter().map(|subject| outcome.case(*subject));
            summary.cases.extend(cases);
            sections.push(section);
        }
        report::write(summary, sections, &run.out)
    }
}

impl Subject {
    /// Returns all subjects, in the order in which they are listed.
    fn all() -> Vec<Subject> {
        let under = |circumstances| {
            let kinds = Fault::ALL.map(|fault| Subject::Kind(circumstances, fault));
            [Subject::Uplinks(circumstances)].into_iter().chain(kinds)
        };
        let uplinks = Circumstances::ALL.into_iter().flat_map(under);
        uplinks.chain([Subject::Servers]).collect()
    }

    fn circumstances(self) -> Option<Circumstances> {
        match self {
            Subject::Uplinks(circumstances) | Subject::Kind(circumstances, _) => {
                Some(circumstances)
            }
            Subject::Servers => None,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Uplinks(circumstances) => f.write_str(circumstances.name()),
            Subject::Kind(circumstances, fault) => {
                write!(f, "{}/{}", circumstances.name(), fault.name())
            }
            Subject::Servers => f.write_str("servers/killed"),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Uplinks { circumstances, .. } => circumstances.name(),
            Part::Servers => "servers",
        })
    }
}

fn uplinks(run: &Run, circumstances: Circumstances, faults: &[Fault]) -> Result<Outcome> {
    let length = Duration::from_secs_f64(run.seconds.unwrap_or(UPLINKS_S));
    let plan = fault::plan(faults, circumstances, length.saturating_sub(UNDISTURBED));
    progress(&format!(
        "  {} faults in {:.0} s",
        plan.len(),
        length.as_secs_f64()
    ));
    fail_uplinks(run, circumstances, &plan)
}

fn servers(run: &Run) -> Result<Outcome> {
    let fitting = run.seconds.map_or(KILLS, |seconds| {
        (seconds / KILL_INTERVAL.as_secs_f64()) as u32
    });
    let kills = fitting.clamp(1, KILLS);
    progress(&format!(
        "  {kills} kills, one every {} s",
        KILL_INTERVAL.as_secs()
    ));
    kill_servers(run, kills)
}

/// A fault, and its consequences inside the tunnel until the next fault.
#[derive(Debug, Clone, Serialize)]
struct Event {
    /// The kind of fault of an uplink; `None` if a server was killed.
    fault: Option<Fault>,
    /// The uplink or server that failed.
    what: String,
    /// The start of the fault in seconds since the start of the measurement.
    at_s: f64,
    /// The duration of the fault in seconds.
    lasted_s: f64,
    /// The time in which consequences are attributed to this fault.
    #[serde(skip)]
    window: (Instant, Instant),
    /// Whether the tunnel's session is still the same as before the first fault.
    same_session: bool,
    /// Whether the inner addresses are still the same.
    same_addresses: bool,
    /// Whether the SSH session is still open.
    ssh_alive: bool,
}

/// The measurements of one part of the experiment.
pub(crate) struct Outcome {
    began: Instant,
    ended: Instant,
    events: Vec<Event>,
    ping: Arc<Exchanges>,
    ssh: Arc<Exchanges>,
    frames: Vec<Frame>,
    frames_sent: usize,
    session: SessionStatus,
    /// The mean rate of the competing uploads, Mb/s; none without any.
    uploads_mbps: Option<f64>,
    invalid_because: Vec<String>,
}

/// A running tunnel with the applications inside.
struct RunningTunnel {
    before: SessionStatus,
    began: Instant,
    /// The number of bytes that the uploads had delivered by then.
    uploaded_before: u64,
    ssh: Ssh,
    ping: Ping,
    video: Video,
    uploads: Option<ActiveCrossTraffic>,
    tunnel: Tunnel,
    network: Network,
}

impl RunningTunnel {
    fn start(run: &Run, part: &str, uploads: bool, plan: &[Planned]) -> Result<RunningTunnel> {
        let directory = run.raw(part)?;
        let network = Network::build(plan, run.seed)?;
        let tunnel = Tunnel::start(&network, &run.hawser, &directory)?;
        let before = tunnel.wait_for_paths(UPLINKS)?;
        let ssh = Ssh::start(&network, &directory)?;
        let ping = Ping::start(&network)?;
        let video = Video::start(&network.car, &network.host, HOST.into(), run.seed)?;
        let uploads = uploads.then(|| {
            let (from, to) = (&network.car, &network.host);
            ActiveCrossTraffic::start(&UPLOADS, from, to, HOST.into(), run.seed)
        });
        let uploads = uploads.transpose()?;
        let began = ring::now();
        let uploaded_before = uploaded(uploads.as_ref());
        network.set_origin(began + UNDISTURBED);
        Ok(RunningTunnel {
            before,
            began,
            uploaded_before,
            ssh,
            ping,
            video,
            uploads,
            tunnel,
            network,
        })
    }

    /// Records the consequences of a fault.
    fn record_event(
        &mut self,
        fault: Option<Fault>,
        what: String,
        from: Instant,
        lasted: Duration,
    ) -> Result<Event> {
        let now = self.tunnel.session()?;
        Ok(Event {
            fault,
            what,
            at_s: from.saturating_since(self.began).as_secs_f64(),
            lasted_s: lasted.as_secs_f64(),
            window: (from, ring::now()),
            same_session: now
                .as_ref()
                .is_some_and(|now| now.since_unix_ms == self.before.since_unix_ms),
            same_addresses: now.is_some_and(|now| now.addresses == self.before.addresses),
            ssh_alive: self.ssh.is_alive()?,
        })
    }

    fn finish(self, events: Vec<Event>) -> Result<Outcome> {
        let ended = ring::now();
        let uploaded = uploaded(self.uploads.as_ref()) - self.uploaded_before;
        let session = self.tunnel.session()?.unwrap_or(self.before);
        let (frames, frames_sent) = self.video.stop()?;
        let length = ended.saturating_since(self.began).as_secs_f64();
        let mbps = uploaded as f64 * 8e-6 / length;
        let uploads_mbps = self.uploads.is_some().then_some(mbps);
        let uploads = self.uploads.map(ActiveCrossTraffic::stop).transpose()?;
        let (ping, ssh) = (self.ping.stop()?, self.ssh.stop()?);
        drop(self.tunnel);
        let emulation: EmulatorReport = self.network.stop()?;
        let mut invalid_because = emulation.health.invalid_because();
        invalid_because.extend(
            uploads
                .into_iter()
                .flat_map(|uploads| uploads.invalid_because),
        );
        Ok(Outcome {
            began: self.began,
            ended,
            events,
            ping,
            ssh,
            frames,
            frames_sent,
            session,
            uploads_mbps,
            invalid_because,
        })
    }
}

/// Returns the number of bytes that uploads have delivered.
fn uploaded(uploads: Option<&ActiveCrossTraffic>) -> u64 {
    uploads.map_or(0, ActiveCrossTraffic::received_bytes)
}

fn sleep_until(stop: &Stop, at: Instant) -> Result<()> {
    if stop.sleep(at.saturating_since(ring::now())) {
        bail!("stopped");
    }
    Ok(())
}

fn fail_uplinks(run: &Run, circumstances: Circumstances, plan: &[Planned]) -> Result<Outcome> {
    let part = circumstances.name();
    let uploads = circumstances == Circumstances::Loaded;
    let mut running = RunningTunnel::start(run, part, uploads, plan)?;
    let origin = running.began + UNDISTURBED;
    let mut events = Vec::new();
    for planned in plan {
        let from = origin + planned.from;
        sleep_until(&run.stop, from)?;
        for uplink in &planned.uplinks {
            running.network.begin_fault(planned.fault, *uplink)?;
        }
        sleep_until(&run.stop, origin + planned.to)?;
        for uplink in &planned.uplinks {
            running.network.end_fault(planned.fault, *uplink)?;
        }
        sleep_until(&run.stop, origin + planned.until)?;
        let lasted = planned.to.saturating_sub(planned.from);
        let event = running.record_event(Some(planned.fault), planned.to_string(), from, lasted)?;
        progress(&format!("  {planned}{}", event.verdict()));
        events.push(event);
    }
    let outcome = running.finish(events)?;
    outcome.write(&run.out.join("raw").join(part))?;
    Ok(outcome)
}

fn kill_servers(run: &Run, kills: u32) -> Result<Outcome> {
    let mut running = RunningTunnel::start(run, "servers", false, &[])?;
    let mut events = Vec::new();
    for kill in 0..kills {
        let due = running.began + UNDISTURBED + KILL_INTERVAL * kill;
        sleep_until(&run.stop, due)?;
        let session = running
            .tunnel
            .session()?
            .context("the tunnel has no session before the server is killed")?;
        let from = ring::now();
        let server = running.tunnel.kill(&session.peer)?;
        sleep_until(&run.stop, due + DOWNTIME)?;
        running.tunnel.start_server(&running.network, server)?;
        sleep_until(&run.stop, due + KILL_INTERVAL)?;
        events.push(running.record_event(None, session.peer.clone(), from, DOWNTIME)?);
        progress(&format!("  server {} was killed", session.peer));
    }
    let outcome = running.finish(events)?;
    outcome.write(&run.out.join("raw/servers"))?;
    Ok(outcome)
}

impl Event {
    /// Returns the end of the line that reports the fault.
    fn verdict(&self) -> &'static str {
        if self.same_session && self.same_addresses && self.ssh_alive {
            ""
        } else {
            ": THE SESSION, THE ADDRESSES OR SSH WERE LOST"
        }
    }
}

impl Measured for Outcome {
    fn invalid_because(&self) -> Vec<String> {
        self.invalid_because.clone()
    }
}

impl Outcome {
    fn case(&self, subject: Subject) -> Case {
        let mut case = match subject {
            Subject::Uplinks(_) => self.faults_case(None),
            Subject::Kind(_, fault) => self.faults_case(Some(fault)),
            Subject::Servers => self.kills_case(),
        };
        case.name = subject.to_string();
        case
    }

    /// Returns the case of the faults of a kind, or of the whole time.
    fn faults_case(&self, fault: Option<Fault>) -> Case {
        let events: Vec<&Event> = self
            .events
            .iter()
            .filter(|event| fault.is_none_or(|fault| event.fault == Some(fault)))
            .collect();
        let windows: Vec<(Instant, Instant)> = match fault {
            Some(_) => events.iter().map(|event| event.window).collect(),
            None => vec![(self.began, self.ended)],
        };
        let mut case = Case::default();
        case.set_param("faults", events.len());
        case.set_param("seconds", seconds(&windows));
        let lost = |survived: fn(&Event) -> bool| share(&events, |event| !survived(event));
        case.metrics = Metrics::from([
            ("sessions_lost_ratio", lost(|event| event.same_session)),
            ("addresses_lost_ratio", lost(|event| event.same_addresses)),
            ("ssh_lost_ratio", lost(|event| event.ssh_alive)),
        ]);
        self.measure(&mut case.metrics, &windows);
        if fault.is_none() {
            case.metrics
                .set("redundancy_ratio", self.session.redundancy_ratio);
            if let Some(mbps) = self.uploads_mbps {
                case.metrics.set("uploads_mbps", mbps);
            }
        }
        case
    }

    /// Returns the case of killed servers.
    fn kills_case(&self) -> Case {
        let mut case = Case::default();
        case.set_param("kills", self.events.len());
        let events: Vec<&Event> = self.events.iter().collect();
        let windows: Vec<_> = self.events.iter().map(|event| event.window).collect();
        let gap = |window| self.ping.within(&[window]).gap_max_ms;
        let mut recoveries: Vec<f64> = windows.iter().copied().map(gap).collect();
        recoveries.sort_by(f64::total_cmp);
        let late = recoveries.iter().filter(|ms| **ms >= RECOVERY_LIMIT_MS);
        let late = late.count() as f64 / recoveries.len() as f64;
        let addresses_lost = share(&events, |event| !event.same_addresses);
        let ssh_lost = share(&events, |event| !event.ssh_alive);
        case.metrics = Metrics::from([
            ("recovery_p50_ms", quantile(&recoveries, 0.5)),
            ("recovery_max_ms", quantile(&recoveries, 1.0)),
            ("later_than_3_s_ratio", late),
            ("addresses_lost_ratio", addresses_lost),
            ("ssh_lost_ratio", ssh_lost),
        ]);
        self.measure(&mut case.metrics, &windows);
        case
    }

    fn measure(&self, metrics: &mut Metrics, windows: &[(Instant, Instant)]) {
        for (name, exchanges) in [("ssh_echo", &self.ssh), ("ping", &self.ping)] {
            let Figures {
                gap_max_ms,
                p50_ms,
                p99_ms,
                unanswered_ratio,
            } = exchanges.within(windows);
            metrics.set(&format!("{name}_p50_ms"), p50_ms);
            metrics.set(&format!("{name}_p99_ms"), p99_ms);
            metrics.set(&format!("{name}_gap_max_ms"), gap_max_ms);
            metrics.set(&format!("{name}_unanswered_ratio"), unanswered_ratio);
        }
        metrics.set("fps_mean", weigh(&self.frames, windows, |qoe| qoe.fps_mean));
        metrics.set(
            "stall_ratio",
            weigh(&self.frames, windows, |qoe| qoe.stall_ratio),
        );
        let shown: Vec<Instant> = self.frames.iter().map(|frame| frame.decoded).collect();
        let gaps = windows
            .iter()
            .map(|window| exchanges::longest_gap(&shown, *window));
        metrics.set("video_gap_max_ms", gaps.fold(0.0, f64::max));
    }

    /// Converts a time to seconds since the start of the measurement.
    fn seconds(&self, at: Instant) -> f64 {
        at.saturating_since(self.began).as_secs_f64()
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let frames = self
            .frames
            .iter()
            .map(|frame| (self.seconds(frame.captured), self.seconds(frame.decoded)));
        let raw = serde_json::json!({
            "events": self.events,
            "ping_s": self.ping.seconds(self.began),
            "ssh_s": self.ssh.seconds(self.began),
            "frames_sent": self.frames_sent,
            "frames_s": frames.collect::<Vec<_>>(),
            "session": self.session,
        });
        let path = folder.join("outcome.json");
        fs::write(&path, serde_json::to_vec(&raw)?)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Returns the mean of a figure over windows, weighted by their durations.
fn weigh(frames: &[Frame], windows: &[(Instant, Instant)], figure: fn(&Qoe) -> f64) -> f64 {
    // A window without duration has no figure and no weight.
    let windows: Vec<Window> = windows
        .iter()
        .filter_map(|(from, to)| Window::new(*from, *to))
        .collect();
    let weights = windows.iter().map(|window| window.duration().as_secs_f64());
    let sum: f64 = weights
        .clone()
        .zip(&windows)
        .map(|(weight, window)| weight * figure(&measure(frames, *window)))
        .sum();
    sum / weights.sum::<f64>()
}

fn seconds(windows: &[(Instant, Instant)]) -> f64 {
    windows
        .iter()
        .map(|(from, to)| to.saturating_since(*from).as_secs_f64())
        .sum()
}

fn share(events: &[&Event], which: impl Fn(&Event) -> bool) -> f64 {
    events.iter().filter(|event| which(event)).count() as f64 / events.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::ByteSize;

    #[test]
    fn windows_count_as_long_as_they_are() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let frame = |ms| Frame {
            captured: at(ms),
            decoded: at(ms),
            size: ByteSize(1),
        };
        let frames: Vec<Frame> = (0..1000)
            .step_by(100)
            .chain(1000..4000)
            .map(frame)
            .collect();
        let windows = [
            (at(500), at(500)),
            (at(0), at(1000)),
            (at(1000), at(1000)),
            (at(1000), at(4000)),
        ];
        assert_eq!(
            weigh(&frames, &windows, |qoe| qoe.fps_mean),
            (10.0 + 3.0 * 1000.0) / 4.0
        );
    }
}
