//! Changes to a file that leave the rest of it as its writer laid it out.

use serde_json::{Map, Value};
use toml_edit::{Array, ArrayOfTables, DocumentMut, Item, Table, TableLike};

use super::{
    Config, finish,
    lists::{LISTS, named, origins},
    read,
    report::{Finding, Lines, Report},
    writing::{in_table, in_toml, meaning},
};

/// The file that the report names.
const FILE: &str = "limiterd.toml";

/// The original file, changed so that it parses to `config`. Comments, order
/// and layout of what does not change stay, and so do values that are written
/// in another way but mean the same.
///
/// # Errors
/// The original cannot be parsed.
pub fn edit(original: &str, config: &Config) -> Result<String, Report> {
    let old = parsed(original)?;
    if old == *config {
        return Ok(original.to_owned());
    }
    let has_returns = original.contains("\r\n");
    let text = if has_returns { original.replace("\r\n", "\n") } else { original.to_owned() };
    let mut document: DocumentMut = text.parse().map_err(|_| refusal(original))?;
    let (old, new) = (meaning(&old), meaning(config));
    for section in ["daemon", "sources", "attack"] {
        let keys = |all: &Map<String, Value>| {
            all.get(section).and_then(Value::as_object).cloned().unwrap_or_default()
        };
        let (before, after) = (keys(&old), keys(&new));
        if before != after {
            let table = document.entry(section).or_insert_with(toml_edit::table);
            merge(table.as_table_like_mut().ok_or_else(|| refusal(original))?, &before, &after);
        }
    }
    for (list, key) in LISTS {
        if old.get(list) != new.get(list) {
            merge_list(&mut document, list, key, old.get(list), new.get(list));
        }
    }
    let text = document.to_string();
    let text = if has_returns { text.replace('\n', "\r\n") } else { text };
    if parsed(&text)? == *config { Ok(text) } else { Err(refusal(original)) }
}

fn parsed(text: &str) -> Result<Config, Report> {
    let read = read(text);
    finish(FILE, &Lines::new(text), read.config, read.findings).map(|(config, _)| config)
}

fn refusal(text: &str) -> Report {
    let finding = Finding::error(0..0, "the file is laid out in a way that cannot be changed")
        .hint("export the configuration and write the file anew");
    Report::new(FILE, &Lines::new(text), vec![finding])
}

/// Changes the keys of a table that differ.
fn merge(table: &mut dyn TableLike, old: &Map<String, Value>, new: &Map<String, Value>) {
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        table.remove(key);
    }
    for (key, value) in new.iter().filter(|(key, value)| old.get(*key) != Some(value)) {
        let Some(present) = table.get_mut(key) else {
            table.insert(key, Item::Value(in_toml(value)));
            continue;
        };
        match (present, value) {
            // A dotted key without any below it would be gone.
            (present, Value::Object(new)) if present.is_table_like() && !new.is_empty() => {
                let empty = Map::new();
                let old = old.get(key).and_then(Value::as_object).unwrap_or(&empty);
                if let Some(table) = present.as_table_like_mut() {
                    merge(table, old, new);
                }
            }
            (Item::Value(toml_edit::Value::Array(items)), Value::Array(new)) => {
                let old = old.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
                merge_items(items, old, new);
            }
            (Item::Value(present), value) => {
                let decor = present.decor().clone();
                *present = in_toml(value);
                *present.decor_mut() = decor;
            }
            (present, value) => *present = Item::Value(in_toml(value)),
        }
    }
}

