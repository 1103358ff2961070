//! Examples as CSV (RFC 4180): a header, and one example a record.
//!
//! A column is one of an example's own (`id`, `weight`, `group`, `split`, `labels`), a field of the input or of the
//! expected output by its full name (`input.text`), or by its name alone if only one of the two has it. A cell is read
//! by the type of its field; an empty cell is an absent field.

use std::str::from_utf8;

use cantrip_contract::SkipReason;
use serde_json::{Map, Value};

use super::cells::CellKind;
use super::quotes::{LineCounter, quote_fault};
use super::read::RawExample;
use super::{ExampleFault, ExampleSchemas};

/// The meaning of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Column {
    Id,
    Weight,
    Group,
    Split,
    Labels,
    Input(String, CellKind),
    Expected(String, CellKind),
    /// The whole expected output, of a spell whose answer is not an object.
    Answer(CellKind),
}

/// Reads each record, and passes it on with the line on which it begins. A header that cannot be used, or quotes that
/// are not closed, are the fault of the whole file.
pub(super) fn read_table(
    bytes: &[u8],
    delimiter: u8,
    schemas: &ExampleSchemas,
    mut take: impl FnMut(u64, Result<RawExample, Vec<ExampleFault>>),
) -> Result<(), Vec<ExampleFault>> {
    let of_file = |line: u64, rule: String| vec![ExampleFault::new(line, "", rule, SkipReason::InputSchema)];
    if let Some((line, rule)) = quote_fault(bytes, delimiter) {
        return Err(of_file(line, rule.to_owned()));
    }
    let mut reader =
        csv::ReaderBuilder::new().has_headers(false).flexible(true).delimiter(delimiter).from_reader(bytes);
    let mut lines = LineCounter::new(bytes);
    let mut record = csv::ByteRecord::new();
    let mut columns: Option<Vec<Column>> = None;
    loop {
        // The file is in memory and every record may have any length, so reading cannot fail.
        match reader.read_byte_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => return Err(of_file(lines.line_at(0), error.to_string())),
        }
        let at = record.position().map_or(0, csv::Position::byte);
        let line = lines.line_at(usize::try_from(at).unwrap_or(usize::MAX));
        match &columns {
            None => columns = Some(read_header(line, &record, schemas)?),
            Some(columns) => take(line, read_record(line, &record, columns)),
        }
    }
    match columns {
        Some(_) => Ok(()),
        None => Err(of_file(1, "the file has no header".to_owned())),
    }
}

fn read_header(
    line: u64,
    record: &csv::ByteRecord,
    schemas: &ExampleSchemas,
) -> Result<Vec<Column>, Vec<ExampleFault>> {
    let mut columns: Vec<Column> = Vec::new();
    let mut faults = Vec::new();
    for cell in record {
        let read = from_utf8(cell).map_err(|_| "a column's name is not UTF-8".to_owned());
        match read.and_then(|name| column(name.trim(), schemas)) {
            Ok(column) if columns.contains(&column) => {
                let name = String::from_utf8_lossy(cell).trim().to_owned();
                faults.push(ExampleFault::new(line, "", format!("two columns {name}"), SkipReason::InputSchema));
            }
            Ok(column) => columns.push(column),
            Err(rule) => faults.push(ExampleFault::new(line, "", rule, SkipReason::InputSchema)),
        }
    }
    if faults.is_empty() { Ok(columns) } else { Err(faults) }
}

