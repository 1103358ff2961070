//! The readers of pages: sessions, the sign-in, and the headers that keep other pages out.

use std::net::{IpAddr, Ipv4Addr};

use cantrip_reply::codes;
use cantrip_serve::http::{Options, PublicUrl, Tokens};
use cantrip_serve::limits::SIGN_INS_A_MINUTE;
use cantrip_service::cantrip::Runtime;
use cantrip_service::cantrip::loom::{AnyLoom, MemoryLoom};
use futures_util::future::join_all;
use reqwest::header::{AUTHORIZATION, COOKIE, HOST, ORIGIN, SET_COOKIE};

use super::owners::{ANN, BOB, ROOT, guarded};
use super::pages_browser::{Browser, FORM, encoded};
use super::support::{Server, answered, refused, server};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types cantrip";

#[tokio::test]
async fn without_tokens_the_first_page_gives_a_session_of_the_local_owner() {
    let server = server().await;
    let browser = Browser::at(&server);
    let first = browser.page("/").await;
    let (name, rest) = first.header("set-cookie").split_once('=').unwrap();
    assert_eq!(name, format!("cantrip_{}", server.address.port()));
    let (value, attributes) = rest.split_once(';').unwrap();
    assert_eq!(attributes, " HttpOnly; SameSite=Lax; Path=/");
    assert!(value.len() == 64 && value.bytes().all(|byte| byte.is_ascii_hexdigit()), "256 bits: {value}");
    assert!(!first.text.contains(value), "the cookie is in no page");
    let second = browser.page("/runs").await;
    assert!(!second.headers.contains_key(SET_COOKIE), "the session goes on");
    second.holds("local");
    // A page that another page embeds opens no session, and neither does a form that it posts.
    let stranger = Browser::at(&server);
    let embedded = stranger.getting("/runs").header("sec-fetch-site", "cross-site").header("sec-fetch-dest", "image");
    let embedded = stranger.send(embedded).await;
    assert_eq!(embedded.status, 403);
    assert!(!embedded.headers.contains_key(SET_COOKIE));
    // A link in another page is a way to come here.
    let followed =
        stranger.getting("/runs").header("sec-fetch-site", "cross-site").header("sec-fetch-dest", "document");
    assert_eq!(stranger.send(followed).await.status, 200);
}

#[tokio::test]
async fn a_token_is_sent_once_and_its_cookie_opens_pages_and_nothing_else() {
    let server = guarded().await;
    let browser = Browser::at(&server);
    assert_eq!(browser.get("/runs?state=failed").await.location(), "/sign-in?next=%2Fruns%3Fstate%3Dfailed");
    let form = browser.page("/sign-in?next=%2Fruns").await;
    form.holds("autocomplete=\"current-password\"");
    for wrong in ["", "x", &ANN[1..]] {
        let shown = browser.sign_in(wrong, "/runs", "").await;
        assert_eq!(shown.status, 401, "{shown:?}");
        shown.holds(codes::UNAUTHENTICATED.any().as_str());
        assert!(!shown.headers.contains_key(SET_COOKIE));
    }
    let shown = browser.sign_in(ANN, "/runs", "").await;
    assert_eq!(shown.location(), "/runs");
    let runs = browser.page("/runs").await;
    runs.holds("user:ann");
    let cookie = browser.cookie_header();
    let (_, secret) = cookie.split_once('=').unwrap();
    for shown in [&shown, &runs, &form] {
        assert!(!shown.text.contains(ANN) && !shown.text.contains(secret));
        let told = format!("{:?}", shown.headers.get("location"));
        assert!(!told.contains(ANN) && !told.contains(secret));
    }
    for path in ["/v1/runs", "/mcp", "/metrics", "/openapi.json"] {
        let request = server.client.get(server.url(path)).header(COOKIE, &cookie);
        refused(answered(request).await, 401, codes::UNAUTHENTICATED.any());
    }
    let stranger = Browser::at(&server);
    let by_bearer = stranger.getting("/runs").header(AUTHORIZATION, format!("Bearer {ANN}"));
    assert_eq!(stranger.send(by_bearer).await.location(), "/sign-in?next=%2Fruns", "a bearer opens no page");
    let out = browser.post("/sign-out", &[]).await;
    assert_eq!(out.location(), "/sign-in");
    assert!(out.header("set-cookie").contains("Max-Age=0"));
    let again = stranger.getting("/runs").header(COOKIE, &cookie);
    assert_eq!(stranger.send(again).await.status, 303, "its cookie opens nothing any more");
}

