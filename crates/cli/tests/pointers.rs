//! Pointers from the command line, and with several concurrent writers.

use crate::support::{self, Folder, id, stdout};

use cantrip::canon::{Clock, Timestamp};
use cantrip::loom::{Actor, Contracts, PageRequest};
use cantrip::{MachineClock, Runtime};
use cantrip_contract::{
    CompiledId, EvalStatus, OriginRow, Pointer, PointerAudit, PromotionEvidence, Provenance, SignatureId,
    SignatureOrigin, Split, built_in,
};
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_any, assert_envelope};
use cantrip_service::{PointerRequest, Promotion, RolloutAction, Service};
use cantrip_store::Store;
use serde_json::{Value, json};

const CLASSIFY: &str = "@cantrip/text/Classify.v1";
const BASE: &str = "art_fa314739a6ab692b5cd3d96708665e89";

/// Returns every store that keeps contracts, for the binary.
fn stores() -> Vec<String> {
    [Some("sqlite:kept/loom.db".to_owned()), support::own_postgres()].into_iter().flatten().collect()
}

/// Stores an artifact of Classify with these instructions.
fn artifact(folder: &Folder, store: &str, instructions: &str) -> String {
    let given = json!({ "instructions": instructions }).to_string();
    let kept = folder.piped(&["artifact", "add", "Classify", "-", "--store", store], &given);
    stdout(&kept).trim().to_owned()
}

fn done(folder: &Folder, store: &str, arguments: &[&str]) -> Value {
    let arguments = [&["pointer"], arguments, &["--store", store]].concat();
    folder.envelope(&arguments, codes::CHANGED.any())["data"]["pointer"].clone()
}

#[test]
fn a_pointer_is_set_tried_promoted_and_walked_back() {
    for store in stores() {
        let (folder, store) = (Folder::new(), store.as_str());
        let better = artifact(&folder, store, "Choose with care.");
        let set = done(&folder, store, &["set", "Classify", BASE, "--because", "the first"]);
        assert_eq!((id(&set["primary_artifact"]), &set["version"]), (BASE, &json!(1)));
        let listed = folder.envelope(&["pointer", "ls", "--store", store], codes::READ.any());
        assert_eq!(listed["data"]["value"][0]["primary_artifact"], BASE, "{listed}");
        let tried = done(&folder, store, &["canary", "Classify", &better[..20], "--percent", "10"]);
        assert_eq!((id(&tried["canary_artifact"]), &tried["canary_percent"]), (better.as_str(), &json!(10)));
        let promoted = done(&folder, store, &["promote", "Classify", "--force", "--because", "tried for a week"]);
        assert_eq!((id(&promoted["primary_artifact"]), &promoted["canary_artifact"]), (better.as_str(), &Value::Null));
        // The same change again has no effect and leaves no audit.
        let again = ["pointer", "set", "Classify", &better, "--store", store, "--json"];
        let again: Value = serde_json::from_slice(&folder.run(&again).stdout).unwrap();
        assert_eq!((&again["data"]["audit_id"], &again["data"]["pointer"]["version"]), (&Value::Null, &json!(3)));
        let back = done(&folder, store, &["rollback", "Classify"]);
        assert_eq!((id(&back["primary_artifact"]), &back["canary_percent"]), (BASE, &json!(10)));
        let further = done(&folder, store, &["rollback", "Classify"]);
        assert_eq!((id(&further["primary_artifact"]), &further["canary_artifact"]), (BASE, &Value::Null));
        // There is nothing before the first pointer.
        let nothing = folder.envelope(&["pointer", "rollback", "Classify", "--store", store], codes::WRONG_STATE.any());
        assert_eq!(nothing["data"]["reason"], "rollback_unavailable");
        let audits = folder.envelope(&["pointer", "audits", "Classify", "--store", store], codes::READ.any());
        let audits = audits["data"]["value"]["items"].as_array().unwrap();
        let told: Vec<(&str, u64, bool)> = audits
            .iter()
            .map(|audit| {
                (id(&audit["action"]), audit["version_after"].as_u64().unwrap(), audit["forced"].as_bool().unwrap())
            })
            .collect();
        let wanted = [
            ("set", 1, false),
            ("canary", 2, false),
            ("promote", 3, true),
            ("rollback", 4, false),
            ("rollback", 5, false),
        ];
        assert_eq!(told, wanted);
        assert_eq!(audits[2]["reason"], "tried for a week");
        assert_eq!(audits[4]["target_audit_id"], audits[1]["audit_id"]);
        // A rollback to the audit of the canary restores the canary too, from a later state.
        done(&folder, store, &["set", "Classify", &better]);
        done(&folder, store, &["set", "Classify", BASE]);
        let listed = folder.envelope(&["pointer", "audits", "Classify", "--store", store], codes::READ.any());
        let sixth = id(&listed["data"]["value"]["items"][5]["audit_id"]).to_owned();
        let to = done(&folder, store, &["rollback", "Classify", "--to", &sixth]);
        assert_eq!((id(&to["primary_artifact"]), &to["version"]), (BASE, &json!(8)));
        let drawn = folder.run(&["pointer", "show", "--store", store]);
        assert!(stdout(&drawn).contains(&format!("{CLASSIFY} at version 8\n  primary  {BASE}\n")), "{drawn:?}");
    }
}

