//! Is there a model on this machine? Asks the local model servers at their usual addresses, and lists the models of a
//! server.

use std::time::Duration;

use cantrip_canon::Secret;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderValue};
use serde_json::Value;
use url::Url;

use crate::http::{client_builder, fetch_json, join_url, read_bounded};
use crate::limits::{LISTED_MODELS_MAX, NEARBY_BYTES_MAX, NEARBY_MS_MAX, SERVER_LIST_MS_MAX};
use crate::{Access, ModelName, NamedEndpoint, Provider, Wire};

/// The default addresses of LM Studio, llama.cpp and vLLM.
pub const LOCAL_ADDRESSES: [&str; 3] =
    ["http://localhost:1234/v1", "http://localhost:8080/v1", "http://localhost:8000/v1"];

/// Returns the first model that a server on this machine offers: Ollama at its address, then any OpenAI-compatible
/// server at one of `others`. All are asked at once with a short timeout, so a machine without any costs that timeout.
pub async fn find_local_model(ollama: Option<&Url>, others: &[Url]) -> Option<ModelName> {
    let home = Url::parse(Provider::Ollama.default_url()).ok();
    let asked = futures_util::future::join(
        async { served_by_ollama(ollama.or(home.as_ref())?).await },
        futures_util::future::join_all(others.iter().map(first_model)),
    );
    let (ollama, others) = asked.await;
    ollama.or_else(|| others.into_iter().flatten().next())
}

/// The reason why a server did not list its models.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelListError {
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it rejects the key, or needs one ({0})")]
    KeyRefused(u16),
    #[error("it answers, but not with a list of models ({0})")]
    Strange(String),
}

/// Returns the models that a provider lists, asked with its key at its address.
pub async fn models_of_provider(provider: Provider, access: &Access) -> Result<Vec<String>, ModelListError> {
    let Ok(home) = Url::parse(provider.default_url()) else {
        return Err(ModelListError::Strange("no address".to_owned()));
    };
    let base = access.base.as_ref().unwrap_or(&home);
    let ends_in_v1 = base.path().trim_end_matches('/').ends_with("/v1");
    let (path, keyed) = match provider {
        Provider::Anthropic if ends_in_v1 => ("models", "x-api-key"),
        Provider::Anthropic => ("v1/models", "x-api-key"),
        Provider::Gemini => ("models", "x-goog-api-key"),
        Provider::OpenAi | Provider::OpenRouter => ("models", "authorization"),
        Provider::Ollama if ends_in_v1 => ("models", "authorization"),
        Provider::Ollama => ("api/tags", "authorization"),
    };
    fetch_models(base, path, &[keyed], access.key.as_ref()).await
}

/// Returns the models that an endpoint lists. Its key, if there is one, is sent only if the server needs one.
pub async fn models_of_endpoint(
    endpoint: &NamedEndpoint,
    key: Option<&Secret<String>>,
) -> Result<Vec<String>, ModelListError> {
    let path = match endpoint.wire {
        Wire::Messages if !endpoint.url.path().trim_end_matches('/').ends_with("/v1") => "v1/models",
        Wire::Chat | Wire::Responses | Wire::Messages => "models",
    };
    let headers: &[&'static str] = match endpoint.wire {
        Wire::Chat | Wire::Responses => &["authorization"],
        Wire::Messages => &["authorization", "x-api-key"],
    };
    if endpoint.is_local() {
        match fetch_models(&endpoint.url, path, headers, None).await {
            Err(ModelListError::KeyRefused(_)) if key.is_some() => {}
            told => return told,
        }
    }
    fetch_models(&endpoint.url, path, headers, key).await
}

/// Returns a client for lookups at this address, by the same way as its requests.
fn client(address: &Url, timeout_ms: u64) -> Result<reqwest::Client, reqwest::Error> {
    client_builder(address).timeout(Duration::from_millis(timeout_ms)).build()
}

/// Fetches a list of models at `path` below `base`, with the key in these headers.
async fn fetch_models(
    base: &Url,
    path: &str,
    headers: &[&'static str],
    key: Option<&Secret<String>>,
) -> Result<Vec<String>, ModelListError> {
    let strange = |what: &str| ModelListError::Strange(what.to_owned());
    let address = join_url(base, path.split('/')).ok_or_else(|| strange("its address has no path"))?;
    let mut sent = HeaderMap::new();
    for (name, key) in headers.iter().filter_map(|name| Some((*name, key?))) {
        let before = if name == "authorization" { "Bearer " } else { "" };
        let mut value = HeaderValue::try_from(format!("{before}{}", key.expose()))
            .map_err(|_| strange("its key has characters that no header can carry"))?;
        value.set_sensitive(true);
        sent.insert(name, value);
    }
    if headers.contains(&"x-api-key") {
        sent.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
    }
    let client = client(&address, SERVER_LIST_MS_MAX).map_err(|error| strange(&error.to_string()))?;
    let response = client.get(address).headers(sent).send().await.map_err(|error| {
        ModelListError::Unreachable(if error.is_timeout() {
            format!("no answer within {SERVER_LIST_MS_MAX} ms")
        } else if error.is_connect() {
            "no connection".to_owned()
        } else {
            "the connection failed".to_owned()
        })
    })?;
    match response.status() {
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            let text = read_bounded(response, NEARBY_BYTES_MAX).await.unwrap_or_default();
            // Any other service that guards a port answers in its own format, and must not be offered a key.
            match serde_json::from_str::<Value>(&text).is_ok_and(|told| told.get("error").is_some()) {
                true => Err(ModelListError::KeyRefused(status.as_u16())),
                false => Err(strange(&format!("status {}", status.as_u16()))),
            }
        }
        status if !status.is_success() => Err(strange(&format!("status {}", status.as_u16()))),
        _ => {
            let text = read_bounded(response, NEARBY_BYTES_MAX).await.map_err(|_| strange("the list is too long"))?;
            let told: Value = serde_json::from_str(&text).map_err(|_| strange("no JSON"))?;
            let list = ["/data", "/models"].into_iter().find_map(|at| told.pointer(at)?.as_array());
            let list = list.or_else(|| told.as_array()).ok_or_else(|| strange("no list"))?;
            // Gemini's and Ollama's lists use `name`.
            let ids = list.iter().filter_map(|model| model["id"].as_str().or_else(|| model["name"].as_str()));
            let names = ids.filter(|id| !id.chars().any(char::is_control));
            Ok(names.map(|id| id.trim_start_matches("models/").to_owned()).take(LISTED_MODELS_MAX).collect())
        }
    }
}

async fn served_by_ollama(base: &Url) -> Option<ModelName> {
    let told =
        fetch_json(client(base, NEARBY_MS_MAX).ok()?.get(join_url(base, ["api", "tags"])?), NEARBY_BYTES_MAX).await?;
    let model = told.pointer("/models/0/name")?.as_str()?;
    parse_model_name(&format!("{}/{model}", Provider::Ollama.as_str()))
}

async fn first_model(base: &Url) -> Option<ModelName> {
    let told = fetch_json(client(base, NEARBY_MS_MAX).ok()?.get(join_url(base, ["models"])?), NEARBY_BYTES_MAX).await?;
    let model = told.pointer("/data/0/id")?.as_str()?;
    parse_model_name(&format!("local/{model}@{base}"))
}

/// Parses a model name from an unknown server, which may be invalid.
fn parse_model_name(text: &str) -> Option<ModelName> {
    text.parse().ok()
}
