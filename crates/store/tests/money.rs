//! One shared budget: stores and processes together never exceed it, and ledger rows cannot be changed.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use cantrip_canon::{AuthorizationId, LoomId, Money, TurnId};
use cantrip_loom::{AppendOutcome, Journal, Ledger, PageRequest, ReservationFilter, Seq, Step, StepId};
use cantrip_loom_suite::{Episode, LoomWriter, at, reserve, run};
use cantrip_spend::{AuthorizationMode, AuthorizationRef, Authorize, Operation, Reserve, Terms};
use cantrip_store::Store;
use futures_util::future::{join, join_all};
use support::{Kit, RefusedBy, assert_refused, fresh_schema, postgres_url};

on_both! {
    two_stores_share_one_budget,
    many_at_once_wait_for_each_other_and_none_is_refused,
    what_the_ledger_wrote_stays,
    a_number_edited_by_hand_is_found_with_both_numbers,
    a_store_without_a_ledger_gets_one,
}

const FITS: i64 = 10;
const EACH: i64 = 1_000;

fn funds() -> AuthorizationRef {
    AuthorizationRef::Issued(AuthorizationId::from_parts(at(0), [7; 10]))
}

async fn authorize(store: &Store, total: i64) {
    let terms =
        Terms { mode: AuthorizationMode::DelegatedBudget, max_total: Some(total), issued_at: at(0), ..Terms::local() };
    let (actor, reason) = ("local".to_owned(), "a test".to_owned());
    let issue = Authorize { authorization: funds(), terms, actor, reason, at: at(0) };
    let step = Step::outside_runs(StepId::new("authorize").unwrap()).money(Operation::Authorize(Box::new(issue)));
    assert_eq!(store.append(step).await.unwrap(), AppendOutcome::Committed(Seq::START));
}

fn worst(weaver: &mut LoomWriter<'_, Store>, episode: &Episode, micros: i64) -> Reserve {
    let turn: TurnId = weaver.id();
    let mut worst = reserve(weaver, episode, turn, 1, micros);
    worst.hold.authorization = funds();
    worst
}

/// Makes steps that each reserve in a separate run.
async fn rivals(store: &Store, seed: u64, count: usize) -> Vec<Step> {
    let mut weaver = LoomWriter::seeded(store, seed);
    weaver.loom = LoomId::from_bytes([1; 16]);
    let mut steps = Vec::new();
    for _ in 0..count {
        let episode = weaver.cast("count").await;
        let held = worst(&mut weaver, &episode, EACH);
        let id = StepId::new(format!("reserve-{seed}-{}", steps.len())).unwrap();
        steps.push(Step::for_lease(id, episode.lease).money(Operation::Reserve(Box::new(held))));
    }
    steps
}

/// Returns the number of committed steps; all others must be refused because the budget is exhausted.
async fn let_in(store: &Store, steps: Vec<Step>) -> usize {
    let answers = join_all(steps.into_iter().map(|step| store.append(step))).await;
    let mut count = 0;
    for answer in answers {
        match answer.unwrap() {
            AppendOutcome::Committed(_) => count += 1,
            AppendOutcome::Refused(decision) => {
                assert_eq!(decision.reason_code.as_str(), "policy_denied.budget_exhausted");
            }
            other @ (AppendOutcome::Wait | AppendOutcome::Conflict(_) | AppendOutcome::Fenced { .. }) => {
                panic!("{other:?}")
            }
        }
    }
    count
}

async fn full(store: &Store) {
    let row = store.authorization(funds()).await.unwrap();
    assert_eq!((row.totals.spent, row.totals.reserved), (0, FITS * EACH));
    let wanted = ReservationFilter { authorization: Some(funds()), ..ReservationFilter::default() };
    assert_eq!(store.reservations(wanted, PageRequest::FIRST).await.unwrap().items.len() as i64, FITS);
    let findings = store.audit().await.unwrap();
    assert!(findings.is_balanced(), "{findings:#?}");
}

async fn two_stores_share_one_budget<K: Kit>(kit: K) {
    let (one, two) = (kit.store(), kit.again().unwrap());
    authorize(one, FITS * EACH + EACH / 2).await;
    let (here, there) = (rivals(one, 1, 32).await, rivals(&two, 2, 32).await);
    let (here, there) = join(let_in(one, here), let_in(&two, there)).await;
    assert_eq!((here + there) as i64, FITS);
    full(one).await;
}

