//! A video in the tunnel with cross traffic: uploads, a sender without congestion control, a second
//! camera.

mod report;

use crate::emulator::{EmulatedPath, Emulator};
use crate::experiment::{Experiment, Measured, Results, Run};
use crate::experiments::cross_traffic::{ActiveCrossTraffic, CROSS_TRAFFIC, CrossTraffic, Stopped};
use crate::experiments::rtp_video::Video;
use crate::programs::tunnel::{DEVICE, INNER, TunnelProcesses, route_to_server, wait_for_route};
use crate::summary::{Case, Metrics, Summary};
use anyhow::{Result, bail};
use hawser_netem::{Delay, LinkConfig, QueueLimit, Rate};
use hawser_qoe::{Frame, Window, measure};
use hawser_testbed::netns::Namespace;
use hawser_testbed::ring;
use hawser_testbed::topology::{Lab, Topology, network_egress, network_ingress};
use hawser_units::{Bitrate, Instant};
use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::time::Duration;

/// The uplinks, with the same properties in both directions.
const UPLINKS: usize = 2;
const UPLINK_MBPS: f64 = 10.0;
const ONE_WAY_DELAY: Duration = Duration::from_millis(20);

/// The drop-tail queue of each uplink, as the time that it takes to drain.
const QUEUE: Duration = Duration::from_millis(100);

/// The time for which the video runs alone before the cross traffic starts.
const ALONE: Duration = Duration::from_secs(2);

/// The time after the start of the cross traffic that is not measured, in which its congestion
/// windows grow.
const WARM_UP: Duration = Duration::from_secs(5);

/// Default duration of the measurement in seconds.
const MEASURED_S: f64 = 30.0;

/// The experiment.
pub(crate) struct TunnelFlows;

impl Experiment for TunnelFlows {
    type Case = Scenario;
    type Trial = Scenario;
    type Outcome = Outcome;

    fn name(&self) -> &'static str {
        "tunnel-flows"
    }

    fn about(&self) -> &'static str {
        "a video in the tunnel with cross traffic, in both directions: CUBIC and BBR uploads, UDP at 30 Mb/s, a second camera"
    }

    fn cases(&self) -> Vec<Scenario> {
        scenarios()
    }

    fn trials(&self, run: &Run) -> Result<Vec<Scenario>> {
        run.chosen(scenarios())
    }

    fn measure(&self, scenario: &Scenario, run: &Run) -> Result<Outcome> {
        scenario.run(run)
    }

    fn summarise(&self, completed: Results<Self>, summary: &mut Summary, run: &Run) -> Result<()> {
        let cases = completed.iter().map(|one| one.outcome.case(one.trial));
        summary.cases = cases.collect();
        report::write(summary, &completed, &run.out)
    }
}

/// The direction of the video and of the cross traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// A case: the cross traffic and the direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scenario {
    cross_traffic: &'static CrossTraffic,
    direction: Direction,
}

fn scenarios() -> Vec<Scenario> {
    let of = |direction| {
        CROSS_TRAFFIC.iter().map(move |cross_traffic| Scenario {
            cross_traffic,
            direction,
        })
    };
    of(Direction::Up).chain(of(Direction::Down)).collect()
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = if self.direction == Direction::Up {
            ""
        } else {
            "/down"
        };
        write!(f, "{}{direction}", self.cross_traffic.name)
    }
}

/// The result of one run.
pub(crate) struct Outcome {
    window: Window,
    from: Instant,
    frames: Vec<Frame>,
    /// The frames of the second camera, if there is one.
    second: Option<Vec<Frame>>,
    /// Received rate of the cross traffic in Mb/s.
    other_mbps: Option<f64>,
    invalid_because: Vec<String>,
}

impl Scenario {
    fn run(self, run: &Run) -> Result<Outcome> {
        let directory = run.raw(&self.to_string().replace('/', "-"))?;
        let lab = Topology::with_paths(UPLINKS).build()?;
        let mut emulator = Emulator::start(lab.network(), paths(&lab), run.seed)?;
        emulator.steer(&[lab.ingress(), lab.egress()])?;
        route_to_server(&lab)?;
        let (client, server) = (lab.ingress(), lab.egress());
        let ends = TunnelProcesses::start(&run.hawser, client, server, &directory, "path*", "")?;
        let address = ends.client_address(UPLINKS)?;
        wait_for_route(client, INNER, DEVICE)?;
        let outcome = match self.direction {
            Direction::Up => self.observe(run, client, server, INNER.into()),
            Direction::Down => self.observe(run, server, client, address),
        };
        drop(ends);
        let emulation = emulator.stop()?;
        let mut outcome = outcome?;
        outcome
            .invalid_because
            .extend(emulation.health.invalid_because());
        let raw = serde_json::json!({ "delays": outcome.delays(), "emulator": emulation });
        fs::write(directory.join("outcome.json"), serde_json::to_vec(&raw)?)?;
        Ok(outcome)
    }

