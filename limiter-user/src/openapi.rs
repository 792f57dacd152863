//! The calls of the control sockets as an OpenAPI document.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

use crate::api;

/// A call.
struct Call {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Whether the socket for reading answers it too.
    reads: bool,
    body: Option<Value>,
    parameters: Value,
    answer: Value,
}

/// The document, version 3.1.
#[must_use]
pub fn document() -> Value {
    let mut schemas = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let failure = schema::<api::Failure>(&mut schemas);
    let mut paths = serde_json::Map::new();
    for call in calls(&mut schemas) {
        let content = |schema: Value| json!({ "application/json": { "schema": schema } });
        let socket = if call.reads { "Both sockets." } else { "The control socket only." };
        let mut operation = json!({
            "summary": call.summary,
            "description": socket,
            "parameters": call.parameters,
            "responses": {
                "200": { "description": "Done.", "content": content(call.answer) },
                "default": { "description": "Not done.", "content": content(failure.clone()) },
            },
        });
        if let Some(body) = call.body {
            operation["requestBody"] = json!({ "required": true, "content": content(body) });
        }
        let path = paths.entry(call.path).or_insert_with(|| json!({}));
        path[call.method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "limiterd",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "HTTP/1.1 on Unix sockets. A call that could lock its user out is \
                            refused if the header limiterd-caller says where he is connected \
                            from: his address, the address and the port of this host, with \
                            spaces between.",
        },
        "paths": paths,
        "components": { "schemas": schemas.take_definitions(true) },
    })
}

fn schema<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

/// Parameters of a query, from the fields of a type.
fn query<T: JsonSchema>() -> Value {
    let schema = schemars::schema_for!(T).to_value();
    let required = |name: &str| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|it| it == name))
    };
    let fields = schema["properties"].as_object().cloned().unwrap_or_default();
    let parameter = |(name, mut field): (String, Value)| {
        let description = field.as_object_mut().and_then(|field| field.remove("description"));
        json!({
            "name": name, "in": "query", "required": required(&name),
            "description": description, "schema": field,
        })
    };
    fields.into_iter().map(parameter).collect()
}

fn policy() -> Value {
    json!([{
        "name": "policy", "in": "path", "required": true,
        "description": "Name of the policy.", "schema": { "type": "string" },
    }])
}

fn calls(schemas: &mut SchemaGenerator) -> Vec<Call> {
    macro_rules! call {
        ($method:literal $path:literal $reads:literal $summary:literal
         $([$body:ty])? => $answer:ty $(; $parameters:expr)?) => {
            Call {
                method: $method,
                path: $path,
                summary: $summary,
                reads: $reads,
                body: None::<Value>$(.or(Some(schema::<$body>(schemas))))?,
                parameters: None::<Value>$(.or(Some($parameters)))?.unwrap_or_else(|| json!([])),
                answer: schema::<$answer>(schemas),
            }
        };
    }
    vec![
        call!("get" "/v1/status" true "How the shield stands." => api::Status),
        call!("get" "/v1/stats" true "What was counted." => api::Stats; query::<api::StatsQuery>()),
        call!("get" "/v1/events" true "Sampled packets, and what else happened."
              => api::Events; query::<api::EventsQuery>()),
        call!("get" "/v1/top" true "Who sends most." => api::Top; query::<api::TopQuery>()),
        call!("get" "/v1/history" true "Packets per second of the last minutes." => api::History),
        call!("get" "/v1/suggest" true "Limits that would fit what was seen."
              => api::Suggestions; query::<api::SuggestQuery>()),
        call!("get" "/v1/limits" true "All limits." => api::Limits),
        call!("get" "/v1/limits/{policy}" true "One limit." => api::Limits; policy()),
        call!("patch" "/v1/limits/{policy}" false "Changes a limit."
              [api::LimitChange] => api::Limits; policy()),
        call!("get" "/v1/config" true "The configuration in force." => api::ConfigExport),
        call!("post" "/v1/config/diff" true "What a configuration would change."
              [api::ConfigRequest] => api::ConfigChanges),
        call!("post" "/v1/config/apply" false "Applies a configuration."
              [api::ConfigRequest] => api::ConfigChanges),
        call!("post" "/v1/config/confirm" false "Keeps what waits to be confirmed."
              => api::ConfigState),
        call!("post" "/v1/config/rollback" false "Takes back what waits to be confirmed."
              => api::ConfigState),
        call!("post" "/v1/config/save" false "Writes the configuration file." => api::ConfigSaved),
        call!("get" "/v1/bans" true "All bans; with Accept: application/x-ndjson, one on a line."
              => api::List),
        call!("post" "/v1/bans" false "Bans prefixes." [api::ListAdd] => api::ListChanged),
        call!("delete" "/v1/bans" false "Ends bans." [api::ListRemove] => api::ListChanged),
        call!("get" "/v1/allows" true "All allowed prefixes, as bans." => api::List),
        call!("post" "/v1/allows" false "Allows prefixes." [api::ListAdd] => api::ListChanged),
        call!("delete" "/v1/allows" false "Allows prefixes no more."
              [api::ListRemove] => api::ListChanged),
        call!("get" "/v1/explain" true "What would happen to a packet, and why."
              => api::Explanation; query::<api::Question>()),
        call!("get" "/v1/interfaces" true "The interfaces." => api::Interfaces),
        call!("post" "/v1/interfaces" false "Protects one more interface."
              [api::InterfaceRequest] => api::Interfaces),
        call!("delete" "/v1/interfaces" false "Takes the protection off one interface."
              [api::InterfaceRequest] => api::Interfaces),
        call!("post" "/v1/detach" false "Takes the protection off; the daemon ends."
              => api::Detached),
        call!("get" "/v1/openapi.json" true "This document." => Value),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn visit(value: &Value, at: &str, see: &mut impl FnMut(&str, &Value)) {
        see(at, value);
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    visit(value, &format!("{at}/{name}"), see);
                }
            }
            Value::Array(items) => items.iter().for_each(|value| visit(value, at, see)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_field_is_described() {
        let document = document();
        let mut references = 0;
        visit(&document, "", &mut |at, value| {
            if let Some(reference) = value["$ref"].as_str() {
                references += 1;
                let target = reference.strip_prefix('#').and_then(|path| document.pointer(path));
                assert!(target.is_some_and(Value::is_object), "{at}: {reference}");
            }
            if at.starts_with("/components/schemas") && at.ends_with("/properties") {
                for (name, field) in value.as_object().into_iter().flatten() {
                    assert!(field["description"].is_string(), "{at}/{name}");
                }
            }
        });
        assert!(references > 30, "{references}");
        let explain = &document["paths"]["/v1/explain"]["get"]["parameters"];
        let source =
            explain.as_array().expect("parameters").iter().find(|it| it["name"] == "source");
        assert_eq!(source.expect("a parameter")["required"], true);
    }
}
