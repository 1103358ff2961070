//! The profiles of models: the table, and a user's overrides.

use cantrip_crystal::{
    AnyCrystal, Crystal, Price, Profile, ProfileRow, Profiles, ProfilesFault, ProgramCrystal, Provider, Rates, Script,
    ScriptedCrystal,
};
use cantrip_loom::Usage;

#[test]
fn the_table_is_read_and_has_an_edition_a_day_and_one_default_for_each_provider() {
    let table = Profiles::builtin();
    assert!(table.version() >= 2 && table.as_of().len() == 10);
    for provider in Provider::ALL {
        let default = table.default_model(provider).unwrap_or_else(|| panic!("{} has none", provider.as_str()));
        assert!(default.starts_with(&format!("{}/", provider.as_str())), "{default}");
        assert_eq!(
            table.models().iter().filter(|model| model.provider == provider.as_str() && model.default).count(),
            1
        );
    }
    // The first row has the defaults for every crystal that no other row names.
    assert_eq!(Profile::of("nobody/known"), Profile::default());
}

#[test]
fn what_is_said_about_a_crystal_does_not_depend_on_how_much_of_the_table_was_read() {
    let whole = Profiles::builtin();
    let named = whole.models().into_iter().map(|model| model.crystal);
    let others = [
        "scripted/a",
        "replay/a",
        "program/a",
        "human",
        "local/a",
        "vllm/a",
        "mistral/a",
        "nobody/known",
        "ollama/a",
        "openai/a",
        "",
    ];
    for name in named.chain(others.map(str::to_owned)) {
        let about = Profiles::for_crystal(&name);
        assert_eq!((about.profile(&name), about.price(&name)), (whole.profile(&name), whole.price(&name)), "{name}");
        assert_eq!((about.version(), about.as_of()), (whole.version(), whole.as_of()));
    }
}

#[test]
fn every_listed_model_of_a_provider_has_a_window_and_a_price_and_no_price_is_guessed_from_a_beginning() {
    let models = Profiles::builtin().models();
    assert!(models.len() > 20);
    for model in &models {
        assert!(model.profile.window.is_some_and(|window| window >= 8_000), "{}", model.crystal);
        assert_ne!(model.price, Price::Unknown, "{}", model.crystal);
        // A name with a suffix is another model, unless the suffix is a date.
        let other = format!("{}-other", model.crystal);
        match model.provider.as_str() {
            "ollama" => assert_eq!(Profiles::builtin().price(&other), Price::Free),
            _ => {
                let named = models.iter().any(|model| model.crystal == other);
                assert!(named || Profiles::builtin().price(&other) == Price::Unknown, "{other}");
            }
        }
    }
}

#[test]
fn a_dated_snapshot_is_its_model_and_what_runs_here_is_free() {
    let table = Profiles::builtin();
    let (named, dated) = ("anthropic/claude-sonnet-4-5", "anthropic/claude-sonnet-4-5-20250929");
    assert_eq!((table.price(named), table.profile(named)), (table.price(dated), table.profile(dated)));
    assert_eq!(table.price("openai/gpt-5-2025-08-07"), table.price("openai/gpt-5"));
    assert_eq!(table.price("openai/gpt-5-20250"), Price::Unknown);
    for free in [
        "llamacpp/a",
        "lmstudio/a",
        "vllm/a",
        "ollama/anything",
        "local/m@http://localhost:1/v1",
        "scripted/x",
        "program/x.js",
        "human",
    ] {
        assert_eq!(table.price(free), Price::Free, "{free}");
    }
    for unknown in ["openrouter/nobody/knows", "groq/llama", "litellm/a", "mine/a"] {
        assert_eq!(table.price(unknown), Price::Unknown, "{unknown}");
    }
}