#[test]
fn a_preview_shows_who_would_get_what_and_writes_nothing() {
    for store in stores() {
        let (folder, store) = (Folder::new(), store.as_str());
        let better = artifact(&folder, store, "Choose with care.");
        let shown = |more: &[&str]| {
            let arguments = [&["pointer", "preview", "Classify", "--store", store], more].concat();
            folder.envelope(&arguments, codes::READ.any())["data"]["value"].clone()
        };
        let none = folder.envelope(&["pointer", "show", "Classify", "--store", store], codes::CONTRACT_UNKNOWN.any());
        assert_eq!(none["data"]["kind"], "pointer");
        done(&folder, store, &["set", "Classify", BASE]);
        done(&folder, store, &["canary", "Classify", &better, "--percent", "50"]);
        let split = shown(&["--keys", "2"]);
        // The page about pointers shows the same values: 47 and 77.
        assert_eq!(
            split["rows"],
            json!([
                {"key": "run_1", "bucket": 47, "variant": "canary", "compiled_id": better},
                {"key": "run_2", "bucket": 77, "variant": "primary", "compiled_id": BASE},
            ])
        );
        assert_eq!(shown(&["--keys", "0"])["rows"], json!([]));
        let many = shown(&["--keys", "5000", "--prefix", "user:"]);
        assert_eq!(many["rows"].as_array().unwrap().len(), 5_000);
        assert!((2_350..2_650).contains(&many["canary"].as_u64().unwrap()), "{}", many["canary"]);
        // Raising the percentage moves no caller back, and 0 moves every caller to the primary.
        let sides = |percent: &str| -> Vec<bool> {
            let split = shown(&["--keys", "500", "--percent", percent]);
            split["rows"].as_array().unwrap().iter().map(|row| row["variant"] == "canary").collect()
        };
        let (ten, sixty) = (sides("10"), sides("60"));
        assert!(ten.iter().zip(&sixty).all(|(before, after)| !before || *after));
        assert!(sides("0").iter().all(|canary| !canary) && sides("100").iter().all(|canary| *canary));
        done(&folder, store, &["canary", "Classify", "--percent", "0"]);
        assert_eq!(shown(&["--keys", "500"])["canary"], 0, "stopped, and still there");
        let off = done(&folder, store, &["canary", "Classify", "--off"]);
        assert_eq!((&off["canary_artifact"], &off["version"]), (&Value::Null, &json!(4)));
        let beyond = ["pointer", "preview", "Classify", "--keys", "5001", "--store", store];
        folder.envelope(&beyond, codes::LIMIT.any());
    }
}

