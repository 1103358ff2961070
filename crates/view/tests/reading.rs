//! The views of a reader: runs, threads, journals, looms, comparisons, searches and exports, in memory and in SQLite.

use cantrip_service::cantrip::canon::{EntityId, Hash, RunId, Timestamp, TurnId};
use cantrip_service::cantrip::circle::gate::builtin;
use cantrip_service::cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip_service::cantrip::loom::{
    Actor, AnyId, AnyLoom, Body, Content, Journal, ListPage, Loom, MemoryLoom, PageRequest, Part, RunState, Seq,
    SummaryFilter, WindowPlace,
};
use cantrip_service::cantrip::reply::{Advice, Refusal, codes};
use cantrip_service::cantrip::spend::{AuthorizationMode, Terms};
use cantrip_service::cantrip::{Cantrip, Runtime, owner_of};
use cantrip_service::{CastRequest, ChangeReason, ForkRequest, Service};
use cantrip_store::Store;
use cantrip_view::{
    Doing, ExportFormat, OpenCallState, OpenItem, PartingReason, TextField, TurnItem, Views, turn_items,
};
use futures_util::TryStreamExt;
use serde_json::{Value, json};
use tempfile::TempDir;

const SECRET: &str = "Authorization: Bearer 7f3a9c0de18b42aa";

fn done(answer: impl Into<Value>) -> Response {
    Response::call("d", "done", json!({"answer": answer.into()}))
}

fn echo(text: &str) -> Response {
    Response::call("e", "echo", json!({"text": text}))
}

fn scripted(responses: impl IntoIterator<Item = Response>) -> (Cantrip, ScriptedCrystal) {
    let crystal = ScriptedCrystal::new("scripted/views", Script::new(responses));
    let cantrip = Cantrip::builder()
        .name("views")
        .crystal(crystal.clone())
        .gate(builtin::done())
        .gate(builtin::echo())
        .gate(builtin::call_agent())
        .ward("max_turns", 50)
        .build()
        .expect("a sound cantrip");
    (cantrip, crystal)
}

/// A service in memory and one in SQLite. Both must tell the same.
fn services() -> Vec<(Service, Option<TempDir>)> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = Store::sqlite(folder.path().join("loom.db")).expect("a store");
    let asked = |loom: AnyLoom| Service::new(Runtime::new(loom).with_approvals(true));
    vec![(asked(AnyLoom::new(MemoryLoom::new())), None), (asked(AnyLoom::new(file)), Some(folder))]
}

/// Returns the service of an owner who may spend a dollar.
async fn funded(service: &Service, name: &str) -> Service {
    let owner = Actor::new(name).expect("a name");
    let terms = Terms {
        owner: owner_of(&owner).expect("an owner"),
        mode: AuthorizationMode::DelegatedBudget,
        max_total: Some(1_000_000),
        ..Terms::local()
    };
    let because = ChangeReason { actor: Actor::new("local").expect("a name"), reason: "for the week".to_owned() };
    let granted = service.authorize(terms, because).await.reply;
    assert!(granted.reply_type().is_success(), "{granted:?}");
    service.for_owner(owner)
}

async fn cast(service: &Service, cantrip: &Cantrip, intent: &str) -> (RunId, TurnId) {
    let cast = service.cast(cantrip, CastRequest::with_intent(intent)).await;
    let leaf = cast.outcome.as_ref().and_then(|outcome| outcome.leaf);
    (cast.run.expect("a run"), leaf.unwrap_or_else(|| panic!("{:?}", cast.reply())))
}

/// Casts on an intent with `count` turns that echo their numbers, and one that ends.
async fn long_thread(service: &Service, count: u64) -> (RunId, TurnId) {
    let (cantrip, _) = scripted((1..=count).map(|n| echo(&format!("number {n}"))).chain([done("over")]));
    cast(service, &cantrip, "count").await
}

fn page(most: usize, after: Option<u64>) -> PageRequest {
    PageRequest { after, most }
}

#[track_caller]
fn assert_not_found<T: std::fmt::Debug>(found: Result<T, Refusal>) {
    assert_eq!(found.expect_err("it is not theirs").code(), codes::NOT_FOUND.any());
}

