//! The feeds of a run: interrupted and resumed anywhere, without a gap, and bounded for a client that does not read.

use std::collections::BTreeMap;
use std::time::Duration;

use cantrip_reply::codes;
use cantrip_reply::testing::assert_envelope;
use cantrip_serve::http::Options;
use cantrip_serve::limits::KEPT_TURNS;
use cantrip_service::cantrip::canon::{RetentionId, Timestamp};
use cantrip_service::cantrip::loom::{Actor, AnyLoom, Journal, MemoryLoom, RetentionOrder, RetentionPolicy, Seq};
use futures_util::StreamExt;
use serde_json::{Value, json};

use super::contracts::SIGNATURE;
use super::support::{PREDICTS, Server, durable, places, refused, server};

/// One event as received.
#[derive(Debug, Clone, PartialEq)]
struct Event {
    id: Option<u64>,
    name: String,
    data: Value,
}

/// An open feed.
struct Feed {
    bytes: futures_util::stream::BoxStream<'static, reqwest::Result<axum::body::Bytes>>,
    text: String,
    comments: usize,
    retry: Option<String>,
}

enum Opened {
    Feed(Feed),
    Status(u16, Value),
}

async fn open(server: &Server, path: &str, last: Option<u64>) -> Opened {
    let mut request = server.asks(server.client.get(server.url(path)));
    if let Some(last) = last {
        request = request.header("last-event-id", last.to_string());
    }
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    if status != 200 {
        let text = response.text().await.unwrap();
        return Opened::Status(status, serde_json::from_str(&text).unwrap_or_default());
    }
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let bytes = response.bytes_stream().boxed();
    Opened::Feed(Feed { bytes, text: String::new(), comments: 0, retry: None })
}

async fn feed(server: &Server, path: &str, last: Option<u64>) -> Feed {
    match open(server, path, last).await {
        Opened::Feed(feed) => feed,
        Opened::Status(status, envelope) => panic!("{status} {envelope}"),
    }
}

impl Feed {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.text = rest;
                match self.read(&block) {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let piece = self.bytes.next().await?.ok()?;
            self.text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }

    fn read(&mut self, block: &str) -> Option<Event> {
        let (mut id, mut name, mut data) = (None, String::new(), None);
        for line in block.lines() {
            match line.split_once(": ").unwrap_or((line, "")) {
                ("id", value) => id = Some(value.parse().unwrap()),
                ("event", value) => value.clone_into(&mut name),
                ("data", value) => data = Some(serde_json::from_str(value).unwrap()),
                ("retry", value) => self.retry = Some(value.to_owned()),
                ("", _) => self.comments += 1,
                other => panic!("{other:?}"),
            }
        }
        Some(Event { id, name, data: data? })
    }

