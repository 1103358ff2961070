//! The gate `predict`: an entity calls a signature inside its cast, in every medium. The receipt is in the caller's
//! run, the cost is under the caller's budget, and a process that is killed in the middle loses nothing of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cantrip_reply::testing::assert_recorded;
use cantrip_reply::{AnyCode, codes};
use serde_json::{Value, json};

use crate::support::model::Model;
use crate::support::{Folder, id, stdout};

const STORE: &[&str] = &["--store", "sqlite:kept/loom.db"];
const PREDICT: &str = "[gates.predict]\nsignatures = [\"Classify\", \"text/Classify.v1\", \"Nowhere\"]\n";

/// The input of the built-in signature.
fn input() -> Value {
    json!({"text": "The parcel never came.", "labels": ["praise", "complaint"]})
}

/// A response of a crystal that answers the signature.
fn answered(id: &str) -> Value {
    json!({"tool_calls": [{"id": id, "gate": "done", "args": {"answer": {"label": "complaint", "confidence": 0.97}}}]})
}

fn call(id: &str, gate: &str, args: &Value) -> Value {
    json!({"tool_calls": [{"id": id, "gate": gate, "args": args}]})
}

/// Writes a spell whose crystal gives these responses.
fn spell(folder: &Folder, medium: &str, gates: &str, responses: &[Value]) {
    folder.write("asks.yaml", &json!({ "responses": responses }).to_string());
    folder.write(
        "asks.toml",
        &format!(
            "name = \"asks\"\ncrystal = \"scripted/asks.yaml\"\nmedium = \"{medium}\"\n[call]\nrequire_done_tool = true\n\
             {gates}[wards]\nmax_turns = 5\n"
        ),
    );
}

fn seen(folder: &Folder, arguments: &[&str]) -> Value {
    folder.seen(&[arguments, STORE].concat())
}

/// Returns the entity that is not a child.
fn root(folder: &Folder) -> String {
    let turns = seen(folder, &["tree"])["turns"].clone();
    let root = turns.as_array().expect("turns").iter().find(|turn| turn["parent_id"].is_null()).expect("a root");
    id(&root["entity_id"]).to_owned()
}

/// Returns the settled calls of the root entity's thread.
fn settled(folder: &Folder) -> Vec<Value> {
    let thread = seen(folder, &["thread", &root(folder)]);
    let calls = thread["turns"].as_array().expect("turns").iter().flat_map(|turn| turn["gate_calls"].as_array());
    calls.flatten().filter(|call| call["state"] == "settled").cloned().collect()
}

fn receipts(folder: &Folder) -> Vec<Value> {
    let listed = folder.envelope(&[&["receipt", "ls"], STORE].concat(), codes::READ.any());
    let rows = listed["data"]["value"]["items"].as_array().expect("receipts").clone();
    let whole = |row: &Value| {
        let shown = folder.envelope(&[&["receipt", "show", id(&row["receipt_id"])], STORE].concat(), codes::READ.any());
        shown["data"]["value"].clone()
    };
    rows.iter().map(whole).collect()
}

/// Asserts everything that can be verified about a store.
#[track_caller]
fn assert_sound(folder: &Folder) {
    folder.envelope(&[&["loom", "verify"], STORE].concat(), codes::VERIFIED.any());
    folder.envelope(&[&["receipt", "verify"], STORE].concat(), codes::VERIFIED.any());
    folder.envelope(&[&["spend", "verify"], STORE].concat(), codes::VERIFIED.any());
    let replayed = folder.run(&[&["loom", "replay", &root(folder)], STORE].concat());
    assert!(stdout(&replayed).starts_with("identical"), "{replayed:?}");
}

