//! Packets of Opus (RFC 6716) and their files, Ogg (RFC 7845).

use ogg::reading::{BasePacketReader, OggReadError, PageParser};
use ogg::{PacketWriteEndInfo, PacketWriter};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::time::Duration;

/// The sampling rate that counts samples in packets and files, whatever that of the sound was.
pub(crate) const RATE: u64 = 48_000;

/// The duration of a packet.
pub const PACKET: Duration = Duration::from_millis(20);

/// The samples of a packet.
const SAMPLES: u64 = 960;

/// The length of the longest packet of one frame, bytes.
const MAX_PACKET: usize = 1276;

/// The most bytes of pages without the end of a packet.
const MAX_OPEN: usize = 128 << 10;

/// The packets of a second, after which a page is written.
const PACKETS_OF_PAGE: u64 = 50;

/// Returns whether bytes are one frame of [`PACKET`], by their first one.
pub fn is_packet(bytes: &[u8]) -> bool {
    let Some(first) = bytes.first() else {
        return false;
    };
    let is_of_20_ms = match first >> 3 {
        config @ 0..12 => config % 4 == 1,
        config @ 12..16 => config % 2 == 1,
        config => config % 4 == 3,
    };
    // The other codes are of several frames.
    is_of_20_ms && first & 3 == 0 && bytes.len() <= MAX_PACKET
}

/// Returns a packet in place of one that is missing, beside one of the same stream: of the same mode and bandwidth, and
/// without a frame. libopus conceals it; the decoder that ffmpeg uses by default is silent for as long.
pub fn missing_beside(packet: &[u8]) -> Vec<u8> {
    packet.first().map(|first| first & !3).into_iter().collect()
}

/// The packets of a stream of Ogg in which there is nothing but Opus.
pub(crate) struct OpusReader<R> {
    from: R,
    pages: BasePacketReader,
    /// The number of the stream.
    stream: Option<[u8; 4]>,
    /// The bytes of pages since the end of a packet.
    open: usize,
    header: Option<Header>,
}

/// The beginning of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The decoded samples before the first one of the sound.
    pub(crate) skipped: u16,
}

/// The length of the header of a page, without its table of segments.
const PAGE_HEADER: usize = 27;

impl<R: Read> OpusReader<R> {
    pub(crate) fn new(from: R) -> Self {
        OpusReader {
            from,
            pages: BasePacketReader::new(),
            stream: None,
            open: 0,
            header: None,
        }
    }

    /// Reads the next packet. Returns `None` at the end.
    ///
    /// # Errors
    /// If the stream is not of Opus in packets of [`PACKET`].
    pub(crate) fn next(&mut self) -> io::Result<Option<(Header, Vec<u8>)>> {
        loop {
            let Some(packet) = self.next_in_pages()? else {
                return Ok(None);
            };
            let Some(header) = self.header else {
                self.header =
                    Some(parse_header(&packet).ok_or_else(|| invalid("no header of Opus"))?);
                continue;
            };
            if packet.starts_with(b"OpusTags") {
                continue;
            }
            return match is_packet(&packet) {
                true => Ok(Some((header, packet))),
                false => Err(invalid("a packet that is not one frame of 20 ms")),
            };
        }
    }

    fn next_in_pages(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(packet) = self.pages.read_packet() {
                self.open = 0;
                return Ok(Some(packet.data));
            }
            if self.open > MAX_OPEN || !self.read_page()? {
                let is_long = self.open > MAX_OPEN;
                return is_long
                    .then(|| Err(invalid("a packet without end")))
                    .transpose();
            }
        }
    }

    /// Reads a page. Returns `false` at the end.
    fn read_page(&mut self) -> io::Result<bool> {
        let mut header = [0; PAGE_HEADER];
        match self.from.read_exact(&mut header) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        let [
            b'O',
            b'g',
            b'g',
            b'S',
            ..,
            a,
            b,
            c,
            d,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
            _,
        ] = header
        else {
            return Err(invalid("no page of Ogg"));
        };
        if *self.stream.get_or_insert([a, b, c, d]) != [a, b, c, d] {
            return Err(invalid("a second stream"));
        }
        let (mut page, segments) = PageParser::new(header).map_err(of_ogg)?;
        let mut table = vec![0; segments];
        self.from.read_exact(&mut table)?;
        let mut data = vec![0; page.parse_segments(table)];
        self.from.read_exact(&mut data)?;
        self.open += PAGE_HEADER + segments + data.len();
        let page = page.parse_packet_data(data).map_err(of_ogg)?;
        self.pages.push_page(page).map_err(of_ogg)?;
        Ok(true)
    }
}

fn parse_header(packet: &[u8]) -> Option<Header> {
    let fields = packet.strip_prefix(b"OpusHead")?;
    let [1, _channels, low, high, ..] = fields else {
        return None;
    };
    Some(Header {
        skipped: u16::from_le_bytes([*low, *high]),
    })
}

fn invalid(reason: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, reason)
}

fn of_ogg(error: OggReadError) -> io::Error {
    match error {
        OggReadError::ReadError(error) => error,
        error => io::Error::new(ErrorKind::InvalidData, error),
    }
}

/// A file of sound with one channel, to which packets of Opus are appended.
pub struct OpusWriter<W: Write> {
    to: PacketWriter<'static, BufWriter<W>>,
    /// The newest packet, which is written when another one follows: the last one is marked.
    newest: Option<Vec<u8>>,
    written: u64,
    packets_of_page: u64,
}

