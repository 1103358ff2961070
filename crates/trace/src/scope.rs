//! At which position of a trace does a task run, and which hosts may learn it?
//!
//! The trace of a request belongs to the task that works on it and is not passed as an argument: every outermost call
//! inside the task is part of it, even a call that is refused before its request was parsed. A parameter through every
//! surface and every gate was rejected: the first one that forgets it breaks the trace in two, and no error shows it.
//!
//! A trace shows which system calls which. So it is sent only to this machine and to hosts that were named.

use core::net::IpAddr;
use std::sync::Arc;

use crate::context::TraceContext;

/// The hosts, other than this machine, that may receive the trace of a request.
///
/// ```
/// # use cantrip_trace::TracedHosts;
/// let hosts = TracedHosts::parse("gateway.internal, *.example.org");
/// assert!(hosts.include("gateway.internal") && hosts.include("a.example.org"));
/// assert!(!hosts.include("example.org") && !hosts.include("badexample.org"));
/// assert!(TracedHosts::default().include("127.0.0.1"), "this machine is always told");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TracedHosts(Vec<String>);

impl TracedHosts {
    /// Parses a list of hosts that are separated by commas.
    pub fn parse(list: &str) -> Self {
        Self::from_hosts(list.split(','))
    }

    /// Takes these hosts; `*.` in front of one matches all its subdomains.
    pub fn from_hosts(hosts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let named = hosts.into_iter().map(|host| host.as_ref().trim().to_ascii_lowercase());
        Self(named.filter(|host| !host.is_empty()).collect())
    }

    /// Returns true if this host may receive the trace.
    pub fn include(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        is_this_machine(&host)
            || self.0.iter().any(|named| match named.strip_prefix('*') {
                Some(parent_domain) if parent_domain.starts_with('.') => {
                    host.len() > parent_domain.len() && host.ends_with(parent_domain)
                }
                Some(_) | None => *named == host,
            })
    }
}

fn is_this_machine(host: &str) -> bool {
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || literal.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[derive(Debug, Clone)]
struct TraceScope {
    context: TraceContext,
    /// None if the trace is not sent to any host.
    propagate_to: Option<Arc<TracedHosts>>,
}

tokio::task_local! {
    /// None if no system follows the trace.
    static PLACE: Option<TraceScope>;
}

// None of these is an `async fn`: its future would hold the work twice, once as the argument and once as the future it
// awaits, and each nested one would double that again.

/// Runs the work below a span of another system: every outermost call inside belongs to that trace.
pub fn scope<F: Future>(context: Option<TraceContext>, work: F) -> impl Future<Output = F::Output> {
    PLACE.scope(context.map(|context| TraceScope { context, propagate_to: None }), work)
}

/// Runs the work at this position of a trace. Requests from it carry the trace if the hosts include their target.
pub fn scope_with_hosts<F: Future>(
    context: Option<TraceContext>,
    hosts: &Arc<TracedHosts>,
    work: F,
) -> impl Future<Output = F::Output> + use<F> {
    PLACE.scope(context.map(|context| TraceScope { context, propagate_to: Some(Arc::clone(hosts)) }), work)
}

/// Gives the position of this task to work that another task runs.
pub fn inherit<F: Future>(work: F) -> impl Future<Output = F::Output> {
    PLACE.scope(read_scope(|place| Some(place.clone())), work)
}

/// Reads the position of this task.
fn read_scope<T>(look: impl FnOnce(&TraceScope) -> Option<T>) -> Option<T> {
    PLACE.try_with(|place| place.as_ref().and_then(look)).ok().flatten()
}

/// The span that this task runs below, if a system follows its trace.
pub fn current() -> Option<TraceContext> {
    read_scope(|place| Some(place.context.clone()))
}

/// The trace context to send to this host, if it may receive one.
pub fn header_for(host: &str) -> Option<TraceContext> {
    read_scope(|place| place.propagate_to.as_ref()?.include(host).then(|| place.context.clone()))
}

/// The trace context to pass to a program that this task starts on this machine.
pub fn header_for_process() -> Option<TraceContext> {
    read_scope(|place| place.propagate_to.as_ref().map(|_| place.context.clone()))
}
