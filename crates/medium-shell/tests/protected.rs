//! Files that decide about later casts: a shell can read and not change them, and new ones are renamed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::{Value, json};

use crate::shell::Entity;

fn unapproved(ran: &Value) -> Vec<String> {
    let files = ran["unapproved"]["files"].as_array().cloned().unwrap_or_default();
    let mut files: Vec<String> = files.iter().filter_map(|file| Some(file.as_str()?.to_owned())).collect();
    files.sort();
    files
}

#[tokio::test]
async fn attack_changing_what_decides_about_later_casts() {
    let entity = Entity::prepared(|folder, shell| {
        fs::create_dir_all(folder.join("spells")).unwrap();
        for name in ["AGENTS.md", "cantrip.toml", "spells/other.toml", "own.toml"] {
            fs::write(folder.join(name), "as it was").unwrap();
        }
        fs::hard_link(folder.join("AGENTS.md"), folder.join("notes.txt")).unwrap();
        symlink("cantrip.toml", folder.join("link")).unwrap();
        shell.spells([folder.join("own.toml")])
    });
    for command in [
        "echo planted > AGENTS.md",
        "echo planted >> cantrip.toml",
        "echo planted > link",
        "echo planted > notes.txt",
        "echo planted > spells/other.toml",
        "echo planted > own.toml",
        "rm -f AGENTS.md",
        "mv own.toml away.toml",
        "echo planted > new && mv new cantrip.toml",
        "ln AGENTS.md second && echo planted > second",
        "chmod 666 AGENTS.md && echo planted > AGENTS.md",
        "mv spells elsewhere && echo planted > elsewhere/other.toml",
        "perl -e 'rename(\"own.toml\", \"x\") or exit 1'",
    ] {
        let ran = entity.run(command).await;
        assert_ne!(ran["exit_status"], json!(0), "{command}: {ran}");
        for name in ["AGENTS.md", "cantrip.toml", "own.toml", "notes.txt"] {
            assert_eq!(fs::read_to_string(entity.path(name)).unwrap(), "as it was", "{command} changed {name}");
        }
    }
    let spell = ["spells/other.toml", "elsewhere/other.toml"].into_iter().find_map(|at| fs::read(entity.path(at)).ok());
    assert_eq!(spell.unwrap(), b"as it was");
    assert_eq!(entity.output("cat AGENTS.md own.toml").await, "as it wasas it was", "reading is allowed");
}

#[tokio::test]
async fn attack_reading_a_key_by_its_second_name() {
    let entity = Entity::prepared(|folder, shell| {
        fs::write(folder.join(".env"), "KEY=s3cret").unwrap();
        fs::hard_link(folder.join(".env"), folder.join("notes.txt")).unwrap();
        shell
    });
    // Whether the mask reads as an empty file or cannot be opened is up to the kernel.
    for name in [".env", "notes.txt"] {
        let read = entity.output(&format!("cat {name}")).await;
        assert!(!read.contains("s3cret"), "{name}: {read}");
    }
    let ran = entity.run("echo planted > notes.txt").await;
    assert_ne!(ran["exit_status"], json!(0), "{ran}");
    assert_eq!(fs::read_to_string(entity.path(".env")).unwrap(), "KEY=s3cret");
}

#[tokio::test]
async fn attack_making_anew_what_decides_about_later_casts() {
    let entity = Entity::new();
    let ran = entity
        .run(
            "mkdir -p deep spells && echo planted > AGENTS.md && echo planted > deep/cantrip.toml && \
             echo x > spells/new.toml && echo x > deep/agents.MD && ln -s /etc/passwd deep/AGENTS.md && echo fine > notes.md",
        )
        .await;
    assert_eq!(ran["exit_status"], json!(0), "{ran}");
    let wanted = ["AGENTS.md", "deep/AGENTS.md", "deep/agents.MD", "deep/cantrip.toml", "spells/new.toml"];
    assert_eq!(unapproved(&ran), wanted, "{ran}");
    for name in wanted {
        assert!(entity.path(name).symlink_metadata().is_err(), "{name} is still there");
        assert!(entity.path(&format!("{name}.unapproved")).symlink_metadata().is_ok(), "{name} is not kept");
    }
    assert_eq!(unapproved(&entity.run("echo nothing new").await), Vec::<String>::new());
    assert!(entity.path("notes.md").exists());
}

