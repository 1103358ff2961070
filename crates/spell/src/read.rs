//! The keys of a spell, and how each is read.

use std::path::PathBuf;

use cantrip_circle::{MediumKind, Wards};
use cantrip_crystal::tree::NodeValue;
use cantrip_crystal::{Effort, ModelName, ProfileRow, RetryPolicy, Sampling, ToolChoice};
use cantrip_loom::Strategy;
use cantrip_medium_shell::SHELL;
use serde_json::{Value, json};
use url::Url;

use crate::gates::{GateKind, GateSpell, duration, gates, read_inline_or_file};
use crate::limits::{BYTES_PER_TOKEN_MAX, SPELL_TURNS, WINDOW_TOKENS_MIN};
use crate::toml_tree::{Issues, Table, suggestion};
use crate::{ShellSpell, Spell, VerifySpell};
use cantrip::Call;
use cantrip::fold::FoldOptions;

/// An example of a crystal.
const CRYSTAL: &str = "\"anthropic/claude-sonnet-4-5\"";

/// An example of an address.
const BASE_URL: &str = "\"https://gateway.example/v1\"";

const TOP: [&str; 13] = [
    "name",
    "crystal",
    "medium",
    "answer_schema",
    "park",
    "fenced",
    "call",
    "gates",
    "wards",
    "folding",
    "retry",
    "verify",
    "$schema",
];

/// Reads the whole spell; faults are collected, and nothing is opened.
pub(super) fn spell(table: &Table<'_>, file: &str, folder: PathBuf, issues: &mut Issues) -> Option<Spell> {
    table.only(&TOP, issues);
    let name = name(table, file, issues);
    let crystal = crystal(table, issues);
    let medium = medium(table, issues);
    let (call, prompt_files) =
        table.table("call", issues).map_or_else(Default::default, |call| self::call(&call, issues));
    let mut gates = table.table("gates", issues).map_or_else(Vec::new, |table| gates(&table, issues));
    let wards = wards(table, issues);
    let (folding, folding_crystal) =
        table.table("folding", issues).map_or_else(Default::default, |folding| self::folding(&folding, issues));
    let retry = table.table("retry", issues).map_or_else(RetryPolicy::default, |retry| self::retry(&retry, issues));
    let verify = table.table("verify", issues).and_then(|verify| self::verify(&verify, issues));
    let (park, fenced) = (table.flag("park", issues).unwrap_or(true), table.flag("fenced", issues).unwrap_or(false));
    let answer_schema = read_inline_or_file(table, "answer_schema", issues);
    // All parts have been checked at this point.
    let CrystalSettings { name: crystal, fallback, base_url, profile } = crystal?;
    if crystal.needs_code() && !medium.is_code() {
        let rule = format!("{crystal} says a program, and {medium} runs none: write medium = \"javascript\"");
        table.fault("crystal", rule, issues);
    }
    if !gates.iter().any(|gate| gate.name == "done") {
        gates.insert(0, GateSpell::plain("done"));
    }
    // A circle whose medium is the shell needs the shell gate.
    if medium == MediumKind::Shell && !gates.iter().any(|gate| gate.name == SHELL) {
        gates.push(GateSpell { kind: GateKind::Shell(ShellSpell::default()), ..GateSpell::plain(SHELL) });
    }
    let hidden = !medium.is_code() && gates.iter().any(|gate| gate.ephemeral);
    if hidden && !gates.iter().any(|gate| gate.name == "loom") {
        gates.push(GateSpell::plain("loom"));
    }
    Some(Spell {
        name,
        file: file.to_owned(),
        folder,
        crystal,
        fallback,
        base_url,
        profile,
        medium,
        call,
        prompt_files,
        gates,
        wards,
        folding,
        folding_crystal,
        retry,
        park,
        fenced,
        answer_schema,
        verify,
    })
}

/// Reads the spell's name. It is also the name of its loom, so only characters that are safe in a path and on a page
/// are allowed.
fn name(table: &Table<'_>, file: &str, issues: &mut Issues) -> String {
    let stem = || file.rsplit('/').next().unwrap_or(file).trim_end_matches(".toml").to_owned();
    let name = table.text("name", "\"analyst\"", issues).map_or_else(stem, str::to_owned);
    if let Some(rule) = name_fault(&name) {
        table.fault("name", rule, issues);
    }
    name
}

