//! Lists of runs, their counts, and the calls that wait for a person.
//!
//! The tokens and the money of a run are looked at only when it rests or has ended: a store may count them then.

use std::time::Duration;

use cantrip_canon::{ApprovalId, RunId, TurnId, bytes_hash};
use cantrip_reply::codes;
use cantrip_spend::Payer;
use serde_json::json;

use super::tree_cases::delegating;
use super::{Episode, LoomWriter, Store, Subject, at, closed, settled, usd, utterance};
use cantrip_loom::{
    Actor, ApprovalChoice, ApprovalDecided, ApprovalRequested, Attempt, CallId, CallSettled, Cast, CastParked, Closing,
    Error, IntentRecord, Journal, Origin, Overview, PageRequest, ParkReason, PolicyFacts, RecordDraft, RecordValue,
    RecordedError, RunFailed, RunKind, RunState, RunSummary, Step, SummaryFilter, TruncationReason, Usage, WindowPlace,
    WorkerId,
};

async fn listed<J: Store>(store: &J, filter: SummaryFilter) -> Vec<RunId> {
    let page = store.summaries(filter, PageRequest::FIRST).await.expect("readable");
    assert_eq!(page.next, None);
    page.items.iter().map(|run| run.run_id).collect()
}

async fn summary<J: Store>(store: &J, episode: &Episode) -> RunSummary {
    store.summary(episode.run).await.expect("known")
}

/// Returns the step that casts an entity for an owner, with a budget.
fn cast_for<J: Journal>(weaver: &mut LoomWriter<'_, J>, owner: &str, intent: IntentRecord) -> (Step, Episode) {
    let (mut step, episode) = weaver.open(Origin::Root, intent.clone(), None, 0);
    let mut opening = weaver.opening(RunKind::Cast, episode.entity);
    opening.owner = Actor::new(owner).expect("a name");
    step.records[0] = RecordDraft::opening(weaver.now(), opening, weaver.root()).expect("a small record");
    let cast = weaver.cast_of(episode.entity, intent);
    step.records[2] = weaver.draft(Cast { cast_id: episode.cast, budget: Some(usd(90_000)), ..cast });
    (step, episode)
}

async fn park<J: Store>(store: &J, weaver: &mut LoomWriter<'_, J>, episode: &Episode) {
    let error = Some(RecordedError::new(codes::UNREACHABLE.any(), "the provider is down"));
    let reason = ParkReason::CrystalUnavailable;
    let parked = CastParked { cast_id: episode.cast, reason, turn_id: None, error, detail: None, elapsed_ms: None };
    weaver.write(episode, parked).await;
    store.release(&episode.lease).await.expect("held");
}

fn approval<J: Journal>(weaver: &mut LoomWriter<'_, J>, episode: &Episode) -> ApprovalRequested {
    let turn: TurnId = weaver.id();
    ApprovalRequested {
        approval_id: weaver.id(),
        call_id: CallId::of_turn(turn, 1),
        cast_id: episode.cast,
        gate: "edit".into(),
        args: RecordValue::new(json!({"path": "a.txt"}), &mut Vec::new()).expect("it is short"),
        reasons: Vec::new(),
        expires_at: at(9_000_000),
        policy: None,
    }
}

