//! The examples of the documentation are valid.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

const PAGE: &str = include_str!("../../../docs/controller.md");

#[test]
fn the_two_machines_of_the_guide() {
    let folder = tempfile::tempdir().unwrap();
    let hawser = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_hawser"))
            .args(arguments)
            .current_dir(&folder)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    hawser(&["keygen", "pair.key"]);
    for name in ["publisher.toml", "viewer.toml"] {
        let documented = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../docs/two-machines")
            .join(name);
        fs::copy(documented, folder.path().join(name)).unwrap();
        hawser(&["agent", "--config", name, "--check"]);
    }
}

/// The controller of the page, killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the blocks of commands of a section of the page.
fn blocks(title: &str) -> Vec<&'static str> {
    let (_, after) = PAGE.split_once(&format!("\n## {title}\n")).unwrap();
    let section = after.split("\n## ").next().unwrap();
    section.split("```\n").skip(1).step_by(2).collect()
}

/// Runs lines of a shell in a folder in which `hawser` is the program under test.
fn shell(folder: &Path, script: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_hawser"));
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let mut command = Command::new("sh");
    command
        .args(["-e", "-c", script])
        .current_dir(folder)
        .env("PATH", path)
        .env("HOME", folder)
        .env_remove("XDG_CONFIG_HOME");
    command
}

fn types(folder: &Path, script: &str) -> String {
    let output = shell(folder, script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}{error}");
    said
}

/// Everything but the agents, which need root and interfaces, is typed in the order of the page.
#[test]
fn the_controller_of_the_page_works_as_written() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    // The port of the page may be in use here.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let blocks: Vec<String> = blocks("Replication only when it helps")
        .iter()
        .map(|block| block.replace("14750", &port.to_string()))
        .collect();
    let [controller, operator, agents, describe] = blocks.as_slice() else {
        panic!("{blocks:?}");
    };
    let (file, start) = controller.split_once("END\nhawser").unwrap();
    types(folder, &format!("{file}END\n"));
    let start = format!("exec hawser{}", start.lines().next().unwrap());
    let log = fs::File::create(folder.join("log")).unwrap();
    let running = shell(folder, &start)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    let _running = Running(running.unwrap());
    let deadline = Instant::now() + Duration::from_secs(60);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            Instant::now() < deadline,
            "{}",
            fs::read_to_string(folder.join("log")).unwrap()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    types(folder, operator);
    let described = types(folder, describe);
    assert!(
        described.contains("NOT PROTECTED (NeverRegistered): IngressAlive"),
        "{described}"
    );
    // The files fit the key, the names and the tokens; the names of the machine's interfaces do not matter.
    for name in ["edge-1", "edge-2"] {
        let file = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../docs/under-a-controller/{name}.toml"));
        fs::copy(file, folder.join(format!("{name}.toml"))).unwrap();
        types(
            folder,
            &format!("hawser agent --config {name}.toml --check"),
        );
        assert!(folder.join(format!("{name}.token")).exists());
    }
    assert!(agents.contains("hawser agent --config edge-1.toml --enrol edge-1.token"));
    // A node whose name resolves to the controller enrols with what the page has made.
    let file = folder.join("edge-1.toml");
    let here = format!(
        "https://localhost:{port}\"]\nstate = \"{}/node\"",
        folder.display()
    );
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace("https://control.example:14750\"]", &here);
    fs::write(&file, text).unwrap();
    types(folder, agents.lines().next().unwrap());
    let listed = types(folder, "hawser ctl enrolment list --node edge-1 --json");
    assert!(!listed.contains("\"used_unix_ms\": null"), "{listed}");
}

/// An agent that takes every report. Returns them when the application has ended.
fn reports_at(socket: &Path) -> JoinHandle<Vec<serde_json::Value>> {
    let listener = UnixListener::bind(socket).unwrap();
    thread::spawn(move || {
        let (application, _) = listener.accept().unwrap();
        let mut answers = application.try_clone().unwrap();
        let lines = BufReader::new(application).lines();
        let reports = lines.map(|line| {
            answers.write_all(b"{\"taken\":\"stage\"}\n").unwrap();
            serde_json::from_str(&line.unwrap()).unwrap()
        });
        reports.collect()
    })
}

#[test]
fn the_script_that_reports_for_ffmpeg_works_as_written() {
    const PAGE: &str = include_str!("../../../docs/agent.md");
    let (_, after) = PAGE.split_once("```sh\nffmpeg ").unwrap();
    let script = format!("ffmpeg {}", after.split("```").next().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("edge-2.sock");
    // A stream that ends, at a socket of an agent that this user may make.
    let here = [
        (
            "-i udp://10.99.0.2:5000",
            "-re -f lavfi -i testsrc=duration=4:rate=30",
        ),
        ("/run/hawser/agent/edge-2.sock", socket.to_str().unwrap()),
    ];
    let script = here.iter().fold(script, |script, (there, here)| {
        assert!(script.contains(there), "{script}");
        script.replace(there, here)
    });
    let reports = reports_at(&socket);
    types(folder.path(), &script);
    let reports = reports.join().unwrap();
    assert!(!reports.is_empty());
    for report in reports {
        let count = |key: &str| report[key].as_u64().unwrap();
        assert!(
            report["flow"] == "stage" && count("late") <= count("frames"),
            "{report}"
        );
        assert!(count("frames") >= 30, "{report}");
    }
}

/// Every metric that the alerts and the dashboard use exists.
#[test]
fn alerts_and_dashboard_use_metrics_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let documented = read("docs/reference/metrics.md");
    let of_controller = read("control/controller/src/metrics.rs");
    for file in ["alerts.yml", "dashboard.json"] {
        let text = read(&format!("docs/guide/monitoring/{file}"));
        let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
        let names: Vec<_> = words.filter(|word| word.starts_with("hawser_")).collect();
        assert!(names.len() > 5, "{file}: {names:?}");
        for name in names {
            let exists = match name.strip_prefix("hawser_controller_") {
                Some(name) => {
                    let name = name.strip_suffix("_total").unwrap_or(name);
                    of_controller.contains(&format!("\"{name}\""))
                }
                None => documented.contains(&format!("| `{name}` |")),
            };
            assert!(exists, "{file}: there is no {name}");
        }
    }
}

/// Returns the files below a folder.
fn files_below(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.map(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => files_below(&entry.path()),
        _ => vec![entry.path().to_str().unwrap().to_owned()],
    });
    files.collect::<Vec<_>>().concat()
}

#[test]
fn the_walks_of_the_products_name_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let products = ["base", "control", "replication", "tunnel", "media"];
    let files = products
        .map(|product| files_below(&root.join(product)))
        .concat();
    for product in products {
        let page = fs::read_to_string(root.join(product).join("README.md")).unwrap();
        let names = page.split('`').skip(1).step_by(2);
        let is_file = |name: &&str| [".rs", ".c", ".h"].iter().any(|end| name.ends_with(end));
        for name in names.filter(is_file) {
            let exists = files.iter().any(|file| file.ends_with(&format!("/{name}")));
            assert!(exists, "{product}/README.md: there is no {name}");
        }
    }
}
