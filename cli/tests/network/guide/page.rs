//! The commands of a page of the guide, as its reader finds them.
//!
//! A fenced block whose first line names a language and machines is for those machines:
//!
//! - `sh MACHINE...` has commands to type. `background` after the machines: they run until they end
//!   or the reader ends them. `end`: the reader ends those first. `install` and `service`: commands
//!   of a whole machine, with its package manager or its services.
//! - `FORMAT MACHINE FILE` has a file to write.
//! - `text MACHINE` has lines that the commands before it print, in which `*` stands for anything.
//!
//! Other blocks are not typed.

use std::fmt;

/// A block of a page that a reader types, writes or compares.
pub(super) struct Block {
    /// Line of the page, from 1.
    pub(super) line: usize,
    pub(super) machines: Vec<String>,
    pub(super) kind: Kind,
    pub(super) text: String,
}

/// The use of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Commands(How),
    File(String),
    Output,
}

/// The way in which commands are typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Until they end.
    Here,
    /// In a terminal of their own.
    Background,
    /// After those in terminals of their own have been ended.
    End,
    /// On a whole machine only.
    WholeMachine,
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

/// Returns the blocks of a page in their order.
///
/// # Panics
///
/// Panics with the line of a block that is not closed or whose first line is not understood.
pub(super) fn blocks(page: &str, machines: &[&str]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = (1..).zip(page.lines());
    while let Some((line, first)) = lines.next() {
        let Some(info) = first.strip_prefix("```") else {
            continue;
        };
        let mut text = String::new();
        loop {
            match lines.next() {
                Some((_, "```")) => break,
                Some((_, content)) => text += &format!("{content}\n"),
                None => panic!("line {line}: the block has no end"),
            }
        }
        let mut words = info.split_whitespace();
        let (Some(language), Some(machine)) = (words.next(), words.next()) else {
            continue;
        };
        let rest: Vec<&str> = words.collect();
        let kind = match (language, rest.as_slice()) {
            ("sh", []) => Kind::Commands(How::Here),
            ("sh", ["background"]) => Kind::Commands(How::Background),
            ("sh", ["end"]) => Kind::Commands(How::End),
            ("sh", ["install" | "service"]) => Kind::Commands(How::WholeMachine),
            ("text", []) => Kind::Output,
            (_, [file]) => Kind::File((*file).to_owned()),
            _ => panic!("line {line}: {info:?} is not understood"),
        };
        let named = match machine {
            "both" => machines.to_vec(),
            one => vec![one],
        };
        if let Some(unknown) = named.iter().find(|name| !machines.contains(name)) {
            panic!("line {line}: no machine {unknown}");
        }
        blocks.push(Block {
            line,
            machines: named.into_iter().map(str::to_owned).collect(),
            kind,
            text,
        });
    }
    blocks
}
