use crate::keys::{AccessSecret, AeadKey, TrackSecret};
use hawser_packets::media::{Hop, is_from_hop};

/// The keys with which a viewer opens the packets of a track: of the current epoch, the one before
/// and the one after.
#[derive(Debug)]
pub(crate) struct EpochKeys {
    secret: TrackSecret,
    incarnation: [u8; 16],
    alias: u32,
    current: u16,
    keys: [Option<AeadKey>; 3],
}

impl EpochKeys {
    pub(crate) fn new(secret: &TrackSecret, incarnation: [u8; 16], alias: u32, epoch: u16) -> Self {
        let mut keys = EpochKeys {
            secret: secret.clone(),
            incarnation,
            alias,
            current: epoch,
            keys: [None, None, None],
        };
        keys.keys = [-1, 0, 1].map(|step| keys.derive(step));
        keys
    }

    /// Returns the key of an epoch, if it is one of the three.
    pub(crate) fn get(&self, epoch: u16) -> Option<&AeadKey> {
        let slot = i32::from(epoch) - i32::from(self.current) + 1;
        self.keys.get(usize::try_from(slot).ok()?)?.as_ref()
    }

    /// Makes an epoch the current one if it is later. To be called with authenticated epochs only.
    pub(crate) fn advance(&mut self, epoch: u16) {
        if epoch <= self.current {
            return;
        }
        if epoch - self.current == 1 {
            self.current = epoch;
            self.keys.rotate_left(1);
            self.keys[2] = self.derive(1);
        } else {
            *self = EpochKeys::new(&self.secret, self.incarnation, self.alias, epoch);
        }
    }

    fn derive(&self, step: i16) -> Option<AeadKey> {
        let epoch = self.current.checked_add_signed(step)?;
        Some(self.secret.packet_key(&self.incarnation, epoch, self.alias))
    }
}

/// The keys with which a receiver verifies hop tags: the current one, the one before and the one
/// after. Their numbers wrap.
#[derive(Debug)]
pub(crate) struct HopKeys {
    access: AccessSecret,
    salt: [u8; 16],
    hops: [Hop; 3],
}

impl HopKeys {
    pub(crate) fn new(access: AccessSecret, salt: [u8; 16], number: u16) -> Self {
        let hops = [u16::MAX, 0, 1].map(|step| access.hop(&salt, number.wrapping_add(step)));
        HopKeys { access, salt, hops }
    }

    /// Returns the three keys: the one before, the current one and the one after.
    pub(crate) const fn all(&self) -> &[Hop; 3] {
        &self.hops
    }

    /// Returns whether a datagram has a right tag. The key after the current one becomes the current
    /// one when it is used.
    pub(crate) fn accepts(&mut self, datagram: &[u8], number: u16) -> bool {
        let slot = self.hops.iter().position(|hop| hop.number == number);
        let is_right = slot.is_some_and(|slot| is_from_hop(datagram, &self.hops[slot].key));
        if is_right {
            self.announce(number);
        }
        is_right
    }

    /// Makes the key of an authenticated number the current one, unless it is the one before.
    pub(crate) fn announce(&mut self, number: u16) {
        let slot = self.hops.iter().position(|hop| hop.number == number);
        match slot {
            Some(2) => {
                let next = self.access.hop(&self.salt, number.wrapping_add(1));
                self.hops.rotate_left(1);
                self.hops[2] = next;
            }
            Some(_) => {}
            None => *self = HopKeys::new(self.access.clone(), self.salt, number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(epoch: u16) -> EpochKeys {
        EpochKeys::new(&TrackSecret::new([1; 32]), [2; 16], 3, epoch)
    }

    fn held(keys: &EpochKeys) -> Vec<u16> {
        (0..=u16::MAX)
            .filter(|epoch| keys.get(*epoch).is_some())
            .collect()
    }

    /// Returns whether the keys are the ones that the publisher seals with.
    fn are_right(keys: &EpochKeys) -> bool {
        held(keys).into_iter().all(|epoch| {
            let mut sealed = vec![0];
            let key = TrackSecret::new([1; 32]).packet_key(&[2; 16], epoch, 3);
            key.seal([0; 12], &[], &mut sealed);
            keys.get(epoch).unwrap().open([0; 12], &[], &sealed).is_ok()
        })
    }

    #[test]
    fn three_epochs_are_held_and_never_more() {
        let mut keys = epochs(0);
        for (advanced, expected) in [
            (0, vec![0, 1]),
            (1, vec![0, 1, 2]),
            (2, vec![1, 2, 3]),
            (1, vec![1, 2, 3]),
            (900, vec![899, 900, 901]),
            (u16::MAX, vec![u16::MAX - 1, u16::MAX]),
        ] {
            keys.advance(advanced);
            assert_eq!(held(&keys), expected);
            assert!(are_right(&keys));
        }
    }

    #[test]
    fn the_next_hop_key_is_known_before_it_is_used() {
        let access = TrackSecret::new([1; 32]).access();
        let mut keys = HopKeys::new(access, [2; 16], 7);
        for (announced, expected) in [
            (7, [6, 7, 8]),
            (8, [7, 8, 9]),
            (7, [7, 8, 9]),
            (300, [299, 300, 301]),
        ] {
            keys.announce(announced);
            let numbers = keys.all().each_ref().map(|hop| hop.number);
            assert_eq!(numbers, expected);
        }
    }

    #[test]
    fn hop_keys_rotate_across_the_wrap() {
        let access = TrackSecret::new([1; 32]).access();
        let mut keys = HopKeys::new(access.clone(), [2; 16], u16::MAX);
        let mut accepts = |number: u16, with: u16| {
            let mut header = [0; 36];
            let mut hop = access.hop(&[2; 16], with);
            hop.number = number;
            hawser_packets::media::write_hop(&mut header, &hop);
            keys.accepts(&header, number)
        };
        assert!(accepts(u16::MAX, u16::MAX) && !accepts(1, 1));
        assert!(!accepts(0, 1), "the key of another number");
        assert!(accepts(0, 0) && accepts(1, 1) && accepts(0, 0));
        assert!(!accepts(u16::MAX, u16::MAX), "two keys ago");
    }
}
