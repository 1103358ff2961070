//! Datasets, and verdicts about receipts.

use std::str::FromStr;

use cantrip_service::cantrip::canon::Timestamp;
use cantrip_service::cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip_service::contracts::contract::{DatasetRef, ReceiptId, Split, SplitSeed, SplitShares, micro_of};
use cantrip_service::contracts::dataset::{GatherFilter, SplitRequest};
use cantrip_service::{DatasetRequest, DatasetSubject, ExampleContent, ExampleInput, VerdictRequest};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::answer::Answer;
use super::contracts::parse_id;
use super::extractors::{Caller, JsonBody, Paging, PathId, QueryParams, ResourceId};
use super::routes::{Routes, doc};

/// The name, version or hash of a dataset, as a path names it.
struct DatasetKey(String);

impl FromStr for DatasetKey {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        text.parse::<DatasetRef>().map(|_| Self(text.to_owned())).map_err(|_| ())
    }
}

impl ResourceId for DatasetKey {
    const KIND: &'static str = "dataset";
}

const DATASET: &str = "a dataset: `tickets` (the newest version), `tickets@3`, or `sha256:` and digits of its hash";

pub(super) fn routes(routes: &mut Routes) {
    let about = doc("list_datasets", "List the newest version of every dataset.", &[200]);
    routes.get("/v1/datasets", datasets, about);
    let about = doc("add_dataset", "Add a version of a dataset, as an operator.", &[201, 403, 404]).body::<Adding>();
    routes.post("/v1/datasets", add, about);
    let about = doc("get_dataset", "Show a dataset with its counts and versions.", &[200]).path(DATASET);
    routes.get("/v1/datasets/{id}", dataset, about);
    let about = doc("list_examples", "List the examples of a dataset, redacted, as an operator.", &[200, 403])
        .path(DATASET)
        .query::<Examples>();
    routes.get("/v1/datasets/{id}/examples", examples, about);
    let about = doc(
        "judge_receipt",
        "Say whether the output of a receipt is good or bad, as its owner or an operator. The latest verdict counts.",
        &[201, 403],
    )
    .path("the id of a receipt")
    .body::<Judging>();
    routes.post("/v1/receipts/{id}/verdict", judge, about);
}

async fn datasets(caller: Caller) -> Answer {
    caller.service.datasets().await.into()
}

async fn dataset(caller: Caller, PathId(DatasetKey(asked)): PathId<DatasetKey>) -> Answer {
    caller.service.dataset(&asked).await.into()
}

/// A part of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Part {
    Train,
    Holdout,
    Test,
}

/// A filter for examples, and the page.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Examples {
    /// Only examples of this split.
    split: Option<Part>,
    /// The cursor of the page: `next` of the previous page.
    after: Option<u64>,
    /// The maximum number of items on a page; 50 by default. A page of long examples is shorter.
    #[schemars(range(min = 1, max = 1000))]
    most: Option<usize>,
}

async fn examples(
    caller: Caller,
    PathId(DatasetKey(asked)): PathId<DatasetKey>,
    QueryParams(examples): QueryParams<Examples>,
) -> Answer {
    let listed = async {
        let page = Paging { after: examples.after, most: examples.most }.page()?;
        let split = examples.split.map(|part| match part {
            Part::Train => Split::Train,
            Part::Holdout => Split::Holdout,
            Part::Test => Split::Test,
        });
        Ok(caller.service.dataset_examples(&asked, split, page, ExampleContent::Redacted).await)
    };
    caller.http.answer(listed.await).await
}

/// The way in which new examples get their splits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum SplitWay {
    /// By a hash of their input.
    #[default]
    Hash,
    /// Every example has its own.
    Given,
}

/// The percentages of the splits, which add up to 100.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Shares {
    train: u8,
    holdout: u8,
    test: u8,
}

/// A filter for the receipts that become examples.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Gathering {
    /// Only receipts completed at or after this time, as in `2026-02-19T02:00:00.000Z`.
    since: Option<String>,
    /// Only receipts completed before this time.
    until: Option<String>,
    /// Only receipts of this artifact.
    artifact: Option<String>,
    /// Only receipts of this owner.
    owner: Option<String>,
    /// Only receipts with at least this reward.
    min_reward: Option<f64>,
    /// Only receipts whose right output is known.
    #[serde(default)]
    only_labelled: bool,
    /// The maximum number of examples to take.
    max: Option<usize>,
}