#[test]
fn what_is_laid_over_wins_in_the_fields_it_has_also_with_a_shorter_name() {
    let mine = "version = 9\n[[model]]\ncrystal = 'anthropic/*'\nwindow = 9_000\n\
                [[model]]\ncrystal = 'anthropic/mine'\ndefault = true\n\
                price = { input = '1 EUR', output = '2 EUR', cached = '0.5 EUR' }\n";
    let table = Profiles::builtin().clone().overlay(mine).unwrap();
    assert_eq!(table.version(), 9);
    assert_eq!(table.as_of(), Profiles::builtin().as_of(), "what it does not say stays");
    let known = table.profile("anthropic/claude-sonnet-4-5");
    assert_eq!((known.window, known.output_tokens_max), (Some(9_000), Some(64_000)));
    assert_eq!(table.price("anthropic/claude-sonnet-4-5"), Profiles::builtin().price("anthropic/claude-sonnet-4-5"));
    assert_eq!(table.default_model(Provider::Anthropic), Some("anthropic/mine"));
    assert_eq!(table.models().iter().filter(|model| model.provider == "anthropic" && model.default).count(), 1);
    assert_eq!(table.default_model(Provider::OpenAi), Profiles::builtin().default_model(Provider::OpenAi));
    let taken = table.overlay("[[model]]\ncrystal = 'anthropic/mine'\nprice = 'unknown'\n").unwrap();
    assert_eq!(taken.price("anthropic/mine"), Price::Unknown);
}

#[test]
fn a_table_that_makes_no_sense_says_what_and_where() {
    let fault = |text: &str| Profiles::load(text).unwrap_err();
    assert!(matches!(fault("version = 1\n[[model]\n"), ProfilesFault::Unparsable { line: 2, .. }));
    let unknown_key = fault("[[model]]\ncrystal = 'a/b'\nwindows = 1\n");
    assert!(
        matches!(&unknown_key, ProfilesFault::Unparsable { line: 3, rule } if rule.contains("windows")),
        "{unknown_key}"
    );
    for (price, said) in [
        ("{ input = '1 USD', output = '2 EUR' }", "EUR"),
        ("{ input = '-1 USD', output = '2 USD' }", "-1 USD"),
        ("{ input = '1 USD' }", ""),
        ("'cheap'", "cheap"),
        ("3.5", ""),
    ] {
        let text = fault(&format!("[[model]]\ncrystal = 'a/b'\nprice = {price}\n")).to_string();
        assert!(text.contains(said), "{price}: {text}");
    }
    let rule = |rows: &str| match fault(rows) {
        ProfilesFault::Row { rule, .. } => rule,
        other @ (ProfilesFault::Unparsable { .. } | ProfilesFault::TooLarge { .. } | ProfilesFault::NoEdition) => {
            panic!("{other}")
        }
    };
    assert_eq!(rule("[[model]]\nwindow = 1\n"), "a row needs its crystal: crystal = \"provider/model\"");
    assert_eq!(rule("[[model]]\ncrystal = 'x'\n[[model]]\ncrystal = 'x'\n"), "two rows speak of it");
    let two = "[[model]]\ncrystal = 'gemini/a'\ndefault = true\n[[model]]\ncrystal = 'gemini/b'\ndefault = true\n";
    assert_eq!(rule(two), "its provider has another default");
    assert!(rule("[[model]]\ncrystal = 'gemini/*'\ndefault = true\n").contains("default"));
    assert!(rule("[[model]]\ncrystal = 'x'\nbytes_per_token = 0.0\n").contains("above 0"));
    assert!(rule("[[model]]\ncrystal = 'x'\nwindow = 0\n").contains("at least 1"));
    let long = format!("# {}", "x".repeat(2 << 20));
    assert!(matches!(fault(&long), ProfilesFault::TooLarge { .. }));
}

