//! Which loom do casts go to?
//!
//! The one that was named; else the nearest `.cantrip` upwards, else one at the root of the repository, else the user's
//! own. A folder that is made is kept out of version control.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use cantrip::loom::{AnyLoom, Jsonl, Memory};
use cantrip::store_refusal;
use cantrip_reply::{Refusal, codes};

use crate::present::quoted;

/// A loom that was opened, and how a person names it.
pub(crate) struct Store {
    pub(crate) loom: AnyLoom,
    pub(crate) name: String,
    /// Where this binary keeps what is not the loom's: which spell a cantrip came from, what was typed. Nowhere if
    /// nothing outlives the process.
    pub(crate) beside: Option<PathBuf>,
    /// What the caller has to be told to name this store again; empty where it is found without.
    pub(crate) again: String,
}

/// Opens the store of this URL, or the one that belongs to this folder, to cast in it.
pub(crate) fn open(url: Option<&str>, here: &Path) -> Result<Store, Refusal> {
    match folder(url, here)? {
        Some(folder) => {
            keep_out_of_version_control(&folder)
                .map_err(|error| codes::io_failed("make", folder.display().to_string(), error.to_string()))?;
            let loom = Jsonl::open(&folder).map_err(|error| store_refusal(&error))?;
            Ok(on_disk(AnyLoom::new(loom), folder, url))
        }
        None => Ok(in_memory()),
    }
}

/// Opens the same store to look at it: also while someone casts in it, and nothing is made.
pub(crate) fn open_to_read(url: Option<&str>, here: &Path) -> Result<Store, Refusal> {
    match folder(url, here)? {
        Some(folder) => {
            let loom = Jsonl::open_to_read(&folder).map_err(|error| store_refusal(&error))?;
            Ok(on_disk(AnyLoom::new(loom), folder, url))
        }
        None => Ok(in_memory()),
    }
}

fn on_disk(loom: AnyLoom, folder: PathBuf, url: Option<&str>) -> Store {
    let name = format!("jsonl:{}", folder.display());
    let known = env::var("CANTRIP_STORE").ok();
    let again = match url.filter(|url| Some(*url) != known.as_deref()) {
        Some(url) => format!(" --store {}", quoted(url)),
        None => String::new(),
    };
    Store { loom, name, beside: Some(folder), again }
}

fn in_memory() -> Store {
    let loom = AnyLoom::new(Memory::new());
    Store { loom, name: "memory:".to_owned(), beside: None, again: String::new() }
}

/// Where the store's records lie; nowhere if it is in memory.
pub(crate) fn folder(url: Option<&str>, here: &Path) -> Result<Option<PathBuf>, Refusal> {
    let invalid = |rule: &str| Refusal::from(codes::config_invalid("--store", url.unwrap_or_default(), rule));
    match url.map(|url| url.split_once(':').unwrap_or((url, ""))) {
        None => {
            let folder = folder_for(here);
            folder.map(Some).ok_or_else(|| invalid("there is no folder for it: give --store jsonl:DIR"))
        }
        Some(("memory", "")) => Ok(None),
        Some(("jsonl", folder)) if !folder.is_empty() => Ok(Some(PathBuf::from(folder))),
        Some((_, _)) => Err(invalid("is none of memory: and jsonl:DIR")),
    }
}

fn keep_out_of_version_control(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(".gitignore"), "*\n")
}

/// The folder for casts made here.
fn folder_for(here: &Path) -> Option<PathBuf> {
    const NAME: &str = ".cantrip";
    let nearest = here.ancestors().map(|folder| folder.join(NAME)).find(|folder| folder.is_dir());
    let repository = || here.ancestors().find(|folder| folder.join(".git").exists()).map(|root| root.join(NAME));
    let own = || {
        let data = env::var_os("XDG_DATA_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
        let home =
            || env::var_os("HOME").filter(|path| !path.is_empty()).map(|home| Path::new(&home).join(".local/share"));
        data.or_else(home).map(|data| data.join("cantrip"))
    };
    nearest.or_else(repository).or_else(own)
}
