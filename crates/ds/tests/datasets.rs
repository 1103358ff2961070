//! Datasets: a file is read by the schemas of its subject, a version is written once, and receipts become examples.

use std::collections::BTreeMap;
use std::sync::Arc;

use cantrip::canon::{IdSource, Redactor, stable_hash};
use cantrip::loom::{
    Actor, AnyLoom, AppendOutcome, Contracts, Improvements, Journal, PageRequest, RecordDraft, Reward, Step, StepId,
};
use cantrip::reply::{AnyCode, Refusal};
use cantrip::spend::AuthorizationMode;
use cantrip::{MachineClock, MachineEntropy};
use cantrip_contract::{
    DatasetDiff, ExampleDraft, ExampleId, NoFiles, Purpose, ReceiptId, Signature, SignatureOrigin, SkipReason, Split,
    SplitSeed, SplitShares, Subject, VerdictWord,
};
use cantrip_ds::dataset::{
    AddedVersion, DatasetStore, ExampleSchemas, GatherFilter, GivenVerdict, ImportFormat, ImportOptions, NewVersion,
    ReadExamples, ReviewOrder, SplitRequest, Verdicts, example_line, gather_examples, open_receipts, read_examples,
    redacted_example,
};
use cantrip_ds::{Catalog, PredictOptions, TraceArchive};
use cantrip_reply::codes;
use cantrip_reply::testing::assert_code;
use cantrip_tests::garble;
use futures_util::future::join;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Posing, done, grant, listed, predictor, replied, says, scripted, shout, stores};

const TICKET: &str = r#"
namespace = "@me/support"
name = "Ticket"
version = 1
program_template = "direct.v1"
instructions = "Sort it."
prompt_template.system = "{{ instructions }}"
prompt_template.user = "{{ inputs.text | fence('text') }}"
[input_schema]
type = "object"
required = ["text"]
additionalProperties = false
properties.text = { type = "string" }
properties.times = { type = "integer" }
properties.urgent = { type = "boolean" }
properties.tags = { type = "array", items = { type = "string" } }
properties.meta = { type = "object" }
[output_schema]
type = "object"
required = ["team"]
additionalProperties = false
properties.team = { type = "string", enum = ["billing", "shipping"] }
properties.score = { type = "number" }
"#;

fn ticket() -> Signature {
    Signature::parse(TICKET, &NoFiles).unwrap()
}

fn schemas() -> ExampleSchemas {
    ExampleSchemas::of_signature(&ticket())
}

fn options(format: ImportFormat) -> ImportOptions {
    ImportOptions { format, file: "tickets".to_owned(), given_splits: false, skip_invalid: false, redactor: None }
}

const CSV: ImportFormat = ImportFormat::Csv { delimiter: b',' };

/// Reads a file that is refused, and returns the code and the data of the refusal.
async fn refused(bytes: &[u8], schemas: &ExampleSchemas, options: &ImportOptions) -> (AnyCode, Value) {
    let refusal: Refusal = read_examples(bytes, schemas, options).unwrap_err();
    let reply = replied(refusal).await;
    (reply.code(), Value::Object(reply.data().clone()))
}

const TABLE: &str = "\u{feff}id,text,times,urgent,tags,input.meta,team,expected.score,labels,weight,group\r\n\
    t1,\"Where, \"\"exactly\"\", is\r\nmy order?\",3,TRUE,\"[\"\"a\"\",\"\"b\"\"]\",\"{\"\"k\"\":1.5}\",shipping,0.9,\
    late; angry,2.5,g1\r\n\
    t2,007,,,,,billing,,,,\r\n\
    \r\n\
    t3,\"\u{e9}t\u{e9} \u{1f600}\",,,,,,,,,\r\n";

