//! Numbers that policies keep by their names, wherever they stand in the file:
//! so their buckets and counters survive what changes around them.

use limiter_common::level::{MAX_POLICIES, Number};
use serde::{Deserialize, Serialize};

/// Which name has which number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    rows: Vec<Row>,
    /// Counts assignments.
    clock: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    name: String,
    /// How many names had the row before.
    uses: u32,
    /// Last assignment in which the name occurred.
    seen: u64,
}

impl Numbers {
    /// Numbers for these names, in their order: those that they had, or new
    /// ones. A row that another name had is given away only if all are taken,
    /// the longest unused first. Says which rows were.
    pub fn assign<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str> + Clone,
    ) -> (Vec<Number>, Vec<u32>) {
        self.clock += 1;
        for row in &mut self.rows {
            if names.clone().any(|name| name == row.name) {
                row.seen = self.clock;
            }
        }
        let mut reused = Vec::new();
        let numbers = names.map(|name| {
            let row = self.row(name).unwrap_or_else(|| self.place(name, &mut reused));
            Number::new(row, self.rows[row as usize].uses)
        });
        let numbers = numbers.collect();
        (numbers, reused)
    }

    /// Whether these are numbers that could have been assigned.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.rows.len() <= MAX_POLICIES as usize
    }

    /// The row of a name.
    #[must_use]
    pub fn row(&self, name: &str) -> Option<u32> {
        (0u32..).zip(&self.rows).find(|(_, row)| row.name == name).map(|(at, _)| at)
    }

    /// Rows that any name has or had.
    pub fn rows(&self) -> impl Iterator<Item = u32> + use<> {
        0..u32::try_from(self.rows.len()).unwrap_or(MAX_POLICIES)
    }

    fn place(&mut self, name: &str, reused: &mut Vec<u32>) -> u32 {
        let row = Row { name: name.into(), uses: 0, seen: self.clock };
        let at = self.rows.len();
        if at < MAX_POLICIES as usize {
            self.rows.push(row);
            return u32::try_from(at).unwrap_or_default();
        }
        let oldest = self.rows.iter().enumerate().min_by_key(|(_, row)| row.seen);
        let at = oldest.map_or(0, |(at, _)| at);
        self.rows[at] = Row { uses: self.rows[at].uses.wrapping_add(1), ..row };
        let at = u32::try_from(at).unwrap_or_default();
        reused.push(at);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assign(numbers: &mut Numbers, names: &[&str]) -> (Vec<Number>, Vec<u32>) {
        numbers.assign(names.iter().copied())
    }

    #[test]
    fn a_name_keeps_its_number() {
        let mut numbers = Numbers::default();
        let (first, _) = assign(&mut numbers, &["a", "b", "c"]);
        let (second, reused) = assign(&mut numbers, &["c", "d", "a"]);
        assert_eq!((second[0], second[2]), (first[2], first[0]));
        assert!(!first.contains(&second[1]) && reused.is_empty());
        assert_eq!(assign(&mut numbers, &["b"]).0, [first[1]]);
        assert_eq!(numbers.row("d"), Some(3));
        assert_eq!(numbers.row("e"), None);
    }

    #[test]
    fn rows_of_names_long_gone_are_used_again_under_another_number() {
        let mut numbers = Numbers::default();
        let names: Vec<_> = (0..64).map(|n| format!("p{n}")).collect();
        let all: Vec<_> = names.iter().map(String::as_str).collect();
        let (before, _) = assign(&mut numbers, &all);
        assign(&mut numbers, &all[1..]);
        let (after, reused) = assign(&mut numbers, &["new"]);
        assert_eq!(reused, [0]);
        assert_eq!(after[0].row(), before[0].row());
        assert_ne!(after[0], before[0]);
        assert_eq!(numbers.row("p0"), None);
        let renamed: Vec<_> = (0..64).map(|n| format!("q{n}")).collect();
        let (numbered, _) = numbers.assign(renamed.iter().map(String::as_str));
        let rows: std::collections::BTreeSet<_> = numbered.iter().map(|it| it.row()).collect();
        assert_eq!(rows.len(), 64);
    }
}
