//! What changes from one configuration to another.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Config,
    lists::{LISTS, Name, named, origins},
    writing::{everything, in_toml},
};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// What changes, such as `policy dns: rate` or `allow 198.51.100.7`.
    pub path: String,
    /// What it was; absent if it was not there.
    pub from: Option<String>,
    /// What it becomes; absent if it goes.
    pub to: Option<String>,
}

/// Everything that changes from `old` to `new`; nothing if they are equal.
#[must_use]
pub fn diff(old: &Config, new: &Config) -> Vec<Difference> {
    let (old, new) = (everything(old), everything(new));
    let mut differences = Vec::new();
    for section in ["daemon", "sources", "attack"] {
        compare(&mut differences, section, ": ", &old[section], &new[section]);
    }
    for (list, key) in LISTS {
        let (old, new) = (named(old.get(list), key), named(new.get(list), key));
        compare_lists(&mut differences, list, &old, &new);
    }
    differences
}

fn compare(differences: &mut Vec<Difference>, path: &str, point: &str, old: &Value, new: &Value) {
    if old == new {
        return;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        differences.push(Difference { path: path.into(), from: shown(old), to: shown(new) });
        return;
    };
    let value = |keys: &Map<String, Value>, key: &str| keys.get(key).cloned().unwrap_or_default();
    let gone = old.keys().filter(|key| !new.contains_key(*key));
    for key in new.keys().chain(gone) {
        let path = format!("{path}{point}{key}");
        compare(differences, &path, ".", &value(old, key), &value(new, key));
    }
}

fn compare_lists(
    differences: &mut Vec<Difference>,
    list: &str,
    old: &[(Name<'_>, &Value)],
    new: &[(Name<'_>, &Value)],
) {
    let origins = origins(old, new);
    for (at, ((name, _), table)) in old.iter().enumerate() {
        if !origins.contains(&Some(at)) {
            compare(differences, &format!("{list} {name}"), "", table, &Value::Null);
        }
    }
    for (((name, _), table), origin) in new.iter().zip(&origins) {
        let before = origin.map_or(&Value::Null, |at| old[at].1);
        compare(differences, &format!("{list} {name}"), ": ", before, table);
    }
    let kept: Vec<_> = origins.into_iter().flatten().collect();
    if kept.is_sorted() {
        return;
    }
    let names = |places: &[usize]| {
        let names: Vec<_> = places.iter().map(|at| old[*at].0.0).collect();
        Some(names.join(", "))
    };
    let mut before = kept.clone();
    before.sort_unstable();
    let (from, to) = (names(&before), names(&kept));
    differences.push(Difference { path: format!("{list} order"), from, to });
}

/// A value for people; none for one that is absent or an empty list.
fn shown(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::Array(items) if items.is_empty() => None,
        Value::String(text) => Some(text.clone()),
        value => Some(in_toml(value).to_string()),
    }
}
