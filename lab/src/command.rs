//! The command line of `hawser-lab`.

use crate::bench::Part;
use crate::experiment::{Entry, Run};
use crate::experiments::demo;
use crate::report::{FILE_NAME as REPORT, Table};
use crate::rivals::schemes;
use crate::self_test::self_test;
use crate::summary::{Provenance, Summary};
use crate::{bench, collect, experiments, results};
use anyhow::{Context, Result, bail};
use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use hawser_testbed::topology::{Stop, clear_abandoned};
use std::path::{Path, PathBuf};

/// Run experiments on emulated networks on this machine
///
/// Needs root. Uses its own network namespaces and removes them at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser lab run table1 --case 'single/*'")]
pub struct Args {
    /// Program that plays the nodes [default: hawser beside this program, or else in PATH]
    #[arg(long, global = true, value_name = "FILE", env = "HAWSER")]
    hawser: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the experiments and their cases
    #[command(after_help = "Example: hawser lab list")]
    List,
    Run(RunArgs),
    Demo(demo::Args),
    Selftest(SelftestArgs),
    Bench(BenchArgs),
    Tables(TablesArgs),
    Collect(collect::Args),
    /// Run one end of a tunnel with another scheme, for an experiment
    #[command(hide = true)]
    Tunnel(schemes::tunnel::Args),
    /// Remove the namespaces and files that killed labs left behind; every start of a lab does this
    /// too
    #[command(after_help = "Example: hawser lab clean")]
    Clean,
}

/// Run an experiment and write its summary, raw data and report
///
/// If the emulator or the machine could not keep up, the summary and the report say that the
/// figures are not valid. A case that fails is missing in them; the others are kept, and the command
/// fails at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser lab run cellfusion --seed 2")]
struct RunArgs {
    /// Name of the experiment, as listed by `hawser lab list`
    experiment: String,
    /// Run only the cases whose names match: `*` stands for any characters, commas separate
    /// alternatives
    #[arg(long, value_name = "PATTERN")]
    case: Option<String>,
    /// Run only the cases of this policy
    #[arg(long, conflicts_with = "case")]
    policy: Option<String>,
    /// Run only the cases of this store
    #[arg(long, conflicts_with_all = ["case", "policy"])]
    store: Option<String>,
    /// Seed of the random number generator
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Maximum number of runs of a case while its figures are not valid
    #[arg(long, default_value_t = 3)]
    attempts: u32,
    /// Fail if the figures are not valid
    #[arg(long)]
    strict: bool,
    /// Duration of a case in seconds [default: that of the experiment]
    #[arg(long)]
    seconds: Option<f64>,
    /// Description of the recording to use instead of the experiment's (TOML), where the experiment
    /// has one to choose
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
    /// Decode what viewers receive and measure the similarity of the pictures (SSIM), where this is not
    /// part of the experiment anyway; needs ffmpeg, and minutes
    #[arg(long)]
    pictures: bool,
    /// Number of times that every case is run, each time with a seed of its own, where time is virtual and
    /// figures depend on the seed
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    repetitions: Option<u32>,
    /// Output directory [default: target/lab/EXPERIMENT]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
}

/// Measure the accuracy of the emulator on this machine: rates and delays
///
/// Fails if it is not accurate enough for experiments. Keep the machine idle meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser lab selftest")]
struct SelftestArgs {
    /// Duration of each of the three measurements, seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Output directory of summary.json
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab/selftest")]
    out: PathBuf,
}

/// Measure the cost of a packet: the eBPF programs, coding, the tunnel and the emulator
///
/// Takes about ten minutes. Keep the machine idle meanwhile.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser lab bench --part coding")]
struct BenchArgs {
    /// Parts to measure [default: all]
    #[arg(long = "part", value_name = "PART", value_parser = part())]
    parts: Vec<Part>,
    /// Output directory of summary.json
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench")]
    out: PathBuf,
}

/// Write the tables of results in the documentation from the runs in docs/results
///
/// A table's template is in a comment of the page in front of it. What no table shows is removed from docs/results.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser lab tables --check")]
struct TablesArgs {
    /// Directory of the documentation
    #[arg(long, value_name = "DIRECTORY", default_value = "docs")]
    docs: PathBuf,
    /// Store the summary of a run, under the name that templates use, such as
    /// cellfusion/seed-1=target/lab/cellfusion/summary.json
    #[arg(long = "add", value_name = "EXPERIMENT/RUN=FILE")]
    added: Vec<String>,
    /// Write nothing, and fail if a table is out of date
    #[arg(long)]
    check: bool,
}

fn part() -> impl TypedValueParser<Value = Part> {
    let named = |name: String| Part::ALL.into_iter().find(|part| part.name() == name);
    PossibleValuesParser::new(Part::ALL.map(Part::name))
        .try_map(move |name| named(name).context("no such part"))
}

impl Args {
    /// Runs the command.
    ///
    /// # Errors
    /// If the command or a case fails, or with `--strict` if the figures are not valid.
    pub fn run(self) -> Result<()> {
        let hawser = self.hawser.map_or_else(beside_this_program, Ok)?;
        match self.command {
            Command::List => list(),
            Command::Run(args) => run_experiment(args, hawser),
            Command::Demo(args) => demo::run(&args, &hawser),
            Command::Selftest(args) => selftest(args),
            Command::Bench(args) => bench(args, &hawser),
            Command::Tables(args) => tables(&args),
            Command::Collect(args) => collect::run(&args),
            Command::Tunnel(args) => schemes::tunnel::run(&args),
            Command::Clean => clear_abandoned(),
        }
    }
}

