//! The check that a product needs no other one: its pure tests, built and run where the folders of the others are empty.
//!
//! The tree is seen through a mount namespace, in which empty folders cover those of the others, and a manifest without them
//! covers the workspace's. So nothing is copied, and what cargo has built for the whole tree is not built again: that a
//! program is up to date there says that it was made of no file of the others. In a copy, 115 crates of third parties would
//! be built again for each product.
//!
//! That takes equal features of third parties. So an empty crate stands for each absent one and depends on the same.

use crate::products::{BASE, CONTROL, PRODUCTS};
use anyhow::{Context, Result, ensure};
use cargo_metadata::camino::Utf8Path;
use cargo_metadata::{Dependency, DependencyKind, Metadata, Package};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
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
pub(crate) fn seen(workspace: &Metadata, product: &str, command: &[&str]) -> Result<Command> {
    let root = &workspace.workspace_root;
    let folder = workspace.target_directory.join("alone").join(product);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {folder}"))?;
    }
    let absent = |package: &&&Package| ![BASE, CONTROL, product].contains(&room(root, package));
    let packages = workspace.workspace_packages();
    let absent: Vec<_> = packages.iter().filter(absent).collect();
    for package in &absent {
        let place = folder.join(PLACEHOLDERS).join(&*package.name);
        fs::create_dir_all(&place).with_context(|| format!("cannot create {place}"))?;
        fs::write(place.join("Cargo.toml"), placeholder(package)?)?;
        fs::write(place.join("lib.rs"), "")?;
    }
    let covered: BTreeSet<_> = absent.iter().map(|package| room(root, package)).collect();
    let members: BTreeSet<_> = [BASE, CONTROL, product, PLACEHOLDERS].into();
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    fs::write(
        folder.join("Cargo.toml"),
        with_members(&manifest, &members)?,
    )?;
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let mut script = String::from("set -e\n");
    for file in ["Cargo.toml", "Cargo.lock"] {
        writeln!(script, "mount --bind '{}' {file}", folder.join(file))?;
    }
    for room in covered {
        match room {
            PLACEHOLDERS => writeln!(script, "mount --bind '{}' {room}", folder.join(room))?,
            _ => writeln!(script, "mount -t tmpfs none {room}")?,
        }
    }
    // The working directory is entered again, as it is seen now.
    script.push_str("cd \"$PWD\"\nexec \"$@\"\n");
    let mut unshare = Command::new(UNSHARE[0]);
    unshare
        .args(&UNSHARE[1..])
        .args(["sh", "-c", &script, "sh"]);
    unshare.args(command).current_dir(root);
    Ok(unshare)
}

/// The argument of this program that makes it test a product from within.
pub(crate) const TASK: &str = "test-alone";

/// Starts a program in a mount namespace. Needs no root where users may create namespaces.
const UNSHARE: [&str; 3] = ["unshare", "--map-root-user", "--mount"];

/// Returns the reason that this machine cannot show a product alone, if there is one.
pub(crate) fn without() -> Option<String> {
    let tried = [&UNSHARE[1..], &["mount", "-t", "tmpfs", "none", "/mnt"]].concat();
    (!crate::machine::succeeds(UNSHARE[0], &tried))
        .then(|| "needs user and mount namespaces".into())
}

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
