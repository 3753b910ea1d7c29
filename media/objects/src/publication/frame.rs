//! Frames, and the slices in which they are published while they are encoded.

use super::Publication;
use crate::object::{LayerContent, ObjectInfo, SealedObject};
use crate::packetiser::{OpenObject, PacketiseError};
use hawser_congestion::Spread;
use hawser_packets::media::{Flags, ObjectId};
use hawser_units::{ByteSize, Instant};
use std::collections::BTreeMap;

/// An encoded layer of a frame.
#[derive(Debug, Clone, Copy)]
pub struct EncodedLayer<'a> {
    /// The track.
    pub alias: u32,
    /// The layer; 0 is the base.
    pub layer: u8,
    /// The bytes.
    pub content: LayerContent<'a>,
}

/// A slice of a layer, which can leave while the next one is encoded.
#[derive(Debug, Clone, Copy)]
pub struct EncodedSlice<'a> {
    /// The layer, with the bytes of the slice.
    pub layer: EncodedLayer<'a>,
    /// Whether it is the last slice of its layer.
    pub ends_layer: bool,
    /// Whether no higher layer of the frame follows.
    pub is_top: bool,
}

/// A frame that was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The number of its group. Each frame is a group.
    pub group: u32,
    /// The bytes of all UDP payloads.
    pub size: ByteSize,
    /// The number of packets.
    pub packets: u64,
}

/// A frame of which slices may follow.
pub(super) struct CurrentFrame {
    group: u32,
    captured: Instant,
    /// The encoded parts of the layers.
    objects: Vec<SealedObject>,
    /// The layer of each track of which slices may follow.
    open: BTreeMap<u32, OpenObject>,
}

