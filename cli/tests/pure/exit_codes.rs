//! Exit codes and standard error, on which scripts rely.

use std::process::{Command, Output};

fn hawser(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_hawser"))
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn help_is_success_on_standard_output() {
    let output = hawser(&["--help"]);
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    for command in [
        "agent", "keygen", "publish", "view", "serve", "fetch", "doctor", "lab",
    ] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
}

#[test]
fn a_wrong_command_line_is_2() {
    for wrong in [
        &["publish", "--no-such-flag"][..],
        &["publish", "--recording", "synthetic"],
        &["view", "127.0.0.1:1"],
        &["view", "127.0.0.1:1", "--track", "stage"],
        &["fetch", "127.0.0.1:1", "--key", "media.key"],
    ] {
        assert_eq!(hawser(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_failure_is_1_and_says_what_was_wrong_in_one_line() {
    let output = hawser(&["serve", "--recording", "/no/such/recording.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with("hawser: ") && error.contains("/no/such/recording.toml"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn a_failed_check_exits_with_1_and_a_wrong_call_with_2() {
    let doctor = |more: &[&str]| {
        let arguments = [&["doctor", "--for", "view", "--json"], more].concat();
        hawser(&arguments)
    };
    let output = doctor(&[]);
    assert_eq!(output.status.code(), Some(0));
    let output = doctor(&["--interface", "no-such-device"]);
    assert_eq!(output.status.code(), Some(1));
    let findings: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(findings[0]["result"], "failed");
    assert_eq!(findings[0]["subject"], "no-such-device");
    assert_eq!(doctor(&["--peer", "no-port"]).status.code(), Some(2));
    assert_eq!(doctor(&["--for", "nobody"]).status.code(), Some(2));
}
