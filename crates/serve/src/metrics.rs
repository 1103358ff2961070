//! The metrics of a host, in the format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_service::cantrip::CastReply;
use cantrip_service::cantrip::events::{WaitTime, is_program_output};
use cantrip_service::cantrip::loom::Ending;
use cantrip_service::cantrip::reply::{AnyCode, ReplyType};
use cantrip_service::cantrip::stream::{FinalItem, Payload, StreamEvent};

/// Counters since the host was opened. Names and labels are few: none of them comes from a caller.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Counters>);

#[derive(Debug, Default)]
struct Counters {
    runs: u64,
    turns: u64,
    tokens_in: u64,
    tokens_out: u64,
    /// The cost in micro-units, by currency.
    cost: BTreeMap<String, i64>,
    /// The number of finished casts, by outcome.
    casts: BTreeMap<&'static str, u64>,
    /// The number of gate calls, by the type of their reply.
    gates: BTreeMap<&'static str, u64>,
    replies: BTreeMap<String, u64>,
    requests: BTreeMap<(String, String, u16), u64>,
    durations: BTreeMap<String, Histogram>,
    /// The durations of crystal requests, by the type of their reply.
    crystals: BTreeMap<&'static str, Histogram>,
    appends: Option<Histogram>,
}

/// Durations: the number of values within each bound.
#[derive(Debug)]
struct Histogram {
    bounds: &'static [f64],
    within: Vec<u64>,
    count: u64,
    sum: Duration,
}

/// The bounds for requests to this server, in seconds.
const REQUEST_BOUNDS: &[f64] = &[0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];
/// The bounds for requests to crystals, in seconds.
const CRYSTAL_BOUNDS: &[f64] = &[0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// The bounds for appends to the store, in seconds.
const APPEND_BOUNDS: &[f64] = &[0.0001, 0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 2.5];

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, within: vec![0; bounds.len()], count: 0, sum: Duration::ZERO }
    }

    fn add(&mut self, took: Duration) {
        self.count += 1;
        self.sum += took;
        for (within, bound) in self.within.iter_mut().zip(self.bounds) {
            *within += u64::from(took.as_secs_f64() <= *bound);
        }
    }

    /// Writes the histogram in the format of Prometheus; `labels` are the labels besides `le`.
    fn write(&self, text: &mut String, name: &str, labels: &str) {
        let comma = if labels.is_empty() { "" } else { "," };
        for (within, bound) in self.within.iter().zip(self.bounds) {
            let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {within}");
        }
        let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {}", self.count);
        let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(text, "{name}_sum{braces} {}", self.sum.as_secs_f64());
        let _ = writeln!(text, "{name}_count{braces} {}", self.count);
    }
}

