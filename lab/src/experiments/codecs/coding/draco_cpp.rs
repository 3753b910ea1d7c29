//! Google's implementation of Draco: its programs, with the parameters of the product's.

use super::Coded;
use anyhow::{Context, Result, ensure};
use hawser_cloud::{Cloud, ply};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Bits of a quantised position, and the level of compression: 10 less the speed.
const POSITION_BITS: &str = "11";
const LEVEL: &str = "3";

/// Encodes and decodes a cloud. The files are written to a folder. The times are those that the
/// programs print, in whole milliseconds, without reading and writing files.
///
/// # Errors
/// If the programs are missing or fail.
pub(super) fn code(cloud: &Cloud, folder: &Path) -> Result<Coded> {
    let file = |name: &str| folder.join(name);
    let (plain, encoded, decoded) = (file("frame.ply"), file("frame.drc"), file("decoded.ply"));
    fs::write(&plain, ply::write(cloud))?;
    let mut encoder = Command::new("draco_encoder");
    encoder.args(["-point_cloud", "-qp", POSITION_BITS, "-cl", LEVEL]);
    let encode = run(encoder.arg("-i").arg(&plain).arg("-o").arg(&encoded))?;
    let mut decoder = Command::new("draco_decoder");
    let decode = run(decoder.arg("-i").arg(&encoded).arg("-o").arg(&decoded))?;
    Ok(Coded {
        bytes: fs::metadata(&encoded)?.len(),
        encode: encode.context("draco_encoder does not say how long it took")?,
        decode: decode.context("draco_decoder does not say how long it took")?,
        decoded: ply::read(&fs::read(&decoded)?, ply::MILLIMETRES_PER_METRE)?,
    })
}

/// Runs a program of Draco. Returns the time that it says it took.
fn run(command: &mut Command) -> Result<Option<Duration>> {
    let program = command.get_program().display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {program}, of Debian's package draco"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{program} failed ({}): {text}",
        output.status
    );
    Ok(time(&text))
}

/// Returns the time in a text such as "(12 ms to encode)".
fn time(text: &str) -> Option<Duration> {
    let (before, _) = text.split_once(" ms to ")?;
    let (_, number) = before.rsplit_once('(')?;
    number.parse().ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_say_how_long_they_took() {
        let text =
            "Encoded point cloud saved to a.drc (12 ms to encode).\n\nEncoded size = 9 bytes\n";
        assert_eq!(time(text), Some(Duration::from_millis(12)));
        assert_eq!(time("Encoded size = 9 bytes"), None);
    }
}
