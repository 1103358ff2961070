//! Contracts: signatures, artifacts, predicts, receipts, traces and pointers, written together with their records.
//!
//! One file, although long: each case is short, and all of them read the same few fixtures.

use cantrip_canon::{AuditId, Currency, Hash, Money, PredictId, Timestamp, stable_hash};
use cantrip_contract::{
    Action, Artifact, ArtifactRow, Canary, ChangeAuthor, CompiledId, ContractFault, ContractRow, Kind, OriginRow,
    PointerChange, PointerFault, PointerOperation, PredictEnd, PredictRow, PromotionGrounds, Provenance, Purpose,
    Receipt, ReceiptDraft, Signature, SignatureId, SignatureOrigin, SignatureRow, Status, Strategy, TimingPart,
    TraceMove, TraceRow, TraceState, TraceStorage, verify_chain,
};
use cantrip_spend::Operation;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::fixtures::{append, budget, odd};
use super::{Episode, LoomWriter, Store, Subject, at, reserve};
use cantrip_loom::{AppendOutcome, Conflict, Contracts, Error, Journal, PageRequest, ReceiptFilter, Seq, Step};

/// Makes a signature with these instructions.
pub(super) fn signature(name: &str, version: u64, instructions: &str) -> Signature {
    let text = json!({"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}});
    Signature::builder("@case/text", name, version)
        .description("A case.")
        .instructions(instructions)
        .system("{{ instructions }}")
        .user("{{ inputs.text | fence('text') }}")
        .input(text.clone())
        .output(text)
        .build()
        .expect("a sound signature")
}

/// Returns the rows that publish a signature, with its base artifact.
fn published(signature: &Signature, at: Timestamp) -> [ContractRow; 3] {
    let base = signature.base_artifact();
    [
        ContractRow::Signature(Box::new(SignatureRow::new(signature, SignatureOrigin::Api, "local", at))),
        ContractRow::Artifact(Box::new(ArtifactRow::new(&base, at))),
        ContractRow::Origin(Box::new(OriginRow::new(base.id(), Provenance::Signature, "local", at))),
    ]
}

/// Writes rows outside every run.
pub(super) async fn apart<J: Journal>(
    weaver: &mut LoomWriter<'_, J>,
    store: &J,
    rows: impl IntoIterator<Item = ContractRow>,
) -> AppendOutcome {
    let mut step = Step::outside_runs(weaver.step_id());
    step.contract = rows.into_iter().collect();
    append(store, step).await
}

pub(super) async fn publish<J: Journal>(
    weaver: &mut LoomWriter<'_, J>,
    store: &J,
    signature: &Signature,
) -> CompiledId {
    let rows = published(signature, weaver.now());
    assert_eq!(apart(weaver, store, rows).await, AppendOutcome::Committed(Seq::START));
    signature.base_artifact().id()
}

/// Publishes another artifact of the signature.
async fn candidate<J: Journal>(
    weaver: &mut LoomWriter<'_, J>,
    store: &J,
    signature: &Signature,
    instructions: &str,
) -> CompiledId {
    let artifact: Artifact = signature.base_artifact().with_instructions(instructions);
    let row = ContractRow::Artifact(Box::new(ArtifactRow::new(&artifact, weaver.now())));
    assert_eq!(apart(weaver, store, [row]).await, AppendOutcome::Committed(Seq::START));
    artifact.id()
}

pub(super) fn fault(answer: AppendOutcome) -> ContractFault {
    let AppendOutcome::Conflict(Conflict::Contract(fault)) = answer else {
        panic!("no conflict about a contract: {answer:?}")
    };
    *fault
}

fn hash(value: &Value) -> Hash {
    stable_hash(value).expect("a small value")
}

pub(super) fn receipt(episode: &Episode, predict: Option<PredictId>, status: Status, at: Timestamp) -> Receipt {
    let kind = if predict.is_some() { Kind::Predict } else { Kind::Cast };
    let timing = TimingPart { started_at: at, completed_at: at, latency_ms: 0, waited_ms: 0 };
    let nothing = hash(&json!([]));
    Receipt {
        predict_id: predict,
        purpose: predict.map(|_| Purpose::Serve),
        thread_id: Some(episode.entity),
        strategy_id: predict.map(|_| Strategy::Direct),
        params_hash: Some(nothing),
        ..Receipt::new(kind, episode.run, status, timing)
    }
}

pub(super) fn draft(receipt: Receipt, reservations: Vec<String>) -> ContractRow {
    ContractRow::Receipt(Box::new(ReceiptDraft::new(receipt, "local", reservations)))
}

fn predict_row(
    episode: &Episode,
    id: PredictId,
    signature: &Signature,
    key: Option<&str>,
    at: Timestamp,
) -> PredictRow {
    PredictRow {
        predict_id: id,
        run_id: episode.run,
        owner: "local".to_owned(),
        signature_id: signature.id().clone(),
        compiled_id: signature.base_artifact().id(),
        params_hash: hash(&json!({"text": "a"})),
        request_hash: hash(&json!({"request": 1})),
        idempotency_key: key.map(str::to_owned),
        purpose: Purpose::Serve,
        thread_id: Some(episode.entity),
        lease_epoch: episode.lease.epoch.get(),
        opened_at: at,
        end: None,
    }
}

pub(super) async fn contracts_are_never_dropped<S: Subject>(subject: S) {
    let store = subject.store();
    let mut weaver = LoomWriter::new(store);
    let (sort, now) = (signature("Sort", 1, "Sort it."), weaver.now());
    if !subject.keeps_contracts() {
        let mut step = Step::outside_runs(weaver.step_id());
        step.contract = published(&sort, now).into();
        assert!(matches!(store.append(step).await, Err(Error::NoContracts)));
        assert!(matches!(store.signature(sort.id().clone()).await, Err(Error::NoContracts)));
        assert!(matches!(store.receipts(ReceiptFilter::default(), PageRequest::FIRST).await, Err(Error::NoContracts)));
        assert!(matches!(store.pointers().await, Err(Error::NoContracts)));
        return;
    }
    // A row that belongs to a run is invalid outside runs, and the other way round.
    let episode = weaver.cast("count").await;
    let stray = draft(receipt(&episode, None, Status::Succeeded, now), Vec::new());
    assert!(matches!(
        store.append(Step::outside_runs(weaver.step_id()).contract(stray.clone())).await,
        Err(Error::InvalidStep { .. })
    ));
    let beside = Step::annotation(weaver.step_id(), episode.run).contract(stray);
    assert!(matches!(store.append(beside).await, Err(Error::InvalidStep { .. })));
    let mut within = weaver.step_with(&episode, odd(1));
    within.contract = published(&sort, now).into();
    assert!(matches!(store.append(within).await, Err(Error::InvalidStep { .. })));
    assert!(store.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.expect("receipts").items.is_empty());
    assert!(matches!(store.signature(sort.id().clone()).await, Err(Error::NotFound { .. })));
}

pub(super) async fn a_published_signature_never_changes<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let sort = signature("Sort", 1, "Sort it.");
    publish(&mut weaver, store, &sort).await;
    publish(&mut weaver, store, &sort).await;
    let kept = store.signatures(PageRequest::FIRST).await.expect("signatures").items;
    assert_eq!(kept.len(), 1, "the same again changes nothing");
    let read = kept[0].signature().expect("it is what was written");
    assert_eq!((read.body(), read.hashes(), read.description()), (sort.body(), sort.hashes(), "A case."));
    assert_eq!(store.artifacts(Some(sort.id().clone()), PageRequest::FIRST).await.expect("artifacts").items.len(), 1);
    let other = signature("Sort", 1, "Sort it!");
    let rows = published(&other, weaver.now());
    let (kept, given) = (sort.payload_hash(), other.payload_hash());
    let signature_id = sort.id().clone();
    let wanted = ContractFault::Published { signature: signature_id, hash: "payload_hash", kept, given };
    assert_eq!(fault(apart(&mut weaver, store, rows).await), wanted);
    assert_eq!(
        store.artifacts(None, PageRequest::FIRST).await.expect("artifacts").items.len(),
        1,
        "nothing of it is written"
    );
    publish(&mut weaver, store, &signature("Sort", 2, "Sort it!")).await;
    assert_eq!(store.signatures(PageRequest::FIRST).await.expect("signatures").items.len(), 2);
    // A retired signature is still found.
    let at = weaver.now();
    let retired = ContractRow::Retire { signature_id: sort.id().clone(), at };
    assert_eq!(apart(&mut weaver, store, [retired]).await, AppendOutcome::Committed(Seq::START));
    assert_eq!(store.signature(sort.id().clone()).await.expect("it is there").retired_at, Some(at));
}

pub(super) async fn an_artifact_is_kept_once_with_all_its_origins<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let sort = signature("Sort", 1, "Sort it.");
    let artifact = sort.base_artifact().with_instructions("Sort it well.");
    let row = || ContractRow::Artifact(Box::new(ArtifactRow::new(&artifact, at(9))));
    let homeless = ContractFault::Unknown { kind: "signature", id: sort.id().to_string() };
    assert_eq!(fault(apart(&mut weaver, store, [row()]).await), homeless);
    publish(&mut weaver, store, &sort).await;
    let origin = |actor: &str, millis| {
        let origin = OriginRow {
            note: Some("by hand".to_owned()),
            ..OriginRow::new(artifact.id(), Provenance::Manual, actor, at(millis))
        };
        ContractRow::Origin(Box::new(origin))
    };
    for (actor, millis) in [("ann", 10), ("ann", 11), ("bob", 12)] {
        assert_eq!(
            apart(&mut weaver, store, [row(), origin(actor, millis)]).await,
            AppendOutcome::Committed(Seq::START)
        );
    }
    let kept = store.artifact(artifact.id()).await.expect("it is there");
    assert_eq!(kept.artifact().expect("it is what was written"), artifact);
    let origins = store.artifact_origins(artifact.id()).await.expect("origins");
    assert_eq!(origins.iter().map(|origin| origin.actor.as_str()).collect::<Vec<_>>(), ["ann", "bob"]);
    assert_eq!(store.artifacts(Some(sort.id().clone()), PageRequest::FIRST).await.expect("artifacts").items.len(), 2);
    // An artifact of a signature with another schema is refused.
    let text = json!({"type": "object", "required": ["words"], "properties": {"words": {"type": "string"}}});
    let foreign = Signature::builder("@case/text", "Sort", 1)
        .instructions("Sort it.")
        .system("{{ instructions }}")
        .user("{{ inputs.words }}")
        .input(text.clone())
        .output(text)
        .build()
        .expect("a sound signature");
    let row = ContractRow::Artifact(Box::new(ArtifactRow::new(&foreign.base_artifact(), at(9))));
    assert!(matches!(fault(apart(&mut weaver, store, [row]).await), ContractFault::Foreign { .. }));
}

