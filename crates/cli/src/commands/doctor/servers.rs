//! Which model servers can be reached from here, and with which keys?
//!
//! Every provider and every endpoint is reported, found or not: its name, its address and the variable of its key. A
//! key is looked up and sent only to its own server; it is never shown. A remote server is only contacted if there is a
//! key for it.

use cantrip::crystal::{ModelListError, NamedEndpoint, Provider, models_of_endpoint, models_of_provider};
use cantrip_reply::{Guard, Refusal, codes};
use futures_util::future::join_all;
use serde::Serialize;

use super::{Finding, refusal_finding};
use cantrip_settings::choice::{self, Who};
use cantrip_settings::config;
use cantrip_settings::endpoints;
use cantrip_settings::keys;

/// The number of models that a line names; the others are only counted.
const MODELS_NAMED: usize = 3;

/// The facts about one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Server {
    name: String,
    url: String,
    /// The variables that may hold its key; empty if it takes no key.
    key_variables: Vec<String>,
    /// The variable that holds a key.
    key_found_in: Option<String>,
    /// True if the server answered; None if it was not contacted.
    answers: Option<bool>,
    /// The models that the server lists.
    models: Vec<String>,
}

/// Returns a finding for each provider, for each endpoint and for the default crystal.
pub(super) async fn look(guard: &Guard) -> Vec<Finding> {
    let mut findings = join_all(Provider::ALL.map(|provider| of_provider(provider, guard))).await;
    match of_endpoints().await {
        Ok(found) => findings.extend(found),
        Err(refusal) => findings.push(refusal_finding("endpoints", guard, refusal).await),
    }
    findings.push(default_crystal(guard).await);
    findings
}

async fn of_provider(provider: Provider, guard: &Guard) -> Finding {
    let name = provider.as_str();
    let variables = provider.key_variables();
    let access = match keys::access(provider) {
        Ok(access) => access,
        Err(refusal) if refusal.code() == codes::CREDENTIALS_MISSING.any() => {
            let url = provider.default_url().to_owned();
            let set = variables.join(" or ");
            return Finding::absent(name, format!("no key: set {set}; {url} was not contacted"))
                .about(server(name, url, variables, None, None));
        }
        Err(refusal) => return refusal_finding(name, guard, refusal).await,
    };
    let url = access.base.as_ref().map_or_else(|| provider.default_url().to_owned(), ToString::to_string);
    let found_in = keys::variable_set(variables);
    let asked = models_of_provider(provider, &access).await;
    let told = server(name, url, variables, found_in, Some(&asked));
    finding(told, asked, variables.is_empty())
}

async fn of_endpoints() -> Result<Vec<Finding>, Refusal> {
    let known = endpoints::all()?;
    let is_known = |url: &url::Url| known.iter().any(|endpoint| endpoint.server.url == *url);
    let local = config::here()?.local().into_iter().filter(|url| !is_known(url));
    let local: Vec<NamedEndpoint> = local.map(|url| NamedEndpoint::at("local", url)).collect();
    let servers = known.into_iter().map(|endpoint| endpoint.server).chain(local);
    Ok(join_all(servers.map(of_endpoint)).await)
}

async fn of_endpoint(endpoint: NamedEndpoint) -> Finding {
    let variables: Vec<&str> = endpoint.key_variable.as_deref().into_iter().collect();
    let (key, url) = (keys::endpoint_key(&endpoint), endpoint.url.to_string());
    let found_in = keys::variable_set(&variables);
    if key.is_none() && endpoint.needs_key {
        let set = variables.join(" or ");
        return Finding::absent(&endpoint.name, format!("no key: set {set}; {url} was not contacted")).about(server(
            &endpoint.name,
            url,
            &variables,
            None,
            None,
        ));
    }
    let asked = models_of_endpoint(&endpoint, key.as_ref()).await;
    let told = server(&endpoint.name, url, &variables, found_in, Some(&asked));
    finding(told, asked, endpoint.is_local())
}

