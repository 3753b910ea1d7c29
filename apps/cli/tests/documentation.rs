//! The examples of the documentation are valid.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn the_two_machines_of_the_readme() {
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
            .join("../../docs/two-machines")
            .join(name);
        fs::copy(documented, folder.path().join(name)).unwrap();
        hawser(&["agent", "--config", name, "--check"]);
    }
}
