//! The check of the direction of dependencies: `units <- wire <- algorithms <- {codec, media, bpf, io,
//! metrics, tls, client, keyring, command, quic, moq} <- testbed <- apps <- lab <- cli`. Nothing that ships depends on the
//! testbed or the lab.

use anyhow::{Result, bail};
use cargo_metadata::camino::Utf8Path;
use cargo_metadata::{DependencyKind, Metadata, Package};

/// Directories and their layers, from the bottom to the top. The first directory that contains a
/// crate determines its layer. `core/` comes after the two of its crates that have a layer of their
/// own, and `apps/` after the binary that consists of the applications.
const LAYERS: &[(&str, u8)] = &[
    ("core/units", 0),
    ("core/wire", 1),
    ("core", 2),
    ("codec", 3),
    ("media", 3),
    ("bpf", 3),
    ("io", 3),
    ("metrics", 3),
    ("tls", 3),
    ("client", 3),
    ("keyring", 3),
    ("command", 3),
    ("quic", 3),
    ("moq", 3),
    ("testbed", 4),
    ("apps/cli", 7),
    ("apps", 5),
    ("lab", 6),
    ("fuzz", 6),
];

/// Crates on which only tests depend, and each other.
const FOR_TESTS: &[&str] = &["hawser-testbed", "hawser-lab"];

/// The first layer that can access the operating system.
const FIRST_IMPURE: u8 = 3;

/// Pairs of crates of one layer where the first is built on the second.
const BUILT_ON: &[(&str, &str)] = &[
    ("hawser-node", "hawser-control"),
    ("hawser-node", "hawser-pathset"),
    ("hawser-xnc", "hawser-coding"),
    ("hawser-objects", "hawser-congestion"),
    ("hawser-audience", "hawser-congestion"),
    ("hawser-audience", "hawser-objects"),
    ("hawser-audience", "hawser-fanout"),
    ("hawser-client", "hawser-io"),
    ("hawser-client", "hawser-tls"),
    ("hawser-command", "hawser-io"),
    ("hawser-quic", "hawser-tls"),
    ("hawser-media", "hawser-io"),
    ("hawser-moq", "hawser-io"),
    ("hawser-moq", "hawser-tls"),
    ("hawser-keyring", "hawser-client"),
    ("hawser-keyring", "hawser-io"),
];

struct Crate {
    name: String,
    layer: u8,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    for_tests: bool,
}

/// Checks all dependencies. Fails with the list of those that point the wrong way.
pub(crate) fn check(workspace: &Metadata) -> Result<()> {
    let crates = read(workspace)?;
    let wrong = wrong_arrows(&crates, BUILT_ON);
    if !wrong.is_empty() {
        bail!(
            "dependencies that point the wrong way (see ARCHITECTURE.md):\n  {}",
            wrong.join("\n  ")
        );
    }
    println!("{} crates, every dependency points down", crates.len());
    Ok(())
}

/// Returns the names of the crates that must build without an operating system.
pub(crate) fn pure_crates(workspace: &Metadata) -> Result<Vec<String>> {
    let crates = read(workspace)?;
    Ok(crates
        .into_iter()
        .filter(|c| c.layer < FIRST_IMPURE)
        .map(|c| c.name)
        .collect())
}

fn read(workspace: &Metadata) -> Result<Vec<Crate>> {
    let mut crates = Vec::new();
    for package in workspace.workspace_packages() {
        let folder = package
            .manifest_path
            .strip_prefix(&workspace.workspace_root)?
            .with_file_name("");
        if folder == "xtask" {
            continue;
        }
        let Some(layer) = layer_of(&folder) else {
            bail!(
                "{folder} belongs to no layer: add it to LAYERS in xtask/src/layers.rs and to ARCHITECTURE.md"
            );
        };
        crates.push(Crate {
            name: package.name.to_string(),
            layer,
            dependencies: dependencies_of(package),
        });
    }
    Ok(crates)
}

fn dependencies_of(package: &Package) -> Vec<Dependency> {
    let dependencies = package.dependencies.iter();
    dependencies
        .filter(|dependency| dependency.path.is_some())
        .map(|dependency| Dependency {
            name: dependency.name.clone(),
            for_tests: dependency.kind == DependencyKind::Development,
        })
        .collect()
}

fn layer_of(folder: &Utf8Path) -> Option<u8> {
    LAYERS
        .iter()
        .find(|(top, _)| folder.starts_with(top))
        .map(|(_, layer)| *layer)
}

