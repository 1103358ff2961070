//! The replies, receipts and records of a predict or a cast that policy denies: through the real binary, on every
//! store.

use std::process::{Output, Stdio};
use std::str::FromStr;

use cantrip_canon::{IdSource, Money, RunId, Timestamp};
use cantrip_loom::{AppendOutcome, Journal, Ledger, Step, StepId};
use cantrip_reply::testing::assert_envelope;
use cantrip_reply::{AnyCode, codes};
use cantrip_spend::{Authorization, AuthorizationMode, AuthorizationRef, Authorize, Operation};
use cantrip_store::Store;
use serde_json::{Value, json};

use crate::spend::unknown_outcome;
use crate::support::model::Model;
use crate::support::{self, Folder, id, stderr};

const SHOUT: &str = r#"namespace = "@me/text"
name = "Shout"
version = 1
description = "Say it louder."
program_template = "direct.v1"
instructions = "Say it louder."
prompt_template = { system = "{{ instructions }}", user = "{{ inputs.text }}" }
input_schema = { type = "object", required = ["text"], properties = { text = { type = "string" } } }
output_schema = { type = "object", required = ["text"], properties = { text = { type = "string" } } }
"#;

/// Prices for the local models.
const PRICES: &str = "[[model]]\ncrystal = \"local/*\"\nwindow = 100_000\noutput_tokens_max = 1_000\n\
                      price = { input = \"3.00 USD\", output = \"15.00 USD\" }\n";

fn stores() -> Vec<String> {
    [Some("sqlite:kept/loom.db".to_owned()), support::own_postgres()].into_iter().flatten().collect()
}

/// A folder with a signature, a spell, a price list, and a model that counts its requests.
struct House {
    folder: Folder,
    model: Model,
    store: String,
}

impl House {
    fn new(store: &str) -> Self {
        let folder = Folder::new();
        std::fs::create_dir_all(folder.path().join("signatures")).unwrap();
        folder.write("signatures/shout.toml", SHOUT);
        folder.write("models.toml", PRICES);
        let model = Model::start(|_| {
            let arguments = json!({"answer": {"text": "HEY"}}).to_string();
            let call = json!({"id": "c1", "type": "function", "function": {"name": "done", "arguments": arguments}});
            json!({"role": "assistant", "content": null, "tool_calls": [call]})
        });
        let spell = format!("name = \"spender\"\ncrystal = \"{}\"\n[wards]\nmax_turns = 3\n", model.crystal());
        folder.write("spender.toml", &spell);
        Self { folder, model, store: store.to_owned() }
    }

    fn told(&self, arguments: &[&str], code: AnyCode) -> Value {
        self.folder.envelope(&[arguments, &["--store", &self.store]].concat(), code)
    }

    fn authorize(&self, terms: &[&str]) -> String {
        let given = self.told(&[&["spend", "authorize"], terms].concat(), codes::CREATED.any());
        id(&given["data"]["authorization_id"]).to_owned()
    }

    /// Returns the current terms of an authorization.
    fn terms(&self, authorization: &str) -> Value {
        let shown = self.told(&["spend", "show", authorization], codes::READ.any());
        shown["data"]["value"]["authorization"]["agreement"]["terms"].clone()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = self.folder.command(&[arguments, &["--store", &self.store]].concat());
        command.env("CANTRIP_MODELS", self.folder.path().join("models.toml")).stdin(Stdio::null());
        command.output().expect("the binary runs")
    }

    /// A predict that this authorization pays for.
    fn predict(&self, authorization: &str, more: &[&str]) -> Output {
        let crystal = self.model.crystal();
        let asked =
            ["predict", "Shout", "--field", "text=hey", "--crystal", &crystal, "--authorization", authorization];
        self.run(&[&asked[..], more].concat())
    }
}

