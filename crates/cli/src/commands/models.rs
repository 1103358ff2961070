//! `cantrip models`: the known models, and which of them can be used from here.

use std::fmt::Write;

use cantrip::crystal::{ModelEntry, Price, Profiles, Provider};
use cantrip_reply::{Refusal, Reply, ReplyBuilder, codes};
use serde_json::{Value, json};

use cantrip_settings::models::known;
use cantrip_settings::{endpoints, keys};
use cantrip_terminal::present::{BOLD, DIM, strip_control};

/// List the known models: context windows, limits, features, prices, and whether a key is set for each.
///
/// You can correct the data of a model and add models in your own table: the file that CANTRIP_MODELS names, or
/// models.toml in the folder cantrip of your configuration folder.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip models\n  cantrip models anthropic\n  cantrip models --json")]
pub(crate) struct Models {
    /// List only models whose name contains this text.
    filter: Option<String>,

    /// Print the page docs/generated/models.md: the models that come with the program.
    #[arg(long, conflicts_with_all = ["filter", "json"])]
    markdown: bool,
}

/// A provider or an endpoint, and whether its models can be used from here.
struct ProviderStatus {
    name: String,
    /// The variables of its key; empty if it takes no key.
    variables: Vec<String>,
    /// True if it has its key or needs none.
    is_ready: bool,
    has_key: bool,
}

impl ProviderStatus {
    /// Returns every provider, then every endpoint.
    fn all() -> Result<Vec<Self>, Refusal> {
        let providers = Provider::ALL.into_iter().map(|provider| Self {
            name: provider.as_str().to_owned(),
            variables: provider.key_variables().iter().map(|name| (*name).to_owned()).collect(),
            is_ready: keys::access(provider).is_ok(),
            has_key: keys::has(provider),
        });
        let endpoints = endpoints::all()?.into_iter().map(|endpoint| Self {
            name: endpoint.server.name.clone(),
            variables: endpoint.server.key_variable.iter().cloned().collect(),
            is_ready: keys::endpoint_access(&endpoint.server).is_ok(),
            has_key: keys::endpoint_key(&endpoint.server).is_some(),
        });
        Ok(providers.chain(endpoints).collect())
    }

    fn find<'a>(all: &'a [Self], name: &str) -> Option<&'a Self> {
        all.iter().find(|known| known.name == name)
    }

    fn words(&self) -> String {
        match (self.has_key, self.is_ready, self.variables.as_slice()) {
            (_, _, []) => "no key needed".to_owned(),
            (true, _, _) => "key found".to_owned(),
            (false, true, variables) => format!("no key: set {} if the server needs one", variables.join(" or ")),
            (false, false, variables) => format!("no key: set {}", variables.join(" or ")),
        }
    }
}

impl Models {
    pub(crate) fn reply(&self, rb: ReplyBuilder) -> (Reply, String) {
        match known().and_then(|known| Ok((known, ProviderStatus::all()?))) {
            Ok((known, ready)) => {
                let rows = self.selected(&known);
                let drawn = if self.markdown {
                    markdown(&known, &rows)
                } else {
                    draw(&known, &rows, &self.unlisted(&known, &ready))
                };
                let endpoints: Vec<Value> = ready
                    .iter()
                    .map(|known| json!({"name": known.name, "key_variables": known.variables, "ready": known.is_ready}))
                    .collect();
                let rows: Vec<Value> = rows.iter().map(|model| row(model, &ready)).collect();
                let data = json!({"version": known.version(), "as_of": known.as_of(), "models": rows,
                    "endpoints": endpoints});
                (rb.success(codes::ok("models").data(data)), drawn)
            }
            Err(refusal) => (rb.refuse(refusal), String::new()),
        }
    }

