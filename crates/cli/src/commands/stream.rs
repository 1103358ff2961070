//! `cantrip stream`: feeds a file of canonical events through the processor, as a viewer would see them.
//!
//! The time comes from the timestamps of the events, so the same file gives the same upserts on any machine. Every line
//! is read, even after faults: a fault names its line, valid events are processed, and the reply is Invalid if there
//! was any fault.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cantrip_canon::json::{self, ReadFault};
use cantrip_canon::{Instant, Now, Timestamp};
use cantrip_reply::{Invalid, Refusal, Reply, ReplyBuilder, ReplyDraft, codes};
use cantrip_stream::{Emission, Gradient, Options, Processor, SourceTimestamp, StreamEvent, StreamFault, Timers};
use serde_json::{Value, json};

use crate::limits::{FAULTS_LISTED_MAX, LINE_BYTES_MAX};

/// Feed a file of canonical events through the stream processor and print the upserts.
///
/// The file has one event per line. The output is one line of JSON for each upsert (the full state of one item) or turn
/// event.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  cantrip stream examples/turn.jsonl\n  cantrip stream events.jsonl --gradient 0\n  \
                        cantrip demo --events | cantrip stream -"
)]
pub(crate) struct Stream {
    /// The file with the events, or - for standard input.
    file: PathBuf,

    /// The number of new tokens that each emission of an item must exceed. The last number repeats; 0 emits every
    /// token.
    #[arg(long, value_delimiter = ',', value_name = "N,...", allow_negative_numbers = true)]
    gradient: Vec<i64>,

    /// Send the final arguments of a call as soon as they are known.
    #[arg(long)]
    announce_arguments: bool,

    /// Send text only by token count, never by elapsed time.
    #[arg(long)]
    no_timers: bool,
}

impl Stream {
    /// Processes the file. Emissions are printed as they come, or collected for the envelope if `json` is set.
    pub(crate) fn reply(&self, rb: ReplyBuilder, json: bool) -> Reply {
        let options = Options {
            gradient: Gradient::new(&self.gradient),
            timers: if self.no_timers { Timers::OFF } else { Timers::default() },
            announce_arguments: self.announce_arguments,
        };
        let out = if json { Out::Kept(Vec::new()) } else { Out::Printed(io::BufWriter::new(io::stdout().lock())) };
        match self.read(Playback::new(options), out) {
            Ok(report) => report.reply(rb, &self.name()),
            Err(refusal) => rb.refuse(refusal),
        }
    }

    fn name(&self) -> String {
        if self.file == Path::new("-") { "standard input".to_owned() } else { self.file.display().to_string() }
    }

    fn read(&self, mut playback: Playback, mut out: Out<'_>) -> Result<Report, Refusal> {
        let failed = |operation: &str, error: &io::Error| codes::io_failed(operation, self.name(), error.to_string());
        let mut input = self.open()?;
        let (mut report, mut line) = (Report::default(), Vec::new());
        let mut emissions = Vec::new();
        loop {
            line.clear();
            let bytes = input
                .by_ref()
                .take(LINE_BYTES_MAX as u64 + 1)
                .read_until(b'\n', &mut line)
                .map_err(|error| failed("read", &error))?;
            if bytes == 0 {
                break;
            }
            report.lines += 1;
            if line.len() > LINE_BYTES_MAX {
                report.fault(LineFault::too_long(report.lines));
                let whole = input.skip_until(b'\n').map_err(|error| failed("read", &error));
                whole?;
                continue;
            }
            let text = line.trim_ascii();
            if text.is_empty() {
                continue;
            }
            match event(text, report.lines) {
                Ok(event) => {
                    report.events += 1;
                    if let Err(fault) = playback.play(&event, &mut emissions) {
                        report.fault(LineFault::refused(report.lines, &fault));
                    }
                }
                Err(faults) => faults.into_iter().for_each(|fault| report.fault(fault)),
            }
            out.take(&mut emissions).map_err(|error| failed("write", &error))?;
        }
        playback.close(&mut emissions);
        out.take(&mut emissions).map_err(|error| failed("write", &error))?;
        report.dropped = serde_json::to_value(playback.processor.dropped()).unwrap_or_default();
        report.emissions = out.end().map_err(|error| failed("write", &error))?;
        Ok(report)
    }

