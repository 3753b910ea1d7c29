//! The check that a product needs no other one: its pure tests, built and run where the folders of the others are empty.
//!
//! The tree is seen through a mount namespace, in which empty folders cover those of the others, and a manifest without them
//! covers the workspace's. So nothing is copied, and what cargo has built for the whole tree is not built again: that a
//! program is up to date there says that it was made of no file of the others. In a copy, 115 crates of third parties would
//! be built again for each product.
//!
//! That takes equal features of third parties. So an empty crate stands for each absent one and depends on the same.

use crate::machine::Root;
use crate::products::{BASE, CONTROL, PRODUCTS};
use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::Utf8Path;
use cargo_metadata::{Dependency, DependencyKind, Metadata, Package};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::{self, File};
use std::process::Command;

/// The folder whose place the empty crates take. No product has it.
const PLACEHOLDERS: &str = "lab";

/// Returns the folders whose pure tests run alone.
pub(crate) fn products() -> impl Iterator<Item = &'static str> {
    PRODUCTS.iter().copied().chain([CONTROL])
}

/// Returns a command that runs `command` where all folders with packages are empty but [`BASE`], [`CONTROL`] and the product's.
///
/// # Errors
/// If the manifests for that cannot be written.
pub(crate) fn seen(
    workspace: &Metadata,
    product: &str,
    root: &Root,
    command: &[&str],
) -> Result<Command> {
    let folder = workspace.target_directory.join("alone").join(product);
    let absent = write_manifests(workspace, product, &folder)?;
    let covers = covers(&folder, &absent)?;
    let path = format!("PATH={}", std::env::var("PATH")?);
    let (become_root, become_user): (&[&str], &str) = match root {
        Root::Own => (&[], ""),
        // Built files stay the user's.
        Root::Sudo => (
            &["sudo", "-n", "-E", "env", &path],
            "setpriv --reuid $SUDO_UID --regid $SUDO_GID --init-groups",
        ),
    };
    // The working directory is entered again, as it is seen now.
    let script = format!("set -e\n{covers}cd \"$PWD\"\nexec {become_user} \"$@\"\n");
    let unshare = ["unshare", "--mount", "sh", "-c", &script, "sh"];
    let words = [become_root, &unshare, command].concat();
    let mut seen = Command::new(words[0]);
    seen.args(&words[1..])
        .current_dir(&workspace.workspace_root);
    Ok(seen)
}

/// Writes the manifest of the workspace without the packages of others, and the empty crates for these. Returns the folders
/// of the others.
fn write_manifests<'a>(
    workspace: &'a Metadata,
    product: &str,
    folder: &Utf8Path,
) -> Result<BTreeSet<&'a str>> {
    let root = &workspace.workspace_root;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {folder}"))?;
    }
    let mut absent = BTreeSet::new();
    for package in workspace.workspace_packages() {
        let room = room(root, package);
        if [BASE, CONTROL, product].contains(&room) {
            continue;
        }
        absent.insert(room);
        let place = folder.join(PLACEHOLDERS).join(&*package.name);
        fs::create_dir_all(&place).with_context(|| format!("cannot create {place}"))?;
        fs::write(place.join("Cargo.toml"), placeholder(package)?)?;
        fs::write(place.join("lib.rs"), "")?;
    }
    let members = [BASE, CONTROL, product, PLACEHOLDERS].into();
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    let manifest = with_members(&manifest, &members)?;
    let seen = folder.join("Cargo.toml");
    fs::write(&seen, manifest)?;
    // The compiler with lints depends on this file, and cargo compares times.
    let modified = fs::metadata(root.join("Cargo.toml"))?.modified()?;
    File::options()
        .write(true)
        .open(&seen)?
        .set_modified(modified)?;
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    Ok(absent)
}

/// Returns the lines of a shell script that cover the manifest, and the folders of others.
fn covers(folder: &Utf8Path, absent: &BTreeSet<&str>) -> Result<String> {
    let mut script = String::new();
    for file in ["Cargo.toml", "Cargo.lock", PLACEHOLDERS] {
        writeln!(script, "mount --bind '{}' {file}", folder.join(file))?;
    }
    for room in absent.iter().filter(|room| **room != PLACEHOLDERS) {
        writeln!(script, "mount -t tmpfs none {room}")?;
    }
    Ok(script)
}

/// The argument of this program that makes it test a product from within.
pub(crate) const TASK: &str = "test-alone";

/// Returns the first folder of a package's path.
fn room<'a>(root: &Utf8Path, package: &'a Package) -> &'a str {
    let path = package.manifest_path.strip_prefix(root);
    let first = path.ok().and_then(|path| path.components().next());
    first.map_or("", |folder| folder.as_str())
}

/// Returns the manifest of an empty crate that depends on the same crates of third parties as `package`.
fn placeholder(package: &Package) -> Result<String> {
    let mut manifest = format!(
        "[package]\nname = \"absent-{}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n",
        package.name
    );
    for dependency in package.dependencies.iter().filter(|on| on.path.is_none()) {
        let table = match dependency.kind {
            DependencyKind::Development => "dev-dependencies",
            DependencyKind::Build => "build-dependencies",
            _ => "dependencies",
        };
        let table = match &dependency.target {
            Some(target) => format!("target.'{target}'.{table}"),
            None => table.to_owned(),
        };
        let Dependency {
            name,
            req,
            uses_default_features,
            features,
            rename,
            ..
        } = dependency;
        let local = rename.as_ref().unwrap_or(name);
        write!(
            manifest,
            "\n[{table}.{local}]\npackage = \"{name}\"\nversion = \"{req}\"\ndefault-features = {uses_default_features}\nfeatures = {features:?}\n"
        )?;
    }
    Ok(manifest)
}

/// Returns the manifest of a workspace with other members.
fn with_members(manifest: &str, folders: &BTreeSet<&str>) -> Result<String> {
    let members: Vec<_> = folders.iter().map(|folder| format!("{folder}/*")).collect();
    let other = |line: &str| match line.split_once(" = ") {
        Some(("members", _)) => format!("members = {members:?}\n"),
        Some(("default-members", _)) => String::new(),
        _ => format!("{line}\n"),
    };
    let changed: String = manifest.lines().map(other).collect();
    ensure!(changed != manifest, "the workspace has no line of members");
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_gets_other_members_and_nothing_else_changes() {
        let manifest = "[workspace]\nresolver = \"3\"\nmembers = [\"base/*\", \"cli\"]\ndefault-members = [\"cli\"]\n\n[profile.dev]\nopt-level = 1\n";
        let changed = with_members(manifest, &["media", "base"].into()).unwrap();
        let expected = "[workspace]\nresolver = \"3\"\nmembers = [\"base/*\", \"media/*\"]\n\n[profile.dev]\nopt-level = 1\n";
        assert_eq!(changed, expected);
    }
}
