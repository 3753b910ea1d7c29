//! Chunks that are decoded as they arrive, before their frame is complete.

use hawser_cloud::{MAX_POINTS, POINT_BYTES};
use hawser_codec::{ChunkDecoder, PartialCloud};
use hawser_objects::FrameId;
use hawser_packets::media::ObjectId;
use hawser_units::{BoundedMap, ByteSize};
use std::collections::BTreeMap;

/// The points of a frame by the alias of their track.
pub(crate) type Partial = BTreeMap<u32, PartialCloud>;

/// A frame of a session, and a track of it.
type Key = (u64, FrameId, u32);

/// The points of frames that are not complete. What arrives beyond their bound is decoded with its frame.
pub(crate) struct Ahead {
    decoder: ChunkDecoder,
    clouds: BoundedMap<Key, PartialCloud>,
    /// The newest frame that was taken.
    taken: Option<(u64, FrameId)>,
}

impl Ahead {
    /// Creates the points of frames of which none has more than `max_points`.
    pub(crate) fn new(max_points: usize) -> Self {
        Ahead {
            decoder: ChunkDecoder::new(),
            clouds: BoundedMap::new(bound(max_points)),
            taken: None,
        }
    }

    /// Decodes a chunk of a session's object.
    pub(crate) fn add(&mut self, session: u64, object: &ObjectId, chunk: &[u8]) {
        let frame = (session, (object.group, object.object));
        if self.taken.is_some_and(|taken| frame <= taken) {
            return;
        }
        let key = (frame.0, frame.1, object.alias);
        let growth = match self.clouds.get(&key) {
            Some(cloud) => cloud.growth_with(chunk),
            None => PartialCloud::default().growth_with(chunk),
        };
        let Some(growth) = growth else { return };
        let decoder = &mut self.decoder;
        // The map counts what it has no room for.
        let _ = self
            .clouds
            .update(key, growth, |cloud| decoder.decode_ahead(cloud, chunk));
    }

    /// Takes the points of a frame. Those of earlier ones are dropped.
    pub(crate) fn take(&mut self, session: u64, frame: FrameId) -> Partial {
        let wanted = (session, frame);
        self.taken = self.taken.max(Some(wanted));
        let mut taken = Partial::new();
        let is_due = |(session, frame, _): &Key| (*session, *frame) <= wanted;
        while let Some(((session, frame, alias), cloud)) = self.clouds.pop_first_if(is_due) {
            if (session, frame) == wanted {
                taken.insert(alias, cloud);
            }
        }
        taken
    }
}

/// Returns the bytes for points of frames: of one with one track, and of the one after it, in memory that
/// may have been doubled.
const fn bound(max_points: usize) -> ByteSize {
    let points = if max_points < MAX_POINTS {
        max_points
    } else {
        MAX_POINTS
    };
    ByteSize((4 * points * POINT_BYTES) as u64 + RECORDS)
}

/// The bytes for what is known of chunks.
const RECORDS: u64 = 1 << 20;

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

    fn points(ahead: &Ahead) -> usize {
        ahead.clouds.held().0 as usize / POINT_BYTES
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
        let mut ahead = Ahead::new(MAX_POINTS);
        add_all(&mut ahead, 1, object(7, 5), &chunks(500));
        add_all(&mut ahead, 1, object(8, 5), &chunks(300));
        add_all(&mut ahead, 2, object(7, 5), &chunks(200));
        assert_eq!(ahead.clouds.len(), 3);
        let taken = ahead.take(1, (5, 0));
        let points: Vec<_> = taken
            .iter()
            .map(|(alias, cloud)| (*alias, cloud.len()))
            .collect();
        assert_eq!(points, [(7, 500), (8, 300)]);
        assert_eq!(ahead.take(2, (5, 0))[&7].len(), 200);
        assert_eq!(ahead.clouds.held(), ByteSize(0));
    }

    #[test]
    fn earlier_and_late_points_are_dropped() {
        let mut ahead = Ahead::new(MAX_POINTS);
        add_all(&mut ahead, 1, object(7, 5), &chunks(500));
        assert!(ahead.take(1, (6, 0)).is_empty());
        add_all(&mut ahead, 1, object(7, 6), &chunks(500));
        assert!(ahead.clouds.is_empty());
    }

    #[test]
    fn the_points_of_frames_that_are_never_complete_are_bounded() {
        for max_points in [1000, MAX_POINTS, 16 * MAX_POINTS] {
            let mut ahead = Ahead::new(max_points);
            let chunks = chunks(60_000);
            for group in 0..100 {
                add_all(&mut ahead, 1, object(7, group), &chunks);
            }
            assert!(ahead.clouds.held() <= bound(max_points), "{max_points}");
            assert!(points(&ahead) >= max_points.min(MAX_POINTS) / 2);
            ahead.take(1, (1000, 0));
            assert_eq!(ahead.clouds.held(), ByteSize(0));
        }
    }

    /// A chunk of this number of points in a few bytes, which may be none of the codec's.
    fn short_chunk(number: u16, points: u16) -> Vec<u8> {
        let (number, points) = (number.to_be_bytes(), points.to_be_bytes());
        let header = [&[3, 7], &number[..], &[0xff; 2], &points, &[0; 7]].concat();
        [header, vec![0; 13]].concat()
    }

    #[test]
    fn short_chunks_of_ever_new_frames_hold_no_more_than_long_ones() {
        let mut ahead = Ahead::new(1000);
        for group in 0..100_000 {
            ahead.add(1, &object(7, group), &short_chunk(0, 8192));
            ahead.add(1, &object(8, group), &short_chunk(0, 1));
            ahead.add(1, &object(9, group), &[0]);
        }
        assert!(ahead.clouds.held() <= bound(1000));
        let junk = ahead.clouds.get(&(1, (0, 0), 9));
        assert!(junk.is_none(), "what is no chunk holds nothing");
    }

    #[test]
    fn short_chunks_of_one_frame_are_bounded_too() {
        let mut ahead = Ahead::new(1000);
        for number in 0..u16::MAX {
            ahead.add(1, &object(7, 1), &short_chunk(number, 1));
        }
        assert!(ahead.clouds.held() <= bound(1000));
        assert!(ahead.clouds.refused().full > 0);
    }
}