/// Returns the fault of a spell's name, if any.
pub(super) fn name_fault(name: &str) -> Option<String> {
    let fits = |letter: char| letter.is_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let starts = name.chars().next().is_some_and(char::is_alphanumeric);
    let sound = starts && name.len() <= 128 && name.chars().all(fits);
    let shown: String = name.chars().take(64).collect();
    (!sound).then(|| {
        format!("{shown:?} cannot name a spell: letters, digits, -, _ and ., beginning with a letter or digit")
    })
}

/// The crystal, and the properties for which the spell overrides the table of models.
struct CrystalSettings {
    name: ModelName,
    fallback: Vec<ModelName>,
    base_url: Option<Url>,
    profile: ProfileRow,
}

fn crystal(table: &Table<'_>, issues: &mut Issues) -> Option<CrystalSettings> {
    let Some(node) = table.get("crystal") else {
        issues.note(1, "crystal", format!("a spell needs one: write crystal = {CRYSTAL}"));
        return None;
    };
    if !matches!(node.shape, NodeValue::Map(_)) {
        let name = model_name(table.text("crystal", CRYSTAL, issues)?, node.line, "crystal", issues)?;
        return Some(CrystalSettings { name, fallback: Vec::new(), base_url: None, profile: ProfileRow::default() });
    }
    let inner = table.table("crystal", issues)?;
    inner.only(&["model", "fallback", "base_url", "window", "output_tokens", "tools", "bytes_per_token"], issues);
    let profile = profile(&inner, issues);
    let base_url = inner.text("base_url", BASE_URL, issues).map(|text| base_url(text, &inner, issues));
    let fallback = fallback(&inner, issues);
    if inner.get("model").is_none() {
        inner.fault("model", format!("it is missing: write model = {CRYSTAL}"), issues);
    }
    let name = model_name(inner.text("model", CRYSTAL, issues)?, inner.line_of("model"), "crystal", issues)?;
    if base_url.is_some() && !matches!(name, ModelName::Hosted { .. }) {
        inner.fault("base_url", format!("{name} has no other address: only a provider's model has"), issues);
    }
    Some(CrystalSettings { name, fallback, base_url: base_url.flatten(), profile })
}

/// Reads the crystals that are tried while the first one stays unavailable, in this order.
fn fallback(table: &Table<'_>, issues: &mut Issues) -> Vec<ModelName> {
    let names = table.texts("fallback", "[\"openai/gpt-5.5\"]", issues).unwrap_or_default();
    let line = table.line_of("fallback");
    names.iter().filter_map(|name| model_name(name, line, &table.key("fallback"), issues)).collect()
}

fn base_url(text: &str, table: &Table<'_>, issues: &mut Issues) -> Option<Url> {
    let rule = match Url::parse(text) {
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            "this is an address that begins with https://".to_owned()
        }
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "a key does not belong into an address".to_owned()
        }
        Ok(url) => return Some(url),
        Err(fault) => format!("not a valid address: {fault}; write base_url = {BASE_URL}"),
    };
    table.fault("base_url", rule, issues);
    None
}

fn model_name(written: &str, line: usize, key: &str, issues: &mut Issues) -> Option<ModelName> {
    match written.parse::<ModelName>() {
        Ok(ModelName::Human) => {
            issues.note(line, key, "a person as crystal is not in this version; name a model");
            None
        }
        Ok(name) => Some(name),
        Err(fault) => {
            issues.note(line, key, fault.to_string());
            None
        }
    }
}

