//! Tests that redaction leaves texts alone that look like secrets but are none, 100,000 of each kind.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod common;

use std::borrow::Cow;
use std::fmt::Write as _;

use cantrip_canon::{IdSource, Redactor, Timestamp, kinds};
use common::Random;

const LOWER: &str = "abcdefghijklmnopqrstuvwxyz";
const DIGITS: &str = "0123456789";

/// Draws 100,000 samples, a hundred per text, one per line. None of the texts may change. All patterns are on.
fn unchanged(seed: u64, mut sample: impl FnMut(&mut Random, &mut String)) {
    let mut random = Random::new(seed);
    let redactor = Redactor::default().personal_data(true);
    for _ in 0..1_000 {
        let mut text = String::new();
        for _ in 0..100 {
            sample(&mut random, &mut text);
            text.push('\n');
        }
        if let Cow::Owned(redacted) = redactor.redact_text(&text) {
            let changed = text.lines().zip(redacted.lines()).find(|(before, after)| before != after);
            panic!("{changed:?}");
        }
    }
}

macro_rules! unchanged {
    ($($name:ident($seed:literal): $sample:expr;)+) => {
        $(#[test]
        fn $name() {
            unchanged($seed, $sample);
        })+
    };
}

unchanged! {
    hexadecimal_of_32_digits_is_unchanged(1): |random, text| hexadecimal(random, text, 32);
    hexadecimal_of_40_digits_is_unchanged(2): |random, text| hexadecimal(random, text, 40);
    hexadecimal_of_64_digits_is_unchanged(3): |random, text| hexadecimal(random, text, 64);
    hashes_are_unchanged(4): |random, text| {
        text.push_str("sha256:");
        text.push_str(&random.of("0123456789abcdef", 64));
    };
    uuids_are_unchanged(5): |random, text| {
        let digits = random.pick(&["0123456789abcdef", "0123456789ABCDEF"]);
        for (index, length) in [8, 4, 4, 4, 12].into_iter().enumerate() {
            text.push_str(if index > 0 { "-" } else { "" });
            text.push_str(&random.of(digits, length));
        }
    };
    ulids_are_unchanged(6): |random, text| {
        text.push_str(&random.of("01234567", 1));
        let digits = random.pick(&["0123456789abcdefghjkmnpqrstvwxyz", "0123456789ABCDEFGHJKMNPQRSTVWXYZ"]);
        text.push_str(&random.of(digits, 25));
    };
    times_with_any_offset_are_unchanged(7): time;
    unix_seconds_and_milliseconds_are_unchanged(8): |random, text| {
        let seconds = random.below(4_000_000_000);
        let millis = random.below(1000);
        if random.one_in(2) { write!(text, "{seconds}") } else { write!(text, "{seconds}{millis:03}") }.unwrap();
    };
    floats_are_unchanged(9): |random, text| {
        let double = f64::from_bits(random.bits());
        match random.below(4) {
            0 => write!(text, "{double:e}"),
            1 => write!(text, "{:.3}", random.bits() as f64 / 1e9),
            2 => write!(text, "{}", random.bits() as i64 as f64 / 1e12),
            _ => write!(text, "{}e+{}", random.below(1000), random.below(400)),
        }
        .unwrap();
    };
    addresses_with_a_port_are_unchanged(10): |random, text| {
        let bits = random.bits();
        let port = bits >> 48;
        if random.one_in(4) {
            write!(text, "[2001:db8::{:x}:{:x}]:{port}", bits & 0xffff, bits >> 16 & 0xffff)
        } else {
            write!(text, "{}:{port}", std::net::Ipv4Addr::from_bits(bits as u32))
        }
        .unwrap();
    };
    words_are_unchanged(11): |random, text| words(random, text, &[""], 1);
    words_joined_by_spaces_are_unchanged(12): |random, text| words(random, text, &[" "], 8);
    words_joined_by_hyphens_are_unchanged(13): |random, text| words(random, text, &["-"], 8);
    words_joined_by_underscores_are_unchanged(14): |random, text| words(random, text, &["_"], 8);
    words_after_sk_are_unchanged(15): |random, text| {
        text.push_str("sk-");
        words(random, text, &["-", "_"], 12);
    };
    words_after_bearer_are_unchanged(16): |random, text| {
        text.push_str(random.pick(&["bearer ", "Bearer ", "BEARER  ", "bearer\t"]));
        words(random, text, &[" ", "-", "_"], 8);
    };
    words_after_basic_are_unchanged(17): |random, text| {
        text.push_str(random.pick(&["basic ", "Basic ", "BASIC  ", "basic\t"]));
        words(random, text, &[" ", "-", "_"], 8);
    };
    words_after_the_prefixes_of_tokens_are_unchanged(18): |random, text| {
        text.push_str(random.pick(&["xoxb-", "xoxo-", "glpat-", "pypi-", "github_pat_", "hf_", "npm_", "ghp_"]));
        words(random, text, &["-", "_"], 12);
    };
}

