//! Turns, paths, children, forks, folds, rewards, runs.
//!
//! One file, although long: each case is short, and the delegating and the forked thread serve many of them.

use cantrip_canon::{EntityId, FoldId, TurnId};
use cantrip_reply::codes;
use serde_json::{Value, json};

use super::{Episode, LoomWriter, Store, Subject, closed, settled, started, utterance};
use cantrip_loom::{
    Actor, AnyId, CallId, CallWork, CastParked, ChildRecord, Closing, Content, EndedBy, Ending, Environment, Error,
    Event, Fold, Fork, IntentRecord, Journal, Loom, Origin, PageRequest, ParkReason, RecordDraft, RecordValue,
    RecordedError, Reward, RunFailed, RunKind, RunState, Settlement, Spawn, Step, Strategy, ThreadState,
    TruncationReason,
};

async fn leaves<L: Loom>(store: &L, loom: cantrip_canon::LoomId) -> Vec<TurnId> {
    store.leaves(loom, PageRequest::FIRST).await.expect("readable").items
}

async fn ids<L: Loom>(store: &L, turn: TurnId) -> Vec<TurnId> {
    store.path(turn).await.expect("readable").iter().map(|turn| turn.id).collect()
}

pub(super) async fn a_turn_reads_back_as_it_was_written<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count to two").await;
    let first = weaver.plain(&mut episode).await;
    let second = weaver.done(&mut episode, json!({"sum": 3})).await;
    let turn = store.turn(first).await.expect("closed");
    assert_eq!((turn.parent_id, turn.sequence), (None, 1));
    assert_eq!((turn.loom_id, turn.cantrip_id), (weaver.loom, weaver.cantrip));
    assert_eq!((turn.entity_id, turn.cast_id), (episode.entity, episode.cast));
    assert_eq!(turn.intent, Some(Content::from("count to two")));
    assert_eq!(turn.utterance_text(), r#"[{"args":{"n":1},"gate":"echo","tool_call_id":"call_1"}]"#);
    let record = &turn.gate_calls[0];
    assert_eq!((record.gate.as_str(), &record.args), ("echo", &json!({"n": 1})));
    assert_eq!(record.tool_call_id.as_deref(), Some("call_1"));
    assert_eq!(record.call_id, CallId::of_turn(first, 1));
    assert!(!record.is_error());
    let took = &turn.metadata;
    assert_eq!((took.tokens_prompt, took.tokens_completion, took.tokens_cached), (100, 20, 40));
    assert_eq!((took.duration_ms, took.attempts, took.model.as_deref()), (12, 1, Some("scripted")));
    assert_eq!((turn.is_terminated(), turn.is_truncated(), turn.is_sealed()), (false, false, false));
    let turn = store.turn(second).await.expect("closed");
    assert_eq!((turn.parent_id, turn.sequence, &turn.intent), (Some(first), 2, &None));
    assert_eq!((turn.is_terminated(), turn.ended_by()), (true, Some(EndedBy::Done)));
    let thread = store.thread(second).await.expect("a path");
    assert_eq!((thread.state, thread.casts.len(), thread.sides().len()), (ThreadState::Terminated, 1, 4));
    let outcome = thread.casts[0].outcome.as_ref().expect("it has ended");
    assert_eq!(outcome.leaf, Some(second));
    assert_eq!(outcome.ending, Ending::Terminated { ended_by: EndedBy::Done, result: json!({"sum": 3}) });
    let root = &store.roots(weaver.loom).await.expect("readable")[0];
    assert_eq!((root.cantrip_id, &root.cantrip), (weaver.cantrip, &super::sample_cantrip()));
}

pub(super) async fn an_open_turn_is_not_in_the_tree<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let first = weaver.plain(&mut episode).await;
    let opened = weaver.opened(&episode, utterance(Some("I think"), &[]), &mut Vec::new());
    let open = opened.turn_id;
    weaver.write(&episode, opened).await;
    assert!(matches!(store.turn(open).await, Err(Error::NotFound { kind: "turn", .. })));
    assert_eq!(leaves(store, weaver.loom).await, [first]);
    weaver.write(&episode, closed(open, Closing::Open)).await;
    assert_eq!(leaves(store, weaver.loom).await, [open]);
    assert_eq!(store.turn(open).await.expect("closed").utterance_text(), "I think");
}

pub(super) async fn a_path_leads_from_the_root_to_its_turn<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let turns = weaver.plain_turns(&mut episode, 6).await;
    for (at, turn) in turns.iter().enumerate() {
        assert_eq!(ids(store, *turn).await, turns[..=at]);
    }
    assert_eq!(store.entity(episode.entity).await.expect("known").leaf, turns.last().copied());
    assert_eq!(store.children(turns[2]).await.expect("known"), [turns[3]]);
}

