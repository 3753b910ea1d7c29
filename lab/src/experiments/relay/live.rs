//! The relay itself, `hawser relay`'s server with the kernel, with real sessions: a publisher in front of
//! it and viewers behind it, each in a namespace.

mod bottleneck;
mod chain;
mod publisher;

use super::calls::{self, Appendix, THESIS_S};
use super::us;
use crate::audience::{Member, Shown, View, watch};
use crate::experiment::Run;
use crate::relays::cpu_of_thread;
use crate::summary::Case;
use anyhow::{Context, Result, ensure};
use bottleneck::bottleneck;
use chain::Chain;
use hawser_io::clock;
use hawser_io::key_file;
use hawser_lab_bpf::{DelayProbe, Delays, Subscribers, SyscallCounter};
use hawser_netem::{Delay, LinkConfig, QueueLimit, Rate};
use hawser_objects::TrackSecret;
use hawser_testbed::ring::cpu_time;
use hawser_units::{Bitrate, Instant};
use nix::net::if_::if_nametoindex;
use nix::unistd::gettid;
pub(super) use publisher::STREAM_MBPS;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Viewers of which one may be congested.
const VIEWERS: usize = 50;

/// The path of a congested viewer: a tenth of the stream.
const SLOW_MBPS: f64 = STREAM_MBPS / 10.0;
const SLOW_QUEUE: Duration = Duration::from_millis(200);

/// The time for sessions to open and rates to settle.
const WARM_UP: Duration = Duration::from_secs(5);

/// The time that the last frames of a measurement may take.
const LAST_FRAMES: Duration = Duration::from_millis(500);

/// Times that the viewers are measured without a congested one and with one.
const ALTERNATIONS: usize = 3;

/// Viewers that come late, one after the other.
const LATE: usize = 10;
const LATE_PATIENCE: Duration = Duration::from_secs(5);

/// The one-way delay between relay and client in the thesis' set-up.
const THESIS_DELAY: Duration = Duration::from_millis(5);

/// Default duration of other measurements in seconds.
const MEASURED_S: f64 = 10.0;

/// A case with real sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Live {
    /// One of many viewers has a path that bears a tenth of the stream.
    Isolation,
    /// Viewers whose paths bear half of the stream, with and without priorities.
    Bottleneck,
    /// Viewers that come late.
    LateJoiners,
    /// A chain of relays.
    Chain(usize),
    /// The set-up of Pfeifer's section 4.1: one client, 5 ms behind the relay, 30 s of video.
    Thesis,
}

impl Live {
    pub(crate) const ALL: [Live; 6] = [
        Live::Isolation,
        Live::Bottleneck,
        Live::LateJoiners,
        Live::Chain(1),
        Live::Chain(3),
        Live::Thesis,
    ];

    pub(super) fn measure(self, run: &Run) -> Result<Case> {
        let seconds = run.seconds.unwrap_or(match self {
            Live::Thesis => THESIS_S,
            _ => MEASURED_S,
        });
        let measured = Duration::from_secs_f64(seconds);
        let relays = match self {
            Live::Chain(relays) => relays,
            _ => 1,
        };
        let mut case = Case::new(&self.to_string());
        case.set_param("seconds", seconds);
        case.set_param("stream_mbps", STREAM_MBPS);
        case.set_param("relays", relays);
        let folder = run.raw(&self.to_string().replace('/', "-"))?;
        let scene = Scene::create(relays, &folder)?;
        let probe = scene.probe()?;
        let (place, filled) = (&scene, &mut case);
        scene.play(move |backstage| {
            let path = match self {
                Live::Isolation => return isolation(place, &probe, measured, filled),
                Live::Bottleneck => return bottleneck(place, measured, filled),
                Live::LateJoiners => return late_joiners(place, filled),
                Live::Chain(_) => None,
                Live::Thesis => Some(LinkConfig {
                    delay: Delay::Constant(THESIS_DELAY),
                    ..LinkConfig::default()
                }),
            };
            one_viewer(place, path, measured, (&probe, &backstage), filled)
        })?;
        Ok(case)
    }
}

impl fmt::Display for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Live::Isolation => write!(f, "isolation"),
            Live::Bottleneck => write!(f, "bottleneck"),
            Live::LateJoiners => write!(f, "late-joiners"),
            Live::Chain(relays) => write!(f, "chain/{relays}"),
            Live::Thesis => write!(f, "thesis"),
        }
    }
}

/// The namespaces, and the secret of the broadcast.
struct Scene {
    chain: Chain,
    secret: [u8; 32],
    relay_key: PathBuf,
    folder: PathBuf,
}

/// The threads of the publisher and of the relays, and what counts system calls.
struct Backstage {
    publisher: u32,
    threads: Vec<u32>,
    syscalls: SyscallCounter,
}

