//! From a configuration to TOML in its normal form.

use serde_json::{Map, Value};
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table};

use super::{
    Config,
    schema::{property, schema},
};

impl Config {
    /// The configuration as TOML: what is as by default is left out.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut document = DocumentMut::new();
        for (section, value) in &meaning(self) {
            let item = match value {
                Value::Array(items) => {
                    let tables: ArrayOfTables = items.iter().map(in_table).collect();
                    Item::ArrayOfTables(tables)
                }
                value => Item::Table(in_table(value)),
            };
            document.insert(section, item);
        }
        document.to_string()
    }
}

/// All keys and values, those that are absent excepted.
pub(super) fn everything(config: &Config) -> Map<String, Value> {
    // Every value is a text, a number or a list, and every key is a text.
    let mut value = serde_json::to_value(config).unwrap_or_default();
    drop_nulls(&mut value);
    match value {
        Value::Object(keys) => keys,
        _ => Map::new(),
    }
}

/// All keys whose values are not as by default.
pub(super) fn meaning(config: &Config) -> Map<String, Value> {
    let mut keys = everything(config);
    drop_defaults(&mut keys, schema());
    keys
}

/// TOML has no null: a key that has no value is absent.
pub(super) fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(keys) => {
            keys.retain(|_, value| !value.is_null());
            keys.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn drop_defaults(keys: &mut Map<String, Value>, schema: &Value) {
    keys.retain(|key, value| {
        let schema = property(schema, key).unwrap_or(&Value::Null);
        if schema.get("default") == Some(value) {
            return false;
        }
        match value {
            Value::Object(keys) => drop_defaults(keys, schema),
            Value::Array(items) => {
                let tables = items.iter_mut().filter_map(Value::as_object_mut);
                tables.for_each(|keys| drop_defaults(keys, &schema["items"]));
            }
            _ => {}
        }
        true
    });
}

/// A value as it stands in TOML.
pub(super) fn in_toml(value: &Value) -> toml_edit::Value {
    match value {
        Value::Bool(yes) => (*yes).into(),
        Value::Number(number) => number.as_i64().unwrap_or(i64::MAX).into(),
        Value::Array(items) => items.iter().map(in_toml).collect::<Array>().into(),
        Value::Object(keys) => {
            let keys = keys.iter().map(|(key, value)| (key.as_str(), in_toml(value)));
            keys.collect::<InlineTable>().into()
        }
        Value::Null => String::new().into(),
        Value::String(text) => text.as_str().into(),
    }
}

/// A table with its keys below it.
pub(super) fn in_table(value: &Value) -> Table {
    let keys = value.as_object().into_iter().flatten();
    keys.map(|(key, value)| (key.as_str(), Item::Value(in_toml(value)))).collect()
}
