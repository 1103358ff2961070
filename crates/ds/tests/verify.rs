//! One changed byte in anything that a receipt names is found and reported; and traces are read back unchanged.

use cantrip::loom::{AnyLoom, Contracts, Journal, Loom, PageRequest, ReceiptFilter, Record, Seq, Usage};
use cantrip_contract::{SignatureOrigin, TraceState};
use cantrip_ds::{PredictOptions, TraceArchive, TraceMode, trace, verify};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use cantrip_store::Store;
use futures_util::TryStreamExt;
use serde_json::{Value, json};

use crate::support::{Posing, done, grant, listed, predictor, replied, says, scripted, shout, stores};

/// Creates a store file with two predicts in it, and returns its loom.
async fn predicted(folder: &std::path::Path) -> AnyLoom {
    let loom = AnyLoom::new(Store::sqlite(folder.join("loom.db")).unwrap());
    let script = scripted([done(json!({"text": "HEY"})), done(json!({"text": "HO"}))]);
    let predictor = predictor(&loom, says(&script), TraceArchive::inline());
    predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
    for text in ["hey", "ho"] {
        let reply = predictor.predict(shout().id(), &json!({ "text": text }), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
    }
    loom
}

#[tokio::test]
async fn a_changed_byte_is_found_and_named() {
    let edits = [
        ("content", "ds_receipts", "UPDATE ds_receipts SET body = replace(body, 'succeeded', 'Succeeded')"),
        ("artifact", "ds_artifacts", "UPDATE ds_artifacts SET body = replace(body, 'louder', 'softer')"),
        ("trace", "ds_traces", "UPDATE ds_traces SET payload = replace(payload, 'succeeded', 'failed')"),
        ("output", "bodies", "UPDATE bodies SET bytes = CAST(replace(CAST(bytes AS TEXT), 'HEY', 'HOY') AS BLOB)"),
        (
            "input",
            "bodies",
            "UPDATE bodies SET bytes = CAST(replace(CAST(bytes AS TEXT), '\"hey\"', '\"hoy\"') AS BLOB)",
        ),
        ("thread", "run_events", "UPDATE run_events SET links = zeroblob(length(links))"),
    ];
    for (kind, table, edit) in edits {
        let folder = tempfile::tempdir().unwrap();
        let loom = predicted(folder.path()).await;
        let clean = verify(&loom, ReceiptFilter::default()).await.unwrap();
        assert_eq!((clean.receipts, clean.findings.len()), (2, 0), "{clean:?}");
        let by_hand = rusqlite::Connection::open(folder.path().join("loom.db")).unwrap();
        by_hand.execute_batch(&format!("DROP TRIGGER {table}_stay_as_written")).ok();
        by_hand.execute_batch(edit).unwrap();
        let found = verify(&loom, ReceiptFilter::default()).await.unwrap();
        let kinds: Vec<&str> = found.findings.iter().map(|finding| finding.kind).collect();
        assert!(kinds.contains(&kind), "{kind}: {found:?}");
        assert!(found.findings.iter().all(|finding| finding.receipt_id.starts_with("rcpt_")), "{found:?}");
    }
}

/// Creates a store file with a paid predict in it, and returns its loom.
async fn paid(folder: &std::path::Path) -> AnyLoom {
    let loom = AnyLoom::new(Store::sqlite(folder.join("loom.db")).unwrap());
    let used = Usage { prompt_tokens: 310, completion_tokens: 24, ..Usage::default() };
    let script = scripted([done(json!({"text": "HEY"})).with_usage(used)]);
    let predictor = predictor(&loom, Posing { price: listed(), ..says(&script) }, TraceArchive::inline());
    predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
    grant(&loom, 1, |_| {}).await;
    let reply = predictor.predict(shout().id(), &json!({"text": "hey"}), PredictOptions::default()).await;
    assert_code(&reply.guarded.reply, codes::PREDICTED);
    assert_eq!(verify(&loom, ReceiptFilter::default()).await.unwrap().findings, []);
    loom
}

/// Opens the file directly, without the triggers that protect it.
fn by_hand(folder: &std::path::Path) -> rusqlite::Connection {
    let file = rusqlite::Connection::open(folder.join("loom.db")).unwrap();
    let triggers: Vec<String> = {
        let mut asked = file.prepare("SELECT name FROM sqlite_master WHERE type = 'trigger'").unwrap();
        asked.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    for trigger in triggers {
        file.execute_batch(&format!("DROP TRIGGER {trigger}")).unwrap();
    }
    file
}

async fn kinds(loom: &AnyLoom) -> Vec<&'static str> {
    let found = verify(loom, ReceiptFilter::default()).await.unwrap();
    assert_eq!((found.receipts, found.runs), (1, 1), "{found:?}");
    found.findings.iter().map(|finding| finding.kind).collect()
}

#[tokio::test]
async fn an_edited_decision_and_an_edited_reservation_are_found_and_named() {
    let edits = [
        ("budget", "UPDATE spend_reservations SET captured = captured + 1"),
        ("budget", "UPDATE spend_reservations SET amount = amount + 1"),
        ("policy", "UPDATE policy_decisions SET reason_code = 'policy_denied.explicit_deny', decision = 'denied'"),
        ("policy", "UPDATE policy_decisions SET input = replace(input, '\"spent\":0', '\"spent\":1')"),
    ];
    for (kind, edit) in edits {
        let folder = tempfile::tempdir().unwrap();
        let loom = paid(folder.path()).await;
        assert!(by_hand(folder.path()).execute(edit, []).unwrap() > 0, "{edit}");
        assert_eq!(kinds(&loom).await, [kind], "{edit}");
    }
    let folder = tempfile::tempdir().unwrap();
    let loom = paid(folder.path()).await;
    let mut records = records_of_the_run(&loom).await;
    for record in &mut records {
        record.payload = record.payload.replace("policy_allowed.default", "policy_allowed.other").into();
    }
    for (seq, step) in steps(&by_hand(folder.path()), &records) {
        let edit = "UPDATE run_events SET told = ?1 WHERE seq = ?2";
        assert_eq!(by_hand(folder.path()).execute(edit, (told(&step), seq)).unwrap(), 1);
    }
    assert_eq!(kinds(&loom).await, ["thread"]);
}

async fn records_of_the_run(loom: &AnyLoom) -> Vec<Record> {
    let run = loom.runs(PageRequest::FIRST).await.unwrap().items[0].run_id;
    loom.read(run, Seq::START).try_collect().await.unwrap()
}

/// Returns the records of each row, by the sequence number of its last one.
fn steps(by_hand: &rusqlite::Connection, records: &[Record]) -> Vec<(i64, Vec<Record>)> {
    let mut asked = by_hand.prepare("SELECT seq, records FROM run_events ORDER BY seq").unwrap();
    let rows =
        asked.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))).unwrap().map(Result::unwrap);
    let of_row = |(seq, count): (i64, i64)| {
        let within = (seq - count + 1) as u64..=seq as u64;
        (seq, records.iter().filter(|record| within.contains(&record.seq.get())).cloned().collect())
    };
    rows.map(of_row).collect()
}

