//! Chunks that are decoded as they arrive, before their frame is complete.

use hawser_cloud::MAX_POINTS;
use hawser_codec::{ChunkDecoder, PartialCloud};
use hawser_objects::FrameId;
use hawser_wire::media::ObjectId;
use std::collections::BTreeMap;

/// The number of points that are kept. What arrives beyond it is decoded with its frame.
const MAX_KEPT: usize = 2 * MAX_POINTS;

/// The points of a frame by the alias of their track.
pub(super) type Partial = BTreeMap<u32, PartialCloud>;

/// A frame of a session.
type Key = (u64, FrameId);

/// The points of frames that are not complete.
#[derive(Default)]
pub(super) struct Ahead {
    decoder: ChunkDecoder,
    frames: BTreeMap<Key, Partial>,
    /// The newest frame that was taken.
    taken: Option<Key>,
    points: usize,
}

impl Ahead {
    /// Decodes a chunk of a session's object.
    pub(super) fn add(&mut self, session: u64, object: &ObjectId, chunk: &[u8]) {
        let key = (session, (object.group, object.object));
        if self.points >= MAX_KEPT || self.taken.is_some_and(|taken| key <= taken) {
            return;
        }
        let frame = self.frames.entry(key).or_default();
        let cloud = frame.entry(object.alias).or_default();
        let before = cloud.len();
        self.decoder.decode_ahead(cloud, chunk);
        self.points += cloud.len() - before;
    }

    /// Takes the points of a frame. Those of earlier ones are dropped.
    pub(super) fn take(&mut self, session: u64, frame: FrameId) -> Partial {
        let key = (session, frame);
        self.taken = self.taken.max(Some(key));
        let mut taken = Partial::new();
        while let Some(entry) = self.frames.first_entry().filter(|e| *e.key() <= key) {
            let (at, partial) = entry.remove_entry();
            self.points -= partial.values().map(PartialCloud::len).sum::<usize>();
            if at == key {
                taken = partial;
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_cloud::Performer;
    use hawser_codec::{ChunkEncoder, Encoder, Setting};
    use std::time::Duration;

    fn chunks(points: usize) -> Vec<Vec<u8>> {
        let cloud = Performer::new(1, points).cloud(Duration::ZERO);
        let encoded = ChunkEncoder::default().encode(&cloud, Setting::BEST);
        encoded.layers.concat()
    }

    fn object(alias: u32, group: u32) -> ObjectId {
        ObjectId {
            alias,
            group,
            object: 0,
            layer: 0,
        }
    }

    fn add_all(ahead: &mut Ahead, session: u64, object: ObjectId, chunks: &[Vec<u8>]) {
        for chunk in chunks {
            ahead.add(session, &object, chunk);
        }
    }

    #[test]
    fn points_are_those_of_their_frame_and_session() {
        let mut ahead = Ahead::default();
        add_all(&mut ahead, 1, object(7, 5), &chunks(500));
        add_all(&mut ahead, 1, object(8, 5), &chunks(300));
        add_all(&mut ahead, 2, object(7, 5), &chunks(200));
        assert_eq!(ahead.points, 1000);
        let taken = ahead.take(1, (5, 0));
        let points: Vec<_> = taken
            .iter()
            .map(|(alias, cloud)| (*alias, cloud.len()))
            .collect();
        assert_eq!(points, [(7, 500), (8, 300)]);
        assert_eq!(ahead.take(2, (5, 0))[&7].len(), 200);
        assert_eq!(ahead.points, 0);
    }

    #[test]
    fn earlier_and_late_points_are_dropped() {
        let mut ahead = Ahead::default();
        add_all(&mut ahead, 1, object(7, 5), &chunks(500));
        assert!(ahead.take(1, (6, 0)).is_empty());
        add_all(&mut ahead, 1, object(7, 6), &chunks(500));
        assert_eq!((ahead.points, ahead.frames.len()), (0, 0));
    }

    #[test]
    fn the_points_of_frames_that_are_never_complete_are_bounded() {
        let mut ahead = Ahead::default();
        let chunks = chunks(60_000);
        for group in 0..100 {
            add_all(&mut ahead, 1, object(7, group), &chunks);
        }
        assert!(ahead.points < MAX_KEPT + 8192, "{}", ahead.points);
        ahead.take(1, (1000, 0));
        assert_eq!(ahead.points, 0);
    }
}