    /// Reads everything up to the end.
    async fn all(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

/// The state of a client that follows the rules of the feed, and nothing else.
#[derive(Debug, Default, Clone, PartialEq)]
struct Held {
    turns: BTreeMap<String, BTreeMap<String, Value>>,
    ends: BTreeMap<String, Value>,
    run: Value,
    ended: bool,
}

impl Held {
    fn take(&mut self, event: &Event) {
        let mut data = event.data.clone();
        let text = |data: &Value, key: &str| data[key].as_str().unwrap_or_default().to_owned();
        let turn = text(&data, "turnId");
        match event.name.as_str() {
            "turn" if data["type"] == "turn_started" => {
                // A turn that is started again replaces the earlier one.
                self.turns.insert(turn, BTreeMap::new());
            }
            "turn" => {
                self.ends.insert(turn, data);
            }
            "upsert" => {
                // The time of sending is not part of the state.
                for key in ["emittedAt", "sourceTimestamp"] {
                    data.as_object_mut().unwrap().remove(key);
                }
                self.turns.get_mut(&turn).expect("a turn is started first").insert(text(&data, "itemId"), data);
            }
            "run" => self.run = data,
            "end" => self.ended = true,
            other => panic!("{other}"),
        }
    }

    fn of(events: &[Event]) -> Self {
        let mut held = Self::default();
        events.iter().for_each(|event| held.take(event));
        held
    }
}

fn long(turns: usize, pace_ms: u64) -> (String, String) {
    let mut script = String::from("responses:\n");
    for turn in 0..turns {
        script.push_str(&format!(
            "  - {{thinking: 'So this is turn {turn}.', content: 'Turn {turn} says a few words, one after the other.', pace_ms: {pace_ms}, \
             tool_calls: [{{id: c{turn}, gate: echo, args: {{text: t{turn}}}}}]}}\n"
        ));
    }
    script.push_str("  - tool_calls: [{id: end, gate: done, args: {answer: over}}]\n");
    ("long".to_owned(), script)
}

async fn with_long(turns: usize, pace_ms: u64) -> Server {
    Server::over(AnyLoom::new(MemoryLoom::new()), Options::default(), &[long(turns, pace_ms)]).await
}

#[tokio::test]
async fn a_run_is_shown_as_it_happens_in_order_and_to_its_end() {
    let server = server().await;
    let run = server.cast("slow").await;
    let mut reading = feed(&server, &format!("/v1/runs/{run}/events"), None).await;
    let mut events = Vec::new();
    while let Some(event) = reading.next().await {
        events.push(event);
    }
    assert_eq!(reading.retry.as_deref(), Some("2000"));
    let held = Held::of(&events);
    assert!(held.ended);
    assert_eq!(held.turns.len(), 3, "{events:?}");
    assert_eq!(held.ends.len(), 3);
    assert_eq!(held.run["state"], "terminated");
    assert_eq!(held.run["reply"]["code"], codes::TERMINATED.any().to_string());
    let answer = held.run["answerItemId"].as_str().unwrap();
    let shown = held.turns.values().find_map(|items| items.get(answer)).unwrap();
    assert_eq!((&shown["content"], &shown["status"]), (&json!("slow"), &json!("complete")));
    // A part of the text arrived before all of it.
    let text = |event: &Event| event.data["content"].as_str().unwrap_or_default().to_owned();
    let partial = events.iter().any(|event| {
        let said = text(event);
        event.name == "upsert"
            && said.starts_with("One moment")
            && said.len() < "One moment please, this takes a while.".len()
    });
    assert!(partial, "{events:?}");
    // Only events that report a record have an id; ids never decrease; the end of a turn comes after its items and
    // before the run.
    let mut last = 0;
    for event in &events {
        let durable = event.name == "run" || (event.name == "turn" && event.data["type"] != "turn_started");
        assert_eq!(event.id.is_some(), durable, "{event:?}");
        assert!(event.id.unwrap_or(last) >= last, "{event:?} after {last}");
        last = event.id.unwrap_or(last);
    }
    for turn in held.ends.keys() {
        let of_turn: Vec<&Event> = events.iter().filter(|event| event.data["turnId"] == **turn).collect();
        assert_eq!(of_turn.first().unwrap().data["type"], "turn_started");
        assert_eq!(of_turn.last().unwrap().name, "turn");
        let end = events.iter().position(|event| event == *of_turn.last().unwrap()).unwrap();
        assert_eq!(events[end + 1].name, "run", "{:?}", events[end + 1]);
    }
    // A client that connects after the end gets the same events; a client that has seen all of them gets none.
    let again = feed(&server, &format!("/v1/runs/{run}/events"), None).await.all().await;
    assert_eq!(Held::of(&again), held);
    let Opened::Status(204, _) = open(&server, &format!("/v1/runs/{run}/events"), Some(last)).await else {
        panic!("there is nothing more")
    };
}

#[tokio::test(flavor = "multi_thread")]
async fn who_drops_and_returns_reaches_the_state_of_one_who_never_dropped() {
    for place in places() {
        let server = Server::over(place.loom(), Options::default(), &[long(30, 1)]).await;
        drops_and_returns(&server).await;
        server.stop().await;
    }
}

async fn drops_and_returns(server: &Server) {
    let run = server.cast("long").await;
    let path = format!("/v1/runs/{run}/events");
    let staying = tokio::spawn(feed(server, &path, None).await.all());
    let mut held = Held::default();
    let (mut last, mut seed, mut drops) = (None, 7_u64, 0);
    while !held.ended {
        let Opened::Feed(mut reading) = open(server, &path, last).await else { break };
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        for _ in 0..(seed >> 33) % 40 {
            let Some(event) = reading.next().await else { break };
            last = event.id.or(last);
            held.take(&event);
        }
        drops += 1;
    }
    assert!(drops > 5, "it dropped {drops} times");
    let stayed = Held::of(&staying.await.unwrap());
    assert_eq!(stayed.turns.len(), 31);
    held.ended = true;
    assert_eq!(held, stayed);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_come_once_each_and_without_a_gap_however_often_a_client_returns() {
    for place in places() {
        let server = Server::over(place.loom(), Options::default(), &[long(20, 0)]).await;
        returns_for_records(&server).await;
        server.stop().await;
    }
}

async fn returns_for_records(server: &Server) {
    let run = server.cast("long").await;
    let path = format!("/v1/runs/{run}/records");
    let (mut seen, mut seed, mut cuts) = (Vec::new(), 3_u64, 0);
    'reading: loop {
        let last = seen.last().map(|event: &Event| event.id.unwrap());
        let Opened::Feed(mut reading) = open(server, &path, last).await else { break };
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        for _ in 0..=(seed >> 33) % 4 {
            match reading.next().await {
                Some(event) if event.id.is_some() => seen.push(event),
                Some(end) => {
                    assert_eq!(end.name, "end");
                    break 'reading;
                }
                None => break,
            }
        }
        cuts += 1;
    }
    assert!(cuts >= 20, "it was cut {cuts} times");
    let run = run.parse().unwrap();
    let stored: Vec<_> = server.host.runtime().loom().read(run, Seq::START).collect().await;
    assert_eq!(seen.len(), stored.len());
    for (place, (event, record)) in (1..).zip(seen.iter().zip(stored)) {
        let record = record.unwrap();
        assert_eq!(event.id, Some(place));
        assert_eq!(event.name, record.kind.as_str());
        assert_eq!(event.data["event_hash"], record.hash.to_string());
        assert_eq!(event.data["payload"].to_string().len(), record.payload.len(), "{event:?}");
    }
    let newest = seen.last().unwrap().id;
    let Opened::Status(204, _) = open(server, &path, newest).await else { panic!("all was sent") };
    let behind = feed(server, &path, newest.map(|newest| newest - 1)).await.all().await;
    assert_eq!(behind.iter().map(|event| event.id).collect::<Vec<_>>(), [newest, None]);
    let tail = feed(server, &format!("{path}?from=tail"), None).await.all().await;
    assert_eq!(tail.iter().map(|event| event.name.as_str()).collect::<Vec<_>>(), ["end"]);
}

#[tokio::test]
async fn a_cursor_that_is_none_is_refused() {
    let server = server().await;
    let run = server.cast("three").await;
    server.until(&run, "terminated").await;
    for feed in ["events", "records"] {
        let path = format!("/v1/runs/{run}/{feed}");
        for cursor in ["x", "-1", "1.5", "", "99999", "18446744073709551616", "+1"] {
            refused(
                server.get(&format!("{path}?cursor={}", cursor.replace('+', "%2B"))).await,
                400,
                codes::CURSOR_INVALID.any(),
            );
        }
        let request = server.client.get(server.url(&format!("{path}?cursor=1"))).header("last-event-id", "2");
        refused(super::support::answered(request).await, 400, codes::CURSOR_INVALID.any());
        let request = server.client.get(server.url(&format!("{path}?cursor=1"))).header("last-event-id", "1");
        assert_eq!(request.send().await.unwrap().status(), 200);
        refused(server.get(&format!("{path}?from=somewhere")).await, 422, codes::SCHEMA.any());
        refused(
            server.get(&format!("/v1/runs/run_06cyf9k2vtd3m8x1q7hbz4n5rw/{feed}")).await,
            404,
            codes::NOT_FOUND.any(),
        );
    }
}

#[tokio::test]
async fn a_cursor_behind_what_is_kept_is_stale_and_says_what_is() {
    let server = with_long(KEPT_TURNS + 20, 0).await;
    let run = server.cast("long").await;
    server.until(&run, "terminated").await;
    let path = format!("/v1/runs/{run}/events");
    let envelope = refused(server.get(&format!("{path}?cursor=3")).await, 410, codes::CURSOR_STALE.any());
    let oldest = envelope["data"]["oldest"].as_u64().unwrap();
    assert!(oldest > 3 && envelope["data"]["newest"].as_u64().unwrap() > oldest, "{envelope}");
    let kept = feed(&server, &path, Some(oldest)).await.all().await;
    assert_eq!(Held::of(&kept).turns.len(), KEPT_TURNS);
    let without = feed(&server, &path, None).await.all().await;
    assert_eq!(Held::of(&without).turns.len(), KEPT_TURNS, "without a cursor all that is kept");
    assert_eq!(
        server.value(&format!("/v1/runs/{run}/turns?most=1000")).await["items"].as_array().unwrap().len(),
        KEPT_TURNS + 21
    );
}

#[tokio::test]
async fn records_that_were_pruned_are_a_stale_cursor_and_the_rest_is_read() {
    for place in durable() {
        let server = Server::over(place.loom(), Options::default(), &[long(3, 0)]).await;
        let run = server.cast("long").await;
        let newest = server.until(&run, "terminated").await["newest"].as_u64().unwrap();
        let at: Timestamp = "2126-01-01T00:00:00.000Z".parse().unwrap();
        let order = RetentionOrder {
            retention_id: RetentionId::from_parts(at, [1; 10]),
            policy: RetentionPolicy { older_than_days: 0, kinds: None, owners: None },
            actor: Actor::new("ann").unwrap(),
            reason: "our policy".to_owned(),
            at,
        };
        let pruned = place.store().prune(&order, run.parse().unwrap(), Seq::new(9)).await.unwrap().seq.get();
        let path = format!("/v1/runs/{run}/records");
        let envelope = refused(server.get(&format!("{path}?cursor=1")).await, 410, codes::CURSOR_STALE.any());
        assert_eq!(envelope["data"]["oldest"], pruned + 1);
        assert_eq!(envelope["data"]["newest"], newest);
        let ids = |events: Vec<Event>| events.iter().filter_map(|event| event.id).collect::<Vec<_>>();
        let rest: Vec<u64> = (pruned + 1..=newest).collect();
        assert_eq!(ids(feed(&server, &path, Some(pruned)).await.all().await), rest, "from where it was cut");
        assert_eq!(ids(feed(&server, &path, None).await.all().await), rest, "without a cursor all that is kept");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_predict_is_followed_like_a_cast_while_it_runs_and_when_it_is_over() {
    let script = "responses:\n  - {tool_calls: [{id: c1, gate: done, args: {answer: {label: a}}}], delay_ms: 300}\n";
    for place in places() {
        let predicts = (PREDICTS.to_owned(), script.to_owned());
        let server = Server::over(place.loom(), Options::default(), &[predicts]).await;
        assert_eq!(server.post("/v1/signatures", json!({"definition": SIGNATURE})).await.0, 201);
        let asked = json!({"signature": "@acme/text/Classify.v1", "input": {"text": "x"}});
        let predict = server.post("/v1/predict", asked);
        let following = async {
            // The run is listed as soon as it has begun.
            let run = loop {
                let listed = server.value("/v1/runs").await;
                match listed["items"][0]["run_id"].as_str() {
                    Some(run) => break run.to_owned(),
                    None => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            };
            let [events, records] = ["events", "records"].map(|feed| format!("/v1/runs/{run}/{feed}"));
            let (events, records) = tokio::join!(feed(&server, &events, None), feed(&server, &records, None));
            let (events, records) = tokio::join!(events.all(), records.all());
            (run, events, records)
        };
        let ((_, predicted), (run, events, records)) = tokio::join!(predict, following);
        assert_envelope(&predicted, codes::PREDICTED.any());
        assert_eq!(predicted["data"]["run_id"], run);
        let held = Held::of(&events);
        assert!(held.ended, "{events:?}");
        assert_eq!(held.run["state"], "terminated", "{events:?}");
        assert_eq!(held.run["reply"]["code"], codes::PREDICTED.any().to_string());
        assert_eq!((held.turns.len(), held.ends.len()), (1, 1));
        let again = feed(&server, &format!("/v1/runs/{run}/events"), None).await.all().await;
        assert_eq!(Held::of(&again), held);
        let kinds: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
        assert!(kinds.contains(&"predict.closed") && kinds.last() == Some(&"end"), "{kinds:?}");
        let places: Vec<u64> = records.iter().filter_map(|record| record.id).collect();
        assert_eq!(places, (1..=places.len() as u64).collect::<Vec<_>>());
        let newest = places.last().copied();
        for path in ["events", "records"] {
            let Opened::Status(204, _) = open(&server, &format!("/v1/runs/{run}/{path}"), newest).await else {
                panic!("there is nothing more")
            };
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn silence_is_broken_by_heartbeats_and_a_server_that_stops_ends_its_feeds() {
    let options = Options { heartbeat: Duration::from_millis(30), ..Options::default() };
    let server = Server::over(AnyLoom::new(MemoryLoom::new()), options, &[]).await;
    let run = server.cast("stuck").await;
    for path in ["events", "records"] {
        let mut reading = feed(&server, &format!("/v1/runs/{run}/{path}"), None).await;
        let until = async {
            while reading.comments < 3 {
                drop(tokio::time::timeout(Duration::from_millis(20), reading.next()).await);
            }
        };
        tokio::time::timeout(Duration::from_secs(20), until).await.expect("it beats");
    }
    let reading = feed(&server, &format!("/v1/runs/{run}/events"), None).await;
    let reading = tokio::spawn(reading.all());
    server.stop().await;
    let events = reading.await.unwrap();
    assert!(events.iter().all(|event| event.name != "end"), "the run is not over: {events:?}");
}

#[tokio::test]
async fn another_process_shows_a_run_from_its_records() {
    let more = [long(5, 2)];
    for place in places() {
        let owner = Server::over(place.loom(), Options::default(), &more).await;
        let other = Server::over(place.loom(), Options::default(), &more).await;
        shown_by_another(&owner, &other).await;
    }
}

async fn shown_by_another(owner: &Server, other: &Server) {
    let run = owner.cast("long").await;
    let path = format!("/v1/runs/{run}/events");
    let (here, there) = tokio::join!(feed(owner, &path, None), feed(other, &path, None));
    let (here, there) = tokio::join!(here.all(), there.all());
    assert_eq!(Held::of(&there), Held::of(&here), "its items have the same names");
    let whole = there.iter().filter(|event| event.name == "upsert" && event.data["type"] == "message");
    assert!(
        whole.into_iter().all(|event| event.data["status"] == "complete"),
        "partial text comes from the owner only"
    );
}

#[tokio::test]
async fn a_run_that_waits_says_for_what_and_goes_on_under_the_eyes_of_its_viewers() {
    let server = server().await;
    let run = server.cast("asks").await;
    let path = format!("/v1/runs/{run}/events");
    let mut reading = feed(&server, &path, None).await;
    let mut events = Vec::new();
    loop {
        let event = reading.next().await.expect("it waits");
        let waits = event.name == "run" && event.data["state"] == "waiting";
        events.push(event);
        if waits {
            break;
        }
    }
    assert_eq!(events.last().unwrap().data["approval"]["gate"], "echo");
    server.until(&run, "waiting").await;
    assert_eq!(server.post(&format!("/v1/runs/{run}/approve"), json!({"decision": "approve"})).await.0, 200);
    while let Some(event) = reading.next().await {
        events.push(event);
    }
    let held = Held::of(&events);
    assert!(held.ended, "{events:?}");
    assert_eq!((held.turns.len(), held.ends.len()), (2, 2));
    let again = feed(&server, &path, None).await.all().await;
    assert_eq!(Held::of(&again), held);
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_viewers_of_one_run_all_see_its_end() {
    let server = with_long(10, 1).await;
    let run = server.cast("long").await;
    let path = format!("/v1/runs/{run}/events");
    let mut reading = Vec::new();
    for _ in 0..500 {
        reading.push(tokio::spawn(feed(&server, &path, None).await.all()));
    }
    let mut states = Vec::new();
    for viewer in reading {
        states.push(Held::of(&viewer.await.unwrap()));
    }
    assert!(states[0].ended && states[0].turns.len() == 11, "{:?}", states[0]);
    assert!(states.iter().all(|state| *state == states[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_readers_of_the_records_in_a_store_get_every_one_of_them() {
    for place in durable() {
        let server = Server::over(place.loom(), Options::default(), &[long(5, 1)]).await;
        let run = server.cast("long").await;
        let path = format!("/v1/runs/{run}/records");
        let mut reading = Vec::new();
        for _ in 0..500 {
            reading.push(tokio::spawn(feed(&server, &path, None).await.all()));
        }
        let newest = server.until(&run, "terminated").await["newest"].as_u64().unwrap();
        for reader in reading {
            let ids: Vec<u64> = reader.await.unwrap().iter().filter_map(|record| record.id).collect();
            assert_eq!(ids, (1..=newest).collect::<Vec<_>>());
        }
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_that_stops_reading_is_cut_off_and_nobody_waits_for_it() {
    let text = "word ".repeat(40_000);
    let script = (0..60).map(|turn| {
        format!("  - {{chunks: ['{text}'], tool_calls: [{{id: c{turn}, gate: echo, args: {{text: x}}}}]}}\n")
    });
    let script = format!(
        "responses:\n{}  - tool_calls: [{{id: e, gate: done, args: {{answer: over}}}}]\n",
        script.collect::<String>()
    );
    let options = Options { stall: Duration::from_millis(200), ..Options::default() };
    let server = Server::over(AnyLoom::new(MemoryLoom::new()), options, &[("loud".to_owned(), script)]).await;
    let run = server.cast("loud").await;
    let mut stuck = Vec::new();
    for _ in 0..20 {
        let path = format!("/v1/runs/{run}/events");
        stuck.push(server.client.get(server.url(&path)).send().await.unwrap());
    }
    let ended = server.until(&run, "terminated").await;
    assert_eq!(ended["answer"], "over", "the run did not notice them");
    tokio::time::sleep(Duration::from_millis(500)).await;
    for response in stuck {
        // The data in transit is still read; then the connection is closed before the end of the feed.
        let mut bytes = response.bytes_stream();
        let (mut read, mut broken) = (0, false);
        while let Some(piece) = bytes.next().await {
            match piece {
                Ok(piece) => read += piece.len(),
                Err(_) => broken = true,
            }
        }
        assert!(broken, "it was cut off");
        assert!(read < 8 << 20, "{read} bytes were held for it");
    }
}