/// Returns the unpacked content of a row with these records.
fn told(step: &[Record]) -> Vec<u8> {
    let heads: Vec<_> = step.iter().map(|record| (record.kind.as_str(), record.at.unix_millis())).collect();
    let lines = step.iter().map(|record| record.payload.to_string());
    let told: Vec<String> = [format!("0{}", json!(heads))].into_iter().chain(lines).collect();
    told.join("\n").into_bytes()
}

#[tokio::test]
async fn a_gate_decision_that_was_edited_with_all_its_hashes_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let loom = paid(folder.path()).await;
    let mut records = records_of_the_run(&loom).await;
    // An attacker who edits a record and every later hash gets a valid chain; but the receipt still has the original
    // decision.
    let (mut previous, mut edited) = (None, 0);
    for record in &mut records {
        if record.kind.as_str() == "settled" {
            let mut payload = cantrip::canon::json::read(&record.payload).unwrap();
            let made_up = json!({
                "decision": "allowed", "reason_code": "policy_allowed.default", "authorization_id": null,
                "reason_codes_version": "runtime-policy-reasons.v1", "evaluation_hash": format!("sha256:{:064}", 0),
            });
            assert_ne!(payload["decision"], made_up);
            payload["decision"] = made_up;
            record.payload = cantrip::canon::json::canonical(&payload).unwrap().into();
            edited += 1;
        }
        record.hash = record.expected_hash(previous.as_ref());
        previous = Some(record.hash);
    }
    assert_eq!(edited, 1, "the call of done");
    let by_hand = by_hand(folder.path());
    for (seq, step) in steps(&by_hand, &records) {
        let links: Vec<u8> = step.iter().flat_map(|record| *record.hash.as_bytes()).collect();
        let edit = "UPDATE run_events SET told = ?1, links = ?2 WHERE seq = ?3";
        assert_eq!(by_hand.execute(edit, (told(&step), links, seq)).unwrap(), 1);
    }
    assert_eq!(kinds(&loom).await, ["decisions"]);
}

