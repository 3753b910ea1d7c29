use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::NOTHING;
use hawser_units::Line;
use serde::Serialize;

/// The longest line of an endless sequence, in bytes.
const MAX_LINE: usize = 4096;

/// The output format: text for people, or JSON for programs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Output {
    pub(crate) json: bool,
    /// Whether each output replaces the previous one on the screen.
    pub(crate) replaces: bool,
}

impl Output {
    /// Prints a list: one line per item below a header, or a JSON array.
    pub(crate) fn list<T: Serialize>(
        self,
        items: &[T],
        header: &[&str],
        row: impl Fn(&T) -> Vec<String>,
    ) -> Result<()> {
        if self.json {
            return self.object(items);
        }
        self.text(&table(header, items.iter().map(row)))
    }

    /// Prints one item: one line per field, or a JSON object.
    pub(crate) fn one<T: Serialize>(self, item: &T, fields: &[(&str, String)]) -> Result<()> {
        if self.json {
            return self.object(item);
        }
        let mut table = Table::new();
        table.load_style(NOTHING);
        table.add_rows(
            fields
                .iter()
                .map(|(name, value)| [(*name).to_owned(), Line::new(value).into_string()]),
        );
        self.text(&aligned(&table))
    }

    /// Prints a sentence about something that was done and has no result. Prints nothing as JSON;
    /// programs use the exit code.
    pub(crate) fn done(self, text: &str) -> Result<()> {
        if self.json {
            Ok(())
        } else {
            self.text(&format!("{text}\n"))
        }
    }

    /// Prints a sentence about a change, or the item after the change as JSON.
    pub(crate) fn changed<T: Serialize>(self, item: &T, text: &str) -> Result<()> {
        if self.json {
            self.object(item)
        } else {
            self.text(&format!("{text}\n"))
        }
    }

    /// Prints one item of an endless sequence, as a line of text or a JSON object on one line.
    pub(crate) fn next<T: Serialize>(self, item: &T, text: &str) -> Result<()> {
        if self.json {
            let line = hawser_service::printable_json(&serde_json::to_string(item)?);
            self.text(&format!("{line}\n"))
        } else {
            self.text(&format!("{}\n", Line::within(text, MAX_LINE)))
        }
    }

    /// Prints text. Exits successfully if the reader has closed the pipe.
    pub(crate) fn text(self, text: &str) -> Result<()> {
        let print = match self.replaces {
            true => hawser_service::print_over,
            false => hawser_service::print,
        };
        leave_unless(print(text)?);
        Ok(())
    }

    fn object<T: Serialize + ?Sized>(self, item: &T) -> Result<()> {
        leave_unless(hawser_service::print_json(item)?);
        Ok(())
    }
}

/// Exits successfully if the reader has closed the pipe.
fn leave_unless(is_read: bool) {
    if !is_read {
        std::process::exit(0);
    }
}

/// Returns whether an item passes a filter. Without a filter, everything passes.
pub(crate) fn is_wanted<T: PartialEq + ?Sized>(wanted: Option<&T>, found: &T) -> bool {
    wanted.is_none_or(|wanted| wanted == found)
}

/// Renders rows below a header.
pub(crate) fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(NOTHING)
        .set_header(header.iter().map(|title| title.to_uppercase()));
    // An item has one line, whatever a node has put into it.
    let line = |cell: String| Line::new(&cell).into_string();
    table.add_rows(rows.map(|row| row.into_iter().map(line)));
    aligned(&table)
}

/// Renders columns aligned with spaces, on a terminal and elsewhere.
fn aligned(table: &Table) -> String {
    table
        .lines()
        .map(|line| format!("{}\n", line.trim()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_can_neither_add_lines_nor_control_the_terminal() {
        let row = |text: &str| vec![text.to_owned(), "b".to_owned()];
        let rows = [row("\x1b[2K\rall is fine\nforged")].into_iter();
        let text = table(&["one", "two"], rows);
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(!text.contains(['\x1b', '\r']), "{text}");
    }

    #[test]
    fn columns_are_aligned_without_borders() {
        let mut table = Table::new();
        table.load_style(NOTHING).set_header(["NAME", "ALIVE"]);
        table.add_rows([["edge-1", "yes"], ["e", "no"]]);
        assert_eq!(aligned(&table), "NAME    ALIVE\nedge-1  yes\ne       no\n");
    }
}