pub(super) async fn runs_are_summed_up_the_newest_first<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    weaver.skip(1_000);
    let mut one = weaver.cast("first").await;
    weaver.done(&mut one, json!({"sum": 3, "of": 2})).await;
    let two = weaver.cast("second").await;
    weaver.truncate(&two, TruncationReason::MaxTurns).await;
    let mut three = weaver.cast("third").await;
    weaver.plain(&mut three).await;
    // A run that was written later and began earlier is listed where it began.
    let mut before = LoomWriter::seeded(store, 8);
    let mut zero = before.cast(&"é".repeat(300)).await;
    before.done(&mut zero, json!("an answer in words")).await;
    let all = store.summaries(SummaryFilter::default(), PageRequest::FIRST).await.expect("readable").items;
    let order: Vec<RunId> = all.iter().map(|run| run.run_id).collect();
    assert_eq!(order, [three.run, two.run, one.run, zero.run]);
    let (mut page, mut paged) = (PageRequest { after: None, most: 1 }, Vec::new());
    loop {
        let part = store.summaries(SummaryFilter::default(), page).await.expect("readable");
        assert!(part.items.len() <= 1);
        paged.extend(part.items);
        page.after = part.next;
        if part.next.is_none() {
            break;
        }
    }
    assert_eq!(paged, all);
    for run in &all {
        assert_eq!(store.summary(run.run_id).await.expect("known"), *run);
        let view = store.run(run.run_id).await.expect("known");
        assert_eq!(
            (run.state, run.newest, run.created_at, run.ended_at),
            (view.state, view.newest, view.created_at, view.ended_at)
        );
        assert_eq!(
            (run.kind, &run.owner, run.loom_id, run.entity_id),
            (view.kind, &view.owner, view.loom_id, view.entity_id)
        );
        assert_eq!((run.crystal.as_deref(), &run.spell, run.waiting_for), (Some("scripted"), &None, None));
    }
    let [third, second, first, zeroth] = &all[..] else { panic!("there are four: {all:?}") };
    assert_eq!((third.state, third.turns, third.cast_id), (RunState::Running, 1, Some(three.cast)));
    assert_eq!((second.state, second.reason), (RunState::Truncated, Some(TruncationReason::MaxTurns)));
    assert_eq!((second.code.as_deref(), &second.answer), (Some(codes::WARD_REACHED.as_str()), &None));
    assert_eq!((first.state, first.reason, &first.code), (RunState::Terminated, None, &None));
    assert_eq!((first.intent.as_deref(), first.answer.as_deref()), (Some("first"), Some(r#"{"of":2,"sum":3}"#)));
    assert_eq!((first.turns, first.child_turns, first.children), (1, 0, 0));
    assert_eq!((&zeroth.intent, zeroth.answer.as_deref()), (&Some("é".repeat(240)), Some("an answer in words")));
    let unknown: RunId = weaver.id();
    assert!(matches!(store.summary(unknown).await, Err(Error::NotFound { .. })));
}

pub(super) async fn a_summary_counts_children_tokens_and_money<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (_, _, mut parent) = delegating(&mut weaver, 2).await;
    assert_eq!(summary(store, &parent).await.children, 2, "also while it runs");
    weaver.paid(&mut parent, "read", codes::GATE_OK.any(), 1_500).await;
    // A request without an accepted answer costs too.
    let turn: TurnId = weaver.id();
    let attempt = Attempt {
        call_id: CallId::request(turn),
        cast_id: parent.cast,
        number: 1,
        request_digest: bytes_hash(b"request"),
        list_length: 3,
        crystal: None,
        reservation_id: None,
    };
    weaver.write(&parent, attempt).await;
    let failed = CallSettled {
        reply: codes::UNREACHABLE.any().into(),
        cost: Some(usd(200)),
        attempt: Some(1),
        usage: Some(Usage { prompt_tokens: 7, ..Usage::default() }),
        ..settled(CallId::request(turn), json!("down"), &mut Vec::new())
    };
    weaver.write(&parent, failed).await;
    weaver.done(&mut parent, json!(1)).await;
    let seen = summary(store, &parent).await;
    assert_eq!((seen.turns, seen.child_turns, seen.children), (5, 2, 2));
    // The group, two children, and two more turns: five answers.
    assert_eq!((seen.tokens_prompt, seen.tokens_completion, seen.tokens_cached), (507, 100, 200));
    assert_eq!((seen.own_cost, seen.cost, seen.budget), (Some(usd(1_700)), Some(usd(1_700)), None));
    let intent = weaver.intent("within a budget");
    let (step, mut bound) = cast_for(&mut weaver, "local", intent);
    weaver.commit(step).await;
    weaver.done(&mut bound, json!(1)).await;
    let seen = summary(store, &bound).await;
    assert_eq!((seen.budget, seen.own_cost, seen.cost), (Some(usd(90_000)), None, None), "no cost is known");
    // A cast that goes on under an earlier intent shows that one.
    let mut more = weaver.send(&bound, IntentRecord::Of(bound.cast)).await;
    weaver.done(&mut more, json!(2)).await;
    let seen = summary(store, &more).await;
    assert_eq!((seen.intent.as_deref(), seen.answer.as_deref(), seen.turns), (Some("within a budget"), Some("2"), 1));
}

pub(super) async fn a_summary_says_why_a_run_waits_or_failed<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("wait").await;
    weaver.paid(&mut episode, "read", codes::GATE_OK.any(), 40).await;
    park(store, &mut weaver, &episode).await;
    let seen = summary(store, &episode).await;
    assert_eq!((seen.state, seen.waiting_for), (RunState::Waiting, Some(ParkReason::CrystalUnavailable)));
    assert_eq!((seen.code.as_deref(), seen.cost), (Some(codes::UNREACHABLE.as_str()), Some(usd(40))));
    let owner = WorkerId::new("process-2").expect("a name");
    let lease = store.acquire(episode.run, owner, weaver.now(), Duration::from_hours(1)).await;
    episode.lease = lease.expect("it is free");
    let seen = summary(store, &episode).await;
    assert_eq!((seen.state, seen.waiting_for, &seen.code), (RunState::Running, None, &None));
    weaver.plain(&mut episode).await;
    let asked = approval(&mut weaver, &episode);
    weaver.write(&episode, asked).await;
    store.release(&episode.lease).await.expect("held");
    let seen = summary(store, &episode).await;
    assert_eq!((seen.state, seen.waiting_for, &seen.code), (RunState::Waiting, None, &None), "it is not parked");
    let other = weaver.cast("fail").await;
    let error = RecordedError::new(codes::CRASH.any(), "unexpected failure");
    weaver.write(&other, RunFailed { error }).await;
    let seen = summary(store, &other).await;
    assert_eq!((seen.state, seen.code.as_deref()), (RunState::Failed, Some(codes::CRASH.as_str())));
}