#[tokio::test]
async fn runs_are_listed_the_newest_first_with_their_counts_and_each_owner_sees_their_own() {
    for (service, _folder) in services() {
        let ada = funded(&service, "ada").await;
        let bob = funded(&service, "bob").await;
        let (first, _) = long_thread(&ada, 2).await;
        let (second, leaf) = long_thread(&ada, 1).await;
        let (other, _) = long_thread(&bob, 1).await;
        let views = Views::of(&ada);
        let listed = views.runs(SummaryFilter::default(), page(10, None), Timestamp::EPOCH).await.expect("runs");
        let runs: Vec<RunId> = listed.runs.items.iter().map(|run| run.run_id).collect();
        assert_eq!(runs, [second, first]);
        assert_eq!((listed.counts.running, listed.counts.went_wrong, listed.waiting_for_me), (0, 0, 0));
        assert_eq!(listed.runs.items[1].turns, 3);
        assert_eq!(listed.runs.items[1].answer.as_deref(), Some("over"));
        let theirs = SummaryFilter { owner: Actor::new("bob").ok(), ..SummaryFilter::default() };
        let none = views.runs(theirs, page(10, None), Timestamp::EPOCH).await.expect("a list");
        assert_eq!(none.runs, ListPage { items: Vec::new(), next: None });

        assert_not_found(views.head(other, None).await);
        assert_not_found(views.window(other, None, WindowPlace::End).await);
        assert_not_found(views.records(other, page(10, None)).await);
        assert_not_found(views.grep(other, "number", None).await);
        assert_not_found(views.files(other).await);
        assert_not_found(views.now(other).await);
        assert_not_found(views.export(other, ExportFormat::Turns).await.map(drop));
        let theirs = Views::of(&bob);
        assert_not_found(theirs.turn(leaf).await);
        assert_not_found(theirs.output(leaf, 0).await);
        assert_not_found(theirs.spine(leaf).await);
        assert_not_found(theirs.sent(leaf).await);
        assert_not_found(theirs.compare(leaf, leaf).await);
        assert_not_found(theirs.turn_run(leaf).await);
        assert_eq!(views.resolve(&leaf.to_string()).await.expect("an id"), AnyId::Turn(leaf));
        assert_not_found(theirs.resolve(&leaf.to_string()).await);
    }
}

#[tokio::test]
async fn a_loom_shows_and_counts_only_what_the_reader_has_in_it() {
    for (service, _folder) in services() {
        let ada = funded(&service, "ada").await;
        let bob = funded(&service, "bob").await;
        let (run, leaf) = long_thread(&ada, 2).await;
        long_thread(&bob, 5).await;
        let eve = service.for_owner(Actor::new("eve").expect("a name"));
        let looms = Views::of(&ada).looms(page(10, None)).await.expect("looms").items;
        assert_eq!((looms.len(), looms[0].entities, looms[0].turns), (1, 1, 3));
        let loom = looms[0].loom_id;
        let view = Views::of(&ada).loom_view(loom, None, page(60, None)).await.expect("a loom");
        let threads: Vec<(RunId, Option<TurnId>)> = view.threads.iter().map(|one| (one.run_id, one.leaf)).collect();
        assert_eq!(threads, [(run, Some(leaf))]);
        assert_eq!((view.entities, view.turns, view.next), (1, 3, None));
        assert_eq!(Views::of(&service).looms(page(10, None)).await.expect("looms").items[0].entities, 2);
        assert_eq!(Views::of(&eve).looms(page(10, None)).await.expect("looms").items, []);
        assert_not_found(Views::of(&eve).loom_view(loom, None, page(60, None)).await);
    }
}

