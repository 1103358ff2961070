//! A fast path for simple schemas.
//!
//! Most gates take an object of plain fields. A value is checked against such a schema directly: the engine for all of
//! JSON Schema first compiles the meta-schema, which takes longer than a short cast. A schema with a keyword that is
//! not supported here is not simple. A value that does not match here is checked again by the engine, which also gives
//! the reason.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::limits::EVIDENT_DEPTH_MAX;

/// A valid schema with only keywords that are supported here.
#[derive(Debug, Default)]
pub(super) struct SimpleSchema {
    kinds: Option<Vec<Kind>>,
    /// The allowed texts, from `enum`.
    among: Option<Vec<String>>,
    least: Option<i64>,
    properties: Vec<(String, SimpleSchema)>,
    required: Vec<String>,
    others: Others,
    items: Option<Box<SimpleSchema>>,
}

/// The rule for properties that are not named.
#[derive(Debug, Default)]
enum Others {
    #[default]
    Anything,
    Absent,
    Each(Box<SimpleSchema>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Null,
    Boolean,
    /// A number that is not written as a fraction.
    Integer,
    Number,
    String,
    Array,
    Object,
}

impl Kind {
    fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "null" => Self::Null,
            "boolean" => Self::Boolean,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "string" => Self::String,
            "array" => Self::Array,
            "object" => Self::Object,
            _ => return None,
        })
    }

    fn has(self, value: &Value) -> bool {
        match self {
            Self::Null => value.is_null(),
            Self::Boolean => value.is_boolean(),
            Self::Integer => value.is_i64() || value.is_u64(),
            Self::Number => value.is_number(),
            Self::String => value.is_string(),
            Self::Array => value.is_array(),
            Self::Object => value.is_object(),
        }
    }
}

impl SimpleSchema {
    /// Reads a schema, if it is a simple one.
    pub(super) fn read(schema: &Value) -> Option<Self> {
        Self::read_within(schema, EVIDENT_DEPTH_MAX)
    }

    fn read_within(schema: &Value, depth_left: usize) -> Option<Self> {
        let depth_left = depth_left.checked_sub(1)?;
        let Value::Object(written) = schema else { return (schema == &Value::Bool(true)).then(Self::default) };
        let mut read = Self::default();
        for (keyword, value) in written {
            match keyword.as_str() {
                "type" => read.kinds = Some(kinds(value)?),
                "enum" => read.among = Some(distinct(value)?),
                "minimum" => read.least = Some(value.as_i64()?),
                "properties" => read.properties = properties(value.as_object()?, depth_left)?,
                "required" => read.required = distinct(value)?,
                "additionalProperties" => {
                    read.others = if value == &Value::Bool(false) {
                        Others::Absent
                    } else {
                        Others::Each(Box::new(Self::read_within(value, depth_left)?))
                    };
                }
                "items" => read.items = Some(Box::new(Self::read_within(value, depth_left)?)),
                // The name of a Rust number type; JSON Schema does not define it.
                "format" => says_nothing(value.as_str()?)?,
                "description" | "title" if value.is_string() => {}
                "default" => {}
                _ => return None,
            }
        }
        Some(read)
    }

    /// Returns true if the value certainly matches.
    pub(super) fn admits(&self, value: &Value) -> bool {
        let kind = self.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|kind| kind.has(value)));
        let among = self
            .among
            .as_ref()
            .is_none_or(|texts| value.as_str().is_some_and(|said| texts.iter().any(|text| text == said)));
        kind && among
            && match value {
                Value::Number(number) => self.least.is_none_or(|least| {
                    // A number that does not fit `i64` but fits `u64` is above every bound.
                    number.as_i64().map_or_else(|| number.is_u64(), |number| number >= least)
                }),
                Value::Array(items) => {
                    self.items.as_ref().is_none_or(|each| items.iter().all(|item| each.admits(item)))
                }
                Value::Object(fields) => self.admits_fields(fields),
                Value::Null | Value::Bool(_) | Value::String(_) => true,
            }
    }

    fn admits_fields(&self, fields: &Map<String, Value>) -> bool {
        let named = |name: &str| self.properties.iter().find(|(property, _)| property == name);
        self.required.iter().all(|name| fields.contains_key(name))
            && fields.iter().all(|(name, value)| match (named(name), &self.others) {
                (Some((_, property)), _) => property.admits(value),
                (None, Others::Anything) => true,
                (None, Others::Absent) => false,
                (None, Others::Each(other)) => other.admits(value),
            })
    }
}

fn properties(written: &Map<String, Value>, depth_left: usize) -> Option<Vec<(String, SimpleSchema)>> {
    let property =
        |(name, schema): (&String, &Value)| Some((name.clone(), SimpleSchema::read_within(schema, depth_left)?));
    written.iter().map(property).collect()
}

