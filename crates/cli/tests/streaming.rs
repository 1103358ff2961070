//! The output on a terminal while a model streams: every word as it arrives, and the answer once.
//!
//! The model holds the rest of its answer back until the test has seen the first part on the screen.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use serde_json::{Value, json};

use crate::support::terminal::Terminal;
use crate::support::{Folder, stdout};

/// One piece of a model's text, in the format of chat completions.
fn text(piece: &str) -> Value {
    json!({"content": piece})
}

fn thought(piece: &str) -> Value {
    json!({"reasoning_content": piece})
}

fn call(id: &str, name: &str) -> Value {
    json!({"tool_calls": [{"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}]})
}

fn arguments(piece: &str) -> Value {
    json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
}

/// The end of an answer.
#[derive(Clone, Copy)]
enum End {
    Stops,
    Calls,
    /// The connection is closed in the middle of the answer.
    Breaks,
}

/// A model that streams these answers, one per request, each piece only when the test allows it.
struct Speaker {
    address: String,
    next: Sender<()>,
}

impl Speaker {
    fn start(answers: Vec<(Vec<Value>, End)>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let (next, told) = channel();
        std::thread::spawn(move || {
            for (pieces, end) in answers {
                let Some(stream) = asked(&listener) else { return };
                answer(stream, &pieces, end, &told);
            }
        });
        Self { address, next }
    }

    /// Lets the model send this many further pieces.
    fn say(&self, pieces: usize) {
        for _ in 0..pieces {
            self.next.send(()).expect("it listens");
        }
    }
}

/// Returns the next connection that requests an answer.
fn asked(listener: &TcpListener) -> Option<TcpStream> {
    let mut streams = listener.incoming().map_while(Result::ok);
    streams.find_map(|stream| requested(stream).map(|(stream, _)| stream))
}

/// Reads a request to its end. A request about the server itself gets a 404.
fn requested(mut stream: TcpStream) -> Option<(TcpStream, Value)> {
    let mut taken = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let read = stream.read(&mut piece).ok().filter(|read| *read > 0)?;
        taken.extend_from_slice(&piece[..read]);
        let Some(head) = taken.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&taken[..head]).to_ascii_lowercase();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if taken.len() >= head + 4 + length.unwrap_or(0) {
            if !text.starts_with("post /v1/chat/completions ") {
                let none = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = stream.write_all(none.as_bytes());
                return None;
            }
            let body = serde_json::from_slice(&taken[head + 4..]).unwrap_or_default();
            return Some((stream, body));
        }
    }
}

fn answer(mut stream: TcpStream, pieces: &[Value], end: End, told: &Receiver<()>) -> Option<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n").ok()?;
    let mut event = |choice: Value| {
        let chunk = json!({"id": "x", "model": "test", "choices": [choice]});
        stream.write_all(format!("data: {chunk}\n\n").as_bytes()).ok()
    };
    for delta in pieces {
        told.recv().ok()?;
        event(json!({"index": 0, "delta": delta, "finish_reason": null}))?;
    }
    let reason = match end {
        End::Stops => "stop",
        End::Calls => "tool_calls",
        End::Breaks => return None,
    };
    event(json!({"index": 0, "delta": {}, "finish_reason": reason}))?;
    stream.write_all(b"data: [DONE]\n\n").ok()
}

fn folder(speaker: &Speaker, further: &str) -> Folder {
    let folder = Folder::new();
    folder.write(
        "speaks.toml",
        &format!(
            "name = \"speaks\"\ncrystal = \"local/test@{}\"\n{further}[retry]\nmax_retries = 1\nbase_ms = 1\ncap_ms = 1\n\
             [gates.echo]\n[wards]\nmax_turns = 5\n",
            speaker.address
        ),
    );
    folder
}

#[test]
fn words_appear_as_they_are_said_and_the_answer_stands_on_the_screen_once() {
    let pieces = vec![text("The first "), text("words, "), text("and the last.\nA sec"), text("ond line")];
    let speaker = Speaker::start(vec![(pieces, End::Stops)]);
    let folder = folder(&speaker, "");
    let mut terminal = Terminal::run(&folder, &["cast", "speaks.toml", "go"]);
    terminal.wait_for("turn 1");
    speaker.say(1);
    terminal.wait_for("\nThe first ");
    speaker.say(1);
    terminal.wait_for("words, ");
    speaker.say(1);
    // A part of a word is shown too, before the rest of it arrives.
    terminal.wait_for("and the last.\nA sec");
    speaker.say(1);
    terminal.wait_for("ond line\n");
    terminal.wait_for("terminated after 1 turn");
    let whole = terminal.text();
    let (_, status) = terminal.end();
    assert_eq!(status, Some(0));
    assert_eq!(whole.matches("The first words, and the last.\nA second line\n").count(), 1, "{whole}");
    assert_eq!(whole.matches("The first").count(), 1, "{whole}");
}

#[test]
fn thoughts_are_dim_and_a_call_is_named_before_its_arguments_are_known() {
    let first = vec![
        thought("I should "),
        thought("look."),
        text("Let me look."),
        call("c1", "echo"),
        arguments("{\"text\": \"found\"}"),
    ];
    let last = vec![call("c2", "done"), arguments("{\"answer\": \"it is there\"}")];
    let speaker = Speaker::start(vec![(first, End::Calls), (last, End::Calls)]);
    let folder = folder(&speaker, "");
    let mut terminal = Terminal::run(&folder, &["cast", "speaks.toml", "go"]);
    terminal.wait_for("turn 1");
    speaker.say(1);
    terminal.wait_for("  ~ I should ");
    speaker.say(1);
    terminal.wait_for("look.");
    assert!(terminal.raw().contains("\u{1b}[2m  ~ I should "), "{:?}", terminal.raw());
    speaker.say(1);
    terminal.wait_for("\nLet me look.");
    speaker.say(1);
    terminal.wait_for("> echo …");
    speaker.say(1);
    terminal.wait_for("> echo({\"text\":\"found\"})\n");
    terminal.wait_for("< success");
    terminal.wait_for("found");
    terminal.wait_for("turn 2");
    speaker.say(2);
    terminal.wait_for("> done\n");
    terminal.wait_for("\nit is there\n");
    terminal.wait_for("terminated after 2 turns");
    let whole = terminal.text();
    assert_eq!(terminal.end().1, Some(0));
    assert_eq!(whole.matches("it is there").count(), 1, "{whole}");
}

#[test]
fn where_the_output_goes_into_a_file_the_file_has_the_answer_alone() {
    let pieces = vec![text("first "), text("and last")];
    let speaker = Speaker::start(vec![(pieces, End::Stops)]);
    let folder = folder(&speaker, "");
    let output = File::create(folder.path().join("answer.txt")).expect("a file");
    let mut terminal = Terminal::run_into(&folder, &["cast", "speaks.toml", "go"], output);
    terminal.wait_for("turn 1");
    speaker.say(1);
    terminal.wait_for("\n  first ");
    assert_eq!(folder.read("answer.txt"), "", "it is not known yet whether that is the answer");
    speaker.say(1);
    terminal.wait_for("and last\n");
    assert_eq!(terminal.end().1, Some(0));
    assert_eq!(folder.read("answer.txt"), "first and last\n");
}

#[test]
fn where_nobody_watches_only_whole_texts_are_told_and_the_answer_is_alone_in_its_pipe() {
    let pieces = vec![text("first "), text("and last")];
    let speaker = Speaker::start(vec![(pieces, End::Stops)]);
    let folder = folder(&speaker, "");
    speaker.say(2);
    let output = folder.run(&["cast", "speaks.toml", "go"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "first and last\n"));
    assert!(!output.stderr.contains(&0x1b) && !output.stderr.contains(&b'\r'), "{output:?}");
}

#[test]
fn what_broke_off_is_marked_and_said_again_by_the_next_attempt() {
    let broken = vec![text("half a sen")];
    let sound = vec![text("a whole "), text("sentence")];
    let speaker = Speaker::start(vec![(broken, End::Breaks), (sound, End::Stops)]);
    let folder = folder(&speaker, "");
    let mut terminal = Terminal::run(&folder, &["cast", "speaks.toml", "go"]);
    terminal.wait_for("turn 1");
    speaker.say(1);
    terminal.wait_for("half a sen\n");
    terminal.wait_for("(withdrawn: the answer broke off and is requested again)\n");
    terminal.wait_for("attempt 2 of 2 in 0.0 s: ");
    speaker.say(2);
    terminal.wait_for("\na whole sentence\n");
    terminal.wait_for("terminated after 1 turn");
    let whole = terminal.text();
    assert_eq!(terminal.end().1, Some(0));
    assert_eq!(whole.matches("a whole sentence").count(), 1, "{whole}");
}

#[test]
fn where_nobody_watches_the_text_of_a_broken_attempt_is_not_told() {
    let speaker =
        Speaker::start(vec![(vec![text("half a sen")], End::Breaks), (vec![text("a whole one")], End::Stops)]);
    let folder = folder(&speaker, "");
    speaker.say(2);
    let output = folder.run(&["cast", "speaks.toml", "go"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "a whole one\n"), "{output:?}");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("attempt 2 of 2") && !told.contains("half a sen"), "{told}");
}

