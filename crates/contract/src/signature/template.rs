//! How is a prompt made from an input? By a template that can read only its scope.
//!
//! There is no loader, so nothing is included or imported; no clock and no random source. A name that is not in scope
//! is a fault and never an empty text. Steps and bytes are bounded. The content of a value is never read as a
//! template.

use std::io::{self, Write};

use cantrip_canon::json::canonical;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value};
use serde_json::{Map, Value as Json, json};

use super::Demo;
use crate::limits::{RENDERED_BYTES_MAX, SAMPLE_DEPTH_MAX, TEMPLATE_FUEL};

/// The names that a template may use.
const SCOPE: [&str; 6] = ["inputs", "instructions", "sub_instructions", "demos", "output_schema", "signature"];

/// The two templates of a signature.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    pub system: String,
    pub user: String,
}

/// The rendered prompt for a crystal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    pub system: String,
    pub user: String,
}

/// The values of a rendering.
pub(crate) struct Scope<'a> {
    pub inputs: &'a Json,
    pub instructions: &'a str,
    pub sub_instructions: Option<&'a str>,
    pub demos: &'a [Demo],
    pub output_schema: &'a Json,
    pub signature: &'a str,
}

impl Prompt {
    /// Returns true if the template places the demos itself.
    pub fn names_demos(&self) -> bool {
        self.variables().contains("demos")
    }

    fn variables(&self) -> std::collections::HashSet<String> {
        let environment = environment();
        let names = |text: &str| {
            let template = environment.template_from_str(text);
            template.map(|template| template.undeclared_variables(false)).unwrap_or_default()
        };
        names(&self.system).into_iter().chain(names(&self.user)).collect()
    }

    /// Returns the first fault in the text of the templates: which template, and why.
    pub(super) fn fault(&self) -> Option<(&'static str, String)> {
        let environment = environment();
        for (key, text) in [("system", &self.system), ("user", &self.user)] {
            let template = match environment.template_from_str(text) {
                Ok(template) => template,
                Err(error) => return Some((key, describe_error(&error))),
            };
            let mut unknown: Vec<_> = template.undeclared_variables(false).into_iter().collect();
            unknown.retain(|name| !SCOPE.contains(&name.as_str()));
            unknown.sort();
            if let Some(name) = unknown.first() {
                return Some((key, format!("{name} is not in scope; there are {}", SCOPE.join(", "))));
            }
        }
        let used = self.variables().contains("instructions");
        (!used).then(|| ("system", "neither template uses {{ instructions }}, so nothing could be compiled".to_owned()))
    }

    /// Renders both templates for this input.
    pub(crate) fn render(&self, scope: &Scope<'_>) -> Result<Rendered, (&'static str, String)> {
        let environment = environment();
        let context = minijinja::context! {
            inputs => Value::from(minijinja::value::Serde(scope.inputs)),
            instructions => scope.instructions,
            sub_instructions => scope.sub_instructions,
            demos => Value::from(minijinja::value::Serde(scope.demos)),
            output_schema => Value::from(minijinja::value::Serde(scope.output_schema)),
            signature => scope.signature,
        };
        let rendered = |key: &'static str, text: &str| {
            let mut written = Bounded(Vec::new());
            let template = environment.template_from_str(text).map_err(|error| (key, describe_error(&error)))?;
            template.render_captured_to(&context, &mut written).map_err(|error| (key, describe_error(&error)))?;
            String::from_utf8(written.0).map_err(|_| (key, "it gives no text".to_owned()))
        };
        Ok(Rendered { system: rendered("system", &self.system)?, user: rendered("user", &self.user)? })
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(TEMPLATE_FUEL));
    environment.add_filter("tojson", |value: Value| as_json(&value));
    environment.add_filter("fence", |value: Value, name: String| fence_value(&value, &name));
    environment
}

fn describe_error(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("line {line}: {what}"),
        None => what,
    }
}