fn server(
    name: &str,
    url: String,
    variables: &[&str],
    key_found_in: Option<String>,
    asked: Option<&Result<Vec<String>, ModelListError>>,
) -> Server {
    let answers = asked.map(|asked| !matches!(asked, Err(ModelListError::Unreachable(_))));
    let models = asked.and_then(|asked| asked.as_ref().ok()).cloned().unwrap_or_default();
    let (name, key_variables) = (name.to_owned(), variables.iter().map(|name| (*name).to_owned()).collect());
    Server { name, url, key_variables, key_found_in, answers, models }
}

/// Returns the finding for a server that was contacted. A local server that does not run is not a fault.
fn finding(told: Server, asked: Result<Vec<String>, ModelListError>, may_be_absent: bool) -> Finding {
    let Server { name, url, key_variables, key_found_in, .. } = &told;
    let key = match (key_found_in, key_variables.as_slice()) {
        (Some(variable), _) => format!("key in {variable}; "),
        (None, []) => String::new(),
        (None, variables) => format!("no key in {}; ", variables.join(" or ")),
    };
    let finding = match asked {
        Ok(models) => {
            let said = format!("{key}{url} answers, {}", count_models(&models));
            let crystal = |model: &String| match name.as_str() {
                "local" => format!("--crystal 'local/{model}@{url}'"),
                name => format!("--crystal {name}/{model}"),
            };
            Finding { hint: models.first().map(crystal), ..Finding::good(name.clone(), said) }
        }
        Err(ModelListError::Unreachable(_)) if may_be_absent && key_found_in.is_none() => {
            Finding::absent(name, format!("no server answers at {url}"))
        }
        Err(fault @ ModelListError::Unreachable(_)) => {
            let hint = "check the address, and whether this machine has a network connection";
            Finding::note(name.clone(), format!("{key}{url}: {fault}"), hint)
        }
        Err(fault @ ModelListError::KeyRefused(_)) => {
            let hint = match (key_found_in, key_variables.first()) {
                (Some(variable), _) => format!("put another key into {variable}"),
                (None, Some(variable)) => format!("export {variable}=..."),
                (None, None) => format!(
                    "write [endpoints.NAME] with url = \"{url}\" and key_env = \"...\" into {}",
                    config::own_file_shown()
                ),
            };
            Finding::note(name.clone(), format!("{key}{url}: {fault}"), hint)
        }
        // Another program uses the port.
        Err(fault @ ModelListError::Strange(_)) if may_be_absent => Finding::absent(name, format!("{url}: {fault}")),
        Err(fault @ ModelListError::Strange(_)) => {
            Finding::note(name.clone(), format!("{key}{url}: {fault}"), "check the address")
        }
    };
    finding.about(told)
}

fn count_models(models: &[String]) -> String {
    match models {
        [] => "no models".to_owned(),
        [model] => format!("1 model: {model}"),
        _ => {
            let named = models[..models.len().min(MODELS_NAMED)].join(", ");
            let more = models.len().saturating_sub(MODELS_NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{} models: {named}{more}", models.len())
        }
    }
}

/// Reports the crystal of a cast that names none.
async fn default_crystal(guard: &Guard) -> Finding {
    let here = match std::env::current_dir() {
        Ok(here) => here,
        Err(error) => {
            return refusal_finding("crystal", guard, codes::io_failed("find", ".", error.to_string()).into()).await;
        }
    };
    match choice::crystal(&here, Who::Cast).await {
        Ok(crystal) => Finding::good("crystal", format!("a cast without --crystal uses {crystal}")),
        Err(refusal) => {
            let finding = refusal_finding("crystal", guard, refusal).await;
            if finding.code.as_deref() != Some(&*codes::CONFIG_INVALID.any().to_string()) {
                return finding;
            }
            // Only a note, because a project in which every spell names its crystal needs no default.
            let said = format!("a cast without --crystal finds no model: {}", finding.said);
            let hint = "set one of the keys above (export ANTHROPIC_API_KEY=...), start a server on this machine, or name a \
                        model with --crystal PROVIDER/MODEL";
            Finding::note("crystal", said, hint)
        }
    }
}
