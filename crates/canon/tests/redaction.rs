//! Redaction: what it takes out, and the many things that look like secrets and are none.

mod common;

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use cantrip_canon::{IdSource, Redactor, Secret, Timestamp, kinds};
use common::Random;
use serde_json::{Value, json};

const LOWER: &str = "abcdefghijklmnopqrstuvwxyz";
const CAPITALS_AND_DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const ALPHANUMERIC: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const URL_SAFE: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
const DIGITS: &str = "0123456789";

/// Draws 100,000 samples, a hundred to a text, one on each line; none of the texts may change. All patterns are on.
fn unchanged(seed: u64, mut sample: impl FnMut(&mut Random, &mut String)) {
    let mut random = Random::new(seed);
    let redactor = Redactor::default().personal_data(true);
    for _ in 0..1_000 {
        let mut text = String::new();
        for _ in 0..100 {
            sample(&mut random, &mut text);
            text.push('\n');
        }
        if let Cow::Owned(redacted) = redactor.text(&text) {
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
        assert!(matches!(shared.text(text), Cow::Borrowed(same) if same == text), "{text}");
    }
}

/// A kind of secret: what a text holds, and the part of it that must go.
type Drawn = (String, String);
const KINDS: &[(&str, fn(&mut Random) -> Drawn)] = &[
    ("private key", |random| {
        let kind = random.pick(&["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "]);
        let body: Vec<String> = (0..random.between(1, 5)).map(|_| random.of(ALPHANUMERIC, 64)).collect();
        let body = body.join("\n");
        let end = if random.one_in(8) { String::new() } else { format!("\n-----END {kind}PRIVATE KEY-----") };
        (format!("-----BEGIN {kind}PRIVATE KEY-----\n{body}{end}"), body)
    }),
    ("bearer token", |random| {
        let length = random.between(24, 80);
        let token = random.of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._~+/-", length);
        (format!("{} {token}", random.pick(&["Bearer", "bearer", "BEARER"])), token)
    }),
    ("bearer token of 16 digits and letters", |random| {
        let token = format!("{}{}", random.of(LOWER, 8), random.of(DIGITS, 8));
        (format!("Bearer  {token}=="), token)
    }),
    ("basic credentials", |random| {
        loop {
            let printable: String = (b' '..=b'~').map(char::from).collect();
            let (user, password) = (random.between(1, 12), random.between(4, 20));
            let plain = format!("{}:{}", random.of(LOWER, user), random.of(&printable, password));
            let padded = base64::engine::general_purpose::STANDARD.encode(plain);
            let encoded = if random.one_in(2) { padded.trim_end_matches('=').to_owned() } else { padded };
            if encoded.chars().any(|letter| letter.is_ascii_uppercase()) {
                return (format!("{} {encoded}", random.pick(&["Basic", "basic"])), encoded);
            }
        }
    }),
    ("key of a model provider", |random| {
        let (prefix, length) = (random.pick(&["", "proj-", "ant-api03-", "or-v1-"]), random.between(48, 95));
        whole(format!("sk-{prefix}{}", random.of(ALPHANUMERIC, length)))
    }),
    ("key of a model provider with hyphens", |random| whole(format!("sk-svcacct-{}", random.of(URL_SAFE, 120)))),
    ("key of a model provider in hexadecimal", |random| whole(format!("sk-{}", random.of("0123456789abcdef", 32)))),
    ("key for payments", |random| {
        let (prefix, length) = (random.pick(&["sk_live_", "sk_test_", "rk_live_", "pk_test_"]), random.between(16, 99));
        whole(format!("{prefix}{}", random.of(ALPHANUMERIC, length)))
    }),
    ("GitHub token", |random| {
        let (prefix, length) = (random.pick(&["ghp_", "gho_", "ghu_", "ghs_", "ghr_"]), random.between(36, 80));
        whole(format!("{prefix}{}", random.of(ALPHANUMERIC, length)))
    }),
    ("GitHub fine-grained token", |random| {
        whole(format!("github_pat_{}_{}", random.of(ALPHANUMERIC, 22), random.of(ALPHANUMERIC, 59)))
    }),
    ("GitLab token", |random| whole(format!("glpat-{}", random.of(URL_SAFE, 20)))),
    ("AWS key id", |random| whole(format!("{}{}", random.pick(&["AKIA", "ASIA"]), random.of(CAPITALS_AND_DIGITS, 16)))),
    ("Google key", |random| whole(format!("AIza{}", random.of(URL_SAFE, 35)))),
    ("Google token", |random| {
        let length = random.between(20, 150);
        whole(format!("ya29.{}", random.of(URL_SAFE, length)))
    }),
    ("Slack token", |random| {
        let kind = random.of("abeoprs", 1);
        whole(format!("xox{kind}-{}-{}", random.of(DIGITS, 12), random.of(ALPHANUMERIC, 24)))
    }),
    ("Hugging Face token", |random| whole(format!("hf_{}", random.of(ALPHANUMERIC, 34)))),
    ("npm token", |random| whole(format!("npm_{}", random.of(ALPHANUMERIC, 36)))),
    ("PyPI token", |random| whole(format!("pypi-AgEIcHlwaS5vcmc{}", random.of(URL_SAFE, 120)))),
    ("JSON web token", |random| {
        let lengths = [random.between(8, 60), random.between(8, 200), random.between(8, 90)];
        let [header, claims, signature] = lengths.map(|length| random.of(URL_SAFE, length));
        whole(format!("eyJ{header}.eyJ{claims}.{signature}x"))
    }),
    ("password in an address", |random| {
        let length = random.between(1, 30);
        // No letters that the rest of the address has, so that finding one of them means a leak.
        let password = format!("Q{}", random.of("QWXYZ0123456789!$%^*()[]{}<>,;:+=~-", length));
        (format!("postgres://{}:{password}@db/{}", random.of(LOWER, 3), random.of(LOWER, 3)), password)
    }),
    ("value of a telling parameter", |random| {
        let names = [
            "access_token",
            "api_key",
            "apikey",
            "key",
            "token",
            "sig",
            "signature",
            "X-Amz-Signature",
            "x-goog-signature",
        ];
        let (name, mark) = (random.pick(&names), random.pick(&["?", "?a=1&"]));
        let length = random.between(16, 80);
        let value = random.of(URL_SAFE, length);
        (format!("https://example.org/file{mark}{name}={value}"), value)
    }),
];

fn whole(secret: String) -> Drawn {
    (secret.clone(), secret)
}

#[test]
fn no_kind_of_secret_is_left_in_prose_address_header_or_json() {
    let redactor = Redactor::default();
    let mut random = Random::new(100);
    for (kind, draw) in KINDS {
        for _ in 0..200 {
            let (text, secret) = draw(&mut random);
            let around = [
                format!("I found {text}, and kept it"),
                format!("({text})"),
                format!("Größe:{text}"),
                format!("https://example.org/path?x={text}&y=1"),
                format!("X-Custom: {text}\r\nAccept: */*\r\n"),
                json!({"note": text, "n": 1}).to_string(),
                text.clone(),
            ];
            for before in around {
                let escaped = secret.replace('\n', "\\n");
                let after = redactor.text(&before);
                assert!(!after.contains(&secret) && !after.contains(&escaped), "{kind}: {before} became {after}");
                assert!(after.contains("[REDACTED]"), "{kind}: {before} became {after}");
                assert_eq!(redactor.text(&after), after, "{kind}: {before}");
            }
            let value = json!([{"deep": {"note": format!("see {text}")}, text.clone(): 1}]);
            let shown = redactor.value(&value).to_string();
            let escaped = json!(secret).to_string();
            assert!(!shown.contains(escaped.trim_matches('"')), "{kind}: {value} became {shown}");
        }
    }
}

#[test]
fn only_the_secret_goes_and_what_tells_its_place_stays() {
    let redactor = Redactor::default();
    for (before, after) in [
        ("Authorization: Bearer 0123456789abcdef", "Authorization: Bearer [REDACTED]"),
        ("Authorization: Basic dXNlcjpwYXNzd29yZA==", "Authorization: Basic [REDACTED]"),
        ("postgres://ada:hunter2@db.example.org/x", "postgres://ada:[REDACTED]@db.example.org/x"),
        ("redis://:hunter2@cache:6379", "redis://:[REDACTED]@cache:6379"),
        ("https://a/b?page=1&api_key=0123456789abcdef&x=2", "https://a/b?page=1&api_key=[REDACTED]&x=2"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nok", "[REDACTED]\nok"),
        ("cut off: -----BEGIN PRIVATE KEY-----\nMIIEv", "cut off: [REDACTED]"),
        ("Basic dXNlcjpwYXNzd29yZA", "Basic [REDACTED]"),
    ] {
        assert_eq!(redactor.text(before), after);
    }
}

#[test]
fn the_scheme_at_the_end_of_one_token_still_announces_the_next() {
    let redactor = Redactor::default();
    for text in [
        "bearer aaaaaaaaaaaaaaaa-bearer 0123456789abcdef",
        "bearer 0123456789abcdef-bearer fedcba9876543210",
        "basic aaaaaaaa/basic dXNlcjpwYXNzd29yZA==",
    ] {
        let after = redactor.text(text);
        assert!(
            !after.contains("0123456789abcdef") && !after.contains("fedcba98") && !after.contains("dXNl"),
            "{after}"
        );
    }
}

#[test]
fn a_chain_of_secrets_that_hide_one_another_leaves_nothing() {
    let redactor = Redactor::default();
    let link = format!("AIza{}npm_{}", "a1".repeat(17) + "a", "b2".repeat(18));
    for links in 1..40 {
        let after = redactor.text(&link.repeat(links)).into_owned();
        assert!(!after.contains("a1a1") && !after.contains("b2b2"), "{after}");
        assert_eq!(redactor.text(&after), after);
    }
}

#[test]
fn personal_data_goes_only_if_asked_to() {
    let shared = Redactor::default().personal_data(true);
    for (before, after) in [
        ("write to ada.l+x@mail.example.org today", "write to [REDACTED] today"),
        ("jörg@müller.de", "[REDACTED]"),
        ("tel. +442079460018", "tel. [REDACTED]"),
        ("(+1 555-010-9999)", "([REDACTED])"),
        ("+49.30.1234567, +49 30 7654321", "[REDACTED], [REDACTED]"),
        // Too short, too long, two separators in a row, no plus.
        ("+1234567", "+1234567"),
        ("+1234567890123456", "+1234567890123456"),
        ("+1  55  01  09  99", "+1  55  01  09  99"),
        ("442079460018", "442079460018"),
    ] {
        assert_eq!(shared.text(before), after);
        assert_eq!(Redactor::default().text(before), before);
    }
    let person = json!({"email": "at work", "phoneNumber": "x", "Postal-Code": "y", "age": 36, "street_name": "z"});
    let without = json!({"email": "[REDACTED]", "phoneNumber": "[REDACTED]", "Postal-Code": "[REDACTED]", "age": 36, "street_name": "z"});
    assert_eq!(shared.value(&person), without);
    assert_eq!(Redactor::default().value(&person), person);
}

#[test]
fn strings_under_telling_keys_go_however_the_key_is_written() {
    let redactor = Redactor::default();
    for key in [
        "authorization",
        "Proxy-Authorization",
        "cookie",
        "Set-Cookie",
        "setCookie",
        "password",
        "PASSWORD",
        "passwd",
        "passphrase",
        "secret",
        "clientSecret",
        "CLIENT_SECRET",
        "api_key",
        "apiKey",
        "ApiKey",
        "APIKey",
        "API Key",
        "api-key",
        "apikey",
        "X-API-Key",
        "admin_key",
        "AWS_SECRET_ACCESS_KEY_secret_key",
        "access_key",
        "secretKey",
        "privateKey",
        "accessToken",
        "refresh_token",
        "id_token",
        "auth-token",
        "sessionToken",
        "bearer_token",
        "csrfToken",
        "credentials",
        "db_password",
        "keyPassphrase",
        "webhookSecret",
        "OPENAI_API_KEY",
        "openaiApikey",
        "stripe_admin_key",
        "tlsPrivateKey",
        "oauthAccessToken",
        "x-refresh-token",
        "myOAuthToken",
        "my_session_token",
    ] {
        let value = json!({key: ["short", {"n": 7, "inner": "two words", "none": null, "truth": true}]});
        let redacted = json!({key: ["[REDACTED]", {"n": 7, "inner": "[REDACTED]", "none": null, "truth": true}]});
        assert_eq!(redactor.value(&value), redacted, "{key}");
    }
}

#[test]
fn strings_under_keys_that_only_resemble_telling_ones_stay() {
    let redactor = Redactor::default();
    for key in [
        "page_token",
        "stop_token",
        "eos_token",
        "max_tokens",
        "tokens",
        "token_count",
        "nextPageToken",
        "key",
        "keys",
        "monkey",
        "author",
        "authorized",
        "secretary",
        "passwords_changed",
        "password_hint",
        "cookies_accepted",
        "private_keys",
        "public_key",
        "primaryKey",
        "email",
        "phone",
        "credentials_count",
        "api_keys",
        "reset_password_url",
    ] {
        let value = json!({key: "a value of twenty or more characters", "x": {key: "v"}});
        assert_eq!(redactor.value(&value), value, "{key}");
    }
}

#[test]
fn a_string_under_token_goes_if_it_is_long_and_has_no_spaces() {
    let redactor = Redactor::default();
    let before = json!({"token": ["abcdefghijklmnop", "abcdefghijklmno", "a long text with spaces", 12345678901234567_i64 % 1000, "ééééééééééééééé"]});
    let after = json!({"token": ["[REDACTED]", "abcdefghijklmno", "a long text with spaces", 567, "ééééééééééééééé"]});
    assert_eq!(redactor.value(&before), after);
    assert_eq!(redactor.value(&json!({"secret": {"token": "short"}})), json!({"secret": {"token": "[REDACTED]"}}));
}

#[test]
fn a_known_secret_goes_wherever_it_occurs() {
    let redactor = Redactor::with_secrets(["tr0ub4dor&3", "line one\nline \"two\"\n", "short", "tr0ub4dor&3-and-more"]);
    for (before, after) in [
        ("xtr0ub4dor&3x", "x[REDACTED]x"),
        ("tr0ub4dor&3-and-more", "[REDACTED]"),
        ("line one\nline \"two\"", "[REDACTED]"),
        (r#"{"k":"line one\nline \"two\"\n"}"#, r#"{"k":"[REDACTED]\n"}"#),
        ("short stays", "short stays"),
    ] {
        assert_eq!(redactor.text(before), after);
    }
    let value = json!({"a": {"tr0ub4dor&3": 1, "x tr0ub4dor&3": "tr0ub4dor&3"}});
    assert_eq!(redactor.value(&value), json!({"a": {"[REDACTED]": 1, "x [REDACTED]": "[REDACTED]"}}));
}

#[test]
fn of_known_secrets_that_overlap_no_part_is_left() {
    let redactor = Redactor::with_secrets(["abcdefgh1234", "1234ijklmnop"]);
    assert_eq!(redactor.text("-abcdefgh1234ijklmnop-"), "-[REDACTED]-");
}

#[test]
fn entries_whose_keys_become_equal_are_all_kept() {
    let redactor = Redactor::with_secrets(["first-secret", "second-secret"]);
    let value = json!({"first-secret": 1, "second-secret": 2, "[REDACTED]": 3, "plain": 4});
    let redacted = redactor.value(&value);
    assert_eq!(redacted, json!({"[REDACTED]": 1, "[REDACTED] 2": 2, "[REDACTED] 3": 3, "plain": 4}));
    assert_eq!(redactor.value(&redacted), redacted);
}

#[test]
fn no_secret_can_be_read_from_debug_output() {
    let redactor = Redactor::with_secrets(["tr0ub4dor&3"]);
    assert!(!format!("{redactor:?} {redactor:#?}").contains("tr0ub"));
    assert!(!format!("{:?}", Some(Secret::new("tr0ub4dor&3"))).contains("tr0ub"));
}

/// A text of words, secrets, and what secrets are made of.
fn random_text(random: &mut Random) -> String {
    const PIECES: &[&str] = &[
        "[REDACTED]",
        "REDACTED",
        "[",
        "]",
        "bearer ",
        "Basic ",
        "sk-",
        "xoxb-",
        "AIza",
        "npm_",
        "://",
        "a://u:",
        "@",
        "?key=",
        "&token=",
        "=",
        "+1",
        " ",
        "-",
        "_",
        ".",
        "/",
        "\n",
        "é",
        "eyJ",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "known secret",
        "example.org",
    ];
    let mut text = String::new();
    for _ in 0..random.between(1, 8) {
        match random.below(8) {
            0 => text.push_str(&KINDS[random.below(KINDS.len())].1(random).0),
            1 => {
                let length = random.between(1, 40);
                text.push_str(&random.of(URL_SAFE, length));
            }
            _ => text.push_str(random.pick(PIECES)),
        }
    }
    text
}

fn random_value(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth == 0 { 4 } else { 6 }) {
        0 => json!(random.below(1 << 53)),
        1 => [Value::Null, json!(true), json!(-0.5)][random.below(3)].clone(),
        2 | 3 => Value::String(random_text(random)),
        4 => (0..random.below(4)).map(|_| random_value(random, depth - 1)).collect(),
        _ => {
            let key = |random: &mut Random| {
                random.pick(&["a", "b", "password", "token", "apiKey", "note", "[REDACTED]"]).to_owned()
            };
            (0..random.below(5)).map(|_| (key(random), random_value(random, depth - 1))).collect()
        }
    }
}

#[test]
fn what_was_redacted_is_redacted_no_further() {
    let redactors = [
        Redactor::default(),
        Redactor::default().personal_data(true),
        Redactor::with_secrets(["known secret", "REDACTED", "[REDACTED]", "TED]abcdefgh", "][REDACTED"])
            .personal_data(true),
    ];
    let mut random = Random::new(200);
    for _ in 0..10_000 {
        let text = random_text(&mut random);
        for redactor in &redactors {
            let once = redactor.text(&text);
            assert_eq!(redactor.text(&once), once, "{text:?}");
        }
    }
}

/// Everything but the content of strings.
fn shape(value: &Value) -> Value {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        Value::String(_) => json!("a string"),
        Value::Array(items) => items.iter().map(shape).collect(),
        Value::Object(entries) => entries.iter().map(|(key, entry)| (key.clone(), shape(entry))).collect(),
    }
}

#[test]
fn the_keys_and_the_shape_of_a_value_are_kept_and_twice_is_as_once() {
    let redactor = Redactor::default().personal_data(true);
    let mut random = Random::new(300);
    for _ in 0..3_000 {
        let value = random_value(&mut random, 4);
        let once = redactor.value(&value);
        assert_eq!(shape(&once), shape(&value));
        assert_eq!(redactor.value(&once), once, "{value}");
    }
}
