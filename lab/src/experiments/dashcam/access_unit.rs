//! H.264 frames in the form that decoders take.

/// The bits of a NAL unit's first byte that contain its type.
pub(in crate::experiments) const TYPE: u8 = 0x1f;

/// The type of NAL units that need no other picture.
pub(in crate::experiments) const KEY_SLICE: u8 = 5;

/// The type of the NAL unit at the beginning of an access unit.
const DELIMITER: u8 = 9;

const START_CODE: [u8; 3] = [0, 0, 1];

/// A frame in the form that a decoder expects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::experiments) struct AccessUnit {
    /// NAL units behind start codes (H.264, Annex B).
    pub(in crate::experiments) bytes: Vec<u8>,
    /// Whether it can be decoded without any other frame.
    pub(in crate::experiments) is_key: bool,
}

/// Splits a stream (H.264, Annex B), in which each access unit begins with a delimiter. What is in
/// front of the first one belongs to no frame.
pub(super) fn split(stream: &[u8]) -> Vec<AccessUnit> {
    let mut begins: Vec<(usize, bool)> = Vec::new();
    for (at, window) in stream.windows(START_CODE.len() + 1).enumerate() {
        if !window.starts_with(&START_CODE) {
            continue;
        }
        match (window[START_CODE.len()] & TYPE, begins.last_mut()) {
            (DELIMITER, _) => {
                // A start code may be one zero longer.
                let has_zero = at > 0 && stream[at - 1] == 0;
                begins.push((at - usize::from(has_zero), false));
            }
            (KEY_SLICE, Some((_, is_key))) => *is_key = true,
            _ => {}
        }
    }
    let ends = begins.iter().skip(1).map(|(begin, _)| *begin);
    let unit = |((begin, is_key), end): (&(usize, bool), usize)| AccessUnit {
        bytes: stream[*begin..end].to_vec(),
        is_key: *is_key,
    };
    begins
        .iter()
        .zip(ends.chain([stream.len()]))
        .map(unit)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_begins_with_its_delimiter() {
        let key = [0, 0, 0, 1, 9, 16, 0, 0, 1, 0x67, 7, 0, 0, 1, 0x65, 1];
        let other = [0, 0, 1, 9, 48, 0, 0, 0, 1, 0x41, 5];
        let unit = |bytes: &[u8], is_key| AccessUnit {
            bytes: bytes.to_vec(),
            is_key,
        };
        assert_eq!(
            split(&[&key[..], &other, &key].concat()),
            [unit(&key, true), unit(&other, false), unit(&key, true)]
        );
        assert_eq!(split(&[1, 0, 0, 1]), []);
    }
}
