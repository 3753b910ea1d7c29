//! A publisher, a relay and viewers in network namespaces.

use hawser_io::netns::Namespace;
use hawser_media::{Recording, Source, Synthetic};
use hawser_publish::push::{PushConfig, PushPublisher};
use hawser_relay::{Config, Kernel, Server};
use hawser_view::push;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

/// The machines: the relay's has a link to the publisher's and one to that of the viewers.
struct Machines {
    publisher: Namespace,
    relay: Namespace,
    viewers: Namespace,
    directory: tempfile::TempDir,
}

const PUBLISHER: &str = "192.0.2.1:14748";
const RELAY: &str = "198.51.100.1:14750";

impl Machines {
    fn create(test: &str) -> Self {
        let namespace = |role: &str| {
            let id = std::process::id();
            Namespace::create(format!("hawser-{test}-{role}-{id}")).unwrap()
        };
        let [publisher, relay, viewers] = ["publisher", "relay", "viewers"].map(namespace);
        for (other, device, network) in [
            (&publisher, "eth0", "192.0.2"),
            (&viewers, "eth1", "198.51.100"),
        ] {
            let (ours, theirs) = match device {
                "eth0" => (2, 1),
                _ => (1, 2),
            };
            relay
                .ip(&format!(
                    "link add name {device} type veth peer name eth0 netns {}\naddr add {network}.{ours}/24 dev {device}\nlink set {device} up",
                    other.name()
                ))
                .unwrap();
            other
                .ip(&format!(
                    "addr add {network}.{theirs}/24 dev eth0\nlink set eth0 up\nlink set lo up"
                ))
                .unwrap();
        }
        Machines {
            publisher,
            relay,
            viewers,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Generates the secrets and starts a publisher.
    fn publish<'s>(&'s self, scope: &'s Scope<'s, '_>, stop: &'s AtomicBool) {
        hawser_publish::generate_secret(&self.path("media.key")).unwrap();
        hawser_relay::write_secret(&self.path("media.key"), &self.path("relay.key")).unwrap();
        let source = Source::Synthetic(Synthetic {
            seed: 1,
            points: 3000,
            seconds: 1.0,
        });
        let config = PushConfig {
            fps: 30.0,
            listen: PUBLISHER.parse().unwrap(),
            ..PushConfig::new(Recording { fps: 30.0, source }, self.path("media.key"))
        };
        let open = || PushPublisher::open(&config).unwrap();
        let publisher = self.publisher.run(open).unwrap();
        scope.spawn(move || publisher.run(stop).unwrap());
    }

    /// Starts a relay.
    fn relay<'s>(&'s self, scope: &'s Scope<'s, '_>, stop: &'s AtomicBool) {
        let file = self.path("relay.toml");
        let text = format!(
            "state = \"{}\"\n[[broadcast]]\nname = \"stage\"\nupstream = \"{PUBLISHER}\"\nlisten = \"{RELAY}\"\nkey = \"relay.key\"\n",
            self.directory.path().display()
        );
        fs::write(&file, text).unwrap();
        let config = Config::read(&file).unwrap();
        scope.spawn(move || {
            let run = || {
                let kernel = Kernel::load(&[RELAY.parse().unwrap()]).unwrap();
                let mut server = Server::open(&config, kernel).unwrap();
                server
                    .run(stop, |kernel| vec![kernel.descriptor()])
                    .unwrap();
                server.status()
            };
            self.relay.run(run).unwrap()
        });
    }

    fn timeline(&self, viewer: usize) -> PathBuf {
        self.path(&format!("timeline-{viewer}.csv"))
    }

    /// Watches until the viewer has this number of frames.
    fn watch(&self, viewer: usize, frames: usize) -> String {
        let config = push::PushConfig {
            timeline: Some(self.timeline(viewer)),
            duration: Some(Duration::from_secs(30)),
            ..push::PushConfig::new(RELAY.to_owned(), self.path("media.key"))
        };
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let watch = || push::watch(&config, &stop).unwrap();
                self.viewers.run(watch).unwrap()
            });
            let began = Instant::now();
            while count(&self.timeline(viewer)) < frames
                && began.elapsed() < Duration::from_secs(25)
            {
                thread::sleep(Duration::from_millis(20));
            }
            stop.store(true, Relaxed);
            watching.join().unwrap().to_string()
        })
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for namespace in [&self.publisher, &self.relay, &self.viewers] {
            let _ = namespace.delete();
        }
    }
}

/// Returns the number of frames in a timeline that is being written.
fn count(timeline: &Path) -> usize {
    let rows = fs::read_to_string(timeline).unwrap_or_default();
    rows.lines().count().saturating_sub(1)
}

/// Sets a flag when it is dropped, so that threads end even if an assertion fails.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn viewers_see_every_frame_through_a_relay() {
    let machines = Machines::create("relayed");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        machines.publish(scope, &stop);
        machines.relay(scope, &stop);
        let viewers = [0, 1, 2].map(|viewer| {
            let machines = &machines;
            scope.spawn(move || machines.watch(viewer, 60))
        });
        for viewer in viewers {
            println!("{}", viewer.join().unwrap());
        }
        for viewer in [0, 1, 2] {
            assert!(count(&machines.timeline(viewer)) >= 60);
        }
        println!(
            "{}",
            fs::read_to_string(machines.path("relay/status.json")).unwrap()
        );
    });
}
