use std::time::Duration;

/// The timing of a track's frames, which viewers need besides the codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackTiming {
    /// The time from the capture of a frame to its deadline, in whole milliseconds up to 65,535.
    pub lifetime: Duration,
    /// The number of frames in a thousand seconds.
    pub frames_per_1000_s: u32,
}

impl TrackTiming {
    /// The length of the parameters in bytes.
    pub const LEN: usize = 6;

    /// Returns the parameters of an announced track.
    pub fn emit(&self) -> [u8; TrackTiming::LEN] {
        let lifetime = u16::try_from(self.lifetime.as_millis()).unwrap_or(u16::MAX);
        let [a, b] = lifetime.to_be_bytes();
        let [c, d, e, f] = self.frames_per_1000_s.to_be_bytes();
        [a, b, c, d, e, f]
    }

    /// Reads the parameters of an announced track. Bytes after the known ones are of a later version
    /// and are ignored; `None` if there are fewer.
    pub fn parse(parameters: &[u8]) -> Option<Self> {
        let [a, b, c, d, e, f] = *parameters.first_chunk()?;
        Some(TrackTiming {
            lifetime: Duration::from_millis(u16::from_be_bytes([a, b]).into()),
            frames_per_1000_s: u32::from_be_bytes([c, d, e, f]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_back_and_later_ones_ignored() {
        let timing = TrackTiming {
            lifetime: Duration::from_millis(150),
            frames_per_1000_s: 29_970,
        };
        let mut parameters = timing.emit().to_vec();
        assert_eq!(parameters, [0, 150, 0, 0, 0x75, 0x12]);
        parameters.push(9);
        assert_eq!(TrackTiming::parse(&parameters), Some(timing));
        assert_eq!(TrackTiming::parse(&parameters[..5]), None);
    }
}
