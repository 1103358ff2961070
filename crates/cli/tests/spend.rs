//! Money from the command line: authorizations, reservations, findings, and the check that the ledger balances.

use crate::providers::{KEY, Provider, programs};
use crate::support;

use std::time::Duration;

use cantrip_canon::{Currency, IdSource, Money, RunId, Timestamp};
use cantrip_loom::{
    Actor, AppendOutcome, CallId, Event, Journal, Lease, RecordDraft, RunKind, RunOpening, Step, StepId, WorkerId,
};
use cantrip_reply::codes;
use cantrip_spend::{
    AuthorizationRef, Guards, Hold, Operation, Phase, PolicyQuery, Principal, ReservationId, Reserve, RetryClass,
    Subject, Trifecta, UnknownOutcome,
};
use cantrip_store::Store;
use serde_json::{Value, json};
use support::{Folder, id, stdout};

const STORE: &str = "sqlite:kept/loom.db";

fn spend(folder: &Folder, arguments: &[&str], code: cantrip_reply::AnyCode) -> Value {
    folder.envelope(&[&["spend"], arguments, &["--store", STORE]].concat(), code)
}

#[test]
fn an_authorization_is_given_shown_and_taken_back() {
    let folder = Folder::new();
    let given = spend(
        &folder,
        &["authorize", "--total", "5.00 USD", "--per-day", "1.00 USD", "--agent", "analyst", "--model", "anthropic/*"],
        codes::CREATED.any(),
    );
    let funds = id(&given["data"]["authorization_id"]).to_owned();
    let listed = spend(&folder, &["ls"], codes::READ.any());
    let rows = listed["data"]["value"]["items"].as_array().unwrap();
    let ids: Vec<&Value> = rows.iter().map(|row| &row["id"]).collect();
    assert_eq!(ids, [&json!("auth_local"), &json!(funds)]);
    let shown = spend(&folder, &["show", &funds[..12]], codes::READ.any());
    let terms = &shown["data"]["value"]["authorization"]["agreement"]["terms"];
    assert_eq!((&terms["mode"], &terms["max_total"]), (&json!("delegated_budget"), &json!(5_000_000)));
    assert_eq!(terms["constraints"], json!({"models_allow": ["anthropic/*"]}));
    assert_eq!(shown["data"]["value"]["remaining"], 5_000_000);
    spend(&folder, &["revoke", &funds, "--because", "the month is over"], codes::CHANGED.any());
    let told = spend(&folder, &["show", &funds], codes::READ.any());
    let changes = told["data"]["value"]["agreements"].as_array().unwrap();
    assert_eq!(changes.len(), 2);
    assert_eq!(changes[1]["reason"], "the month is over");
    let shown = folder.run(&["spend", "show", &funds, "--store", STORE]);
    let text = stdout(&shown);
    for part in [funds.as_str(), "revoked", "5.00 USD", "the month is over", "analyst"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(stdout(&folder.run(&["spend", "ls", "--store", STORE])).contains("no total"));
}

#[test]
fn what_cannot_be_meant_is_refused_and_nothing_is_written() {
    let folder = Folder::new();
    for arguments in [
        &["authorize", "--mode", "delegated_budget"][..],
        &["authorize", "--total", "1.00 USD", "--mode", "generous"],
        &["authorize", "--total", "1.00 USD", "--owner", "user:7", "--mode", "system"],
        &["authorize", "--total", "1.00 USD", "--because", " "],
    ] {
        spend(&folder, arguments, codes::SCHEMA.any());
    }
    let mixed = ["authorize", "--total", "1.00 USD", "--per-day", "1.00 SAT"];
    spend(&folder, &mixed, codes::CONFIG_INVALID.any());
    spend(&folder, &["authorize", "--total", "1.00 USD", "--owner", "some one"], codes::CONFIG_INVALID.any());
    spend(&folder, &["show", "auth_nobody"], codes::NOT_FOUND.any());
    spend(&folder, &["revoke", "auth_nobody", "--because", "why not"], codes::NOT_FOUND.any());
    let listed = spend(&folder, &["ls"], codes::READ.any());
    assert_eq!(listed["data"]["value"]["items"].as_array().unwrap().len(), 1, "auth_local alone");
    // A folder of JSON lines has no ledger, and the refusal says so.
    folder.envelope(&["spend", "ls", "--store", "jsonl:kept"], codes::CONFIG_INVALID.any());
}

#[test]
fn a_bare_name_is_a_user_as_in_the_token_file_of_a_server() {
    let folder = Folder::new();
    for (owner, written) in [("ann", "user:ann"), ("user:ann", "user:ann"), ("system", "system")] {
        let given = spend(&folder, &["authorize", "--total", "1.00 USD", "--owner", owner], codes::CREATED.any());
        let id = given["data"]["authorization_id"].as_str().expect("an id").to_owned();
        let shown = spend(&folder, &["show", &id], codes::READ.any());
        assert!(shown["data"]["value"].to_string().contains(&format!("\"owner\":\"{written}\"")), "{shown}");
    }
}

/// Leaves a call of unknown outcome in a store, as a killed process does, for which this authorization holds an amount.
pub(crate) fn unknown_outcome(
    folder: &Folder,
    authorization: AuthorizationRef,
    held_micros: i64,
) -> (RunId, ReservationId) {
    let store = Store::sqlite(folder.path().join("kept/loom.db")).unwrap();
    let ids = IdSource::seeded(4);
    let now: Timestamp = "2026-02-19T02:00:00.000Z".parse().unwrap();
    let run: RunId = ids.next(now);
    let lease = Lease::first(run, WorkerId::new("gone").unwrap(), now.after(Duration::from_secs(30)));
    let opening = RunOpening {
        kind: RunKind::Job,
        loom_id: ids.next(now),
        owner: Actor::new("local").unwrap(),
        entity_id: None,
        root_run_id: None,
    };
    let hold = Hold {
        authorization,
        run,
        root_run: run,
        call: CallId::request(ids.next(now)).key(),
        attempt: 1,
        amount: Money::new(held_micros, Currency::USD).unwrap(),
        retry_class: RetryClass::SafeRetry,
        scope: run.to_string(),
        decision: ids.next(now),
        approval: None,
        at: now,
        expires_at: now.after(Duration::from_secs(60)),
    };
    let reservation = hold.id();
    let question = PolicyQuery {
        policy_id: "loop.v1".into(),
        phase: Phase::Spend,
        subject: Subject::model_call("scripted", "scripted/one"),
        principal: Principal {
            owner: cantrip_spend::Payer::local(),
            run_id: Some(run.to_string()),
            root_run_id: Some(run.to_string()),
            thread_id: None,
            autopilot_id: Some("spender".to_owned()),
        },
        guards: Guards::default(),
        trifecta: Trifecta::default(),
    };
    let began = Event::Other { kind: "job.progress".into(), payload: serde_json::Map::new() };
    let step = |name: &str| StepId::new(name).unwrap();
    let open = Step::open_run(step("open"), run, Some(lease.clone()))
        .record(RecordDraft::opening(now, opening, began).unwrap())
        .money(Operation::Reserve(Box::new(Reserve { hold, question })));
    let mark = Step::for_lease(step("mark"), lease).money(Operation::unknown(
        reservation.clone(),
        UnknownOutcome::Crashed,
        now.after(Duration::from_secs(1)),
    ));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for step in [open, mark] {
            assert!(matches!(store.append(step).await.unwrap(), AppendOutcome::Committed(_)));
        }
    });
    (run, reservation)
}

