//! Retention from the command line: the removed records, the remaining ones, and the audit of the removal.

use std::process::Output;

use cantrip_reply::testing::assert_envelope;
use cantrip_reply::{AnyCode, codes};
use serde_json::{Value, json};

use crate::support::{self, Folder, id, stderr, stdout};

fn stores() -> Vec<String> {
    [Some("sqlite:kept/loom.db".to_owned()), support::own_postgres()].into_iter().flatten().collect()
}

struct House {
    folder: Folder,
    store: String,
}

impl House {
    /// A store with this many finished casts.
    fn with_casts(store: &str, casts: usize) -> Self {
        let runtime = Self { folder: Folder::new(), store: store.to_owned() };
        runtime.folder.write("count.toml", "name = \"count\"\ncrystal = \"scripted/three.yaml\"\n[gates.echo]\n");
        runtime.folder.write(
            "three.yaml",
            "responses:\n  - tool_calls: [{id: c1, gate: echo, args: {text: hi}}]\n  \
             - tool_calls: [{id: c2, gate: done, args: {answer: 3}}]\n",
        );
        for _ in 0..casts {
            runtime.cast();
        }
        runtime
    }

    fn cast(&self) {
        let cast = self.run(&["cast", "count.toml", "how many?", "--quiet"]);
        assert_eq!(stdout(&cast), "3\n", "{cast:?}");
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.folder.run(&[arguments, &["--store", &self.store]].concat())
    }

    fn told(&self, arguments: &[&str], code: AnyCode, status: i32) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert_envelope(&reply, code);
        assert_eq!(output.status.code(), Some(status), "{reply}");
        reply
    }

    fn runs(&self) -> Vec<Value> {
        self.told(&["run", "ls"], codes::READ.any(), 0)["data"]["value"].as_array().unwrap().clone()
    }

    fn verified(&self) -> Value {
        self.told(&["loom", "verify"], codes::VERIFIED.any(), 0)["data"].clone()
    }
}

const OLD: [&str; 4] = ["retention", "apply", "--older-than", "0d"];

#[test]
fn nothing_is_removed_but_what_a_policy_covers_and_somebody_said_yes_to() {
    for store in stores() {
        let runtime = House::with_casts(&store, 2);
        let before = runtime.verified();
        assert_eq!(before.get("removed"), None, "{before}");
        let plan = runtime.told(&[&OLD[..], &["--dry-run"]].concat(), codes::READ.any(), 0)["data"]["value"].clone();
        let runs = plan["runs"].as_array().unwrap();
        assert_eq!((runs.len(), &plan["records"], &plan["kept"]), (2, &before["records"], &json!(0)), "{plan}");
        let drawn = runtime.run(&[&OLD[..], &["--dry-run"]].concat());
        let text = stdout(&drawn);
        assert!(text.contains("of 2 runs would be removed") && text.contains(id(&runs[0]["run_id"])), "{text}");
        // Recent runs, other kinds and other owners are not covered.
        let young = ["retention", "apply", "--older-than", "1d", "--dry-run"];
        let none = |arguments: &[&str]| {
            let plan = runtime.told(arguments, codes::READ.any(), 0);
            assert_eq!(plan["data"]["value"]["runs"], json!([]), "{plan}");
        };
        none(&young);
        for policy in ["older_than_days = 0\nkinds = [\"predict\"]\n", "older_than_days = 0\nowners = [\"user:7\"]\n"] {
            runtime.folder.write("policy.toml", policy);
            none(&["retention", "apply", "--policy", "policy.toml", "--dry-run"]);
        }
        for broken in ["older_than = 90\n", "older_than_days = \"many\"\n", "kinds = []\n"] {
            runtime.folder.write("policy.toml", broken);
            let apply = ["retention", "apply", "--policy", "policy.toml", "--because", "x", "--yes"];
            runtime.told(&apply, codes::UNPARSABLE.any(), 2);
        }
        let because = ["--because", "our policy", "--by", "ann"];
        for unclear in ["90", "d", "soon"] {
            let apply = [&["retention", "apply", "--older-than", unclear, "--yes"], &because[..]].concat();
            runtime.told(&apply, codes::CONFIG_INVALID.any(), 2);
        }
        // The message names all required options, in every form.
        let unsaid = runtime.run(&["retention", "apply"]);
        assert_eq!(unsaid.status.code(), Some(2), "{unsaid:?}");
        for option in ["--older-than", "--policy", "--because", "--dry-run"] {
            assert!(stderr(&unsaid).contains(option), "{option}: {unsaid:?}");
        }
        let unsaid = runtime.told(&["retention", "apply"], codes::CONFIG_INVALID.any(), 2);
        for option in ["--older-than", "--policy", "--because", "--dry-run"] {
            assert!(id(&unsaid["data"]["rule"]).contains(option), "{option}: {unsaid}");
        }
        let both = ["retention", "apply", "--older-than", "1d", "--policy", "policy.toml", "--dry-run"];
        runtime.told(&both, codes::CONFIG_INVALID.any(), 2);
        // There is no terminal here, so `--yes` is required, and a reason too.
        let unasked = runtime.run(&[&OLD[..], &because[..]].concat());
        assert_eq!(unasked.status.code(), Some(2), "{unasked:?}");
        assert!(stderr(&unasked).contains("--yes"), "{unasked:?}");
        runtime.told(&[&OLD[..], &["--because", "  ", "--yes"]].concat(), codes::SCHEMA.any(), 2);
        assert_eq!(runtime.verified(), before, "nothing was removed");
        let nothing = runtime.told(&["retention", "ls"], codes::READ.any(), 0);
        assert_eq!(nothing["data"]["value"]["items"], json!([]));
    }
    // A folder of JSON lines keeps everything.
    let runtime = House::with_casts("jsonl:kept", 1);
    runtime.told(&[&OLD[..], &["--because", "x", "--yes"]].concat(), codes::CONFIG_INVALID.any(), 2);
}

