//! Reads the chunks of an answer.

use std::time::Duration;

use cantrip_loom::{Finish, Usage};
use serde_json::Value;

use super::body::request_body;
use crate::Cause;
use crate::http::{AnswerDraft, Protocol, RequestBody, Step, message, parse_json};

/// The protocol of the Gemini family.
///
/// The signatures of its thinking are sent back on the parts that they came on, and only to the same model: another
/// provider must not get them, and another model of the family may refuse them.
#[derive(Debug, Default)]
pub(crate) struct Gemini;

impl Protocol for Gemini {
    const HAS_END_EVENT: bool = false;
    const REQUEST_BODY: RequestBody = request_body;

    fn read_event(&mut self, answer: &mut AnswerDraft<'_>, data: &str) -> Result<Step, Cause> {
        read_chunk(answer, &parse_json(data)?).map(|()| Step::More)
    }

    fn read_whole(&mut self, answer: &mut AnswerDraft<'_>, body: &Value) -> Result<(), Cause> {
        match body {
            // Without the query parameter for events, a stream is one array of its chunks.
            Value::Array(chunks) => chunks.iter().try_for_each(|chunk| read_chunk(answer, chunk)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                read_chunk(answer, body)
            }
        }
    }

    fn refusal(status: u16, body: &Value, retry_after: Option<Duration>) -> Cause {
        // An error of a stream also comes in an array.
        let body = body.get(0).unwrap_or(body);
        error_cause(status, body.get("error").unwrap_or(body), retry_after)
    }
}

fn read_chunk(answer: &mut AnswerDraft<'_>, chunk: &Value) -> Result<(), Cause> {
    if let Some(error) = chunk.get("error").filter(|error| !error.is_null()) {
        let status = error["code"].as_u64().and_then(|code| u16::try_from(code).ok());
        return Err(match status.filter(|status| (400..600).contains(status)) {
            Some(status) => error_cause(status, error, None),
            None => Cause::Broken { detail: message(error).into() },
        });
    }
    answer.set_usage(usage(&chunk["usageMetadata"]));
    answer.set_model(&chunk["modelVersion"]);
    if let Some(reason) = chunk["promptFeedback"]["blockReason"].as_str() {
        return Err(Cause::Refused { reason: format!("the prompt was blocked: {reason}").into() });
    }
    let candidate = &chunk["candidates"][0];
    for part in candidate["content"]["parts"].as_array().into_iter().flatten() {
        read_part(answer, part)?;
    }
    if let Some(reason) = candidate["finishReason"].as_str() {
        answer.finish = Some(parse_finish(reason, candidate)?);
    }
    Ok(())
}

fn read_part(answer: &mut AnswerDraft<'_>, part: &Value) -> Result<(), Cause> {
    let signature = part.get("thoughtSignature").filter(|signature| signature.is_string());
    if let Some(call) = part.get("functionCall") {
        read_call(answer, call)?;
        return signature.map_or(Ok(()), |signature| answer.order.attach("thoughtSignature", signature));
    }
    let text = part["text"].as_str().unwrap_or_default();
    match (part["thought"] == true, signature) {
        (true, None) => answer.assembler.thinking(text),
        (true, Some(_)) => {
            answer.order.own(part.clone())?;
            answer.assembler.thinking(text)
        }
        (false, None) => answer.text(text),
        // A signature on a part without text is sent back as it came.
        (false, Some(_)) if text.is_empty() => answer.order.own(part.clone()),
        (false, Some(signature)) => {
            answer.order.text_with(text, "thoughtSignature", signature)?;
            answer.assembler.text(text)
        }
    }
}

/// Records a call, which always arrives complete.
fn read_call(answer: &mut AnswerDraft<'_>, call: &Value) -> Result<(), Cause> {
    let number = answer.assembler.calls();
    let key = number as u64;
    answer.order.call(number);
    answer.assembler.call(key, call["id"].as_str().filter(|id| !id.is_empty()), call["name"].as_str())?;
    if let Some(args) = call.get("args").filter(|args| !args.is_null()) {
        answer.assembler.arguments_so_far(key, &args.to_string())?;
    }
    answer.assembler.end_call(key)
}

fn parse_finish(reason: &str, candidate: &Value) -> Result<Finish, Cause> {
    Ok(match reason {
        "STOP" => Finish::Stop,
        "MAX_TOKENS" => Finish::Length,
        "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "LANGUAGE" | "IMAGE_SAFETY" => {
            Finish::Refusal
        }
        // The model wrote a call that its provider could not parse. A retry may produce a valid one.
        "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" => {
            let detail = candidate["finishMessage"].as_str().unwrap_or(reason);
            return Err(Cause::Broken { detail: detail.into() });
        }
        other => Finish::Other(other.chars().take(64).collect::<String>().to_lowercase()),
    })
}

/// Reads the token counts. The provider counts text and thinking separately.
fn usage(usage: &Value) -> Option<Usage> {
    let count = |key: &str| usage[key].as_u64();
    let prompt = count("promptTokenCount")?;
    let thoughts = count("thoughtsTokenCount");
    Some(Usage {
        prompt_tokens: prompt.saturating_add(count("toolUsePromptTokenCount").unwrap_or(0)),
        completion_tokens: count("candidatesTokenCount").unwrap_or(0).saturating_add(thoughts.unwrap_or(0)),
        cached_tokens: count("cachedContentTokenCount").unwrap_or(0),
        reasoning_tokens: thoughts,
        cache_write_tokens: None,
    })
}

fn error_cause(status: u16, error: &Value, retry_after: Option<Duration>) -> Cause {
    let detail = message(error);
    // There is no error code for this case, only a sentence with both counts: "The input token count (1200000) exceeds
    // the maximum number of tokens allowed (1048576)."
    if status == 400 && detail.contains("input token count") {
        let mut numbers = detail.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
        return Cause::ContextTooLong { tokens: numbers.next(), window: numbers.next() };
    }
    // An invalid key has status 400 here; only its reason identifies it.
    let mut details = error["details"].as_array().into_iter().flatten();
    let status = match details.clone().any(|detail| detail["reason"] == "API_KEY_INVALID") {
        true => 401,
        false => status,
    };
    let delay = details.find_map(|detail| seconds(detail["retryDelay"].as_str()?));
    Cause::Status { status, detail: detail.into(), retry_after: retry_after.or(delay) }
}

/// Parses a duration as JSON writes it here: seconds, optionally with a fraction, and an `s`.
fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.strip_suffix('s')?.parse().ok()?).ok()
}
