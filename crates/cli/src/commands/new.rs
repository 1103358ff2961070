//! `cantrip new`: writes a spell to start from, which can be cast as it is.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use cantrip_reply::{Refusal, Reply, ReplyBuilder, codes};
use cantrip_spell as spell;
use serde_json::json;

/// Create a new spell from a template, with a scripted model that answers until you name a real one.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip new analyst\n  cantrip new analyst --in spells")]
pub(crate) struct New {
    /// The name of the spell and of its loom.
    name: String,

    /// The folder to write the files to.
    #[arg(long = "in", value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
}

impl New {
    pub(crate) fn reply(&self, rb: ReplyBuilder) -> Reply {
        let created = |files| codes::created("spell", &self.name).data(json!({"state": "written", "files": files}));
        rb.answer(self.write().map(created))
    }

    /// Writes all files, or none if one of them exists: an existing file is somebody's work.
    fn write(&self) -> Result<Vec<String>, Refusal> {
        let files = spell::new_spell_files(&self.name)?;
        let path = |name: &str| self.folder.join(name);
        if let Some(there) = files.iter().find(|file| path(&file.name).exists()) {
            let shown = path(&there.name).display().to_string();
            return Err(codes::wrong_state("file", shown, "there already", "new", "a name that is free").into());
        }
        let failed = |name: &str, error: &io::Error| {
            codes::io_failed("write", path(name).display().to_string(), error.to_string())
        };
        std::fs::create_dir_all(&self.folder).map_err(|error| failed("", &error))?;
        for file in &files {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path(&file.name))
                .and_then(|mut out| out.write_all(file.text.as_bytes()))
                .map_err(|error| failed(&file.name, &error))?;
        }
        Ok(files.iter().map(|file| path(&file.name).display().to_string()).collect())
    }

    pub(crate) fn draw(&self) -> String {
        let spell = self.folder.join(format!("{}.toml", self.name));
        let spell = spell.strip_prefix(".").unwrap_or(&spell).display().to_string();
        format!("{spell}\n\nTry it:\n  cantrip cast {spell} \"say hello\"\n")
    }
}
