//! The JSON schema: what keys there are, what they take, what they mean.

use std::sync::LazyLock;

use schemars::{Schema, generate::SchemaSettings, transform::RecursiveTransform};
use serde_json::Value;

use super::{model::Config, writing::drop_nulls};

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .with_transform(RecursiveTransform(without_null))
        .with_transform(RecursiveTransform(unwrapped));
    settings.into_generator().into_root_schema_for::<Config>().to_value()
});

/// The schema, made once.
pub(super) fn schema() -> &'static Value {
    &SCHEMA
}

/// The JSON schema of the configuration (draft 2020-12).
#[must_use]
pub fn json_schema() -> Value {
    schema().clone()
}

/// TOML has no null: a key that has no value is absent.
fn without_null(schema: &mut Schema) {
    let is_null = |value: &Value| value.is_null() || value == "null" || value["type"] == "null";
    for key in ["type", "enum", "anyOf"] {
        let Some(Value::Array(values)) = schema.get_mut(key) else { continue };
        values.retain(|value| !is_null(value));
        if key != "type" {
            continue;
        }
        if let [only] = values.as_slice() {
            let only = only.clone();
            schema.insert(key.into(), only);
        }
    }
    if let Some(default) = schema.get_mut("default") {
        drop_nulls(default);
        if default.is_null() {
            schema.remove("default");
        }
    }
}

/// Of what is left of an alternative to null, the words on the key stay.
fn unwrapped(schema: &mut Schema) {
    let Some(Value::Array(values)) = schema.get_mut("anyOf") else { return };
    if values.len() != 1 {
        return;
    }
    let Some(Value::Object(only)) = values.pop() else { return };
    schema.remove("anyOf");
    for (key, value) in only {
        if schema.get(&key).is_none() {
            schema.insert(key, value);
        }
    }
}

/// The schema of a key of a table.
pub(super) fn property<'a>(schema: &'a Value, key: &str) -> Option<&'a Value> {
    schema["properties"].get(key)
}

/// The keys of a table, in their order.
pub(super) fn keys(schema: &Value) -> impl Iterator<Item = &str> + Clone {
    schema["properties"].as_object().into_iter().flat_map(|keys| keys.keys().map(String::as_str))
}
