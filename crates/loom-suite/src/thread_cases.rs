//! Parts of a thread, the marks of its spine, and the threads of looms and runs.

use std::ops::RangeInclusive;

use cantrip_canon::{EntityId, TurnId};
use cantrip_reply::{ReplyType, codes};
use futures_util::TryStreamExt;
use serde_json::json;

use super::tree_cases::{delegating, folded, fork};
use super::{Episode, LoomWriter, Store, closed, settled, started, usd, utterance};
use cantrip_loom::{
    Actor, CallId, CallWork, ChildRecord, Closing, EndedBy, Ending, Environment, Error, Fork, Journal, Origin,
    PageRequest, PathBucket, Record, RecordValue, Reward, RunState, Seq, Spawn, Step, ThreadSummary, TruncationReason,
    Turn, TurnWindow, WindowPlace,
};

/// Returns the path to a turn as the overview has it: from the last turn with sequence 1 on.
async fn own_path<J: Store>(store: &J, leaf: TurnId) -> Vec<Turn> {
    let mut path = store.path(leaf).await.expect("readable");
    let first = path.iter().rposition(|turn| turn.sequence == 1).expect("every path begins");
    path.split_off(first)
}

async fn window<J: Store>(store: &J, leaf: TurnId, place: WindowPlace, most: usize) -> TurnWindow {
    let window = store.window(leaf, place, most).await.expect("readable");
    assert_eq!((window.damaged.len(), window.spans.len()), (0, window.turns.len()));
    window
}

fn between(path: &[Turn], range: RangeInclusive<u64>, most: usize, last: bool) -> Vec<Turn> {
    let found: Vec<Turn> = path.iter().filter(|turn| range.contains(&turn.sequence)).cloned().collect();
    let kept = found.len().min(most);
    if last { found[found.len() - kept..].to_vec() } else { found[..kept].to_vec() }
}

pub(super) async fn a_window_is_the_asked_part_of_a_path<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (turns, children, mut parent) = delegating(&mut weaver, 2).await;
    let more = weaver.plain_turns(&mut parent, 3).await;
    let mut branch = fork(&mut weaver, turns[1], 2).await;
    let new = weaver.plain_turns(&mut branch, 2).await;
    for leaf in [more[2], new[1], turns[1], children[1]] {
        let path = own_path(store, leaf).await;
        let last = path.len() as u64;
        for most in [1, 2, 3, 9] {
            let seen = window(store, leaf, WindowPlace::End, most).await;
            assert_eq!(seen.turns, between(&path, 1..=last, most, true), "the last {most} of {leaf}");
            for sequence in 0..=last + 1 {
                let after = window(store, leaf, WindowPlace::After(sequence), most).await;
                assert_eq!(after.turns, between(&path, sequence + 1..=last, most, false), "{most} after {sequence}");
                let before = window(store, leaf, WindowPlace::Before(sequence), most).await;
                let earlier = 1..=sequence.saturating_sub(1);
                assert_eq!(before.turns, between(&path, earlier, most, true), "{most} before {sequence}");
                let around = window(store, leaf, WindowPlace::Around(sequence), most).await;
                assert_eq!(around.turns.len(), path.len().min(most), "{most} around {sequence}");
                let first = around.turns[0].sequence;
                assert_eq!(around.turns, between(&path, first..=last, most, false), "{most} around {sequence}");
                let asked = sequence.clamp(1, last);
                assert!(around.turns.iter().any(|turn| turn.sequence == asked), "{most} around {sequence}");
                for seen in [after, before, around] {
                    assert_eq!((seen.first, seen.last), (1, last));
                }
            }
        }
    }
    let middle = window(store, more[2], WindowPlace::Around(4), 3).await;
    assert_eq!(middle.turns.iter().map(|turn| turn.sequence).collect::<Vec<_>>(), [3, 4, 5]);
    let one = window(store, more[2], WindowPlace::End, 0).await;
    assert_eq!(one.turns.len(), 1, "a window has at least one turn");
    let unknown: TurnId = weaver.id();
    assert!(matches!(store.window(unknown, WindowPlace::End, 3).await, Err(Error::NotFound { .. })));
}

