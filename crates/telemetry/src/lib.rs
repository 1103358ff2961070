//! Telemetry: the log on standard error, and the spans for a collector.
//!
//! Both are off unless the environment asks for them, because on a terminal the reply says all that a user needs.

pub mod limits;
#[cfg(feature = "otlp")]
mod otlp;

use std::env;

use cantrip::Runtime;
use cantrip::canon::{known_secrets, remember_secret};
use cantrip::telemetry::SPANS;
use cantrip_trace::{TraceContext, TracedHosts};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

use cantrip_settings::config;

/// The variable that enables the content of messages, arguments and results in spans. `true` has the same meaning as in
/// other programs.
const CONTENT: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";

/// Starts the telemetry. `CANTRIP_LOG`, for example `CANTRIP_LOG=info`, writes the log to standard error. A command
/// that casts sends its spans to a collector if `OTEL_EXPORTER_OTLP_ENDPOINT` names one.
pub fn begin(casts: bool) {
    remember_collector_headers();
    let asked = EnvFilter::builder()
        .with_default_directive(LevelFilter::OFF.into())
        .with_env_var("CANTRIP_LOG")
        .from_env_lossy();
    // Spans are not written to the log.
    let lines = filter_fn(|metadata| metadata.target() != SPANS).with_max_level_hint(LevelFilter::TRACE);
    let log = fmt::layer().with_writer(|| WithoutSecrets).with_filter(asked.and(lines));
    #[cfg(feature = "otlp")]
    registry().with(log).with(casts.then(otlp::layer).flatten()).init();
    #[cfg(not(feature = "otlp"))]
    {
        registry().with(log).init();
        if casts && is_set("OTEL_EXPORTER_OTLP_ENDPOINT") | is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
            cantrip_terminal::present::say("this cantrip was built without the feature otlp: no spans are sent");
        }
    }
}

/// Remembers the collector's headers as secrets: one of them holds its key, and the name of the header need not show
/// that.
fn remember_collector_headers() {
    for variable in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"] {
        for header in env::var(variable).unwrap_or_default().split(',') {
            let Some((_, value)) = header.split_once('=') else { continue };
            // The value may be percent-encoded. Unlike in a form, a plus sign is a plus sign.
            let form = format!("value={}", value.trim().replace('+', "%2B").replace('&', "%26"));
            let decoded: String = url::form_urlencoded::parse(form.as_bytes()).map(|(_, value)| value).collect();
            for written in [value.trim(), &decoded] {
                remember_secret(written);
                // The secret after a scheme such as Bearer.
                if let Some((_, behind)) = written.split_once(' ') {
                    remember_secret(behind);
                }
            }
        }
    }
}

/// Standard error without the known secrets of this process. Each log line arrives in one write.
struct WithoutSecrets;

impl std::io::Write for WithoutSecrets {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let mut stderr = std::io::stderr().lock();
        match known_secrets() {
            None => stderr.write_all(line)?,
            Some(known) => stderr.write_all(known.redact_text(&String::from_utf8_lossy(line)).as_bytes())?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}

/// Sends the remaining spans before the process ends, within a time limit.
pub fn end() {
    #[cfg(feature = "otlp")]
    otlp::end();
}

/// Returns the parent span from the environment, if it names one.
pub fn parent_span() -> Option<TraceContext> {
    TraceContext::parse(&env::var("TRACEPARENT").ok()?, env::var("TRACESTATE").ok().as_deref())
}

/// Returns the runtime with the telemetry settings of the environment and the configuration: the content of spans, and
/// the hosts that receive the trace context.
pub fn with_telemetry(runtime: &Runtime) -> Runtime {
    let named = env::var("CANTRIP_TRACEPARENT_TO").ok().map(|list| TracedHosts::parse(&list));
    let settled = || config::here().ok()?.traceparent_to.map(TracedHosts::from_hosts);
    let hosts = named.or_else(settled).unwrap_or_default();
    runtime.with_traced_content(tells_content()).with_traced_hosts(hosts)
}

/// Returns true if spans include the content of messages.
fn tells_content() -> bool {
    env::var(CONTENT).is_ok_and(|asked| asked.eq_ignore_ascii_case("true") || asked.eq_ignore_ascii_case("span_only"))
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty())
}