fn change(signature: &SignatureId, version: u64, change: PointerOperation, id: AuditId, at: Timestamp) -> ContractRow {
    let by = ChangeAuthor { audit_id: id, actor: "ann".to_owned(), reason: Some("a case".to_owned()), at };
    let asked = PointerChange { signature_id: signature.clone(), expected_version: version, change, by };
    ContractRow::Pointer(Box::new(asked))
}

fn set(artifact: &CompiledId) -> PointerOperation {
    PointerOperation::Set { artifact: artifact.clone(), seed: None, metadata: None }
}

pub(super) async fn a_pointer_changes_with_its_audit<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let sort = signature("Sort", 1, "Sort it.");
    let (id, base) = (sort.id().clone(), publish(&mut weaver, store, &sort).await);
    let (one, two) =
        (candidate(&mut weaver, store, &sort, "One.").await, candidate(&mut weaver, store, &sort, "Two.").await);
    let strange = publish(&mut weaver, store, &signature("Other", 1, "Sort it.")).await;
    assert_eq!(store.pointer(id.clone()).await.expect("none yet"), None);
    let changes = [
        set(&base),
        set(&one),
        PointerOperation::Canary(Canary { artifact: two.clone(), percent: 10 }),
        PointerOperation::Promote {
            artifact: two.clone(),
            grounds: Box::new(PromotionGrounds::Forced { evaluation: None }),
        },
        set(&base),
    ];
    for (version, wanted) in (0..).zip(changes) {
        let row = change(&id, version, wanted, weaver.id(), weaver.now());
        // Repeating the change has no effect.
        assert_eq!(apart(&mut weaver, store, [row.clone()]).await, AppendOutcome::Committed(Seq::START));
        assert_eq!(apart(&mut weaver, store, [row]).await, AppendOutcome::Committed(Seq::START));
    }
    let current = store.pointer(id.clone()).await.expect("a pointer").expect("it was set");
    assert_eq!((current.version, &current.primary_artifact, current.canary_percent), (5, &base, 0));
    let audits = store.pointer_audits(id.clone(), PageRequest::FIRST).await.expect("audits").items;
    let actions: Vec<Action> = audits.iter().map(|audit| audit.action).collect();
    assert_eq!(actions, [Action::Set, Action::Set, Action::Canary, Action::Promote, Action::Set]);
    assert_eq!(audits[4].after, current);
    assert_eq!(audits[4].before, Some(audits[3].after.clone()));
    assert_eq!(current.head_audit_id, Some(audits[4].audit_id));
    // A change that changes nothing leaves no audit. A change that was made from another version changes nothing.
    let row = change(&id, 5, set(&base), weaver.id(), weaver.now());
    assert_eq!(apart(&mut weaver, store, [row]).await, AppendOutcome::Committed(Seq::START));
    let late = change(&id, 4, set(&one), weaver.id(), weaver.now());
    let fault_of_version = PointerFault::Version { actual: 5, expected: 4 };
    let current_row = Some(Box::new(current.clone()));
    let wanted = ContractFault::Pointer { signature: id.clone(), fault: fault_of_version, current: current_row };
    assert_eq!(fault(apart(&mut weaver, store, [late]).await), wanted);
    let foreign = change(&id, 5, set(&strange), weaver.id(), weaver.now());
    assert!(matches!(fault(apart(&mut weaver, store, [foreign]).await), ContractFault::Foreign { .. }));
    assert_eq!(store.pointer_audits(id.clone(), PageRequest::FIRST).await.expect("audits").items.len(), 5);
    // Roll back three times, then to the first artifact; after that no earlier state is left.
    let served = [(&two, 0), (&one, 10), (&one, 0)];
    for (version, (primary, percent)) in (5..).zip(served) {
        let row = change(&id, version, PointerOperation::Rollback { to: None }, weaver.id(), weaver.now());
        assert_eq!(apart(&mut weaver, store, [row]).await, AppendOutcome::Committed(Seq::START));
        let now = store.pointer(id.clone()).await.expect("a pointer").expect("it is there");
        assert_eq!((now.version, &now.primary_artifact, now.canary_percent), (version + 1, primary, percent));
    }
    let row = change(&id, 8, PointerOperation::Rollback { to: Some(audits[1].audit_id) }, weaver.id(), weaver.now());
    assert_eq!(apart(&mut weaver, store, [row]).await, AppendOutcome::Committed(Seq::START));
    let now = store.pointer(id.clone()).await.expect("a pointer").expect("it is there");
    assert_eq!((now.version, &now.primary_artifact), (9, &base));
    let row = change(&id, 9, PointerOperation::Rollback { to: None }, weaver.id(), weaver.now());
    let nothing = fault(apart(&mut weaver, store, [row]).await);
    assert!(matches!(nothing, ContractFault::Pointer { fault: PointerFault::NothingToUndo, .. }), "{nothing:?}");
    assert_eq!(store.pointers().await.expect("pointers"), [now]);
}

