//! Small things on the screen that a newcomer stumbles over: names, numbers, amounts and the next command.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::json;

use crate::serve::Server;
use crate::signatures::SHOUT;
use crate::support::model::Model;
use crate::support::{Folder, stderr, stdout};

const STORE: &str = "sqlite:kept/loom.db";

/// A folder with a spell of this name, these gates and wards, and these responses of its script.
fn spell(name: &str, tables: &str, responses: &str) -> Folder {
    let folder = Folder::new();
    folder.write(
        &format!("{name}.toml"),
        &format!("name = \"{name}\"\ncrystal = \"scripted/{name}.yaml\"\n{tables}\nmax_turns = 9\n"),
    );
    folder.write(&format!("{name}.yaml"), &format!("responses:\n{responses}"));
    folder
}

const DONE: &str = "  - tool_calls: [{id: d, gate: done, args: {answer: over}}]\n";

#[test]
fn a_call_with_an_argument_named_code_is_shown_with_its_name_and_arguments() {
    let folder = spell(
        "shop",
        "[gates.stock]\ncommand = [\"cat\"]\nlabels = []\n[wards]",
        &format!("  - tool_calls: [{{id: a, gate: stock, args: {{code: A17, count: 2}}}}]\n{DONE}"),
    );
    let output = folder.run(&["cast", "shop.toml", "go"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "over\n"), "{output:?}");
    assert!(stderr(&output).contains("  > stock({\"code\":\"A17\",\"count\":2})\n"), "{output:?}");
}

#[test]
fn turns_keep_their_numbers_after_a_resume() {
    let folder = spell(
        "careful",
        "[gates.echo]\n[gates.write]\nroot = \".\"\n[wards]\nrequire_approval = [\"write\"]",
        &format!(
            "  - tool_calls: [{{id: a, gate: echo, args: {{text: one}}}}]\n  \
             - tool_calls: [{{id: b, gate: write, args: {{path: a.txt, content: hello}}}}]\n{DONE}"
        ),
    );
    let waiting = folder.run(&["cast", "careful.toml", "go", "--store", STORE]);
    assert_eq!(waiting.status.code(), Some(5), "{waiting:?}");
    assert!(stderr(&waiting).contains("turn 2 "), "{waiting:?}");
    folder.envelope(&["run", "approve", "--store", STORE], codes::CHANGED.any());
    let resumed = folder.run(&["run", "resume", "--store", STORE]);
    assert_eq!((resumed.status.code(), stdout(&resumed)), (Some(0), "over\n"), "{resumed:?}");
    let numbers: Vec<&str> =
        stderr(&resumed).lines().filter_map(|line| line.strip_prefix("turn ")?.split(' ').next()).collect();
    assert_eq!(numbers, ["2", "3"], "{resumed:?}");
}

#[test]
fn looms_have_their_names_in_any_folder() {
    let folder = Folder::new().with_hello();
    folder.envelope(&["cast", "hello.toml", "go", "--store", STORE], codes::TERMINATED.any());
    let store = format!("sqlite:{}", folder.path().join("kept/loom.db").display());
    fs::create_dir(folder.path().join("elsewhere")).expect("a folder");
    let listed = |folder: &Folder| {
        let mut command = folder.command(&["loom", "ls", "--store", &store]);
        command.current_dir(folder.path().join("elsewhere")).stdin(Stdio::null());
        command.output().expect("the binary runs")
    };
    assert!(stdout(&listed(&folder)).starts_with("hello  loom_"), "{:?}", listed(&folder));
    // The name is known even if the spell is gone.
    fs::remove_file(folder.path().join("hello.toml")).expect("it is there");
    assert!(stdout(&listed(&folder)).starts_with("hello  loom_"), "{:?}", listed(&folder));
}

#[test]
fn a_list_without_runs_says_so() {
    let folder = Folder::new().with_hello();
    folder.envelope(&["cast", "hello.toml", "go", "--store", STORE], codes::TERMINATED.any());
    let output = folder.run(&["run", "ls", "--state", "running", "--store", STORE]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "none\n"), "{output:?}");
}

