//! Metrics as values: read strictly, with every option filled in, and named by their hash.

use std::collections::HashMap;

use cantrip_contract::limits::{METRIC_BYTES_MAX, METRIC_DEPTH_MAX, METRIC_PARTS_MAX};
use cantrip_contract::{Decimal, Files, Medium, Metric, MetricKind, NoFiles, metric_schema};
use cantrip_reply::codes;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::signatures::refused;

const TABLE: &str = include_str!("improve-goldens.json");

fn read(written: Value) -> Metric {
    Metric::from_value(&written, &NoFiles).unwrap_or_else(|fault| panic!("{written}: {fault}"))
}

#[test]
fn the_hashes_of_metrics_are_the_published_ones() {
    let table: Value = serde_json::from_str(TABLE).unwrap();
    for golden in table["metrics"].as_array().unwrap() {
        let metric = read(golden["metric"].clone());
        assert_eq!(metric.hash().to_string(), golden["metric_hash"].as_str().unwrap());
        assert_eq!(*metric.content(), golden["metric"]);
    }
    // An option that is left out has its default.
    let exact = json!({"type": "exact.v1", "pointer": "/label"});
    let near = json!({"type": "numeric.v1", "pointer": "/confidence", "abs": 0.1, "rel": 0.0});
    let short = read(json!({"parts": [{"weight": 3.0, "metric": exact}, {"metric": near}], "type": "composite.v1"}));
    assert_eq!(json!(short.hash()), table["metrics"][1]["metric_hash"]);
}

#[test]
fn every_type_is_filled_in_and_read_back_as_it_is() {
    for written in [
        json!({"type": "exact.v1"}),
        json!({"type": "contains.v1"}),
        json!({"type": "contains.v1", "needles": ["a"], "mode": "any", "normalise": "text"}),
        json!({"type": "json_field.v1", "fields": [{"pointer": "/a"}, {"pointer": "/b", "weight": 0.25}]}),
        json!({"type": "numeric.v1", "rel": 1e-7}),
        json!({"type": "f1.v1", "of": "items"}),
        json!({"type": "regex.v1", "pattern": "x", "want": "no_match"}),
        json!({"type": "program.v1", "language": "python", "source": "def score(case): ..."}),
        json!({"type": "command.v1", "argv": ["./score.sh", "--strict"]}),
        json!({"type": "judge.v1", "rubric": "Be kind."}),
        json!({"type": "prefer.v1", "rubric": "Be kind.", "model": "local/judge"}),
        json!({"type": "reward.v1"}),
        json!({"type": "reward.v1", "range": [-1.5, 2]}),
        json!({"type": "composite.v1", "rule": "min", "parts": [{"metric": {"type": "f1.v1"}}]}),
    ] {
        let metric = read(written.clone());
        let content = metric.content();
        assert_eq!((&content["v"], &content["kind"]), (&json!(1), &json!("metric")));
        for (key, value) in written.as_object().unwrap() {
            if !["fields", "parts"].contains(&key.as_str()) {
                assert_eq!(content[key], *value, "{written}");
            }
        }
        let again = Metric::from_stored(content).unwrap();
        assert_eq!((again.hash(), &again), (metric.hash(), &metric), "{written}");
        assert_eq!(metric.type_name(), written["type"].as_str().unwrap());
        assert!(metric.summary().starts_with(metric.type_name()));
    }
    let judge = read(json!({"type": "judge.v1", "rubric": "Be kind."}));
    assert_eq!(judge.content()["signature"], "@cantrip/eval/Judge.v1");
    assert_eq!((&judge.content()["artifact"], &judge.content()["task"]), (&Value::Null, &Value::Null));
    let prefer = read(json!({"type": "prefer.v1", "rubric": "Be kind."}));
    assert_eq!(prefer.content()["signature"], "@cantrip/eval/Prefer.v1");
    assert!(prefer.is_preference() && judge.is_judged());
    assert_eq!(read(json!({"type": "command.v1", "argv": ["x"]})).content()["timeout"], 10);
}

struct Folder(HashMap<&'static str, &'static str>);

impl Files for Folder {
    fn text(&self, name: &str) -> Result<String, String> {
        self.0.get(name).map(|text| (*text).to_owned()).ok_or_else(|| "there is no such file".to_owned())
    }
}

#[test]
fn a_toml_file_and_its_json_are_one_metric_and_the_contents_of_files_are_hashed() {
    let toml =
        "type = \"composite.v1\"\n[[parts]]\nweight = 2\n[parts.metric]\ntype = \"exact.v1\"\npointer = \"/a\"\n";
    let json = r#"{"type": "composite.v1", "parts": [{"weight": 2, "metric": {"type": "exact.v1", "pointer": "/a"}}]}"#;
    let (one, other) = (Metric::read(toml, true, &NoFiles).unwrap(), Metric::read(json, false, &NoFiles).unwrap());
    assert_eq!(one, other);
    let source = "function score() { return {score: 1} }";
    let folder = Folder(HashMap::from([("score.js", source)]));
    let file = "type = \"program.v1\"\nlanguage = \"javascript\"\nfile = \"score.js\"\n";
    let metric = Metric::read(file, true, &folder).unwrap();
    assert_eq!(*metric.kind(), MetricKind::Program { language: Medium::Javascript, source: source.to_owned() });
    assert_eq!(metric.content().get("file"), None);
    let written = read(json!({"type": "program.v1", "language": "javascript", "source": source}));
    assert_eq!(metric.hash(), written.hash());
    let fault = Metric::read(file, true, &NoFiles).unwrap_err();
    assert_eq!(fault.path, "/file");
}

