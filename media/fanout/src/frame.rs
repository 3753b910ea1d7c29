use hawser_packets::media::ObjectId;

/// A frame of a track: all objects of one group and object number. A publisher sends them in
/// ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Frame {
    /// The group.
    pub group: u32,
    /// The frame within the group.
    pub object: u32,
}

impl Frame {
    /// The first frame that there can be.
    pub const FIRST: Frame = Frame {
        group: 0,
        object: 0,
    };

    /// Returns the frame of an object.
    pub const fn of(object: &ObjectId) -> Self {
        Frame {
            group: object.group,
            object: object.object,
        }
    }

    /// Returns the lowest frame after this one; this one, if there is none.
    pub const fn next(self) -> Self {
        Frame::from_word(self.word().saturating_add(1))
    }

    /// Returns the frame as a number in the same order: group, then object.
    pub const fn word(self) -> u64 {
        (self.group as u64) << 32 | self.object as u64
    }

    /// Returns the frame of a number.
    pub const fn from_word(word: u64) -> Self {
        Frame {
            group: (word >> 32) as u32,
            object: word as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_has_the_order_of_the_frames() {
        let frame = |group, object| Frame { group, object };
        assert!(frame(1, u32::MAX) < frame(2, 0));
        assert!(frame(1, u32::MAX).word() < frame(2, 0).word());
        assert_eq!(frame(1, u32::MAX).next(), frame(2, 0));
        assert_eq!(Frame::from_word(frame(3, 4).word()), frame(3, 4));
    }
}