/// A spell whose turns cost 0.03 USD each by the user's table of models.
fn priced() -> Folder {
    let turn = |n: u32| {
        format!(
            "  - {{tool_calls: [{{id: c{n}, gate: echo, args: {{text: turn {n}}}}}], \
             usage: {{prompt_tokens: 20000, completion_tokens: 1000}}}}\n"
        )
    };
    let turns: String = (1..=8).map(turn).collect();
    let tables = "[call]\nmax_tokens = 1000\n[gates.echo]\n[wards]\nmax_cost = \"0.10 USD\"";
    let folder = spell("paid", tables, &turns);
    fs::create_dir_all(folder.path().join(".config/cantrip")).expect("a folder");
    folder.write(
        ".config/cantrip/models.toml",
        "[[model]]\ncrystal = \"scripted/paid*\"\nprice = { input = \"1 USD\", output = \"10 USD\" }\n",
    );
    folder
}

#[test]
fn a_script_costs_what_the_users_table_says_and_the_end_of_a_budget_names_the_next_command() {
    let folder = priced();
    let output = folder.run(&["cast", "paid.toml", "go", "--store", STORE]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(3), ""), "{output:?}");
    let told = stderr(&output);
    assert!(told.contains("20000 tokens in, 1000 out · 0.03 USD"), "{told}");
    assert!(told.contains("truncated (max_cost)"), "{told}");
    let next = told.lines().find_map(|line| line.strip_prefix("  cantrip run continue run_")).expect("a command");
    assert!(next.contains(" --budget '1.00 USD'"), "{next}");
    // Without a price in the table, the same script is free and reaches the limit of its turns.
    fs::remove_file(folder.path().join(".config/cantrip/models.toml")).expect("it is there");
    let output = folder.run(&["cast", "paid.toml", "go", "--store", STORE]);
    assert!(!stderr(&output).contains("max_cost") && !stderr(&output).contains("0.03 USD"), "{output:?}");
}

#[test]
fn an_amount_without_a_currency_is_answered_with_what_to_write() {
    let folder = Folder::new().with_hello();
    let output = folder.run(&["cast", "hello.toml", "go", "--budget", "0.50"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{output:?}");
    assert!(stderr(&output).contains("0.50 has no currency: write \"0.50 USD\", in quotation marks"), "{output:?}");
    let pasted = folder.pasted("cantrip cast hello.toml go --quiet --budget \"0.50 USD\" --store sqlite:kept/loom.db");
    assert_eq!((pasted.status.code(), stdout(&pasted)), (Some(0), "hello from hello\n"), "{pasted:?}");
}

#[test]
fn an_input_that_stays_open_is_said_to_be_read() {
    let folder = Folder::new().with_hello();
    let mut command = folder.command(&["cast", "hello.toml", "go"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let input = child.stdin.take().expect("a pipe");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines().map(|line| line.expect("text"));
    let first = lines.next().expect("a line");
    assert!(first.starts_with("reading standard input until it is closed") && first.contains("< /dev/null"), "{first}");
    drop(input);
    lines.for_each(drop);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "hello from hello\n"), "{output:?}");
    // An input that ends at once needs no line.
    let output = folder.piped(&["cast", "hello.toml", "go"], "");
    assert!(!stderr(&output).contains("reading standard input"), "{output:?}");
}

#[test]
fn a_signature_is_named_over_http_as_on_the_command_line() {
    let model = Model::start(|_| {
        let arguments = json!({"answer": {"text": "HEY"}}).to_string();
        let call = json!({"id": "c1", "type": "function", "function": {"name": "done", "arguments": arguments}});
        json!({"role": "assistant", "content": null, "tool_calls": [call]})
    });
    let folder = Folder::new();
    folder.write("shout.toml", SHOUT);
    folder.envelope(&["sig", "add", "shout.toml", "--store", STORE], codes::CREATED.any());
    let server = Server::start(&folder, &["--store", STORE]);
    for name in ["Shout", "text/Shout.v1", "@me/text/Shout.v1"] {
        let asked = json!({"signature": name, "input": {"text": "hey"}, "crystal": model.crystal()});
        let (status, predicted) = server.ask("POST", "/v1/predict", Some(&asked));
        assert_eq!(status, 200, "{name}: {predicted}");
        assert_envelope(&predicted, codes::PREDICTED.any());
        assert_eq!(predicted["data"]["output"], json!({"text": "HEY"}), "{name}: {predicted}");
    }
    let unknown = json!({"signature": "Shuot", "input": {"text": "hey"}, "crystal": model.crystal()});
    let (_, refused) = server.ask("POST", "/v1/predict", Some(&unknown));
    assert_envelope(&refused, codes::CONTRACT_UNKNOWN.any());
}
