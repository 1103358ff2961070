//! The winner of a compile of a spell, as a change of the user's file.
//!
//! A job changes no file. The change is shown as a diff, which `patch` and `git apply` take; it is written only if a
//! person asked for it, and only into the file that the diff was made from.

use std::path::{Path, PathBuf};

use cantrip::reply::{Refusal, codes};
use cantrip_improve::compile::{SpellWinner, resolve_compile, spell_winner};
use cantrip_spell::Spell;

use crate::Service;
use crate::changes::{ChangeKind, unified_diff};
use crate::spell_catalog::SpellFile;
use crate::spell_trials::change_of;

/// The change of a spell's file that makes the winner of a compile of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpellPatch {
    /// The file.
    pub path: PathBuf,
    /// The change in the format of `diff -u`, from the folder of the service. It is empty if the file has the values of
    /// the winner already, or if the spell as it was is the winner.
    pub diff: String,
    /// The text that the diff was made from.
    pub before: String,
    /// The whole text after the change.
    pub content: String,
}

impl Service {
    /// Returns the winner of a compile of a spell as a change of the spell's file. The compile is named by the id of
    /// its report, the beginning of it, or its job. Nothing is written. It is refused if the spell is another one than
    /// the compile began with.
    pub async fn compile_patch(&self, compile: &str) -> Result<SpellPatch, Refusal> {
        self.check_may_change_shared()?;
        let loom = self.runtime().loom();
        let job = resolve_compile(loom, compile).await?;
        let winner = spell_winner(loom, &job).await?;
        let file = self.spells().spell_file(&winner.spell).await?;
        let Some(variant) = &winner.variant else { return Ok(unchanged(file)) };
        let content = read_spell(&file)?.edited(&file.text, &change_of(&variant.patch))?;
        if content == file.text {
            return Ok(unchanged(file));
        }
        self.check_base(&winner, &variant.base).await?;
        let diff = unified_diff(&file.label, ChangeKind::Changed, &file.text, &content);
        Ok(SpellPatch { path: file.path, diff, before: file.text, content })
    }

    /// Writes a change into the file that it was made from. It is refused if the file has another text now.
    pub async fn write_patch(&self, patch: &SpellPatch) -> Result<(), Refusal> {
        self.check_may_change_shared()?;
        self.spells().replace_spell(&patch.path, &patch.before, &patch.content).await
    }

    /// Checks that the spell is the one that the compile began with. The scores of a variant say nothing about another
    /// spell with the same texts.
    async fn check_base(&self, winner: &SpellWinner, base: &str) -> Result<(), Refusal> {
        let tried = self.spell_trials().tried(&winner.spell, &winner.gates).await?;
        if tried.cantrip_id == base {
            return Ok(());
        }
        let state = format!("another version ({})", tried.cantrip_id);
        Err(codes::wrong_state("spell", winner.spell.as_str(), state, "a patch", base).into())
    }
}

fn unchanged(file: SpellFile) -> SpellPatch {
    SpellPatch { path: file.path, diff: String::new(), before: file.text.clone(), content: file.text }
}

/// Reads the spell from the text that is edited.
fn read_spell(file: &SpellFile) -> Result<Spell, Refusal> {
    let name = file.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = file.path.parent().unwrap_or(Path::new("."));
    Ok(Spell::read(&file.text, &name, folder)?)
}
