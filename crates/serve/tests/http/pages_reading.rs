//! The content of pages: to whom, from which store, and where something is missing.

use cantrip_reply::codes;
use cantrip_serve::http::{Options, Tokens};
use cantrip_service::cantrip::loom::{AnyLoom, MemoryLoom};
use serde_json::json;

use super::owners::{ANN, BOB, guarded};
use super::pages_browser::Browser;
use super::support::{Server, durable, places, refused, server};

#[tokio::test]
async fn what_another_owner_did_is_not_found_anywhere() {
    let server = guarded().await.with_token(ANN);
    let run = server.cast("slow").await;
    let shown = server.until(&run, "terminated").await;
    let turns = server.value(&format!("/v1/runs/{run}/turns")).await;
    let turn = turns["items"][0]["id"].as_str().unwrap();
    let (entity, loom) = (shown["entity_id"].as_str().unwrap(), shown["loom_id"].as_str().unwrap());
    let asks = server.cast("asks").await;
    let waiting = server.until(&asks, "waiting").await;
    let approval = waiting["approvals"][0]["approval_id"].as_str().unwrap();
    let gets = [
        format!("/runs/{run}"),
        format!("/runs/{}", &run[..20]),
        format!("/runs/{run}?at={turn}"),
        format!("/runs/{run}/tree"),
        format!("/runs/{run}/files"),
        format!("/runs/{run}/records"),
        format!("/runs/{run}/sent/{turn}"),
        format!("/runs/{run}/output/{turn}/0"),
        format!("/runs/{run}/export?as=turns"),
        format!("/runs/{run}/export?as=journal"),
        format!("/runs/{run}/export?as=chat"),
        format!("/runs/{run}/export?as=markdown"),
        format!("/runs/{run}/export?as=page"),
        format!("/runs/{run}/parts"),
        format!("/runs/{run}/cancel"),
        format!("/runs/{run}/continue"),
        format!("/turns/{turn}"),
        format!("/turns/{turn}/fork"),
        format!("/calls/{turn}:0"),
        format!("/entities/{entity}"),
        format!("/looms/{loom}"),
        format!("/go/{run}"),
        format!("/go/{turn}"),
        format!("/compare?a={turn}&b={turn}"),
        format!("/compare?of={run}&of={run}"),
        format!("/approvals/{approval}?run={asks}"),
        format!("/approvals/{approval}"),
        format!("/bodies/sha256:{}?run={run}", "0".repeat(64)),
    ];
    let ann = Browser::signed_in(&server, ANN).await;
    for path in gets.iter().filter(|path| !path.starts_with("/bodies")) {
        let status = ann.get(path).await.status;
        assert!(matches!(status, 200 | 204 | 303), "{path}: its owner sees it: {status}");
    }
    let bob = Browser::signed_in(&server, BOB).await;
    for path in &gets {
        let shown = bob.get(path).await;
        assert_eq!(shown.status, 404, "{path}: {shown:?}");
        shown.holds(codes::NOT_FOUND.any().as_str());
    }
    for part in ["window", "spine"] {
        assert_eq!(bob.part(&format!("/runs/{run}"), part).await.status, 404, "{part}");
    }
    for path in [
        format!("/runs/{run}/cancel"),
        format!("/runs/{run}/resume"),
        format!("/runs/{run}/continue"),
        format!("/turns/{turn}/fork"),
        format!("/turns/{turn}/reward"),
        format!("/approvals/{approval}?run={asks}"),
    ] {
        let fields = [("decision", "refuse"), ("intent", "mine"), ("reward", "1")];
        assert_eq!(bob.post(&path, &fields).await.status, 404, "{path}");
    }
    for path in ["/runs", "/runs?owner=ann", "/runs?q=go", "/looms", "/approvals"] {
        let shown = bob.page(path).await;
        assert!(!shown.text.contains(&run) && !shown.text.contains(&asks) && !shown.text.contains(loom), "{path}");
    }
    assert_eq!(server.value(&format!("/v1/runs/{asks}")).await["state"], "waiting");
}

