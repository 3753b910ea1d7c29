//! The commands that messages advise can be typed.

use clap::{Args, Command};
use std::fs;
use std::path::Path;

/// How the commands begin in messages.
const START: &str = concat!("`", "hawser ");

/// Calls `examine` with the code of every file below a folder that is not one of tests.
fn sources(folder: &Path, examine: &mut impl FnMut(&str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        match path.is_dir() {
            true if ["target", "tests", "benches", ".git"].contains(&name) => {}
            true => sources(&path, examine),
            false if name.ends_with(".rs") => examine(&code(&fs::read_to_string(&path).unwrap())),
            false => {}
        }
    }
}

/// Returns the lines before the tests that are no comments. A text that continues on the next line is on one line.
fn code(source: &str) -> String {
    let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let lines = source.lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with("//")).collect();
    lines.join("\n").replace("\\\n", "")
}

/// Returns the words of a command, with values in place of its placeholders: `{node}`, `NAME`, `URL`.
fn typed(command: &str) -> Vec<String> {
    let word = |word: &str| match word {
        "URL" => "https://controller:14750".to_owned(),
        _ if word.contains('{') => "a".to_owned(),
        _ => word.to_lowercase(),
    };
    let words = command.split_whitespace();
    words.filter(|word| *word != "...").map(word).collect()
}

/// Returns the command line of `hawser` with that of the lab.
fn hawser() -> Command {
    let lab = hawser_lab::command::Args::augment_args(Command::new("lab"));
    crate::with(crate::hawser(), lab)
}

/// Returns whether these words are the name of a command, without arguments.
fn is_name(hawser: &Command, words: &[String]) -> bool {
    let mut at = Some(hawser);
    for word in &words[1..] {
        at = at.and_then(|command: &Command| command.find_subcommand(word));
    }
    at.is_some()
}

#[test]
fn commands_in_messages_can_be_typed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let hawser = hawser();
    let (mut right, mut wrong) = (0, Vec::new());
    sources(&root, &mut |code| {
        for (at, _) in code.match_indices(START) {
            let command = code[at + 1..].split('`').next().unwrap();
            let words = typed(command);
            // A message may be about any of the programs.
            let is_any = command.starts_with("hawser {");
            match hawser.clone().try_get_matches_from(&words) {
                Err(error) if !is_any && !is_name(&hawser, &words) => {
                    wrong.push(format!("{command}: {error}"))
                }
                _ => right += 1,
            }
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(right > 30, "{right}");
}
