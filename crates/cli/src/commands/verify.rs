//! `cantrip verify`: is everything in the store as it was written?
//!
//! One command runs every check there is, since damage does not choose the part that somebody thought of: the database
//! with its schema, the records, the rows beside them, the ledger and the receipts.

use std::fmt::Write;
use std::process::ExitCode;

use cantrip::loom::ReceiptFilter;
use cantrip::store_refusal;
use cantrip_reply::{Call, Guard, GuardedReply, Refusal, ReplyType, codes};
use serde::Serialize;
use serde_json::json;

use super::loom::inspect_store;
use cantrip_local::runtime;
use cantrip_local::store::{self, Access, StoreTarget};
use cantrip_settings::current_folder;
use cantrip_terminal::present::{BOLD, DIM, Present, answer, colour, strip_control};

/// Verify everything in the store: the database and its schema, the records, the ledger, the receipts and contracts.
///
/// Nothing is changed. The command reads all data of the store again; others may continue to write.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip verify\n  cantrip verify --store sqlite:FILE --json")]
pub(crate) struct Verify {
    /// The store for casts: sqlite:FILE, jsonl:DIR or postgres://....
    #[arg(long, value_name = "URL", env = "CANTRIP_STORE")]
    store: Option<String>,
}

/// The result of one check.
#[derive(Debug, Serialize)]
pub(crate) struct CheckResult {
    pub(crate) check: &'static str,
    pub(crate) is_sound: bool,
    pub(crate) said: String,
    /// The code of the reply, if the check has found something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<String>,
    /// Every fault that was found, at most as many as are shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) faults: Vec<String>,
}

/// The number of faults of one check that are listed.
const FAULTS_SHOWN: usize = 20;

impl CheckResult {
    fn of_reply(check: &'static str, guarded: &GuardedReply) -> Self {
        let (reply, is_sound) = (&guarded.reply, guarded.reply.reply_type().is_success());
        let code = (!is_sound).then(|| reply.code().to_string());
        Self { check, is_sound, said: reply.message().to_owned(), code, faults: Vec::new() }
    }

    async fn of_refusal(check: &'static str, guard: &Guard, refusal: Refusal) -> Self {
        let guarded = guard.call(Call::surface("verify"), |rb| async { rb.refuse(refusal) }).await;
        Self::of_reply(check, &guarded)
    }

    /// Returns the result of a check that lists its faults.
    async fn of_faults(
        check: &'static str,
        guard: &Guard,
        sound: &str,
        found: Result<Vec<String>, cantrip::loom::Error>,
    ) -> Self {
        let faults = match found {
            Ok(faults) => faults,
            Err(error) => return Self::of_refusal(check, guard, store_refusal(&error)).await,
        };
        let Some(first) = faults.first() else {
            return Self { check, is_sound: true, said: sound.to_owned(), code: None, faults };
        };
        let said = match faults.len() {
            1 => first.clone(),
            count => format!("{first}; {} more", count - 1),
        };
        let code = Some(codes::RECORD_ALTERED.any().to_string());
        Self { check, is_sound: false, said, code, faults: faults.into_iter().take(FAULTS_SHOWN).collect() }
    }
}

impl Verify {
    pub(crate) async fn run(&self, guard: &Guard, present: Present) -> ExitCode {
        let found = match self.place() {
            Ok(place) => results(place, self.store.as_deref(), guard).await,
            Err(refusal) => Err(refusal),
        };
        let (name, records, results) = match found {
            Ok(found) => found,
            Err(refusal) => return present.refuse(guard, "verify", refusal).await,
        };
        if !present.json {
            answer(&draw(&results));
        }
        let failed: Vec<&str> = results.iter().filter(|result| !result.is_sound).map(|result| result.check).collect();
        let guarded = if failed.is_empty() {
            let filled = codes::verified(name, records).data(json!({ "checks": results }));
            guard.call(Call::surface("verify"), |rb| async { rb.success(filled) }).await
        } else {
            let filled = codes::record_altered("store", name, failed.join(", ")).data(json!({ "checks": results }));
            guard.call(Call::surface("verify"), |rb| async { rb.error(filled) }).await
        };
        present.reply(guarded, String::new)
    }

