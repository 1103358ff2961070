//! The views before a decision: waiting calls, the plan of a rewind, spells and their dry runs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use cantrip_service::cantrip::canon::{EntityId, RunId, Timestamp, TurnId};
use cantrip_service::cantrip::circle::gate::builtin;
use cantrip_service::cantrip::crystal::{Response, Script, ScriptedCrystal};
use cantrip_service::cantrip::loom::{Actor, AnyLoom, Loom, MemoryLoom, Overview, PageRequest, SummaryFilter};
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_service::cantrip::{Cancel, Cantrip, HumanDecision, Runtime, loom_id_for};
use cantrip_service::contracts::Predictor;
use cantrip_service::{CastRequest, ChangeKind, Service, SpellCatalog, SpellSummary};
use cantrip_spell::{BuildContext, Spell};
use cantrip_store::Store;
use cantrip_view::{AskedBecause, ProposalSubject, Views, WaitingView};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A catalog with one spell.
struct OneSpell(Spell);

impl OneSpell {
    fn find(&self, name: &str) -> Result<Spell, Refusal> {
        if self.0.name == name { Ok(self.0.clone()) } else { Err(codes::not_found("spell", name).into()) }
    }
}

impl SpellCatalog for OneSpell {
    fn spells(&self) -> Vec<SpellSummary> {
        let (name, crystal) = (self.0.name.clone(), self.0.crystal.to_string());
        vec![SpellSummary { name, crystal, medium: self.0.medium.to_string(), about: String::new() }]
    }

    fn cantrip<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Cantrip, Refusal>> {
        async move { Ok(self.find(spell)?.build(&BuildContext::default())?) }.boxed()
    }

    fn cantrip_of_entity(&self, entity: EntityId) -> BoxFuture<'_, Result<Cantrip, Refusal>> {
        ready(Err(codes::not_found("spell", entity.to_string()).into())).boxed()
    }

    fn read_spell<'a>(&'a self, spell: &'a str) -> BoxFuture<'a, Result<Spell, Refusal>> {
        ready(self.find(spell)).boxed()
    }

    fn build_spell<'a>(&'a self, spell: &'a Spell) -> BoxFuture<'a, Result<Cantrip, Refusal>> {
        async move { Ok(spell.build(&BuildContext::default())?) }.boxed()
    }

    fn predictor<'a>(&'a self, _: &'a Service) -> BoxFuture<'a, Result<Predictor, Refusal>> {
        ready(Err(codes::not_found("predictor", "any").into())).boxed()
    }
}

/// A folder with a spell, and a service that casts it.
struct World {
    folder: TempDir,
    service: Service,
    cantrip: Cantrip,
}

impl World {
    /// Makes a spell of these gates and wards, whose script makes one call a turn and ends.
    fn new(gates: &str, wards: &str, calls: &[Value]) -> Self {
        Self::in_loom(AnyLoom::new(MemoryLoom::new()), gates, wards, calls)
    }

