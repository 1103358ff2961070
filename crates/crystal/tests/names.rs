//! The texts that name a crystal.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use cantrip_crystal::{ModelName, NameFault, NamedEndpoint, Provider, endpoint_name_fault};
use proptest::prelude::*;

fn name(text: &str) -> Result<ModelName, NameFault> {
    text.parse()
}

#[test]
fn every_form_is_read_and_written_back() {
    let turn = "turn_06cyf9k2vtd3m8x1q7hbz4n5rw";
    let forms = [
        "anthropic/claude-sonnet-4-5".to_owned(),
        "openai/gpt-5".to_owned(),
        "gemini/flash".to_owned(),
        "openrouter/meta/llama:free".to_owned(),
        "ollama/qwen3:8b".to_owned(),
        "local/qwen@http://localhost:8000/v1".to_owned(),
        "local/org/model@v2@https://models.example.com/v1".to_owned(),
        "groq/openai/gpt-oss-120b".to_owned(),
        "my-server_2/m@1".to_owned(),
        "scripted/tests/a b.yaml".to_owned(),
        "scripted/tests/a.yaml#child".to_owned(),
        format!("replay/{turn}"),
        "program/flow.js".to_owned(),
        "human".to_owned(),
    ];
    for form in forms {
        assert_eq!(name(&form).unwrap().to_string(), form);
    }
    let local = name("local/org/model@v2@https://models.example.com/v1").unwrap();
    assert!(matches!(local, ModelName::Local { model, .. } if model == "org/model@v2"));
}

#[test]
fn each_fault_is_told_apart() {
    assert!(matches!(name("anthropic"), Err(NameFault::ModelMissing(_))));
    assert!(matches!(name("openai/ "), Err(NameFault::ModelMissing(_))));
    assert!(matches!(name("antropic/x"), Err(NameFault::ProviderUnknown(_, hint)) if hint.contains("anthropic")));
    assert!(matches!(name("Groq/x"), Err(NameFault::ProviderUnknown(..))));
    assert!(matches!(name("groq"), Err(NameFault::ProviderUnknown(..))));
    assert!(matches!(name("groq/"), Err(NameFault::ModelMissing(_))));
    assert!(matches!(name(&format!("{}/x", "a".repeat(65))), Err(NameFault::ProviderUnknown(..))));
    assert!(matches!(name(""), Err(NameFault::ProviderUnknown(..))));
    assert!(matches!(name("human/anna"), Err(NameFault::ProviderUnknown(..))));
    assert!(matches!(name("local/qwen"), Err(NameFault::UrlMissing(_))));
    assert!(matches!(name("local/qwen@ftp://x"), Err(NameFault::UrlMissing(_))));
    assert!(matches!(name("local/@http://x"), Err(NameFault::ModelMissing(_))));
    assert!(matches!(name("local/qwen@http://"), Err(NameFault::Url { .. })));
    assert!(matches!(name("local/qwen@http://x?key=1"), Err(NameFault::Url { .. })));
    assert!(matches!(name("replay/turn_1"), Err(NameFault::Turn(_))));
    assert!(matches!(name("scripted/a.yaml#"), Err(NameFault::ModelMissing(_))));
    assert!(matches!(name("openai/a\nb"), Err(NameFault::Text)));
    assert!(matches!(name(&format!("openai/{}", "a".repeat(2_000))), Err(NameFault::Text)));
}

#[test]
fn a_key_in_an_address_is_refused_and_not_repeated() {
    let fault = name("local/qwen@https://user:hunter22@models.example.com").unwrap_err();
    assert!(!fault.to_string().contains("hunter22"), "{fault}");
}

#[test]
fn only_a_program_needs_a_circle_that_runs_code() {
    assert!(name("program/a.js").unwrap().needs_code());
    assert!(!name("human").unwrap().needs_code());
    assert_eq!(Provider::ALL.map(Provider::as_str).len(), 5);
}

#[test]
fn an_endpoint_has_a_name_that_no_typing_error_makes_of_a_built_in_one() {
    for preset in NamedEndpoint::presets() {
        assert_eq!(endpoint_name_fault(&preset.name), None, "{}", preset.name);
        assert!(matches!(preset.url.scheme(), "https" | "http") && preset.key_variable.is_some(), "{preset:?}");
        assert_eq!(preset.needs_key, !preset.is_local(), "{}: a server of one's own may have no key", preset.name);
    }
    for (refused, says) in [("openai", "built in"), ("local", "built in"), ("ollama2", "\"ollama\""), ("A", "letters")]
    {
        assert!(endpoint_name_fault(refused).is_some_and(|fault| fault.contains(says)), "{refused}");
    }
    let fault = NameFault::unknown("gorq", &["groq", "vllm"]);
    assert!(fault.to_string().contains("did you mean \"groq\"?"), "{fault}");
}

proptest! {
    #[test]
    fn a_name_that_is_read_reads_the_same_again(text in "(openai|scripted|program|local|gemini|groq)/[a-z@:/#.]{0,20}(@http://[a-z]{1,8}(:80)?/?[a-z]{0,3})?") {
        if let Ok(name) = name(&text) {
            prop_assert_eq!(name.to_string().parse::<ModelName>().unwrap(), name);
        }
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in ".{0,60}") {
        let _ = name(&text);
    }
}
