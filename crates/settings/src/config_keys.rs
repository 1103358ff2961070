//! Every key of a configuration, as one table: the reader, the schema for editors and the generated page come from it.

use cantrip::crystal::Provider;
use cantrip_spell::limits::WINDOW_TOKENS_MIN;
use serde_json::{Map, json};

use crate::limits::TRACE_DAYS_MAX;

/// The name of the project's file.
pub const PROJECT_FILE: &str = "cantrip.toml";

/// A key that a configuration may have.
pub(super) struct Key {
    /// The dotted name. `<provider>` stands for each provider, `<endpoint>` for the name of an endpoint.
    pub(super) name: &'static str,
    pub(super) meaning: &'static str,
    pub(super) example: Example,
    /// The default value.
    pub(super) unless: &'static str,
    /// True if the key decides where keys or data go, so only the user's own file may have it.
    pub(super) only_own: bool,
}

/// The type of a value, with an example.
#[derive(Debug, Clone, Copy)]
pub(super) enum Example {
    Text(&'static str),
    Texts(&'static str),
    Number(u64),
    /// The context window, in tokens.
    Tokens(u64),
    /// A word or a table of rates, as TOML.
    Price(&'static str),
}

impl Example {
    pub(super) fn toml(self) -> String {
        match self {
            Self::Text(text) => format!("\"{text}\""),
            Self::Texts(text) => format!("[\"{text}\"]"),
            Self::Number(number) | Self::Tokens(number) => number.to_string(),
            Self::Price(toml) => toml.to_owned(),
        }
    }
}

pub(super) const KEYS: [Key; 13] = [
    Key {
        name: "crystal",
        meaning: "The crystal (model) to use if no spell, no `--crystal` and no `CANTRIP_CRYSTAL` names one.",
        example: Example::Text("anthropic/claude-sonnet-4-5"),
        unless: "the default model of the first provider with a key, then a local server",
        only_own: false,
    },
    Key {
        name: "store",
        meaning: "The store for casts, unless `--store` or `CANTRIP_STORE` names one: `sqlite:FILE`, `jsonl:DIR`, \
                  `postgres://...` or `memory:`. Paths are relative to the folder of this file.",
        example: Example::Text("sqlite:.cantrip/loom.db"),
        unless: "the nearest `.cantrip` upwards, the repository's, the user's data folder",
        only_own: false,
    },
    Key {
        name: "providers.<provider>.base_url",
        meaning: "Another address of a provider, for example of a gateway. The provider's own variable \
                  (`ANTHROPIC_BASE_URL`) takes precedence.",
        example: Example::Text("https://gateway.example/v1"),
        unless: "the provider's own",
        only_own: true,
    },
    Key {
        name: "local",
        meaning: "The addresses at which model servers on this machine are searched, besides Ollama, if no crystal \
                  is named and no provider has a key.",
        example: Example::Texts("http://localhost:8000/v1"),
        unless: "the usual addresses of LM Studio, llama.cpp and vLLM",
        only_own: true,
    },
    Key {
        name: "endpoints.<endpoint>.url",
        meaning: "The address of a server with a known protocol. Its models are then named `<endpoint>/<model>`. A \
                  built-in endpoint (see [crystals](../crystals.md)) has its own address.",
        example: Example::Text("https://models.example/v1"),
        unless: "the address of the built-in endpoint of that name",
        only_own: true,
    },
    Key {
        name: "endpoints.<endpoint>.key_env",
        meaning: "The environment variable with the endpoint's key. The key is sent only to this endpoint.",
        example: Example::Text("MODELS_KEY"),
        unless: "the variable of the built-in endpoint; otherwise no key is sent",
        only_own: true,
    },
    Key {
        name: "endpoints.<endpoint>.wire",
        meaning: "The protocol of the endpoint: `chat` (OpenAI's chat completions), `responses` (OpenAI's responses) \
                  or `messages` (Anthropic's messages).",
        example: Example::Text("chat"),
        unless: "`chat`",
        only_own: true,
    },
    Key {
        name: "endpoints.<endpoint>.models",
        meaning: "Models of the endpoint, for `cantrip models`. The first one is used if no crystal is named and no \
                  provider has a key.",
        example: Example::Texts("llama-3.3-70b"),
        unless: "none are listed, but all of them can be named",
        only_own: true,
    },
    Key {
        name: "endpoints.<endpoint>.window",
        meaning: "The context window of its models in tokens, if neither the table of models nor the server has it.",
        example: Example::Tokens(32_768),
        unless: "the value in the table of models",
        only_own: true,
    },
    Key {
        name: "endpoints.<endpoint>.price",
        meaning: "The price of its models: `\"free\"`, or the price of a million tokens. A model without a price \
                  cannot be used under a limit on money. Prices of single models belong into [your own table of \
                  models](../crystals.md).",
        example: Example::Price("{ input = \"0.59 USD\", output = \"0.79 USD\" }"),
        unless: "the price in the table of models, which is unknown for most endpoints",
        only_own: true,
    },
    Key {
        name: "trace.store",
        meaning: "The place for long traces of predicts: a folder (relative to the folder of this file), or the URL \
                  of a bucket, `s3://BUCKET/PATH` or `gs://BUCKET/PATH`, if the program \
                  was built with the feature `s3` or `gcs`.",
        example: Example::Text("/var/lib/cantrip/traces"),
        unless: "`traces` beside the store",
        only_own: true,
    },
    Key {
        name: "trace.retain_days",
        meaning: "The number of days for which traces are kept. Their names and hashes stay, so receipts can still \
                  be verified.",
        example: Example::Number(30),
        unless: "30",
        only_own: false,
    },
    Key {
        name: "telemetry.traceparent_to",
        meaning: "Hosts that get a `traceparent` header with each request (of crystals, `fetch`, endpoints and MCP \
                  servers), besides this machine. `CANTRIP_TRACEPARENT_TO` takes precedence. `*.example.org` stands \
                  for every host below it.",
        example: Example::Texts("gateway.internal"),
        unless: "none",
        only_own: true,
    },
];

/// Returns true if a written key belongs to this row of the table.
pub(super) fn fits(row: &str, key: &str) -> bool {
    let (row, mut key) = (row.split('.'), key.split('.'));
    let same = row.map(|part| (part, key.next())).all(|(part, written)| match part {
        "<provider>" => Provider::ALL.iter().any(|known| Some(known.as_str()) == written),
        part => Some(part) == written,
    });
    same && key.next().is_none()
}

/// Returns the known key that is nearest to an unknown one, as the end of a message.
pub(super) fn suggestion(key: &str) -> String {
    let known = KEYS.iter().flat_map(|row| match row.name.contains("<provider>") {
        true => Provider::ALL.map(|known| row.name.replace("<provider>", known.as_str())).to_vec(),
        false => vec![row.name.to_owned()],
    });
    let nearest = known.min_by_key(|known| strsim::damerau_levenshtein(known, key));
    match nearest.filter(|nearest| strsim::damerau_levenshtein(nearest, key) <= (key.chars().count() / 3).max(2)) {
        Some(nearest) => format!("; did you mean {nearest}?"),
        None => format!("; known are {}", KEYS.map(|row| row.name).join(", ")),
    }
}

/// Returns the JSON Schema of a configuration, for editors.
pub fn schema() -> serde_json::Value {
    let value = |row: &Key| match row.example {
        Example::Text(text) => json!({"type": "string", "description": row.meaning, "examples": [text]}),
        Example::Texts(text) => json!({"type": "array", "items": {"type": "string"}, "description": row.meaning,
            "examples": [[text]]}),
        Example::Number(number) => json!({"type": "integer", "minimum": 1, "maximum": TRACE_DAYS_MAX,
            "description": row.meaning, "examples": [number]}),
        Example::Tokens(number) => json!({"type": "integer", "minimum": WINDOW_TOKENS_MIN,
            "description": row.meaning, "examples": [number]}),
        Example::Price(_) => json!({"description": row.meaning,
            "anyOf": [{"enum": ["free", "unknown"]}, {"type": "object"}]}),
    };
    let mut properties = Map::new();
    let mut providers = Map::new();
    let mut endpoint = Map::new();
    for row in &KEYS {
        if let Some((_, key)) = row.name.rsplit_once("<endpoint>.") {
            endpoint.insert(key.to_owned(), value(row));
            continue;
        }
        match row.name.rsplit_once("<provider>.") {
            None => match row.name.split_once('.') {
                None => {
                    properties.insert(row.name.to_owned(), value(row));
                }
                Some((table, key)) => {
                    let empty = json!({"type": "object", "additionalProperties": false, "properties": {}});
                    properties.entry(table).or_insert(empty)["properties"][key] = value(row);
                }
            },
            Some((_, key)) => {
                for provider in Provider::ALL {
                    let table =
                        json!({"type": "object", "additionalProperties": false, "properties": {key: value(row)}});
                    providers.insert(provider.as_str().to_owned(), table);
                }
            }
        }
    }
    let table = json!({"type": "object", "additionalProperties": false, "properties": providers});
    properties.insert("providers".to_owned(), table);
    let table = json!({"type": "object", "additionalProperties": false, "properties": endpoint});
    properties.insert("endpoints".to_owned(), json!({"type": "object", "additionalProperties": table}));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A cantrip configuration",
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    })
}

/// Returns the page `docs/generated/config.md`.
pub fn markdown() -> String {
    let mut page = format!(
        "# Configuration\n\nWritten by `cantrip schema config --markdown`; do not edit.\n\n\
         Settings of a project are in its `{PROJECT_FILE}` (in this folder, or in a parent folder of the same \
         repository). Your own settings are in `config.toml` in `$XDG_CONFIG_HOME/cantrip` or `~/.config/cantrip`. An \
         option takes precedence over a variable, a variable over the project's file, and the project's file over \
         yours.\n"
    );
    for Key { name, meaning, example, unless, only_own } in &KEYS {
        let whose = if *only_own { "\n\nOnly in your own `config.toml`." } else { "" };
        let line = match name.rsplit_once('.') {
            Some((table, key)) => format!(
                "[{}]\n{key} = {}",
                table.replace("<provider>", "anthropic").replace("<endpoint>", "mine"),
                example.toml()
            ),
            None => format!("{name} = {}", example.toml()),
        };
        page.push_str(&format!("\n## `{name}`\n\n{meaning}{whose}\n\n```toml\n{line}\n```\n\nDefault: {unless}.\n"));
    }
    page
}
