//! Casts of several turns, with tools and thinking, against each strict peer.

use std::process::{Output, Stdio};

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use serde_json::{Value, json};

use super::anthropic::{Anthropic, Generation};
use super::chat::Chat;
use super::gemini::Gemini;
use super::ollama::Ollama;
use super::responses::Responses;
use super::{RequestTypes, Said, StrictPeer, list};
use crate::providers::{FAMILIES, KEY};
use crate::support::{Folder, id, stdout};

/// A model of a provider: its name in a spell and the peer that simulates it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Model {
    Budgeted,
    Bound,
    Responses,
    Gemini,
    Gateway,
    Local,
    Ollama,
}

impl Model {
    pub(crate) const ALL: [Self; 7] =
        [Self::Budgeted, Self::Bound, Self::Responses, Self::Gemini, Self::Gateway, Self::Local, Self::Ollama];

    /// Returns the row of `FAMILIES` that has its variables; None if the name of the crystal holds the address.
    fn family(self) -> Option<usize> {
        Some(match self {
            Self::Budgeted | Self::Bound => 0,
            Self::Responses => 1,
            Self::Gemini => 2,
            Self::Gateway => 3,
            Self::Ollama => 4,
            Self::Local => return None,
        })
    }

    pub(crate) fn crystal(self, peer: &StrictPeer) -> String {
        match self {
            Self::Budgeted => "anthropic/claude-sonnet-4-5".to_owned(),
            Self::Bound => "anthropic/claude-sonnet-5-5".to_owned(),
            Self::Responses => "openai/gpt-5.4".to_owned(),
            Self::Gemini => "gemini/gemini-3.8-flash".to_owned(),
            Self::Gateway => "openrouter/anthropic/claude-sonnet-5".to_owned(),
            Self::Ollama => "ollama/qwen3".to_owned(),
            Self::Local => format!("local/qwen@{}/v1", peer.address),
        }
    }

    pub(crate) fn peer(self, script: impl IntoIterator<Item = Said>) -> StrictPeer {
        match self {
            Self::Budgeted => StrictPeer::start(Anthropic::new(Generation::Budgeted), script),
            Self::Bound => StrictPeer::start(Anthropic::new(Generation::Bound), script),
            Self::Responses => StrictPeer::start(Responses::default(), script),
            Self::Gemini => StrictPeer::start(Gemini::default(), script),
            Self::Gateway => StrictPeer::start(Chat::gateway(), script),
            Self::Local => StrictPeer::start(Chat::default(), script),
            Self::Ollama => StrictPeer::start(Ollama::default(), script),
        }
    }

    /// Returns the variables with which the binary reaches its peer.
    pub(crate) fn variables(self, peer: &StrictPeer) -> Vec<(&'static str, String)> {
        let Some(family) = self.family() else { return Vec::new() };
        let (_, key, base, path) = FAMILIES[family];
        let mut variables = vec![(base, format!("{}{path}", peer.address))];
        variables.extend(key.map(|key| (key, KEY.to_owned())));
        variables
    }

    /// Returns true if the provider signs values that must be sent back.
    fn signs(self) -> bool {
        self != Self::Local
    }
}

pub(crate) fn run(folder: &Folder, arguments: &[&str], variables: &[(&str, String)]) -> Output {
    let mut command = folder.command(arguments);
    command.envs(variables.iter().map(|(name, value)| (*name, value.as_str())));
    command.stdin(Stdio::null()).output().expect("the binary runs")
}

/// A spell that may read three files, with thinking and every sampling setting.
pub(crate) fn spell(crystal: &str, medium: &str) -> String {
    format!(
        "name = \"reader\"\ncrystal = \"{crystal}\"\nmedium = \"{medium}\"\npark = false\n[call]\n\
         system_prompt = \"You read.\"\neffort = \"low\"\ntemperature = 0.2\ntop_p = 0.9\n[retry]\nmax_retries = 0\n\
         [gates.read]\nroot = \".\"\n[wards]\nmax_turns = 6\n"
    )
}

fn folder(crystal: &str, medium: &str) -> Folder {
    let folder = Folder::new();
    folder.write("reader.toml", &spell(crystal, medium));
    for (name, text) in [("a.txt", "first"), ("b.txt", "second"), ("c.txt", "third")] {
        folder.write(name, text);
    }
    folder
}

