//! The file gates and files that influence later casts: any entity may read them, and writing needs a person's
//! approval.

use std::fs;
use std::os::unix::fs::symlink;

use cantrip_circle::gate::StopSignal;
use cantrip_circle::gate::builtin::{Root, edit, read, write};
use cantrip_circle::{ApprovalReason, CallerState, Circle, Decision, Effect};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::gates::{call, circle, decide, guard, identity, refused, trace, value};

const NAMES: [&str; 4] = ["AGENTS.md", "cantrip.toml", "spells/other.toml", "own.toml"];

fn project() -> (TempDir, Circle) {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("spells")).unwrap();
    for name in NAMES.into_iter().chain(["notes.md"]) {
        fs::write(folder.path().join(name), "as it was").unwrap();
    }
    let root = || Some(Root::at(folder.path()).unwrap().with_spells(["own.toml"]));
    let circle = circle([read(root()), write(root()), edit(root())], json!({}));
    (folder, circle)
}

fn writing(path: &str) -> [(&'static str, Value); 2] {
    [("write", json!({"path": path, "content": "planted"})), ("edit", json!({"path": path, "old": "as", "new": "x"}))]
}

#[tokio::test]
async fn writing_what_decides_about_later_casts_needs_an_approval_that_names_the_danger() {
    let (folder, circle) = project();
    for name in NAMES {
        assert_eq!(value(&call(&circle, "read", json!({"path": name})).await), "as it was", "reading is allowed");
        for (gate, arguments) in writing(name) {
            let Decision::NeedsApproval { reasons, .. } = decide(&circle, gate, arguments.clone()) else {
                panic!("{gate} of {name} needs no approval");
            };
            let [ApprovalReason::Protected(danger)] = reasons.as_slice() else { panic!("{reasons:?}") };
            assert_eq!(danger.path, name);
            assert!(!danger.reason.is_empty());
            // If no person can be asked, the call is denied.
            let reply = refused(&circle, gate, arguments, &CallerState::default());
            assert_code(&reply, codes::WRITE_PROTECTED);
        }
        assert_eq!(fs::read_to_string(folder.path().join(name)).unwrap(), "as it was");
    }
    // After a person has approved it, the file is written.
    let allowed = decide(&circle, "write", json!({"path": "AGENTS.md", "content": "agreed"}));
    let Decision::NeedsApproval { then: Effect::Execute(permit), .. } = allowed else { panic!("{allowed:?}") };
    let guard = guard();
    let executed = permit.execute(&guard, &trace(&guard), Some(identity()), None, StopSignal::never()).await;
    assert_code(&executed.guarded.reply, codes::WRITTEN);
    assert_eq!(fs::read_to_string(folder.path().join("AGENTS.md")).unwrap(), "agreed");
    assert_code(&call(&circle, "write", json!({"path": "notes.md", "content": "free"})).await, codes::WRITTEN);
}

#[tokio::test]
async fn attack_other_names_of_what_decides_about_later_casts() {
    let (folder, circle) = project();
    for path in [
        "./AGENTS.md",
        "spells/../AGENTS.md",
        "agents.md",
        "Agents.MD",
        "AGENTS.md.",
        "AGENTS\u{200b}.md",
        "CANTRIP.toml",
        "SPELLS/new.toml",
        "OWN.toml",
        "sub/AGENTS.md",
    ] {
        for (gate, arguments) in writing(path) {
            let decided = decide(&circle, gate, arguments);
            assert!(matches!(decided, Decision::NeedsApproval { .. }), "{gate} of {path}: {decided:?}");
        }
    }
    // A link is followed to its target, and the target was not approved.
    symlink("AGENTS.md", folder.path().join("link")).unwrap();
    symlink("spells", folder.path().join("folder")).unwrap();
    for path in ["link", "folder/other.toml", "folder/new.toml"] {
        let reply = call(&circle, "write", json!({"path": path, "content": "planted"})).await;
        assert_code(&reply, codes::WRITE_PROTECTED);
    }
    // Writing to a hard link creates a separate file.
    fs::hard_link(folder.path().join("cantrip.toml"), folder.path().join("second")).unwrap();
    assert_code(&call(&circle, "write", json!({"path": "second", "content": "free"})).await, codes::WRITTEN);
    for name in NAMES {
        assert_eq!(fs::read_to_string(folder.path().join(name)).unwrap(), "as it was", "{name}");
    }
    assert!(!folder.path().join("spells/new.toml").exists());
}
