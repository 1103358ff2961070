//! The part of the protocol's own conformance suite that applies to the real MCP server, `cantrip serve` at `/mcp`. The
//! rest of the suite needs tools that only a server made for it has; `crates/serve/tests/conformance` is one.

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use cantrip_tests::mcp_suite::{REVISIONS, Suite};
use rustix::process::Signal;
use serde_json::json;

use crate::serve::Server;
use crate::support::Folder;

/// The scenarios that need no special tools.
const APPLY: [(&str, &[&str]); 2] = [
    (
        REVISIONS[0],
        &[
            "server-initialize",
            "server-session-lifecycle",
            "ping",
            "tools-list",
            "resources-list",
            "server-sse-multiple-streams",
            "dns-rebinding-protection",
        ],
    ),
    (
        REVISIONS[1],
        &[
            "server-stateless",
            "tools-list",
            "resources-list",
            "sep-2164-resource-not-found",
            "server-sse-multiple-streams",
            "dns-rebinding-protection",
            "caching",
            "http-header-validation",
            "input-required-result-unsupported-methods",
        ],
    ),
];

#[test]
fn the_suite_finds_nothing_in_the_real_server_that_is_not_listed() {
    let Some(suite) = Suite::installed() else { return };
    let folder = Folder::new();
    folder.write("once.toml", "name = \"once\"\ncrystal = \"scripted/once.yaml\"\n[wards]\nmax_turns = 2\n");
    folder.write("once.yaml", "responses:\n  - tool_calls: [{id: c1, gate: done, args: {answer: over}}]\n");
    let server = Server::start(&folder, &["--store", "sqlite:kept/loom.db"]);
    // A thread and a receipt to list.
    let (_, cast) = server.ask("POST", "/v1/casts", Some(&json!({"spell": "once", "intent": "go", "wait": true})));
    assert_envelope(&cast, codes::TERMINATED.any());
    let listed = include_str!("fixtures/mcp_suite.txt");
    let mut differences = Vec::new();
    for (revision, scenarios) in APPLY {
        let found = suite.run(&server.url("/mcp"), revision).only(scenarios);
        differences.extend(found.differs_from(listed, revision));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert_eq!(server.stop(Signal::TERM), 0);
}