pub(super) async fn a_tail_is_the_end_of_a_path<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (turns, children, mut parent) = delegating(&mut weaver, 2).await;
    let last = weaver.plain(&mut parent).await;
    let mut branch = fork(&mut weaver, turns[1], 2).await;
    let new = weaver.plain(&mut branch).await;
    for leaf in [last, new, children[1], turns[0]] {
        let path = store.path(leaf).await.expect("readable");
        for most in 0..=path.len() + 1 {
            let tail = store.tail(leaf, most).await.expect("readable");
            assert_eq!(tail, path[path.len().saturating_sub(most)..], "the last {most} of {leaf}");
        }
        let whole = store.thread(leaf).await.expect("a path");
        assert_eq!(store.thread_end(leaf, path.len()).await.expect("a path"), whole);
        for most in 1..path.len() {
            let end = store.thread_end(leaf, most).await.expect("a path");
            assert_eq!(end.turns, path[path.len() - most..]);
            assert_eq!((end.leaf, end.state, &end.entity), (leaf, whole.state, &whole.entity));
            let shown = |cast: &cantrip_loom::CastView| end.turns.iter().any(|turn| turn.cast_id == cast.cast.cast_id);
            let casts: Vec<_> = whole.casts.iter().filter(|cast| shown(cast)).cloned().collect();
            assert_eq!(end.casts, casts);
        }
    }
    let unknown: TurnId = weaver.id();
    assert!(matches!(store.tail(unknown, 3).await, Err(Error::NotFound { .. })));
    assert!(matches!(store.thread_end(unknown, 3).await, Err(Error::NotFound { .. })));
}

/// Writes a parent whose one utterance delegates `children` times in a row, each time to one child that is done at
/// once. Returns the turns of the parent and of the children.
pub(super) async fn delegating<J: Journal>(
    weaver: &mut LoomWriter<'_, J>,
    children: u32,
) -> (Vec<TurnId>, Vec<TurnId>, Episode) {
    let mut parent = weaver.cast("delegate").await;
    let calls: Vec<(&str, Value)> =
        (0..children).map(|n| ("call_agent", json!({"intent": format!("part {n}")}))).collect();
    let opened = weaver.opened(&parent, utterance(None, &calls), &mut Vec::new());
    let holder = opened.turn_id;
    let (mut open, mut turns, mut child_turns) = (holder, Vec::new(), Vec::new());
    let mut step = weaver.step_with(&parent, opened);
    for n in 1..=children {
        let call = CallId::of_turn(holder, n);
        let child: EntityId = call.child(0);
        let next: TurnId = weaver.id();
        let intent = weaver.intent("part");
        let cast = weaver.cast_of(child, intent);
        let origin = Origin::Child { parent: open, spawned_by: Spawn { call_id: call, index: 0 } };
        let entity = weaver.entity(child, origin);
        let mut episode =
            Episode { entity: child, cast: cast.cast_id, leaf: Some(open), sequence: 0, turns: 0, ..parent.clone() };
        step = step
            .record(weaver.draft(started(call, CallWork::Delegation { children: vec![child] }, None)))
            .record(weaver.draft(closed(open, Closing::Sealed { call, next })))
            .record(weaver.draft(entity))
            .record(weaver.draft(cast));
        weaver.commit(step).await;
        let done = Closing::Terminated { ended_by: EndedBy::Done };
        child_turns.push(weaver.turn(&mut episode, "done", json!(n), done).await);
        let result = RecordValue::new(json!(n), &mut Vec::new()).expect("it is short");
        let end = weaver.end_of(&episode, Ending::Terminated { ended_by: EndedBy::Done, result });
        let mut over = settled(call, json!(n), &mut Vec::new());
        over.children = vec![ChildRecord { entity_id: child, reply: codes::TERMINATED.any().into(), reason: None }];
        turns.push(open);
        open = next;
        step = weaver.step_with(&parent, end).record(weaver.draft(over));
    }
    step = step.record(weaver.draft(closed(open, Closing::Open)));
    weaver.commit(step).await;
    turns.push(open);
    parent.leaf = Some(open);
    parent.sequence = turns.len() as u64;
    parent.turns = turns.len() as u64;
    (turns, child_turns, parent)
}