#[test]
fn an_unknown_outcome_is_listed_reconciled_once_and_all_adds_up() {
    let folder = Folder::new();
    spend(&folder, &["authorize", "--total", "1.00 USD"], codes::CREATED.any());
    let (run, reservation) = unknown_outcome(&folder, AuthorizationRef::Local, 20_000);
    let reservation = reservation.to_string();
    let verified = spend(&folder, &["verify"], codes::VERIFIED.any());
    assert_eq!(verified["data"]["value"]["reservations"], 1);
    let run = run.to_string();
    for narrowed in [&["--state", "reconcile_required"][..], &["--run", &run], &["--authorization", "auth_local"], &[]]
    {
        let listed = spend(&folder, &[&["reservations"], narrowed].concat(), codes::READ.any());
        let rows = listed["data"]["value"]["items"].as_array().unwrap();
        assert_eq!((rows.len(), &rows[0]["row"]["state_name"]), (1, &json!("reconcile_required")));
    }
    let none = spend(&folder, &["reservations", "--state", "committed"], codes::READ.any());
    assert_eq!(none["data"]["value"]["items"], json!([]));
    let beginning = &reservation[..12];
    let paid = ["reconcile", beginning, "--paid", "0.015 USD", "--because", "on the invoice"];
    spend(&folder, &paid, codes::CHANGED.any());
    spend(&folder, &paid, codes::CHANGED.any());
    spend(&folder, &["reconcile", &reservation, "--nothing", "--because", "second thoughts"], codes::WRONG_STATE.any());
    let shown = folder.run(&["spend", "reservations", "--store", STORE]);
    let text = stdout(&shown);
    assert!(text.contains("committed") && text.contains("cost 0.015 USD"), "{text}");
    let shown = spend(&folder, &["show"], codes::READ.any());
    assert_eq!(shown["data"]["value"]["authorization"]["totals"], json!({"spent": 15_000, "reserved": 0}));
    let shown = folder.run(&["spend", "verify", "--store", STORE]);
    let text = stdout(&shown);
    assert!(text.contains("all adds up"), "{text}");
}