#[test]
fn a_request_costs_what_its_rates_say_rounded_up_once() {
    let money = |text: &str| text.parse().unwrap();
    let rates = Rates::new(money("3 USD"), money("15 USD")).unwrap();
    let rates = rates.cached(money("0.30 USD")).unwrap().cache_write(money("3.75 USD")).unwrap();
    let long = Rates::new(money("6 USD"), money("22.50 USD")).unwrap();
    let price = Price::Listed(rates.long(200_000, &long).unwrap());
    let usage = |prompt, cached, written, completion| Usage {
        prompt_tokens: prompt,
        cached_tokens: cached,
        cache_write_tokens: written,
        completion_tokens: completion,
        // Already counted among the answer tokens.
        reasoning_tokens: Some(completion / 2),
    };
    let cost = |usage: Usage| price.cost(&usage).unwrap().micros();
    // 1000 fresh at 3, 8000 from the cache at 0.30, 1000 into it at 3.75, 100 out at 15.
    assert_eq!(cost(usage(10_000, 8_000, Some(1_000), 100)), 3_000 + 2_400 + 3_750 + 1_500);
    assert_eq!(cost(usage(0, 0, None, 0)), 0);
    assert_eq!(cost(usage(1, 1, None, 0)), 1, "three tenths of a micro are one");
    assert_eq!(cost(usage(200_000, 0, None, 0)), 600_000);
    assert_eq!(cost(usage(200_001, 0, None, 1)), 1_200_006 + 23, "the whole request is long");
    // A provider that counts more from its cache than it was sent does not make the rest negative.
    assert_eq!(cost(usage(10, 1_000, Some(1_000), 0)), 3);
    assert_eq!(price.worst_cost(1_000, 10).unwrap().micros(), 3_750 + 150, "all of it may have to be cached first");
    assert_eq!(price.affordable_tokens(money("0.01 USD"), 1_000), Some((10_000 - 3_750) * 1_000_000 / 15_000_000));
    assert_eq!(price.affordable_tokens(money("0.001 USD"), 1_000), None);
    assert_eq!(Price::Free.cost(&usage(9, 0, None, 9)).unwrap().micros(), 0);
    assert_eq!(Price::Unknown.cost(&usage(9, 0, None, 9)), None);
    let vast = usage(u64::MAX, 0, None, u64::MAX);
    assert_eq!(price.cost(&vast), None, "no amount of money is that large");
}

#[test]
fn a_promotion_ends_with_its_last_day_and_the_rates_after_it_apply() {
    let row = |price: &str| format!("[[model]]\ncrystal = 'a/b'\nprice = {price}\n");
    let promoted = "{ input = '2 USD', output = '10 USD', long = { over = 100, input = '3 USD', output = '11 USD' }, \
                    until = '2026-11-30', then = { input = '4 USD', output = '20 USD' } }";
    let price = Profiles::load(&row(promoted)).unwrap().price("a/b");
    let at = |time: &str| price.on(time.parse().unwrap());
    let cost = |price: Price, prompt| price.worst_cost(prompt, 10).unwrap().micros();
    let before = at("2026-11-30T23:59:59.999Z");
    assert_eq!((cost(before, 100), cost(before, 101)), (200 + 100, 303 + 110));
    let (last, then) = before.rates().and_then(Rates::promotion).unwrap();
    assert_eq!((last.to_string(), then.per_million()[1].micros()), ("2026-11-30".to_owned(), 20_000_000));
    let after = at("2026-12-01T00:00:00.000Z");
    assert_eq!((cost(after, 100), cost(after, 101)), (400 + 200, 404 + 200), "it has no other rate for long prompts");
    assert_eq!(after.rates().and_then(Rates::promotion), None);
    let then = |then: &str, until: &str| format!("{{ input = '2 USD', output = '10 USD'{until}{then} }}");
    let rates = ", then = { input = '4 USD', output = '20 USD' }";
    for wrong in [
        then("", ", until = '2026-11-30'"),
        then(rates, ""),
        then(rates, ", until = '2026-11-31'"),
        then(", then = { input = '4 EUR', output = '20 EUR' }", ", until = '2026-11-30'"),
    ] {
        assert!(Profiles::load(&row(&wrong)).is_err(), "{wrong}");
    }
    assert!(Profiles::load(&row(&then(rates, ", until = '2026-11-30'"))).is_ok());
}

