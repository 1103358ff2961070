//! `cantrip confirm`: allows a provider's key to be sent to another address.

use cantrip::crystal::Provider;
use cantrip_reply::{Refusal, Reply, ReplyBuilder, codes};
use serde_json::json;

use cantrip_settings::{addresses, keys};

/// Allow a provider's API key to be sent to another address that a spell names as its base_url.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cantrip confirm anthropic https://gateway.example")]
pub(crate) struct Confirm {
    /// The provider that the key belongs to.
    provider: String,

    /// The address that may receive the key. Its path is ignored.
    address: String,
}

impl Confirm {
    pub(crate) fn reply(&self, rb: ReplyBuilder) -> Reply {
        let created = |line: String| codes::created("confirmed address", &line).data(json!({"state": "confirmed"}));
        rb.answer(self.confirm().map(created))
    }

    fn confirm(&self) -> Result<String, Refusal> {
        let provider = Provider::ALL.into_iter().find(|known| known.as_str() == self.provider).ok_or_else(|| {
            let known = Provider::ALL.map(Provider::as_str).join(", ");
            Refusal::from(codes::config_invalid("confirm", &self.provider, format!("providers are {known}")))
        })?;
        let address = keys::address(&self.address)
            .map_err(|rule| Refusal::from(codes::config_invalid("confirm", &self.address, rule)))?;
        addresses::remember(provider, &address)?;
        Ok(addresses::line(provider, &address))
    }

    pub(crate) fn draw(&self) -> String {
        format!("The key of {} may be sent to {}.\n", self.provider, self.address)
    }
}
