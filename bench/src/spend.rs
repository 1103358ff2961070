//! How many reservations per second are possible, with separate budgets and with one shared budget?
//!
//! A reservation is a step that holds money and a step that settles it: policy is evaluated, and counters are read and
//! written, in the transaction of each. The floor is measured beside it, on the same disk in the same minute: two bare
//! transactions of one row each. Wall time, because the wait for the disk counts.

use std::path::Path;
use std::time::{Duration, Instant};

use cantrip_canon::{AuthorizationId, Currency, LoomId, Money};
use cantrip_loom::{AppendOutcome, Journal, Ledger, Step, StepId};
use cantrip_loom_suite::{LoomWriter, at, reserve};
use cantrip_spend::{AuthorizationMode, AuthorizationRef, Authorize, Operation, Reserve, Terms};
use cantrip_store::Store;
use futures_util::future::join_all;

use crate::store::{floor, median, over, runtime, schema};

/// The reservations that each row of the table makes, shared among the callers.
const RESERVATIONS: usize = 1_024;
const ROUNDS: usize = 3;
/// The approximate size of the rows of one step.
const BYTES: usize = 1_024;

/// The budgets of the callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BudgetSharing {
    One,
    Each,
}

async fn authorized(store: &Store, n: u64) -> AuthorizationRef {
    let authorization = AuthorizationRef::Issued(AuthorizationId::from_parts(at(n), [9; 10]));
    let total = Some(1 << 50);
    let terms =
        Terms { mode: AuthorizationMode::DelegatedBudget, max_total: total, issued_at: at(0), ..Terms::local() };
    let (actor, reason) = ("local".to_owned(), "a bench".to_owned());
    let issue = Authorize { authorization, terms, actor, reason, at: at(0) };
    let id = StepId::new(format!("authorize-{n}")).expect("a short name");
    let answer = store.append(Step::outside_runs(id).money(Operation::Authorize(Box::new(issue)))).await;
    assert!(matches!(answer, Ok(AppendOutcome::Committed(_))), "{answer:?}");
    authorization
}

/// Returns the time that `askers` take to reserve and settle their share.
fn concurrent(
    store: &Store,
    runtime: &tokio::runtime::Runtime,
    askers: usize,
    funds: BudgetSharing,
    seeds: &mut u64,
) -> Duration {
    let first = *seeds;
    *seeds += askers as u64;
    runtime.block_on(async {
        let mut shares: Vec<Vec<(Step, Step)>> = Vec::new();
        for n in 0..askers as u64 {
            let authorization = match funds {
                BudgetSharing::One if n > 0 => {
                    AuthorizationRef::Issued(AuthorizationId::from_parts(at(first), [9; 10]))
                }
                BudgetSharing::One | BudgetSharing::Each => authorized(store, first + n).await,
            };
            let mut weaver = LoomWriter::seeded(store, first + n);
            weaver.loom = LoomId::from_bytes([1; 16]);
            let episode = weaver.cast("measure").await;
            let mut share = Vec::new();
            for _ in 0..RESERVATIONS / askers {
                let turn = weaver.id();
                let mut held: Reserve = reserve(&mut weaver, &episode, turn, 1, 1_000);
                held.hold.authorization = authorization;
                let paid = Money::new(900, Currency::USD).expect("a small amount");
                let commit = Operation::commit(held.hold.id(), paid, None, weaver.now());
                let holds = |weaver: &mut LoomWriter<'_, Store>, money| {
                    Step::for_lease(weaver.step_id(), episode.lease.clone()).money(money)
                };
                let before = holds(&mut weaver, Operation::Reserve(Box::new(held)));
                share.push((before, holds(&mut weaver, commit)));
            }
            shares.push(share);
        }
        let start = Instant::now();
        join_all(shares.into_iter().map(|share| async {
            for (before, after) in share {
                for step in [before, after] {
                    let answer = store.append(step).await;
                    assert!(matches!(answer, Ok(AppendOutcome::Committed(_))), "{answer:?}");
                }
            }
        }))
        .await;
        start.elapsed()
    })
}

pub(crate) fn run() {
    let folder = tempfile::tempdir_in(".").or_else(|_| tempfile::tempdir()).expect("a folder to write in");
    println!("spend: reservations of two steps, one that holds and one that settles");
    println!("on {}, wall time, median of {ROUNDS} rounds\n", folder.path().display());
    table(folder.path());
}

fn table(folder: &Path) {
    let runtime = runtime();
    let postgres = std::env::var("CANTRIP_TEST_POSTGRES").ok().filter(|url| !url.is_empty());
    let mut stores = vec![("SQLite", Store::sqlite(folder.join("loom.db")).expect("a store"))];
    match &postgres {
        Some(url) => stores.push(("Postgres", Store::postgres_in(url, &schema()).expect("a store"))),
        None => println!("(no Postgres: set CANTRIP_TEST_POSTGRES to measure one too)\n"),
    }
    let mut sqlite = floor::Sqlite::new(&folder.join("floor.db"), BYTES);
    let mut server = postgres.as_deref().map(|url| floor::Postgres::new(url, &schema(), BYTES));
    let contenders = [(1, BudgetSharing::One), (64, BudgetSharing::Each), (64, BudgetSharing::One)];
    let (mut inserted, mut committed) = (Vec::new(), Vec::new());
    let mut taken = vec![vec![Vec::new(); contenders.len()]; stores.len()];
    let mut seeds = 5_000;
    for _ in 0..ROUNDS {
        inserted.push(sqlite.time(2 * RESERVATIONS));
        if let Some(server) = &mut server {
            committed.push(server.time(2 * RESERVATIONS));
        }
        for (at, (_, store)) in stores.iter().enumerate() {
            for (row, (askers, funds)) in contenders.iter().enumerate() {
                taken[at][row].push(concurrent(store, &runtime, *askers, *funds, &mut seeds));
            }
        }
    }
    let inserted = median(inserted);
    let committed = (!committed.is_empty()).then(|| median(committed));
    println!("| what | reservations a second | each | ratio |");
    println!("| --- | --- | --- | --- |");
    let row = |what: &str, time: Duration, ratio: String| {
        let each = time.as_secs_f64() * 1e6 / RESERVATIONS as f64;
        println!("| {what} | {:.0} | {each:.0} us | {ratio} |", RESERVATIONS as f64 / time.as_secs_f64());
    };
    row("floor: two SQLite transactions of one row each", inserted, String::new());
    if let Some(committed) = committed {
        row("floor: two Postgres transactions of one row each", committed, String::new());
    }
    for ((name, store), taken) in stores.iter().zip(taken) {
        for ((askers, funds), times) in contenders.iter().zip(taken) {
            let time = median(times);
            let own = if *name == "Postgres" { committed.unwrap_or(inserted) } else { inserted };
            let shared = if *funds == BudgetSharing::Each { "a budget each" } else { "one budget" };
            let ratio = format!("{:.2} x its own transactions", over(time, own));
            row(&format!("{name}, {askers} at once, {shared}"), time, ratio);
        }
        let findings = runtime.block_on(store.audit()).expect("a ledger");
        assert!(findings.is_balanced(), "{findings:#?}");
    }
    println!();
}
