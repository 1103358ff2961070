//! Jobs as runs: how an evaluation or a compile is resumed, continued and cancelled.

use cantrip::canon::RunId;
use cantrip::{Cancel, CastReply};
use cantrip_ds::Predictor;
use cantrip_ds::job::{JobContinuation, JobDriver};
use cantrip_reply::{ExitStatus, Refusal};
use cantrip_service::Service;

use super::Going;
use crate::commands::job::{Following, finish_job, open};
use crate::commands::{Context, Outcome};
use cantrip_local::predictor::{crystals, traces};
use cantrip_local::store::Access;
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
    let (store, service) = open(url, Access::Write, on.guard)?;
    // The specification of the job names its models, so no default is needed.
    let predictor = service.predictor(crystals(None), traces(&store)?);
    let cancel = Cancel::new();
    let (watcher, following) = Following::new(mode, "eval");
    let driver = service.job_driver().with_watcher(watcher);
    let reply = following.during(on, &cancel, drive(&service, &driver, &predictor, run, more, &cancel)).await;
    Ok(finish_job(on, mode, None, reply).await)
}

/// Ends a job that no process drives.
pub(super) async fn end(on: &Context<'_>, url: Option<&str>, run: RunId) -> Result<(), Refusal> {
    let (store, service) = open(url, Access::Write, on.guard)?;
    let predictor = service.predictor(crystals(None), traces(&store)?);
    let cancel = Cancel::new();
    cancel.cancel();
    let _ = drive(&service, &service.job_driver(), &predictor, run, None, &cancel).await;
    Ok(())
}

async fn drive(
    service: &Service,
    driver: &JobDriver,
    predictor: &Predictor,
    run: RunId,
    more: Option<JobContinuation>,
    cancel: &Cancel,
) -> CastReply {
    match more {
        None => service.resume_job(driver, predictor, run, cancel).await,
        Some(more) => service.continue_job(driver, predictor, run, more, cancel).await,
    }
}