pub(super) async fn a_window_has_what_belongs_to_its_turns<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (turns, children, mut parent) = delegating(&mut weaver, 2).await;
    let more = weaver.plain_turns(&mut parent, 2).await;
    let mut branch = fork(&mut weaver, turns[1], 2).await;
    let new = weaver.plain(&mut branch).await;
    for (turn, reward) in [(more[0], 0.25), (turns[1], 1.0), (more[0], 0.5)] {
        let reward = Reward { turn_id: turn, reward, by: Actor::new("user:1").expect("a name"), note: None };
        let step = Step::annotation(weaver.step_id(), parent.run).record(weaver.draft(reward));
        weaver.commit(step).await;
    }
    let child = async |turn: TurnId| store.turn(turn).await.expect("closed").entity_id;
    let (first, second) = (child(children[0]).await, child(children[1]).await);
    let begun = |seen: &TurnWindow| seen.branches.iter().map(|branch| branch.entity_id).collect::<Vec<EntityId>>();
    let whole = window(store, more[1], WindowPlace::End, 9).await;
    assert_eq!(begun(&whole), [first, second, branch.entity]);
    let rewards: Vec<(TurnId, f64)> = whole.rewards.iter().map(|reward| (reward.turn_id, reward.reward)).collect();
    assert_eq!(rewards, [(turns[1], 1.0), (more[0], 0.25), (more[0], 0.5)]);
    let casts = |seen: &TurnWindow| seen.casts.iter().map(|cast| cast.cast.cast_id).collect::<Vec<_>>();
    assert_eq!(casts(&whole), [parent.cast]);
    let part = window(store, more[1], WindowPlace::After(2), 2).await;
    assert_eq!((begun(&part), part.rewards.len()), (Vec::new(), 2));
    let forked = window(store, new, WindowPlace::End, 2).await;
    assert_eq!(casts(&forked), [parent.cast, branch.cast]);
    assert_eq!(begun(&forked), [second, branch.entity], "the fork that the path goes on in begins here too");
    assert_eq!(forked.casts, store.thread(new).await.expect("a path").casts);
    let threads = store.threads(weaver.loom, PageRequest::FIRST).await.expect("readable").items;
    for branch in whole.branches {
        assert!(threads.contains(&branch), "{branch:?}");
    }
}

pub(super) async fn a_window_says_where_its_records_are<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (_, _, mut parent) = delegating(&mut weaver, 2).await;
    let leaf = weaver.plain(&mut parent).await;
    let records: Vec<Record> = store.read(parent.run, Seq::START).try_collect().await.expect("readable");
    let at = |seq: Seq| {
        let record = records.iter().find(|record| record.seq == seq).expect("a record of the run");
        record.event().expect("a typed record")
    };
    let seen = window(store, leaf, WindowPlace::End, 9).await;
    for (turn, span) in seen.turns.iter().zip(&seen.spans) {
        assert_eq!(at(span.last).as_turn().map(|closed| closed.turn_id), Some(turn.id));
        if turn.utterance.is_some() {
            assert_eq!(at(span.first).as_opened().map(|opened| opened.turn_id), Some(turn.id));
        }
        assert!(span.first <= span.last);
    }
}

pub(super) async fn the_folds_of_a_window_are_those_of_the_path<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut episode = weaver.cast("count").await;
    let turns = weaver.plain_turns(&mut episode, 3).await;
    let mut before = fork(&mut weaver, turns[2], 3).await;
    let fold = folded(weaver.id(), episode.entity, turns[2]);
    weaver.write(&episode, fold.clone()).await;
    let last = weaver.plain_turns(&mut episode, 2).await[1];
    let other = weaver.plain(&mut before).await;
    let seen = window(store, last, WindowPlace::Around(3), 1).await;
    assert_eq!(seen.folds, store.folds(last).await.expect("known"));
    assert_eq!((seen.folds.len(), &seen.folds[0].fold), (1, &fold));
    assert_eq!(window(store, last, WindowPlace::After(3), 9).await.folds, []);
    assert_eq!(window(store, last, WindowPlace::Before(3), 9).await.folds, []);
    assert_eq!(window(store, other, WindowPlace::End, 9).await.folds, [], "it branched off before");
    let folds = |buckets: Vec<PathBucket>| buckets.iter().map(|bucket| bucket.folds).collect::<Vec<u32>>();
    assert_eq!(folds(store.path_buckets(last, 9).await.expect("readable")), [0, 0, 1, 0, 0]);
    assert_eq!(folds(store.path_buckets(other, 9).await.expect("readable")), [0, 0, 0, 0]);
}

