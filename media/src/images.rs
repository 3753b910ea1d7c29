use crate::ffmpeg::VideoError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The largest difference of time between a colour image and its depth image, as in `associate.py`
/// of the TUM RGB-D benchmark.
const MAX_DIFFERENCE_S: f64 = 0.020;

/// Files of one image each, in the order in which they are shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageFiles {
    /// The pattern or the index file that names them.
    pub(crate) name: PathBuf,
    pub(crate) files: Vec<PathBuf>,
}

/// Returns whether a path is that of an index file, as the TUM RGB-D benchmark has them.
pub(crate) fn is_index(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "txt")
}

/// Finds the files of a path with a pattern such as `%06d` in the file's name. Returns `None` for
/// any other path.
pub(crate) fn find_numbered(path: &Path) -> Result<Option<ImageFiles>, VideoError> {
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
    let gap = (first..)
        .zip(&numbered)
        .find(|(expected, (number, _))| expected != number);
    if let Some((missing, _)) = gap {
        return Err(error(format!(
            "number {missing} is missing between {first} and {last}"
        )));
    }
    Ok(Some(ImageFiles {
        name: path.to_owned(),
        files: numbered.into_iter().map(|(_, file)| file).collect(),
    }))
}

/// Returns the images of the index files of colour and depth that belong together. Those without a
/// partner are left out.
pub(crate) fn associated(
    color: &Path,
    depth: &Path,
) -> Result<(ImageFiles, ImageFiles), VideoError> {
    let (colors, depths) = (Index::read(color)?, Index::read(depth)?);
    let pairs = associate(&colors.times_s, &depths.times_s);
    if pairs.is_empty() {
        let limit_ms = 1000.0 * MAX_DIFFERENCE_S;
        let reason = format!(
            "no image was taken within {limit_ms} ms of one of {}",
            depth.display()
        );
        return Err(images_error(color, reason));
    }
    tracing::info!(
        color = %color.display(),
        depth = %depth.display(),
        pairs = pairs.len(),
        colors_left_out = colors.files.len() - pairs.len(),
        depths_left_out = depths.files.len() - pairs.len(),
        "images associated by time"
    );
    let files = |index: &Index, path: &Path, of_pairs: Vec<usize>| ImageFiles {
        name: path.to_owned(),
        files: of_pairs
            .into_iter()
            .map(|at| index.files[at].clone())
            .collect(),
    };
    let (of_color, of_depth) = pairs.into_iter().unzip();
    Ok((
        files(&colors, color, of_color),
        files(&depths, depth, of_depth),
    ))
}

/// Returns all images of an index file in the order of their times.
pub(crate) fn indexed(path: &Path) -> Result<ImageFiles, VideoError> {
    let index = Index::read(path)?;
    if index.files.is_empty() {
        return Err(images_error(path, "it names no image".to_owned()));
    }
    Ok(ImageFiles {
        name: path.to_owned(),
        files: index.files,
    })
}

fn images_error(path: &Path, reason: String) -> VideoError {
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
        let digits = name.strip_prefix(self.before)?.strip_suffix(self.after)?;
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

/// An index file: images and the times at which they were taken, in the order of the times.
struct Index {
    times_s: Vec<f64>,
    files: Vec<PathBuf>,
}

impl Index {
    fn read(path: &Path) -> Result<Self, VideoError> {
        let text = fs::read_to_string(path).map_err(|error| VideoError::Open {
            path: path.to_owned(),
            error,
        })?;
        let images = parse_index(&text).map_err(|reason| images_error(path, reason))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let (times_s, files) = images
            .into_iter()
            .map(|(time_s, file)| (time_s, folder.join(file)))
            .unzip();
        Ok(Index { times_s, files })
    }
}

/// Parses lines of a time in seconds and a file name. A line that begins with `#` is a comment.
fn parse_index(text: &str) -> Result<Vec<(f64, &str)>, String> {
    let mut images = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
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
            (Some(time_s), Some(file), None) => images.push((time_s, file)),
            _ => {
                return Err(format!(
                    "line {number} is not a time in seconds and the name of an image"
                ));
            }
        }
    }
    images.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    Ok(images)
}

