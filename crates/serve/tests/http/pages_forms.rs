//! Forms of pages: an action happens once, only for a form of their own session, and as the service allows.

use cantrip_reply::codes;
use cantrip_serve::limits::{FORM_BYTES_MAX, FORM_CONTEXT_BYTES_MAX};
use futures_util::future::{join, join_all};
use reqwest::header::ORIGIN;
use serde_json::{Value, json};

use super::owners::{ANN, ROOT, guarded, unfunded};
use super::pages_browser::{Browser, FORM, Shown, encoded};
use super::support::{Server, server};

async fn runs(server: &Server) -> Vec<Value> {
    server.value("/v1/runs").await["items"].as_array().unwrap().clone()
}

/// Returns the run at whose page a form ended.
#[track_caller]
fn run_of(shown: &Shown) -> String {
    shown.location().strip_prefix("/runs/").unwrap_or_else(|| panic!("{shown:?}")).to_owned()
}

#[tokio::test]
async fn a_form_is_acted_on_only_if_it_comes_from_a_page_of_the_same_session() {
    let server = server().await;
    let run = server.cast("asks").await;
    server.until(&run, "waiting").await;
    let (browser, other) = (Browser::at(&server), Browser::at(&server));
    browser.page(&format!("/runs/{run}/cancel")).await;
    other.page("/runs").await;
    let (token, port) = (browser.form_token(), server.address.port());
    assert_ne!(token, other.form_token());
    let path = format!("/runs/{run}/cancel");
    let own = browser.origin();
    let of = |token: &str| encoded(&[("token", token), ("key", "k")]);
    let refused = [
        ("no token", Some(own.clone()), FORM, encoded(&[("key", "k")])),
        ("an empty token", Some(own.clone()), FORM, of("")),
        ("the token of another session", Some(own.clone()), FORM, of(&other.form_token())),
        ("a part of the token", Some(own.clone()), FORM, of(&token[1..])),
        ("no origin", None, FORM, of(&token)),
        ("no page", Some("null".to_owned()), FORM, of(&token)),
        ("another server", Some("http://evil.example".to_owned()), FORM, of(&token)),
        ("another port", Some("http://127.0.0.1:1".to_owned()), FORM, of(&token)),
        ("another name", Some(format!("http://localhost:{port}")), FORM, of(&token)),
        ("another scheme", Some(format!("https://127.0.0.1:{port}")), FORM, of(&token)),
        ("plain text", Some(own.clone()), "text/plain", of(&token)),
        ("JSON", Some(own.clone()), "application/json", json!({"token": token, "key": "k"}).to_string()),
        ("no boundary", Some(own.clone()), "multipart/form-data", of(&token)),
    ];
    for (case, origin, kind, body) in refused {
        let mut request = browser.posting(&path, kind, body);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        let shown = browser.send(request).await;
        assert_eq!(shown.status, 403, "{case}: {shown:?}");
        shown.holds(codes::ADDRESS_REFUSED.any().as_str());
        assert_eq!(server.value(&format!("/v1/runs/{run}")).await["state"], "waiting", "{case}");
    }
    let keyless = browser.posting(&path, FORM, encoded(&[("token", token.as_str())])).header(ORIGIN, &own);
    assert_eq!(browser.send(keyless).await.status, 422, "a form without a key could be sent twice");
    let more = "x".repeat(FORM_BYTES_MAX);
    let long = encoded(&[("token", token.as_str()), ("key", "k"), ("more", more.as_str())]);
    let long = browser.posting(&path, FORM, long).header(ORIGIN, &own);
    assert_eq!(browser.send(long).await.status, 413);
    // A cookie alone proves nothing, and a token without its cookie neither.
    let stranger = server.client.post(server.url(&path)).header("content-type", FORM).header(ORIGIN, &own);
    assert_eq!(stranger.body(of(&token)).send().await.unwrap().status(), 403);
    assert_eq!(server.value(&format!("/v1/runs/{run}")).await["state"], "waiting");
    assert_eq!(run_of(&browser.post(&path, &[]).await), run);
    let ended = server.until(&run, "truncated").await;
    assert_eq!(ended["outcome"]["reason"], "cancelled");
    let again = browser.post(&path, &[]).await;
    assert_eq!(again.status, 409, "{again:?}");
    again.holds(codes::WRONG_STATE.any().as_str());
}

