//! What is known of models: the table, and who knows better.

use cantrip_crystal::{AnyCrystal, Crystal, Profile, ProfileRow, Programmed, Script, Scripted};

#[test]
fn the_table_is_read_and_has_an_edition() {
    assert!(Profile::table_version() >= 1);
    // The first row says what everyone is given who is not named.
    assert_eq!(Profile::of("local/nobody@http://localhost/v1"), Profile::default());
}

#[test]
fn a_more_specific_row_wins_and_leaves_the_rest() {
    let hosted = Profile::of("anthropic/claude-sonnet-4-5");
    assert!(hosted.forces_calls && hosted.tools && !hosted.programs);
    assert_eq!(hosted.bytes_per_token, Profile::default().bytes_per_token);
    // The name of a provider is no beginning of another one's.
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
    let program = AnyCrystal::new(Programmed::new("flow", "done(1)"));
    assert!(program.profile().programs, "whatever it is called");
    let scripted = AnyCrystal::new(Scripted::new("scripted/x", Script::new([])));
    assert_eq!(scripted.profile(), Profile::of("scripted/x"));
}