#[test]
fn an_interruption_in_the_middle_of_a_line_has_a_line_of_its_own() {
    let pieces = vec![text("half a line"), text(" that nobody hears")];
    let speaker = Speaker::start(vec![(pieces, End::Stops)]);
    let folder = folder(&speaker, "");
    let mut terminal = Terminal::run(&folder, &["cast", "speaks.toml", "go"]);
    terminal.wait_for("turn 1");
    speaker.say(1);
    terminal.wait_for("half a line");
    terminal.send(crate::support::terminal::CTRL_C);
    terminal.wait_for("\nstopping where the run can be resumed");
    terminal.wait_for("waiting (interrupted)");
    assert_eq!(terminal.end().1, Some(130));
}

/// A model that answers by intent: a batch of children for the first, text in pieces for the children.
struct Choir {
    address: String,
    /// Lets the child with this intent send its next piece.
    next: std::collections::HashMap<&'static str, Sender<()>>,
}

impl Choir {
    fn start(voices: &[(&'static str, &'static [&'static str])]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = format!("http://{}/v1", listener.local_addr().expect("an address"));
        let (mut next, mut told) = (std::collections::HashMap::new(), std::collections::HashMap::new());
        for (intent, pieces) in voices {
            let (to, from) = channel();
            next.insert(*intent, to);
            told.insert(*intent, (*pieces, from));
        }
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some((stream, body)) = requested(stream) else { continue };
                let (last, first) = (body["messages"].as_array().cloned().unwrap_or_default(), json!({}));
                let last = last.last().unwrap_or(&first).clone();
                let intent = last["content"].as_str().unwrap_or_default();
                let voice = told.keys().copied().find(|known| *known == intent);
                let (pieces, end, ready) = match voice.and_then(|voice| told.remove(voice)) {
                    Some((pieces, from)) => (pieces.iter().map(|piece| text(piece)).collect(), End::Stops, from),
                    None if last["role"] == "tool" => (vec![text("both are done")], End::Stops, always(1)),
                    None => {
                        let requests: Vec<Value> = told.keys().map(|intent| json!({"intent": intent})).collect();
                        let said = json!({ "requests": requests }).to_string();
                        (vec![call("c", "call_agent_batch"), arguments(&said)], End::Calls, always(2))
                    }
                };
                std::thread::spawn(move || answer(stream, &pieces, end, &ready));
            }
        });
        Self { address, next }
    }