#[test]
fn a_table_is_read_by_the_types_of_its_fields_with_quotes_a_mark_and_empty_cells() {
    let ReadExamples { drafts, skipped, redacted } =
        read_examples(TABLE.as_bytes(), &schemas(), &options(CSV)).unwrap();
    assert_eq!((drafts.len(), skipped.len(), redacted), (3, 0, 0));
    let first = &drafts[0];
    let input = json!({
        "text": "Where, \"exactly\", is\r\nmy order?", "times": 3, "urgent": true, "tags": ["a", "b"], "meta": {"k": 1.5},
    });
    assert_eq!(first.input, input);
    assert_eq!(first.expected, Some(json!({"team": "shipping", "score": 0.9})));
    assert_eq!(first.labels.as_slice(), ["angry", "late"]);
    assert_eq!((first.weight.micro(), first.group.as_deref(), first.source.line), (2_500_000, Some("g1"), Some(2)));
    // A string stays as it stands, an empty cell is an absent field, and the quoted line break counts as a line.
    let second = &drafts[1];
    assert_eq!((&second.input, &second.expected), (&json!({"text": "007"}), &Some(json!({"team": "billing"}))));
    assert_eq!((second.weight.micro(), second.labels.is_empty(), second.source.line), (1_000_000, true, Some(4)));
    let third = &drafts[2];
    assert_eq!(
        (&third.input["text"], &third.expected, third.source.line),
        (&json!("\u{e9}t\u{e9} \u{1f600}"), &None, Some(6))
    );
    // The same examples as JSON lines.
    let lines = format!(
        "{}\n\n{}\n{}\n",
        json!({"id": "t1", "input": input, "expected": {"team": "shipping", "score": 0.9}, "labels": ["late", "angry"],
               "weight": 2.5, "group": "g1"}),
        json!({"id": "t2", "input": {"text": "007"}, "expected": {"team": "billing"}}),
        json!({"id": "t3", "input": {"text": "\u{e9}t\u{e9} \u{1f600}"}, "expected": null}),
    );
    let read = read_examples(lines.as_bytes(), &schemas(), &options(ImportFormat::JsonLines)).unwrap();
    let content = |drafts: &[ExampleDraft]| -> Vec<Value> {
        let of = |draft: &ExampleDraft| {
            json!([draft.id, draft.input, draft.expected, draft.labels, draft.weight, draft.group])
        };
        drafts.iter().map(of).collect()
    };
    assert_eq!(content(&read.drafts), content(&drafts));
    assert_eq!(read.drafts[1].source.line, Some(3));
}

#[test]
fn tabs_and_semicolons_divide_cells_too() {
    for (name, delimiter, text) in [
        ("a.tsv", None, "text\tteam\nhello, there\tbilling\n"),
        ("a.csv", Some(b';'), "text;team\n\"hello, there\";billing\n"),
    ] {
        let format = ImportFormat::for_file(name, delimiter);
        let read = read_examples(text.as_bytes(), &schemas(), &options(format)).unwrap();
        assert_eq!(read.drafts[0].input, json!({"text": "hello, there"}), "{name}");
    }
    assert_eq!(ImportFormat::for_file("a.jsonl", None), ImportFormat::JsonLines);
    assert_eq!(ImportFormat::for_file("standard input", None), ImportFormat::JsonLines);
}

#[tokio::test]
async fn a_table_whose_header_or_quotes_are_wrong_is_refused_as_a_whole() {
    for (text, line, says) in [
        ("", 1, "no header"),
        ("text,nonsense\nhey,1\n", 1, "unknown column \"nonsense\""),
        ("text,input.text\nhey,ho\n", 1, "two columns"),
        ("input.nothing\n1\n", 1, "the input has no nothing"),
        ("text\nhey\n\"open\nhey\nhey\n", 3, "never closed"),
        ("text\n\"a\"b\n", 2, "closing quote"),
    ] {
        // Faults of the whole file cannot be skipped.
        for skip_invalid in [false, true] {
            let how = ImportOptions { skip_invalid, ..options(CSV) };
            let (code, data) = refused(text.as_bytes(), &schemas(), &how).await;
            assert_eq!(code, codes::EXAMPLE_INVALID.any(), "{text}");
            let first = &data["faults"][0];
            assert_eq!(first["line"], line, "{text}: {first}");
            assert!(first["rule"].as_str().unwrap().contains(says), "{text}: {first}");
        }
    }
    let both = ExampleSchemas::of_signature(&shout());
    let (_, data) = refused(b"text\nhey\n", &both, &options(CSV)).await;
    assert!(data["faults"][0]["rule"].as_str().unwrap().contains("write input.text or expected.text"), "{data}");
}