#[tokio::test]
async fn attack_a_repository_that_runs_programs_for_the_next_person() {
    let entity = Entity::new();
    let ran = entity.run("git init -q sub && cd sub && git config user.name a && echo x > x && git add x").await;
    assert_eq!((&ran["exit_status"], unapproved(&ran)), (&json!(0), Vec::new()), "{ran}");
    let ran = entity.run("git -c user.email=a@b.c commit -q -m one && git log --oneline | wc -l").await;
    assert_eq!((ran["output"].as_str(), unapproved(&ran)), (Some("1\n"), Vec::new()), "{ran}");
    let planted = "printf '#!/bin/sh\\ntouch ../ran\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit && \
                   git config core.fsmonitor ./run-me && mkdir ../other && echo 'gitdir: ../elsewhere' > ../other/.git";
    let ran = entity.run(planted).await;
    assert_eq!(ran["exit_status"], json!(0), "{ran}");
    assert_eq!(unapproved(&ran), ["other/.git", "sub/.git/config", "sub/.git/hooks/pre-commit"], "{ran}");
    // The next person commits, and no program of the attack runs.
    fs::write(entity.path("sub/y"), "y").unwrap();
    fs::write(entity.path("sub/run-me"), "#!/bin/sh\ntouch ../ran\n").unwrap();
    fs::set_permissions(entity.path("sub/run-me"), fs::Permissions::from_mode(0o755)).unwrap();
    for arguments in [&["status"][..], &["add", "y"], &["commit", "-q", "-m", "two"]] {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"];
        let output = std::process::Command::new("git")
            .args(identity)
            .args(arguments)
            .current_dir(entity.path("sub"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert!(!entity.path("ran").exists(), "a program of the cage was run on the host");
}

/// Later casts take their keys from a `.env`, and their history and prompts from a `.cantrip`.
#[tokio::test]
async fn attack_making_anew_what_later_casts_take_keys_and_history_from() {
    let entity = Entity::prepared(|folder, shell| {
        fs::create_dir(folder.join(".cantrip")).unwrap();
        fs::write(folder.join(".cantrip/loom.db"), "as it was").unwrap();
        shell
    });
    let ran = entity
        .run(
            "mkdir -p deep/.cantrip far && echo forged > deep/.cantrip/loom.db && ln -s deep/.cantrip far/.CANTRIP && \
             echo ANTHROPIC_API_KEY=planted > .env && echo x > .env.local && echo x > .env.example",
        )
        .await;
    assert_eq!(ran["exit_status"], json!(0), "{ran}");
    assert_eq!(unapproved(&ran), [".env", "deep/.cantrip", "far/.CANTRIP"], "{ran}");
    assert_eq!(fs::read_to_string(entity.path("deep/.cantrip.unapproved/loom.db")).unwrap(), "forged\n");
    assert_eq!(fs::read_to_string(entity.path(".env.unapproved")).unwrap(), "ANTHROPIC_API_KEY=planted\n");
    assert!(!entity.path(".env").exists() && !entity.path("deep/.cantrip").exists());
    assert!(entity.path(".env.local").exists() && entity.path(".env.example").exists());
    assert_eq!(fs::read_to_string(entity.path(".cantrip/loom.db")).unwrap(), "as it was", "the store stays");
    assert_eq!(unapproved(&entity.run("echo nothing new").await), Vec::<String>::new());
}

/// The new name of a renamed file may already be taken by a folder, which a rename does not replace.
#[tokio::test]
async fn attack_taking_the_names_under_which_files_are_put_aside() {
    let entity = Entity::new();
    let ran = entity
        .run(
            "mkdir -p AGENTS.md.unapproved/x .cantrip.unapproved/x .cantrip && echo planted > AGENTS.md && \
             echo first > cantrip.toml.unapproved && echo second > cantrip.toml",
        )
        .await;
    assert_eq!(unapproved(&ran), [".cantrip", "AGENTS.md", "cantrip.toml"], "{ran}");
    for name in [".cantrip", "AGENTS.md", "cantrip.toml"] {
        assert!(entity.path(name).symlink_metadata().is_err(), "{name} is still there");
    }
    assert_eq!(fs::read_to_string(entity.path("cantrip.toml.unapproved")).unwrap(), "first\n", "nothing is replaced");
}

/// Git treats a folder with the parts of a repository as a bare one, whatever its name is, and runs its programs for
/// any user.
#[tokio::test]
async fn attack_a_bare_repository_that_runs_programs_for_the_next_person() {
    let entity = Entity::new();
    let ran = entity.run("git init -q --bare harmless && git init -q --bare vendor").await;
    assert_eq!((&ran["exit_status"], unapproved(&ran)), (&json!(0), Vec::new()), "{ran}");
    let planted = "printf '#!/bin/sh\\ntouch ../ran\\n' > vendor/run-me && chmod +x vendor/run-me && \
                   cp vendor/run-me vendor/hooks/reference-transaction && cd vendor && git config core.bare false && \
                   git config core.worktree . && git config core.fsmonitor ./run-me && cd .. && mkdir second && \
                   cp harmless/HEAD second && echo ../vendor > second/commondir && mkdir config hooks && echo x > hooks/own";
    let ran = entity.run(planted).await;
    assert_eq!(ran["exit_status"], json!(0), "{ran}");
    assert_eq!(unapproved(&ran), ["second/commondir", "vendor/config", "vendor/hooks/reference-transaction"], "{ran}");
    assert!(entity.path("hooks/own").exists() && entity.path("harmless/config").exists());
    // The next person runs git there, and no program of the attack runs.
    let identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"];
    for arguments in [&["status"][..], &["symbolic-ref", "HEAD", "refs/heads/other"]] {
        let mut git = std::process::Command::new("git");
        // The result of git in such a folder does not matter here.
        git.args(identity).args(arguments).current_dir(entity.path("vendor")).output().unwrap();
    }
    assert!(!entity.path("ran").exists(), "a program of the cage was run on the host");
}