#[test]
fn an_entity_asks_a_signature_in_every_medium_and_the_receipt_is_in_its_run() {
    let javascript = format!("var out = predict('Classify', {}); done(out.label)", input());
    let python = format!("out = predict('Classify', {})\ndone(out['label'])", input());
    let asked = json!({"signature": "Classify", "input": input()});
    for (medium, first, last) in [
        ("conversation", call("c1", "predict", &asked), Some(call("c2", "done", &json!({"answer": "complaint"})))),
        ("shell", call("c1", "predict", &asked), Some(call("c2", "done", &json!({"answer": "complaint"})))),
        ("javascript", json!({ "code": javascript }), None),
        ("python", json!({ "code": python }), None),
    ] {
        let folder = Folder::new();
        let responses: Vec<Value> = [first, answered("p1")].into_iter().chain(last).collect();
        spell(&folder, medium, PREDICT, &responses);
        let cast = folder.envelope(&[&["cast", "asks.toml", "sort it"], STORE].concat(), codes::TERMINATED.any());
        assert_eq!(cast["data"]["answer"], "complaint", "{medium}");
        let calls = settled(&folder);
        assert_eq!((&calls[0]["gate"], &calls[1]["gate"]), (&json!("predict"), &json!("done")), "{medium}");
        assert_recorded(&calls[0]["reply"], codes::PREDICTED.any());
        assert_eq!(calls[0]["result"], json!({"label": "complaint", "confidence": 0.97}), "{medium}");
        assert_eq!(calls[0]["args"], asked, "{medium}");
        // The predict is a child of the turn that called it.
        let child = id(&calls[0]["children"][0]["entity_id"]);
        let tree = seen(&folder, &["tree"])["turns"].clone();
        let turns = tree.as_array().expect("turns");
        let own = turns.iter().find(|turn| turn["entity_id"] == child).expect("a turn of the predict");
        let asking = turns.iter().find(|turn| turn["id"] == own["parent_id"]).expect("the calling turn");
        assert_eq!(id(&asking["entity_id"]), root(&folder), "{medium}");
        // The receipt of the predict is in the caller's run, and the cast has its own.
        let receipts = receipts(&folder);
        let of = |kind: &str| receipts.iter().find(|receipt| receipt["receipt_kind"] == kind).expect("a receipt");
        assert_eq!(receipts.len(), 2, "{medium}: {receipts:?}");
        let predict = of("predict");
        assert_eq!(predict["run_id"], of("cast")["run_id"], "{medium}");
        assert_eq!((&predict["thread_id"], &predict["status"]), (&json!(child), &json!("succeeded")), "{medium}");
        assert_eq!(predict["last_turn_id"], own["id"], "{medium}");
        assert_eq!(predict["signature_id"], "@cantrip/text/Classify.v1", "{medium}");
        assert_eq!(of("cast")["thread_id"], json!(root(&folder)), "{medium}");
        // The first record of the predict names its caller: run, thread, turn and call.
        let journal = folder.run(&[&["loom", "export", "--format", "journal", "--no-redact"], STORE].concat());
        let opened = stdout(&journal).lines().find(|line| line.contains("\"type\":\"predict.opened\""));
        let opened: Value = serde_json::from_str(opened.expect("a record")).expect("JSON");
        let caller = &opened["payload"]["caller"];
        assert_eq!((&caller["thread_id"], &caller["turn_id"]), (&json!(root(&folder)), &asking["id"]), "{medium}");
        assert_eq!((&caller["run_id"], &caller["call_id"]), (&predict["run_id"], &calls[0]["call_id"]), "{medium}");
        assert_sound(&folder);
        // The predict's own thread replays, by its entity and by its turn, and can be forked.
        for thread in [child, id(&own["id"])] {
            let replayed = folder.run(&[&["loom", "replay", thread], STORE].concat());
            let text = stdout(&replayed);
            assert!(text.starts_with("identical") && text.contains("1 turn, 1 call"), "{medium}: {replayed:?}");
        }
        folder.write("asks.yaml", &json!({ "responses": [answered("p2")] }).to_string());
        let fork = [&["loom", "fork", child, "look again"], STORE].concat();
        let forked = folder.envelope(&fork, codes::TERMINATED.any());
        assert_eq!(forked["data"]["answer"], json!({"label": "complaint", "confidence": 0.97}), "{medium}");
        let replayed = folder.run(&[&["loom", "replay", id(&forked["data"]["leaf"])], STORE].concat());
        assert!(stdout(&replayed).starts_with("identical"), "{medium}: {replayed:?}");
    }
}