#[tokio::test]
async fn every_fault_is_named_by_its_line_and_the_first_hundred_are_listed() {
    let valid = json!({"input": {"text": "hey"}, "expected": {"team": "billing"}}).to_string();
    let faulty = [
        (json!({"input": {"words": "hey"}}).to_string(), "/input", SkipReason::InputSchema),
        (
            json!({"input": {"text": "a"}, "expected": {"team": "sales"}}).to_string(),
            "/expected/team",
            SkipReason::ExpectedSchema,
        ),
        (json!({"input": {"text": "a"}, "colour": 1}).to_string(), "/colour", SkipReason::InputSchema),
        (json!({"expected": {"team": "billing"}}).to_string(), "/input", SkipReason::InputSchema),
        (json!({"input": {"text": "a"}, "weight": 0}).to_string(), "/weight", SkipReason::InputSchema),
        (json!({"input": {"text": "a"}, "weight": 1000.5}).to_string(), "/weight", SkipReason::InputSchema),
        (json!({"input": {"text": "a"}, "labels": ["two words"]}).to_string(), "/labels", SkipReason::InputSchema),
        (json!({"input": {"text": "a"}, "split": "dev"}).to_string(), "/split", SkipReason::InputSchema),
        (json!({"input": {"text": "x".repeat(1 << 20)}}).to_string(), "", SkipReason::TooLarge),
        ("[]".to_owned(), "", SkipReason::InputSchema),
    ];
    let how = options(ImportFormat::JsonLines);
    for (text, path, reason) in &faulty {
        let file = format!("{valid}\n{text}\n{valid}\n");
        let (code, data) = refused(file.as_bytes(), &schemas(), &how).await;
        assert_eq!(code, codes::EXAMPLE_INVALID.any(), "{data}");
        let first = &data["faults"][0];
        assert_eq!((&first["line"], first["path"].as_str()), (&json!(2), Some(*path)), "{first}");
        let skipping = ImportOptions { skip_invalid: true, ..how.clone() };
        let read = read_examples(file.as_bytes(), &schemas(), &skipping).unwrap();
        assert_eq!((read.drafts.len(), read.skipped), (2, BTreeMap::from([(*reason, 1)])), "{first}");
    }
    // A line that is not JSON, that has a key twice, or that is not UTF-8.
    for broken in
        [&b"{\"input\": {\"text\": \"a\"}"[..], b"{\"input\": {}, \"input\": {}}", b"{\"input\": {\"text\": \"\xff\"}}"]
    {
        let bytes = [valid.as_bytes(), b"\n", broken, b"\n"].concat();
        let (code, data) = refused(&bytes, &schemas(), &how).await;
        assert_eq!((code, &data["faults"][0]["line"]), (codes::EXAMPLE_INVALID.any(), &json!(2)), "{data}");
    }
    // Under given splits, a line without one is a fault.
    let given = ImportOptions { given_splits: true, ..how.clone() };
    let (_, data) = refused(format!("{valid}\n").as_bytes(), &schemas(), &given).await;
    assert_eq!(data["faults"][0]["path"], "/split");
    let mut many = String::new();
    for number in 0..150 {
        many.push_str(&format!("{valid}\n{{\"input\": {{\"words\": {number}}}}}\n"));
    }
    let (_, data) = refused(many.as_bytes(), &schemas(), &how).await;
    let lines: Vec<u64> =
        data["faults"].as_array().unwrap().iter().map(|fault| fault["line"].as_u64().unwrap()).collect();
    // Each faulty line breaks two rules: it lacks a field, and has one that is unknown.
    let wanted: Vec<u64> = (1..=50).flat_map(|pair| [2 * pair, 2 * pair]).collect();
    assert_eq!((lines, &data["count"]), (wanted, &json!(300)));
    let skipping = ImportOptions { skip_invalid: true, ..how };
    let read = read_examples(many.as_bytes(), &schemas(), &skipping).unwrap();
    assert_eq!((read.drafts.len(), read.skipped), (150, BTreeMap::from([(SkipReason::InputSchema, 150)])));
}

#[tokio::test]
async fn an_expected_value_must_be_one_of_those_that_the_input_lists() {
    let classify = cantrip_contract::built_in().iter().find(|signature| signature.id().name() == "Classify").unwrap();
    let schemas = ExampleSchemas::of_signature(classify);
    let line = |label: &str| {
        let input = json!({"text": "It never came.", "labels": ["praise", "complaint"]});
        json!({"input": input, "expected": {"label": label, "confidence": 1}}).to_string()
    };
    let how = options(ImportFormat::JsonLines);
    assert_eq!(read_examples(line("complaint").as_bytes(), &schemas, &how).unwrap().drafts.len(), 1);
    let (code, data) = refused(line("question").as_bytes(), &schemas, &how).await;
    assert_eq!((code, &data["faults"][0]["path"]), (codes::EXAMPLE_INVALID.any(), &json!("/expected/label")), "{data}");
}

const LINES: &str = "{\"id\":\"a\",\"input\":{\"text\":\"hey\",\"times\":2},\"expected\":{\"team\":\"billing\"},\"weight\":1.5}\n\
    {\"input\":{\"text\":\"ho\"},\"labels\":[\"x\"],\"group\":\"g\",\"split\":\"test\",\"reward\":0.5}\n";

const WORDS: &[&str] = &[
    "\"",
    "\"\"",
    ",",
    ";",
    "\n",
    "\r\n",
    "\r",
    "\u{feff}",
    "{",
    "}",
    "[",
    "]",
    ":",
    "null",
    "true",
    "-1",
    "1e400",
    "9007199254740993",
    "input",
    "input.text",
    "expected",
    "expected.team",
    "labels",
    "weight",
    "split",
    "\\u0000",
];