    fn in_loom(loom: AnyLoom, gates: &str, wards: &str, calls: &[Value]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("work")).expect("a folder");
        let turn = |call: &Value| json!({"tool_calls": [call]});
        let end = json!({"tool_calls": [{"id": "d", "gate": "done", "args": {"answer": "over"}}]});
        let script = json!({"responses": calls.iter().map(turn).chain([end]).collect::<Vec<_>>()});
        fs::write(folder.path().join("hands.yaml"), script.to_string()).expect("a script");
        let text = format!(
            "name = \"hands\"\ncrystal = \"scripted/hands.yaml\"\n[call]\nsystem_prompt = \"Work with care.\"\n{gates}\n\
             [wards]\nmax_turns = 9\n{wards}\n"
        );
        let spell = Spell::read(&text, "hands.toml", folder.path()).unwrap_or_else(|fault| panic!("{fault}"));
        let cantrip = spell.build(&BuildContext::default()).unwrap_or_else(|fault| panic!("{fault}"));
        let service = Service::new(Runtime::new(loom).with_approvals(true)).with_spells(OneSpell(spell));
        Self { folder, service, cantrip }
    }

    fn views(&self) -> Views<'_> {
        Views::of(&self.service)
    }

    async fn cast(&self) -> RunId {
        let cast = self.service.cast(&self.cantrip, CastRequest::with_intent("go")).await;
        cast.run.unwrap_or_else(|| panic!("{:?}", cast.reply()))
    }

    /// Returns the runs that a filter finds, each with the name of its spell.
    async fn named_runs(&self, filter: SummaryFilter) -> Vec<(RunId, Option<String>)> {
        let listed = self.views().runs(filter, PageRequest::FIRST, Timestamp::EPOCH).await.expect("runs").runs;
        listed.items.into_iter().map(|run| (run.run_id, run.spell)).collect()
    }

    async fn only_waiting(&self) -> WaitingView {
        let mut listed = self.views().waiting(PageRequest::FIRST).await.expect("a list").items;
        assert_eq!(listed.len(), 1, "{listed:?}");
        listed.remove(0)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join("work").join(name), text).expect("a file");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join("work").join(name)).expect("a file")
    }

    /// Writes a file as somebody who changes it an hour from now.
    fn write_later(&self, name: &str, text: &str) {
        self.write(name, text);
        let file = File::options().write(true).open(self.folder.path().join("work").join(name)).expect("a file");
        file.set_modified(SystemTime::now() + Duration::from_secs(3_600)).expect("a time");
    }

    /// Returns the closed turns of a run's root, oldest first.
    async fn turns(&self, run: RunId) -> Vec<TurnId> {
        let leaf = self.service.leaf_of_run(run).await.expect("a run").expect("a turn");
        self.service.runtime().loom().path(leaf).await.expect("a path").iter().map(|turn| turn.id).collect()
    }
}

const FILES: &str = "[gates.write]\nroot = \"work\"\n[gates.edit]\nroot = \"work\"\n";
const ASK_FILES: &str = "require_approval = [\"write\", \"edit\"]";

fn edit(path: &str, old: &str, new: &str) -> Value {
    json!({"id": "e", "gate": "edit", "args": {"path": path, "old": old, "new": new}})
}

fn write(path: &str, content: &str) -> Value {
    json!({"id": "w", "gate": "write", "args": {"path": path, "content": content}})
}

/// Returns the difference of a file and the one that it was asked for, if the file changed since.
#[track_caller]
fn file(view: &WaitingView) -> (&str, Option<&str>) {
    let ProposalSubject::File { difference, changed_since, .. } = &view.proposal.subject else {
        panic!("{:?}", view.proposal.subject)
    };
    (difference.as_deref().expect("a text"), changed_since.as_deref())
}

#[tokio::test]
async fn a_waiting_edit_is_shown_as_the_difference_against_the_file_on_disk() {
    let world = World::new(FILES, ASK_FILES, &[edit("a.txt", "two", "zwei")]);
    world.write("a.txt", "one\ntwo\nthree\n");
    let run = world.cast().await;
    let view = world.only_waiting().await;
    assert_eq!((view.run.run_id, view.pending.gate.as_str()), (run, "edit"));
    assert_eq!(view.run.spell.as_deref(), Some("hands"));
    let wanted = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+zwei\n three\n";
    assert_eq!(file(&view), (wanted, None));
    assert_eq!(view.proposal.because, [AskedBecause::Ward("require_approval".to_owned())]);
    assert!(view.proposal.turn.is_some() && view.proposal.decided.is_none());
    assert_eq!(world.views().waiting_count().await.expect("a number"), 1);
    let same = world.views().proposal(run, view.pending.approval_id).await.expect("the approval");
    assert_eq!(same, view);
}

