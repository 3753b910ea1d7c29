//! A directed graph of units and its circles.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A file of one unit names something of a file of another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The two files.
    pub(super) files: [usize; 2],
    /// The path by which it does.
    pub(super) path: String,
}

/// The first edge between every two units.
#[derive(Default)]
pub(super) struct Graph(BTreeMap<usize, BTreeMap<usize, Edge>>);

impl Graph {
    /// Adds an edge, unless there is one between the same units.
    pub(super) fn add(&mut self, edge: Edge) {
        self.0
            .entry(edge.from)
            .or_default()
            .entry(edge.to)
            .or_insert(edge);
    }

    /// Returns a shortest circle of each group of units that reach each other.
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
                .filter_map(|unit| self.circle_through(*unit))
                .min_by_key(Vec::len);
            circles.extend(shortest);
            done.extend(group);
        }
        circles
    }

    /// Returns the units that `start` reaches and that reach `start`, with `start` itself.
    fn group(&self, start: usize) -> BTreeSet<usize> {
        let reached = self.reached(start);
        let is_mutual = |unit: &usize| *unit == start || self.reached(*unit).contains_key(&start);
        let others = reached.keys().copied().filter(is_mutual);
        others.chain([start]).collect()
    }

    /// Returns a shortest circle through a unit.
    fn circle_through(&self, unit: usize) -> Option<Vec<Edge>> {
        let reached = self.reached(unit);
        let mut edge = *reached.get(&unit)?;
        let mut circle = vec![edge.clone()];
        while edge.from != unit {
            edge = reached[&edge.from];
            circle.push(edge.clone());
        }
        circle.reverse();
        Some(circle)
    }

    /// Returns the units that are reached from `start`, each with the last edge of a shortest way
    /// to it. `start` is among them if it is in a circle.
    fn reached(&self, start: usize) -> BTreeMap<usize, &Edge> {
        let mut reached = BTreeMap::new();
        let mut next = VecDeque::from([start]);
        while let Some(unit) = next.pop_front() {
            for (to, edge) in self.0.get(&unit).into_iter().flatten() {
                if !reached.contains_key(to) {
                    reached.insert(*to, edge);
                    next.push_back(*to);
                }
            }
        }
        reached
    }
}