#[tokio::test]
async fn what_is_no_page_is_refused_without_a_session() {
    let server = guarded().await;
    let browser = Browser::at(&server);
    assert_eq!(browser.part("/runs", "rows").await.status, 401);
    let feed = server.client.get(server.url("/runs/run_06cyf9k2vtd3m8x1q7hbz4n5rw/parts"));
    let feed = browser.send(feed.header("accept", "text/event-stream")).await;
    assert_eq!(feed.status, 401);
    let posted = browser.posting("/runs/run_06cyf9k2vtd3m8x1q7hbz4n5rw/cancel", FORM, "a=b");
    assert_eq!(browser.send(posted.header(ORIGIN, browser.origin())).await.status, 401);
    let style = browser.page("/sign-in").await;
    let style = style.value("<link rel=\"stylesheet\" href=\"").unwrap().to_owned();
    let asset = browser.page(&style).await;
    assert_eq!(asset.header("cache-control"), "public, max-age=31536000, immutable");
    assert_eq!(asset.header("content-type"), "text/css; charset=utf-8");
    assert_eq!(browser.get("/assets/0123456789abcdef/pages.css").await.status, 404);
}

#[tokio::test]
async fn a_deep_link_opens_there_after_the_sign_in() {
    let server = guarded().await.with_token(ANN);
    let run = server.cast("slow").await;
    server.until(&run, "terminated").await;
    let turns = server.value(&format!("/v1/runs/{run}/turns")).await;
    let turn = turns["items"][1]["id"].as_str().unwrap();
    for (link, place) in [
        (format!("/turns/{turn}"), format!("/runs/{run}?at={turn}#{turn}")),
        (format!("/calls/{turn}:1"), format!("/runs/{run}?at={turn}#{turn}.1")),
        (format!("/go/{turn}"), format!("/runs/{run}?at={turn}#{turn}")),
    ] {
        let browser = Browser::at(&server);
        let asked = browser.get(&link).await;
        let next = asked.location().strip_prefix("/sign-in?next=").unwrap().replace("%2F", "/").replace("%3A", ":");
        assert_eq!(next, link);
        assert_eq!(browser.sign_in(ANN, &next, "").await.location(), link);
        assert_eq!(browser.get(&link).await.location(), place);
        let (page, _) = place.split_once('#').unwrap();
        browser.page(page).await.holds(&format!("id=\"{turn}\""));
    }
    // The browser keeps what stands behind the # to itself; the script sends it along.
    let browser = Browser::at(&server);
    let there = browser.sign_in(ANN, &format!("/runs/{run}"), &format!("#{turn}")).await;
    assert_eq!(there.location(), format!("/runs/{run}#{turn}"));
    let elsewhere = browser.sign_in(ANN, "//evil.example/", "#\"><script>").await;
    assert_eq!(elsewhere.location(), "/");
}

#[tokio::test]
async fn a_removed_token_ends_its_sessions() {
    let server = guarded().await;
    let (ann, bob) = (Browser::signed_in(&server, ANN).await, Browser::signed_in(&server, BOB).await);
    ann.page("/runs").await;
    server.http.replace_tokens(Tokens::parse(&format!("bob = {BOB}\nlocal = {ROOT}\n")).unwrap());
    assert_eq!(ann.get("/runs").await.location(), "/sign-in?next=%2Fruns");
    assert_eq!(ann.sign_in(ANN, "/runs", "").await.status, 401);
    bob.page("/runs").await;
    let request = server.client.get(server.url("/v1/runs")).bearer_auth(ANN);
    refused(answered(request).await, 401, codes::UNAUTHENTICATED.any());
}

