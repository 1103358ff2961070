//! Parses the notation of the golden cases, runs a case and writes its output in the same notation.

use std::time::Duration;

use cantrip_canon::{Clock, ManualClock, Timestamp};
use cantrip_stream::{
    DroppedCounts, Emission, ErrorInfo, Gradient, Item, Options, Origin, Processor, ProviderId, SourceTimestamp,
    Status, StreamEvent, Text, ToolCall, TurnEvent, TurnStatus, Upsert,
};
use serde_json::{Value, json};

pub(crate) struct Case {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) id: String,
    pub(crate) title: String,
    options: Options,
    /// Show texts by the number of their words.
    words: bool,
    events: Vec<String>,
    /// The expected output; its last line counts the dropped events.
    pub(crate) expected: Vec<String>,
}

/// Parses the cases of a file, or returns the place and the reason of the fault.
pub(crate) fn parse(file: &str, text: &str) -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = Vec::new();
    let mut in_out = false;
    for (index, raw) in text.lines().enumerate() {
        let fault = |why: &str| format!("{file}:{}: {why}: {raw}", index + 1);
        if raw.trim().is_empty() || raw.starts_with('#') {
            continue;
        }
        if raw.starts_with(' ') {
            let case = cases.last_mut().filter(|_| in_out).ok_or_else(|| fault("indented without an `out` above"))?;
            case.expected.insert(case.expected.len() - 1, raw.trim().to_owned());
            continue;
        }
        let (word, rest) = raw.split_once(' ').map_or((raw, ""), |(word, rest)| (word, rest.trim()));
        in_out = word == "out";
        if word == "case" {
            cases.push(Case {
                file: file.to_owned(),
                line: index + 1,
                id: rest.split(' ').next().unwrap_or_default().to_owned(),
                title: rest.to_owned(),
                options: Options::default(),
                words: false,
                events: Vec::new(),
                expected: vec![dropped(&DroppedCounts::default())],
            });
            continue;
        }
        let case = cases.last_mut().ok_or_else(|| fault("a line before the first case"))?;
        match word {
            "with" => {
                for option in rest.split(';') {
                    set(case, option.trim()).ok_or_else(|| fault("an option that nobody knows"))?;
                }
            }
            "in" => case.events.extend(tokens(rest).ok_or_else(|| fault("brackets or quotes that do not close"))?),
            "out" => case.expected.insert(case.expected.len() - 1, rest.to_owned()),
            "drop" => {
                let last = case.expected.len() - 1;
                case.expected[last] = format!("drop {rest}");
            }
            _ => return Err(fault("a line that is not case, with, in, out or drop")),
        }
    }
    Ok(cases)
}

fn set(case: &mut Case, option: &str) -> Option<()> {
    let (name, value) = option.split_once(' ').unwrap_or((option, ""));
    let timer = || match value {
        "off" => Some(None),
        millis => millis.parse().ok().map(|millis| Some(Duration::from_millis(millis))),
    };
    match name {
        "gradient" => case.options.gradient = Gradient::new(&serde_json::from_str::<Vec<i64>>(value).ok()?),
        "idle" => case.options.timers.idle = timer()?,
        "first" => case.options.timers.first = timer()?,
        "max" => case.options.timers.max = timer()?,
        "announce" => case.options.announce_arguments = true,
        "words" => case.words = true,
        _ => return None,
    }
    Some(())
}

