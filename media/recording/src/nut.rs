//! Raw images with their sizes, pixel formats and times, as ffmpeg writes them into a pipe: one stream of NUT
//! (<https://git.ffmpeg.org/gitweb/nut.git>, `docs/nut.txt`).

use crate::ffmpeg::{MAX_SIDE, PixelFormat, swap_bytes};
use std::io::{self, BufRead, Read};

/// The arguments of ffmpeg, after the input, that write the first video stream of a map as this module reads it.
/// Times are later by [`SHIFT_S`], because NUT has none below 0. Nothing is scaled.
pub(crate) const OUTPUT: [&str; 14] = [
    "-vf",
    "setpts=PTS+1000/TB",
    "-fps_mode",
    "passthrough",
    "-enc_time_base",
    "-1",
    "-autoscale",
    "0",
    "-c:v",
    "rawvideo",
    "-f",
    "nut",
    "-flush_packets",
    "1",
];
const SHIFT_S: f64 = 1000.0;

const FILE_ID: &[u8; 25] = b"nut/multimedia container\0";
const MAIN: [u8; 8] = *b"NM\x7a\x56\x1f\x5f\x04\xad";
const STREAM: [u8; 8] = *b"NS\x11\x40\x5b\xf2\xf9\xdb";
const SYNCPOINT: [u8; 8] = *b"NK\xe4\xad\xee\xca\x45\x69";

const CODED_PTS: u64 = 8;
const STREAM_ID: u64 = 16;
const SIZE_MSB: u64 = 32;
const CHECKSUM: u64 = 64;
const RESERVED: u64 = 128;
const SIDE_DATA: u64 = 256;
const HEADER_INDEX: u64 = 1024;
const MATCH_TIME: u64 = 2048;
const CODED: u64 = 4096;
const INVALID: u64 = 8192;

/// The largest header that is read. Those of one stream have a few hundred bytes.
const MAX_HEADER: u64 = 1 << 16;

/// An image of a stream.
#[derive(Debug, PartialEq)]
pub(crate) struct RawImage {
    /// The time at which it is shown, in seconds of the stream's clock.
    pub(crate) time_s: f64,
    /// Columns and rows.
    pub(crate) size: (usize, usize),
    pub(crate) bytes: Vec<u8>,
}

/// The images of a stream, of one pixel format.
pub(crate) struct Images<R> {
    from: R,
    format: PixelFormat,
    stream: Option<Stream>,
    frame_codes: Vec<FrameCode>,
    time_bases: Vec<(u64, u64)>,
    /// Bytes that frames begin with and that are not repeated in them.
    elided: Vec<Vec<u8>>,
    last_pts: i64,
}

/// The properties of the only stream.
struct Stream {
    size: (usize, usize),
    layout: Layout,
    time_base: (u64, u64),
    pts_shift: u32,
}

/// The meaning of the bytes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Rgb24,
    GrayLittleEndian,
    GrayBigEndian,
}

/// The fields that a frame's first byte stands for.
#[derive(Clone, Copy)]
struct FrameCode {
    flags: u64,
    size_mul: u64,
    size_lsb: u64,
    pts_delta: i64,
    reserved: u64,
    header: usize,
}

/// A reason that there is no next image.
#[derive(Debug)]
pub(crate) enum NutError {
    /// The stream cannot be read.
    Io(io::Error),
    /// The stream is not what ffmpeg was to write.
    Malformed(&'static str),
    /// The stream has this pixel format.
    Format(String),
}

impl From<io::Error> for NutError {
    fn from(error: io::Error) -> Self {
        NutError::Io(error)
    }
}

impl<R: BufRead> Images<R> {
    pub(crate) fn new(from: R, format: PixelFormat) -> Self {
        Images {
            from,
            format,
            stream: None,
            frame_codes: Vec::new(),
            time_bases: Vec::new(),
            elided: Vec::new(),
            last_pts: 0,
        }
    }