#[test]
fn the_thread_of_a_predict_that_no_cast_asked_for_has_no_spell_and_says_what_to_do() {
    let folder = Folder::new();
    folder.write("model.yaml", &json!({ "responses": [answered("p1")] }).to_string());
    let fields = ["--field", "text=The parcel never came.", "--field", "labels=praise,complaint"];
    let asked = [&["predict", "Classify", "--crystal", "scripted/model.yaml"], &fields[..], STORE].concat();
    folder.envelope(&asked, codes::PREDICTED.any());
    for again in [&["loom", "replay"][..], &["loom", "fork", "look again"]] {
        let refused = folder.envelope(&[again, STORE].concat(), codes::NOT_FOUND.any());
        let hint = id(&refused["data"]["hint"]);
        assert!(hint.contains("cantrip predict") && hint.contains("cantrip receipt verify"), "{again:?}: {refused}");
    }
}

#[test]
fn a_predict_that_cannot_be_made_is_the_reply_of_its_call_and_the_entity_goes_on() {
    let cases: [(Value, AnyCode); 4] = [
        (json!({"signature": "Judge", "input": {}}), codes::NOT_AUTHORIZED.any()),
        (json!({"signature": "Nowhere", "input": {}}), codes::CONTRACT_UNKNOWN.any()),
        (json!({"signature": "Classify", "input": {"text": "no labels"}}), codes::INPUT_SCHEMA.any()),
        (json!({"signature": "Classify"}), codes::SCHEMA.any()),
    ];
    for (args, code) in cases {
        let folder = Folder::new();
        spell(
            &folder,
            "conversation",
            PREDICT,
            &[call("c1", "predict", &args), call("c2", "done", &json!({"answer": "went on"}))],
        );
        let cast = folder.envelope(&[&["cast", "asks.toml", "sort it"], STORE].concat(), codes::TERMINATED.any());
        assert_eq!(cast["data"]["answer"], "went on", "{code}");
        let calls = settled(&folder);
        assert_recorded(&calls[0]["reply"], code);
        assert_eq!(receipts(&folder).len(), 1, "{code}: nothing was begun, so the cast alone has a receipt");
        assert_sound(&folder);
    }
}

#[test]
fn an_output_that_never_fits_fails_the_call_with_the_code_of_the_predict() {
    let folder = Folder::new();
    let wrong = |id: &str| call(id, "done", &json!({"answer": {"label": 7}}));
    let asked = json!({"signature": "Classify", "input": input()});
    let responses = [
        call("c1", "predict", &asked),
        wrong("p1"),
        wrong("p2"),
        wrong("p3"),
        call("c2", "done", &json!({"answer": 1})),
    ];
    spell(&folder, "conversation", PREDICT, &responses);
    folder.envelope(&[&["cast", "asks.toml", "sort it"], STORE].concat(), codes::TERMINATED.any());
    assert_recorded(&settled(&folder)[0]["reply"], codes::OUTPUT_SCHEMA.any());
    let receipts = receipts(&folder);
    let predict = receipts.iter().find(|receipt| receipt["receipt_kind"] == "predict").expect("a receipt");
    assert_eq!((&predict["status"], &predict["error_code"]), (&json!("failed"), &json!("CT-VAL-E-001")));
    assert_eq!(predict["budget"]["repairs"], 2);
    assert_sound(&folder);
}

/// A model with a price. Its answers depend on the request: the entity calls the signature once and ends.
fn priced(
    folder: &Folder,
    text: &'static str,
    says: impl Fn(&Value, bool) -> Option<Value> + Send + Sync + 'static,
) -> Model {
    let model = Model::start(move |request| {
        let messages = request["messages"].as_array().cloned().unwrap_or_default();
        let user = |text: &str| messages.iter().any(|message| message["content"].to_string().contains(text));
        let of_signature = user("Labels: praise, complaint");
        if let Some(said) = says(request, of_signature) {
            return said;
        }
        let answered = messages.iter().any(|message| message["role"] == "tool");
        let (name, arguments) = match (of_signature, answered) {
            (true, _) => ("done", json!({"answer": {"label": "complaint", "confidence": 0.97}})),
            (false, false) => {
                let input = json!({"text": text, "labels": ["praise", "complaint"]});
                ("predict", json!({"signature": "Classify", "input": input}))
            }
            (false, true) => ("done", json!({"answer": "over"})),
        };
        let call = json!({"id": format!("call_{name}"), "type": "function",
            "function": {"name": name, "arguments": arguments.to_string()}});
        json!({"role": "assistant", "content": null, "tool_calls": [call]})
    });
    let settings = folder.path().join(".config/cantrip");
    std::fs::create_dir_all(&settings).expect("a folder");
    let prices = "[[model]]\ncrystal = 'local/test*'\nprice = { input = '1 USD', output = '10 USD' }\n";
    std::fs::write(settings.join("models.toml"), prices).expect("a table");
    folder.write(
        "asks.toml",
        &format!(
            "name = \"asks\"\ncrystal = \"{}\"\n[call]\nrequire_done_tool = true\nmax_tokens = 300\n{PREDICT}[wards]\n\
             max_turns = 5\n",
            model.crystal()
        ),
    );
    model
}

