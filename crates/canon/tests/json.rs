//! Tests of canonical JSON: its bytes, its hashes, and the values it refuses to write.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

mod common;

use std::collections::{BTreeMap, HashMap};

use cantrip_canon::json::{self, WriteRule};
use cantrip_canon::{Hash, bytes_hash, stable_hash};
use common::Random;
use serde::Serialize;
use serde_json::{Map, Number, Value, json};

/// A text, the canonical form of its value, and the digits of its hash.
const GOLDEN: &[(&str, &str, &str)] = &[
    ("{}", "{}", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
    ("[]", "[]", "4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"),
    ("null", "null", "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"),
    ("true", "true", "b5bea41b6c623f7c09f1bf24dcae58ebab3c0cdd90ad966bc43a45b44867e12b"),
    ("false", "false", "fcbcf165908dd18a9e49f7ff27810176db8e9f63b4352213741664245224f8aa"),
    ("1", "1", "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"),
    ("1.0", "1", "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"),
    ("1e0", "1", "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"),
    ("-0", "0", "5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9"),
    ("0.0", "0", "5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9"),
    ("-0.0", "0", "5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9"),
    ("1e21", "1e+21", "241c4643fa70b1dcde1205b71be4e3bebb17e9f880c8e1a33d0ead6c27271d3c"),
    (r#""1""#, r#""1""#, "391552c099c101b131feaf24c5795a6a15bc8ec82015424e0d2b4274a369a0bf"),
    (r#"{"a":null}"#, r#"{"a":null}"#, "d091f9c83c091f79652fe8786375b3fe4ce0861a56f5bfbafedbe431877ff0e8"),
    ("[3,2,1]", "[3,2,1]", "30c8681f9b840aceee56b737f3b126ae67ec4eb71d2881db831f86014fba016d"),
    (
        r#"{"x":{"z":[],"y":{}},"w":["s",1.5,-7,4294967296]}"#,
        r#"{"w":["s",1.5,-7,4294967296],"x":{"y":{},"z":[]}}"#,
        "1fb8bbdb05ad0f48c647886502c35596e71cb2298759eaacd5ad624910be69d0",
    ),
    // U+1F600 comes first: its first UTF-16 unit is D83D.
    (
        r#"{"\ufb33":2,"\ud83d\ude00":1}"#,
        "{\"\u{1f600}\":1,\"\u{fb33}\":2}",
        "2aa3f5086e32bb90ce39c508a6f40fd72e792684f130d0f3b896ea191368f1e3",
    ),
    // Composed and decomposed characters are two different values.
    (r#""\u00e9""#, "\"\u{e9}\"", "f2886017e9c7abacf804b54d64787dce2b611c9544ba21f3affdd126a6e50086"),
    (r#""e\u0301""#, "\"e\u{301}\"", "3d68ce21f2899a475713cdbe7562ba9bdb6b1dfde8af1f221bdff4a0935b53b2"),
    (
        r#"{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],"string":"\u20ac$\u000f\nA'B\"\\\\\"/","literals":[null,true,false]}"#,
        "{\"literals\":[null,true,false],\"numbers\":[333333333.3333333,1e+30,4.5,0.002,1e-27],\"string\":\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\"}",
        "2d5e01a318d0f0879ab568c4be289c8b1f64ef8921a53c6277d5e069978baacb",
    ),
    (r#"{"b":2,"a":1}"#, r#"{"a":1,"b":2}"#, "43258cff783fe7036d8a43033f830adfc60ec037382473548ac742b888292777"),
    (
        r#"{"tags":["z","a"],"active":true,"deleted":null,"retry_after_ms":1500}"#,
        r#"{"active":true,"deleted":null,"retry_after_ms":1500,"tags":["z","a"]}"#,
        "b5ef670c5e47639c44a0ed4ba6901df6b0e7f59e41e4102bb26e76fb1f4af946",
    ),
    (
        r#"{"events":[{"watermark":2,"topic":"runtime.run_summaries"},{"topic":"runtime.run_summaries","watermark":3}]}"#,
        r#"{"events":[{"topic":"runtime.run_summaries","watermark":2},{"topic":"runtime.run_summaries","watermark":3}]}"#,
        "700bae9e6bc89b1810ee4cc08c459cc2a02ccb13fcde1949b10adfa031e8212d",
    ),
    (
        r#"{"topic":"runtime.codex_worker_summaries","payload":{"status":"running","metadata":{"region":"us-central1","flags":["a","b","c"]},"seq":99},"doc_key":"org_123:worker_456"}"#,
        r#"{"doc_key":"org_123:worker_456","payload":{"metadata":{"flags":["a","b","c"],"region":"us-central1"},"seq":99,"status":"running"},"topic":"runtime.codex_worker_summaries"}"#,
        "bf367b161129295cb3fab72a7eae88f8602207d4fc8fcf4510c4d5fa0bcb5317",
    ),
    // An escaped backslash and an n; the next case has a real line feed.
    (
        r#"{"message":"line\\nbreak","quote":"\"khala\"","path":"docs/sync/thoughts.md"}"#,
        r#"{"message":"line\\nbreak","path":"docs/sync/thoughts.md","quote":"\"khala\""}"#,
        "5da82c8c6bf15cceb33ae20ba89c0adb33d030c5d65824d138936fae7a1ab3d8",
    ),
    (
        r#"{"message":"line\nbreak","quote":"\"khala\"","path":"docs/sync/thoughts.md"}"#,
        r#"{"message":"line\nbreak","path":"docs/sync/thoughts.md","quote":"\"khala\""}"#,
        "56a1fbe94403b60cd8b167b30b56ccd075958913edc9b74498d39a773fb65b9d",
    ),
];

#[test]
fn every_golden_text_has_its_canonical_form_and_its_hash() {
    for (text, canonical, digits) in GOLDEN {
        let value = json::read(text).unwrap();
        assert_eq!(json::canonical(&value).unwrap(), *canonical, "{text}");
        assert_eq!(stable_hash(&value).unwrap().to_string(), format!("sha256:{digits}"), "{text}");
        assert_eq!(bytes_hash(canonical.as_bytes()).hex(64), *digits, "{text}");
    }
}

#[test]
fn ten_thousand_random_values_are_written_as_a_second_implementation_writes_them_and_read_back_equal() {
    let mut random = Random::new(8785);
    for _ in 0..10_000 {
        let value = random_value(&mut random, 4);
        let canonical = json::canonical(&value).unwrap();
        assert_eq!(canonical, second::canonical(&value));
        let again = json::read(&canonical).unwrap();
        assert_eq!(again, json::to_value(&value).unwrap(), "{canonical}");
        assert_eq!(json::canonical(&again).unwrap(), canonical);
    }
}

#[test]
fn numbers_are_written_as_ecmascript_writes_them() {
    let cases = [
        (0.000001, "0.000001"),
        (0.0000001, "1e-7"),
        (1.2345678901234568e21, "1.2345678901234568e+21"),
        (5e-324, "5e-324"),
        (f64::MAX, "1.7976931348623157e+308"),
        (-0.1, "-0.1"),
        (1.0 / 3.0, "0.3333333333333333"),
        // Halfway between two shortest forms: the even one is chosen.
        (8_306_040_000_000_001.0 / 4.0, "2076510000000000.2"),
        // A power of two: its neighbours are not equally far away.
        (2_f64.powi(-44), "5.684341886080802e-14"),
    ];
    for (double, text) in cases {
        assert_eq!(json::canonical(&json!(double)).unwrap(), text);
        assert_eq!(second::canonical(&json!(double)), text);
    }
}

#[test]
fn values_are_equal_exactly_if_their_canonical_texts_are() {
    let texts = ["1", "1.0", "10e-1", "-0", "0", "0e9", "1e21", "1000000000000000000000e0", "\"1\"", "1.5", "15e-1"];
    for one in texts {
        for other in texts {
            let [one, other] = [one, other].map(|text| json::read(text).unwrap());
            let canonical_equal = json::canonical(&one).unwrap() == json::canonical(&other).unwrap();
            assert_eq!(one == other, canonical_equal, "{one} {other}");
        }
    }
}

/// A value of any kind, without the whole numbers that are refused.
fn random_value(random: &mut Random, depth: usize) -> Value {
    match random.below(if depth == 0 { 6 } else { 8 }) {
        0 => Value::Null,
        1 => Value::Bool(random.one_in(2)),
        2 => {
            let reach = 1_i64 << random.between(1, 53);
            Value::from((random.bits() as i64 % reach).clamp(-(1 << 53) + 1, (1 << 53) - 1))
        }
        3 | 4 => Value::Number(random_double(random)),
        5 => Value::String(random_text(random)),
        6 => (0..random.below(5)).map(|_| random_value(random, depth - 1)).collect(),
        _ => {
            let entries = (0..random.below(6)).map(|_| (random_text(random), random_value(random, depth - 1)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
    }
}

fn random_double(random: &mut Random) -> Number {
    loop {
        let double = match random.below(4) {
            0 => f64::from_bits(random.bits()),
            1 => random.below(1 << 20) as f64 / 8.0,
            2 => -(random.below(1 << 40) as f64) / 1e6,
            // Numbers near the limits where ECMAScript changes the format of a number.
            _ => (random.below(1 << 20) as f64).mul_add(1e-5, 1.0) * 10_f64.powi(random.between(0, 60) as i32 - 30),
        };
        let refused = double.trunc() == double && (9_007_199_254_740_992.0..1e21).contains(&double.abs());
        if let Some(number) = Number::from_f64(double).filter(|_| !refused) {
            return number;
        }
    }
}

fn random_text(random: &mut Random) -> String {
    let length = random.below(6);
    let mut character = |_| {
        // Every block that is escaped, sorted or encoded differently.
        let (from, to) =
            [(0, 0x20), (0x20, 0x80), (0x80, 0x800), (0xe000, 0x10000), (0x10000, 0x110000)][random.below(5)];
        char::from_u32(random.between(from, to - 1) as u32).unwrap()
    };
    (0..length).map(&mut character).collect()
}

/// A second implementation of RFC 8785, written from the text of the standard.
mod second {
    use serde_json::{Number, Value};

    pub(crate) fn canonical(value: &Value) -> String {
        match value {
            Value::Null => "null".to_owned(),
            Value::Bool(truth) => truth.to_string(),
            Value::Number(number) => self::number(number),
            Value::String(text) => string(text),
            Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
            Value::Object(entries) => {
                let mut entries: Vec<_> = entries.iter().collect();
                entries.sort_by_key(|(key, _)| key.encode_utf16().collect::<Vec<u16>>());
                let entries: Vec<_> =
                    entries.iter().map(|(key, entry)| format!("{}:{}", string(key), canonical(entry))).collect();
                format!("{{{}}}", entries.join(","))
            }
        }
    }

    fn string(text: &str) -> String {
        let escaped: String = text
            .chars()
            .map(|character| match character {
                '"' => "\\\"".to_owned(),
                '\\' => "\\\\".to_owned(),
                '\u{8}' => "\\b".to_owned(),
                '\t' => "\\t".to_owned(),
                '\n' => "\\n".to_owned(),
                '\u{c}' => "\\f".to_owned(),
                '\r' => "\\r".to_owned(),
                control @ '\0'..='\u{1f}' => format!("\\u{:04x}", control as u32),
                plain => plain.to_string(),
            })
            .collect();
        format!("\"{escaped}\"")
    }

    /// `Number::toString` of ECMAScript.
    fn number(number: &Number) -> String {
        let double = number.as_f64().unwrap();
        if double == 0.0 {
            return "0".to_owned();
        }
        let sign = if double < 0.0 { "-" } else { "" };
        let scientific = shortest(double.abs());
        let (mantissa, exponent) = scientific.split_once('e').unwrap();
        let digits = mantissa.replace('.', "");
        let count = digits.len() as i32;
        // The value is 0.digits times ten to the power of `point`.
        let point = exponent.parse::<i32>().unwrap() + 1;
        let body = if count <= point && point <= 21 {
            digits + &"0".repeat((point - count) as usize)
        } else if 0 < point && point <= 21 {
            let (before, behind) = digits.split_at(point as usize);
            format!("{before}.{behind}")
        } else if -6 < point && point <= 0 {
            format!("0.{}{digits}", "0".repeat(-point as usize))
        } else {
            let (first, rest) = digits.split_at(1);
            let fraction = if rest.is_empty() { String::new() } else { format!(".{rest}") };
            format!("{first}{fraction}e{:+}", point - 1)
        };
        format!("{sign}{body}")
    }

    /// The fewest digits that round-trip, of those the closest number, and of two equally close ones the even one.
    /// Rust returns the fewest digits, but of two equally close numbers the larger one. When rounding to that many
    /// digits, it returns the even one.
    fn shortest(double: f64) -> String {
        let short = format!("{double:e}");
        let decimals = short.split_once('e').unwrap().0.len().saturating_sub("1.".len());
        let closest = format!("{double:.decimals$e}");
        if closest.parse() == Ok(double) { closest } else { short }
    }
}

fn refusal<T: Serialize + ?Sized>(value: &T) -> (WriteRule, String) {
    let fault = json::to_value(value).unwrap_err();
    assert_eq!(json::canonical_of(value), Err(fault.clone()), "written without its tree");
    (fault.rule, fault.path)
}

#[test]
fn what_json_cannot_say_exactly_is_a_fault_with_its_path() {
    #[derive(Serialize)]
    enum Shape {
        Point(f64, f64),
        Named { width: u128 },
        Alone(i128),
    }

    assert_eq!(refusal(&f64::NAN), (WriteRule::NotFinite, String::new()));
    assert_eq!(refusal(&[1.0, f64::INFINITY]), (WriteRule::NotFinite, "/1".into()));
    assert_eq!(refusal(&json!({"a": {"b/c~d": [0, u64::MAX]}})), (WriteRule::InexactInteger, "/a/b~1c~0d/1".into()));
    assert_eq!(refusal(&Shape::Point(0.0, f64::NEG_INFINITY)), (WriteRule::NotFinite, "/Point/1".into()));
    assert_eq!(refusal(&Shape::Named { width: u128::MAX }), (WriteRule::InexactInteger, "/Named/width".into()));
    assert_eq!(refusal(&Shape::Alone(i128::MIN)), (WriteRule::InexactInteger, "/Alone".into()));
    assert_eq!(refusal(&HashMap::from([(1, 2)])), (WriteRule::KeyNotText, String::new()));
    assert_eq!(refusal(&[HashMap::from([(Some("a"), 2)])]), (WriteRule::KeyNotText, "/0".into()));
}

#[test]
fn integers_are_written_up_to_the_largest_exact_one_and_not_beyond() {
    const LARGEST: i64 = (1 << 53) - 1;
    for exact in [LARGEST, -LARGEST] {
        assert_eq!(json::to_value(&exact).unwrap(), json!(exact));
        assert_eq!(json::canonical(&json!(exact)).unwrap(), exact.to_string());
        assert_eq!(json::to_value(&i128::from(exact)).unwrap(), json!(exact));
        assert_eq!(json::to_value(&(exact as f64)).unwrap(), json!(exact));
    }
    for inexact in [LARGEST + 1, LARGEST + 2, -LARGEST - 1, i64::MAX, i64::MIN] {
        assert_eq!(refusal(&inexact).0, WriteRule::InexactInteger);
        assert_eq!(json::canonical(&json!([inexact])).unwrap_err().path, "/0");
    }
}

/// RFC 8785 writes such doubles as integer literals, which no strict reader accepts.
#[test]
fn whole_doubles_that_would_be_written_as_inexact_integers_are_refused() {
    for double in [9_007_199_254_740_992.0, 1e16, -1e20, 999_999_999_999_999_900_000.0] {
        assert_eq!(refusal(&double), (WriteRule::InexactInteger, String::new()));
        assert_eq!(json::canonical(&json!({"n": double})).unwrap_err().rule, WriteRule::InexactInteger);
        assert!(json::read(&second::canonical(&json!(double))).is_err());
    }
    assert_eq!(json::canonical(&json!(1e21)).unwrap(), "1e+21");
}

#[test]
fn nesting_beyond_the_limit_is_refused_before_it_is_followed() {
    let nested = |levels: usize| (0..levels).fold(json!(0), |inner, _| json!([inner]));
    let deepest = nested(128);
    let text = json::canonical(&deepest).unwrap();
    assert_eq!(json::read(&text).unwrap(), deepest);
    assert_eq!(json::to_value(&deepest).unwrap(), deepest);

    let too_deep = nested(129);
    assert_eq!(json::canonical(&too_deep).unwrap_err().rule, WriteRule::TooDeep);
    assert_eq!(refusal(&too_deep), (WriteRule::TooDeep, "/0".repeat(128)));
}

#[test]
fn the_map_around_a_variant_counts_as_a_level() {
    #[derive(Serialize)]
    enum Nest {
        Egg,
        One(Box<Nest>),
        Two(Box<Nest>, u8),
        Named { inner: Box<Nest> },
    }

    type Around = fn(Nest) -> Nest;
    let nests: [(usize, Around); 3] = [
        (1, |inner| Nest::One(Box::new(inner))),
        (2, |inner| Nest::Two(Box::new(inner), 0)),
        (2, |inner| Nest::Named { inner: Box::new(inner) }),
    ];
    for (levels, around) in nests {
        let nested = |times: usize| (0..times).fold(Nest::Egg, |inner, _| around(inner));
        let deepest = json::to_value(&nested(128 / levels)).unwrap();
        assert_eq!(json::read(&json::canonical(&deepest).unwrap()).unwrap(), deepest);
        assert_eq!(refusal(&nested(128 / levels + 1)).0, WriteRule::TooDeep);
    }
}

#[test]
fn a_type_that_names_a_key_twice_is_refused() {
    #[derive(Serialize)]
    struct Outer {
        name: u8,
        #[serde(flatten)]
        rest: BTreeMap<String, u8>,
    }

    let outer = Outer { name: 1, rest: BTreeMap::from([("name".into(), 2)]) };
    assert_eq!(refusal(&outer), (WriteRule::DuplicateKey, "/name".into()));
}

#[test]
fn ordinary_types_get_the_shapes_that_serde_json_gives_them() {
    #[derive(Serialize)]
    struct Unit;
    #[derive(Serialize)]
    struct Wrapped(u8);
    #[derive(Serialize)]
    struct Pair(u8, char);
    #[derive(Serialize, PartialEq, Eq, PartialOrd, Ord)]
    enum Kind {
        Bare,
        One(u8),
        Two(u8, u8),
        Full { a: u8 },
    }
    #[derive(Serialize)]
    struct Everything {
        unit: Unit,
        nothing: (),
        wrapped: Wrapped,
        pair: Pair,
        kinds: Vec<Kind>,
        by_kind: BTreeMap<Kind, u8>,
        by_letter: BTreeMap<char, Option<f32>>,
        missing: Option<u8>,
        #[serde(skip_serializing_if = "Option::is_none")]
        skipped: Option<u8>,
        ratio: f64,
        large: u128,
    }

    let everything = Everything {
        unit: Unit,
        nothing: (),
        wrapped: Wrapped(1),
        pair: Pair(2, 'é'),
        kinds: vec![Kind::Bare, Kind::One(1), Kind::Two(1, 2), Kind::Full { a: 3 }],
        by_kind: BTreeMap::from([(Kind::Bare, 1)]),
        by_letter: BTreeMap::from([('x', Some(0.5)), ('y', None)]),
        missing: None,
        skipped: None,
        ratio: 0.1,
        large: 7,
    };
    let value = json::to_value(&everything).unwrap();
    assert_eq!(value, serde_json::to_value(&everything).unwrap());
    assert_eq!(json::canonical_of(&everything), json::canonical(&value));
    assert_eq!(json::canonical_of(&[&everything.kinds; 2]), json::canonical(&json!([value["kinds"], value["kinds"]])));
}

#[test]
fn a_hash_is_read_only_in_the_form_in_which_it_is_written() {
    let hash = bytes_hash(b"");
    let text = hash.to_string();
    assert_eq!(text, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_eq!(text.parse::<Hash>().unwrap(), hash);
    assert_eq!(serde_json::from_value::<Hash>(json!(text)).unwrap(), hash);
    assert_eq!(json::to_value(&hash).unwrap(), json!(text));

    let digits = hash.hex(64);
    let refused = [
        digits.clone(),
        text.to_uppercase(),
        format!("sha256:{}", digits.to_uppercase()),
        format!("sha512:{digits}"),
        format!("sha256:{digits}0"),
        format!("sha256:{}", &digits[1..]),
        format!("sha256:{}é", &digits[2..]),
        format!(" {text}"),
    ];
    for text in refused {
        assert!(text.parse::<Hash>().is_err(), "{text}");
        assert!(serde_json::from_value::<Hash>(json!(text)).is_err(), "{text}");
    }
}

#[test]
fn an_id_cut_from_a_hash_is_its_first_digits() {
    let hash = bytes_hash(b"null");
    assert_eq!(hash.hex(0), "");
    assert_eq!(hash.hex(7), "74234e9");
    assert_eq!(hash.hex(64), hash.to_string()["sha256:".len()..]);
    assert_eq!(hash.hex(1000), hash.hex(64));
}
