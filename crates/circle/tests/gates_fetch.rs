//! `fetch`: its responses, and the addresses that it refuses.

use crate::gates;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cantrip_circle::Circle;
use cantrip_circle::gate::builtin::{Endpoint, Fetch, OnError, Resolver};
use cantrip_circle::medium::BoxFuture;
use cantrip_reply::testing::assert_code;
use cantrip_reply::{Reply, codes};
use gates::{call, circle, value};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Mutex;

/// A server on loopback that answers each path with fixed bytes and records the requests.
#[derive(Clone)]
struct Site {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Site {
    async fn serving(pages: &[(&str, String)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a port");
        let address = listener.local_addr().expect("it is bound");
        let pages: HashMap<String, String> = pages.iter().map(|(path, page)| ((*path).into(), page.clone())).collect();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let site = Self { address, heard: Arc::clone(&heard) };
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                let mut piece = [0; 1024];
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    match stream.read(&mut piece).await {
                        Ok(count @ 1..) => request.extend_from_slice(&piece[..count]),
                        Ok(0) | Err(_) => break,
                    }
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let path = request.split_whitespace().nth(1).unwrap_or_default().to_owned();
                heard.lock().await.push(request);
                match pages.get(&path) {
                    Some(page) if page == "hang" => std::mem::forget(stream),
                    Some(page) => drop(stream.write_all(page.as_bytes()).await),
                    None => drop(stream.write_all(ok("404 Not Found", "no such page").as_bytes()).await),
                }
            }
        });
        site
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn requests(&self) -> usize {
        self.heard.lock().await.len()
    }

    fn fetch(&self) -> Fetch {
        Fetch::default().allow_hosts([self.address.to_string(), format!("site.test:{}", self.address.port())])
    }

    fn circle(&self) -> Circle {
        circle([self.fetch().gate()], json!({}))
    }
}

fn ok(status: &str, body: &str) -> String {
    let bytes = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n{body}"
    )
}