pub(super) async fn delegation_seals_the_turn_and_the_child_hangs_from_it<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let (turns, children, parent) = delegating(&mut weaver, 1).await;
    let sealed = store.turn(turns[0]).await.expect("closed");
    assert!(sealed.is_sealed());
    assert_eq!(sealed.gate_calls[0].settlement, Settlement::Delegated);
    let child = store.turn(children[0]).await.expect("closed");
    assert_eq!((child.parent_id, child.sequence), (Some(turns[0]), 1));
    assert_ne!(child.entity_id, parent.entity);
    assert_eq!(child.spawned_by, Some(Spawn { call_id: CallId::of_turn(turns[0], 1), index: 0 }));
    let rest = store.turn(turns[1]).await.expect("closed");
    assert_eq!((rest.parent_id, rest.continuation_of, rest.sequence), (Some(turns[0]), Some(turns[0]), 2));
    assert_eq!((&rest.utterance, rest.metadata.tokens_prompt), (&None, 0));
    assert_eq!(
        (rest.gate_calls[0].gate.as_str(), &rest.gate_calls[0].args),
        ("call_agent", &json!({"intent": "part 0"}))
    );
    assert_eq!(store.children(turns[0]).await.expect("known"), [children[0], turns[1]]);
    assert_eq!(ids(store, children[0]).await, [turns[0], children[0]]);
}

pub(super) async fn a_sealed_group_reads_as_five_turns<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (turns, children, mut parent) = delegating(&mut weaver, 4).await;
    assert_eq!(ids(store, turns[4]).await, turns);
    let sequences: Vec<u64> = store.path(turns[4]).await.expect("readable").iter().map(|turn| turn.sequence).collect();
    assert_eq!(sequences, [1, 2, 3, 4, 5]);
    for (turn, child) in turns.iter().zip(&children) {
        assert_eq!(store.turn(*child).await.expect("closed").parent_id, Some(*turn));
    }
    assert_eq!(leaves(store, weaver.loom).await, [&children[..], &turns[4..]].concat());
    let last = weaver.done(&mut parent, json!("abcd")).await;
    assert_eq!(store.turn(last).await.expect("closed").sequence, 6);
}

pub(super) async fn fork<J: Journal>(weaver: &mut LoomWriter<'_, J>, turn: TurnId, sequence: u64) -> Episode {
    let intent = weaver.intent("another way");
    let origin = Origin::Fork(Fork { turn, environment: Environment::None });
    let (mut step, episode) = weaver.open(origin, intent, Some(turn), sequence);
    // The cantrip is in the loom already: a fork needs only an entity and a cast.
    let opening = weaver.opening(RunKind::Cast, episode.entity);
    step.records.remove(0);
    let made = weaver.entity(episode.entity, origin);
    step.records[0] = RecordDraft::opening(weaver.now(), opening, made).expect("a small record");
    assert_eq!(step.records.len(), 2);
    weaver.commit(step).await;
    episode
}

pub(super) async fn a_fork_is_two_records_and_leaves_the_original_alone<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let mut episode = weaver.cast("count").await;
    let turns = weaver.plain_turns(&mut episode, 4).await;
    let original = store.thread(turns[3]).await.expect("a path");
    let mut branch = fork(&mut weaver, turns[1], 2).await;
    let new = weaver.plain(&mut branch).await;
    assert_eq!(store.thread(turns[3]).await.expect("a path"), original);
    let turn = store.turn(new).await.expect("closed");
    assert_eq!((turn.parent_id, turn.sequence), (Some(turns[1]), 3));
    assert_eq!(turn.forked_from, Some(Fork { turn: turns[1], environment: Environment::None }));
    assert_eq!(turn.intent, Some(Content::from("another way")));
    assert_eq!(leaves(store, weaver.loom).await, [turns[3], new]);
    let thread = store.thread(new).await.expect("a path");
    assert_eq!((thread.casts.len(), thread.forks.len(), thread.turns.len()), (2, 1, 3));
    let second = weaver.plain(&mut branch).await;
    assert_eq!(store.turn(second).await.expect("closed").forked_from, None);
}

pub(super) async fn a_fork_keeps_the_path_up_to_its_turn<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (mut turns, _, mut parent) = delegating(&mut weaver, 2).await;
    turns.push(weaver.plain(&mut parent).await);
    turns.push(weaver.done(&mut parent, json!(1)).await);
    for (at, turn) in turns.iter().enumerate() {
        let kept = store.path(*turn).await.expect("readable");
        let mut branch = fork(&mut weaver, *turn, at as u64 + 1).await;
        let new = weaver.plain(&mut branch).await;
        let path = store.path(new).await.expect("readable");
        assert_eq!(path[..=at], kept[..]);
        assert_eq!(path[at + 1..].iter().map(|turn| turn.id).collect::<Vec<_>>(), [new]);
    }
}

pub(super) async fn leaves_are_the_turns_without_children<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (_, _, mut parent) = delegating(&mut weaver, 2).await;
    let turn = weaver.plain(&mut parent).await;
    fork(&mut weaver, turn, parent.sequence).await;
    let all = store.turns(weaver.loom, PageRequest::FIRST).await.expect("readable").items;
    let mut expected = Vec::new();
    for turn in &all {
        let has_child = all.iter().any(|other| other.parent_id == Some(turn.id));
        assert_eq!(store.children(turn.id).await.expect("known").is_empty(), !has_child);
        if !has_child {
            expected.push(turn.id);
        }
    }
    assert_eq!(leaves(store, weaver.loom).await, expected);
}

