//! Compile jobs on scripted crystals: what is found, what is stored, what is tested, and what a replay says.

use std::collections::BTreeSet;
use std::path::Path;

use cantrip::Cancel;
use cantrip::crystal::Response;
use cantrip::loom::{AnyLoom, Contracts, Improvements, MemoryLoom, PageRequest};
use cantrip_contract::{CompiledId, EvalReport, EvalStatus, EvalVerdict, JobStatus, Provenance, Purpose, Split};
use cantrip_improve::compile::{CompileDifference, CompileRequest, resolve_compile, stored_compile};
use cantrip_improve::eval::verify_eval;
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_any, assert_code};
use cantrip_store::Store;
use serde_json::json;

use crate::compile_world::{Office, REFLECT, Router, base, proposes, report_of, request, route, run_of, with_options};
use crate::support::{done, replied, stores};

fn memory() -> AnyLoom {
    AnyLoom::new(MemoryLoom::new())
}

/// Compiles on a fresh store, and returns the process, the run and the report.
async fn compiled(
    task: &Router,
    reflect: &Router,
    sizes: (usize, usize, usize),
    request: CompileRequest,
) -> (Office, cantrip::canon::RunId, cantrip_contract::CompileReport) {
    let office = Office::new(&memory(), task, reflect);
    office.store_tickets(sizes.0, sizes.1, sizes.2).await;
    let reply = office.start(request).await;
    assert_code(&reply.guarded.reply, codes::COMPILED);
    let (run, report) = (run_of(&reply), report_of(&reply));
    office.assert_sound(run).await;
    (office, run, report)
}

/// Returns the selected artifact of a report.
async fn winner(office: &Office, report: &cantrip_contract::CompileReport) -> cantrip_contract::Artifact {
    let id: CompiledId = report.selected.as_ref().unwrap().artifact().unwrap();
    office.predictor.catalog().artifact(&id).await.unwrap()
}

/// Returns a request that tries texts alone, without sets of demos beside them.
fn texts_alone() -> CompileRequest {
    with_options("instruction_grid.v1", json!({"cross": 0}))
}

#[tokio::test]
async fn a_word_in_the_instruction_is_found_by_the_grid() {
    let task = Router::right_if(|told| told.system.contains("carefully"));
    let texts = ["Route it quickly.", "Route it carefully.", "Route."].map(str::to_owned).to_vec();
    let asked = CompileRequest { texts, ..request("instruction_grid.v1") };
    let (office, _, report) = compiled(&task, &proposes(""), (8, 8, 12), asked).await;
    assert_eq!(winner(&office, &report).await.instructions(), "Route it carefully.");
    let selected = report.candidate(report.selected.as_ref().unwrap()).unwrap();
    assert_eq!(selected.holdout, Some(1_000_000));
    // Nine of twelve test tickets are about another team than billing.
    let tested = office.loom.eval_report(report.eval_id.clone().unwrap()).await.unwrap().report().unwrap();
    assert_eq!((tested.score.unwrap().mean, tested.delta.unwrap().wins), (1_000_000, 9));
    assert_eq!((tested.verdict, report.optimism), (Some(EvalVerdict::Better), Some(0)));
}

#[tokio::test]
async fn a_given_demo_is_found_by_drawn_sets() {
    let task = Router::right_if(|told| told.demos.iter().any(|demo| demo.contains("train ticket 5 about")));
    let (office, _, report) = compiled(&task, &proposes(""), (8, 8, 12), request("bootstrap_demos.v1")).await;
    let artifact = winner(&office, &report).await;
    assert!(artifact.demos().iter().any(|demo| demo.input["text"] == "train ticket 5 about shipping"), "{artifact:?}");
    assert_eq!(report.candidate(report.selected.as_ref().unwrap()).unwrap().holdout, Some(1_000_000));
}

#[tokio::test]
async fn the_order_of_two_demos_is_part_of_a_candidate() {
    let task = Router::right_if(|told| {
        let place = |name: &str| told.demos.iter().position(|demo| demo.contains(name));
        matches!((place("train ticket 2 about"), place("train ticket 0 about")), (Some(two), Some(zero)) if two < zero)
    });
    let (office, _, report) = compiled(&task, &proposes(""), (4, 8, 12), request("bootstrap_demos.v1")).await;
    let artifact = winner(&office, &report).await;
    let place = |text: &str| artifact.demos().iter().position(|demo| demo.input["text"] == text).unwrap();
    assert!(place("train ticket 2 about technical") < place("train ticket 0 about billing"), "{artifact:?}");
}

