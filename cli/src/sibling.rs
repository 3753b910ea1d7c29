//! Programs that `hawser` becomes, so that it does not contain them. They lie in its folder or in
//! PATH.

use anyhow::{Context, Result, anyhow};
use std::env;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Returns the program `name`, that in the folder of this one if there is one, without arguments.
///
/// # Errors
/// If the folder of this program is not known.
pub(crate) fn command(name: &str) -> Result<Command> {
    let this = env::current_exe().context("cannot find this program")?;
    let beside = this.with_file_name(name);
    Ok(if beside.is_file() {
        Command::new(beside)
    } else {
        Command::new(name)
    })
}

/// Replaces this process by the program. Returns only if that fails: the error of a program that is
/// missing says where it can be found, as in `source`.
pub(crate) fn exec(mut program: Command, source: &str) -> anyhow::Error {
    let error = program.exec();
    let name = Path::new(program.get_program());
    let name = name.file_name().unwrap_or(name.as_os_str()).display();
    match error.kind() {
        ErrorKind::NotFound => {
            let this = env::current_exe().unwrap_or_default();
            let folder = this.parent().unwrap_or(Path::new("/")).display();
            anyhow!("{name} is neither in {folder} nor in PATH: {source}")
        }
        _ => anyhow!(error).context(format!("cannot start {name}")),
    }
}
