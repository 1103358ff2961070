//! Datasets and verdicts, for every surface.
//!
//! The examples of a dataset come from all owners, so only an operator makes a dataset or reads its examples. What
//! leaves is redacted, unless the caller can read the store itself and asks for it as it is stored.

use std::sync::Arc;

use cantrip::canon::{Redactor, json};
use cantrip::loom::{Contracts, PageRequest};
use cantrip::reply::{GuardedReply, Refusal, codes};
use cantrip::store_refusal;
use cantrip_ds::contract::{
    DatasetDiff, DatasetName, DatasetNameFault, DatasetVersionRow, ExampleId, ReceiptId, SignatureId, Split, SplitSeed,
    Subject, VerdictWord,
};
use cantrip_ds::dataset::{
    AddedVersion, DatasetStore, ExampleSchemas, GatherFilter, GivenVerdict, ImportFormat, ImportOptions, NamedDataset,
    NewVersion, OpenReceipt, ReadExamples, ReviewOrder, SplitRequest, Verdicts, gather_examples, open_receipts,
    read_examples, read_values, redacted_example,
};
use serde_json::{Value, json};

use crate::Service;
use crate::limits::{EXAMPLES_LISTED_BYTES, EXAMPLES_WRITTEN_PAGE};

/// The redaction of examples that leave the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExampleContent {
    /// Without secrets and personal data.
    #[default]
    Redacted,
    AsStored,
}

/// The subject of a dataset.
#[derive(Debug, Clone)]
pub enum DatasetSubject {
    Signature(SignatureId),
    /// A spell, with the schema of its answers.
    Spell {
        name: String,
        answer_schema: Option<Value>,
    },
}

/// The source of the examples of a new version.
#[derive(Debug, Clone)]
pub enum ExampleInput {
    /// No new examples; some may be left out.
    Nothing,
    File {
        name: String,
        bytes: Vec<u8>,
        format: ImportFormat,
    },
    /// The examples of a request.
    Values(Vec<Value>),
    /// The receipts of the subject, with their verdicts.
    Receipts(GatherFilter),
}

/// A request for a new version of a dataset.
#[derive(Debug, Clone)]
#[must_use = "add it"]
pub struct DatasetRequest {
    pub name: String,
    /// By default the subject of the newest version.
    pub subject: Option<DatasetSubject>,
    pub input: ExampleInput,
    /// The ids of examples that the new version lacks.
    pub without: Vec<String>,
    pub splits: SplitRequest,
    /// True to leave out examples that do not fit the subject, and count them.
    pub skip_invalid: bool,
    /// True to replace secrets and personal data before anything is stored.
    pub redact: bool,
    /// True to accept a holdout or test split of fewer than five examples.
    pub allow_small: bool,
    pub note: Option<String>,
    pub by: String,
}

impl DatasetRequest {
    /// A request that changes nothing yet.
    pub fn new(name: impl Into<String>, by: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            subject: None,
            input: ExampleInput::Nothing,
            without: Vec::new(),
            splits: SplitRequest::default(),
            skip_invalid: false,
            redact: false,
            allow_small: false,
            note: None,
            by: by.into(),
        }
    }
}

/// A verdict that a person gives about a receipt.
#[derive(Debug, Clone)]
#[must_use = "give it"]
pub struct VerdictRequest {
    pub receipt: ReceiptId,
    pub good: bool,
    /// The right output.
    pub expected: Option<Value>,
    pub labels: Vec<String>,
    pub note: Option<String>,
    pub by: String,
}

/// A receipt that nobody has judged yet.
#[derive(Debug, Clone)]
pub struct ReviewItem {
    pub receipt: ReceiptId,
    /// The reason why it comes at this place.
    pub reason: &'static str,
    pub input: Option<Value>,
    pub output: Option<Value>,
}

/// Returns a line as a list shows it: a content that is too long for a list is replaced by its size. A file of
/// examples has it whole.
fn short_line(mut line: Value) -> Value {
    let bytes = line.to_string().len();
    if bytes > EXAMPLES_LISTED_BYTES {
        line["input"] = Value::Null;
        line["expected"] = Value::Null;
        line["left_out_bytes"] = json!(bytes);
    }
    line
}

fn version_json(version: &DatasetVersionRow) -> Value {
    json!({
        "name": version.name, "version": version.version, "dataset_hash": version.dataset_hash,
        "parent_hash": version.parent_hash, "note": version.note, "at": version.at, "by": version.by,
    })
}

