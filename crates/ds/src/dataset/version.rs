//! How is the next version of a dataset put together, and what is written for it?

use std::collections::{BTreeSet, HashMap, HashSet};

use cantrip::canon::{Hash, json};
use cantrip::loom::Body;
use cantrip::reply::{Refusal, codes};
use cantrip::store_refusal;
use cantrip_contract::limits::{DATASET_EXAMPLES_MAX, SPLIT_EXAMPLES_MIN};
use cantrip_contract::{
    BuiltDataset, Dataset, DatasetCounts, DatasetExampleRow, DatasetFault, Example, ExampleDraft, ExampleId,
    ExampleSource, PlacedKey, SourceKind, SplitPolicy, SplitSeed, SplitShares, Subject,
};
use serde_json::json;

use super::NewVersion;
use crate::limits::DATASET_STEP_BYTES_MAX;

/// Builds the dataset of the new version. `former` are the examples of the versions before the parent.
pub(super) fn build(new: &NewVersion, parent: Option<&Dataset>, former: &[PlacedKey]) -> Result<BuiltDataset, Refusal> {
    let drafts = new.examples.drafts.clone();
    if let Some(parent) = parent.filter(|parent| *parent.subject() != new.subject) {
        let rule = format!("it holds examples of {}, not of {}", parent.subject(), new.subject);
        return Err(codes::config_invalid("dataset", new.name.as_str(), rule).into());
    }
    let policy = SplitPolicy {
        shares: new.splits.shares.unwrap_or_else(|| parent.map_or_else(SplitShares::default, Dataset::shares)),
        seed: match (&new.splits.seed, parent) {
            (Some(seed), _) => seed.clone(),
            (None, Some(parent)) => parent.seed().clone(),
            (None, None) => SplitSeed::default(),
        },
        given: new.splits.given,
    };
    let built = match parent {
        Some(parent) => {
            let mut without: BTreeSet<ExampleId> = new.without.iter().cloned().collect();
            without.extend(superseded(parent, &drafts, &new.subject));
            parent.grow(drafts, &without, &policy, former)
        }
        None => match new.without.first() {
            Some(id) => Err(DatasetFault::Unknown(id.clone())),
            None => Dataset::build(new.subject.clone(), drafts, &policy, former),
        },
    };
    built.map_err(|fault| fault_refusal(&fault, new))
}

/// Returns the examples of the parent that were made from a receipt or a thread which gives another example now,
/// because a person has said something about it since.
fn superseded(parent: &Dataset, drafts: &[ExampleDraft], subject: &Subject) -> Vec<ExampleId> {
    let key = |source: &ExampleSource| match source.kind {
        SourceKind::Receipt | SourceKind::Thread => Some(source.id.clone()),
        SourceKind::File => None,
    };
    let id = |draft: &ExampleDraft| {
        draft.id.clone().unwrap_or_else(|| ExampleId::of(subject, &draft.input, draft.expected.as_ref()))
    };
    let now: HashMap<String, ExampleId> =
        drafts.iter().filter_map(|draft| Some((key(&draft.source)?, id(draft)))).collect();
    let replaced = |example: &&Example| {
        key(&example.source).and_then(|source| now.get(&source)).is_some_and(|id| *id != example.id)
    };
    parent.examples().iter().filter(replaced).map(|example| example.id.clone()).collect()
}

/// Returns the refusal of examples that are no dataset.
fn fault_refusal(fault: &DatasetFault, new: &NewVersion) -> Refusal {
    match (fault, fault.line()) {
        (DatasetFault::Many(count), _) => {
            codes::limit(format!("dataset {}", new.name), count, DATASET_EXAMPLES_MAX).into()
        }
        (DatasetFault::Unknown(id), _) => {
            let hint = format!("cantrip dataset show {} lists the examples", new.name);
            codes::not_found("example", id.as_str()).data(json!({ "hint": hint })).into()
        }
        (other, Some(line)) => {
            let (path, rule) = (fault_path(other), other.to_string());
            let faults = json!([{ "line": line, "path": path, "rule": rule }]);
            codes::example_invalid(line, new.subject.to_string(), path, rule).data(json!({ "faults": faults })).into()
        }
        (other, None) => codes::schema("the dataset", fault_path(other), other.to_string()).into(),
    }
}

fn fault_path(fault: &DatasetFault) -> &'static str {
    match fault {
        DatasetFault::SameId { .. } => "/id",
        DatasetFault::NoSplit { .. } | DatasetFault::TwoSplits { .. } => "/split",
        DatasetFault::Large { .. } | DatasetFault::Many(_) | DatasetFault::Unknown(_) => "",
    }
}

/// Refuses a dataset whose holdout or test split is too small to say anything.
pub(super) fn check_size(new: &NewVersion, counts: &DatasetCounts) -> Result<(), Refusal> {
    if counts.taken == 0 {
        let data = json!({ "skipped": counts.skipped });
        return Err(codes::limit(format!("the number of examples of {}", new.name), 0, 1).data(data).into());
    }
    match counts.small_split().filter(|_| !new.allow_small) {
        None => Ok(()),
        Some((split, size)) => {
            let hint = "add more examples, or accept it with --allow-small";
            let data = json!({ "splits": counts.splits, "skipped": counts.skipped, "hint": hint });
            let what = format!("the {split} split of {}", new.name);
            Err(codes::limit(what, size, SPLIT_EXAMPLES_MIN).data(data).into())
        }
    }
}

pub(super) fn example_row(dataset_hash: Hash, example: &Example) -> DatasetExampleRow {
    DatasetExampleRow {
        dataset_hash,
        example_id: example.id.clone(),
        split: example.split,
        input_hash: example.input_hash(),
        near_hash: example.near_hash(),
        expected_hash: example.expected_hash(),
        content_hash: example.content_hash(),
        weight: example.weight,
        reward_micro: example.reward,
        group_key: example.group.clone(),
        labels: example.labels.clone(),
        source: example.source.clone(),
    }
}

/// Returns the inputs and expected outputs that the parent does not have, each once.
pub(super) fn new_bodies(dataset: &Dataset, parent: Option<&Dataset>) -> Result<Vec<Body>, Refusal> {
    let mut known: HashSet<Hash> = HashSet::new();
    for example in parent.map(Dataset::examples).unwrap_or_default() {
        known.insert(example.input_hash());
        known.extend(example.expected_hash());
    }
    let mut bodies = Vec::new();
    for value in dataset.examples().iter().flat_map(|example| [Some(&example.input), example.expected.as_ref()]) {
        let Some(value) = value else { continue };
        let text = json::canonical(value).map_err(|fault| codes::schema("an example", "", fault.to_string()))?;
        let body = Body::new(text.into_bytes()).map_err(|error| store_refusal(&error))?;
        if known.insert(body.hash()) {
            bodies.push(body);
        }
    }
    Ok(bodies)
}

/// Divides bodies into parts that fit into a step.
pub(super) fn chunks(bodies: Vec<Body>) -> Vec<Vec<Body>> {
    let mut chunks: Vec<Vec<Body>> = Vec::new();
    let mut bytes = 0;
    for body in bodies {
        let length = body.bytes().len();
        match chunks.last_mut().filter(|_| bytes + length <= DATASET_STEP_BYTES_MAX) {
            Some(chunk) => {
                bytes += length;
                chunk.push(body);
            }
            None => {
                bytes = length;
                chunks.push(vec![body]);
            }
        }
    }
    chunks
}