#[tokio::test]
async fn a_decoding_is_found_by_the_grid_and_by_the_combinations() {
    for optimiser in ["instruction_grid.v1", "mipro_lite.v1"] {
        let task = Router::right_if(|told| told.temperature == Some(0.7));
        let decodings = vec![json!({"temperature": 0.2}), json!({"temperature": 0.7})];
        let asked = CompileRequest { decodings, ..request(optimiser) };
        let (office, _, report) = compiled(&task, &proposes(""), (8, 8, 12), asked).await;
        assert_eq!(winner(&office, &report).await.params().temperature, Some(0.7), "{optimiser}");
    }
}

#[tokio::test]
async fn a_hint_is_found_by_reflection() {
    let task = Router::right_if(|told| told.system.contains("Notes:\n- /team: the word after about"));
    let reflect = proposes("- /team: the word after about\n- /other: dropped");
    let asked = CompileRequest {
        slots: Some(vec!["hints".to_owned()]),
        reflect_model: Some(REFLECT.to_owned()),
        ..with_options("gepa.v1", json!({"max_iterations": 10, "patience": 3}))
    };
    let (office, run, report) = compiled(&task, &reflect, (8, 8, 12), asked).await;
    let artifact = winner(&office, &report).await;
    assert_eq!(artifact.instructions(), "Route it.\n\nNotes:\n- /team: the word after about\n");
    assert!(report.proposals.made >= 1 && report.proposals.accepted == 1, "{:?}", report.proposals);
    // A reflection is a predict of the job with a receipt, and sees train tickets alone.
    for told in reflect.told.lock().unwrap().iter() {
        assert!(told.asked.contains("train ticket"), "{told:?}");
        assert!(!told.asked.contains("holdout ticket") && !told.asked.contains("test ticket"), "{told:?}");
    }
    let job = office.job(run).await;
    let stored = stored_compile(&office.predictor, &job).await.unwrap();
    let first = &stored.proposals[0];
    assert_eq!((first.slot.as_str(), first.diagnosis.as_str()), ("hints", "the team was not named"));
    assert!(first.receipt_id.is_some());
    let change = stored.candidates.iter().flat_map(|candidate| &candidate.changes).next().unwrap();
    assert_eq!((change.slot.as_str(), change.before.as_str()), ("instructions", "Route it."));
}

#[tokio::test]
async fn scores_come_from_outputs_and_the_base_wins_a_tie_without_a_test() {
    // The answers do not depend on the instruction, so candidates with other ids have the same scores.
    let task = Router::right_if(|told| told.team() == "shipping");
    let texts = ["Route it!", "Please route it."].map(str::to_owned).to_vec();
    let asked = CompileRequest { texts, ..texts_alone() };
    let (office, run, report) = compiled(&task, &proposes(""), (4, 8, 12), asked).await;
    let means: BTreeSet<Option<u64>> = report.candidates.iter().map(|candidate| candidate.holdout).collect();
    assert_eq!((means, report.candidates.len()), (BTreeSet::from([Some(500_000)]), 3));
    assert_eq!(report.selected, Some(base()));
    assert_eq!((report.eval_id.clone(), report.optimism, report.trials.test), (None, None, 0));
    assert_eq!(report.suggestion.action, "keep");
    assert!(office.rows(run).await.iter().all(|row| row.split != Split::Test));
    // No look was spent.
    assert_eq!(office.loom.looks(office.job(run).await.subject, PageRequest::FIRST).await.unwrap().items.len(), 0);
}

