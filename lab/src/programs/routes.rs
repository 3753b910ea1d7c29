//! A broadcast that a relay receives over two routes, and serves to browsers.

use super::broadcast::start_publisher;
use super::ends::{End, Places};
use super::push::PushSource;
use anyhow::{Context, Result};
use hawser_relay::status::{MoqStatus, Status};
use hawser_testbed::topology::{Lab, Stop};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The port of the relay's own viewers, and the first one of browsers.
const VIEWERS: u16 = 14755;
const BROWSERS: u16 = 14760;

/// A route from the publisher at a lab's source to the relay at its viewer.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// The name of the broadcast that arrives over it.
    pub name: &'static str,
    /// The address of the publisher.
    pub publisher: Ipv4Addr,
    /// The address from which the relay's packets to that address come.
    pub relay: Ipv4Addr,
}

/// The running programs. They stop when this is dropped.
#[derive(Debug)]
pub struct TwoRoutes {
    publisher: End,
    relay: End,
    directory: PathBuf,
}

impl TwoRoutes {
    /// Starts publisher and relay. `binary` is `hawser`. Logs and secrets of the broadcast go to `directory`.
    pub fn start(
        lab: &Lab,
        binary: &Path,
        directory: &Path,
        source: &PushSource,
        routes: &[Route; 2],
    ) -> Result<Self> {
        let places = Places::anywhere_across(lab);
        let publisher = start_publisher(&places, binary, directory, source)?;
        let file = directory.join("relay.toml");
        fs::write(&file, configuration(directory, routes))
            .with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = Command::new(binary);
        command.args(["relay", "--config"]).arg(&file);
        Ok(TwoRoutes {
            publisher,
            relay: End::start("relay", lab.viewer(), command, directory)?,
            directory: directory.to_owned(),
        })
    }

    /// Waits until the broadcast arrives over both routes. Returns the servers of browsers in the relay's namespace.
    pub fn await_served(&mut self, stop: &Stop) -> Result<Vec<MoqStatus>> {
        self.publisher
            .await_rows(&self.directory.join("encoded.csv"), stop)?;
        let status = self.directory.join("state/relay/status.json");
        self.relay.wait_for("no stream", stop, || {
            let status: Status = serde_json::from_slice(&fs::read(&status).ok()?).ok()?;
            let arrives = |moq: &MoqStatus| moq.objects > 0;
            let served = status.broadcasts.into_iter();
            served.map(|of| of.moq.filter(arrives)).collect()
        })
    }

    /// Returns the secret of the broadcast, hexadecimal.
    pub fn secret(&self) -> Result<String> {
        let file = self.directory.join("media.key");
        let secret = fs::read_to_string(&file);
        let secret = secret.with_context(|| format!("cannot read {}", file.display()))?;
        Ok(secret.trim().to_owned())
    }

    /// Returns an error if a program has exited.
    pub fn check_running(&mut self) -> Result<()> {
        self.publisher.check_running()?;
        self.relay.check_running()
    }

    /// Stops the programs.
    pub fn stop(mut self) -> Result<()> {
        self.check_running()?;
        self.relay.stop()?;
        self.publisher.stop()
    }
}

fn configuration(directory: &Path, routes: &[Route; 2]) -> String {
    let state = directory.join("state");
    let broadcast = |(route, port): (&Route, u16)| {
        let upstream = Places::address_at(route.publisher.into());
        let viewers = SocketAddr::from((route.relay, VIEWERS));
        let browsers = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        format!(
            "\n[[broadcast]]\nname = {:?}\nupstream = {upstream:?}\nlisten = \"{viewers}\"\nkey = \"relay.key\"\n\n\
             [broadcast.moq]\nlisten = \"{browsers}\"\n",
            route.name
        )
    };
    let broadcasts = routes.iter().zip(BROWSERS..).map(broadcast);
    format!("state = {state:?}\n") + &broadcasts.collect::<String>()
}