/// Checks everything about one denied predict; returns the data of its reply.
fn denied(house: &House, authorization: &str, code: AnyCode, reason: &str) -> Value {
    let asked = house.model.asked();
    let output = house.predict(authorization, &["--json"]);
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_envelope(&reply, code);
    assert_eq!(output.status.code(), Some(3), "{reply}");
    assert_eq!((&reply["data"]["reason_code"], house.model.asked()), (&json!(reason), asked), "{reply}");
    // The receipt names the code of the reply and the policy's decision.
    let shown = house.told(&["receipt", "show"], codes::READ.any());
    let receipt = &shown["data"]["value"];
    assert_eq!(
        (&receipt["status"], &receipt["error_code"], &receipt["policy"]["reason_code"]),
        (&json!("denied"), &json!(code.as_str()), &json!(reason)),
        "{receipt}"
    );
    assert_eq!((&receipt["output_hash"], &receipt["policy"]["decision"]), (&Value::Null, &json!("denied")));
    // The decision is stored, its replay finds it, and everything verifies.
    let run = id(&receipt["run_id"]);
    let replayed = house.told(&["policy", "replay", run], codes::VERIFIED.any());
    assert_eq!(replayed["data"]["decisions"], 1, "{replayed}");
    let rows = kept(house, run);
    assert_eq!(rows.len(), 1, "{rows:?}");
    let listed = house.told(&["policy", "ls", run], codes::READ.any());
    let made = &listed["data"]["value"];
    assert_eq!(made.as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!((&made[0]["decision"], &made[0]["reason_code"]), (&json!("denied"), &json!(reason)), "{listed}");
    assert_eq!(made[0]["evaluation_hash"], receipt["policy"]["evaluation_hash"]);
    assert_eq!((&rows[0]["decision"]["reason_code"], &rows[0]["phase"]), (&json!(reason), &json!("predict")));
    assert_eq!(rows[0]["decision"]["evaluation_hash"], receipt["policy"]["evaluation_hash"]);
    house.told(&["receipt", "verify", "--all"], codes::VERIFIED.any());
    house.told(&["spend", "verify"], codes::VERIFIED.any());
    reply["data"].clone()
}

/// Runs `work` on the store itself, without the binary.
fn with_store<T>(house: &House, work: impl AsyncFnOnce(Store) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = match house.store.strip_prefix("sqlite:") {
            Some(file) => Store::sqlite(house.folder.path().join(file)),
            None => Store::postgres(&house.store),
        };
        work(store.expect("a store")).await
    })
}

/// Returns the decisions of a run from the store.
fn kept(house: &House, run: &str) -> Vec<Value> {
    let run = RunId::from_str(run).expect("a run");
    let made = with_store(house, async |store| store.decisions(run).await.expect("decisions"));
    made.iter().map(|made| serde_json::to_value(made).expect("a value")).collect()
}

/// Creates an authorization that was issued in the past and expired at this time.
fn ended_at(house: &House, past: &str) -> String {
    let expires_at: Timestamp = past.parse().expect("a time");
    let issued_at: Timestamp = "2026-02-19T01:00:00.000Z".parse().expect("a time");
    let authorization = AuthorizationRef::Issued(IdSource::seeded(9).next(issued_at));
    let mut terms = Authorization::local().agreement.terms;
    (terms.mode, terms.max_total) = (AuthorizationMode::DelegatedBudget, Some(1_000_000));
    (terms.issued_at, terms.expires_at) = (issued_at, Some(expires_at));
    let (actor, reason) = ("local".to_owned(), "for an hour".to_owned());
    let given = Authorize { authorization, terms, actor, reason, at: issued_at };
    let step = Step::outside_runs(StepId::new("given").expect("a name")).money(Operation::Authorize(Box::new(given)));
    let answer = with_store(house, async |store| store.append(step).await.expect("an answer"));
    assert!(matches!(answer, AppendOutcome::Committed(_)), "{answer:?}");
    authorization.to_string()
}

fn money(text: &str) -> Value {
    json!(text.parse::<Money>().expect("an amount"))
}