#[tokio::test]
async fn the_link_of_open_works_once() {
    let server = guarded().await;
    let link = server.http.open_link(server.address).unwrap();
    let path = link.strip_prefix(&format!("http://{}", server.address)).unwrap();
    let browser = Browser::at(&server);
    assert_eq!(browser.get(path).await.location(), "/runs");
    browser.page("/runs").await.holds("local");
    let second = Browser::at(&server);
    let shown = second.get(path).await;
    assert_eq!(shown.status, 404);
    assert!(!shown.headers.contains_key(SET_COOKIE) && !shown.text.contains(path.rsplit('/').next().unwrap()));
}

#[tokio::test]
async fn an_address_has_ten_sign_ins_a_minute() {
    let server = guarded().await;
    let browser = Browser::at(&server);
    let tries = join_all((0..SIGN_INS_A_MINUTE).map(|_| browser.sign_in("not-a-token-0123456789", "/", ""))).await;
    assert!(tries.iter().all(|shown| shown.status == 401), "{tries:?}");
    let late = browser.sign_in(ANN, "/", "").await;
    assert_eq!(late.status, 503, "also with a good token");
    late.holds(codes::OVERLOADED.any().as_str());
}

#[tokio::test]
async fn beyond_loopback_pages_need_the_address_that_browsers_use() {
    let everywhere = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    let open = async |public_url: Option<PublicUrl>| {
        let tokens = Some(Tokens::parse(&format!("ann = {ANN}\n")).unwrap());
        let loom = AnyLoom::new(MemoryLoom::new());
        let options = Options { tokens, public_url, ..Options::default() };
        Server::bound(everywhere, Runtime::new(loom.clone()), loom, options, &[]).await
    };
    let server = open(None).await.with_token(ANN);
    let browser = Browser::at(&server);
    for path in ["/", "/runs", "/sign-in", "/nowhere"] {
        let shown = browser.get(path).await;
        assert_eq!(shown.status, 403, "{path}");
        shown.holds("--public-url");
        assert_eq!(shown.header("content-security-policy"), POLICY);
    }
    assert_eq!(server.get("/v1/runs").await.0, 200, "programs are served as before");

    let server = open(Some(PublicUrl::parse("https://agents.example").unwrap())).await;
    let browser = Browser::at(&server);
    let fields = encoded(&[("access", ANN), ("next", "/runs")]);
    let here = browser.posting("/sign-in", FORM, fields.clone()).header(ORIGIN, browser.origin());
    let here = browser.send(here).await;
    assert_eq!(here.status, 403);
    here.holds(codes::ADDRESS_REFUSED.any().as_str());
    let there = browser.posting("/sign-in", FORM, fields).header(ORIGIN, "https://agents.example");
    let there = browser.send(there).await;
    assert_eq!(there.location(), "/runs");
    let set = there.header("set-cookie");
    assert!(set.starts_with("__Host-cantrip=") && set.ends_with("; HttpOnly; SameSite=Lax; Path=/; Secure"), "{set}");
    browser.page("/runs").await;
}

