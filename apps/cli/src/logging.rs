use clap::ValueEnum;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Options of the log on standard error.
#[derive(clap::Args)]
#[command(next_help_heading = "Logging")]
pub(crate) struct Args {
    /// Log more: once for debug, twice for trace
    ///
    /// RUST_LOG sets levels per module and overrides this, for example RUST_LOG=hawser_agent=trace.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Format of the log
    #[arg(long, global = true, value_enum, default_value_t = Format::Text)]
    log_format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Human-readable text
    Text,
    /// One JSON object per line
    Json,
}

/// Starts logging for the whole process.
pub(crate) fn start(args: &Args) {
    let level = match args.verbose {
        0 => "info",
        1 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match args.log_format {
        Format::Text => log
            .with_target(false)
            .with_ansi(std::io::stderr().is_terminal())
            .init(),
        Format::Json => log.json().init(),
    }
}