#[test]
fn a_denied_predict_names_the_code_of_its_reply_and_the_authorizations_own_amounts_and_times() {
    for store in stores() {
        let house = House::new(&store);
        // Too little money: the needed and the remaining sum are amounts.
        let poor = house.authorize(&["--total", "0.000001 USD"]);
        let told = denied(&house, &poor, codes::BUDGET_SPENT.any(), "policy_denied.budget_exhausted");
        let needed: Money = serde_json::from_value(told["needed"].clone()).expect("money");
        assert!(needed.micros() > 1, "{told}");
        assert_eq!((&told["remaining"], &told["authorization"]), (&money("0.000001 USD"), &json!(poor)), "{told}");
        let said = stderr(&house.predict(&poor, &[])).to_owned();
        assert!(said.contains(&format!("{needed} is more than the 0.000001 USD left of {poor}")), "{said}");
        // Too much for one call: both values are amounts too.
        let narrow = house.authorize(&["--total", "1.00 USD", "--per-call", "0.000002 USD"]);
        let told = denied(&house, &narrow, codes::PER_CALL.any(), "policy_denied.per_call_limit");
        assert_eq!((&told["needed"], &told["limit"]), (&json!(needed), &money("0.000002 USD")), "{told}");
        // Revoked: the reply has the time of the revocation, however late the predict comes.
        let revoked = house.authorize(&["--total", "1.00 USD"]);
        house.told(&["spend", "revoke", &revoked, "--because", "over"], codes::CHANGED.any());
        let told = denied(&house, &revoked, codes::REVOKED.any(), "policy_denied.authorization_revoked");
        let at = house.terms(&revoked)["revoked_at"].clone();
        assert!(at.is_string() && told["at"] == at, "{told}");
        // Expired: the reply has the time of the expiry.
        let past = "2026-02-19T02:00:00.000Z";
        let expired = ended_at(&house, past);
        let told = denied(&house, &expired, codes::EXPIRED.any(), "policy_denied.authorization_expired");
        assert_eq!(told["at"], past, "{told}");
        let said = stderr(&house.predict(&expired, &[])).to_owned();
        assert!(said.contains(&format!("authorization {expired} expired at {past}")), "{said}");
        // Denied, for another owner, and for other models.
        let never = house.authorize(&["--mode", "deny"]);
        denied(&house, &never, codes::NOT_AUTHORIZED.any(), "policy_denied.explicit_deny");
        let other = house.authorize(&["--total", "1.00 USD", "--owner", "user:7"]);
        denied(&house, &other, codes::NOT_AUTHORIZED.any(), "policy_denied.scope_mismatch");
        let elsewhere = house.authorize(&["--total", "1.00 USD", "--model", "anthropic/*"]);
        denied(&house, &elsewhere, codes::NOT_AUTHORIZED.any(), "policy_denied.model_not_allowed");
    }
}

#[test]
fn a_predict_that_is_denied_where_its_money_is_reserved_names_that_code_too() {
    for store in stores() {
        let house = House::new(&store);
        // The check before the run does not know the rest of the daily limit; the step that reserves does.
        let daily = house.authorize(&["--total", "1.00 USD", "--per-day", "0.000001 USD"]);
        let output = house.predict(&daily, &["--json"]);
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_envelope(&reply, codes::PER_DAY.any());
        assert_eq!((output.status.code(), house.model.asked()), (Some(3), 0), "{reply}");
        assert_eq!(reply["data"]["limit"], money("0.000001 USD"), "{reply}");
        serde_json::from_value::<Money>(reply["data"]["needed"].clone()).expect("money");
        let shown = house.told(&["receipt", "show"], codes::READ.any());
        let receipt = &shown["data"]["value"];
        let told = (&receipt["status"], &receipt["error_code"], &receipt["policy"]["reason_code"]);
        assert_eq!(told, (&json!("denied"), &json!(codes::PER_DAY.as_str()), &json!("policy_denied.per_day_limit")));
        let run = id(&receipt["run_id"]);
        let replayed = house.told(&["policy", "replay", run], codes::VERIFIED.any());
        assert_eq!((&replayed["data"]["decisions"], kept(&house, run).len()), (&json!(1), 1), "{replayed}");
        house.told(&["receipt", "verify", "--all"], codes::VERIFIED.any());
    }
}

