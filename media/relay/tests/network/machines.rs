//! A publisher, relays in a chain, and two networks of viewers, in network namespaces.

use crate::process;
use hawser_publish::{Config, Publisher};
use hawser_recording::{Recording, Source, Synthetic};
use hawser_relay::status::Status;
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use hawser_view::{Row, Summary};
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// The address of the publisher.
pub(crate) const PUBLISHER: &str = "192.0.2.1:14748";

/// Returns the address of a publisher of a room.
fn publisher(person: usize) -> String {
    format!("192.0.2.1:{}", 14_748 + person)
}

/// The address of a viewer in `far`.
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// The maximum time to wait for a condition.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The machines: a line of `publisher`, relays and `viewers`. The last relay has a second link, to `far`.
pub(crate) struct Machines {
    pub(crate) publisher: Namespace,
    pub(crate) relays: Vec<Namespace>,
    pub(crate) viewers: Namespace,
    pub(crate) far: Namespace,
    directory: tempfile::TempDir,
}

/// A place from which a viewer watches.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    Near,
    Far,
    /// The machine of the last relay.
    Relay,
}

/// Connects two machines by a link on which they have addresses 1 and 2.
fn link(one: &Namespace, device: &str, network: &str, two: &Namespace, other: &str) {
    one.ip(&format!(
        "link add name {device} type veth peer name {other} netns {}\n\
         addr add {network}.1/24 dev {device}\nlink set {device} up",
        two.name()
    ))
    .unwrap();
    two.ip(&format!(
        "addr add {network}.2/24 dev {other}\nlink set {other} up\nlink set lo up"
    ))
    .unwrap();
}

