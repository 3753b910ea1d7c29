//! The programs under test, which this test executable plays itself.

use clap::Parser;
use hawser_service::Logging;
use hawser_testbed::program;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

/// The test that plays them.
const PLAYER: &str = "support::program::is_hawser_when_told_to";

/// Interval at which agents write their status, for which most tests wait.
const STATUS_EVERY: Duration = Duration::from_millis(100);

/// The commands of `hawser` that nodes and a controller need.
#[derive(Parser)]
enum Cli {
    Agent(hawser_agent::Args),
    Status(hawser_agent::status::Args),
    Report(hawser_agent::ReportArgs),
    Keygen { file: PathBuf },
    Controller(hawser_controller::Args),
}

/// Returns the path of `hawser`.
pub(crate) fn hawser() -> PathBuf {
    static HAWSER: LazyLock<PathBuf> = LazyLock::new(|| {
        let tests = std::env::current_exe().unwrap();
        hawser_in(Path::new(env!("CARGO_TARGET_TMPDIR")), &tests)
    });
    HAWSER.clone()
}

/// Returns the path of a `hawser` in `folder` that is played by the executable `tests`.
pub(crate) fn hawser_in(folder: &Path, tests: &Path) -> PathBuf {
    program::of_test(folder, tests, PLAYER).unwrap()
}

fn run(cli: &Cli) -> u8 {
    let outcome = match cli {
        Cli::Agent(args) => hawser_agent::run(&hawser_agent::Args {
            status_every: STATUS_EVERY,
            ..args.clone()
        }),
        Cli::Status(args) => hawser_agent::status::run(args),
        Cli::Report(args) => hawser_agent::report(args),
        Cli::Keygen { file } => hawser_agent::generate_key(file).map_err(Into::into),
        Cli::Controller(args) => hawser_controller::run(args),
    };
    hawser_service::exit_code("hawser", outcome)
}

#[test]
fn is_hawser_when_told_to() {
    let Some(arguments) = program::arguments().unwrap() else {
        return;
    };
    let program = ["hawser".to_owned()];
    let cli = Cli::parse_from(program.into_iter().chain(arguments));
    Logging::default().start();
    std::process::exit(run(&cli).into());
}
