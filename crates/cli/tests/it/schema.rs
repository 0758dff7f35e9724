//! A check of reports against the JSON Schemas that are shipped: of the keywords that these use,
//! and of no other.

use std::path::Path;

use serde_json::Value;

/// Keywords that say nothing of what is valid.
const SILENT: [&str; 3] = ["$schema", "title", "description"];

/// A schema of `docs/schema`.
pub(crate) fn schema(name: &str) -> Value {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
}

/// Requires that a report is what a schema of `docs/schema` says.
#[track_caller]
pub(crate) fn is_valid(name: &str, report: &Value) {
    assert_eq!(faults(&schema(name), report, "$"), Vec::<String>::new(), "{name}");
}

/// Returns the faults of a value, with their places; none if it is valid.
pub(crate) fn faults(schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |what: &str| faults.push(format!("{place}: {what}"));
    let mut inner = Vec::new();
    for (keyword, rule) in schema.as_object().unwrap() {
        match keyword.as_str() {
            "type" if !has_a_type(value, rule) => fault(&format!("not {rule}")),
            "enum" if !rule.as_array().unwrap().contains(value) => fault(&format!("not of {rule}")),
            "minimum" if value.is_number() && value.as_f64() < rule.as_f64() => {
                fault(&format!("below {rule}"));
            }
            // Constrains objects alone; `type` may let other values pass.
            "required" if !value.is_object() => {}
            "required" => {
                let names = rule.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
                names.filter(|name| value.get(name).is_none()).for_each(|name| {
                    fault(&format!("no {name}"));
                });
            }
            "properties" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    let place = format!("{place}.{name}");
                    match rule.get(name) {
                        Some(rule) => inner.push((rule, value, place)),
                        None => fault(&format!("{name} is unknown")),
                    }
                }
            }
            "items" => {
                let items = value.as_array().into_iter().flatten().enumerate();
                inner.extend(items.map(|(at, value)| (rule, value, format!("{place}[{at}]"))));
            }
            // `properties` refuses others.
            "additionalProperties" => assert_eq!(rule, false),
            "type" | "enum" | "minimum" => {}
            other => assert!(SILENT.contains(&other), "unknown keyword {other}"),
        }
    }

    for (rule, value, place) in inner {
        faults.extend(self::faults(rule, value, &place));
    }

    faults
}

/// `rule` is a type, or several.
fn has_a_type(value: &Value, rule: &Value) -> bool {
    match rule {
        Value::Array(names) => names.iter().any(|name| has_type(value, name.as_str().unwrap())),
        name => has_type(value, name.as_str().unwrap()),
    }
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_u64(),
        "number" => value.is_number(),
        _ => panic!("unknown type {name}"),
    }
}

#[test]
fn what_a_schema_forbids_is_found() {
    let schema = serde_json::json!({
        "type": "object", "required": ["a"], "additionalProperties": false,
        "properties": {"a": {"type": "integer", "minimum": 1}, "b": {"enum": ["x"]},
            "c": {"type": "array", "items": {"type": "string"}},
            "n": {"type": ["integer", "null"], "minimum": 1}},
    });
    let check = |value: Value| faults(&schema, &value, "$");
    assert_eq!(check(serde_json::json!({"a": 1, "b": "x", "c": ["y"]})), Vec::<String>::new());
    assert_eq!(check(serde_json::json!({"a": 1, "n": null})), Vec::<String>::new());

    for wrong in [
        serde_json::json!({"a": 1, "n": "x"}),
        serde_json::json!({"a": 1, "n": 0}),
        serde_json::json!({"a": null}),
        serde_json::json!([]),
        serde_json::json!({"b": "x"}),
        serde_json::json!({"a": 0}),
        serde_json::json!({"a": 1.5}),
        serde_json::json!({"a": 1, "b": "y"}),
        serde_json::json!({"a": 1, "c": [1]}),
        serde_json::json!({"a": 1, "d": 1}),
    ] {
        assert!(!check(wrong.clone()).is_empty(), "{wrong}");
    }
}
