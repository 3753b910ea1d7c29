use crate::object::SealedObject;
use std::collections::BTreeMap;

/// The share of the bytes that each layer of each track has, as a moving average over frames.
#[derive(Debug, Default)]
pub(super) struct Shares(BTreeMap<(u32, u8), f64>);

/// The weight of a frame in the average.
const GAIN: f64 = 0.1;

/// The least share of a layer. It bounds the rate that follows from a layer of few bytes.
const LEAST: f64 = 0.05;

impl Shares {
    /// Takes the objects of a frame.
    pub(super) fn add(&mut self, objects: &[SealedObject]) {
        let all = objects.iter().map(|object| object.size().0).sum::<u64>() as f64;
        if all == 0.0 {
            return;
        }
        let gain = if self.0.is_empty() { 1.0 } else { GAIN };
        self.0.values_mut().for_each(|share| *share *= 1.0 - gain);
        for object in objects {
            let id = &object.info.id;
            let share = object.size().0 as f64 / all;
            *self.0.entry((id.alias, id.layer)).or_default() += gain * share;
        }
    }

    /// Returns the share of the selected layers; 1 before the first frame.
    pub(super) fn of(&self, selected: &BTreeMap<u32, u8>) -> f64 {
        self.sum(|alias, layer| selected.get(&alias).is_some_and(|n| layer < *n))
    }

    /// Returns the share of the bases of the selected tracks; 1 before the first frame.
    pub(super) fn bases(&self, selected: &BTreeMap<u32, u8>) -> f64 {
        self.sum(|alias, layer| layer == 0 && selected.contains_key(&alias))
    }

    fn sum(&self, is_meant: impl Fn(u32, u8) -> bool) -> f64 {
        if self.0.is_empty() {
            return 1.0;
        }
        let shares = self.0.iter();
        let meant = shares.filter(|((alias, layer), _)| is_meant(*alias, *layer));
        meant.map(|(_, share)| share).sum::<f64>().clamp(LEAST, 1.0)
    }
}