pub(super) async fn of_writers_with_one_version_one_wins<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let sort = signature("Sort", 1, "Sort it.");
    let id = sort.id().clone();
    publish(&mut weaver, store, &sort).await;
    for version in 0..3 {
        let mut steps = Vec::new();
        for n in 0..8 {
            let artifact = candidate(&mut weaver, store, &sort, &format!("Way {version} {n}.")).await;
            let row = change(&id, version, set(&artifact), weaver.id(), weaver.now());
            steps.push(Step::outside_runs(weaver.step_id()).contract(row));
        }
        let answers = join_all(steps.into_iter().map(|step| append(store, step))).await;
        let (won, lost): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answer| *answer == AppendOutcome::Committed(Seq::START));
        assert_eq!((won.len(), lost.len()), (1, 7));
        for answer in lost {
            let fault = fault(answer);
            assert!(matches!(fault, ContractFault::Pointer { fault: PointerFault::Version { .. }, .. }), "{fault:?}");
        }
        let audits = store.pointer_audits(id.clone(), PageRequest::FIRST).await.expect("audits").items;
        assert_eq!(audits.len() as u64, version + 1);
    }
}

pub(super) async fn a_predict_has_one_key_one_end_and_one_receipt<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let sort = signature("Sort", 1, "Sort it.");
    publish(&mut weaver, store, &sort).await;
    let episode = weaver.cast("count").await;
    let (id, now): (PredictId, _) = (weaver.id(), weaver.now());
    let row = predict_row(&episode, id, &sort, Some("k"), now);
    let opens = weaver.step_with(&episode, odd(1)).contract(ContractRow::Predict(Box::new(row.clone())));
    assert_eq!(append(store, opens.clone()).await, AppendOutcome::Committed(Seq::new(4)));
    assert_eq!(
        append(store, opens).await,
        AppendOutcome::Committed(Seq::new(4)),
        "asked again it is answered as it was"
    );
    let key = row.key().expect("it has one");
    assert_eq!(store.predict_of_key(key.clone()).await.expect("a key"), Some(row.clone()));
    // The key is taken only for this owner and signature.
    let other = predict_row(&episode, weaver.id(), &sort, Some("k"), now);
    let step = weaver.step_with(&episode, odd(2)).contract(ContractRow::Predict(Box::new(other.clone())));
    assert_eq!(fault(append(store, step).await), ContractFault::KeyTaken { key: "k".to_owned(), predict: id });
    let elsewhere = PredictRow { owner: "service:other".to_owned(), ..other };
    let step = weaver.step_with(&episode, odd(2)).contract(ContractRow::Predict(Box::new(elsewhere)));
    assert_eq!(append(store, step).await, AppendOutcome::Committed(Seq::new(5)), "what was refused left no record");
    // A fenced step writes nothing.
    let end = PredictEnd { status: Status::Succeeded, output_hash: Some(hash(&json!({"text": "b"}))), at: now };
    let ended = || ContractRow::PredictEnded { predict_id: id, end: end.clone() };
    let told = || draft(receipt(&episode, Some(id), Status::Succeeded, now), Vec::new());
    let stale =
        cantrip_loom::Lease { owner: cantrip_loom::WorkerId::new("another").expect("a name"), ..episode.lease.clone() };
    let step = Step::for_lease(weaver.step_id(), stale).record(weaver.draft(odd(3))).contract(ended()).contract(told());
    assert!(matches!(append(store, step).await, AppendOutcome::Fenced { .. }));
    assert_eq!(store.receipt_of(id).await.expect("an answer"), None);
    let closes = weaver.step_with(&episode, odd(3)).contract(ended()).contract(told());
    assert_eq!(append(store, closes.clone()).await, AppendOutcome::Committed(Seq::new(6)));
    assert_eq!(append(store, closes).await, AppendOutcome::Committed(Seq::new(6)));
    assert_eq!(store.predict(id).await.expect("it is there").end, Some(end.clone()));
    let kept = store.receipt_of(id).await.expect("an answer").expect("it has one");
    assert_eq!(store.receipt(kept.receipt_id.clone()).await.expect("it is there"), kept);
    assert_eq!(kept.receipt().expect("it is what was written").predict_id, Some(id));
    let other = PredictEnd { status: Status::Failed, ..end };
    let step = weaver.step_with(&episode, odd(4)).contract(ContractRow::PredictEnded { predict_id: id, end: other });
    assert_eq!(fault(append(store, step).await), ContractFault::PredictEnded(id));
}