#[tokio::test]
async fn a_page_of_another_origin_or_another_name_gets_nothing() {
    let server = server().await;
    let browser = Browser::at(&server);
    browser.page("/runs").await;
    let port = server.address.port();
    let asked = [
        (ORIGIN, "http://evil.example".to_owned(), codes::ADDRESS_REFUSED.any()),
        (ORIGIN, "null".to_owned(), codes::ADDRESS_REFUSED.any()),
        (ORIGIN, "http://127.0.0.1:1".to_owned(), codes::ADDRESS_REFUSED.any()),
        (ORIGIN, format!("http://localhost:{port}"), codes::ADDRESS_REFUSED.any()),
        (HOST, format!("evil.example:{port}"), codes::REQUEST_REFUSED.any()),
    ];
    for (header, value, code) in asked {
        let shown = browser.send(browser.getting("/runs").header(header, &value)).await;
        assert_eq!(shown.status, 403, "{value}");
        shown.holds(code.as_str());
        assert!(shown.headers.keys().all(|name| !name.as_str().starts_with("access-control")));
    }
}

#[tokio::test]
async fn every_page_has_the_same_strict_headers() {
    let server = server().await;
    let run = server.cast("slow").await;
    let shown = server.until(&run, "terminated").await;
    let turns = server.value(&format!("/v1/runs/{run}/turns")).await;
    let (turn, loom) = (turns["items"][0]["id"].as_str().unwrap(), shown["loom_id"].as_str().unwrap());
    let asks = server.cast("asks").await;
    let waiting = server.until(&asks, "waiting").await;
    let approval = waiting["approvals"][0]["approval_id"].as_str().unwrap();
    let browser = Browser::at(&server);
    let pages = [
        "/".to_owned(),
        "/runs".to_owned(),
        format!("/runs/{run}"),
        format!("/runs/{asks}"),
        format!("/runs/{run}/tree"),
        format!("/runs/{run}/files"),
        format!("/runs/{run}/records"),
        format!("/runs/{run}/sent/{turn}"),
        format!("/runs/{asks}/cancel"),
        format!("/runs/{run}/continue"),
        format!("/turns/{turn}/fork"),
        format!("/turns/{turn}/rewind"),
        "/looms".to_owned(),
        format!("/looms/{loom}"),
        format!("/compare?a={turn}&b={turn}"),
        "/approvals".to_owned(),
        format!("/approvals/{approval}?run={asks}"),
        format!("/approvals/{approval}"),
        "/spells".to_owned(),
        "/spells/three".to_owned(),
        "/codes/WA-READ-I-001".to_owned(),
        "/settings".to_owned(),
        "/keys".to_owned(),
        "/runs/run_06cyf9k2vtd3m8x1q7hbz4n5rw".to_owned(),
        "/nowhere".to_owned(),
    ];
    for path in &pages {
        let shown = browser.get(path).await;
        let missing = path.contains("06cyf9k2") || path == "/nowhere";
        assert_eq!(shown.status, if missing { 404 } else { 200 }, "{path}: {}", shown.text);
        assert_eq!(shown.header("content-type"), "text/html; charset=utf-8", "{path}");
        assert_eq!(shown.header("content-security-policy"), POLICY, "{path}");
        assert_eq!(shown.header("x-frame-options"), "DENY");
        assert_eq!(shown.header("referrer-policy"), "same-origin");
        assert_eq!(shown.header("cross-origin-opener-policy"), "same-origin");
        assert_eq!(shown.header("cross-origin-resource-policy"), "same-origin");
        assert_eq!(shown.header("x-content-type-options"), "nosniff");
        assert_eq!(shown.header("cache-control"), "no-store");
        assert!(shown.header("permissions-policy").contains("camera=()"));
        let text = &shown.text;
        assert!(!text.contains("<style") && !text.contains(" style=") && !text.contains("javascript:"), "{path}");
        assert_eq!(text.matches("<script").count(), text.matches("<script src=\"/assets/").count(), "{path}");
        assert_eq!(handlers(text), Vec::<&str>::new(), "{path}");
    }
}

/// Returns the attributes of elements that would run a script.
fn handlers(text: &str) -> Vec<&str> {
    let tags = text.split('<').skip(1).filter_map(|tag| tag.split('>').next());
    tags.flat_map(|tag| tag.split(' ')).filter(|word| word.starts_with("on") && word.contains('=')).collect()
}
