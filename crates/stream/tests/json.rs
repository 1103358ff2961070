//! Tests of the two JSON boundaries: which values are events, and the wire format of emissions.
//!
//! Both are data beside this file. `validation.jsonl` has one value per line, the paths of its faults in order, and the
//! form that it reads back as if it is an event in another form than ours. `wire/events.jsonl` is the input and
//! `wire/emissions.jsonl` the expected output, byte for byte.

use cantrip_canon::{Clock, ManualClock, Timestamp};
use cantrip_stream::{Options, Processor, StreamEvent};
use serde_json::Value;

#[test]
fn every_fault_of_an_event_is_found_and_every_event_is_written_as_it_was_read() {
    let mut cases = 0;
    for (index, line) in include_str!("validation.jsonl").lines().enumerate() {
        let case: Value = serde_json::from_str(line).expect("a line of JSON");
        let place = format!("tests/validation.jsonl:{}: {}", index + 1, case["case"]);
        let paths: Vec<&str> =
            case["paths"].as_array().expect("paths").iter().map(|path| path.as_str().expect("a path")).collect();
        match StreamEvent::read(&case["event"]) {
            Ok(event) => {
                assert!(paths.is_empty(), "{place}: read without a fault");
                let written = serde_json::to_string(&event).expect("an event is JSON");
                assert_eq!(written, case.get("back").unwrap_or(&case["event"]).to_string(), "{place}");
            }
            Err(issues) => {
                let found: Vec<&str> = issues.iter().map(|issue| issue.path.as_str()).collect();
                assert_eq!(found, paths, "{place}: {issues:?}");
            }
        }
        cases += 1;
    }
    assert!(cases > 80, "only {cases} cases were read");
}

#[test]
fn emissions_are_written_byte_for_byte_as_recorded() {
    let clock = ManualClock::starting("2026-02-15T10:01:00.000Z".parse::<Timestamp>().unwrap());
    let mut processor = Processor::new(Options { announce_arguments: true, ..Options::default() });
    let mut out = Vec::new();
    for line in include_str!("wire/events.jsonl").lines() {
        let event = StreamEvent::read(&serde_json::from_str(line).unwrap()).unwrap();
        assert_eq!(serde_json::to_string(&event).unwrap(), line);
        processor.process(&event, clock.now(), &mut out).unwrap();
    }
    let written: Vec<String> = out.iter().map(|emission| serde_json::to_string(emission).unwrap()).collect();
    let recorded: Vec<&str> = include_str!("wire/emissions.jsonl").lines().collect();
    for (written, recorded) in written.iter().zip(&recorded) {
        assert_eq!(written, recorded);
    }
    assert_eq!(written.len(), recorded.len(), "what came out:\n{}", written.join("\n"));
}