/// The other process of [`processes_share_one_budget`]. Without the environment variable it does nothing.
#[test]
fn a_process_that_reserves() {
    let Ok(url) = std::env::var("CANTRIP_MONEY_TEST_STORE") else { return };
    let number = |name: &str| std::env::var(name).unwrap().parse::<u64>().unwrap();
    let store = match std::env::var("CANTRIP_MONEY_TEST_SCHEMA").unwrap() {
        schema if schema.is_empty() => Store::open(&url).unwrap(),
        schema => Store::postgres_in(&url, &schema).unwrap(),
    };
    run(async {
        let steps = rivals(&store, number("CANTRIP_MONEY_TEST_SEED"), 16).await;
        println!("ready");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        println!("let in {}", let_in(&store, steps).await);
    });
}

fn processes_share_one_budget(url: &str, schema: &str) {
    let store = if schema.is_empty() { Store::open(url).unwrap() } else { Store::postgres_in(url, schema).unwrap() };
    run(authorize(&store, FITS * EACH));
    let mut children = Vec::new();
    for seed in 1..=4_u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_process_that_reserves", "--nocapture"])
            .env("CANTRIP_MONEY_TEST_STORE", url)
            .env("CANTRIP_MONEY_TEST_SCHEMA", schema)
            .env("CANTRIP_MONEY_TEST_SEED", seed.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        children.push((child, output));
    }
    // All begin at once, when the last one is ready.
    for (_, output) in &mut children {
        assert!(output.any(|line| line.unwrap().contains("ready")));
    }
    for (child, _) in &mut children {
        drop(child.stdin.take());
    }
    let mut count = 0;
    for (mut child, mut output) in children {
        let said = output.find_map(|line| line.unwrap().split_once("let in ").map(|(_, n)| n.parse::<i64>().unwrap()));
        count += said.unwrap();
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(count, FITS);
    run(full(&store));
}

#[test]
fn four_processes_share_one_budget_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    processes_share_one_budget(&format!("sqlite:{}", folder.path().join("loom.db").display()), "");
}

#[test]
fn four_processes_share_one_budget_on_a_server() {
    processes_share_one_budget(&postgres_url(), &fresh_schema());
}

async fn many_at_once_wait_for_each_other_and_none_is_refused<K: Kit>(kit: K) {
    // `./test.sh --long` has 256 tasks of 100 calls.
    let given = |name: &str, otherwise: usize| std::env::var(name).map_or(otherwise, |number| number.parse().unwrap());
    let (tasks, calls) = (given("CANTRIP_TEST_TASKS", 16), given("CANTRIP_TEST_CALLS", 12));
    let store = kit.store();
    // Budget for a third of the worst costs at a time, and in the end for every actual cost.
    authorize(store, (tasks / 3) as i64 * EACH + (tasks * calls) as i64).await;
    let mut weaver = LoomWriter::new(store);
    let episode = weaver.cast("count").await;
    let mut shares: Vec<Vec<Reserve>> = Vec::new();
    for _ in 0..tasks {
        shares.push((0..calls).map(|_| worst(&mut weaver, &episode, EACH)).collect());
    }
    let (lease, settled) = (&episode.lease, &tokio::sync::Notify::new());
    let waits = join_all(shares.into_iter().enumerate().map(|(task, share)| async move {
        let mut waits = 0_u64;
        for (call, held) in share.into_iter().enumerate() {
            let name = |what: &str| StepId::new(format!("{what}-{task}-{call}")).unwrap();
            let (id, now) = (held.hold.id(), held.hold.at);
            let step = Step::for_lease(name("reserve"), lease.clone()).money(Operation::Reserve(Box::new(held)));
            loop {
                match store.append(step.clone()).await.unwrap() {
                    AppendOutcome::Committed(_) => break,
                    AppendOutcome::Wait => {
                        waits += 1;
                        let soon = tokio::time::sleep(std::time::Duration::from_millis(20));
                        tokio::select! { () = settled.notified() => {}, () = soon => {} }
                    }
                    other @ (AppendOutcome::Refused(_) | AppendOutcome::Conflict(_) | AppendOutcome::Fenced { .. }) => {
                        panic!("{other:?}")
                    }
                }
            }
            let paid = Operation::commit(id, Money::new(1, cantrip_canon::Currency::USD).unwrap(), None, now);
            let step = Step::for_lease(name("commit"), lease.clone()).money(paid);
            assert!(matches!(store.append(step).await.unwrap(), AppendOutcome::Committed(_)));
            settled.notify_one();
        }
        waits
    }))
    .await;
    assert!(waits.iter().sum::<u64>() > 0, "all do not fit where a third does");
    let row = store.authorization(funds()).await.unwrap();
    assert_eq!((row.totals.spent, row.totals.reserved), ((tasks * calls) as i64, 0));
    let findings = store.audit().await.unwrap();
    assert!(findings.is_balanced(), "{findings:#?}");
}

