//! The check of words: `cargo run -p xtask -- words`. It reads the prose of Markdown and the comments of code.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Words that are not used, and those to use instead.
const BANNED: [(&str, &str); 8] = [
    ("whoever", "the client that, a reader who"),
    ("anew", "again"),
    ("at most so many", "at most N, the limit"),
    ("obey", "follow, apply"),
    ("obeys", "follows, applies"),
    ("patience", "timeout, the time to wait"),
    ("deaf", "does not receive"),
    ("formerly", "nothing: a page says what is"),
];

/// Words with which a comment does not begin: "Returns the ...", "The ..." is easier to read.
const OPENERS: [&str; 2] = ["What ", "Of "];

/// The longest name of a function, in characters. A test's name says the behaviour, its code the rest.
const LONGEST_NAME: usize = 59;

/// Checks the files below `root`. Fails with the list of places.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut found = Vec::new();
    let files = files(root)?;
    for path in &files {
        let text = fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.strip_prefix(root).unwrap_or(path).display();
        let is_page = path.extension().is_some_and(|extension| extension == "md");
        let places = places(&text, is_page).into_iter();
        found.extend(places.map(|(line, what)| format!("{name}:{line}: {what}")));
    }
    if !found.is_empty() {
        bail!("words to replace:\n  {}", found.join("\n  "));
    }
    println!("{} files without banned words", files.len());
    Ok(())
}

/// Returns the pages and sources of a folder, without hidden folders, `target`, and packages of npm.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        let is_of_others = ["target", "node_modules"].contains(&&*name);
        if path.is_dir() && !name.starts_with('.') && !is_of_others {
            files.extend(self::files(&path)?);
        } else if path.is_file() && ["md", "rs", "c", "h", "ts", "js"].contains(&&*extension) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the lines of a text that have something to replace, with what it is.
fn places(text: &str, is_page: bool) -> Vec<(usize, String)> {
    let mut places = Vec::new();
    let (mut is_code, mut in_comment) = (false, false);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        is_code ^= is_page && line.starts_with("```");
        let comment = ["///", "//!", "//", "/**"];
        let comment = comment.iter().find_map(|start| line.strip_prefix(start));
        let begins = comment
            .filter(|_| !in_comment && !is_page)
            .map(str::trim_start);
        let opener = |opener: &&&str| begins.is_some_and(|text| text.starts_with(**opener));
        if let Some(opener) = OPENERS.iter().find(opener) {
            places.push((number, format!("a comment begins with \"{opener}...\"")));
        }
        in_comment = comment.is_some();
        let is_comment = ["//", "/*", "* "]
            .iter()
            .any(|start| line.starts_with(start));
        if (is_page && !is_code) || (!is_page && is_comment) {
            let prose = prose(line);
            let banned = BANNED
                .iter()
                .filter(|(word, _)| prose.contains(&format!(" {word} ")));
            places.extend(banned.map(|(word, hint)| (number, format!("\"{word}\": {hint}"))));
        } else if let Some((_, name)) = line.split_once("fn ").filter(|_| !is_page) {
            let length = name.find(|char: char| !char.is_alphanumeric() && char != '_');
            if length.is_some_and(|length| length > LONGEST_NAME) {
                places.push((number, "a name of 60 or more characters".to_owned()));
            }
        }
    }
    places
}

/// Returns a line's words in lower case with a space around each, without what is in backquotes.
fn prose(line: &str) -> String {
    let outside = line.split('`').step_by(2).collect::<Vec<_>>().join(" x ");
    let words = outside.split(|char: char| !char.is_alphanumeric() && char != '_');
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    format!(" {} ", words.join(" ").to_lowercase())
}

#[test]
fn prose_and_comments_are_read_and_code_is_not() {
    let long = format!("fn {}() {{}}\nfn {}() {{}}", "a".repeat(60), "a".repeat(59));
    for (text, is_page, expected) in [
        (
            "Whoever\nit `obey`s\n```\nanew\n```\nAnew.",
            true,
            &[1, 6][..],
        ),
        (
            "\x2f// What it is.\n\nx\n// Of it, anew.",
            false,
            &[1, 4, 4],
        ),
        ("\x2f// The one.\n/// What it is.\nobey(1);", false, &[]),
        (&long, false, &[1]),
    ] {
        let lines: Vec<usize> = places(text, is_page).iter().map(|place| place.0).collect();
        assert_eq!(lines, expected, "{text}");
    }
}