pub(super) async fn receipts_of_a_run_are_a_chain_and_hold_its_sums<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let funds = weaver.authorize(budget(100_000)).await;
    let episode = weaver.cast("count").await;
    let mut ids = Vec::new();
    for (n, actual) in [(1_u64, 12_900), (2, 25_000)] {
        let turn = weaver.id();
        let mut held = reserve(&mut weaver, &episode, turn, 1, 20_000);
        held.hold.authorization = funds;
        let (id, now) = (held.hold.id(), weaver.now());
        let step = weaver.step_with(&episode, odd(n)).money(Operation::Reserve(Box::new(held)));
        assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
        let actual = Money::new(actual, Currency::USD).expect("a small amount");
        // The step that has the receipt also settles the money.
        let told = draft(receipt(&episode, None, Status::Succeeded, now), vec![id.to_string()]);
        let step =
            weaver.step_with(&episode, odd(n)).money(Operation::commit(id.clone(), actual, None, now)).contract(told);
        assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
        ids.push(id.to_string());
    }
    let free = draft(receipt(&episode, None, Status::Cancelled, weaver.now()), Vec::new());
    let step = weaver.step_with(&episode, odd(3)).contract(free);
    assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
    let wanted = ReceiptFilter { run: Some(episode.run), ..ReceiptFilter::default() };
    let kept = store.receipts(wanted.clone(), PageRequest::FIRST).await.expect("receipts").items;
    let read: Vec<Receipt> = kept.iter().map(|row| row.receipt().expect("it is what was written")).collect();
    let bodies: Vec<Value> = read.iter().map(Receipt::body).collect();
    let chain = kept.iter().map(|row| &row.receipt_id).zip(&bodies);
    assert_eq!(verify_chain(chain), Ok(3));
    let sums = |receipt: &Receipt| {
        let budget = &receipt.budget;
        (budget.reserved, budget.captured, budget.released, budget.overage, budget.remaining)
    };
    assert_eq!(sums(&read[0]), (20_000, 12_900, 7_100, 0, Some(87_100)));
    assert_eq!(sums(&read[1]), (20_000, 25_000, 0, 5_000, Some(62_100)));
    assert_eq!(sums(&read[2]), (0, 0, 0, 0, None));
    assert_eq!(read[0].budget.reservation_ids, [ids[0].clone()]);
    let policy = &read[1].policy;
    assert_eq!(policy.authorization_id, Some(funds.to_string()));
    assert_eq!(
        (policy.authorization_revision, policy.authorization_mode.as_deref()),
        (Some(1), Some("delegated_budget"))
    );
    assert_eq!(
        (policy.decision.as_deref(), policy.reason_code.as_deref()),
        (Some("allowed"), Some("policy_allowed.default"))
    );
    assert_eq!(read[2].policy.decision, None, "nobody was asked about it");
    let latest = ReceiptFilter { latest_first: true, ..wanted };
    let first = store.receipts(latest.clone(), PageRequest { after: None, most: 1 }).await.expect("receipts");
    assert_eq!(first.items, [kept[2].clone()]);
    let next = store.receipts(latest, PageRequest { after: first.next, most: 5 }).await.expect("receipts");
    assert_eq!((next.items, next.next), (vec![kept[1].clone(), kept[0].clone()], None));
}