/// Splits at spaces outside of quotes and brackets, and writes repeated lists out.
fn tokens(line: &str) -> Option<Vec<String>> {
    let mut tokens = Vec::new();
    let mut token = String::new();
    let (mut quoted, mut escaped, mut depth) = (false, false, 0usize);
    for character in line.chars().chain([' ']) {
        if character == ' ' && !quoted && depth == 0 {
            if !token.is_empty() {
                tokens.push(std::mem::take(&mut token));
            }
            continue;
        }
        token.push(character);
        if quoted {
            quoted = character != '"' || escaped;
            escaped = character == '\\' && !escaped;
        } else {
            match character {
                '"' => quoted = true,
                '(' => depth += 1,
                ')' => depth = depth.checked_sub(1)?,
                _ => {}
            }
        }
    }
    if !token.is_empty() {
        return None;
    }
    let mut written_out = Vec::new();
    for token in tokens {
        match token.split_once("x(").and_then(|(times, list)| Some((times.parse::<usize>().ok()?, list))) {
            Some((times, list)) => {
                let list = self::tokens(list.strip_suffix(')')?)?;
                for _ in 0..times {
                    written_out.extend(list.iter().cloned());
                }
            }
            None => written_out.push(token),
        }
    }
    Some(written_out)
}

/// Returns the output of a case; its last line counts the dropped events.
pub(crate) fn run(case: &Case) -> Result<Vec<String>, String> {
    let clock = ManualClock::starting(Timestamp::EPOCH);
    let mut processor = Processor::new(case.options.clone());
    let mut out = Vec::new();
    let mut shown = Vec::new();
    let mut number = 0;
    for token in &case.events {
        let wrong = |why: String| format!("`{token}`: {why}");
        if let Some(millis) = token.strip_suffix("ms") {
            let oversleeps = millis.starts_with('~');
            let millis = millis.trim_start_matches('~').parse().map_err(|_| wrong("not a time".into()))?;
            let until = clock.now().monotonic.after(Duration::from_millis(millis));
            while let Some(deadline) = processor.next_deadline().filter(|at| *at <= until && !oversleeps) {
                clock.advance(deadline.since(clock.now().monotonic));
                let before = out.len();
                processor.tick(clock.now(), &mut out);
                assert!(out.len() > before, "`{token}`: a deadline at which nothing was due");
            }
            clock.advance(until.since(clock.now().monotonic));
        } else {
            number += 1;
            if let Some(reason) = token.strip_prefix("close") {
                let reason = bracketed(reason).ok_or_else(|| wrong("close has brackets".into()))?.0;
                let reason = (!reason.is_empty()).then(|| ErrorInfo::new(reason, &format!("about {reason}")));
                processor.close(reason, clock.now(), &mut out);
            } else {
                let event = event(token, number).ok_or_else(|| wrong("not an event".into()))?;
                let event = StreamEvent::read(&event).map_err(|issues| wrong(format!("{issues:?}")))?;
                if let Err(fault) = processor.process(&event, clock.now(), &mut out) {
                    shown.extend(out.drain(..).map(|emission| show(&emission, case.words)));
                    shown.push(format!("fault {fault}"));
                }
            }
        }
        shown.extend(out.drain(..).map(|emission| show(&emission, case.words)));
    }
    shown.push(dropped(processor.dropped()));
    Ok(shown)
}

fn event(token: &str, number: usize) -> Option<Value> {
    let (turn, token) = match token.split_once('.') {
        Some((turn, rest)) if turn.chars().all(char::is_alphanumeric) => (turn, rest),
        Some(_) | None => ("t", token),
    };
    let payload = payload(token)?;
    Some(json!({
        "eventId": format!("e{number}"),
        "timestamp": format!("2026-01-01T00:00:00.{number:03}Z"),
        "turnId": turn,
        "sessionId": "s",
        "type": payload["type"],
        "payload": payload,
    }))
}

fn error(code: &str) -> Value {
    json!({ "code": code, "message": format!("about {code}") })
}

/// Splits `(x)rest` into x and rest.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    text.strip_prefix('(')?.split_once(')')
}

/// A JSON string, or `*n` for n words.
fn text(written: &str) -> Option<String> {
    match written.strip_prefix('*') {
        Some(words) => Some(" w".repeat(words.parse().ok()?)),
        None => serde_json::from_str(written).ok(),
    }
}

