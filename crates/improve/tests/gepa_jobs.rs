//! `gepa.v1` as a job: real predicts of scripted crystals, and a model that reflects.

use cantrip::loom::{AnyLoom, MemoryLoom};
use cantrip_improve::compile::CompileRequest;
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;

use crate::compile_world::{Office, REFLECT, Router, base, proposes, report_of, request, run_of};

#[tokio::test]
async fn a_compile_with_gepa_shows_its_model_train_tickets_alone() {
    let task = Router::right_if(|told| told.system.contains("by its last word"));
    let reflect = proposes("Route it by its last word.");
    let office = Office::new(&AnyLoom::new(MemoryLoom::new()), &task, &reflect);
    office.store_tickets(12, 8, 8).await;
    let asked = CompileRequest {
        reflect_model: Some(REFLECT.to_owned()),
        slots: Some(vec!["instructions".to_owned(), "hints".to_owned()]),
        ..request("gepa.v1")
    };
    let reply = office.start(asked).await;
    assert_code(&reply.guarded.reply, codes::COMPILED);
    let report = report_of(&reply);
    let winner = report.selected.clone().unwrap();
    assert_ne!(winner, base());
    let artifact = office.predictor.catalog().artifact(&winner.artifact().unwrap()).await.unwrap();
    assert_eq!(artifact.instructions(), "Route it by its last word.");
    assert_eq!((report.proposals.made, report.proposals.accepted), (reflect.asked() as u64, 1));
    let shown: Vec<String> = reflect.told.lock().unwrap().iter().map(|told| format!("{told:?}")).collect();
    assert!(!shown.is_empty());
    for shown in shown {
        assert!(shown.contains("train ticket"), "{shown}");
        assert!(shown.contains("at /team: expected"), "the feedback of the metric: {shown}");
        assert!(!shown.contains("holdout ticket") && !shown.contains("test ticket"), "{shown}");
    }
    office.assert_sound(run_of(&reply)).await;
}