#[test]
fn a_removal_is_recorded_and_everything_else_still_works_and_verifies() {
    for store in stores() {
        let runtime = House::with_casts(&store, 2);
        let before = runtime.verified();
        let runs: Vec<String> = runtime.runs().iter().map(|run| id(&run["run_id"]).to_owned()).collect();
        let apply = [&OLD[..], &["--because", "our policy", "--by", "ann", "--yes"]].concat();
        let applied = runtime.told(&apply, codes::CHANGED.any(), 0);
        let data = &applied["data"];
        assert_eq!((&data["runs"], &data["records"], &data["skipped"]), (&json!(2), &before["records"], &json!(0)));
        // The audit of the removal: who, when, why, by which policy, of which run, through which hash.
        let listed = runtime.told(&["retention", "ls"], codes::READ.any(), 0);
        let removals = listed["data"]["value"]["items"].as_array().unwrap();
        assert_eq!((removals.len(), &json!(removals)), (2, &data["removals"]));
        for removal in removals {
            assert_eq!((&removal["actor"], &removal["reason"]), (&json!("ann"), &json!("our policy")), "{removal}");
            assert_eq!(removal["policy"], json!({"older_than_days": 0}));
            assert!(runs.iter().any(|run| removal["run_id"] == json!(run)), "{removal}");
            assert!(id(&removal["event_hash"]).starts_with("sha256:"), "{removal}");
            assert_eq!(removal["retention_id"], data["retention_id"]);
        }
        let text = runtime.run(&["retention", "ls"]);
        for part in ["ann: our policy", "older_than_days", "through", &runs[0], id(&data["retention_id"])] {
            assert!(stdout(&text).contains(part), "{part}: {text:?}");
        }
        // The rest verifies, and the verification reports what was removed.
        let verified = runtime.verified();
        assert_eq!(
            verified["removed"],
            json!({"runs": 2, "records": before["records"], "unrecorded": 0}),
            "{verified}"
        );
        let said = runtime.run(&["loom", "verify"]);
        let removed = format!("{} records of 2 runs were removed by retention", before["records"]);
        assert!(stdout(&said).contains(&removed) && said.status.success(), "{said:?}");
        for check in [&["receipt", "verify", "--all"][..], &["spend", "verify"]] {
            runtime.told(check, codes::VERIFIED.any(), 0);
        }
        // The runs are still known; their turns are gone, and every command that reads them says so.
        let known = runtime.runs();
        assert_eq!(known.len(), 2);
        let listed = runtime.run(&["run", "ls"]);
        for run in &known {
            let of_run = id(&run["run_id"]);
            let line = stdout(&listed).lines().find(|line| line.contains(of_run)).expect("its line").to_owned();
            let removal = removals.iter().find(|removal| removal["run_id"] == run["run_id"]).expect("its removal");
            assert_eq!(&run["removed"], removal, "{run}");
            assert!(line.contains("(records removed"), "{line}");
            let shown = runtime.told(&["run", "show", of_run], codes::READ.any(), 0);
            assert_eq!(&shown["data"]["value"]["removed"], removal, "{shown}");
            let page = runtime.run(&["run", "show", of_run]);
            for part in ["by ann: our policy", id(&removal["at"]), "{\"older_than_days\":0}", "retention ls"] {
                assert!(stdout(&page).contains(part), "{part}: {page:?}");
            }
        }
        let gone = runtime.told(&["loom", "thread", &runs[0]], codes::NOT_FOUND.any(), 2);
        assert_eq!(gone["data"]["reason"], "removed_by_retention", "{gone}");
        for list in
            [&["loom", "ls"][..], &["loom", "tree", "count"], &["loom", "export", "count", "--out", "left.jsonl"]]
        {
            let output = runtime.run(list);
            assert!(output.status.success(), "{list:?}: {output:?}");
        }
        assert_eq!(runtime.folder.read("left.jsonl"), "");
        // New casts work, and the next retention removes only the newer run.
        runtime.cast();
        let latest = runtime.runs().pop().expect("a run");
        assert_eq!((latest.get("removed"), &latest["intent"]), (None, &json!("how many?")), "{latest}");
        assert_eq!(runtime.told(&apply, codes::CHANGED.any(), 0)["data"]["runs"], 1);
        let listed = runtime.told(&["retention", "ls"], codes::READ.any(), 0);
        assert_eq!(listed["data"]["value"]["items"].as_array().unwrap().len(), 3);
        assert_eq!(runtime.verified()["removed"]["runs"], 3);
        runtime.cast();
        runtime.verified();
    }
}