proptest! {
    #![proptest_config(garble::samples(512))]

    #[test]
    fn a_file_that_is_almost_right_is_read_or_refused(bytes in garble::garbled(&[TABLE, LINES], WORDS)) {
        let schemas = schemas();
        for format in [CSV, ImportFormat::JsonLines] {
            for skip_invalid in [false, true] {
                let how = ImportOptions { skip_invalid, ..options(format) };
                let Ok(read) = read_examples(&bytes, &schemas, &how) else { continue };
                prop_assert!(skip_invalid || read.skipped.is_empty());
                for draft in &read.drafts {
                    prop_assert!(schemas.input_violations(&draft.input).is_empty());
                    let expected = draft.expected.iter().flat_map(|expected| schemas.output_violations(&draft.input, expected));
                    prop_assert_eq!(expected.count(), 0);
                }
            }
        }
    }
}

/// The datasets and verdicts of a store.
/// The datasets and verdicts of a store that has the signature of the tickets.
async fn store_of(loom: &AnyLoom) -> (DatasetStore, Verdicts) {
    let (clock, ids) = (Arc::new(MachineClock::new()), Arc::new(IdSource::new(MachineEntropy)));
    let catalog = Catalog::new(loom.clone(), clock.clone(), Arc::clone(&ids));
    catalog.add(&ticket(), SignatureOrigin::Api, "ann").await.unwrap();
    (DatasetStore::new(loom.clone(), clock.clone(), Arc::clone(&ids)), Verdicts::new(loom.clone(), clock, ids))
}

/// Examples with these numbers in their texts.
fn numbered(numbers: impl IntoIterator<Item = u32>) -> ReadExamples {
    let line = |number: u32| {
        let team = if number.is_multiple_of(2) { "billing" } else { "shipping" };
        json!({"input": {"text": format!("ticket number {number}")}, "expected": {"team": team}}).to_string()
    };
    let text: Vec<String> = numbers.into_iter().map(line).collect();
    read_examples(text.join("\n").as_bytes(), &schemas(), &options(ImportFormat::JsonLines)).unwrap()
}

fn new_version(examples: ReadExamples) -> NewVersion {
    NewVersion {
        name: "tickets".parse().unwrap(),
        subject: Subject::Signature(ticket().id().clone()),
        examples,
        without: Vec::new(),
        splits: SplitRequest::default(),
        filters: json!({"file": "tickets"}),
        allow_small: false,
        note: None,
        by: "ann".to_owned(),
    }
}

#[tokio::test]
async fn a_version_is_added_once_and_no_example_moves_as_it_grows() {
    for (loom, _folder) in stores() {
        let (store, _) = store_of(&loom).await;
        let AddedVersion { version, hash: first, counts, new, .. } =
            store.add(new_version(numbered(0..60))).await.unwrap();
        assert_eq!((version, new, counts.taken, counts.unlabelled), (1, true, 60, 0));
        assert!(counts.splits.holdout >= 5 && counts.splits.test >= 5, "{counts:?}");
        let again = store.add(new_version(numbered((0..60).rev()))).await.unwrap();
        assert_eq!((again.version, again.new, again.hash), (1, false, first), "the order of lines does not count");
        let grown = store.add(new_version(numbered(40..90))).await.unwrap();
        assert_eq!((grown.version, grown.new, grown.counts.taken), (2, true, 90));
        let (before, after) = (store.load(first).await.unwrap(), store.load(grown.hash).await.unwrap());
        assert_eq!((before.examples().len(), after.examples().len()), (60, 90));
        for example in before.examples() {
            assert_eq!(after.example(&example.id), Some(example), "an example moved or changed");
        }
        let diff =
            DatasetDiff::between(&store.entries(first).await.unwrap(), &store.entries(grown.hash).await.unwrap());
        assert_eq!((diff.added.len(), diff.removed.len(), diff.changed.len()), (30, 0, 0));
        let gone: Vec<ExampleId> = before.examples().iter().take(3).map(|example| example.id.clone()).collect();
        let less = NewVersion { without: gone.clone(), ..new_version(ReadExamples::default()) };
        let less = store.add(less).await.unwrap();
        assert_eq!((less.version, less.counts.taken), (3, 87));
        let diff =
            DatasetDiff::between(&store.entries(grown.hash).await.unwrap(), &store.entries(less.hash).await.unwrap());
        assert_eq!((diff.added.len(), diff.removed), (0, gone.clone()));
        let absent = NewVersion { without: gone, ..new_version(ReadExamples::default()) };
        let reply = replied(store.add(absent).await.unwrap_err()).await;
        assert_eq!(reply.code(), codes::NOT_FOUND.any());
        // Every version can still be named and read.
        assert_eq!(store.resolve("tickets@1").await.unwrap().hash(), first);
        assert_eq!(store.resolve("tickets").await.unwrap().label(), "tickets@3");
        assert_eq!(store.resolve(&first.to_string()[..16]).await.unwrap().hash(), first);
        for unknown in ["tickets@4", "nothing", "sha256:0000", "Not a name"] {
            let reply = replied(store.resolve(unknown).await.unwrap_err()).await;
            assert_eq!(reply.code(), codes::CONTRACT_UNKNOWN.any(), "{unknown}");
        }
        assert_eq!(store.load(first).await.unwrap(), before);
        let test = store.examples(first, Some(Split::Test), PageRequest::FIRST).await.unwrap().items;
        assert_eq!(test.len() as u64, counts.splits.test);
        assert!(test.iter().all(|example| example.split == Split::Test));
        // A line of an example is read as the same example.
        let lines: Vec<String> = before.examples().iter().map(|example| example_line(example).to_string()).collect();
        let read = read_examples(lines.join("\n").as_bytes(), &schemas(), &options(ImportFormat::JsonLines)).unwrap();
        let drafts: Vec<ExampleDraft> = before.examples().iter().cloned().map(|example| example.into_draft()).collect();
        assert_eq!(read.drafts, drafts);
    }
}

