//! Variants of spells: their wards are narrower, and the edited file reads as the spell that was tried.

use std::collections::BTreeMap;

use cantrip_spell::{Spell, SpellChange};
use cantrip_tests::garble;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn read(text: &str) -> Spell {
    Spell::read(text, "worker.toml", ".").unwrap_or_else(|fault| panic!("{fault}\n{text}"))
}

fn change(prompt: Option<&str>, gates: &[(&str, &str)], wards: Value) -> SpellChange {
    let Value::Object(wards) = wards else { panic!("{wards} is no table") };
    SpellChange {
        system_prompt: prompt.map(str::to_owned),
        descriptions: gates.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
        wards,
    }
}

fn prompted(prompt: &str) -> SpellChange {
    change(Some(prompt), &[], json!({}))
}

fn described(gate: &str, text: &str) -> SpellChange {
    change(None, &[(gate, text)], json!({}))
}

fn warded(wards: Value) -> SpellChange {
    change(None, &[], wards)
}

const HEAD: &str = "crystal = \"scripted/a.yaml\"\n";

/// Edits a spell, and checks that the edited text reads as the changed spell.
#[track_caller]
fn edited(text: &str, change: &SpellChange) -> String {
    let spell = read(text);
    let edited = spell.edited(text, change).unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    let wanted = spell.with_change(change).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(read(&edited).resolved(), wanted.resolved(), "{edited}");
    // The same change again finds nothing to do.
    assert_eq!(read(&edited).edited(&edited, change).unwrap(), edited);
    edited
}

#[test]
fn a_value_is_replaced_where_it_stands_and_everything_else_stays() {
    let text = "# The worker of the office.\nname   = 'worker' # short\ncrystal = \"scripted/a.yaml\"\n\n\
                [call] # the call\n  temperature=0.5\n  system_prompt = 'Be brief.'  # keep it short\n\n\
                [gates.read]\nroot = \".\" # all of it\n# [gates.write]\n\n[wards]\nmax_turns = 9 # enough\n";
    let all = change(Some("Count \"words\"."), &[("read", "Reads.")], json!({"max_turns": 5, "max_gate_calls": 2}));
    assert_eq!(
        edited(text, &all),
        "# The worker of the office.\nname   = 'worker' # short\ncrystal = \"scripted/a.yaml\"\n\n\
         [call] # the call\n  temperature=0.5\n  system_prompt = \"Count \\\"words\\\".\"  # keep it short\n\n\
         [gates.read]\nroot = \".\" # all of it\ndescription = \"Reads.\"\n# [gates.write]\n\n\
         [wards]\nmax_turns = 5 # enough\nmax_gate_calls = 2\n"
    );
    assert_eq!(edited(text, &SpellChange::default()), text);
}

#[test]
fn a_key_that_is_missing_is_written_in_the_form_of_its_table() {
    let cases = [
        // A table that is not there is written at the end.
        ("", prompted("Hi."), "\n[call]\nsystem_prompt = \"Hi.\"\n"),
        ("[gates.echo]", prompted("Hi."), "[gates.echo]\n\n[call]\nsystem_prompt = \"Hi.\"\n"),
        // An empty table, one with keys, and one with another table below it.
        ("[call]\n[gates.echo]\n", prompted("Hi."), "[call]\nsystem_prompt = \"Hi.\"\n[gates.echo]\n"),
        ("[call]\n\ttop_p = 0.5", prompted("Hi."), "[call]\n\ttop_p = 0.5\n\tsystem_prompt = \"Hi.\"\n"),
        (
            "[gates.echo]\nlabels = []\n[gates.echo.parameters]\ntype = \"object\"\n",
            described("echo", "Says it."),
            "[gates.echo]\nlabels = []\ndescription = \"Says it.\"\n[gates.echo.parameters]\ntype = \"object\"\n",
        ),
        // Inline tables.
        ("call = {}\n", prompted("Hi."), "call = { system_prompt = \"Hi.\" }\n"),
        (
            "call = { top_p = 0.5 } # call\n",
            prompted("One\ntwo."),
            "call = { top_p = 0.5, system_prompt = \"One\\ntwo.\" } # call\n",
        ),
        (
            "gates = { echo = { description = \"a } b, c\" }, done = {} }\n",
            described("done", "Ends."),
            "gates = { echo = { description = \"a } b, c\" }, done = { description = \"Ends.\" } }\n",
        ),
        // Dotted keys.
        (
            "call.top_p = 0.5 # one\ncall.seed = 3 # two\npark = false\n",
            prompted("Hi."),
            "call.top_p = 0.5 # one\ncall.seed = 3 # two\ncall.system_prompt = \"Hi.\"\npark = false\n",
        ),
        (
            "[gates]\necho.ephemeral = false\ndone = {}\n",
            described("echo", "Says it."),
            "[gates]\necho.ephemeral = false\necho.description = \"Says it.\"\ndone = {}\n",
        ),
        // A ward that is a table.
        (
            "[wards]\nmax_turns = 3\n[wards.restrict]\nhosts = [\"a.example\", \"b.example\"]\n",
            warded(json!({"restrict": {"hosts": ["a.example", "b.example"], "methods": ["GET"]}})),
            "[wards]\nmax_turns = 3\n[wards.restrict]\nhosts = [\"a.example\", \"b.example\"]\nmethods = [\"GET\"]\n",
        ),
        // The loader's limit of turns would go away with another limit, so it is written too.
        ("", warded(json!({"timeout": "60s"})), "\n[wards]\ntimeout = \"60s\"\nmax_turns = 50\n"),
    ];
    for (body, change, expected) in cases {
        assert_eq!(edited(&format!("{HEAD}{body}"), &change), format!("{HEAD}{expected}"));
    }
}