impl Machines {
    pub(crate) fn create(test: &str, relays: usize) -> Self {
        let namespace = |role: &str| {
            let id = std::process::id();
            Namespace::create(format!("hawser-{test}-{role}-{id}")).unwrap()
        };
        let machines = Machines {
            publisher: namespace("publisher"),
            relays: (0..relays)
                .map(|relay| namespace(&format!("relay{relay}")))
                .collect(),
            viewers: namespace("viewers"),
            far: namespace("far"),
            directory: tempfile::tempdir().unwrap(),
        };
        let mut before = &machines.publisher;
        for (index, relay) in machines.relays.iter().enumerate() {
            link(
                before,
                "eth1",
                &format!("192.0.{}", 2 + index),
                relay,
                "eth0",
            );
            before = relay;
        }
        link(before, "eth1", "198.51.100", &machines.viewers, "eth0");
        link(before, "eth2", "203.0.113", &machines.far, "eth0");
        // Viewers of the second network reach the relay's only address.
        machines
            .far
            .ip("route add default via 203.0.113.1 dev eth0")
            .unwrap();
        hawser_publish::generate_secret(&machines.path("media.key")).unwrap();
        hawser_relay::write_secret(&machines.path("media.key"), &machines.path("relay.key"))
            .unwrap();
        machines
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a publisher, which ends when `stop` is set. Its frames live so long that a busy machine delivers them.
    pub(crate) fn publish<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        stop: &'s AtomicBool,
    ) -> ScopedJoinHandle<'s, ()> {
        let config = Config {
            lifetime: Duration::from_secs(5),
            ..self.publisher_config(0)
        };
        self.publish_with(scope, &config, stop)
    }

    /// Starts a publisher of a recording, or else of the usual performer, which ends when `stop` is set.
    pub(crate) fn publish_recording<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        recording: Option<Recording>,
        stop: &'s AtomicBool,
    ) -> ScopedJoinHandle<'s, ()> {
        let usual = self.publisher_config(0);
        let config = recording.map_or(usual, |recording| Config {
            listen: PUBLISHER.parse().unwrap(),
            ..Config::new(recording, self.path("media.key"))
        });
        let lifetime = Duration::from_secs(5);
        self.publish_with(scope, &Config { lifetime, ..config }, stop)
    }

    /// Starts the publisher of a person in a room, which ends when `stop` is set, with a small encoding
    /// besides the usual one or not.
    pub(crate) fn publish_as<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        person: usize,
        stop: &'s AtomicBool,
        has_small: bool,
    ) -> ScopedJoinHandle<'s, ()> {
        let config = Config {
            has_small,
            ..self.publisher_config(person)
        };
        self.publish_with(scope, &config, stop)
    }

    fn publisher_config(&self, person: usize) -> Config {
        let source = Source::Synthetic(Synthetic {
            seed: 1,
            points: 6000,
            seconds: 1.0,
        });
        Config {
            fps: 30.0,
            listen: publisher(person).parse().unwrap(),
            ..Config::new(
                Recording {
                    fps: 30.0,
                    source,
                    audio: None,
                },
                self.path("media.key"),
            )
        }
    }

    fn publish_with<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        config: &Config,
        stop: &'s AtomicBool,
    ) -> ScopedJoinHandle<'s, ()> {
        let open = || Publisher::open(config).unwrap();
        let publisher = self.publisher.run(open).unwrap();
        scope.spawn(move || {
            publisher.run(stop).unwrap();
        })
    }

    /// Returns the address at which a relay of the chain serves.
    pub(crate) fn address(&self, relay: usize) -> String {
        match relay + 1 == self.relays.len() {
            true => "198.51.100.1:14750".to_owned(),
            false => format!("192.0.{}.1:14750", 3 + relay),
        }
    }

    /// Starts a relay of the chain.
    pub(crate) fn relay(&self, index: usize) -> Process {
        self.relay_with(index, "")
    }

    /// Starts a relay of the chain with further lines in its configuration.
    pub(crate) fn relay_with(&self, index: usize, more: &str) -> Process {
        let upstream = match index {
            0 => PUBLISHER.to_owned(),
            _ => self.address(index - 1),
        };
        self.relay_of(index, &format!("upstream = \"{upstream}\"\n"), more)
    }

    /// Starts the first relay, which serves browsers of its machine, and the page for them.
    pub(crate) fn relay_web(&self, page: &str) -> Process {
        let upstream = format!("upstream = \"{PUBLISHER}\"\n");
        let web = format!("web = \"{page}\"\n");
        self.start_relay(0, &web, &upstream, "[broadcast.moq]\n")
    }

    /// Starts a relay of the chain with the line of its source, and further ones.
    pub(crate) fn relay_of(&self, index: usize, upstream: &str, more: &str) -> Process {
        self.start_relay(index, "", upstream, more)
    }

    fn start_relay(&self, index: usize, top: &str, upstream: &str, more: &str) -> Process {
        let file = self.path(&format!("relay{index}.toml"));
        let text = format!(
            "name = \"relay{index}\"\nstate = \"{}\"\n{top}\
             [[broadcast]]\nname = \"stage\"\n{upstream}listen = \"{}\"\nkey = \"relay.key\"\n{more}",
            self.directory.path().display(),
            self.address(index),
        );
        fs::write(&file, text).unwrap();
        process::start(&self.relays[index], &file)
    }

    /// Starts a relay for the broadcasts of a room.
    pub(crate) fn relay_room(&self, people: usize) -> Process {
        let file = self.path("room.toml");
        let mut text = format!(
            "name = \"room\"\nstate = \"{}\"\n",
            self.directory.path().display()
        );
        for person in 0..people {
            let (upstream, listen) = (publisher(person), Self::room_address(person));
            text += &format!(
                "[[broadcast]]\nname = \"person{person}\"\nupstream = \"{upstream}\"\n\
                 listen = \"{listen}\"\nkey = \"relay.key\"\n"
            );
        }
        fs::write(&file, text).unwrap();
        process::start(&self.relays[0], &file)
    }

    /// Returns the address at which a relay serves a person of a room.
    fn room_address(person: usize) -> String {
        format!("198.51.100.1:{}", 14_750 + person)
    }

    /// Starts a viewer of a person in a room, which ends when `stop` is set.
    pub(crate) fn watch_person<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        viewer: &str,
        person: usize,
        stop: &'s AtomicBool,
    ) -> ScopedJoinHandle<'s, Summary> {
        self.watch_at(
            scope,
            viewer,
            (Place::Near, Self::room_address(person)),
            None,
            stop,
        )
    }

    /// Starts a viewer of a person in a room at the far end, with a table of poses.
    pub(crate) fn watch_from<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        viewer: &str,
        person: usize,
        poses: &str,
        stop: &'s AtomicBool,
    ) -> ScopedJoinHandle<'s, Summary> {
        let file = self.path(&format!("poses-{viewer}.csv"));
        fs::write(&file, poses).unwrap();
        let at = (Place::Far, Self::room_address(person));
        self.watch_at(scope, viewer, at, Some(file), stop)
    }

    /// Lets the link to the far end bear no more than a rate.
    pub(crate) fn limit_far(&self, rate: &str) {
        let tbf = format!("qdisc add dev eth2 root tbf rate {rate} burst 5kb latency 100ms");
        let relay = self.relays.last().unwrap();
        let limit = || Command::new("tc").args(tbf.split(' ')).status().unwrap();
        assert!(relay.run(limit).unwrap().success());
    }

    /// Returns the newest status of a relay, at most a second old.
    pub(crate) fn status(&self, relay: usize) -> Option<Status> {
        Status::read(&self.path(&format!("relay{relay}/status.json"))).ok()
    }

    /// Waits for a status of a relay.
    pub(crate) fn wait_for_status(&self, relay: usize, is_met: impl Fn(&Status) -> bool) -> Status {
        let began = Instant::now();
        loop {
            let status = self.status(relay);
            if let Some(status) = status.clone().filter(&is_met) {
                return status;
            }
            assert!(began.elapsed() < TIMEOUT, "{status:?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn timeline(&self, viewer: &str) -> PathBuf {
        self.path(&format!("timeline-{viewer}.csv"))
    }

    /// Returns the number of frames that a viewer has shown so far.
    pub(crate) fn shown(&self, viewer: &str) -> usize {
        let rows = fs::read_to_string(self.timeline(viewer)).unwrap_or_default();
        rows.lines().count().saturating_sub(1)
    }

    pub(crate) fn wait_for_frames(&self, viewer: &str, frames: usize) {
        let began = Instant::now();
        while self.shown(viewer) < frames {
            let shown = self.shown(viewer);
            assert!(began.elapsed() < TIMEOUT, "{viewer} has {shown} frames");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a viewer has shown so many frames one after the other that are as they should be. A busy machine may
    /// miss some before.
    pub(crate) fn wait_for_run(
        &self,
        viewer: &str,
        frames: usize,
        is_right: impl Fn(&Row) -> bool,
    ) {
        let began = Instant::now();
        loop {
            let rows = self.rows(viewer);
            let follows = |one: &Row, next: &Row| {
                next.group == one.group + 1 && is_right(one) && is_right(next)
            };
            if rows.chunk_by(follows).any(|run| run.len() >= frames) {
                return;
            }
            assert!(began.elapsed() < TIMEOUT, "{viewer}: {rows:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until a viewer shows nothing more.
    pub(crate) fn wait_for_silence(&self, viewer: &str) {
        let began = Instant::now();
        loop {
            let before = self.shown(viewer);
            thread::sleep(Duration::from_millis(800));
            if self.shown(viewer) == before {
                return;
            }
            assert!(began.elapsed() < TIMEOUT, "{viewer} still shows frames");
        }
    }

    /// Starts a viewer, which ends when `stop` is set.
    pub(crate) fn watch<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        viewer: &str,
        place: Place,
        stop: &'s AtomicBool,
    ) -> ScopedJoinHandle<'s, Summary> {
        let address = self.address(self.relays.len() - 1);
        self.watch_at(scope, viewer, (place, address), None, stop)
    }

    /// Starts a viewer that saves what it gets in a directory named as it is, and ends when `stop` is set.
    pub(crate) fn watch_and_save<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        viewer: &str,
        place: Place,
        stop: &'s AtomicBool,
    ) -> ScopedJoinHandle<'s, Summary> {
        let address = self.address(self.relays.len() - 1);
        let config = hawser_view::Config {
            save: Some(self.path(viewer)),
            ..self.viewer_config(viewer, address)
        };
        self.watch_with(scope, place, config, stop)
    }

    fn viewer_config(&self, viewer: &str, address: String) -> hawser_view::Config {
        hawser_view::Config {
            timeline: Some(self.timeline(viewer)),
            ..hawser_view::Config::new(address, self.path("media.key"))
        }
    }

    fn watch_at<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        viewer: &str,
        (place, address): (Place, String),
        poses: Option<PathBuf>,
        stop: &'s AtomicBool,
    ) -> ScopedJoinHandle<'s, Summary> {
        let config = hawser_view::Config {
            poses,
            ..self.viewer_config(viewer, address)
        };
        self.watch_with(scope, place, config, stop)
    }

    fn watch_with<'s>(
        &'s self,
        scope: &'s Scope<'s, '_>,
        place: Place,
        config: hawser_view::Config,
        stop: &'s AtomicBool,
    ) -> ScopedJoinHandle<'s, Summary> {
        scope.spawn(move || {
            let namespace = match place {
                Place::Near => &self.viewers,
                Place::Far => &self.far,
                Place::Relay => self.relays.last().unwrap(),
            };
            let watch = || hawser_view::watch(&config, stop).unwrap();
            namespace.run(watch).unwrap()
        })
    }

    /// Returns the frames that a viewer has shown so far.
    pub(crate) fn rows(&self, viewer: &str) -> Vec<Row> {
        let Ok(mut reader) = csv::Reader::from_path(self.timeline(viewer)) else {
            return Vec::new();
        };
        // The last row may be incomplete.
        reader.deserialize().map_while(Result::ok).collect()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let others = [&self.publisher, &self.viewers, &self.far];
        for namespace in others.into_iter().chain(&self.relays) {
            let _ = namespace.delete();
        }
    }
}

/// Sets a flag when it is dropped, so that threads end even if an assertion fails.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}