fn kinds(written: &Value) -> Option<Vec<Kind>> {
    match written {
        Value::String(name) => Some(vec![Kind::from_name(name)?]),
        Value::Array(_) => {
            let named: Vec<_> = distinct(written)?.iter().map(|name| Kind::from_name(name)).collect::<Option<_>>()?;
            (!named.is_empty()).then_some(named)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

/// Returns the texts of a list without duplicates; none for any other value.
fn distinct(written: &Value) -> Option<Vec<String>> {
    let texts: Vec<_> =
        written.as_array()?.iter().map(|text| Some(text.as_str()?.to_owned())).collect::<Option<_>>()?;
    (texts.iter().collect::<BTreeSet<_>>().len() == texts.len()).then_some(texts)
}

fn says_nothing(format: &str) -> Option<()> {
    let kinds = ["uint", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float", "double"];
    kinds.contains(&format).then_some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn engine(schema: &Value) -> Option<jsonschema::Validator> {
        jsonschema::options().offline().build(schema).ok()
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(Value::from),
            (-3_i64..4).prop_map(Value::from),
            Just(json!(u64::MAX)),
            Just(json!(1.5)),
            Just(json!(2.0)),
            "[ab]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::vec(("[abc]", inner), 0..3).prop_map(|fields| fields.into_iter().collect()),
            ]
        })
    }

    /// Generates schemas with valid keywords, and sometimes with invalid ones.
    fn schema() -> impl Strategy<Value = Value> {
        let kind =
            prop::sample::select(vec!["null", "boolean", "integer", "number", "string", "array", "object", "any"]);
        let texts = prop::collection::vec("[ab]{0,2}", 0..3);
        let leaf = prop_oneof![
            Just(json!({})),
            any::<bool>().prop_map(Value::from),
            kind.clone().prop_map(|kind| json!({ "type": kind })),
            prop::collection::vec(kind, 0..3).prop_map(|kinds| json!({ "type": kinds })),
            texts.clone().prop_map(|texts| json!({ "enum": texts })),
            (-2_i64..3).prop_map(|least| json!({"type": "integer", "minimum": least, "format": "int64"})),
            Just(json!({"type": "string", "minLength": 1})),
            Just(json!({"description": 3})),
            Just(json!({"type": "string", "description": "a text", "default": "a"})),
        ];
        leaf.prop_recursive(3, 16, 3, move |inner| {
            let fields = prop::collection::vec(("[abc]", inner.clone()), 0..3);
            let fields = fields.prop_map(|fields| fields.into_iter().collect::<Value>());
            let required = prop::collection::vec("[abc]", 0..3);
            prop_oneof![
                inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
                (fields.clone(), required, inner).prop_map(|(fields, required, others)| {
                    json!({"type": "object", "properties": fields, "required": required, "additionalProperties": others})
                }),
                fields.prop_map(|fields| json!({"properties": fields, "additionalProperties": false})),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
        #[test]
        fn what_is_evident_is_so_for_the_engine(schema in schema(), value in value()) {
            if let Some(evident) = SimpleSchema::read(&schema) {
                let engine = engine(&schema).expect("an evident schema compiles");
                prop_assert!(!evident.admits(&value) || engine.is_valid(&value), "{schema} does not admit {value}");
                // The only case left to the engine: a whole number that is written as a fraction.
                let whole = !value.to_string().contains('.');
                prop_assert!(evident.admits(&value) || !whole || !engine.is_valid(&value), "{schema} admits {value}");
            }
        }
    }

    #[test]
    fn a_keyword_that_is_not_known_is_left_to_the_engine() {
        for schema in [
            json!({"type": "string", "pattern": "^a"}),
            json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}}),
            json!({"type": "string", "format": "email"}),
            json!({"type": "number", "minimum": 0.5}),
            json!({"enum": [1, "a"]}),
            json!({"type": "text"}),
            json!({"required": ["a", "a"]}),
            json!(false),
            json!(3),
        ] {
            assert!(SimpleSchema::read(&schema).is_none(), "{schema}");
        }
        let plain = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]});
        let plain = SimpleSchema::read(&plain).expect("all of it is known");
        assert!(plain.admits(&json!({"a": "x"})) && !plain.admits(&json!({"a": 1})) && !plain.admits(&json!({})));
    }

    #[test]
    fn a_schema_nested_without_end_is_left_to_the_engine() {
        let nested = (0..200).fold(json!({}), |inner, _| json!({"items": inner}));
        assert!(SimpleSchema::read(&nested).is_none());
    }
}
