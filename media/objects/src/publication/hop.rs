//! The change of the key that tags packets.

use super::Publication;
use crate::keys::{AccessSecret, PACKETS_PER_KEY};
use hawser_packets::media::Hop;

/// The key with which packets are tagged, and the packets that it has tagged.
pub(super) struct HopKey {
    access: AccessSecret,
    salt: [u8; 16],
    pub(super) hop: Hop,
    tagged: u64,
    /// The number of packets after which the key changes.
    limit: u64,
}

impl HopKey {
    pub(super) fn new(access: AccessSecret, salt: [u8; 16]) -> Self {
        HopKey {
            hop: access.hop(&salt, 0),
            access,
            salt,
            tagged: 0,
            limit: PACKETS_PER_KEY,
        }
    }

    pub(super) const fn access(&self) -> &AccessSecret {
        &self.access
    }

    /// Counts packets that were tagged.
    pub(super) fn count(&mut self, packets: usize) {
        self.tagged += packets as u64;
    }

    /// Changes to the key of the next number.
    fn rotate(&mut self) {
        let number = self.hop.number.wrapping_add(1);
        self.hop = self.access.hop(&self.salt, number);
        self.tagged = 0;
    }
}

impl Publication {
    /// Tags further packets with the next hop key, which viewers and relays have already, and announces it in
    /// every status.
    ///
    /// A receiver that has missed the previous change refuses packets, so changes are seconds apart. A
    /// publication also changes the key at the beginning of a frame, when the key has tagged
    /// [`PACKETS_PER_KEY`] packets. A restarted relay then also refuses packets that are
    /// repeated much later.
    pub fn rotate_hop_key(&mut self) {
        self.hop.rotate();
        for packetiser in self.packetisers.values_mut() {
            packetiser.set_hop(self.hop.hop.clone());
        }
        self.announce_keys();
    }

    /// Changes the key if it has tagged as many packets as it may.
    pub(super) fn rotate_used_up_hop_key(&mut self) {
        if self.hop.tagged >= self.hop.limit {
            self.rotate_hop_key();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        EncodedLayer, EncodedSlice, FlowConfig, LayerContent, PublicationConfig, Seed, TrackSecret,
    };
    use hawser_congestion::{Prague, PragueConfig};
    use hawser_packets::session::{Announcement, Track};
    use hawser_units::{ByteSize, Instant};
    use std::time::Duration;

    fn publication(secret: &TrackSecret) -> Publication {
        publication_of(1, secret)
    }

    /// Returns a publication of a track with a codec.
    fn publication_of(codec: u8, secret: &TrackSecret) -> Publication {
        let track = Track {
            alias: 7,
            codec,
            layers: 1,
            name: String::new(),
            parameters: Vec::new(),
        };
        let config = PublicationConfig {
            announcement: Announcement {
                incarnation: [1; 16],
                started_unix_millis: 0,
                tracks: vec![track],
            },
            lifetime: Duration::from_millis(150),
            flow: FlowConfig::new(ByteSize(1_000_000)),
            viewers: 1,
            hop_salt: [2; 16],
            seed: Seed::new([3; 32]),
        };
        let control = |now| Box::new(Prague::new(PragueConfig::default(), now)) as _;
        Publication::new(config, secret, Box::new(control)).unwrap()
    }

    #[test]
    fn packets_of_sound_are_handed_out_like_other_objects() {
        const OPUS: u8 = 128;
        let mut publication = publication_of(OPUS, &TrackSecret::new([4; 32]));
        publication.keep_objects();
        let now = Instant::ZERO + Duration::from_secs(1);
        for group in 0..2 {
            publication.publish_sound(now, now, &[3; 40]).unwrap();
            let object = publication.poll_object().unwrap();
            let id = object.info.id;
            assert_eq!((id.alias, id.group, object.packets.len()), (7, group, 1));
        }
        assert!(publication.poll_object().is_none());
    }

    #[test]
    fn a_used_up_hop_key_changes_with_the_next_frame() {
        let mut publication = publication(&TrackSecret::new([4; 32]));
        publication.hop.limit = 5;
        let bytes = [0; 2000];
        let layer = EncodedLayer {
            alias: 7,
            layer: 0,
            content: LayerContent::Whole(&bytes),
        };
        let slice = |ends_layer| EncodedSlice {
            layer,
            ends_layer,
            is_top: true,
        };
        let now = Instant::ZERO;
        // Two packets a frame or slice.
        let numbers = (0..12).map(|frame| {
            if frame % 2 == 0 {
                publication.publish(now, now, &[layer]).unwrap();
            } else {
                publication.begin_frame(now, now);
                publication.publish_slice(now, &slice(false)).unwrap();
                publication.publish_slice(now, &slice(true)).unwrap();
                publication.end_frame(now);
            }
            publication.hop.hop.number
        });
        let numbers: Vec<u16> = numbers.collect();
        assert_eq!(numbers, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
    }
}
