//! Checks of the source tree, called by the Makefile.
//!
//! `cargo run -p xtask -- products` checks that no product imports another, `cargo run -p xtask --
//! circles` that the files of a crate do not use each other in a circle, `cargo run -p xtask -- reference`
//! makes the reference pages of configuration files, `cargo run -p xtask -- words` checks the words of prose and
//! comments, `cargo run -p xtask -- test`
//! runs all checks and tests that a change must pass, and `cargo run -p xtask -- kernels` those that need
//! another kernel. `run-test` is for these: cargo runs test programs with it.

mod alone;
mod circles;
mod kernels;
mod machine;
mod products;
mod programs;
mod reference;
mod silence;
mod steps;
mod words;

use anyhow::{Result, bail};
use cargo_metadata::{Metadata, MetadataCommand};
use std::process::ExitCode;

const USAGE: &str = "usage: cargo run -p xtask -- products|circles|reference|words|test|kernels";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.split_first() {
        Some((task, program)) if task == silence::RUNNER => silence::run(program),
        Some((task, [product])) if task == alone::TASK => workspace()
            .and_then(|seen| steps::test_alone(&seen, product))
            .map(|()| ExitCode::SUCCESS),
        task => run(task.map(|(task, _)| task.as_str())).map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Option<&str>) -> Result<()> {
    match task {
        Some("products") => products::check(&workspace()?),
        Some("circles") => circles::check(&workspace()?),
        Some("reference") => reference::write(workspace()?.workspace_root.as_std_path()),
        Some("words") => words::check(workspace()?.workspace_root.as_std_path()),
        Some("kernels") => kernels::test(&workspace()?),
        Some("test") => steps::test(&workspace()?),
        _ => bail!(USAGE),
    }
}

fn workspace() -> Result<Metadata> {
    Ok(MetadataCommand::new().no_deps().exec()?)
}