#[tokio::test]
async fn a_file_that_changed_after_it_was_asked_about_is_told_with_both_differences_and_another_digest() {
    let world = World::new(FILES, ASK_FILES, &[edit("a.txt", "two", "zwei")]);
    world.write("a.txt", "one\ntwo\nthree\n");
    world.cast().await;
    let before = world.only_waiting().await;
    world.write_later("a.txt", "one\ntwo\nTHREE\n");
    let after = world.only_waiting().await;
    let (now, asked) = file(&after);
    assert!(now.contains(" THREE\n") && now.contains("+zwei\n"), "{now}");
    assert!(asked.is_some_and(|asked| asked.contains("-two") && asked.contains("+zwei")), "{asked:?}");
    assert_ne!(before.proposal.digest, after.proposal.digest, "a form that was shown before decides nothing now");

    fs::remove_file(world.folder.path().join("work/a.txt")).expect("a file");
    let gone = world.only_waiting().await;
    let (now, asked) = file(&gone);
    assert_eq!(now, "", "an edit of a file that is gone changes nothing");
    assert!(asked.is_some_and(|asked| asked.contains("-two")), "{asked:?}");
}

#[tokio::test]
async fn bytes_that_the_run_itself_left_are_no_change_and_tell_what_the_person_was_asked() {
    let calls = [write("a.txt", "one\ntwo\n"), edit("a.txt", "two", "zwei")];
    let world = World::new(FILES, "require_approval = [\"edit\"]", &calls);
    world.cast().await;
    // The time alone is later: the bytes are those of the run.
    world.write_later("a.txt", "one\ntwo\n");
    assert_eq!(file(&world.only_waiting().await).1, None);
    world.write_later("a.txt", "zero\none\ntwo\n");
    let view = world.only_waiting().await;
    let (now, asked) = file(&view);
    assert!(now.contains(" zero\n"), "{now}");
    assert_eq!(asked, Some("--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+zwei\n"));
}

#[tokio::test]
async fn a_link_out_of_the_folder_shows_nothing_of_the_file_behind_it() {
    let world = World::new(FILES, ASK_FILES, &[write("link.txt", "new\n")]);
    fs::write(world.folder.path().join("outside.txt"), "words of another file\n").expect("a file");
    let link = world.folder.path().join("work/link.txt");
    std::os::unix::fs::symlink(world.folder.path().join("outside.txt"), link).expect("a link");
    world.cast().await;
    let view = world.only_waiting().await;
    assert!(!format!("{view:?}").contains("words of another file"), "{view:?}");
    let ProposalSubject::Call { gate, arguments } = &view.proposal.subject else {
        panic!("{:?}", view.proposal.subject)
    };
    assert_eq!((gate.as_str(), &arguments["content"]), ("write", &json!("new\n")), "all arguments are shown instead");
}

const LABELLED: &str = "[gates.files]\ncommand = [\"cat\"]\nlabels = [\"private_data\"]\n[gates.mail]\ncommand = [\"cat\"]\n\
                        labels = [\"untrusted_content\"]\n[gates.post]\ncommand = [\"cat\"]\nlabels = [\"external_comm\"]\n";

#[tokio::test]
async fn a_trifecta_names_the_turns_that_touched_each_label() {
    let call = |gate: &str| json!({"id": gate, "gate": gate, "args": {"n": 1}});
    let world = World::new(LABELLED, "", &[call("files"), call("mail"), call("files"), call("post")]);
    let run = world.cast().await;
    let turns = world.turns(run).await;
    assert_eq!(turns.len(), 3);
    let view = world.only_waiting().await;
    let wanted = BTreeMap::from([
        ("private_data".to_owned(), vec![turns[0], turns[2]]),
        ("untrusted_content".to_owned(), vec![turns[1]]),
    ]);
    assert_eq!(view.proposal.because, [AskedBecause::Trifecta(wanted)]);
    let ProposalSubject::Command { arguments, input, .. } = &view.proposal.subject else {
        panic!("{:?}", view.proposal.subject)
    };
    assert_eq!((arguments.join(" ").as_str(), input), ("cat", &Some(json!({"n": 1}))));
}

