//! The conformance suite of the Model Context Protocol, against a server that offers what the suite needs: with the
//! endpoint, the sessions and the results of the product's own server. The cases that do not pass are in `listed.txt`,
//! with the reason.

#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod fixture;

use cantrip_serve::SpellHost;
use cantrip_serve::http::{HttpServer, Options};
use cantrip_serve::mcp::McpEndpoint;
use cantrip_service::cantrip::Runtime;
use cantrip_service::cantrip::loom::{AnyLoom, MemoryLoom};
use cantrip_tests::mcp_suite::{REVISIONS, Suite};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::http::support::Book;
use fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_finds_nothing_in_our_stack_that_is_not_listed() {
    let Some(suite) = Suite::installed() else { return };
    let loom = AnyLoom::new(MemoryLoom::new());
    let host = SpellHost::open(Runtime::new(loom.clone()), Book::over(loom, &[]));
    let door = McpEndpoint::new(Fixture::new(host.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let http = HttpServer::with_mcp(host, Options::default(), door);
    let served = tokio::spawn(http.serve(listener, async move { drop(stopped.await) }));
    let found = tokio::task::spawn_blocking(move || REVISIONS.map(|revision| (revision, suite.run(&url, revision))));
    let listed = include_str!("listed.txt");
    let mut differences = Vec::new();
    for (revision, found) in found.await.unwrap() {
        assert!(found.scenarios().count() > 30, "{revision}: the suite has become smaller");
        differences.extend(found.differs_from(listed, revision));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    drop(stop);
    served.await.unwrap().unwrap();
}
