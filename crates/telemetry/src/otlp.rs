//! Sends spans to a collector: OTLP over HTTP, configured by the standard environment variables.
//!
//! The SDK batches in its own thread behind a bounded queue, so a slow or missing collector costs a cast nothing; spans
//! that do not fit are dropped. A batch is sent once, because retries would keep a process from ending. The first lost
//! batch is reported on standard error, and no other.
//!
//! Trace ids are ours: the trace id of an envelope is also the id in the collector. The SDK draws ids only through its
//! generator, which gets no arguments. So a tracer around the SDK's own tracer passes the ids of the span to the
//! generator.

use std::cell::Cell;
use std::env;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cantrip::telemetry::SPANS;
use cantrip_trace::TraceContext;
use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer, TracerProvider,
};
use opentelemetry::{Array, Context, KeyValue, Value};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response, ResponseBodyTooLarge};
use opentelemetry_otlp::{RetryPolicy, SpanExporter as Otlp, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    IdGenerator, RandomIdGenerator, SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter,
};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;

use super::is_set;
use crate::limits::{COLLECTOR_ANSWER_BYTES_MAX, COLLECTOR_CONNECT_MS, COLLECTOR_END_MS};
use cantrip_terminal::present::say;

/// The provider that still has spans to send.
static SENDING: Mutex<Option<SdkTracerProvider>> = Mutex::new(None);

/// Returns the layer that sends spans, if a collector is configured.
pub(super) fn layer<S>() -> Option<impl Layer<S>>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let named = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"].into_iter().any(is_set);
    let off = env::var("OTEL_SDK_DISABLED").is_ok_and(|disabled| disabled.eq_ignore_ascii_case("true"))
        || env::var("OTEL_TRACES_EXPORTER").is_ok_and(|exporter| exporter == "none");
    if !named || off {
        return None;
    }
    let provider = match provider() {
        Ok(provider) => provider,
        Err(fault) => {
            say(&format!("no spans are sent: {fault}"));
            return None;
        }
    };
    let tracer = PlacedTracer(provider.tracer("cantrip"));
    *SENDING.lock().unwrap_or_else(PoisonError::into_inner) = Some(provider);
    let layer = tracing_opentelemetry::layer()
        .with_tracer(tracer)
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_context_activation(false);
    let ours = filter_fn(|metadata| metadata.target() == SPANS).with_max_level_hint(LevelFilter::INFO);
    Some(layer.with_filter(ours))
}

/// Sends the remaining spans.
pub(super) fn end() {
    let provider = SENDING.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(provider) = provider {
        // A lost batch was reported already; a batch that takes too long is abandoned.
        let _ = provider.shutdown_with_timeout(Duration::from_millis(COLLECTOR_END_MS));
    }
}

fn provider() -> Result<SdkTracerProvider, String> {
    let client = Client::new().map_err(|fault| fault.to_string())?;
    let exporter = Otlp::builder()
        .with_http()
        .with_http_client(client)
        .with_retry_policy(RetryPolicy::disabled())
        .build()
        .map_err(|fault| fault.to_string())?;
    let exporter = ReportingExporter { exporter, has_told: AtomicBool::new(false) };
    let builder = SdkTracerProvider::builder().with_batch_exporter(exporter).with_id_generator(PresetIds::default());
    Ok(builder.with_resource(resource()).build())
}

/// Returns the resource of the spans: `cantrip`, unless the environment gives another name.
fn resource() -> Resource {
    let resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let named = is_set("OTEL_SERVICE_NAME")
        || env::var("OTEL_RESOURCE_ATTRIBUTES").is_ok_and(|attributes| attributes.contains("service.name="));
    if named { resource.build() } else { resource.with_service_name("cantrip").build() }
}

thread_local! {
    static NEXT_SPAN: Cell<Option<SpanId>> = const { Cell::new(None) };
    static NEXT_TRACE: Cell<Option<TraceId>> = const { Cell::new(None) };
}

/// Returns the ids that were set for the next span.
#[derive(Debug, Default)]
struct PresetIds(RandomIdGenerator);

impl IdGenerator for PresetIds {
    fn new_trace_id(&self) -> TraceId {
        NEXT_TRACE.take().unwrap_or_else(|| self.0.new_trace_id())
    }

    fn new_span_id(&self) -> SpanId {
        NEXT_SPAN.take().unwrap_or_else(|| self.0.new_span_id())
    }
}

/// A tracer whose spans get their ids and their remote parent from their fields.
#[derive(Debug)]
struct PlacedTracer(SdkTracer);

impl Tracer for PlacedTracer {
    type Span = Span;