pub(super) async fn summaries_are_narrowed_by_every_condition<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut one = weaver.cast("Which module has the most Risk?").await;
    weaver.paid(&mut one, "read", codes::GATE_OK.any(), 5_000).await;
    weaver.done(&mut one, json!("The store.")).await;
    let intent = weaver.intent("count the lines");
    let (step, mut two) = cast_for(&mut weaver, "user:2", intent);
    weaver.commit(step).await;
    let later = weaver.now();
    weaver.done(&mut two, json!(7)).await;
    weaver.skip(100);
    let three = weaver.cast("count the risks").await;
    weaver.truncate(&three, TruncationReason::Cancelled).await;
    let mut elsewhere = LoomWriter::seeded(store, 8);
    elsewhere.skip(1_000);
    let mut four = elsewhere.cast("another loom").await;
    elsewhere.done(&mut four, json!(null)).await;
    let any = SummaryFilter::default;
    let all = [four.run, three.run, two.run, one.run];
    assert_eq!(listed(store, any()).await, all);
    let states = |states: &[RunState]| SummaryFilter { states: states.to_vec(), ..any() };
    assert_eq!(listed(store, states(&[RunState::Truncated])).await, [three.run]);
    assert_eq!(listed(store, states(&[RunState::Truncated, RunState::Terminated])).await, all);
    assert_eq!(listed(store, states(&[RunState::Waiting])).await, []);
    let owner = Some(Actor::new("user:2").expect("a name"));
    assert_eq!(listed(store, SummaryFilter { owner, ..any() }).await, [two.run]);
    assert_eq!(listed(store, SummaryFilter { loom: Some(elsewhere.loom), ..any() }).await, [four.run]);
    let crystal = |name: &str| SummaryFilter { crystal: Some(name.into()), ..any() };
    assert_eq!(listed(store, crystal("scripted")).await, all);
    assert_eq!(listed(store, crystal("script")).await, [], "the whole name counts");
    let cost = |least| SummaryFilter { cost_micros_min: Some(least), ..any() };
    assert_eq!(listed(store, cost(5_000)).await, [one.run]);
    assert_eq!(listed(store, cost(5_001)).await, []);
    assert_eq!(listed(store, cost(0)).await, all);
    assert_eq!(listed(store, SummaryFilter { since: Some(later), ..any() }).await, [four.run, three.run]);
    let text = |words: &str| SummaryFilter { text: Some(words.into()), ..any() };
    assert_eq!(listed(store, text("RISK")).await, [three.run, one.run]);
    assert_eq!(listed(store, text("risk store.")).await, [one.run], "a word may be in the answer");
    assert_eq!(listed(store, text(" count\tthe ")).await, [three.run, two.run]);
    assert_eq!(listed(store, text("%")).await, [], "no sign has a meaning of its own");
    assert_eq!(listed(store, text("li_es")).await, []);
    assert_eq!(listed(store, SummaryFilter { casts_only: true, ..any() }).await, all);
    let both = SummaryFilter { states: vec![RunState::Truncated], text: Some("lines".into()), ..any() };
    assert_eq!(listed(store, both).await, [], "every condition holds");
    let pages = PageRequest { after: None, most: 1 };
    let first = store.summaries(text("count"), pages).await.expect("readable");
    let second = store.summaries(text("count"), PageRequest { after: first.next, most: 1 }).await.expect("readable");
    assert_eq!((first.items[0].run_id, second.items[0].run_id, second.next), (three.run, two.run, None));
}

