//! Which loom do casts go to?
//!
//! The named one; else the configured one; else `loom.db` in the nearest `.cantrip` upwards; else in a `.cantrip` at
//! the root of the repository; else in the user's own data folder. A folder that is created here is kept out of version
//! control.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use cantrip::loom::{AnyLoom, Jsonl, MemoryLoom};
use cantrip::store_refusal;
use cantrip_reply::{Refusal, codes};
use serde_json::json;

use cantrip_settings::config::Config;
use cantrip_settings::current_folder;
use cantrip_terminal::present::quoted;
use cantrip_terminal::watch::StoreLabel;

/// An open loom, and its name for messages.
pub struct Store {
    pub loom: AnyLoom,
    pub name: String,
    /// The folder for files of this binary that are not part of the loom: the spells of cantrips, the input history.
    /// None if nothing outlives the process.
    pub beside: Option<PathBuf>,
    /// True if other processes may cast in it at the same time.
    pub is_shared: bool,
    /// The arguments that name this store again in a printed command; empty if the store is found without them.
    pub again: String,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Store {
    /// Returns the name of the store as the terminal shows it.
    pub fn label(&self) -> StoreLabel {
        StoreLabel { name: self.name.clone(), again: self.again.clone(), is_kept: self.beside.is_some() }
    }
}

/// The place of a store.
#[derive(Debug)]
pub enum StoreTarget {
    Memory,
    /// A folder of JSON lines.
    Lines(PathBuf),
    Sqlite(PathBuf),
    Postgres(String),
}

/// Returns true if opening the store would create something. A place that is not valid is refused when it is opened.
pub fn would_be_made(url: Option<&str>, here: &Path) -> bool {
    match place(url, here) {
        Ok(StoreTarget::Memory) => false,
        Ok(StoreTarget::Lines(path) | StoreTarget::Sqlite(path)) => !path.exists(),
        Ok(StoreTarget::Postgres(_)) | Err(_) => true,
    }
}

/// The use that a command makes of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The command only reads, also while another process casts. Nothing is created.
    Read,
    Write,
}

/// Opens the store of this URL, or the one that belongs to the current folder.
pub fn open_here(url: Option<&str>, access: Access) -> Result<Store, Refusal> {
    let here = current_folder()?;
    match access {
        Access::Read => open_to_read(url, &here),
        Access::Write => open(url, &here),
    }
}

/// Opens the store of this URL, or the one that belongs to this folder, for casts.
pub fn open(url: Option<&str>, here: &Path) -> Result<Store, Refusal> {
    let refused = |error: cantrip::loom::Error| store_refusal(&error);
    let made = |folder: &Path| {
        keep_out_of_version_control(folder).map_err(|error| {
            let hint = json!({"hint": "give --store sqlite:FILE in a folder that can be written to"});
            Refusal::from(codes::io_failed("make", folder.display().to_string(), error.to_string()).data(hint))
        })
    };
    match place(url, here)? {
        StoreTarget::Memory => Ok(in_memory()),
        StoreTarget::Lines(folder) => {
            made(&folder)?;
            let loom = AnyLoom::new(Jsonl::open(&folder).map_err(refused)?);
            Ok(on_disk(loom, format!("jsonl:{}", folder.display()), Some(folder), url))
        }
        StoreTarget::Sqlite(path) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            made(folder)?;
            let store = cantrip_store::Store::sqlite(&path).map_err(refused)?;
            let named = on_disk(AnyLoom::new(store), format!("sqlite:{}", path.display()), Some(beside(&path)), url);
            Ok(Store { is_shared: true, ..named })
        }
        StoreTarget::Postgres(server) => {
            if let Some(password) = url::Url::parse(&server).ok().as_ref().and_then(url::Url::password) {
                cantrip::canon::remember_secret(password);
            }
            let store = cantrip_store::Store::postgres(&server).map_err(refused)?;
            // This name does not contain the password.
            let name = store.name();
            let again = format!(" --store {}", quoted(&name));
            let named = on_disk(AnyLoom::new(store), name, own_folder(), url);
            let named = Store { is_shared: true, ..named };
            Ok(if named.again.is_empty() { named } else { Store { again, ..named } })
        }
    }
}

