//! A publisher's and a viewer's machine with a link between them.

#![allow(dead_code, reason = "each test uses a part")]

use hawser_publish::{Config, Publisher};
use hawser_recording::{Recording, Source, Synthetic};
use hawser_testbed::netns::Namespace;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) struct Machines {
    pub(crate) publisher: Namespace,
    pub(crate) viewer: Namespace,
}

impl Machines {
    /// Creates the machines, with the addresses 192.0.2.1 and 192.0.2.2 at their devices `eth0`.
    pub(crate) fn create(test: &str) -> Self {
        let namespace = |role: &str| {
            let id = std::process::id();
            Namespace::create(format!("hawser-{test}-{role}-{id}")).unwrap()
        };
        let (publisher, viewer) = (namespace("publisher"), namespace("viewer"));
        let link = format!(
            "link add eth0 type veth peer name eth0 netns {}\naddr add 192.0.2.1/24 dev eth0\nlink set eth0 up",
            viewer.name()
        );
        publisher.ip(&link).unwrap();
        viewer
            .ip("addr add 192.0.2.2/24 dev eth0\nlink set eth0 up")
            .unwrap();
        Machines { publisher, viewer }
    }
}

/// A directory with the secret of a broadcast, for the publisher's machine.
pub(crate) struct Broadcast {
    directory: TempDir,
}

impl Broadcast {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        hawser_publish::generate_secret(&directory.path().join("media.key")).unwrap();
        Broadcast { directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns a publisher of frames of so many points, 30 a second.
    pub(crate) fn publisher(&self, points: usize) -> Config {
        let source = Source::Synthetic(Synthetic {
            seed: 1,
            points,
            seconds: 1.0,
        });
        Config {
            fps: 30.0,
            listen: "192.0.2.1:0".parse().unwrap(),
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

    pub(crate) fn viewer(&self, publisher: &Publisher) -> hawser_view::Config {
        hawser_view::Config {
            duration: Some(Duration::from_secs(120)),
            ..hawser_view::Config::new(publisher.address().to_string(), self.path("media.key"))
        }
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for namespace in [&self.publisher, &self.viewer] {
            let _ = namespace.delete();
        }
    }
}