#[tokio::test]
async fn candidates_are_artifacts_with_lineage_and_nothing_else_is_written() {
    for (loom, _folder) in stores() {
        let task = Router::right_if(|told| told.demos.len() >= 4);
        let office = Office::new(&loom, &task, &proposes(""));
        office.store_tickets(8, 6, 8).await;
        let before = loom.pointers().await.unwrap();
        let first = office.start(with_options("bootstrap_demos.v1", json!({"candidates": 2}))).await;
        assert_code(&first.guarded.reply, codes::COMPILED);
        let (run, report) = (run_of(&first), report_of(&first));
        office.assert_sound(run).await;
        let job_id = office.job(run).await.job_id;
        let rows = office.candidates(run).await;
        let ids: Vec<_> = report.candidates.iter().map(|candidate| candidate.compiled_id.clone()).collect();
        assert_eq!(rows.iter().map(|row| row.candidate_id.clone()).collect::<BTreeSet<_>>(), ids.into_iter().collect());
        for row in rows.iter().filter(|row| row.candidate_id != base()) {
            assert_eq!((row.parents.clone(), row.op.as_str()), (vec![base()], "demos"));
            let origins = loom.artifact_origins(row.compiled_id.clone().unwrap()).await.unwrap();
            assert_eq!(origins.len(), 1);
            assert_eq!(origins[0].kind, Provenance::Job);
            assert_eq!(origins[0].job_id, Some(job_id.to_string()));
            assert_eq!(origins[0].parent_compiled_id, base().artifact());
        }
        // Every receipt of the job is of a compile, and about the artifact of its row.
        for row in office.rows(run).await {
            let receipt = loom.receipt(row.receipt_id.unwrap()).await.unwrap().receipt().unwrap();
            assert_eq!(receipt.purpose, Some(Purpose::Compile));
            assert_eq!(receipt.compiled_id, row.candidate_id.artifact());
        }
        assert_eq!(loom.pointers().await.unwrap(), before, "no pointer moved");
        // The same start again is the same job, and asks nobody.
        let asked = task.asked();
        let again = office.start(with_options("bootstrap_demos.v1", json!({"candidates": 2}))).await;
        assert!(again.replayed);
        assert_eq!((report_of(&again), task.asked()), (report.clone(), asked));
        // Another job that finds the same content adds an origin, and no artifact.
        let texts = vec!["Route it well.".to_owned()];
        let one = CompileRequest { texts, ..texts_alone() };
        let two = CompileRequest { rerun: true, ..one.clone() };
        office.compiled(one).await;
        let last = office.compiled(two).await;
        let made = last.candidates.iter().find(|candidate| candidate.compiled_id != base()).unwrap();
        let origins = loom.artifact_origins(made.compiled_id.artifact().unwrap()).await.unwrap();
        assert_eq!(origins.len(), 2, "{origins:?}");
    }
}

#[tokio::test]
async fn the_final_test_is_an_evaluation_of_the_job_and_a_look() {
    for (loom, _folder) in stores() {
        let task = Router::right_if(|told| told.system.contains("carefully"));
        let office = Office::new(&loom, &task, &proposes(""));
        office.store_tickets(4, 8, 40).await;
        let asked = || CompileRequest { texts: vec!["Route it carefully.".to_owned()], ..texts_alone() };
        let prepared = office.prepare(asked()).await.unwrap();
        assert_eq!((prepared.plan().look, task.asked()), (Some(1), 0));
        // Two texts on eight tickets, and forty tickets twice.
        assert_eq!(prepared.plan().trials, 2 * 8 + 2 * 40);
        let reply = office.start(asked()).await;
        let report = report_of(&reply);
        let eval_id = report.eval_id.clone().unwrap();
        let verified = verify_eval(&office.predictor, &eval_id).await.unwrap();
        assert_eq!(verified.difference, None);
        let tested: EvalReport = verified.report.unwrap();
        assert_eq!(
            (tested.compiled_id.clone(), tested.baseline_id.clone()),
            (report.selected.clone().unwrap(), Some(base()))
        );
        assert_eq!((tested.status, tested.split, tested.look.unwrap().k), (EvalStatus::Succeeded, Split::Test, 1));
        assert_eq!((tested.job_hash, tested.report_id.clone()), (report.job_hash, report.report_id.clone()));
        assert_eq!(report.trials.test, 80);
        // The next compile on the same tickets is the second look.
        assert_eq!(office.prepare(CompileRequest { rerun: true, ..asked() }).await.unwrap().plan().look, Some(2));
        office.assert_sound(run_of(&reply)).await;
        let found = resolve_compile(&loom, &report.report_id.as_str()[..12]).await.unwrap();
        assert_eq!(found.run_id, run_of(&reply));
    }
}

#[tokio::test]
async fn what_cannot_be_compiled_is_refused_before_any_call() {
    let task = Router::right_if(|_| true);
    let office = Office::new(&memory(), &task, &proposes(""));
    office.store_tickets(4, 6, 6).await;
    let refusals = [
        (request("best_of_all.v1"), codes::CONFIG_INVALID.any()),
        (with_options("bootstrap_demos.v1", json!({"candidate": 2})), codes::CONFIG_INVALID.any()),
        (
            CompileRequest { slots: Some(vec!["wards".to_owned()]), ..request("bootstrap_demos.v1") },
            codes::CONFIG_INVALID.any(),
        ),
        (
            CompileRequest { max_calls: Some(20), reflect_model: Some(REFLECT.to_owned()), ..request("gepa.v1") },
            codes::LIMIT.any(),
        ),
        (
            CompileRequest { dataset: "others".to_owned(), ..request("bootstrap_demos.v1") },
            codes::CONTRACT_UNKNOWN.any(),
        ),
        (CompileRequest { concurrency: 65, ..request("bootstrap_demos.v1") }, codes::SCHEMA.any()),
    ];
    for (asked, code) in refusals {
        let told = format!("{asked:?}");
        let refusal = office.prepare(asked).await.err().unwrap_or_else(|| panic!("{told}"));
        assert_any(&replied(refusal).await, code);
    }
    let prefer = json!({"v": 1, "kind": "metric", "type": "prefer.v1", "rubric": "The better one."});
    let metric = cantrip_improve::eval::MetricChoice::Given { name: None, metric: prefer };
    let asked = CompileRequest { metric, ..request("bootstrap_demos.v1") };
    assert_any(&replied(office.prepare(asked).await.unwrap_err()).await, codes::METRIC_INVALID.any());
    assert_eq!(task.asked(), 0);
    assert_eq!(office.loom.jobs(cantrip::loom::JobFilter::default(), PageRequest::FIRST).await.unwrap().items.len(), 0);
}