#[tokio::test]
async fn a_second_click_does_nothing_twice() {
    let server = server().await;
    let browser = Browser::at(&server);
    browser.page("/spells/three").await;
    let fields = [("intent", "how many?")];
    let clicks = join_all((0..8).map(|_| browser.post_with_key("/spells/three/cast", &fields, "one-key"))).await;
    let first = run_of(&clicks[0]);
    assert!(clicks.iter().all(|shown| run_of(shown) == first), "{clicks:?}");
    assert_eq!(runs(&server).await.len(), 1);
    let other = browser.post_with_key("/spells/three/cast", &[("intent", "and now?")], "one-key").await;
    assert_eq!(other.status, 409, "{other:?}");
    other.holds(codes::IMMUTABLE.any().as_str());
    other.holds("and now?");
    assert_ne!(run_of(&browser.post("/spells/three/cast", &fields).await), first);
    // Another session has keys of its own.
    let second = Browser::at(&server);
    assert_ne!(run_of(&second.post_with_key("/spells/three/cast", &fields, "one-key").await), first);
    assert_eq!(runs(&server).await.len(), 3);
}

#[tokio::test]
async fn the_cast_form_casts_and_keeps_what_was_typed_where_it_does_not() {
    let server = server().await;
    let browser = Browser::at(&server);
    let intent = "say \"<b>hello</b>\" & 'bye'\nto all";
    let run = run_of(&browser.post("/spells/three/cast", &[("intent", intent), ("budget", "0.50 USD")]).await);
    server.until(&run, "terminated").await;
    let shown = browser.page(&format!("/runs/{run}")).await;
    shown.holds("say &quot;&lt;b&gt;hello&lt;/b&gt;&quot; &amp; 'bye'");
    for (fields, field) in [
        ([("intent", "typed words"), ("budget", "lots")], "budget"),
        ([("intent", " "), ("budget", "1 USD")], "intent"),
    ] {
        let shown = browser.post("/spells/three/cast", &fields).await;
        assert_eq!(shown.status, 422, "{shown:?}");
        shown.holds(codes::SCHEMA.any().as_str());
        shown.holds(&format!("name=\"{field}\""));
        shown.holds(fields[1].1);
    }
    assert_eq!(browser.post("/spells/none/cast", &[("intent", "go")]).await.status, 404);
    // A dry run writes nothing, also where it cannot be made.
    let dry = browser.post("/spells/three/cast", &[("intent", "only look"), ("dry", "on")]).await;
    dry.holds("only look");
    assert_eq!(runs(&server).await.len(), 1);
}

#[tokio::test]
async fn a_context_is_sent_as_a_file_up_to_its_limit() {
    let server = server().await;
    let browser = Browser::at(&server);
    browser.page("/spells/three").await;
    let form = |file: &str, key: &str| {
        let token = browser.form_token();
        let field = |name: &str, more: &str, value: &str| {
            format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"{more}\r\n\r\n{value}\r\n")
        };
        let file = field("file", "; filename=\"a.txt\"\r\nContent-Type: text/plain", file);
        let fields = [field("token", "", &token), field("key", "", key), field("intent", "", "read it")];
        let body = format!("{}{file}--edge--\r\n", fields.concat());
        let request = browser.posting("/spells/three/cast", "multipart/form-data; boundary=edge", body);
        browser.send(request.header(ORIGIN, browser.origin()))
    };
    let long = form(&"x".repeat(FORM_CONTEXT_BYTES_MAX + 1), "long").await;
    assert_eq!(long.status, 422, "{}", long.status);
    long.holds("read it");
    assert_eq!(form(&"x".repeat(FORM_CONTEXT_BYTES_MAX + FORM_BYTES_MAX), "longer").await.status, 413);
    assert_eq!(runs(&server).await.len(), 0);
    let run = run_of(&form("a,b\n1,2\n", "short").await);
    server.until(&run, "terminated").await;
}

