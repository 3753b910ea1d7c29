//! The order of names in which numbers are compared as numbers.

use std::cmp::Ordering;

/// Compares names: runs of digits by their values, everything else letter by letter. Names that are equal by this are
/// compared as texts.
pub(crate) fn compare(a: &str, b: &str) -> Ordering {
    let mut parts = (Parts(a), Parts(b));
    loop {
        let order = match (parts.0.next(), parts.1.next()) {
            (None, None) => return a.cmp(b),
            (a, b) => a.cmp(&b),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

/// A part of a name. A number precedes a letter.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    /// The digits without leading zeros: fewer are a smaller number.
    Number(usize, &'a str),
    Letter(char),
}

struct Parts<'a>(&'a str);

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Part<'a>> {
        let letter = self.0.chars().next()?;
        let digits = self.0.len()
            - self
                .0
                .trim_start_matches(|c: char| c.is_ascii_digit())
                .len();
        let (part, rest) = self.0.split_at(digits.max(letter.len_utf8()));
        self.0 = rest;
        Some(match digits {
            0 => Part::Letter(letter),
            _ => {
                let number = part.trim_start_matches('0');
                Part::Number(number.len(), number)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_as_numbers() {
        let mut names = [
            "f10.ply",
            "f9.ply",
            "f1.ply",
            "F2.ply",
            "f100.ply",
            "f09_2.ply",
            "f09_10.ply",
            "f.ply",
        ];
        names.sort_by(|a, b| compare(a, b));
        let expected = [
            "F2.ply",
            "f1.ply",
            "f9.ply",
            "f09_2.ply",
            "f09_10.ply",
            "f10.ply",
            "f100.ply",
            "f.ply",
        ];
        assert_eq!(names, expected);
        assert_eq!(compare("a01", "a1"), Ordering::Less);
        assert_eq!(
            compare("99999999999999999999998", "99999999999999999999999"),
            Ordering::Less
        );
    }
}