/// Returns pairs of indices of the times that belong together: the closest times first, each time
/// once. Both lists are in order; so are the pairs, by the first list.
fn associate(colors_s: &[f64], depths_s: &[f64]) -> Vec<(usize, usize)> {
    let mut candidates = Vec::new();
    for (color, color_s) in colors_s.iter().enumerate() {
        let first = depths_s.partition_point(|depth_s| color_s - depth_s >= MAX_DIFFERENCE_S);
        let near = (first..depths_s.len())
            .map(|depth| ((depths_s[depth] - color_s).abs(), color, depth))
            .take_while(|(difference_s, _, _)| *difference_s < MAX_DIFFERENCE_S);
        candidates.extend(near);
    }
    candidates.sort_by(|(a, ..), (b, ..)| a.total_cmp(b));
    let (mut used_colors, mut used_depths) =
        (vec![false; colors_s.len()], vec![false; depths_s.len()]);
    let mut pairs = Vec::new();
    for (_, color, depth) in candidates {
        if !used_colors[color] && !used_depths[depth] {
            (used_colors[color], used_depths[depth]) = (true, true);
            pairs.push((color, depth));
        }
    }
    pairs.sort_unstable();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
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
        assert_eq!(
            parse_index(text).unwrap(),
            [
                (-1.0, "a"),
                (2.5, "rgb/b.png"),
                (1_305_031_102.175_304, "rgb/c.png")
            ]
        );
        for wrong in ["1.0", "nan a.png", "x a.png", "1 a.png 2 b.png"] {
            let error = parse_index(&format!("# times\n{wrong}\n")).unwrap_err();
            assert!(error.starts_with("line 2 is not a time"), "{error}");
        }
    }

    #[test]
    fn the_nearest_times_belong_together() {
        // The second colour image is nearer to the depth image than the first; the last has none.
        let colors = [0.990, 1.001, 1.034, 2.0];
        let depths = [1.003, 1.020, 1.060];
        assert_eq!(associate(&colors, &depths), [(1, 0), (2, 1)]);
        assert_eq!(associate(&[1.0], &[1.021]), []);
    }

    proptest! {
        #[test]
        fn pairs_are_those_of_the_definition(
            mut colors in vec(0u16..300, 0..12),
            mut depths in vec(0u16..300, 0..12),
        ) {
            colors.sort_unstable();
            depths.sort_unstable();
            let seconds = |times: &[u16]| -> Vec<f64> {
                times.iter().map(|time| f64::from(*time) / 1024.0).collect()
            };
            let pairs = associate(&seconds(&colors), &seconds(&depths));
            prop_assert_eq!(pairs, by_definition(&colors, &depths));
        }

        #[test]
        fn any_index_is_parsed_or_refused(text in "([#0-9a-z. \\t]{0,20}\r?\n){0,6}\\PC{0,10}") {
            if let Ok(images) = parse_index(&text) {
                prop_assert!(images.is_sorted_by(|(a, _), (b, _)| a <= b));
            }
        }
    }

    /// The closest pair of those that are left is the next one; times are in units of 1/1024 s.
    fn by_definition(colors: &[u16], depths: &[u16]) -> Vec<(usize, usize)> {
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        loop {
            let all = (0..colors.len()).flat_map(|a| (0..depths.len()).map(move |b| (a, b)));
            let left = all.filter(|(a, b)| pairs.iter().all(|(c, d)| c != a && d != b));
            let difference = |(a, b): &(usize, usize)| colors[*a].abs_diff(depths[*b]);
            // 20 ms are 20.48 units.
            let next = left
                .filter(|pair| difference(pair) <= 20)
                .min_by_key(|pair| (difference(pair), *pair));
            match next {
                Some(pair) => pairs.push(pair),
                None => break,
            }
        }
        pairs.sort_unstable();
        pairs
    }
}