#[test]
fn what_is_no_metric_is_refused_by_its_place() {
    let nested = (0..METRIC_DEPTH_MAX)
        .fold(json!({"type": "exact.v1"}), |inner, _| json!({"type": "composite.v1", "parts": [{"metric": inner}]}));
    let many: Vec<Value> = (0..=METRIC_PARTS_MAX).map(|_| json!({"metric": {"type": "exact.v1"}})).collect();
    for (written, path, rule) in [
        (json!([]), "", "a table is expected"),
        (json!({}), "/type", "it is missing"),
        (json!({"type": "exakt.v1"}), "/type", "did you mean exact.v1?"),
        (json!({"type": "bleu"}), "/type", "known are exact.v1, contains.v1"),
        (json!({"type": "exact.v1", "v": 2}), "/v", "this version reads 1"),
        (json!({"type": "exact.v1", "kind": "evaluation"}), "/kind", "it is \"metric\""),
        (json!({"type": "exact.v1", "pointr": "/a"}), "/pointr", "it has pointer, normalise"),
        (json!({"type": "exact.v1", "a/b~": 1}), "/a~1b~0", "has no such option"),
        (json!({"type": "exact.v1", "pointer": "label"}), "/pointer", "a JSON Pointer is expected"),
        (json!({"type": "exact.v1", "pointer": "/a~2"}), "/pointer", "~ is written ~0"),
        (json!({"type": "exact.v1", "pointer": 3}), "/pointer", "a text is expected"),
        (json!({"type": "exact.v1", "normalise": "words"}), "/normalise", "use none or text"),
        (json!({"type": "contains.v1", "needles": []}), "/needles", "texts that are not empty"),
        (json!({"type": "contains.v1", "needles": ["a", ""]}), "/needles", "texts that are not empty"),
        (json!({"type": "json_field.v1", "fields": [{"pointer": "/a", "weigth": 1}]}), "/fields/0/weigth", "a field"),
        (json!({"type": "numeric.v1", "abs": -0.1}), "/abs", "a number from 0 on"),
        (json!({"type": "numeric.v1", "rel": "5%"}), "/rel", "a number from 0 on"),
        (json!({"type": "f1.v1", "of": "letters"}), "/of", "use tokens or items"),
        (json!({"type": "regex.v1"}), "/pattern", "it is missing"),
        (json!({"type": "regex.v1", "pattern": "("}), "/pattern", "unclosed group"),
        (json!({"type": "regex.v1", "pattern": "(?:a{1000}){1000}"}), "/pattern", "size limit"),
        (json!({"type": "program.v1", "source": "x"}), "/language", "it is missing"),
        (json!({"type": "program.v1", "language": "lua", "source": "x"}), "/language", "javascript or python"),
        (json!({"type": "program.v1", "language": "python"}), "/source", "give the source or a file"),
        (json!({"type": "program.v1", "language": "python", "source": "x", "file": "y"}), "/file", "not both"),
        (json!({"type": "command.v1", "argv": []}), "/argv", "the program first"),
        (json!({"type": "command.v1", "argv": ["x"], "timeout": 0}), "/timeout", "seconds are expected"),
        (json!({"type": "judge.v1"}), "/rubric", "it is missing"),
        (json!({"type": "judge.v1", "rubric": "x", "signature": "Judge"}), "/signature", ""),
        (json!({"type": "judge.v1", "rubric": "x", "artifact": "art_1"}), "/artifact", "not the id of an artifact"),
        (json!({"type": "reward.v1", "range": [1, 0]}), "/range", "the lower first"),
        (json!({"type": "reward.v1", "range": [0]}), "/range", "two numbers"),
        (json!({"type": "composite.v1", "parts": [{"weight": 1}]}), "/parts/0/metric", "it is missing"),
        (json!({"type": "composite.v1", "parts": many}), "/parts", "1 to 16 are expected"),
        (json!({"type": "composite.v1", "parts": [{"metric": {"type": "f1.v1"}, "weight": 0}]}), "/parts/0/weight", ""),
        (
            json!({"type": "composite.v1", "parts": [{"metric": {"type": "f1.v1"}, "weight": 1001}]}),
            "/parts/0/weight",
            "",
        ),
        (
            json!({"type": "composite.v1", "parts": [{"metric": {"type": "f1.v1"}, "weight": 0.000_000_1}]}),
            "/parts/0/weight",
            "six decimals",
        ),
        (
            json!({"type": "composite.v1", "parts": [{"metric": {"type": "prefer.v1", "rubric": "x"}}]}),
            "/parts/0/metric",
            "cannot be a part of another metric",
        ),
        (nested, "/parts/0/metric/parts/0/metric/parts/0/metric/parts/0/metric", "nested deeper than 4 levels"),
    ] {
        let fault = Metric::from_value(&written, &NoFiles).expect_err(&written.to_string());
        assert_eq!(fault.path, path, "{written}: {fault}");
        assert!(fault.rule.contains(rule), "{written}: {fault}");
        let reply = refused(fault.refusal("mine"), codes::METRIC_INVALID.any());
        assert!(reply.message().starts_with("metric mine: "), "{}", reply.message());
    }
    for (text, is_toml, says) in [
        ("type = ", true, "line 1"),
        ("type = \"exact.v1\"\nat = 2026-02-19\n", true, "/at: 2026-02-19 is a date"),
        ("{\"type\": \"exact.v1\", \"type\": \"f1.v1\"}", false, "line 1, column"),
        ("{", false, "line 1, column"),
    ] {
        let fault = Metric::read(text, is_toml, &NoFiles).unwrap_err();
        assert!(fault.to_string().contains(says), "{text}: {fault}");
    }
    let long = format!("{{\"type\": \"regex.v1\", \"pattern\": \"{}\"}}", "a".repeat(METRIC_BYTES_MAX));
    assert!(Metric::read(&long, false, &NoFiles).unwrap_err().rule.contains("at most 262144"));
}

