//! Checks what a machine can do for Hawser, and says what to do where it cannot.
//!
//! `machine` reads facts, `checks` decides what they mean. The decisions are pure.

#![deny(clippy::print_stdout, clippy::print_stderr)]

mod checks;
mod facts;
mod finding;
mod machine;
mod plan;
mod show;

pub use checks::findings;
pub use facts::{
    Answer, Fact, Facts, Holder, InterfaceFacts, KeptFacts, PeerFacts, Port, PortFacts, Protocol,
    Way,
};
pub use finding::{Finding, Part, Verdict};

use anyhow::{Context, Result, bail};
use hawser_io::file::read_text;
use plan::Plan;
use std::path::PathBuf;

/// Check what this machine can do for Hawser
///
/// Checks kernel, privileges, interfaces, settings, clock and ports, and says what to do where
/// something is missing. Works without privileges, and says what could not be checked. Exits with 1
/// if a check failed. docs/doctor.md explains the checks.
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Example: hawser doctor --for agent --interface wwan0")]
pub struct Args {
    /// Check only what these parts need. What fails for a part is a warning without this option
    #[arg(long = "for", value_name = "PART", value_delimiter = ',')]
    pub parts: Vec<Part>,
    /// Check only this interface, and what a path needs of it. Can be repeated
    #[arg(long, value_name = "NAME")]
    pub interface: Vec<String>,
    /// Check the ports and interfaces of this configuration of an agent, relay, tunnel or
    /// controller. Whether the file is valid is not checked
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the way to this peer, with an attempt to open a TCP connection
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    pub peer: Option<String>,
    /// Print the findings as a JSON array
    #[arg(long)]
    pub json: bool,
}

fn host_and_port(name: &str) -> Result<String> {
    hawser_io::peer::PeerAddresses::parse(name).map(|_| name.to_owned())
}

/// Prints the findings. Fails if a check failed.
pub fn run(args: &Args) -> Result<()> {
    let findings = examine(args)?;
    let text = match args.json {
        true => serde_json::to_string_pretty(&findings)? + "\n",
        false => show::text(&findings),
    };
    hawser_service::print(&text)?;
    let failed = findings.iter();
    match failed
        .filter(|found| found.result == Verdict::Failed)
        .count()
    {
        0 => Ok(()),
        1 => bail!("1 check failed"),
        count => bail!("{count} checks failed"),
    }
}

/// Checks this machine, in the calling thread's network namespace.
///
/// # Errors
/// If the configuration cannot be read.
pub fn examine(args: &Args) -> Result<Vec<Finding>> {
    let mut plan = match &args.config {
        None => Plan::default_ports(),
        Some(file) => {
            let text =
                read_text(file).with_context(|| format!("cannot read {}", file.display()))?;
            Plan::of_config(&text)
                .with_context(|| format!("{} is not valid TOML", file.display()))?
        }
    };
    if !args.interface.is_empty() {
        plan.interfaces.clone_from(&args.interface);
    }
    let mut facts = machine::read(&plan);
    facts.peer = args.peer.as_deref().map(machine::peer);
    Ok(finding::select(findings(&facts), &args.parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_written_as_in_the_documentation() {
        let mut facts = facts::tests::machine();
        facts.capabilities = Ok(0);
        facts.is_synchronized = Err("Function not implemented".to_owned());
        facts.missing_interfaces = vec!["wan7".to_owned()];
        let findings = finding::select(findings(&facts), &[Part::Agent]);
        let golden = include_str!("golden.txt");
        assert_eq!(show::text(&findings), golden);
    }

    #[test]
    fn every_check_is_documented() {
        let mut facts = facts::tests::machine();
        facts.peer = Some(machine::peer("127.0.0.1:9"));
        let page = include_str!("../../docs/doctor.md");
        for Finding { id, .. } in findings(&facts) {
            assert!(
                page.contains(&format!("`{id}`")),
                "docs/doctor.md lacks {id}"
            );
        }
    }

    #[test]
    fn findings_are_json_with_stable_names() {
        let mut facts = facts::tests::machine();
        facts.has_btf = false;
        let findings = finding::select(findings(&facts), &[]);
        let btf = findings.iter().find(|found| found.id == "kernel.btf");
        let json = serde_json::to_value(btf.unwrap()).unwrap();
        assert_eq!(json["result"], "warning");
        assert_eq!(json["subject"], serde_json::Value::Null);
        assert_eq!(json["parts"], serde_json::json!(["agent", "relay"]));
        let keys = json.as_object().unwrap().keys().collect::<Vec<_>>();
        assert_eq!(
            keys,
            ["id", "subject", "result", "finding", "advice", "parts"]
        );
    }
}
