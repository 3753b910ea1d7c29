//! A directed graph of files and its circles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One file names something of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The path by which it does.
    pub(super) path: String,
}

/// The first edge between every two files.
#[derive(Default)]
pub(super) struct Graph(BTreeMap<usize, BTreeMap<usize, Edge>>);

impl Graph {
    /// Adds an edge, unless there is one between the same files.
    pub(super) fn add(&mut self, edge: Edge) {
        self.0
            .entry(edge.from)
            .or_default()
            .entry(edge.to)
            .or_insert(edge);
    }

    /// Returns a shortest circle of each group of files that reach each other.
    pub(super) fn circles(&self) -> Vec<Vec<Edge>> {
        let mut circles = Vec::new();
        let mut done = BTreeSet::new();
        for start in self.0.keys() {
            if done.contains(start) {
                continue;
            }
            let group = self.group(*start);
            let shortest = group
                .iter()
                .filter_map(|file| self.circle_through(*file))
                .min_by_key(Vec::len);
            circles.extend(shortest);
            done.extend(group);
        }
        circles
    }

    /// Returns the files that `start` reaches and that reach `start`, with `start` itself.
    fn group(&self, start: usize) -> BTreeSet<usize> {
        let reached = self.reached(start);
        let is_mutual = |file: &usize| *file == start || self.reached(*file).contains_key(&start);
        let others = reached.keys().copied().filter(is_mutual);
        others.chain([start]).collect()
    }

    /// Returns a shortest circle through a file.
    fn circle_through(&self, file: usize) -> Option<Vec<Edge>> {
        let reached = self.reached(file);
        let mut edge = *reached.get(&file)?;
        let mut circle = vec![edge.clone()];
        while edge.from != file {
            edge = reached[&edge.from];
            circle.push(edge.clone());
        }
        circle.reverse();
        Some(circle)
    }

    /// Returns the files that are reached from `start`, each with the last edge of a shortest way
    /// to it. `start` is among them if it is in a circle.
    fn reached(&self, start: usize) -> BTreeMap<usize, &Edge> {
        let mut reached = BTreeMap::new();
        let mut next = VecDeque::from([start]);
        while let Some(file) = next.pop_front() {
            for (to, edge) in self.0.get(&file).into_iter().flatten() {
                if !reached.contains_key(to) {
                    reached.insert(*to, edge);
                    next.push_back(*to);
                }
            }
        }
        reached
    }
}