#[test]
fn nothing_is_promoted_without_an_evaluation_or_a_reason() {
    for store in stores() {
        let (folder, store) = (Folder::new(), store.as_str());
        let better = artifact(&folder, store, "Choose with care.");
        done(&folder, store, &["set", "Classify", BASE]);
        let promote = ["pointer", "promote", "Classify", "--store", store, &better, "--force", "--because", "  "];
        folder.envelope(&promote[..5], codes::CONFIG_INVALID.any());
        let refused = folder.envelope(&promote[..6], codes::PROMOTE_GATE.any());
        assert_eq!(refused["data"]["conditions"], json!(["report_missing"]));
        assert_eq!(folder.run(&promote[..7]).status.code(), Some(2), "a reason is asked for");
        folder.envelope(&promote, codes::CONFIG_INVALID.any());
        // An artifact of another signature is not served for this one.
        let judge = folder.envelope(&["sig", "show", "Judge", "--store", store], codes::READ.any());
        let foreign = judge.to_string();
        let at = foreign.match_indices("art_").map(|(at, _)| &foreign[at..at + 36]).find(|id| *id != BASE).unwrap();
        folder.envelope(&["pointer", "set", "Classify", at, "--store", store], codes::ARTIFACT_INCOMPATIBLE.any());
        let stale = ["pointer", "set", "Classify", &better, "--expect", "7", "--store", store];
        let conflict = folder.envelope(&stale, codes::VERSION_CONFLICT.any());
        assert_eq!(conflict["data"]["pointer"]["version"], 1);
        let audits = folder.envelope(&["pointer", "audits", "Classify", "--store", store], codes::READ.any());
        assert_eq!(audits["data"]["value"]["items"].as_array().unwrap().len(), 1, "none of that left a trace");
    }
}

/// Returns a time in the past for a report. The clock of a machine may be set back between two readings, and a report
/// is never made at the moment when it is shown.
fn a_minute_ago() -> Timestamp {
    let now = MachineClock::new().now().wall;
    Timestamp::from_unix_millis(now.unix_millis() - 60_000).unwrap()
}

fn report(artifact: &str) -> Value {
    json!({
        "v": 1,
        "kind": "evaluation",
        "eval_id": "eval_7",
        "signature_id": CLASSIFY,
        "status": "succeeded",
        "split": "test",
        "compiled_id": artifact,
        "baseline_id": BASE,
        "scored": 30,
        "delta_low_micro": 1,
        "cost_per_call_micro": 125,
        "baseline_cost_per_call_micro": 100,
        "created_at": a_minute_ago(),
    })
}

fn with(report: &Value, changes: Value) -> Value {
    let mut changed = report.clone();
    for (key, value) in changes.as_object().unwrap() {
        changed[key] = value.clone();
    }
    changed
}

#[test]
fn a_report_promotes_what_it_speaks_for_and_the_audit_keeps_it() {
    for store in stores() {
        let (folder, store) = (Folder::new(), store.as_str());
        let better = artifact(&folder, store, "Choose with care.");
        done(&folder, store, &["set", "Classify", BASE]);
        done(&folder, store, &["canary", "Classify", &better, "--percent", "10"]);
        let report = report(&better);
        folder.write("report.json", &report.to_string());
        let promoted = done(&folder, store, &["promote", "Classify", "--report", "report.json"]);
        assert_eq!((id(&promoted["primary_artifact"]), &promoted["canary_artifact"]), (better.as_str(), &Value::Null));
        let audits = folder.envelope(&["pointer", "audits", "Classify", "--store", store], codes::READ.any());
        let audit = &audits["data"]["value"]["items"][2];
        assert_eq!((&audit["eval_id"], &audit["forced"]), (&json!("eval_7"), &json!(false)));
        let hash = cantrip_canon::stable_hash(&report).unwrap();
        let bar = json!({"rule": "better", "cost_percent_max": 125});
        let kept = json!({"evaluation": report, "evaluation_hash": hash, "external": true, "bar": bar});
        assert_eq!(audit["metadata"], kept);
        let drawn = folder.run(&["pointer", "audits", "Classify", "--store", store]);
        assert!(stdout(&drawn).contains("promote, by eval_7"), "{drawn:?}");
        // A report from standard input, with lower requirements. A report that did not suffice is stored with a forced
        // promotion.
        let third = artifact(&folder, store, "Choose with great care.");
        let next = with(
            &self::report(&third),
            json!({"baseline_id": better, "delta_low_micro": -20_000, "cost_per_call_micro": 300}),
        );
        let lower = ["promote", "Classify", &third, "--report", "-", "--not-worse", "--cost-percent", "300"];
        let lower = [&["pointer"], &lower[..], &["--store", store, "--json"]].concat();
        let refused = folder.piped(&[&lower[..7], &lower[9..]].concat(), &next.to_string());
        let refused: Value = serde_json::from_slice(&refused.stdout).unwrap();
        assert_envelope(&refused, codes::PROMOTE_GATE.any());
        assert_eq!(refused["data"]["conditions"], json!(["too_dear"]));
        let promoted: Value = serde_json::from_slice(&folder.piped(&lower, &next.to_string()).stdout).unwrap();
        assert_envelope(&promoted, codes::CHANGED.any());
        let fourth = artifact(&folder, store, "Choose as you like.");
        folder.write("train.json", &with(&report, json!({"split": "train"})).to_string());
        let forced = ["--report", "train.json", "--force", "--because", "the old one is broken"];
        done(&folder, store, &[&["promote", "Classify", &fourth], &forced[..]].concat());
        let audits = folder.envelope(&["pointer", "audits", "Classify", "--store", store], codes::READ.any());
        let audit = &audits["data"]["value"]["items"][4];
        assert_eq!((&audit["forced"], &audit["metadata"]["evaluation"]["split"]), (&json!(true), &json!("train")));
        assert_eq!(audit["reason"], "the old one is broken");
    }
}

