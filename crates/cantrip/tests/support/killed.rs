//! Programs whose process is killed, in any language of a code medium.

use std::sync::Arc;

use cantrip::{Cantrip, CantripBuilder, CastOptions};
use cantrip_circle::gate::builtin;
use cantrip_circle::{DelegationGrants, Medium, MediumKind};
use cantrip_crystal::{Answer, Crystal, EventSink, Failure, ProgramCrystal, Request, Response};
use cantrip_loom::{AnyLoom, MemoryLoom, Message, TruncationReason};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::{Value, json};

use super::{Count, Dying, counting, counting_again, done, house_of, script, woven};

/// Chooses its program by the number of earlier answers in this list, like a model after a crash.
struct Steady(Vec<&'static str>);

impl Crystal for Steady {
    fn name(&self) -> &str {
        "scripted/steady"
    }
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let said = usize::try_from(request.utterances).unwrap();
        let child = request.caller.spawned_by.is_some();
        let code = if child { "done(count(100))" } else { self.0[said] };
        script([Response::code(code)]).ask(request, heard).await
    }
}

/// Kills a cast of these programs between any two appends. Each time the cast must end as if nothing had happened.
pub(crate) async fn between_any_two_appends(
    coding: impl Fn() -> CantripBuilder,
    programs: &[&'static str],
    answer: Value,
) {
    let steady = |count: &Count| {
        coding().crystal(Steady(programs.to_vec())).gate(counting_again("count", count)).build().unwrap()
    };
    let count = Count::default();
    let store = Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX);
    let runtime = house_of(AnyLoom::new(store.clone()), 1);
    let cantrip = steady(&count);
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&answer), "{:?}", cast.reply());
    let wanted = woven(&runtime, cantrip.loom_id()).await;
    for dies_after in 1..store.taken() {
        let memory = AnyLoom::new(MemoryLoom::new());
        let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
        let cantrip = steady(&Count::default());
        let died = dying.cast(&cantrip, CastOptions::on("go")).await;
        assert_code(died.reply(), codes::STORE_UNAVAILABLE);
        let heir = house_of(memory, 2);
        let cast = heir.resume(&cantrip, died.run.unwrap()).await;
        let found = woven(&heir, cantrip.loom_id()).await;
        assert_eq!(cast.answer(), Some(&answer), "dead after {dies_after}: {found}");
        assert_eq!(found, wanted, "dead after {dies_after}");
        let replay = heir.replay(&cantrip, cast.outcome.unwrap().leaf.unwrap()).await;
        assert_code(replay.reply(), codes::VERIFIED);
    }
}

/// A crystal for the children: each returns its intent, whenever it is asked.
struct Says;

impl Crystal for Says {
    fn name(&self) -> &str {
        "scripted/child"
    }
    async fn ask(&self, request: &Request, heard: &dyn EventSink) -> Result<Answer, Failure> {
        let intent = request.messages.iter().find_map(|message| match message {
            Message::User { content } => Some(content.text()),
            Message::System { .. } | Message::Assistant { .. } | Message::Tool { .. } => None,
        });
        script([done(intent)]).ask(request, heard).await
    }
}

/// A program as the crystal of a circle with a counting gate and with children that return their intents.
pub(crate) fn flow(medium: Arc<dyn Medium>, code: &str, count: &Count) -> CantripBuilder {
    let child = || DelegationGrants {
        crystals: ["scripted/child".to_owned()].into(),
        crystal_by_level: vec!["scripted/child".to_owned()],
        mediums: [MediumKind::Conversation].into(),
        ..DelegationGrants::default()
    };
    Cantrip::builder()
        .crystal(ProgramCrystal::new("program/flow", code))
        .child_crystal("scripted/child", Says)
        .medium(medium.kind())
        .serve_medium(medium)
        .gate(builtin::done())
        .delegating(builtin::call_agent(), child())
        .delegating(builtin::call_agent_batch(), child())
        .gate(counting("count", count))
        .ward("max_turns", 5)
}

/// Kills a flow at every boundary. The code makes two calls of `count`, which may not be repeated, and delegates to
/// `one`, `two` and `three` between them; its answer is the list of all results.
pub(crate) async fn at_every_boundary(medium: impl Fn() -> Arc<dyn Medium>, code: &str) {
    let answer = json!([1, "one", "two", "three", 2]);
    let (count, store) = (Count::default(), Dying::after(AnyLoom::new(MemoryLoom::new()), u64::MAX));
    let runtime = house_of(AnyLoom::new(store.clone()), 1);
    let cantrip = flow(medium(), code, &count).build().unwrap();
    let cast = runtime.cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&answer), "{:?}", cast.reply());
    assert_eq!(cast.outcome.as_ref().unwrap().usage.total_tokens(), 0, "it costs nothing");
    let wanted = woven(&runtime, cantrip.loom_id()).await;
    let mut unknown = 0;
    for dies_after in 1..store.taken() {
        let count = Count::default();
        let memory = AnyLoom::new(MemoryLoom::new());
        let dying = house_of(AnyLoom::new(Dying::after(memory.clone(), dies_after)), 1);
        let cantrip = flow(medium(), code, &count).build().unwrap();
        let died = dying.cast(&cantrip, CastOptions::on("go")).await;
        assert_code(died.reply(), codes::STORE_UNAVAILABLE);
        let heir = house_of(memory, 2);
        let cast = heir.resume(&cantrip, died.run.unwrap()).await;
        let found = woven(&heir, cantrip.loom_id()).await;
        assert!(count.get() <= 2, "dead after {dies_after}: a call was made twice\n{found}");
        if found.contains(codes::OUTCOME_UNKNOWN.any().as_str()) {
            // The process died between the start and the end of a call that may not be repeated: the call fails, and
            // the program does not catch the error, so there is no answer.
            assert_eq!(cast.reason(), Some(TruncationReason::CrystalError), "dead after {dies_after}");
            unknown += 1;
            continue;
        }
        assert_eq!(cast.answer(), Some(&answer), "dead after {dies_after}: {found}");
        assert_eq!((sorted(&found), count.get()), (sorted(&wanted), 2), "dead after {dies_after}");
        let replay = heir.replay(&cantrip, cast.outcome.unwrap().leaf.unwrap()).await;
        assert_code(replay.reply(), codes::VERIFIED);
    }
    assert_eq!(unknown, 2, "once for each call");
}

/// Sorts the lines, because siblings may close in any order.
fn sorted(woven: &str) -> Vec<String> {
    let mut lines: Vec<String> = woven.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}
