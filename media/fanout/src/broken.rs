use crate::Frame;
use hawser_packets::media::MAX_LAYER;

const LAYERS: usize = MAX_LAYER as usize + 1;

/// The layers of a track that a subscriber cannot decode, because an object that they depend on is
/// missing.
///
/// An object depends on the lower layers of its frame, and on the same and lower layers of earlier
/// frames of its group (`docs/design/media.md`). Only one group is remembered: everything of an
/// older one counts as broken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Broken {
    group: u32,
    /// The first frame of the group from which on each layer is broken; `u32::MAX`: none is.
    first: [u32; LAYERS],
}

impl Broken {
    pub(crate) const NOTHING: Broken = Broken {
        group: 0,
        first: [u32::MAX; LAYERS],
    };

    pub(crate) fn contains(&self, frame: Frame, layer: u8) -> bool {
        let first = self.first[usize::from(layer)];
        frame.group < self.group || frame.group == self.group && frame.object >= first
    }

    /// Records that an object is missing.
    pub(crate) fn insert(&mut self, frame: Frame, layer: u8) {
        let layer = layer.min(MAX_LAYER);
        if frame.group < self.group {
            return;
        }
        if frame.group > self.group {
            *self = Broken {
                group: frame.group,
                ..Broken::NOTHING
            };
        }
        for first in &mut self.first[usize::from(layer)..] {
            *first = frame.object.min(*first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_layer_breaks_the_rest_of_its_group() {
        let frame = |group, object| Frame { group, object };
        let mut broken = Broken::NOTHING;
        broken.insert(frame(5, 3), 1);
        broken.insert(frame(5, 2), 2);
        assert!(broken.contains(frame(5, 3), 1) && broken.contains(frame(5, 9), 7));
        assert!(broken.contains(frame(5, 2), 2) && !broken.contains(frame(5, 2), 1));
        assert!(!broken.contains(frame(5, 9), 0), "lower layers");
        assert!(!broken.contains(frame(5, 1), 2), "earlier frames");
        assert!(!broken.contains(frame(6, 0), 7), "later groups");
        assert!(
            broken.contains(frame(4, 9), 0),
            "nothing is known of earlier groups"
        );

        broken.insert(frame(6, 4), 0);
        assert!(!broken.contains(frame(6, 3), 7) && broken.contains(frame(6, 4), 0));
    }
}
