use crate::cache::Cache;
use hawser_fanout::Frame;
use hawser_packets::media::{ObjectId, PacketId};

/// The part of a track that a subscriber gets from the cache: from a frame at which decoding can begin
/// up to the one from which on the packets are forwarded to it as they arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CatchUp {
    alias: u32,
    layers: u8,
    from: Frame,
    /// The first frame that it gets without the cache; `None` while that is not known.
    until: Option<Frame>,
}

impl CatchUp {
    /// Begins with the newest group of which the base of the first frame is complete. Where there is
    /// none, it begins with the next packet that arrives.
    pub(crate) fn begin(
        cache: &Cache,
        alias: u32,
        layers: u8,
        is_complete: impl Fn(&ObjectId) -> bool,
    ) -> Self {
        let all = lowest(alias)..=highest(alias);
        let objects: Vec<&ObjectId> = cache.objects(all).collect();
        let first_base = |id: &&&ObjectId| id.layer == 0 && id.object == 0 && is_complete(id);
        let newest = objects.iter().rev().find(first_base).copied();
        let newest = newest.or(objects.last().copied());
        CatchUp {
            alias,
            layers,
            from: newest.map_or(Frame::FIRST, |id| Frame {
                group: id.group,
                object: 0,
            }),
            until: None,
        }
    }

    /// Sets the frame from which on the subscriber gets the track without the cache.
    pub(crate) fn end_at(&mut self, joined: Frame) {
        self.until = Some(joined);
    }

    pub(crate) const fn has_end(&self) -> bool {
        self.until.is_some()
    }

    /// Returns whether the cache sends a packet to the subscriber.
    pub(crate) fn includes(&self, id: &PacketId) -> bool {
        let object = &id.object;
        let frame = Frame::of(object);
        object.alias == self.alias
            && object.layer < self.layers
            && frame >= self.from
            && self.until.is_none_or(|until| frame < until)
    }

    /// Returns the packets that the cache has already, by object.
    pub(crate) fn cached(&self, cache: &Cache) -> Vec<PacketId> {
        let from = ObjectId {
            group: self.from.group,
            object: self.from.object,
            ..lowest(self.alias)
        };
        let objects = cache.objects(from..=highest(self.alias));
        let packets = objects.flat_map(|object| {
            let packets = cache.object(object).into_iter().flatten();
            packets.map(|(index, _)| PacketId {
                object: *object,
                index: *index,
            })
        });
        packets.filter(|id| self.includes(id)).collect()
    }

    /// Returns whether the cache has nothing more to send: two later frames have begun.
    pub(crate) fn is_over(&self, newest: Frame) -> bool {
        self.until
            .is_some_and(|until| until.group + 2 < newest.group)
    }
}

const fn lowest(alias: u32) -> ObjectId {
    ObjectId {
        alias,
        group: 0,
        object: 0,
        layer: 0,
    }
}

const fn highest(alias: u32) -> ObjectId {
    ObjectId {
        alias,
        group: u32::MAX,
        object: u32::MAX,
        layer: u8::MAX,
    }
}