/// Casts with a model whose price is known and a provider on loopback.
fn cast(folder: &Folder, provider: &Provider) -> std::process::Output {
    let mut command =
        folder.command(&["cast", "look around", "--crystal", "anthropic/claude-sonnet-4-5", "--store", STORE]);
    command.env("ANTHROPIC_API_KEY", KEY).env("ANTHROPIC_BASE_URL", &provider.address);
    command.stdin(std::process::Stdio::null()).output().expect("the binary runs")
}

#[test]
fn what_a_cast_costs_is_in_the_ledger_and_a_budget_that_is_too_small_lets_nothing_leave() {
    let folder = Folder::new();
    folder.write("notes.txt", "what the file says");
    let provider = Provider::serving(programs("anthropic"));
    let output = cast(&folder, &provider);
    assert_eq!(stdout(&output), "seen\n", "{output:?}");
    assert!(support::stderr(&output).contains("at most 1 USD"), "{output:?}");
    let listed = spend(&folder, &["ls"], codes::READ.any());
    let local = &listed["data"]["value"]["items"][0];
    // Ten tokens in at 3 USD and five out at 15 USD for a million, twice.
    assert_eq!((&local["totals"]["spent"], &local["totals"]["reserved"]), (&json!(210), &json!(0)), "{listed}");
    let held = spend(&folder, &["reservations"], codes::READ.any());
    assert_eq!(held["data"]["value"]["items"].as_array().map(Vec::len), Some(2), "{held}");
    spend(&folder, &["verify"], codes::VERIFIED.any());

    spend(&folder, &["authorize", "--total", "0.000050 USD", "--agent", "default"], codes::CREATED.any());
    let provider = Provider::serving(programs("anthropic"));
    let output = cast(&folder, &provider);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(support::stderr(&output).contains("EN-GATE-D-007"), "{output:?}");
    assert!(provider.asked().is_empty(), "nothing left");
    spend(&folder, &["verify"], codes::VERIFIED.any());
}

