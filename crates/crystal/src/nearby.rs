//! Is there a model on this machine? Servers that people run beside themselves are asked at their usual addresses.

use std::time::Duration;

use serde_json::Value;
use url::Url;

use crate::http::bounded;
use crate::limits::{NEARBY_BYTES_MAX, NEARBY_MS_MAX};
use crate::{ModelName, Provider};

/// Where LM Studio, llama.cpp and vLLM listen unless told otherwise.
pub const LOCAL_ADDRESSES: [&str; 3] =
    ["http://localhost:1234/v1", "http://localhost:8080/v1", "http://localhost:8000/v1"];

/// The first model that a server on this machine offers: Ollama at its address, then whoever speaks as OpenAI does at
/// one of these. All are asked at once and each has a moment to answer, so a machine without any costs that moment.
pub async fn nearby(ollama: Option<&Url>, others: &[Url]) -> Option<ModelName> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        // A machine does not ask its neighbours about itself.
        .no_proxy()
        .timeout(Duration::from_millis(NEARBY_MS_MAX))
        .build()
        .ok()?;
    let home = Url::parse(Provider::Ollama.home()).ok();
    let asked = futures_util::future::join(
        async { served_by_ollama(&client, ollama.or(home.as_ref())?).await },
        futures_util::future::join_all(others.iter().map(|base| served(&client, base))),
    );
    let (ollama, others) = asked.await;
    ollama.or_else(|| others.into_iter().flatten().next())
}

async fn served_by_ollama(client: &reqwest::Client, base: &Url) -> Option<ModelName> {
    let told = told(client, below(base, "api/tags")?).await?;
    let model = told.pointer("/models/0/name")?.as_str()?;
    named(&format!("{}/{model}", Provider::Ollama.as_str()))
}

async fn served(client: &reqwest::Client, base: &Url) -> Option<ModelName> {
    let told = told(client, below(base, "models")?).await?;
    let model = told.pointer("/data/0/id")?.as_str()?;
    named(&format!("local/{model}@{base}"))
}

/// What a stranger says its model is called may be no name at all.
fn named(text: &str) -> Option<ModelName> {
    text.parse().ok()
}

async fn told(client: &reqwest::Client, address: Url) -> Option<Value> {
    let response = client.get(address).send().await.ok()?;
    if !response.status().is_success() {
        return None;
    }
    serde_json::from_str(&bounded(response, NEARBY_BYTES_MAX).await.ok()?).ok()
}

fn below(base: &Url, path: &str) -> Option<Url> {
    let mut address = base.clone();
    address.path_segments_mut().ok()?.pop_if_empty().extend(path.split('/'));
    Some(address)
}
