//! The support tickets of `examples/tickets`, as the tests read them.

/// The committed file.
pub const CSV: &str = include_str!("../../../../examples/tickets/tickets.csv");

/// The classes of the tickets.
pub const LABELS: [&str; 4] = ["billing", "shipping", "technical", "account"];

/// A line of the dataset.
#[derive(Debug, Clone)]
pub struct Ticket {
    pub id: String,
    pub split: String,
    pub label: String,
    pub text: String,
}

/// Reads the tickets, with the quoting of RFC 4180. The product's own reader is under test, and is not used here.
pub fn tickets() -> Vec<Ticket> {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let (mut row, mut cell) = (Vec::new(), String::new());
    let mut quoted = false;
    let mut letters = CSV.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => row.push(std::mem::take(&mut cell)),
            '\n' if !quoted => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            other => cell.push(other),
        }
    }
    assert_eq!(rows.remove(0), ["id", "split", "label", "text"]);
    let ticket = |row: Vec<String>| match <[String; 4]>::try_from(row) {
        Ok([id, split, label, text]) => Ticket { id, split, label, text },
        Err(row) => panic!("{row:?} has another number of cells"),
    };
    rows.into_iter().map(ticket).collect()
}

/// Returns the first tickets of this split: of each label the same number, in turn.
pub fn first_of(split: &str, count: usize) -> Vec<Ticket> {
    let all = tickets();
    let of = |label: &str| -> Vec<Ticket> {
        all.iter().filter(|ticket| ticket.split == split && ticket.label == label).cloned().collect()
    };
    let by_label = LABELS.map(of);
    let rounds = by_label.iter().map(Vec::len).min().unwrap_or(0);
    let in_turn = (0..rounds).flat_map(|round| by_label.iter().map(move |tickets| tickets[round].clone()));
    let taken: Vec<Ticket> = in_turn.take(count).collect();
    assert_eq!(taken.len(), count, "{split} has fewer tickets");
    taken
}