pub(super) async fn the_latest_reward_counts_and_all_are_kept<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let turn = weaver.done(&mut episode, json!(1)).await;
    assert_eq!(store.turn(turn).await.expect("closed").reward, None);
    for (reward, by) in [(0.5, "user:1"), (-1.0, "user:2"), (0.75, "user:1")] {
        let reward = Reward { turn_id: turn, reward, by: Actor::new(by).expect("a name"), note: Some("seen".into()) };
        let step = Step::annotation(weaver.step_id(), episode.run).record(weaver.draft(reward));
        weaver.commit(step).await;
    }
    assert_eq!(store.turn(turn).await.expect("closed").reward, Some(0.75));
    let rewards = store.rewards(turn).await.expect("known");
    let given: Vec<(f64, &str)> = rewards.iter().map(|reward| (reward.reward, reward.by.as_str())).collect();
    assert_eq!(given, [(0.5, "user:1"), (-1.0, "user:2"), (0.75, "user:1")]);
    assert!(rewards.is_sorted_by_key(|reward| reward.at));
}

pub(super) async fn a_fold_holds_where_its_turn_is_on_the_path<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let mut turns = weaver.plain_turns(&mut episode, 3).await;
    let fold = folded(weaver.id(), episode.entity, turns[2]);
    weaver.write(&episode, fold.clone()).await;
    turns.push(weaver.plain(&mut episode).await);
    let held: Vec<usize> = {
        let mut held = Vec::new();
        for turn in &turns {
            held.push(store.folds(*turn).await.expect("known").len());
        }
        held
    };
    assert_eq!(held, [0, 0, 1, 1]);
    for turn in &turns {
        let folds = store.folds(*turn).await.expect("known");
        assert_eq!(store.last_fold(*turn).await.expect("known"), folds.last().cloned());
    }
    let view = &store.folds(turns[3]).await.expect("known")[0];
    assert_eq!((&view.fold, view.text.as_str()), (&fold, "[Folded: turns 1-2] 2 turns are not shown."));
    let mut before = fork(&mut weaver, turns[1], 2).await;
    let plain = weaver.plain(&mut before).await;
    assert_eq!(store.folds(plain).await.expect("known"), []);
    let mut after = fork(&mut weaver, turns[3], 4).await;
    let folded = weaver.plain(&mut after).await;
    assert_eq!(store.folds(folded).await.expect("known").len(), 1);
    // Every turn stays readable.
    assert_eq!(store.path(folded).await.expect("readable").len(), 5);
}

pub(super) fn folded(fold_id: FoldId, entity_id: EntityId, after: TurnId) -> Fold {
    Fold {
        fold_id,
        entity_id,
        after,
        from: 1,
        to: 2,
        strategy: Strategy::Window,
        text: RecordValue::new("[Folded: turns 1-2] 2 turns are not shown.".to_owned(), &mut Vec::new())
            .expect("short"),
        estimate_before: 900,
        estimate_after: 300,
        attempt: None,
        degraded: false,
        sum: None,
    }
}

pub(super) async fn a_fork_has_the_folds_that_were_there_when_it_branched_off<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let mut episode = weaver.cast("count").await;
    let at = weaver.plain_turns(&mut episode, 3).await[2];
    let mut before = fork(&mut weaver, at, 3).await;
    let fold = folded(weaver.id(), episode.entity, at);
    weaver.write(&episode, fold).await;
    let mut after = fork(&mut weaver, at, 3).await;
    let (before, after) = (weaver.plain(&mut before).await, weaver.plain(&mut after).await);
    assert_eq!(store.folds(before).await.expect("known"), [], "the original folded after it was left");
    assert_eq!(store.folds(after).await.expect("known").len(), 1);
    assert_eq!(store.last_fold(before).await.expect("known"), None);
    assert!(store.last_fold(after).await.expect("known").is_some());
    assert_eq!(store.folds(at).await.expect("known").len(), 1);
}

pub(super) async fn an_end_without_a_turn_shows_on_the_last_one<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let turn = weaver.plain(&mut episode).await;
    let error = RecordedError::new(codes::UNREACHABLE.any(), "the provider is down");
    let reason = TruncationReason::CrystalError;
    let ending = Ending::Truncated { reason, error: Some(error.clone()), summary: "1 turn".into() };
    weaver.end(&episode, ending).await;
    let seen = store.turn(turn).await.expect("closed");
    assert_eq!((seen.is_truncated(), seen.truncation()), (true, Some((reason, Some(&error)))));
    assert_eq!(store.thread(turn).await.expect("a path").state, ThreadState::Truncated);
    assert_eq!(store.turns(weaver.loom, PageRequest::FIRST).await.expect("readable").items.len(), 1);
    // A cast without a turn also ends, and is shown nowhere else.
    let empty = weaver.cast("nothing").await;
    weaver.truncate(&empty, TruncationReason::Cancelled).await;
    let cast = store.cast(empty.cast).await.expect("known");
    assert_eq!(cast.outcome.expect("it has ended").leaf, None);
}

