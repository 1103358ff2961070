//! The cantrips that predicts are casts of: `direct.v1` and `rlm_lite.v1`.

use std::sync::Arc;

use cantrip::canon::json::canonical;
use cantrip::circle::{DelegationGrants, Medium, MediumKind};
use cantrip::crystal::{AnyCrystal, Crystal, Sampling, ToolChoice};
use cantrip::gates::{call_agent, call_agent_batch, done};
use cantrip::reply::Refusal;
use cantrip::{Call, Cantrip};
use cantrip_contract::{Artifact, Rendered, Signature};
use serde_json::Value;

use crate::limits::PREVIEW_CHARS;
use crate::settings::PredictSettings;
use crate::structured::{StructuredCrystal, StructuredMode};

/// The parts that a cantrip is built from: signature, artifact, prompt and settings.
#[derive(Clone, Copy)]
pub(crate) struct ProgramSpec<'a> {
    pub signature: &'a Signature,
    pub input: &'a Value,
    pub artifact: &'a Artifact,
    pub rendered: &'a Rendered,
    pub asked: &'a PredictSettings,
}

/// The keyword of a property in an output schema: its value must be one of those that the named input lists.
const ONE_OF_INPUT: &str = "x-one-of-input";

/// The built-in signature that was published without the keyword and whose hash keeps it so, its property, and the input
/// that lists the values.
const CLASSIFY: [&str; 3] = ["@cantrip/text/Classify.v1", "label", "labels"];

/// Returns the schema of the answer to this input: the output schema of the signature, with the values that the input
/// allows. The model is held to it and the answer is checked against it, so a label that nobody asked for is no success.
fn output_schema(signature: &Signature, input: &Value) -> Value {
    let mut schema = signature.output().source().clone();
    let [classify, label, labels] = CLASSIFY;
    let is_classify = signature.id().to_string() == classify;
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    for (name, property) in properties.into_iter().flatten() {
        let Some(property) = property.as_object_mut() else { continue };
        let declared = property.shift_remove(ONE_OF_INPUT);
        let built_in = (is_classify && name == label).then_some(labels);
        let listed = declared.as_ref().and_then(Value::as_str).or(built_in).and_then(|from| input.get(from));
        if let Some(Value::Array(allowed)) = listed
            && !allowed.is_empty()
        {
            property.insert("enum".to_owned(), Value::Array(allowed.clone()));
        }
    }
    schema
}

/// Returns the properties of the output whose values an input lists, each with the name of that input.
pub(crate) fn listed_by_input(signature: &Signature) -> Vec<(String, String)> {
    let [classify, label, labels] = CLASSIFY;
    let is_classify = signature.id().to_string() == classify;
    let properties = signature.output().source().get("properties").and_then(Value::as_object);
    let listed = |(name, property): (&String, &Value)| {
        let built_in = (is_classify && name == label).then_some(labels);
        let from = property.get(ONE_OF_INPUT).and_then(Value::as_str).or(built_in)?;
        Some((name.clone(), from.to_owned()))
    };
    properties.into_iter().flatten().filter_map(listed).collect()
}

/// Returns the common parts of both programs.
fn base_builder(made: ProgramSpec<'_>, call: Call) -> cantrip::CantripBuilder {
    let PredictSettings { params, timeout_seconds, max_cost, whole, .. } = made.asked;
    let sampling = Sampling {
        temperature: params.temperature,
        top_p: params.top_p,
        stop: params.stop.clone(),
        ..Sampling::default()
    };
    let mut call = call.sampling(sampling);
    if let Some(most) = params.max_tokens {
        call = call.max_tokens(most);
    }
    let builder = Cantrip::builder()
        .name(made.signature.id().to_string())
        .call(call)
        .gate(done())
        .answer_schema(output_schema(made.signature, made.input))
        .ward("timeout", format!("{timeout_seconds}s"))
        .whole_output(*whole)
        .park(false);
    match max_cost {
        Some(cost) => builder.ward("max_cost", cost.to_string()),
        None => builder,
    }
}

/// Builds the cantrip of `direct.v1`: a conversation whose only gate is `done`, with one turn more than it has repairs.
pub(crate) fn direct_cantrip(
    made: ProgramSpec<'_>,
    crystal: AnyCrystal,
    mode: StructuredMode,
) -> Result<Cantrip, Refusal> {
    let ProgramSpec { signature, input, artifact, rendered, asked } = made;
    let mut demos = Vec::new();
    if !signature.prompt().names_demos() {
        for demo in artifact.demos() {
            let output = canonical(&demo.output).unwrap_or_default();
            demos.push((signature.render(artifact, &demo.input)?.user, output));
        }
    }
    let call = Call::new().system_prompt(&rendered.system).tool_choice(ToolChoice::Required);
    let schema = output_schema(signature, input);
    base_builder(made, call)
        .crystal(StructuredCrystal::new(crystal, mode, schema, demos))
        .ward("max_turns", u64::from(asked.repair_attempts) + 1)
        .build()
        .map_err(Refusal::from)
}

