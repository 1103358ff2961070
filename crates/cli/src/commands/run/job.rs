//! Jobs as runs: how an evaluation is resumed, continued and cancelled.

use std::sync::Arc;

use cantrip::canon::RunId;
use cantrip::{Cancel, CastReply};
use cantrip_ds::contract::JobRow;
use cantrip_ds::job::{JobContinuation, JobProgressView};
use cantrip_reply::{ExitStatus, Refusal};
use cantrip_service::Service;

use super::Going;
use crate::commands::eval::finish_job;
use crate::commands::{Context, Outcome};
use cantrip_local::predictor::{crystals, traces};
use cantrip_local::process::{self, Presence};
use cantrip_local::runtime::runtime;
use cantrip_local::spell_catalog::FileSpellCatalog;
use cantrip_local::store::{self, Access};
use cantrip_terminal::interrupt::with_interrupt;
use cantrip_terminal::job::{JobProgressLine, JobState};
use cantrip_terminal::watch::OutputMode;

/// Resumes a job, or continues it under new bounds.
pub(super) async fn go_on(
    on: &Context<'_>,
    url: Option<&str>,
    run: RunId,
    going: &Going,
    more: Option<JobContinuation>,
) -> Result<Outcome, Refusal> {
    Ok(Outcome::Printed(drive_shown(on, url, run, going, more).await?.into()))
}

/// Resumes a job and prints how it stopped.
pub(super) async fn resume(
    on: &Context<'_>,
    url: Option<&str>,
    run: RunId,
    going: &Going,
) -> Result<ExitStatus, Refusal> {
    drive_shown(on, url, run, going, None).await
}

/// Drives a job, shows its progress, and prints how it stopped.
async fn drive_shown(
    on: &Context<'_>,
    url: Option<&str>,
    run: RunId,
    going: &Going,
    more: Option<JobContinuation>,
) -> Result<ExitStatus, Refusal> {
    let mode = OutputMode::of(on.present.json, going.jsonl, going.quiet);
    let line = mode.is_drawn().then(|| Arc::new(JobProgressLine::new("eval")));
    let (drawn, cancel) = (line.clone(), Cancel::new());
    let watcher = move |progress: &JobProgressView| {
        if let Some(line) = &drawn {
            line.show(JobState::of(progress));
        }
    };
    let reply = with_interrupt(&cancel, mode.is_drawn(), drive(on, url, run, more, &cancel, watcher)).await?;
    if let Some(line) = line {
        line.end();
    }
    Ok(finish_job(on, mode, None, reply).await)
}

/// Ends a job that no process drives.
pub(super) async fn end(on: &Context<'_>, url: Option<&str>, run: RunId) -> Result<(), Refusal> {
    let cancel = Cancel::new();
    cancel.cancel();
    let _ = drive(on, url, run, None, &cancel, |_: &JobProgressView| {}).await?;
    Ok(())
}

async fn drive(
    on: &Context<'_>,
    url: Option<&str>,
    run: RunId,
    more: Option<JobContinuation>,
    cancel: &Cancel,
    watcher: impl Fn(&JobProgressView) + Send + Sync + 'static,
) -> Result<CastReply, Refusal> {
    let store = Arc::new(store::open_here(url, Access::Write)?);
    let service = Service::new(runtime(&store, on.guard))
        .with_spells(FileSpellCatalog::new(Arc::clone(&store))?)
        .with_liveness(|worker| process::presence(worker) == Presence::Gone);
    // The specification of the job names its models, so no default is needed.
    let predictor = service.predictor(crystals(None), traces(&store)?);
    let driver = service.job_driver().with_watcher(watcher);
    Ok(match more {
        None => service.resume_job(&driver, &predictor, run, cancel).await,
        Some(more) => service.continue_job(&driver, &predictor, run, more, cancel).await,
    })
}

/// Describes a job in one line.
pub(super) fn describe(job: &JobRow) -> String {
    let error = job.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    format!("{} of {}, {} trials, {}{error}", job.kind.as_str(), job.subject, job.metric_calls, job.status.as_str())
}
