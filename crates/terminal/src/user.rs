//! The user at the terminal, asked by an entity.
//!
//! Question and answer use the terminal itself, not standard input and output, because those may be a pipe of data. The
//! terminal is opened again for each question and read without blocking a thread. So a cancelled question leaves no
//! reader behind that would consume the next typed line.

use std::fs::OpenOptions;
use std::io::{self, Write};

use cantrip::circle::gate::Identity;
use cantrip::circle::gate::builtin::{AskError, Human, Question};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::{self, Receiver};

use crate::cursor;
use crate::limits::TYPED_BYTES_MAX;
use crate::present::strip_control;

const TERMINAL: &str = "/dev/tty";

/// The user at the terminal from which this process was started.
#[derive(Debug, Clone, Copy)]
pub struct TerminalUser;

impl Human for TerminalUser {
    async fn ask(&self, _: Option<&Identity>, question: Question) -> Result<String, AskError> {
        let nobody = || AskError::Refused { actor: "nobody".to_owned(), reason: "no terminal to ask on".to_owned() };
        let broken = |error: io::Error| AskError::Failed { cause: error.to_string() };
        // `unchecked` accepts any file that can be polled, not only a pipe.
        let mut keys = pipe::OpenOptions::new().unchecked(true).open_receiver(TERMINAL).map_err(|_| nobody())?;
        let mut screen = OpenOptions::new().write(true).open(TERMINAL).map_err(|_| nobody())?;
        cursor::settle();
        screen.write_all(render_question(&question).as_bytes()).map_err(broken)?;
        match line(&mut keys).await.map_err(broken)? {
            Some(answer) => Ok(resolve_choice(&answer, &question.choices)),
            None => Err(AskError::Refused { actor: "the person".to_owned(), reason: "no answer was given".to_owned() }),
        }
    }
}

/// Asks a question at the terminal that is answered with yes or no. Any line but `y` or `yes` is a no. Returns None if
/// there is no terminal.
pub async fn confirm(question: &str) -> Option<bool> {
    let mut keys = pipe::OpenOptions::new().unchecked(true).open_receiver(TERMINAL).ok()?;
    let mut screen = OpenOptions::new().write(true).open(TERMINAL).ok()?;
    cursor::settle();
    screen.write_all(format!("{} [y/N] ", strip_control(question)).as_bytes()).ok()?;
    let typed = line(&mut keys).await.ok()?;
    Some(typed.is_some_and(|typed| is_yes(&typed)))
}

fn is_yes(typed: &str) -> bool {
    matches!(typed.trim().to_lowercase().as_str(), "y" | "yes")
}

fn render_question(question: &Question) -> String {
    let choices = question.choices.iter().enumerate();
    let choices: String = choices.map(|(at, choice)| format!("  {}. {}\n", at + 1, strip_control(choice))).collect();
    format!("\n? {}\n{choices}> ", strip_control(&question.question).replace('\n', "\n  "))
}

/// Replaces a number by the choice with that number.
fn resolve_choice(answer: &str, choices: &[String]) -> String {
    let answer = answer.trim();
    let number = answer.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    number.and_then(|at| choices.get(at)).map_or_else(|| answer.to_owned(), Clone::clone)
}

/// Reads one line, up to the allowed length; None at the end of the input.
async fn line(keys: &mut Receiver) -> io::Result<Option<String>> {
    let mut typed = Vec::new();
    loop {
        let count = keys.read_buf(&mut typed).await?;
        if count == 0 && typed.is_empty() {
            return Ok(None);
        }
        if count == 0 || typed.ends_with(b"\n") || typed.len() >= TYPED_BYTES_MAX {
            return Ok(Some(String::from_utf8_lossy(&typed).into_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{is_yes, resolve_choice};

    #[test]
    fn only_yes_is_yes() {
        assert!(is_yes("y\n") && is_yes(" Yes "));
        for typed in ["", "\n", "n", "no", "yep", "yes please"] {
            assert!(!is_yes(typed), "{typed:?}");
        }
    }

    #[test]
    fn a_number_chooses_and_anything_else_is_the_answer() {
        let choices = ["red".to_owned(), "blue".to_owned()];
        assert_eq!(resolve_choice("2\n", &choices), "blue");
        assert_eq!(resolve_choice(" blue ", &choices), "blue");
        assert_eq!(resolve_choice("3", &choices), "3");
        assert_eq!(resolve_choice("0", &choices), "0");
        assert_eq!(resolve_choice("1", &[]), "1");
    }
}
