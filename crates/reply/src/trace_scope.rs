//! Where does the work of a task stand in a trace, and who may be told so?
//!
//! The trace of a request goes with the task that works on it, not with its arguments: every outermost call inside belongs
//! to it, also one that is refused before anybody knows what was asked. A parameter through every surface and every gate was
//! rejected: the one that forgets it breaks the trace in two, and nobody notices.
//!
//! A trace names who asks whom. So it is told to this machine and to hosts that were named, and to nobody else.

use core::net::IpAddr;
use std::sync::Arc;

use crate::context::TraceContext;

/// The hosts beyond this machine that may be told which trace a request belongs to.
///
/// ```
/// # use cantrip_reply::TracedHosts;
/// let hosts = TracedHosts::parse("gateway.internal, *.example.org");
/// assert!(hosts.include("gateway.internal") && hosts.include("a.example.org"));
/// assert!(!hosts.include("example.org") && !hosts.include("badexample.org"));
/// assert!(TracedHosts::default().include("127.0.0.1"), "this machine is always told");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TracedHosts(Vec<String>);

impl TracedHosts {
    /// The hosts of a list with commas between them.
    pub fn parse(list: &str) -> Self {
        Self::from_hosts(list.split(','))
    }

    /// These hosts; `*.` before one stands for all below it.
    pub fn from_hosts(hosts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let named = hosts.into_iter().map(|host| host.as_ref().trim().to_ascii_lowercase());
        Self(named.filter(|host| !host.is_empty()).collect())
    }

    /// Whether this host may be told.
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
    /// None where nobody is to be told.
    propagate_to: Option<Arc<TracedHosts>>,
}

tokio::task_local! {
    /// None where nobody follows the trace.
    static PLACE: Option<TraceScope>;
}

// None of these is an `async fn`: that would hold the work once as its argument and once as what it waits for, and each one
// around another would double it again.

/// Works below a span of somebody else's: every outermost call inside is of its trace.
pub fn with_context<F: Future>(context: Option<TraceContext>, work: F) -> impl Future<Output = F::Output> {
    PLACE.scope(context.map(|context| TraceScope { context, propagate_to: None }), work)
}

/// Works at this place of a trace: whom it asks may be told, where these hosts include them.
pub fn with_propagation<F: Future>(
    context: Option<TraceContext>,
    hosts: &Arc<TracedHosts>,
    work: F,
) -> impl Future<Output = F::Output> + use<F> {
    PLACE.scope(context.map(|context| TraceScope { context, propagate_to: Some(Arc::clone(hosts)) }), work)
}

/// The same place for work that another task goes on with.
pub fn inherit_context<F: Future>(work: F) -> impl Future<Output = F::Output> {
    PLACE.scope(read_scope(|place| Some(place.clone())), work)
}

/// What is known of the place of this task.
fn read_scope<T>(look: impl FnOnce(&TraceScope) -> Option<T>) -> Option<T> {
    PLACE.try_with(|place| place.as_ref().and_then(look)).ok().flatten()
}

/// The span that this task works below, if anybody follows its trace.
pub fn current_context() -> Option<TraceContext> {
    read_scope(|place| Some(place.context.clone()))
}

/// What a host is told that is asked from here.
pub fn context_for_host(host: &str) -> Option<TraceContext> {
    read_scope(|place| place.propagate_to.as_ref()?.include(host).then(|| place.context.clone()))
}

/// What a program on this machine is told that is started from here.
pub fn context_for_process() -> Option<TraceContext> {
    read_scope(|place| place.propagate_to.as_ref().map(|_| place.context.clone()))
}