/// Reads the spell's properties of its crystal.
fn profile(table: &Table<'_>, issues: &mut Issues) -> ProfileRow {
    let row = ProfileRow {
        window: table.whole("window", "32000", issues),
        output_tokens_max: table
            .whole("output_tokens", "4096", issues)
            .map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
        tools: table.flag("tools", issues),
        bytes_per_token: table.number("bytes_per_token", "3.3", issues),
        ..ProfileRow::default()
    };
    if row.window.is_some_and(|window| window < WINDOW_TOKENS_MIN) {
        let rule = format!("a window of less than {WINDOW_TOKENS_MIN} tokens has no room for a task and its answer");
        table.fault("window", rule, issues);
    }
    if row.output_tokens_max == Some(0) {
        table.fault("output_tokens", "no answer has no tokens", issues);
    }
    if row.bytes_per_token.is_some_and(|bytes| !(1.0..=f64::from(BYTES_PER_TOKEN_MAX)).contains(&bytes)) {
        let rule = format!("bytes_per_token is out of range: write a number from 1 to {BYTES_PER_TOKEN_MAX}");
        table.fault("bytes_per_token", rule, issues);
    }
    row
}

fn medium(table: &Table<'_>, issues: &mut Issues) -> MediumKind {
    let Some(written) = table.text("medium", "\"javascript\"", issues) else { return MediumKind::default() };
    match written.parse() {
        Ok(medium @ (MediumKind::Conversation | MediumKind::Javascript | MediumKind::Python | MediumKind::Shell)) => {
            medium
        }
        Ok(medium @ (MediumKind::Browser | MediumKind::Human)) => {
            let rule = format!(
                "the medium {medium} is not in this version; write \"conversation\", \"javascript\", \"python\" or \
                 \"shell\""
            );
            table.fault("medium", rule, issues);
            medium
        }
        Err(_) => {
            let known = MediumKind::ALL.map(MediumKind::as_str);
            table.fault("medium", format!("unknown medium{}", suggestion(written, &known)), issues);
            MediumKind::default()
        }
    }
}

fn call(table: &Table<'_>, issues: &mut Issues) -> (Call, Vec<String>) {
    table.only(
        &[
            "system_prompt",
            "system_prompt_files",
            "temperature",
            "top_p",
            "seed",
            "stop",
            "max_tokens",
            "effort",
            "thinking_tokens",
            "tool_choice",
            "require_done_tool",
        ],
        issues,
    );
    let mut call = Call::new().sampling(Sampling {
        temperature: table.number("temperature", "0.2", issues),
        top_p: table.number("top_p", "0.9", issues),
        seed: table.whole("seed", "7", issues),
        stop: table.texts("stop", "[\"END\"]", issues).unwrap_or_default(),
    });
    if let Some(prompt) = table.text("system_prompt", "\"You count words.\"", issues) {
        call = call.system_prompt(prompt);
    }
    if let Some(tokens) = tokens(table, "max_tokens", issues) {
        call = call.max_tokens(tokens);
    }
    let efforts = [("low", Effort::Low), ("medium", Effort::Medium), ("high", Effort::High)];
    if let Some(effort) = one_of(table, "effort", "effort", efforts, "\"medium\"", issues) {
        call = call.effort(effort);
    }
    if let Some(tokens) = tokens(table, "thinking_tokens", issues) {
        call = call.thinking_tokens(tokens);
    }
    let choices = [("auto", ToolChoice::Auto), ("required", ToolChoice::Required), ("none", ToolChoice::None)];
    if let Some(choice) = one_of(table, "tool_choice", "choice", choices, "\"auto\"", issues) {
        call = call.tool_choice(choice);
    }
    if table.flag("require_done_tool", issues).unwrap_or(false) {
        call = call.require_done_tool();
    }
    (call, table.texts("system_prompt_files", "[\"AGENTS.md\"]", issues).unwrap_or_default())
}

/// Reads a number of tokens, which cannot be 0.
fn tokens(table: &Table<'_>, name: &str, issues: &mut Issues) -> Option<u32> {
    let tokens = u32::try_from(table.whole(name, "4096", issues)?).ok().filter(|tokens| *tokens > 0);
    if tokens.is_none() {
        table.fault(name, "write a number of tokens from 1 to 4294967295", issues);
    }
    tokens
}

/// Reads one of these words. `what` is the noun for them in a message.
fn one_of<T, const N: usize>(
    table: &Table<'_>,
    name: &str,
    what: &str,
    known: [(&str, T); N],
    example: &'static str,
    issues: &mut Issues,
) -> Option<T> {
    let written = table.text(name, example, issues)?;
    let words = known.each_ref().map(|(word, _)| *word);
    let found = known.into_iter().find(|(word, _)| *word == written);
    if found.is_none() {
        table.fault(name, format!("unknown {what}{}", suggestion(written, &words)), issues);
    }
    found.map(|(_, value)| value)
}

