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
    for command in ["agent", "keygen", "publish", "view", "lab"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
    }
}

#[test]
fn a_wrong_command_line_is_2() {
    assert_eq!(
        hawser(&["publish", "--no-such-flag"]).status.code(),
        Some(2)
    );
}

#[test]
fn a_failure_is_1_and_says_what_was_wrong_in_one_line() {
    let output = hawser(&["publish", "--recording", "/no/such/recording.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.starts_with("hawser: ") && error.contains("/no/such/recording.toml"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1, "{error}");
}