impl Publication {
    /// Seals a frame and offers it to all viewers. The layers are ascending by alias and layer.
    ///
    /// # Errors
    /// If a layer cannot be made into packets. [`PacketiseError::Exhausted`] lasts until a new start.
    pub fn publish(
        &mut self,
        now: Instant,
        captured: Instant,
        layers: &[EncodedLayer<'_>],
    ) -> Result<Published, PacketiseError> {
        let group = self.next_group();
        let mut objects = Vec::with_capacity(layers.len());
        for (at, layer) in layers.iter().enumerate() {
            let next = layers.get(at + 1);
            let is_top = next.is_none_or(|next| next.alias != layer.alias);
            objects.push(self.seal(group, captured, layer, is_top)?);
        }
        let packets = objects.iter().map(|object| object.packets.len()).sum();
        self.hop.count(packets);
        self.announce_keys();
        self.shares.add(&objects);
        self.offer(now, &objects);
        if let Some(complete) = &mut self.complete {
            complete.extend(objects.iter().cloned());
        }
        Ok(Published {
            group,
            size: objects.iter().map(SealedObject::size).sum(),
            packets: packets as u64,
        })
    }

    /// Seals a packet of sound that was captured then, as an object of the track of sound, and offers it to all
    /// viewers ahead of pictures. Does nothing without such a track.
    ///
    /// # Errors
    /// If it cannot be made into packets. [`PacketiseError::Exhausted`] lasts until a new start.
    pub fn publish_sound(
        &mut self,
        now: Instant,
        captured: Instant,
        packet: &[u8],
    ) -> Result<(), PacketiseError> {
        let Some((alias, group)) = self.sound else {
            return Ok(());
        };
        self.sound = Some((alias, group + 1));
        let layer = EncodedLayer {
            alias,
            layer: 0,
            content: LayerContent::Whole(packet),
        };
        let object = self.seal(group, captured, &layer, true)?;
        self.hop.count(object.packets.len());
        self.announce_keys();
        for viewer in self.viewers.values_mut() {
            viewer.offer_sound(now, &object);
        }
        if let Some(complete) = &mut self.complete {
            complete.push_back(object);
        }
        Ok(())
    }

    /// Begins a frame, whose slices follow as they are encoded: the first ones can leave while the last
    /// ones are encoded. A frame that was begun before ends.
    pub fn begin_frame(&mut self, now: Instant, captured: Instant) {
        self.end_frame(now);
        let group = self.next_group();
        self.current = Some(CurrentFrame {
            group,
            captured,
            objects: Vec::new(),
            open: BTreeMap::new(),
        });
    }

    /// Seals a slice of the frame that was begun, and offers it to all viewers; with [`Spread::Interval`]
    /// only at the end of the frame, because its size decides when its packets leave. The layers of a
    /// track are ascending: one that follows ends the one before it, though not whole. Does nothing without
    /// such a frame.
    ///
    /// # Errors
    /// If the slice cannot be made into packets. Its layer then has no further ones.
    /// [`PacketiseError::Exhausted`] lasts until a new start.
    pub fn publish_slice(
        &mut self,
        now: Instant,
        slice: &EncodedSlice<'_>,
    ) -> Result<(), PacketiseError> {
        let Some(mut frame) = self.current.take() else {
            return Ok(());
        };
        let published = self.publish_slice_of(now, &mut frame, slice);
        self.current = Some(frame);
        published
    }

    fn publish_slice_of(
        &mut self,
        now: Instant,
        frame: &mut CurrentFrame,
        slice: &EncodedSlice<'_>,
    ) -> Result<(), PacketiseError> {
        let EncodedLayer { alias, layer, .. } = slice.layer;
        let mut open = match frame.open.remove(&alias) {
            Some(open) if open.info().id.layer == layer => open,
            before => {
                if let Some(before) = before {
                    self.finish(&before.info().id);
                }
                self.begin_object(now, frame, slice)?
            }
        };
        let info = *open.info();
        let packetiser = self.packetisers.get_mut(&alias);
        let packetiser = packetiser.ok_or(PacketiseError::Unknown(info.id))?;
        let sealed = if slice.ends_layer {
            packetiser.finish(open, slice.layer.content)
        } else {
            let sealed = packetiser.push(&mut open, slice.layer.content);
            if sealed.is_ok() {
                frame.open.insert(alias, open);
            }
            sealed
        };
        let packets = sealed.inspect_err(|_| self.finish(&info.id))?;
        self.hop.count(packets.len());
        if self.leaves_in_slices() {
            for viewer in self.viewers.values_mut() {
                viewer.push(now, &info, &packets);
            }
        }
        if slice.ends_layer {
            self.finish(&info.id);
        }
        let mut objects = frame.objects.iter_mut();
        if let Some(object) = objects.find(|object| object.info.id == info.id) {
            object.packets.extend(packets);
            if let Some(complete) = self.complete.as_mut().filter(|_| slice.ends_layer) {
                complete.push_back(object.clone());
            }
        }
        Ok(())
    }

    /// Begins the object of a slice's layer.
    fn begin_object(
        &mut self,
        now: Instant,
        frame: &mut CurrentFrame,
        slice: &EncodedSlice<'_>,
    ) -> Result<OpenObject, PacketiseError> {
        let info = self.info(frame.group, frame.captured, &slice.layer, slice.is_top);
        let packetiser = self.packetisers.get_mut(&info.id.alias);
        let packetiser = packetiser.ok_or(PacketiseError::Unknown(info.id))?;
        let open = packetiser.begin(info)?;
        self.announce_keys();
        frame.objects.push(SealedObject {
            info,
            packets: Vec::new(),
        });
        if self.leaves_in_slices() {
            let expected = self.sizes.get(&(info.id.alias, info.id.layer));
            let expected = expected.copied().unwrap_or_default();
            for viewer in self.viewers.values_mut() {
                viewer.admit(now, info, expected);
            }
        }
        Ok(open)
    }

    /// Ends the frame that was begun.
    pub fn end_frame(&mut self, now: Instant) {
        let Some(CurrentFrame { objects, open, .. }) = self.current.take() else {
            return;
        };
        self.shares.add(&objects);
        for object in &objects {
            let id = &object.info.id;
            self.sizes.insert((id.alias, id.layer), object.size());
        }
        if !self.leaves_in_slices() {
            self.offer(now, &objects);
        }
        for open in open.values() {
            self.finish(&open.info().id);
        }
    }

    /// Ends a layer. If it was not published completely, its reservation shrinks to the packets that were sent.
    fn finish(&mut self, id: &ObjectId) {
        for viewer in self.viewers.values_mut() {
            viewer.flow.finish(id);
        }
    }

    /// Returns whether slices leave before their frame is complete.
    pub(super) fn leaves_in_slices(&self) -> bool {
        self.config.flow.spread == Spread::BorneRate
    }

    /// Begins a frame: returns the number of its group.
    fn next_group(&mut self) -> u32 {
        self.rotate_used_up_hop_key();
        let datagram = self.datagram();
        for packetiser in self.packetisers.values_mut() {
            packetiser.set_datagram(datagram);
        }
        let group = self.group;
        self.group += 1;
        group
    }

    fn offer(&mut self, now: Instant, objects: &[SealedObject]) {
        for viewer in self.viewers.values_mut() {
            viewer.offer(now, objects);
        }
    }

    fn seal(
        &mut self,
        group: u32,
        captured: Instant,
        layer: &EncodedLayer<'_>,
        is_top: bool,
    ) -> Result<SealedObject, PacketiseError> {
        let info = self.info(group, captured, layer, is_top);
        let packetiser = self.packetisers.get_mut(&layer.alias);
        let packetiser = packetiser.ok_or(PacketiseError::Unknown(info.id))?;
        match layer.content {
            LayerContent::Whole(bytes) => packetiser.packetise(info, bytes),
            LayerContent::Chunks(chunks) => packetiser.packetise_chunks(info, chunks),
        }
    }

    fn info(
        &self,
        group: u32,
        captured: Instant,
        layer: &EncodedLayer<'_>,
        is_top: bool,
    ) -> ObjectInfo {
        ObjectInfo {
            id: ObjectId {
                alias: layer.alias,
                group,
                object: 0,
                layer: layer.layer,
            },
            priority: self.priority(layer),
            deadline: captured + self.config.lifetime,
            flags: Flags {
                last_in_group: true,
                packets_alone: matches!(layer.content, LayerContent::Chunks(_)),
                top_layer: is_top,
            },
        }
    }

    /// Returns the priority of a layer: that of sound is the highest, and without sound that of bases.
    fn priority(&self, layer: &EncodedLayer<'_>) -> u8 {
        match self.sound {
            Some((alias, _)) if alias != layer.alias => layer.layer + 1,
            _ => layer.layer,
        }
    }
}
