//! `hawser controller`, which is a program of its own: its stores and its REST interface would be a
//! fifth of what is installed on every node.

use crate::sibling;
use anyhow::Result;
use std::ffi::OsString;

/// The program with the controller.
const PROGRAM: &str = "hawser-controller";

/// The command that starts it.
const COMMAND: &str = "controller";

const SOURCE: &str = "the package hawser has it; in Hawser's source tree, build it with `make build`, \
                      or install it with `cargo install --path control/controller`";

/// Replaces this process by `hawser-controller` with the arguments of this one, which are valid.
/// Returns only if that fails.
pub(crate) fn run() -> Result<()> {
    let mut controller = sibling::command(PROGRAM)?;
    controller.args(without_command(std::env::args_os().skip(1).collect()));
    Err(sibling::exec(controller, SOURCE))
}

/// Removes the name of the command. Only options of the log can come before it, and none has such a
/// value.
fn without_command(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if let Some(position) = arguments.iter().position(|argument| argument == COMMAND) {
        arguments.remove(position);
    }
    arguments
}
