//! The default file: every key with its meaning, and the built-in policies.

use serde_json::Value;

use super::{
    model::Policy,
    schema::{keys, property, schema},
    writing::in_toml,
};
use crate::policies::Policies;

/// What stands before a table that is only an example, and its keys.
const EXAMPLE: &str = "# ";

/// The default configuration as a file to begin with: every key is explained,
/// the interface is `eth0`, and the built-in policies are in force.
#[must_use]
pub fn default_text() -> String {
    let mut lines = Vec::new();
    explain(&mut lines, "", schema());
    lines.push("# A key behind a '#' shows an example; the others show their defaults.".into());
    for name in keys(schema()) {
        let Some(section) = property(schema(), name) else { continue };
        lines.push(String::new());
        explain(&mut lines, "", section);
        if section["type"] == "array" {
            lines.push(format!("{EXAMPLE}[[{name}]]"));
            explain_keys(&mut lines, EXAMPLE, &section["items"]);
        } else {
            lines.push(format!("[{name}]"));
            explain_keys(&mut lines, "", section);
        }
        if name == "policy" {
            lines.extend(Policies::builtin(false).all().iter().flat_map(policy));
        }
    }
    lines.join("\n") + "\n"
}

/// The keys of a table, each below its meaning.
fn explain_keys(lines: &mut Vec<String>, margin: &str, table: &Value) {
    for key in keys(table) {
        let Some(property) = property(table, key) else { continue };
        explain(lines, margin, property);
        for inner in keys(property) {
            let inner_property = self::property(property, inner).unwrap_or(&Value::Null);
            let meaning = words(inner_property).join(" ");
            lines.extend(wrapped(&format!("{margin}#   "), &format!("{inner}: {meaning}")));
        }
        let example = &property["examples"][0];
        let (hidden, value) = match &property["default"] {
            _ if key == "interfaces" || !margin.is_empty() && !example.is_null() => ("", example),
            Value::Null | Value::Array(_) => (EXAMPLE, example),
            default => ("", default),
        };
        lines.push(format!("{margin}{hidden}{key} = {}", in_toml(value)));
    }
}

/// The meaning of a key or table.
fn explain(lines: &mut Vec<String>, margin: &str, schema: &Value) {
    lines.extend(wrapped(&format!("{margin}# "), &words(schema).join(" ")));
}

fn words(schema: &Value) -> Vec<&str> {
    schema["description"].as_str().unwrap_or_default().split_whitespace().collect()
}

/// Lines of at most 80 letters.
fn wrapped(margin: &str, text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + word.len() < 80 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("{margin}{word}")),
        }
    }
    lines
}

fn policy(policy: &Policy) -> Vec<String> {
    let kinds = policy.matches.kind.iter();
    let kinds: Vec<_> = kinds.map(|kind| format!("\"{}\"", kind.name())).collect();
    let mut lines = vec![
        String::new(),
        "[[policy]]".into(),
        format!("name = \"{}\"", policy.name),
        format!("match = {{ kind = [{}] }}", kinds.join(", ")),
    ];
    if let Some((rate, burst)) = policy.source().packets {
        lines.push(format!("rate = \"{rate}\""));
        lines.push(format!("burst = {burst}"));
    }
    lines
}
