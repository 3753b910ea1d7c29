use crate::ffmpeg::{VideoError, read_error};
use crate::regular_file;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Files of one image each, in the order in which they are shown.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ImageFiles {
    /// The pattern or the index file that names them.
    pub(crate) name: PathBuf,
    pub(crate) files: Vec<PathBuf>,
    /// The times at which they were taken, in order.
    pub(crate) times_s: Vec<f64>,
    /// The number of the first one, if they are numbered.
    pub(crate) first: Option<u64>,
}

/// Returns whether a path is that of an index file, as the TUM RGB-D benchmark has them.
pub(crate) fn is_index(path: &Path) -> bool {
    let extension = path.extension();
    extension.is_some_and(|extension| extension.eq_ignore_ascii_case("txt"))
}

/// Finds the files of a path with a pattern such as `%06d` in the file's name. Returns `None` for
/// any other path. They were taken at a rate of `fps`.
pub(crate) fn find_numbered(path: &Path, fps: f64) -> Result<Option<ImageFiles>, VideoError> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(pattern) = name.and_then(Pattern::parse) else {
        return Ok(None);
    };
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let error = |reason| images_error(path, reason);
    let mut numbered = numbered_files(folder, &pattern)
        .map_err(|io_error| error(format!("cannot list {}: {io_error}", folder.display())))?;
    numbered.sort();
    let (Some((first, _)), Some((last, _))) = (numbered.first(), numbered.last()) else {
        return Err(error("no file has such a name".to_owned()));
    };
    let (first, last) = (*first, *last);
    for pair in numbered.windows(2) {
        let (before, after) = (pair[0].0, pair[1].0);
        match after - before {
            0 => return Err(error(format!("there are two files of number {before}"))),
            1 => {}
            _ => {
                let missing = before + 1;
                return Err(error(format!(
                    "number {missing} is missing between {first} and {last}"
                )));
            }
        }
    }
    Ok(Some(ImageFiles {
        name: path.to_owned(),
        times_s: (0..numbered.len())
            .map(|image| image as f64 / fps)
            .collect(),
        first: Some(first),
        files: numbered.into_iter().map(|(_, file)| file).collect(),
    }))
}

/// Returns all images of an index file in the order of their times.
pub(crate) fn indexed(path: &Path) -> Result<ImageFiles, VideoError> {
    let text = regular_file::read_text(path).map_err(read_error(path))?;
    let images = parse_index(&text).map_err(|reason| images_error(path, reason))?;
    if images.is_empty() {
        return Err(images_error(path, "it names no image".to_owned()));
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let (times_s, files) = images
        .into_iter()
        .map(|(time_s, file)| (time_s, folder.join(file)))
        .unzip();
    Ok(ImageFiles {
        name: path.to_owned(),
        files,
        times_s,
        first: None,
    })
}

pub(crate) fn images_error(path: &Path, reason: String) -> VideoError {
    VideoError::Images {
        path: path.to_owned(),
        reason,
    }
}

/// The name of numbered files: digits between two texts.
#[derive(Debug, PartialEq, Eq)]
struct Pattern<'a> {
    before: &'a str,
    /// Minimum number of digits; shorter numbers begin with zeros.
    digits: usize,
    after: &'a str,
}

impl<'a> Pattern<'a> {
    /// Parses a name with `%d` or, for example, `%06d`.
    fn parse(name: &'a str) -> Option<Self> {
        let (before, rest) = name.split_once('%')?;
        let (digits, after) = rest.split_once('d')?;
        let digits = match digits.strip_prefix('0') {
            Some(digits) => digits.parse().ok()?,
            None if digits.is_empty() => 1,
            None => return None,
        };
        Some(Pattern {
            before,
            digits,
            after,
        })
    }

    /// Returns the number in a name of this pattern.
    fn number(&self, name: &str) -> Option<u64> {
        // The case of extensions is not that of the pattern on every system.
        let end = name.len().checked_sub(self.after.len())?;
        let (name, after) = name.split_at_checked(end)?;
        let digits = name.strip_prefix(self.before)?;
        if !after.eq_ignore_ascii_case(self.after) {
            return None;
        }
        let is_padded = digits.len() == self.digits;
        let is_longer = digits.len() > self.digits && !digits.starts_with('0');
        let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
        if is_number && (is_padded || is_longer) {
            digits.parse().ok()
        } else {
            None
        }
    }
}

