//! The page that a publisher serves, in Chromium.

use clap::Parser;
use hawser_testbed::netns::Namespace;
use hawser_testbed::process::Process;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The environment variable with the command line to run instead of a test.
const COMMAND_LINE: &str = "HAWSER_PUBLISH_TEST";

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: hawser_publish::Args,
}

#[test]
fn is_another_program_when_told_to() {
    let Ok(line) = std::env::var(COMMAND_LINE) else {
        return;
    };
    let Cli { args } = Cli::parse_from(line.split(' '));
    if let Err(error) = hawser_publish::run(args) {
        eprintln!("{error:#}");
        std::process::exit(1);
    }
}

/// A publisher with a page, and a machine at the same network.
struct Scene {
    publisher: Namespace,
    other: Namespace,
    folder: tempfile::TempDir,
}

impl Drop for Scene {
    fn drop(&mut self) {
        for namespace in [&self.publisher, &self.other] {
            let _ = namespace.delete();
        }
    }
}

impl Scene {
    fn new(test: &str) -> Self {
        let namespace = |role: &str| {
            let id = std::process::id();
            Namespace::create(format!("hawser-{test}-{role}-{id}")).unwrap()
        };
        let [publisher, other] = ["publisher", "other"].map(namespace);
        let link = format!(
            "link set lo up\nlink add name eth0 type veth peer name eth0 netns {}\n\
             addr add 192.0.2.1/24 dev eth0\nlink set eth0 up",
            other.name()
        );
        publisher.ip(&link).unwrap();
        other
            .ip("link set lo up\naddr add 192.0.2.2/24 dev eth0\nlink set eth0 up")
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        hawser_publish::generate_secret(&folder.path().join("media.key")).unwrap();
        Scene {
            publisher,
            other,
            folder,
        }
    }

    /// Starts `hawser publish` with options; returns its link, and the rest of its output.
    fn publish(&self, options: &str) -> (Process, String, impl Iterator) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let this = ["--exact", "is_another_program_when_told_to", "--nocapture"];
        let line = format!(
            "hawser --recording {} --key {} --lifetime 1000 {options}",
            recording().display(),
            self.folder.path().join("media.key").display()
        );
        command.args(this).env(COMMAND_LINE, line);
        command.stdout(Stdio::piped());
        let mut publisher = Process::spawn(&self.publisher, command).unwrap();
        let mut output = BufReader::new(publisher.stdout().unwrap()).lines();
        let mut lines = output.by_ref().map(Result::unwrap);
        let link = |line: String| Some(line[line.find("http")?..].to_owned());
        let link = lines.find_map(link).expect("a link");
        (publisher, link, output)
    }

    /// Watches at an address in the browser of a machine. `more` are further arguments of the script.
    fn watch(&self, machine: &Namespace, address: &str, more: &[&str]) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/viewer/tests/watch.js");
        let mut watch = machine.command("node").unwrap();
        watch.arg(script).arg(address).arg(self.folder.path());
        let watched = watch.args(more).output().expect("node");
        println!("{}", String::from_utf8_lossy(&watched.stdout));
        let errors = String::from_utf8_lossy(&watched.stderr);
        assert!(watched.status.success(), "{errors}");
    }
}

/// The person who talks, or the performer where there are no recordings.
fn recording() -> PathBuf {
    if !hawser_recording::data_dir().join("volumetric").exists() {
        eprintln!("without recordings, which $HAWSER_DATA names");
        return "synthetic".into();
    }
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../recording/examples/talker-front.toml")
}

fn end(publisher: Process) {
    let status = publisher.stop(Duration::from_secs(60)).unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn a_browser_opens_the_link_of_a_publisher() {
    let scene = Scene::new("link");
    let (publisher, link, _output) = scene.publish("--web 127.0.0.1:14780");
    assert!(link.starts_with("http://127.0.0.1:14780/#name=live&key="));
    scene.watch(&scene.publisher, &link, &[]);
    // As behind a firewall that lets only TCP pass.
    let mut filter = scene.publisher.command("nft").unwrap();
    let rule = "add table ip t; add chain ip t in { type filter hook input priority 0; }; \
                add rule ip t in udp dport 14780 drop";
    let filtered = filter.arg(rule).status().expect("nft");
    assert!(filtered.success(), "{filtered}");
    scene.watch(&scene.publisher, &link, &["WebSocket"]);
    end(publisher);
}

#[test]
fn a_browser_of_the_network_watches_over_plain_http() {
    let scene = Scene::new("plain");
    let (publisher, link, _output) = scene.publish("--web 192.0.2.1:14780 --web-plain-http");
    assert!(link.starts_with("http://192.0.2.1:14780/#name=live&key="));
    scene.watch(&scene.other, &link, &["WebSocket"]);
    end(publisher);
}

#[test]
fn a_browser_of_the_network_watches_over_https() {
    let scene = Scene::new("https");
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["stage.example".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap();
    let certificate = certificate.self_signed(&key).unwrap();
    let [chain_file, key_file] =
        ["page.pem", "page.key"].map(|name| scene.folder.path().join(name));
    fs::write(&chain_file, certificate.pem()).unwrap();
    fs::write(&key_file, key.serialize_pem()).unwrap();
    fs::set_permissions(&key_file, Permissions::from_mode(0o600)).unwrap();
    let options = format!(
        "--web 192.0.2.1:14780 --web-certificate {} --web-certificate-key {}",
        chain_file.display(),
        key_file.display()
    );
    let (publisher, link, _output) = scene.publish(&options);
    assert!(link.starts_with("https://stage.example:14780/#name=live&key="));
    let browser = [
        "",
        "--host-resolver-rules=MAP stage.example 192.0.2.1",
        "--ignore-certificate-errors",
    ];
    scene.watch(&scene.other, &link, &browser);
    end(publisher);
}
