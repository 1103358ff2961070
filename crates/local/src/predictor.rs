//! The predictor of this process: its crystals, the archive of its traces, and the gate `predict` of its casts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use cantrip::circle::Medium;
use cantrip::crystal::{AnyCrystal, ModelName};
use cantrip::{PredictPreparer, PredictRequest, PreparedPredict, Runtime};
use cantrip_ds::{CrystalSource, Predictor, TraceArchive};
use cantrip_reply::{Refusal, codes};
use cantrip_service::Service;
use futures_util::future::BoxFuture;

use crate::python;
use crate::spells;
use crate::store::Store;
use cantrip_settings::config;

/// Returns the archive for long traces with its retention: as configured, else beside the store.
pub fn traces(store: &Store) -> Result<TraceArchive, Refusal> {
    traces_beside(store.beside.as_deref())
}

fn traces_beside(beside: Option<&Path>) -> Result<TraceArchive, Refusal> {
    let config = config::here()?;
    let traces = match (&config.trace_store, beside) {
        (Some(base), _) => TraceArchive::at(base)
            .map_err(|fault| codes::config_invalid("trace.store", base.as_str(), fault.to_string()))?,
        (None, Some(folder)) => TraceArchive::in_folder(folder.join("traces")),
        (None, None) => TraceArchive::inline(),
    };
    Ok(match config.trace_retain_days {
        Some(days) => traces.with_retention(Duration::from_secs(days * 24 * 60 * 60)),
        None => traces,
    })
}

/// Prepares predicts for the gate `predict`. Its resources are opened by the first request.
struct NestedPredictor {
    runtime: Runtime,
    beside: Option<PathBuf>,
    predictor: OnceLock<Predictor>,
}

/// Returns the runtime with the gate `predict` enabled for its casts.
pub fn with_predictor(runtime: &Runtime, store: &Store) -> Runtime {
    let (own, beside) = (runtime.clone(), store.beside.clone());
    runtime.with_predict_preparer(NestedPredictor { runtime: own, beside, predictor: OnceLock::new() })
}

impl NestedPredictor {
    fn predictor(&self) -> Result<&Predictor, Refusal> {
        if let Some(predictor) = self.predictor.get() {
            return Ok(predictor);
        }
        let traces = traces_beside(self.beside.as_deref())?;
        let predictor = Service::new(self.runtime.clone()).predictor(crystals(None), traces);
        Ok(self.predictor.get_or_init(|| predictor))
    }
}

impl PredictPreparer for NestedPredictor {
    fn prepare(&self, asked: PredictRequest) -> BoxFuture<'_, Result<PreparedPredict, Refusal>> {
        Box::pin(async move { self.predictor()?.prepare(asked).await })
    }
}

/// The crystals of this process. Each is opened once, so a script continues at its position.
pub struct OpenCrystals {
    crystals: Mutex<HashMap<String, AnyCrystal>>,
    /// The default crystal, or the refusal that explains why there is none.
    unless: Mutex<Option<Result<ModelName, Refusal>>>,
}

impl std::fmt::Debug for OpenCrystals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenCrystals").finish_non_exhaustive()
    }
}

pub fn crystals(unless: Option<Result<ModelName, Refusal>>) -> OpenCrystals {
    OpenCrystals { crystals: Mutex::default(), unless: Mutex::new(unless) }
}

impl CrystalSource for OpenCrystals {
    fn python(&self) -> Result<Arc<dyn Medium>, Refusal> {
        Ok(Arc::new(python::start()?))
    }

    fn crystal(&self, named: Option<&str>) -> Result<AnyCrystal, Refusal> {
        let name = match named {
            Some(named) => spells::parse_crystal(named)?,
            None => {
                let mut unless = self.unless.lock().unwrap_or_else(PoisonError::into_inner);
                match unless.take() {
                    Some(Ok(name)) => {
                        *unless = Some(Ok(name.clone()));
                        name
                    }
                    Some(Err(refusal)) => return Err(refusal),
                    None => {
                        return Err(codes::config_invalid(
                            "predict",
                            "crystal",
                            "no model is named: give --crystal, or set CANTRIP_CRYSTAL",
                        )
                        .into());
                    }
                }
            }
        };
        let mut opened = self.crystals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(crystal) = opened.get(&name.to_string()) {
            return Ok(crystal.clone());
        }
        let crystal = spells::crystal(&name)?;
        opened.insert(name.to_string(), crystal.clone());
        Ok(crystal)
    }
}
