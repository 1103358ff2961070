//! Which outcomes are there?
//!
//! One table. Everything else is derived from it: the typed constants and functions in [`codes`], the keys, the list
//! that `cantrip codes` prints and the page in the documentation. Codes kept beside the gates that use them were
//! rejected: a reader could not see that two of them mean the same, and numbers would be used twice.
//!
//! A code is never reused, renumbered, or given another type, key or advice; adding one raises the minor version.

use serde::Serialize;

use crate::check::{Entry, TableFault, first_fault};
use crate::code::{Advice, AnyCode, Area, Layer, Parts, ReplyType};

/// The version of the registry. Each added code raises the minor part; the major part would mean another grammar.
pub const VERSION: &str = "1.6";

/// The registry row of one code.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct CodeRow {
    pub code: &'static str,
    /// A unique key: the name of the constant in lower case.
    pub key: &'static str,
    pub layer: Layer,
    pub area: Area,
    #[serde(rename = "type")]
    pub reply_type: ReplyType,
    /// The message template, with its fields in braces.
    pub message: &'static str,
    /// The fields of the message, in their order. The data of a reply always has them.
    pub fields: &'static [&'static str],
    pub when: &'static str,
    /// None for a success.
    pub retry: Option<Advice>,
}

/// The whole registry, as `cantrip codes --json` prints it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Registry {
    pub version: &'static str,
    pub codes: &'static [CodeRow],
}

/// Returns the registry; there is only one.
pub const fn registry() -> Registry {
    Registry { version: VERSION, codes: ROWS }
}

/// Returns the code with this key.
pub fn by_key(key: &str) -> Option<AnyCode> {
    AnyCode::all().find(|code| code.row().key == key)
}

pub use crate::page::markdown;

pub(crate) const ROWS: &[CodeRow] = &rows();

const fn rows() -> [CodeRow; ENTRIES.len()] {
    match first_fault(ENTRIES) {
        None => {}
        Some(TableFault::Grammar) => panic!("a code breaks the grammar, or its layer may not answer with its type"),
        Some(TableFault::OtherType) => panic!("the type beside a code is not the one in it"),
        Some(TableFault::Key) => panic!("a key is not snake_case"),
        Some(TableFault::Constant) => panic!("a constant is not named as its key"),
        Some(TableFault::Fields) => panic!("a code's fields are not those of its message, each once, in snake_case"),
        Some(TableFault::Message) => panic!("a message is empty, not plain text, or ends in a full stop"),
        Some(TableFault::When) => panic!("a row does not say when, or not in plain text"),
        Some(TableFault::Advice) => panic!("a success has advice, or another type has none"),
        Some(TableFault::CodeTwice) => panic!("a code stands twice"),
        Some(TableFault::KeyTwice) => panic!("a key stands twice"),
        Some(TableFault::Gap) => panic!("the numbers of a layer, area and type have a gap"),
    }
    let mut rows = [row(&ENTRIES[0]); ENTRIES.len()];
    let mut at = 0;
    while at < ENTRIES.len() {
        rows[at] = row(&ENTRIES[at]);
        at += 1;
    }
    rows
}

const fn row(entry: &Entry) -> CodeRow {
    let Ok(Parts { layer, area, reply_type, number: _ }) = Parts::parse(entry.code.as_bytes()) else {
        panic!("the table was found to be sound")
    };
    let Entry { code, key, message, fields, when, advice, .. } = *entry;
    CodeRow { code, key, layer, area, reply_type, message, fields, when, retry: advice }
}

macro_rules! advice {
    (-) => {
        None
    };
    ($advice:ident) => {
        Some(Advice::$advice)
    };
}

