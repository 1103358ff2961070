//! Datasets: which examples exist, where do they come from, and which version is meant?
//!
//! Examples come from files ([`read_examples`]), from receipts and their verdicts, or from the casts of a spell
//! ([`gather_examples`]). Both check every example against the schemas of its subject and give drafts; the splits are
//! decided by [`Dataset`](cantrip_contract::Dataset), which sees the whole new version and its parent. A version is
//! written in one step or not at all.

mod cells;
mod fault;
mod from_casts;
mod from_receipts;
mod gather;
mod jsonl;
mod quotes;
mod read;
mod redaction;
mod schemas;
mod store;
mod table;
mod verdict;
mod version;
mod walk;

pub use fault::ExampleFault;
pub use gather::{GatherFilter, gather_examples};
pub use read::{ImportFormat, ImportOptions, ReadExamples, read_examples, read_values};
pub use redaction::{example_line, redacted_example};
pub use schemas::ExampleSchemas;
pub use store::{AddedVersion, DatasetStore, NamedDataset, NewVersion, SplitRequest};
pub use verdict::{GivenVerdict, Verdicts};
pub use walk::{OpenReceipt, ReviewOrder, open_receipts};