fn payload(token: &str) -> Option<Value> {
    let name_end = |token: &str| token.find(|c: char| !c.is_alphanumeric()).unwrap_or(token.len());
    let done = |status: &str| json!({ "type": "response_done", "status": status });
    Some(match token.split_at(1) {
        ("+", rest) => {
            let (item, rest) = rest.split_at(name_end(rest));
            let mut start = json!({ "type": "item_start", "itemId": item, "itemType": "message" });
            match rest.strip_prefix(':') {
                Some("r") => start["itemType"] = "reasoning".into(),
                Some("fco") => start["itemType"] = "function_call_output".into(),
                Some(call) => {
                    start["itemType"] = "function_call".into();
                    start["name"] = "n".into();
                    start["callId"] = call.into();
                }
                None if rest.is_empty() => {}
                None => start["initialContent"] = text(rest.strip_prefix('=')?)?.into(),
            }
            start
        }
        ("/", rest) => {
            let (item, rest) = rest.split_at(name_end(rest));
            json!({ "type": "item_done", "itemId": item, "finalItem": final_item(rest)? })
        }
        ("!", rest) => {
            let (item, rest) = rest.split_at(name_end(rest));
            json!({ "type": "item_error", "itemId": item, "error": error(bracketed(rest)?.0) })
        }
        ("-", rest) => {
            let (item, rest) = rest.split_at(name_end(rest));
            json!({ "type": "item_cancelled", "itemId": item, "reason": bracketed(rest).map(|(reason, _)| reason) })
        }
        _ => match token.split_at(name_end(token)) {
            ("R", "") => json!({ "type": "response_start", "modelId": "model", "providerId": "provider" }),
            ("OK", "") => done("completed"),
            ("CAN", "") => done("cancelled"),
            ("OK", rest) => {
                let mut done = done("completed");
                done["error"] = error(bracketed(rest)?.0);
                done
            }
            ("ERR", rest) => {
                let mut done = done("error");
                let details = bracketed(rest).map_or("-", |(details, _)| details);
                let (code, finish) = details.split_once(", ").unwrap_or((details, "-"));
                if code != "-" {
                    done["error"] = error(code);
                }
                if finish != "-" {
                    done["finishReason"] = finish.into();
                }
                done
            }
            ("RE", rest) => json!({ "type": "response_error", "error": error(bracketed(rest)?.0) }),
            (item, rest) => json!({ "type": "item_delta", "itemId": item, "deltaContent": text(rest)? }),
        },
    })
}

fn final_item(written: &str) -> Option<Value> {
    if let Some(reasoning) = written.strip_prefix(":r(") {
        let (provider, content) = reasoning.split_once(')')?;
        return Some(json!({ "type": "reasoning", "content": text(content)?, "providerId": provider }));
    }
    let Some(call) = written.strip_prefix(':') else {
        let (origin, content) = bracketed(written).unwrap_or(("agent", written));
        return Some(json!({ "type": "message", "content": text(content)?, "origin": origin }));
    };
    let (call, rest) = call.split_at(call.find(|c: char| !c.is_alphanumeric())?);
    if let Some((keys, rest)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
        let arguments: serde_json::Map<String, Value> =
            keys.split(',').filter(|key| !key.is_empty()).map(|key| (key.to_owned(), json!(1))).collect();
        let name = bracketed(rest).map_or("n", |(name, _)| name);
        return Some(json!({ "type": "function_call", "name": name, "callId": call, "arguments": arguments }));
    }
    let is_error = rest.starts_with('!');
    let output = text(rest.trim_start_matches('!').strip_prefix('=')?)?;
    Some(json!({ "type": "function_call_output", "callId": call, "output": output, "isError": is_error }))
}