pub(super) async fn a_refused_reserve_leaves_the_receipt_that_says_so<J: Store>(
    store: &J,
    mut weaver: LoomWriter<'_, J>,
) {
    let sort = signature("Sort", 1, "Sort it.");
    publish(&mut weaver, store, &sort).await;
    let funds = weaver.authorize(budget(10)).await;
    let episode = weaver.cast("count").await;
    let (id, now): (PredictId, _) = (weaver.id(), weaver.now());
    let turn = weaver.id();
    let mut dear = reserve(&mut weaver, &episode, turn, 1, 11);
    dear.hold.authorization = funds;
    let end = PredictEnd { status: Status::Denied, output_hash: None, at: now };
    let denied = PredictRow { end: Some(end), ..predict_row(&episode, id, &sort, None, now) };
    let mut step = weaver
        .step_with(&episode, odd(1))
        .money(Operation::Reserve(Box::new(dear)))
        .contract(ContractRow::Predict(Box::new(predict_row(&episode, id, &sort, Some("k"), now))))
        .if_refused(weaver.draft(odd(2)));
    step.contract_if_refused = vec![
        ContractRow::Predict(Box::new(denied)),
        draft(receipt(&episode, Some(id), Status::Denied, now), Vec::new()),
    ];
    assert!(matches!(append(store, step).await, AppendOutcome::Refused(_)));
    let kept = store.receipt_of(id).await.expect("an answer").expect("a denial has a receipt");
    let told = kept.receipt().expect("it is what was written");
    assert_eq!((told.status, told.output_hash), (Status::Denied, None));
    assert_eq!(told.policy.decision.as_deref(), Some("denied"));
    assert_eq!(told.policy.reason_code.as_deref(), Some("policy_denied.budget_exhausted"));
    assert_eq!((told.budget.reserved, told.budget.remaining), (0, Some(10)));
    let row = store.predict(id).await.expect("it is there");
    assert_eq!((row.idempotency_key, row.end.map(|end| end.status)), (None, Some(Status::Denied)));
    let records = store.read(episode.run, Seq::new(3)).try_collect::<Vec<_>>().await.expect("records");
    assert_eq!(
        records.iter().map(|record| record.kind.as_str()).collect::<Vec<_>>(),
        ["weather.changed", "policy.decision"]
    );
}

