//! How is a call identified?
//!
//! A trace id is 128 bits in lower-case hex, the same id that tracing systems use. The n-th call inside a call appends
//! `.n`, so that a prefix finds all calls of a trace and each call still has its own id. Separate ids for inner calls
//! were rejected: a person who has the id from an error message would need a second lookup to find the outer call.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::context::{TraceContext, hex};
use crate::limits::TRACE_CALLS_MAX;

/// The id of one call: `^[0-9a-f]{32}(\.[1-9][0-9]{0,9})?$`.
///
/// ```
/// # use cantrip_trace::TraceId;
/// let id: TraceId = "0198f3c27d1e7a40b6c2f0d4a1e95b33.12".parse().unwrap();
/// assert_eq!(id.root().to_string(), "0198f3c27d1e7a40b6c2f0d4a1e95b33");
/// assert!("0198F3C27D1E7A40B6C2F0D4A1E95B33".parse::<TraceId>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId {
    bits: u128,
    /// Zero for the outermost call.
    call: u64,
}

/// The text is not a trace id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a trace id: 32 digits of lower-case hex, for an inner call followed by a full stop and its number"
)]
pub struct TraceIdFault(String);

pub(crate) const HEX_DIGITS: usize = 32;

impl TraceId {
    /// Makes a trace id from these bits.
    pub const fn from_bits(bits: u128) -> Self {
        Self { bits, call: 0 }
    }

    /// The id of the outermost call, which all calls inside it share.
    #[must_use]
    pub const fn root(self) -> Self {
        Self { bits: self.bits, call: 0 }
    }

    /// The trace id of a request with a W3C `traceparent`; none if the header is not valid, which the recommendation
    /// says to ignore.
    ///
    /// ```
    /// # use cantrip_trace::TraceId;
    /// let header = "00-0198f3c27d1e7a40b6c2f0d4a1e95b33-00f067aa0ba902b7-01";
    /// assert_eq!(TraceId::from_traceparent(header).unwrap().to_string(), "0198f3c27d1e7a40b6c2f0d4a1e95b33");
    /// assert_eq!(TraceId::from_traceparent("00-00000000000000000000000000000000-00f067aa0ba902b7-01"), None);
    /// ```
    pub fn from_traceparent(header: &str) -> Option<Self> {
        TraceContext::parse(header, None).map(|context| context.trace_id())
    }
}

impl FromStr for TraceId {
    type Err = TraceIdFault;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let read = || {
            let (root, call) = match text.split_once('.') {
                Some((root, call)) => (root, Some(call)),
                None => (text, None),
            };
            let bits = hex(root, HEX_DIGITS)?;
            let call = match call {
                None => 0,
                Some(call) if call.starts_with('0') || !call.bytes().all(|byte| byte.is_ascii_digit()) => return None,
                Some(call) => call.parse().ok().filter(|number| *number <= TRACE_CALLS_MAX)?,
            };
            Some(Self { bits, call })
        };
        read().ok_or_else(|| TraceIdFault(text.chars().take(64).collect()))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.bits)?;
        if self.call == 0 { Ok(()) } else { write!(f, ".{}", self.call) }
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for TraceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The trace of a call: its own id, and the counter of the calls inside its outermost call. Cheap to clone; all clones
/// share the counter.
#[derive(Debug, Clone)]
pub struct Trace {
    id: TraceId,
    inner_calls: Arc<AtomicU64>,
    /// The calling span, if it belongs to another system.
    parent_context: Option<Arc<TraceContext>>,
}

impl Trace {
    pub fn root(id: TraceId) -> Self {
        Self { id: id.root(), inner_calls: Arc::default(), parent_context: None }
    }

    /// The trace of a call that a span of another system requested.
    pub fn from_context(context: TraceContext) -> Self {
        Self { parent_context: Some(Arc::new(context.clone())), ..Self::root(context.trace_id()) }
    }

    /// The trace of the next call inside. Calls at any depth share one sequence: the grammar has only one level.
    pub fn next(&self) -> Self {
        let number = self.inner_calls.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let id = TraceId { bits: self.id.bits, call: number.min(TRACE_CALLS_MAX) };
        Self { id, inner_calls: Arc::clone(&self.inner_calls), parent_context: self.parent_context.clone() }
    }

    /// The span of another system that requested the outermost call, if the request named one.
    pub fn parent_context(&self) -> Option<&TraceContext> {
        self.parent_context.as_deref()
    }

    pub fn id(&self) -> TraceId {
        self.id
    }
}
