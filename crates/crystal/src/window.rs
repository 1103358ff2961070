//! How large is the context window of a model that no table describes?
//!
//! Its server is asked before an entity is created: llama.cpp, vLLM, Ollama, LM Studio and most gateways report it. If
//! the server does not, a small window is assumed and reported to the user, so that a list is folded before the server
//! rejects it. Waiting for the first rejection was turned down: some servers do not reject, and cut the list silently.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::time::Instant;
use url::Url;

use crate::http::{fetch_json, join_url};
use crate::limits::{
    OLLAMA_CHAT_WINDOW_MAX, OLLAMA_WINDOW_DEFAULT, WINDOW_ASK_BYTES_MAX, WINDOW_ASK_MS_MAX, WINDOW_KEPT_MS,
    WINDOW_TOKENS_ASSUMED,
};

/// A callback, called once per process for each crystal with an unknown window, with its name and the assumed window.
pub type WindowAssumed = fn(crystal: &str, tokens: u64);

/// The way to ask a server for the window of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowLookup {
    /// No lookup: the server does not report it.
    Nothing,
    /// The list of models below the address of its chat API, or another endpoint of its kind of server.
    Models,
    /// Ollama's own description of the model. Ollama reads a list as long as each request allows.
    Ollama,
}

/// The result of a window lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Window {
    /// The server reported this window, or uses the window that each request sets.
    Reported(u64),
    /// The window was not reported and is at most this.
    AtMost(u64),
}

/// The window of a crystal, with the time of its lookup.
#[derive(Debug, Default)]
pub(crate) struct LearnedWindow(Mutex<Option<(u64, Instant)>>);

impl LearnedWindow {
    /// Returns the window that was reported or assumed last.
    pub(crate) fn window(&self) -> Option<u64> {
        self.current().map(|(window, _)| window)
    }

    /// Returns true if the server need not be asked again yet.
    pub(crate) fn is_fresh(&self) -> bool {
        let kept = Duration::from_millis(WINDOW_KEPT_MS);
        self.current().is_some_and(|(_, at)| at.elapsed() < kept)
    }

    fn current(&self) -> Option<(u64, Instant)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the result of a lookup. An assumed window is reported the first time.
    pub(crate) fn store(&self, crystal: &str, found: Option<Window>, assumed: Option<WindowAssumed>) {
        let (window, is_told) = match found {
            Some(Window::Reported(window)) => (window, true),
            Some(Window::AtMost(most)) => (most.min(WINDOW_TOKENS_ASSUMED), false),
            None => (WINDOW_TOKENS_ASSUMED, false),
        };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((window, Instant::now()));
        if !is_told && is_first(crystal) {
            match assumed {
                Some(assumed) => assumed(crystal, window),
                None => tracing::warn!(crystal, window, "the model's context window is unknown; a default is assumed"),
            }
        }
    }
}

/// Returns true if this is the first time for a crystal of this name in this process.
fn is_first(crystal: &str) -> bool {
    static SAID: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    said.get_or_insert_default().insert(crystal.to_owned())
}

/// The server to ask, and the headers and the model for the lookup.
pub(crate) struct ModelServer<'a> {
    pub(crate) client: &'a reqwest::Client,
    /// The address of the crystal's requests.
    pub(crate) address: &'a Url,
    pub(crate) headers: &'a [(HeaderName, HeaderValue)],
    pub(crate) model: &'a str,
}