pub(super) async fn a_trace_goes_from_its_row_to_its_object<J: Store>(store: &J, mut weaver: LoomWriter<'_, J>) {
    let sort = signature("Sort", 1, "Sort it.");
    publish(&mut weaver, store, &sort).await;
    let episode = weaver.cast("count").await;
    let (id, now): (PredictId, _) = (weaver.id(), weaver.now());
    let payload = format!("{{\"long\":\"{}\"}}", "x".repeat(5_000));
    let trace_hash = cantrip_canon::bytes_hash(payload.as_bytes());
    let row = TraceRow {
        trace_ref: format!("trace:{}:{}", episode.run, trace_hash.hex(20)),
        run_id: episode.run,
        predict_id: id,
        trace_hash,
        storage: TraceStorage::External,
        state: TraceState::Pending,
        uri: Some("file:///somewhere".to_owned()),
        bytes: payload.len() as u64,
        payload: Some(payload),
        created_at: now,
        stored_at: None,
        expires_at: None,
        deleted_at: None,
        deleted_by: None,
    };
    let name = row.trace_ref.clone();
    let step = weaver
        .step_with(&episode, odd(1))
        .contract(ContractRow::Predict(Box::new(predict_row(&episode, id, &sort, None, now))))
        .contract(ContractRow::Trace(Box::new(row.clone())));
    assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
    assert_eq!(store.trace(name.clone()).await.expect("it is there"), row);
    assert_eq!(
        store.traces(TraceState::Pending, PageRequest::FIRST).await.expect("traces").items,
        std::slice::from_ref(&row)
    );
    let moved = |to| ContractRow::TraceMoved { trace_ref: name.clone(), to };
    let stored = TraceMove::Stored { summary: "{}".to_owned(), at: now };
    for _ in 0..2 {
        // Without the lease, because the run may be over.
        let step = Step::annotation(weaver.step_id(), episode.run).contract(moved(stored.clone()));
        assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
    }
    let now_stored =
        TraceRow { state: TraceState::Stored, payload: Some("{}".to_owned()), stored_at: Some(now), ..row };
    assert_eq!(store.trace(name.clone()).await.expect("it is there"), now_stored);
    assert!(store.traces(TraceState::Pending, PageRequest::FIRST).await.expect("traces").items.is_empty());
    let expired = TraceMove::Expired { by: "retention".to_owned(), at: now };
    let step = Step::annotation(weaver.step_id(), episode.run).contract(moved(expired));
    assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
    let left = store.trace(name.clone()).await.expect("it is there");
    assert_eq!((left.state, left.payload, left.trace_hash), (TraceState::Expired, None, trace_hash));
    let step = Step::annotation(weaver.step_id(), episode.run).contract(moved(stored));
    assert!(matches!(fault(append(store, step).await), ContractFault::Trace { .. }));
}

