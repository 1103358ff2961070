//! Which metric fits an output, if its user names none?

use serde_json::{Value, json};

use crate::limits::DEFAULT_METRIC_PLACES_MAX;

/// Returns the metric `exact.v1` on the one enum of an output schema; none if the schema has no enum or several.
///
/// ```
/// # use cantrip_improve::flywheel::default_metric;
/// # use serde_json::json;
/// let schema = json!({"type": "object", "properties": {"team": {"enum": ["a", "b"]}, "why": {"type": "string"}}});
/// assert_eq!(default_metric(&schema).unwrap()["pointer"], "/team");
/// ```
pub fn default_metric(output_schema: &Value) -> Option<Value> {
    let mut search = EnumSearch { document: output_schema, found: Vec::new(), left: DEFAULT_METRIC_PLACES_MAX };
    search.visit(output_schema, "");
    match search.found.as_slice() {
        [pointer] if search.left > 0 => {
            Some(json!({"v": 1, "kind": "metric", "type": "exact.v1", "pointer": pointer, "normalise": "none"}))
        }
        _ => None,
    }
}

/// Looks for the enums of a schema.
struct EnumSearch<'a> {
    document: &'a Value,
    /// The places of the enums.
    found: Vec<String>,
    /// The number of places that may still be visited: a schema can refer to itself.
    left: usize,
}

impl EnumSearch<'_> {
    /// Adds the enums at a place and below. An item of an array has no fixed place, so arrays are not visited.
    fn visit(&mut self, schema: &Value, place: &str) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let document = self.document;
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            if let Some(named) = reference.strip_prefix('#').and_then(|pointer| document.pointer(pointer)) {
                self.visit(named, place);
            }
            return;
        }
        if schema.get("enum").is_some_and(Value::is_array) {
            self.found.push(place.to_owned());
            return;
        }
        for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
            let step = name.replace('~', "~0").replace('/', "~1");
            self.visit(property, &format!("{place}/{step}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(schema: &Value) -> Option<String> {
        default_metric(schema).map(|metric| metric["pointer"].as_str().unwrap_or_default().to_owned())
    }

    #[test]
    fn the_one_enum_is_found_wherever_it_stands() {
        let teams = json!({"enum": ["a", "b"]});
        assert_eq!(pointer(&teams).as_deref(), Some(""));
        let nested = json!({"properties": {"a/b": {"properties": {"team": teams}}, "why": {"type": "string"}}});
        assert_eq!(pointer(&nested).as_deref(), Some("/a~1b/team"));
        let referred = json!({"$defs": {"team": teams}, "properties": {"team": {"$ref": "#/$defs/team"}}});
        assert_eq!(pointer(&referred).as_deref(), Some("/team"));
    }

    #[test]
    fn no_enum_several_enums_and_enums_without_a_place_give_no_metric() {
        let teams = json!({"enum": ["a", "b"]});
        assert_eq!(pointer(&json!({"properties": {"why": {"type": "string"}}})), None);
        assert_eq!(pointer(&json!({"properties": {"one": teams, "two": teams}})), None);
        assert_eq!(pointer(&json!({"properties": {"all": {"type": "array", "items": teams}}})), None);
        let endless = json!({"properties": {"team": teams, "self": {"$ref": "#"}, "other": {"$ref": "#"}}});
        assert_eq!(pointer(&endless), None, "a schema that refers to itself has no one place for its enum");
    }

    #[test]
    fn the_metric_is_one_that_can_be_read() {
        let metric = default_metric(&json!({"properties": {"label": {"enum": ["a", "b"]}}})).unwrap();
        let read = cantrip_contract::Metric::from_stored(&metric).unwrap();
        let golden = "sha256:d426d19d8f31860a748092c7fd699453b315d4277be3590da5e43bb62c9aba84";
        assert_eq!(read.hash().to_string(), golden);
    }
}