    /// Sends the video and the cross traffic from one namespace to an address of the other.
    fn observe(
        self,
        run: &Run,
        from: &Namespace,
        to: &Namespace,
        address: IpAddr,
    ) -> Result<Outcome> {
        let video = Video::start(from, to, address, run.seed)?;
        pause(run, ALONE)?;
        let cross_traffic =
            ActiveCrossTraffic::start(self.cross_traffic, from, to, address, run.seed)?;
        pause(run, WARM_UP)?;
        let (began, before) = (ring::now(), cross_traffic.received_bytes());
        let measured = Duration::from_secs_f64(run.seconds.unwrap_or(MEASURED_S));
        pause(run, measured)?;
        let received_bytes = cross_traffic.received_bytes() - before;
        let window = Window::new(began, ring::now())
            .unwrap_or_else(|| unreachable!("the measurement has a duration"));
        // The video is stopped first, so that the cross traffic continues until its last frames
        // have arrived.
        let (frames, _) = video.stop()?;
        let stopped = cross_traffic.stop()?;
        Ok(Outcome {
            window,
            from: began,
            frames,
            other_mbps: self.other_mbps(&stopped, received_bytes, window),
            second: stopped.frames,
            invalid_because: stopped.invalid_because,
        })
    }

    /// Returns the received rate of the cross traffic; that of a camera counts complete frames only.
    fn other_mbps(self, stopped: &Stopped, received_bytes: u64, window: Window) -> Option<f64> {
        match &stopped.frames {
            Some(frames) => Some(measure(frames, window).throughput_mbps),
            None if self.cross_traffic.is_none() => None,
            None => Some(received_bytes as f64 * 8e-6 / window.duration().as_secs_f64()),
        }
    }
}

impl Measured for Outcome {
    fn invalid_because(&self) -> Vec<String> {
        self.invalid_because.clone()
    }
}

impl Outcome {
    fn case(&self, scenario: Scenario) -> Case {
        let mut case = Case::new(&scenario.to_string());
        case.set_param("seconds", self.window.duration().as_secs_f64());
        case.set_param("uplinks", UPLINKS);
        case.set_param("uplink_mbps", UPLINK_MBPS);
        case.set_param("one_way_delay_ms", ONE_WAY_DELAY.as_millis() as u64);
        case.set_param("queue_ms", QUEUE.as_millis() as u64);
        let video = measure(&self.frames, self.window);
        case.metrics = Metrics::from([
            ("fps_mean", video.fps_mean),
            ("stall_ratio", video.stall_ratio),
            ("frame_delay_p50_ms", or_nan(video.frame_delay_p50_ms)),
            ("frame_delay_p95_ms", or_nan(video.frame_delay_p95_ms)),
            ("throughput_mbps", video.throughput_mbps),
        ]);
        self.set_others(&mut case.metrics, video.throughput_mbps);
        case
    }

    /// Sets the figures of the cross traffic beside a video of the given rate.
    fn set_others(&self, metrics: &mut Metrics, video_mbps: f64) {
        if let Some(cross_traffic) = self.other_mbps {
            let left = UPLINKS as f64 * UPLINK_MBPS - video_mbps;
            metrics.set("other_throughput_mbps", cross_traffic);
            metrics.set("other_of_what_the_video_leaves_ratio", cross_traffic / left);
        }
        if let Some(second) = &self.second {
            let second = measure(second, self.window);
            let delay_ms = or_nan(second.frame_delay_p95_ms);
            metrics.set("other_fps_mean", second.fps_mean);
            metrics.set("other_stall_ratio", second.stall_ratio);
            metrics.set("other_frame_delay_p95_ms", delay_ms);
        }
    }

    /// Returns when each frame was complete, in seconds since the start of the measurement, and its
    /// age at that time in milliseconds.
    fn delays(&self) -> Vec<(f64, f64)> {
        let frames = self
            .frames
            .iter()
            .filter(|frame| self.window.contains(frame.decoded));
        let delay =
            |frame: &Frame| frame.decoded.saturating_since(frame.captured).as_secs_f64() * 1e3;
        frames
            .map(|frame| {
                (
                    frame.decoded.saturating_since(self.from).as_secs_f64(),
                    delay(frame),
                )
            })
            .collect()
    }
}

fn or_nan(delay_ms: Option<f64>) -> f64 {
    delay_ms.unwrap_or(f64::NAN)
}

fn pause(run: &Run, length: Duration) -> Result<()> {
    if run.stop.sleep(length) {
        bail!("stopped");
    }
    Ok(())
}

fn paths(lab: &Lab) -> Vec<EmulatedPath> {
    let link = LinkConfig {
        rate: Some(Rate::Constant(Bitrate::from_mbps(UPLINK_MBPS))),
        queue: Some(QueueLimit::Time(QUEUE)),
        delay: Delay::Constant(ONE_WAY_DELAY),
        ..LinkConfig::default()
    };
    let path = |id| EmulatedPath {
        name: format!("{id}"),
        ingress_device: network_ingress(id),
        egress_device: network_egress(id),
        forward: link.clone(),
        backward: link.clone(),
    };
    lab.paths().map(path).collect()
}