impl Scene {
    fn create(relays: usize, folder: &Path) -> Result<Self> {
        let (media_key, relay_key) = (folder.join("media.key"), folder.join("relay.key"));
        hawser_publish::generate_secret(&media_key)?;
        hawser_relay::write_secret(&media_key, &relay_key)?;
        let secret = key_file::read_media(&media_key).map_err(anyhow::Error::msg)?;
        let chain = Chain::create(relays)?;
        Ok(Scene {
            chain,
            secret: *secret,
            relay_key,
            folder: folder.to_owned(),
        })
    }

    /// Starts to measure delays from the publisher's device to that of the last relay.
    fn probe(&self) -> Result<DelayProbe> {
        let chain = &self.chain;
        let last = chain.relays() - 1;
        let mut probe = DelayProbe::load()?;
        let attach = || -> Result<()> { Ok(probe.attach_arrival(if_nametoindex("out")?)?) };
        chain.publisher().run(attach)??;
        let attach = || -> Result<()> { Ok(probe.attach_departure(if_nametoindex("out")?)?) };
        chain.relay(last).run(attach)??;
        probe.set_apart(chain.viewer_addresses()[1].into());
        Ok(probe)
    }

    /// Runs publisher and relays while `watching` runs in the viewers' namespace.
    fn play<T: Send>(&self, watching: impl FnOnce(Backstage) -> Result<T> + Send) -> Result<T> {
        let stop = AtomicBool::new(false);
        let chain = &self.chain;
        thread::scope(|scope| {
            let (running, threads) = mpsc::channel();
            let (publishing, publisher) = mpsc::channel();
            let mut others = Vec::new();
            let (secret, stop) = (TrackSecret::new(self.secret), &stop);
            others.push(scope.spawn(move || -> Result<()> {
                let address = chain.publisher_address();
                let publish = || {
                    // Nobody waits any more if the run has failed.
                    let _ = publishing.send(gettid().as_raw() as u32);
                    publisher::publish(address, &secret, stop)
                };
                chain.publisher().run(publish)?
            }));
            for relay in 0..self.chain.relays() {
                let running = running.clone();
                others.push(scope.spawn(move || -> Result<()> {
                    let work = || {
                        let _ = running.send(gettid().as_raw() as u32);
                        chain.run_relay(relay, &self.relay_key, self.folder.clone(), stop)
                    };
                    chain.relay(relay).run(work)?
                }));
            }
            drop(running);
            let watched = SyscallCounter::load()
                .map_err(Into::into)
                .and_then(|syscalls| {
                    let backstage = Backstage {
                        publisher: publisher.recv().context("there is no publisher")?,
                        threads: threads.iter().take(chain.relays()).collect(),
                        syscalls,
                    };
                    chain.viewers().run(|| watching(backstage))?
                });
            stop.store(true, Relaxed);
            for other in others {
                let ended = other.join();
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            watched
        })
    }

    /// Opens a viewer at the address of most, or at the other one.
    fn member(&self, is_apart: bool, number: usize) -> Result<Member> {
        let own = self.chain.viewer_addresses()[usize::from(is_apart)];
        Member::open(
            own.into(),
            self.chain.relay_address(),
            self.secret,
            number as u64,
        )
    }
}

fn never(_: &[Member]) -> bool {
    false
}

/// Returns the groups of the frames that a viewer saw from a time on.
fn groups_since(view: &View, from: Instant) -> Option<RangeInclusive<u32>> {
    let shown = view.shown.iter().filter(|shown| shown.completed >= from);
    let groups = shown.map(|shown| shown.group);
    Some(groups.clone().min()?..=groups.max()?)
}

/// Returns the share of groups of which a viewer saw the frame.
fn seen(view: &View, groups: &RangeInclusive<u32>) -> f64 {
    share_of(view, groups, |_| true)
}

/// Returns the share of groups of which a viewer saw the frame with all layers.
fn seen_whole(view: &View, groups: &RangeInclusive<u32>) -> f64 {
    share_of(view, groups, |shown| shown.is_whole)
}

fn share_of(view: &View, groups: &RangeInclusive<u32>, counts: impl Fn(&Shown) -> bool) -> f64 {
    let shown = view.shown.iter();
    let seen = shown.filter(|shown| groups.contains(&shown.group) && counts(shown));
    seen.count() as f64 / (groups.end() - groups.start() + 1) as f64
}

/// Measures viewers without and with a congested one among them, alternately.
fn isolation(scene: &Scene, probe: &DelayProbe, measured: Duration, case: &mut Case) -> Result<()> {
    case.set_param("viewers", VIEWERS);
    case.set_param("slow_mbps", SLOW_MBPS);
    let members = (0..VIEWERS).map(|number| scene.member(number == 0, number));
    let mut members = members.collect::<Result<Vec<_>>>()?;
    watch(&mut members, WARM_UP, never)?;
    let mut delays = [Delays::default(), Delays::default()];
    let (mut slow_seen, mut others_seen) = (Vec::new(), Vec::new());
    for turn in 0..2 * ALTERNATIONS {
        let is_congested = turn % 2 == 1;
        let path = is_congested.then(|| LinkConfig {
            rate: Some(Rate::Constant(Bitrate::from_mbps(SLOW_MBPS))),
            queue: Some(QueueLimit::Time(SLOW_QUEUE)),
            ..LinkConfig::default()
        });
        members[0].view.set_path(path);
        watch(&mut members, WARM_UP, never)?;
        let from = clock::monotonic();
        probe.take(Subscribers::Others);
        watch(&mut members, measured, never)?;
        delays[usize::from(is_congested)].add(&probe.take(Subscribers::Others));
        let groups = groups_since(&members[1].view, from).context("viewers saw nothing")?;
        watch(&mut members, LAST_FRAMES, never)?;
        if is_congested {
            slow_seen.push(seen(&members[0].view, &groups));
            let others = members[1..]
                .iter()
                .map(|member| seen(&member.view, &groups));
            others_seen.push(others.fold(1.0, f64::min));
        }
    }
    let [without, with] = &delays;
    let p99 = [without, with].map(|delays| us(delays.percentile(0.99)));
    let mut set = |name: &str, figure: f64| case.metrics.set(name, figure);
    set("others_delay_p50_us", us(with.percentile(0.5)));
    set("others_delay_p99_us", p99[1]);
    set("others_delay_p99_without_us", p99[0]);
    set("others_delay_p99_ratio", p99[1] / p99[0]);
    set("others_least_frames_ratio", least(&others_seen));
    set("slow_frames_ratio", mean(&slow_seen));
    Ok(())
}

fn least(figures: &[f64]) -> f64 {
    figures.iter().copied().fold(f64::NAN, f64::min)
}

fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

/// Measures the time from a viewer's first message to its first frame.
fn late_joiners(scene: &Scene, case: &mut Case) -> Result<()> {
    let mut members = vec![scene.member(false, 0)?];
    watch(&mut members, WARM_UP, never)?;
    let mut waits = Vec::new();
    for number in 1..=LATE {
        members.push(scene.member(false, number)?);
        watch(&mut members, LATE_PATIENCE, |members| {
            !members[1].view.shown.is_empty()
        })?;
        let late = members.pop().context("it has just been added")?;
        let first = late
            .view
            .shown
            .first()
            .context("a late viewer saw nothing")?;
        let waited = first.completed.saturating_since(late.asked);
        waits.push(waited.as_secs_f64() * 1e3);
    }
    let longest = waits.iter().copied().fold(0.0, f64::max);
    case.set_param("viewers", LATE);
    case.metrics
        .set("first_picture_p50_ms", crate::bench::median(waits));
    case.metrics.set("first_picture_max_ms", longest);
    Ok(())
}

/// Measures the delay to one viewer, and the relays' system calls and CPU time.
fn one_viewer(
    scene: &Scene,
    path: Option<LinkConfig>,
    measured: Duration,
    (probe, backstage): (&DelayProbe, &Backstage),
    case: &mut Case,
) -> Result<()> {
    let mut members = vec![scene.member(false, 0)?];
    members[0].view.set_path(path);
    watch(&mut members, WARM_UP, never)?;
    for thread in &backstage.threads {
        backstage.syscalls.add(*thread)?;
    }
    let (from, before) = (clock::monotonic(), cpu_of(&backstage.threads)?);
    let (own_before, server_before) = (cpu_time(), cpu_of_thread(backstage.publisher)?);
    probe.take(Subscribers::Others);
    watch(&mut members, measured, never)?;
    let delays = probe.take(Subscribers::Others);
    let seconds = clock::monotonic().saturating_since(from).as_secs_f64();
    let cpu = cpu_of(&backstage.threads)? - before;
    let viewer_cpu = cpu_time() - own_before;
    let server_cpu = cpu_of_thread(backstage.publisher)? - server_before;
    let counts = backstage.syscalls.counts()?;
    let groups = groups_since(&members[0].view, from).context("the viewer saw nothing")?;
    ensure!(delays.packets() > 0, "no packet passed the relay");
    let total: u64 = counts.iter().map(|(_, count)| count).sum();
    let mut set = |name: &str, figure: f64| case.metrics.set(name, figure);
    set("added_delay_p50_us", us(delays.percentile(0.5)));
    set("added_delay_p99_us", us(delays.percentile(0.99)));
    set("added_delay_stddev_us", us(delays.deviation()));
    set("frames_ratio", seen(&members[0].view, &groups));
    set("server_cpu_cores", server_cpu.as_secs_f64() / seconds);
    set("relay_cpu_cores", cpu.as_secs_f64() / seconds);
    set("viewer_cpu_cores", viewer_cpu.as_secs_f64() / seconds);
    set(
        "syscalls_per_delivered_packets",
        total as f64 / delays.packets() as f64,
    );
    calls::set(case, &counts, seconds, Appendix::A);
    Ok(())
}

/// Returns the CPU time that threads of this process have used.
fn cpu_of(threads: &[u32]) -> Result<Duration> {
    threads.iter().map(|thread| cpu_of_thread(*thread)).sum()
}