#[tokio::test]
async fn an_example_that_was_removed_returns_to_its_split_when_it_is_added_again() {
    for (loom, _folder) in stores() {
        let (store, _) = store_of(&loom).await;
        // Its hash alone would put each text elsewhere than it was given.
        let shares = SplitShares::default();
        let texts = (0..).map(|number| format!("text {number}"));
        let text = texts
            .filter(|text| {
                let hash = stable_hash(&json!({ "text": text })).unwrap();
                shares.split_of(SplitSeed::default().bucket(&hash.to_string())) == Split::Train
            })
            .take(6);
        let text: Vec<String> = text.collect();
        let lines = |given: bool, texts: &[String]| {
            let line = |(place, text): (usize, &String)| {
                let mut line = json!({"id": format!("e{place}"), "input": { "text": text }});
                if given {
                    line["split"] = json!("test");
                }
                line.to_string()
            };
            let lines: Vec<String> = texts.iter().enumerate().map(line).collect();
            let how = ImportOptions { given_splits: given, ..options(ImportFormat::JsonLines) };
            read_examples(lines.join("\n").as_bytes(), &schemas(), &how).unwrap()
        };
        let add = |examples: ReadExamples, given: bool, without: Vec<ExampleId>| {
            let splits = SplitRequest { given, ..SplitRequest::default() };
            store.add(NewVersion { splits, without, allow_small: true, ..new_version(examples) })
        };
        add(lines(true, &text), true, Vec::new()).await.unwrap();
        let removed: Vec<ExampleId> = vec!["e0".parse().unwrap()];
        let lacking = add(ReadExamples::default(), false, removed).await.unwrap();
        assert_eq!((lacking.version, lacking.counts.taken), (2, 5));
        let again = add(lines(false, &text[..1]), false, Vec::new()).await.unwrap();
        let stored = store.load(again.hash).await.unwrap();
        assert_eq!(stored.example(&"e0".parse().unwrap()).unwrap().split, Split::Test);
    }
}

#[tokio::test]
async fn two_that_add_at_once_get_two_versions_and_nothing_is_lost() {
    for (loom, _folder) in stores() {
        let (store, _) = store_of(&loom).await;
        store.add(new_version(numbered(0..60))).await.unwrap();
        let (one, other) = (new_version(numbered(60..80)), new_version(numbered(80..100)));
        let (one, other) = join(store.add(one), store.add(other)).await;
        let mut versions = [one.unwrap().version, other.unwrap().version];
        versions.sort_unstable();
        assert_eq!(versions, [2, 3]);
        let newest = store.resolve("tickets").await.unwrap();
        assert_eq!((newest.label().as_str(), newest.row.counts.taken), ("tickets@3", 100));
    }
}

