use anyhow::{Context, Result, bail};
use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use hawser_lab::bench::Part;
use hawser_lab::experiment::{Experiment, Run};
use hawser_lab::report::{FILE_NAME as REPORT, Table};
use hawser_lab::summary::{Provenance, Summary};
use hawser_lab::topology::{Stop, clear_abandoned};
use hawser_lab::{bench, emulator, experiments};
use std::path::{Path, PathBuf};

/// Emulated networks on this machine, and the experiments that run on them.
///
/// Needs root. Works in network namespaces of its own and leaves nothing behind.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Name the experiments and their cases
    List,
    Run(RunArgs),
    Selftest(SelftestArgs),
    Bench(BenchArgs),
    /// Remove what killed labs left behind; every start of a lab does this too
    Clean,
}

/// Run an experiment; summary, raw data and report go to its folder.
///
/// When the emulator or the machine could not keep up, the summary and the report say that the figures are not valid.
#[derive(clap::Args)]
struct RunArgs {
    /// As `hawser lab list` names it
    experiment: String,
    /// Run the cases whose name matches: `*` stands for anything, alternatives are separated by commas
    #[arg(long, value_name = "PATTERN")]
    case: Option<String>,
    /// Run the cases of this policy
    #[arg(long, conflicts_with = "case")]
    policy: Option<String>,
    /// Of every random choice
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often a case is run while its figures are not valid
    #[arg(long, default_value_t = 3)]
    attempts: u32,
    /// Fail when the figures are not valid
    #[arg(long)]
    strict: bool,
    /// How long a case lasts; the experiment's own time when not given
    #[arg(long)]
    seconds: Option<f64>,
    /// Where everything goes [default: target/lab/EXPERIMENT]
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
}

/// Measure what the emulator achieves on this machine: rates, and the error of delays.
///
/// Fails when it is not good enough for experiments. Let the machine be idle meanwhile.
#[derive(clap::Args)]
struct SelftestArgs {
    /// How long each of the three measurements takes
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Where summary.json goes
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab/selftest")]
    out: PathBuf,
}

/// Measure what a packet costs: the eBPF programs, coding, the tunnel and the emulator.
///
/// Takes about eight minutes. Let the machine be idle meanwhile.
#[derive(clap::Args)]
struct BenchArgs {
    /// What is measured; everything when not given
    #[arg(long = "part", value_name = "PART", value_parser = part())]
    parts: Vec<Part>,
    /// Where summary.json goes
    #[arg(long, value_name = "DIRECTORY", default_value = "target/bench")]
    out: PathBuf,
}

fn part() -> impl TypedValueParser<Value = Part> {
    let named = |name: String| Part::ALL.into_iter().find(|part| part.name() == name);
    PossibleValuesParser::new(Part::ALL.map(Part::name))
        .try_map(move |name| named(name).context("no such part"))
}

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::List => {
            list();
            Ok(())
        }
        Command::Run(args) => run_experiment(args),
        Command::Selftest(args) => selftest(args),
        Command::Bench(args) => bench(args),
        Command::Clean => clear_abandoned(),
    }
}

fn bench(BenchArgs { mut parts, out }: BenchArgs) -> Result<()> {
    if parts.is_empty() {
        parts.extend(Part::ALL);
    }
    finish(&bench::run(&parts, &out)?, &out, false)
}

fn list() {
    for experiment in experiments::all() {
        println!("{}: {}", experiment.name(), experiment.about());
        for case in experiment.cases() {
            println!("  {case}");
        }
    }
}

fn run_experiment(args: RunArgs) -> Result<()> {
    let experiment = find(&args.experiment)?;
    if args
        .seconds
        .is_some_and(|seconds| !seconds.is_finite() || seconds <= 0.0)
    {
        bail!("--seconds is a time above zero");
    }
    let run = Run {
        binary: std::env::current_exe().context("cannot find this program")?,
        seed: args.seed,
        attempts: args.attempts,
        seconds: args.seconds,
        pattern: args
            .case
            .or_else(|| args.policy.map(|policy| format!("{policy}/*"))),
        out: args
            .out
            .unwrap_or_else(|| PathBuf::from("target/lab").join(experiment.name())),
        stop: Stop::on_signals()?,
    };
    finish(&experiment.run(&run)?, &run.out, args.strict)
}

fn find(name: &str) -> Result<Box<dyn Experiment>> {
    let all = experiments::all();
    let names = all
        .iter()
        .map(|experiment| experiment.name())
        .collect::<Vec<_>>()
        .join(", ");
    let found = all.into_iter().find(|experiment| experiment.name() == name);
    found.with_context(|| format!("no experiment is called {name:?}; there are: {names}"))
}

fn selftest(args: SelftestArgs) -> Result<()> {
    let measured = emulator::self_test(args.seconds)?;
    let mut summary = Summary::new("selftest", Provenance::gather(1));
    summary.cases = measured.cases;
    for reason in measured.unmet {
        summary.invalidate(reason);
    }
    finish(&summary, &args.out, true)
}

/// Writes the summary and shows it. An invalid one is a failure where `strict`, and never passed over.
fn finish(summary: &Summary, out: &Path, strict: bool) -> Result<()> {
    let written = summary.write(out)?;
    print!(
        "\n{}\n{}\n",
        Table::of_cases(&summary.cases, "").text(),
        written.display()
    );
    let page = out.join(REPORT);
    if page.exists() {
        println!("{}", page.display());
    }
    if summary.valid {
        return Ok(());
    }
    let reasons = format!(
        "the figures are NOT VALID:\n  {}",
        summary.invalid_because.join("\n  ")
    );
    if strict {
        bail!(reasons);
    }
    eprintln!("{reasons}");
    Ok(())
}