pub(super) async fn a_run_is_found_by_the_gates_and_codes_it_met<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (_, _, mut parent) = delegating(&mut weaver, 1).await;
    weaver.done(&mut parent, json!(1)).await;
    let mut other = weaver.cast("read").await;
    weaver.paid(&mut other, "read", codes::NOT_AUTHORIZED.any(), 10).await;
    // A long answer is a body, and the gate of its call is in there.
    let mut bodies = Vec::new();
    let opened = weaver.opened(&other, utterance(Some(&"long ".repeat(2_000)), &[("search", json!({}))]), &mut bodies);
    let turn = opened.turn_id;
    let facts = PolicyFacts {
        at: at(1),
        revision: 1,
        owner: Payer::local(),
        agent: Some("analyst".into()),
        labels: Vec::new(),
        touched: None,
        approval_ward: false,
        approval: None,
    };
    let over = settled(CallId::of_turn(turn, 1), json!("found"), &mut Vec::new());
    let over = CallSettled { judged: Some(Box::new(facts)), ..over };
    let step = weaver.step_with(&other, opened).record(weaver.draft(over)).bodies(bodies);
    let step = step.record(weaver.draft(closed(turn, Closing::Open)));
    weaver.commit(step).await;
    (other.leaf, other.sequence, other.turns) = (Some(turn), other.sequence + 1, other.turns + 1);
    weaver.truncate(&other, TruncationReason::MaxTurns).await;
    let gate = |name: &str| SummaryFilter { gate: Some(name.into()), ..SummaryFilter::default() };
    assert_eq!(listed(store, gate("call_agent")).await, [parent.run]);
    assert_eq!(listed(store, gate("done")).await, [parent.run], "a child called it too");
    assert_eq!(listed(store, gate("read")).await, [other.run]);
    assert_eq!(listed(store, gate("search")).await, [other.run]);
    assert_eq!(listed(store, gate("rea")).await, []);
    let code = |code: &str| SummaryFilter { code: Some(code.into()), ..SummaryFilter::default() };
    assert_eq!(listed(store, code(codes::NOT_AUTHORIZED.as_str())).await, [other.run]);
    assert_eq!(listed(store, code(codes::WARD_REACHED.as_str())).await, [other.run], "its end has a code");
    assert_eq!(listed(store, code(codes::GATE_OK.as_str())).await, [other.run, parent.run]);
    assert_eq!(listed(store, code(codes::TERMINATED.as_str())).await, [parent.run], "the reply of its child");
    let spell = |name: &str| SummaryFilter { spell: Some(name.into()), ..SummaryFilter::default() };
    assert_eq!(summary(store, &other).await.spell.as_deref(), Some("analyst"));
    assert_eq!(listed(store, spell("analyst")).await, [other.run]);
    assert_eq!(listed(store, spell("analyst2")).await, []);
}

pub(super) async fn runs_are_counted_by_owner_and_time<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut done = weaver.cast("done").await;
    weaver.paid(&mut done, "read", codes::GATE_OK.any(), 300).await;
    weaver.done(&mut done, json!(1)).await;
    let since = weaver.now();
    let intent = weaver.intent("cut");
    let (step, mut cut) = cast_for(&mut weaver, "user:2", intent);
    weaver.commit(step).await;
    weaver.paid(&mut cut, "read", codes::GATE_OK.any(), 50).await;
    weaver.truncate(&cut, TruncationReason::MaxCost).await;
    let failed = weaver.cast("fail").await;
    let error = RecordedError::new(codes::CRASH.any(), "unexpected failure");
    weaver.write(&failed, RunFailed { error }).await;
    let waiting = weaver.cast("wait").await;
    park(store, &mut weaver, &waiting).await;
    weaver.cast("run").await;
    let counts = store.run_counts(None, at(0)).await.expect("readable");
    assert_eq!((counts.waiting, counts.running, counts.went_wrong), (1, 1, 2));
    assert_eq!(counts.spent, [usd(350)]);
    let counts = store.run_counts(None, since).await.expect("readable");
    assert_eq!((counts.waiting, counts.running, counts.went_wrong, counts.spent), (1, 1, 2, vec![usd(50)]));
    let owner = Some(Actor::new("user:2").expect("a name"));
    let counts = store.run_counts(owner, at(0)).await.expect("readable");
    assert_eq!((counts.waiting, counts.running, counts.went_wrong, counts.spent), (0, 0, 1, vec![usd(50)]));
    let counts = store.run_counts(None, at(9_000_000)).await.expect("readable");
    assert_eq!((counts.waiting, counts.running, counts.went_wrong, counts.spent), (1, 1, 0, Vec::new()));
}