/// Returns the dependencies that point the wrong way. A crate may use the layers below its own, but
/// not what is for tests alone, and a peer only if it is built on it. Its tests may also use peers,
/// because two implementations of the same thing have to be compared somewhere, and tests do not
/// ship.
fn wrong_arrows(crates: &[Crate], built_on: &[(&str, &str)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for from in crates {
        for dependency in &from.dependencies {
            let Some(to) = crates.iter().find(|c| c.name == dependency.name) else {
                wrong.push(format!(
                    "{} -> {}: not part of the product",
                    from.name, dependency.name
                ));
                continue;
            };
            let ships = !FOR_TESTS.contains(&&*from.name);
            if ships && !dependency.for_tests && FOR_TESTS.contains(&&*to.name) {
                wrong.push(format!("{} -> {}: for tests alone", from.name, to.name));
                continue;
            }
            let peer_allowed = dependency.for_tests || built_on.contains(&(&from.name, &to.name));
            if to.layer > from.layer {
                wrong.push(format!("{} -> {}: upwards", from.name, to.name));
            } else if to.layer == from.layer && !peer_allowed {
                wrong.push(format!(
                    "{} -> {}: peers do not depend on each other",
                    from.name, to.name
                ));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(name: &str, layer: u8, dependencies: &[&str]) -> Crate {
        let dependencies = dependencies
            .iter()
            .map(|name| Dependency {
                name: name.to_string(),
                for_tests: false,
            })
            .collect();
        Crate {
            name: name.into(),
            layer,
            dependencies,
        }
    }

    #[test]
    fn folders_have_the_layer_of_the_architecture() {
        let layer = |folder: &str| layer_of(Utf8Path::new(folder));
        assert!(layer("core/units") < layer("core/wire"));
        assert!(layer("core/wire") < layer("core/netem"));
        assert!(layer("core/netem") < layer("io"));
        assert_eq!(layer("io"), layer("bpf"));
        assert!(layer("io") < layer("testbed"));
        assert!(layer("testbed") < layer("apps/agent"));
        assert!(layer("apps/agent") < layer("lab"));
        assert!(layer("lab") < layer("apps/cli"));
        assert_eq!(layer("elsewhere"), None);
    }

    #[test]
    fn downwards_is_right() {
        let crates = [
            on("units", 0, &[]),
            on("wire", 1, &["units"]),
            on("io", 3, &["units", "wire"]),
        ];
        assert!(wrong_arrows(&crates, &[]).is_empty());
    }

    #[test]
    fn upwards_is_wrong_even_for_tests() {
        let mut units = on("units", 0, &["io"]);
        units.dependencies[0].for_tests = true;
        assert_eq!(
            wrong_arrows(&[units, on("io", 3, &[])], &[]),
            ["units -> io: upwards"]
        );
    }

    #[test]
    fn peers_are_wrong_unless_made_of_each_other() {
        let crates = [on("xnc", 2, &["coding"]), on("coding", 2, &[])];
        assert_eq!(
            wrong_arrows(&crates, &[]),
            ["xnc -> coding: peers do not depend on each other"]
        );
        assert!(wrong_arrows(&crates, &[("xnc", "coding")]).is_empty());
        assert!(!wrong_arrows(&crates, &[("coding", "xnc")]).is_empty());
    }

    #[test]
    fn tests_may_compare_peers() {
        let mut one = on("one", 2, &["other"]);
        one.dependencies[0].for_tests = true;
        assert!(wrong_arrows(&[one, on("other", 2, &[])], &[]).is_empty());
    }

    #[test]
    fn what_ships_contains_no_testbed() {
        let testbed = on("hawser-testbed", 4, &[]);
        let lab = on("hawser-lab", 6, &["hawser-testbed"]);
        let mut agent = on("agent", 5, &["hawser-testbed"]);
        let wrong = wrong_arrows(&[testbed, lab, agent], &[]);
        assert_eq!(wrong, ["agent -> hawser-testbed: for tests alone"]);

        agent = on("agent", 5, &["hawser-testbed"]);
        agent.dependencies[0].for_tests = true;
        assert!(wrong_arrows(&[agent, on("hawser-testbed", 4, &[])], &[]).is_empty());
    }

    #[test]
    fn nothing_depends_on_xtask() {
        assert_eq!(
            wrong_arrows(&[on("io", 3, &["xtask"])], &[]),
            ["io -> xtask: not part of the product"]
        );
    }
}