pub(super) async fn a_send_extends_the_thread_of_its_entity<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    // A summoned entity: its run is over at once.
    let (mut step, mut episode) = {
        let intent = weaver.intent("unused");
        weaver.open(Origin::Root, intent, None, 0)
    };
    step.records.pop();
    let opening = weaver.opening(RunKind::Summon, episode.entity);
    step.records[0] = RecordDraft::opening(weaver.now(), opening, weaver.root()).expect("a small record");
    step.target = cantrip_loom::StepTarget::OpenRun { run: episode.run, lease: None };
    weaver.commit(step).await;
    assert_eq!(store.run(episode.run).await.expect("known").state, RunState::Terminated);
    let mut turns = Vec::new();
    for intent in ["one", "two"] {
        let intent = weaver.intent(intent);
        episode = weaver.send(&episode, intent).await;
        turns.push(weaver.done(&mut episode, json!(1)).await);
    }
    let path = store.path(turns[1]).await.expect("readable");
    assert_eq!(path.iter().map(|turn| (turn.id, turn.sequence)).collect::<Vec<_>>(), [(turns[0], 1), (turns[1], 2)]);
    assert_eq!(path[1].intent, Some(Content::from("two")));
    assert_eq!(store.casts(episode.entity).await.expect("known").len(), 2);
    assert_eq!(store.entity(episode.entity).await.expect("known").leaf, Some(turns[1]));
}

pub(super) async fn a_cast_may_go_on_under_an_earlier_intent<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    weaver.plain(&mut episode).await;
    weaver.truncate(&episode, TruncationReason::MaxTurns).await;
    let mut more = weaver.send(&episode, IntentRecord::Of(episode.cast)).await;
    let turn = weaver.done(&mut more, json!(1)).await;
    assert_eq!(store.turn(turn).await.expect("closed").intent, None);
    let cast = store.cast(more.cast).await.expect("known");
    assert_eq!((cast.intent, cast.own_intent), (Content::from("count"), false));
}

pub(super) async fn runs_say_where_they_stand<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let state = async |run| store.run(run).await.expect("known").state;
    let intent = weaver.intent("later");
    let (mut step, queued) = weaver.open(Origin::Root, intent, None, 0);
    step.target = cantrip_loom::StepTarget::OpenRun { run: queued.run, lease: None };
    weaver.commit(step).await;
    assert_eq!(state(queued.run).await, RunState::Queued);
    let mut episode = weaver.cast("count").await;
    assert_eq!(state(episode.run).await, RunState::Running);
    let parked = CastParked {
        cast_id: episode.cast,
        reason: ParkReason::CrystalUnavailable,
        turn_id: None,
        error: None,
        detail: None,
        elapsed_ms: Some(5),
    };
    weaver.write(&episode, parked).await;
    store.release(&episode.lease).await.expect("held");
    assert_eq!(state(episode.run).await, RunState::Waiting);
    let owner = cantrip_loom::WorkerId::new("process-2").expect("a name");
    let lease = store.acquire(episode.run, owner, weaver.now(), std::time::Duration::from_hours(1)).await;
    episode.lease = lease.expect("it is free");
    assert_eq!(state(episode.run).await, RunState::Running);
    weaver.done(&mut episode, json!(1)).await;
    let view = store.run(episode.run).await.expect("known");
    assert_eq!((view.state, view.kind, view.entity_id), (RunState::Terminated, RunKind::Cast, Some(episode.entity)));
    assert!(view.ended_at.is_some() && view.created_at < view.ended_at.expect("ended"));
    let listed = store.runs(PageRequest::FIRST).await.expect("readable").items;
    assert_eq!(listed.iter().map(|run| run.run_id).collect::<Vec<_>>(), [queued.run, episode.run]);
}

