//! Collects traces of real uplinks: one end sends over each uplink at a constant rate above what it
//! carries, the other end notes what arrives (Ni, appendix D).

mod datagram;
mod flow;
mod receiver;
mod recording;
mod sender;
mod trace;

use anyhow::{Context, Result};
use hawser_units::{Bitrate, MAX_PATHS};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// Collect traces of this machine's uplinks, for one's own drives
///
/// Runs at both ends, with the same key. The sending end saturates the uplinks: mind their volume and who else uses
/// them.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: hawser lab collect receive --listen 0.0.0.0:14760 --key drive.key --out drives"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    end: End,
}

#[derive(Debug, clap::Subcommand)]
enum End {
    Receive(ReceiveArgs),
    Send(SendArgs),
}

/// Note what arrives, until the sending end has finished
///
/// For each minute, writes `drive-NNN.csv`, a drive for `hawser lab run cellfusion`, `drive-NNN.N.up` for each uplink, a
/// trace of Mahimahi, and `drive-NNN.txt`, what has to be known about them. A drive is written when it is complete, and
/// what is left also on Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: hawser lab collect receive --listen 0.0.0.0:14760 --key drive.key --out drives"
)]
struct ReceiveArgs {
    /// UDP address to listen on, such as 0.0.0.0:14760
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:14760")]
    listen: SocketAddr,
    /// File with the key of both ends, as `hawser keygen --media FILE` makes it
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Directory to write to. Drives that are there are kept
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
}

/// Send over each uplink
///
/// Fails before data is sent if an uplink has no answer within 5 s, and later if no uplink has one for 15 s, or if the
/// receiving end does not confirm that it has written the drives. Ctrl-C ends the collection early.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: hawser lab collect send --to server.example:14760 --key drive.key --uplink wwan0=100"
)]
struct SendArgs {
    /// UDP address of the receiving end
    #[arg(long, value_name = "ADDRESS:PORT")]
    to: SocketAddr,
    /// File with the key of both ends
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Interface of an uplink and the rate to send at, such as wwan0=100; once for each uplink, up to 8. The rate should
    /// exceed what the uplink carries: the paper takes 100 Mb/s for 5G and 50 for LTE
    #[arg(
        long = "uplink",
        value_name = "INTERFACE=MBPS",
        required = true,
        num_args = 1
    )]
    uplinks: Vec<Uplink>,
    /// Duration in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SECONDS)))]
    seconds: u32,
}

/// The longest collection in seconds: a mistyped number should not use up the volume of a month.
const MAX_SECONDS: u32 = 3600;

/// The time without a packet from the other end after which the collection ends.
const SILENCE: Duration = Duration::from_secs(15);

/// The largest number of uplinks: as many as a drive may have.
const MAX_UPLINKS: usize = MAX_PATHS;

#[derive(Debug, Clone)]
struct Uplink {
    interface: String,
    rate: Bitrate,
}

impl FromStr for Uplink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not INTERFACE=MBPS, such as wwan0=100");
        let (interface, rate) = text.rsplit_once('=').ok_or_else(wrong)?;
        let rate: f64 = rate.parse().map_err(|_| wrong())?;
        if interface.is_empty() || !(0.1..=10_000.0).contains(&rate) {
            return Err(wrong());
        }
        Ok(Uplink {
            interface: interface.to_owned(),
            rate: Bitrate::from_mbps(rate),
        })
    }
}

/// Runs one end.
///
/// # Errors
/// If the key cannot be read, a socket cannot be opened, the other end does not answer, nothing arrives, or a file cannot
/// be written.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.end {
        End::Receive(args) => receiver::run(args),
        End::Send(args) => sender::run(args),
    }
}

fn read_key(path: &Path) -> Result<datagram::Key> {
    let secret = hawser_io::key_file::read_media(path).map_err(anyhow::Error::msg);
    let secret = secret.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(datagram::Key::new(&secret))
}

/// Prints a line to standard error. A terminal that has been closed does not end a collection.
fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
