use crate::output::Output;
use crate::text;
use anyhow::Result;
use hawser_client::OperatorClient;
use hawser_model::Name;
use hawser_model::resource::{Override, Policy};
use hawser_units::PolicyCode;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the policy in force for each flow
    #[command(after_help = "Example: hawser ctl policy list --watch")]
    List,
    /// Show the policy in force for a flow
    #[command(after_help = "Example: hawser ctl policy show video")]
    Show {
        /// Name of the flow
        flow: Name,
    },
    /// Fix the paths of a flow, until `auto`
    #[command(after_help = "Example: hawser ctl policy set video 1,3")]
    Set {
        /// Name of the flow
        flow: Name,
        /// Path numbers such as 1,3; `none` for the default route
        #[arg(value_parser = parse_code)]
        paths: PolicyCode,
    },
    /// Return the choice of a flow's paths to the controller
    #[command(after_help = "Example: hawser ctl policy auto video")]
    Auto {
        /// Name of the flow
        flow: Name,
    },
}

impl Command {
    /// Returns whether the command changes nothing.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(self, Command::List | Command::Show { .. })
    }
}

pub(crate) async fn run(command: &Command, client: &OperatorClient, output: Output) -> Result<()> {
    match command {
        Command::List => {
            let policies = client.policies().all().await?;
            output.list(
                &policies,
                &["flow", "paths", "probed", "reason", "epoch", "decided"],
                |policy| fields(policy).into_iter().map(|(_, value)| value).collect(),
            )
        }
        Command::Show { flow } => {
            let policy = client.policy(flow).await?;
            output.one(&policy, &fields(&policy))
        }
        Command::Set { flow, paths } => {
            let policy = client
                .override_policy(flow, Override { code: *paths })
                .await?;
            let (taken, epoch) = (text::paths(policy.code), policy.epoch);
            let text = format!("flow {flow} takes {taken} until `policy auto` (epoch {epoch})");
            output.changed(&policy, &text)
        }
        Command::Auto { flow } => {
            let policy = client.release_policy(flow).await?;
            let taken = text::paths(policy.code);
            let text = format!(
                "the controller chooses the paths of flow {flow} again; it now takes {taken}"
            );
            output.changed(&policy, &text)
        }
    }
}

fn fields(policy: &Policy) -> Vec<(&'static str, String)> {
    let probed = if policy.probes.is_empty() {
        text::none()
    } else {
        format!(
            "{}, 1 in {}",
            text::numbers(policy.probes),
            policy.probe_every
        )
    };
    vec![
        ("flow", policy.flow.to_string()),
        ("paths", text::paths(policy.code)),
        ("probed", probed),
        ("reason", policy.reason.name().to_owned()),
        ("epoch", policy.epoch.to_string()),
        ("decided", text::ago(policy.decided_unix_ms)),
    ]
}

fn parse_code(text: &str) -> Result<PolicyCode, String> {
    if text == "none" {
        return Ok(PolicyCode::OFF);
    }
    text.split(',')
        .try_fold(0, |code, number| match number.trim().parse::<u32>() {
            Ok(number @ 1..=8) => Ok(code | 1 << (number - 1)),
            _ => Err(format!(
                "{number:?} is not a path: write numbers 1 to 8 with commas between them, or `none`"
            )),
        })
        .map(PolicyCode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_given_by_number() {
        assert_eq!(parse_code("1,3"), Ok(PolicyCode(0b101)));
        assert_eq!(parse_code("none"), Ok(PolicyCode::OFF));
        for wrong in ["", "0", "9", "1 2", "a"] {
            assert!(parse_code(wrong).is_err(), "{wrong}");
        }
    }
}