#[tokio::test]
async fn a_decided_approval_tells_who_decided_and_leaves_the_list() {
    let world = World::new(FILES, ASK_FILES, &[write("a.txt", "new\n")]);
    let run = world.cast().await;
    let approval = world.only_waiting().await.pending.approval_id;
    let ann = Actor::new("user:ann").expect("a name");
    let decided = world.service.decide(run, approval, HumanDecision::refuse(ann.clone(), "not here")).await;
    assert!(decided.reply.reply_type().is_success(), "{:?}", decided.reply);
    let view = world.views().proposal(run, approval).await.expect("the approval");
    let decision = view.proposal.decided.expect("a decision");
    assert_eq!((decision.approved, decision.by, decision.reason.as_deref()), (false, ann, Some("not here")));
    assert!(world.views().waiting(PageRequest::FIRST).await.expect("a list").items.is_empty());
    assert_eq!(world.views().waiting_count().await.expect("a number"), 0);
    let resumed = world.service.resume(&world.cantrip, run, &Cancel::new()).await;
    assert_eq!(resumed.answer(), Some(&json!("over")), "{:?}", resumed.reply());
    assert!(!world.folder.path().join("work/a.txt").exists(), "a refused call writes nothing");
}

#[tokio::test]
async fn what_waits_for_one_owner_is_not_found_by_another() {
    let world = World::new(FILES, ASK_FILES, &[write("a.txt", "new\n")]);
    let run = world.cast().await;
    let approval = world.only_waiting().await.pending.approval_id;
    let other = world.service.for_owner(Actor::new("user:bob").expect("a name"));
    let views = Views::of(&other);
    assert!(views.waiting(PageRequest::FIRST).await.expect("a list").items.is_empty());
    assert_eq!(views.waiting_count().await.expect("a number"), 0);
    let refusal = views.proposal(run, approval).await.expect_err("it is another owner's");
    let unknown = views.proposal(RunId::from_parts(Timestamp::EPOCH, [7; 10]), approval).await.expect_err("no run");
    assert_eq!((refusal.code(), unknown.code()), (codes::NOT_FOUND.any(), codes::NOT_FOUND.any()));
}

#[tokio::test]
async fn a_rewind_shows_what_it_would_restore_and_names_what_others_changed() {
    let calls =
        [write("a.txt", "one\n"), edit("a.txt", "one", "two"), write("b.txt", "made\n"), write("c.txt", "made too\n")];
    let world = World::new(FILES, "", &calls);
    let run = world.cast().await;
    world.write("c.txt", "mine now\n");
    let turns = world.turns(run).await;
    let plan = world.views().rewind_plan(turns[0]).await.expect("a plan");
    let [a, b, c] = plan.files.as_slice() else { panic!("{plan:?}") };
    assert_eq!((a.path.as_str(), a.touched, a.kept.as_deref()), ("a.txt", ChangeKind::Changed, None));
    assert_eq!(a.unified.as_deref(), Some("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-two\n+one\n"));
    assert_eq!((b.path.as_str(), b.touched, b.kept.as_deref()), ("b.txt", ChangeKind::Deleted, None));
    assert_eq!((c.path.as_str(), c.kept.as_deref()), ("c.txt", Some("changed since")));
    assert_eq!((world.read("a.txt").as_str(), world.read("b.txt").as_str()), ("two\n", "made\n"), "nothing is touched");
    let last = turns.last().copied().expect("a turn");
    assert!(world.views().rewind_plan(last).await.expect("a plan").files.is_empty(), "nothing was changed after it");
}

#[tokio::test]
async fn a_spell_is_shown_as_resolved_and_its_dry_run_writes_nothing() {
    let world = World::new(LABELLED, "", &[]);
    let view = world.views().spell("hands").await.expect("the spell");
    assert_eq!(view.fault, None);
    let row = |section: &str, key: &str| {
        let rows = view.sections.iter().filter(|(name, _)| name == section).flat_map(|(_, rows)| rows);
        rows.into_iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    };
    assert_eq!(row("spell", "name"), Some("hands"), "{:?}", view.sections);
    assert_eq!(row("wards", "max_turns"), Some("9"), "{:?}", view.sections);
    assert_eq!(row("effect", "trifecta"), Some("a call that completes the three labels needs a person"));
    let post = view.gates.iter().find(|gate| gate.name == "post").expect("its gate");
    assert_eq!(post.labels, ["external_comm"]);

    let dry = world.views().dry_run("hands", " go ").await.expect("a dry run");
    assert!(dry.system_prompt.contains("Work with care."), "{dry:?}");
    assert_eq!(dry.intent, "go");
    let tools: Vec<&str> = dry.tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert!(tools.contains(&"post") && tools.contains(&"done"), "{tools:?}");
    assert_eq!(world.service.looms().await.reply.value(), Some(&json!([])), "nothing was written");
    let refusal = world.views().dry_run("none", "go").await.expect_err("there is no such spell");
    assert_eq!(refusal.code(), codes::NOT_FOUND.any());
}

