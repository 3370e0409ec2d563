//! Structured logs on standard error.

use std::str::FromStr;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Which lines are written: a level, or a filter by target as `tracing` has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level(String);

/// Why a text is no log setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogSettingError {
    /// An unknown format.
    #[error("{0:?} is no log format; use text or json")]
    Format(String),
    /// An unknown level or a malformed filter.
    #[error(
        "{0:?} is no log level; use error, warn, info, debug, trace, or a filter such as info,swimlet_mesh=debug"
    )]
    Level(String),
}

/// Starts logging for this process.
///
/// # Errors
/// If logging was started before.
pub fn start(format: Format, level: &Level) -> Result<(), TryInitError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(&level.0))
        .with_writer(std::io::stderr);
    match format {
        Format::Text => builder.with_ansi(false).finish().try_init(),
        Format::Json => builder.json().flatten_event(true).finish().try_init(),
    }
}

impl FromStr for Format {
    type Err = LogSettingError;

    fn from_str(text: &str) -> Result<Self, LogSettingError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(LogSettingError::Format(other.to_owned())),
        }
    }
}

impl FromStr for Level {
    type Err = LogSettingError;

    fn from_str(text: &str) -> Result<Self, LogSettingError> {
        match EnvFilter::try_new(text) {
            Ok(_) if !text.is_empty() => Ok(Self(text.to_owned())),
            _ => Err(LogSettingError::Level(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_parsed_or_explained() {
        assert_eq!("json".parse(), Ok(Format::Json));
        assert!(
            "xml"
                .parse::<Format>()
                .unwrap_err()
                .to_string()
                .contains("xml")
        );
        assert!("info,swimlet_mesh=debug".parse::<Level>().is_ok());
        assert!("loud=very=much".parse::<Level>().is_err());
    }
}
