use super::{MAC, MessageError, at_end};
use crate::cursor::Cursor;
use crate::media::MAX_LAYER;

/// The maximum number of tracks that are published together.
pub const MAX_TRACKS: usize = 16;

/// The maximum length of an announcement in bytes: it fits a datagram of 1,200 bytes with the rest
/// of the message.
pub const MAX_ANNOUNCEMENT: usize = 920;

/// The codec of a track of sound: Opus (RFC 6716), one packet of 20 ms in each object. The codecs of pictures have
/// lower numbers.
pub const OPUS: u8 = 128;

/// The tracks of a publisher. Only publisher and viewers can make the authenticator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// Random bytes that the publisher chose when it started.
    pub incarnation: [u8; 16],
    /// The time of the publisher's start in milliseconds since 1970.
    pub started_unix_millis: u64,
    /// The tracks, at most [`MAX_TRACKS`], ascending by alias.
    pub tracks: Vec<Track>,
}

/// A track.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    /// The number of the track in packets.
    pub alias: u32,
    /// The codec, as numbered by the codecs.
    pub codec: u8,
    /// The number of layers, 1 to [`MAX_LAYER`] + 1.
    pub layers: u8,
    /// The name.
    pub name: String,
    /// The codec's parameters.
    pub parameters: Vec<u8>,
}

impl Announcement {
    /// Returns the bytes before the authenticator.
    ///
    /// Returns an error if the tracks do not fit or are not in order.
    pub fn emit(&self) -> Result<Vec<u8>, MessageError> {
        let mut bytes = self.incarnation.to_vec();
        bytes.extend(self.started_unix_millis.to_be_bytes());
        let count = u8::try_from(self.tracks.len()).map_err(|_| MessageError::Invalid)?;
        bytes.push(count);
        for track in &self.tracks {
            track.emit(&mut bytes)?;
        }
        let is_parsed_back = bytes.len() + MAC <= MAX_ANNOUNCEMENT
            && Announcement::parse(&bytes).as_ref() == Ok(self);
        is_parsed_back.then_some(bytes).ok_or(MessageError::Invalid)
    }

    /// Returns the bytes before the authenticator, and the authenticator.
    pub fn split(bytes: &[u8]) -> Result<(&[u8], [u8; MAC]), MessageError> {
        let (covered, mac) = bytes.split_last_chunk().ok_or(MessageError::Truncated)?;
        Ok((covered, *mac))
    }

    /// Parses the bytes before the authenticator.
    pub fn parse(covered: &[u8]) -> Result<Self, MessageError> {
        let mut cursor = Cursor(covered);
        let incarnation = cursor.array()?;
        let started_unix_millis = cursor.u64()?;
        let count = cursor.u8()?;
        if usize::from(count) > MAX_TRACKS || covered.len() + MAC > MAX_ANNOUNCEMENT {
            return Err(MessageError::Invalid);
        }
        let tracks = (0..count).map(|_| Track::parse(&mut cursor));
        let tracks: Vec<_> = tracks.collect::<Result<_, _>>()?;
        if !tracks.is_sorted_by(|one, next| one.alias < next.alias) {
            return Err(MessageError::Invalid);
        }
        let announcement = Announcement {
            incarnation,
            started_unix_millis,
            tracks,
        };
        at_end(announcement, &cursor)
    }
}

impl Track {
    /// Returns whether the track has sound. Its objects belong to no frame, and its groups are numbered on their own.
    pub const fn is_sound(&self) -> bool {
        self.codec == OPUS
    }

    fn emit(&self, bytes: &mut Vec<u8>) -> Result<(), MessageError> {
        let name = u8::try_from(self.name.len()).map_err(|_| MessageError::Invalid)?;
        let parameters = u16::try_from(self.parameters.len()).map_err(|_| MessageError::Invalid)?;
        bytes.extend(self.alias.to_be_bytes());
        bytes.extend([self.codec, self.layers, name]);
        bytes.extend(parameters.to_be_bytes());
        bytes.extend(self.name.as_bytes());
        bytes.extend(&self.parameters);
        Ok(())
    }

    fn parse(cursor: &mut Cursor<'_>) -> Result<Self, MessageError> {
        let alias = cursor.u32()?;
        let [codec, layers, name] = cursor.array()?;
        let parameters = cursor.u16()?;
        if !(1..=MAX_LAYER + 1).contains(&layers) {
            return Err(MessageError::Invalid);
        }
        let name = std::str::from_utf8(cursor.bytes(name.into())?);
        Ok(Track {
            alias,
            codec,
            layers,
            name: name.map_err(|_| MessageError::Invalid)?.to_owned(),
            parameters: cursor.bytes(parameters.into())?.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announcement() -> Announcement {
        let track = |alias, name: &str| Track {
            alias,
            codec: 2,
            layers: 3,
            name: name.to_owned(),
            parameters: vec![4; 5],
        };
        Announcement {
            incarnation: [6; 16],
            started_unix_millis: 7,
            tracks: vec![track(8, "left"), track(9, "right")],
        }
    }

    #[test]
    fn an_announcement_is_parsed_back() {
        let bytes = announcement().emit().unwrap();
        assert_eq!(Announcement::parse(&bytes), Ok(announcement()));
    }

    #[test]
    fn announced_tracks_out_of_order_twice_or_too_many_are_refused() {
        let announced = |tracks: &[u32]| {
            let mut announcement = announcement();
            let track = announcement.tracks[0].clone();
            let with_alias = |alias: &u32| Track {
                alias: *alias,
                ..track.clone()
            };
            announcement.tracks = tracks.iter().map(with_alias).collect();
            announcement.emit()
        };
        assert!(announced(&[1, 2]).is_ok());
        assert_eq!(announced(&[2, 1]), Err(MessageError::Invalid));
        assert_eq!(announced(&[2, 2]), Err(MessageError::Invalid));
        let many: Vec<u32> = (0..17).collect();
        assert_eq!(announced(&many), Err(MessageError::Invalid));
    }

    #[test]
    fn an_announcement_that_is_too_long_is_refused() {
        let mut announcement = announcement();
        announcement.tracks[0].parameters = vec![0; MAX_ANNOUNCEMENT];
        assert_eq!(announcement.emit(), Err(MessageError::Invalid));
    }
}
