//! The files that paths lead to.

use super::mentions::{GLOB, Mention};
use super::modules::{Definition, Tree};
use std::collections::BTreeSet;

/// The names of a target's modules.
pub(super) struct Names<'t>(&'t Tree);

/// The end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Module(usize),
    /// An item, by the file that defines it.
    Item(usize),
}

/// The names that are being looked up, each with its module. A name that is looked up again on the
/// way leads nowhere else.
type Pending = BTreeSet<(usize, String)>;

impl<'t> Names<'t> {
    pub(super) fn of(tree: &'t Tree) -> Self {
        Names(tree)
    }

    /// Returns the files that define what `mention` names in a module; none if it is not part of
    /// the target.
    pub(super) fn files(&self, module: usize, mention: &Mention) -> BTreeSet<usize> {
        let is_local = mention.segments.len() == 1
            && !mention.is_glob
            && self.0.modules[module]
                .definitions
                .contains_key(&mention.segments[0]);
        if is_local {
            return BTreeSet::new();
        }
        let places = self.follow(module, &mention.segments, &mut Pending::new());
        places.into_iter().map(|place| self.file(place)).collect()
    }

    fn file(&self, place: Place) -> usize {
        match place {
            Place::Module(module) => self.0.modules[module].file,
            Place::Item(file) => file,
        }
    }

    /// Returns the places that a path leads to from a module.
    fn follow(&self, module: usize, path: &[String], pending: &mut Pending) -> BTreeSet<Place> {
        let Some((first, rest)) = path.split_first() else {
            return BTreeSet::new();
        };
        let mut places = match first.as_str() {
            "crate" => BTreeSet::from([Place::Module(0)]),
            "self" | "super" => self.step(Place::Module(module), first, pending),
            name => self.look_up(module, name, pending),
        };
        for segment in rest {
            places = only_modules_if_any(places)
                .into_iter()
                .flat_map(|place| self.step(place, segment, pending))
                .collect();
        }
        places
    }

    /// Returns the places that one more segment leads to.
    fn step(&self, place: Place, segment: &str, pending: &mut Pending) -> BTreeSet<Place> {
        let Place::Module(module) = place else {
            return BTreeSet::from([place]);
        };
        match segment {
            "self" => BTreeSet::from([place]),
            "super" => {
                let parent = self.0.modules[module].parent;
                parent.map(Place::Module).into_iter().collect()
            }
            name => {
                let found = self.look_up(module, name, pending);
                if found.is_empty() {
                    BTreeSet::from([Place::Item(self.0.modules[module].file)])
                } else {
                    found
                }
            }
        }
    }

    /// Returns the places that a name stands for in a module; none if the module neither defines
    /// nor imports it.
    fn look_up(&self, module: usize, name: &str, pending: &mut Pending) -> BTreeSet<Place> {
        if !pending.insert((module, name.to_owned())) {
            return BTreeSet::new();
        }
        let definitions = &self.0.modules[module].definitions;
        let mut places = BTreeSet::new();
        for definition in definitions.get(name).into_iter().flatten() {
            places.extend(self.places(module, definition, pending));
        }
        if !definitions.contains_key(name) {
            for glob in definitions.get(GLOB).into_iter().flatten() {
                places.extend(self.through_glob(module, glob, name, pending));
            }
        }
        pending.remove(&(module, name.to_owned()));
        places
    }

    fn places(
        &self,
        module: usize,
        definition: &Definition,
        pending: &mut Pending,
    ) -> BTreeSet<Place> {
        match definition {
            Definition::Item => BTreeSet::from([Place::Item(self.0.modules[module].file)]),
            Definition::Module(inner) => BTreeSet::from([Place::Module(*inner)]),
            Definition::Import(path) => self.follow(module, &path.segments, pending),
        }
    }

    fn through_glob(
        &self,
        module: usize,
        glob: &Definition,
        name: &str,
        pending: &mut Pending,
    ) -> BTreeSet<Place> {
        let sources = self.places(module, glob, pending);
        let modules = sources.into_iter().filter_map(|place| match place {
            Place::Module(source) => Some(source),
            Place::Item(_) => None,
        });
        modules
            .flat_map(|source| self.look_up(source, name, pending))
            .collect()
    }
}

/// Drops functions and other items that have the name of a module, because only a module, or a type
/// where there is no module, has something inside.
fn only_modules_if_any(places: BTreeSet<Place>) -> BTreeSet<Place> {
    let is_module = |place: &Place| matches!(place, Place::Module(_));
    if places.iter().any(is_module) {
        places.into_iter().filter(is_module).collect()
    } else {
        places
    }
}
