//! Published, receipted and audited rows cannot be changed, not even by direct SQL.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod support;

use cantrip_canon::AuditId;
use cantrip_contract::{
    ArtifactRow, ChangeAuthor, ContractRow, OriginRow, PointerChange, PointerOperation, Provenance, SignatureOrigin,
    SignatureRow, built_in,
};
use cantrip_loom::{AppendOutcome, Contracts, Journal, PageRequest, Seq, Step, StepId};
use cantrip_loom_suite::{LoomWriter, at};
use cantrip_store::Store;
use futures_util::future::join_all;
use support::{Kit, RefusedBy, assert_refused};

on_both! {
    what_the_contracts_wrote_stays,
    two_stores_change_one_pointer_and_each_change_has_its_audit,
    a_store_without_contracts_gets_them,
}

async fn publish(store: &Store) {
    let mut step = Step::outside_runs(StepId::new("publish").unwrap());
    for signature in built_in() {
        let base = signature.base_artifact();
        step.contract.push(ContractRow::Signature(Box::new(SignatureRow::new(
            signature,
            SignatureOrigin::Builtin,
            "x",
            at(1),
        ))));
        step.contract.push(ContractRow::Artifact(Box::new(ArtifactRow::new(&base, at(1)))));
        step.contract.push(ContractRow::Origin(Box::new(OriginRow::new(base.id(), Provenance::Signature, "x", at(1)))));
    }
    assert_eq!(store.append(step).await.unwrap(), AppendOutcome::Committed(Seq::START));
}

fn serves(version: u64, seed: &str, id: AuditId) -> Step {
    let signature = &built_in()[0];
    let change =
        PointerOperation::Set { artifact: signature.base_artifact().id(), seed: Some(seed.to_owned()), metadata: None };
    let by = ChangeAuthor { audit_id: id, actor: "ann".to_owned(), reason: None, at: at(2) };
    let asked = PointerChange { signature_id: signature.id().clone(), expected_version: version, change, by };
    Step::outside_runs(StepId::new(format!("serve-{id}")).unwrap()).contract(ContractRow::Pointer(Box::new(asked)))
}

async fn what_the_contracts_wrote_stays<K: Kit>(kit: K) {
    let store = kit.store();
    publish(store).await;
    let mut weaver = LoomWriter::new(store);
    assert_eq!(store.append(serves(0, "default", weaver.id())).await.unwrap(), AppendOutcome::Committed(Seq::START));
    for (sql, by) in [
        ("UPDATE ds_signatures SET body = '{}'", RefusedBy::WrittenOnce),
        ("UPDATE ds_signatures SET schema_hash = prompt_hash", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_signatures", RefusedBy::Kept),
        ("UPDATE ds_artifacts SET body = '{}'", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_artifacts", RefusedBy::Kept),
        ("UPDATE ds_artifact_origins SET actor = 'bob'", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_artifact_origins", RefusedBy::Kept),
        ("UPDATE ds_pointer_audits SET actor = 'bob'", RefusedBy::WrittenOnce),
        ("DELETE FROM ds_pointer_audits", RefusedBy::Kept),
        ("DELETE FROM ds_artifact_pointers", RefusedBy::Kept),
        (
            "INSERT INTO ds_artifact_pointers (signature_id, primary_artifact, canary_percent, rollout_seed, metadata, \
             version, updated_at, updated_by) VALUES ('@cantrip/eval/Judge.v1', 'art_nothing', 0, 'default', '{}', 1, 0, 'x')",
            RefusedBy::ForeignKey,
        ),
        ("UPDATE ds_artifact_pointers SET canary_percent = 10", RefusedBy::Check),
        ("UPDATE ds_artifact_pointers SET canary_percent = 101", RefusedBy::Check),
    ] {
        assert_refused(&kit, sql, by);
    }
    kit.by_hand("UPDATE ds_signatures SET description = 'For people.'").unwrap();
    let rows = store.signatures(PageRequest::FIRST).await.unwrap().items;
    assert_eq!(rows.len(), built_in().len());
    for (row, signature) in rows.iter().zip(built_in()) {
        assert_eq!(row.signature().unwrap().hashes(), signature.hashes());
        assert_eq!(row.description, "For people.");
    }
    for row in store.artifacts(None, PageRequest::FIRST).await.unwrap().items {
        row.artifact().unwrap();
    }
}

async fn two_stores_change_one_pointer_and_each_change_has_its_audit<K: Kit>(kit: K) {
    let (one, two) = (kit.store(), kit.again().unwrap());
    publish(one).await;
    let signature = built_in()[0].id().clone();
    let mut weaver = LoomWriter::new(one);
    for version in 0..4 {
        let asked = (0..6).map(|n| serves(version, &format!("{version}-{n}"), weaver.id())).collect::<Vec<_>>();
        let writers =
            asked.into_iter().enumerate().map(|(n, step)| if n % 2 == 0 { one.append(step) } else { two.append(step) });
        let answers = join_all(writers).await;
        let won = answers.iter().filter(|answer| matches!(answer, Ok(AppendOutcome::Committed(_)))).count();
        assert_eq!(won, 1, "{answers:?}");
        assert!(
            answers.iter().all(|answer| matches!(answer, Ok(AppendOutcome::Committed(_) | AppendOutcome::Conflict(_)))),
            "{answers:?}"
        );
    }
    let audits = one.pointer_audits(signature.clone(), PageRequest::FIRST).await.unwrap().items;
    assert_eq!(audits.iter().map(|audit| audit.version_after).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let pointer = two.pointer(signature).await.unwrap().unwrap();
    assert_eq!(pointer, audits[3].after);
}

async fn a_store_without_contracts_gets_them<K: Kit>(kit: K) {
    let mut weaver = LoomWriter::new(kit.store());
    let episode = weaver.cast("count").await;
    // The store as a program without contracts wrote it.
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
    ];
    kit.by_hand(support::WITHOUT_OVERVIEW).unwrap();
    for table in support::IMPROVEMENT_TABLES.into_iter().chain(tables) {
        kit.by_hand(&format!("DROP TABLE {table}")).unwrap();
    }
    support::unpacked(&kit, &[episode.run]).await;
    kit.by_hand("DELETE FROM schema_versions WHERE version >= 3").unwrap();
    let kit = kit.reopen().await.unwrap();
    kit.store().verify().await.unwrap();
    publish(kit.store()).await;
    assert_eq!(kit.store().signatures(PageRequest::FIRST).await.unwrap().items.len(), built_in().len());
}