    fn says(&self, intent: &str) {
        self.next[intent].send(()).expect("it listens");
    }
}

/// A channel with this many messages.
fn always(count: usize) -> Receiver<()> {
    let (to, from) = channel();
    for _ in 0..count {
        to.send(()).expect("it is open");
    }
    from
}

#[test]
fn children_that_speak_at_once_do_not_stand_in_each_others_lines() {
    let choir = Choir::start(&[("first", &["one ", "two"]), ("second", &["three ", "four"])]);
    let folder = Folder::new();
    folder.write(
        "choir.toml",
        &format!(
            "name = \"choir\"\ncrystal = \"local/test@{}\"\n[gates.call_agent_batch]\n[wards]\nmax_turns = 5\nmax_depth = 1\n",
            choir.address
        ),
    );
    let mut terminal = Terminal::run(&folder, &["cast", "choir.toml", "go"]);
    terminal.wait_for("call_agent_batch(");
    choir.says("first");
    terminal.wait_for("one ");
    // The other child streams while the line is not complete, up to its end.
    choir.says("second");
    choir.says("second");
    choir.says("first");
    terminal.wait_for("two\n");
    terminal.wait_for("    three four\n");
    terminal.wait_for("\nboth are done\n");
    let whole = terminal.text();
    assert_eq!(terminal.end().1, Some(0));
    assert!(whole.contains("    one two\n"), "{whole}");
}