#[test]
fn the_schema_takes_every_metric_and_names_every_type() {
    let shapes = metric_schema()["$defs"]["metric"]["oneOf"].clone();
    let names: Vec<&str> = shapes.as_array().unwrap().iter().map(|shape| shape["title"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 12);
    for shape in shapes.as_array().unwrap() {
        // Each option of the schema is among those that the reader names.
        let name = &shape["title"];
        let written = json!({"type": name, "no_such_option": 1});
        let fault = Metric::from_value(&written, &NoFiles).unwrap_err();
        assert_eq!(fault.path, "/no_such_option", "{name}");
        for option in shape["properties"].as_object().unwrap().keys() {
            assert!(
                ["v", "kind", "type"].contains(&option.as_str()) || fault.rule.contains(option),
                "{name}: {option}"
            );
        }
    }
}

fn decimal(value: &Value) -> Decimal {
    Decimal::of(value).unwrap_or_else(|| panic!("{value} is a number"))
}

#[test]
fn decimals_are_exact() {
    for (one, other, difference, product) in [
        (json!(0.3), json!(0.2), "0.1", "0.06"),
        (json!(-200), json!(0.05), "-200.05", "-10"),
        (json!(1e21), json!(1e-7), "999999999999999999999.9999999", "100000000000000"),
        (json!(0), json!(5), "-5", "0"),
        (json!(9_007_199_254_740_991_i64), json!(1), "9007199254740990", "9007199254740991"),
        (json!(1e300), json!(1e300), "0", "1e600"),
    ] {
        assert_eq!(decimal(&one).minus(&decimal(&other)).to_string(), difference);
        assert_eq!(decimal(&one).times(&decimal(&other)).to_string(), product);
    }
    assert!(decimal(&json!(0.1)).abs() == decimal(&json!(-0.1)).abs() && decimal(&json!(-2)) < decimal(&json!(-1.5)));
    for (number, places, whole) in [
        (json!(0.25), 1, Some(3)),
        (json!(-0.25), 1, Some(-2)),
        (json!(0.05), 0, Some(0)),
        (json!(0.5), 0, Some(1)),
        (json!(-0.51), 0, Some(-1)),
        (json!(0.999_999_5), 6, Some(1_000_000)),
        (json!(0.999_999_49), 6, Some(999_999)),
        (json!(12), 6, Some(12_000_000)),
        (json!(1e-9), 6, Some(0)),
        (json!(1e300), 6, None),
    ] {
        assert_eq!(decimal(&number).scaled(places), whole, "{number} at {places}");
    }
    assert_eq!((Decimal::of(&json!("1")), Decimal::of_double(f64::NAN)), (None, None));
}

proptest! {
    #[test]
    fn decimals_agree_with_whole_numbers(a in -1_000_000_000_000_i64..1_000_000_000_000, b in -1_000_000_i64..1_000_000) {
        let (one, other) = (decimal(&json!(a)), decimal(&json!(b)));
        prop_assert_eq!(one.minus(&other), decimal(&json!(a - b)));
        prop_assert_eq!(one.cmp(&other), a.cmp(&b));
        prop_assert_eq!(one.times(&other).to_string(), (i128::from(a) * i128::from(b)).to_string());
        prop_assert_eq!(one.scaled(0), Some(i128::from(a)));
    }

    #[test]
    fn a_decimal_of_a_double_prints_the_double(double in any::<f64>().prop_filter("finite", |double| double.is_finite())) {
        let number = Decimal::of_double(double).unwrap();
        prop_assert_eq!(number.to_string().parse::<f64>().unwrap(), double + 0.0);
        prop_assert!(number.minus(&number) == Decimal::zero());
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "\\PC{0,200}", is_toml in any::<bool>()) {
        let _ = Metric::read(&text, is_toml, &NoFiles);
    }
}
