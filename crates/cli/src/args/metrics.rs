//! Which metric does an argument name?

use std::path::{Path, PathBuf};

use cantrip_ds::contract::Metric;
use cantrip_ds::contract::limits::METRIC_BYTES_MAX;
use cantrip_improve::eval::MetricChoice;
use cantrip_reply::Refusal;

use super::input_files;
use super::signatures::FilesBeside;

/// The folder of a project's metrics.
const FOLDER: &str = "metrics";

/// Returns the file of a metric, named by its path or by its name in `metrics/`; None if there is no such file.
fn file_of(asked: &str) -> Option<PathBuf> {
    let in_folder = |ending: &str| Path::new(FOLDER).join(format!("{asked}.{ending}"));
    [PathBuf::from(asked), in_folder("toml"), in_folder("json")].into_iter().find(|path| path.is_file())
}

/// Reads the metric of a file: JSON if its name says so, else TOML.
fn read(path: &Path) -> Result<Metric, Refusal> {
    let text = input_files::bounded_text(path, METRIC_BYTES_MAX)?;
    let is_toml = path.extension().is_none_or(|ending| ending != "json");
    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
    let shown = path.display().to_string();
    Metric::read(&text, is_toml, &FilesBeside(folder)).map_err(|fault| fault.refusal(&shown))
}

/// Returns the metric that an argument names: that of a file with the contents of its own files, or a stored one.
pub(crate) fn choice(asked: &str) -> Result<MetricChoice, Refusal> {
    let Some(path) = file_of(asked) else { return Ok(MetricChoice::Named(asked.to_owned())) };
    let metric = read(&path)?.content().clone();
    let name = path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
    Ok(MetricChoice::Given { name, metric })
}