pub(super) async fn runs_are_listed_by_where_they_stand<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    for n in 0..5 {
        let mut episode = weaver.cast("count").await;
        match n {
            0 | 3 => {
                weaver.done(&mut episode, json!(n)).await;
            }
            1 => weaver.truncate(&episode, TruncationReason::MaxTurns).await,
            _ => {}
        }
    }
    let all = store.runs(PageRequest::FIRST).await.expect("readable").items;
    let states = [
        RunState::Queued,
        RunState::Running,
        RunState::Waiting,
        RunState::Terminated,
        RunState::Truncated,
        RunState::Failed,
    ];
    for state in states {
        let listed = store.runs_in(state, PageRequest::FIRST).await.expect("readable");
        let expected: Vec<_> = all.iter().filter(|run| run.state == state).cloned().collect();
        assert_eq!((listed.items, listed.next), (expected, None), "{state:?}");
    }
    let first = store.runs_in(RunState::Running, PageRequest { after: None, most: 1 }).await.expect("readable");
    let second = store.runs_in(RunState::Running, PageRequest { after: first.next, most: 1 }).await.expect("readable");
    assert_eq!((first.items[0].run_id, second.items[0].run_id, second.next), (all[2].run_id, all[4].run_id, None));
    for state in states.map(Some).into_iter().chain([None]) {
        let expected: Vec<_> =
            all.iter().rev().filter(|run| state.is_none_or(|state| run.state == state)).cloned().collect();
        let (mut page, mut listed) = (PageRequest { after: None, most: 2 }, Vec::new());
        loop {
            let part = store.latest_runs(state, page).await.expect("readable");
            listed.extend(part.items);
            page.after = part.next;
            if part.next.is_none() {
                break;
            }
        }
        assert_eq!(listed, expected, "{state:?}");
    }
    assert_eq!(store.last_run().await.expect("readable"), all.last().cloned());
}

pub(super) async fn a_failed_run_is_reopened_by_its_next_record<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let error = RecordedError::new(codes::CRASH.any(), "unexpected failure");
    weaver.write(&episode, RunFailed { error }).await;
    assert_eq!(store.run(episode.run).await.expect("known").state, RunState::Failed);
    weaver.plain(&mut episode).await;
    assert_eq!(store.run(episode.run).await.expect("known").state, RunState::Running);
    weaver.done(&mut episode, json!(1)).await;
    assert_eq!(store.run(episode.run).await.expect("known").state, RunState::Terminated);
}

pub(super) async fn an_entity_whose_run_failed_can_be_cast_again<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let first = weaver.plain(&mut episode).await;
    let opened = weaver.opened(&episode, utterance(Some("I was about to"), &[]), &mut Vec::new());
    let (open, error) = (opened.turn_id, RecordedError::new(codes::CRASH.any(), "unexpected failure"));
    let step = weaver.step_with(&episode, opened).record(weaver.draft(RunFailed { error }));
    weaver.commit(step).await;
    let intent = weaver.intent("again");
    let mut second = weaver.send(&episode, intent).await;
    let turn = weaver.done(&mut second, json!(1)).await;
    assert_eq!(ids(store, turn).await, [first, turn]);
    assert!(matches!(store.turn(open).await, Err(Error::NotFound { .. })));
    let late = weaver.step_with(&episode, closed(open, Closing::Open));
    let answer = store.append(late).await;
    assert!(matches!(answer, Err(Error::Incoherent { .. })), "{answer:?}");
}

pub(super) async fn an_unambiguous_beginning_names_its_thing<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let turn = weaver.plain(&mut episode).await;
    weaver.plain(&mut episode).await;
    assert_eq!(store.resolve(&turn.to_string()).await.expect("known"), AnyId::Turn(turn));
    assert_eq!(store.resolve("run_").await.expect("there is one"), AnyId::Run(episode.run));
    let digits = episode.run.to_string();
    assert_eq!(store.resolve(&digits["run_".len()..]).await.expect("known"), AnyId::Run(episode.run));
    let shared = store.resolve("turn_").await;
    assert!(matches!(shared, Err(Error::Ambiguous { matches: 2, .. })), "{shared:?}");
    for unknown in ["turn_zzzz", "nothing_0", "", "turn_7zzzzzzzzzzzzzzzzzzzzzzzzz", "run_!", &"0".repeat(99)] {
        let found = store.resolve(unknown).await;
        assert!(matches!(found, Err(Error::NotFound { .. } | Error::Ambiguous { .. })), "{unknown}: {found:?}");
    }
}

