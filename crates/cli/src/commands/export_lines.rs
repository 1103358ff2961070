//! The destination of exported lines: a new file, or standard output.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use cantrip_reply::{Refusal, codes};
use serde_json::json;

pub(super) struct ExportLines<'a> {
    to: Box<dyn Write + Send>,
    path: Option<&'a Path>,
    written: io::Result<()>,
}

impl<'a> ExportLines<'a> {
    /// Opens the destination. With `--json`, standard output carries the envelope only, so a file is needed then.
    pub(super) fn open(path: Option<&'a Path>, json: bool, hint: &str) -> Result<Self, Refusal> {
        let to: Box<dyn Write + Send> = match path {
            Some(file) => Box::new(BufWriter::new(File::create_new(file).map_err(|error| refusal(file, &error))?)),
            None if json => {
                let refused = codes::config_invalid("--json", "export", "needs --out FILE for the lines");
                return Err(refused.data(json!({ "hint": hint })).into());
            }
            None => Box::new(BufWriter::new(io::stdout())),
        };
        Ok(Self { to, path, written: Ok(()) })
    }

    pub(super) fn write(&mut self, line: &str) {
        if self.written.is_ok() {
            self.written = writeln!(self.to, "{line}");
        }
    }

    /// Flushes the output. A reader that closed the pipe wants no more lines, so that is not an error.
    pub(super) fn end(mut self) -> Result<(), Refusal> {
        match self.written.and_then(|()| self.to.flush()) {
            Ok(()) => Ok(()),
            Err(error) if self.path.is_none() && error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(refusal(self.path.unwrap_or(Path::new("standard output")), &error)),
        }
    }
}

fn refusal(path: &Path, error: &io::Error) -> Refusal {
    let shown = path.display().to_string();
    if error.kind() == io::ErrorKind::AlreadyExists {
        return codes::wrong_state("file", shown, "there already", "export", "a name that is free").into();
    }
    codes::io_failed("write", shown, error.to_string()).into()
}