#[tokio::test]
async fn a_small_split_a_note_too_long_and_another_subject_are_refused_and_nothing_is_written() {
    for (loom, _folder) in stores() {
        let (store, _) = store_of(&loom).await;
        let reply = replied(store.add(new_version(numbered(0..8))).await.unwrap_err()).await;
        assert_eq!(reply.code(), codes::LIMIT.any());
        assert!(reply.data()["hint"].as_str().unwrap().contains("--allow-small"));
        let reply = replied(store.add(new_version(ReadExamples::default())).await.unwrap_err()).await;
        assert_eq!(reply.code(), codes::LIMIT.any());
        let note = Some("x".repeat(5_000));
        let reply = replied(store.add(NewVersion { note, ..new_version(numbered(0..60)) }).await.unwrap_err()).await;
        assert_eq!(reply.code(), codes::LIMIT.any());
        assert_eq!(store.names().await.unwrap(), []);
        let small = NewVersion { allow_small: true, ..new_version(numbered(0..8)) };
        assert_eq!(store.add(small).await.unwrap().counts.taken, 8);
        let subject = Subject::Signature(shout().id().clone());
        let other = NewVersion { subject, allow_small: true, ..new_version(numbered(0..9)) };
        let reply = replied(store.add(other).await.unwrap_err()).await;
        assert_eq!(reply.code(), codes::CONFIG_INVALID.any());
        assert_eq!(store.resolve("tickets").await.unwrap().label(), "tickets@1");
        // One input cannot be given two splits.
        let lines = [("a", "train"), ("b", "test")]
            .map(|(id, split)| json!({"id": id, "input": {"text": "the same"}, "split": split}).to_string());
        let how = ImportOptions { given_splits: true, ..options(ImportFormat::JsonLines) };
        let examples = read_examples(lines.join("\n").as_bytes(), &schemas(), &how).unwrap();
        let splits = SplitRequest { given: true, ..SplitRequest::default() };
        let name = "leaks".parse().unwrap();
        let leaking = NewVersion { name, splits, allow_small: true, ..new_version(examples) };
        let reply = replied(store.add(leaking).await.unwrap_err()).await;
        assert_eq!(reply.code(), codes::EXAMPLE_INVALID.any());
        assert_eq!(store.names().await.unwrap().len(), 1);
    }
}

/// Runs one predict whose model gives these outputs, and returns its receipt.
async fn ask(loom: &AnyLoom, text: &str, outputs: &[Value], how: PredictOptions) -> ReceiptId {
    let script = scripted(outputs.iter().cloned().map(done));
    let predictor = predictor(loom, says(&script), TraceArchive::inline());
    predictor.catalog().add(&shout(), SignatureOrigin::Api, "ann").await.unwrap();
    predictor.predict(shout().id(), &json!({ "text": text }), how).await.predicted.receipt.unwrap()
}

async fn served(loom: &AnyLoom, text: &str) -> ReceiptId {
    ask(loom, text, &[json!({"text": text.to_uppercase()})], PredictOptions::default()).await
}

async fn reward(loom: &AnyLoom, receipt: &ReceiptId, reward: f64) {
    let receipt = loom.receipt(receipt.clone()).await.unwrap().receipt().unwrap();
    let now = receipt.timing.completed_at;
    let by = Actor::new("ann").unwrap();
    let given = Reward { turn_id: receipt.last_turn_id.unwrap(), reward, by, note: None };
    let id = StepId::new(format!("reward-{:032x}", IdSource::new(MachineEntropy).next_bits(now))).unwrap();
    let step = Step::annotation(id, receipt.run_id).record(RecordDraft::new(now, given).unwrap());
    assert!(matches!(loom.append(step).await.unwrap(), AppendOutcome::Committed(_)));
}

fn verdict(receipt: &ReceiptId, verdict: VerdictWord, expected: Option<&str>) -> GivenVerdict {
    let expected = expected.map(|text| json!({ "text": text }));
    GivenVerdict {
        receipt: receipt.clone(),
        verdict,
        expected,
        labels: vec!["seen".to_owned()],
        note: None,
        by: "ann".to_owned(),
    }
}