fn moved(status: &str, to: &str) -> String {
    format!("HTTP/1.1 {status} Moved\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

/// A resolver with fixed names and addresses.
struct Names(HashMap<&'static str, Vec<IpAddr>>);

impl Names {
    fn of(names: &[(&'static str, &[&str])]) -> Self {
        let parsed = |addresses: &[&str]| addresses.iter().map(|text| text.parse().expect("an address")).collect();
        Self(names.iter().map(|(name, addresses)| (*name, parsed(addresses))).collect())
    }
}

impl Resolver for Names {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, io::Result<Vec<IpAddr>>> {
        Box::pin(async move { self.0.get(host).cloned().ok_or_else(|| io::Error::other("no such name")) })
    }
}

async fn fetch(circle: &Circle, url: &str) -> Reply {
    call(circle, "fetch", json!({ "url": url })).await
}

#[track_caller]
fn assert_refused(reply: &Reply, reason: &str) {
    assert_code(reply, codes::ADDRESS_REFUSED);
    assert_eq!(reply.data()["reason"], reason, "{}", reply.message());
}

#[tokio::test]
async fn a_page_comes_back_with_status_and_headers_and_a_missing_one_too() {
    let site = Site::serving(&[("/a", ok("200 OK", "hello"))]).await;
    let circle = site.circle();
    let page = fetch(&circle, &site.url("/a")).await;
    assert_code(&page, codes::READ);
    assert_eq!((&value(&page)["status"], &value(&page)["body"]), (&json!(200), &json!("hello")));
    assert_eq!(value(&page)["headers"]["content-type"], "text/plain");
    let missing = fetch(&circle, &site.url("/none")).await;
    assert_code(&missing, codes::READ);
    assert_eq!(value(&missing)["status"], 404);
}

#[tokio::test]
async fn loopback_is_refused_unless_its_host_is_allowed() {
    let site = Site::serving(&[("/", ok("200 OK", "hello"))]).await;
    let strict = circle([Fetch::default().gate()], json!({}));
    assert_refused(&fetch(&strict, &site.url("/")).await, "private_address");
    let other_port = circle([Fetch::default().allow_hosts(["127.0.0.1:1"]).gate()], json!({}));
    assert_refused(&fetch(&other_port, &site.url("/")).await, "private_address");
    assert_eq!(site.requests().await, 0, "nothing was sent");
}

#[tokio::test]
async fn every_spelling_of_an_address_inside_is_refused() {
    let strict = circle([Fetch::default().gate()], json!({}));
    for url in [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://LOCALHOST./",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://0/",
        "http://10.0.0.1/",
        "http://192.168.0.1:8080/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[fe80::1]/",
        "http://[fd00::1]/",
        "http://[64:ff9b::7f00:1]/",
    ] {
        assert_refused(&fetch(&strict, url).await, "private_address");
    }
    for url in [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/",
        "http://2852039166/",
        "http://metadata.google.internal/",
    ] {
        assert_refused(&fetch(&strict, url).await, "metadata_endpoint");
    }
}

#[tokio::test]
async fn a_name_that_resolves_inside_is_refused_even_if_only_one_of_its_addresses_does() {
    let names = Names::of(&[
        ("inside.test", &["10.0.0.7"]),
        ("mixed.test", &["1.1.1.1", "127.0.0.1"]),
        ("mapped.test", &["::ffff:192.168.0.1"]),
        ("cloud.test", &["169.254.169.254"]),
    ]);
    let circle = circle([Fetch::default().resolver(names).gate()], json!({}));
    for host in ["inside.test", "mixed.test", "mapped.test"] {
        assert_refused(&fetch(&circle, &format!("http://{host}/")).await, "private_address");
    }
    assert_refused(&fetch(&circle, "http://cloud.test/").await, "metadata_endpoint");
    assert_code(&fetch(&circle, "http://unknown.test/").await, codes::TARGET_UNUSABLE);
}

#[tokio::test]
async fn the_address_that_was_checked_is_the_one_that_is_dialled() {
    let site = Site::serving(&[("/", ok("200 OK", "pinned"))]).await;
    // Only this resolver knows the name, so a second lookup elsewhere would not find it.
    let fetching = site.fetch().resolver(Names::of(&[("site.test", &["127.0.0.1"])]));
    let circle = circle([fetching.gate()], json!({}));
    let page = fetch(&circle, &format!("http://site.test:{}/", site.address.port())).await;
    assert_eq!(value(&page)["body"], "pinned");
}

#[tokio::test]
async fn every_redirect_is_checked_like_a_request_of_its_own() {
    let site = Site::serving(&[
        ("/metadata", moved("302", "http://169.254.169.254/latest/meta-data/")),
        ("/private", moved("301", "http://10.0.0.1/")),
        ("/decimal", moved("307", "http://2130706433/")),
        ("/file", moved("302", "file:///etc/passwd")),
        ("/loop", moved("302", "/loop")),
        ("/none", "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into()),
        ("/bad", moved("302", "http://[")),
        ("/hop", moved("302", "/end")),
        ("/end", ok("200 OK", "arrived")),
    ])
    .await;
    let circle = site.circle();
    assert_refused(&fetch(&circle, &site.url("/metadata")).await, "metadata_endpoint");
    assert_refused(&fetch(&circle, &site.url("/private")).await, "private_address");
    assert_refused(&fetch(&circle, &site.url("/decimal")).await, "private_address");
    assert_refused(&fetch(&circle, &site.url("/none")).await, "redirect_missing_location");
    assert_refused(&fetch(&circle, &site.url("/bad")).await, "redirect_invalid_location");
    assert_code(&fetch(&circle, &site.url("/file")).await, codes::TARGET_UNUSABLE);
    let before = site.requests().await;
    assert_refused(&fetch(&circle, &site.url("/loop")).await, "redirect_limit_exceeded");
    assert_eq!(site.requests().await - before, 6, "five redirects are followed");
    let arrived = fetch(&circle, &site.url("/hop")).await;
    assert_eq!((&value(&arrived)["body"], &value(&arrived)["url"]), (&json!("arrived"), &json!(site.url("/end"))));
}

#[tokio::test]
async fn what_was_meant_for_one_host_does_not_go_to_the_next() {
    let second = Site::serving(&[("/", ok("200 OK", "got it"))]).await;
    let first = Site::serving(&[("/", moved("307", &second.url("/")))]).await;
    let hosts = [first.address.to_string(), second.address.to_string()];
    let circle = circle([Fetch::default().allow_hosts(hosts).methods([Method::POST]).gate()], json!({}));
    let request = json!({
        "url": first.url("/"), "method": "post", "headers": {"Authorization": "Bearer of-the-first"}, "body": "secret",
    });
    assert_code(&call(&circle, "fetch", request).await, codes::READ);
    assert!(first.heard.lock().await[0].to_lowercase().contains("of-the-first"));
    let heard = second.heard.lock().await[0].clone();
    assert!(!heard.contains("of-the-first") && !heard.contains("secret"), "{heard}");
}

#[tokio::test]
async fn wards_on_hosts_and_methods_hold_before_and_after_a_redirect() {
    let second = Site::serving(&[("/", ok("200 OK", "far"))]).await;
    let first = Site::serving(&[("/", ok("200 OK", "near")), ("/away", moved("302", &second.url("/")))]).await;
    let gate = Fetch::default().allow_hosts([first.address.to_string(), second.address.to_string()]).gate();
    let wards = json!({"restrict": {"hosts": [first.address.to_string()], "methods": ["GET"]}});
    let circle = circle([gate], wards);
    assert_eq!(value(&fetch(&circle, &first.url("/")).await)["body"], "near");
    assert_refused(&fetch(&circle, &second.url("/")).await, "host_not_allowed");
    assert_refused(&fetch(&circle, &first.url("/away")).await, "host_not_allowed");
    let head = call(&circle, "fetch", json!({"url": first.url("/"), "method": "HEAD"})).await;
    assert_refused(&head, "method_not_allowed");
    assert_eq!(second.requests().await, 0);
}

#[tokio::test]
async fn a_method_that_the_gate_was_not_given_is_refused() {
    let site = Site::serving(&[]).await;
    let post = call(&site.circle(), "fetch", json!({"url": site.url("/"), "method": "POST"})).await;
    assert_refused(&post, "method_not_allowed");
}

#[tokio::test]
async fn what_is_no_url_to_fetch_says_why() {
    let site = Site::serving(&[]).await;
    let circle = site.circle();
    for url in ["file:///etc/passwd", "ftp://example.com/", "not a url", "gopher://x/", "http://user:pw@example.com/"] {
        assert_code(&fetch(&circle, url).await, codes::TARGET_UNUSABLE);
    }
    for headers in [json!({"Host": "evil"}), json!({"X": "a\r\nb"}), json!({"X": 1}), json!({"Proxy-Connection": "x"})]
    {
        let reply = call(&circle, "fetch", json!({"url": site.url("/"), "headers": headers})).await;
        assert_code(&reply, codes::TARGET_UNUSABLE);
    }
}

#[tokio::test]
async fn a_long_answer_is_cut_and_says_so_and_bytes_are_no_text() {
    let long = "é".repeat(1_000);
    let site = Site::serving(&[("/long", ok("200 OK", &long)), ("/bytes", ok("200 OK", "a\u{0}b"))]).await;
    let circle = circle([site.fetch().bytes(101).gate()], json!({}));
    let page = fetch(&circle, &site.url("/long")).await;
    assert_eq!(value(&page)["truncated"], json!({"shown": 101, "total": 2_000}));
    assert_eq!(value(&page)["body"].as_str().map(str::len), Some(100), "half a letter is not shown");
    let bytes = fetch(&circle, &site.url("/bytes")).await;
    assert_eq!((&value(&bytes)["body"], &value(&bytes)["binary_bytes"]), (&Value::Null, &json!(3)));
}

#[tokio::test]
async fn a_host_that_does_not_answer_is_an_error_and_one_that_hangs_is_given_up() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a port");
        listener.local_addr().expect("it is bound")
    };
    let unanswered = circle([Fetch::default().allow_hosts(["127.0.0.1"]).gate()], json!({}));
    assert_code(&fetch(&unanswered, &format!("http://{closed}/")).await, codes::UNREACHABLE);
    let site = Site::serving(&[("/", "hang".into())]).await;
    let impatient = circle([site.fetch().time_max(Duration::from_millis(50)).gate()], json!({}));
    assert_code(&fetch(&impatient, &site.url("/")).await, codes::TIMED_OUT);
}

/// An endpoint of this site.
fn endpoint(site: &Site, method: &str, path: &str) -> Endpoint {
    let made = Endpoint::new("api", "Asks the site.", method, &site.url(path)).expect("an endpoint");
    made.allow_hosts([site.address.to_string()])
}

fn holding(endpoint: Endpoint) -> Circle {
    circle([endpoint.gate()], json!({"allow_trifecta": "this test has nothing to steal"}))
}

#[tokio::test]
async fn an_endpoint_fills_its_places_sends_its_headers_and_reads_json() {
    let page = ok("200 OK", "{\"warm\": true}");
    let pages = [("/v1/a%2Fb?units=m&day=2", page.clone()), ("/v1", page)];
    let site = Site::serving(&pages).await;
    let asking = endpoint(&site, "get", "/v1/{city}?units={units}").header("Authorization", "Bearer hunter2");
    let held = holding(asking.expect("a header"));
    let reply = call(&held, "api", json!({"city": "a/b", "units": "m", "day": 2})).await;
    assert_code(&reply, codes::GATE_OK);
    assert_eq!(value(&reply), &json!({"warm": true}));
    assert!(site.heard.lock().await[0].to_lowercase().contains("authorization: bearer hunter2"));
    assert!(!format!("{held:?} {reply:?}").contains("hunter2"));
    let missing = call(&held, "api", json!({"city": "a"})).await;
    assert_code(&missing, codes::TARGET_UNUSABLE);
    let sending = holding(endpoint(&site, "POST", "/v1"));
    assert_code(&call(&sending, "api", json!({"city": "Bonn"})).await, codes::GATE_OK);
    assert!(site.heard.lock().await[1].starts_with("POST /v1 "), "what has no place in the address is its body");
}

#[tokio::test]
async fn an_endpoint_is_held_to_the_rules_of_fetch_and_its_failures_are_typed() {
    let pages = [
        ("/bad", ok("422 Unprocessable Content", "no such city")),
        ("/broken", ok("500 Internal Server Error", "oh")),
        ("/closed", ok("403 Forbidden", "")),
        ("/moved", moved("302", "http://169.254.169.254/latest")),
    ];
    let site = Site::serving(&pages).await;
    let ask = async |path: &str| call(&holding(endpoint(&site, "GET", path)), "api", json!({})).await;
    let reported = ask("/bad").await;
    assert_code(&reported, codes::GATE_REPORTED);
    assert!(reported.message().contains("HTTP 422: no such city"), "{}", reported.message());
    let failing = holding(endpoint(&site, "GET", "/bad").on_error(OnError::Fail));
    assert_code(&call(&failing, "api", json!({})).await, codes::GATE_FAILED);
    assert_code(&ask("/broken").await, codes::GATE_FAILED);
    assert_code(&ask("/closed").await, codes::AUTH_FAILED);
    assert_code(&ask("/moved").await, codes::ADDRESS_REFUSED);
    let before = site.requests().await;
    let private = Endpoint::new("api", "Asks.", "GET", &site.url("/bad")).expect("an endpoint");
    assert_code(&call(&holding(private), "api", json!({})).await, codes::ADDRESS_REFUSED);
    let warded = circle(
        [endpoint(&site, "GET", "/bad").gate()],
        json!({"restrict": {"methods": ["POST"]}, "allow_trifecta": "x"}),
    );
    assert_code(&call(&warded, "api", json!({})).await, codes::ADDRESS_REFUSED);
    assert_eq!(site.requests().await, before, "nobody was asked");
}