/// Reads the wards as they are written, and adds a limit of turns if there is none.
fn wards(table: &Table<'_>, issues: &mut Issues) -> Value {
    let Some(node) = table.get("wards") else { return json!({ "max_turns": SPELL_TURNS }) };
    let Some(inner) = table.table("wards", issues) else { return Value::Null };
    let mut written = node.to_value();
    match Wards::parse(&written) {
        Ok(wards) => {
            if !wards.truncates()
                && let Value::Object(table) = &mut written
            {
                table.insert("max_turns".to_owned(), SPELL_TURNS.into());
            }
        }
        Err(faults) => {
            for fault in faults {
                let key = fault.path.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
                inner.fault(&key, fault.to_string(), issues);
            }
        }
    }
    written
}

fn folding(table: &Table<'_>, issues: &mut Issues) -> (FoldOptions, Option<ModelName>) {
    table.only(&["strategy", "trigger_after_turns", "window_share", "crystal"], issues);
    let strategies = [("window", Strategy::Window), ("summary", Strategy::Summary), ("selective", Strategy::Selective)];
    let strategy = one_of(table, "strategy", "strategy", strategies, "\"window\"", issues).unwrap_or(Strategy::Window);
    let crystal = match (table.text("crystal", CRYSTAL, issues), strategy) {
        (None, _) => None,
        (Some(written), Strategy::Summary) => {
            model_name(written, table.line_of("crystal"), &table.key("crystal"), issues)
        }
        (Some(_), Strategy::Window | Strategy::Selective) => {
            let rule = "only folding by summary asks a crystal: write strategy = \"summary\", or leave it out";
            table.fault("crystal", rule, issues);
            None
        }
    };
    let folding = FoldOptions {
        trigger_after_turns: table.whole("trigger_after_turns", "20", issues),
        window_share: table.number("window_share", "0.8", issues).unwrap_or(FoldOptions::default().window_share),
        strategy,
    };
    for fault in folding.faults() {
        issues.note(table.line, "folding", fault.to_string());
    }
    (folding, crystal)
}

/// Reads the settings of the program that verifies answers.
fn verify(table: &Table<'_>, issues: &mut Issues) -> Option<VerifySpell> {
    table.only(&["command", "timeout"], issues);
    let timeout = duration(table, "timeout", issues);
    let command = table.texts("command", "[\"./check.sh\"]", issues).unwrap_or_default();
    if command.first().is_none_or(|program| program.trim().is_empty()) {
        issues.note(table.line, table.key("command"), "it names no program: write command = [\"./check.sh\"]");
        return None;
    }
    Some(VerifySpell { command, timeout })
}

fn retry(table: &Table<'_>, issues: &mut Issues) -> RetryPolicy {
    table.only(&["max_retries", "retryable_status_codes", "base_ms", "cap_ms", "empty_response"], issues);
    let plain = RetryPolicy::default();
    let count =
        |value: Option<u64>, unless: u32| value.map_or(unless, |value| u32::try_from(value).unwrap_or(u32::MAX));
    let mut codes = plain.retryable_status_codes.clone();
    if let Some(node) = table.get("retryable_status_codes") {
        match serde_json::from_value(node.to_value()) {
            Ok(written) => codes = written,
            Err(_) => {
                let rule = "this is a list of HTTP statuses, as in retryable_status_codes = [429, 503]";
                issues.note(node.line, table.key("retryable_status_codes"), rule);
            }
        }
    }
    RetryPolicy {
        max_retries: count(table.whole("max_retries", "5", issues), plain.max_retries),
        retryable_status_codes: codes,
        base_ms: table.whole("base_ms", "1000", issues).unwrap_or(plain.base_ms),
        cap_ms: table.whole("cap_ms", "60000", issues).unwrap_or(plain.cap_ms),
        empty_response: count(table.whole("empty_response", "0", issues), plain.empty_response),
    }
}