#[tokio::test]
async fn receipts_become_examples_by_correction_then_verdict_then_reward() {
    let shouts = ExampleSchemas::of_signature(&shout());
    let seed = SplitSeed::default();
    for (loom, _folder) in stores() {
        let (_, verdicts) = store_of(&loom).await;
        let good = served(&loom, "good").await;
        verdicts.give(verdict(&good, VerdictWord::Good, None)).await.unwrap();
        let bad = served(&loom, "bad").await;
        verdicts.give(verdict(&bad, VerdictWord::Bad, None)).await.unwrap();
        reward(&loom, &bad, 1.0).await;
        let corrected = served(&loom, "corrected").await;
        verdicts.give(verdict(&corrected, VerdictWord::Good, None)).await.unwrap();
        verdicts.give(verdict(&corrected, VerdictWord::Bad, Some("RIGHT"))).await.unwrap();
        let rewarded = served(&loom, "rewarded").await;
        reward(&loom, &rewarded, 0.1).await;
        reward(&loom, &rewarded, 0.8).await;
        let poor = served(&loom, "poor").await;
        reward(&loom, &poor, 0.79).await;
        served(&loom, "silent").await;
        let rubbish = [json!({"words": 1}), json!({"words": 2}), json!({"words": 3})];
        let failed = ask(&loom, "failed", &rubbish, PredictOptions::default()).await;
        verdicts.give(verdict(&failed, VerdictWord::Bad, Some("MENDED"))).await.unwrap();
        ask(&loom, "failed in silence", &rubbish, PredictOptions::default()).await;
        // Trials of jobs, and other signatures, are no examples.
        let trial = PredictOptions { purpose: Purpose::Eval, ..PredictOptions::default() };
        ask(&loom, "trial", &[json!({"text": "TRIAL"})], trial).await;
        let script = scripted([done(json!({"team": "billing"}))]);
        let other = predictor(&loom, says(&script), TraceArchive::inline());
        other.catalog().add(&ticket(), SignatureOrigin::Api, "ann").await.unwrap();
        let reply = other.predict(ticket().id(), &json!({"text": "other"}), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::PREDICTED);
        grant(&loom, 1, |terms| (terms.mode, terms.max_total) = (AuthorizationMode::Deny, None)).await;
        let script = scripted([done(json!({"text": "DENIED"}))]);
        let denied = predictor(&loom, Posing { price: listed(), ..says(&script) }, TraceArchive::inline());
        let reply = denied.predict(shout().id(), &json!({"text": "denied"}), PredictOptions::default()).await;
        assert_code(&reply.guarded.reply, codes::NOT_AUTHORIZED);

        let read = gather_examples(&loom, &shouts, &GatherFilter::default(), &seed, None).await.unwrap();
        let found: BTreeMap<&str, (Option<&str>, &[String])> = read
            .drafts
            .iter()
            .map(|draft| {
                let expected = draft.expected.as_ref().map(|expected| expected["text"].as_str().unwrap());
                (draft.input["text"].as_str().unwrap(), (expected, draft.labels.as_slice()))
            })
            .collect();
        let (seen, both) = (["seen".to_owned()], ["bad".to_owned(), "seen".to_owned()]);
        let wanted: BTreeMap<&str, (Option<&str>, &[String])> = BTreeMap::from([
            ("good", (Some("GOOD"), &seen[..])),
            ("bad", (None, &both[..])),
            ("corrected", (Some("RIGHT"), &seen[..])),
            ("rewarded", (Some("REWARDED"), &[][..])),
            ("poor", (None, &[][..])),
            ("silent", (None, &[][..])),
            ("failed", (Some("MENDED"), &seen[..])),
        ]);
        assert_eq!(found, wanted);
        assert_eq!(read.skipped, BTreeMap::from([(SkipReason::Denied, 2), (SkipReason::Filter, 1)]));

        let count = async |filter: GatherFilter| {
            gather_examples(&loom, &shouts, &filter, &seed, None).await.unwrap().drafts.len()
        };
        assert_eq!(count(GatherFilter { only_labelled: true, ..GatherFilter::default() }).await, 4);
        assert_eq!(count(GatherFilter { min_reward: Some(800_000), ..GatherFilter::default() }).await, 2);
        assert_eq!(count(GatherFilter { owner: Some("bob".to_owned()), ..GatherFilter::default() }).await, 0);
        assert_eq!(count(GatherFilter { max: Some(3), ..GatherFilter::default() }).await, 3);
        let late = "2100-01-01T00:00:00.000Z".parse().unwrap();
        assert_eq!(count(GatherFilter { since: Some(late), ..GatherFilter::default() }).await, 0);
        assert_eq!(count(GatherFilter { until: Some(late), ..GatherFilter::default() }).await, 7);
    }
}

#[tokio::test]
async fn a_receipt_that_is_judged_later_replaces_its_example() {
    let shouts = ExampleSchemas::of_signature(&shout());
    for (loom, _folder) in stores() {
        let (store, verdicts) = store_of(&loom).await;
        let receipt = served(&loom, "hey").await;
        served(&loom, "ho").await;
        let version = async || {
            let read = gather_examples(&loom, &shouts, &GatherFilter::default(), &SplitSeed::default(), None).await;
            let subject = Subject::Signature(shout().id().clone());
            let new = NewVersion { subject, allow_small: true, ..new_version(read.unwrap()) };
            store.add(new).await.unwrap()
        };
        let first = version().await;
        assert_eq!((first.counts.taken, first.counts.unlabelled), (2, 2));
        assert!(!version().await.new, "the same receipts again are the same version");
        verdicts.give(verdict(&receipt, VerdictWord::Bad, Some("HEY!"))).await.unwrap();
        let second = version().await;
        assert_eq!((second.version, second.counts.taken, second.counts.unlabelled), (2, 2, 1));
        let (before, after) = (store.load(first.hash).await.unwrap(), store.load(second.hash).await.unwrap());
        for example in after.examples() {
            let former = before.examples().iter().find(|former| former.input == example.input).unwrap();
            assert_eq!(former.split, example.split, "an input moved");
        }
    }
}