#[tokio::test]
async fn a_secret_is_on_no_page() {
    // The tokens of a server are secrets that its process knows.
    let secret = ANN;
    let said = format!(
        "responses:\n  - {{content: 'it is {secret}', thinking: '{secret}', tool_calls: [{{id: c1, gate: echo, args: \
         {{text: '{secret}'}}}}]}}\n  - tool_calls: [{{id: c2, gate: done, args: {{answer: '{secret}'}}}}]\n"
    );
    let tokens = Tokens::parse(&format!("local = {BOB}\nann = {ANN}\n")).unwrap();
    let options = Options { tokens: Some(tokens), ..Options::default() };
    let spells = [("leaks".to_owned(), said)];
    let server = Server::over(AnyLoom::new(MemoryLoom::new()), options, &spells).await.with_token(BOB);
    let cast = json!({"spell": "leaks", "intent": format!("use {secret}")});
    let (status, envelope) = server.post("/v1/casts", cast).await;
    assert!(matches!(status, 201 | 202), "{envelope}");
    let run = envelope["data"]["run_id"].as_str().unwrap().to_owned();
    let shown = server.until(&run, "terminated").await;
    let turns = server.value(&format!("/v1/runs/{run}/turns")).await;
    let turn = turns["items"][0]["id"].as_str().unwrap();
    let loom = shown["loom_id"].as_str().unwrap();
    let browser = Browser::signed_in(&server, BOB).await;
    let mut paths = vec!["/runs".to_owned(), "/looms".to_owned(), format!("/looms/{loom}"), format!("/runs/{run}")];
    paths.extend(["tree", "files", "records", "cancel", "continue"].map(|name| format!("/runs/{run}/{name}")));
    let formats = ["turns", "journal", "chat", "markdown", "page"];
    paths.extend(formats.map(|format| format!("/runs/{run}/export?as={format}")));
    paths.extend((0..4).map(|n| format!("/runs/{run}/output/{turn}/{n}")));
    paths.extend([
        format!("/runs/{run}/sent/{turn}"),
        format!("/turns/{turn}/fork"),
        format!("/compare?a={turn}&b={turn}"),
    ]);
    for path in &paths {
        let shown = browser.get(path).await;
        assert!(matches!(shown.status, 200 | 404), "{path}: {shown:?}");
        assert!(!shown.text.contains(secret), "{path}: {}", shown.text);
        assert!(!format!("{:?}", shown.headers).contains(secret), "{path}");
    }
    browser.page(&format!("/runs/{run}")).await.holds("[REDACTED]");
    for part in ["window", "spine", "rows"] {
        assert!(!browser.part(&format!("/runs/{run}"), part).await.text.contains(secret), "{part}");
    }
}