#[test]
fn a_text_of_several_lines_keeps_them_unless_the_file_has_other_line_ends() {
    let text = format!("{HEAD}[call]\nsystem_prompt = '''\nOld\n'''\ntop_p = 0.5\n");
    let lines = "First: \"\"\"quoted\"\"\"\n\\ second\tline\nlast \"";
    assert_eq!(
        edited(&text, &prompted(lines)),
        format!(
            "{HEAD}[call]\nsystem_prompt = \"\"\"\nFirst: \"\"\\\"quoted\"\"\\\"\n\\\\ second\tline\nlast \\\"\"\"\"\n\
             top_p = 0.5\n"
        )
    );
    let text = format!("{HEAD}[call]\ntop_p = 0.5\n").replace('\n', "\r\n");
    let expected = format!("{text}system_prompt = \"One\\ntwo\"\r\n");
    assert_eq!(edited(&text, &prompted("One\ntwo")), expected);
}

#[test]
fn a_ward_may_be_narrowed_and_nothing_else() {
    let text = format!(
        "{HEAD}[gates.echo]\n[wards]\nmax_turns = 9\ntimeout = \"90s\"\nremove_gate = [\"write\"]\n\
         require_done_tool = true\nmax_cost = \"1 USD\"\nrestrict = {{ paths = [\"data/**\"] }}\n"
    );
    let spell = read(&text);
    let narrower = [
        json!({"max_turns": 9}),
        json!({"max_turns": 1}),
        json!({"timeout": "1m"}),
        json!({"max_cost": "0.50 USD"}),
        json!({"remove_gate": ["write", "echo"]}),
        json!({"max_depth": 1}),
        json!({"max_gate_calls": 1}),
        json!({"memory": "1MiB"}),
        json!({"loop_detected": true}),
        json!({"restrict": {"paths": [["data/**"], ["data/a/**"]]}}),
        json!({"max_turns": 3, "timeout": "10s"}),
    ];
    for wards in narrower {
        let changed = spell.with_change(&warded(wards.clone())).unwrap_or_else(|fault| panic!("{wards}: {fault}"));
        for (name, value) in wards.as_object().unwrap() {
            assert_eq!(changed.wards[name], *value);
        }
        edited(&text, &warded(wards));
    }
    let wider = [
        (json!({"max_turns": 10}), "wards.max_turns"),
        (json!({"timeout": "2m"}), "wards.timeout"),
        (json!({"max_cost": "2 USD"}), "wards.max_cost"),
        (json!({"max_cost": "1 EUR"}), "wards.max_cost"),
        (json!({"remove_gate": ["echo"]}), "wards.remove_gate"),
        (json!({"require_done_tool": false}), "wards.require_done_tool"),
        (json!({"max_depth": 1000}), "wards.max_depth"),
        (json!({"max_gate_calls": 100_000}), "wards.max_gate_calls"),
        (json!({"memory": "100GiB"}), "wards.memory"),
        (json!({"restrict": {"paths": ["**"]}}), "wards.restrict"),
        (json!({"allow_trifecta": "we trust it"}), "wards.allow_trifecta"),
        (json!({"max_turn": 1}), "wards.max_turn"),
        (json!({"max_turns": "few"}), "wards.max_turns"),
    ];
    for (wards, key) in wider {
        let fault = spell.with_change(&warded(wards.clone())).expect_err("it is not narrower");
        let keys: Vec<&str> = fault.issues().iter().map(|issue| issue.key.as_str()).collect();
        assert_eq!(keys, [key], "{wards}");
        assert!(spell.edited(&text, &warded(wards)).is_err());
    }
}

