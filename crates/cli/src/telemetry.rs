//! Who hears what happens: the log on standard error, and a collector of spans.
//!
//! Both are off unless the environment asks for them: on a terminal the reply says all a person needs.

#[cfg(feature = "otlp")]
mod otlp;

use std::env;

use cantrip::Runtime;
use cantrip::canon::{known_secrets, remember_secret};
use cantrip::telemetry::SPANS;
use cantrip_reply::{TraceContext, TracedHosts};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{EnvFilter, FilterExt, filter_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

use crate::config;

/// What asks for the content of messages, arguments and results in spans: `true`, as other programs understand it.
const CONTENT: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";

/// Begins to listen. `CANTRIP_LOG`, say `CANTRIP_LOG=info`, writes the log to standard error; a command that casts tells a
/// collector of its spans if `OTEL_EXPORTER_OTLP_ENDPOINT` names one.
pub(crate) fn begin(casts: bool) {
    remember_collector_headers();
    let asked = EnvFilter::builder()
        .with_default_directive(LevelFilter::OFF.into())
        .with_env_var("CANTRIP_LOG")
        .from_env_lossy();
    // The spans are no lines, and lines do not repeat them.
    let lines = filter_fn(|metadata| metadata.target() != SPANS).with_max_level_hint(LevelFilter::TRACE);
    let log = fmt::layer().with_writer(|| WithoutSecrets).with_filter(asked.and(lines));
    #[cfg(feature = "otlp")]
    registry().with(log).with(casts.then(otlp::layer).flatten()).init();
    #[cfg(not(feature = "otlp"))]
    {
        registry().with(log).init();
        if casts && is_set("OTEL_EXPORTER_OTLP_ENDPOINT") | is_set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") {
            crate::present::say("this cantrip was built without the feature otlp: no spans are sent");
        }
    }
}

/// Remembers the headers that a collector is sent: its key is among them, under a name that need not tell.
fn remember_collector_headers() {
    for variable in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"] {
        for header in env::var(variable).unwrap_or_default().split(',') {
            let Some((_, value)) = header.split_once('=') else { continue };
            // The value is percent-encoded where it has to be; unlike in a form, a plus sign is one.
            let form = format!("value={}", value.trim().replace('+', "%2B").replace('&', "%26"));
            let decoded: String = url::form_urlencoded::parse(form.as_bytes()).map(|(_, value)| value).collect();
            for written in [value.trim(), &decoded] {
                remember_secret(written);
                // Behind a scheme such as Bearer.
                if let Some((_, behind)) = written.split_once(' ') {
                    remember_secret(behind);
                }
            }
        }
    }
}

/// Standard error, on which no secret of this process is written. A line of the log comes in one piece.
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

/// The process is about to end: what a collector has not been told yet is told now, for as long as may be.
pub(crate) fn end() {
    #[cfg(feature = "otlp")]
    otlp::end();
}

/// The span that this process was started from, where its environment says so.
pub(crate) fn parent_span() -> Option<TraceContext> {
    TraceContext::parse(&env::var("TRACEPARENT").ok()?, env::var("TRACESTATE").ok().as_deref())
}

/// A house as the environment and the configuration want it told of: what its spans say, and who learns of its traces.
pub(crate) fn with_telemetry(runtime: &Runtime) -> Runtime {
    let named = env::var("CANTRIP_TRACEPARENT_TO").ok().map(|list| TracedHosts::parse(&list));
    let settled = || config::here().ok()?.traceparent_to.map(TracedHosts::from_hosts);
    let hosts = named.or_else(settled).unwrap_or_default();
    runtime.with_traced_content(tells_content()).with_traced_hosts(hosts)
}

/// Whether spans are to tell what was said.
fn tells_content() -> bool {
    env::var(CONTENT).is_ok_and(|asked| asked.eq_ignore_ascii_case("true") || asked.eq_ignore_ascii_case("span_only"))
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty())
}