#[test]
fn a_cast_that_policy_forbids_ends_so_and_not_at_a_limit_of_money() {
    for store in stores() {
        let house = House::new(&store);
        let cast = |code: AnyCode| {
            let output = house.run(&["cast", "spender.toml", "go", "--json"]);
            let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
            assert_envelope(&reply, code);
            assert_eq!((output.status.code(), house.model.asked()), (Some(3), 0), "{reply}");
            let run = id(&reply["data"]["run_id"]).to_owned();
            let shown = house.told(&["run", "show", &run], codes::READ.any());
            (reply, shown["data"]["value"].clone(), run)
        };
        let ended = |shown: &Value| {
            let text = shown.to_string();
            (text.contains("\"policy_denied\""), text.contains("\"max_cost\""))
        };
        // An authorization that denies everything.
        let never = house.authorize(&["--mode", "deny", "--agent", "spender"]);
        let (reply, shown, run) = cast(codes::NOT_AUTHORIZED.any());
        assert_eq!(reply["data"]["reason_code"], "policy_denied.explicit_deny", "{reply}");
        assert!(reply["message"].as_str().unwrap().contains(&format!("the mode of {never} is deny")), "{reply}");
        assert_eq!(ended(&shown), (true, false), "{shown}");
        let replayed = house.told(&["policy", "replay", &run], codes::VERIFIED.any());
        assert_eq!(replayed["data"]["decisions"], 1, "{replayed}");
        let shown = house.told(&["receipt", "show"], codes::READ.any());
        assert_eq!(shown["data"]["value"]["error_code"], codes::NOT_AUTHORIZED.as_str(), "{shown}");
        let said = stderr(&house.run(&["cast", "spender.toml", "go"])).to_owned();
        assert!(said.contains("explicit_deny") && said.contains(codes::NOT_AUTHORIZED.as_str()), "{said}");
        // Revoked: the time is that of the authorization.
        let revoked = house.authorize(&["--total", "1.00 USD", "--agent", "spender"]);
        house.told(&["spend", "revoke", &revoked, "--because", "over"], codes::CHANGED.any());
        let (reply, shown, _) = cast(codes::REVOKED.any());
        assert_eq!(reply["data"]["at"], house.terms(&revoked)["revoked_at"], "{reply}");
        assert_eq!(ended(&shown), (true, false), "{shown}");
        // If an amount is the reason, the cast ends because of the budget.
        house.authorize(&["--total", "0.000001 USD", "--agent", "spender"]);
        let (reply, shown, _) = cast(codes::BUDGET_SPENT.any());
        assert_eq!(reply["data"]["remaining"], money("0.000001 USD"), "{reply}");
        assert_eq!(ended(&shown), (false, true), "{shown}");
        house.told(&["loom", "verify"], codes::VERIFIED.any());
    }
}

#[test]
fn the_money_that_a_denial_calls_left_is_what_is_left_beside_the_holds() {
    for agent in [&[][..], &["--agent", "spender"][..]] {
        let house = House::new("sqlite:kept/loom.db");
        let given = house.authorize(&[&["--total", "0.05 USD"], agent].concat());
        // The outcome of an earlier call is unknown, so its money is still held.
        unknown_outcome(&house.folder, given.parse().expect("an authorization"), 40_000);
        let shown = house.told(&["spend", "show", &given], codes::READ.any());
        assert_eq!(shown["data"]["value"]["remaining"], 10_000, "{shown}");
        let listed = house.run(&["spend", "ls"]);
        let row = support::stdout(&listed).lines().find(|line| line.contains(&given)).expect("a row").to_owned();
        assert!(row.contains("0.04 USD held") && row.contains("0.01 USD left"), "{row}");
        let output = if agent.is_empty() {
            house.predict(&given, &["--json"])
        } else {
            house.run(&["cast", "spender.toml", "go", "--json"])
        };
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_envelope(&reply, codes::BUDGET_SPENT.any());
        assert_eq!((output.status.code(), house.model.asked()), (Some(3), 0), "{reply}");
        assert_eq!(reply["data"]["remaining"], money("0.01 USD"), "{reply}");
        let said = format!("is more than the 0.01 USD left of {given}");
        assert!(reply["message"].as_str().is_some_and(|message| message.contains(&said)), "{reply}");
    }
}
