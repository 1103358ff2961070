//! `cantrip models`: what is known of models, and which of them can be asked from here. Also where a person's own table
//! of models is found.

use std::env;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use cantrip::crystal::limits::PROFILES_BYTES_MAX;
use cantrip::crystal::{Known, Price, Profiles, Provider};
use cantrip_reply::{Refusal, Reply, ReplyBuilder, codes};
use serde_json::{Value, json};

use crate::config;
use crate::keys;
use crate::present::{BOLD, DIM, harmless};

/// Names a person's own table of models.
const VARIABLE: &str = "CANTRIP_MODELS";

/// List the models that are known: windows, limits, features, prices, and which of them there is a key for.
///
/// What the table says of a model can be corrected, and models added, in a table of your own: the file that
/// CANTRIP_MODELS names, or models.toml in the folder cantrip of your configuration.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip models\n  cantrip models anthropic\n  cantrip models --json")]
pub(crate) struct Models {
    /// Only those whose name has this in it.
    filter: Option<String>,

    /// Print the page docs/generated/models.md: what comes with the program.
    #[arg(long, conflicts_with_all = ["filter", "json"])]
    markdown: bool,
}

/// What is known of models here: the table that comes with the program, under a person's own.
pub(crate) fn known() -> Result<Arc<Profiles>, Refusal> {
    let Some(path) = file() else { return Ok(Arc::new(Profiles::builtin().clone())) };
    let shown = path.display().to_string();
    let long = path.metadata().is_ok_and(|found| found.len() > PROFILES_BYTES_MAX as u64);
    let text = match long {
        true => return Err(codes::config_invalid(shown, "models", "it is no table of models: it is too long").into()),
        false => std::fs::read_to_string(&path)
            .map_err(|error| Refusal::from(codes::config_invalid(shown.as_str(), "models", error.to_string())))?,
    };
    match Profiles::builtin().clone().overlay(&text) {
        Ok(known) => Ok(Arc::new(known)),
        Err(fault) => Err(codes::config_invalid(shown, "models", fault.to_string()).into()),
    }
}

/// The file that the variable names, or the one in the person's configuration, if it is there.
fn file() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(named) = set(VARIABLE) {
        return Some(named);
    }
    Some(config::own_folder()?.join("models.toml")).filter(|path| path.is_file())
}

/// Whether a model of this provider can be asked from here.
fn ready(provider: Provider) -> bool {
    keys::access(provider).is_ok()
}

impl Models {
    pub(crate) fn reply(&self, rb: ReplyBuilder) -> (Reply, String) {
        match known() {
            Ok(known) => {
                let rows = self.selected(&known);
                let drawn = if self.markdown { markdown(&known, &rows) } else { draw(&known, &rows) };
                let rows: Vec<Value> = rows.iter().map(row).collect();
                let data = json!({"version": known.version(), "as_of": known.as_of(), "models": rows});
                (rb.success(codes::ok("models").data(data)), drawn)
            }
            Err(refusal) => (rb.refuse(refusal), String::new()),
        }
    }

    fn selected(&self, known: &Profiles) -> Vec<Known> {
        if self.markdown {
            return Profiles::builtin().models();
        }
        let wanted = self.filter.as_deref().unwrap_or_default();
        known.models().into_iter().filter(|model| model.crystal.contains(wanted)).collect()
    }
}

/// All that is known of models here, as a surface lists it.
pub(crate) fn listed() -> Result<Value, Refusal> {
    let known = known()?;
    let rows: Vec<Value> = known.models().iter().map(row).collect();
    Ok(json!({"version": known.version(), "as_of": known.as_of(), "items": rows}))
}

fn row(model: &Known) -> Value {
    let mut row = model.to_value();
    row["ready"] = ready(model.provider).into();
    row
}

/// Input, output, given by a cache, taken by a cache; or the one word there is for it.
fn rates(price: &Price) -> Result<[String; 4], &'static str> {
    match price {
        Price::Unknown => Err("unknown"),
        Price::Free => Err("free"),
        Price::Listed(rates) => Ok(rates.of_a_million().map(|money| {
            let text = money.to_string();
            text.split_once(' ').map_or(text.clone(), |(amount, _)| amount.to_owned())
        })),
    }
}

fn tokens(count: Option<u64>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

fn draw(known: &Profiles, models: &[Known]) -> String {
    let width = models.iter().map(|model| model.crystal.len()).max().unwrap_or(0).max("model".len());
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{BOLD}  {:<width$}  {:>9}  {:>7}  {:>7} {:>7} {:>7} {:>7}  features{BOLD:#}",
        "model", "window", "output", "in", "out", "cached", "write"
    );
    let mut last = None;
    for model in models {
        if last != Some(model.provider) {
            let name = model.provider.as_str();
            let key = match (ready(model.provider), model.provider.key_variables()) {
                (_, []) => "no key needed".to_owned(),
                (true, _) => "key found".to_owned(),
                (false, variables) => format!("no key: set {}", variables.join(" or ")),
            };
            let _ = writeln!(text, "{BOLD}{name}{BOLD:#} {DIM}{key}{DIM:#}");
            last = Some(model.provider);
        }
        let mark = if model.default { "*" } else { " " };
        let price = match rates(&model.price) {
            Ok([input, output, cached, write]) => format!("{input:>7} {output:>7} {cached:>7} {write:>7}"),
            Err(word) => format!("{word:>31}"),
        };
        let _ = writeln!(
            text,
            "{mark} {:<width$}  {:>9}  {:>7}  {price}  {DIM}{}{DIM:#}",
            harmless(&model.crystal),
            tokens(model.profile.window),
            tokens(model.profile.output_tokens_max.map(u64::from)),
            model.profile.features().join(", ")
        );
    }
    let _ = writeln!(
        text,
        "{DIM}prices in USD for a million tokens unless a table of your own says otherwise, as of {} (table {}); * is \
         taken where nobody names one{DIM:#}",
        known.as_of(),
        known.version()
    );
    text
}

fn markdown(known: &Profiles, models: &[Known]) -> String {
    let mut text = String::from(
        "# Models\n\nWritten by `cantrip models --markdown`; do not edit. What is not in this table works as well: its \
         window and its price are unknown until a table of your own says them ([crystals](../crystals.md)).\n\n",
    );
    let _ = writeln!(
        text,
        "Table {}, prices in USD for a million tokens, as published up to {}. The model in bold is taken where nobody \
         names one.\n",
        known.version(),
        known.as_of()
    );
    text.push_str("| model | window | output | in | out | cached | cache write | features |\n");
    text.push_str("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n");
    for model in models {
        let name = if model.default { format!("**`{}`**", model.crystal) } else { format!("`{}`", model.crystal) };
        let price = match rates(&model.price) {
            Ok(rates) => rates.join(" | "),
            Err(word) => [word; 4].join(" | "),
        };
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {price} | {} |",
            tokens(model.profile.window),
            tokens(model.profile.output_tokens_max.map(u64::from)),
            model.profile.features().join(", ")
        );
    }
    text
}
