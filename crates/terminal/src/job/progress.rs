//! The progress of a job: one line that is redrawn on a terminal, and a line now and then elsewhere.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cantrip_service::contracts::job::{JobProgressView, JobStanding};
use cantrip_service::wording::{decimal, micro, time_left};

use crate::cursor;
use crate::limits::{JOB_BAR_COLUMNS, JOB_LINE_MS, JOB_REDRAW_MS};
use crate::present::{DIM, cut, say, width_of_error};

/// The state of a job as its line shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobState {
    /// The optimiser of a compile, which is shown in the place of the name of the line.
    pub optimiser: Option<String>,
    /// The number of trials that have settled.
    pub done: u64,
    /// The number of trials at worst.
    pub whole: u64,
    /// Further parts of the line: the running mean, the money.
    pub facts: Vec<String>,
    pub left_ms: Option<u64>,
}

impl JobState {
    /// Returns the progress of a job as its line shows it.
    pub fn of(progress: &JobProgressView) -> Self {
        let mut facts = Vec::new();
        match (progress.standing, progress.mean_micro) {
            (Some(standing), _) => facts.extend(search_facts(progress.proposals, standing)),
            (None, Some(mean)) => facts.push(format!("mean {}", decimal(micro(mean), 2))),
            (None, None) => {}
        }
        if progress.unscored > 0 {
            facts.push(format!("{} without a score", progress.unscored));
        }
        match (progress.spent, progress.budget) {
            (Some(spent), Some(budget)) => {
                let spent = spent.to_string();
                facts.push(format!("{} of {budget}", spent.split(' ').next().unwrap_or_default()));
            }
            (Some(spent), None) => facts.push(spent.to_string()),
            (None, _) => {}
        }
        Self {
            optimiser: progress.optimiser.clone(),
            done: progress.done,
            whole: progress.whole,
            facts,
            left_ms: progress.left_ms,
        }
    }
}

/// Returns the standing of a search: `12 proposals, 4 kept` and `best 0.71 (start 0.58)`.
fn search_facts(proposals: u64, standing: JobStanding) -> Vec<String> {
    let mut facts = Vec::new();
    if proposals > 0 {
        facts.push(format!("{proposals} proposals, {} kept", standing.kept));
    }
    if let Some(best) = standing.best_micro {
        let start = standing.start_micro.map(|start| format!(" (start {})", decimal(micro(start), 2)));
        facts.push(format!("best {}{}", decimal(micro(best), 2), start.unwrap_or_default()));
    }
    facts
}

/// Draws the progress of one job.
#[derive(Debug)]
pub struct JobProgressLine {
    name: String,
    is_terminal: bool,
    shown: Mutex<ShownProgress>,
}

#[derive(Debug, Default)]
struct ShownProgress {
    /// The time of the last line.
    at: Option<Instant>,
    state: JobState,
    /// True if the last state is on the screen.
    is_shown: bool,
}

impl ShownProgress {
    /// Takes a new state, and returns true if a line is due at this time.
    fn take(&mut self, state: JobState, now: Instant, is_terminal: bool) -> bool {
        // Trials settle in any order, so two reports may arrive in the wrong one.
        if state.done < self.state.done {
            return false;
        }
        self.state = state;
        self.is_shown = false;
        let pause = Duration::from_millis(if is_terminal { JOB_REDRAW_MS } else { JOB_LINE_MS });
        let is_due = match self.at {
            Some(last) => now.duration_since(last) >= pause,
            // Off a terminal the first line comes after the first pause: a short job needs none.
            None => is_terminal,
        };
        if is_due || self.at.is_none() {
            self.at = Some(now);
        }
        is_due
    }
}

impl JobProgressLine {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), is_terminal: io::stderr().is_terminal(), shown: Mutex::default() }
    }

    /// Shows a new state, unless the last line is too recent: a terminal is redrawn at most ten times a second, and a
    /// file or a pipe gets a line every ten seconds.
    pub fn show(&self, state: JobState) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.take(state, Instant::now(), self.is_terminal) {
            self.draw(&mut shown);
        }
    }

    /// Shows the last state, if it is not on the screen yet, and leaves it there.
    pub fn end(&self) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.state.whole == 0 {
            return;
        }
        if self.is_terminal {
            let line = self.fitted(&shown.state);
            say(&format!("{DIM}{line}{DIM:#}"));
        } else if !shown.is_shown {
            self.draw(&mut shown);
        }
    }

    fn draw(&self, shown: &mut ShownProgress) {
        let line = self.fitted(&shown.state);
        if self.is_terminal {
            cursor::show_status(DIM, &line, line.chars().count());
        } else {
            say(&line);
        }
        shown.is_shown = true;
    }

    /// Returns the line, cut to the width of the terminal.
    fn fitted(&self, state: &JobState) -> String {
        let line = progress_line(&self.name, state);
        match width_of_error().filter(|_| self.is_terminal) {
            Some(columns) => cut(&line, columns.saturating_sub(1)),
            None => line,
        }
    }
}