#[tokio::test]
async fn what_is_missing_has_a_page_with_advice_and_a_working_frame() {
    let server = server().await;
    let browser = Browser::at(&server);
    for (path, text) in [("/runs", "No run yet"), ("/approvals", ""), ("/looms", ""), ("/spells", "three")] {
        browser.page(path).await.holds(text);
    }
    let absent = "06cyf9k2vtd3m8x1q7hbz4n5rw";
    let faults = [
        (format!("/runs/run_{absent}"), 404, codes::NOT_FOUND.any()),
        ("/runs/x".to_owned(), 404, codes::NOT_FOUND.any()),
        (format!("/turns/turn_{absent}"), 404, codes::NOT_FOUND.any()),
        ("/calls/x".to_owned(), 404, codes::NOT_FOUND.any()),
        (format!("/looms/loom_{absent}"), 404, codes::NOT_FOUND.any()),
        ("/go/x".to_owned(), 404, codes::NOT_FOUND.any()),
        ("/spells/none".to_owned(), 404, codes::NOT_FOUND.any()),
        ("/codes/none".to_owned(), 404, codes::NOT_FOUND.any()),
        ("/approvals/none".to_owned(), 404, codes::NOT_FOUND.any()),
        ("/nowhere".to_owned(), 404, codes::NOT_FOUND.any()),
        ("/runs?before=soon".to_owned(), 422, codes::SCHEMA.any()),
        ("/runs?state=asleep".to_owned(), 422, codes::SCHEMA.any()),
        ("/compare?a=only".to_owned(), 422, codes::SCHEMA.any()),
        (format!("/runs?q={}", "x".repeat(1_100)), 413, codes::LIMIT.any()),
    ];
    for (path, status, code) in &faults {
        let shown = browser.get(path).await;
        assert_eq!(shown.status, *status, "{path}: {shown:?}");
        shown.holds(code.as_str());
        shown.holds("trace");
        shown.holds("href=\"/approvals\"");
        assert_eq!(shown.text.matches("<h1").count(), 1, "{path}");
    }
    // A program that asks for something unknown gets an envelope, as before.
    refused(server.get("/nowhere").await, 404, codes::NOT_FOUND.any());
    let method = browser.send(browser.posting("/runs", "text/plain", "").header("origin", browser.origin())).await;
    assert_eq!(method.status, 405, "{method:?}");
}

#[tokio::test]
async fn a_shortened_id_leads_to_the_whole_one() {
    let server = server().await;
    let run = server.cast("three").await;
    let loom = server.until(&run, "terminated").await["loom_id"].as_str().unwrap().to_owned();
    let browser = Browser::at(&server);
    let short = &run[..run.len() - 4];
    assert_eq!(browser.get(&format!("/runs/{short}")).await.location(), format!("/runs/{run}"));
    assert_eq!(browser.get(&format!("/runs/{short}/tree")).await.location(), format!("/runs/{run}/tree"));
    assert_eq!(browser.get(&format!("/runs/{short}?at=1")).await.location(), format!("/runs/{run}?at=1"));
    assert_eq!(browser.get(&format!("/go/{short}")).await.location(), format!("/runs/{run}"));
    assert_eq!(browser.get(&format!("/go/{loom}")).await.location(), format!("/looms/{loom}"));
    assert_eq!(browser.get(&format!("/looms/{short}")).await.status, 404, "a run is no loom");
}

#[tokio::test]
async fn a_part_is_sent_again_only_if_it_changed() {
    let server = server().await;
    let browser = Browser::at(&server);
    let count = browser.part("/approvals", "count").await;
    assert_eq!((count.status, count.header("vary")), (200, "cantrip-part"));
    assert!(!count.text.contains("<html"), "{count:?}");
    let tag = count.header("etag").to_owned();
    let again = browser.getting("/approvals").header("cantrip-part", "count").header("if-none-match", &tag);
    let again = browser.send(again).await;
    assert_eq!((again.status, again.text.as_str()), (304, ""));
    let run = server.cast("asks").await;
    server.until(&run, "waiting").await;
    let changed = browser.getting("/approvals").header("cantrip-part", "count").header("if-none-match", &tag);
    let changed = browser.send(changed).await;
    assert_eq!(changed.status, 200);
    changed.holds("data-waiting=\"1\"");
    let rows = browser.part("/runs", "rows").await;
    rows.holds(&run);
    rows.holds("id=\"rows\"");
    let window = browser.part(&format!("/runs/{run}"), "window").await;
    window.holds("id=\"thread\"");
    window.holds("may I");
    browser.get(&format!("/runs/{run}")).await.holds("may I");
    let token = browser.form_token();
    assert!(!token.is_empty() && !window.text.contains(&token), "a part is the same for everyone who sees it");
}