pub(super) async fn buckets_cover_a_path_and_name_its_worst_replies<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let mut episode = weaver.cast("work").await;
    let replies = [
        codes::GATE_OK.any(),
        codes::NOT_AUTHORIZED.any(),
        codes::GATE_OK.any(),
        codes::GATE_FAILED.any(),
        codes::GATE_FAILED.any(),
        codes::NOT_AUTHORIZED.any(),
        codes::GATE_OK.any(),
        codes::GATE_OK.any(),
        codes::GATE_OK.any(),
    ];
    let mut turns = Vec::new();
    for (reply, micros) in replies.into_iter().zip(1..) {
        turns.push(weaver.paid(&mut episode, "read", reply, micros).await);
    }
    for turn in [4, 4, 7] {
        fork(&mut weaver, turns[turn], turn as u64 + 1).await;
    }
    let leaf = turns[8];
    let one = store.path_buckets(leaf, 99).await.expect("readable");
    let seen: Vec<(u64, u64, TurnId)> = one.iter().map(|mark| (mark.first, mark.last, mark.turn_id)).collect();
    let expected: Vec<(u64, u64, TurnId)> = (1..).zip(&turns).map(|(sequence, id)| (sequence, sequence, *id)).collect();
    assert_eq!(seen, expected);
    assert_eq!(one.iter().map(|mark| mark.forks).collect::<Vec<_>>(), [0, 0, 0, 0, 2, 0, 0, 1, 0]);
    let marks = store.path_buckets(leaf, 4).await.expect("readable");
    let mark = |first, last, turn_id, worst, cost_micros, forks| PathBucket {
        first,
        last,
        turn_id,
        worst,
        cost_micros,
        forks,
        children: 0,
        folds: 0,
    };
    let expected = [
        mark(1, 4, turns[3], ReplyType::Failure, 10, 0),
        mark(5, 8, turns[4], ReplyType::Failure, 26, 3),
        mark(9, 9, turns[8], ReplyType::Success, 9, 0),
    ];
    assert_eq!(marks, expected);
    let all = store.path_buckets(leaf, 0).await.expect("readable");
    assert_eq!((all.len(), all[0].first, all[0].last, all[0].cost_micros), (1, 1, 9, 45));
    // The path of a fork goes on through the turns before it, and a child's begins with the child.
    let mut branch = fork(&mut weaver, turns[1], 2).await;
    let new = weaver.paid(&mut branch, "read", codes::GATE_OK.any(), 5).await;
    let marks = store.path_buckets(new, 9).await.expect("readable");
    let worst: Vec<(TurnId, ReplyType)> = marks.iter().map(|mark| (mark.turn_id, mark.worst)).collect();
    let [ok, denied] = [ReplyType::Success, ReplyType::Denied];
    assert_eq!(worst, [(turns[0], ok), (turns[1], denied), (new, ok)]);
    let (sealed, children, _) = delegating(&mut weaver, 2).await;
    let marks = store.path_buckets(sealed[2], 9).await.expect("readable");
    assert_eq!(marks.iter().map(|mark| mark.children).collect::<Vec<_>>(), [1, 1, 0]);
    let marks = store.path_buckets(children[1], 9).await.expect("readable");
    assert_eq!(marks.iter().map(|mark| mark.turn_id).collect::<Vec<_>>(), [children[1]]);
    let unknown: TurnId = weaver.id();
    assert!(matches!(store.path_buckets(unknown, 9).await, Err(Error::NotFound { .. })));
}

