//! Which external trace does a call belong to?
//!
//! Tracing systems pass two headers to each other, the trace context of the W3C: `traceparent` names the trace and the
//! calling span, `tracestate` carries data of vendors. Here they are one value, which is parsed once at the edge. A
//! malformed header is ignored, as the recommendation says, and never fails a call.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::limits::TRACE_STATE_BYTES_MAX;
use crate::trace::{HEX_DIGITS, TraceId};

/// A position in a trace: the trace id, the span, the sampling flag and the vendors' data.
///
/// ```
/// # use cantrip_trace::TraceContext;
/// let header = "00-0198f3c27d1e7a40b6c2f0d4a1e95b33-00f067aa0ba902b7-01";
/// let context = TraceContext::parse(header, Some("vendor=1")).unwrap();
/// assert_eq!(context.traceparent(), header);
/// assert_eq!(context.trace_id().to_string(), "0198f3c27d1e7a40b6c2f0d4a1e95b33");
/// assert_eq!(context.state(), Some("vendor=1"));
/// assert_eq!(TraceContext::parse("00-0198f3c27d1e7a40b6c2f0d4a1e95b33-0000000000000000-01", None), None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    trace: TraceId,
    span: NonZeroU64,
    flags: u8,
    state: Option<Arc<str>>,
}

/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;

impl TraceContext {
    /// Starts a new trace, which is recorded.
    pub fn new_root(trace: TraceId, span: NonZeroU64) -> Self {
        Self { trace: trace.root(), span, flags: SAMPLED, state: None }
    }

    /// Parses these headers; none if `traceparent` is not valid. A `tracestate` that cannot be passed on is left out.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        const VERSION_0_BYTES: usize = 55;
        let mut parts = traceparent.splitn(5, '-');
        let version = hex(parts.next()?, 2)?;
        let trace = hex(parts.next()?, HEX_DIGITS)?;
        let span = NonZeroU64::new(u64::try_from(hex(parts.next()?, 16)?).ok()?)?;
        let flags = u8::try_from(hex(parts.next()?, 2)?).ok()?;
        // A later version may have more fields after another hyphen; version 0 may not.
        let whole = version != 0 || traceparent.len() == VERSION_0_BYTES;
        let printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        let state = tracestate
            .map(str::trim)
            .filter(|state| !state.is_empty() && state.len() <= TRACE_STATE_BYTES_MAX && state.bytes().all(printable));
        (version != 0xff && trace != 0 && whole).then(|| Self {
            trace: TraceId::from_bits(trace),
            span,
            // Only the flags that this version of the recommendation defines are passed on.
            flags: flags & SAMPLED,
            state: state.map(Into::into),
        })
    }

    pub fn trace_id(&self) -> TraceId {
        self.trace
    }

    pub fn span(&self) -> NonZeroU64 {
        self.span
    }

    /// Returns true if the system that started the trace records it.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED == SAMPLED
    }

    /// The vendors' data, from `tracestate`.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Returns the same trace at another span.
    #[must_use]
    pub fn with_span(&self, span: NonZeroU64) -> Self {
        Self { span, ..self.clone() }
    }

    /// The `traceparent` header for requests that are sent from here.
    pub fn traceparent(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

/// Parses a number that has exactly `digits` digits of lower-case hex.
pub(crate) fn hex(text: &str, digits: usize) -> Option<u128> {
    let fits = text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if fits { u128::from_str_radix(text, 16).ok() } else { None }
}
