//! The address under which people reach the pages of a server that listens beyond loopback.

use std::fmt;

/// An origin with encryption: `https://` and a host, with or without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl(String);

/// A fault in a public URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrlFault(&'static str);

impl fmt::Display for PublicUrlFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for PublicUrlFault {}

impl PublicUrl {
    /// Parses an origin such as `https://agents.example.org`.
    ///
    /// ```
    /// # use cantrip_serve::http::PublicUrl;
    /// assert_eq!(PublicUrl::parse("https://Agents.example:443/").unwrap().as_str(), "https://agents.example");
    /// assert!(PublicUrl::parse("http://agents.example").is_err());
    /// assert!(PublicUrl::parse("https://agents.example/pages").is_err());
    /// ```
    pub fn parse(text: &str) -> Result<Self, PublicUrlFault> {
        let url =
            url::Url::parse(text).map_err(|_| PublicUrlFault("it is not a URL, as https://agents.example.org"))?;
        if url.scheme() != "https" || !url.has_host() {
            return Err(PublicUrlFault("it must begin with https://, since a session must not be sent in plain text"));
        }
        let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
        if !bare || !url.username().is_empty() || url.password().is_some() {
            return Err(PublicUrlFault("it is only a host and perhaps a port, because pages have fixed addresses"));
        }
        // Browsers write an origin in the same form.
        Ok(Self(url.origin().ascii_serialization()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
