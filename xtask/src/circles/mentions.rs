//! The paths that the code of a module names.

use super::items::{attributes, attributes_in_impl, attributes_in_trait, is_for_tests};
use proc_macro2::{Spacing, TokenStream, TokenTree};
use std::fmt;
use syn::visit::{self, Visit};
use syn::{ImplItem, Item, ItemUse, Macro, MetaList, Path, TraitItem, UseTree};

/// A path as it is written, without generic arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) segments: Vec<String>,
    pub(super) is_glob: bool,
}

/// The paths and imports of a module, without those of its submodules and of tests.
#[derive(Default)]
pub(super) struct Mentions {
    pub(super) paths: Vec<Mention>,
    /// The names that `use` declarations bring into scope, with their paths.
    pub(super) imports: Vec<(String, Mention)>,
}

/// The name under which the imports of globs are listed.
pub(super) const GLOB: &str = "*";

impl fmt::Display for Mention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let glob = if self.is_glob { "::*" } else { "" };
        write!(f, "{}{glob}", self.segments.join("::"))
    }
}

impl Mentions {
    pub(super) fn of(items: &[Item]) -> Self {
        let mut mentions = Mentions::default();
        items.iter().for_each(|item| mentions.visit_item(item));
        mentions
    }

    fn add_use(&mut self, tree: &UseTree, before: &[String]) {
        let with = |name: String| [before, &[name]].concat();
        match tree {
            UseTree::Path(path) => self.add_use(&path.tree, &with(path.ident.to_string())),
            UseTree::Group(group) => group
                .items
                .iter()
                .for_each(|tree| self.add_use(tree, before)),
            UseTree::Name(name) => {
                let path = used(with(name.ident.to_string()));
                let last = path.last().cloned().unwrap_or_default();
                self.import(last, path, false);
            }
            UseTree::Rename(rename) => {
                let path = used(with(rename.ident.to_string()));
                self.import(rename.rename.to_string(), path, false);
            }
            UseTree::Glob(_) => self.import(GLOB.to_owned(), before.to_vec(), true),
        }
    }

    fn import(&mut self, name: String, segments: Vec<String>, is_glob: bool) {
        let path = Mention { segments, is_glob };
        self.paths.push(path.clone());
        self.imports.push((name, path));
    }

    fn add_path(&mut self, segments: Vec<String>) {
        self.paths.push(Mention {
            segments,
            is_glob: false,
        });
    }

    /// Adds the paths of at least two segments in the tokens of a macro or an attribute.
    fn add_tokens(&mut self, tokens: &TokenStream) {
        let tokens: Vec<_> = tokens.clone().into_iter().collect();
        let mut rest = tokens.as_slice();
        while let Some((token, after)) = rest.split_first() {
            rest = after;
            match token {
                TokenTree::Group(group) => self.add_tokens(&group.stream()),
                TokenTree::Ident(name) => {
                    let mut path = vec![name.to_string()];
                    while let Some((next, after)) = next_segment(rest) {
                        path.push(next);
                        rest = after;
                    }
                    if path.len() > 1 {
                        self.add_path(path);
                    }
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }
}

/// Returns the segment after `::` at the start of the tokens, and the tokens after it.
fn next_segment(tokens: &[TokenTree]) -> Option<(String, &[TokenTree])> {
    let [
        TokenTree::Punct(first),
        TokenTree::Punct(second),
        TokenTree::Ident(name),
        rest @ ..,
    ] = tokens
    else {
        return None;
    };
    let is_separator =
        first.as_char() == ':' && first.spacing() == Spacing::Joint && second.as_char() == ':';
    is_separator.then(|| (name.to_string(), rest))
}

/// Returns the path of a name in a `use` declaration; `self` at its end stands for the module.
fn used(mut path: Vec<String>) -> Vec<String> {
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    path
}

impl<'ast> Visit<'ast> for Mentions {
    fn visit_item(&mut self, item: &'ast Item) {
        // Submodules have mentions of their own.
        if !matches!(item, Item::Mod(_)) && !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if !is_for_tests(attributes_in_impl(item)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        if !is_for_tests(attributes_in_trait(item)) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.add_use(&item.tree, &[]);
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if path.leading_colon.is_none() {
            self.add_path(path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
        self.add_tokens(&call.tokens);
    }

    fn visit_meta_list(&mut self, list: &'ast MetaList) {
        self.add_tokens(&list.tokens);
    }
}