#[tokio::test]
async fn a_spell_that_cannot_be_built_is_shown_with_its_fault() {
    let world = World::new(FILES, "", &[]);
    fs::remove_file(world.folder.path().join("hands.yaml")).expect("a script");
    let view = world.views().spell("hands").await.expect("the spell");
    let fault = view.fault.expect("its script is gone");
    assert!(!fault.message.is_empty(), "{fault:?}");
    assert!(view.gates.iter().any(|gate| gate.name == "edit"), "{:?}", view.gates);
}

fn of_spell(name: &str) -> SummaryFilter {
    SummaryFilter { spell: Some(name.to_owned()), ..SummaryFilter::default() }
}

/// Casts a cantrip of this name that answers without a call, so that no record names it.
async fn quiet_cast(service: &Service, name: &str) -> RunId {
    let crystal = ScriptedCrystal::new("scripted/quiet", Script::new([Response::text("over")]));
    let cantrip = Cantrip::builder().name(name).crystal(crystal).gate(builtin::done()).ward("max_turns", 3).build();
    let cast = service.cast(&cantrip.expect("a sound cantrip"), CastRequest::with_intent("go")).await;
    let run = cast.run.unwrap_or_else(|| panic!("{:?}", cast.reply()));
    assert_eq!(service.runtime().loom().summary(run).await.expect("a run").spell, None, "no record names it");
    run
}

#[tokio::test]
async fn a_run_has_the_name_of_the_spell_whose_loom_it_is_in_and_is_found_by_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = Store::sqlite(folder.path().join("loom.db")).expect("a store");
    for loom in [AnyLoom::new(MemoryLoom::new()), AnyLoom::new(file)] {
        let world = World::in_loom(loom, FILES, "", &[]);
        let recorded = world.cast().await;
        let quiet = quiet_cast(&world.service, "hands").await;
        let gone = quiet_cast(&world.service, "gone").await;
        let hands = [quiet, recorded].map(|run| (run, Some("hands".to_owned())));

        let all = [&[(gone, None)], hands.as_slice()].concat();
        assert_eq!(world.named_runs(SummaryFilter::default()).await, all);
        assert_eq!(world.named_runs(of_spell("hands")).await, hands);
        assert_eq!(world.named_runs(of_spell("gone")).await, [(gone, None)], "a spell without a file has its runs");
        assert_eq!(world.named_runs(of_spell("hand")).await, []);
        let both = |loom: &str| SummaryFilter { loom: Some(loom_id_for(loom)), ..of_spell("hands") };
        assert_eq!(world.named_runs(both("hands")).await, hands);
        assert_eq!(world.named_runs(both("gone")).await, []);

        let views = world.views();
        assert_eq!(views.summary(quiet).await.expect("a run").spell.as_deref(), Some("hands"));
        assert_eq!(views.head(quiet, None).await.expect("a head").summary.spell.as_deref(), Some("hands"));
        let recent = views.spell("hands").await.expect("the spell").recent;
        assert_eq!(recent.iter().map(|run| run.run_id).collect::<Vec<_>>(), [quiet, recorded]);
        let other = world.service.for_owner(Actor::new("user:bob").expect("a name"));
        let theirs = Views::of(&other).runs(of_spell("hands"), PageRequest::FIRST, Timestamp::EPOCH).await;
        assert_eq!(theirs.expect("a list").runs.items, []);
    }
}
