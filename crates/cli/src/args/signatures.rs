//! Which signature does an argument name, and which files of the project hold one?

use std::path::{Path, PathBuf};

use cantrip_ds::Catalog;
use cantrip_ds::contract::{Files, Signature, SignatureId, SignatureOrigin};
use cantrip_reply::{Refusal, codes};

/// The folder of a project's signatures.
const FOLDER: &str = "signatures";

/// Opens the files that a signature or a metric names, in its own folder or below, and nowhere else.
pub(crate) struct FilesBeside(pub(crate) PathBuf);

impl Files for FilesBeside {
    fn text(&self, name: &str) -> Result<String, String> {
        let inside = Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if !inside {
            return Err("it must be in the folder of the file that names it, or below".to_owned());
        }
        std::fs::read_to_string(self.0.join(name)).map_err(|error| error.to_string())
    }
}

/// Reads the signature of a file.
pub(crate) fn read(path: &Path) -> Result<Signature, Refusal> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        if error.kind() == std::io::ErrorKind::NotFound {
            Refusal::from(codes::file_missing(shown.as_str()))
        } else if error.kind() == std::io::ErrorKind::InvalidData {
            codes::target_unusable(shown.as_str(), "it is not text").into()
        } else {
            codes::io_failed("read", shown.as_str(), error.to_string()).into()
        }
    })?;
    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
    Signature::parse(&text, &FilesBeside(folder)).map_err(|fault| fault.refusal(&shown))
}

/// Returns every file of the project's folder that may hold a signature, sorted.
pub(crate) fn around() -> Vec<PathBuf> {
    let files = std::fs::read_dir(FOLDER).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<_> = files.filter(|path| path.extension().is_some_and(|ending| ending == "toml")).collect();
    found.sort();
    found
}

/// Resolves a signature by its file, its id, or a unique end of its id (`Classify`, `text/Classify.v1`). A signature
/// from the project's files is published when it is named.
pub(crate) async fn resolve_signature(catalog: &Catalog, asked: &str) -> Result<SignatureId, Refusal> {
    let path = Path::new(asked);
    if path.is_file() {
        let signature = read(path)?;
        return Ok(catalog.add(&signature, SignatureOrigin::File, "local").await?.signature_id);
    }
    let files = around().iter().map(|file| read(file)).collect::<Result<Vec<Signature>, Refusal>>()?;
    let id = catalog.resolve_name(asked, files.iter().map(|signature| signature.id().clone())).await?;
    if let Some(signature) = files.iter().find(|signature| *signature.id() == id) {
        catalog.add(signature, SignatureOrigin::File, "local").await?;
    }
    Ok(id)
}