#[test]
fn a_budget_given_with_a_cast_is_an_authorization_of_that_run_alone() {
    let folder = Folder::new();
    folder.write("notes.txt", "what the file says");
    let provider = Provider::serving(programs("anthropic"));
    let cast = |arguments: &[&str]| {
        let all = ["cast", "look around", "--crystal", "anthropic/claude-sonnet-4-5", "--store", STORE];
        let all: Vec<&str> = all.iter().chain(arguments).copied().collect();
        let mut command = folder.command(&all);
        command.env("ANTHROPIC_API_KEY", KEY).env("ANTHROPIC_BASE_URL", &provider.address);
        command.stdin(std::process::Stdio::null()).output().expect("the binary runs")
    };
    let output = cast(&["--budget", "2.50 USD"]);
    assert_eq!(stdout(&output), "seen\n", "{output:?}");
    assert!(support::stderr(&output).contains("at most 2.50 USD"), "{output:?}");
    let listed = spend(&folder, &["ls"], codes::READ.any());
    let own = &listed["data"]["value"]["items"][1];
    assert_eq!(own["totals"]["spent"], 210, "{listed}");
    assert_eq!(listed["data"]["value"]["items"][0]["totals"]["spent"], 0, "{listed}");
    spend(&folder, &["verify"], codes::VERIFIED.any());

    // The table of the run has the cost of each turn.
    let shown = folder.command(&["run", "show", "--store", STORE]).output().expect("the binary runs");
    let shown = stdout(&shown);
    let rows = shown.lines().filter(|line| line.trim_start().starts_with("turn ")).collect::<Vec<_>>();
    assert_eq!(rows.len(), 2, "{shown}");
    assert!(rows.iter().all(|row| row.ends_with("10 in, 5 out · 0.000105 USD")), "{shown}");

    let output = cast(&["--budget", "much"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let output = cast(&["--budget", "0.000010 USD"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(provider.asked().len(), 2, "nothing of it left");
}

/// The first spell of the guide and of the design, without the gates that need another program.
const ANALYST: &str = r#"
name = "analyst"
crystal = "anthropic/claude-sonnet-4-5"
medium = "javascript"
answer_schema = "report.schema.json"

[call]
system_prompt = "You explore `context` with code."
temperature = 0.2
require_done_tool = true

[gates.call_agent_batch]
[gates.read]
root = "./data"

[wards]
max_turns = 30
max_depth = 2
max_cost = "0.50 USD"
timeout = "5m"

[folding]
strategy = "summary"

[verify]
command = ["./check.sh"]
"#;

#[test]
fn a_spell_with_children_ends_within_half_a_dollar_at_list_prices() {
    let folder = Folder::new();
    folder.write("analyst.toml", ANALYST);
    folder.write(
        "report.schema.json",
        r#"{"type": "object", "required": ["lines"], "properties": {"lines": {"type": "integer"}}}"#,
    );
    std::fs::create_dir(folder.path().join("data")).expect("a folder");
    folder.write("data/rows.txt", "four\nseven!!\n");
    folder.write("check.sh", "#!/bin/sh\nexit 0\n");
    let script = folder.path().join("check.sh");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a script");
    let said = [
        "var rows = read('rows.txt').trim().split('\\n'); console.log(rows.length)",
        "done({lines: call_agent_batch(rows.map(row => ({intent: 'count: ' + row}))).length})",
        "done({lines: 1})",
        "done({lines: 1})",
    ];
    let provider = Provider::serving(said.map(|code| (200, crate::providers::said("anthropic", code))).to_vec());
    let mut command = folder.command(&["cast", "analyst.toml", "how many lines?", "--store", STORE]);
    command.env("ANTHROPIC_API_KEY", KEY).env("ANTHROPIC_BASE_URL", &provider.address);
    let output = command.stdin(std::process::Stdio::null()).output().expect("the binary runs");
    assert_eq!(stdout(&output), "{\"lines\":2}\n", "{output:?}");
    let held = spend(&folder, &["reservations"], codes::READ.any());
    let held = held["data"]["value"]["items"].as_array().expect("reservations").clone();
    assert_eq!(held.len(), 4, "two requests of the root and one of each child: {held:#?}");
    let listed = spend(&folder, &["ls"], codes::READ.any());
    // Ten tokens in at 3 USD and five out at 15 USD for a million, four times.
    assert_eq!(listed["data"]["value"]["items"][0]["totals"], json!({"spent": 420, "reserved": 0}), "{listed}");
    spend(&folder, &["verify"], codes::VERIFIED.any());
}

/// A spell that orders something once, through a program that gives this answer.
fn orders(folder: &Folder, answer: &str) {
    folder.write(
        "orders.toml",
        "name = \"orders\"\ncrystal = \"scripted/orders.yaml\"\n[gates.order]\ncommand = [\"./order.sh\"]\nlabels = []\n\
         settlement = {most = \"0.05 USD\", cost = \"/paid\", correlation = \"/order\"}\n[wards]\nmax_turns = 5\n",
    );
    folder.write(
        "orders.yaml",
        "responses:\n  - tool_calls: [{id: a, gate: order, args: {item: tea}}]\n  \
         - tool_calls: [{id: b, gate: done, args: {answer: ordered}}]\n",
    );
    folder.write(
        "order.sh",
        &format!("#!/bin/sh\ncat > order.json\necho \"$CANTRIP_IDEMPOTENCY_KEY\" >> keys.log\necho '{answer}'\n"),
    );
    let script = folder.path().join("order.sh");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

#[test]
fn a_payment_waits_for_a_person_is_made_once_and_is_in_the_ledger() {
    let folder = Folder::new();
    orders(&folder, "{\"paid\": \"0.03 USD\", \"order\": \"A-17\"}");
    spend(&folder, &["authorize", "--mode", "interactive", "--agent", "orders"], codes::CREATED.any());
    let waiting = folder.envelope(&["cast", "orders.toml", "order tea", "--store", STORE], codes::CREATED.any());
    assert_eq!(waiting["data"]["state"], "waiting");
    assert!(!folder.path().join("keys.log").exists(), "nothing was ordered");
    let shown = folder.run(&["run", "show", "--store", STORE]);
    for part in ["order({\"item\":\"tea\"})", "up to 0.05 USD", "approval_required.interactive"] {
        assert!(stdout(&shown).contains(part), "{part}: {}", stdout(&shown));
    }
    let approved = folder.run(&["run", "approve", "--by", "user:1", "--store", STORE]);
    assert!(stdout(&approved).contains("up to 0.05 USD"), "{approved:?}");
    let answered = folder.envelope(&["run", "resume", "--store", STORE], codes::TERMINATED.any());
    assert_eq!(answered["data"]["answer"], "ordered");
    assert_eq!(folder.read("keys.log").lines().count(), 1, "once");
    assert!(folder.read("keys.log").starts_with("ik_"));
    let held = spend(&folder, &["reservations"], codes::READ.any());
    let row = &held["data"]["value"]["items"][0]["row"];
    assert_eq!(
        (&row["state_name"], &row["state"]["provider_correlation_id"]),
        (&json!("committed"), &json!("A-17")),
        "{held}"
    );
    assert_eq!(row["state"]["actual"], json!({"micros": 30_000, "currency": "USD"}), "{held}");
    spend(&folder, &["verify"], codes::VERIFIED.any());
    let again = folder.envelope(&["policy", "replay", "--store", STORE], codes::VERIFIED.any());
    assert_eq!(again["data"]["decisions"], 3, "asked, allowed, done: {again}");
}

#[test]
fn an_authorization_without_a_gate_lets_nothing_of_it_happen_and_a_payment_without_its_id_is_to_be_reconciled() {
    let folder = Folder::new();
    orders(&folder, "{\"paid\": \"0.03 USD\"}");
    let given = spend(
        &folder,
        &["authorize", "--total", "1.00 USD", "--not-gate", "order", "--agent", "orders"],
        codes::CREATED.any(),
    );
    folder.envelope(&["cast", "orders.toml", "order tea", "--store", STORE], codes::TERMINATED.any());
    assert!(!folder.path().join("keys.log").exists(), "nothing was ordered");
    let thread = folder.envelope(&["loom", "thread", "--store", STORE], codes::READ.any());
    let call = &thread["data"]["value"]["turns"][0]["gate_calls"][0];
    assert_eq!(call["reply"]["code"], codes::NOT_AUTHORIZED.any().as_str(), "{call}");
    assert_eq!(call["decision"]["reason_code"], "policy_denied.tool_not_allowed", "{call}");
    assert_eq!(call["decision"]["authorization_id"], given["data"]["authorization_id"]);
    folder.envelope(&["policy", "replay", "--store", STORE], codes::VERIFIED.any());
    spend(&folder, &["authorize", "--total", "1.00 USD", "--agent", "orders"], codes::CREATED.any());
    folder.envelope(&["cast", "orders.toml", "order tea", "--store", STORE], codes::TERMINATED.any());
    assert_eq!(folder.read("keys.log").lines().count(), 1);
    let held = spend(&folder, &["reservations", "--state", "reconcile_required"], codes::READ.any());
    let row = &held["data"]["value"]["items"][0]["row"];
    assert_eq!(row["state"]["why"], "missing_provider_correlation_id", "{held}");
    spend(&folder, &["verify"], codes::VERIFIED.any());
}