/// Names that are reserved in a program.
const TAKEN: [&str; 9] =
    ["inputs", "output_schema", "context", "done", "submit_answer", "call_agent", "call_agent_batch", "rand", "now"];

/// The variable with the recent calls of the calling thread.
const HISTORY: &str = "history";

/// Returns the variables of a program of `rlm_lite.v1`: all inputs, each also under its own name, and the schema of the
/// answer.
pub(crate) fn variables(signature: &Signature, input: &Value, history: Option<&Value>) -> Value {
    let mut variables = serde_json::Map::new();
    for (name, value) in input.as_object().into_iter().flatten().filter(|(name, _)| !TAKEN.contains(&name.as_str())) {
        variables.insert(name.clone(), value.clone());
    }
    if let Some(history) = history {
        variables.insert(HISTORY.to_owned(), history.clone());
    }
    variables.insert("inputs".to_owned(), input.clone());
    variables.insert("output_schema".to_owned(), output_schema(signature, input));
    Value::Object(variables)
}

/// Describes the variables for the model: name, kind, size and beginning of each; never the complete value.
fn describe_variables(variables: &Value) -> String {
    let mut text = String::from(
        "You work by writing programs. These variables hold the input; look at them with code, they are not shown here \
         whole:",
    );
    for (name, value) in variables.as_object().into_iter().flatten().filter(|(name, _)| *name != "output_schema") {
        let (kind, written) = match value {
            Value::String(text) => ("text".to_owned(), text.clone()),
            Value::Array(items) => (format!("list of {}", items.len()), value.to_string()),
            Value::Object(entries) => (format!("object with {}", entries.len()), value.to_string()),
            Value::Null | Value::Bool(_) | Value::Number(_) => ("value".to_owned(), value.to_string()),
        };
        let shown: String = written.chars().take(PREVIEW_CHARS).collect();
        let cut = if shown.len() < written.len() { "..." } else { "" };
        text.push_str(&format!("\n- {name}: {kind}, {} bytes, begins {shown:?}{cut}", written.len()));
    }
    text.push_str("\nCall done with an answer that fits output_schema.");
    text
}

/// Builds the cantrip of `rlm_lite.v1`: programs over the input as variables, with a bounded number of utterances and
/// of sub-calls. There are no sub-calls at a depth of 0.
pub(crate) fn rlm_cantrip(
    made: ProgramSpec<'_>,
    crystal: AnyCrystal,
    sub_crystal: Option<AnyCrystal>,
    medium: Arc<dyn Medium>,
    variables: &Value,
    depth: u64,
) -> Result<Cantrip, Refusal> {
    let ProgramSpec { signature, artifact, rendered, asked, .. } = made;
    let mut prompt = format!("{}\n\n{}", rendered.system, describe_variables(variables));
    if !signature.prompt().names_demos() {
        for demo in artifact.demos() {
            let (asked, answered) = (canonical(&demo.input), canonical(&demo.output));
            let (asked, answered) = (asked.unwrap_or_default(), answered.unwrap_or_default());
            prompt.push_str(&format!("\n\nAn example: inputs {asked} were answered {answered}"));
        }
    }
    let own = crystal.name().to_owned();
    let delegates = DelegationGrants {
        crystal_by_level: sub_crystal.as_ref().map(|crystal| crystal.name().to_owned()).into_iter().collect(),
        medium: Some(MediumKind::Conversation),
        system_prompt: artifact.sub_instructions().map(str::to_owned),
        max_turns: Some(u64::from(asked.repair_attempts) + 1),
        max_children: Some(u64::from(asked.max_sub_calls)),
        ..DelegationGrants::default()
    };
    let mut builder = base_builder(made, Call::new().system_prompt(prompt))
        .crystal(crystal)
        .delegating(call_agent(), delegates.clone())
        .delegating(call_agent_batch(), delegates)
        .medium(medium.kind())
        .serve_medium(medium)
        .spread_context()
        .count_turns()
        .ward("max_turns", u64::from(asked.max_iterations))
        .ward("max_depth", depth.min(1));
    if let Some(sub) = sub_crystal.filter(|sub| sub.name() != own) {
        builder = builder.child_crystal(sub.name().to_owned(), sub);
    }
    builder.build().map_err(Refusal::from)
}