#[tokio::test]
async fn the_head_says_what_may_be_done_and_where_the_thread_ends() {
    for (service, _folder) in services() {
        let (run, leaf) = long_thread(&service, 1).await;
        let (other, _) = long_thread(&service, 1).await;
        let views = Views::of(&service);
        let head = views.head(run, None).await.expect("a head");
        assert_eq!((head.leaf, head.run.state), (Some(leaf), RunState::Terminated));
        assert_eq!(head.cast.as_ref().map(|cast| cast.intent.text()), Some("count".to_owned()));
        assert_eq!((head.threads.len(), head.files, head.files_counted), (1, 0, true));
        let may = head.actions;
        assert_eq!((may.cancel, may.resume, may.go_on, may.fork, may.rewind), (false, false, false, true, true));
        let stranger = views.head(other, None).await.expect("a head").shown.expect("an entity").entity.entity_id;
        assert_not_found(views.head(run, Some(stranger)).await);
        let ada = funded(&service, "ada").await;
        let (own, _) = long_thread(&ada, 1).await;
        assert!(!Views::of(&ada).head(own, None).await.expect("a head").actions.rewind, "the files are not hers");
    }
}

#[tokio::test]
async fn a_window_goes_both_ways_and_names_its_ends() {
    for (service, _folder) in services() {
        let (run, leaf) = long_thread(&service, 9).await;
        let views = Views::of(&service);
        let sequences = async |place| {
            let window = views.window_of(run, None, place, 4).await.expect("a window");
            let turns: Vec<u64> = window.window.turns.iter().map(|turn| turn.sequence).collect();
            assert_eq!((window.window.first, window.window.last), (1, 10));
            (turns, window.at_end)
        };
        assert_eq!(sequences(WindowPlace::End).await, (vec![7, 8, 9, 10], true));
        assert_eq!(sequences(WindowPlace::Before(7)).await, (vec![3, 4, 5, 6], false));
        assert_eq!(sequences(WindowPlace::After(2)).await, (vec![3, 4, 5, 6], false));
        let (around, _) = sequences(WindowPlace::Around(5)).await;
        assert!(around.len() == 4 && around.contains(&5), "{around:?}");
        let spine = views.spine(leaf).await.expect("a spine");
        assert_eq!((spine.first, spine.last, spine.buckets.len()), (1, 10, 10));
        assert_eq!(views.turn_run(leaf).await.expect("a turn").2, 10);
    }
}

#[tokio::test]
async fn a_window_of_long_texts_has_fewer_turns_and_the_whole_text_can_be_had() {
    for (service, _folder) in services() {
        let long = "x".repeat(200_000);
        let said = "word ".repeat(3_000);
        let many = (0..6).map(|_| Response { content: Some(said.clone()), ..echo("short") });
        let (cantrip, _) = scripted([echo(&long)].into_iter().chain(many).chain([done("over")]));
        let (run, _) = cast(&service, &cantrip, "talk").await;
        let views = Views::of(&service);
        let window = views.window(run, None, WindowPlace::End).await.expect("a window");
        let shown = window.window.turns.len();
        assert!((1..8).contains(&shown), "{shown} turns");
        assert!(window.at_end);
        let first = views.window_of(run, None, WindowPlace::After(0), 1).await.expect("a window");
        let turn = &first.window.turns[0];
        let n = turn_items(turn).iter().position(|item| matches!(item, TurnItem::Call(_))).expect("a call");
        assert_eq!(views.output(turn.id, n).await.expect("an output"), long.as_bytes());
        assert_not_found(views.output(turn.id, n + 1).await);
    }
}

#[tokio::test]
async fn a_call_that_failed_is_noted_with_its_advice_and_secrets_are_taken_out_and_counted() {
    for (service, _folder) in services() {
        let (cantrip, _) = scripted([Response::call("x", "serch", json!({})), echo(SECRET), done("over")]);
        let (run, leaf) = cast(&service, &cantrip, SECRET).await;
        let views = Views::of(&service);
        let window = views.window(run, None, WindowPlace::End).await.expect("a window");
        let ids: Vec<TurnId> = window.window.turns.iter().map(|turn| turn.id).collect();
        assert_eq!(window.notes[&(ids[0], 0)].advice, Some(Advice::FixAndRetry));
        assert!(window.redacted[&ids[1]] >= 2, "the argument and the result: {:?}", window.redacted);
        assert!(!window.redacted.contains_key(&ids[2]));
        for shown in [
            format!("{window:?}"),
            format!("{:?}", views.head(run, None).await.expect("a head")),
            format!("{:?}", views.records(run, page(100, None)).await.expect("records")),
            format!("{:?}", views.sent(leaf).await.expect("messages")),
            format!("{:?}", views.runs(SummaryFilter::default(), page(9, None), Timestamp::EPOCH).await.expect("runs")),
            String::from_utf8(views.output(ids[1], 0).await.expect("an output")).expect("text"),
        ] {
            assert!(!shown.contains("7f3a9c0de18b42aa"), "{shown}");
        }
        let holder = Views::of(&service).with_secrets();
        assert_eq!(holder.output(ids[1], 0).await.expect("an output"), SECRET.as_bytes());
        assert_eq!(views.grep(run, "7f3a9c0de18b42aa", None).await.expect("a search").matches, []);
    }
}