/// Two calls at once, then one, then the answer.
fn conversation() -> [Said; 3] {
    let read = |path: &str| ("read", json!({ "path": path }));
    [
        Said::calling(&[read("a.txt"), read("b.txt")]).thinking("Two of them can be read at once.").after("I look."),
        Said::calling(&[read("c.txt")]).thinking("One is left."),
        Said::text("All three are read.").thinking("That was the last."),
    ]
}

fn programs() -> [Said; 3] {
    let code = |code: &str| ("javascript", json!({ "code": code }));
    [
        Said::calling(&[code("var all = read('a.txt'); console.log(all)")]).thinking("First one."),
        Said::calling(&[code("all += read('b.txt'); console.log(all)")]).thinking("Then the other.").after("More."),
        Said::calling(&[code("done(all)")]).thinking("Enough."),
    ]
}

#[track_caller]
fn cast(model: Model, medium: &str, script: [Said; 3], answer: &str) -> (Folder, StrictPeer) {
    let peer = model.peer(script);
    let folder = folder(&model.crystal(&peer), medium);
    let output = run(&folder, &["cast", "reader.toml", "read them", "--quiet"], &model.variables(&peer));
    assert_eq!(peer.refused(), [""; 0], "{model:?}: {output:?}");
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), answer), "{model:?}: {output:?}");
    assert_eq!(peer.bodies().len(), 3, "{model:?}");
    (folder, peer)
}

#[test]
fn a_cast_with_tools_and_thoughts_keeps_every_rule_of_its_provider() {
    let _types = RequestTypes::hold();
    for model in Model::ALL {
        let (folder, peer) = cast(model, "conversation", conversation(), "All three are read.\n");
        let last = peer.bodies()[2].to_string();
        for text in ["first", "second", "third"] {
            assert!(last.contains(text), "{model:?}: {last}");
        }
        // A fork continues from there: the answer itself is part of the next request.
        peer.will_say(Said::text("Read again.").thinking("They ask again."));
        let leaf = id(&folder.seen(&["thread"])["turns"][2]["id"]).to_owned();
        let output = run(&folder, &["loom", "fork", &leaf, "read them again", "--quiet"], &model.variables(&peer));
        assert_eq!(peer.refused(), [""; 0], "{model:?}: {output:?}");
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), "Read again.\n"), "{model:?}: {output:?}");
    }
}

#[test]
fn programs_with_thoughts_keep_every_rule_of_their_provider() {
    let _types = RequestTypes::hold();
    for model in Model::ALL {
        cast(model, "javascript", programs(), "firstsecond\n");
    }
}

#[test]
fn a_provider_that_does_not_recognise_what_it_signed_ends_the_cast_in_its_words() {
    let _types = RequestTypes::hold();
    for model in Model::ALL.into_iter().filter(|model| model.signs()) {
        let peer = model.peer(conversation()).forgetting();
        let folder = folder(&model.crystal(&peer), "conversation");
        let output = run(&folder, &["cast", "reader.toml", "read them", "--json"], &model.variables(&peer));
        let envelope: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_envelope(&envelope, codes::CRYSTAL_REJECTED.any());
        assert_eq!(output.status.code(), Some(4), "{model:?}: {output:?}");
        let refused = peer.refused();
        assert_eq!(refused.len(), 1, "{model:?}: {refused:?}");
        let told = envelope["message"].as_str().expect("words");
        assert!(told.contains(&refused[0][..20]), "{model:?}: {told} is not {refused:?}");
    }
}

#[test]
fn a_fork_to_another_provider_brings_it_nothing_that_was_signed_elsewhere() {
    let _types = RequestTypes::hold();
    for (from, to) in [
        (Model::Gemini, Model::Budgeted),
        (Model::Budgeted, Model::Responses),
        (Model::Responses, Model::Gemini),
        (Model::Gateway, Model::Bound),
        (Model::Bound, Model::Gateway),
        (Model::Gemini, Model::Local),
    ] {
        let (folder, first) = cast(from, "conversation", conversation(), "All three are read.\n");
        let signed: Vec<String> = signed_values(&first.bodies()[2]);
        assert!(!signed.is_empty(), "{from:?} signed nothing");
        // A fork after the first calls: the next request is in the middle of their turn.
        let other = to.peer([Said::text("Taken over.").thinking("Where was I?")]);
        let turn = id(&folder.seen(&["thread"])["turns"][0]["id"]).to_owned();
        let crystal = to.crystal(&other);
        let arguments = ["loom", "fork", &turn, "--crystal", &crystal, "--quiet"];
        let output = run(&folder, &arguments, &to.variables(&other));
        assert_eq!(other.refused(), [""; 0], "{from:?} to {to:?}: {output:?}");
        assert_eq!(
            (output.status.code(), stdout(&output)),
            (Some(0), "Taken over.\n"),
            "{from:?} to {to:?}: {output:?}"
        );
        let body = other.bodies()[0].to_string();
        let brought = signed.iter().find(|value| body.contains(value.as_str()));
        assert_eq!(brought, None, "{from:?} to {to:?}: {body}");
    }
}

