//! The files that make up spells.
//!
//! A writer of one of these files decides what a later cast does: where it connects, which gates it has, what its model
//! reads. So the gates of a cast treat them like `cantrip.toml`: they may be read, and a person must approve every
//! write.

use std::fs;
use std::path::{Path, PathBuf};

use cantrip_crystal::ModelName;

use crate::limits::SPELLS_BESIDE_MAX;
use crate::{InlineOrFile, Spell};

impl Spell {
    /// Returns the file of this spell, the files that it refers to, and the other spells in its folder.
    pub(super) fn spell_files(&self) -> Vec<PathBuf> {
        let mut files = vec![PathBuf::from(&self.file)];
        let mut named = self.prompt_files.clone();
        for crystal in [&self.crystal].into_iter().chain(&self.fallback).chain(&self.folding_crystal) {
            if let ModelName::Scripted { file, .. } | ModelName::Program { file } = crystal {
                named.push(file.clone());
            }
        }
        if let Some(InlineOrFile::File(file)) = &self.answer_schema {
            named.push(file.clone());
        }
        files.extend(named.iter().map(|file| self.folder.join(file)));
        let beside = fs::read_dir(if self.folder.as_os_str().is_empty() { Path::new(".") } else { &self.folder });
        let beside = beside.into_iter().flatten().flatten().map(|entry| entry.path());
        let tables = beside.filter(|path| path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("toml")));
        // A TOML file that is not a spell belongs to another program.
        files.extend(tables.take(SPELLS_BESIDE_MAX).filter(|path| Self::open(path).is_ok()));
        files.iter().filter_map(|file| file.canonicalize().ok()).collect()
    }

    /// Returns those of the files that are below this folder, as relative paths.
    pub(super) fn spell_files_below(&self, root: &Path) -> Vec<String> {
        let Ok(root) = root.canonicalize() else { return Vec::new() };
        let files = self.spell_files();
        files.iter().filter_map(|file| Some(file.strip_prefix(&root).ok()?.to_str()?.to_owned())).collect()
    }
}