#[test]
fn the_current_models_of_each_family_have_rows() {
    let table = Profiles::builtin();
    for name in [
        "anthropic/claude-fable-5-1",
        "anthropic/claude-fable-5-2",
        "openai/gpt-6-astra",
        "openai/gpt-6-luna",
        "openai/gpt-5.6-sol",
        "gemini/gemini-4-argon",
        "gemini/gemini-3.1-pro-preview",
        "openrouter/openai/gpt-6-astra",
        "openrouter/anthropic/claude-fable-5.1",
    ] {
        assert!(matches!(table.price(name), Price::Listed(_)), "{name}");
        assert!(table.profile(name).window.is_some_and(|window| window >= 1_000_000), "{name}");
    }
    assert!(table.price("gemini/gemini-4-argon").rates().and_then(Rates::promotion).is_some());
    let (over, _) = table.price("openai/gpt-6-astra").rates().and_then(Rates::beyond).unwrap();
    assert_eq!(over, 272_000);
}

#[test]
fn another_edition_replaces_the_rows_of_providers_and_leaves_the_others() {
    let text =
        "version = 900\nas_of = '2030-01-01'\n[[model]]\ncrystal = 'openai/new'\ndefault = true\nwindow = 9_000\n";
    let edition = Profiles::edition(text).unwrap();
    assert_eq!((edition.version(), edition.as_of()), (900, "2030-01-01"));
    assert_eq!(edition.default_model(Provider::OpenAi), Some("openai/new"));
    assert_eq!(edition.price("openai/gpt-5"), Price::Unknown, "the earlier rows are gone");
    assert_eq!(edition.price("scripted/a"), Price::Free);
    for text in ["version = 900\nas_of = '2030-01-01'\n", "version = 900\n[[model]]\ncrystal = 'a/b'\n", ""] {
        assert_eq!(Profiles::edition(text), Err(ProfilesFault::NoEdition), "{text}");
    }
}

#[test]
fn a_more_specific_row_wins_and_leaves_the_rest() {
    let hosted = Profile::of("anthropic/claude-sonnet-4-5");
    assert!(hosted.forces_calls && hosted.tools && !hosted.programs);
    assert_eq!(hosted.bytes_per_token, Profile::default().bytes_per_token);
    // The name of a provider is not a prefix of another provider's name.
    assert!(!Profile::of("anthropics/x").forces_calls);
}

#[test]
fn whoever_knows_better_changes_only_what_they_say() {
    let row = ProfileRow { window: Some(32_000), tools: Some(false), ..ProfileRow::default() };
    let known = Profile::of("openai/gpt").with(&row);
    assert_eq!((known.window, known.tools, known.forces_calls), (Some(32_000), false, true));
}

#[test]
fn an_answer_is_bounded_by_the_model_and_else_by_its_window() {
    let of = |window, output_tokens_max| {
        let row = ProfileRow { window, output_tokens_max, ..ProfileRow::default() };
        Profile::default().with(&row).output_tokens(None)
    };
    assert_eq!(of(None, None), 8_192);
    assert_eq!(of(Some(200_000), None), 8_192);
    assert_eq!(of(Some(8_000), None), 2_000);
    assert_eq!(of(Some(8_000), Some(4_000)), 4_000);
    assert_eq!(of(None, Some(1_000)), 1_000);
    assert_eq!(of(None, Some(100_000)), 8_192);
    let generous = Profile { output_tokens_max: Some(64_000), ..Profile::default() };
    assert_eq!((generous.output_tokens(Some(20_000)), generous.output_tokens(Some(90_000))), (20_000, 64_000));
}

#[test]
fn a_crystal_speaks_for_itself_also_behind_a_pointer() {
    let program = AnyCrystal::new(ProgramCrystal::new("flow", "done(1)"));
    assert!(program.profile().programs, "whatever it is called");
    let scripted = AnyCrystal::new(ScriptedCrystal::new("scripted/x", Script::new([])));
    assert_eq!(scripted.profile(), Profile::of("scripted/x"));
}
