//! Text of others. A peer, a file, a device or another program may put anything into it: sequences that control a
//! terminal, line breaks that make a line of its own in a log, characters that hide or reverse what follows.

use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::{Borrow, Cow};
use std::fmt;
use std::ops::Deref;

/// A text of others as one line that a terminal shows as it is. All text that does not come from Hawser itself
/// becomes a `Line` where it enters.
///
/// Control characters, line breaks, and characters that are invisible or change the direction of the text are
/// shown as in Rust (`\n`, `\u{1b}`). A longer text ends with an ellipsis.
///
/// ```
/// use hawser_units::Line;
///
/// assert_eq!(&*Line::new("closed\n\x1b[31mERROR"), "closed\\n\\u{1b}[31mERROR");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Line(String);

impl Line {
    /// The longest line without a limit of its own, in bytes.
    pub const MAX_BYTES: usize = 1000;

    /// Makes a line of a text, of up to [`MAX_BYTES`](Self::MAX_BYTES).
    pub fn new(text: &str) -> Self {
        Line::within(text, Line::MAX_BYTES)
    }

    /// Makes a line of up to `max` bytes.
    pub fn within(text: &str, max: usize) -> Self {
        let mut line = String::with_capacity(text.len().min(max));
        for char in text.chars() {
            let before = line.len();
            push(&mut line, char);
            if line.len() > max {
                line.truncate(before);
                shorten(&mut line, max);
                break;
            }
        }
        Line(line)
    }

    /// Makes a line of bytes that should be UTF-8.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Line::new(&String::from_utf8_lossy(bytes))
    }

    /// Makes a line of the output of another program, whose lines are separated by semicolons.
    pub fn of_output(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        Line::new(&lines.collect::<Vec<_>>().join("; "))
    }

    /// Returns the text.
    pub fn into_string(self) -> String {
        self.0
    }
}

/// Returns a text of several lines, such as a table, as a terminal shows it: as [`Line`], except for line feeds and tabs.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text
        .chars()
        .all(|char| matches!(char, '\n' | '\t') || is_shown(char))
    {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' | '\t' => shown.push(char),
            _ => push(&mut shown, char),
        }
    }
    shown.into()
}

/// Returns whether a terminal shows a character as it is, at its place, and nothing else happens.
pub fn is_shown(char: char) -> bool {
    // Control and formatting characters, separators, and what is not assigned: the standard library escapes these, and
    // marks that combine with the character before, which are common in many languages.
    let is_printed = || {
        let mut after_another = [b'a'; 5];
        let length = char.encode_utf8(&mut after_another[1..]).len();
        let text = std::str::from_utf8(&after_another[..=length]).unwrap_or_default();
        text.escape_debug().eq(text.chars())
    };
    let is_invisible = matches!(
        char,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}'
    );
    matches!(char, ' '..='~') || (!is_invisible && is_printed())
}

fn push(line: &mut String, char: char) {
    if is_shown(char) {
        line.push(char);
    } else {
        match char {
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            _ => line.extend(char.escape_unicode()),
        }
    }
}

/// Makes room for an ellipsis at the end.
fn shorten(line: &mut String, max: usize) {
    const ELLIPSIS: char = '…';
    while line.len() + ELLIPSIS.len_utf8() > max && line.pop().is_some() {}
    if ELLIPSIS.len_utf8() <= max {
        line.push(ELLIPSIS);
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Deref for Line {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Line {
    fn as_ref(&self) -> &str {
        self
    }
}

impl Borrow<str> for Line {
    fn borrow(&self) -> &str {
        self
    }
}

impl From<&str> for Line {
    fn from(text: &str) -> Self {
        Line::new(text)
    }
}

impl From<Line> for String {
    fn from(line: Line) -> Self {
        line.0
    }
}

impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(deserializer).map(|text| Line::new(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controls_a_terminal_or_a_log_is_escaped() {
        for (text, shown) in [
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\x1b[2J\x07\x7f", "\\u{1b}[2J\\u{7}\\u{7f}"),
            ("\u{9b}31m\u{85}", "\\u{9b}31m\\u{85}"),
            (
                "a\u{202e}b\u{2066}\u{200f}",
                "a\\u{202e}b\\u{2066}\\u{200f}",
            ),
            (
                "a\u{200b}\u{feff}\u{2060}\u{ad}",
                "a\\u{200b}\\u{feff}\\u{2060}\\u{ad}",
            ),
            ("\u{2028}\u{2029}", "\\u{2028}\\u{2029}"),
            (
                "a\u{e0041}\u{fe0f}\u{3164}",
                "a\\u{e0041}\\u{fe0f}\\u{3164}",
            ),
        ] {
            assert_eq!(&*Line::new(text), shown);
        }
    }

    #[test]
    fn text_of_any_language_is_kept() {
        for text in [
            "",
            "it's \"quoted\" \\ 5 %",
            "Übertragung",
            "हिन्दी",
            "日本語",
            "e\u{301}",
            "📷",
        ] {
            assert_eq!(&*Line::new(text), text);
            assert!(matches!(printable(text), Cow::Borrowed(_)));
        }
    }

    #[test]
    fn a_line_is_bounded_and_stays_as_it_is_in_another_one() {
        for text in ["x".repeat(2000), "\n".repeat(2000), "é\x1b".repeat(900)] {
            for max in [0, 2, 3, 17, Line::MAX_BYTES] {
                let line = Line::within(&text, max);
                assert!(line.len() <= max && line.len() + 8 > max, "{line}");
                assert_eq!(Line::within(&line, max), line);
            }
        }
    }

    #[test]
    fn a_text_of_lines_keeps_line_feeds_and_tabs() {
        assert_eq!(
            printable("a\nb\t\r\u{9b}\x1b\n"),
            "a\nb\t\\r\\u{9b}\\u{1b}\n"
        );
    }

    #[test]
    fn lines_of_another_program_are_separated() {
        let output = b"  Error: no such file\r\n\n\tin \x1b[1mhere\xff\n";
        let line = Line::of_output(output);
        assert_eq!(&*line, "Error: no such file; in \\u{1b}[1mhere\u{fffd}");
    }
}
