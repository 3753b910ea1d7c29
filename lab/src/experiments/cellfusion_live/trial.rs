//! A trial: a route on a drive.

use super::outcome::Outcome;
use super::route::Route;
use super::score;
use super::stream::{self, Recording, WARM_UP};
use super::view::View;
use crate::emulator::{EmulatedPath, Emulator, EmulatorReport};
use crate::experiment::{Run, write_json};
use crate::experiments::cellfusion::{BITRATE, Drive, floor};
use crate::experiments::dashcam::{Clip, FPS, frames};
use crate::summary::Case;
use anyhow::{Context, Result};
use hawser_qoe::Window;
use hawser_testbed::ring;
use hawser_testbed::topology::{Lab, Topology, network_egress, network_ingress};
use hawser_tunnel::status::SessionStatus;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The minimum share of frames that the camera has to send, and the maximum of its 99th percentile
/// of lateness, for a run to be valid.
const MIN_SENT_FRAMES_RATIO: f64 = 0.995;
const MAX_CAMERA_LATENESS: Duration = Duration::from_millis(33);

/// A route on a drive.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub(super) route: Route,
    pub(super) drive: Arc<Drive>,
    /// The number of the drive.
    pub(super) number: usize,
}

impl Trial {
    /// Returns the seed of the links, which is the same for all routes.
    fn seed(&self, of_run: u64) -> u64 {
        let seed = of_run.wrapping_mul(1_000_003);
        seed.wrapping_add(self.number as u64)
    }

    /// Returns the port of the drive's video. The next port stays unused: RTCP goes there.
    fn port(&self) -> u16 {
        5004 + 2 * u16::try_from(self.number).expect("a few drives")
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.route.name(), self.drive.name)
    }
}

/// Runs the drive and evaluates it.
pub(super) fn run(run: &Run, trial: &Trial, clip: &Clip) -> Result<Outcome> {
    let directory = run.raw(&format!("{}-{}", trial.route.name(), trial.drive.name))?;
    let length = trial.drive.part(run.seconds);
    let (recording, emulation, session) = carry(run, trial, clip, &directory)?;
    write_json(&directory.join("emulator.json"), &emulation)?;
    write_json(&directory.join("tunnel.json"), &session)?;

    let window = Window::new(recording.began, recording.began + length)
        .context("the duration of a drive has to be positive")?;
    let (path, mut view) = best_view(&recording, window).context("there is a route")?;
    view.decode(&recording.sent, &directory)?;
    view.write(&directory.join("frames.csv"), recording.began)?;

    let qoe = view.qoe(window);
    let floor = floor(&trial.drive, BITRATE, length);
    let mut case = Case::new(&trial.to_string());
    case.set_param("seconds", length.as_secs_f64());
    case.set_param("video", clip.name());
    case.set_param("video_mbps", 30);
    case.set_param("video_fps", FPS);
    case.metrics = score::metrics(&view, window, &qoe, &floor, &emulation);
    if trial.route == Route::Single {
        case.set_param("path", path);
    }
    if let Some(session) = &session {
        case.metrics
            .set("redundancy_ratio", session.redundancy_ratio);
    }
    let invalid_because = invalid_because(length, &recording, &view, &emulation);
    Ok(Outcome {
        scheme: trial.route.name(),
        drive: trial.drive.name.clone(),
        case,
        view,
        window,
        qoe,
        invalid_because,
    })
}

/// Runs the part in real time.
fn carry(
    run: &Run,
    trial: &Trial,
    clip: &Clip,
    directory: &Path,
) -> Result<(Recording, EmulatorReport, Option<SessionStatus>)> {
    let lab = Topology::with_paths(trial.drive.paths()).build()?;
    let paths = emulated(&lab, &trial.drive);
    let mut emulator = Emulator::start(lab.network(), paths, trial.seed(run.seed))?;
    let began = ring::now() + trial.route.preparation() + WARM_UP;
    emulator.set_origin(began);
    emulator.steer(&[lab.ingress(), lab.egress()])?;
    let ends = trial
        .route
        .open(&lab, trial.port(), &run.hawser, directory)?;
    let length = trial.drive.part(run.seconds);
    let recording = stream::play(run, &lab, &ends, clip, began, length, directory)?;
    let session = ends.session()?;
    drop(ends);
    Ok((recording, emulator.stop()?, session))
}

