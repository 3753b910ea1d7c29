use crate::output::{has_colours, printable_json};
use clap::ValueEnum;
use hawser_units::Line;
use std::fmt;
use std::io::{self, Stderr, Write};
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// The longest message or value in a line of the log, in bytes.
const MAX_VALUE: usize = 4096;

/// Options of the log on standard error.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Logging")]
pub struct Logging {
    /// Log more: once for debug, twice for trace
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
            // The programs report what they cannot send in words of their own.
            0 => "info,noq_udp=error",
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

    /// Returns the arguments that make another program log in the same way.
    pub fn arguments(&self) -> impl Iterator<Item = &'static str> {
        let verbose = std::iter::repeat_n("-v", self.verbose.into());
        let json = (self.log_format == Format::Json).then_some("--log-format=json");
        verbose.chain(json)
    }
}

/// Writes the message or a field of an event. An event is one line, and controls no terminal, whatever text of others is
/// in it.
fn write_field(log: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = Line::within(&format!("{value:?}"), MAX_VALUE);
    match field.name() {
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

/// Standard error, to which events are written as JSON.
struct JsonLog(Stderr);

impl Write for JsonLog {
    fn write(&mut self, events: &[u8]) -> io::Result<usize> {
        let text = printable_json(&String::from_utf8_lossy(events));
        self.0.write_all(text.as_bytes()).map(|()| events.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
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

    #[test]
    fn an_event_is_one_line_whatever_others_have_sent() {
        let kept = Kept::default();
        let log = kept.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .fmt_fields(debug_fn(write_field).delimited(" "))
            .with_writer(move || log.clone())
            .finish();
        let foreign = "closed\n2026 ERROR forged \x1b[2J\u{9b}31m\u{202e}";
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(client = %foreign, name = foreign, error = ?foreign, "left: {foreign}");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.trim_end().chars().all(hawser_units::is_shown),
            "{text}"
        );
        assert!(text.contains(" left: closed\\n2026 ERROR"), "{text}");
    }
}
