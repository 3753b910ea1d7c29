use hawser_packets::media::ObjectId;
use std::collections::VecDeque;

/// The number of dropped objects that are remembered.
const REMEMBERED: usize = 256;

/// Objects that were dropped, and with them all that depend on them.
///
/// An object depends on the lower layers of its frame, and on the same and lower layers of earlier
/// frames of its group.
#[derive(Debug, Default)]
pub(super) struct Dependencies {
    broken: VecDeque<ObjectId>,
}

impl Dependencies {
    /// Records that an object is missing.
    pub(super) fn break_at(&mut self, id: ObjectId) {
        if !self.is_broken(&id) {
            self.broken.retain(|broken| !depends(broken, &id));
            self.broken.push_back(id);
        }
        if self.broken.len() > REMEMBERED {
            self.broken.pop_front();
        }
    }

    /// Returns whether an object is missing or depends on a missing one.
    pub(super) fn is_broken(&self, id: &ObjectId) -> bool {
        self.broken
            .iter()
            .any(|broken| id == broken || depends(id, broken))
    }
}

/// Returns whether an object depends on another one.
pub(super) fn depends(id: &ObjectId, on: &ObjectId) -> bool {
    let is_same_group = (id.alias, id.group) == (on.alias, on.group);
    is_same_group && id.object >= on.object && id.layer >= on.layer && id != on
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(group: u32, object: u32, layer: u8) -> ObjectId {
        ObjectId {
            alias: 1,
            group,
            object,
            layer,
        }
    }

    #[test]
    fn a_missing_layer_breaks_the_rest_of_its_group() {
        let mut dependencies = Dependencies::default();
        dependencies.break_at(id(5, 2, 1));
        let is_broken = |group, object, layer| dependencies.is_broken(&id(group, object, layer));
        assert!(is_broken(5, 2, 1) && is_broken(5, 2, 2) && is_broken(5, 3, 1));
        assert!(!is_broken(5, 2, 0) && !is_broken(5, 3, 0), "lower layers");
        assert!(!is_broken(5, 1, 1), "earlier frames");
        assert!(!is_broken(6, 0, 0) && !is_broken(4, 9, 7), "other groups");
    }

    #[test]
    fn what_a_missing_base_implies_is_not_remembered() {
        let mut dependencies = Dependencies::default();
        for layer in [3, 2, 1, 0] {
            dependencies.break_at(id(5, 2, layer));
        }
        assert_eq!(dependencies.broken, [id(5, 2, 0)]);
    }

    #[test]
    fn a_bounded_number_is_remembered() {
        let mut dependencies = Dependencies::default();
        for group in 0..1000 {
            dependencies.break_at(id(group, 0, 0));
        }
        assert_eq!(dependencies.broken.len(), REMEMBERED);
        assert!(dependencies.is_broken(&id(999, 0, 0)));
    }
}
