//! The feeds of a real server: the cost of a client that stops reading.

use std::io::Write;
use std::net::TcpStream;

use cantrip_serve::limits::{FEED_RECORDS_BYTES, HEAD_BYTES_MAX};

use crate::serve::Server;
use crate::support::Folder;

/// The text of a run is long compared with the buffer for a client.
const TEXT_BYTES: usize = 45_000;
const TURNS: usize = 20;
const _: () = assert!(TEXT_BYTES * TURNS > 3 * FEED_RECORDS_BYTES);

#[test]
fn readers_that_stop_reading_cost_no_more_than_their_limit() {
    let folder = Folder::new();
    let spell = "name = \"loud\"\ncrystal = \"scripted/loud.yaml\"\n[gates.echo]\n[wards]\nmax_turns = 100\n";
    folder.write("loud.toml", spell);
    let text = "word ".repeat(TEXT_BYTES / 5);
    let turn = |turn: usize| {
        format!("  - {{chunks: ['{text}'], tool_calls: [{{id: c{turn}, gate: echo, args: {{text: x}}}}]}}\n")
    };
    let turns: String = (0..TURNS).map(turn).collect();
    let end = "  - tool_calls: [{id: e, gate: done, args: {answer: over}}]\n";
    folder.write("loud.yaml", &format!("responses:\n{turns}{end}"));
    let server = Server::start(&folder, &["--store", "sqlite:kept/loom.db"]);
    let cast = || {
        let run = server.cast("loud");
        server.until(&run, |value| value["state"] == "terminated");
        run
    };
    // The first cast allocates its memory before the measurement.
    let run = cast();
    let before = server.resident();
    let stuck: Vec<TcpStream> = (0..200)
        .map(|reader| {
            let feed = if reader % 4 == 0 { "events" } else { "records" };
            let mut stream = TcpStream::connect(server.address()).expect("it listens");
            let head = format!("GET /v1/runs/{run}/{feed} HTTP/1.1\r\nhost: localhost\r\n\r\n");
            stream.write_all(head.as_bytes()).expect("it reads");
            stream
        })
        .collect();
    // The feeds are served while another run sends the same amount of text again.
    cast();
    let grown = server.resident().saturating_sub(before);
    // The records that are read for a client, the bytes that are being written to it, and the next line.
    let each = FEED_RECORDS_BYTES + HEAD_BYTES_MAX + 2 * TEXT_BYTES;
    assert!(grown < stuck.len() * each, "{grown} bytes for {} readers", stuck.len());
    assert_eq!(server.ask("GET", "/healthz", None).0, 200);
}
