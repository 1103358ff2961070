//! Every type of metric: its scores and its feedback, the outputs that it cannot score, and the judges that it asks.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use cantrip::canon::{IdSource, Timestamp, bytes_hash};
use cantrip::crystal::RecordedRequest;
use cantrip::loom::{AnyLoom, MemoryLoom, Message, ReceiptFilter};
use cantrip_contract::{
    ChangeAuthor, ContractRow, Metric, NoFiles, OriginRow, PointerChange, PointerOperation, Provenance, Purpose,
    ReceiptId, Unscored, near_form,
};
use cantrip_ds::job::JobStop;
use cantrip_ds::metric::{
    Case, CaseOutcome, Choice, Judge, JudgeAnswer, JudgeQuestion, MetricScorer, NoJudge, PairOutcome, PreferredPair,
    Scored, Scoring, is_inconsistent, pin_judges,
};
use cantrip_ds::stats::Random;
use cantrip_ds::{PredictOptions, Predictor, TraceArchive, verify};
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::statistics::table;
use crate::support::{done, predictor, says, scripted, stores};

pub(crate) fn metric(written: Value) -> Metric {
    Metric::from_value(&written, &NoFiles).unwrap_or_else(|fault| panic!("{written}: {fault}"))
}

/// Scores one output by a metric that asks no judge.
async fn scored(metric: &Metric, output: &Value, expected: Option<&Value>, reward: Option<f64>) -> Scoring {
    judged(metric, output, expected, reward, &NoJudge).await.scoring
}

async fn judged(
    metric: &Metric,
    output: &Value,
    expected: Option<&Value>,
    reward: Option<f64>,
    judge: &dyn Judge,
) -> Scored {
    let outcome = CaseOutcome::default();
    let input = json!({});
    let case = Case { example_id: "ex_1", input: &input, expected, output, outcome: &outcome, reward };
    MetricScorer::default().score(metric, &case, judge).await.unwrap()
}