fn column(name: &str, schemas: &ExampleSchemas) -> Result<Column, String> {
    let own = match name {
        "id" => Some(Column::Id),
        "weight" => Some(Column::Weight),
        "group" => Some(Column::Group),
        "split" => Some(Column::Split),
        "labels" => Some(Column::Labels),
        _ => None,
    };
    if let Some(own) = own {
        return Ok(own);
    }
    if name == "expected"
        && let Some(kind) = schemas.answer_kind()
    {
        return Ok(Column::Answer(kind));
    }
    if let Some(field) = name.strip_prefix("input.") {
        let kind = schemas.input_kind(field).ok_or_else(|| format!("column {name}: the input has no {field}"))?;
        return Ok(Column::Input(field.to_owned(), kind));
    }
    if let Some(field) = name.strip_prefix("expected.") {
        let kind = schemas.output_kind(field).ok_or_else(|| format!("column {name}: the output has no {field}"))?;
        return Ok(Column::Expected(field.to_owned(), kind));
    }
    match (schemas.input_kind(name), schemas.output_kind(name)) {
        (Some(kind), None) => Ok(Column::Input(name.to_owned(), kind)),
        (None, Some(kind)) => Ok(Column::Expected(name.to_owned(), kind)),
        (Some(_), Some(_)) => {
            Err(format!("column {name} is in the input and in the output: write input.{name} or expected.{name}"))
        }
        (None, None) => {
            let known = "id, weight, group, split, labels, input.FIELD and expected.FIELD";
            Err(format!("unknown column {name:?}; columns are {known}"))
        }
    }
}

fn read_record(line: u64, record: &csv::ByteRecord, columns: &[Column]) -> Result<RawExample, Vec<ExampleFault>> {
    if record.len() != columns.len() {
        let rule = format!("it has {} cells, and the header has {}", record.len(), columns.len());
        return Err(vec![ExampleFault::new(line, "", rule, SkipReason::InputSchema)]);
    }
    let mut raw = RawExample::default();
    let (mut input, mut expected) = (Map::new(), Map::new());
    let mut faults = Vec::new();
    for (cell, column) in record.iter().zip(columns) {
        let mut fault = |path: String, rule: String, reason| faults.push(ExampleFault::new(line, path, rule, reason));
        let Ok(cell) = from_utf8(cell) else {
            fault(column.path(), "it is not UTF-8".to_owned(), SkipReason::InputSchema);
            continue;
        };
        if cell.is_empty() {
            continue;
        }
        match column {
            Column::Id => raw.id = Some(cell.to_owned()),
            Column::Group => raw.group = Some(cell.to_owned()),
            Column::Labels => {
                let labels = cell.split(';').map(str::trim).filter(|label| !label.is_empty());
                raw.labels = labels.map(str::to_owned).collect();
            }
            Column::Weight => match CellKind::Number.read(cell) {
                Ok(weight) => raw.weight = weight.as_f64(),
                Err(rule) => fault(column.path(), rule, SkipReason::InputSchema),
            },
            Column::Split => match cell.trim().parse() {
                Ok(split) => raw.split = Some(split),
                Err(_) => {
                    let rule = "it is not train, holdout or test".to_owned();
                    fault(column.path(), rule, SkipReason::InputSchema);
                }
            },
            Column::Input(field, kind) => match kind.read(cell) {
                Ok(value) => {
                    input.insert(field.clone(), value);
                }
                Err(rule) => fault(column.path(), rule, SkipReason::InputSchema),
            },
            Column::Expected(field, kind) => match kind.read(cell) {
                Ok(value) => {
                    expected.insert(field.clone(), value);
                }
                Err(rule) => fault(column.path(), rule, SkipReason::ExpectedSchema),
            },
            Column::Answer(kind) => match kind.read(cell) {
                Ok(value) => raw.expected = Some(value),
                Err(rule) => fault(column.path(), rule, SkipReason::ExpectedSchema),
            },
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    raw.input = Value::Object(input);
    if !expected.is_empty() {
        raw.expected = Some(Value::Object(expected));
    }
    Ok(raw)
}

impl Column {
    /// Returns the JSON Pointer of the field that the column fills.
    fn path(&self) -> String {
        let below = |side: &str, field: &str| format!("/{side}/{}", field.replace('~', "~0").replace('/', "~1"));
        match self {
            Self::Id => "/id".to_owned(),
            Self::Weight => "/weight".to_owned(),
            Self::Group => "/group".to_owned(),
            Self::Split => "/split".to_owned(),
            Self::Labels => "/labels".to_owned(),
            Self::Input(field, _) => below("input", field),
            Self::Expected(field, _) => below("expected", field),
            Self::Answer(_) => "/expected".to_owned(),
        }
    }
}