#[test]
fn what_a_predict_costs_is_counted_under_the_budget_of_the_tree() {
    let folder = Folder::new();
    let model = priced(&folder, "It never came.", |_, _| None);
    let arguments = ["cast", "asks.toml", "sort it", "--budget", "1 USD"];
    let cast = folder.envelope(&[&arguments, STORE].concat(), codes::TERMINATED.any());
    assert_eq!((&cast["data"]["answer"], model.asked()), (&json!("over"), 3));
    let receipts = receipts(&folder);
    let captured = |kind: &str| {
        let receipt = receipts.iter().find(|receipt| receipt["receipt_kind"] == kind).expect("a receipt");
        receipt["budget"]["captured"].as_u64().expect("micros")
    };
    // One token in at 1 USD and one out at 10 USD for a million, for each request.
    assert_eq!((captured("predict"), captured("cast")), (11, 22));
    let listed = folder.envelope(&[&["spend", "reservations"], STORE].concat(), codes::READ.any());
    let rows = listed["data"]["value"]["items"].as_array().expect("reservations");
    assert_eq!(rows.len(), 3);
    assert!(rows.iter().all(|row| row["row"]["hold"]["run"] == rows[0]["row"]["hold"]["run"]), "{listed}");
    assert_sound(&folder);
}

#[test]
fn a_predict_that_the_budget_of_the_tree_does_not_cover_is_denied_before_the_model_is_asked() {
    let folder = Folder::new();
    let asked_by_signature = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked_by_signature);
    let long: &'static str = "The parcel never came. ".repeat(2_000).leak();
    let model = priced(&folder, long, move |_, of_signature| {
        counted.fetch_add(u64::from(of_signature), Ordering::Relaxed);
        None
    });
    // Enough for the worst case of a request of the caller, but not for a prompt with such a long text.
    let text = folder.read("asks.toml").replace("max_turns = 5", "max_turns = 5\nmax_cost = '0.03 USD'");
    folder.write("asks.toml", &text);
    let output = folder.run(&[&["cast", "asks.toml", "sort it", "--json"], STORE].concat());
    let envelope: Value = serde_json::from_slice(&output.stdout).expect("an envelope");
    let calls = settled(&folder);
    assert_eq!(calls[0]["gate"], "predict", "{envelope}");
    assert_eq!(calls[0]["reply"]["type"], "D", "{envelope} {calls:?}");
    assert_eq!(asked_by_signature.load(Ordering::Relaxed), 0, "no request of the predict left");
    let receipts = receipts(&folder);
    let predict = receipts.iter().find(|receipt| receipt["receipt_kind"] == "predict").expect("a receipt");
    assert_eq!(predict["status"], "denied", "{predict}");
    assert!(model.asked() >= 1);
    folder.envelope(&[&["receipt", "verify"], STORE].concat(), codes::VERIFIED.any());
    folder.envelope(&[&["spend", "verify"], STORE].concat(), codes::VERIFIED.any());
}

