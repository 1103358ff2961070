//! Spells as evaluations cast them: on copies of their folders, without the gates that reach further.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use cantrip_spell::{CopyFault, GateKind, Spell, TrialCopies, TrialRemoval};
use serde_json::json;
use tempfile::TempDir;

const SPELL: &str = r#"
name = "worker"
crystal = "scripted/script.yaml"
park = true
[gates.read]
root = "."
[gates.write]
root = "data"
[gates.fetch]
[gates.ask_human]
[gates.tell]
command = ["./tell.sh"]
labels = ["private_data"]
[gates.pay]
command = ["./pay.sh"]
labels = []
settlement = { most = "1 USD" }
[gates.docs]
mcp = ["docs-server"]
[gates.shell]
root = "data"
[wards]
max_turns = 5
[verify]
command = ["./check.sh"]
"#;

/// A folder with a project: data, a link, a repository and keys.
fn project() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("data/a.txt", "one"),
        ("data/deep/b.txt", "two"),
        (".git/config", "[core]"),
        (".env", "KEY=1"),
        ("top.txt", "top"),
    ] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    symlink("a.txt", folder.path().join("data/link.txt")).unwrap();
    folder
}

fn worker(folder: &Path) -> Spell {
    Spell::read(SPELL, "worker.toml", folder).unwrap_or_else(|fault| panic!("{fault}"))
}

fn names(gates: &[(String, TrialRemoval)]) -> Vec<(&str, &str)> {
    gates.iter().map(|(gate, reason)| (gate.as_str(), reason.as_str())).collect()
}

#[test]
fn the_gates_that_reach_further_are_removed_and_each_has_its_reason() {
    let folder = project();
    let spell = worker(folder.path());
    let gates = spell.trial_gates(&[]).unwrap();
    assert_eq!(
        names(&gates.removed),
        [
            ("fetch", "external_comm"),
            ("ask_human", "human"),
            ("tell", "effects"),
            ("pay", "settlement"),
            ("docs", "external_comm"),
            ("shell", "effects"),
            ("verify", "effects"),
        ]
    );
    let tried = spell.for_trial(&[], &TrialCopies::none()).unwrap();
    assert!(!tried.park && tried.verify.is_none());
    let wards = json!([{"max_turns": 5}, {"remove_gate": ["fetch", "ask_human", "tell", "pay", "shell"]}]);
    assert_eq!(tried.wards, wards, "a server is left out whole, the others are removed by ward");
    assert!(tried.gates.iter().all(|gate| gate.name != "docs"));
    // The gates that the caller allows stay; no person is asked, whatever is allowed.
    let allowed = ["shell", "verify", "ask_human"].map(str::to_owned);
    let gates = spell.trial_gates(&allowed).unwrap();
    assert_eq!(gates.let_through, ["shell", "verify"]);
    assert!(names(&gates.removed).contains(&("ask_human", "human")));
    let tried = spell.for_trial(&allowed, &TrialCopies::none()).unwrap();
    assert!(tried.verify.is_some());
    assert!(!tried.wards.to_string().contains("shell"));
    // A name that the spell does not have is a mistake.
    let fault = spell.trial_gates(&["serch".to_owned()]).unwrap_err().to_string();
    assert!(fault.contains("no gate serch"), "{fault}");
}

#[test]
fn a_trial_works_on_copies_without_keys_and_leaves_the_folders_alone() {
    let folder = project();
    let spell = worker(folder.path());
    let roots = spell.trial_roots();
    assert_eq!(roots, [folder.path().canonicalize().unwrap()], "the folder of the inner gate is part of the outer one");
    TrialCopies::check(&roots).unwrap();
    let beside = tempfile::tempdir().unwrap();
    let into = beside.path().join("trial");
    let copies = TrialCopies::make(&roots, &into).unwrap();
    assert_eq!(fs::metadata(&into).unwrap().permissions().mode() & 0o777, 0o700);
    let tried = spell.for_trial(&["shell".to_owned()], &copies).unwrap();
    let root_of = |name: &str| {
        let gate = tried.gates.iter().find(|gate| gate.name == name).unwrap();
        if let GateKind::Files { root, .. } = &gate.kind {
            return root.clone().unwrap();
        }
        let GateKind::Shell(shell) = &gate.kind else { panic!("{:?}", gate.kind) };
        shell.root.clone()
    };
    let copy = Path::new(&root_of("read")).to_owned();
    assert!(copy.starts_with(&into), "{}", copy.display());
    assert_eq!(Path::new(&root_of("write")), copy.join("data"), "both gates see the same files");
    assert_eq!(root_of("shell"), root_of("write"));
    assert_eq!(fs::read_to_string(copy.join("data/deep/b.txt")).unwrap(), "two");
    assert_eq!(fs::read_link(copy.join("data/link.txt")).unwrap(), Path::new("a.txt"));
    assert!(!copy.join(".git").exists() && !copy.join(".env").exists());
    fs::write(copy.join("data/a.txt"), "changed").unwrap();
    assert_eq!(fs::read_to_string(folder.path().join("data/a.txt")).unwrap(), "one");
    // A trial that is gone on with finds its files as it left them; a copy that is not whole is made again.
    TrialCopies::make(&roots, &into).unwrap();
    assert_eq!(fs::read_to_string(copy.join("data/a.txt")).unwrap(), "changed");
    fs::remove_file(into.join("complete")).unwrap();
    TrialCopies::make(&roots, &into).unwrap();
    assert_eq!(fs::read_to_string(copy.join("data/a.txt")).unwrap(), "one");
    TrialCopies::remove(&into).unwrap();
    TrialCopies::remove(&into).unwrap();
    assert!(!into.exists());
}

#[test]
fn folders_that_are_too_large_are_refused_before_anything_is_copied() {
    let folder = project();
    let large = fs::File::create(folder.path().join("large.bin")).unwrap();
    large.set_len(cantrip_spell::limits::TRIAL_FILES_BYTES_MAX).unwrap();
    let roots = worker(folder.path()).trial_roots();
    assert!(matches!(TrialCopies::check(&roots), Err(CopyFault::TooLarge)));
    let beside = tempfile::tempdir().unwrap();
    assert!(matches!(TrialCopies::make(&roots, &beside.path().join("trial")), Err(CopyFault::TooLarge)));
}
