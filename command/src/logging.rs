use clap::ValueEnum;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

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
            0 => "info",
            1 => "debug",
            _ => "trace",
        };
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr);
        match self.log_format {
            Format::Text => log
                .with_target(false)
                .with_ansi(std::io::stderr().is_terminal())
                .init(),
            Format::Json => log.json().init(),
        }
    }

    /// Returns the arguments that make another program log in the same way.
    pub fn arguments(&self) -> impl Iterator<Item = &'static str> {
        let verbose = std::iter::repeat_n("-v", self.verbose.into());
        let json = (self.log_format == Format::Json).then_some("--log-format=json");
        verbose.chain(json)
    }
}