    fn open(&self) -> Result<Box<dyn BufRead>, Refusal> {
        if self.file == Path::new("-") {
            return Ok(Box::new(BufReader::new(io::stdin())));
        }
        let name = self.name();
        let file = File::open(&self.file).map_err(|error| {
            if error.kind() == io::ErrorKind::NotFound {
                Refusal::from(codes::file_missing(&name))
            } else {
                Refusal::from(codes::io_failed("open", &name, error.to_string()))
            }
        })?;
        let is_folder = file.metadata().is_ok_and(|metadata| metadata.is_dir());
        if is_folder {
            return Err(codes::target_unusable(&name, "it is a folder, not a file of events").into());
        }
        Ok(Box::new(BufReader::new(file)))
    }
}

fn event(text: &[u8], line: usize) -> Result<StreamEvent, Vec<LineFault>> {
    let value = json::read_bytes(text).map_err(|fault| vec![LineFault::unparsable(line, &fault)])?;
    StreamEvent::read(&value).map_err(|issues| {
        issues
            .into_iter()
            .map(|issue| LineFault { line, kind: Kind::Schema, path: issue.path, expected: issue.rule.to_owned() })
            .collect()
    })
}

/// The processor, driven by the timestamps of the events.
pub(crate) struct Playback {
    processor: Processor,
    start: Option<Timestamp>,
    now: Instant,
}

impl Playback {
    pub(crate) fn new(options: Options) -> Self {
        Self { processor: Processor::new(options), start: None, now: Instant::default() }
    }

    /// Fires the timers that are due before the event, each at its own time, then applies the event.
    pub(crate) fn play(&mut self, event: &StreamEvent, out: &mut Vec<Emission>) -> Result<(), StreamFault> {
        let at = wall(event.timestamp);
        let start = *self.start.get_or_insert(at);
        let since = u64::try_from(at.unix_millis() - start.unix_millis()).unwrap_or(0);
        // An event with an older timestamp than an earlier event happens now.
        let at = Instant::from_origin(Duration::from_millis(since)).max(self.now);
        self.run_timers(Some(at), out);
        self.now = at;
        self.processor.process(event, self.reading(at), out)
    }

    /// Fires all timers, then ends the open items, because the stream was cut off.
    pub(crate) fn close(&mut self, out: &mut Vec<Emission>) {
        self.run_timers(None, out);
        self.processor.close(None, self.reading(self.now), out);
    }

    fn run_timers(&mut self, until: Option<Instant>, out: &mut Vec<Emission>) {
        while let Some(due) = self.processor.next_deadline()
            && until.is_none_or(|until| due <= until)
        {
            self.now = self.now.max(due);
            self.processor.tick(self.reading(self.now), out);
        }
    }

    fn reading(&self, at: Instant) -> Now {
        let start = self.start.unwrap_or(Timestamp::EPOCH);
        Now { monotonic: at, wall: start.after(at.since(Instant::default())) }
    }
}

/// Returns the timestamp in milliseconds, the resolution of a timer; a time before 1970 becomes 1970.
fn wall(source: SourceTimestamp) -> Timestamp {
    let (seconds, fraction) = source.as_str().split_at("YYYY-MM-DDTHH:MM:SS".len());
    let digits: String = fraction.chars().filter(char::is_ascii_digit).chain("000".chars()).take(3).collect();
    format!("{seconds}.{digits}Z").parse().unwrap_or(Timestamp::EPOCH)
}

/// The destination of emissions.
enum Out<'a> {
    Printed(io::BufWriter<io::StdoutLock<'a>>),
    Kept(Vec<Value>),
}