/// Returns the path of `hawser` in the folder of this program, or its bare name, which is searched
/// for in `PATH`, if that folder does not contain it.
fn beside_this_program() -> Result<PathBuf> {
    let this = std::env::current_exe().context("cannot find this program")?;
    let hawser = this.with_file_name("hawser");
    Ok(if hawser.is_file() {
        hawser
    } else {
        PathBuf::from("hawser")
    })
}

fn bench(BenchArgs { mut parts, out }: BenchArgs, hawser: &Path) -> Result<()> {
    if parts.is_empty() {
        parts.extend(Part::ALL);
    }
    finish(&bench::run(&parts, hawser, &out)?, &out, false)
}

fn tables(args: &TablesArgs) -> Result<()> {
    let added = args.added.iter().map(|added| {
        let (name, file) = added
            .split_once('=')
            .context("--add takes EXPERIMENT/RUN=FILE")?;
        Ok((name.to_owned(), Summary::read_file(Path::new(file))?))
    });
    let added = added.collect::<Result<_>>()?;
    let changed = results::update_folder(&args.docs, added, !args.check)?;
    if args.check && !changed.is_empty() {
        bail!(
            "out of date, run `hawser lab tables`: {}",
            changed.join(", ")
        );
    }
    print_lines(changed)
}

fn list() -> Result<()> {
    let lines = experiments::all().into_iter().flat_map(|experiment| {
        let title = format!("{}: {}", experiment.name(), experiment.about());
        let cases = experiment.case_names().into_iter();
        std::iter::once(title).chain(cases.map(|case| format!("  {case}")))
    });
    print_lines(lines)
}

fn run_experiment(args: RunArgs, hawser: PathBuf) -> Result<()> {
    let experiment = find(&args.experiment)?;
    if args
        .seconds
        .is_some_and(|seconds| !seconds.is_finite() || seconds <= 0.0)
    {
        bail!("--seconds must be greater than zero");
    }
    if args.recording.is_some() && !experiment.takes_recording() {
        bail!(
            "{} has its own recording: --recording is not for it",
            experiment.name()
        );
    }
    if args.pictures && !experiment.has_pictures() {
        bail!(
            "{} has no option for pictures: --pictures is not for it",
            experiment.name()
        );
    }
    if args.repetitions.is_some() && !experiment.has_repetitions() {
        bail!(
            "{} runs each case once: --repetitions is not for it",
            experiment.name()
        );
    }
    let run = Run {
        hawser,
        seed: args.seed,
        repetitions: args.repetitions.unwrap_or(1),
        attempts: args.attempts,
        seconds: args.seconds,
        pattern: args
            .case
            .or_else(|| args.policy.or(args.store).map(|kind| format!("{kind}/*"))),
        recording: args.recording,
        pictures: args.pictures,
        out: args
            .out
            .unwrap_or_else(|| PathBuf::from("target/lab").join(experiment.name())),
        stop: Stop::on_signals()?,
    };
    finish(&experiment.run(&run)?, &run.out, args.strict)
}

fn find(name: &str) -> Result<Box<dyn Entry>> {
    let all = experiments::all();
    let names = all
        .iter()
        .map(|experiment| experiment.name())
        .collect::<Vec<_>>()
        .join(", ");
    let found = all.into_iter().find(|experiment| experiment.name() == name);
    found.with_context(|| format!("there is no experiment {name:?}; the experiments are: {names}"))
}

fn selftest(args: SelftestArgs) -> Result<()> {
    let measured = self_test(args.seconds)?;
    let mut summary = Summary::new("selftest", Provenance::gather(1));
    summary.cases = measured.cases;
    for reason in measured.unmet {
        summary.invalidate(reason);
    }
    finish(&summary, &args.out, true)
}

/// Writes and prints the summary. If it is not valid, prints the reasons, and fails if `strict` is
/// set or cases failed.
fn finish(summary: &Summary, out: &Path, strict: bool) -> Result<()> {
    let written = summary.write(out)?;
    let table = Table::of_cases(&summary.cases, "").text();
    let mut lines = vec![format!("\n{table}"), written.display().to_string()];
    let page = out.join(REPORT);
    if page.exists() {
        lines.push(page.display().to_string());
    }
    print_lines(lines)?;
    if summary.valid {
        return Ok(());
    }
    let reasons = format!(
        "the figures are NOT VALID:\n  {}",
        summary.invalid_because.join("\n  ")
    );
    if strict || summary.failed_cases > 0 {
        bail!(reasons);
    }
    eprintln!("{reasons}");
    Ok(())
}

/// Prints lines. If nothing reads them any more, the rest is omitted.
fn print_lines(lines: impl IntoIterator<Item = String>) -> Result<()> {
    let text: String = lines.into_iter().map(|line| line + "\n").collect();
    hawser_service::print(&text)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        hawser_service::command::<Args>("hawser-lab").debug_assert();
    }

    #[test]
    fn a_run_with_a_failed_case_writes_its_summary_and_fails() {
        let folder = tempfile::tempdir().unwrap();
        let mut summary = Summary::new("mixed", Provenance::gather(1));
        summary.invalidate("late: too late");
        finish(&summary, folder.path(), false).unwrap();
        summary.count_failed("broken: out of order");
        let error = finish(&summary, folder.path(), false).unwrap_err();
        assert!(
            error.to_string().contains("broken: out of order"),
            "{error}"
        );
        assert_eq!(Summary::read(folder.path()).unwrap(), summary);
    }
}