/// Returns the number of the best route, which is selected afterwards, and its view.
fn best_view(recording: &Recording, window: Window) -> Option<(usize, View)> {
    let views = recording
        .arrived
        .iter()
        .map(|arrived| View::of(&recording.sent, arrived));
    let stalls = |view: &View| view.qoe(window).stall_ratio;
    views
        .enumerate()
        .min_by(|(_, a), (_, b)| stalls(a).total_cmp(&stalls(b)))
}

fn emulated(lab: &Lab, drive: &Drive) -> Vec<EmulatedPath> {
    let path = |(index, id)| EmulatedPath {
        name: format!("path{}", index + 1),
        ingress_device: network_ingress(id),
        egress_device: network_egress(id),
        forward: drive.uplink(index),
        backward: drive.downlink(index),
    };
    lab.paths().enumerate().map(path).collect()
}

/// Returns the reasons why the figures are not valid.
fn invalid_because(
    length: Duration,
    recording: &Recording,
    view: &View,
    emulation: &EmulatorReport,
) -> Vec<String> {
    let mut reasons = emulation.health.invalid_because();
    let wanted = frames(WARM_UP + length);
    let sent = view.frames.len();
    if (sent as f64) < MIN_SENT_FRAMES_RATIO * wanted as f64 {
        reasons.push(format!("the camera sent {sent} frames of {wanted}"));
    }
    let late = view.camera_lateness(0.99);
    if late > MAX_CAMERA_LATENESS {
        reasons.push(format!(
            "the camera was late: 99th percentile of the lateness {} ms, limit {} ms",
            late.as_millis(),
            MAX_CAMERA_LATENESS.as_millis()
        ));
    }
    reasons.extend(lost(recording, view));
    reasons
}

/// Returns the packets that the machine lost, and those that no camera sent.
fn lost(recording: &Recording, view: &View) -> Vec<String> {
    [
        (
            u64::from(recording.camera_overflow),
            "were dropped between the camera and the network",
        ),
        (
            u64::from(view.overflow),
            "were dropped at the viewer's socket because the machine was too slow",
        ),
        (view.unexpected as u64, "arrived that were not sent"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} packets {what}"))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::view::Frame;
    use super::*;
    use crate::emulator::Health;
    use hawser_units::{ByteSize, Instant};

    /// Returns a view of frames that were captured at the given times, ms.
    fn view(captured_ms: impl Iterator<Item = u64>) -> View {
        let frame = |ms| Frame {
            captured: Instant::from_nanos(ms * 1_000_000),
            size: ByteSize(1),
            first: None,
            complete: None,
            shown: None,
            decode_at: Instant::MAX,
            ssim: None,
        };
        View {
            frames: captured_ms.map(frame).collect(),
            packets: Vec::new(),
            unexpected: 0,
            overflow: 0,
        }
    }

    fn reasons(view: &View, camera_overflow: u32, health: Health) -> Vec<String> {
        let recording = Recording {
            sent: Vec::new(),
            arrived: Vec::new(),
            began: Instant::ZERO,
            camera_overflow,
        };
        let emulation = EmulatorReport {
            paths: Vec::new(),
            health,
        };
        invalid_because(Duration::from_secs(8), &recording, view, &emulation)
    }

    #[test]
    fn what_a_machine_could_not_do_makes_a_run_invalid() {
        let on_time = |number: u64| number * 1000 / 30;
        let good = view((0..300).map(on_time));
        assert_eq!(reasons(&good, 0, Health::default()), [""; 0]);

        let few = view((0..298).map(on_time));
        assert_eq!(
            reasons(&few, 0, Health::default()),
            ["the camera sent 298 frames of 300"]
        );
        let late = view((0..300).map(|number| on_time(number) + if number > 295 { 40 } else { 0 }));
        assert_eq!(
            reasons(&late, 0, Health::default()),
            ["the camera was late: 99th percentile of the lateness 40 ms, limit 33 ms"]
        );
        let lossy = View {
            unexpected: 1,
            overflow: 2,
            ..good
        };
        let late_emulator = Health {
            lateness_p99_us: 1001.0,
            ..Health::default()
        };
        assert_eq!(reasons(&lossy, 3, late_emulator).len(), 4);
    }
}