#[tokio::test]
async fn a_missing_receipt_of_a_run_is_found() {
    use cantrip::crystal::{Response, Script, ScriptedCrystal};
    use cantrip::{Cantrip, CastOptions, Runtime};
    let folder = tempfile::tempdir().unwrap();
    let loom = AnyLoom::new(Store::sqlite(folder.path().join("loom.db")).unwrap());
    // A parent and its child: two casts of one run, each with its own receipt.
    let script = Script::new([
        Response::call("c1", "call_agent", json!({"intent": "count"})),
        Response::call("c2", "done", json!({"answer": 3})),
        Response::call("c3", "done", json!({"answer": 4})),
    ]);
    let cantrip = Cantrip::builder()
        .crystal(ScriptedCrystal::new("scripted/two", script))
        .gate(cantrip::gates::done())
        .gate(cantrip::gates::call_agent())
        .ward("max_turns", 5)
        .build()
        .unwrap();
    let cast = Runtime::new(loom.clone()).cast(&cantrip, CastOptions::on("go")).await;
    assert_eq!(cast.answer(), Some(&json!(4)), "{:?}", cast.reply());
    let rows = loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
    let told: Vec<_> = rows.iter().map(|row| row.receipt().unwrap()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!((told[0].seq, told[1].seq, told[1].prev_hash), (1, 2, Some(told[0].hash())));
    assert_eq!((told[1].budget.sub_calls, told[1].thread_id), (1, cast.entity));
    assert_eq!(verify(&loom, ReceiptFilter::default()).await.unwrap().findings, []);
    let by_hand = rusqlite::Connection::open(folder.path().join("loom.db")).unwrap();
    by_hand.execute_batch("DROP TRIGGER ds_receipts_are_kept; DELETE FROM ds_receipts WHERE seq = 1").unwrap();
    let found = verify(&loom, ReceiptFilter::default()).await.unwrap();
    assert_eq!(found.findings.first().map(|finding| finding.kind), Some("chain"), "{found:?}");
    assert_eq!((found.receipts, found.runs), (1, 1), "what is left of the run is gone through once");
}

#[tokio::test]
async fn a_long_trace_goes_into_its_folder_and_comes_back_byte_for_byte() {
    for (loom, _folder) in stores() {
        let base = tempfile::tempdir().unwrap();
        let place = base.path().join("kept").join("traces");
        let script = scripted((0..2).map(|_| done(json!({"text": "HEY"}))));
        let predictor = predictor(&loom, says(&script), TraceArchive::in_folder(&place));
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let how = || PredictOptions { trace: TraceMode::Full, ..PredictOptions::default() };
        let long = "word ".repeat(1 << 20);
        // The parent folder does not exist: the answer still comes, and the trace waits.
        let reply = predictor.predict(shout().id(), &json!({ "text": long }), how()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let waiting = loom.traces(TraceState::Pending, PageRequest::FIRST).await.unwrap().items;
        assert_eq!(waiting.len(), 1);
        assert!(waiting[0].bytes > 5 << 20, "{}", waiting[0].bytes);
        let name = waiting[0].trace_ref.clone();
        let before = trace(&loom, &name).await.unwrap();
        assert!(before["prompt"]["user"].as_str().unwrap().contains(&long));
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        let reply = predictor.predict(shout().id(), &json!({"text": "short"}), how()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let row = loom.trace(name.clone()).await.unwrap();
        assert_eq!(row.state, TraceState::Stored);
        assert!(row.payload.as_ref().unwrap().len() < 4_096, "only its summary stays in the row");
        let object = std::fs::read(row.uri.as_ref().unwrap()).unwrap();
        assert_eq!((object.len() as u64, cantrip::canon::bytes_hash(&object)), (row.bytes, row.trace_hash));
        assert_eq!(trace(&loom, &name).await.unwrap(), before);
        assert_eq!(verify(&loom, ReceiptFilter::default()).await.unwrap().findings, []);
        // With one changed byte the trace is refused.
        let mut changed = object;
        changed[100] ^= 1;
        std::fs::write(row.uri.unwrap(), changed).unwrap();
        assert_code(&replied(trace(&loom, &name).await.unwrap_err()).await, codes::RECORD_ALTERED);
        let found = verify(&loom, ReceiptFilter::default()).await.unwrap();
        assert_eq!(found.findings.iter().map(|finding| finding.kind).collect::<Vec<_>>(), ["trace"]);
    }
}

#[tokio::test]
async fn a_trace_past_its_time_is_deleted_and_leaves_its_name_and_a_receipt_that_verifies() {
    for (loom, _folder) in stores() {
        let base = tempfile::tempdir().unwrap();
        let script = scripted((0..3).map(|_| done(json!({"text": "HEY"}))));
        let brief = TraceArchive::in_folder(base.path()).with_retention(std::time::Duration::from_millis(1));
        let predictor = predictor(&loom, says(&script), brief.clone());
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let how = |trace| PredictOptions { trace, ..PredictOptions::default() };
        let text = "word ".repeat(2_000);
        let reply = predictor.predict(shout().id(), &json!({ "text": text }), how(TraceMode::Full)).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let reply = predictor.predict(shout().id(), &json!({"text": "hey"}), how(TraceMode::Summary)).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let rows = loom.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.unwrap().items;
        let names: Vec<String> = rows.iter().map(|row| row.receipt().unwrap().trace_ref.unwrap()).collect();
        // The next predict deletes them at the latest.
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        let reply = predictor.predict(shout().id(), &json!({"text": "ho"}), how(TraceMode::Off)).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        for name in &names {
            let row = loom.trace(name.clone()).await.unwrap();
            assert_eq!(
                (row.state, &row.payload, row.deleted_by.as_deref()),
                (TraceState::Expired, &None, Some("trace.retain_days"))
            );
            assert!(row.deleted_at >= row.expires_at, "{row:?}");
            assert!(row.uri.is_none_or(|uri| !std::path::Path::new(&uri).exists()), "its object is gone");
            let read = replied(trace(&loom, name).await.unwrap_err()).await;
            assert_code(&read, codes::WRONG_STATE);
            assert_eq!(
                (&read.data()["reason"], &read.data()["deleted_at"]),
                (&json!("trace_expired"), &json!(row.deleted_at))
            );
            assert_eq!(read.data()["deleted_by"], "trace.retain_days");
            assert_eq!(read.data()["trace_hash"], json!(row.trace_hash));
            let records: Vec<Record> = loom.read(row.run_id, Seq::START).try_collect().await.unwrap();
            let expired: Vec<Value> = records
                .iter()
                .filter(|record| record.kind.as_str() == "trace.expired")
                .map(|record| serde_json::from_str(&record.payload).unwrap())
                .collect();
            assert_eq!(expired.len(), 1, "the journal says what was deleted, once");
            assert_eq!((&expired[0]["trace_ref"], &expired[0]["trace_hash"]), (&json!(name), &json!(row.trace_hash)));
            assert_eq!(expired[0]["by"], "trace.retain_days");
        }
        assert_eq!(verify(&loom, ReceiptFilter::default()).await.unwrap().findings, []);
        let now = "2126-02-19T01:00:00.000Z".parse().unwrap();
        assert_eq!(brief.expire(&loom, now).await.unwrap(), 0, "each once");
    }
}

#[tokio::test]
async fn a_trace_holds_no_secret_and_without_a_folder_it_stays_in_its_row() {
    for (loom, _folder) in stores() {
        let script = scripted([done(json!({"text": "HEY"}))]);
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
        let key = "ghp_A1b2C3d4E5f6G7h8I9j0K1l2M3n4O5p6Q7r8";
        let text = format!("{} and {key}", "word ".repeat(2_000));
        let how = PredictOptions { trace: TraceMode::Full, ..PredictOptions::default() };
        let reply = predictor.predict(shout().id(), &json!({ "text": text }), how).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        let kept = loom.traces(TraceState::Inline, PageRequest::FIRST).await.unwrap().items;
        assert_eq!(kept.len(), 1);
        let payload = kept[0].payload.as_ref().unwrap();
        assert!(payload.len() > 4_096 && !payload.contains(key));
    }
}
