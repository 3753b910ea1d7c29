//! A broadcast that relays distribute to several viewers.

use super::ends::{self, End, Places};
use super::push::{PushSource, generate_key};
use anyhow::{Context, Result};
use hawser_testbed::netns::Namespace;
use hawser_testbed::topology::Stop;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A running broadcast. It stops when this is dropped.
#[derive(Debug)]
pub struct Broadcast {
    publisher: End,
    relays: Vec<Relay>,
    viewers: Vec<Viewer>,
    binary: PathBuf,
    directory: PathBuf,
    address: String,
}

/// The frames without which a viewer makes the run fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// A frame before the run begins.
    Frames,
    /// Nothing, because its path may not bear the stream.
    Nothing,
}

#[derive(Debug)]
struct Relay {
    end: End,
    namespace: Namespace,
    configuration: PathBuf,
}

#[derive(Debug)]
struct Viewer {
    end: End,
    table: PathBuf,
    needs: Needs,
}

/// Starts the publisher of a broadcast. Its secret, and that of its relays, go to `media.key` and `relay.key` of `directory`.
pub(super) fn start_publisher(
    places: &Places<'_>,
    binary: &Path,
    directory: &Path,
    source: &PushSource,
) -> Result<End> {
    ends::create(directory)?;
    let (key, relay_key) = (directory.join("media.key"), directory.join("relay.key"));
    generate_key(binary, &["--media"], &key)?;
    let of = key.to_string_lossy();
    generate_key(binary, &["--relay-of", &of], &relay_key)?;
    End::publisher(places, (binary, "publish"), directory, |publish| {
        source.configure(publish, &key, directory);
    })
}

impl Broadcast {
    /// Starts the publisher. `binary` is `hawser`. Logs and secrets of the broadcast go to `directory`.
    pub fn start(
        places: &Places<'_>,
        binary: &Path,
        directory: &Path,
        source: &PushSource,
    ) -> Result<Self> {
        Ok(Broadcast {
            publisher: start_publisher(places, binary, directory, source)?,
            relays: Vec::new(),
            viewers: Vec::new(),
            binary: binary.to_owned(),
            directory: directory.to_owned(),
            address: places.address(),
        })
    }

    /// The file with the secret of the broadcast.
    pub fn key(&self) -> PathBuf {
        self.directory.join("media.key")
    }

    /// The address at which the publisher listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Starts a relay, which serves at `listen`.
    pub fn add_relay(
        &mut self,
        name: &'static str,
        namespace: &Namespace,
        upstream: &str,
        listen: SocketAddr,
    ) -> Result<()> {
        let state = self.directory.join("state");
        let configuration = format!(
            "name = {name:?}\nstate = {state:?}\n\n[[broadcast]]\nname = \"stage\"\nupstream = {upstream:?}\n\
             listen = \"{listen}\"\nkey = \"relay.key\"\n"
        );
        let file = self.directory.join(format!("{name}.toml"));
        fs::write(&file, configuration)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let command = relay_command(&self.binary, &file);
        self.relays.push(Relay {
            end: End::start(name, namespace, command, &self.directory)?,
            namespace: namespace.clone(),
            configuration: file,
        });
        Ok(())
    }

    /// Kills the first relay with SIGKILL.
    pub fn kill_first_relay(&mut self) -> Result<()> {
        self.first_relay()?.end.kill()
    }

    /// Starts the first relay again after it was killed. It appends to its log.
    pub fn start_first_relay_again(&mut self) -> Result<()> {
        let binary = self.binary.clone();
        let relay = self.first_relay()?;
        let command = relay_command(&binary, &relay.configuration);
        relay.end.start_again(&relay.namespace, command)
    }

    fn first_relay(&mut self) -> Result<&mut Relay> {
        self.relays.first_mut().context("there is no relay")
    }

    /// Starts a viewer of a relay. Its table of frames is `NAME.csv`, which is returned. It may use the emulator's
    /// processor, too: it sends little, and the emulator's real-time thread interrupts it at once.
    pub fn add_viewer(
        &mut self,
        name: &'static str,
        namespace: &Namespace,
        relay: SocketAddr,
        needs: Needs,
    ) -> Result<PathBuf> {
        let table = self.directory.join(format!("{name}.csv"));
        let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
        let mut command = Command::new("taskset");
        command
            .args(["--cpu-list", online.trim()])
            .arg(&self.binary);
        command.args(["view", &relay.to_string()]);
        command.arg("--key").arg(self.key());
        command.arg("--timeline").arg(&table);
        self.viewers.push(Viewer {
            end: End::start(name, namespace, command, &self.directory)?,
            table: table.clone(),
            needs,
        });
        Ok(table)
    }

    /// Waits until all viewers that need frames have received one.
    pub fn await_frames(&mut self, stop: &Stop) -> Result<()> {
        self.publisher.await_rows(&self.encoded(), stop)?;
        let mut viewers = self.viewers.iter_mut();
        viewers.try_for_each(|viewer| match viewer.needs {
            Needs::Frames => viewer.end.await_rows(&viewer.table, stop),
            Needs::Nothing => Ok(()),
        })
    }

    /// The publisher's table of encoded frames.
    pub fn encoded(&self) -> PathBuf {
        self.directory.join("encoded.csv")
    }

    /// Returns an error if a program has exited.
    pub fn check_running(&mut self) -> Result<()> {
        let viewers = self.viewers.iter_mut().map(|viewer| &mut viewer.end);
        let relays = self.relays.iter_mut().map(|relay| &mut relay.end);
        let mut all = viewers.chain(relays).chain([&mut self.publisher]);
        all.try_for_each(End::check_running)
    }

    /// Stops all programs.
    pub fn stop(mut self) -> Result<()> {
        self.check_running()?;
        for Viewer { end, needs, .. } in self.viewers {
            match needs {
                Needs::Frames => end.stop()?,
                // A viewer that saw nothing fails when it is stopped.
                Needs::Nothing => drop(end.stop()),
            }
        }
        let mut relays = self.relays.into_iter().rev();
        relays.try_for_each(|relay| relay.end.stop())?;
        self.publisher.stop()
    }
}

fn relay_command(binary: &Path, configuration: &Path) -> Command {
    let mut command = Command::new(binary);
    command.args(["relay", "--config"]).arg(configuration);
    command
}
