//! The log of `hawser-controller`, which nobody who is not admitted can fill.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

/// Appends what `write` writes, after its length in `bytes` bytes.
fn with_length(to: &mut Vec<u8>, bytes: usize, write: impl FnOnce(&mut Vec<u8>)) {
    let mut content = Vec::new();
    write(&mut content);
    to.extend(&content.len().to_be_bytes()[size_of::<usize>() - bytes..]);
    to.extend(content);
}

/// Returns a ClientHello of TLS 1.2 that names this server (RFC 5246, section 7.4.1.2, and RFC 6066, section 3).
fn hello(name: &[u8]) -> Vec<u8> {
    let mut record = vec![22, 3, 1];
    with_length(&mut record, 2, |hello| {
        hello.push(1);
        with_length(hello, 3, |hello| {
            hello.extend([3, 3]);
            hello.extend([7; 32]);
            hello.push(0);
            with_length(hello, 2, |suites| suites.extend([0xc0, 0x2f]));
            with_length(hello, 1, |compressions| compressions.push(0));
            with_length(hello, 2, |extensions| {
                extensions.extend([0, 0]);
                with_length(extensions, 2, |names| {
                    with_length(names, 2, |names| {
                        names.push(0);
                        with_length(names, 2, |to| to.extend(name));
                    });
                });
            });
        });
    });
    record
}

#[test]
fn a_stranger_does_not_fill_the_log_with_illegal_names() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("controller.toml");
    let state = folder.path().join("state");
    let text = format!("listen = \"127.0.0.1:0\"\nstate = {state:?}\n");
    std::fs::write(&config, text).unwrap();
    let mut controller = Command::new(env!("CARGO_BIN_EXE_hawser-controller"))
        .args(["--log-format", "json", "--config"])
        .arg(&config)
        .env_remove("RUST_LOG")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(controller.stderr.take().unwrap());
    let address = loop {
        let mut line = String::new();
        assert_ne!(log.read_line(&mut line).unwrap(), 0);
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        if event["fields"]["message"] == "controller ready" {
            break event["fields"]["address"].as_str().unwrap().to_owned();
        }
    };
    for _ in 0..1000 {
        let mut stranger = TcpStream::connect(&address).unwrap();
        stranger.write_all(&hello(&[1; 8000])).unwrap();
        // It refuses the hello, and closes the connection.
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    controller.kill().unwrap();
    controller.wait().unwrap();
    let mut rest = String::new();
    log.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}