pub(super) async fn lists_come_in_pages<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let turns = weaver.plain_turns(&mut episode, 5).await;
    for turn in turns.clone() {
        let mut branch =
            fork(&mut weaver, turn, turns.iter().position(|known| *known == turn).expect("one of them") as u64 + 1)
                .await;
        weaver.plain(&mut branch).await;
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.turns(weaver.loom, PageRequest { after, most: 3 }).await.expect("readable");
        assert!(page.items.len() <= 3);
        seen.extend(page.items.iter().map(|turn| turn.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen.len(), 10);
    assert_eq!(seen[..5], turns);
    let first = store.leaves(weaver.loom, PageRequest { after: None, most: 2 }).await.expect("readable");
    let rest = store.leaves(weaver.loom, PageRequest { after: first.next, most: 99 }).await.expect("readable");
    assert_eq!((first.items.len(), rest.items.len(), rest.next), (2, 3, None));
    assert_eq!([first.items, rest.items].concat(), leaves(store, weaver.loom).await);
    let beyond = store.entities(weaver.loom, PageRequest { after: Some(u64::MAX), most: 9 }).await.expect("readable");
    assert_eq!((beyond.items.len(), beyond.next), (0, None));
}

pub(super) async fn an_extent_is_what_the_lists_hold<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (_, _, mut parent) = delegating(&mut weaver, 2).await;
    let turn = weaver.plain(&mut parent).await;
    // An entity without a closed turn counts too, and it is the newest one.
    fork(&mut weaver, turn, parent.sequence).await;
    let turns = store.turns(weaver.loom, PageRequest::FIRST).await.expect("readable").items;
    let entities = store.entities(weaver.loom, PageRequest::FIRST).await.expect("readable").items;
    let extent = store.extent(weaver.loom).await.expect("readable");
    assert_eq!((extent.turns, extent.entities), (turns.len() as u64, entities.len() as u64));
    assert!(extent.turns > 0 && extent.entities > 1);
    let closed = turns.iter().map(|turn| turn.metadata.timestamp);
    assert_eq!(extent.last_activity, closed.chain(entities.iter().map(|entity| entity.at)).max());
    assert_eq!(cantrip_loom::count_extent(store, weaver.loom).await.expect("readable"), extent);
    let elsewhere = cantrip_canon::LoomId::from_parts(super::at(0), [9; 10]);
    assert!(matches!(store.extent(elsewhere).await, Err(Error::NotFound { kind: "loom", .. })));
}

pub(super) async fn settled_calls_read_in_call_order<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let episode = weaver.cast("look").await;
    let calls: Vec<(&str, Value)> = (0..4).map(|n| ("read", json!({"path": n}))).collect();
    let opened = weaver.opened(&episode, utterance(None, &calls), &mut Vec::new());
    let turn = opened.turn_id;
    let mut step = weaver.step_with(&episode, opened);
    for n in 1..=4 {
        step = step.record(weaver.draft(started(CallId::of_turn(turn, n), CallWork::Gate, None)));
    }
    weaver.commit(step).await;
    for n in [3, 1, 4, 2] {
        let over = settled(CallId::of_turn(turn, n), json!(n), &mut Vec::new());
        weaver.write(&episode, over).await;
    }
    weaver.write(&episode, closed(turn, Closing::Open)).await;
    let turn = store.turn(turn).await.expect("closed");
    let order: Vec<u32> = turn.gate_calls.iter().map(|record| record.call_id.number()).collect();
    assert_eq!(order, [1, 2, 3, 4]);
    assert_eq!(turn.gate_calls[2].args, json!({"path": 2}));
}

pub(super) async fn records_that_do_not_follow_are_refused<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let turn = weaver.plain(&mut episode).await;
    let mut late = weaver.opened(&episode, utterance(Some("hm"), &[]), &mut Vec::new());
    late.sequence = 9;
    let mut astray = weaver.opened(&episode, utterance(Some("hm"), &[]), &mut Vec::new());
    astray.parent_id = None;
    let unknown: TurnId = weaver.id();
    let reward = Reward { turn_id: unknown, reward: 1.0, by: Actor::new("user:1").expect("a name"), note: None };
    let cast = weaver.cast_of(episode.entity, IntentRecord::Of(episode.cast));
    let wrong: Vec<Event> = vec![
        late.into(),
        astray.into(),
        closed(turn, Closing::Open).into(),
        closed(unknown, Closing::Open).into(),
        settled(CallId::of_turn(turn, 1), json!(1), &mut Vec::new()).into(),
        started(CallId::of_turn(unknown, 1), CallWork::Gate, None).into(),
        reward.into(),
        cast.into(),
        weaver.entity(episode.entity, Origin::Root).into(),
    ];
    for event in wrong {
        let kind = event.kind();
        let step = weaver.step_with(&episode, event);
        let answer = store.append(step).await;
        assert!(matches!(answer, Err(Error::Incoherent { .. })), "{kind}: {answer:?}");
    }
    weaver.plain(&mut episode).await;
}