/// Each row: code, type, constant, key with the fields of the message, advice, message, when.
macro_rules! registry {
    ($(
        $code:literal $outcome:ident $constant:ident $key:ident($($field:ident),*) $advice:tt
            $message:literal
            $when:literal;
    )+) => {
        const ENTRIES: &[Entry; [$($code),+].len()] = &[$(Entry {
            code: $code,
            reply_type: ReplyType::$outcome,
            constant: stringify!($constant),
            key: stringify!($key),
            fields: &[$(stringify!($field)),*],
            advice: advice!($advice),
            message: $message,
            when: $when,
        }),+];

        /// The place of each code in the table.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "named as the constants of the codes")]
        enum Place {
            $($constant),+
        }

        /// The codes: for each code a constant, and a function that fills its message.
        ///
        /// A field accepts everything that serializes: text, numbers, money, ids, JSON. A secret does not serialize
        /// and so cannot be a field.
        ///
        /// ```
        /// use cantrip_reply::{Reply, ReplyBuilder, codes};
        ///
        /// fn open(rb: ReplyBuilder, path: &str) -> Reply {
        ///     rb.invalid(codes::file_missing(path))
        /// }
        /// ```
        ///
        /// A missing field does not compile:
        ///
        /// ```compile_fail,E0061
        /// use cantrip_reply::{Reply, ReplyBuilder, codes};
        ///
        /// fn open(rb: ReplyBuilder, path: &str) -> Reply {
        ///     rb.invalid(codes::file_missing())
        /// }
        /// ```
        pub mod codes {
            use cantrip_canon::json::to_value;
            use serde::Serialize;

            use crate::code::{Code, Denied, Failure, Invalid, Success};
            use crate::draft::ReplyDraft;

            $(
                #[doc = concat!("`", $code, "` ", $message, "\n\n", $when)]
                pub const $constant: Code<$outcome> = Code::at(super::Place::$constant as usize);

                #[doc = concat!("`", $code, "` ", $message, "\n\n", $when)]
                pub fn $key($($field: impl Serialize),*) -> ReplyDraft<$outcome> {
                    ReplyDraft::of($constant, [$((stringify!($field), to_value(&$field))),*])
                }
            )+
        }
    };
}