#[tokio::test]
async fn an_output_and_an_export_are_downloads() {
    let server = server().await;
    let run = server.cast("slow").await;
    server.until(&run, "terminated").await;
    let turns = server.value(&format!("/v1/runs/{run}/turns")).await;
    let turn = turns["items"][0]["id"].as_str().unwrap();
    let browser = Browser::at(&server);
    let output = browser.page(&format!("/runs/{run}/output/{turn}/1")).await;
    assert_eq!(output.text, "a", "{output:?}");
    assert_eq!(output.header("content-disposition"), format!("attachment; filename=\"{turn}.1.txt\""));
    assert_eq!(browser.get(&format!("/runs/{run}/output/{turn}/9")).await.status, 404);
    for (format, ending) in [("turns", "jsonl"), ("journal", "jsonl"), ("chat", "jsonl"), ("markdown", "md")] {
        let exported = browser.page(&format!("/runs/{run}/export?as={format}")).await;
        assert_eq!(exported.header("content-disposition"), format!("attachment; filename=\"{run}.{ending}\""));
        assert!(exported.text.contains("slow"), "{format}: {exported:?}");
    }
    let page = browser.page(&format!("/runs/{run}/export?as=page")).await;
    assert_eq!(page.header("content-disposition"), format!("attachment; filename=\"{run}.html\""));
    assert!(!page.text.contains("<script") && page.text.contains("<style"), "one file without a script");
    assert_eq!(browser.get(&format!("/runs/{run}/export?as=poem")).await.status, 422);
}

/// Returns the page without what differs from store to store: ids, keys, numbers and units of time.
fn alike(text: &str) -> String {
    let (mut kept, mut word) = (String::new(), String::new());
    for char in text.chars().chain([' ']) {
        if char.is_ascii_alphanumeric() || char == '_' {
            word.push(char);
            continue;
        }
        let is_number = word.starts_with(|first: char| first.is_ascii_digit());
        match word.as_str() {
            "ms" | "s" | "min" => kept.push_str("TIME"),
            long if long.len() > 12 && long.contains(|char: char| char.is_ascii_digit()) => kept.push_str("ID"),
            _ if is_number => kept.push('0'),
            short => kept.push_str(short),
        }
        word.clear();
        kept.push(char);
    }
    kept.replace("0.0", "0").replace("0,0", "0")
}

#[tokio::test]
async fn every_store_gives_the_same_pages() {
    let mut all: Vec<Vec<String>> = Vec::new();
    for place in places() {
        let server = Server::over(place.loom(), Options::default(), &[]).await;
        let run = server.cast("slow").await;
        let loom = server.until(&run, "terminated").await["loom_id"].as_str().unwrap().to_owned();
        let asks = server.cast("asks").await;
        server.until(&asks, "waiting").await;
        let browser = Browser::at(&server);
        let paths = [
            "/runs".to_owned(),
            "/runs?state=waiting&q=go".to_owned(),
            format!("/runs/{run}"),
            format!("/runs/{asks}"),
            format!("/runs/{run}/tree"),
            format!("/looms/{loom}"),
            "/approvals".to_owned(),
        ];
        let mut pages = Vec::new();
        for path in &paths {
            pages.push(alike(&browser.page(path).await.text));
        }
        all.push(pages);
    }
    for (place, other) in all.iter().enumerate().skip(1) {
        for (page, (first, other)) in all[0].iter().zip(other).enumerate() {
            assert_eq!(first, other, "store {place}, page {page}");
        }
    }
}

#[tokio::test]
async fn a_run_of_another_process_is_shown_and_moves_by_its_records() {
    for place in durable() {
        let (here, there) = (
            Server::over(place.loom(), Options::default(), &[]).await,
            Server::over(place.loom(), Options::default(), &[]).await,
        );
        let run = there.cast("slow").await;
        let browser = Browser::at(&here);
        let begun = browser.page(&format!("/runs/{run}")).await;
        begun.holds(&format!("data-feed=\"/runs/{run}/parts\""));
        there.until(&run, "terminated").await;
        let ended = browser.page(&format!("/runs/{run}")).await;
        ended.holds("slow");
        assert!(!ended.text.contains("data-feed"), "a run that has ended does not move");
        browser.page("/runs").await.holds(&run);
    }
}