fn dataset_json(named: &NamedDataset) -> Value {
    let row = &named.row;
    json!({
        "dataset": named.label(), "dataset_hash": row.dataset_hash, "subject": row.subject, "split": row.split,
        "split_seed": row.split_seed, "filters": row.filters, "counts": row.counts, "created_at": row.created_at,
        "created_by": row.created_by, "version": named.version.as_ref().map(version_json),
    })
}

impl Service {
    /// Returns the datasets of the store.
    pub fn dataset_store(&self) -> DatasetStore {
        DatasetStore::new(self.runtime().loom().clone(), Arc::clone(&self.clock), Arc::clone(&self.ids))
    }

    fn verdict_store(&self) -> Verdicts {
        Verdicts::new(self.runtime().loom().clone(), Arc::clone(&self.clock), Arc::clone(&self.ids))
    }

    /// Checks that this service may read examples, which come from all owners.
    fn check_may_read_examples(&self) -> Result<(), Refusal> {
        self.check_may_change_shared().map_err(|_| {
            let why = "the examples of a dataset come from all owners, so only an operator can read them";
            codes::not_authorized("a reading of examples", why).into()
        })
    }

    fn example_redactor(&self, content: ExampleContent) -> Option<Redactor> {
        match content {
            ExampleContent::Redacted => Some(self.runtime().guard().redactor().clone().personal_data(true)),
            ExampleContent::AsStored => None,
        }
    }

    /// Lists the newest version of every dataset, ordered by name.
    pub async fn datasets(&self) -> GuardedReply {
        self.guarded_reply("datasets", async {
            let store = self.dataset_store();
            let mut items = Vec::new();
            for version in store.names().await? {
                let row = store.row(version.dataset_hash).await?;
                items.push(dataset_json(&NamedDataset { row, version: Some(version) }));
            }
            Ok(codes::read("datasets").value(json!({ "items": items })))
        })
        .await
    }

    /// Returns a dataset with its counts and the versions of its name, without its examples.
    pub async fn dataset(&self, asked: &str) -> GuardedReply {
        self.guarded_reply("dataset", async {
            let store = self.dataset_store();
            let named = store.resolve(asked).await?;
            let value = self.described(&store, &named).await?;
            Ok(codes::read(format!("dataset {}", named.label())).value(value))
        })
        .await
    }

    /// Returns a dataset as [`Service::dataset`] does, with some of its examples.
    pub async fn show_dataset(
        &self,
        asked: &str,
        split: Option<Split>,
        page: PageRequest,
        content: ExampleContent,
    ) -> GuardedReply {
        self.guarded_reply("dataset", async {
            self.check_may_read_examples()?;
            let store = self.dataset_store();
            let named = store.resolve(asked).await?;
            let mut value = self.described(&store, &named).await?;
            value["examples"] = self.example_page(&store, &named, split, page, content).await?;
            Ok(codes::read(format!("dataset {}", named.label())).value(value))
        })
        .await
    }

    async fn described(&self, store: &DatasetStore, named: &NamedDataset) -> Result<Value, Refusal> {
        let versions = match &named.version {
            Some(version) => store.versions(&version.name).await?,
            None => Vec::new(),
        };
        let mut value = dataset_json(named);
        value["versions"] = versions.iter().map(version_json).collect();
        Ok(value)
    }

    async fn example_page(
        &self,
        store: &DatasetStore,
        named: &NamedDataset,
        split: Option<Split>,
        page: PageRequest,
        content: ExampleContent,
    ) -> Result<Value, Refusal> {
        let found = store.examples(named.hash(), split, page).await?;
        let redactor = self.example_redactor(content);
        let mut next = found.next;
        let (mut items, mut bytes) = (Vec::new(), 0);
        for example in &found.items {
            let line = short_line(redacted_example(example, redactor.as_ref()));
            bytes += line.to_string().len();
            if bytes > EXAMPLES_LISTED_BYTES && !items.is_empty() {
                // The page is shorter than it was asked for, so the next one begins earlier.
                let page = PageRequest { most: items.len(), ..page };
                next = store.examples(named.hash(), split, page).await?.next;
                break;
            }
            items.push(line);
        }
        Ok(json!({ "items": items, "next": next, "redacted": content == ExampleContent::Redacted }))
    }

    /// Returns a page of the examples of a dataset, in the order of their ids.
    pub async fn dataset_examples(
        &self,
        asked: &str,
        split: Option<Split>,
        page: PageRequest,
        content: ExampleContent,
    ) -> GuardedReply {
        self.guarded_reply("examples", async {
            self.check_may_read_examples()?;
            let store = self.dataset_store();
            let named = store.resolve(asked).await?;
            let mut value = self.example_page(&store, &named, split, page, content).await?;
            value["dataset"] = json!(named.label());
            value["dataset_hash"] = json!(named.hash());
            Ok(codes::read(format!("examples of {}", named.label())).value(value))
        })
        .await
    }

