//! The decoders that a publisher starts.

use anyhow::{Context, Result};
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Starts ffmpeg on all processors, whatever those of its parent are.
const ON_ALL_PROCESSORS: &str = r#"#!/bin/sh
PATH=${PATH#*:}
exec taskset -c "$(cat /sys/devices/system/cpu/online)" ffmpeg "$@"
"#;

/// Lets the decoders of `command` use the emulator's processor, too. They send nothing to a network, so the emulator's
/// real-time thread interrupts them at once.
///
/// # Errors
/// If nothing can be written to `directory`.
pub(super) fn on_all_processors(command: &mut Command, directory: &Path) -> Result<()> {
    let programs = directory.join("bin");
    let write = || {
        let ffmpeg = programs.join("ffmpeg");
        fs::create_dir_all(&programs)?;
        fs::write(&ffmpeg, ON_ALL_PROCESSORS)?;
        fs::set_permissions(&ffmpeg, fs::Permissions::from_mode(0o755))
    };
    write().with_context(|| format!("cannot write to {}", programs.display()))?;
    let mut path = fs::canonicalize(programs)?.into_os_string();
    path.push(":");
    path.push(env::var_os("PATH").unwrap_or_default());
    command.env("PATH", path);
    Ok(())
}
