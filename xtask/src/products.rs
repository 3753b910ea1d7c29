//! The check of the arrows between products: a product imports `base` and what it needs to be controlled, never another
//! product. Products meet in `lab`, `fuzz`, `packaging` and the tests of `cli`. Pure crates import pure crates only.

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Metadata, Package};

/// The folder that every crate may import.
pub(crate) const BASE: &str = "base";

/// The controller, and those of its crates that the programs which it controls import.
pub(crate) const CONTROL: &str = "control";
const FOR_PRODUCTS: &[&str] = &["hawser-client", "hawser-model"];

/// The products that import neither each other nor more of [`CONTROL`] than [`FOR_PRODUCTS`].
pub(crate) const PRODUCTS: &[&str] = &["replication", "tunnel", "media"];

/// The folders in which products meet: they import anything. Nothing else but [`PACKAGING`] imports them, and tests.
const MEETINGS: &[&str] = &["lab", "cli", "fuzz", "web", PACKAGING];

/// The folder that describes the programs to install.
const PACKAGING: &str = "packaging";

/// The folder of the program that starts the others. Its tests alone import them.
const STARTER: &str = "cli";

/// Folders that import `base` alone.
const ON_BASE: &[&str] = &["doctor"];

/// The crates that tests and [`MEETINGS`] import and that no program to install contains.
const FOR_TESTS: &[&str] = &["hawser-testbed", "hawser-testing"];

/// The file that every pure crate has, and no other: the rules of clippy for code that needs no operating system.
const PURE: &str = "clippy.toml";

struct Crate {
    name: String,
    /// The first folder of its path.
    room: String,
    is_pure: bool,
    dependencies: Vec<Dependency>,
}

struct Dependency {
    name: String,
    for_tests: bool,
}

/// Checks all dependencies. Fails with the list of those that a crate may not have.
pub(crate) fn check(workspace: &Metadata) -> Result<()> {
    let crates = read(workspace)?;
    let wrong = wrong_arrows(&crates);
    if !wrong.is_empty() {
        bail!(
            "dependencies that are not allowed (see ARCHITECTURE.md):\n  {}",
            wrong.join("\n  ")
        );
    }
    println!("{} crates, no product imports another", crates.len());
    Ok(())
}

/// Returns the names of the crates that must build without an operating system.
pub(crate) fn pure_crates(workspace: &Metadata) -> Result<Vec<String>> {
    let pure = read(workspace)?.into_iter().filter(|of| of.is_pure);
    Ok(pure.map(|of| of.name).collect())
}

