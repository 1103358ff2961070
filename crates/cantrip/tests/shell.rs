//! A shell in a cast: it lives as long as its entity, and no fork or second process assumes that it lived longer.

use cantrip::{CastOptions, ForkOptions};
use cantrip_circle::MediumKind;
use cantrip_loom::{Loom, PageRequest, Settlement};
use cantrip_medium_shell::Shell;
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::{Value, json};

use crate::support::{call, done, memory, script, talking};

fn ran(result: &Value) -> &str {
    result["output"].as_str().unwrap()
}

async fn results(runtime: &cantrip::Runtime, cantrip: &cantrip::Cantrip) -> Vec<Value> {
    let turns = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items;
    let records = turns.iter().flat_map(|turn| &turn.gate_calls);
    records
        .filter(|record| record.gate == "shell")
        .filter_map(|record| match &record.settlement {
            Settlement::Settled(settled) => Some(settled.result.clone()),
            Settlement::Delegated => None,
        })
        .collect()
}

fn shell(command: &str) -> cantrip_crystal::Response {
    call("shell", json!({ "command": command }))
}

#[tokio::test]
async fn a_shell_lasts_through_a_cast_and_through_the_sends_of_one_entity() {
    let folder = tempfile::tempdir().unwrap();
    let crystal = script([shell("x=1; cd /tmp"), shell("echo $x $PWD"), done(1), shell("echo $x again"), done(2)]);
    let cantrip = talking(&crystal).medium(MediumKind::Shell).gate(Shell::over(folder.path()).gate()).build().unwrap();
    let runtime = memory();
    let entity = runtime.summon(&cantrip, None).await.unwrap();
    assert_eq!(entity.send("go").await.answer(), Some(&json!(1)));
    assert_eq!(entity.send("on").await.answer(), Some(&json!(2)));
    let found = results(&runtime, &cantrip).await;
    assert_eq!((ran(&found[1]), ran(&found[2])), ("1 /tmp\n", "1 again\n"));
    // The shell is the first of the tools.
    let asked = crystal.requests();
    assert_eq!(asked[0].definitions.iter().map(|tool| &*tool.name).collect::<Vec<_>>()[0], "shell");
}

#[tokio::test]
async fn a_fork_of_a_shell_begins_anew_or_not_at_all_and_says_so() {
    for medium in [MediumKind::Shell, MediumKind::Conversation] {
        let folder = tempfile::tempdir().unwrap();
        let crystal = script([shell("x=1"), done(1), shell("echo x=$x"), done(2)]);
        let cantrip = talking(&crystal).medium(medium).gate(Shell::over(folder.path()).gate()).build().unwrap();
        let runtime = memory();
        assert_eq!(runtime.cast(&cantrip, CastOptions::on("go")).await.answer(), Some(&json!(1)));
        let first = runtime.loom().turns(cantrip.loom_id(), PageRequest::FIRST).await.unwrap().items[0].id;
        assert_code(runtime.fork(&cantrip, first, ForkOptions::on("on")).await.reply(), codes::NOT_RESTORABLE);
        let fresh = runtime.fork(&cantrip, first, ForkOptions::on("on").fresh()).await;
        assert_eq!(fresh.answer(), Some(&json!(2)));
        let found = results(&runtime, &cantrip).await;
        assert_eq!(ran(&found[1]), "[environment lost: a shell cannot be restored]\nx=\n");
    }
}
