//! The memory of an idle entity. This test has its own process, so that nothing else is measured.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot begin may stop")]

mod support;

use std::sync::Arc;

use cantrip::limits::IDLE_SANDBOXES_MAX;
use cantrip::{Cantrip, Entity, Runtime};
use cantrip_circle::gate::builtin;
use cantrip_circle::{Medium, MediumKind};
use cantrip_crystal::{Request, Response};
use cantrip_loom::MemoryLoom;
use cantrip_medium_javascript::{Javascript, Options};
use serde_json::json;
use support::Acting;

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

fn coding(medium: &Arc<Javascript>) -> Cantrip {
    let crystal = Acting(|_: &Request| Response::code("var seen = 'a variable of its own'; done(seen.length)"));
    Cantrip::builder()
        .crystal(crystal)
        .medium(MediumKind::Javascript)
        .serve_medium(Arc::clone(medium) as Arc<dyn Medium>)
        .gate(builtin::done())
        .gate(builtin::echo())
        .ward("max_turns", 5)
        .build()
        .unwrap()
}

/// Returns the memory that one entity takes after its first turn, on average over many.
async fn each(runtime: &Runtime, cantrip: &Cantrip, kept: &mut Vec<Entity>) -> u64 {
    let mut before = 0;
    // The first entities fill the caches that all of them share.
    for n in 0..350 {
        if n == 50 {
            before = resident();
        }
        let entity = runtime.summon(cantrip, None).await.unwrap();
        assert_eq!(entity.send("go").await.answer(), Some(&json!(21)));
        kept.push(entity);
    }
    resident().saturating_sub(before) / 300
}

#[tokio::test]
async fn ten_thousand_entities_that_wait_would_fit_in_two_gibibytes() {
    let medium = Arc::new(Javascript::start(Options::default()).unwrap());
    let cantrip = coding(&medium);
    let mut kept = Vec::new();
    let with = each(&Runtime::new(MemoryLoom::new()), &cantrip, &mut kept).await;
    assert!(format!("{medium:?}").contains("sandboxes: 350"), "each keeps its sandbox");
    let without = each(&Runtime::new(MemoryLoom::new()).with_idle_sandboxes_max(1), &cantrip, &mut kept).await;
    let sandboxes = IDLE_SANDBOXES_MAX as u64;
    let all = sandboxes * with + (10_000 - sandboxes) * without;
    assert!(all < 2 << 30, "{with} bytes with a sandbox and {without} without make {} MiB", all >> 20);
    assert!(with > 10_000 && without < with / 2, "{with} and {without} cannot be: nothing was measured");
}