fn show(emission: &Emission, words: bool) -> String {
    let turn = match emission.turn_id().as_str() {
        "t" => String::new(),
        other => format!("{other}."),
    };
    let shown = match emission {
        Emission::Upsert(upsert) => show_upsert(upsert, words),
        Emission::Turn(TurnEvent::Started { .. }) => "S".to_owned(),
        Emission::Turn(TurnEvent::Complete { status: TurnStatus::Completed, .. }) => "C".to_owned(),
        Emission::Turn(TurnEvent::Complete { status: TurnStatus::Cancelled, .. }) => "Cx".to_owned(),
        Emission::Turn(TurnEvent::Error { error_code, error_message, .. }) => {
            format!("E({})", show_error(error_code, Some(error_message)))
        }
    };
    turn + &shown
}

fn show_error(code: &str, message: Option<&str>) -> String {
    match message {
        Some(message) if message != format!("about {code}") => format!("{code}, {message}"),
        Some(_) | None => code.to_owned(),
    }
}

fn show_upsert(upsert: &Upsert, words: bool) -> String {
    let (status, error) = match &upsert.status {
        Status::Create => ("c", String::new()),
        Status::Update => ("u", String::new()),
        Status::Complete { incomplete: false } => ("x", String::new()),
        Status::Complete { incomplete: true } => ("x*", String::new()),
        Status::Error { code, message } => ("!", format!(" ({})", show_error(code, message.as_deref()))),
    };
    let text = |text: &Text| {
        if words { format!("*{}", text.to_string().split(' ').count() - 1) } else { quoted(text) }
    };
    let item = match &upsert.item {
        Item::Message { content, origin: Origin::Agent } => text(content),
        Item::Message { content, origin: Origin::User } => format!("(user){}", text(content)),
        Item::Message { content, origin: Origin::System } => format!("(system){}", text(content)),
        Item::Thinking { content, provider_id } => {
            format!(":r({}){}", provider_id.as_ref().map_or("", ProviderId::as_str), text(content))
        }
        Item::ToolCall(call) => show_call(call),
    };
    let millis = upsert.emitted_at.unix_millis();
    let at = if millis == 0 { String::new() } else { format!(" at {millis}") };
    format!("{status} {}{item}@{}{error}{at}", upsert.item_id, number_of(upsert.source_timestamp))
}

fn show_call(call: &ToolCall) -> String {
    let keys: Vec<&str> = call.arguments.as_map().keys().map(String::as_str).collect();
    let name = if call.name.as_str() == "n" { String::new() } else { format!("({})", call.name) };
    let output = match &call.output {
        Some(output) => format!("{}={}", if output.is_error { "!" } else { "" }, quoted(&output.text)),
        None => String::new(),
    };
    format!(":{}{{{}}}{name}{output}", call.call_id, keys.join(","))
}

/// Formats the text as JSON, with invisible characters as escapes.
fn quoted(text: &Text) -> String {
    let mut quoted = String::new();
    for character in serde_json::to_string(text).expect("a string is JSON").chars() {
        if character == ' ' || character.is_ascii_graphic() {
            quoted.push(character);
        } else {
            quoted.push_str(&format!("\\u{:04x}", u32::from(character)));
        }
    }
    quoted
}

fn number_of(at: SourceTimestamp) -> u32 {
    let digits = at.as_str().split(['.', 'Z']).nth(1).unwrap_or_default();
    digits.parse().expect("the runner writes three digits")
}

fn dropped(counts: &DroppedCounts) -> String {
    let DroppedCounts { late, orphan_delta, orphan_error, duplicate_output, duplicate_call, cancelled_item } = *counts;
    let kinds = [
        ("late", late),
        ("orphan_delta", orphan_delta),
        ("orphan_error", orphan_error),
        ("duplicate_output", duplicate_output),
        ("duplicate_call", duplicate_call),
        ("cancelled_item", cancelled_item),
    ];
    let listed: Vec<String> =
        kinds.iter().filter(|(_, count)| *count > 0).map(|(kind, count)| format!("{kind} {count}")).collect();
    if listed.is_empty() { "drop nothing".to_owned() } else { format!("drop {}", listed.join(", ")) }
}