pub(super) async fn what_was_open_goes_on_after_reopening<S: Subject>(subject: S) {
    let mut next = None;
    let mut subject = subject;
    // The store is closed after each of these steps in turn: a turn opened, a call settled, a turn sealed, a child
    // done, the delegation settled and another turn sealed.
    for stop in 0..6 {
        let seed = 20 + stop;
        let (episode, mut plan) = {
            let store = subject.store();
            let mut weaver = LoomWriter::seeded(store, seed);
            let mut episode = weaver.cast("delegate").await;
            weaver.plain(&mut episode).await;
            let calls = [
                ("read", json!({"n": 1})),
                ("call_agent", json!({"intent": "a"})),
                ("call_agent", json!({"intent": "b"})),
            ];
            let opened = weaver.opened(&episode, utterance(None, &calls), &mut Vec::new());
            let mut plan = Plan::new(&mut weaver, &episode, opened);
            for step in plan.steps.drain(..stop as usize + 1) {
                weaver.commit(step).await;
            }
            (episode, plan)
        };
        let Some(reopened) = subject.reopen().await else { return };
        subject = reopened;
        let store = subject.store();
        let (owner, expired) = (cantrip_loom::WorkerId::new("process-2").expect("a name"), episode.lease.expires_at);
        let lease = store.acquire(episode.run, owner, expired, std::time::Duration::from_hours(1)).await.expect("free");
        for step in plan.steps.drain(..) {
            let answer = store.append(Step { target: cantrip_loom::StepTarget::OwnedRun(lease.clone()), ..step }).await;
            assert!(
                matches!(answer, Ok(cantrip_loom::AppendOutcome::Committed(_))),
                "stopped after {stop}: {answer:?}"
            );
        }
        let path = store.path(plan.last).await.expect("readable");
        let shown: Vec<(u64, usize, bool)> =
            path.iter().map(|turn| (turn.sequence, turn.gate_calls.len(), turn.is_sealed())).collect();
        assert_eq!(shown, [(1, 1, false), (2, 2, true), (3, 2, true), (4, 1, false)], "stopped after {stop}");
        assert_eq!(store.turn(plan.last).await.expect("closed").entity_id, episode.entity);
        let seen: Vec<Vec<Value>> =
            path[1..].iter().map(|turn| turn.gate_calls.iter().map(|call| call.args.clone()).collect()).collect();
        assert_eq!(*next.get_or_insert_with(|| seen.clone()), seen, "stopped after {stop}");
    }
}

/// One utterance with a call and two delegations, as the steps that the loop writes.
struct Plan {
    steps: Vec<Step>,
    last: TurnId,
}

impl Plan {
    fn new<J: Journal>(weaver: &mut LoomWriter<'_, J>, episode: &Episode, opened: cantrip_loom::TurnOpened) -> Self {
        let holder = opened.turn_id;
        let call = |n| CallId::of_turn(holder, n);
        let hold = |weaver: &mut LoomWriter<'_, J>| weaver.step(episode);
        let mut steps = Vec::new();
        let step =
            hold(weaver).record(weaver.draft(opened)).record(weaver.draft(started(call(1), CallWork::Gate, None)));
        steps.push(step);
        let over = settled(call(1), json!("read"), &mut Vec::new());
        let step = hold(weaver).record(weaver.draft(over));
        steps.push(step);
        let (mut open, mut before) = (holder, None);
        for n in [2, 3] {
            let child: EntityId = call(n).child(0);
            let next: TurnId = weaver.id();
            let intent = weaver.intent("part");
            let cast = weaver.cast_of(child, intent);
            let origin = Origin::Child { parent: open, spawned_by: Spawn { call_id: call(n), index: 0 } };
            let entity = weaver.entity(child, origin);
            let cast_id = cast.cast_id;
            let mut step = hold(weaver);
            if let Some(over) = before.take() {
                step = step.record(over);
            }
            steps.push(
                step.record(weaver.draft(started(call(n), CallWork::Delegation { children: vec![child] }, None)))
                    .record(weaver.draft(closed(open, Closing::Sealed { call: call(n), next })))
                    .record(weaver.draft(entity))
                    .record(weaver.draft(cast)),
            );
            let at =
                Episode { entity: child, cast: cast_id, leaf: Some(open), sequence: 0, turns: 0, ..episode.clone() };
            let said = weaver.opened(&at, utterance(Some("answer"), &[]), &mut Vec::new());
            let turn = said.turn_id;
            let ending = Closing::Terminated { ended_by: EndedBy::Text };
            let result = RecordValue::new(json!("answer"), &mut Vec::new()).expect("it is short");
            let at = Episode { leaf: Some(turn), turns: 1, ..at };
            let end = weaver.end_of(&at, Ending::Terminated { ended_by: EndedBy::Text, result });
            let step = hold(weaver)
                .record(weaver.draft(said))
                .record(weaver.draft(closed(turn, ending)))
                .record(weaver.draft(end));
            steps.push(step);
            before = Some(weaver.draft(settled(call(n), json!("answer"), &mut Vec::new())));
            open = next;
        }
        let mut step = hold(weaver);
        if let Some(over) = before {
            step = step.record(over);
        }
        steps.push(step.record(weaver.draft(closed(open, Closing::Open))));
        Self { steps, last: open }
    }
}