impl ModelServer<'_> {
    /// Returns the window that the server reports, if any.
    pub(crate) async fn window(&self, asks: WindowLookup) -> Option<Window> {
        match asks {
            WindowLookup::Nothing => None,
            WindowLookup::Ollama => {
                let root = self.base_url(&["/api/chat"])?;
                let described = self.describe_ollama(&root).await;
                // Ollama uses the window of each request, whether or not it reported one.
                Some(Window::Reported(described.map_or(OLLAMA_WINDOW_DEFAULT, OllamaModel::requested_window)))
            }
            WindowLookup::Models => {
                let base = self.base_url(&["/chat/completions", "/responses", "/messages"])?;
                if let Some(list) = self.get(&base, "models").await
                    && let Some(window) = window_in_models(&list, self.model)
                {
                    return Some(Window::Reported(window));
                }
                let mut root = base;
                let path = root.path().trim_end_matches('/').to_owned();
                root.set_path(path.strip_suffix("/v1").unwrap_or(&path));
                let (props, studio, ollama) = futures_util::future::join3(
                    self.get(&root, "props"),
                    self.get(&root, "api/v0/models"),
                    self.describe_ollama(&root),
                )
                .await;
                let slot = props.as_ref().and_then(|props| tokens(props.pointer("/default_generation_settings/n_ctx")));
                slot.map(Window::Reported)
                    .or_else(|| in_studio(&studio?, self.model))
                    .or_else(|| Some(ollama?.fixed_window()))
            }
        }
    }

    /// Returns the base of the address, without the path of the chat API.
    fn base_url(&self, endings: &[&str]) -> Option<Url> {
        let path = self.address.path().trim_end_matches('/');
        let base = endings.iter().find_map(|ending| path.strip_suffix(ending))?.to_owned();
        let mut url = self.address.clone();
        url.set_path(&base);
        Some(url)
    }

    async fn get(&self, base: &Url, path: &str) -> Option<Value> {
        self.fetch(self.client.get(join_url(base, path.split('/'))?)).await
    }

    async fn fetch(&self, mut sent: reqwest::RequestBuilder) -> Option<Value> {
        for (name, value) in self.headers {
            sent = sent.header(name.clone(), value.clone());
        }
        fetch_json(sent.timeout(Duration::from_millis(WINDOW_ASK_MS_MAX)), WINDOW_ASK_BYTES_MAX).await
    }

    async fn describe_ollama(&self, root: &Url) -> Option<OllamaModel> {
        let show = self.client.post(join_url(root, ["api", "show"])?).json(&json!({"model": self.model}));
        let (shown, running) = futures_util::future::join(self.fetch(show), self.get(root, "api/ps")).await;
        let shown = shown?;
        // The parameters are a text with one per line.
        let parameters = shown["parameters"].as_str().unwrap_or_default();
        let set = parameters.lines().find_map(|line| line.trim().strip_prefix("num_ctx")?.trim().parse().ok());
        // The key begins with the name of the architecture.
        let info = shown["model_info"].as_object();
        let most = info.and_then(|info| info.iter().find(|(key, _)| key.ends_with(".context_length")));
        Some(OllamaModel {
            set,
            running: running.and_then(|running| running_in(&running, self.model)),
            most: most.and_then(|(_, value)| tokens(Some(value))),
        })
    }
}

/// Ollama's description of a model.
#[derive(Debug, Clone, Copy)]
struct OllamaModel {
    /// The window that the model's own description sets.
    set: Option<u64>,
    /// The window that the model was loaded with.
    running: Option<u64>,
    /// The window that the model was trained for.
    most: Option<u64>,
}

impl OllamaModel {
    /// Returns the window that each request in Ollama's own chat API asks for.
    fn requested_window(self) -> u64 {
        let most = self.most.unwrap_or(u64::MAX);
        self.set.or(self.running).unwrap_or(OLLAMA_WINDOW_DEFAULT).min(most)
    }

    /// Returns the window for a protocol whose requests cannot set one.
    fn fixed_window(self) -> Window {
        match self.running.or(self.set) {
            Some(window) => Window::Reported(window),
            None => Window::AtMost(self.most.unwrap_or(u64::MAX).min(OLLAMA_CHAT_WINDOW_MAX)),
        }
    }
}

/// Returns the window of a model from a list of models: of vLLM, llama.cpp, or one of the gateways.
fn window_in_models(list: &Value, model: &str) -> Option<u64> {
    let entries = ["/data", "/models"].into_iter().find_map(|at| list.pointer(at)?.as_array());
    let entries = entries.or_else(|| list.as_array())?;
    let is_named = |entry: &&Value| ["id", "name", "model"].iter().any(|key| entry[*key] == model);
    let entry = match (entries.iter().find(is_named), entries.as_slice()) {
        (Some(entry), _) => entry,
        // A server with one model accepts any model name.
        (None, [entry]) => entry,
        (None, _) => return None,
    };
    let places = ["/max_model_len", "/meta/n_ctx", "/context_window", "/context_length", "/max_context_length"];
    let told = places.into_iter().find_map(|at| tokens(entry.pointer(at)))?;
    let of_provider = tokens(entry.pointer("/top_provider/context_length"));
    Some(of_provider.map_or(told, |window| window.min(told)))
}

/// Returns the window of a model from LM Studio's own list. A model that is not loaded yet will get a window that only
/// its user knows.
fn in_studio(list: &Value, model: &str) -> Option<Window> {
    let entry = list["data"].as_array()?.iter().find(|entry| entry["id"] == model)?;
    match tokens(entry.get("loaded_context_length")) {
        Some(window) => Some(Window::Reported(window)),
        None => tokens(entry.get("max_context_length")).map(Window::AtMost),
    }
}

/// Returns the window that Ollama has loaded a model with.
fn running_in(list: &Value, model: &str) -> Option<u64> {
    let whole = if model.contains(':') { model.to_owned() } else { format!("{model}:latest") };
    let is_it =
        |entry: &&Value| ["name", "model"].iter().any(|key| entry[*key] == model || entry[*key] == whole.as_str());
    tokens(list["models"].as_array()?.iter().find(is_it)?.get("context_length"))
}

/// Returns a positive number of tokens.
fn tokens(value: Option<&Value>) -> Option<u64> {
    value?.as_u64().filter(|tokens| *tokens > 0)
}