#[test]
fn only_gates_that_the_file_describes_can_be_described_anew() {
    let text = format!(
        "{HEAD}[gates.call_entity]\n[gates.docs]\nmcp = [\"docs-server\"]\n[gates.tell]\ncommand = [\"./tell.sh\"]\n"
    );
    let spell = read(&text);
    let names: Vec<&str> = spell.described_gates().map(|gate| gate.name.as_str()).collect();
    assert_eq!(names, ["call_entity", "tell"], "done is the loader's, and a server describes its tools itself");
    // A gate has its canonical name in a cast, and the name of the file in the file.
    let changed = edited(&text, &described("call_agent", "Asks another."));
    assert!(changed.contains("[gates.call_entity]\ndescription = \"Asks another.\"\n"), "{changed}");
    let fault = spell.with_change(&change(None, &[("done", "a"), ("docs", "b"), ("serch", "c")], json!({})));
    let fault = fault.expect_err("none of them can be described");
    let keys: Vec<&str> = fault.issues().iter().map(|issue| issue.key.as_str()).collect();
    assert_eq!(keys, ["gates.docs", "gates.done", "gates.serch"]);
}

/// Spells that say the same in different layouts. Each comment ends its line.
const LAYOUTS: &[&str] = &[
    "crystal = \"scripted/a.yaml\" # c1\n[call] # c2\nsystem_prompt = \"Hi.\" # c3\n[gates.echo] # c4\n\
     description = 'Says.' # c5\n[wards] # c6\nmax_turns = 9 # c7\n# c8\n",
    "# c1\ncrystal = \"scripted/a.yaml\"\ncall = { system_prompt = \"\"\"Hi.\"\"\" } # c2\n\
     gates = { echo = { labels = [ # c3\n \"private_data\", # c4\n] } } # c5\nwards = { max_turns = 9 } # c6",
    "crystal = \"scripted/a.yaml\"\ncall.top_p = 0.5 # c1\nwards.max_turns = 9 # c2\n\
     gates.echo.ephemeral = false # c3\n",
    "\"crystal\" = 'scripted/a.yaml'\r\n# c1\r\n[ \"call\" ]\r\n'top_p' = 0.5 # c2\r\n[gates . \"echo\"] # c3\r\n\
     [wards]\r\nmax_turns = 9\r\n",
    "crystal = \"scripted/a.yaml\"\n[gates.echo]\n# c1",
];

const WORDS: &[&str] =
    &["\"", "'", "'''", "\"\"\"", "[", "]", "{", "}", "=", ".", "\n", "\r\n", "#", "\\", "[call]", ","];

fn comments(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.find("# c").map(|at| line[at..].trim_end())).collect()
}

fn any_change() -> impl Strategy<Value = SpellChange> {
    let text = || prop_oneof!["(?s).{0,60}", "[\"'\\\\\n#\\]} a]{0,20}"];
    let prompt = proptest::option::of(text());
    let description = proptest::option::of(text());
    (prompt, description, proptest::option::of(1_u64..=9)).prop_map(|(system_prompt, description, turns)| {
        let descriptions: BTreeMap<String, String> =
            description.into_iter().map(|text| ("echo".to_owned(), text)).collect();
        let wards: Map<String, Value> = turns.into_iter().map(|turns| ("max_turns".to_owned(), json!(turns))).collect();
        SpellChange { system_prompt, descriptions, wards }
    })
}

proptest! {
    #![proptest_config(garble::samples(128))]

    #[test]
    fn an_edited_file_reads_as_the_changed_spell_and_keeps_its_comments(
        layout in proptest::sample::select(LAYOUTS),
        change in any_change(),
    ) {
        let edited = edited(layout, &change);
        let kept = comments(layout);
        let found = comments(&edited);
        // A new text may contain something that looks like a comment, so none is missing, and there may be more.
        let mut rest = found.iter();
        prop_assert!(kept.iter().all(|comment| rest.any(|other| other == comment)), "{layout}\n{edited}");
    }

    #[test]
    fn a_file_that_is_almost_a_spell_is_edited_or_refused(
        text in garble::garbled_text(LAYOUTS, WORDS),
        change in any_change(),
    ) {
        if let Ok(spell) = Spell::read(&text, "worker.toml", ".")
            && let Ok(edited) = spell.edited(&text, &change)
        {
            let wanted = spell.with_change(&change).unwrap();
            prop_assert_eq!(read(&edited).resolved(), wanted.resolved());
        }
    }
}
