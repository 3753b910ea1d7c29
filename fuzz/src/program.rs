use crate::Target;
use std::env;
use std::fs;
use std::io;
use std::path::Path;
use std::process;

/// The environment variable with the folder for the seeds.
const SEEDS: &str = "HAWSER_FUZZ_SEEDS";

/// Checks the files of the command line, one after the other.
///
/// # Errors
/// If a file cannot be read.
pub fn replay(target: &Target) -> io::Result<()> {
    for file in env::args_os().skip(1) {
        (target.check)(&fs::read(&file)?);
        println!("{}: passed {}", target.name, file.display());
    }
    Ok(())
}

/// Writes the seeds and exits, if `HAWSER_FUZZ_SEEDS` names a folder.
pub fn write_seeds(target: &Target) {
    let Some(folder) = env::var_os(SEEDS) else {
        return;
    };
    let written = write(target, Path::new(&folder));
    if let Err(error) = &written {
        eprintln!("cannot write seeds to {}: {error}", folder.display());
    }
    process::exit(i32::from(written.is_err()));
}

fn write(target: &Target, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (number, seed) in (target.seeds)().iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:03}")), seed)?;
    }
    Ok(())
}