#[test]
fn a_process_that_is_killed_while_a_predict_is_asked_is_gone_on_with_and_nothing_is_paid_twice() {
    let folder = Folder::new();
    let first = Arc::new(AtomicU64::new(0));
    let begun = folder.path().join("begun");
    let model = priced(&folder, "It never came.", move |_, of_signature| {
        if of_signature && first.fetch_add(1, Ordering::Relaxed) == 0 {
            std::fs::write(&begun, "").expect("a file");
            // The caller is killed before this returns.
            std::thread::sleep(Duration::from_secs(30));
        }
        None
    });
    let arguments = ["cast", "asks.toml", "sort it", "--budget", "1 USD"];
    let mut casting = folder.spawn(&[&arguments, STORE].concat());
    let began = Instant::now();
    while !folder.path().join("begun").exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "the signature is never asked");
        std::thread::sleep(Duration::from_millis(10));
    }
    casting.kill().expect("it is killed");
    casting.wait().expect("it ends");
    let resumed = folder.envelope(&[&["run", "resume"], STORE].concat(), codes::TERMINATED.any());
    assert_eq!(resumed["data"]["answer"], "over");
    assert_eq!(model.asked(), 4, "the caller twice, the signature twice: its first answer never came");
    let calls = settled(&folder);
    assert_recorded(&calls[0]["reply"], codes::PREDICTED.any());
    assert_eq!(calls[0]["children"].as_array().map(Vec::len), Some(1));
    let receipts = receipts(&folder);
    assert_eq!(receipts.len(), 2, "one predict, one cast: {receipts:?}");
    // The reservation of the killed process is marked, and the answer that arrived is paid for once.
    let listed = folder.envelope(&[&["spend", "reservations"], STORE].concat(), codes::READ.any());
    let states: Vec<&str> = listed["data"]["value"]["items"]
        .as_array()
        .expect("reservations")
        .iter()
        .map(|row| id(&row["row"]["state_name"]))
        .collect();
    assert_eq!(states.iter().filter(|state| **state == "reconcile_required").count(), 1, "{states:?}");
    assert_eq!(states.iter().filter(|state| **state == "committed").count(), 3, "{states:?}");
    assert_sound(&folder);
}

#[test]
fn a_predict_with_programs_has_no_sub_calls_where_its_caller_may_have_no_children() {
    for (depth, sub_calls) in [(1, true), (0, false)] {
        let folder = Folder::new();
        let documents = json!([{"id": "a", "text": "The parcel never came."}]);
        let asked = json!({"signature": "Answer", "input": {"question": "what came?", "documents": documents}});
        let program = "let part = 'none'; try { part = call_agent('read it') } catch (error) { part = error.code }\n\
                       done({answer: part, citations: [], confidence: 1})";
        let sub = sub_calls.then(|| call("s1", "done", &json!({"answer": "nothing"})));
        let responses: Vec<Value> = [call("c1", "predict", &asked), json!({ "code": program })]
            .into_iter()
            .chain(sub)
            .chain([call("c2", "done", &json!({"answer": "over"}))])
            .collect();
        spell(&folder, "conversation", "[gates.predict]\nsignatures = [\"Answer\"]\n", &responses);
        let text = folder.read("asks.toml").replace("max_turns = 5", &format!("max_turns = 5\nmax_depth = {depth}"));
        folder.write("asks.toml", &text);
        folder.envelope(&[&["cast", "asks.toml", "look"], STORE].concat(), codes::TERMINATED.any());
        let calls = settled(&folder);
        assert_recorded(&calls[0]["reply"], codes::PREDICTED.any());
        let expected = if sub_calls { "nothing" } else { "EN-VIS-D-001" };
        assert_eq!(calls[0]["result"]["answer"], expected, "max_depth {depth}");
        let receipts = receipts(&folder);
        assert_eq!(receipts.len(), 2, "its sub-call is in its own receipt: {receipts:?}");
        let predict = receipts.iter().find(|receipt| receipt["receipt_kind"] == "predict").expect("a receipt");
        assert_eq!(predict["budget"]["sub_calls"], json!(u64::from(sub_calls)), "max_depth {depth}");
        assert_sound(&folder);
    }
}

#[test]
fn a_spell_whose_predict_lists_no_signature_is_refused_with_the_line_that_mends_it() {
    let folder = Folder::new();
    spell(&folder, "conversation", "[gates.predict]\n", &[answered("c1")]);
    let output = folder.run(&["cast", "asks.toml", "sort it"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = crate::support::stderr(&output);
    assert!(said.contains("signatures = [\"Classify\"]"), "{said}");
}