    /// Returns the next image; `None` at the end and if the last one is incomplete.
    ///
    /// Images of another size than the stream's first one are left out, which the gap in the times shows.
    pub(crate) fn next(&mut self) -> Result<Option<RawImage>, NutError> {
        match self.next_complete() {
            Err(NutError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            other => other,
        }
    }

    fn next_complete(&mut self) -> Result<Option<RawImage>, NutError> {
        if self.frame_codes.is_empty() {
            let Some(first) = self.first_byte()? else {
                return Ok(None);
            };
            let mut id = [first; FILE_ID.len()];
            self.from.read_exact(&mut id[1..])?;
            if id != *FILE_ID {
                return Err(NutError::Malformed("ffmpeg wrote no NUT stream"));
            }
        }
        while let Some(first) = self.first_byte()? {
            if first == b'N' {
                self.read_packet()?;
            } else if let Some(image) = self.read_frame(first)? {
                return Ok(Some(image));
            }
        }
        Ok(None)
    }

    fn first_byte(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        match self.from.read(&mut byte)? {
            0 => Ok(None),
            _ => Ok(Some(byte[0])),
        }
    }

    /// Reads a header after its first byte.
    fn read_packet(&mut self) -> Result<(), NutError> {
        let mut start_code = [b'N'; 8];
        self.from.read_exact(&mut start_code[1..])?;
        let length = unsigned(&mut self.from)?;
        if length > MAX_HEADER {
            return Err(NutError::Malformed("a header is too long"));
        }
        if length > 4096 {
            self.from.read_exact(&mut [0; 4])?;
        }
        let mut header = vec![0; length as usize];
        self.from.read_exact(&mut header)?;
        let header = &mut &header[..];
        let parsed = match start_code {
            MAIN => self.parse_main(header),
            STREAM if self.stream.is_none() => self.parse_stream(header),
            SYNCPOINT => self.parse_syncpoint(header),
            _ => Ok(()),
        };
        match parsed {
            Err(NutError::Io(_)) => Err(NutError::Malformed("a header is incomplete")),
            other => other,
        }
    }

    fn parse_main(&mut self, header: &mut &[u8]) -> Result<(), NutError> {
        let version = unsigned(header)?;
        if version > 3 {
            unsigned(header)?;
        }
        let (_streams, _distance) = (unsigned(header)?, unsigned(header)?);
        let time_bases = unsigned(header)?;
        self.time_bases.clear();
        for _ in 0..time_bases {
            self.time_bases.push((unsigned(header)?, unsigned(header)?));
        }
        self.frame_codes = frame_codes(header)?;
        let elided = unsigned(header)?;
        self.elided = vec![Vec::new()];
        for _ in 0..elided {
            self.elided.push(bytes(header)?);
        }
        Ok(())
    }

    fn parse_stream(&mut self, header: &mut &[u8]) -> Result<(), NutError> {
        let (_id, _class) = (unsigned(header)?, unsigned(header)?);
        let fourcc = bytes(header)?;
        let time_base = unsigned(header)? as usize;
        let pts_shift = unsigned(header)?;
        let (_distance, _delay, _flags) = (unsigned(header)?, unsigned(header)?, unsigned(header)?);
        let _codec_specific = bytes(header)?;
        let (width, height) = (unsigned(header)? as usize, unsigned(header)? as usize);
        let is_valid = (1..=MAX_SIDE).contains(&width) && (1..=MAX_SIDE).contains(&height);
        let time_base = self.time_bases.get(time_base);
        let time_base = time_base.filter(|(num, den)| *num > 0 && *den > 0);
        let (Some(time_base), true, 0..=62) = (time_base, is_valid, pts_shift) else {
            return Err(NutError::Malformed("a header of a stream is not valid"));
        };
        self.stream = Some(Stream {
            size: (width, height),
            layout: layout(&fourcc, self.format)?,
            time_base: *time_base,
            pts_shift: pts_shift as u32,
        });
        Ok(())
    }

    fn parse_syncpoint(&mut self, header: &mut &[u8]) -> Result<(), NutError> {
        let time = unsigned(header)?;
        let bases = self.time_bases.len() as u64;
        let Some(stream) = self.stream.as_ref().filter(|_| bases > 0) else {
            return Ok(());
        };
        // Its time is in units of one of the time bases.
        let (of_num, of_den) = self.time_bases[(time % bases) as usize];
        let (num, den) = stream.time_base;
        let pts = u128::from(time / bases) * u128::from(of_num) * u128::from(den)
            / (u128::from(of_den) * u128::from(num)).max(1);
        self.last_pts = i64::try_from(pts).unwrap_or(i64::MAX);
        Ok(())
    }

    /// Reads a frame after its first byte. Returns `None` for one of another size.
    fn read_frame(&mut self, code: u8) -> Result<Option<RawImage>, NutError> {
        let Some(stream) = &self.stream else {
            return Err(NutError::Malformed("a frame precedes its stream"));
        };
        let code = self.frame_codes[usize::from(code)];
        let from = &mut self.from;
        let mut flags = code.flags;
        if flags & INVALID != 0 {
            return Err(NutError::Malformed("a frame has no valid code"));
        }
        if flags & CODED != 0 {
            flags ^= unsigned(from)?;
        }
        if flags & STREAM_ID != 0 {
            unsigned(from)?;
        }
        let pts = match flags & CODED_PTS {
            0 => self.last_pts.saturating_add(code.pts_delta),
            _ => full_pts(unsigned(from)?, self.last_pts, stream.pts_shift),
        };
        let size_msb = match flags & SIZE_MSB {
            0 => 0,
            _ => unsigned(from)?,
        };
        if flags & MATCH_TIME != 0 {
            unsigned(from)?;
        }
        let header = match flags & HEADER_INDEX {
            0 => code.header,
            _ => unsigned(from)? as usize,
        };
        let reserved = match flags & RESERVED {
            0 => code.reserved,
            _ => unsigned(from)?,
        };
        for _ in 0..reserved {
            unsigned(from)?;
        }
        if flags & CHECKSUM != 0 {
            from.read_exact(&mut [0; 4])?;
        }
        let size = size_msb.checked_mul(code.size_mul);
        let size = size.and_then(|size| size.checked_add(code.size_lsb));
        let (Some(size), Some(elided)) = (size, self.elided.get(header)) else {
            return Err(NutError::Malformed("a frame is not valid"));
        };
        if flags & SIDE_DATA != 0 {
            return Err(NutError::Malformed("a frame has side data"));
        }
        self.last_pts = pts;
        let image_bytes = self.format.image_bytes(stream.size);
        if size + elided.len() as u64 != image_bytes as u64 {
            io::copy(&mut from.take(size), &mut io::sink())?;
            return Ok(None);
        }
        let mut image = Vec::with_capacity(image_bytes);
        image.extend_from_slice(elided);
        from.take(size).read_to_end(&mut image)?;
        if image.len() < image_bytes {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        if stream.layout == Layout::GrayBigEndian {
            swap_bytes(&mut image);
        }
        let (num, den) = stream.time_base;
        Ok(Some(RawImage {
            time_s: pts as f64 * num as f64 / den as f64 - SHIFT_S,
            size: stream.size,
            bytes: image,
        }))
    }
}

/// Returns the layout that a code of four characters stands for, if it is one of a format.
fn layout(fourcc: &[u8], format: PixelFormat) -> Result<Layout, NutError> {
    match (fourcc, format) {
        (b"RGB\x18", PixelFormat::Rgb24) => Ok(Layout::Rgb24),
        ([b'Y', b'1', 0, 9..=16], PixelFormat::Gray16) => Ok(Layout::GrayLittleEndian),
        ([9..=16, 0, b'1', b'Y'], PixelFormat::Gray16) => Ok(Layout::GrayBigEndian),
        (b"Y800" | b"GREY", _) => Err(NutError::Format("gray".to_owned())),
        _ => Err(NutError::Format(fourcc.escape_ascii().to_string())),
    }
}

/// Parses what each of the 256 first bytes of frames stands for.
fn frame_codes(header: &mut &[u8]) -> Result<Vec<FrameCode>, NutError> {
    let invalid = FrameCode {
        flags: INVALID,
        size_mul: 0,
        size_lsb: 0,
        pts_delta: 0,
        reserved: 0,
        header: 0,
    };
    let mut codes = vec![invalid; 256];
    let (mut next, mut run) = (
        0,
        FrameCode {
            size_mul: 1,
            ..invalid
        },
    );
    while next < 256 {
        run.flags = unsigned(header)?;
        let fields = unsigned(header)?;
        if fields > 0 {
            run.pts_delta = signed(header)?;
        }
        if fields > 1 {
            run.size_mul = unsigned(header)?;
        }
        if fields > 2 {
            unsigned(header)?;
        }
        run.size_lsb = if fields > 3 { unsigned(header)? } else { 0 };
        run.reserved = if fields > 4 { unsigned(header)? } else { 0 };
        let count = match fields {
            0..=5 => run.size_mul.saturating_sub(run.size_lsb),
            _ => unsigned(header)?,
        };
        if fields > 6 {
            unsigned(header)?;
        }
        if fields > 7 {
            run.header = unsigned(header)? as usize;
        }
        for _ in 8..fields {
            unsigned(header)?;
        }
        if count == 0 {
            return Err(NutError::Malformed("a run of frame codes is empty"));
        }
        let mut left = count;
        while left > 0 && next < 256 {
            // This byte begins headers.
            if next != usize::from(b'N') {
                codes[next] = run;
                run.size_lsb = run.size_lsb.saturating_add(1);
                left -= 1;
            }
            next += 1;
        }
    }
    Ok(codes)
}

/// Returns the time of which a frame has the lower bits, or all of them.
fn full_pts(coded: u64, last: i64, shift: u32) -> i64 {
    let range = 1_i64 << shift;
    let Ok(coded) = i64::try_from(coded) else {
        return i64::MAX;
    };
    if coded >= range {
        return coded - range;
    }
    let mask = range - 1;
    let delta = last.saturating_sub(mask / 2);
    (coded.wrapping_sub(delta) & mask).saturating_add(delta)
}

/// Reads a number of seven bits a byte, the most significant first.
fn unsigned(from: &mut impl Read) -> Result<u64, NutError> {
    let mut value: u64 = 0;
    for _ in 0..10 {
        let mut byte = [0];
        from.read_exact(&mut byte)?;
        value = value << 7 | u64::from(byte[0] & 0x7f);
        if byte[0] < 0x80 {
            return Ok(value);
        }
    }
    Err(NutError::Malformed("a number is too long"))
}

/// Reads a number whose lowest bit says that it is negative.
fn signed(from: &mut impl Read) -> Result<i64, NutError> {
    let value = unsigned(from)?.saturating_add(1);
    let half = (value >> 1) as i64;
    Ok(if value & 1 == 1 { -half } else { half })
}

/// Reads bytes behind their number.
fn bytes(from: &mut &[u8]) -> Result<Vec<u8>, NutError> {
    let length = unsigned(from)?;
    let mut bytes = Vec::new();
    let read = from.take(length).read_to_end(&mut bytes)?;
    if (read as u64) < length {
        return Err(NutError::Malformed("a header is incomplete"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffmpeg::Ffmpeg;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Returns the stream of a source of ffmpeg's.
    fn stream(source: &str, arguments: &[&str]) -> Vec<u8> {
        let mut command = Ffmpeg::command();
        command.args(["-f", "lavfi", "-i", source]).args(OUTPUT);
        command.args(arguments).arg("-");
        command.output().expect("ffmpeg is installed").stdout
    }

    fn images(stream: &[u8], format: PixelFormat) -> Vec<RawImage> {
        let mut images = Images::new(stream, format);
        std::iter::from_fn(|| images.next().unwrap()).collect()
    }

    #[test]
    fn images_have_sizes_times_and_exact_values() {
        // Values that grow with the column, in both byte orders and widths, at times with a gap.
        for (format, step) in [("gray16le", 257), ("gray16be", 257), ("gray12le", 100)] {
            let source = format!(
                "color=size=6x2:rate=30,format={format},geq=lum=X*{step}+N,select=not(eq(n\\,2))"
            );
            let source = format!("{source},trim=end_frame=3");
            let images = images(&stream(&source, &[]), PixelFormat::Gray16);
            let numbers = [0_u16, 1, 3];
            assert_eq!(images.len(), numbers.len(), "{format}");
            for (image, number) in images.iter().zip(numbers) {
                let row: Vec<u16> = (0..6).map(|column| column * step + number).collect();
                let expected: Vec<u8> = [&row[..], &row]
                    .concat()
                    .into_iter()
                    .flat_map(u16::to_le_bytes)
                    .collect();
                assert_eq!((image.size, &image.bytes), ((6, 2), &expected), "{format}");
                assert!((image.time_s - f64::from(number) / 30.0).abs() < 1e-4);
            }
        }
        let source = "color=red:size=98x72:rate=10:duration=0.3,format=rgb24,crop=97:71:exact=1";
        let images = images(&stream(source, &["-pix_fmt", "rgb24"]), PixelFormat::Rgb24);
        assert_eq!(images.len(), 3);
        assert!(images.iter().all(|image| image.size == (97, 71)));
        assert!(
            images[2]
                .bytes
                .as_chunks()
                .0
                .iter()
                .all(|[r, g, b]: &[u8; 3]| *r > 250 && *g < 5 && *b < 5)
        );
    }

    #[test]
    fn other_formats_are_named() {
        for (format, name) in [("gray", "gray"), ("yuv420p", "I420")] {
            let source = format!("color=size=6x2:rate=10:duration=0.1,format={format}");
            let stream = stream(&source, &[]);
            let mut images = Images::new(&stream[..], PixelFormat::Gray16);
            let error = images.next().unwrap_err();
            assert!(
                matches!(&error, NutError::Format(found) if found == name),
                "{error:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn damaged_streams_are_images_or_refused(
            cut in 0_usize..400,
            changes in vec((0_usize..400, any::<u8>()), 0..4),
        ) {
            let mut bytes = small();
            for (at, byte) in changes {
                if let Some(changed) = bytes.get_mut(at) { *changed = byte; }
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            let mut images = Images::new(&bytes[..], PixelFormat::Gray16);
            while let Ok(Some(image)) = images.next() {
                prop_assert_eq!(image.bytes.len(), 2 * image.size.0 * image.size.1);
            }
        }
    }

    /// A stream of two images of 2x1 pixels.
    fn small() -> Vec<u8> {
        static STREAM: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let source = "color=size=2x1:rate=10:duration=0.2,format=gray16le";
        STREAM.get_or_init(|| stream(source, &[])).clone()
    }
}