#[tokio::test]
async fn a_verdict_must_fit_the_output_schema_and_the_latest_counts() {
    for (loom, _folder) in stores() {
        let (_, verdicts) = store_of(&loom).await;
        let receipt = served(&loom, "hey").await;
        let wrong = GivenVerdict { expected: Some(json!({"words": 1})), ..verdict(&receipt, VerdictWord::Bad, None) };
        let reply = replied(verdicts.give(wrong).await.unwrap_err()).await;
        assert_eq!(reply.code(), codes::SCHEMA.any());
        let wrong = GivenVerdict { labels: vec!["two words".to_owned()], ..verdict(&receipt, VerdictWord::Bad, None) };
        assert_eq!(replied(verdicts.give(wrong).await.unwrap_err()).await.code(), codes::SCHEMA.any());
        let unknown: ReceiptId = "rcpt_00000000000000000000000000000000".parse().unwrap();
        let reply = replied(verdicts.give(verdict(&unknown, VerdictWord::Good, None)).await.unwrap_err()).await;
        assert_eq!(reply.code(), codes::NOT_FOUND.any());
        assert_eq!(loom.verdicts_of(receipt.clone()).await.unwrap(), []);
        verdicts.give(verdict(&receipt, VerdictWord::Good, None)).await.unwrap();
        verdicts.give(verdict(&receipt, VerdictWord::Bad, Some("HEY!"))).await.unwrap();
        let words: Vec<VerdictWord> = verdicts.of(receipt).await.unwrap().iter().map(|row| row.verdict).collect();
        assert_eq!(words, [VerdictWord::Good, VerdictWord::Bad]);
    }
}

#[tokio::test]
async fn failures_come_first_then_repairs_and_a_judged_receipt_comes_no_more() {
    for (loom, _folder) in stores() {
        let (_, verdicts) = store_of(&loom).await;
        for text in ["one", "two", "three"] {
            served(&loom, text).await;
        }
        let repaired = [json!({"words": 1}), json!({"text": "FOUR"})];
        ask(&loom, "four", &repaired, PredictOptions::default()).await;
        ask(&loom, "five", &[json!({}), json!({}), json!({})], PredictOptions::default()).await;
        let trial = PredictOptions { purpose: Purpose::Eval, ..PredictOptions::default() };
        ask(&loom, "six", &[json!({"text": "SIX"})], trial).await;
        let open = open_receipts(&loom, shout().id()).await.unwrap();
        let orders: Vec<ReviewOrder> = open.iter().map(|open| open.order).collect();
        use ReviewOrder::{OwnFailure, Repaired, Rest};
        assert_eq!(orders, [OwnFailure, Repaired, Rest, Rest, Rest]);
        assert!(open[2..].is_sorted_by_key(|open| open.receipt_hash));
        let (input, output) = open[0].load(&loom).await.unwrap();
        assert_eq!((input, output), (Some(json!({"text": "five"})), None));
        verdicts.give(verdict(&open[1].receipt_id, VerdictWord::Good, None)).await.unwrap();
        let left: Vec<ReceiptId> =
            open_receipts(&loom, shout().id()).await.unwrap().into_iter().map(|open| open.receipt_id).collect();
        let wanted: Vec<ReceiptId> =
            open.iter().filter(|open| open.order != Repaired).map(|open| open.receipt_id.clone()).collect();
        assert_eq!(left, wanted);
    }
}

#[tokio::test]
async fn what_leaves_is_redacted_and_redaction_at_the_making_is_counted() {
    const SECRET: &str = "sk-proj-Ab12Cd34Ef56Gh78Ij90Kl12";
    let redactor = Redactor::default().personal_data(true);
    for (loom, _folder) in stores() {
        let (store, _) = store_of(&loom).await;
        let line = json!({"id": "a", "input": {"text": format!("mail ada@example.org the key {SECRET}")}}).to_string();
        let read = read_examples(line.as_bytes(), &schemas(), &options(ImportFormat::JsonLines)).unwrap();
        let plain = store.add(NewVersion { allow_small: true, ..new_version(read) }).await.unwrap();
        assert_eq!(plain.counts.redacted, 0);
        let stored = store.load(plain.hash).await.unwrap();
        let stored = &stored.examples()[0];
        assert!(stored.input["text"].as_str().unwrap().contains(SECRET), "rows hold what was said");
        let leaving = redacted_example(stored, Some(&redactor)).to_string();
        assert!(!leaving.contains(SECRET) && !leaving.contains("ada@example.org"), "{leaving}");
        assert_eq!(redacted_example(stored, None), example_line(stored));
        let how = ImportOptions { redactor: Some(redactor.clone()), ..options(ImportFormat::JsonLines) };
        let read = read_examples(line.as_bytes(), &schemas(), &how).unwrap();
        assert_eq!(read.redacted, 1);
        let name = "clean".parse().unwrap();
        let clean = store.add(NewVersion { name, allow_small: true, ..new_version(read) }).await.unwrap();
        assert_eq!(clean.counts.redacted, 1);
        let text = example_line(&store.load(clean.hash).await.unwrap().examples()[0]).to_string();
        assert!(!text.contains(SECRET) && !text.contains("ada@example.org"), "{text}");
    }
}
