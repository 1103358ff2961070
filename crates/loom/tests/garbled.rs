//! Looms and exports that are almost valid: each is accepted, or refused with its code, and nothing of a refused one
//! stays.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests too")]

use std::fs;
use std::sync::LazyLock;

use cantrip_loom::export::{Format, Redaction, export, import_journal, import_turns};
use cantrip_loom::{Error, Jsonl, Loom, MemoryLoom, PageRequest, TruncationReason};
use cantrip_loom_suite::LoomWriter;
use cantrip_reply::{ReplyType, codes};
use cantrip_tests::garble;
use futures_util::TryStreamExt;
use proptest::prelude::*;
use serde_json::json;

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

/// A loom with two casts, as its file, its journal and its turns.
struct Written {
    records: &'static str,
    journal: &'static str,
    turns: &'static str,
}

static WRITTEN: LazyLock<Written> = LazyLock::new(|| {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let loom = Jsonl::open(folder.path()).unwrap();
        let mut weaver = LoomWriter::new(&loom);
        let mut one = weaver.cast("one").await;
        weaver.plain(&mut one).await;
        weaver.done(&mut one, json!({"sum": 3})).await;
        let mut two = weaver.cast("two").await;
        weaver.plain(&mut two).await;
        weaver.truncate(&two, TruncationReason::MaxTurns).await;
        let exported = async |format| {
            let lines: Vec<String> = export(&loom, weaver.loom, format, Redaction::Off).try_collect().await.unwrap();
            &*lines.join("\n").leak()
        };
        let (journal, turns) = (exported(Format::Journal).await, exported(Format::Turns).await);
        let records = &*fs::read_to_string(folder.path().join("records.jsonl")).unwrap().leak();
        Written { records, journal, turns }
    })
});

static RECORDS: LazyLock<&'static [&'static str]> = LazyLock::new(|| vec![WRITTEN.records].leak());
static EXPORTS: LazyLock<&'static [&'static str]> = LazyLock::new(|| vec![WRITTEN.journal, WRITTEN.turns].leak());

/// Texts that have a meaning in a record, or almost.
const WORDS: &[&str] = &[
    "\n",
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "99999999999999999999",
    "\\ud800",
    "\u{0}",
    "\u{feff}",
    "\"v\":9,",
    "\"v\":\"1\",",
    "\"seq\":0,",
    "\"seq\":7,",
    "\"kind\":\"turn\",",
    "\"kind\":\"nothing\",",
    "\"run\":\"\",",
    "\"parent_id\":null,",
    "\"sequence\":0,",
    "\"terminated\":true,",
    "\"gate_calls\":[{}],",
    "\"metadata\":{},",
    "{}",
    "[]",
];

/// Reads every view of a loom. Each is readable or a typed error.
async fn is_readable(loom: &impl Loom) -> Result<(), Error> {
    for id in loom.looms().await? {
        loom.roots(id).await?;
        for turn in loom.turns(id, PageRequest::FIRST).await?.items {
            loom.thread(turn.id).await?;
        }
        for entity in loom.entities(id, PageRequest::FIRST).await?.items {
            loom.casts(entity.entity.entity_id).await?;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(garble::samples(96))]

    #[test]
    fn a_loom_that_is_almost_right_opens_or_says_what_is_wrong(bytes in garble::garbled(&RECORDS, WORDS)) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("records.jsonl"), &bytes).unwrap();
        let known = [codes::RECORD_ALTERED.any(), codes::STORE_FAILED.any()];
        if let Err(error) = Jsonl::verify_folder(folder.path()) {
            prop_assert!(known.contains(&error.code()), "{error}");
        }
        match Jsonl::open_to_read(folder.path()) {
            Ok(loom) => {
                // Records are readable up to the damage; the part after it is not skipped silently.
                if let Err(error) = block_on(is_readable(&loom)) {
                    prop_assert!(known.contains(&error.code()), "{error}");
                }
            }
            Err(error) => prop_assert!(known.contains(&error.code()), "{error}"),
        }
    }

    #[test]
    fn an_export_that_is_almost_right_is_taken_in_or_refused_as_invalid(text in garble::garbled_text(&EXPORTS, WORDS)) {
        let name = block_on(async { LoomWriter::new(&MemoryLoom::new()).loom });
        for journal in [true, false] {
            let target = MemoryLoom::new();
            let taken = block_on(async {
                match journal {
                    true => import_journal(&target, text.lines()).await.map(|_| ()),
                    false => import_turns(&target, name, text.lines()).await.map(|_| ()),
                }
            });
            if let Err(error) = &taken {
                prop_assert_eq!(error.code().reply_type(), ReplyType::Invalid, "{:?}", error);
            }
            let looked = block_on(is_readable(&target));
            prop_assert!(looked.is_ok(), "{looked:?} after {taken:?}");
        }
    }
}