#[tokio::test]
async fn what_a_crystal_was_sent_is_rebuilt_message_by_message() {
    for (service, _folder) in services() {
        let call = Response::call("c", "call_agent", json!({"intent": "look"}));
        let (cantrip, crystal) = scripted([echo("a"), call, done("child"), echo("b"), done("over")]);
        let (run, _) = cast(&service, &cantrip, "go").await;
        let views = Views::of(&service);
        let head = views.head(run, None).await.expect("a head");
        let mut asked = Vec::new();
        for thread in &head.threads {
            let path = service.runtime().loom().path(thread.leaf.expect("a leaf")).await.expect("a path");
            asked
                .extend(path.into_iter().filter(|turn| turn.entity_id == thread.entity_id && turn.utterance.is_some()));
        }
        let requests = crystal.requests();
        assert_eq!(asked.len(), 5, "four of the root and one of the child");
        for turn in asked {
            let sent = views.sent(turn.id).await.expect("messages").messages;
            let is_same = |messages: &Vec<Value>| *messages == sent;
            let known: Vec<Vec<Value>> = requests
                .iter()
                .map(|request| {
                    let all = (0..request.messages.len()).filter_map(|at| request.messages.get(at));
                    all.map(|message| serde_json::to_value(message).expect("JSON")).collect()
                })
                .collect();
            assert!(known.iter().any(is_same), "no request had these messages: {sent:?}\n{known:?}");
        }
    }
}

