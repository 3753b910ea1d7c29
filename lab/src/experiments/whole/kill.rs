//! A program that is killed in each part of a run, and started again as systemd does it.

use super::coded::CodedPath;
use crate::programs::broadcast::Broadcast;
use crate::programs::tunnel::Role;
use anyhow::{Context, Result};
use hawser_agent::Status;
use hawser_testbed::edges::{Agent, Edges};
use hawser_testbed::topology::Edge;
use hawser_testing::Control;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A program that is killed with SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// The controller.
    Controller,
    /// The first relay.
    Relay,
    /// The agent in front of the paths.
    Ingress,
    /// The agent behind the paths.
    Egress,
    /// The client of the coded tunnel.
    TunnelClient,
    /// The server of the coded tunnel.
    TunnelServer,
}

impl Program {
    pub(super) const ALL: [Program; 6] = [
        Program::Controller,
        Program::Relay,
        Program::Ingress,
        Program::Egress,
        Program::TunnelClient,
        Program::TunnelServer,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Program::Controller => "controller",
            Program::Relay => "relay",
            Program::Ingress => "ingress",
            Program::Egress => "egress",
            Program::TunnelClient => "tunnel-client",
            Program::TunnelServer => "tunnel-server",
        }
    }

    /// Returns the time after which systemd starts the program again: `RestartSec` of its unit.
    pub(super) fn is_restarted_after(self) -> Duration {
        match self {
            Program::Relay => Duration::from_millis(250),
            _ => Duration::from_secs(1),
        }
    }

    /// The name of the unit in the packages.
    #[cfg(test)]
    fn unit(self) -> &'static str {
        match self {
            Program::Controller => "hawser-controller",
            Program::Relay => "hawser-relay",
            Program::Ingress | Program::Egress => "hawser-agent",
            Program::TunnelClient => "hawser-tunnel-client",
            Program::TunnelServer => "hawser-tunnel-server",
        }
    }

    /// Returns whether the stream has to take the tunnel, so that it matters.
    pub(super) fn is_of_tunnel(self) -> bool {
        matches!(self, Program::TunnelClient | Program::TunnelServer)
    }

    /// Returns the time from the beginning of a condition that lasts so long to the kill. In an outage, the first path,
    /// which is the default route, works then.
    pub(super) fn is_due_after(self, length: Duration) -> Duration {
        length.mul_f64(0.6)
    }
}

/// The running programs that may be killed.
pub(super) struct Running<'a> {
    pub(super) control: &'a mut Control,
    pub(super) edges: &'a mut Edges<Status>,
    pub(super) coded: Option<&'a mut CodedPath>,
    pub(super) broadcast: &'a mut Broadcast,
    /// The folder of the raw data.
    pub(super) directory: &'a Path,
}

impl Running<'_> {
    pub(super) fn kill(&mut self, program: Program) -> Result<()> {
        match program {
            Program::Controller => self.control.kill(),
            Program::Relay => self.broadcast.kill_first_relay(),
            Program::Ingress => self.edges.ingress_agent.kill(),
            Program::Egress => self.edges.egress_agent.kill(),
            Program::TunnelClient => self.coded()?.kill(Role::Client),
            Program::TunnelServer => self.coded()?.kill(Role::Server),
        }
    }

    /// Starts a program again. The logs of the killed one stay.
    pub(super) fn start_again(&mut self, program: Program) -> Result<()> {
        match program {
            Program::Controller => self.control.start_again(),
            Program::Relay => self.broadcast.start_first_relay_again(),
            Program::Ingress => {
                let agent = &mut self.edges.ingress_agent;
                start_agent_again(agent, Edge::Ingress, self.directory)
            }
            Program::Egress => {
                let agent = &mut self.edges.egress_agent;
                start_agent_again(agent, Edge::Egress, self.directory)
            }
            Program::TunnelClient => self.coded()?.start_again(Role::Client),
            Program::TunnelServer => self.coded()?.start_again(Role::Server),
        }
    }

    fn coded(&mut self) -> Result<&mut CodedPath> {
        self.coded.as_deref_mut().context("there is no tunnel")
    }
}

/// Starts an agent again, which begins new logs.
fn start_agent_again(agent: &mut Agent<Status>, edge: Edge, directory: &Path) -> Result<()> {
    let name = edge.name();
    let number = (1..).find(|number| !directory.join(format!("{name}.{number}.log")).exists());
    let number = number.expect("there are few logs");
    for extension in ["log", "csv"] {
        let file = directory.join(format!("{name}.{extension}"));
        let text = fs::read_to_string(&file)?;
        // The last line may have been cut off.
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        fs::write(
            directory.join(format!("{name}.{number}.{extension}")),
            whole,
        )?;
    }
    agent.start_again()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_started_again_when_units_would_be() {
        let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/debian/units");
        for program in Program::ALL {
            let unit = program.unit();
            let text = fs::read_to_string(units.join(format!("{unit}.service"))).unwrap();
            let mut pauses = text
                .lines()
                .filter_map(|line| line.strip_prefix("RestartSec="));
            let pause: f64 = pauses.next().unwrap().parse().unwrap();
            assert_eq!(program.is_restarted_after().as_secs_f64(), pause, "{unit}");
        }
    }
}