#[test]
fn a_report_that_does_not_speak_for_it_is_refused_with_every_condition() {
    for store in stores() {
        let (folder, store) = (Folder::new(), store.as_str());
        let better = artifact(&folder, store, "Choose with care.");
        done(&folder, store, &["set", "Classify", BASE]);
        let whole = report(&better);
        let promote = ["pointer", "promote", "Classify", &better, "--report", "report.json", "--store", store];
        let mut all = json!({});
        for (condition, changes) in [
            ("other_signature", json!({"signature_id": "@cantrip/eval/Judge.v1"})),
            ("not_succeeded", json!({"status": "incomplete"})),
            ("not_on_test", json!({"split": "holdout"})),
            ("other_artifact", json!({"compiled_id": BASE})),
            ("other_baseline", json!({"baseline_id": better})),
            ("too_few_examples", json!({"scored": 29})),
            ("too_old", json!({"created_at": "2020-01-01T00:00:00.000Z"})),
            ("in_the_future", json!({"created_at": "2999-01-01T00:00:00.000Z"})),
            ("not_better", json!({"delta_low_micro": 0})),
            ("too_dear", json!({"cost_per_call_micro": 126})),
        ] {
            folder.write("report.json", &with(&whole, changes.clone()).to_string());
            let refused = folder.envelope(&promote, codes::PROMOTE_GATE.any());
            assert_eq!(refused["data"]["conditions"], json!([condition]));
            all = with(&all, changes);
        }
        folder.write("report.json", &with(&whole, all).to_string());
        let refused = folder.envelope(&promote, codes::PROMOTE_GATE.any());
        // All conditions but one: a report from the future is not too old.
        assert_eq!(refused["data"]["conditions"].as_array().unwrap().len(), 9, "{refused}");
        let audits = folder.envelope(&["pointer", "audits", "Classify", "--store", store], codes::READ.any());
        assert_eq!(audits["data"]["value"]["items"].as_array().unwrap().len(), 1, "none of that changed anything");
    }
}