#[tokio::test]
async fn children_are_told_with_their_call_and_their_thread_can_be_shown() {
    for (service, _folder) in services() {
        let call = Response::call("c", "call_agent", json!({"intent": "look"}));
        let (cantrip, _) = scripted([call, done("child"), done("over")]);
        let (run, _) = cast(&service, &cantrip, "go").await;
        let views = Views::of(&service);
        let head = views.head(run, None).await.expect("a head");
        assert_eq!(head.threads.len(), 2);
        let child = &head.threads[1];
        assert_eq!((child.intent.as_deref(), child.turns, child.state), (Some("look"), 1, RunState::Terminated));
        let window = views.window(run, None, WindowPlace::End).await.expect("a window");
        let branches: Vec<EntityId> = window.window.branches.iter().map(|branch| branch.entity_id).collect();
        assert_eq!(branches, [child.entity_id]);
        let below = views.window(run, Some(child.entity_id), WindowPlace::End).await.expect("a window");
        assert_eq!(below.window.turns.iter().map(|turn| turn.sequence).collect::<Vec<_>>(), [1]);
        let group = views.group(run, window.window.turns[0].id).await.expect("a group");
        let turns: Vec<TurnId> = group.window.turns.iter().map(|turn| turn.id).collect();
        assert_eq!(turns, window.window.turns[..2].iter().map(|turn| turn.id).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_run_that_waits_says_for_what_and_shows_its_open_turn() {
    for (service, _folder) in services() {
        let crystal = ScriptedCrystal::new("scripted/asks", Script::new([echo("may I?"), done("over")]));
        let cantrip = Cantrip::builder()
            .name("asks")
            .crystal(crystal)
            .gate(builtin::done())
            .gate(builtin::echo())
            .ward("max_turns", 5)
            .ward("require_approval", json!(["echo"]))
            .build()
            .expect("a sound cantrip");
        let run = service.cast(&cantrip, CastRequest::with_intent("go")).await.run.expect("a run");
        let views = Views::of(&service);
        let head = views.head(run, None).await.expect("a head");
        assert_eq!((head.run.state, head.pending.len()), (RunState::Waiting, 1));
        assert_eq!((head.pending[0].gate.as_str(), &head.pending[0].args), ("echo", &json!({"text": "may I?"})));
        assert!(head.actions.cancel && head.actions.resume && !head.actions.go_on);
        let now = views.now(run).await.expect("lines");
        assert_eq!(
            now.iter().map(|line| &line.doing).collect::<Vec<_>>(),
            [&Doing::WaitingForPerson("echo".to_owned())]
        );
        let window = views.window(run, None, WindowPlace::End).await.expect("a window");
        let [open] = window.open.as_slice() else { panic!("{:?}", window.open) };
        assert_eq!(open.sequence, 1);
        let [OpenItem::Call(call)] = open.items.as_slice() else { panic!("{:?}", open.items) };
        assert_eq!((call.n, call.gate.as_str()), (0, "echo"));
        assert_eq!(call.state, OpenCallState::Waiting(head.pending[0].approval_id));
    }
}

#[tokio::test]
async fn two_forks_are_compared_from_where_they_part_as_their_difference_says() {
    for (service, _folder) in services() {
        let (cantrip, _) = scripted([echo("a"), echo("b"), done("one"), echo("c"), done("two")]);
        let (run, leaf) = cast(&service, &cantrip, "go").await;
        let path = service.runtime().loom().path(leaf).await.expect("a path");
        let branch = ForkRequest { intent: Some("another way".into()), ..ForkRequest::default() };
        let forked = service.fork(&cantrip, path[1].id, branch).await;
        let other = forked.outcome.as_ref().and_then(|outcome| outcome.leaf).expect("a turn");
        let views = Views::of(&service);
        let compared = views.compare(leaf, other).await.expect("a comparison");
        let diff = views.diff(Some(leaf), other).await.expect("a difference");
        assert_eq!((compared.shared, compared.shared_up_to), (2, Some(path[1].id)));
        assert_eq!((diff.shared.turns as u64, diff.shared.last), (compared.shared, compared.shared_up_to));
        assert_eq!(compared.parts, [PartingReason::Intent]);
        assert_eq!((compared.a.turns, compared.b.turns, compared.left_out), (1, 2, 0));
        assert_eq!((compared.a.answer, compared.b.answer), (Some(json!("one")), Some(json!("two"))));
        assert_eq!((compared.a.run.run_id, compared.b.run.run_id), (run, forked.run.expect("a run")));
        // The turns that end are set side by side, and the one between stands alone.
        let rows: Vec<(bool, bool)> = compared.rows.iter().map(|row| (row.a.is_some(), row.b.is_some())).collect();
        assert_eq!(rows, [(false, true), (true, true)]);
        assert_eq!(
            views.diff(None, other).await.expect("a difference"),
            diff,
            "the fork's original is the first thread"
        );
        let same = views.compare(leaf, leaf).await.expect("a comparison");
        assert_eq!((same.shared, same.rows.len(), same.parts.len()), (3, 0, 0));
    }
}

#[tokio::test]
async fn threads_that_share_nothing_are_compared_whole() {
    for (service, _folder) in services() {
        let (_, a) = long_thread(&service, 2).await;
        let (_, b) = long_thread(&service, 2).await;
        let compared = Views::of(&service).compare(a, b).await.expect("a comparison");
        assert_eq!((compared.shared, compared.shared_up_to), (0, None));
        assert_eq!(compared.parts, [PartingReason::NothingShared]);
        assert!(compared.rows.len() == 3 && compared.rows.iter().all(|row| row.equal), "{:?}", compared.rows);
    }
}

#[tokio::test]
async fn a_search_reads_a_run_to_its_end_page_by_page() {
    for (service, _folder) in services() {
        let (run, _) = long_thread(&service, 45).await;
        let views = Views::of(&service);
        let (mut cursor, mut sequences, mut pages) = (None, Vec::new(), 0);
        loop {
            let found = views.grep(run, "NUMBER", cursor).await.expect("a search");
            sequences.extend(found.matches.iter().filter(|one| one.field == TextField::Result).map(|one| one.sequence));
            assert!(found.matches.iter().all(|one| one.found == "number"));
            assert_eq!(found.turns_all, 46);
            pages += 1;
            cursor = found.next;
            if cursor.is_none() {
                assert_eq!(found.turns_read, 46);
                break;
            }
        }
        assert_eq!(sequences, (1..=45).collect::<Vec<u64>>());
        assert!(pages > 1, "90 matches do not fit one page");
        assert_eq!(views.grep(run, " ", None).await.expect_err("nothing to look for").code(), codes::SCHEMA.any());
        let long = "x".repeat(201);
        assert_eq!(views.grep(run, &long, None).await.expect_err("too long").code(), codes::LIMIT.any());
    }
}

#[tokio::test]
async fn the_pages_of_a_journal_are_the_journal() {
    for (service, _folder) in services() {
        let (run, _) = long_thread(&service, 5).await;
        let views = Views::of(&service).with_secrets();
        let (mut after, mut lines) = (None, Vec::new());
        loop {
            let listed = views.records(run, page(4, after)).await.expect("records");
            lines.extend(listed.items.into_iter().map(|line| (line.seq, line.payload, line.hash)));
            after = listed.next;
            if after.is_none() {
                break;
            }
        }
        let records: Vec<_> = service.runtime().loom().read(run, Seq::START).try_collect().await.expect("records");
        let whole: Vec<_> = records
            .iter()
            .map(|record| (record.seq.get(), record.value().expect("JSON"), record.hash.to_string()))
            .collect();
        assert_eq!(lines, whole);
    }
}

#[tokio::test]
async fn an_export_has_the_run_in_every_format_without_its_secrets() {
    for (service, _folder) in services() {
        let (cantrip, _) = scripted([echo(SECRET), done("over")]);
        let (run, _) = cast(&service, &cantrip, "write to ada@example.org").await;
        let (other, _) = long_thread(&service, 1).await;
        for format in ExportFormat::ALL {
            let views = Views::of(&service);
            let lines: Vec<String> =
                views.export(run, format).await.expect("an export").try_collect().await.expect("lines");
            assert!(lines.iter().all(|line| line.ends_with('\n')), "{lines:?}");
            let text = lines.concat();
            assert!(!text.contains("7f3a9c0de18b42aa") && !text.contains("ada@example.org"), "{format:?}: {text}");
            assert!(text.contains("[REDACTED]") && text.contains("over"), "{format:?}: {text}");
            assert!(!text.contains(&other.to_string()), "{format:?} has another run");
            let expected = match format {
                ExportFormat::Turns => 2,
                ExportFormat::Chat => 1,
                ExportFormat::Journal | ExportFormat::Markdown => lines.len(),
            };
            assert_eq!(lines.len(), expected, "{format:?}");
        }
        let plain: Vec<String> = Views::of(&service)
            .with_secrets()
            .export(run, ExportFormat::Journal)
            .await
            .expect("an export")
            .try_collect()
            .await
            .expect("lines");
        assert!(plain.concat().contains(SECRET));
    }
}

#[tokio::test]
async fn a_body_is_read_only_through_a_run_that_refers_to_it() {
    for (service, _folder) in services() {
        let image = Body::new(b"\x89PNG\r\n\x1a\n and more".as_slice()).expect("a body");
        let parts = vec![
            Part::Text { text: "what is this?".to_owned() },
            Part::Image { media_type: "image/png".to_owned(), image: image.reference() },
        ];
        let (cantrip, _) = scripted([done("over")]);
        let request = CastRequest {
            intent: Some(Content::Parts(parts)),
            attached: vec![image.clone()],
            ..CastRequest::default()
        };
        let cast = service.cast(&cantrip, request).await;
        let run = cast.run.unwrap_or_else(|| panic!("{:?}", cast.reply()));
        let (other, _) = long_thread(&service, 1).await;
        let views = Views::of(&service);
        let hash: Hash = image.hash();
        assert_eq!(views.body(run, hash).await.expect("the image"), image);
        assert_not_found(views.body(other, hash).await);
    }
}