    fn place(&self) -> Result<StoreTarget, Refusal> {
        store::place(self.store.as_deref(), &current_folder()?)
    }
}

/// Returns the name of the store, the number of its sound records, and the result of each check.
pub(crate) async fn results(
    place: StoreTarget,
    url: Option<&str>,
    guard: &Guard,
) -> Result<(String, u64, Vec<CheckResult>), Refusal> {
    // A store that does not exist or cannot be opened is one refusal, not a result for each check.
    let missing = |name: String, hint: &str| {
        let hint = json!({"hint": format!("cantrip verify --store {hint}")});
        Refusal::from(codes::not_found("store", name).data(hint))
    };
    let (name, opened) = match &place {
        StoreTarget::Memory => {
            let hint = json!({"hint": "cantrip verify --store sqlite:FILE"});
            let refused = codes::config_invalid("--store", "memory:", "has nothing on a disk to verify");
            return Err(refused.data(hint).into());
        }
        StoreTarget::Lines(folder) => {
            let name = format!("jsonl:{}", folder.display());
            if !folder.join("records.jsonl").is_file() {
                return Err(missing(name, "jsonl:DIR"));
            }
            (name, None)
        }
        StoreTarget::Sqlite(path) => {
            let name = format!("sqlite:{}", path.display());
            if !path.is_file() {
                return Err(missing(name, "sqlite:FILE"));
            }
            let opened = cantrip_store::Store::sqlite_to_read(path).map_err(|error| store_refusal(&error))?;
            (name, Some(opened))
        }
        StoreTarget::Postgres(url) => {
            let opened = cantrip_store::Store::postgres(url).map_err(|error| store_refusal(&error))?;
            (opened.name(), Some(opened))
        }
    };
    let (mut results, mut records) = (Vec::new(), 0);
    if let Some(opened) = &opened {
        results.push(database(opened, guard).await);
    }
    results.push(match inspect_store(place).await {
        Ok((_, found)) => {
            records = found.records;
            let said = format!("{records} records of {} runs are as they were written", found.runs);
            CheckResult { check: "records", is_sound: true, said, code: None, faults: Vec::new() }
        }
        Err(refusal) => CheckResult::of_refusal("records", guard, refusal).await,
    });
    if let Some(opened) = &opened {
        results.extend(rows(opened, url, guard).await);
    }
    Ok((name, records, results))
}

/// Checks the database and its schema.
async fn database(store: &cantrip_store::Store, guard: &Guard) -> CheckResult {
    let sound = "the file, its tables, triggers and constraints are as they were made";
    CheckResult::of_faults("database", guard, sound, store.verify_schema().await).await
}

/// Checks the rows beside the records, the ledger and the receipts.
async fn rows(database: &cantrip_store::Store, url: Option<&str>, guard: &Guard) -> Vec<CheckResult> {
    let sound = "the rows of the ledger and the contracts agree with their hashes and with each other";
    let rows = CheckResult::of_faults("rows", guard, sound, database.verify_rows().await).await;
    let store = match store::open_here(url, Access::Read) {
        Ok(store) => store,
        Err(refusal) => return vec![rows, CheckResult::of_refusal("ledger", guard, refusal).await],
    };
    let service = runtime::service(&store, guard);
    let ledger = CheckResult::of_reply("ledger", &service.verify_spend().await);
    let receipts = CheckResult::of_reply("receipts", &service.verify_receipts(ReceiptFilter::default()).await);
    vec![rows, ledger, receipts]
}

fn draw(results: &[CheckResult]) -> String {
    let mut text = String::new();
    for CheckResult { check, is_sound, said, code, faults } in results {
        let (style, word) =
            if *is_sound { (colour(ReplyType::Success), "ok") } else { (colour(ReplyType::Failure), "bad") };
        let code = code.as_ref().map(|code| format!(" {DIM}{code}{DIM:#}")).unwrap_or_default();
        let said = if faults.len() > 1 { format!("{} faults", faults.len()) } else { strip_control(said) };
        let _ = writeln!(text, "{style}{word:<5}{style:#} {BOLD}{check:<11}{BOLD:#} {said}{code}");
        if faults.len() > 1 {
            for fault in faults {
                let _ = writeln!(text, "{:<5} {:<11} {}", "", "", strip_control(fault));
            }
        }
    }
    text
}