#[tokio::test]
async fn a_budget_that_is_refused_is_told_beside_its_field() {
    let server = unfunded().await;
    let browser = Browser::signed_in(&server, ANN).await;
    let shown = browser.post("/spells/priced/cast", &[("intent", "words that stay"), ("budget", "5.00 USD")]).await;
    assert_eq!(shown.status, 403, "{shown:?}");
    shown.holds(codes::NOT_AUTHORIZED.any().as_str());
    shown.holds("words that stay");
    shown.holds("5.00 USD");
}

#[tokio::test]
async fn a_fork_begins_another_thread_and_leaves_the_first_as_it_was() {
    let server = server().await;
    let run = server.cast("slow").await;
    let loom = server.until(&run, "terminated").await["loom_id"].as_str().unwrap().to_owned();
    let before = server.value(&format!("/v1/runs/{run}/turns")).await;
    let turn = before["items"][2]["id"].as_str().unwrap();
    let browser = Browser::at(&server);
    browser.page(&format!("/turns/{turn}/fork")).await;
    let forked =
        browser.post(&format!("/turns/{turn}/fork"), &[("intent", "another way"), ("environment", "fresh")]).await;
    let other = run_of(&forked);
    assert_ne!(other, run);
    let ended = server.until(&other, "terminated").await;
    assert_eq!(ended["loom_id"], loom.as_str());
    assert_eq!(server.value(&format!("/v1/runs/{run}/turns")).await, before, "the original is unchanged");
    browser.page(&format!("/runs/{other}")).await.holds("another way");
    let threads = browser.page(&format!("/looms/{loom}")).await;
    let entities = server.value(&format!("/v1/looms/{loom}/entities")).await;
    assert_eq!(entities["items"].as_array().unwrap().len(), 2);
    threads.holds("another way");
    let wrong = browser.post(&format!("/turns/{turn}/fork"), &[("intent", "kept"), ("environment", "stale")]).await;
    assert_eq!(wrong.status, 422);
    wrong.holds("kept");
    assert_eq!(runs(&server).await.len(), 2);
}

#[tokio::test]
async fn files_are_rewound_only_for_the_user_who_runs_the_server() {
    let server = guarded().await.with_token(ANN);
    let run = server.cast("slow").await;
    server.until(&run, "terminated").await;
    let turns = server.value(&format!("/v1/runs/{run}/turns")).await;
    let turn = turns["items"][0]["id"].as_str().unwrap();
    let path = format!("/turns/{turn}/rewind");
    let ann = Browser::signed_in(&server, ANN).await;
    for shown in [ann.get(&path).await, ann.post(&path, &[("files", "on"), ("fork", "on")]).await] {
        assert_eq!(shown.status, 403, "{shown:?}");
        shown.holds(codes::NOT_AUTHORIZED.any().as_str());
    }
    assert_eq!(runs(&server).await.len(), 1, "nothing was forked");
    let server = server.with_token(ROOT);
    let root = Browser::signed_in(&server, ROOT).await;
    root.page(&path).await;
    assert_eq!(root.post(&path, &[]).await.status, 422, "nothing was chosen");
    let other = run_of(&root.post(&path, &[("files", "on"), ("fork", "on")]).await);
    assert_ne!(other, run);
    server.until(&other, "terminated").await;
}

/// Casts a spell that asks, and returns its run, its approval and the digest of what is shown.
async fn asked(browser: &Browser<'_>) -> (String, String, String) {
    let run = browser.server.cast("asks").await;
    let waiting = browser.server.until(&run, "waiting").await;
    let approval = waiting["approvals"][0]["approval_id"].as_str().unwrap().to_owned();
    let shown = browser.page(&format!("/approvals/{approval}?run={run}")).await;
    shown.holds("may I");
    let seen = shown.value("name=\"seen\" value=\"").unwrap_or_else(|| panic!("{shown:?}")).to_owned();
    (run, approval, seen)
}