#[tokio::test]
async fn rubbish_of_a_reflect_model_ends_by_patience_with_the_base() {
    let task = Router::right_if(|_| false);
    let rubbish = Router::new(REFLECT, |_| done(json!({"text": 3})));
    let asked = CompileRequest {
        reflect_model: Some(REFLECT.to_owned()),
        slots: Some(vec!["instructions".to_owned()]),
        ..with_options("gepa.v1", json!({"patience": 2}))
    };
    let (_, _, report) = compiled(&task, &rubbish, (6, 6, 6), asked).await;
    assert_eq!((report.status, report.selected.clone()), (EvalStatus::Succeeded, Some(base())));
    assert_eq!(report.proposals.rejected.get("reflect_failed"), Some(&report.proposals.made));
    assert!(report.proposals.made >= 2, "{:?}", report.proposals);
}

/// Changes the file of a store by hand, around the triggers that protect it. Returns the number of changed rows.
fn edit_by_hand(folder: &Path, statement: &str) -> usize {
    let file = rusqlite::Connection::open(folder.join("loom.db")).unwrap();
    let triggers: Vec<(String, String)> = {
        let mut asked = file.prepare("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").unwrap();
        let rows = asked.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.map(Result::unwrap).collect()
    };
    for (name, _) in &triggers {
        file.execute_batch(&format!("DROP TRIGGER {name}")).unwrap();
    }
    let changed = file.execute(statement, []).unwrap();
    for (_, sql) in &triggers {
        file.execute_batch(sql).unwrap();
    }
    changed
}

#[tokio::test]
async fn a_replay_names_an_edited_score_row_receipt_candidate_or_report() {
    let edits = [
        ("UPDATE ds_example_results SET score = 1000000 - score WHERE result_key = 1", "result", "score"),
        ("DELETE FROM ds_example_results WHERE result_key = 3", "result", "row"),
        (
            "UPDATE ds_receipts SET body = replace(body, '\"latency_ms\":', '\"latency_ms\":9')",
            "receipt",
            "receipt_hash",
        ),
        ("UPDATE ds_candidates SET accepted = 0 WHERE ordinal = 1", "candidate", "accepted"),
        ("UPDATE ds_candidates SET holdout_micro = 3 WHERE ordinal = 1", "candidate", "holdout_micro"),
        ("DELETE FROM ds_candidates WHERE ordinal = 1", "candidate", "row"),
        (
            "UPDATE ds_compile_reports SET body = replace(body, '\"holdout\":', '\"holdout\": ')",
            "compile report",
            "report_hash",
        ),
        ("UPDATE ds_artifacts SET body = replace(body, 'carefully', 'carelessly')", "artifact", "content_hash"),
    ];
    for (edit, what, field) in edits {
        let folder = tempfile::tempdir().unwrap();
        let loom = AnyLoom::new(Store::sqlite(folder.path().join("loom.db")).unwrap());
        let task = Router::right_if(|told| told.system.contains("carefully"));
        let office = Office::new(&loom, &task, &proposes(""));
        office.store_tickets(4, 6, 8).await;
        let texts = vec!["Route it carefully.".to_owned()];
        let reply = office.start(CompileRequest { texts, ..texts_alone() }).await;
        assert_code(&reply.guarded.reply, codes::COMPILED);
        let run = run_of(&reply);
        office.assert_sound(run).await;
        assert!(edit_by_hand(folder.path(), edit) > 0, "{edit}");
        // A process that did not write the rows reads them.
        let loom = AnyLoom::new(Store::sqlite(folder.path().join("loom.db")).unwrap());
        let reader = Office::new(&loom, &task, &proposes(""));
        let found = reader.replay(run).await.difference.unwrap_or_else(|| panic!("{edit}"));
        let CompileDifference::Altered { what: told, field: told_field, .. } = &found else {
            panic!("{edit}: {found:?}")
        };
        assert_eq!((told.as_str(), told_field.as_str()), (what, field), "{edit}: {found:?}");
        assert_any(&replied(found.refusal()).await, codes::RECORD_ALTERED.any());
    }
}