#[test]
fn a_file_that_is_no_report_is_told_what_is_wrong_with_it() {
    let folder = Folder::new();
    let store = "sqlite:kept/loom.db";
    let better = artifact(&folder, store, "Choose with care.");
    done(&folder, store, &["set", "Classify", BASE]);
    let whole = report(&better).to_string();
    let promote = ["pointer", "promote", "Classify", &better, "--report", "report.json", "--store", store];
    folder.envelope(&promote, codes::FILE_MISSING.any());
    folder.write("report.json", &whole[..whole.len() / 2]);
    let torn = folder.envelope(&promote, codes::UNPARSABLE.any());
    assert_eq!(torn["data"]["subject"], "the report");
    folder.write("report.json", &"9".repeat(70_000));
    folder.envelope(&promote, codes::LIMIT.any());
    std::fs::write(folder.path().join("report.json"), [0xff, 0xfe]).unwrap();
    folder.envelope(&promote, codes::TARGET_UNUSABLE.any());
    folder.write("report.json", r#"{"score": 0.9}"#);
    let foreign = folder.envelope(&promote, codes::SCHEMA.any());
    assert_eq!(foreign["data"]["path"], "/score");
    folder.write("report.json", &with(&report(&better), json!({"scored": "thirty"})).to_string());
    let wrong = folder.envelope(&promote, codes::SCHEMA.any());
    assert_eq!(wrong["data"]["path"], "/scored");
    // The reader and the schema agree.
    let told = folder.envelope(&["schema", "evaluation"], codes::OK.any());
    let schema = cantrip_contract::Schema::compile(told["data"]["schema"].clone()).unwrap();
    assert_eq!(schema.violations(&report(&better)), []);
}

/// Writers as in two processes: each has its own store, on the same database.
struct Writers {
    _folder: tempfile::TempDir,
    services: Vec<Service>,
}

impl Writers {
    async fn all(count: usize) -> Vec<Self> {
        let mut kits = Vec::new();
        let folder = tempfile::tempdir().unwrap();
        let sqlite = format!("sqlite:{}", folder.path().join("loom.db").display());
        for url in [Some(sqlite), support::own_postgres()].into_iter().flatten() {
            let open = || Service::new(Runtime::new(Store::open(&url).unwrap()));
            kits.push(Self { _folder: tempfile::tempdir().unwrap(), services: (0..count).map(|_| open()).collect() });
        }
        // The first writer owns the folder.
        if let Some(first) = kits.first_mut() {
            first._folder = folder;
        }
        kits
    }

    fn service(&self) -> &Service {
        &self.services[0]
    }

    /// Publishes the built-in signature and returns this many artifacts of Classify.
    async fn artifacts(&self, count: usize) -> Vec<CompiledId> {
        let (service, signature) = (self.service(), &built_in()[0]);
        assert_eq!(signature.id(), &classify());
        let mut made = Vec::new();
        service.catalog().add(signature, SignatureOrigin::Builtin, "test").await.unwrap();
        for n in 0..count {
            let origin = |id| {
                let at = "2026-02-19T02:00:00.000Z".parse().unwrap();
                OriginRow::new(id, Provenance::Manual, "test", at)
            };
            let given = json!({ "instructions": format!("Choose, {n}.") });
            made.push(service.catalog().add_artifact(&given, signature, origin).await.unwrap().id());
        }
        made
    }

    async fn pointer(&self) -> Pointer {
        self.service().runtime().loom().pointer(classify()).await.unwrap().unwrap()
    }

    async fn audits(&self) -> Vec<PointerAudit> {
        self.service().runtime().loom().pointer_audits(classify(), PageRequest::FIRST).await.unwrap().items
    }
}

fn classify() -> SignatureId {
    CLASSIFY.parse().unwrap()
}

fn by(expected_version: Option<u64>) -> PointerRequest {
    let reason = Some("a test".to_owned());
    PointerRequest { signature: classify(), expected_version, actor: Actor::new("test").unwrap(), reason }
}

fn forced(artifact: &CompiledId) -> Promotion {
    Promotion { artifact: Some(artifact.clone()), forced: true, ..Promotion::default() }
}

fn set(artifact: &CompiledId) -> RolloutAction {
    RolloutAction::Set { artifact: artifact.clone(), seed: None }
}

async fn back(service: &Service) {
    let back = service.repoint(by(None), RolloutAction::Rollback { to: None }).await;
    assert_any(&back.reply, codes::CHANGED.any());
}

#[tokio::test]
async fn of_two_who_promote_at_once_one_wins_and_the_other_is_told_what_stands_there() {
    for writers in Writers::all(2).await {
        let artifacts = writers.artifacts(9).await;
        assert_any(&writers.service().repoint(by(None), set(&artifacts[0])).await.reply, codes::CHANGED.any());
        for round in 0..4_u64 {
            let version = Some(1 + round);
            let at = usize::try_from(round).unwrap() * 2;
            let (one, two) = (&writers.services[0], &writers.services[1]);
            let (one, two) = tokio::join!(
                one.promote(by(version), forced(&artifacts[at + 1])),
                two.promote(by(version), forced(&artifacts[at + 2]))
            );
            let (won, lost, wanted) = if one.reply.reply_type().is_success() {
                (one, two, &artifacts[at + 1])
            } else {
                (two, one, &artifacts[at + 2])
            };
            assert_any(&won.reply, codes::CHANGED.any());
            assert_any(&lost.reply, codes::VERSION_CONFLICT.any());
            assert_eq!(&writers.pointer().await.primary_artifact, wanted);
            assert_eq!(lost.reply.data()["pointer"]["version"], json!(round + 2), "what stands there now");
        }
        // There is one audit for each change, with the state before and after it.
        let audits = writers.audits().await;
        assert_eq!(audits.iter().map(|audit| audit.version_after).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
        for pair in audits.windows(2) {
            assert_eq!(pair[1].before.as_ref(), Some(&pair[0].after));
        }
        assert_eq!(audits[4].after, writers.pointer().await);
    }
}

#[tokio::test]
async fn three_promotes_and_two_rollbacks_land_where_walking_back_lands() {
    for writers in Writers::all(1).await {
        let artifacts = writers.artifacts(4).await;
        let service = writers.service();
        assert_any(&service.repoint(by(Some(0)), set(&artifacts[0])).await.reply, codes::CHANGED.any());
        for artifact in &artifacts[1..] {
            assert_any(&service.promote(by(None), forced(artifact)).await.reply, codes::CHANGED.any());
        }
        for artifact in [&artifacts[2], &artifacts[1]] {
            back(service).await;
            assert_eq!(&writers.pointer().await.primary_artifact, artifact);
        }
        // Changes continue from there, and rollbacks skip the changes that were rolled back.
        assert_any(&service.promote(by(None), forced(&artifacts[3])).await.reply, codes::CHANGED.any());
        for artifact in [&artifacts[1], &artifacts[0]] {
            back(service).await;
            assert_eq!(&writers.pointer().await.primary_artifact, artifact);
        }
        let nothing = service.repoint(by(None), RolloutAction::Rollback { to: None }).await;
        assert_any(&nothing.reply, codes::WRONG_STATE.any());
        assert_eq!(writers.audits().await.len(), 9);
    }
}

#[tokio::test]
async fn what_an_evaluation_speaks_for_is_promoted_unless_the_pointer_moved_meanwhile() {
    for writers in Writers::all(1).await {
        let artifacts = writers.artifacts(3).await;
        let service = writers.service();
        assert_any(&service.repoint(by(None), set(&artifacts[0])).await.reply, codes::CHANGED.any());
        let spoken_for = |artifact: &CompiledId| Promotion {
            artifact: Some(artifact.clone()),
            evaluation: Some(PromotionEvidence {
                eval_id: "eval_1".to_owned(),
                signature_id: classify(),
                status: EvalStatus::Succeeded,
                split: Split::Test,
                compiled_id: artifact.clone(),
                baseline_id: Some(artifacts[0].clone()),
                scored: 40,
                delta_low_micro: Some(10_000),
                cost_per_call_micro: 900,
                baseline_cost_per_call_micro: 900,
                created_at: a_minute_ago(),
            }),
            ..Promotion::default()
        };
        assert_any(&service.promote(by(Some(1)), spoken_for(&artifacts[1])).await.reply, codes::CHANGED.any());
        let audit = writers.audits().await.remove(1);
        assert_eq!((audit.eval_id.as_deref(), audit.forced), (Some("eval_1"), false));
        // The report's baseline is no longer live.
        let late = service.promote(by(None), spoken_for(&artifacts[2])).await;
        assert_any(&late.reply, codes::PROMOTE_GATE.any());
        assert_eq!(late.reply.data()["conditions"], json!(["other_baseline"]));
        assert_eq!(writers.pointer().await.primary_artifact, artifacts[1]);
    }
}
