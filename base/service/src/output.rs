//! Standard output and standard error: what is printed is printable, and a reader that has left is no failure.

use anyhow::{Context, Result};
use hawser_io::clock::unix_ms;
use hawser_units::{is_shown, printable};
use serde::Serialize;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::thread::sleep;
use std::time::Duration;

/// The interval of [`show`].
const REFRESH: Duration = Duration::from_secs(1);

/// Moves the cursor to the first line and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Prints text to standard output. Returns `false` if the reader has closed the pipe, as `head`
/// does, which is no failure.
///
/// # Errors
/// If it cannot be written, such as to a full disk.
pub fn print(text: &str) -> Result<bool> {
    write(&printable(text))
}

/// Prints text in the place of the one before, if standard output is a terminal that can.
///
/// # Errors
/// As [`print`].
pub fn print_over(text: &str) -> Result<bool> {
    let clear = if is_screen(&io::stdout()) { CLEAR } else { "" };
    write(&format!("{clear}{}", printable(text)))
}

/// Prints a value as JSON.
///
/// # Errors
/// As [`print`].
pub fn print_json<T: Serialize + ?Sized>(value: &T) -> Result<bool> {
    write(&format!(
        "{}\n",
        printable_json(&serde_json::to_string_pretty(value)?)
    ))
}

/// Prints a text once, or again and again until the reader leaves.
///
/// # Errors
/// If there is no text, or it cannot be printed.
pub fn show(again: bool, mut text: impl FnMut() -> Result<String>) -> Result<()> {
    if !again {
        return print(&text()?).map(drop);
    }
    while print_over(&text()?)? {
        sleep(REFRESH);
    }
    Ok(())
}

/// The age from which a status is outdated.
const STALE: Duration = Duration::from_secs(5);

/// Shows the status that a program writes: as JSON once, or as text once or again and again. Returns whether the
/// program runs. `written_unix_ms` returns the time of a status, in milliseconds since 1970.
///
/// # Errors
/// If there is no status, or it cannot be printed.
pub fn show_status<S: Serialize>(
    (again, as_json): (bool, bool),
    mut read: impl FnMut() -> Result<S>,
    written_unix_ms: impl Fn(&S) -> u64,
    text: impl Fn(&S, u64) -> String,
) -> Result<bool> {
    let mut runs = true;
    let mut read = || -> Result<S> {
        let status = read()?;
        runs = !is_stale(written_unix_ms(&status), unix_ms());
        Ok(status)
    };
    match as_json {
        true => print_json(&read()?).map(drop)?,
        false => show(again, || Ok(text(&read()?, unix_ms())))?,
    }
    Ok(runs)
}

/// Returns what the text of a status adds if it is outdated.
pub fn staleness(written_unix_ms: u64, now_unix_ms: u64) -> String {
    match is_stale(written_unix_ms, now_unix_ms) {
        true => {
            let age = age(written_unix_ms, now_unix_ms).as_secs();
            format!(", as of {age} s ago: it has exited or hangs")
        }
        false => String::new(),
    }
}

/// Returns whether a status is outdated: the program that wrote it has exited or hangs.
pub fn is_stale(written_unix_ms: u64, now_unix_ms: u64) -> bool {
    age(written_unix_ms, now_unix_ms) > STALE
}

fn age(written_unix_ms: u64, now_unix_ms: u64) -> Duration {
    Duration::from_millis(now_unix_ms.saturating_sub(written_unix_ms))
}

/// Escapes in JSON what a terminal does not show as it is. The value is the same.
pub fn printable_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for char in json.chars() {
        if char == '\n' || is_shown(char) {
            shown.push(char);
        } else {
            let units = char.encode_utf16(&mut [0; 2]).to_vec();
            shown.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    shown
}

/// Prints a line to standard error. A failure is ignored: it could not be printed.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(text));
}

/// Returns whether this is a terminal with a cursor that can be moved.
pub fn is_screen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns whether text on this may be coloured (no-color.org).
pub(crate) fn has_colours(stream: &impl IsTerminal) -> bool {
    is_screen(stream) && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn write(text: &str) -> Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written
            .map(|()| true)
            .context("cannot write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_its_value_and_controls_no_terminal() {
        let value = "a\n\u{1b}[2J \u{9b}\u{202e}\u{e0041} \"é\"";
        let json = printable_json(&serde_json::to_string(value).unwrap());
        assert!(json.chars().all(is_shown), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), value);
    }
}