#[tokio::test]
async fn an_interrupted_compile_waits_and_goes_on_and_a_cancelled_one_can_be_continued() {
    for (loom, _folder) in stores() {
        let task = Router::right_if(|told| told.demos.len() >= 4);
        let office = Office::new(&loom, &task, &proposes(""));
        office.store_tickets(8, 8, 8).await;
        let asked = || with_options("bootstrap_demos.v1", json!({"candidates": 3}));
        let expected = {
            let other = Office::new(&memory(), &task, &proposes(""));
            other.store_tickets(8, 8, 8).await;
            crate::compile_world::lasting(&other.compiled(asked()).await)
        };
        let interrupted = Cancel::new();
        let press = interrupted.clone();
        let watched = office.driver.with_watcher(move |progress: &cantrip_ds::job::JobProgressView| {
            if progress.done >= 10 {
                press.park();
            }
        });
        let prepared = office.prepare(asked()).await.unwrap();
        let reply = prepared.start(&watched, None, &interrupted, true).await.unwrap();
        assert_eq!(reply.waiting, Some(cantrip::Waiting::Interrupted));
        let run = run_of(&reply);
        let cancelled = Cancel::new();
        let press = cancelled.clone();
        let watched = office.driver.with_watcher(move |progress: &cantrip_ds::job::JobProgressView| {
            if progress.done >= 20 {
                press.cancel();
            }
        });
        let reply = watched.resume(run, office.parts(run).await, 2, &cancelled).await;
        assert_eq!(reply.status, Some(JobStatus::Cancelled));
        assert_any(&reply.guarded.reply, codes::ENDED_FROM_OUTSIDE.any());
        let so_far = report_of(&reply);
        assert_eq!((so_far.status, so_far.eval_id.clone()), (EvalStatus::Cancelled, None));
        office.assert_sound(run).await;
        let more = cantrip_ds::job::JobContinuation::default();
        let reply = office.driver.reopen(run, more, office.parts(run).await, 4, &Cancel::new()).await;
        assert_code(&reply.guarded.reply, codes::COMPILED);
        assert_eq!(crate::compile_world::lasting(&report_of(&reply)), expected);
        office.assert_sound(run).await;
    }
}

#[tokio::test]
async fn five_failures_in_a_row_park_a_compile() {
    let down = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    let state = std::sync::Arc::clone(&down);
    let task = Router::new(crate::compile_world::TASK, move |told| {
        if state.load(std::sync::atomic::Ordering::SeqCst) { Response::error(401, "no key") } else { told.answer(true) }
    });
    let office = Office::new(&memory(), &task, &proposes(""));
    office.store_tickets(4, 8, 6).await;
    let asked = CompileRequest { concurrency: 1, ..with_options("bootstrap_demos.v1", json!({"candidates": 1})) };
    let reply = office.start(asked).await;
    let Some(cantrip::Waiting::Crystal { .. }) = &reply.waiting else { panic!("{:?}", reply.guarded.reply) };
    assert_eq!(task.asked(), 5, "the list is not burned");
    down.store(false, std::sync::atomic::Ordering::SeqCst);
    let run = run_of(&reply);
    let reply = office.driver.resume(run, office.parts(run).await, 4, &Cancel::new()).await;
    assert_code(&reply.guarded.reply, codes::COMPILED);
    office.assert_sound(run).await;
}

#[tokio::test]
async fn an_artifact_of_another_signature_is_not_a_base() {
    let office = Office::new(&memory(), &Router::right_if(|_| true), &proposes(""));
    office.store_tickets(4, 6, 6).await;
    let from = Some("art_fa314739a6ab692b5cd3d96708665e89".to_owned());
    let asked = CompileRequest { from, ..request("bootstrap_demos.v1") };
    assert_any(&replied(office.prepare(asked).await.unwrap_err()).await, codes::ARTIFACT_INCOMPATIBLE.any());
    let asked = CompileRequest { subject: "Classify".to_owned(), ..request("bootstrap_demos.v1") };
    assert_any(&replied(office.prepare(asked).await.unwrap_err()).await, codes::CONFIG_INVALID.any());
    assert_eq!(route().base_artifact().id(), base().artifact().unwrap());
}