fn read(workspace: &Metadata) -> Result<Vec<Crate>> {
    let packages = workspace.workspace_packages();
    let crates = packages.into_iter().map(|package| {
        let manifest = &package.manifest_path;
        let path = manifest.strip_prefix(&workspace.workspace_root)?;
        let room = path
            .components()
            .next()
            .context("a crate without a folder")?;
        Ok(Crate {
            name: package.name.to_string(),
            room: room.to_string(),
            is_pure: manifest.with_file_name(PURE).exists(),
            dependencies: dependencies_of(package),
        })
    });
    crates.collect()
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

/// Returns the dependencies that are not allowed, each with the reason.
fn wrong_arrows(crates: &[Crate]) -> Vec<String> {
    let mut wrong = Vec::new();
    for from in crates {
        for dependency in &from.dependencies {
            let to = crates.iter().find(|to| to.name == dependency.name);
            let reason = match to {
                Some(to) => refusal(from, to, dependency.for_tests),
                None => Some("not part of the workspace"),
            };
            let arrow = || format!("{} -> {}", from.name, dependency.name);
            wrong.extend(reason.map(|reason| format!("{}: {reason}", arrow())));
        }
    }
    wrong
}

/// Returns why a crate may not import another, if so. What tests alone import is allowed as well if it is of the base, or
/// of the controller: a program is tested with the real one.
fn refusal(from: &Crate, to: &Crate, for_tests: bool) -> Option<&'static str> {
    let meets = |of: &Crate| MEETINGS.contains(&&*of.room);
    if meets(to) && ![PACKAGING, &*to.room].contains(&&*from.room) && !for_tests {
        return Some("nothing imports what products meet in");
    }
    if from.room == STARTER && !for_tests && to.room != BASE && !ON_BASE.contains(&&*to.room) {
        return Some("it starts the products and has none of them");
    }
    let is_for_tests = |of: &Crate| FOR_TESTS.contains(&&*of.name);
    if is_for_tests(to) && !(for_tests || meets(from) || is_for_tests(from)) {
        return Some("for tests alone");
    }
    if from.is_pure && !to.is_pure && !for_tests {
        return Some("a pure crate imports pure ones only");
    }
    let is_product = PRODUCTS.contains(&&*from.room);
    let allowed = to.room == BASE
        || to.room == from.room
        || meets(from)
        || is_product && FOR_PRODUCTS.contains(&&*to.name)
        || is_product && for_tests && to.room == CONTROL;
    let is_known = is_product || meets(from) || [BASE, CONTROL, "xtask"].contains(&&*from.room);
    if !is_known && !ON_BASE.contains(&&*from.room) {
        return Some(
            "its folder is unknown: add it to xtask/src/products.rs and to ARCHITECTURE.md",
        );
    }
    (!allowed).then_some("only base, and of control the client and the model")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTBED: &str = FOR_TESTS[0];

    /// A crate of a folder that imports others.
    fn on(room: &str, name: &str, dependencies: &[&str]) -> Crate {
        let dependencies = dependencies.iter().map(|name| Dependency {
            name: name.to_string(),
            for_tests: false,
        });
        Crate {
            name: name.into(),
            room: room.into(),
            is_pure: false,
            dependencies: dependencies.collect(),
        }
    }

    fn base() -> [Crate; 3] {
        let testbed = on("base", TESTBED, &[]);
        [
            on("base", "io", &[]),
            testbed,
            on("control", "hawser-client", &["io"]),
        ]
    }

    fn wrong(of: Crate) -> Vec<String> {
        let tunnel = on("tunnel", "quic", &["io"]);
        let controller = on("control", "controller", &["hawser-client"]);
        let crates: Vec<_> = base().into_iter().chain([tunnel, controller, of]).collect();
        wrong_arrows(&crates)
    }

    #[test]
    fn a_product_imports_the_base_and_the_client_of_the_controller() {
        assert!(wrong(on("media", "relay", &["io", "hawser-client"])).is_empty());
        let reason = "only base, and of control the client and the model";
        for to in ["quic", "controller"] {
            let expected = [format!("relay -> {to}: {reason}")];
            assert_eq!(wrong(on("media", "relay", &[to])), expected);
        }
    }

    #[test]
    fn base_and_control_import_no_product() {
        for room in ["base", "control"] {
            assert_eq!(wrong(on(room, "one", &["quic"])).len(), 1, "{room}");
        }
        assert_eq!(wrong(on("base", "one", &["hawser-client"])).len(), 1);
    }

    #[test]
    fn products_meet_in_the_lab_and_where_programs_are_described() {
        for room in ["lab", PACKAGING] {
            assert!(wrong(on(room, "one", &["quic", "controller", TESTBED])).is_empty());
        }
        let expected = ["hawser -> quic: it starts the products and has none of them"];
        assert_eq!(wrong(on(STARTER, "hawser", &["io", "quic"])), expected);
        let lab = || on("lab", "lab", &[]);
        let importing = |room| wrong_arrows(&[lab(), on(room, "one", &["lab"])]);
        assert_eq!(importing("tunnel").len(), 1);
        assert!(importing("lab").is_empty(), "a part of the same folder");
    }

    #[test]
    fn tests_import_testbed_and_controller_but_no_product() {
        let for_tests = |to: &str| {
            let mut relay = on("media", "relay", &[to]);
            relay.dependencies[0].for_tests = true;
            wrong(relay)
        };
        assert!(for_tests(TESTBED).is_empty());
        assert!(for_tests("controller").is_empty());
        assert_eq!(for_tests("quic").len(), 1);
        let ships = wrong(on("media", "relay", &[TESTBED]));
        assert_eq!(ships, ["relay -> hawser-testbed: for tests alone"]);
    }

    #[test]
    fn a_pure_crate_imports_pure_crates() {
        let mut wire = on("base", "wire", &["io"]);
        wire.is_pure = true;
        let expected = ["wire -> io: a pure crate imports pure ones only"];
        assert_eq!(wrong(wire), expected);
    }

    #[test]
    fn unknown_folders_and_crates_are_named() {
        assert_eq!(wrong(on("new", "new", &["io"])).len(), 1);
        let expected = ["relay -> xtask: not part of the workspace"];
        assert_eq!(wrong(on("media", "relay", &["xtask"])), expected);
    }
}