/// The canonical text of a value: two equal inputs give the same prompt.
fn as_json(value: &Value) -> Result<String, Error> {
    // Our own filters receive an undefined value like any other, so it is refused here.
    if value.is_undefined() {
        return Err(Error::new(ErrorKind::UndefinedError, "there is no such value"));
    }
    let json = serde_json::to_value(value).map_err(|fault| invalid(fault.to_string()))?;
    canonical(&json).map_err(|fault| invalid(fault.to_string()))
}

fn invalid(detail: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, detail)
}

/// Puts the value between tags of this name. A closing tag within it is broken up, so that no value can end the fence.
fn fence_value(value: &Value, name: &str) -> Result<String, Error> {
    let sound = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    if name.is_empty() || !name.chars().all(sound) {
        return Err(invalid(format!("a fence is named by letters, digits, _ and -, not {name:?}")));
    }
    let text = match value.as_str() {
        Some(text) => text.to_owned(),
        None => as_json(value)?,
    };
    Ok(format!("<{name}>{}</{name}>", escape_closing_tags(&text, name)))
}

fn escape_closing_tags(text: &str, name: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("</") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        let word = after.trim_start();
        let closes = word.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
        out.push_str(before);
        out.push_str(if closes { "<\\/" } else { "</" });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// A writer that refuses to exceed its limit.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > RENDERED_BYTES_MAX {
            return Err(io::Error::other(format!("it gives more than {RENDERED_BYTES_MAX} bytes")));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Makes a value in the shape of a schema, with every property, to try a template. It need not be valid: only the names
/// are tried.
pub(super) fn sample(schema: &Json) -> Json {
    sample_at_depth(schema, schema, SAMPLE_DEPTH_MAX)
}

fn sample_at_depth(schema: &Json, root: &Json, left: usize) -> Json {
    if left == 0 {
        return Json::Null;
    }
    let further = |schema: &Json| sample_at_depth(schema, root, left - 1);
    if let Some(target) =
        schema.get("$ref").and_then(Json::as_str).and_then(|path| root.pointer(path.strip_prefix('#')?))
    {
        return further(target);
    }
    if let Some(first) = schema.get("const").or_else(|| schema.get("enum").and_then(|values| values.get(0))) {
        return first.clone();
    }
    for several in ["anyOf", "oneOf", "allOf"] {
        if let Some(first) = schema.get(several).and_then(|options| options.get(0)) {
            return further(first);
        }
    }
    let kind = match schema.get("type") {
        Some(Json::Array(kinds)) => kinds.first().and_then(Json::as_str),
        Some(kind) => kind.as_str(),
        None => schema.get("properties").map(|_| "object"),
    };
    match kind {
        Some("object") => {
            let properties = schema.get("properties").and_then(Json::as_object);
            let pairs = properties.into_iter().flatten().map(|(name, schema)| (name.clone(), further(schema)));
            Json::Object(pairs.collect::<Map<_, _>>())
        }
        Some("array") => json!([schema.get("items").map_or(json!("text"), further)]),
        Some("integer" | "number") => json!(1),
        Some("boolean") => json!(true),
        Some("null") => Json::Null,
        Some(_) | None => json!("text"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closing_tag_within_a_value_is_broken_and_nothing_else_is() {
        for (text, name, gives) in [
            ("a </text> b", "text", "a <\\/text> b"),
            ("</ TEXT >", "text", "<\\/ TEXT >"),
            ("</other> </texts>", "text", "</other> <\\/texts>"),
            ("</", "text", "</"),
            ("</té", "text", "</té"),
            ("no tag", "text", "no tag"),
        ] {
            assert_eq!(escape_closing_tags(text, name), gives);
        }
    }

    #[test]
    fn a_template_that_writes_without_end_is_stopped() {
        let prompt = Prompt {
            system: "{{ instructions }}".to_owned(),
            user: "{% for a in range(10000) %}{% for b in range(10000) %}{{ inputs }}{% endfor %}{% endfor %}"
                .to_owned(),
        };
        let scope = Scope {
            inputs: &json!({}),
            instructions: "",
            sub_instructions: None,
            demos: &[],
            output_schema: &json!({}),
            signature: "",
        };
        let (key, _) = prompt.render(&scope).expect_err("it runs out of fuel");
        assert_eq!(key, "user");
    }
}