pub(super) async fn threads_of_a_loom_are_its_entities_as_stretches<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let (turns, children, mut parent) = delegating(&mut weaver, 1).await;
    let last = weaver.plain(&mut parent).await;
    let mut branch = fork(&mut weaver, turns[1], 2).await;
    let new = weaver.plain_turns(&mut branch, 2).await[1];
    weaver.truncate(&branch, TruncationReason::MaxTurns).await;
    let empty = fork(&mut weaver, new, 4).await;
    let page = store.threads(weaver.loom, PageRequest::FIRST).await.expect("readable");
    let entities = store.entities(weaver.loom, PageRequest::FIRST).await.expect("readable").items;
    let order = |threads: &[ThreadSummary]| threads.iter().map(|thread| thread.entity_id).collect::<Vec<EntityId>>();
    assert_eq!(order(&page.items), entities.iter().map(|view| view.entity.entity_id).collect::<Vec<_>>());
    for (thread, view) in page.items.iter().zip(&entities) {
        assert_eq!((thread.run_id, thread.origin, thread.leaf), (view.run_id, view.entity.origin, view.leaf));
        assert_eq!((thread.at, thread.crystal.as_deref()), (view.at, Some("scripted")));
    }
    let [root, child, forked, unturned] = &page.items[..] else { panic!("there are four: {page:?}") };
    let stretch = |thread: &ThreadSummary| (thread.first, thread.last, thread.turns, thread.leaf);
    assert_eq!(stretch(root), (Some(1), Some(3), 3, Some(last)));
    assert_eq!((root.parent, root.parent_sequence, root.fork, root.call_id), (None, None, None, None));
    assert_eq!((root.state, root.intent.as_deref()), (RunState::Running, Some("delegate")));
    assert_eq!(stretch(child), (Some(1), Some(1), 1, Some(children[0])));
    assert_eq!((child.parent, child.parent_sequence), (Some(parent.entity), Some(1)));
    assert_eq!((child.fork, child.call_id), (None, Some(CallId::of_turn(turns[0], 1))));
    assert_eq!((child.state, child.intent.as_deref()), (RunState::Terminated, Some("part")));
    assert_eq!(stretch(forked), (Some(3), Some(4), 2, Some(new)));
    assert_eq!((forked.parent, forked.parent_sequence), (Some(parent.entity), Some(2)));
    assert_eq!(forked.fork, Some(Fork { turn: turns[1], environment: Environment::None }));
    assert_eq!((forked.state, forked.reason), (RunState::Truncated, Some(TruncationReason::MaxTurns)));
    assert_eq!((unturned.entity_id, stretch(unturned)), (empty.entity, (None, None, 0, None)));
    assert_eq!((unturned.parent, unturned.parent_sequence), (Some(branch.entity), Some(4)));
    let (mut asked, mut paged) = (PageRequest { after: None, most: 3 }, Vec::new());
    loop {
        let part = store.threads(weaver.loom, asked).await.expect("readable");
        paged.extend(part.items);
        asked.after = part.next;
        if part.next.is_none() {
            break;
        }
    }
    assert_eq!(paged, page.items);
    let elsewhere = cantrip_canon::LoomId::from_parts(super::at(0), [9; 10]);
    assert!(matches!(store.threads(elsewhere, PageRequest::FIRST).await, Err(Error::NotFound { kind: "loom", .. })));
}

pub(super) async fn threads_of_a_run_begin_with_its_own<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let (turns, children, mut parent) = delegating(&mut weaver, 2).await;
    weaver.done(&mut parent, json!(1)).await;
    let branch = fork(&mut weaver, turns[1], 2).await;
    let seen = store.run_threads(parent.run).await.expect("readable");
    let leaves: Vec<Option<TurnId>> = seen[1..].iter().map(|thread| thread.leaf).collect();
    assert_eq!((seen[0].entity_id, seen[0].state), (parent.entity, RunState::Terminated));
    assert_eq!(leaves, [Some(children[0]), Some(children[1])], "the fork has a run of its own");
    let own = store.run_threads(branch.run).await.expect("readable");
    assert_eq!(own.iter().map(|thread| thread.entity_id).collect::<Vec<_>>(), [branch.entity]);
    // A later cast of the entity has no children, but the same thread.
    let intent = weaver.intent("once more");
    let mut more = weaver.send(&parent, intent).await;
    weaver.done(&mut more, json!(2)).await;
    let own = store.run_threads(more.run).await.expect("readable");
    assert_eq!((own.len(), own[0].entity_id, own[0].intent.as_deref()), (1, parent.entity, Some("once more")));
    assert_eq!((own[0].run_id, own[0].turns), (parent.run, 5));
    let unknown = weaver.id();
    assert!(matches!(store.run_threads(unknown).await, Err(Error::NotFound { kind: "run", .. })));
}

