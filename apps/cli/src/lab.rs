use anyhow::{Result, bail};
use clap::Subcommand;
use hawser_lab::emulator;
use hawser_lab::report::Table;
use hawser_lab::summary::{Provenance, Summary};
use std::path::PathBuf;

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
    Selftest(SelftestArgs),
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

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Selftest(args) => selftest(args),
    }
}

fn selftest(args: SelftestArgs) -> Result<()> {
    let measured = emulator::self_test(args.seconds)?;
    let mut summary = Summary::new("selftest", Provenance::gather(1));
    summary.cases = measured.cases;
    for reason in &measured.unmet {
        summary.invalidate(reason);
    }
    print!("{}", Table::of_cases(&summary.cases, "").text());
    println!("{}", summary.write(&args.out)?.display());
    if !summary.valid {
        bail!("the emulator does not keep up here:\n  {}", measured.unmet.join("\n  "));
    }
    Ok(())
}
