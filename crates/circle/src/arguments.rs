//! Maps the arguments of a call in code to the properties that a gate declares: positional and named arguments become
//! one object.
//!
//! Models write a call in the form they have seen most: positionally, with one object, or both. The rules are few
//! enough to be printed in a circle's description, and they depend only on the declared properties and on the values,
//! so the same call maps the same way in every medium and in every replay.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A property of a gate's arguments, in declared order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Property {
    pub name: String,
    /// True if the schema admits an object. If not, a single object can only mean named arguments.
    pub object: bool,
}

impl Property {
    pub fn new(name: impl Into<String>, object: bool) -> Self {
        Self { name: name.into(), object }
    }
}

/// A fault in the arguments of a call, with its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("argument {path:?}: {rule}")]
pub struct Fault {
    /// A JSON Pointer into the list of arguments as they were passed; empty for the list itself.
    pub path: String,
    pub rule: Rule,
}

/// The rule that an argument breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Rule {
    #[error("{given} arguments were passed, {declared} are declared")]
    TooMany { given: usize, declared: usize },
    #[error("a function is not JSON")]
    Function,
    #[error("a symbol is not JSON")]
    Symbol,
    #[error("a promise is not JSON; await it")]
    Promise,
    #[error("a {0} is not JSON; convert it to an array or an object")]
    Collection(&'static str),
    #[error("NaN and the infinities are not JSON")]
    NotFinite,
    #[error("an integer beyond 2^53 is not exact in JSON; pass a string")]
    BigInteger,
    #[error("half of a surrogate pair is not JSON")]
    Surrogate,
    #[error("the value contains itself")]
    Cycle,
    #[error("{0} is not JSON; convert it first")]
    Object(&'static str),
    #[error("a key of an object must be a text")]
    Key,
    #[error("there is no argument of this name")]
    UnknownKeyword,
    #[error("this argument was passed twice")]
    DoubledKeyword,
    #[error("the value is nested deeper than {} levels", crate::limits::ARGUMENT_DEPTH_MAX)]
    TooDeep,
    #[error("the arguments are larger than {} bytes", crate::limits::ARGUMENT_BYTES_MAX)]
    TooLarge,
}

/// Maps a call's arguments to the declared properties; `None` is an absent argument.
///
/// 1. A call without arguments is `{}`.
/// 2. One object is named arguments if the first property cannot be an object, or if it has a key and all keys are
///    declared.
/// 3. Otherwise arguments are positional. With two or more, a last object whose keys are all declared and still free is
///    merged.
pub fn bind_arguments(declared: &[Property], mut passed: Vec<Option<Value>>) -> Result<Map<String, Value>, Fault> {
    while let Some(None) = passed.last() {
        passed.pop();
    }
    let rest = match passed.pop() {
        None => return Ok(Map::new()),
        Some(Some(Value::Object(last))) if names(declared, passed.len(), &last) => last,
        Some(last) => {
            passed.push(last);
            Map::new()
        }
    };
    if passed.len() > declared.len() {
        let rule = Rule::TooMany { given: passed.len(), declared: declared.len() };
        return Err(Fault { path: String::new(), rule });
    }
    let positional = declared.iter().zip(passed).filter_map(|(property, value)| Some((property.name.clone(), value?)));
    let mut mapped: Map<String, Value> = positional.collect();
    mapped.extend(rest);
    Ok(mapped)
}

/// Maps the arguments for a language with keyword arguments: keywords name properties that are declared and still free.
pub fn bind_with_keywords(
    declared: &[Property],
    passed: Vec<Option<Value>>,
    keywords: Vec<(String, Value)>,
) -> Result<Map<String, Value>, Fault> {
    let mut mapped = bind_arguments(declared, passed)?;
    for (name, value) in keywords {
        let fault = |rule| Fault { path: format!("/{}", name.replace('~', "~0").replace('/', "~1")), rule };
        if !declared.iter().any(|property| property.name == name) {
            return Err(fault(Rule::UnknownKeyword));
        }
        if mapped.contains_key(&name) {
            return Err(fault(Rule::DoubledKeyword));
        }
        mapped.insert(name, value);
    }
    Ok(mapped)
}

/// Returns true if the last argument, an object after `before` others, holds named arguments.
fn names(declared: &[Property], before: usize, last: &Map<String, Value>) -> bool {
    let free = declared.get(before..).unwrap_or_default();
    let all_free = last.keys().all(|key| free.iter().any(|property| property.name == *key));
    match (before, declared.first()) {
        (0, Some(first)) => !first.object || (!last.is_empty() && all_free),
        (0, None) | (1.., Some(_) | None) => all_free,
    }
}

#[cfg(test)]
mod tests {
    use super::{Property, Rule, bind_arguments, bind_with_keywords};
    use serde_json::{Value, json};

    fn declared(names: &str) -> Vec<Property> {
        names.split_whitespace().map(|name| Property::new(name.trim_end_matches('*'), name.ends_with('*'))).collect()
    }

    /// A star marks a property that may be an object; `"-"` stands for an absent argument.
    fn map(names: &str, passed: Value) -> Value {
        let Value::Array(passed) = passed else { panic!("a list of arguments") };
        let passed = passed.into_iter().map(|value| (value != json!("-")).then_some(value)).collect();
        match bind_arguments(&declared(names), passed) {
            Ok(mapped) => Value::Object(mapped),
            Err(fault) => json!(format!("{fault}")),
        }
    }

    #[test]
    fn every_example_of_the_page_maps_as_it_says() {
        const AGENT: &str = "intent context* gates max_turns";
        for (names, passed, wanted) in [
            ("answer*", json!([5]), json!({"answer": 5})),
            ("answer*", json!([{"answer": 5}]), json!({"answer": 5})),
            ("answer*", json!([{"total": 5}]), json!({"answer": {"total": 5}})),
            ("path", json!(["a.txt"]), json!({"path": "a.txt"})),
            ("path", json!([{"path": "a.txt"}]), json!({"path": "a.txt"})),
            (AGENT, json!(["sum"]), json!({"intent": "sum"})),
            (AGENT, json!([{"intent": "sum", "gates": ["read"]}]), json!({"intent": "sum", "gates": ["read"]})),
            (AGENT, json!(["sum", {"max_turns": 3}]), json!({"intent": "sum", "max_turns": 3})),
            (AGENT, json!(["sum", {"docs": [1]}]), json!({"intent": "sum", "context": {"docs": [1]}})),
            ("requests", json!([["a", {"intent": "b"}]]), json!({"requests": ["a", {"intent": "b"}]})),
        ] {
            assert_eq!(map(names, passed.clone()), wanted, "{names} {passed}");
        }
    }

    #[test]
    fn the_corners_of_the_rules_hold() {
        for (names, passed, wanted) in [
            ("path", json!([]), json!({})),
            ("", json!([]), json!({})),
            ("path", json!(["-"]), json!({})),
            ("answer*", json!([{}]), json!({"answer": {}})),
            ("path", json!([{}]), json!({})),
            ("path", json!([{"pth": 1}]), json!({"pth": 1})),
            ("path limit", json!(["-", 3]), json!({"limit": 3})),
            ("path limit", json!(["a", "-"]), json!({"path": "a"})),
            ("intent context*", json!(["sum", {"intent": "x"}]), json!({"intent": "sum", "context": {"intent": "x"}})),
            ("intent context*", json!(["sum", {}]), json!({"intent": "sum"})),
            ("answer*", json!([null]), json!({"answer": null})),
            ("answer*", json!([[1, 2]]), json!({"answer": [1, 2]})),
        ] {
            assert_eq!(map(names, passed.clone()), wanted, "{names} {passed}");
        }
        let fault =
            bind_arguments(&declared("path"), vec![Some(json!("a")), Some(json!("b"))]).expect_err("one too many");
        assert_eq!(fault.rule, Rule::TooMany { given: 2, declared: 1 });
    }

    #[test]
    fn keywords_name_what_is_declared_and_still_free() {
        const AGENT: &str = "intent context* gates max_turns";
        let map = |passed: &[Value], keywords: &[(&str, Value)]| {
            let passed = passed.iter().cloned().map(Some).collect();
            let keywords = keywords.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            bind_with_keywords(&declared(AGENT), passed, keywords)
                .map(Value::Object)
                .map_err(|fault| (fault.path, fault.rule))
        };
        let three = &[("max_turns", json!(3))];
        assert_eq!(map(&[json!("sum")], three), Ok(json!({"intent": "sum", "max_turns": 3})));
        assert_eq!(map(&[], &[("intent", json!("sum"))]), Ok(json!({"intent": "sum"})));
        assert_eq!(map(&[json!({"intent": "sum"})], three), Ok(json!({"intent": "sum", "max_turns": 3})));
        assert_eq!(map(&[], &[("turns", json!(3))]), Err(("/turns".to_owned(), Rule::UnknownKeyword)));
        assert_eq!(map(&[json!("a")], &[("intent", json!("b"))]), Err(("/intent".to_owned(), Rule::DoubledKeyword)));
        assert_eq!(
            map(&[json!("a"), json!({"max_turns": 2})], three),
            Err(("/max_turns".to_owned(), Rule::DoubledKeyword))
        );
    }
}
