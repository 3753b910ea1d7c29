use crate::output::has_colours;
use clap::ValueEnum;
use hawser_units::Line;
use serde_json::Value;
use std::fmt;
use std::io::{self, Stderr, Write};
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// The longest message or value in a line of the log, in bytes.
const MAX_VALUE: usize = 2048;

/// The filter of the log without `-v`: events of `hawser` and `hawser_...` from info on, the audit log, and errors of
/// libraries. Warnings of libraries are left out, because a peer can cause any number of them.
const OWN_AND_ERRORS: &str = "error,hawser=info,audit=info";

/// Options of the log on standard error.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Logging")]
pub struct Logging {
    /// Log more, also of libraries: once for debug, twice for trace
    ///
    /// RUST_LOG sets levels per module and overrides this, for example RUST_LOG=hawser_agent=trace.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Format of the log
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    log_format: Format,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Human-readable text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

impl Logging {
    /// Starts logging for the whole process.
    pub fn start(&self) {
        let level = match self.verbose {
            0 => OWN_AND_ERRORS,
            1 => "debug",
            _ => "trace",
        };
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            // A log that cannot be written is no reason to end.
            .log_internal_errors(false);
        match self.log_format {
            Format::Text => log
                .with_target(false)
                .with_ansi(has_colours(&io::stderr()))
                .fmt_fields(debug_fn(write_field).delimited(" "))
                .with_writer(io::stderr)
                .init(),
            Format::Json => log.json().with_writer(|| JsonLog(io::stderr())).init(),
        }
    }
}

/// Writes the message or a field of an event. An event is one line, and controls no terminal, whatever text of others is
/// in it.
fn write_field(log: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = shown(&format!("{value:?}"));
    match field.name() {
        name if is_of_library(name) => Ok(()),
        "message" => write!(log, "{value}"),
        name => {
            let (italic, dimmed, plain) = match log.has_ansi_escapes() {
                true => ("\x1b[3m", "\x1b[2m", "\x1b[0m"),
                false => ("", "", ""),
            };
            let name = name.strip_prefix("r#").unwrap_or(name);
            write!(log, "{italic}{name}{plain}{dimmed}={plain}{value}")
        }
    }
}

/// Returns a message or a value as it is logged, in both formats.
fn shown(text: &str) -> Line {
    Line::within(text, MAX_VALUE)
}

/// Returns whether a field is one of those that say where in its source a library has logged.
fn is_of_library(name: &str) -> bool {
    name.starts_with("log.")
}

/// Standard error, to which events are written as JSON.
struct JsonLog(Stderr);

impl Write for JsonLog {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = json_line(event)?;
        self.0.write_all(line.as_bytes()).map(|()| event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns the line of an event in JSON.
fn json_line(event: &[u8]) -> io::Result<String> {
    let mut event: Value = serde_json::from_slice(event)?;
    show_values(&mut event);
    Ok(format!("{event}\n"))
}

fn show_values(value: &mut Value) {
    match value {
        Value::String(text) => *text = shown(text).into_string(),
        Value::Array(values) => values.iter_mut().for_each(show_values),
        Value::Object(fields) => {
            fields.retain(|name, _| !is_of_library(name));
            fields.values_mut().for_each(show_values);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A log that is kept in memory.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Kept {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    /// Returns the log of what happens, in text and in JSON.
    fn logged(filter: &str, happens: fn()) -> [String; 2] {
        let (text, json) = (Kept::default(), Kept::default());
        let (to_text, to_json) = (text.clone(), json.clone());
        let log = || tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter));
        let in_text = log()
            .with_ansi(false)
            .fmt_fields(debug_fn(write_field).delimited(" "))
            .with_writer(move || to_text.clone())
            .finish();
        tracing::subscriber::with_default(in_text, happens);
        let in_json = log().json().with_writer(move || to_json.clone()).finish();
        tracing::subscriber::with_default(in_json, happens);
        let lines = json.text();
        let lines = lines.lines().map(|event| json_line(event.as_bytes()));
        [text.text(), lines.collect::<io::Result<String>>().unwrap()]
    }

    const FOREIGN: &str = "closed\n2026 ERROR forged \x1b[2J\u{9b}31m\u{202e}";

    #[test]
    fn an_event_is_one_line_whatever_others_have_sent() {
        for text in logged("info", || {
            tracing::warn!(client = %FOREIGN, name = FOREIGN, error = ?FOREIGN, "left: {FOREIGN}");
        }) {
            assert_eq!(text.lines().count(), 1, "{text}");
            let line = text.trim_end();
            assert!(line.chars().all(hawser_units::is_shown), "{text}");
            assert!(text.contains("left: closed"), "{text}");
        }
    }

    #[test]
    fn an_event_is_short_however_long_its_text_is() {
        for text in logged("info", || {
            let (long, quotes) = ("x".repeat(60_000), "\"".repeat(60_000));
            tracing::warn!(long, quotes, "it has ended");
        }) {
            assert!(text.contains("it has ended"), "{text}");
            assert!((4096..8000).contains(&text.len()), "{}", text.len());
        }
    }

    #[test]
    fn libraries_log_errors_and_the_programs_all_they_say() {
        for text in logged(OWN_AND_ERRORS, || {
            tracing::info!(target: "hawser", "said 1");
            tracing::info!(target: "hawser_agent::node", "said 2");
            tracing::info!(target: "audit", "said 3");
            tracing::error!(target: "rustls::conn", "said 4");
            tracing::debug!(target: "hawser_agent::node", "not said");
            tracing::warn!(target: "rustls::msgs", "not said");
            tracing::warn!(target: "noq_udp", "not said");
        }) {
            assert_eq!(text.lines().count(), 4, "{text}");
            assert!(!text.contains("not said"), "{text}");
        }
    }

    #[test]
    fn a_library_does_not_say_where_its_source_is() {
        for text in logged("info", || {
            tracing::warn!(log.file = "/root/a.rs", log.line = 7, "said");
        }) {
            assert!(text.contains("said"), "{text}");
            assert!(!text.contains("log."), "{text}");
        }
    }
}
