//! Reload of a running controller's configuration by SIGHUP.

use crate::rig::{TIMEOUT, connector};
use hawser_controller::Args;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use tokio::net::TcpStream;

/// The environment variable with the configuration, for the process in which the test below runs
/// this test binary again.
const CONFIG: &str = "HAWSER_TEST_CONTROLLER_CONFIG";

#[test]
fn runs_a_controller_in_the_child_process() {
    let Ok(config) = std::env::var(CONFIG) else {
        return;
    };
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing_subscriber::filter::LevelFilter::INFO)
        .init();
    hawser_controller::run(&Args {
        config: Some(config.into()),
        check: false,
        openapi: false,
        restored: false,
        new_admin_token: false,
        rotate_authority: None,
    })
    .unwrap();
}

/// `hawser controller` in another process, and its log.
struct Process {
    child: Child,
    log: Receiver<String>,
}

impl Process {
    fn start(config: &Path) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "reload::runs_a_controller_in_the_child_process",
                "--nocapture",
            ])
            .env(CONFIG, config)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (lines, log) = channel();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            // The test may have ended before the process.
            output
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| lines.send(line))
        });
        Process { child, log }
    }

    /// Returns the next log line that contains the text.
    fn says(&self, text: &str) -> String {
        loop {
            let line = self
                .log
                .recv_timeout(TIMEOUT)
                .unwrap_or_else(|error| panic!("{text}: {error}"));
            if line.contains(text) {
                return line;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors cannot be handled in `drop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write_config(state: &Path, more: &str) -> PathBuf {
    let file = state.join("controller.toml");
    let text = format!(
        "listen = \"127.0.0.1:0\"\nstate = \"{}\"\n{more}\n",
        state.display()
    );
    fs::write(&file, text).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_changes_names_and_never_ends_the_controller() {
    let state = tempfile::tempdir().unwrap();
    let mut controller = Process::start(&write_config(state.path(), ""));
    let line = controller.says("controller ready");
    let address: SocketAddr = line
        .split("address=")
        .nth(1)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let tls = connector(
        &fs::read_to_string(state.path().join("authority.pem")).unwrap(),
        b"h2",
    );
    let accepts_name = async |name: &'static str| {
        let socket = TcpStream::connect(address).await.unwrap();
        tls.connect(name.try_into().unwrap(), socket).await.is_ok()
    };
    assert!(accepts_name("localhost").await && !accepts_name("controller.example.net").await);

    write_config(state.path(), "names = [\"controller.example.net\"]");
    controller.signal(Signal::SIGHUP);
    controller.says("certificate replaced");
    assert!(accepts_name("localhost").await && accepts_name("controller.example.net").await);

    write_config(
        state.path(),
        "names = [\"controller.example.net\"]\nmax_events = 500",
    );
    controller.signal(Signal::SIGHUP);
    controller.says("other changes of the configuration need a restart");
    controller.says("certificate replaced");

    write_config(state.path(), "listem = 1");
    controller.signal(Signal::SIGHUP);
    controller.says("configuration not reloaded");
    controller.says("listem");
    assert!(accepts_name("controller.example.net").await);

    controller.signal(Signal::SIGTERM);
    assert!(controller.child.wait().unwrap().success());
}
