//! Tests of the parts of a text that redaction removes, and of the text that it keeps.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod common;

use base64::Engine as _;
use cantrip_canon::{Redactor, Secret};
use common::Random;
use serde_json::{Value, json};

const LOWER: &str = "abcdefghijklmnopqrstuvwxyz";
const CAPITALS_AND_DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const ALPHANUMERIC: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const URL_SAFE: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
const DIGITS: &str = "0123456789";

/// A text, and the part of it that must be removed.
type Drawn = (String, String);
type Draw = fn(&mut Random) -> Drawn;

const KINDS: &[(&str, Draw)] = &[
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
        // Use no letters that the rest of the address has, so that finding one of them means a leak.
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
                let after = redactor.redact_text(&before);
                assert!(!after.contains(&secret) && !after.contains(&escaped), "{kind}: {before} became {after}");
                assert!(after.contains("[REDACTED]"), "{kind}: {before} became {after}");
                assert_eq!(redactor.redact_text(&after), after, "{kind}: {before}");
            }
            let value = json!([{"deep": {"note": format!("see {text}")}, text.clone(): 1}]);
            let shown = redactor.redact_value(&value).to_string();
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
        assert_eq!(redactor.redact_text(before), after);
    }
}

#[test]
fn what_has_the_form_of_a_secret_is_one_only_under_its_condition() {
    let redactor = Redactor::default();
    for (text, is_secret) in [
        // A digit and a letter, or both cases in 20 characters.
        ("bearer abcdefghijklmno1", true),
        ("bearer 1234567890123456", false),
        ("bearer ABCDEFGHIJklmnopqrs", false),
        ("bearer ABCDEFGHIJklmnopqrst", true),
        ("bearer abcdefghijklmn1", false),
        // A capital letter, and printable text with a colon inside.
        ("basic YTpi", false),
        ("basic YTpiYzpk", true),
        ("basic YWJjZGVm", false),
        ("basic YTpiYwo=", false),
        // Digit and both cases; or 16 in a row with digit and letter; or 32 in a row in both cases.
        ("sk-aaaa-bbbb-cccc-dddd-E1", true),
        ("sk-aaaa-bbbb-cccc-dddd-e1", false),
        ("sk-abcdefghijklmno1-and-more", true),
        ("sk-abcdefghijklmn1-and-more", false),
        ("sk-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef", true),
        ("sk-ABCDEFGHIJKLMNOPQRSTUVWXYZabcde", false),
        ("sk-abcdefghijklmno1", false),
        // A digit or a capital letter somewhere.
        ("xoxb-hugs-and-kisses", false),
        ("xoxb-hugs-and-kisses-2", true),
        ("glpat-how-to-rotate-a-token", false),
        ("glpat-how-to-rotate-a-tokeN", true),
    ] {
        assert_eq!(redactor.redact_text(text).contains("[REDACTED]"), is_secret, "{text}");
    }
}

#[test]
fn the_scheme_at_the_end_of_one_token_still_announces_the_next() {
    let redactor = Redactor::default();
    for text in [
        "bearer aaaaaaaaaaaaaaaa-bearer 0123456789abcdef",
        "bearer 0123456789abcdef-bearer fedcba9876543210",
        "basic aaaaaaaa/basic dXNlcjpwYXNzd29yZA==",
        "bearer 0123456789abcdef-basic dXNlcjpwYXNzd29yZA==",
    ] {
        let after = redactor.redact_text(text);
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
        let after = redactor.redact_text(&link.repeat(links)).into_owned();
        assert!(!after.contains("a1a1") && !after.contains("b2b2"), "{after}");
        assert_eq!(redactor.redact_text(&after), after);
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
        assert_eq!(shared.redact_text(before), after);
        assert_eq!(Redactor::default().redact_text(before), before);
    }
    let person = json!({"email": "at work", "phoneNumber": "x", "Postal-Code": "y", "age": 36, "street_name": "z"});
    let without = json!({"email": "[REDACTED]", "phoneNumber": "[REDACTED]", "Postal-Code": "[REDACTED]", "age": 36, "street_name": "z"});
    assert_eq!(shared.redact_value(&person), without);
    assert_eq!(Redactor::default().redact_value(&person), person);
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
        assert_eq!(redactor.redact_value(&value), redacted, "{key}");
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
        assert_eq!(redactor.redact_value(&value), value, "{key}");
    }
}

#[test]
fn a_string_under_token_goes_if_it_is_long_and_has_no_spaces() {
    let redactor = Redactor::default();
    let before = json!({"token": ["abcdefghijklmnop", "abcdefghijklmno", "a long text with spaces", 12345678901234567_i64 % 1000, "ééééééééééééééé"]});
    let after = json!({"token": ["[REDACTED]", "abcdefghijklmno", "a long text with spaces", 567, "ééééééééééééééé"]});
    assert_eq!(redactor.redact_value(&before), after);
    assert_eq!(
        redactor.redact_value(&json!({"secret": {"token": "short"}})),
        json!({"secret": {"token": "[REDACTED]"}})
    );
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
        assert_eq!(redactor.redact_text(before), after);
    }
    let value = json!({"a": {"tr0ub4dor&3": 1, "x tr0ub4dor&3": "tr0ub4dor&3"}});
    assert_eq!(redactor.redact_value(&value), json!({"a": {"[REDACTED]": 1, "x [REDACTED]": "[REDACTED]"}}));
}

#[test]
fn a_known_secret_that_is_part_of_the_marker_does_no_harm() {
    let redactor = Redactor::with_secrets(["REDACTED", "tr0ub4dor&3"]);
    assert_eq!(redactor.redact_text("a REDACTED tr0ub4dor&3 b"), "a REDACTED [REDACTED] b");
}

#[test]
fn of_known_secrets_that_overlap_no_part_is_left() {
    let redactor = Redactor::with_secrets(["abcdefgh1234", "1234ijklmnop"]);
    assert_eq!(redactor.redact_text("-abcdefgh1234ijklmnop-"), "-[REDACTED]-");
}

#[test]
fn entries_whose_keys_become_equal_are_all_kept() {
    let redactor = Redactor::with_secrets(["first-secret", "second-secret"]);
    let value = json!({"first-secret": 1, "second-secret": 2, "[REDACTED]": 3, "plain": 4});
    let redacted = redactor.redact_value(&value);
    assert_eq!(redacted, json!({"[REDACTED]": 1, "[REDACTED] 2": 2, "[REDACTED] 3": 3, "plain": 4}));
    assert_eq!(redactor.redact_value(&redacted), redacted);
}

#[test]
fn no_secret_can_be_read_from_debug_output() {
    let redactor = Redactor::with_secrets(["tr0ub4dor&3"]);
    assert!(!format!("{redactor:?} {redactor:#?}").contains("tr0ub"));
    assert!(!format!("{:?}", Some(Secret::new("tr0ub4dor&3"))).contains("tr0ub"));
}

/// A text of words, secrets and parts of secrets.
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
            let once = redactor.redact_text(&text);
            assert_eq!(redactor.redact_text(&once), once, "{text:?}");
        }
    }
}

/// Returns the value with the content of its strings removed.
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
        let once = redactor.redact_value(&value);
        assert_eq!(shape(&once), shape(&value));
        assert_eq!(redactor.redact_value(&once), once, "{value}");
    }
}
