//! How the demo's story is shown: plain lines, colours on a terminal, or JSON.

use std::io::{IsTerminal, stdout};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::out;

/// How weighty a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// A step of the story.
    Step,
    /// Something bad.
    Bad,
    /// Something good.
    Good,
}

/// Shows the story.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Teller {
    /// One JSON object a line.
    Json,
    /// Lines for a pipe.
    Plain,
    /// Lines with colour, and a live one.
    Terminal,
}

impl Teller {
    /// The teller that fits standard output.
    pub(crate) fn new(json: bool) -> Self {
        if json {
            Self::Json
        } else if stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
            Self::Terminal
        } else {
            Self::Plain
        }
    }

    /// Tells a step: `event` names it for programs, `text` for people, `fields` go with it.
    pub(crate) fn tell(self, at: Duration, tone: Tone, event: &str, text: &str, fields: Value) {
        match self {
            Self::Json => {
                let mut object = json!({ "event": event, "at_ms": millis(at), "text": text });
                if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
                    object.extend(fields);
                }
                out(&format!("{object}\n"));
            }
            Self::Plain => out(&format!("{:7.3}s  {text}\n", at.as_secs_f64())),
            Self::Terminal => {
                let colour = match tone {
                    Tone::Step => "0",
                    Tone::Bad => "1;31",
                    Tone::Good => "1;32",
                };
                out(&format!(
                    "\r\x1b[2K\x1b[2m{:7.3}s\x1b[0m  \x1b[{colour}m{text}\x1b[0m\n",
                    at.as_secs_f64()
                ));
            }
        }
    }

    /// Replaces the live line, where there is one.
    pub(crate) fn live(self, at: Duration, text: &str) {
        if let Self::Terminal = self {
            out(&format!(
                "\r\x1b[2K\x1b[2m{:7.3}s  {text}\x1b[0m",
                at.as_secs_f64()
            ));
        }
    }

    /// Takes the live line away.
    pub(crate) fn end(self) {
        if let Self::Terminal = self {
            out("\r\x1b[2K");
        }
    }

    /// Ends the story: the summary, for people or as the last JSON object.
    pub(crate) fn summary(self, text: &str, object: &Value) {
        self.end();
        match self {
            Self::Json => out(&format!("{object}\n")),
            Self::Plain | Self::Terminal => out(&format!("\n{text}\n")),
        }
    }
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
