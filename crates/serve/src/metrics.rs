//! What is counted of a house, as Prometheus reads it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantrip_service::cantrip::reply::AnyCode;
use cantrip_service::cantrip::stream::{FinalItem, Payload, StreamEvent};

/// Counters, since the house was opened. Names and labels are few: none of them comes from a caller.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    runs: u64,
    turns: u64,
    tokens_in: u64,
    tokens_out: u64,
    /// In micros, by currency.
    cost: BTreeMap<String, i64>,
    replies: BTreeMap<String, u64>,
    requests: BTreeMap<(String, String, u16), u64>,
    durations: BTreeMap<String, Spread>,
}

/// How long requests took: how many took no longer than each bound.
#[derive(Debug, Default)]
struct Spread {
    within: [u64; BOUNDS.len()],
    count: u64,
    sum: Duration,
}

/// In seconds.
const BOUNDS: [f64; 8] = [0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0];

impl Metrics {
    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn began(&self) {
        self.counted().runs += 1;
    }

    /// Something happened in a run.
    pub(crate) fn saw(&self, event: &StreamEvent) {
        match &event.payload {
            Payload::ResponseDone(done) => {
                let mut counted = self.counted();
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
                    self.replied(code);
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

    /// A call ended so: a request, or a gate.
    pub(crate) fn replied(&self, code: AnyCode) {
        *self.counted().replies.entry(code.to_string()).or_default() += 1;
    }

    pub(crate) fn answered(&self, method: &str, route: &str, status: u16, took: Duration) {
        let mut counted = self.counted();
        // A method that somebody made up is nobody's label.
        let method = if matches!(method, "GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "OPTIONS" | "PATCH") {
            method
        } else {
            "other"
        };
        *counted.requests.entry((method.to_owned(), route.to_owned(), status)).or_default() += 1;
        let spread = counted.durations.entry(route.to_owned()).or_default();
        spread.count += 1;
        spread.sum += took;
        for (within, bound) in spread.within.iter_mut().zip(BOUNDS) {
            *within += u64::from(took.as_secs_f64() <= bound);
        }
    }

    /// All of it.
    pub(crate) fn page(&self, under_way: usize) -> String {
        let counted = self.counted();
        let mut text = String::new();
        let head = |text: &mut String, name: &str, kind: &str, about: &str| {
            let _ = writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}");
        };
        let plain = [
            ("cantrip_runs_under_way", "gauge", "Runs that this process works on.", under_way as u64),
            ("cantrip_runs_begun_total", "counter", "Runs that were begun or gone on with here.", counted.runs),
            ("cantrip_turns_total", "counter", "Turns that ended here.", counted.turns),
        ];
        for (name, kind, about, value) in plain {
            head(&mut text, name, kind, about);
            let _ = writeln!(text, "{name} {value}");
        }
        head(&mut text, "cantrip_tokens_total", "counter", "Tokens that crystals read and wrote.");
        for (direction, value) in [("input", counted.tokens_in), ("output", counted.tokens_out)] {
            let _ = writeln!(text, "cantrip_tokens_total{{direction=\"{direction}\"}} {value}");
        }
        head(&mut text, "cantrip_cost_total", "counter", "What turns cost, as far as that is known.");
        for (currency, micros) in &counted.cost {
            let (whole, rest) = (micros / 1_000_000, micros % 1_000_000);
            let _ = writeln!(text, "cantrip_cost_total{{currency=\"{currency}\"}} {whole}.{rest:06}");
        }
        head(&mut text, "cantrip_replies_total", "counter", "How calls ended: requests and gates.");
        for (code, count) in &counted.replies {
            let mut parts = code.split('-');
            let mut part = || parts.next().unwrap_or_default();
            let (layer, area, kind) = (part(), part(), part());
            let _ = writeln!(
                text,
                "cantrip_replies_total{{layer=\"{layer}\",area=\"{area}\",type=\"{kind}\",code=\"{code}\"}} {count}"
            );
        }
        head(&mut text, "cantrip_http_requests_total", "counter", "Requests, by route and status.");
        for ((method, route, status), count) in &counted.requests {
            let _ = writeln!(
                text,
                "cantrip_http_requests_total{{method=\"{method}\",route=\"{route}\",status=\"{status}\"}} {count}"
            );
        }
        let name = "cantrip_http_request_duration_seconds";
        head(&mut text, name, "histogram", "How long requests took until their answer began.");
        for (route, spread) in &counted.durations {
            for (within, bound) in spread.within.iter().zip(BOUNDS) {
                let _ = writeln!(text, "{name}_bucket{{route=\"{route}\",le=\"{bound}\"}} {within}");
            }
            let _ = writeln!(text, "{name}_bucket{{route=\"{route}\",le=\"+Inf\"}} {}", spread.count);
            let _ = writeln!(text, "{name}_sum{{route=\"{route}\"}} {}", spread.sum.as_secs_f64());
            let _ = writeln!(text, "{name}_count{{route=\"{route}\"}} {}", spread.count);
        }
        text
    }
}