    /// Writes the examples of a dataset, one line of JSON each, and returns their number. The lines can be read again
    /// as a file of examples.
    pub async fn write_examples(
        &self,
        asked: &str,
        split: Option<Split>,
        content: ExampleContent,
        mut line: impl FnMut(&str) + Send,
    ) -> GuardedReply {
        self.guarded_reply("examples", async {
            self.check_may_read_examples()?;
            let store = self.dataset_store();
            let named = store.resolve(asked).await?;
            let redactor = self.example_redactor(content);
            let mut written = 0_u64;
            let mut next = Some(PageRequest { after: None, most: EXAMPLES_WRITTEN_PAGE });
            while let Some(page) = next {
                let found = store.examples(named.hash(), split, page).await?;
                for example in &found.items {
                    let value = redacted_example(example, redactor.as_ref());
                    let text = json::canonical(&value)
                        .map_err(|_| codes::record_altered("example", example.id.as_str(), "its content"))?;
                    line(&text);
                    written += 1;
                }
                next = page.following(found.next);
            }
            let data = json!({ "dataset": named.label(), "dataset_hash": named.hash(), "examples": written });
            Ok(codes::read(format!("examples of {}", named.label())).data(data))
        })
        .await
    }

    /// Returns the examples that differ between two datasets, by their ids.
    pub async fn diff_datasets(&self, before: &str, after: &str) -> GuardedReply {
        self.guarded_reply("diff", async {
            let store = self.dataset_store();
            let (before, after) = (store.resolve(before).await?, store.resolve(after).await?);
            let diff = DatasetDiff::between(&store.entries(before.hash()).await?, &store.entries(after.hash()).await?);
            let value = json!({
                "before": before.label(), "after": after.label(), "added": diff.added, "removed": diff.removed,
                "changed": diff.changed,
            });
            Ok(codes::read("difference").value(value))
        })
        .await
    }

    /// Adds a version of a dataset. If one example has a fault, nothing is written.
    pub async fn add_dataset(&self, request: DatasetRequest) -> GuardedReply {
        self.guarded_reply("dataset", async {
            self.check_may_change_shared()?;
            let added = self.new_version(request).await?;
            let AddedVersion { name, version, hash, counts, new } = added;
            let data = json!({
                "state": if new { "created" } else { "unchanged" }, "name": name, "version": version,
                "dataset_hash": hash, "counts": counts, "new": new,
            });
            Ok(codes::created("dataset", format!("{name}@{version}")).data(data))
        })
        .await
    }

    /// Makes a version of a dataset, unless the newest one has the same content.
    pub(crate) async fn new_version(&self, request: DatasetRequest) -> Result<AddedVersion, Refusal> {
        let DatasetRequest { name, subject, input, without, splits, skip_invalid, redact, allow_small, note, by } =
            request;
        let name = parse_name(&name)?;
        let without = without.iter().map(|id| id.parse::<ExampleId>()).collect::<Result<Vec<_>, _>>();
        let without = without.map_err(|fault| codes::schema("the dataset", "/without", fault.to_string()))?;
        let store = self.dataset_store();
        let schemas = match subject {
            Some(DatasetSubject::Signature(id)) => self.signature_schemas(&id).await?,
            Some(DatasetSubject::Spell { name, answer_schema }) => {
                ExampleSchemas::of_spell(&name, answer_schema.as_ref())?
            }
            None => self.former_schemas(&store, &name, &input).await?,
        };
        let redactor = redact.then(|| self.example_redactor(ExampleContent::Redacted)).flatten();
        let options = |file: &str, format: ImportFormat| ImportOptions {
            format,
            file: file.to_owned(),
            given_splits: splits.given,
            skip_invalid,
            redactor: redactor.clone(),
        };
        let (examples, filters) = match input {
            ExampleInput::Nothing => (ReadExamples::default(), json!({})),
            ExampleInput::File { name, bytes, format } => {
                (read_examples(&bytes, &schemas, &options(&name, format))?, json!({ "file": name }))
            }
            ExampleInput::Values(values) => {
                let options = options("request", ImportFormat::JsonLines);
                (read_values(values, &schemas, &options)?, json!({ "file": "request" }))
            }
            ExampleInput::Receipts(filter) => {
                let seed = match &splits.seed {
                    Some(seed) => seed.clone(),
                    None => self.former_seed(&store, &name).await?,
                };
                let loom = self.runtime().loom();
                let gathered = gather_examples(loom, &schemas, &filter, &seed, redactor.as_ref()).await?;
                (gathered, json!({ "receipts": filter }))
            }
        };
        let subject = schemas.subject().clone();
        store.add(NewVersion { name, subject, examples, without, splits, filters, allow_small, note, by }).await
    }

