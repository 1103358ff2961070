//! The colours of the stylesheet: every pair that is used has enough contrast in both themes, by computation.

use std::collections::BTreeMap;

use cantrip_pages::STYLE;

/// A colour of the light and of the dark theme.
type Pair = [[u8; 3]; 2];

/// Reads the tokens that are written as `--name: light-dark(#rrggbb, #rrggbb);`.
fn tokens() -> BTreeMap<String, Pair> {
    let (_, root) = STYLE.split_once(":root {").unwrap();
    let (root, _) = root.split_once('}').unwrap();
    let colour = |text: &str| {
        let digits = text.trim().strip_prefix('#')?;
        let part = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        Some([part(0)?, part(2)?, part(4)?])
    };
    let read = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let both = value.trim().strip_prefix("light-dark(")?.strip_suffix(')')?;
        let (light, dark) = both.split_once(',')?;
        Some((name.trim().trim_start_matches("--").to_owned(), [colour(light)?, colour(dark)?]))
    };
    root.split(';').filter_map(read).collect()
}

fn luminance(colour: [u8; 3]) -> f64 {
    let linear = colour.map(|part| {
        let part = f64::from(part) / 255.0;
        if part <= 0.040_45 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    });
    0.212_6 * linear[0] + 0.715_2 * linear[1] + 0.072_2 * linear[2]
}

fn contrast(one: [u8; 3], two: [u8; 3]) -> f64 {
    let (one, two) = (luminance(one), luminance(two));
    (one.max(two) + 0.05) / (one.min(two) + 0.05)
}

/// Checks that the first colour has at least this contrast on the second one in both themes.
fn check(of: &str, on: &str, least: f64) {
    let tokens = tokens();
    let find = |name: &str| *tokens.get(name).unwrap_or_else(|| panic!("--{name} is not among the tokens"));
    let (of_both, on_both) = (find(of), find(on));
    for (theme, (front, back)) in ["light", "dark"].into_iter().zip(of_both.into_iter().zip(on_both)) {
        let found = contrast(front, back);
        assert!(found >= least, "--{of} on --{on} in the {theme} theme: {found:.2}:1, not {least}:1");
    }
}

const GROUNDS: [&str; 3] = ["paper", "sheet", "sunk"];

#[test]
fn the_computation_is_that_of_the_guidelines() {
    assert!((contrast([0, 0, 0], [255, 255, 255]) - 21.0).abs() < 0.001);
    assert!((contrast([0x77, 0x77, 0x77], [255, 255, 255]) - 4.48).abs() < 0.01);
}

#[test]
fn all_text_has_a_contrast_of_four_and_a_half_on_every_ground() {
    let texts = [
        "ink", "ink-2", "ink-3", "accent", "ok", "warn", "deny", "bad", "wait", "tk-k", "tk-s", "tk-n", "tk-c", "tk-f",
    ];
    for text in texts {
        GROUNDS.iter().for_each(|ground| check(text, ground, 4.5));
    }
    for outcome in ["accent", "ok", "warn", "deny", "bad", "wait"] {
        let soft = format!("{outcome}-soft");
        [outcome, "ink", "ink-2"].iter().for_each(|text| check(text, &soft, 4.5));
    }
    // A button that acts.
    check("paper", "ink", 4.5);
}

#[test]
fn the_edges_of_controls_and_the_focus_have_a_contrast_of_three() {
    for ground in GROUNDS {
        check("edge", ground, 3.0);
        check("accent", ground, 3.0);
    }
}

#[test]
fn a_rule_uses_tokens_and_no_colour_of_its_own() {
    let (_, rules) = STYLE.split_once(":root {").and_then(|(_, rest)| rest.split_once('}')).unwrap();
    let hashes = rules.match_indices('#').filter(|(at, _)| {
        let digits = rules[at + 1..].chars().take_while(char::is_ascii_hexdigit).count();
        matches!(digits, 3 | 6 | 8)
    });
    let found: Vec<&str> = hashes.map(|(at, _)| &rules[at..(at + 12).min(rules.len())]).collect();
    assert_eq!(found, Vec::<&str>::new());
}

#[test]
fn nothing_is_loaded_from_elsewhere() {
    for forbidden in ["url(", "@import", "@font-face", "http:", "https:"] {
        assert!(!STYLE.contains(forbidden), "{forbidden} is in the stylesheet");
    }
}