/// Makes the items those of the new list; one that was there keeps its text.
fn merge_items(items: &mut Array, old: &[Value], new: &[Value]) {
    let mut present: Vec<_> = items.iter().cloned().map(Some).collect();
    let first = items.get(0).and_then(|item| item.decor().prefix()?.as_str());
    // A list with an item on each line goes on so.
    let margin = first.and_then(|space| Some(space[space.rfind('\n')?..].to_owned()));
    items.clear();
    for (at, value) in new.iter().enumerate() {
        let mut same = present.iter_mut().zip(old);
        let kept = same.find(|(item, other)| item.is_some() && *other == value);
        let mut item = match kept.and_then(|(item, _)| item.take()) {
            Some(item) => item,
            None => in_toml(value).decorated(margin.as_deref().unwrap_or(" "), ""),
        };
        let space = item.decor().prefix().and_then(|space| space.as_str()).unwrap_or_default();
        if at == 0 && margin.is_none() && space.trim().is_empty() {
            item.decor_mut().set_prefix("");
        }
        items.push_formatted(item);
    }
}

/// Makes the tables those of the new list; one that was there keeps its text.
fn merge_list(
    document: &mut DocumentMut,
    list: &str,
    key: &str,
    old: Option<&Value>,
    new: Option<&Value>,
) {
    let (old, new) = (named(old, key), named(new, key));
    let origins = origins(&old, &new);
    let empty = Map::new();
    let keys = |table: &Value| table.as_object().unwrap_or(&empty).clone();
    let updated = |at: usize, table: &mut dyn TableLike, value: &Value| {
        merge(table, &keys(old[at].1), &keys(value));
    };
    match document.get_mut(list) {
        _ if new.is_empty() => {
            document.remove(list);
        }
        Some(Item::Value(toml_edit::Value::Array(items))) => {
            let present: Vec<_> = items.iter().cloned().collect();
            items.clear();
            for ((_, value), origin) in new.iter().zip(origins) {
                let Some(at) = origin else {
                    items.push(in_toml(value));
                    continue;
                };
                let mut item = present[at].clone();
                if let Some(table) = item.as_inline_table_mut() {
                    updated(at, table, value);
                }
                items.push_formatted(item);
            }
        }
        Some(Item::ArrayOfTables(tables)) => {
            let places: Vec<_> = tables.iter().map(Table::position).collect();
            let kept = origins.iter().flatten();
            let in_order = kept.clone().is_sorted() && places.is_sorted();
            let heading = tables.get_mut(0).and_then(take_heading);
            let rows = new.iter().zip(&origins).enumerate().map(|(index, ((_, value), origin))| {
                let mut table = match origin {
                    Some(at) => {
                        let mut table = tables.get(*at).cloned().unwrap_or_default();
                        updated(*at, &mut table, value);
                        table
                    }
                    None => in_table(value),
                };
                // A table without a place follows the one before it.
                if !in_order {
                    forget_place(&mut table);
                }
                if index == 0 {
                    table.set_position(places.first().copied().flatten());
                }
                table
            });
            let mut rows: ArrayOfTables = rows.collect();
            if let (Some(heading), Some(first)) = (heading, rows.get_mut(0)) {
                let own = first.decor().prefix().and_then(|space| space.as_str());
                let own = own.unwrap_or_default().trim_start_matches('\n').to_owned();
                first.decor_mut().set_prefix(heading + &own);
            }
            *tables = rows;
        }
        _ => {
            let tables: ArrayOfTables = new.iter().map(|(_, value)| in_table(value)).collect();
            document.insert(list, Item::ArrayOfTables(tables));
        }
    }
}

/// Takes the comments that an empty line parts from the table: they are about
/// the whole list, or the file.
fn take_heading(first: &mut Table) -> Option<String> {
    let space = first.decor().prefix()?.as_str()?.to_owned();
    let (heading, own) = space.split_at(space.rfind("\n\n")? + 2);
    if !heading.contains('#') {
        return None;
    }
    first.decor_mut().set_prefix(own);
    Some(heading.to_owned())
}

fn forget_place(table: &mut Table) {
    table.set_position(None);
    for (_, item) in table.iter_mut() {
        if let Item::Table(inner) = item {
            forget_place(inner);
        }
    }
}