    async fn signature_schemas(&self, id: &SignatureId) -> Result<ExampleSchemas, Refusal> {
        Ok(ExampleSchemas::of_signature(&self.catalog().signature(id).await?))
    }

    /// Returns the schemas of the subject that the newest version has.
    async fn former_schemas(
        &self,
        store: &DatasetStore,
        name: &DatasetName,
        input: &ExampleInput,
    ) -> Result<ExampleSchemas, Refusal> {
        let Some(version) = store.newest(name).await? else {
            let rule = "a new dataset needs its subject: give --signature SIG or --spell NAME";
            return Err(name_refusal(name.as_str(), rule));
        };
        match (store.row(version.dataset_hash).await?.subject, input) {
            (Subject::Signature(id), _) => self.signature_schemas(&id).await,
            // Nothing is checked against the schema of its answers.
            (Subject::Spell(spell), ExampleInput::Nothing) => ExampleSchemas::of_spell(&spell, None),
            (Subject::Spell(spell), _) => {
                let rule = format!("it has casts of a spell: give --spell {spell}, so that answers can be checked");
                Err(name_refusal(name.as_str(), &rule))
            }
        }
    }

    async fn former_seed(&self, store: &DatasetStore, name: &DatasetName) -> Result<SplitSeed, Refusal> {
        match store.newest(name).await? {
            Some(version) => Ok(store.row(version.dataset_hash).await?.split_seed),
            None => Ok(SplitSeed::default()),
        }
    }

    /// Records a verdict about a receipt, by its owner or by an operator. The latest verdict counts.
    pub async fn add_verdict(&self, request: VerdictRequest) -> GuardedReply {
        self.guarded_reply("verdict", async {
            let VerdictRequest { receipt, good, expected, labels, note, by } = request;
            self.judged_receipt(&receipt).await?;
            let verdict = if good { VerdictWord::Good } else { VerdictWord::Bad };
            let given = GivenVerdict { receipt, verdict, expected, labels, note, by };
            let verdict = self.verdict_store().give(given).await?;
            let data = json!({
                "state": "recorded", "receipt_id": verdict.receipt_id, "verdict": verdict.verdict,
                "corrected": verdict.expected.is_some(), "labels": verdict.labels, "by": verdict.by, "at": verdict.at,
            });
            Ok(codes::created("verdict", verdict.id().to_string()).data(data))
        })
        .await
    }

    /// Checks that this service may judge a receipt: an operator judges those of all owners.
    async fn judged_receipt(&self, id: &ReceiptId) -> Result<(), Refusal> {
        if self.check_may_change_shared().is_err() {
            return self.own_receipt(id).await.map(|_| ());
        }
        self.runtime().loom().receipt(id.clone()).await.map(|_| ()).map_err(|error| store_refusal(&error))
    }

    /// Returns the receipts of a signature that nobody has judged yet, the least certain first.
    pub async fn open_receipts(&self, signature: &SignatureId) -> Result<Vec<OpenReceipt>, Refusal> {
        let open = open_receipts(self.runtime().loom(), signature).await?;
        let operator = self.check_may_change_shared().is_ok();
        Ok(open.into_iter().filter(|open| operator || self.can_see(&open.owner)).collect())
    }

    /// Loads the content of a receipt that is to be judged, as it is stored.
    pub async fn review_item(&self, open: &OpenReceipt) -> Result<ReviewItem, Refusal> {
        let (input, output) = open.load(self.runtime().loom()).await?;
        let reason = match open.order {
            ReviewOrder::OwnFailure => "the output did not match its schema",
            ReviewOrder::Repaired => "the output was repaired",
            ReviewOrder::Rest => "not judged yet",
        };
        Ok(ReviewItem { receipt: open.receipt_id.clone(), reason, input, output })
    }
}

fn parse_name(name: &str) -> Result<DatasetName, Refusal> {
    name.parse().map_err(|fault: DatasetNameFault| name_refusal(name, &fault.to_string()))
}

fn name_refusal(name: &str, rule: &str) -> Refusal {
    codes::config_invalid("dataset", name, rule).into()
}
