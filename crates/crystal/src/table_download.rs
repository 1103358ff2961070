//! A newer table of models from the network.

use std::time::Duration;

use url::Url;

use crate::http::{client_builder, is_loopback, read_bounded};
use crate::limits::{PROFILES_BYTES_MAX, TABLE_MS_MAX};

/// The reason why a table of models was not downloaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableDownloadError {
    /// Somebody on the way could change the prices, and with them what is spent.
    #[error("a table of models is downloaded only over https")]
    NotSecure,
    #[error("it cannot be reached: {0}")]
    Unreachable(String),
    #[error("it answers with status {0}")]
    Status(u16),
    #[error("it is not a text of at most {PROFILES_BYTES_MAX} bytes")]
    NotAText,
}

/// Downloads the text of a table of models. Redirects are not followed.
pub async fn download_table(address: &Url) -> Result<String, TableDownloadError> {
    if address.scheme() != "https" && !is_loopback(address) {
        return Err(TableDownloadError::NotSecure);
    }
    let client = client_builder(address).timeout(Duration::from_millis(TABLE_MS_MAX)).build();
    let client = client.map_err(|error| TableDownloadError::Unreachable(error.to_string()))?;
    let response = client.get(address.clone()).send().await.map_err(|error| {
        TableDownloadError::Unreachable(if error.is_timeout() {
            format!("no answer within {TABLE_MS_MAX} ms")
        } else {
            "no connection".to_owned()
        })
    })?;
    match response.status() {
        status if !status.is_success() => Err(TableDownloadError::Status(status.as_u16())),
        _ => read_bounded(response, PROFILES_BYTES_MAX).await.map_err(|_| TableDownloadError::NotAText),
    }
}
