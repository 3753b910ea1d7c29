//! The check that the files of a crate form no circle: `cargo run -p xtask -- circles`.
//!
//! Every target of every crate of the workspace is a graph of its own, whose nodes are the source
//! files of the target. There is an edge from file A to file B if the code of A names something
//! that B defines:
//!
//! - by a `use` declaration, at any depth of the code, also one that re-exports;
//! - by a path of at least two segments, in code, in the arguments of attributes, in the arguments
//!   of macros and in the bodies of `macro_rules!`;
//! - by a name that a glob import brings into scope.
//!
//! A path is followed through imports and re-exports to the file that holds the definition. A path
//! that names a module leads to the file of that module. A name that a module does not visibly
//! define, such as one that a macro generates, counts as defined in the module's file. Names that
//! a block imports are looked up as if its module imported them.
//!
//! The following are no edges:
//!
//! - anything between a file and the files of the modules that contain its module, at any depth;
//! - code under `#[cfg(test)]`. All other conditions count as true;
//! - calls of methods on values, fields, and other names that type inference finds;
//! - names in comments, in documentation and in strings.
//!
//! Seen from outside, a module and its submodules are one unit: an edge between two files is one between the modules
//! beside each other that contain them. A circle is a sequence of edges from a unit back to itself. The check prints a
//! shortest one for each group of units that reach each other. There are no exceptions.

mod graph;
mod items;
mod mentions;
mod modules;
mod names;

use anyhow::{Context, Result, bail};
use cargo_metadata::Metadata;
use cargo_metadata::camino::Utf8Path;
use graph::{Edge, Graph};
use modules::Tree;
use names::Names;
use std::fs;
use std::path::{Path, PathBuf};

/// Checks every target of the workspace. Fails with the list of circles.
pub(crate) fn check(workspace: &Metadata) -> Result<()> {
    let mut files = 0;
    let mut circles = Vec::new();
    for package in workspace.workspace_packages() {
        for target in &package.targets {
            let tree = Tree::read(target.src_path.as_std_path(), &read)?;
            files += tree.files.len();
            circles.extend(circles_of(&tree, &workspace.workspace_root));
        }
    }
    if !circles.is_empty() {
        bail!(
            "files that use each other in a circle:\n  {}",
            circles.join("\n  ")
        );
    }
    println!("{files} files, none of them in a circle");
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Returns a line for each circle, with paths relative to `root`.
fn circles_of(tree: &Tree, root: &Utf8Path) -> Vec<String> {
    let circles = graph_of(tree).circles();
    let mut lines: Vec<_> = circles
        .iter()
        .map(|circle| describe(circle, &tree.files, root.as_std_path()))
        .collect();
    lines.sort();
    lines
}

/// Returns the graph of a target's units, without the edges along the tree of modules.
fn graph_of(tree: &Tree) -> Graph {
    let names = Names::of(tree);
    let mut graph = Graph::default();
    for (index, module) in tree.modules.iter().enumerate() {
        for mention in &module.mentions {
            for to in names.files(index, mention) {
                if let Some((from_unit, to_unit)) = tree.units(module.file, to) {
                    graph.add(Edge {
                        from: from_unit,
                        to: to_unit,
                        files: [module.file, to],
                        path: mention.to_string(),
                    });
                }
            }
        }
    }
    graph
}

fn describe(circle: &[Edge], files: &[PathBuf], root: &Path) -> String {
    let name = |file: usize| {
        let path = &files[file];
        path.strip_prefix(root).unwrap_or(path).display()
    };
    let mut line = name(circle[0].files[0]).to_string();
    let mut last = circle[0].files[0];
    for edge in circle {
        let [from, to] = edge.files;
        if from != last {
            line += &format!(", of which {}", name(from));
        }
        line += &format!(" -> {} ({})", name(to), edge.path);
        last = to;
    }
    line
}

#[cfg(test)]
mod tests;
