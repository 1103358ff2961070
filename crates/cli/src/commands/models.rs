//! `cantrip models`: the known models, and which of them can be used from here.

use std::fmt::Write;
use std::path::Path;

use cantrip::crystal::{ModelEntry, Price, Profiles, Rates, TableDownloadError, download_table};
use cantrip_reply::{Refusal, Reply, ReplyBuilder, codes};
use serde_json::{Value, json};
use url::Url;

use cantrip_local::model_list::{ProviderStatus, models_today, row};
use cantrip_settings::models::{StoredEdition, known, read_table, store_edition};
use cantrip_terminal::present::{BOLD, DIM, strip_control};

/// List the known models: context windows, limits, features, prices, and whether a key is set for each.
///
/// You can correct the data of a model and add models in your own table: the file that CANTRIP_MODELS names, or
/// models.toml in the folder cantrip of your configuration folder.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip models\n  cantrip models anthropic\n  cantrip models --json\n  \
                        cantrip models --update newer.toml")]
pub(crate) struct Models {
    /// List only models whose name contains this text.
    filter: Option<String>,

    /// Print the page docs/generated/models.md: the models that come with the program.
    #[arg(long, conflicts_with_all = ["filter", "json"])]
    markdown: bool,

    /// Replace the table of models by a newer one, and print its hash. It is read from a file or from an https address.
    #[arg(long, value_name = "FILE|URL", conflicts_with_all = ["filter", "markdown"])]
    update: Option<String>,
}

impl Models {
    pub(crate) async fn reply(&self, rb: ReplyBuilder) -> (Reply, String) {
        match &self.update {
            Some(source) => update(rb, source).await,
            None => self.list(rb),
        }
    }

    fn list(&self, rb: ReplyBuilder) -> (Reply, String) {
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
        models_today(known).into_iter().filter(|model| model.crystal.contains(wanted)).collect()
    }
}

/// Stores a newer table of models.
async fn update(rb: ReplyBuilder, source: &str) -> (Reply, String) {
    let text = match Url::parse(source) {
        Ok(address) if address.has_host() => download_table(&address).await.map_err(|error| match error {
            TableDownloadError::NotSecure => Refusal::from(codes::config_invalid(source, "models", error.to_string())),
            TableDownloadError::Unreachable(_) | TableDownloadError::Status(_) | TableDownloadError::NotAText => {
                codes::io_failed("read", source, error.to_string()).into()
            }
        }),
        Ok(_) | Err(_) => read_table(Path::new(source)),
    };
    match text.and_then(|text| store_edition(&text, source)) {
        Ok(StoredEdition { version, as_of, models, hash, path }) => {
            let path = path.display().to_string();
            let drawn = format!(
                "table {version} of {}, with {models} models, is in use from now on\n{DIM}hash{DIM:#} {hash}\n\
                 {DIM}stored as {path}; delete that file to go back to the built-in table{DIM:#}\n",
                strip_control(&as_of),
            );
            let data = json!({"version": version, "as_of": as_of, "models": models, "hash": hash, "path": path});
            (rb.success(codes::ok("models updated").data(data)), drawn)
        }
        Err(refusal) => (rb.refuse(refusal), String::new()),
    }
}

/// Returns the rates for input, output, cache reads and cache writes, without their currency.
fn amounts(rates: &Rates) -> [String; 4] {
    rates.per_million().map(|money| {
        let text = money.to_string();
        text.split_once(' ').map_or(text.clone(), |(amount, _)| amount.to_owned())
    })
}

/// Returns the rates that apply beside the usual ones, each with the words for when: for long requests, and after a
/// promotion.
fn other_rates(rates: &Rates) -> Vec<(String, [String; 4])> {
    let mut others = Vec::new();
    if let Some((over, beyond)) = rates.beyond() {
        others.push((format!("over {over} tokens"), amounts(&beyond)));
    }
    if let Some((last, then)) = rates.promotion() {
        others.push((format!("after {last}"), amounts(&then)));
        if let Some((over, beyond)) = then.beyond() {
            others.push((format!("after {last}, over {over} tokens"), amounts(&beyond)));
        }
    }
    others
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
        let columns =
            |[input, output, cached, write]: [String; 4]| format!("{input:>7} {output:>7} {cached:>7} {write:>7}");
        let price = match &model.price {
            Price::Unknown => format!("{:>31}", "unknown"),
            Price::Free => format!("{:>31}", "free"),
            Price::Listed(rates) => columns(amounts(rates)),
        };
        let _ = writeln!(
            text,
            "{mark} {:<width$}  {:>9}  {:>7}  {price}  {DIM}{}{DIM:#}",
            strip_control(&model.crystal),
            tokens(model.profile.window),
            tokens(model.profile.output_tokens_max.map(u64::from)),
            model.profile.features().join(", ")
        );
        let others = model.price.rates().map(other_rates).unwrap_or_default();
        for (when, rates) in others {
            let _ = writeln!(text, "    {DIM}{when:<rest$}{DIM:#}  {}", columns(rates), rest = width + 18);
        }
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
    text.push_str(
        "A second row of a model has the rates of requests with a longer prompt, or those after the last day of a \
         promotion.\n\n",
    );
    text.push_str("| model | window | output | in | out | cached | cache write | features |\n");
    text.push_str("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n");
    for model in models {
        let name = if model.default { format!("**`{}`**", model.crystal) } else { format!("`{}`", model.crystal) };
        let price = match &model.price {
            Price::Unknown => ["unknown"; 4].join(" | "),
            Price::Free => ["free"; 4].join(" | "),
            Price::Listed(rates) => amounts(rates).join(" | "),
        };
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {price} | {} |",
            tokens(model.profile.window),
            tokens(model.profile.output_tokens_max.map(u64::from)),
            model.profile.features().join(", ")
        );
        for (when, rates) in model.price.rates().map(other_rates).unwrap_or_default() {
            let _ = writeln!(text, "| {when} | | | {} | |", rates.join(" | "));
        }
    }
    text
}