/// Writes a turn that delegates to one child, which spends `micros` in one turn. Returns the child.
async fn paying_child<J: Journal>(weaver: &mut LoomWriter<'_, J>, parent: &mut Episode, micros: i64) -> EntityId {
    let opened = weaver.opened(parent, utterance(None, &[("call_agent", json!({}))]), &mut Vec::new());
    let (sealed, next): (TurnId, TurnId) = (opened.turn_id, weaver.id());
    let call = CallId::of_turn(sealed, 1);
    let child = call.child(0);
    let intent = weaver.intent("spend");
    let cast = weaver.cast_of(child, intent);
    let origin = Origin::Child { parent: sealed, spawned_by: Spawn { call_id: call, index: 0 } };
    let entity = weaver.entity(child, origin);
    let (cast_id, leaf) = (cast.cast_id, Some(sealed));
    let mut episode = Episode { entity: child, cast: cast_id, leaf, sequence: 0, turns: 0, ..parent.clone() };
    let step = weaver
        .step_with(parent, opened)
        .record(weaver.draft(started(call, CallWork::Delegation { children: vec![child] }, None)))
        .record(weaver.draft(closed(sealed, Closing::Sealed { call, next })))
        .record(weaver.draft(entity))
        .record(weaver.draft(cast));
    weaver.commit(step).await;
    weaver.paid(&mut episode, "read", codes::GATE_OK.any(), micros).await;
    let result = RecordValue::new(json!(1), &mut Vec::new()).expect("it is short");
    let end = weaver.end_of(&episode, Ending::Terminated { ended_by: EndedBy::Text, result });
    let mut over = settled(call, json!(1), &mut Vec::new());
    over.children = vec![ChildRecord { entity_id: child, reply: codes::TERMINATED.any().into(), reason: None }];
    let step = weaver.step_with(parent, end).record(weaver.draft(over));
    let step = step.record(weaver.draft(closed(next, Closing::Open)));
    weaver.commit(step).await;
    (parent.leaf, parent.sequence, parent.turns) = (Some(next), parent.sequence + 2, parent.turns + 2);
    child
}

pub(super) async fn a_thread_costs_what_it_and_its_children_cost<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let mut parent = weaver.cast("spend").await;
    let at = weaver.paid(&mut parent, "read", codes::GATE_OK.any(), 1_000).await;
    let one = paying_child(&mut weaver, &mut parent, 20).await;
    let two = paying_child(&mut weaver, &mut parent, 3).await;
    weaver.done(&mut parent, json!(1)).await;
    let mut branch = fork(&mut weaver, at, 1).await;
    weaver.paid(&mut branch, "read", codes::GATE_OK.any(), 500).await;
    weaver.done(&mut branch, json!(2)).await;
    let threads = store.threads(weaver.loom, PageRequest::FIRST).await.expect("readable").items;
    let costs: Vec<_> = threads.iter().map(|thread| (thread.entity_id, thread.own_cost, thread.cost)).collect();
    let expected = [
        (parent.entity, Some(usd(1_000)), Some(usd(1_023))),
        (one, Some(usd(20)), Some(usd(20))),
        (two, Some(usd(3)), Some(usd(3))),
        (branch.entity, Some(usd(500)), Some(usd(500))),
    ];
    assert_eq!(costs, expected, "a fork is not below the thread that it left");
    assert_eq!(store.run_threads(parent.run).await.expect("readable"), threads[..3]);
    let seen = store.summary(parent.run).await.expect("known");
    assert_eq!((seen.own_cost, seen.cost), (Some(usd(1_000)), Some(usd(1_023))));
    assert_eq!((seen.turns, seen.child_turns, seen.children), (6, 2, 2));
}
