//! Programs and hosts that a spell names: a fault is reported when the spell is loaded, before anything is cast and
//! before a person is asked.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use cantrip_reply::codes;
use serde_json::json;

use crate::providers::Provider;
use crate::support::{Folder, stderr, stdout};

/// A script that calls the gate `stock` and answers with what the gate returned.
const SCRIPT: &str = "responses:\n  - code: done(stock().left)\n";

/// Writes a spell with the gate `stock`.
fn shop(folder: &Folder, gate: &str, further: &str) {
    folder.write(
        "shop.toml",
        &format!(
            "name = \"shop\"\ncrystal = \"scripted/shop.yaml\"\nmedium = \"javascript\"\n[gates.stock]\n{gate}\n\
             labels = []\n{further}"
        ),
    );
    folder.write("shop.yaml", SCRIPT);
}

/// Casts the shop. Returns the message, which has to be the same for programs and people.
#[track_caller]
fn refused(folder: &Folder) -> String {
    let envelope = folder.envelope(&["cast", "shop.toml", "count"], codes::CONFIG_INVALID.any());
    let message = envelope["message"].as_str().expect("a text").to_owned();
    let output = folder.run(&["cast", "shop.toml", "count"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{output:?}");
    assert!(stderr(&output).contains(&message), "{message}: {output:?}");
    assert!(!folder.path().join("kept").exists(), "something was cast");
    message
}

fn write_program(folder: &Folder, name: &str, text: &str) {
    folder.write(name, text);
    fs::set_permissions(folder.path().join(name), PermissionsExt::from_mode(0o755)).expect("a script");
}

#[test]
fn a_program_that_cannot_be_started_is_reported_before_the_cast_with_its_line() {
    let folder = Folder::new();
    write_program(&folder, "stock.sh", "#!/bin/sh\necho '{\"left\": 3}'\n");
    folder.write("plain.sh", "#!/bin/sh\n");
    fs::create_dir(folder.path().join("shelf")).expect("a folder");
    for (program, fault) in [
        ("./stok.sh", "./stok.sh: no such file"),
        ("./plain.sh", "./plain.sh: the file is not executable; chmod +x makes it so"),
        ("./shelf", "./shelf: not a program, but a folder or a device"),
        ("no-such-program-anywhere", "no-such-program-anywhere: no such program in PATH"),
        ("stock.sh", "stock.sh: no such program in PATH; the file beside the spell is written ./stock.sh"),
    ] {
        shop(&folder, &format!("command = [\"{program}\"]"), "");
        assert_eq!(refused(&folder), format!("shop.toml: gates.stock.command: line 4: {fault}"));
    }
    let verify = "[verify]\ncommand = [\"./chekc.sh\"]\n";
    shop(&folder, "command = [\"./stock.sh\"]", verify);
    let told = refused(&folder);
    assert!(told.contains("verify.command") && told.ends_with("./chekc.sh: no such file"), "{told}");
    // A program that is there is started, also by its bare name.
    shop(&folder, "command = [\"./stock.sh\"]", "");
    let output = folder.run(&["cast", "shop.toml", "count", "--quiet"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "3\n"), "{output:?}");
    shop(&folder, "command = [\"sh\", \"stock.sh\"]", "");
    let output = folder.run(&["cast", "shop.toml", "count", "--quiet"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "3\n"), "{output:?}");
}

#[test]
fn a_program_beside_a_spell_in_another_folder_is_started() {
    let folder = Folder::new();
    fs::create_dir(folder.path().join("spells")).expect("a folder");
    shop(&folder, "command = [\"./stock.sh\"]", "[verify]\ncommand = [\"./check.sh\"]\n");
    for file in ["shop.toml", "shop.yaml"] {
        fs::rename(folder.path().join(file), folder.path().join("spells").join(file)).expect("it moves");
    }
    write_program(&folder, "spells/stock.sh", "#!/bin/sh\necho '{\"left\": 4}'\n");
    write_program(&folder, "spells/check.sh", "#!/bin/sh\nread -r answer\n[ \"$answer\" = 4 ]\n");
    for spell in ["spells/shop.toml", "shop"] {
        let output = folder.run(&["cast", spell, "count", "--quiet"]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), "4\n"), "{output:?}");
    }
}

#[test]
fn a_program_that_is_gone_at_the_call_is_called_a_missing_file() {
    let folder = Folder::new();
    write_program(&folder, "stock.sh", "#!/no/such/interpreter\n");
    shop(&folder, "command = [\"./stock.sh\"]", "");
    folder.write("shop.yaml", "responses:\n  - code: |\n      try { stock() } catch (error) { done(error.message) }\n");
    let output = folder.run(&["cast", "shop.toml", "count", "--quiet"]);
    let told = stdout(&output);
    assert!(told.contains("no such file, or the interpreter in its first line is missing"), "{output:?}");
    assert!(!told.contains("entity not found"), "{output:?}");
}

#[test]
fn a_host_that_would_be_refused_is_reported_before_a_person_is_asked_with_the_line_that_allows_it() {
    let folder = Folder::new();
    let peer = Provider::telling(json!({"left": 5}).to_string());
    let host = peer.address.trim_start_matches("http://").to_owned();
    let url = format!("url = \"{}/stock\"", peer.address);
    shop(&folder, &url, "[wards]\nmax_turns = 3\nrequire_approval = [\"stock\"]\n");
    let told = refused(&folder);
    let allows = format!("allow_hosts = [\"{host}\"]");
    assert!(told.starts_with("shop.toml: gates.stock.url: line 4: ") && told.ends_with(&allows), "{told}");
    assert!(peer.asked().is_empty(), "the host was called");
    // The line works as it is printed.
    shop(&folder, &format!("{url}\n{allows}"), "[wards]\nmax_turns = 3\n");
    let output = folder.run(&["cast", "shop.toml", "count", "--quiet"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "5\n"), "{output:?}");

    let folder = Folder::new();
    for (url, says) in [
        ("http://localhost:8000/", "localhost:8000 is a private address"),
        ("http://[::1]:8000/", "allow_hosts = [\"[::1]:8000\"]"),
        ("http://10.1.2.3/{id}", "10.1.2.3:80 is a private address"),
        ("http://169.254.169.254/latest", "169.254.169.254:80 is a metadata service"),
    ] {
        shop(&folder, &format!("url = \"{url}\""), "");
        let told = refused(&folder);
        assert!(told.contains("gates.stock.url") && told.contains(says), "{told}");
    }
    // The same holds for a host that a ward of the spell refuses.
    shop(
        &folder,
        "url = \"https://stock.example.com/\"",
        "[wards]\nmax_turns = 3\nrestrict = { hosts = [\"example.com\"] }\n",
    );
    let told = refused(&folder);
    assert!(told.contains("the ward restrict refuses stock.example.com"), "{told}");
}
