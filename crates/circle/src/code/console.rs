//! The printed output of a program, cut to what is shown.

use super::ProgramLimits;

/// The text that a program has printed so far.
#[derive(Debug, Clone, Default)]
pub struct ConsoleOutput {
    shown: String,
    /// The number of bytes that the program printed, shown or not.
    printed: usize,
}

impl ConsoleOutput {
    /// Adds text. Returns false if the text does not fit into the limit of output; the part that fits is added.
    pub fn print(&mut self, text: &str, limits: &ProgramLimits) -> bool {
        let left = limits.output_bytes.saturating_sub(self.printed);
        let added = &text[..text.floor_char_boundary(left)];
        // After the first cut, no later text is shown.
        if self.printed == self.shown.len() {
            self.shown.push_str(&added[..added.floor_char_boundary(self.room(limits))]);
        }
        self.printed += added.len();
        text.len() <= left
    }

    /// Cuts a value to the room that the console has left. Returns the text to show and the number of bytes cut.
    pub fn cut_value(&self, mut text: String, limits: &ProgramLimits) -> (String, u64) {
        let shown = text.floor_char_boundary(self.room(limits));
        let cut = text.len() - shown;
        text.truncate(shown);
        (text, cut as u64)
    }

    /// Returns the text to show and the number of bytes that were cut.
    pub fn into_shown(self) -> (String, u64) {
        let cut = self.printed - self.shown.len();
        (self.shown, cut as u64)
    }

    fn room(&self, limits: &ProgramLimits) -> usize {
        limits.output_shown_bytes.saturating_sub(self.shown.len())
    }
}