pub(super) async fn contracts_survive_reopening<S: Subject>(subject: S) {
    let sort = signature("Sort", 1, "Sort it.");
    let id = sort.id().clone();
    let told = {
        let store = subject.store();
        let mut weaver = LoomWriter::new(store);
        let base = publish(&mut weaver, store, &sort).await;
        let row = change(&id, 0, set(&base), weaver.id(), weaver.now());
        assert_eq!(apart(&mut weaver, store, [row]).await, AppendOutcome::Committed(Seq::START));
        let episode = weaver.cast("count").await;
        let row = draft(receipt(&episode, None, Status::Succeeded, weaver.now()), Vec::new());
        let step = weaver.step_with(&episode, odd(1)).contract(row);
        assert!(matches!(append(store, step).await, AppendOutcome::Committed(_)));
        store.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.expect("receipts").items
    };
    let Some(again) = subject.reopen().await else { return };
    let store = again.store();
    let found = store.signature(id.clone()).await.expect("it is there").signature().expect("as it was written");
    assert_eq!(found.hashes(), sort.hashes());
    assert_eq!(store.pointer(id.clone()).await.expect("a pointer").map(|pointer| pointer.version), Some(1));
    assert_eq!(store.receipts(ReceiptFilter::default(), PageRequest::FIRST).await.expect("receipts").items, told);
    let mut weaver = LoomWriter::seeded(store, 99);
    let row = change(&id, 1, PointerOperation::Rollback { to: None }, weaver.id(), weaver.now());
    assert!(matches!(
        fault(apart(&mut weaver, store, [row]).await),
        ContractFault::Pointer { fault: PointerFault::NothingToUndo, .. }
    ));
}
