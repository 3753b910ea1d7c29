//! `hawser` with a `hawser-controller` of the same build, which the test executable plays itself.

use clap::Parser;
use hawser_controller::CommandLine;
use hawser_testbed::program;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// Returns the path of `hawser`. The program that `hawser controller` starts lies beside it.
pub(crate) fn hawser() -> &'static Path {
    static HAWSER: LazyLock<PathBuf> = LazyLock::new(install);
    &HAWSER
}

fn install() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(tests.file_name().unwrap());
    fs::create_dir_all(&folder).unwrap();
    let played = "controller::is_the_controller_when_told_to";
    let played = program::of_test(&folder, &tests, played).unwrap();
    fs::rename(played, folder.join("hawser-controller")).unwrap();
    let hawser = folder.join("hawser");
    let _ = fs::remove_file(&hawser);
    fs::hard_link(env!("CARGO_BIN_EXE_hawser"), &hawser).unwrap();
    hawser
}

#[test]
fn is_the_controller_when_told_to() {
    let Some(arguments) = program::arguments().unwrap() else {
        return;
    };
    let program = ["hawser-controller".to_owned()];
    let command_line = CommandLine::parse_from(program.into_iter().chain(arguments));
    command_line.logging.start();
    let code = hawser_service::exit_code("hawser-controller", command_line.run());
    std::process::exit(code.into());
}