/// Opens the same store for reading, also while a process casts in it. Nothing is created.
fn open_to_read(url: Option<&str>, here: &Path) -> Result<Store, Refusal> {
    match place(url, here)? {
        StoreTarget::Lines(folder) => {
            let loom = Jsonl::open_to_read(&folder).map_err(|error| store_refusal(&error))?;
            Ok(on_disk(AnyLoom::new(loom), format!("jsonl:{}", folder.display()), Some(folder), url))
        }
        StoreTarget::Sqlite(path) => {
            let loom = if path.exists() {
                AnyLoom::new(cantrip_store::Store::sqlite_to_read(&path).map_err(|error| store_refusal(&error))?)
            } else {
                AnyLoom::new(MemoryLoom::new())
            };
            Ok(on_disk(loom, format!("sqlite:{}", path.display()), Some(beside(&path)), url))
        }
        StoreTarget::Memory | StoreTarget::Postgres(_) => open(url, here),
    }
}

fn on_disk(loom: AnyLoom, name: String, beside: Option<PathBuf>, url: Option<&str>) -> Store {
    let known = env::var("CANTRIP_STORE").ok();
    let again = match url.filter(|url| Some(*url) != known.as_deref()) {
        Some(url) => format!(" --store {}", quoted(url)),
        None => String::new(),
    };
    Store { loom, name, beside, is_shared: false, again }
}

fn in_memory() -> Store {
    let loom = AnyLoom::new(MemoryLoom::new());
    Store { loom, name: "memory:".to_owned(), beside: None, is_shared: false, again: String::new() }
}

/// Returns the place of the store that the URL, the configuration or the folder selects.
pub fn place(url: Option<&str>, here: &Path) -> Result<StoreTarget, Refusal> {
    let settled = match url {
        Some(_) => None,
        None => Config::load(here)?.store,
    };
    let url = url.or(settled.as_deref());
    let invalid = |rule: &str| Refusal::from(codes::config_invalid("--store", url.unwrap_or_default(), rule));
    match url.map(|url| url.split_once(':').unwrap_or((url, ""))) {
        None => {
            let folder = folder_for(here)
                .ok_or_else(|| invalid("no folder for the store was found: give --store sqlite:FILE"))?;
            let file = folder.join("loom.db");
            // A folder that began with JSON lines continues with them.
            let lines = !file.exists() && folder.join("records.jsonl").exists();
            Ok(if lines { StoreTarget::Lines(folder) } else { StoreTarget::Sqlite(file) })
        }
        Some(("memory", "")) => Ok(StoreTarget::Memory),
        Some(("jsonl", folder)) if !folder.is_empty() => Ok(StoreTarget::Lines(PathBuf::from(folder))),
        Some(("sqlite", file)) if !file.is_empty() && file != ":memory:" => {
            Ok(StoreTarget::Sqlite(PathBuf::from(file)))
        }
        Some(("postgres" | "postgresql", _)) => Ok(StoreTarget::Postgres(url.unwrap_or_default().to_owned())),
        Some((_, _)) => Err(invalid("is not a store; use memory:, jsonl:DIR, sqlite:FILE or postgres://...")),
    }
}

fn keep_out_of_version_control(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    std::fs::write(folder.join(".gitignore"), "*\n")
}

/// Returns the folder for files beside the loom. A `loom.db` is in a folder of our own. Next to a file with another
/// name there may be other files, so it gets its own folder.
fn beside(file: &Path) -> PathBuf {
    match file.parent() {
        Some(folder) if file.file_name() == Some("loom.db".as_ref()) => folder.to_owned(),
        Some(_) | None => {
            let mut name = file.file_name().unwrap_or_default().to_owned();
            name.push(".notes");
            file.with_file_name(name)
        }
    }
}

/// Returns the folder for casts that are made here.
fn folder_for(here: &Path) -> Option<PathBuf> {
    const NAME: &str = ".cantrip";
    let nearest = here.ancestors().map(|folder| folder.join(NAME)).find(|folder| folder.is_dir());
    let repository = || here.ancestors().find(|folder| folder.join(".git").exists()).map(|root| root.join(NAME));
    nearest.or_else(repository).or_else(own_folder)
}

/// The user's own data folder.
fn own_folder() -> Option<PathBuf> {
    let data = env::var_os("XDG_DATA_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || env::var_os("HOME").filter(|path| !path.is_empty()).map(|home| Path::new(&home).join(".local/share"));
    data.or_else(home).map(|data| data.join("cantrip"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_store_that_is_not_there_would_be_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let here = folder.path();
        for kind in ["sqlite", "jsonl"] {
            let url = format!("{kind}:{}", here.join(kind).display());
            assert!(would_be_made(Some(&url), here), "{url}");
            drop(open(Some(&url), here).expect("it can be made"));
            assert!(!would_be_made(Some(&url), here), "{url}");
        }
        assert!(!would_be_made(Some("memory:"), here));
        // No server is asked for our tables before the spell is known to be valid.
        assert!(would_be_made(Some("postgres://nobody@localhost/none"), here));
        assert!(would_be_made(Some("nowhere"), here), "refused when it is opened");
    }
}
