//! The usage, the sizes of packets and the status of a client are written by a thread of their own: a slow disk delays no
//! decision of the client.

use super::sizes::Sizes;
use crate::status::Status;
use anyhow::{Context, Result};
use hawser_uplinks::Usage;
use std::thread::{self, JoinHandle};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::error;

/// The contents of the files.
#[derive(Debug, Clone)]
pub(super) struct Contents {
    pub(super) usage: Usage,
    pub(super) sizes: Sizes,
    pub(super) status: Status,
}

/// The thread that writes the files.
#[derive(Debug)]
pub(super) struct Files {
    /// The latest contents. Earlier ones that the thread has not yet taken are not written.
    latest: watch::Sender<Option<Contents>>,
    thread: JoinHandle<()>,
    has_failed: bool,
}

impl Files {
    /// Starts the thread, which calls `write` with the contents. Must be called within a Tokio runtime.
    pub(super) fn start(mut write: impl FnMut(&Contents) + Send + 'static) -> Result<Files> {
        let (latest, mut contents) = watch::channel(None::<Contents>);
        let runtime = Handle::current();
        let write_all = move || {
            // Ends when the sender is gone and its last contents are written.
            while runtime.block_on(contents.changed()).is_ok() {
                let contents = contents.borrow_and_update().clone();
                if let Some(contents) = contents {
                    write(&contents);
                }
            }
        };
        let thread = thread::Builder::new()
            .name("files".to_owned())
            .spawn(write_all)
            .context("cannot start the thread that writes the files of the client")?;
        Ok(Files {
            latest,
            thread,
            has_failed: false,
        })
    }

    /// Has the contents written soon. Logs once if the thread has failed.
    pub(super) fn write(&mut self, contents: Contents) {
        if self.latest.send(Some(contents)).is_err() && !self.has_failed {
            self.has_failed = true;
            error!("the usage and the status are out of date from now on: their thread has failed");
        }
    }

    /// Waits until the latest contents are written.
    pub(super) async fn finish(self) {
        drop(self.latest);
        let thread = self.thread;
        let joined = tokio::task::spawn_blocking(move || thread.join()).await;
        if !matches!(joined, Ok(Ok(()))) {
            error!("the usage and the status may not be written: their thread has failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Common, Credentials};
    use std::sync::mpsc;
    use std::time::Duration;

    fn contents(name: &str) -> Contents {
        let common = Common {
            name: name.to_owned(),
            interface: String::new(),
            mtu: 1440,
            state: "state".into(),
            metrics: None,
            report_every: Duration::ZERO,
            credentials: Credentials::Node("node".into()),
        };
        Contents {
            usage: Usage::default(),
            sizes: Sizes::default(),
            status: Status::new(&common, "client"),
        }
    }

    #[tokio::test]
    async fn a_slow_disk_delays_nothing_and_gets_the_latest_contents() {
        let (begun, has_begun) = mpsc::channel();
        let (disk, disk_is_ready) = mpsc::channel::<()>();
        let mut files = Files::start(move |contents| {
            begun.send(contents.status.name.clone()).unwrap();
            disk_is_ready.recv().unwrap();
        })
        .unwrap();
        files.write(contents("first"));
        assert_eq!(has_begun.recv().unwrap(), "first");
        // The disk still writes the first one.
        for name in ["second", "third"] {
            files.write(contents(name));
        }
        for _ in ["first", "third"] {
            disk.send(()).unwrap();
        }
        drop(disk);
        files.finish().await;
        assert_eq!(has_begun.try_iter().collect::<Vec<_>>(), ["third"]);
    }
}