/// The number of the stream of Ogg, of which there is one in a file.
const STREAM: u32 = 1;

impl<W: Write> OpusWriter<W> {
    /// Begins a file that plays without the first `skipped` of a second of what is decoded.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(to: W, skipped: Duration) -> io::Result<Self> {
        let skipped = skipped.as_nanos() * u128::from(RATE) / 1_000_000_000;
        let skipped = u16::try_from(skipped).unwrap_or(u16::MAX).to_le_bytes();
        let rate = (RATE as u32).to_le_bytes();
        // The version, the number of channels, the gain, and one stream without a table of channels.
        let header = [b"OpusHead", &[1, 1][..], &skipped, &rate, &[0; 3]].concat();
        let vendor = b"hawser";
        let length = (vendor.len() as u32).to_le_bytes();
        let tags = [b"OpusTags", &length[..], vendor, &[0; 4]].concat();
        let mut to = PacketWriter::new(BufWriter::new(to));
        for packet in [header, tags] {
            to.write_packet(packet, STREAM, PacketWriteEndInfo::EndPage, 0)?;
        }
        Ok(OpusWriter {
            to,
            newest: None,
            written: 0,
            packets_of_page: PACKETS_OF_PAGE,
        })
    }

    /// Returns the writer as one that writes each packet at once, but for the newest one.
    #[must_use]
    pub fn writing_each(self) -> Self {
        OpusWriter {
            packets_of_page: 1,
            ..self
        }
    }

    /// Appends a packet of [`PACKET`].
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, packet: &[u8]) -> io::Result<()> {
        match self.newest.replace(packet.to_vec()) {
            Some(before) => self.write_before(before, false),
            None => Ok(()),
        }
    }

    /// Completes the file.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn finish(mut self) -> io::Result<()> {
        if let Some(last) = self.newest.take() {
            self.write_before(last, true)?;
        }
        self.to.inner_mut().flush()
    }

    fn write_before(&mut self, packet: Vec<u8>, is_last: bool) -> io::Result<()> {
        self.written += 1;
        let ends_page = self.written.is_multiple_of(self.packets_of_page);
        let end = match (is_last, ends_page) {
            (true, _) => PacketWriteEndInfo::EndStream,
            (false, true) => PacketWriteEndInfo::EndPage,
            (false, false) => PacketWriteEndInfo::NormalPacket,
        };
        let position = self.written * SAMPLES;
        self.to.write_packet(packet, STREAM, end, position)?;
        // A program that is killed leaves what there was until then.
        match ends_page {
            true => self.to.inner_mut().flush(),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet of 20 ms of the mode and bandwidth that libopus takes for speech.
    fn packet(number: u8, length: usize) -> Vec<u8> {
        [vec![0x78], vec![number; length]].concat()
    }

    fn file(packets: &[Vec<u8>], skipped: Duration) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = OpusWriter::create(&mut bytes, skipped).unwrap();
        for packet in packets {
            writer.write(packet).unwrap();
        }
        writer.finish().unwrap();
        bytes
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<(Header, Vec<u8>)>> {
        let mut reader = OpusReader::new(bytes);
        std::iter::from_fn(|| reader.next().transpose()).collect()
    }

    #[test]
    fn packets_are_read_as_they_were_written() {
        let packets: Vec<_> = (0..120).map(|n| packet(n, 7 * usize::from(n))).collect();
        let bytes = file(&packets, Duration::from_millis(5));
        let header = Header { skipped: 240 };
        let expected: Vec<_> = packets.into_iter().map(|packet| (header, packet)).collect();
        assert_eq!(read(&bytes).unwrap(), expected);
    }

    #[test]
    fn only_packets_of_one_frame_of_20_ms_are_taken() {
        for first in [0x08, 0x48, 0x68, 0x78, 0x98, 0xf8, 0xfc] {
            assert!(is_packet(&[first, 1, 2]), "{first:#x}");
        }
        for first in [0x00, 0x10, 0x60, 0x70, 0x80, 0xf0, 0xf9, 0xfb] {
            assert!(!is_packet(&[first, 1, 2]), "{first:#x}");
        }
        assert!(!is_packet(&[]) && !is_packet(&[0x78; MAX_PACKET + 1]));
        assert_eq!(missing_beside(&[0xff, 3]), [0xfc]);
    }

    #[test]
    fn other_streams_and_packets_without_end_are_refused() {
        let one = file(&[packet(1, 10)], Duration::ZERO);
        let mut other = one.clone();
        // The number of the stream in the first page.
        other[14] = 9;
        assert!(read(&other).is_err(), "the checksum is another one");
        assert!(read(&[&one[..], &one].concat()).is_err(), "it begins again");
        let long = [packet(1, 10), vec![0x78; 300_000]];
        let refused = read(&file(&long, Duration::ZERO)).unwrap_err();
        assert_eq!(refused.to_string(), "a packet without end");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            end in any::<prop::sample::Index>(),
        ) {
            let packets: Vec<_> = (0..60).map(|number| packet(number, 40)).collect();
            let mut bytes = file(&packets, Duration::ZERO);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(end.index(bytes.len() + 1));
            let _ = read(&bytes);
        }
    }
}