    fn build_with_context(&self, mut builder: SpanBuilder, parent: &Context) -> Span {
        let mut said = SpanPlacement::default();
        if let Some(attributes) = &mut builder.attributes {
            attributes.retain(|attribute| !said.takes(attribute));
        }
        NEXT_SPAN.set(said.span_id);
        NEXT_TRACE.set(said.trace_id);
        let above = said.traceparent.and_then(|header| TraceContext::parse(&header, said.tracestate.as_deref()));
        let span = match above.filter(|_| !parent.has_active_span()) {
            Some(above) => self.0.build_with_context(builder, &parent.with_remote_span_context(remote(&above))),
            None => self.0.build_with_context(builder, parent),
        };
        // Clear unused ids, so that no other span gets them.
        NEXT_SPAN.take();
        NEXT_TRACE.take();
        span
    }
}

fn remote(above: &TraceContext) -> SpanContext {
    let flags = if above.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
    let state = above.state().and_then(|state| state.parse::<TraceState>().ok()).unwrap_or_default();
    let trace = TraceId::from_hex(&above.trace_id().to_string()).unwrap_or(TraceId::INVALID);
    SpanContext::new(trace, SpanId::from(above.span().get()), flags, true, state)
}

/// The ids and the parent of a span, from its fields.
#[derive(Default)]
struct SpanPlacement {
    trace_id: Option<TraceId>,
    span_id: Option<SpanId>,
    traceparent: Option<String>,
    tracestate: Option<String>,
}

impl SpanPlacement {
    /// Takes a field that sets an id or the parent. Returns false for an ordinary attribute.
    fn takes(&mut self, attribute: &KeyValue) -> bool {
        let value = || attribute.value.as_str().into_owned();
        match attribute.key.as_str() {
            "trace_id" => self.trace_id = TraceId::from_hex(&value()).ok(),
            "span_id" => self.span_id = SpanId::from_hex(&value()).ok(),
            "traceparent" => self.traceparent = Some(value()),
            "tracestate" => self.tracestate = Some(value()),
            _ => return false,
        }
        true
    }
}

/// An exporter that reports the first lost batch.
#[derive(Debug)]
struct ReportingExporter {
    exporter: Otlp,
    has_told: AtomicBool,
}

impl SpanExporter for ReportingExporter {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        for attribute in batch.iter_mut().flat_map(|span| &mut span.attributes) {
            // The conventions require a list, which a field of a span cannot be.
            if attribute.key.as_str() == "gen_ai.response.finish_reasons"
                && let Value::String(reason) = &attribute.value
            {
                attribute.value = Value::Array(Array::String(vec![reason.clone()]));
            }
        }
        let spans = batch.len();
        let sent = self.exporter.export(batch).await;
        if let Err(fault) = &sent
            && !self.has_told.swap(true, Ordering::Relaxed)
        {
            say(&format!("{spans} spans did not reach their collector ({fault}); casts are not affected"));
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// An HTTP client on which the thread of the SDK can block. It has its own runtime, so it can still send when the
/// runtime of the casts is gone.
struct Client {
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    fn new() -> Result<Self, HttpError> {
        // If another client has already installed a provider, that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // A redirect would send the headers, which hold a key, to another server.
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_millis(COLLECTOR_CONNECT_MS))
            .timeout(timeout())
            .build()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, client })
    }

    fn send_request(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let request = reqwest::Request::try_from(request)?;
        self.runtime.block_on(async {
            let mut response = self.client.execute(request).await?;
            let mut answer = Response::builder().status(response.status());
            if let Some(headers) = answer.headers_mut() {
                headers.extend(response.headers().clone());
            }
            let mut body = Vec::new();
            while let Some(piece) = response.chunk().await? {
                body.extend_from_slice(&piece);
                if body.len() > COLLECTOR_ANSWER_BYTES_MAX {
                    return Err(ResponseBodyTooLarge::new().into());
                }
            }
            Ok(answer.body(body.into())?)
        })
    }
}

/// Returns the timeout of one batch from the standard variables, in milliseconds.
fn timeout() -> Duration {
    const STANDARD_MS: u64 = 10_000;
    let said = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
    let said = said.into_iter().find_map(|name| env::var(name).ok()?.parse().ok());
    Duration::from_millis(said.unwrap_or(STANDARD_MS))
}

impl HttpClient for Client {
    fn send_bytes<'client, 'sent>(
        &'client self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'sent>>
    where
        'client: 'sent,
        Self: 'sent,
    {
        Box::pin(async move { self.send_request(request) })
    }
}
