//! The live parts of a run's page: what a page that follows shows in the end is what a page that is loaded shows.

use std::collections::BTreeMap;

use cantrip_reply::codes;
use cantrip_serve::http::Options;
use cantrip_serve::limits::KEPT_TURNS;
use cantrip_service::cantrip::loom::{AnyLoom, MemoryLoom};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use super::support::{Server, answered, places, refused, server};

/// One event as received.
#[derive(Debug, Clone, PartialEq)]
struct Event {
    id: Option<u64>,
    name: String,
    data: String,
}

/// An open feed of parts.
struct Parts {
    bytes: BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
    text: String,
}

impl Parts {
    /// Opens the feed; none if there is nothing more to send.
    async fn open(server: &Server, path: &str, last: Option<u64>) -> Option<Self> {
        let mut request = server.client.get(server.url(path));
        if let Some(last) = last {
            request = request.header("last-event-id", last.to_string());
        }
        let response = request.send().await.unwrap();
        if response.status() == 204 {
            return None;
        }
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Some(Self { bytes: response.bytes_stream().boxed(), text: String::new() })
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                match read(&block) {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let piece = self.bytes.next().await?.ok()?;
            self.text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }

    async fn all(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

fn read(block: &str) -> Option<Event> {
    let (mut id, mut name, mut data) = (None, String::new(), Vec::new());
    for line in block.lines() {
        match line.split_once(": ").unwrap_or((line, "")) {
            ("id", value) => id = Some(value.parse().unwrap()),
            ("event", value) => value.clone_into(&mut name),
            ("data" | "data:", value) => data.push(value.to_owned()),
            ("retry" | "", _) => {}
            other => panic!("{other:?}"),
        }
    }
    (!name.is_empty()).then(|| Event { id, name, data: data.join("\n") })
}

/// Returns the articles of turns in a page or a part, by their ids.
fn articles(html: &str) -> BTreeMap<String, String> {
    let begins = html.split("<article").skip(1).filter_map(|rest| rest.split_once("</article>"));
    begins
        .map(|(article, _)| {
            let id = article.split(" id=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
            (id.to_owned(), article.to_owned())
        })
        .collect()
}

/// Puts the parts of an event in the place of what was there, as the script of the page does.
fn put(held: &mut BTreeMap<String, String>, event: &Event) {
    for (id, article) in articles(&event.data) {
        let is_open = article.contains(" data-open");
        if article.contains(" data-gone") {
            held.remove(&id);
        } else if !is_open || !held.contains_key(&id) {
            held.insert(id, article);
        }
    }
}

async fn page(server: &Server, path: &str) -> String {
    let response = server.client.get(server.url(path)).send().await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    response.text().await.unwrap()
}

fn long(turns: usize) -> (String, String) {
    let mut script = String::from("responses:\n");
    for turn in 0..turns {
        script.push_str(&format!(
            "  - {{thinking: 'So this is turn {turn}.', content: 'Turn **{turn}** says a few words, one after the \
             other.', pace_ms: 1, tool_calls: [{{id: c{turn}, gate: echo, args: {{text: t{turn}}}}}]}}\n"
        ));
    }
    script.push_str("  - tool_calls: [{id: end, gate: done, args: {answer: over}}]\n");
    ("long".to_owned(), script)
}

async fn with_spell(spell: (String, String)) -> Server {
    Server::over(AnyLoom::new(MemoryLoom::new()), Options::default(), &[spell]).await
}

#[tokio::test]
async fn a_page_that_followed_shows_the_turns_of_a_page_that_is_loaded() {
    let server = server().await;
    let run = server.cast("slow").await;
    let events = Parts::open(&server, &format!("/runs/{run}/parts"), None).await.unwrap().all().await;
    assert!(events.iter().all(|event| matches!(event.name.as_str(), "part" | "end")), "{events:?}");
    assert_eq!(events.last().unwrap().name, "end");
    let mut held = BTreeMap::new();
    events.iter().for_each(|event| put(&mut held, event));
    let loaded = articles(&page(&server, &format!("/runs/{run}")).await);
    assert_eq!(loaded.len(), 3);
    assert_eq!(held, loaded);
    // Its words came before all of them were said, as plain text that grows.
    let said = "One moment please, this takes a while.";
    let growing: Vec<&str> = events
        .iter()
        .filter_map(|event| event.data.split("<div class=\"live\">").nth(1)?.split("</div>").next())
        .filter(|text| text.starts_with("One"))
        .collect();
    assert!(growing.iter().any(|text| text.len() < said.len()), "{growing:?}");
    assert!(growing.iter().all(|text| said.starts_with(text)), "{growing:?}");
    // The head follows the state, and the answer is there at the end.
    let last = |id: &str| {
        let begin = format!("id=\"{id}\"");
        events.iter().rev().find(|event| event.data.contains(&begin)).map(|event| event.data.clone())
    };
    assert!(last("head").unwrap().contains("terminated"), "{:?}", last("head"));
    assert!(last("answer").unwrap().contains("slow"), "{:?}", last("answer"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_whose_feed_is_cut_anywhere_ends_as_one_that_was_never_cut() {
    for place in places() {
        let server = Server::over(place.loom(), Options::default(), &[long(12)]).await;
        let run = server.cast("long").await;
        let path = format!("/runs/{run}/parts");
        let (mut held, mut last, mut seed, mut cuts) = (BTreeMap::new(), None, 11_u64, 0);
        'page: while let Some(mut reading) = Parts::open(&server, &path, last).await {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            for _ in 0..(seed >> 33) % 4 {
                let Some(event) = reading.next().await else { break };
                if event.name == "end" {
                    break 'page;
                }
                assert!(event.id.unwrap_or(u64::MAX) >= last.unwrap_or(0), "an id never goes back: {event:?}");
                last = event.id.or(last);
                put(&mut held, &event);
            }
            cuts += 1;
        }
        assert!(cuts > 2, "it was cut {cuts} times");
        assert_eq!(held, articles(&page(&server, &format!("/runs/{run}")).await));
        server.stop().await;
    }
}

#[tokio::test]
async fn the_id_that_a_browser_repeats_counts_more_than_the_cursor_of_its_address() {
    let server = server().await;
    let run = server.cast("three").await;
    server.until(&run, "terminated").await;
    let path = format!("/runs/{run}/parts?cursor=1");
    let all = Parts::open(&server, &path, None).await.unwrap().all().await;
    let newest = all.iter().filter_map(|event| event.id).max();
    assert!(newest > Some(1));
    assert!(Parts::open(&server, &path, newest).await.is_none(), "all of it was seen");
}

#[tokio::test]
async fn a_cursor_behind_what_is_kept_is_stale_and_the_window_shows_the_end() {
    let server = with_spell(long(KEPT_TURNS + 20)).await;
    let run = server.cast("long").await;
    server.until(&run, "terminated").await;
    let request = server.client.get(server.url(&format!("/runs/{run}/parts?cursor=3")));
    refused_status(request, 410).await;
    let window = server.client.get(server.url(&format!("/runs/{run}"))).header("cantrip-part", "window");
    let window = window.send().await.unwrap().text().await.unwrap();
    assert!(window.contains("id=\"thread\"") && window.contains("data-cursor="), "{window}");
    let shown = articles(&window);
    assert!(!shown.is_empty() && shown.len() <= 40, "{} turns", shown.len());
    let newest = articles(&page(&server, &format!("/runs/{run}")).await);
    assert_eq!(shown, newest);
}

async fn refused_status(request: reqwest::RequestBuilder, status: u16) {
    let response = request.header("accept", "text/event-stream").send().await.unwrap();
    assert_eq!(response.status().as_u16(), status);
}

#[tokio::test]
async fn a_run_or_an_entity_that_does_not_exist_has_no_parts() {
    let server = server().await;
    let run = server.cast("three").await;
    let nowhere = server.client.get(server.url("/runs/run_06cyf9k2vtd3m8x1q7hbz4n5rw/parts"));
    refused_status(nowhere, 404).await;
    let entity = server.client.get(server.url(&format!("/runs/{run}/parts?entity=somebody")));
    refused_status(entity, 404).await;
    // Programs use the other feed, whose refusals are envelopes.
    let missing = server.client.get(server.url("/v1/runs/run_06cyf9k2vtd3m8x1q7hbz4n5rw/events"));
    refused(answered(missing).await, 404, codes::NOT_FOUND.any());
}

#[tokio::test]
async fn no_part_holds_a_secret_and_no_text_becomes_an_element() {
    let script = "responses:\n  - {content: 'use postgres://ada:hunter2@db/x <img src=x onerror=alert(1)>', pace_ms: 5, \
                  tool_calls: [{id: c1, gate: echo, args: {text: 'postgres://ada:hunter2@db/x </div><script>1</script>'}}]}\n  \
                  - tool_calls: [{id: c2, gate: done, args: {answer: 'postgres://ada:hunter2@db/x'}}]\n";
    let server = with_spell(("leaks".to_owned(), script.to_owned())).await;
    let run = server.cast("leaks").await;
    let events = Parts::open(&server, &format!("/runs/{run}/parts"), None).await.unwrap().all().await;
    let all: String = events.iter().map(|event| event.data.as_str()).collect();
    assert!(all.contains("[REDACTED]") && !all.contains("hunter2"), "{all}");
    assert!(!all.contains("<img") && !all.contains("<script"), "{all}");
    assert!(all.contains("&lt;img src=x onerror=alert(1)&gt;"), "{all}");
}

#[tokio::test]
async fn the_page_of_a_long_run_that_nobody_followed_has_its_last_turns_and_none_of_them_open() {
    let server = with_spell(long(60)).await;
    let run = server.cast("long").await;
    server.until(&run, "terminated").await;
    let shown = articles(&page(&server, &format!("/runs/{run}")).await);
    assert!((1..=40).contains(&shown.len()), "{} turns", shown.len());
    assert!(shown.values().all(|article| !article.contains(" data-open")), "{shown:?}");
    assert!(shown.values().any(|article| article.contains("data-sequence=\"61\"")), "{:?}", shown.keys());
}
