//! The end of `make demo`: a person over one path and over several at the same time, live in a browser, with buttons that
//! disturb the network.

mod disturbances;
mod forwarder;
mod stage;

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::extract::Json;
use axum::routing::get;
use disturbances::Disturbances;
use hawser_testbed::topology::Stop;
use parking_lot::Mutex;
use stage::Stage;
use std::env;
use std::io::{IsTerminal, stdout};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time between two looks at the buttons.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Watch a person in a browser, over one path and over several, while you disturb the network
///
/// Prints the address of a page, and opens it if there is a display. Buttons on the page cut a cable, add jitter and add an
/// upload.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: hawser lab demo --seconds 600")]
pub(crate) struct Args {
    /// Address and port of the page, of the loopback interface
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:14780",
        value_parser = parse_page)]
    page: SocketAddr,
    /// Time after which it ends, seconds [default: when it is interrupted, or at once if standard output is not a terminal]
    #[arg(long)]
    seconds: Option<f64>,
    /// Output directory; the logs go to `live` in it
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab/demo")]
    out: PathBuf,
}

/// Runs the demonstration. `hawser` plays the nodes.
///
/// # Errors
/// If this program has no page, or a program fails.
pub(crate) fn run(args: &Args, hawser: &Path) -> Result<()> {
    let seconds = args.seconds.map(Duration::try_from_secs_f64).transpose();
    let seconds = seconds.context("--seconds must not be negative")?;
    ensure!(
        hawser_page::IS_BUILT,
        "this program was built without the viewer's page: run `make page`, then build it again"
    );
    let stop = Stop::on_signals()?;
    let mut stage = Stage::set(hawser, &args.out.join("live"), &stop)?;
    let wanted = Arc::new(Mutex::new(Disturbances::default()));
    let broadcasts = stage.broadcasts();
    let routes = buttons(Arc::clone(&wanted));
    let page = hawser_page::serve_demo_in_thread(args.page, broadcasts, routes)?;
    let address = format!("http://{page}/#key={}", stage.secret()?);
    let lasts = seconds.is_some() || stdout().is_terminal();
    hawser_service::print(&announced(&address, lasts))?;
    if lasts {
        open(&address);
        let until = seconds.map(|seconds| Instant::now() + seconds);
        while until.is_none_or(|until| Instant::now() < until) && !stop.sleep(POLL_INTERVAL) {
            stage.disturb(*wanted.lock())?;
            stage.check_running()?;
        }
    }
    stage.end()
}

fn parse_page(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse().ok();
    let address = address.filter(|address: &SocketAddr| address.ip().is_loopback());
    address.ok_or_else(|| {
        format!("\"{text}\" is not a loopback address and a port, such as 127.0.0.1:14780")
    })
}

/// Returns the text that is printed once the page is served: the address on a line of its own.
fn announced(address: &str, lasts: bool) -> String {
    let how = match lasts {
        true => "left over one path, right over three with Hawser. Ctrl-C ends it.",
        false => "left over one path, right over three with Hawser. On a terminal it stays open.",
    };
    format!("\nA person, live in your browser, {how}\n{address}\n")
}

/// Returns the routes of the buttons of the page.
fn buttons(wanted: Arc<Mutex<Disturbances>>) -> Router {
    let shown = Arc::clone(&wanted);
    let show = async move || Json(*shown.lock());
    let press = async move |Json(pressed): Json<Disturbances>| {
        *wanted.lock() = pressed;
        Json(pressed)
    };
    Router::new().route("/disturbances.json", get(show).post(press))
}

/// Opens the page if there is a display, as the user who has become root by sudo. The secret in the address is that of a
/// recording and lasts as long as the demonstration.
fn open(address: &str) {
    if ["DISPLAY", "WAYLAND_DISPLAY"]
        .into_iter()
        .all(|name| env::var_os(name).is_none())
    {
        return;
    }
    let mut command = match env::var_os("SUDO_USER") {
        Some(user) => {
            let mut sudo = Command::new("sudo");
            sudo.args(["--non-interactive", "--set-home", "--user"]);
            sudo.arg(user).arg("xdg-open");
            sudo
        }
        None => Command::new("xdg-open"),
    };
    let silent = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Err(error) = silent.arg(address).spawn() {
        tracing::warn!("the page is not opened: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_has_a_line_of_its_own() {
        for lasts in [true, false] {
            let text = announced("http://127.0.0.1:14780/#key=5a", lasts);
            assert!(
                text.lines()
                    .any(|line| line == "http://127.0.0.1:14780/#key=5a")
            );
            assert_eq!(text.contains("Ctrl-C"), lasts);
        }
    }

    #[test]
    fn the_page_is_served_to_this_machine_only() {
        assert!(parse_page("127.0.0.1:0").is_ok() && parse_page("[::1]:80").is_ok());
        for text in ["0.0.0.0:14780", "192.0.2.1:80", "localhost"] {
            assert!(parse_page(text).unwrap_err().contains("not a loopback"));
        }
    }
}