#[tokio::test]
async fn an_approved_run_goes_on_by_itself_and_the_record_names_who_decided() {
    let server = server().await;
    let browser = Browser::at(&server);
    let (run, approval, seen) = asked(&browser).await;
    browser.page("/approvals").await.holds(&approval);
    browser.part("/runs", "count").await.holds("data-waiting=\"1\"");
    let path = format!("/approvals/{approval}?run={run}");
    let stale = browser.post(&path, &[("decision", "approve"), ("seen", "something else")]).await;
    assert_eq!(stale.status, 409, "{stale:?}");
    assert_eq!(server.value(&format!("/v1/runs/{run}")).await["state"], "waiting", "nobody saw what is there now");
    assert_eq!(browser.post(&path, &[("decision", "perhaps"), ("seen", seen.as_str())]).await.status, 422);
    let approved = browser.post(&path, &[("decision", "approve"), ("seen", seen.as_str())]).await;
    assert_eq!(run_of(&approved), run);
    assert_eq!(server.until(&run, "terminated").await["answer"], "over");
    let decided = browser.page(&path).await;
    decided.holds("Approved");
    decided.holds("local");
    browser.part("/runs", "count").await.holds("data-waiting=\"0\"");
}

#[tokio::test]
async fn the_entity_reads_why_it_was_refused() {
    let server = server().await;
    let browser = Browser::at(&server);
    let (run, approval, _) = asked(&browser).await;
    let fields = [("decision", "refuse"), ("reason", "not on a Friday")];
    assert_eq!(run_of(&browser.post(&format!("/approvals/{approval}?run={run}"), &fields).await), run);
    server.until(&run, "terminated").await;
    let turns = server.value(&format!("/v1/runs/{run}/turns")).await;
    let reply = &turns["items"][0]["gate_calls"][0]["reply"];
    assert_eq!(reply["code"], codes::APPROVAL_REFUSED.any().as_str(), "{turns}");
    assert!(turns.to_string().contains("not on a Friday"), "{turns}");
    browser.page(&format!("/runs/{run}")).await.holds("not on a Friday");
}

#[tokio::test]
async fn of_two_people_who_decide_at_once_one_decides_and_the_other_sees_who() {
    let server = server().await;
    let (one, two) = (Browser::at(&server), Browser::at(&server));
    let (run, approval, seen) = asked(&one).await;
    let path = format!("/approvals/{approval}?run={run}");
    two.page(&path).await;
    let fields = [("decision", "approve"), ("seen", seen.as_str())];
    let (first, second) = join(one.post(&path, &fields), two.post(&path, &fields)).await;
    let mut shown = [first, second];
    shown.sort_by_key(|shown| shown.status);
    let [done, late] = &shown;
    assert_eq!((run_of(done), late.status), (run.clone(), 409), "{shown:?}");
    late.holds(codes::WRONG_STATE.any().as_str());
    late.holds("Approved");
    late.holds("local");
    assert_eq!(server.until(&run, "terminated").await["answer"], "over");
}

#[tokio::test]
async fn a_turn_is_rated_and_settings_are_kept_in_a_cookie() {
    let server = server().await;
    let run = server.cast("three").await;
    server.until(&run, "terminated").await;
    let turns = server.value(&format!("/v1/runs/{run}/turns")).await;
    let turn = turns["items"][0]["id"].as_str().unwrap();
    let browser = Browser::at(&server);
    let rated = browser.post(&format!("/turns/{turn}/reward"), &[("reward", "0.5"), ("note", "well")]).await;
    assert_eq!(rated.location(), format!("/runs/{run}?at={turn}#{turn}"));
    let rewards = server.value(&format!("/v1/turns/{turn}/rewards")).await;
    assert_eq!((&rewards[0]["reward"], &rewards[0]["by"]), (&json!(0.5), &json!("local")));
    assert_eq!(browser.post(&format!("/turns/{turn}/reward"), &[("reward", "good")]).await.status, 422);
    let saved = browser.post("/settings", &[("theme", "dark"), ("zone", "\"><script>")]).await;
    assert_eq!(saved.location(), "/settings");
    browser.page("/runs").await.holds("data-theme=\"dark\"");
}