    /// Pairs each provider and endpoint with true if none of its models is listed and its name matches the filter.
    fn unlisted<'a>(&self, known: &Profiles, ready: &'a [ProviderStatus]) -> Vec<(&'a ProviderStatus, bool)> {
        let wanted = self.filter.as_deref().unwrap_or_default();
        let listed = known.models();
        let has_models = |name: &str| listed.iter().any(|model| model.provider == name);
        ready.iter().map(|known| (known, !has_models(&known.name) && known.name.contains(wanted))).collect()
    }

    fn selected(&self, known: &Profiles) -> Vec<ModelEntry> {
        if self.markdown {
            return Profiles::builtin().models();
        }
        let wanted = self.filter.as_deref().unwrap_or_default();
        known.models().into_iter().filter(|model| model.crystal.contains(wanted)).collect()
    }
}

/// Returns the known models as a surface lists them.
pub(crate) fn list_json() -> Result<Value, Refusal> {
    let known = known()?;
    let ready = ProviderStatus::all()?;
    let rows: Vec<Value> = known.models().iter().map(|model| row(model, &ready)).collect();
    Ok(json!({"version": known.version(), "as_of": known.as_of(), "items": rows}))
}

fn row(model: &ModelEntry, ready: &[ProviderStatus]) -> Value {
    let mut row = model.to_value();
    row["ready"] = ProviderStatus::find(ready, &model.provider).is_some_and(|known| known.is_ready).into();
    row
}

/// Returns the rates for input, output, cache reads and cache writes; the error is the word for a price without rates.
fn rates(price: &Price) -> Result<[String; 4], &'static str> {
    match price {
        Price::Unknown => Err("unknown"),
        Price::Free => Err("free"),
        Price::Listed(rates) => Ok(rates.per_million().map(|money| {
            let text = money.to_string();
            text.split_once(' ').map_or(text.clone(), |(amount, _)| amount.to_owned())
        })),
    }
}

fn tokens(count: Option<u64>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

fn draw(known: &Profiles, models: &[ModelEntry], groups: &[(&ProviderStatus, bool)]) -> String {
    let width = models.iter().map(|model| model.crystal.len()).max().unwrap_or(0).max("model".len());
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{BOLD}  {:<width$}  {:>9}  {:>7}  {:>7} {:>7} {:>7} {:>7}  features{BOLD:#}",
        "model", "window", "output", "in", "out", "cached", "write"
    );
    let mut last = None;
    for model in models {
        if last != Some(&model.provider) {
            let group = groups.iter().find(|(known, _)| known.name == model.provider);
            // The user's own table may list models of an endpoint that is not configured here.
            let words =
                group.map_or_else(|| "no endpoint of this name is configured".to_owned(), |(known, _)| known.words());
            let _ = writeln!(text, "{BOLD}{}{BOLD:#} {DIM}{words}{DIM:#}", strip_control(&model.provider));
            last = Some(&model.provider);
        }
        let mark = if model.default { "*" } else { " " };
        let price = match rates(&model.price) {
            Ok([input, output, cached, write]) => format!("{input:>7} {output:>7} {cached:>7} {write:>7}"),
            Err(word) => format!("{word:>31}"),
        };
        let _ = writeln!(
            text,
            "{mark} {:<width$}  {:>9}  {:>7}  {price}  {DIM}{}{DIM:#}",
            strip_control(&model.crystal),
            tokens(model.profile.window),
            tokens(model.profile.output_tokens_max.map(u64::from)),
            model.profile.features().join(", ")
        );
    }
    for (known, _) in groups.iter().filter(|(_, is_unlisted)| *is_unlisted) {
        let (name, words) = (strip_control(&known.name), known.words());
        let _ = writeln!(text, "{BOLD}{name}{BOLD:#} {DIM}{words}; name any of its models: {name}/<model>{DIM:#}");
    }
    let _ = writeln!(
        text,
        "{DIM}prices in USD for a million tokens, unless your own table has others, as of {} (table {}); * is \
         the default model{DIM:#}",
        known.as_of(),
        known.version()
    );
    text
}

fn markdown(known: &Profiles, models: &[ModelEntry]) -> String {
    let mut text = String::from(
        "# Models\n\nWritten by `cantrip models --markdown`; do not edit. Other models work too: their window and \
         price are unknown until your own table sets them ([crystals](../crystals.md)).\n\n",
    );
    let _ = writeln!(
        text,
        "Table {}, prices in USD for a million tokens, as published up to {}. The model in bold is the default of \
         its provider.\n",
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
