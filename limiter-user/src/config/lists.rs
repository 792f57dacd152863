//! Policies and entries by their names, to find them again in another file.

use std::collections::HashMap;

use serde_json::Value;

/// The lists of a configuration, with the key that names their tables.
pub(super) const LISTS: [(&str, &str); 3] =
    [("policy", "name"), ("allow", "prefix"), ("deny", "prefix")];

/// A name, and how many tables before have the same.
pub(super) type Name<'a> = (&'a str, usize);

/// The tables of a list by name, in their order.
pub(super) fn named<'a>(list: Option<&'a Value>, key: &str) -> Vec<(Name<'a>, &'a Value)> {
    let mut seen = HashMap::new();
    let tables = list.and_then(Value::as_array).into_iter().flatten();
    tables
        .map(|table| {
            let name = table[key].as_str().unwrap_or_default();
            let count = seen.entry(name).or_insert(0);
            *count += 1;
            ((name, *count - 1), table)
        })
        .collect()
}

/// For each table of the new list, where it was in the old one.
pub(super) fn origins(
    old: &[(Name<'_>, &Value)],
    new: &[(Name<'_>, &Value)],
) -> Vec<Option<usize>> {
    let places: HashMap<_, _> = old.iter().enumerate().map(|(at, (name, _))| (name, at)).collect();
    new.iter().map(|(name, _)| places.get(name).copied()).collect()
}
