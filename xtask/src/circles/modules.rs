//! The modules of a target, read from its source files.

use super::items::{self, attributes, is_for_tests};
use super::mentions::{Mention, Mentions};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta};

/// The modules and files of one target. Modules and files are named by their index.
pub(super) struct Tree {
    pub(super) modules: Vec<Module>,
    pub(super) files: Vec<PathBuf>,
}

pub(super) struct Module {
    pub(super) file: usize,
    /// The module that contains this one; `None` for the root.
    pub(super) parent: Option<usize>,
    pub(super) definitions: BTreeMap<String, Vec<Definition>>,
    /// The paths that the module names, outside its submodules.
    pub(super) mentions: Vec<Mention>,
}

/// A name that a module defines or imports.
#[derive(Debug, Clone)]
pub(super) enum Definition {
    Item,
    Module(usize),
    Import(Mention),
}

/// Reads a source file.
pub(super) type Read<'r> = &'r dyn Fn(&Path) -> Result<String>;

impl Tree {
    /// Reads the target whose root file is `root`.
    pub(super) fn read(root: &Path, read: Read<'_>) -> Result<Self> {
        let mut tree = Tree {
            modules: Vec::new(),
            files: Vec::new(),
        };
        let folder = root.parent().unwrap_or(Path::new(""));
        tree.add_file(root, folder, None, read)?;
        Ok(tree)
    }

    /// Returns the modules beside each other that contain the two files; `None` if one file holds a module that contains the
    /// other, or they are the same.
    pub(super) fn units(&self, one: usize, other: usize) -> Option<(usize, usize)> {
        let (one, other) = (self.line(one), self.line(other));
        let mut pairs = one.into_iter().zip(other);
        pairs.find(|(one, other)| one != other)
    }

    /// Returns the modules that contain the top module of a file, from the root on, and that module.
    fn line(&self, file: usize) -> Vec<usize> {
        let top = self.modules.iter().position(|module| module.file == file);
        let upwards = std::iter::successors(top, |module| self.modules[*module].parent);
        let mut line: Vec<_> = upwards.collect();
        line.reverse();
        line
    }

    /// Adds the module of a file and its submodules, whose files are in `folder`.
    fn add_file(
        &mut self,
        path: &Path,
        folder: &Path,
        parent: Option<usize>,
        read: Read<'_>,
    ) -> Result<usize> {
        let syntax = syn::parse_file(&read(path)?)
            .with_context(|| format!("cannot parse {}", path.display()))?;
        let file = self.files.len();
        self.files.push(path.to_owned());
        self.add_module(file, folder, parent, &syntax.items, read)
    }

    fn add_module(
        &mut self,
        file: usize,
        folder: &Path,
        parent: Option<usize>,
        items: &[Item],
        read: Read<'_>,
    ) -> Result<usize> {
        let index = self.modules.len();
        let mentions = Mentions::of(items);
        self.modules.push(Module {
            file,
            parent,
            definitions: definitions(items, &mentions),
            mentions: mentions.paths,
        });
        for item in items {
            if let Item::Mod(submodule) = item
                && !is_for_tests(&submodule.attrs)
            {
                let added = self.add_submodule(index, folder, submodule, read)?;
                self.modules[index]
                    .definitions
                    .entry(submodule.ident.to_string())
                    .or_default()
                    .push(Definition::Module(added));
            }
        }
        Ok(index)
    }

    fn add_submodule(
        &mut self,
        parent: usize,
        folder: &Path,
        submodule: &ItemMod,
        read: Read<'_>,
    ) -> Result<usize> {
        let name = submodule.ident.to_string();
        let name = name.trim_start_matches("r#");
        let file = self.modules[parent].file;
        if let Some((_, items)) = &submodule.content {
            return self.add_module(file, &folder.join(name), Some(parent), items, read);
        }
        if let Some(path) = given_path(&submodule.attrs) {
            let beside = self.files[file].parent().unwrap_or(Path::new(""));
            let path = beside.join(path);
            let folder = path.parent().unwrap_or(Path::new("")).to_owned();
            return self.add_file(&path, &folder, Some(parent), read);
        }
        let inner = folder.join(name);
        let (flat, nested) = (folder.join(format!("{name}.rs")), inner.join("mod.rs"));
        let path = if read(&flat).is_ok() { flat } else { nested };
        self.add_file(&path, &inner, Some(parent), read)
    }
}

fn definitions(items: &[Item], mentions: &Mentions) -> BTreeMap<String, Vec<Definition>> {
    let mut definitions: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut add = |name: String, definition| definitions.entry(name).or_default().push(definition);
    let defined = |item: &&Item| !is_for_tests(attributes(item));
    for name in items.iter().filter(defined).filter_map(items::name) {
        add(name.to_string(), Definition::Item);
    }
    for (name, path) in &mentions.imports {
        add(name.clone(), Definition::Import(path.clone()));
    }
    definitions
}

/// Returns the path of an attribute `#[path = "..."]`.
fn given_path(attributes: &[Attribute]) -> Option<String> {
    let pairs = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => Some(&pair.value),
            _ => None,
        });
    pairs.into_iter().find_map(|value| match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    })
}