impl Metrics {
    fn counters(&self) -> MutexGuard<'_, Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_begin(&self) {
        self.counters().runs += 1;
    }

    /// Counts an event of a run.
    pub(crate) fn count_event(&self, event: &StreamEvent) {
        match &event.payload {
            Payload::ResponseDone(done) => {
                let mut counted = self.counters();
                counted.turns += 1;
                if let Some(usage) = &done.usage {
                    counted.tokens_in += usage.input_tokens;
                    counted.tokens_out += usage.output_tokens;
                    if let Some(cost) = usage.cost {
                        *counted.cost.entry(cost.currency().to_string()).or_default() += cost.micros();
                    }
                }
            }
            Payload::ItemDone(done) => {
                if let FinalItem::FunctionCallOutput(output) = &done.final_item
                    && let Some(reply) = &output.reply
                    && let Ok(code) = AnyCode::parse(&reply.code)
                {
                    self.count_reply(code);
                    if is_program_output(&done.item_id) {
                        return;
                    }
                    *self.counters().gates.entry(code.reply_type().as_str()).or_default() += 1;
                }
            }
            Payload::ResponseStart(_)
            | Payload::ItemStart(_)
            | Payload::ItemDelta(_)
            | Payload::ItemError(_)
            | Payload::ItemCancelled(_)
            | Payload::ResponseError(_) => {}
        }
    }

    /// Counts the reply of a call: of a request, a gate, or a program.
    pub(crate) fn count_reply(&self, code: AnyCode) {
        *self.counters().replies.entry(code.to_string()).or_default() += 1;
    }

    pub(crate) fn count_request(&self, method: &str, route: &str, status: u16, took: Duration) {
        let mut counted = self.counters();
        // An unknown method must not become a label.
        let method = if matches!(method, "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "OPTIONS" | "PATCH") {
            method
        } else {
            "other"
        };
        *counted.requests.entry((method.to_owned(), route.to_owned(), status)).or_default() += 1;
        counted.durations.entry(route.to_owned()).or_insert_with(|| Histogram::new(REQUEST_BOUNDS)).add(took);
    }

    /// Counts a cast that stopped in this process.
    pub(crate) fn count_finished_cast(&self, reply: &CastReply) {
        let outcome = match reply.outcome.as_ref().map(|outcome| &outcome.ending) {
            Some(Ending::Terminated { .. }) => "terminated",
            Some(Ending::Truncated { reason, .. }) => reason.as_str(),
            None => match reply.reply().reply_type() {
                ReplyType::Success => "waiting",
                ReplyType::Invalid | ReplyType::Denied => "refused",
                ReplyType::Failure => "failed",
            },
        };
        *self.counters().casts.entry(outcome).or_default() += 1;
    }

    /// Counts the time that a cast has waited.
    pub(crate) fn count_wait(&self, waited: WaitTime) {
        let mut counted = self.counters();
        match waited {
            WaitTime::Crystal { reply, took } => {
                counted.crystals.entry(reply.as_str()).or_insert_with(|| Histogram::new(CRYSTAL_BOUNDS)).add(took);
            }
            WaitTime::Store { took } => counted.appends.get_or_insert_with(|| Histogram::new(APPEND_BOUNDS)).add(took),
        }
    }

    /// Renders all metrics.
    pub(crate) fn render(&self, under_way: usize, feeds: usize) -> String {
        let counted = self.counters();
        let mut text = String::new();
        let head = |text: &mut String, name: &str, kind: &str, about: &str| {
            let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}");
        };
        let plain = [
            ("cantrip_runs_under_way", "gauge", "Active runs of this process.", under_way as u64),
            ("cantrip_feeds_open", "gauge", "Open feeds of runs.", feeds as u64),
            ("cantrip_runs_begun_total", "counter", "Runs that this process started or resumed.", counted.runs),
            ("cantrip_turns_total", "counter", "Turns that ended in this process.", counted.turns),
        ];
        for (name, kind, about, value) in plain {
            head(&mut text, name, kind, about);
            let _ = writeln!(text, "{name} {value}");
        }
        let by = [
            ("cantrip_casts_total", "outcome", "Casts that ended or were parked here, by outcome.", &counted.casts),
            ("cantrip_gate_calls_total", "type", "Gate calls, by the type of their reply.", &counted.gates),
        ];
        for (name, label, about, values) in by {
            head(&mut text, name, "counter", about);
            for (value, count) in values {
                let _ = writeln!(text, "{name}{{{label}=\"{value}\"}} {count}");
            }
        }
        head(&mut text, "cantrip_tokens_total", "counter", "Input and output tokens of crystals.");
        for (direction, value) in [("input", counted.tokens_in), ("output", counted.tokens_out)] {
            let _ = writeln!(text, "cantrip_tokens_total{{direction=\"{direction}\"}} {value}");
        }
        head(&mut text, "cantrip_cost_total", "counter", "The cost of turns, as far as it is known.");
        for (currency, micros) in &counted.cost {
            let (whole, rest) = (micros / 1_000_000, micros % 1_000_000);
            let _ = writeln!(text, "cantrip_cost_total{{currency=\"{currency}\"}} {whole}.{rest:06}");
        }
        head(&mut text, "cantrip_replies_total", "counter", "Replies to requests and gate calls, by code.");
        for (code, count) in &counted.replies {
            let mut parts = code.split('-');
            let mut part = || parts.next().unwrap_or_default();
            let (layer, area, kind) = (part(), part(), part());
            let _ = writeln!(
                text,
                "cantrip_replies_total{{layer=\"{layer}\",area=\"{area}\",type=\"{kind}\",code=\"{code}\"}} {count}"
            );
        }
        head(&mut text, "cantrip_http_requests_total", "counter", "Requests, by method, route and status.");
        for ((method, route, status), count) in &counted.requests {
            let _ = writeln!(
                text,
                "cantrip_http_requests_total{{method=\"{method}\",route=\"{route}\",status=\"{status}\"}} {count}"
            );
        }
        let name = "cantrip_http_request_duration_seconds";
        head(&mut text, name, "histogram", "The time until the response to a request began.");
        for (route, spread) in &counted.durations {
            spread.write(&mut text, name, &format!("route=\"{route}\""));
        }
        let name = "cantrip_crystal_call_duration_seconds";
        head(&mut text, name, "histogram", "The duration of requests to crystals, by the type of their result.");
        for (kind, spread) in &counted.crystals {
            spread.write(&mut text, name, &format!("type=\"{kind}\""));
        }
        let name = "cantrip_store_append_duration_seconds";
        head(&mut text, name, "histogram", "The time that the store took to make a step durable.");
        if let Some(spread) = &counted.appends {
            spread.write(&mut text, name, "");
        }
        text
    }
}