/// Returns the values in a body that only the provider could have made.
fn signed_values(body: &Value) -> Vec<String> {
    match body {
        Value::Object(object) => {
            let keys = ["signature", "data", "encrypted_content", "thoughtSignature"];
            let own = object.iter().filter(|(key, _)| keys.contains(&key.as_str()));
            let own = own.filter_map(|(_, value)| value.as_str().map(str::to_owned));
            own.chain(object.values().flat_map(signed_values)).collect()
        }
        Value::Array(values) => values.iter().flat_map(signed_values).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

#[test]
fn whoever_stands_in_for_a_provider_gets_back_what_it_signed_itself() {
    let _types = RequestTypes::hold();
    for (first, second) in
        [(Model::Responses, Model::Budgeted), (Model::Bound, Model::Responses), (Model::Bound, Model::Gemini)]
    {
        let down = crate::providers::Provider::serving(vec![
            (
                503,
                vec![json!({"error": {"message": "Overloaded", "type": "overloaded_error"}}).to_string()]
            );
            3
        ]);
        let peer = second.peer(conversation());
        let primary = first.crystal(&peer);
        let folder = folder(&primary, "conversation");
        let text = folder.read("reader.toml").replace(
            &format!("crystal = \"{primary}\"\n"),
            &format!("crystal = {{ model = \"{primary}\", fallback = [\"{}\"] }}\n", second.crystal(&peer)),
        );
        folder.write("reader.toml", &text);
        let (_, key, base, path) = FAMILIES[first.family().expect("a family")];
        let mut variables = second.variables(&peer);
        variables.push((base, format!("{}{path}", down.address)));
        variables.push((key.expect("a key"), KEY.to_owned()));
        let output = run(&folder, &["cast", "reader.toml", "read them", "--quiet"], &variables);
        assert_eq!(peer.refused(), [""; 0], "{first:?}, {second:?}: {output:?}");
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), "All three are read.\n"), "{output:?}");
        let thoughts = signed_values(&peer.bodies()[2]);
        assert!(thoughts.len() >= 2, "{first:?}, {second:?}: {thoughts:?}");
    }
}

#[test]
fn a_fold_leaves_no_thought_behind_messages_that_it_was_not_thought_behind() {
    let _types = RequestTypes::hold();
    let read = |path: &str| Said::calling(&[("read", json!({ "path": path }))]).thinking("On to the next.");
    for model in [Model::Bound, Model::Budgeted, Model::Gemini] {
        let script =
            [read("a.txt"), read("b.txt"), read("c.txt"), read("a.txt"), Said::text("Folded.").thinking("Done.")];
        let peer = model.peer(script);
        let folder = folder(&model.crystal(&peer), "conversation");
        let text = folder.read("reader.toml") + "[folding]\nstrategy = \"window\"\ntrigger_after_turns = 2\n";
        folder.write("reader.toml", &text);
        let output = run(&folder, &["cast", "reader.toml", "read them", "--quiet"], &model.variables(&peer));
        assert_eq!(peer.refused(), [""; 0], "{model:?}: {output:?}");
        assert_eq!((output.status.code(), stdout(&output)), (Some(0), "Folded.\n"), "{model:?}: {output:?}");
        assert!(
            peer.bodies().iter().any(|body| body.to_string().contains("[Folded: turns")),
            "{model:?} folded nothing"
        );
        let messages = list(&peer.bodies()[1]["messages"]).len().max(list(&peer.bodies()[1]["contents"]).len());
        assert!(messages >= 3, "{model:?}");
    }
}