/// The result that a row of a table wants: a score and its feedback, or the reason why there is no score.
#[derive(Debug, PartialEq)]
enum Wanted {
    Score(u64, &'static str),
    Unscored(Unscored),
}

use Wanted::Score;

async fn assert_table(written: Value, rows: &[(Value, Option<Value>, Wanted)]) {
    let metric = metric(written);
    for (output, expected, wanted) in rows {
        let found = scored(&metric, output, expected.as_ref(), None).await;
        let same = match wanted {
            Wanted::Score(micro, feedback) => found.micro() == Some(*micro) && found.feedback() == *feedback,
            Wanted::Unscored(reason) => found.unscored_reason() == Some(*reason),
        };
        assert!(same, "{} of {output} for {expected:?}: {found:?}, and {wanted:?} is wanted", metric.content());
    }
}

const RIGHT: Wanted = Score(1_000_000, "");
const NO_EXPECTED: Wanted = Wanted::Unscored(Unscored::NoExpected);

#[tokio::test]
async fn exact_compares_the_values_at_a_pointer() {
    let label = |label: &str| json!({ "label": label });
    assert_table(
        json!({"type": "exact.v1", "pointer": "/label"}),
        &[
            (label("praise"), Some(label("praise")), RIGHT),
            (label("praise"), Some(label("question")), Score(0, "at /label: expected question, got praise")),
            (label("Praise"), Some(label("praise")), Score(0, "at /label: expected praise, got Praise")),
            (
                json!({"label": [1]}),
                Some(json!({"label": {"a": 1.0}})),
                Score(0, "at /label: expected {\"a\":1}, got [1]"),
            ),
            (json!({}), Some(label("praise")), Score(0, "at /label: nothing there")),
            (label("praise"), Some(json!({})), NO_EXPECTED),
            (label("praise"), None, NO_EXPECTED),
            (json!({}), None, NO_EXPECTED),
        ],
    )
    .await;
    assert_table(
        json!({"type": "exact.v1"}),
        &[
            (json!({"a": 1, "b": 2}), Some(json!({"b": 2.0, "a": 1e0})), RIGHT),
            (json!(1), Some(json!("1")), Score(0, "at : expected 1, got 1")),
        ],
    )
    .await;
    assert_table(
        json!({"type": "exact.v1", "normalise": "text"}),
        &[
            (json!("Hello,  World!"), Some(json!("hello world")), RIGHT),
            (json!("hello"), Some(json!("hallo")), Score(0, "at : expected hallo, got hello")),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_long_value_is_cut_in_the_feedback() {
    let long = "é".repeat(5_000);
    let found = scored(&metric(json!({"type": "exact.v1"})), &json!(long), Some(&json!("short")), None).await;
    assert_eq!(found.feedback().chars().count(), "at : expected short, got ".len() + 200);
    assert!(found.feedback().ends_with("..."));
    let needles: Vec<String> = (0..500).map(|n| format!("a needle that is not there {n}")).collect();
    let many = metric(json!({"type": "contains.v1", "needles": needles}));
    assert_eq!(scored(&many, &json!("hay"), None, None).await.feedback().chars().count(), 2_000);
}

#[tokio::test]
async fn contains_counts_the_needles_in_the_output() {
    let text = |text: &str| json!({ "text": text });
    let needles = Some(json!({"text": ["parcel", "refund"]}));
    assert_table(
        json!({"type": "contains.v1", "pointer": "/text"}),
        &[
            (text("The parcel is late"), needles.clone(), Score(500_000, "missing: refund")),
            (text("a refund for the parcel"), needles.clone(), RIGHT),
            (text("The PARCEL"), needles.clone(), Score(0, "missing: parcel, refund")),
            (text("one needle"), Some(text("needle")), RIGHT),
            (json!({}), needles.clone(), Score(0, "at /text: nothing there")),
            (text("x"), None, NO_EXPECTED),
        ],
    )
    .await;
    assert_table(
        json!({"type": "contains.v1", "pointer": "/text", "mode": "any"}),
        &[
            (text("The parcel is late"), needles.clone(), RIGHT),
            (text("nothing"), needles, Score(0, "missing: parcel, refund")),
        ],
    )
    .await;
    assert_table(
        json!({"type": "contains.v1", "needles": ["order 12", "soon"], "normalise": "text"}),
        &[
            (json!("ORDER: 12, very soon!"), None, RIGHT),
            (json!({"reply": "Order-12"}), None, Score(500_000, "missing: soon")),
        ],
    )
    .await;
}

#[tokio::test]
async fn json_field_is_the_weighted_mean_of_its_fields() {
    let near = json!({"type": "numeric.v1", "abs": 0.5});
    assert_table(
        json!({"type": "json_field.v1", "fields": [{"pointer": "/a", "weight": 3}, {"pointer": "/b"}]}),
        &[
            (json!({"a": 1, "b": 2}), Some(json!({"a": 1, "b": 3})), Score(750_000, "at /b: expected 3, got 2")),
            (json!({"a": 1, "b": 3}), Some(json!({"a": 1, "b": 3, "c": 4})), RIGHT),
            (
                json!({"a": 2}),
                Some(json!({"a": 1, "b": 3})),
                Score(0, "at /a: expected 1, got 2\nat /b: nothing there"),
            ),
            (json!({"a": 1, "b": 3}), Some(json!({"a": 1})), NO_EXPECTED),
        ],
    )
    .await;
    assert_table(
        json!({"type": "json_field.v1", "fields": [
            {"pointer": "/x", "weight": 0.5, "metric": near},
            {"pointer": "/y", "metric": {"type": "json_field.v1", "fields": [{"pointer": "/z"}]}},
        ]}),
        &[
            (json!({"x": 2.5, "y": {"z": 1}}), Some(json!({"x": 2, "y": {"z": 1}})), RIGHT),
            (
                json!({"x": 2.6, "y": {"z": 1}}),
                Some(json!({"x": 2, "y": {"z": 1}})),
                Score(666_667, "expected 2 within 0.5, got 2.6"),
            ),
            (
                json!({"x": 2, "y": {"z": 2}}),
                Some(json!({"x": 2, "y": {"z": 1}})),
                Score(333_333, "at /y/z: expected 1, got 2"),
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn numeric_compares_digits_and_not_doubles() {
    let failed = Wanted::Unscored(Unscored::MetricFailed);
    assert_table(
        json!({"type": "numeric.v1", "abs": 0.1}),
        &[
            // In doubles the difference is 0.10000000000000003.
            (json!(0.3), Some(json!(0.2)), RIGHT),
            (json!(0.1), Some(json!(0.2)), RIGHT),
            (json!(0.300_000_01), Some(json!(0.2)), Score(0, "expected 0.2 within 0.1, got 0.30000001")),
            (json!(-0.1), Some(json!(0)), RIGHT),
            (json!("0.2"), Some(json!(0.2)), Score(0, "expected 0.2 within 0.1, got 0.2")),
            (json!(null), Some(json!(1)), Score(0, "expected 1 within 0.1, got null")),
            (json!(1), Some(json!("1")), failed),
            (json!(1), None, NO_EXPECTED),
        ],
    )
    .await;
    assert_table(
        json!({"type": "numeric.v1", "abs": 1, "rel": 0.05}),
        &[
            (json!(-190), Some(json!(-200)), RIGHT),
            (json!(-189.99), Some(json!(-200)), Score(0, "expected -200 within 10, got -189.99")),
            (json!(4), Some(json!(5)), RIGHT),
            (json!(1e300), Some(json!(1.05e300)), RIGHT),
            (json!(0.9e300), Some(json!(1e300)), Score(0, "expected 1e300 within 5e298, got 9e+299")),
            (json!(1e-300), Some(json!(0)), RIGHT),
        ],
    )
    .await;
    assert_table(
        json!({"type": "numeric.v1"}),
        &[
            (json!(1.0), Some(json!(1)), RIGHT),
            (json!(1e-320), Some(json!(0)), Score(0, "expected 0 within 0, got 1e-320")),
        ],
    )
    .await;
}

#[tokio::test]
async fn f1_is_the_overlap_of_words_or_items() {
    let golden = &table()["f1"];
    let words = metric(json!({"type": "f1.v1"}));
    let found = scored(&words, &golden["output"], Some(&golden["expected"]), None).await;
    assert_eq!(found.micro(), golden["score"].as_u64());
    assert_table(
        json!({"type": "f1.v1"}),
        &[
            (json!("the cat sat"), Some(json!("the cat")), Score(800_000, "too much: sat")),
            (json!("the cat"), Some(json!("The cat, the dog")), Score(666_667, "missing: dog, the")),
            (json!("a dog"), Some(json!("one cat")), Score(0, "too much: a, dog; missing: cat, one")),
            (json!("?!"), Some(json!("")), RIGHT),
            (json!("?!"), Some(json!("word")), Score(0, "missing: word")),
        ],
    )
    .await;
    assert_table(
        json!({"type": "f1.v1", "of": "items", "pointer": "/tags"}),
        &[
            (json!({"tags": [1, 2, 2]}), Some(json!({"tags": [2, 3, 2]})), Score(666_667, "too much: 1; missing: 3")),
            (json!({"tags": []}), Some(json!({"tags": []})), RIGHT),
            (json!({"tags": [{"a": 1, "b": 2}]}), Some(json!({"tags": [{"b": 2, "a": 1.0}]})), RIGHT),
            (json!({}), Some(json!({"tags": []})), Score(0, "at /tags: nothing there")),
        ],
    )
    .await;
}

#[tokio::test]
async fn regex_matches_or_must_not_match() {
    assert_table(
        json!({"type": "regex.v1", "pattern": "^[A-Z]+$"}),
        &[
            (json!("ABC"), None, RIGHT),
            (json!("abc"), None, Score(0, "abc does not match ^[A-Z]+$")),
            (json!(12), None, Score(0, "12 does not match ^[A-Z]+$")),
        ],
    )
    .await;
    assert_table(
        json!({"type": "regex.v1", "pointer": "/text", "pattern": "(?i)as an ai", "want": "no_match"}),
        &[
            (json!({"text": "Gladly."}), None, RIGHT),
            (json!({"text": "As an AI, I"}), None, Score(0, "As an AI, I matches (?i)as an ai")),
            (json!({}), None, Score(0, "at /text: nothing there")),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_reward_is_scored_by_its_range_and_a_missing_one_is_not_zero() {
    for (range, reward, wanted) in [
        (json!([0, 1]), Some(0.75), Some(750_000)),
        (json!([-1, 1]), Some(0.5), Some(750_000)),
        (json!([1, 5]), Some(5.0), Some(1_000_000)),
        (json!([0, 1]), Some(7.0), Some(1_000_000)),
        (json!([0, 1]), Some(-7.0), Some(0)),
        (json!([0, 3]), Some(1.0), Some(333_333)),
        (json!([0, 1]), None, None),
        (json!([0, 1]), Some(f64::NAN), None),
    ] {
        let metric = metric(json!({"type": "reward.v1", "range": range}));
        let found = scored(&metric, &json!("x"), None, reward).await;
        assert_eq!(found.micro(), wanted, "{reward:?} in {}", metric.content());
    }
    let found = scored(&metric(json!({"type": "reward.v1"})), &json!("x"), None, None).await;
    assert_eq!(found.unscored_reason(), Some(Unscored::NoReward));
}

#[tokio::test]
async fn a_composite_is_the_mean_or_the_least_and_tells_the_worst_first() {
    let parts = json!([
        {"metric": {"type": "exact.v1", "pointer": "/label"}, "weight": 3},
        {"metric": {"type": "numeric.v1", "pointer": "/confidence", "abs": 0.1}},
    ]);
    let expected = json!({"label": "question", "confidence": 0.9});
    let off = json!({"label": "question", "confidence": 0.5});
    assert_table(
        json!({"type": "composite.v1", "parts": parts}),
        &[
            (expected.clone(), Some(expected.clone()), RIGHT),
            (off.clone(), Some(expected.clone()), Score(750_000, "expected 0.9 within 0.1, got 0.5")),
            (off.clone(), Some(json!({"label": "question"})), NO_EXPECTED),
        ],
    )
    .await;
    assert_table(
        json!({"type": "composite.v1", "parts": parts, "rule": "min"}),
        &[(off, Some(expected), Score(0, "expected 0.9 within 0.1, got 0.5"))],
    )
    .await;
    let two = json!([
        {"metric": {"type": "f1.v1"}},
        {"metric": {"type": "exact.v1"}},
    ]);
    assert_table(
        json!({"type": "composite.v1", "parts": two}),
        &[(
            json!("the cat sat"),
            Some(json!("the cat")),
            Score(400_000, "at : expected the cat, got the cat sat\ntoo much: sat"),
        )],
    )
    .await;
}

/// Returns a small value that the random numbers determine.
fn value(random: &mut Random, depth: u64) -> Value {
    match random.below(if depth == 0 { 5 } else { 7 }) {
        0 => json!(null),
        1 => json!(random.below(2) == 1),
        2 => json!(random.below(7) as i64 - 3),
        3 => json!((random.below(2_001) as f64 - 1_000.0) / 100.0),
        4 => json!(["", "a", "The cat", "the CAT!", "\u{1F408} sat", "?"][random.index(6)]),
        5 => (0..random.below(4)).map(|_| value(random, depth - 1)).collect(),
        _ => {
            let fields =
                (0..random.below(4)).map(|n| (["a", "b", "~/"][n as usize % 3].to_owned(), value(random, depth - 1)));
            Value::Object(Map::from_iter(fields))
        }
    }
}

#[tokio::test]
async fn scores_stay_in_bounds_equal_values_are_right_and_a_lower_score_has_its_feedback() {
    let metrics = [
        json!({"type": "exact.v1"}),
        json!({"type": "exact.v1", "normalise": "text"}),
        json!({"type": "contains.v1"}),
        json!({"type": "contains.v1", "mode": "any", "normalise": "text"}),
        json!({"type": "numeric.v1", "abs": 0.5, "rel": 0.01}),
        json!({"type": "f1.v1"}),
        json!({"type": "f1.v1", "of": "items"}),
        json!({"type": "json_field.v1", "fields": [{"pointer": ""}, {"pointer": "", "metric": {"type": "f1.v1"}}]}),
        json!({"type": "composite.v1", "parts": [
            {"metric": {"type": "exact.v1"}, "weight": 0.3}, {"metric": {"type": "contains.v1"}, "weight": 2},
        ]}),
        json!({"type": "composite.v1", "rule": "min", "parts": [{"metric": {"type": "f1.v1"}}]}),
    ]
    .map(metric);
    let mut random = Random::new("values");
    for _ in 0..300 {
        let (output, expected) = (value(&mut random, 2), value(&mut random, 2));
        for metric in &metrics {
            let name = metric.summary();
            let found = scored(metric, &output, Some(&expected), None).await;
            let again = scored(metric, &output, Some(&expected), None).await;
            assert_eq!((found.micro(), found.feedback()), (again.micro(), again.feedback()), "{name}");
            if let Some(micro) = found.micro() {
                assert!(micro <= 1_000_000, "{name}: {micro}");
                assert!(micro == 1_000_000 || !found.feedback().trim().is_empty(), "{name} of {output}, {expected}");
            }
            assert!(found.feedback().chars().count() <= 2_000);
            let equal = scored(metric, &expected, Some(&expected), None).await;
            // A list is no text that contains its items as texts, and only numbers are near each other.
            let compares = match name.as_str() {
                "numeric.v1" => expected.is_number(),
                name if name.contains("contains.v1") => expected.is_string() || expected.is_boolean(),
                _ => true,
            };
            if compares {
                assert_eq!(equal.micro(), Some(1_000_000), "{name} of {expected}: {equal:?}");
            }
        }
    }
    assert_eq!(near_form(&json!("the CAT!")), "the cat", "the form that normalise and f1 compare");
}

fn receipt(n: u64) -> ReceiptId {
    ReceiptId::of(bytes_hash(format!("receipt {n}").as_bytes()))
}

/// A judge with an answer to each question, which keeps the questions.
struct Scripted<F> {
    answer: F,
    asked: Mutex<Vec<(u64, Value)>>,
}

fn judge<F: Fn(&Value) -> Result<Value, String> + Send + Sync>(answer: F) -> Scripted<F> {
    Scripted { answer, asked: Mutex::default() }
}

impl<F: Fn(&Value) -> Result<Value, String> + Send + Sync> Judge for Scripted<F> {
    fn ask<'a>(&'a self, question: JudgeQuestion<'a>) -> BoxFuture<'a, Result<JudgeAnswer, JobStop>> {
        let mut asked = self.asked.lock().unwrap();
        asked.push((question.number, question.input.clone()));
        let answer =
            JudgeAnswer { output: (self.answer)(&question.input), receipts: vec![receipt(asked.len() as u64)] };
        Box::pin(std::future::ready(Ok(answer)))
    }
}

/// A judge that always stops its job.
struct Stopping;

impl Judge for Stopping {
    fn ask<'a>(&'a self, _: JudgeQuestion<'a>) -> BoxFuture<'a, Result<JudgeAnswer, JobStop>> {
        Box::pin(std::future::ready(Err(JobStop::Stopped)))
    }
}

fn pinned(kind: &str) -> Value {
    let artifact = "art_00000000000000000000000000000001";
    json!({"type": kind, "artifact": artifact, "model": "scripted/judge", "rubric": "Be kind.", "task": "Reply."})
}

#[tokio::test]
async fn a_judge_scores_with_feedback_and_its_receipts_are_kept() {
    let kind = metric(pinned("judge.v1"));
    let fair = judge(|_| Ok(json!({"score": 0.8, "feedback": "Say sorry first."})));
    let found = judged(&kind, &json!({"text": "No."}), Some(&json!({"text": "Sorry."})), None, &fair).await;
    assert_eq!((found.scoring.micro(), found.scoring.feedback()), (Some(800_000), "Say sorry first."));
    assert_eq!(found.judge_receipts, [receipt(1)]);
    let input = json!({
        "task": "Reply.", "rubric": "Be kind.", "output": {"text": "No."}, "expected": {"text": "Sorry."},
    });
    assert_eq!(*fair.asked.lock().unwrap(), [(1, input)]);
    // Without an expected value there is none in the input.
    judged(&kind, &json!("No."), None, None, &fair).await;
    assert_eq!(fair.asked.lock().unwrap()[1].1.get("expected"), None);
}

#[tokio::test]
async fn a_judge_that_gives_no_score_leaves_the_output_unscored() {
    let kind = metric(pinned("judge.v1"));
    for answer in [
        Err("it timed out".to_owned()),
        Ok(json!({"score": 1.2, "feedback": ""})),
        Ok(json!({"score": -0.1, "feedback": ""})),
        Ok(json!({"score": "good", "feedback": ""})),
        Ok(json!({"feedback": "Hm."})),
    ] {
        let failing = judge(|_| answer.clone());
        let found = judged(&kind, &json!("x"), None, None, &failing).await;
        assert_eq!(found.scoring.unscored_reason(), Some(Unscored::JudgeFailed), "{answer:?}");
        assert_eq!(found.judge_receipts, [receipt(1)], "what was asked was paid for");
    }
    let loose = metric(json!({"type": "judge.v1", "rubric": "Be kind."}));
    let unasked = judge(|_| Ok(json!({"score": 1, "feedback": ""})));
    let found = judged(&loose, &json!("x"), None, None, &unasked).await;
    assert_eq!(found.scoring.unscored_reason(), Some(Unscored::JudgeFailed), "the judge is not pinned");
    assert!(unasked.asked.lock().unwrap().is_empty());
    let (outcome, input, output) = (CaseOutcome::default(), json!({}), json!("x"));
    let case =
        Case { example_id: "ex_1", input: &input, expected: None, output: &output, outcome: &outcome, reward: None };
    let stopped = MetricScorer::default().score(&kind, &case, &Stopping).await;
    assert!(matches!(stopped, Err(JobStop::Stopped)), "a job that must stop is not an unscored output");
}

#[tokio::test]
async fn several_judges_of_one_output_are_asked_in_order_by_number() {
    let mut short = pinned("judge.v1");
    short["rubric"] = json!("Be short.");
    let both = metric(json!({"type": "composite.v1", "parts": [
        {"metric": pinned("judge.v1")}, {"metric": {"type": "exact.v1"}}, {"metric": short},
    ]}));
    let asking =
        judge(|input| Ok(json!({"score": if input["rubric"] == "Be kind." { 1 } else { 0 }, "feedback": "Shorter."})));
    let found = judged(&both, &json!("x"), Some(&json!("x")), None, &asking).await;
    assert_eq!((found.scoring.micro(), found.scoring.feedback()), (Some(666_667), "Shorter."));
    assert_eq!(found.judge_receipts, [receipt(1), receipt(2)]);
    let numbers: Vec<u64> = asking.asked.lock().unwrap().iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 2]);
    assert!(both.is_judged() && !both.is_preference() && both.judges().len() == 2);
}

async fn preferred(judge: &dyn Judge, subject: Option<&Value>, baseline: Option<&Value>) -> PairOutcome {
    let pair = PreferredPair { subject, baseline, expected: None };
    MetricScorer::default().prefer(&metric(pinned("prefer.v1")), &pair, judge).await.unwrap()
}

#[tokio::test]
async fn a_pair_is_asked_twice_with_the_places_exchanged() {
    let (good, bad) = (json!({"text": "good"}), json!({"text": "bad"}));
    // A judge that looks at the outputs chooses the same side twice.
    let fair = judge(|input| {
        let choice = if input["first"]["text"] == "good" { "first" } else { "second" };
        Ok(json!({"choice": choice, "reason": "It is kind."}))
    });
    let won = preferred(&fair, Some(&good), Some(&bad)).await;
    assert_eq!((won.choice, won.flipped), (Some(Choice::Subject), false));
    assert_eq!((won.subject.micro(), won.baseline.micro()), (Some(1_000_000), Some(0)));
    assert_eq!(won.baseline.feedback(), "It is kind.\nIt is kind.");
    assert_eq!(won.judge_receipts, [receipt(1), receipt(2)]);
    let places: Vec<Value> = fair.asked.lock().unwrap().iter().map(|(_, input)| input["first"].clone()).collect();
    assert_eq!(places, [good.clone(), bad.clone()]);
    let lost = preferred(&fair, Some(&bad), Some(&good)).await;
    assert_eq!(
        (lost.choice, lost.subject.micro(), lost.baseline.micro()),
        (Some(Choice::Baseline), Some(0), Some(1_000_000))
    );
    // A judge that looks at the place alone gives a tie and has changed its mind.
    for place in ["first", "second"] {
        let placed = judge(|_| Ok(json!({"choice": place, "reason": "This one."})));
        let tied = preferred(&placed, Some(&good), Some(&bad)).await;
        assert_eq!((tied.choice, tied.flipped), (Some(Choice::Tie), true));
        assert_eq!((tied.subject.micro(), tied.baseline.micro()), (Some(500_000), Some(500_000)));
    }
    let even = judge(|_| Ok(json!({"choice": "tie", "reason": "The same."})));
    let tied = preferred(&even, Some(&good), Some(&bad)).await;
    assert_eq!((tied.choice, tied.flipped), (Some(Choice::Tie), false));
    for answer in [Err("it timed out".to_owned()), Ok(json!({"choice": "third", "reason": ""}))] {
        let failing = judge(|_| answer.clone());
        let unscored = preferred(&failing, Some(&good), Some(&bad)).await;
        assert_eq!(unscored.subject.unscored_reason(), Some(Unscored::JudgeFailed));
        assert_eq!((unscored.choice, unscored.baseline.micro()), (None, None));
    }
}

#[tokio::test]
async fn a_side_that_failed_itself_loses_and_no_judge_is_asked() {
    let unasked = judge(|_| Err("it must not be asked".to_owned()));
    let good = json!("good");
    for (subject, baseline, choice) in
        [(Some(&good), None, Choice::Subject), (None, Some(&good), Choice::Baseline), (None, None, Choice::Tie)]
    {
        assert_eq!(preferred(&unasked, subject, baseline).await.choice, Some(choice));
    }
    assert!(unasked.asked.lock().unwrap().is_empty());
    // The metric of a pair scores no single output, and that of one output no pair.
    let single = judged(&metric(pinned("prefer.v1")), &good, None, None, &unasked).await;
    assert_eq!(single.scoring.unscored_reason(), Some(Unscored::MetricFailed));
    let pair = PreferredPair { subject: Some(&good), baseline: Some(&good), expected: None };
    let wrong = MetricScorer::default().prefer(&metric(pinned("judge.v1")), &pair, &unasked).await.unwrap();
    assert_eq!(wrong.subject.unscored_reason(), Some(Unscored::MetricFailed));
}

#[test]
fn a_judge_is_inconsistent_if_more_than_three_of_ten_pairs_flip() {
    assert!(!is_inconsistent(0, 0) && !is_inconsistent(3, 10) && !is_inconsistent(30, 100));
    assert!(is_inconsistent(4, 10) && is_inconsistent(31, 100) && is_inconsistent(1, 1));
}

/// Returns the text of the first message of the user.
fn user_text(sent: &RecordedRequest) -> String {
    let text = sent.messages.iter().find_map(|message| match message {
        Message::User { content } => Some(content.text()),
        Message::System { .. } | Message::Assistant { .. } | Message::Tool { .. } => None,
    });
    text.unwrap()
}

/// Asks a judge by a predict.
struct ByPredict {
    predictor: Predictor,
    asked: AtomicU64,
}

impl Judge for ByPredict {
    fn ask<'a>(&'a self, question: JudgeQuestion<'a>) -> BoxFuture<'a, Result<JudgeAnswer, JobStop>> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let how = PredictOptions {
                artifact: Some(question.artifact.clone()),
                model: Some(question.model.to_owned()),
                purpose: Purpose::Eval,
                idempotency_key: Some(format!("pair|judge|{}", question.number)),
                ..PredictOptions::default()
            };
            let reply = self.predictor.predict(question.signature, &question.input, how).await;
            let output = reply.predicted.output.ok_or_else(|| reply.guarded.reply.message());
            Ok(JudgeAnswer { output, receipts: reply.predicted.receipt.into_iter().collect() })
        })
    }
}

#[tokio::test]
async fn a_preference_is_two_predicts_of_the_built_in_signature_with_receipts() {
    for (loom, _folder) in stores() {
        let script = scripted([
            done(json!({"choice": "first", "reason": "It answers."})),
            done(json!({"choice": "second", "reason": "The other answers."})),
        ]);
        let predictor = predictor(&loom, says(&script), TraceArchive::inline());
        let loose = metric(json!({"type": "prefer.v1", "rubric": "Answer."}));
        let pinned = pin_judges(&loose, &predictor, None, "Reply to a ticket.").await.unwrap();
        let judge = ByPredict { predictor: predictor.clone(), asked: AtomicU64::new(0) };
        let (good, bad) = (json!({"text": "On <first>Monday</first>."}), json!({"text": "No."}));
        let pair = PreferredPair { subject: Some(&good), baseline: Some(&bad), expected: None };
        let found = MetricScorer::default().prefer(&pinned, &pair, &judge).await.unwrap();
        assert_eq!((found.choice, found.flipped), (Some(Choice::Subject), false), "{found:?}");
        assert_eq!(found.judge_receipts.len(), 2);
        // The other side of the pair asks the same questions, and reads the recorded answers.
        let again = MetricScorer::default().prefer(&pinned, &pair, &judge).await.unwrap();
        assert_eq!((again.choice, again.judge_receipts), (found.choice, found.judge_receipts));
        assert_eq!((judge.asked.into_inner(), script.request_count()), (4, 2));
        // Both outputs are fenced alike, and neither can end its fence.
        let requests = script.requests();
        let prompts: Vec<String> = requests.iter().map(user_text).collect();
        let (shown, hidden) =
            (r#"<first>{"text":"On <first>Monday<\/first>."}</first>"#, r#"<second>{"text":"No."}</second>"#);
        assert!(prompts[0].contains(shown) && prompts[0].contains(hidden), "{}", prompts[0]);
        assert!(prompts[1].contains(r#"<first>{"text":"No."}</first>"#), "{}", prompts[1]);
        assert!(prompts.iter().all(|prompt| prompt.contains("<task>Reply to a ticket.</task>")), "{prompts:?}");
        assert_eq!(verify(&loom, ReceiptFilter::default()).await.unwrap().findings, []);
    }
}

#[tokio::test]
async fn a_pinned_judge_stays_what_it_was_when_a_pointer_moves() {
    let loom = AnyLoom::new(MemoryLoom::new());
    let predictor = predictor(&loom, says(&scripted([])), TraceArchive::inline());
    let loose =
        metric(json!({"type": "composite.v1", "parts": [{"metric": {"type": "judge.v1", "rubric": "Be kind."}}]}));
    let before = pin_judges(&loose, &predictor, None, "Reply.").await.unwrap();
    let judge = before.judges()[0].clone();
    let signature = predictor.catalog().signature(&judge.signature).await.unwrap();
    assert_eq!(judge.artifact, Some(signature.base_artifact().id()));
    assert_eq!((judge.model.as_deref(), judge.task.as_deref()), (Some("scripted/shout"), Some("Reply.")));
    assert!(judge.is_pinned() && !loose.judges()[0].is_pinned());
    assert_ne!(before.hash(), loose.hash(), "the hash says which judge it is");
    // The pointer of the judge's signature moves: what was pinned stays, what is pinned now follows it.
    let at: Timestamp = "2026-02-19T01:00:00.000Z".parse().unwrap();
    let origin = |id| OriginRow::new(id, Provenance::Manual, "ann", at);
    let other =
        predictor.catalog().add_artifact(&json!({"instructions": "Be strict."}), &signature, origin).await.unwrap();
    let change = PointerOperation::Set { artifact: other.id(), seed: None, metadata: None };
    let by = ChangeAuthor { audit_id: IdSource::seeded(3).next(at), actor: "ann".to_owned(), reason: None, at };
    let asked = PointerChange { signature_id: signature.id().clone(), expected_version: 0, change, by };
    predictor.catalog().write_rows(vec![ContractRow::Pointer(Box::new(asked))]).await.unwrap();
    assert_eq!(pin_judges(&before, &predictor, None, "Reply.").await.unwrap(), before);
    let after = pin_judges(&loose, &predictor, None, "Reply.").await.unwrap();
    assert_eq!(after.judges()[0].artifact, Some(other.id()));
    assert_ne!(after.hash(), before.hash());
}
