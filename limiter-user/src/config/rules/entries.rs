//! Rules on the lists of prefixes that always pass or never do.

use std::collections::HashMap;

use super::Rules;
use crate::{config::Entry, prefix::Prefix};

impl Rules<'_> {
    pub(super) fn entries(&mut self) {
        let allowed = self.by_prefix("allow", &self.config.allow);
        self.by_prefix("deny", &self.config.deny);
        for (index, Entry { prefix, .. }) in self.config.deny.iter().enumerate() {
            let Some((wider, other)) = holder(*prefix, &allowed) else { continue };
            let line = self.line(&format!("allow.{other}.prefix"));
            let message = if wider == *prefix {
                format!("{prefix} is allowed on line {line}, and allow wins")
            } else {
                format!("{prefix} lies inside {wider}, allowed on line {line}, and allow wins")
            };
            let span = self.tree.value(&format!("deny.{index}.prefix"));
            self.error(span, message, "remove one of the two");
        }
    }

    /// The entries by prefix; tells those that stand there twice.
    fn by_prefix(&mut self, list: &str, entries: &[Entry]) -> HashMap<Prefix, usize> {
        let mut seen = HashMap::new();
        for (index, Entry { prefix, .. }) in entries.iter().enumerate() {
            let first = *seen.entry(*prefix).or_insert(index);
            if first == index {
                continue;
            }
            let line = self.line(&format!("{list}.{first}.prefix"));
            let span = self.tree.value(&format!("{list}.{index}.prefix"));
            let message = format!("{prefix} is already in `{list}`, on line {line}");
            self.error(span, message, "remove one of the two");
        }
        seen
    }
}

/// The widest of the entries in which the prefix lies.
fn holder(prefix: Prefix, entries: &HashMap<Prefix, usize>) -> Option<(Prefix, usize)> {
    (0..=prefix.length())
        .map(|length| Prefix::new(prefix.address(), length))
        .find_map(|wider| Some((wider, *entries.get(&wider)?)))
}