pub(super) async fn calls_that_wait_for_a_person_are_listed_until_they_are_decided<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let one = weaver.cast("one").await;
    let intent = weaver.intent("two");
    let (step, two) = cast_for(&mut weaver, "user:2", intent);
    weaver.commit(step).await;
    let mut asked = Vec::new();
    for episode in [&one, &two, &one] {
        let event = approval(&mut weaver, episode);
        let (id, draft) = (event.approval_id, weaver.draft(event));
        asked.push((episode.run, id, draft.at()));
        let step = weaver.step(episode).record(draft);
        weaver.commit(step).await;
    }
    let all = store.waiting_calls(PageRequest::FIRST).await.expect("readable");
    let seen: Vec<_> = all.items.iter().map(|call| (call.run_id, call.approval_id, call.asked_at)).collect();
    assert_eq!((&seen, all.next), (&asked, None));
    assert!(all.items.iter().all(|call| call.expires_at == at(9_000_000)));
    let owners: Vec<&str> = all.items.iter().map(|call| call.owner.as_str()).collect();
    assert_eq!(owners, ["local", "user:2", "local"]);
    let first = store.waiting_calls(PageRequest { after: None, most: 2 }).await.expect("readable");
    let rest = store.waiting_calls(PageRequest { after: first.next, most: 2 }).await.expect("readable");
    assert_eq!((first.items.len(), rest.next), (2, None));
    assert_eq!([first.items, rest.items].concat(), all.items);
    let actor = Some(Actor::new("local").expect("a name"));
    let decided = ApprovalDecided { approval_id: asked[0].1, decision: ApprovalChoice::Approved, actor, reason: None };
    let step = Step::annotation(weaver.step_id(), one.run).record(weaver.draft(decided));
    weaver.commit(step).await;
    let ids = async || {
        let left = store.waiting_calls(PageRequest::FIRST).await.expect("readable").items;
        left.iter().map(|call| call.approval_id).collect::<Vec<ApprovalId>>()
    };
    assert_eq!(ids().await, [asked[1].1, asked[2].1]);
    weaver.truncate(&one, TruncationReason::Cancelled).await;
    assert_eq!(ids().await, [asked[1].1], "an ended run waits for nobody");
}

pub(super) async fn overviews_survive_reopening<S: Subject>(subject: S) {
    let (loom, run, leaf) = {
        let store = subject.store();
        let mut weaver = LoomWriter::new(store);
        let (_, _, mut parent) = delegating(&mut weaver, 2).await;
        weaver.paid(&mut parent, "read", codes::NOT_AUTHORIZED.any(), 70).await;
        let leaf = weaver.done(&mut parent, json!("over")).await;
        let open = weaver.cast("open").await;
        let asked = approval(&mut weaver, &open);
        weaver.write(&open, asked).await;
        store.release(&open.lease).await.expect("held");
        (weaver.loom, parent.run, leaf)
    };
    let look = async |store: &S::Store| {
        let page = PageRequest::FIRST;
        (
            store.summaries(SummaryFilter::default(), page).await.expect("readable"),
            store.run_counts(None, at(0)).await.expect("readable"),
            store.window(leaf, WindowPlace::End, 3).await.expect("readable"),
            store.path_buckets(leaf, 2).await.expect("readable"),
            store.threads(loom, page).await.expect("readable"),
            store.run_threads(run).await.expect("readable"),
            store.waiting_calls(page).await.expect("readable"),
        )
    };
    let before = look(subject.store()).await;
    let Some(subject) = subject.reopen().await else { return };
    assert_eq!(look(subject.store()).await, before);
}