/// A version of a dataset to add: examples, or a filter for receipts.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Adding {
    /// The name of the dataset: a-z, 0-9, - and _.
    name: String,
    /// The signature of the examples. By default that of the newest version.
    signature: Option<String>,
    /// The spell of the examples.
    spell: Option<String>,
    /// The examples to add, each as a line of a dataset file: `{"input": ..., "expected": ...}`.
    examples: Option<Vec<Value>>,
    /// Gather the examples from receipts instead.
    receipts: Option<Gathering>,
    /// The ids of examples that the new version lacks.
    #[serde(default)]
    without: Vec<String>,
    /// The way in which new examples get their splits.
    #[serde(default)]
    splits: SplitWay,
    /// The percentages of the splits; 60, 20 and 20 by default.
    shares: Option<Shares>,
    /// The seed of the splits.
    seed: Option<String>,
    /// Leave out examples that have a fault, and count them.
    #[serde(default)]
    skip_invalid: bool,
    /// Replace secrets and personal data before anything is stored.
    #[serde(default)]
    redact: bool,
    /// Accept a holdout or test split of fewer than five examples.
    #[serde(default)]
    allow_small: bool,
    /// A note that is stored with the version.
    note: Option<String>,
}

async fn add(caller: Caller, JsonBody(adding): JsonBody<Adding>) -> Answer {
    caller.http.answer(add_version(&caller, adding).await).await
}

async fn add_version(caller: &Caller, adding: Adding) -> Result<GuardedReply, Refusal> {
    let unfit = |path: &str, rule: String| Refusal::from(codes::schema("the body", path, rule));
    let subject = match (adding.signature, adding.spell) {
        (Some(_), Some(_)) => return Err(unfit("/spell", "give a signature or a spell, not both".to_owned())),
        (Some(asked), None) => Some(DatasetSubject::Signature(caller.service.catalog().find(&asked).await?)),
        (None, Some(name)) => {
            let cantrip = caller.http.host().local_service().spells().cantrip(&name).await?;
            Some(DatasetSubject::Spell { name, answer_schema: cantrip.circle().answer_schema().cloned() })
        }
        (None, None) => None,
    };
    let input = match (adding.examples, adding.receipts) {
        (Some(_), Some(_)) => return Err(unfit("/receipts", "give examples or receipts, not both".to_owned())),
        (Some(examples), None) => ExampleInput::Values(examples),
        (None, Some(gathering)) => ExampleInput::Receipts(gathering.filter()?),
        (None, None) => ExampleInput::Nothing,
    };
    let shares = adding.shares.map(|shares| SplitShares::new(shares.train, shares.holdout, shares.test)).transpose();
    let seed = adding.seed.map(|seed| seed.parse::<SplitSeed>()).transpose();
    let splits = SplitRequest {
        shares: shares.map_err(|fault| unfit("/shares", fault.to_string()))?,
        seed: seed.map_err(|fault| unfit("/seed", fault.to_string()))?,
        given: adding.splits == SplitWay::Given,
    };
    let request = DatasetRequest {
        subject,
        input,
        without: adding.without,
        splits,
        skip_invalid: adding.skip_invalid,
        redact: adding.redact,
        allow_small: adding.allow_small,
        note: adding.note,
        ..DatasetRequest::new(adding.name, caller.owner.as_str())
    };
    Ok(caller.service.add_dataset(request).await)
}

impl Gathering {
    fn filter(self) -> Result<GatherFilter, Refusal> {
        let unfit = |path: &str, rule: String| Refusal::from(codes::schema("the body", path, rule));
        let time = |path: &str, text: Option<String>| {
            let parse = |text: String| text.parse::<Timestamp>().map_err(|fault| unfit(path, fault.to_string()));
            text.map(parse).transpose()
        };
        let min_reward = match self.min_reward {
            None => None,
            Some(reward) => {
                let rule = || unfit("/receipts/min_reward", "it must have at most six decimals".to_owned());
                Some(micro_of(reward).ok_or_else(rule)?)
            }
        };
        Ok(GatherFilter {
            since: time("/receipts/since", self.since)?,
            until: time("/receipts/until", self.until)?,
            artifact: self.artifact.as_deref().map(parse_id).transpose()?,
            owner: self.owner,
            min_reward,
            only_labelled: self.only_labelled,
            max: self.max,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Judgement {
    Good,
    Bad,
}

/// A verdict about a receipt.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Judging {
    /// Whether the output is good or bad.
    verdict: Judgement,
    /// The right output, which must match the output schema.
    expected: Option<Value>,
    /// Labels of the example that is made of it.
    #[serde(default)]
    labels: Vec<String>,
    /// The reason for the verdict.
    note: Option<String>,
}

async fn judge(caller: Caller, PathId(receipt): PathId<ReceiptId>, JsonBody(judging): JsonBody<Judging>) -> Answer {
    let request = VerdictRequest {
        receipt,
        good: judging.verdict == Judgement::Good,
        expected: judging.expected,
        labels: judging.labels,
        note: judging.note,
        by: caller.owner.as_str().to_owned(),
    };
    caller.service.add_verdict(request).await.into()
}