/// Returns the progress of a job as one line.
pub fn progress_line(name: &str, state: &JobState) -> String {
    let JobState { optimiser, done, whole, facts, left_ms } = state;
    let name = optimiser.as_deref().unwrap_or(name);
    let filled = (done * JOB_BAR_COLUMNS).checked_div(*whole).unwrap_or(0).min(JOB_BAR_COLUMNS);
    let bar: String = (0..JOB_BAR_COLUMNS).map(|column| if column < filled { '#' } else { '.' }).collect();
    let mut line = format!("{name}  [{bar}] {done}/{whole} trials");
    for fact in facts {
        line.push_str("  ");
        line.push_str(fact);
    }
    if let Some(left) = left_ms.filter(|_| done < whole) {
        line.push_str("  ");
        line.push_str(&time_left(left));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_bar_the_count_the_facts_and_the_time_left() {
        let state = JobState {
            optimiser: None,
            done: 412,
            whole: 900,
            facts: vec!["mean 0.710".to_owned(), "0.18 of 0.50 USD".to_owned()],
            left_ms: Some(250_000),
        };
        assert_eq!(
            progress_line("eval", &state),
            "eval  [#######.........] 412/900 trials  mean 0.710  0.18 of 0.50 USD  about 4 min left"
        );
        let search = JobState { optimiser: Some("gepa.v1".to_owned()), whole: 900, ..JobState::default() };
        assert_eq!(progress_line("job", &search), "gepa.v1  [................] 0/900 trials");
    }

    #[test]
    fn a_search_shows_its_proposals_and_its_best_score_beside_the_start() {
        let standing = JobStanding { best_micro: Some(708_000), start_micro: Some(580_000), kept: 4 };
        assert_eq!(search_facts(12, standing), ["12 proposals, 4 kept", "best 0.71 (start 0.58)"]);
        assert_eq!(search_facts(0, JobStanding::default()), Vec::<String>::new());
    }

    #[test]
    fn the_bar_is_full_at_the_whole_and_only_there() {
        let line = |done| progress_line("eval", &JobState { done, whole: 900, ..JobState::default() });
        assert!(line(899).contains("[###############.]"), "{}", line(899));
        assert!(line(900).contains("[################] 900/900"), "{}", line(900));
        assert!(progress_line("eval", &JobState::default()).contains("[................] 0/0"));
    }

    fn at(done: u64) -> JobState {
        JobState { done, whole: 900, ..JobState::default() }
    }

    #[test]
    fn a_state_that_arrives_late_does_not_move_the_line_back() {
        let (mut shown, now) = (ShownProgress::default(), Instant::now());
        assert!(shown.take(at(5), now, true));
        assert!(!shown.take(at(3), now + Duration::from_secs(60), true));
        assert_eq!(shown.state.done, 5);
    }

    #[test]
    fn a_line_is_drawn_ten_times_a_second_on_a_terminal_and_each_ten_seconds_elsewhere() {
        for (is_terminal, pause_ms, lines) in [(true, 100, 601), (false, 10_000, 6)] {
            let (mut shown, began) = (ShownProgress::default(), Instant::now());
            // A trial settles every 10 ms for a minute.
            let due = |step: u64| {
                let now = began + Duration::from_millis(step * 10);
                shown.take(at(step / 8), now, is_terminal).then_some(step * 10)
            };
            let drawn: Vec<u64> = (0..=6_000).filter_map(due).collect();
            assert_eq!(drawn.len(), lines, "{is_terminal}: {drawn:?}");
            assert!(drawn.windows(2).all(|pair| pair[1] - pair[0] >= pause_ms), "{is_terminal}: {drawn:?}");
        }
    }
}
