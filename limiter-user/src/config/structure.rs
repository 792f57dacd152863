//! Whether a text has the keys and values that the schema knows.
//!
//! What has not is told and taken out, so that the rest can be judged further;
//! a policy or entry goes as a whole, lest the rest of it be judged.

use serde_json::Value;
use toml::{
    Spanned,
    de::{DeArray, DeTable, DeValue},
};

use super::{
    nearest::mend,
    report::Finding,
    scalar::{FORMATS, Format},
    schema::{keys, property},
    tree::Span,
};

/// Takes out of the table what the schema does not know, and tells it.
pub(super) fn check(table: &mut Spanned<DeTable<'_>>, schema: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    let span = table.span();
    check_table(table.get_mut(), &span, schema, &mut findings);
    findings
}

/// Whether nothing was wrong.
fn check_table(
    table: &mut DeTable<'_>,
    span: &Span,
    schema: &Value,
    findings: &mut Vec<Finding>,
) -> bool {
    let before = findings.len();
    for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !table.contains_key(key) {
            let example = &property(schema, key).unwrap_or(&Value::Null)["examples"][0];
            let missing = Finding::error(span.clone(), format!("the key `{key}` is missing"));
            findings.push(missing.hint(format!("add {key} = {example}")));
        }
    }
    for (key, mut value) in std::mem::take(table) {
        let Some(schema) = property(schema, key.get_ref()) else {
            let name = key.get_ref().escape_debug();
            let unknown = Finding::error(key.span(), format!("unknown key `{name}`"));
            findings.push(unknown.hint(mend(
                key.get_ref(),
                keys(schema),
                '`',
                "the keys here are",
            )));
            continue;
        };
        let is_sound = check_value(key.get_ref(), &mut value, schema, findings);
        // Tables have already lost what is unsound in them.
        if is_sound || is_tables(value.get_ref(), schema) {
            table.insert(key, value);
        }
    }
    findings.len() == before
}

/// Whether the schema wants tables, and these are.
fn is_tables(value: &DeValue<'_>, schema: &Value) -> bool {
    match value {
        DeValue::Table(_) => schema["type"] == "object",
        DeValue::Array(items) => {
            schema["items"]["type"] == "object"
                && items.iter().all(|item| item.get_ref().is_table())
        }
        _ => false,
    }
}

/// Whether nothing was wrong.
fn check_value(
    key: &str,
    value: &mut Spanned<DeValue<'_>>,
    schema: &Value,
    findings: &mut Vec<Finding>,
) -> bool {
    let span = value.span();
    if let Some([one, list]) = schema["anyOf"].as_array().map(Vec::as_slice) {
        let schema = if value.get_ref().is_array() { list } else { one };
        return check_value(key, value, schema, findings);
    }
    let is_sound = match (schema["type"].as_str(), value.get_mut()) {
        (Some("object"), DeValue::Table(table)) => {
            return check_table(table, &span, schema, findings);
        }
        (Some("array"), DeValue::Array(items)) => {
            let before = items.len();
            let all = std::mem::replace(items, DeArray::new()).into_iter();
            let sound = all.filter_map(|mut item| {
                check_value(key, &mut item, &schema["items"], findings).then_some(item)
            });
            *items = sound.collect();
            return items.len() == before;
        }
        (Some("boolean"), DeValue::Boolean(_)) => true,
        (Some("integer"), DeValue::Integer(number)) => {
            let number = i64::from_str_radix(number.as_str(), number.radix()).ok();
            number.is_some_and(|number| {
                let bound = |bound: &str| schema[bound].as_i64();
                bound("minimum").is_none_or(|least| number >= least)
                    && bound("maximum").is_none_or(|most| number <= most)
                    && u32::try_from(number).is_ok()
            })
        }
        (_, value) => {
            let format = FORMATS.iter().find(|format| schema["format"] == format.name);
            match format {
                Some(format) => return check_scalar(format, value, span, findings),
                None => schema["type"] == "string" && value.is_str(),
            }
        }
    };
    if !is_sound {
        findings.push(Finding::error(span, what(key, schema)));
    }
    is_sound
}

fn check_scalar(
    format: &Format,
    value: &DeValue<'_>,
    span: Span,
    findings: &mut Vec<Finding>,
) -> bool {
    let text = match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) if format.number => {
            let decimal = i64::from_str_radix(number.as_str(), number.radix());
            decimal.map_or_else(|_| number.to_string(), |number| number.to_string())
        }
        _ => {
            findings.push(Finding::error(span, format.what));
            return false;
        }
    };
    let Err(error) = (format.check)(&text) else { return true };
    findings.push(Finding { hint: error.hint, ..Finding::error(span, error.message) });
    false
}

/// What the key takes, in words.
fn what(key: &str, schema: &Value) -> String {
    let holds_tables = schema["items"]["type"] == "object";
    match schema["type"].as_str() {
        Some("array") if holds_tables => {
            format!("`{key}` is a list of tables: write [[{key}]] above the keys of each")
        }
        Some("object") => format!("`{key}` is a table, such as {key} = {{ ... }} or [{key}]"),
        Some("boolean") => format!("`{key}` is true or false"),
        Some("integer") => {
            let bound = |bound: &str, other: u32| schema[bound].as_u64().unwrap_or(other.into());
            let (least, most) = (bound("minimum", 0), bound("maximum", u32::MAX));
            format!("`{key}` is a whole number from {least} to {most}")
        }
        _ => format!("`{key}` is a text in quotes"),
    }
}
