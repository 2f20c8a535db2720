use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{DemoError, Verdict};

/// What the story is written on.
///
/// A reader who has closed it has read enough, which is no failure. Any other is kept until [`Paper::check`] asks
/// for it, so that a line can be written without a thought.
#[derive(Debug)]
pub(super) struct Paper {
    colour: bool,
    failure: Mutex<Option<io::Error>>,
}

/// How something is meant, for terminals that can show it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ink {
    Bold,
    Dim,
    Good,
    Wait,
    Bad,
}

const WIDTH: usize = 92;
const MARGIN: &str = "    ";

impl Paper {
    /// Colours are for terminals, and for those only that do not ask for none.
    pub(super) fn on_standard_output() -> Self {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        Self {
            colour: io::stdout().is_terminal() && !unwanted && !dumb,
            failure: Mutex::new(None),
        }
    }

    /// Whether what was written could be.
    ///
    /// # Errors
    ///
    /// [`DemoError::Output`] when something could not.
    pub(super) fn check(&self) -> Result<(), DemoError> {
        match self.failure().take() {
            Some(error) => Err(DemoError::Output(error)),
            None => Ok(()),
        }
    }

    fn failure(&self) -> MutexGuard<'_, Option<io::Error>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Text of this kind.
    pub(super) fn ink(&self, ink: Ink, text: impl Display) -> String {
        if !self.colour {
            return text.to_string();
        }
        let code = match ink {
            Ink::Bold => "1",
            Ink::Dim => "2",
            Ink::Good => "32",
            Ink::Wait => "33",
            Ink::Bad => "31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    pub(super) fn line(&self, text: impl Display) {
        let mut out = io::stdout();
        match writeln!(out, "{text}").and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                self.failure().get_or_insert(error);
            }
            _ => {}
        }
    }

    pub(super) fn blank(&self) {
        self.line("");
    }

    pub(super) fn title(&self, text: &str) {
        self.blank();
        self.line(self.ink(Ink::Bold, text));
    }

    pub(super) fn heading(&self, number: usize, text: &str) {
        self.blank();
        self.line(self.ink(Ink::Bold, format_args!("{number:>2}  {text}")));
    }

    /// One thing that happens: a sign, what happens, and what there is to know about it.
    pub(super) fn event(&self, sign: &str, what: (Ink, &str), about: &str) {
        let padded = format!("{:<26}", what.1);
        let line = format!("{MARGIN}{sign}  {}{about}", self.ink(what.0, padded));
        self.line(line.trim_end());
    }

    /// The table at the end, and what it comes to.
    pub(super) fn account(&self, verdict: &Verdict, took: Duration) {
        self.title("The account");
        self.blank();
        for (what, count) in [
            ("operations that the clients wanted", verdict.operations),
            ("requests that they sent", verdict.requests),
            ("charges in the provider's ledger", verdict.charges),
        ] {
            self.row(what, (Ink::Bold, count), "");
        }
        for (what, found) in [
            ("charged too often", &verdict.too_often),
            ("lost", &verdict.lost),
            ("answers that differed", &verdict.answered_differently),
            ("not as the story has it", &verdict.surprises),
        ] {
            let ink = if found.is_empty() {
                Ink::Good
            } else {
                Ink::Bad
            };
            self.row(what, (ink, found.len()), &found.join(", "));
        }
        self.blank();
        let (ink, text) = match (verdict.is_good(), verdict.declined) {
            (false, _) => (Ink::Bad, "This is not what idempotency keys promise."),
            (true, 0) => (
                Ink::Good,
                "Every operation was charged once and answered alike.",
            ),
            (true, _) => (
                Ink::Good,
                "Every operation was charged once, but for the declined card, and answered alike.",
            ),
        };
        let text = format!("{text} Played in {:.1} s.", took.as_secs_f64());
        self.line(format_args!("{MARGIN}{}", self.ink(ink, text)));
        if verdict.is_good() {
            self.blank();
            self.say(
                "To try it by hand: cargo demo serve. To see what keys are for: cargo demo --ignore-keys.",
            );
        }
    }

    fn row(&self, what: &str, count: (Ink, usize), which: &str) {
        let number = self.ink(count.0, format_args!("{:>5}", count.1));
        self.line(format!("{MARGIN}{what:<38}{number}   {which}").trim_end());
    }

    /// A sentence or two.
    pub(super) fn say(&self, text: &str) {
        for line in wrapped(text) {
            self.line(format_args!("{MARGIN}{line}"));
        }
    }
}

/// The text in lines of at most [`WIDTH`] characters.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
