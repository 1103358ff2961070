//! The effect on each file of undoing the changes of a run.

use cantrip_service::cantrip::canon::{RunId, TurnId};
use cantrip_service::cantrip::reply::{Refusal, codes};
use cantrip_service::{FilePlan, GateRoots};

use crate::{RewindFile, RewindPlan, Views};

impl Views<'_> {
    /// Returns what undoing the changes after a turn would do, without touching a file.
    pub async fn rewind_plan(&self, to: TurnId) -> Result<RewindPlan, Refusal> {
        let run = self.service.run_of_turn(to).await?;
        let roots = self.roots_of_run(run).await;
        let plans = self.service.undo_plan(run, Some(to), roots).await?;
        let files = plans.into_iter().map(|plan| self.rewind_file(plan)).collect();
        Ok(RewindPlan { to, files })
    }

    /// Returns the folders of the files that a run may have changed, as its spell names them now.
    pub async fn roots_of_run(&self, run: RunId) -> Result<GateRoots, Refusal> {
        match self.summary(run).await?.spell {
            Some(spell) => self.roots_of(&spell).await,
            None => Err(codes::not_found("spell", run.to_string()).into()),
        }
    }

    /// Returns the folders of a spell's files. The catalog knows those of a built-in spell that cannot be read because
    /// no crystal can be found for it.
    async fn roots_of(&self, spell: &str) -> Result<GateRoots, Refusal> {
        let spells = self.service.spells();
        match spells.read_spell(spell).await {
            Ok(spell) => Ok(GateRoots::from_spell(&spell)),
            Err(refusal) => match spells.roots(spell) {
                roots if roots.is_empty() => Err(refusal),
                roots => Ok(GateRoots::from_folders(roots)),
            },
        }
    }

    fn rewind_file(&self, plan: FilePlan) -> RewindFile {
        let FilePlan { path, touched, unified, kept } = plan;
        RewindFile { path: self.text(path), touched, unified: unified.map(|text| self.text(text)), kept }
    }
}
