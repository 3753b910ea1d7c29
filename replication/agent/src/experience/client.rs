//! The command with which a person or a script reports how a flow fares.

use anyhow::{Context, Result, bail, ensure};
use hawser_experience::{Answer, Experience, Report, Subject};
use hawser_io::reporter::Conversation;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

/// The folder where agents listen unless their files say otherwise.
const SOCKETS: &str = "/run/hawser/agent";

/// Report to the agent of this machine how a flow fares
///
/// A flow whose frames are late is helped as one whose viewer's requests are late: its controller sends it on other paths
/// or on more of them. Report about once a second, what has happened since the last report. Without --flow, each line of
/// standard input is one report, as docs/agent.md describes them.
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Example: hawser agent report --socket /run/hawser/agent/edge-2.sock --flow stage --late 3 --of 30 --stalled-ms 0 --delay-ms 80"
)]
pub struct Args {
    /// The socket of the agent [default: the only one in /run/hawser/agent]
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// The name of the flow; its number, if the agent has no controller
    #[arg(long, value_name = "FLOW")]
    flow: Option<String>,
    /// Number of frames that came too late or not at all
    #[arg(long, value_name = "N", requires = "flow")]
    late: Option<u32>,
    /// Number of frames that were due
    #[arg(long, value_name = "N", requires = "flow")]
    of: Option<u32>,
    /// Time for which nothing new could be shown, milliseconds
    #[arg(long, value_name = "MS", requires = "flow")]
    stalled_ms: Option<u32>,
    /// Time from the capture of the newest frame until it was shown, milliseconds
    #[arg(long, value_name = "MS", requires = "flow")]
    delay_ms: Option<u32>,
    /// Rate at which the application would like to send or receive, bits per second
    #[arg(long, value_name = "BPS", requires = "flow")]
    rate_bps: Option<u64>,
}

/// Reports what the options say, or the lines of standard input.
///
/// # Errors
/// If no agent listens, or it refuses a report.
pub fn run(args: &Args) -> Result<()> {
    let socket = match &args.socket {
        Some(socket) => socket.clone(),
        None => only_socket(Path::new(SOCKETS))?,
    };
    let at = || format!("cannot report to the agent at {}", socket.display());
    match &args.flow {
        Some(flow) => {
            let report = Report {
                subject: Subject::Flow(flow.clone()),
                experience: Experience {
                    frames: args.of,
                    late: args.late,
                    stalled_ms: args.stalled_ms,
                    delay_ms: args.delay_ms,
                    rate_bps: args.rate_bps,
                },
            };
            let answer =
                Conversation::open(&socket).and_then(|mut agent| agent.ask(&report.line()));
            match answer.with_context(at)? {
                Answer::Taken(_) => Ok(()),
                Answer::Error(reason) => bail!("{reason}"),
            }
        }
        None => {
            let mut agent = Some(Conversation::open(&socket).with_context(at)?);
            report_lines(io::stdin().lock(), |line| {
                // The agent may have started again since the last line.
                let answer = agent.as_mut().and_then(|open| open.ask(line).ok());
                if let Some(answer) = answer {
                    return Ok(answer);
                }
                agent.insert(Conversation::open(&socket)?).ask(line)
            })
        }
    }
}

/// Reports every line. One that is refused is named, and those that follow are reported all the same.
fn report_lines(
    lines: impl BufRead,
    mut ask: impl FnMut(&str) -> io::Result<Answer>,
) -> Result<()> {
    let mut refused = 0;
    for (number, line) in (1..).zip(lines.lines()) {
        let line = line.context("cannot read standard input")?;
        if line.trim().is_empty() {
            continue;
        }
        let reason = match ask(&line) {
            Ok(Answer::Taken(_)) => continue,
            Ok(Answer::Error(reason)) => reason,
            Err(error) => error.to_string(),
        };
        refused += 1;
        hawser_service::complain(&format!("line {number}: {reason}"));
    }
    ensure!(refused == 0, "reports that were refused: {refused}");
    Ok(())
}

/// Returns the socket of the only agent.
fn only_socket(folder: &Path) -> Result<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut sockets: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "sock"))
        .collect();
    sockets.sort();
    match sockets.as_slice() {
        [only] => Ok(only.clone()),
        [] => bail!(
            "no agent listens in {}: name its --socket",
            folder.display()
        ),
        several => {
            let names: Vec<_> = several
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            bail!(
                "several agents listen, name one by --socket: {}",
                names.join(", ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn refused_lines_do_not_stop_the_others() {
        let mut asked = Vec::new();
        let lines = "{\"flow\":\"a\",\"late\":1}\n\nnonsense\nmore\n";
        let outcome = report_lines(lines.as_bytes(), |line| {
            asked.push(line.to_owned());
            match line {
                "nonsense" => Ok(Answer::Error("not a report".to_owned())),
                "more" => Err(io::ErrorKind::BrokenPipe.into()),
                _ => Ok(Answer::Taken("a".to_owned())),
            }
        });
        assert_eq!(
            outcome.unwrap_err().to_string(),
            "reports that were refused: 2"
        );
        assert_eq!(asked.len(), 3);
    }

    #[test]
    fn the_only_agent_need_not_be_named() {
        let folder = tempfile::tempdir().unwrap();
        let found = || only_socket(folder.path()).map_err(|error| error.to_string());
        assert!(found().unwrap_err().contains("no agent listens in"));
        File::create(folder.path().join("edge-1.sock")).unwrap();
        std::fs::create_dir(folder.path().join("edge-1")).unwrap();
        assert_eq!(found(), Ok(folder.path().join("edge-1.sock")));
        File::create(folder.path().join("edge-2.sock")).unwrap();
        assert!(found().unwrap_err().contains("edge-1.sock, "));
    }
}