fn numbered_files(folder: &Path, pattern: &Pattern<'_>) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut numbered = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| pattern.number(name));
        numbered.extend(number.map(|number| (number, entry.path())));
    }
    Ok(numbered)
}

/// Parses lines of a time in seconds and a file name. A line that begins with `#` is a comment. Times since 1970 may
/// also be in milliseconds, microseconds or nanoseconds.
fn parse_index(text: &str) -> Result<Vec<(f64, String)>, String> {
    let mut images = Vec::new();
    // The mark of some editors for the order of bytes.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = text.replace("\r\n", "\n");
    for (number, line) in (1..).zip(text.split(['\n', '\r'])) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.split_whitespace();
        let time_s = words.next().and_then(|word| word.parse::<f64>().ok());
        match (
            time_s.filter(|time| time.is_finite()),
            words.next(),
            words.next(),
        ) {
            (Some(time_s), Some(file), None) => images.push((time_s, file.to_owned())),
            _ => {
                return Err(format!(
                    "line {number} is not a time in seconds and the name of an image"
                ));
            }
        }
    }
    images.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let last_s = images.last().map_or(0.0, |(time, _)| *time);
    for (time, _) in &mut images {
        *time /= per_second(last_s);
    }
    Ok(images)
}

/// Returns the units in a second of a time since 1970.
fn per_second(time: f64) -> f64 {
    match time {
        1e17.. => 1e9,
        1e14.. => 1e6,
        1e11.. => 1e3,
        _ => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_pattern_has_one_number() {
        let pattern = |before, digits, after| {
            Some(Pattern {
                before,
                digits,
                after,
            })
        };
        assert_eq!(Pattern::parse("%06d.png"), pattern("", 6, ".png"));
        assert_eq!(Pattern::parse("left_%d.jpg"), pattern("left_", 1, ".jpg"));
        for other in ["color.mp4", "50%.mp4", "%s.png", "%6d.png", "%0xd.png"] {
            assert_eq!(Pattern::parse(other), None, "{other}");
        }
    }

    #[test]
    fn names_of_a_pattern_have_its_digits() {
        let pattern = Pattern::parse("a%03d.png").unwrap();
        assert_eq!(pattern.number("a007.png"), Some(7));
        assert_eq!(pattern.number("a1000.png"), Some(1000));
        for other in ["a7.png", "a0007.png", "a007.jpg", "b007.png", "a+07.png"] {
            assert_eq!(pattern.number(other), None, "{other}");
        }
        let pattern = Pattern::parse("%d").unwrap();
        assert_eq!((pattern.number("0"), pattern.number("01")), (Some(0), None));
    }

    #[test]
    fn index_lines_are_times_and_names() {
        let text = "# color images\n# timestamp filename\n\n2.5 rgb/b.png\n 1305031102.175304\trgb/c.png\r\n-1 a\n";
        let parsed = |text: &str, expected: &[(f64, &str)]| {
            let images = parse_index(text).unwrap();
            let images: Vec<_> = images.iter().map(|(time, file)| (*time, &**file)).collect();
            assert_eq!(images, expected);
        };
        let third = (1_305_031_102.175_304, "rgb/c.png");
        parsed(text, &[(-1.0, "a"), (2.5, "rgb/b.png"), third]);
        parsed("\u{feff}# times\r\n1.5 a.png\r\n", &[(1.5, "a.png")]);
        parsed(
            "# times\r1.5 a.png\r2 b.png",
            &[(1.5, "a.png"), (2.0, "b.png")],
        );
        parsed(
            "1305031102000000000 a\n1305031102500000000 b\n",
            &[(1_305_031_102.0, "a"), (1_305_031_102.5, "b")],
        );
        for wrong in ["1.0", "nan a.png", "x a.png", "1 a.png 2 b.png"] {
            let error = parse_index(&format!("# times\n{wrong}\n")).unwrap_err();
            assert!(error.starts_with("line 2 is not a time"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_index_is_parsed_or_refused(text in "([#0-9a-z. \\t]{0,20}\r?\n){0,6}\\PC{0,10}") {
            if let Ok(images) = parse_index(&text) {
                prop_assert!(images.is_sorted_by(|(a, _), (b, _)| a <= b));
            }
        }
    }
}