async fn what_the_ledger_wrote_stays<K: Kit>(kit: K) {
    let store = kit.store();
    authorize(store, FITS * EACH).await;
    assert_eq!(let_in(store, rivals(store, 1, 2).await).await, 2);
    for (statement, by) in [
        ("UPDATE spend_terms SET max_total = 1", RefusedBy::WrittenOnce),
        ("UPDATE spend_entries SET d_spent = 1", RefusedBy::WrittenOnce),
        (
            "UPDATE policy_decisions SET reason_code = 'policy_allowed.default', decision = 'allowed'",
            RefusedBy::WrittenOnce,
        ),
        ("UPDATE spend_authorizations SET owner = 'user:1'", RefusedBy::WrittenOnce),
        ("UPDATE spend_authorizations SET run_id = NULL", RefusedBy::WrittenOnce),
        ("DELETE FROM spend_terms", RefusedBy::Kept),
        ("DELETE FROM spend_entries", RefusedBy::Kept),
        ("DELETE FROM policy_decisions", RefusedBy::Kept),
        ("DELETE FROM spend_authorizations", RefusedBy::Kept),
        ("DELETE FROM spend_reservations", RefusedBy::Kept),
        ("DELETE FROM spend_days", RefusedBy::Kept),
        ("DELETE FROM runs", RefusedBy::Kept),
        ("UPDATE spend_authorizations SET reserved = -1", RefusedBy::Check),
    ] {
        assert_refused(&kit, statement, by);
    }
    let findings = store.audit().await.unwrap();
    assert!(findings.is_balanced(), "{findings:#?}");
}

async fn a_number_edited_by_hand_is_found_with_both_numbers<K: Kit>(kit: K) {
    let store = kit.store();
    authorize(store, FITS * EACH).await;
    assert_eq!(let_in(store, rivals(store, 1, 2).await).await, 2);
    let edits = [
        ("UPDATE spend_authorizations SET reserved = 1999 WHERE owner = 'local' AND reserved = 2000", (1_999, 2_000)),
        ("UPDATE spend_days SET spent = 5", (5, 0)),
        ("UPDATE spend_reservations SET amount = 999", (999, 1_000)),
    ];
    for (edit, numbers) in edits {
        kit.by_hand(edit).unwrap();
        let findings = store.audit().await.unwrap();
        assert!(!findings.is_balanced());
        let found = findings.differences.iter().any(|found| (found.stored, found.reckoned) == numbers);
        assert!(found, "{edit}: {findings:#?}");
    }
}

async fn a_store_without_a_ledger_gets_one<K: Kit>(kit: K) {
    let mut weaver = LoomWriter::new(kit.store());
    let episode = weaver.cast("count").await;
    let tables = [
        "retention_removals",
        "ds_artifact_pointers",
        "ds_pointer_audits",
        "ds_traces",
        "ds_receipts",
        "ds_predicts",
        "ds_artifact_origins",
        "ds_artifacts",
        "ds_signatures",
        "spend_entries",
        "spend_reservations",
        "spend_approvals",
        "policy_decisions",
        "spend_caps",
        "spend_days",
        "spend_terms",
        "spend_authorizations",
    ];
    kit.by_hand(support::WITHOUT_OVERVIEW).unwrap();
    for table in support::IMPROVEMENT_TABLES.into_iter().chain(tables) {
        kit.by_hand(&format!("DROP TABLE {table}")).unwrap();
    }
    // Each dialect has its own syntax to drop a trigger.
    let drop = |of: &str| kit.by_hand(&format!("DROP TRIGGER runs_are_kept{of}"));
    drop("").or_else(|_| drop(" ON runs")).unwrap();
    support::unpacked(&kit, &[episode.run]).await;
    kit.by_hand("DELETE FROM schema_versions WHERE version >= 2").unwrap();
    let kit = kit.reopen().await.unwrap();
    let row = kit.store().authorization(AuthorizationRef::Local).await.unwrap();
    assert_eq!(*row.terms(), Terms::local());
    let mut weaver = LoomWriter::seeded(kit.store(), 9);
    weaver.skip(100);
    let turn = weaver.id();
    let held = reserve(&mut weaver, &episode, turn, 1, 5);
    let step = Step::for_lease(weaver.step_id(), episode.lease.clone()).money(Operation::Reserve(Box::new(held)));
    assert!(matches!(kit.store().append(step).await.unwrap(), AppendOutcome::Committed(_)));
}
