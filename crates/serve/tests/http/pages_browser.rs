//! A browser without a screen: it keeps its cookies, sends the headers that a browser sends, and fills in forms.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use reqwest::header::{ACCEPT, COOKIE, HeaderMap, LOCATION, ORIGIN, SET_COOKIE};
use reqwest::{Client, RequestBuilder, Response};
use url::form_urlencoded;

use super::support::Server;

/// The kind of a form without a file.
pub(super) const FORM: &str = "application/x-www-form-urlencoded";

pub(super) struct Browser<'a> {
    pub(super) server: &'a Server,
    client: Client,
    cookies: Mutex<BTreeMap<String, String>>,
    /// The form token of the last page.
    token: Mutex<String>,
    /// Counts the pages, because each has keys of its own.
    pages: AtomicU32,
}

/// A response, read whole.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Shown {
    #[track_caller]
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {self:?}")).to_str().unwrap()
    }

    /// Returns the address that the browser is sent to.
    #[track_caller]
    pub(super) fn location(&self) -> &str {
        assert_eq!(self.status, 303, "{self:?}");
        self.headers[LOCATION].to_str().unwrap()
    }

    /// Returns what stands behind the first of these texts, up to a quotation mark.
    pub(super) fn value(&self, before: &str) -> Option<&str> {
        let (_, behind) = self.text.split_once(before)?;
        behind.split('"').next()
    }

    #[track_caller]
    pub(super) fn holds(&self, text: &str) {
        assert!(self.text.contains(text), "no {text:?} in {self:?}");
    }
}

impl<'a> Browser<'a> {
    pub(super) fn at(server: &'a Server) -> Self {
        let client = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        let (cookies, token) = (Mutex::default(), Mutex::default());
        Self { server, client, cookies, token, pages: AtomicU32::new(0) }
    }

    /// Opens a browser and signs in.
    pub(super) async fn signed_in(server: &'a Server, token: &str) -> Self {
        let browser = Self::at(server);
        let shown = browser.sign_in(token, "/runs", "").await;
        assert_eq!(shown.location(), "/runs");
        browser
    }

    pub(super) async fn sign_in(&self, token: &str, next: &str, place: &str) -> Shown {
        let fields = [("access", token), ("next", next), ("place", place)];
        self.send(self.posting("/sign-in", FORM, encoded(&fields)).header(ORIGIN, self.origin())).await
    }

    pub(super) fn origin(&self) -> String {
        format!("http://{}", self.server.address)
    }

    pub(super) fn cookie_header(&self) -> String {
        let cookies = self.cookies.lock().unwrap();
        cookies.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("; ")
    }

    pub(super) fn form_token(&self) -> String {
        self.token.lock().unwrap().clone()
    }

    /// Returns a key that no other form of this browser has.
    pub(super) fn fresh_key(&self) -> String {
        format!("key-{}", self.pages.fetch_add(1, Ordering::SeqCst))
    }

    fn with_cookies(&self, request: RequestBuilder) -> RequestBuilder {
        let cookies = self.cookie_header();
        if cookies.is_empty() { request } else { request.header(COOKIE, cookies) }
    }

    pub(super) fn getting(&self, path: &str) -> RequestBuilder {
        let request =
            self.client.get(self.server.url(path)).header(ACCEPT, "text/html,application/xhtml+xml,*/*;q=0.8");
        self.with_cookies(request)
    }

    pub(super) fn posting(&self, path: &str, kind: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
        let request = self.client.post(self.server.url(path)).header("content-type", kind).body(body);
        self.with_cookies(request)
    }

    pub(super) async fn send(&self, request: RequestBuilder) -> Shown {
        let response = request.send().await.unwrap();
        self.keep_cookies(&response);
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let shown = Shown { status, headers, text: response.text().await.unwrap() };
        if let Some(token) = shown.value("<meta name=\"form-token\" content=\"").filter(|token| !token.is_empty()) {
            token.clone_into(&mut self.token.lock().unwrap());
        }
        shown
    }

    fn keep_cookies(&self, response: &Response) {
        let mut cookies = self.cookies.lock().unwrap();
        for set in response.headers().get_all(SET_COOKIE) {
            let set = set.to_str().unwrap();
            let (name, rest) = set.split_once('=').unwrap();
            let value = rest.split(';').next().unwrap();
            if set.contains("Max-Age=0") {
                cookies.remove(name);
            } else {
                cookies.insert(name.to_owned(), value.to_owned());
            }
        }
    }

    pub(super) async fn get(&self, path: &str) -> Shown {
        self.send(self.getting(path)).await
    }

    /// Returns the page at this address, which must be there.
    pub(super) async fn page(&self, path: &str) -> Shown {
        let shown = self.get(path).await;
        assert_eq!(shown.status, 200, "{path}: {shown:?}");
        shown
    }

    pub(super) async fn part(&self, path: &str, name: &str) -> Shown {
        self.send(self.getting(path).header("cantrip-part", name)).await
    }

    /// Sends a form of this session, with a fresh key.
    pub(super) async fn post(&self, path: &str, fields: &[(&str, &str)]) -> Shown {
        let key = self.fresh_key();
        self.post_with_key(path, fields, &key).await
    }

    pub(super) async fn post_with_key(&self, path: &str, fields: &[(&str, &str)], key: &str) -> Shown {
        if self.form_token().is_empty() {
            self.get("/keys").await;
        }
        let token = self.form_token();
        let hidden = [("token", token.as_str()), ("key", key)];
        let all: Vec<(&str, &str)> = hidden.iter().chain(fields).copied().collect();
        self.send(self.posting(path, FORM, encoded(&all)).header(ORIGIN, self.origin())).await
    }
}

/// Writes fields as a form does.
pub(super) fn encoded(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish()
}