registry! {
    "WA-RES-I-001" Invalid GATE_UNKNOWN gate_unknown(gate) FixAndRetry
        "gate not available: {gate} is not in this circle"
        "the gate does not exist in this circle; data `nearest` has the closest name";
    "WA-RES-I-002" Invalid NOT_FOUND not_found(kind, id) FixAndRetry
        "{kind} {id} not found"
        "no turn, entity, loom, run, receipt, report, approval, reservation, crystal, route, method or command has this id or name (a thread is named by its turn or entity); or a shortened id matches several, then data `matches` is above 1";
    "WA-RES-I-003" Invalid TARGET_UNUSABLE target_unusable(target, rule) FixAndRetry
        "{target} cannot be used here: {rule}"
        "a malformed path, a folder where a file is needed, a file that is not text, a range past the end, a missing parent folder; a URL that is not http(s) or whose host does not resolve; a gate called as a tool in a code medium";
    "WA-READ-S-001" Success READ read(what) -
        "read {what}"
        "something was read: by the gates read, list, search, loom or fetch, by an `ls` or `show`, by an export, a diff or a preview";
    "WA-READ-I-001" Invalid FILE_MISSING file_missing(path) FixAndRetry
        "{path} does not exist"
        "the file does not exist; this is answered only if reading it is allowed";
    "WA-READ-I-002" Invalid CURSOR_STALE cursor_stale(cursor, oldest) FixAndRetry
        "cursor {cursor} is older than {oldest}, the oldest kept"
        "the cursor of a page or a feed points to entries that are no longer kept";
    "WA-READ-I-003" Invalid CURSOR_INVALID cursor_invalid(cursor, rule) FixAndRetry
        "cursor {cursor} is not valid for this run: {rule}"
        "the cursor is not a number, is ahead of the newest entry, or two different cursors were given";
    "WA-WRITE-I-001" Invalid EDIT_MISMATCH edit_mismatch(count, path, wanted) FixAndRetry
        "the text to replace occurs {count} times in {path}, wanted {wanted}"
        "the gate edit found its text another number of times than it was told to replace";
    "WA-IO-E-001" Failure IO_FAILED io_failed(operation, path, cause) Stop
        "{operation} on {path} failed: {cause}"
        "an operation of the operating system on a file failed";
    "WA-PARSE-I-001" Invalid UNPARSABLE unparsable(subject, position, detail) FixAndRetry
        "{subject} cannot be parsed at {position}: {detail}"
        "gate arguments, an HTTP or JSON-RPC body, a spell, a script, an imported line or a search pattern is not well-formed";
    "WA-PARSE-I-002" Invalid CODE_SYNTAX code_syntax(medium, line, detail) FixAndRetry
        "{medium} syntax error at line {line}: {detail}"
        "the program that the entity wrote does not compile";
    "WA-VAL-I-001" Invalid SCHEMA schema(subject, path, rule) FixAndRetry
        "{subject} does not fit its schema at {path}: {rule}"
        "gate arguments, a body or query parameters do not match their schema; `path` is a JSON Pointer";
    "WA-VAL-I-002" Invalid DONE_MALFORMED done_malformed(rule) FixAndRetry
        "done was not accepted: {rule}"
        "done was called without an answer, more than once, or with an answer that does not match `answer_schema` (data `violations`), or the verifier failed, then `rule` is its output; the cast goes on";
    "WA-VAL-I-003" Invalid LIMIT limit(what, actual, limit) FixAndRetry
        "{what} is {actual}, the limit is {limit}"
        "a batch of more than 50, or a body that is too large, too deep or too long; for a dataset that is too small, the limit is the minimum";
    "WA-EXEC-S-001" Success GATE_OK gate_ok(gate) -
        "{gate} done"
        "a program ran to its end, done or echo was called, a person answered `ask_human`, a shell command ended with any exit status, an external gate answered";
    "WA-EXEC-I-001" Invalid CODE_THREW code_threw(error, line) FixAndRetry
        "{error} at line {line}"
        "the program of an entity threw an error and did not catch it";
    "WA-EXEC-I-002" Invalid GATE_REPORTED gate_reported(gate, detail) FixAndRetry
        "{gate} reported: {detail}"
        "an external gate reports that the request was wrong: an MCP tool with `isError`, a command that answers with an error object or ends with a status other than 0, an HTTP 4xx; with `on_error = \"error\"` the gate answers MCP-EXEC-E-001 instead";
    "WA-LOG-S-001" Success VERIFIED verified(what, count) -
        "{what} verified, {count} records"
        "a replay of a thread or policy was identical; a loom, receipts or spend were verified";
    "WA-LOG-I-001" Invalid APPEND_ONLY append_only(operation) Stop
        "loom is append-only: {operation} refused"
        "a request to delete or change a record";
    "WA-LOG-I-002" Invalid NOT_RESTORABLE not_restorable(medium, turn) FixAndRetry
        "the {medium} environment at turn {turn} is not restorable; ask for environment: fresh"
        "a fork of a shell or browser needs its environment, which cannot be restored";
    "WA-LOG-E-001" Failure REPLAY_DIVERGED replay_diverged(turn, call) Stop
        "replay differs at turn {turn}, call {call}"
        "`loom replay` found a difference from the record; data has its `kind` and both sides";
    "WA-CFG-I-001" Invalid CONFIG_INVALID config_invalid(file, key, rule) FixAndRetry
        "{file}: {key}: {rule}"
        "a spell, a signature, the environment or the command line has an invalid or unknown setting, a feature is not in this build, or an address beyond loopback is to be bound without a token";
    "WA-CFG-I-002" Invalid CREDENTIALS_MISSING credentials_missing(provider, variable) FixAndRetry
        "no key for {provider}: set {variable}"
        "a provider's key is not set; this is checked before any request is sent";

    "EN-SYS-E-001" Failure POLICY_FAILED policy_failed(subject) Stop
        "the decision on {subject} could not be made"
        "a ward or the policy evaluator itself failed; nothing is executed";
    "EN-VIS-D-001" Denied GATE_REMOVED gate_removed(gate, ward) AskScope
        "gate not available: {gate} is removed by ward {ward}"
        "`remove_gate` removed it, or `max_depth` is 0 and it is a `call_agent` gate";
    "EN-READ-D-001" Denied READ_REFUSED read_refused(target, gate, rule) AskScope
        "{target} is outside what {gate} may read: {rule}"
        "the rule is `root` or `restrict`, or for the gate loom `not_own`";
    "EN-WRITE-S-001" Success WRITTEN written(bytes, path) -
        "wrote {bytes} bytes to {path}"
        "the gates write and edit changed a file";
    "EN-WRITE-D-001" Denied WRITE_REFUSED write_refused(path, gate, rule) AskScope
        "{path} is outside what {gate} may write: {rule}"
        "the rule is `root`, `restrict` or `read_only`";
    "EN-WRITE-D-002" Denied WRITE_PROTECTED write_protected(path, gate, danger) AskScope
        "{path} may be written by {gate} only if a person allows it: {danger}"
        "the file affects later casts (a spell, `cantrip.toml`, `AGENTS.md`), and no person can be asked, or the path is a link to such a file";
    "EN-IO-D-001" Denied ADDRESS_REFUSED address_refused(host, reason) AskScope
        "{host} may not be reached: {reason}"
        "fetch, an HTTP gate or the browser; the reason is `private_address` (loopback and link-local too), `metadata_endpoint`, `host_not_allowed`, `method_not_allowed`, `dns_pin_mismatch`, `redirect_limit_exceeded`, `redirect_missing_location` or `redirect_invalid_location`";
    "EN-IO-D-002" Denied REQUEST_REFUSED request_refused(request, rule) AskScope
        "this server does not answer {request}: {rule}"
        "the server runs without tokens, and the `Host` of a request, or the page that sent it, is not a loopback name";
    "EN-CFG-D-001" Denied PRICE_UNKNOWN price_unknown(model, limit) AskScope
        "{model} has no price, so {limit} cannot be kept"
        "under a limit on money, a predict or a child would use a model without a known price";
    "EN-CFG-D-002" Denied ADDRESS_UNCONFIRMED address_unconfirmed(address, provider, command) AskScope
        "{address} is not the address of {provider} and gets no key before you confirm it once: {command}"
        "a spell sets another address for a provider, and you have not confirmed it yet";
    "EN-GATE-D-001" Denied CALLS_SPENT calls_spent(limit, span) Wait
        "the {limit} calls of this {span} are used up"
        "`max_gate_calls` of an utterance is reached, or the number of sub-calls of an `rlm_lite.v1` predict";
    "EN-GATE-D-002" Denied CANNOT_GRANT cannot_grant(gate) AskScope
        "cannot grant gate {gate}: the parent does not hold it"
        "a child was to get a gate that its parent does not have";
    "EN-GATE-D-003" Denied APPROVAL_REFUSED approval_refused(actor, subject, reason) AskScope
        "{actor} refused {subject}: {reason}"
        "a person refused: under `require_approval`, ward `trifecta`, mode `interactive`, or above the threshold";
    "EN-GATE-D-004" Denied NO_DECISION no_decision(subject, seconds) AskScope
        "nobody decided on {subject} within {seconds} s"
        "an approval, or a question to a person, expired without a decision";
    "EN-GATE-D-005" Denied TRIFECTA trifecta(gate, remedy) AskScope
        "{gate} would join private data, untrusted content and a way out; {remedy}"
        "the call would combine all three labels under ward `trifecta`, and no person can be asked; data `touched` has the labels so far, `toml` the line that labels the gate";
    "EN-GATE-D-006" Denied NOT_AUTHORIZED not_authorized(subject, reason) AskScope
        "no authorization covers {subject}: {reason}"
        "there is no authorization, or it belongs to another owner or scope, its mode is `deny`, the policy denies the call, or the gate, provider, model or currency is not allowed";
    "EN-GATE-D-007" Denied BUDGET_SPENT budget_spent(needed, remaining, authorization) AskScope
        "{needed} is more than the {remaining} left of {authorization}"
        "the total of the authorization, or the budget of the root cast, would be exceeded";
    "EN-GATE-D-008" Denied PER_CALL per_call(needed, limit) AskScope
        "{needed} is more than {limit} for one call"
        "the limit for a single call would be exceeded";
    "EN-GATE-D-009" Denied PER_DAY per_day(needed, limit) Wait
        "{needed} would pass {limit} for the day"
        "the limit for a day would be exceeded; data `resets_at` says when the next day starts";
    "EN-GATE-D-010" Denied EXPIRED expired(authorization, at) AskScope
        "authorization {authorization} expired at {at}"
        "a reservation after the authorization expired";
    "EN-GATE-D-011" Denied REVOKED revoked(authorization, at) AskScope
        "authorization {authorization} was revoked at {at}"
        "a reservation after the authorization was revoked";
    "EN-GATE-D-012" Denied RECONCILE_FIRST reconcile_first(reservation) Stop
        "{reservation} of an earlier attempt is not reconciled"
        "the same call again, while the reservation of the first is `reconcile_required`";
    "EN-EXEC-D-001" Denied WARD_REACHED ward_reached(ward, limit) AskScope
        "ward {ward} ended the cast at {limit}"
        "`max_turns`, `timeout`, `max_tokens` or `max_cost` was reached; also the reply of a gate or program that was interrupted by it, and of a predict without an answer (`no_answer`)";
    "EN-EXEC-D-002" Denied LOOP_DETECTED loop_detected(pattern, count) Stop
        "the same {pattern} came {count} times"
        "ward `loop_detected` found the same turn several times in a row, or two turns that alternate; or, without that ward, the same text came three times without a call (`repeated_text`)";
    "EN-EXEC-D-003" Denied ENDED_FROM_OUTSIDE ended_from_outside(actor, reason) Stop
        "ended by {actor}: {reason}"
        "the reason is `cancelled` or `parent_terminated`";
    "EN-EXEC-D-004" Denied ANSWER_CUT answer_cut(crystal, limit) FixAndRetry
        "{crystal} was cut off at the limit of its output (asked for at most {limit} tokens) before it said anything; raise `max_tokens` of the call, or lower its `effort` or `thinking_tokens`"
        "a thinking model used its whole output limit for thinking, without text and without a call; the cast ends truncated";
    "EN-LOG-E-001" Failure LEDGER_BROKEN ledger_broken(authorization, detail) Stop
        "the ledger of {authorization} does not add up: {detail}"
        "found while settling or by `spend verify`; data has both numbers";

    "CT-GATE-S-001" Success TERMINATED terminated(entity) -
        "{entity} finished"
        "a cast ended with done or with text; data `answer`";
    "CT-GATE-S-002" Success CREATED created(kind, id) -
        "{kind} {id} created"
        "a run, entity, fork, authorization, signature, artifact, pointer, dataset, job or import was created; data `state` and `replayed`";
    "CT-GATE-S-003" Success CHANGED changed(kind, id, state) -
        "{kind} {id} is now {state}"
        "something was cancelled, approved, refused, revoked, reconciled, rewarded or disposed, or a pointer was set, given a canary, promoted or rolled back";
    "CT-GATE-I-001" Invalid CONTRACT_INVALID contract_invalid(fault) FixAndRetry
        "{fault}"
        "a cantrip has no crystal, circle, done gate, truncation ward, medium or intent, or has a gate twice, an unusable schema, an unknown ward, or under `max_cost` a crystal without a price; the message has the first fault, data has all";
    "CT-GATE-I-002" Invalid IMMUTABLE immutable(kind) FixAndRetry
        "{kind} is immutable"
        "the call would change, or an artifact, a version of a signature, an import id or an idempotency key was used again with other content";
    "CT-GATE-I-003" Invalid WRONG_STATE wrong_state(kind, id, state, operation, wanted) FixAndRetry
        "{kind} {id} is {state}; {operation} needs {wanted}"
        "for example a run that has ended, a settled reservation, a disposed entity, an open turn to fork, an expired trace, a pointer without an earlier state";
    "CT-GATE-I-004" Invalid BUSY busy(kind, id, holder) Wait
        "{kind} {id} is held by {holder}"
        "a second send during a cast, a lease that another live process holds, an idempotency key whose first request is still running";
    "CT-GATE-I-005" Invalid VERSION_CONFLICT version_conflict(kind, id, actual, expected) FixAndRetry
        "{kind} {id} is at version {actual}, not {expected}"
        "someone else changed the pointer first";
    "CT-GATE-I-006" Invalid PROMOTE_GATE promote_gate(artifact, failed) FixAndRetry
        "{artifact} does not pass the promote gate: {failed}"
        "the conditions for a promotion are not met; data `failed` lists them";
    "CT-GATE-I-007" Invalid TEST_SPENT test_spent(dataset, looks) FixAndRetry
        "the test split of {dataset} was looked at {looks} times"
        "an evaluation beside a baseline after the last look that its test split allows; it needs fresh examples";
    "CT-GATE-E-001" Failure LEASE_LOST lease_lost(run, actual, held) Stop
        "run {run} belongs to epoch {actual}, this worker holds {held}"
        "a worker that lost its lease tried to write; it stops working on the run";
    "CT-RES-I-001" Invalid CONTRACT_UNKNOWN contract_unknown(kind, id) FixAndRetry
        "{kind} {id} is not registered"
        "there is no such signature, artifact, dataset, metric or evaluation, or the signature has no pointer";
    "CT-VAL-I-001" Invalid INPUT_SCHEMA input_schema(signature, path, rule) FixAndRetry
        "input of {signature} does not fit at {path}: {rule}"
        "the input of a predict does not match the schema of its signature";
    "CT-VAL-I-002" Invalid ARTIFACT_INCOMPATIBLE artifact_incompatible(artifact, signature, fault) FixAndRetry
        "{artifact} does not fit {signature}: {fault}"
        "a hash of the schema, prompt or program is missing or different (data `key` and both values), or the strategy is not supported";
    "CT-VAL-I-003" Invalid EXAMPLE_INVALID example_invalid(line, subject, path, rule) FixAndRetry
        "line {line} is no example of {subject} at {path}: {rule}"
        "a file of examples was to be imported; the message has the first fault, data `faults` the first 100";
    "CT-VAL-I-004" Invalid METRIC_INVALID metric_invalid(metric, rule) FixAndRetry
        "metric {metric}: {rule}"
        "a metric has an unknown type or option, a bad pointer or pattern, or source that does not compile, or it is `prefer.v1` without a baseline";
    "CT-VAL-E-001" Failure OUTPUT_SCHEMA output_schema(signature, path, attempts) Stop
        "output of {signature} does not fit at {path} after {attempts} attempts"
        "no output of the model matched the schema";
    "CT-EXEC-S-001" Success PREDICTED predicted(signature) -
        "{signature} answered"
        "a predict succeeded; data `output`, `receipt_id`, `thread_id`, `replayed`";
    "CT-EXEC-S-002" Success EVALUATED evaluated(subject, score, count, split) -
        "{subject} scored {score} on {count} examples of {split}"
        "an evaluation succeeded; data `eval_id`, `verdict`, `report`";
    "CT-EXEC-S-003" Success COMPILED compiled(selected, count) -
        "{selected} is the best of {count} candidates"
        "a compile ended with a winner, also when its budget was spent; data `status`";
    "CT-EXEC-E-001" Failure JOB_FAILED job_failed(job, cause) Stop
        "{job} failed: {cause}"
        "a doctor check, a compile, an eval, an export or a conformance run failed";
    "CT-EXEC-E-002" Failure EVAL_INCOMPLETE eval_incomplete(count, total, reason) Stop
        "{count} of {total} trials could not be scored: {reason}"
        "more than 5% of the trials of one side have no score, or a judge changed its mind with the order of the two answers; data `report`";

    "MCP-SYS-S-001" Success OK ok(what) -
        "{what} ok"
        "health, doctor, codes, a migration or conformance succeeded";
    "MCP-SYS-E-001" Failure CRASH crash() Stop
        "unexpected failure"
        "a panic or an unhandled error, which is a bug; only the log has the detail";
    "MCP-SYS-E-002" Failure NOT_SERIALISABLE not_serialisable(tool) Stop
        "the reply of {tool} is not JSON"
        "the data has a NaN or a key that is not a string; data `of` is the code the reply would have had";
    "MCP-SYS-E-003" Failure TOO_LARGE too_large(tool, bytes, limit) Stop
        "the reply of {tool} has {bytes} bytes, the limit is {limit}"
        "the effect, if any, took place; data `of` is the code the reply would have had";
    "MCP-SYS-E-004" Failure CODE_MISUSED code_misused(tool, code, fault) Stop
        "{tool} used {code}: {fault}"
        "a code that is chosen at run time is not registered, has another type or lacks a field, or the data has a reserved key";
    "MCP-SYS-E-005" Failure TIMED_OUT timed_out(name, limit_ms) Wait
        "{name} did not finish within {limit_ms} ms"
        "the time limit of a gate, a provider call or a request was reached; the ward `timeout` is EN-EXEC-D-001";
    "MCP-SYS-E-006" Failure OVERLOADED overloaded(cause) Wait
        "not accepting work: {cause}"
        "the queue is full, or the process is shutting down";
    "MCP-SYS-E-007" Failure NO_PROGRESS no_progress(run, times) Stop
        "{run} was taken up {times} times, and each time its process ended before it got any further"
        "something in the run crashes the process that works on it; it waits for a person, and no server resumes it by itself";
    "MCP-GATE-I-001" Invalid UNAUTHENTICATED unauthenticated() FixAndRetry
        "a valid bearer token is needed"
        "an HTTP request from beyond loopback has no valid token";
    "MCP-IO-E-001" Failure UNREACHABLE unreachable(peer, cause) Wait
        "{peer} cannot be reached: {cause}"
        "a network error, or a 5xx after retries: fetch, an external gate, an MCP server, a provider, the store of traces";
    "MCP-IO-E-002" Failure RATE_LIMITED rate_limited(model, attempts) Wait
        "{model} is rate limited after {attempts} attempts"
        "the provider still answers 429 after retries; data `retry_after_ms`";
    "MCP-IO-E-003" Failure AUTH_FAILED auth_failed(peer) Stop
        "{peer} rejected the credentials"
        "a provider or another server answered 401 or 403";
    "MCP-IO-E-004" Failure CRYSTAL_REJECTED crystal_rejected(model, detail) Stop
        "{model} rejected the request: {detail}"
        "the provider answered 400 or 404, a script has no response left, a replayed thread has no answer left, or a message list has a tool result without its tool call";
    "MCP-IO-E-005" Failure STREAM_BROKEN stream_broken(model, cause) Wait
        "the answer of {model} broke off: {cause}"
        "the stream ended without its end mark, or could not be read, after retries";
    "MCP-VAL-E-001" Failure CONTEXT_TOO_LONG context_too_long(tokens, window) Stop
        "{tokens} tokens do not fit the window of {window}"
        "the message list does not fit even after folding";
    "MCP-VAL-E-002" Failure CRYSTAL_EMPTY crystal_empty() Stop
        "crystal returned neither content nor tool_calls"
        "a model must answer with text or with a call";
    "MCP-VAL-E-003" Failure DUPLICATE_CALL duplicate_call(tool_call_id) Stop
        "duplicate tool call ID {tool_call_id}"
        "the calls of one answer must have different ids";
    "MCP-VAL-E-004" Failure CALL_MISSING call_missing(attempts) Stop
        "no gate call came after {attempts} prompts"
        "`tool_choice` is `required`, and the model answered with text only";
    "MCP-EXEC-I-001" Invalid MEMORY_LIMIT memory_limit(limit, kind) FixAndRetry
        "the code used more than {limit} bytes of {kind}"
        "the heap or the stack of a sandbox is full";
    "MCP-EXEC-I-002" Invalid TIME_LIMIT time_limit(limit_ms, kind) FixAndRetry
        "the code ran longer than {limit_ms} ms of {kind} time"
        "one program reached its CPU or wall time";
    "MCP-EXEC-I-003" Invalid OUTPUT_LIMIT output_limit(limit) FixAndRetry
        "output passed {limit} bytes and the code was stopped"
        "the program printed more than its hard limit; output that is only shortened for display is a success";
    "MCP-EXEC-E-001" Failure GATE_FAILED gate_failed(gate, detail) Stop
        "gate {gate} failed: {detail}"
        "the gate failed unexpectedly: its command was killed, its endpoint answered 5xx, its result does not match its own schema";
    "MCP-EXEC-E-002" Failure SANDBOX_LOST sandbox_lost(medium) Wait
        "the {medium} sandbox stopped; it is rebuilt from the loom"
        "the sandbox crashed";
    "MCP-EXEC-E-003" Failure SANDBOX_UNAVAILABLE sandbox_unavailable(medium, cause) Stop
        "medium {medium} cannot start: {cause}"
        "bubblewrap, Chromium or the Python worker is not available";
    "MCP-EXEC-E-004" Failure CHILD_FAILED child_failed(entity, reason) Stop
        "child {entity} failed: {reason}"
        "a child did not finish; data `child` has the type and code of its end";
    "MCP-EXEC-E-005" Failure OUTCOME_UNKNOWN outcome_unknown(gate) Stop
        "outcome unknown: {gate} was started before a crash"
        "the call was running during a crash, and its gate is not idempotent; its reservation is `reconcile_required`";
    "MCP-EXEC-E-006" Failure CRYSTAL_REFUSED crystal_refused(model, reason) Stop
        "{model} refused to answer: {reason}"
        "the model or its content filter refused";
    "MCP-DB-E-001" Failure STORE_UNAVAILABLE store_unavailable(cause) Wait
        "the store cannot be reached: {cause}"
        "the store is locked, or the connection was lost";
    "MCP-DB-E-002" Failure STORE_FAILED store_failed(cause) Stop
        "the store failed: {cause}"
        "the disk is full, the file is corrupt, or its schema is newer than this binary";
    "MCP-LOG-E-001" Failure RECORD_ALTERED record_altered(what, id, field) Stop
        "{what} {id}: {field} does not match"
        "the hash chain, a receipt, a trace, an evaluation or a replayed policy decision differs from what was written";
}
