//! MCP servers in a spell: how their tools become gates.

use std::path::{Path, PathBuf};

use cantrip::Cantrip;
use cantrip_circle::Labels;
use cantrip_loom::{AnyLoom, MemoryLoom};
use cantrip_reply::codes;
use cantrip_reply::testing::{assert_any, guarded};
use cantrip_spell::{BuildContext, Spell};
use tempfile::TempDir;

fn server() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../gate-mcp/tests/server.py")
}

/// Returns a spell with the small server and further settings for it.
fn spell(folder: &TempDir, more: &str) -> Spell {
    std::fs::write(folder.path().join("s.yaml"), "responses:\n- content: hello\n").unwrap();
    let server = server();
    let text = format!(
        "crystal = 'scripted/s.yaml'\n[gates.small]\nmcp = ['python3', '{}']\n{more}\n[gates.echo]\n",
        server.display()
    );
    Spell::read(&text, "test.toml", folder.path()).unwrap_or_else(|fault| panic!("{fault}"))
}

fn built(folder: &TempDir, more: &str) -> Cantrip {
    let around = BuildContext { store: Some(AnyLoom::new(MemoryLoom::new())), ..BuildContext::default() };
    spell(folder, more).build(&around).unwrap_or_else(|fault| panic!("{fault}"))
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn the_tools_of_a_server_are_gates_behind_all_others_and_by_name() {
    let (folder, other) = (folder(), folder());
    let cantrip = built(&folder, "tools = ['sum', 'add']\nlabels = ['private_data']\nephemeral = true");
    let names: Vec<String> = cantrip.circle().definitions().iter().map(|gate| gate.name.clone()).collect();
    assert_eq!(&names[names.len() - 2..], ["small_add", "small_sum"], "{names:?}");
    let promises = cantrip.circle().gate("small_add").unwrap().spec().clone();
    assert_eq!(promises.labels, Labels::of(["private_data".parse().unwrap()]));
    assert!(promises.ephemeral);
    let unlabelled = built(&other, "tools = ['add']");
    assert_eq!(unlabelled.circle().gate("small_add").unwrap().spec().labels, Labels::all());
}

#[test]
fn a_changed_list_of_tools_is_another_cantrip() {
    let (same, changing) = (folder(), folder());
    // Every other environment starts the server again.
    let id = |folder: &TempDir, more: &str| built(folder, more).id().to_string();
    assert_eq!(id(&same, "environment = { N = '1' }"), id(&same, "environment = { N = '2' }"));
    let before = id(&changing, "environment = { CHANGES = 'yes', N = '1' }");
    assert_ne!(before, id(&changing, "environment = { CHANGES = 'yes', N = '2' }"));
}

#[test]
fn what_cannot_be_had_of_a_server_is_told_with_its_line() {
    let folder = folder();
    let told = |more: &str| {
        let fault = spell(&folder, more).build(&BuildContext::default()).unwrap_err();
        let guarded = guarded(|rb| rb.refuse(fault.into()));
        assert_any(&guarded.reply, codes::CONFIG_INVALID.any());
        guarded.reply.message()
    };
    assert!(told("tools = ['subtract']").contains("it offers no tool subtract"));
    assert!(told("environment = { KEY = '${NO_SUCH_VARIABLE}' }").contains("NO_SUCH_VARIABLE is not set"));
    let absent = "crystal = 'scripted/s.yaml'\n[gates.docs]\nmcp = ['no-such-mcp-server']\n";
    let absent = Spell::read(absent, "test.toml", folder.path()).unwrap();
    let fault = absent.build(&BuildContext::default()).unwrap_err();
    assert_any(&guarded(|rb| rb.refuse(fault.into())).reply, codes::UNREACHABLE.any());
}

#[test]
fn what_a_spell_says_wrong_about_a_server_is_told_when_it_is_read() {
    for (wrong, key) in [
        ("mcp = 'docs-mcp'", "gates.docs.mcp"),
        ("mcp = []", "gates.docs.mcp"),
        ("mcp = ['docs-mcp']\nheaders = { A = 'b' }", "gates.docs.headers"),
        ("mcp = 'https://example.com/mcp'\nenvironment = { A = 'b' }", "gates.docs.environment"),
        ("mcp = ['docs-mcp']\nparameters = { type = 'object' }", "gates.docs.parameters"),
    ] {
        let text = format!("crystal = 'scripted/s.yaml'\n[gates.docs]\n{wrong}\n");
        let fault = Spell::read(&text, "test.toml", ".").unwrap_err();
        let keys: Vec<&str> = fault.issues().iter().map(|issue| issue.key.as_str()).collect();
        assert_eq!(keys, [key], "{wrong}: {fault}");
    }
}