fn hexadecimal(random: &mut Random, text: &mut String, digits: usize) {
    let alphabet = random.pick(&["0123456789abcdef", "0123456789ABCDEF"]);
    text.push_str(&random.of(alphabet, digits));
}

fn words(random: &mut Random, text: &mut String, joints: &[&str], most: usize) {
    for index in 0..random.between(1, most) {
        text.push_str(if index > 0 { random.pick(joints) } else { "" });
        let letters = random.between(1, 12);
        text.push_str(&random.of(LOWER, letters));
    }
}

fn time(random: &mut Random, text: &mut String) {
    let (year, month, day) = (random.below(10_000), random.between(1, 12), random.between(1, 28));
    let (hour, minute, second) = (random.below(24), random.below(60), random.below(60));
    let divider = random.pick(&["T", "t", " "]);
    write!(text, "{year:04}-{month:02}-{day:02}{divider}{hour:02}:{minute:02}:{second:02}").unwrap();
    let decimals = random.below(10);
    if decimals > 0 {
        write!(text, ".{}", random.of(DIGITS, decimals)).unwrap();
    }
    match random.below(4) {
        0 => text.push_str(random.pick(&["Z", "z"])),
        _ => write!(text, "{}{:02}:{:02}", random.pick(&["+", "-"]), random.below(24), random.below(60)).unwrap(),
    }
}

#[test]
fn typed_ids_of_every_kind_are_unchanged() {
    let source = IdSource::seeded(19);
    unchanged(19, |random, text| {
        let at = Timestamp::from_unix_millis(random.below(1 << 47) as i64).unwrap();
        match random.below(12) {
            0 => write!(text, "{}", source.next::<kinds::Loom>(at)),
            1 => write!(text, "{}", source.next::<kinds::Run>(at)),
            2 => write!(text, "{}", source.next::<kinds::Entity>(at)),
            3 => write!(text, "{}", source.next::<kinds::Cast>(at)),
            4 => write!(text, "{}", source.next::<kinds::Turn>(at)),
            5 => write!(text, "{}", source.next::<kinds::Fold>(at)),
            6 => write!(text, "{}", source.next::<kinds::Predict>(at)),
            7 => write!(text, "{}", source.next::<kinds::Authorization>(at)),
            8 => write!(text, "{}", source.next::<kinds::Approval>(at)),
            9 => write!(text, "{}", source.next::<kinds::Decision>(at)),
            10 => write!(text, "{}", source.next::<kinds::Audit>(at)),
            _ => write!(text, "{}", source.next::<kinds::Job>(at)),
        }
        .unwrap();
    });
}

#[test]
fn ordinary_texts_are_unchanged_and_not_copied() {
    let shared = Redactor::default().personal_data(true);
    for text in [
        "",
        "task-123",
        "risk-free",
        "2026-02-19T02:00:00Z",
        "the bearer of this letter",
        "a basic misunderstanding",
        "sk-learn-compatible-estimators-for-everyone",
        "https://example.org:8080/a?key=short&page=2#token",
        "git@",
        "-----BEGIN CERTIFICATE-----",
        "1+12345678",
        "call 020 7946 0018",
        "AKIA is a prefix, AIza too",
        "[REDACTED]",
        "Ärger über größere Übel",
    ] {
        assert!(matches!(shared.redact_text(text), Cow::Borrowed(same) if same == text), "{text}");
    }
}