impl Out<'_> {
    fn take(&mut self, emissions: &mut Vec<Emission>) -> io::Result<()> {
        for emission in emissions.drain(..) {
            match self {
                Self::Printed(out) => {
                    serde_json::to_writer(&mut *out, &emission)?;
                    out.write_all(b"\n")?;
                }
                Self::Kept(kept) => kept.push(serde_json::to_value(&emission)?),
            }
        }
        Ok(())
    }

    fn end(self) -> io::Result<Option<Vec<Value>>> {
        match self {
            Self::Printed(mut out) => out.flush().map(|()| None),
            Self::Kept(kept) => Ok(Some(kept)),
        }
    }
}

/// A fault of one line.
#[derive(Debug)]
struct LineFault {
    line: usize,
    kind: Kind,
    path: String,
    expected: String,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Unparsable { column: usize },
    Schema,
    TooLong,
}

impl LineFault {
    fn unparsable(line: usize, fault: &ReadFault) -> Self {
        let kind = Kind::Unparsable { column: fault.at.column };
        Self { line, kind, path: fault.path.clone(), expected: fault.rule.to_string() }
    }

    fn too_long(line: usize) -> Self {
        Self { line, kind: Kind::TooLong, path: String::new(), expected: format!("at most {LINE_BYTES_MAX} bytes") }
    }

    fn refused(line: usize, fault: &StreamFault) -> Self {
        let path = match fault {
            StreamFault::Limit { .. } => "turnId",
            StreamFault::Session { .. } => "sessionId",
        };
        Self { line, kind: Kind::Schema, path: path.to_owned(), expected: fault.to_string() }
    }

    fn render(&self) -> String {
        let Self { line, kind, path, expected } = self;
        let column = match kind {
            Kind::Unparsable { column } => format!(", column {column}"),
            Kind::Schema | Kind::TooLong => String::new(),
        };
        let path = if path.is_empty() { "the event" } else { path };
        format!("line {line}{column}: {path}: {expected}")
    }

    /// Returns the Invalid reply for this fault. The first fault of a file decides the code.
    fn refusal(&self, file: &str) -> ReplyDraft<Invalid> {
        let Self { line, kind, path, expected } = self;
        match kind {
            Kind::Unparsable { column } => codes::unparsable(file, format!("line {line}, column {column}"), expected),
            Kind::Schema => codes::schema(format!("line {line} of {file}"), path, expected),
            Kind::TooLong => {
                codes::limit(format!("line {line} of {file}"), "longer", format!("{LINE_BYTES_MAX} bytes"))
            }
        }
    }
}

#[derive(Debug, Default)]
struct Report {
    lines: usize,
    events: usize,
    faults: Vec<LineFault>,
    fault_count: usize,
    dropped: Value,
    emissions: Option<Vec<Value>>,
}

impl Report {
    /// Records a fault and prints it at once, so that the user need not wait for the end of a long file from a broken
    /// producer.
    fn fault(&mut self, fault: LineFault) {
        self.fault_count += 1;
        if self.faults.len() < FAULTS_LISTED_MAX {
            let _ = writeln!(io::stderr(), "{}", fault.render());
            self.faults.push(fault);
        }
    }

    fn reply(self, rb: ReplyBuilder, file: &str) -> Reply {
        let Self { lines, events, faults, fault_count, dropped, emissions } = self;
        let counts = json!({"lines": lines, "events": events, "dropped": dropped});
        let emissions = emissions.map(|emissions| json!({"emissions": emissions})).unwrap_or_default();
        let Some(first) = faults.first() else {
            return rb.success(codes::read(format!("{events} events of {file}")).data(counts).data(emissions));
        };
        let listed: Vec<_> = faults
            .iter()
            .map(|fault| json!({"line": fault.line, "path": fault.path, "expected": fault.expected}))
            .collect();
        let rest = if fault_count > 1 {
            format!(" ({fault_count} faults in all; every line was read)")
        } else {
            String::new()
        };
        let hint = format!("correct line {} and run it again{rest}", first.line);
        let told = json!({"faults": listed, "fault_count": fault_count, "hint": hint});
        rb.invalid(first.refusal(file).data(told).data(counts).data(emissions))
    }
}
